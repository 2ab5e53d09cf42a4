"""One booking is one release, in one folder; and people whom the ledger does not recognise under columns that it knows."""

import shutil
import threading

import numpy as np
import pytest

from booked_runs import StopError, history, interrupt, spec_of
from populace.errors import BudgetError, RunError
from populace.runs.folder import RunFolder
from populace.runs.ledger.history import LEDGER, Bookkeeping, History
from populace.runs.ledger.view import find_ledger, overview
from populace.runs.run import synthesize


def test_a_copy_of_an_unfinished_folder_is_no_second_run_for_nothing(people):
    with pytest.raises(StopError):
        synthesize(spec_of(people), people / "a", progress=interrupt)
    shutil.copytree(people / "a", people / "copy")
    synthesize(spec_of(people), people / "a")
    with pytest.raises(RunError, match="would be a second release"):
        synthesize(spec_of(people), people / "copy")


def test_two_copies_of_an_unfinished_folder_at_once_are_one_release(people, monkeypatch):
    """Both are trained and wait at the door; whoever comes second writes nothing."""
    with pytest.raises(StopError):
        synthesize(spec_of(people, seed=None), people / "a", progress=interrupt)
    shutil.copytree(people / "a", people / "copy")
    gate, confirm, ended = threading.Barrier(2), History.confirm, {}

    def together(self, folder):
        gate.wait(120)
        try:
            confirm(self, folder)
        finally:
            gate.wait(120)

    monkeypatch.setattr(History, "confirm", together)

    def go(name):
        try:
            synthesize(spec_of(people, seed=None), people / name)
            ended[name] = ""
        except RunError as error:
            ended[name] = str(error)

    threads = [threading.Thread(target=go, args=(name,)) for name in ("a", "copy")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (done,), (refused,) = ([name for name in ended if bool(ended[name]) is wrong] for wrong in (False, True))
    assert "would be a second release" in ended[refused]
    assert (people / done / "generator.npz").is_file()
    assert not list((people / refused).glob("generator.*"))
    assert not list((people / refused).glob("synthetic.*"))


def test_a_crash_between_the_claim_and_the_end_goes_on_in_its_folder_alone(people, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", interrupt)
        with pytest.raises(StopError):
            synthesize(spec_of(people, seed=None), people / "a", keeping=Bookkeeping(limit=1.0))
    written = (people / "a/generator.npz").read_bytes()
    shutil.copytree(people / "a", people / "copy")
    with pytest.raises(RunError, match=r"begun to be written in .*a; .*second release"):
        synthesize(spec_of(people, seed=None), people / "copy")
    kept = (people / "a/checkpoint.npz").read_bytes()
    (people / "a/checkpoint.npz").unlink()  # it would be trained anew, with other noise
    with pytest.raises(RunError, match="has another result: a second release; restore its checkpoint"):
        synthesize(spec_of(people, seed=None), people / "a")
    assert (people / "a/generator.npz").read_bytes() == written
    (people / "a/checkpoint.npz").write_bytes(kept)
    synthesize(spec_of(people, seed=None), people / "a")
    assert np.load(people / "a/generator.npz").files == np.load(people / "copy/generator.npz").files
    for name, array in np.load(people / "a/generator.npz").items():
        assert np.array_equal(array, np.load(people / "copy/generator.npz")[name])
    (run,) = overview(people / LEDGER)["runs"]
    assert run["finished"]


def test_people_who_may_be_the_same_are_refused_under_a_limit_until_the_owner_speaks(people):
    synthesize(spec_of(people), people / "a", keeping=Bookkeeping(limit=9))
    before = (people / LEDGER).read_bytes()
    others = spec_of(people, data="others.csv")
    with pytest.raises(
        BudgetError, match=r"same columns \(people\.parquet, .*few or none of these rows.*--other-people WORDS"
    ):
        synthesize(others, people / "b")
    assert not (people / "b").exists()
    assert (people / LEDGER).read_bytes() == before
    words = "those of the second ship"
    synthesize(others, people / "b", keeping=Bookkeeping(other_people=f" {words} "))
    assert [run["other_people"] for run in overview(people / LEDGER)["runs"]] == ["", words]
    assert "few or none" not in history(people / "b")["said"]
    assert words not in (people / "b/privacy.json").read_text()  # the owner's alone
    with pytest.raises(
        BudgetError, match="1 earlier run spent epsilon 1"
    ):  # said of rows that are known, it changes nothing
        synthesize(spec_of(people, epsilon=8.5), people / "c", keeping=Bookkeeping(other_people=words))


def test_without_a_limit_the_doubt_is_said(people):
    synthesize(spec_of(people), people / "a")
    assert "where no earlier run on rows that it recognises is booked; what other" in history(people / "a")["said"]
    synthesize(spec_of(people, data="others.csv"), people / "b")
    assert "if they are the same people, written otherwise, costs add up" in history(people / "b")["said"]
    assert "written otherwise" not in (people / "b/privacy.json").read_text()  # it is read from the records


def test_links_lead_to_the_ledger_beside_the_data(people):
    synthesize(spec_of(people), people / "a")
    (people / "elsewhere").mkdir()
    (people / "elsewhere/people.parquet").symlink_to(people / "people.parquet")
    (people / "linked").symlink_to(people, target_is_directory=True)
    for number, name in enumerate(("elsewhere/people.parquet", "linked/people.parquet"), start=1):
        synthesize(spec_of(people, data=name), people / f"by-link-{number}")
        assert history(people / f"by-link-{number}")["runs_before"] == number
    assert not (people / "elsewhere" / LEDGER).exists()
    assert find_ledger(people / "elsewhere/people.parquet") == people / LEDGER
