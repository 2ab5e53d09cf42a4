"""`populace ledger`, and the options of `synthesize` that go with it."""

import json

import numpy as np
import pytest

from populace.cli.main import call
from populace.runs.ledger.history import LEDGER
from populace.tables.embedded import harbour

GIVEN = ("--method", "independent", "--rows", "5", "--seed", "1", "--schema", "h.toml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs on the same rows, the second never finished, and one on others with a long name."""
    place = tmp_path_factory.mktemp("ledger")
    table = harbour()
    table.schema.save(place / "h.toml")
    table.take(np.arange(50)).save(place / "h.csv")
    table.take(np.arange(50, 90)).save(place / "other.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert call(["synthesize", "h.csv", *GIVEN, "--epsilon", "1", "--limit", "3", "--out", "first"]) == 0
        assert call(["synthesize", "h.csv", *GIVEN, "--epsilon", "1.25", "--out", "second"]) == 0
        long = "a-folder-with-a-name-that-is-much-longer-than-its-column"
        other = ["synthesize", "other.csv", *GIVEN, "--epsilon", "0.5", "--out", long]
        assert call(other) == 2
        assert call([*other, "--other-people", "the crew of another ship"]) == 0
    return place


@pytest.fixture(autouse=True)
def _there(folder, monkeypatch):
    monkeypatch.chdir(folder)


def test_show_fits_and_says_all(capsys):
    for named in ([], ["h.csv"], ["."], [LEDGER], ["first"]):
        assert call(["ledger", "show", *named]) == 0
        shown = capsys.readouterr().out
        assert "3 runs; limit: epsilon 3 over all runs" in shown
        assert "total per record: epsilon 2.25 (neighbours replace); it holds only while the seeds stay secret" in shown
        lines = shown.splitlines()
        table = [line for line in lines if line[:2] == "20"]
        assert all(len(line) <= 80 for line in lines if line in table)
        assert [line.split()[-1] for line in table] == ["1", "2.25", "0.5"]
        assert all(word in table[1] for word in ("second", "independent", "1.25*", "client", "local"))
        assert "reproducible, not private" in shown
        assert "other people in a-folder-with-a-name" in shown
        assert "the crew of another ship" in shown


def test_show_as_json(capsys):
    assert call(["ledger", "show", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["epsilon_so_far"] for run in found["runs"]] == [1, 2.25, 0.5]
    assert [run["shares_rows_with"] for run in found["runs"]] == [0, 1, 0]
    assert (found["limit"], found["totals"][0]["epsilon"]) == (3, 2.25)


def test_refused_in_one_sentence(folder, capsys):
    assert call(["synthesize", "h.csv", *GIVEN, "--epsilon", "1", "--out", "third"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "2 earlier runs spent epsilon 2.25, and with this one it would be epsilon 3.25" in error
    assert "choose --epsilon 0.75 or less" in error
    assert not (folder / "third").exists()


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["ledger", "show", "nowhere.sqlite"], "no ledger"),
    (["ledger", "show", "h.toml"], "left as it is"),
    (["ledger", "limit", "h.csv", "9"], "--because WORDS"),
    (["ledger", "limit", "h.csv", "0"], "above 0"),
    (["ledger", "limit", "h.csv"], "Missing"),
    (["synthesize", "h.csv", "--no-ledger", "--limit", "3"], "leave out --ledger and --limit"),
    (["synthesize", "h.csv", "--no-ledger", "--ledger", "x.sqlite"], "leave out --ledger and --limit"),
    (["synthesize", "h.csv", "--no-ledger", "--other-people", "x"], "leave out --ledger and --limit and --other-people"),
    (["synthesize", "h.csv", "--other-people", " "], "--other-people wants words"),
    (["synthesize", "other.csv"], "if they are other people, say so: --other-people WORDS"),
    (["synthesize", "h.csv", "--limit", "-1"], "above 0"),
    (["synthesize", "h.csv", "--limit", "7"], "--because WORDS"),
    (["synthesize", "h.csv", "--ledger", "h.toml"], "left as it is"),
    (["synthesize", "h.csv", "--ledger", "no/where.sqlite"], "--no-ledger"),
    (["synthesize", "h.csv", "--most-records", "3"], "--client-column"),
])  # fmt: skip
def test_what_is_wrong_is_one_sentence(arguments, sentence, folder, capsys):
    before = (folder / LEDGER).read_bytes()
    more = [*GIVEN, "--epsilon", "0.5", "--out", "new"] if arguments[0] == "synthesize" else []
    assert call([*arguments, *more]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert (folder / LEDGER).read_bytes() == before
    assert not (folder / "new").exists()


def test_the_owner_lowers_and_raises(tmp_path, monkeypatch, folder, capsys):
    (tmp_path / LEDGER).write_bytes((folder / LEDGER).read_bytes())
    monkeypatch.chdir(tmp_path)
    assert call(["ledger", "limit", ".", "1"]) == 0
    assert call(["ledger", "limit", ".", "9", "--because", "the board allowed a second release"]) == 0
    capsys.readouterr()
    assert call(["ledger", "show"]) == 0
    shown = capsys.readouterr().out
    assert "limit: epsilon 9" in shown
    assert "the board allowed a second release" in shown


def test_without_a_ledger(tmp_path, folder, capsys):
    (tmp_path / "h.csv").write_bytes((folder / "h.csv").read_bytes())
    given = ["--epsilon", "1", "--method", "independent", "--rows", "5", "--seed", "1", "--no-ledger"]
    assert call(["synthesize", str(tmp_path / "h.csv"), *given, "--out", str(tmp_path / "run")]) == 0
    assert "other runs   this run was not booked in a ledger; what other runs" in capsys.readouterr().out
    assert "his run was not booked in a ledger" in (tmp_path / "run/privacy.html").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"h.csv", "run"}


@pytest.mark.parametrize("command", ["ledger", "ledger show", "ledger limit", "synthesize"])
def test_help_helps(command, capsys):
    assert call([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert "ledger" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_lifted_limit_is_shown(tmp_path, monkeypatch, capsys):
    """The owner may lift a limit; `show` says so, and goes on working."""
    table = harbour().take(np.arange(30))
    table.schema.save(tmp_path / "h.toml")
    table.save(tmp_path / "h.csv")
    monkeypatch.chdir(tmp_path)
    assert call(["synthesize", "h.csv", *GIVEN, "--epsilon", "1", "--limit", "3", "--out", "a"]) == 0
    assert call(["ledger", "limit", "h.csv", "inf", "--because", "asked by the owner"]) == 0
    capsys.readouterr()
    assert call(["ledger", "show", "h.csv"]) == 0
    told = capsys.readouterr().out
    assert "lifted on" in told
    assert "1 run;" in told
