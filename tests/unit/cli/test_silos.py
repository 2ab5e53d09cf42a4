"""A file is a silo: one file, several files, and what the command line and Python make of them."""

import json
import re

import numpy as np
import pytest

import populace as pop
from populace.cli.main import call
from populace.errors import InputError, SpecError
from populace.report.sections import command_of
from populace.runs.run import load_run
from populace.runs.spec import make_method, make_spec, spec_from_file
from populace.tables.embedded import harbour
from populace.tables.table import read_frame

LIGHT = ["--set", "components=3", "--set", "members=2", "--set", "fit_steps=10", "--rows", "20", "--seed", "1"]
SIZES = (50, 70, 30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("silos")
    starts = np.cumsum([0, *SIZES])
    for name, first, last in zip("abc", starts[:-1], starts[1:], strict=True):
        harbour().take(np.arange(first, last)).save(place / f"{name}.csv")
    harbour().schema.save(place / "people.toml")
    return place


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def three(folder):
    """A run over three files, with the method that is chosen for tables."""
    files = [str(folder / f"{name}.csv") for name in "abc"]
    given = ["--schema", str(folder / "people.toml"), "--epsilon", "2", *LIGHT, "--out", str(folder / "three")]
    assert call(["synthesize", *files, *given]) == 0
    return folder / "three"


def test_several_files_are_several_silos(three):
    document = json.loads((three / "run.json").read_text())
    assert (document["method"], document["clients"], document["split"]) == ("census", 3, "3 silos, one client each")
    assert document["spec"]["method"] == "census"
    assert document["spec"]["data"] == [str(three.parent / f"{name}.csv") for name in "abc"]
    privacy = json.loads((three / "privacy.json").read_text())
    assert privacy["simulated"]
    assert privacy["run"]["asked"]["silos"] == 3
    assert "NOT covered" not in privacy["statement"]
    assert call(["verify", str(three)]) == 0


def test_python_makes_the_same_run_of_the_same_files(three, folder):
    run = pop.synthesize(
        [folder / f"{name}.csv" for name in "abc"], epsilon=2, schema=folder / "people.toml", rows=20, seed=1, ledger=False,
        settings={"components": 3, "members": 2, "fit_steps": 10},
    )  # fmt: skip
    mine, theirs = run.details["spec"], load_run(three).details["spec"]
    assert list(mine["data"]) == theirs["data"]
    same = set(mine) - {"data", "settings"}  # settings of the command line are text
    assert {name: mine[name] for name in same} == {name: theirs[name] for name in same}
    assert run.sample(9, seed=2).to_arrow() == load_run(three).sample(9, seed=2).to_arrow()
    assert run.remarks[0].startswith("method: census, the default for tables")


def test_the_choice_of_the_method_and_its_reason_are_printed(here, capsys):
    given = ["--epsilon", "2", *LIGHT, "--no-ledger"]
    assert call(["synthesize", "a.csv", *given, "--out", "said"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("method: census, the default for tables: each file is a silo")
    assert "one silo, which holds all 50 records" in said
    assert call(["synthesize", "a.csv", *given, "--method", "census", "--out", "named"]) == 0
    assert "the default" not in capsys.readouterr().out


@pytest.mark.parametrize("trust", ["silo", "central"])
def test_one_file_is_the_central_synthesizer_of_whoever_holds_it(here, trust):
    out = f"one-{trust}"
    given = ["--schema", "people.toml", "--epsilon", "2", "--trust", trust, *LIGHT, "--no-ledger", "--out", out]
    assert call(["synthesize", "a.csv", *given]) == 0
    privacy = json.loads((here / out / "privacy.json").read_text())
    assert privacy["sole_holder"]
    assert not privacy["simulated"]
    assert "simulated" not in privacy["headline"]
    assert privacy["trust_in_words"].startswith("one silo: whoever holds all the records ran the method")
    page = (here / out / "privacy.html").read_text()
    assert "the records of one silo, which ran the method itself" in page
    assert "simulat" not in page.lower()
    assert call(["verify", out]) == 0
    del privacy["sole_holder"]  # a statement that hides it is noticed
    (here / out / "privacy.json").write_text(json.dumps(privacy))
    assert call(["verify", out]) == 1


def test_methods_that_protect_clients_ask_every_row(here):
    for files in (["a.csv"], ["a.csv", "b.csv"]):
        out = f"rows-{len(files)}"
        given = ["--method", "independent", "--epsilon", "2", "--rows", "5", "--no-ledger", "--out", out]
        assert call(["synthesize", *files, *given]) == 0
        document = json.loads((here / out / "run.json").read_text())
        assert document["clients"] == sum(SIZES[: len(files)])
        assert document["spec"]["silos"] is None
        assert not json.loads((here / out / "privacy.json").read_text()).get("sole_holder")


def test_smaller_silos_by_their_rows(here):
    given = ["--method", "moments", "--epsilon", "4", "--records-per-client", "25", "--rows", "5", "--seed", "1"]
    assert call(["synthesize", "a.csv", *given, "--no-ledger", "--out", "smaller"]) == 0
    document = json.loads((here / "smaller" / "run.json").read_text())
    assert document["split"] == "25 records per client"
    assert json.loads((here / "smaller" / "privacy.json").read_text())["simulated"]


def test_several_files_are_booked_together_and_resumed(here, tmp_path, capsys):
    assert call(["ledger", "show", "three", "--json"]) == 0
    (booked,) = [run for run in json.loads(capsys.readouterr().out)["runs"] if run["folder"].endswith("three")]
    assert (booked["data"], booked["rows"], booked["epsilon"] <= 2) == ("a.csv, b.csv, c.csv", sum(SIZES), True)
    (tmp_path / "b.csv").write_bytes((here / "b.csv").read_bytes())
    far = ["synthesize", "a.csv", str(tmp_path / "b.csv"), "--epsilon", "2", *LIGHT]
    assert call([*far, "--out", "far"]) == 2
    assert "lie in several folders" in capsys.readouterr().err
    assert call([*far, "--ledger", "populace-ledger.sqlite", "--out", "far"]) == 0
    assert "with 1 earlier run" in capsys.readouterr().out.replace("\n", " ")


def test_an_unfinished_run_goes_on_with_the_same_files_only(here, capsys, monkeypatch):
    given = ["synthesize", "a.csv", "b.csv", "--epsilon", "2", *LIGHT, "--no-ledger", "--out", "stopped"]
    with monkeypatch.context() as patch:
        patch.setattr("populace.runs.folder.RunFolder.save_synthetic", _stop)
        assert call(given) == 2
    assert call([*given[:2], "c.csv", *given[3:]]) == 2
    assert "another specification" in capsys.readouterr().err
    assert call(given) == 0
    assert "resuming the unfinished run" in capsys.readouterr().out


def _stop(*_):
    raise InputError("stopped for the test")


def test_the_report_has_the_command_that_makes_the_run_again(three):
    spec = json.loads((three / "run.json").read_text())["spec"]
    files = " ".join(spec["data"])
    assert command_of(spec).startswith(f"populace synthesize {files} --method census --epsilon 2.0")
    assert "--records-per-client" not in command_of(spec)
    dealt = {"data": "a.csv", "method": "moments", "epsilon": 4.0, "records_per_client": 1, "silos": None}
    assert "--records-per-client 1" in command_of(dealt)
    assert "--method poll" in command_of({"data": "a.csv", "method": None, "epsilon": 4.0, "records_per_client": 1})


def test_real_rows_may_stand_in_several_files(three, folder, capsys):
    real = [word for name in "abc" for word in ("--real", str(folder / f"{name}.csv"))]
    assert call(["evaluate", str(three), *real, "--target", "owns_home", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    found = pop.evaluate(
        load_run(three), real=[read_frame(folder / f"{name}.csv") for name in "abc"], target="owns_home"
    )
    first = next(iter(metrics["metrics"]))
    assert found.metrics["metrics"][first]["values"]["synthetic"]["value"] == pytest.approx(
        metrics["metrics"][first]["values"]["synthetic"]["value"]
    )
    assert re.search(r"populace evaluate \S+ --real \S+a.csv --real \S+b.csv", (three / "report.html").read_text())


def test_specifications_of_earlier_versions_keep_their_meaning():
    """They leave a default method unnamed, which was poll, and dealt one row to each client."""
    old = {"data": "people.csv", "epsilon": 4.0, "method": None, "records_per_client": 1, "settings": {}}
    assert make_method(spec_from_file(old)).facts.name == "poll"
    assert make_method(spec_from_file({**old, "data": "digits.npz"})).facts.name == "moments"
    assert spec_from_file({**old, "method": "moments"}).silos is None
    assert make_spec(data="people.csv", epsilon=4.0, method="moments").silos == 1
    assert make_spec(data="people.csv", epsilon=4.0).method == "census"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": ("a.csv", "./a.csv")}, "given twice"),
        ({"data": ()}, "needs data"),
        ({"data": ("a.csv", "b.csv"), "records_per_client": 9}, "list of silos"),
        ({"data": ("a.csv", "b.csv"), "client_column": "ward"}, "list of silos"),
        ({"data": 5}, "expected data as text or a list, got 5"),
        ({"data": "a.csv", "method": "poll", "most_records": 5}, "--most-records is for"),
    ],
)
def test_what_is_no_list_of_silos_is_one_sentence(options, words):
    with pytest.raises(SpecError, match=re.escape(words)):
        make_spec(epsilon=1.0, **options)


def test_a_plan_for_silos_needs_the_rows_of_one(here, capsys):
    given = ["plan", "--schema", "people.toml", "--clients", "3", "--epsilon", "1"]
    assert call(given) == 2
    assert "--records-per-client" in capsys.readouterr().err
    assert call([*given, "--records-per-client", "70", *LIGHT[:6]]) == 0
    assert "census, 3 silos" in capsys.readouterr().out
