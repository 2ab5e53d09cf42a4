"""Runs that 0.1.0 wrote open, are sampled, evaluated and verified, in today's words; what it left unfinished is refused."""

import json
import shutil
from pathlib import Path

import pytest

from populace.cli.main import call
from populace.runs.run import load_run

WRITTEN = Path(__file__).parent / "runs_of_0_1_0"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    shutil.copytree(WRITTEN, tmp_path / "runs")
    monkeypatch.chdir(tmp_path / "runs")
    return tmp_path / "runs"


@pytest.mark.parametrize(("name", "bound", "trust"), [
    ("poll", "2-LDP", "local"), ("moments", "(3.9985, 1e-05)-DP", "silo"), ("evaluated", "2-LDP", "local"),
])  # fmt: skip
def test_it_opens_with_todays_words(runs, name, bound, trust):
    run = load_run(runs / name)
    assert run.guarantee.bound == bound
    assert run.guarantee.trust == trust  # a record protected by noise of its own silo was called local
    assert run.guarantee.seeded == (name == "evaluated")
    assert len(run.sample(5)) == 5


def test_it_is_sampled_and_evaluated(runs, capsys):
    for name in ("poll", "moments", "evaluated"):
        assert call(["sample", name, "--rows", "3", "-o", f"{name}.csv"]) == 0
        assert call(["evaluate", name, "--real", "people.csv"]) == 0
    assert call(["evaluate", "poll", "moments", "--real", "people.csv"]) == 0
    capsys.readouterr()
    page = (runs / "moments/report.html").read_text()
    assert "The file says trust “local”; today&#39;s word for what it means is “silo”." in page
    assert "The file says neighbours “add-remove”." in page
    statement = (runs / "moments/privacy.html").read_text()
    assert "Made by populace 0.1.0" in statement
    assert "today&#39;s word for what it means is “silo”" in statement
    assert "today&#39;s word" not in (runs / "poll/privacy.html").read_text()
    assert "NOT PRIVATE AS IT STANDS" in (runs / "evaluated/privacy.html").read_text()


def test_verify_says_what_it_cannot_check(runs, capsys):
    for name in ("poll", "moments", "evaluated"):
        assert call(["verify", name]) == 3  # holds as far as it could be checked
        said = capsys.readouterr().out
        assert (
            "claim and events: written by 0.1.0, which kept no event list; the claim cannot be computed again" in said
        )
        assert "files: written by 0.1.0, which kept no digests" in said
        assert "could not be checked" in said
        assert ("is 'silo' in today's words" in said) == (name == "moments")


@pytest.mark.parametrize(("change", "words"), [
    ({"epsilon": 3.9}, "its numbers say '(3.9, 1e-05)-LDP'"),
    ({"bound": "(1, 1e-05)-LDP"}, "privacy.json says '(1, 1e-05)-LDP'"),
    ({"ledger": {"epsilon": 1.0}}, "they disagree about the ledger"),
])  # fmt: skip
def test_what_is_changed_in_it_is_found(runs, capsys, change, words):
    path = runs / "moments/privacy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert call(["verify", "moments"]) == 1
    assert words in capsys.readouterr().out


def test_an_unfinished_run_is_refused_in_words_and_kept(runs, capsys):
    before = {path.name: path.read_bytes() for path in (runs / "interrupted").iterdir()}
    asked = [
        "synthesize",
        "people.csv",
        "--schema",
        "people.toml",
        "--epsilon",
        "2",
        "--target",
        "smoker",
        "--rows",
        "8",
    ]
    assert call([*asked, "--method", "poll", "--out", "interrupted"]) == 2
    said = capsys.readouterr().err
    assert "holds an unfinished run that another populace (0.1.0) began" in said
    assert "finish it with that version, or choose another --out" in said
    assert {path.name: path.read_bytes() for path in (runs / "interrupted").iterdir()} == before
    assert call(["verify", "interrupted"]) == 2
    assert "is not finished" in capsys.readouterr().err
