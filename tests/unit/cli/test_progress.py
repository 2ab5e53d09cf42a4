"""Long steps are said while they last, with what is being done: plain lines where nobody sits, a bar on a terminal."""

import dataclasses
import io
import re
import time

import pytest

from populace.cli import progress
from populace.report.page import evaluate_runs
from populace.runs.ledger.history import Bookkeeping
from populace.runs.poll.collect import Collection, collect
from populace.runs.poll.fit import Fit, fit_answers
from populace.runs.run import synthesize
from populace.runs.spec import make_spec

FAST = {"latent_classes": "2", "prior_scale": "0.6", "chains": "1", "langevin_steps": "10"}


@dataclasses.dataclass(frozen=True)
class At:
    done: int
    total: int
    clients: int = 7


@pytest.fixture
def hurried(monkeypatch):
    """The same clock, twenty times as fast."""
    for name in ("SECONDS_BETWEEN_LINES", "SHORT", "LOOK"):
        monkeypatch.setattr(progress, name, getattr(progress, name) / 20)


def test_a_long_step_is_said_while_it_lasts(hurried, capsys):
    with progress.progress("census") as report:
        report.doing("fitting")
        time.sleep(0.7)
        said = capsys.readouterr().err.splitlines()
    assert 2 <= len(said) <= 3  # after .1 s, and then one in .25 s
    assert all(re.fullmatch(r"census: fitting, \d+ s", line) for line in said)


def test_short_steps_are_not_said(hurried, capsys):
    with progress.progress("census") as report:
        for words in ("reading", "sampling", "writing"):
            report.doing(words)
            time.sleep(0.04)
    assert capsys.readouterr().err == ""


def test_a_new_step_is_said_by_its_own_words_and_time(hurried, capsys):
    with progress.progress("census") as report:
        report.doing("fitting")
        time.sleep(0.2)
        report.doing("sampling")
        time.sleep(0.4)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("census: fitting")
    assert said[1].startswith("census: sampling")


def test_nothing_is_said_after_the_end(hurried, capsys):
    with progress.progress("census") as report:
        report.doing("fitting")
    time.sleep(0.3)
    assert capsys.readouterr().err == ""


def test_rounds_are_said_now_and_then_and_at_the_end(hurried, capsys):
    with progress.progress("poll", each="client") as report:
        for done in range(1, 41):
            report(At(done, 40))
            time.sleep(0.005)
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "poll: client 40 of 40, 7 replies"
    assert 2 <= len(said) <= 5


def test_a_terminal_has_a_line_that_renews_itself(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", screen)
    with progress.progress("poll") as report:
        report.doing("fitting")
        time.sleep(0.3)
        report(At(3, 8))
        time.sleep(0.3)
    shown = screen.getvalue()
    assert "poll: fitting" in shown
    assert "3/8" in shown
    assert "0:00:00" in shown  # how long it has taken


def test_synthesize_and_evaluate_tell_their_steps(small_table, tmp_path):
    small_table.save(tmp_path / "small.csv")
    spec = make_spec(
        data=str(tmp_path / "small.csv"),
        method="independent",
        epsilon=4.0,
        rows=50,
        seed=0,
        target=small_table.schema.names[0],
    )
    told = []
    synthesize(spec, tmp_path / "run", keeping=Bookkeeping(kept=False), doing=told.append)
    assert [words for words in told if not words.startswith("finding")] == [
        "reading rows", "asking clients", "fitting", "sampling", "writing",
    ]  # fmt: skip
    told.clear()
    evaluate_runs([tmp_path / "run"], str(tmp_path / "small.csv"), doing=told.append)
    assert told == [
        "reading rows", "comparing values", "comparing marginals", "predicting the target", "writing the report",
    ]  # fmt: skip


def test_a_fit_of_answers_tells_its_steps(small_table, tmp_path):
    small_table.save(tmp_path / "small.csv")
    small_table.schema.save(tmp_path / "small.toml")
    schema = str(tmp_path / "small.toml")
    collect(
        Collection(data=str(tmp_path / "small.csv"), schema_file=schema, epsilon=3.0, settings=FAST, seed=0),
        tmp_path / "answers.parquet",
    )
    told = []
    wanted = Fit(answers=(str(tmp_path / "answers.parquet"),), schema_file=schema, rows=20, settings={}, seed=0)
    fit_answers(wanted, tmp_path / "run", doing=told.append)
    assert told == ["counting answers", "fitting", "sampling", "writing"]
