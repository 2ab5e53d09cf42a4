"""Runs on the same data add up: booked before they begin, paid once, refused beyond the limit, and said in the statement."""

import json
import os
import shutil
import stat
import subprocess
import sys

import numpy as np
import pytest

from booked_runs import ROWS, StopError, history, interrupt, published, spec_of
from populace.cli.ledger import lines
from populace.engines.runtime import population_of
from populace.errors import BudgetError, DataError, RunError, SpecError
from populace.methods.baselines.independent import Independent
from populace.privacy.consequences import round_up
from populace.privacy.run_ledger import RunLedger, make_ledger
from populace.runs.folder import RunFolder
from populace.runs.given import read_private
from populace.runs.ledger.history import LEDGER, NOT_BOOKED, NOWHERE, Bookkeeping, History
from populace.runs.ledger.view import find_ledger, overview
from populace.runs.ledger.wording import FIXED, PLANNED
from populace.runs.run import simulate, synthesize
from populace.runs.spec import make_method, make_spec
from populace.tables.embedded import harbour
from populace.tables.partition import split
from populace.tables.table import read_frame


def begun(folder):
    make_ledger(folder / LEDGER)
    return RunLedger(folder / LEDGER)


def test_a_run_is_booked_beside_the_data_and_says_so(people):
    synthesize(spec_of(people), people / "a")
    ledger = people / LEDGER
    assert stat.S_IMODE(ledger.stat().st_mode) == 0o600
    found = history(people / "a")
    assert (found["ledger"], found["runs_before"], found["epsilon_before"], found["epsilon_after"]) == (LEDGER, 0, 0, 1)
    assert not (people / "a/booking.json").exists()
    (run,) = overview(ledger)["runs"]
    assert (run["finished"], run["seeded"], run["epsilon"], run["rows"]) == (True, True, 1, ROWS)
    assert str(people) not in (people / "a/privacy.json").read_text()  # what is published names no path


def test_the_statement_says_what_runs_cost_together(people):
    synthesize(spec_of(people), people / "a")
    synthesize(spec_of(people, epsilon=0.5), people / "b")
    said = history(people / "b")["said"]
    assert f"with 1 earlier run booked in {LEDGER} on (some of) the same records the total is 1.5-LDP" in said
    assert (
        "choosing the best of several runs by looking at real rows is not covered by any single run's epsilon" in said
    )
    assert "only while the seeds of seeded runs stay secret" in said
    assert published(people / "b")["said"] in json.loads((people / "b/privacy.json").read_text())["statement"]


def test_what_is_published_of_other_runs_does_not_depend_on_the_records(people):
    """One of two data sets shares rows with an earlier run: the owner is told, the statement says the same of both."""
    synthesize(spec_of(people), people / "a")
    for name in ("people.parquet", "others.csv"):
        shutil.copy(people / LEDGER, people / f"{name}.ledger")
        synthesize(
            spec_of(people, data=name), people / f"of-{name}", keeping=Bookkeeping(ledger=people / f"{name}.ledger")
        )
    same, other = people / "of-people.parquet", people / "of-others.csv"
    told = [published(run) | {"ledger": ""} for run in (same, other)]
    told = [{**one, "said": one["said"].replace("people.parquet", "x").replace("others.csv", "x")} for one in told]
    assert told[0] == told[1]
    assert (history(same)["runs_before"], history(other)["runs_before"]) == (1, 0)
    found = published(same)
    assert (found["runs_before"], found["epsilon_if_all_share_records"]) == (1, 2)
    assert (
        "if all were about the same records, the total for one row of the table is the sum, 2-LDP, if budgets"
        in found["said"]
    )
    synthesize(spec_of(people, data="others.csv"), people / "c")
    assert history(people / "c")["runs_before"] == 0


def test_what_passes_the_limit_is_refused_before_anything_is_done(people):
    synthesize(spec_of(people), people / "a", keeping=Bookkeeping(limit=1.5))
    before = (people / LEDGER).read_bytes()
    with pytest.raises(
        BudgetError, match=r"limit of epsilon 1\.5 .* spent epsilon 1, and with this one .* epsilon 2; choose"
    ):
        synthesize(spec_of(people), people / "b")
    assert not (people / "b").exists()
    assert (people / LEDGER).read_bytes() == before
    synthesize(spec_of(people, epsilon=0.5), people / "b")  # what is left, exactly
    others = Bookkeeping(other_people="the second ship")  # each of them has the whole limit
    synthesize(spec_of(people, data="others.csv", epsilon=1.5), people / "c", keeping=others)
    with pytest.raises(BudgetError, match=r"epsilon 1\.501"):
        synthesize(spec_of(people, epsilon=0.001), people / "d")


def test_a_limit_is_kept_and_raised_by_its_owner_alone(people):
    synthesize(spec_of(people), people / "a", keeping=Bookkeeping(limit=4))
    with pytest.raises(BudgetError, match="--because"):
        synthesize(spec_of(people), people / "b", keeping=Bookkeeping(limit=5))
    synthesize(spec_of(people), people / "b", keeping=Bookkeeping(limit=3))
    assert history(people / "b")["limit"] == 3
    with pytest.raises(BudgetError):
        synthesize(spec_of(people, epsilon=1.5), people / "c")


def test_a_limit_of_a_run_that_is_refused_is_not_said_to_be_kept(people):
    """What the sentence says and what the ledger shows agree: the first speaks of --limit, and nothing is kept."""
    with pytest.raises(
        BudgetError, match=r"^--limit allows epsilon 0\.5 over .* or give a higher --limit; nothing was rel"
    ):
        synthesize(spec_of(people), people / "a", keeping=Bookkeeping(limit=0.5))
    assert overview(people / LEDGER)["limits"] == []
    synthesize(spec_of(people), people / "a", keeping=Bookkeeping(limit=4))
    with pytest.raises(BudgetError, match=r"^--limit allows epsilon 1\.5 over .* 1 earlier run spent"):
        synthesize(spec_of(people), people / "b", keeping=Bookkeeping(limit=1.5))
    assert overview(people / LEDGER)["limit"] == 4


def test_a_run_without_a_guarantee_is_booked_as_infinite_and_refused_under_a_limit(people):
    nothing = spec_of(people, method="central-vae", settings={"training_steps": 2, "hidden_size": 4})
    with pytest.raises(BudgetError, match=r"central-vae guarantees nothing \(epsilon inf\)"):
        synthesize(nothing, people / "a", keeping=Bookkeeping(limit=4))
    assert overview(people / LEDGER) == {
        "ledger": str(people / LEDGER), "limit": None, "limits": [], "runs": [], "totals": [],
    }  # fmt: skip
    synthesize(nothing, people / "a")
    synthesize(spec_of(people), people / "b")
    assert history(people / "b")["epsilon_after"] == "inf"
    assert "no guarantee in total (epsilon inf)" in history(people / "b")["said"]
    with pytest.raises(BudgetError, match="epsilon inf"):
        synthesize(spec_of(people), people / "c", keeping=Bookkeeping(limit=100))


def test_an_interrupted_run_stays_booked_and_pays_once(people):
    spec = spec_of(people)
    with pytest.raises(StopError):
        synthesize(spec, people / "a", progress=interrupt, keeping=Bookkeeping(limit=1.0))
    assert stat.S_IMODE((people / "a/booking.json").stat().st_mode) == 0o600
    (run,) = overview(people / LEDGER)["runs"]
    assert not run["finished"]
    with pytest.raises(BudgetError):  # it counts, though it never ended
        synthesize(spec_of(people, epsilon=0.5), people / "b")
    synthesize(spec, people / "a")  # under a limit that allows no second run
    (run,) = overview(people / LEDGER)["runs"]
    assert run["finished"]
    assert history(people / "a")["epsilon_after"] == 1


def test_a_ledger_that_is_gone_is_noticed(people):
    spec = spec_of(people)
    ledger, away = people / LEDGER, people / "away.sqlite"
    with pytest.raises(StopError):
        synthesize(spec, people / "a", progress=interrupt)
    ledger.rename(away)
    with pytest.raises(RunError, match="is gone, and with it what was spent"):
        synthesize(spec, people / "a")
    assert not ledger.exists()  # not begun anew
    with pytest.raises(RunError, match="which is gone"):
        find_ledger(people / "a")
    synthesize(spec_of(people, data="others.csv"), people / "b")  # a new ledger, which does not know the first run
    for attempt in (lambda: synthesize(spec, people / "a"), lambda: find_ledger(people / "a")):
        with pytest.raises(RunError, match="does not know"):
            attempt()
    away.replace(ledger)
    synthesize(spec, people / "a")
    assert find_ledger(people / "a") == ledger


def test_a_ledger_that_was_moved_is_found(people):
    elsewhere = people / "elsewhere.sqlite"
    with pytest.raises(StopError):
        synthesize(spec_of(people), people / "a", progress=interrupt, keeping=Bookkeeping(ledger=elsewhere))
    elsewhere.rename(people / LEDGER)
    synthesize(spec_of(people), people / "a")
    assert find_ledger(people / "a") == people / LEDGER
    assert len(overview(people / LEDGER)["runs"]) == 1


def test_a_ledger_deleted_while_the_run_goes_on_stops_the_release(people):
    def delete(_):
        (people / LEDGER).unlink(missing_ok=True)

    with pytest.raises(RunError, match="is gone; nothing was released"):
        synthesize(spec_of(people), people / "a", progress=delete)
    assert {path.name for path in (people / "a").iterdir()} == {
        "run.json", "booking.json", "resume.json", "checkpoint.npz",
    }  # fmt: skip


def test_an_unfinished_run_goes_on_in_the_ledger_that_booked_it(people):
    spec = spec_of(people)
    with pytest.raises(StopError):
        synthesize(spec, people / "a", progress=interrupt, keeping=Bookkeeping(ledger=people / "mine.sqlite"))
    with pytest.raises(RunError, match="give --ledger"):
        synthesize(spec, people / "a", keeping=Bookkeeping(ledger=people / "other.sqlite"))
    synthesize(spec, people / "a", keeping=NOWHERE)  # it was booked: leaving it out now changes nothing
    assert history(people / "a")["ledger"] == "mine.sqlite"
    assert not (people / LEDGER).exists()


def test_without_a_ledger_the_statement_says_so(people):
    synthesize(spec_of(people), people / "a", keeping=NOWHERE)
    assert not (people / LEDGER).exists()
    assert NOT_BOOKED in json.loads((people / "a/privacy.json").read_text())["statement"]
    with pytest.raises(RunError, match="booked in no ledger"):
        find_ledger(people / "a")
    with pytest.raises(SpecError, match="--no-ledger"):
        synthesize(spec_of(people), people / "b", keeping=Bookkeeping(kept=False, limit=2))
    run = simulate(Independent(epsilon=1.0), split(harbour().take(np.arange(ROWS))), seed=1)
    assert run.details["history"]["said"] == NOT_BOOKED


def test_embedded_data_are_booked_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = make_spec(data="embedded:harbour", epsilon=1.0, method="independent", rows=5, seed=1)
    synthesize(spec, tmp_path / "a")
    assert os.listdir(tmp_path) == ["a"]
    assert "invented data" in history(tmp_path / "a")["said"]


def test_where_no_ledger_can_be_written_one_sentence_says_what_to_do(people):
    for place in (people / "nowhere" / "l.sqlite", people / "people.toml" / "l.sqlite"):
        with pytest.raises(RunError, match="--ledger FILE, or give --no-ledger"):
            synthesize(spec_of(people), people / "a", keeping=Bookkeeping(ledger=place))
    assert not (people / "a").exists()
    with pytest.raises(RunError, match="left as it is"):  # somebody's file is not turned into a ledger
        synthesize(spec_of(people), people / "a", keeping=Bookkeeping(ledger=people / "people.toml"))
    assert (people / "people.toml").read_text().startswith("format")


def test_gaussian_runs_compose_by_their_events(people):
    """Two of (4, d): less than (8, 2d), more than one alone."""
    settings = {"method": "moments", "epsilon": 4.0, "settings": {"trust": "silo"}}
    for name in ("a", "b"):
        synthesize(spec_of(people, **settings), people / name)
    found = history(people / "b")
    assert 4.5 < found["epsilon_after"] < 7.5
    assert (found["unit"], found["neighbours"]) == ("record", "zero-out")
    claim = json.loads((people / "b/privacy.json").read_text())
    assert found["delta_after"] >= 2 * (claim["delta"] - claim["sampling_delta"])
    assert (found["epsilon_added"], found["delta_added"]) == pytest.approx((2 * claim["epsilon"], 2 * claim["delta"]))
    shown = lines(overview(people / LEDGER))
    added, single = round_up(found["epsilon_added"]), round_up(claim["epsilon"])
    total = next(place for place, line in enumerate(shown) if line.startswith("total per record: "))
    assert f"epsilon {added}, delta " in shown[total]
    assert shown[total + 1].endswith("the sum, which a limit counts: it holds " + FIXED)
    assert f"epsilon {round_up(found['epsilon_after'])}, delta" in shown[total + 2]
    assert PLANNED in shown[total + 2]
    assert [line.split()[-1] for line in shown if line[:2] == "20"] == [single, added]


def test_most_records_of_a_client_are_declared(people):
    import pyarrow as pa
    import pyarrow.parquet as pq

    frame = read_frame(people / "people.parquet").append_column("house", pa.array(np.arange(ROWS) // 3))
    pq.write_table(frame, people / "houses.parquet")
    more = {"data": "houses.parquet", "client_column": "house"}
    synthesize(spec_of(people, **more, most_records=5), people / "a")
    assert "counts_read" not in json.loads((people / "a/privacy.json").read_text())
    assert history(people / "a")["per"] == "house"
    synthesize(spec_of(people, **more), people / "b")
    assert "(3)" in json.loads((people / "b/privacy.json").read_text())["counts_read"][0]
    with pytest.raises(DataError, match="at most 2 records"):
        synthesize(spec_of(people, **more, most_records=2), people / "c")
    for wrong in ({"most_records": 2}, {**more, "most_records": 0}):
        with pytest.raises(SpecError, match="most-records"):
            spec_of(people, **wrong)


def test_the_check_is_made_again_where_the_run_is_booked(people):
    """Both find room; the one that books second is refused, though nothing stood in its way when it looked."""
    spec = spec_of(people, epsilon=0.7)
    protocol, data = make_method(spec), read_private(spec.data, schema=spec.schema_file)
    keeping = Bookkeeping(limit=1.0)
    both = [History(spec, data, protocol, population_of(data.clients), keeping) for _ in range(2)]
    folders = [RunFolder(people / name) for name in ("a", "b")]
    for one, folder in zip(both, folders, strict=True):
        one.check(folder)
        folder.path.mkdir()
    both[0].reserve(folders[0], lambda _: None)
    with pytest.raises(BudgetError, match=r"epsilon 1\.4"):
        both[1].reserve(folders[1], lambda _: None)
    assert len(overview(people / LEDGER)["runs"]) == 1


def test_two_units_under_a_limit_are_refused_in_words(people):
    import pyarrow as pa
    import pyarrow.parquet as pq

    frame = read_frame(people / "people.parquet").append_column("house", pa.array(np.arange(ROWS) // 3))
    pq.write_table(frame, people / "houses.parquet")
    rows, houses = {"data": "houses.parquet"}, {"data": "houses.parquet", "client_column": "house"}
    synthesize(spec_of(people, **houses), people / "a", keeping=Bookkeeping(limit=50))
    synthesize(spec_of(people, **houses), people / "b")
    assert (history(people / "b")["per"], history(people / "b")["epsilon_after"]) == ("house", 2)
    with pytest.raises(BudgetError, match="used some of the same rows for another unit"):
        synthesize(spec_of(people, **rows), people / "c")
    free = Bookkeeping(ledger=people / "free.sqlite")
    synthesize(spec_of(people, **houses), people / "d", keeping=free)
    synthesize(spec_of(people, **rows), people / "e", keeping=free)
    assert history(people / "e")["unit"] == "record"
    assert "do not add up for a client with several rows" in history(people / "e")["said"]


def test_two_processes_at_once_cannot_both_pass(people):
    """Each alone is within the limit, both are not; whoever comes second is refused, whatever the other has done by then."""
    with begun(people) as ledger, ledger.transaction():
        ledger.allow(1.0)
    words = ["--epsilon", "0.7", "--method", "independent", "--schema", "people.toml", "--rows", "5", "--seed", "1"]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "populace", "synthesize", "people.parquet", *words, "--out", out], cwd=people,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for out in ("a", "b", "c")
    ]  # fmt: skip
    ended = [(process.communicate()[1], process.returncode) for process in started]
    assert sorted(code for _, code in ended) == [0, 2, 2], ended
    assert all("keeps a limit of epsilon 1" in error for error, code in ended if code)
    assert len(overview(people / LEDGER)["runs"]) == 1
