"""`populace verify`: an honest run holds, and every planted lie is found."""

import json
import shutil

import numpy as np
import pytest

from populace.cli.main import call
from populace.privacy.guarantee import guarantee_from_json
from populace.report.statement import write_statement
from populace.runs.folder import RunFolder, claim_json, digest_of, digests
from populace.runs.verify.checks import read_papers, verify_papers
from populace.tables.embedded import harbour

METHODS = {
    "independent": ["--method", "independent", "--epsilon", "2"],
    "moments": ["--method", "moments", "--epsilon", "4", "--records-per-client", "20"],
    "fed-vae": [
        "--method", "fed-vae", "--epsilon", "4", "--records-per-client", "20", "--set", "rounds=1", "--set",
        "local_epochs=1", "--set", "hidden_size=4", "--set", "latent_size=2",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verified")
    harbour().take(np.arange(60)).save(folder / "people.parquet")
    for name, words in METHODS.items():
        assert (
            call(["synthesize", str(folder / "people.parquet"), *words, "--rows", "5", "--out", str(folder / name)])
            == 0
        )
    return folder


@pytest.fixture
def run(made, tmp_path):
    def copied(name):
        shutil.copytree(made / name, tmp_path / name)
        return tmp_path / name

    return copied


def rewrite(folder, change, *, statement=False):
    """Change privacy.json; with `statement`, so that it agrees with itself and with its page."""
    path = folder / "privacy.json"
    document = json.loads(path.read_text())
    change(document)
    if statement:
        document |= claim_json(guarantee_from_json(document), document["history"])
    path.write_text(json.dumps(document))
    if statement:
        write_statement(folder)


def failed(folder, capsys):
    """The checks that fail, by the command itself."""
    code = call(["verify", str(folder), "--json"])
    document = json.loads(capsys.readouterr().out)
    wrong, unchecked = (
        [check["check"] for check in document["checks"] if check["result"] == result]
        for result in ("fails", "not checked")
    )
    assert code == (1 if wrong else 3 if unchecked else 0)
    assert (document["holds"], document["complete"]) == (not wrong, not unchecked)
    return wrong


@pytest.mark.parametrize("name", METHODS)
def test_an_honest_run_holds(made, capsys, name):
    assert failed(made / name, capsys) == []
    assert call(["verify", str(made / name)]) == 0
    said = capsys.readouterr().out
    assert "everything holds" in said
    assert "could not be checked" not in said
    assert "privacy.html: is the page of this privacy.json, word for word" in said


def test_a_fit_of_collected_answers_has_a_statement_that_holds(tmp_path, capsys):
    """Its own seed draws no noise, and does not count."""
    people, schema = str(tmp_path / "people.parquet"), str(tmp_path / "people.toml")
    harbour().take(np.arange(60)).save(people)
    assert call(["schema", people, "-o", schema]) == 0
    collect = [
        "poll",
        "collect",
        people,
        "--schema",
        schema,
        "--epsilon",
        "2",
        "--out",
        str(tmp_path / "answers.parquet"),
    ]
    assert call(collect) == 0
    fit = ["poll", "fit", str(tmp_path / "answers.parquet"), "--schema", schema, "--rows", "5", "--seed", "1"]
    assert call([*fit, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert failed(tmp_path / "run", capsys) == []
    assert "60 answers collected in files" in (tmp_path / "run/privacy.html").read_text()


@pytest.mark.parametrize("name", ["independent", "moments"])
def test_an_epsilon_lowered_by_a_hundredth_is_found(run, capsys, name):
    """Even where statement and page were made to agree with it."""
    folder = run(name)
    rewrite(folder, lambda document: document.update(epsilon=document["epsilon"] * 0.99), statement=True)
    assert "claim and events, from below" in failed(folder, capsys)


def test_a_delta_that_grew_costs_nothing_and_one_that_shrank_is_found(run, capsys):
    folder = run("moments")
    rewrite(folder, lambda document: document.update(delta=document["delta"] * 0.5), statement=True)
    assert "claim and events, from below" in failed(folder, capsys)


def test_words_that_were_edited_are_found(run, capsys):
    folder = run("moments")
    rewrite(folder, lambda document: document.update(statement=document["statement"].replace("silo", "nobody")))
    wrong = failed(folder, capsys)
    assert "statement and numbers" in wrong
    assert "privacy.html" in wrong  # it is the page of the file as it was


@pytest.mark.parametrize("key", ["bound", "headline", "trust_in_words", "unit_in_words", "randomness", "kind"])
def test_every_word_is_compared(run, capsys, key):
    folder = run("independent")
    rewrite(folder, lambda document: document.update({key: "something else"}))
    assert "statement and numbers" in failed(folder, capsys)


def test_an_event_that_was_removed_is_found(run, capsys):
    """An event list of two, as a chain of methods leaves it; without one of them the ledger does not agree."""
    folder = run("moments")
    both = {
        "kind": "Composed",
        "events": [{"kind": "Gaussian", "noise_multiplier": 2.0}, {"kind": "Pure", "epsilon": 0.5}],
    }

    def put(document):
        from populace.privacy.accounting import epsilon_of
        from populace.privacy.events import from_json

        delta = document["delta"] - document["sampling_delta"]
        document["event"], document["epsilon"] = both, epsilon_of(from_json(both), delta=delta)
        document["ledger"]["epsilon"] = epsilon_of(from_json(both), delta=document["ledger"]["delta"])

    rewrite(folder, put, statement=True)
    run_json = json.loads((folder / "run.json").read_text())
    run_json["ledger"] = json.loads((folder / "privacy.json").read_text())["ledger"]
    (folder / "run.json").write_text(json.dumps(run_json))
    assert "ledger and events" not in failed(folder, capsys)
    rewrite(folder, lambda document: document["event"]["events"].pop(), statement=True)
    assert "ledger and events" in failed(folder, capsys)


def test_less_noise_or_an_unprotected_release_is_found(run, capsys):
    folder = run("moments")
    kept = (folder / "privacy.json").read_text()
    rewrite(folder, lambda document: document["event"].update(noise_multiplier=0.5), statement=True)
    assert "claim and events, from below" in failed(folder, capsys)
    (folder / "privacy.json").write_text(kept)
    rewrite(folder, lambda document: document.update(event={"kind": "NonPrivate", "reason": "x"}), statement=True)
    assert "claim and events" in failed(folder, capsys)


@pytest.mark.parametrize("name", ["synthetic.parquet", "generator.npz", "generator.json"])
def test_a_file_that_was_changed_or_removed_is_found(run, capsys, name):
    folder = run("independent")
    changed = bytearray((folder / name).read_bytes())
    changed[len(changed) // 2] ^= 1
    (folder / name).write_bytes(bytes(changed))
    assert failed(folder, capsys) == [f"file {name}"]
    (folder / name).unlink()
    assert failed(folder, capsys) == [f"file {name}"]


def test_a_file_that_nobody_listed_is_found(run, capsys):
    folder = run("independent")
    (folder / "synthetic.csv").write_text("a\n1\n")
    assert failed(folder, capsys) == ["file synthetic.csv"]


def test_an_edited_page_and_the_page_of_another_run_are_found(run, capsys):
    folder, other = run("independent"), run("moments")
    page = (folder / "privacy.html").read_text()
    (folder / "privacy.html").write_text(page.replace("2-LDP", "1-LDP"))
    assert failed(folder, capsys) == ["privacy.html"]
    (folder / "privacy.html").write_text((other / "privacy.html").read_text())
    assert failed(folder, capsys) == ["privacy.html"]


def test_run_json_must_agree(run, capsys):
    folder = run("moments")
    kept = json.loads((folder / "run.json").read_text())
    for change in ({"method": "poll"}, {"ledger": {"epsilon": 0.0}}, {"rows": 7}):
        (folder / "run.json").write_text(json.dumps(kept | change))
        assert failed(folder, capsys) == ["run.json and privacy.json"]
    for spec, check in (({"epsilon": 1.0}, "run.json and privacy.json"), ({"seed": 3}, "seed")):
        (folder / "run.json").write_text(json.dumps(kept | {"spec": kept["spec"] | spec}))
        assert failed(folder, capsys) == [check]


def test_what_may_be_published_is_verified_alone(run, capsys, tmp_path):
    """Without run.json and generator; a file that was left out is named, a changed one is found."""
    folder, public = run("moments"), tmp_path / "public"
    public.mkdir()
    for name in ("synthetic.parquet", "privacy.html", "privacy.json"):
        shutil.copy(folder / name, public / name)
    assert call(["verify", str(public)]) == 3
    said = capsys.readouterr().out
    assert "there is no run.json here: only what may be published" in said
    assert "file generator.npz: is not in the folder" in said
    assert "holds as far as it could be checked; 3 could not be checked" in said
    for name in ("generator.json", "generator.npz"):
        shutil.copy(folder / name, public / name)
    assert call(["verify", str(public)]) == 0  # run.json may not be published: nothing is missing without it
    assert "everything holds" in capsys.readouterr().out
    (public / "synthetic.parquet").write_bytes(b"other rows")
    assert failed(public, capsys) == ["file synthetic.parquet"]


def test_bad_input_is_one_sentence(made, tmp_path, capsys):
    assert call(["verify", str(tmp_path / "nothing")]) == 2
    assert "no folder" in capsys.readouterr().err
    assert call(["verify", str(made)]) == 2
    assert "has no privacy.json" in capsys.readouterr().err
    (tmp_path / "damaged").mkdir()
    for text in ("{", "[]", '{"epsilon": 1}', '{"epsilon": -1}'):
        (tmp_path / "damaged/privacy.json").write_text(text)
        assert call(["verify", str(tmp_path / "damaged")]) == 2
        assert "Traceback" not in capsys.readouterr().err


def test_digests_are_of_what_was_released(made):
    found = digests(made / "moments")
    assert set(found) == {"generator.json", "generator.npz", "synthetic.parquet"}
    assert found["generator.npz"] == digest_of(made / "moments/generator.npz")
    assert read_papers(made / "moments").privacy["files"] == found
    assert RunFolder(made / "moments").finished
    assert {check.result for check in verify_papers(read_papers(made / "moments"))} == {"holds"}


def test_a_target_that_the_schema_names_needs_no_option(tmp_path):
    """Nobody gave --target: the schema's own is used, and an honest run holds."""
    table = harbour().take(np.arange(40))
    schema = table.schema.with_target("owns_home")
    schema.save(tmp_path / "people.toml")
    table.save(tmp_path / "people.parquet")
    given = [
        "--schema",
        str(tmp_path / "people.toml"),
        *METHODS["moments"],
        "--rows",
        "5",
        "--seed",  # noise on 40 rows may leave none that obeys the schema's rules
        "1",
        "--out",
        str(tmp_path / "run"),
    ]
    assert call(["synthesize", str(tmp_path / "people.parquet"), *given]) == 0
    assert call(["verify", str(tmp_path / "run")]) == 0
