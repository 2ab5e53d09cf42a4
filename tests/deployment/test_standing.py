"""What a person is told of a run: what is done about it now, for whom it waits, and nothing that is not so."""

import os
import time

import pytest

from populace.cli import live
from populace.federation.standing import Teller, standing
from populace.tables.files import read_json, write_json

ROUNDS = {
    "state": "running", "why": "", "method": "census", "segment": 2, "round": 3, "rounds": 8, "seconds_of_last_round": 0.5,
    "bytes_to_sites": 10, "bytes_from_sites": 20, "waiting": None,
    "sites": {
        "a": {"clients": 2, "replies_in_last_round": 2, "replies_in_all": 6, "last": "answered", "epsilon": 1.0},
        "b": {"clients": 1, "replies_in_last_round": 0, "replies_in_all": 1, "last": "missing", "epsilon": 1.0},
    },
}  # fmt: skip


PLAN = {"run": "study-1", "agreement": {}, "seed": None, "least": 1, "timeout": 20.0, "root": [1, 2]}


@pytest.fixture
def place(tmp_path):
    made = tmp_path / "study" / "runs" / "study-1"
    made.mkdir(parents=True)
    write_json(made / "status.json", ROUNDS)
    write_json(made / "plan.json", PLAN)
    return made


def test_a_run_says_fitting_sampling_and_writing_before_it_says_finished(place):
    shown = []
    write_json(place / "status.json", {**ROUNDS, "state": "finished", "round": 8})
    tell = Teller(place, lambda at: shown.append(live.sentence(at)))
    for state, words in [("fitting", "fitting the generator"), ("sampling", "sampling 5 rows"), ("writing", "writing")]:
        tell.tell(state, words)
        assert f"all rounds are done; {words}" in live.sentence(standing(place))
    assert not any("finished" in line for line in shown)
    tell.tell("finished", "5 rows written")
    assert shown[-1] == "census, segment 2, round 8 of 8; finished: 5 rows written"


def test_a_command_that_was_killed_is_not_said_to_be_at_work(place):
    Teller(place, lambda _: None).tell("rounds")
    assert "nobody" not in live.sentence(standing(place))
    noted = read_json(place / "supervisor.json")
    assert noted["process"] == os.getpid()
    write_json(
        place / "supervisor.json", {**noted, "seconds_after_boot": noted["seconds_after_boot"] - 100}
    )  # the number of another process now
    assert standing(place)["doing"]["was"] == "rounds"
    assert live.NOBODY in live.sentence(standing(place))
    write_json(place / "status.json", {**ROUNDS, "state": "finished"})
    assert "all rounds are done; no rows are written yet; nobody" in live.sentence(standing(place))


def test_who_has_not_answered_is_named_and_after_its_time_the_command_to_pass_over_it(place):
    Teller(place, lambda _: None).tell("rounds")
    for seconds, hinted in ((12.0, False), (25.0, True)):
        waiting = {"round": 4, "sites": ["b"], "since": time.time() - seconds}
        write_json(place / "status.json", {**ROUNDS, "waiting": waiting})
        said = live.sentence(standing(place))
        assert f"round 4: b has not answered for {seconds:.0f} s" in said
        assert (f"populace federation skip {place.parents[1]} b --run study-1` passes over b" in said) is hinted


def test_replies_are_given_for_the_last_round_and_in_all(place):
    table = [dict(zip(live.HEADER, line, strict=True)) for line in live.lines(standing(place))]
    assert [(row["replies in the last round"], row["replies in all"]) for row in table] == [("2", "6"), ("0", "1")]


def test_what_the_last_segment_said_is_not_said_of_the_next(place):
    write_json(place / "status.json", {**ROUNDS, "state": "interrupted", "why": "the job was aborted"})
    Teller(place, lambda _: None).tell("starting", "segment 3 is starting")
    assert live.sentence(standing(place)) == "census, segment 2, round 3 of 8; segment 3 is starting"
