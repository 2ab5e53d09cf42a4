"""Statements that agree with themselves, with their page and with their digests, and are not what their method guarantees."""

import contextlib
import dataclasses
import json
import math
import shutil

import numpy as np
import pytest
from jinja2 import TemplateError

from populace.cli.main import call
from populace.errors import PopulaceError
from populace.privacy.accounting import epsilon_of
from populace.privacy.events import Gaussian, Pure
from populace.privacy.guarantee import guarantee_from_json
from populace.privacy.run_totals import Cost
from populace.report.statement import write_statement
from populace.runs.folder import claim_json
from populace.runs.ledger.wording import public_history, said_publicly
from populace.runs.verify.method import same_words
from populace.tables.embedded import harbour

TINY = [
    "--set",
    "generator_steps=1",
    "--set",
    "critic_steps=2",
    "--set",
    "critic_hidden_size=3",
    "--set",
    "batch_size=1",
    "--set",
    "hidden_size=4",
]
RUNS = {
    "moments": ["--method", "moments", "--epsilon", "4", "--records-per-client", "20"],
    "central": ["--method", "moments", "--epsilon", "4", "--records-per-client", "20", "--trust", "central"],
    "fl-gan": ["--method", "fl-gan", "--epsilon", "2", "--records-per-client", "20", *TINY, "--set", "latent_size=2"],
    "people": ["--method", "independent", "--epsilon", "2", "--client-column", "person"],
    "declared": ["--method", "independent", "--epsilon", "2", "--client-column", "person", "--most-records", "4"],
    "poll": ["--method", "poll", "--epsilon", "2", "--set", "chains=1", "--set", "langevin_steps=24", "--set",
             "latent_classes=4"],
    "seeded": ["--method", "independent", "--epsilon", "2", "--seed", "5"],
    "alone": ["--method", "independent", "--epsilon", "2", "--no-ledger"],
    "baseline": ["--method", "fed-vae", "--epsilon", "4", "--records-per-client", "20", "--set", "rounds=1", "--set",
                 "local_epochs=1", "--set", "hidden_size=4", "--set", "latent_size=2"],
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Runs on a file whose domains are read from it, one after the other in one ledger; and one of images."""
    folder = tmp_path_factory.mktemp("lies")
    frame = harbour().take(np.arange(60)).frame
    frame = frame.append_column("person", [[f"p{row // 3}" for row in range(60)]])
    (folder / "people.csv").write_text(frame.to_pandas().to_csv(index=False))
    for name, words in RUNS.items():
        given = ["synthesize", str(folder / "people.csv"), *words, "--rows", "5", "--out", str(folder / name)]
        assert call(given) == 0
    labels = np.arange(40) % 2
    np.savez(
        folder / "real.npz", x=np.full((40, 8, 8), 90, np.uint8) + 90 * labels[:, None, None].astype(np.uint8), y=labels
    )
    given = ["synthesize", str(folder / "real.npz"), "--epsilon", "8", "--rows", "5", "--out", str(folder / "images")]
    assert call(given) == 0
    return folder


@pytest.fixture
def run(made, tmp_path):
    def copied(name, *, published=False, without=()):
        folder = tmp_path / f"{name}-{published}-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(made / name, folder)
        for left in (*(("run.json",) if published else ()), *without):
            (folder / left).unlink()
        return folder

    return copied


def lie(folder, **changes):
    """Change privacy.json, make its words and its page again, and leave out what is given as None."""
    path = folder / "privacy.json"
    document = json.loads(path.read_text())
    document |= changes
    document = {name: value for name, value in document.items() if value is not None or name not in changes}
    document |= claim_json(guarantee_from_json(document), document.get("history"))
    path.write_text(json.dumps(document))
    write_statement(folder)


def looked_at(folder, capsys):
    """The exit code, and the words of the checks that fail, by name."""
    capsys.readouterr()
    code = call(["verify", str(folder), "--json"])
    document = json.loads(capsys.readouterr().out)
    return code, {check["check"]: check["words"] for check in document["checks"] if check["result"] == "fails"}


@pytest.mark.parametrize("name", [*RUNS, "images"])
def test_honest_runs_hold_whole_and_published(run, capsys, name):
    assert looked_at(run(name), capsys) == (0, {})
    assert looked_at(run(name, published=True), capsys) == (0, {})
    folder = run(name, published=True, without=("generator.json", "generator.npz"))
    assert looked_at(folder, capsys) == (3, {})  # holds as far as it could be checked
    lie(run(name))  # made again from its own numbers, a statement is what it was


def test_a_target_that_the_schema_names_and_nobody_asked_for_holds(made, tmp_path, capsys):
    declared = dataclasses.replace(
        harbour().schema, forbidden=(), comparisons=()
    )  # twenty answers may say what rules forbid
    declared.with_target("owns_home").save(tmp_path / "people.toml")
    given = ["--schema", str(tmp_path / "people.toml"), "--method", "independent", "--epsilon", "2", "--rows", "5"]
    words = [
        "synthesize",
        str(made / "people.csv"),
        *given,
        "--client-column",
        "person",
        "--out",
        str(tmp_path / "run"),
    ]
    assert call(words) == 0
    assert looked_at(tmp_path / "run", capsys) == (0, {})


def test_a_run_that_was_evaluated_holds(run, made, capsys):
    folder = run("people")
    assert call(["evaluate", str(folder), "--real", str(made / "people.csv")]) == 0
    assert looked_at(folder, capsys) == (0, {})


@pytest.mark.parametrize("published", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("moments", {"neighbours": "replace"}, "neighbours ('replace' is stated, it says 'zero-out')"),
        ("moments", {"unit": "client", "protects": "all rows of one person"}, "unit ('client' is stated"),
        ("moments", {"protects": "all rows of one person"}, "protects ('all rows of one person'"),
        ("moments", {"units": 10}, "units (10 is stated, it says 60)"),
        ("moments", {"assumptions": []}, "assumptions"),
        ("moments", {"derivation": []}, "derivation"),
        ("moments", {"domains": None}, "domains (() is stated"),
        ("moments", {"delta": 1e-4, "sampling_delta": 0.0}, "delta (0.0001 is stated"),
        ("moments", {"mechanism": "exact sums without any error"}, "mechanism"),
        ("moments", {"simulated": False}, "simulated (False is stated"),
        ("moments", {"noise": "system"}, "noise ('system' is stated"),
        ("central", {"trust": "silo"}, "trust ('silo' is stated, it says 'central')"),
        ("moments", {"trust": "local"}, "trust ('local' is stated, it says 'silo')"),
        ("fl-gan", {"assumptions": [], "derivation": []}, "derivation"),
        ("fl-gan", {"neighbours": "replace"}, "neighbours ('replace'"),
        ("people", {"counts_read": None}, "counts_read (() is stated, it says ('the most records of one client (3)',))"),
        ("people", {"domain_sources": {"declared by: the ward": ["age"]}}, "domain_sources"),
        ("people", {"protects": "everything about everybody"}, "protects"),
        ("declared", {"units": 1000}, "units (1000 is stated, it says 20)"),
        ("images", {"domains": None}, "domains (() is stated, it says ('classes',))"),
        ("baseline", {"epsilon": 4.0, "trust": "central"}, "epsilon (4.0 is stated, it says inf)"),
    ],
)  # fmt: skip
def test_a_statement_that_is_not_the_methods_is_found(run, capsys, name, changes, word, published):
    """Unit, neighbours, trust, what was read, what is assumed: each by name, whether run.json is there or not."""
    folder = run(name, published=published)
    lie(folder, **changes)
    code, wrong = looked_at(folder, capsys)
    assert code == 1
    assert word in wrong["method"]
    assert "statement and numbers" not in wrong  # words and page agree with the lie


@pytest.mark.parametrize("changes", [
    {"neighbours": "replace"}, {"units": 10}, {"trust": "local"}, {"protects": "all rows of one person"}, {"epsilon": 2.0},
])  # fmt: skip
def test_leaving_the_model_out_does_not_hide_them(run, capsys, changes):
    folder = run("moments", published=True, without=("generator.json", "generator.npz"))
    lie(folder, **changes)
    assert "method" in looked_at(folder, capsys)[1]


def test_a_line_about_shuffling_is_made_again_too(run, capsys):
    folder = run("poll")
    derivation = json.loads((folder / "privacy.json").read_text())["derivation"]
    lie(folder, derivation=derivation[:-1])
    assert "derivation" in looked_at(folder, capsys)[1]["method"]


@pytest.mark.parametrize("published", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("taken", ["event", "ledger", "files", "run", "history"])
def test_a_bound_without_what_it_follows_from_fails(run, capsys, taken, published):
    """Not "not checked": format 2 has events, ledger, digests, facts and a word on other runs."""
    for value in ("left out", None, {}, [1], "certified"):
        folder = run("moments", published=published)
        path = folder / "privacy.json"
        document = json.loads(path.read_text()) | {"epsilon": 0.5, taken: value}
        document |= claim_json(guarantee_from_json(document), None)
        if value == "left out":
            del document[taken]
        path.write_text(json.dumps(document))
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError, PopulaceError, TemplateError):
            write_statement(folder)
        if taken == "event" and value not in ("left out", None):
            assert call(["verify", str(folder)]) == 2
            assert "is damaged" in capsys.readouterr().err
            continue
        code, wrong = looked_at(folder, capsys)
        assert code == 1
        assert "form of privacy.json" in wrong


def test_format_1_does_not_hide_what_format_2_must_say(run, capsys):
    for published in (False, True):
        folder = run("moments", published=published)
        path = folder / "privacy.json"
        document = json.loads(path.read_text()) | {"format": 1}
        path.write_text(json.dumps(document))
        write_statement(folder)
        code, wrong = looked_at(folder, capsys)
        assert code == 1
        assert "it says that 0.1.0 wrote it, which knew nothing of" in wrong["form of privacy.json"]
    old = ("statement", "bound", "headline", "epsilon", "delta", "kind", "unit", "unit_in_words", "neighbours", "trust",
           "neighbours_in_words", "trust_in_words", "mechanism", "derivation", "assumptions", "randomness",
           "ledger")  # fmt: skip
    folder = run("moments")
    path = folder / "privacy.json"
    path.write_text(json.dumps({name: json.loads(path.read_text())[name] for name in old}))
    write_statement(folder)
    assert "run.json says that populace" in looked_at(folder, capsys)[1]["form of privacy.json"]
    (folder / "privacy.json").write_text(json.dumps(document | {"format": 7}))
    assert "format 7 is not known" in looked_at(folder, capsys)[1]["form of privacy.json"]


@pytest.mark.parametrize(("where", "key"), [
    ((), "certified"), (("run",), "certified"), (("run", "asked"), "certified"), (("run", "versions"), "certified"),
    (("run", "population"), "certified"), (("history",), "certified"), (("ledger",), "certified"),
])  # fmt: skip
def test_a_key_that_no_run_writes_is_found(run, capsys, where, key):
    folder = run("moments", published=True)
    path = folder / "privacy.json"
    document = json.loads(path.read_text())
    inner = document
    for name in where:
        inner = inner[name]
    inner[key] = "by the office"
    path.write_text(json.dumps(document))
    write_statement(folder)
    assert "'certified'" in looked_at(folder, capsys)[1]["form of privacy.json"]


def test_free_text_where_a_date_or_a_version_stands_is_found(run, capsys):
    for change in ({"written": "today, and certified"}, {"run": {"versions": {"jax": "1 (certified by the office)"}}}):
        folder = run("moments", published=True)
        document = json.loads((folder / "privacy.json").read_text())
        for name, value in change.items():
            document[name] = value if isinstance(value, str) else {
                **document[name], "versions": document[name]["versions"] | value["versions"],
            }  # fmt: skip
        (folder / "privacy.json").write_text(json.dumps(document))
        write_statement(folder)
        assert "form of privacy.json" in looked_at(folder, capsys)[1]


def test_events_that_are_not_the_methods_are_found(run, capsys):
    """Events with more noise than the parameters give: claim and ledger computed from them, or the claim as it was."""
    noise = Gaussian(10.0)
    for epsilon in (None, 0.4):
        folder = run("moments", published=True)
        document = json.loads((folder / "privacy.json").read_text())
        ledger = document["ledger"] | {"epsilon": epsilon_of(noise, delta=document["ledger"]["delta"])}
        event = {"kind": "Gaussian", "noise_multiplier": 10.0}
        lie(folder, event=event, ledger=ledger, epsilon=epsilon or document["epsilon"])
        wrong = looked_at(folder, capsys)[1]
        assert "events of the method" in wrong
        assert ("method" in wrong) == (epsilon is not None)
    folder = run("fl-gan", published=True)
    event = json.loads((folder / "privacy.json").read_text())["event"]
    lie(folder, event=event | {"count": 1})
    assert "events of the method" in looked_at(folder, capsys)[1]


@pytest.mark.parametrize(("name", "change"), [
    ("moments", {"clients": 30}), ("moments", {"split": "1 record per client"}), ("moments", {"parameters": {"side": -3}}),
    ("moments", {"asked": {"records_per_client": 1}}), ("moments", {"asked": {"epsilon": 1.0}}),
    ("moments", {"population": {"records_in_all": 6000}}), ("moments", {"population": {"answered": 999}}),
    ("people", {"asked": {"client_column": None}}), ("people", {"population": {"records_declared": True}}),
    ("people", {"asked": {"target": "age"}}), ("images", {"population": {"clients": 400}}),
])  # fmt: skip
def test_facts_of_the_run_that_contradict_one_another_are_found(run, capsys, name, change):
    folder = run(name, published=True)
    facts = json.loads((folder / "privacy.json").read_text())["run"]
    merged = {key: {**facts[key], **value} if isinstance(value, dict) else value for key, value in change.items()}
    lie(folder, run=facts | merged)
    wrong = looked_at(folder, capsys)[1]
    assert {"method", "facts of the run"} & set(wrong)


def test_what_is_said_of_other_runs_is_made_again_from_its_numbers(run, capsys):
    def told(change, name="fl-gan"):
        folder = run(name, published=True)
        history = json.loads((folder / "privacy.json").read_text())["history"]
        lie(folder, history=history | change(history))
        return looked_at(folder, capsys)[1].get("other runs", "")

    def again(**numbers):
        return lambda history: {**numbers, "said": said_publicly(history | numbers, images=False)}

    assert told(lambda history: {}) == ""
    assert "another build's" in told(lambda history: {"said": history["said"].replace("2 earlier", "1 earlier")})
    assert "another build's" in told(lambda _: {"runs_before": 1})
    assert "a first run costs what it claims" in told(again(runs_before=0))
    assert "cost less than this one alone" in told(again(epsilon_added=1.0, epsilon_if_all_share_records=1.0))
    assert "contradict" in told(again(epsilon_added=5.0, epsilon_if_all_share_records=6.0))
    assert "whether this run was seeded" in told(again(seeded=False), "seeded")
    assert "all runs were local" in told(again(local=True))
    assert "names no ledger" in told(lambda _: {"said": "certified"}, "alone")
    folder = run("fl-gan")  # run.json knows how many there were
    numbers = json.loads((folder / "privacy.json").read_text())["history"] | {"runs_before": 1}
    lie(folder, history=numbers | {"said": said_publicly(numbers, images=False)})
    assert "other runs" in looked_at(folder, capsys)[1]["run.json and privacy.json"]


def test_the_sentence_about_other_runs_needs_its_numbers_alone():
    def cost(epsilon, **changes):
        values = {
            "event": Pure(min(epsilon, 9.0)),
            "unit": "client",
            "neighbours": "replace",
            "trust": "local",
            **changes,
        }
        return Cost(epsilon=epsilon, **values)

    for earlier in ([], [cost(1.0)], [cost(1.0, trust="silo", seeded=True), cost(math.inf, event=None)]):
        found = json.loads(json.dumps(public_history(earlier, cost(0.5), ledger="x", limit=math.inf, images=False)))
        assert found["said"] == said_publicly(found, images=False)
    assert "1.5-LDP" in public_history([cost(1.0)], cost(0.5), ledger="x", limit=9.0, images=False)["said"]


def test_files_that_may_not_be_published_or_that_nobody_listed_are_named(run, capsys):
    private = ("metrics.json", "report.html", "attacks.json", "checkpoint.npz", "resume.json", "booking.json")
    folder = run("moments", published=True)
    for name in (*private, "patients.csv", "synthetic2.parquet", "generator-2.npz", ".hidden"):
        (folder / name).write_text("x")
    (folder / "audit.json").write_text("{}")
    wrong = looked_at(folder, capsys)[1]
    assert set(wrong) == {
        f"file {name}" for name in (*private, "patients.csv", "synthetic2.parquet", "generator-2.npz", ".hidden")
    }
    assert all("may not be published" in wrong[f"file {name}"] for name in private)
    whole = run("moments")
    for name in ("metrics.json", "report.html", "attacks.json", "audit.json", "notes.txt"):
        (whole / name).write_text("x")
    assert looked_at(whole, capsys) == (0, {})
    (whole / "generator-2.npz").write_text("x")
    assert set(looked_at(whole, capsys)[1]) == {"file generator-2.npz"}


def test_a_file_taken_off_the_list_is_missed(run, capsys):
    folder = run("moments", published=True, without=("synthetic.parquet",))
    files = json.loads((folder / "privacy.json").read_text())["files"]
    lie(folder, files={name: digest for name, digest in files.items() if name != "synthetic.parquet"})
    assert set(looked_at(folder, capsys)[1]) == {"file synthetic.parquet"}


def test_a_method_that_is_not_installed_is_not_checked(run, capsys):
    folder = run("moments", published=True)
    facts = json.loads((folder / "privacy.json").read_text())["run"]
    lie(folder, run=facts | {"method": "another"})
    assert looked_at(folder, capsys) == (3, {})
    assert call(["verify", str(folder)]) == 3
    said = capsys.readouterr().out
    assert "method: 'another' is not a method of this installation" in said
    assert "holds as far as it could be checked; 1 could not be checked" in said


def test_words_are_compared_but_for_the_last_digits_of_numbers():
    assert same_words(("noise 1.08151416", "3,162 numbers"), ("noise 1.0815142", "3,162 numbers"))
    for other in (("noise 1.09151416",), ("noise of 1.08151416",), (), ("noise 1.08151416", "")):
        assert not same_words(("noise 1.08151416",), other)
