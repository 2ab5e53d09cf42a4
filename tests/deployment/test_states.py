"""What a supervisor does next, without a server: every move and its reason, and the moves that must not be made."""

import dataclasses

import pytest

from populace.federation.states import (
    Decision,
    Memory,
    Seen,
    begin_segment,
    decide,
    patience,
    pause_before,
    waited_for_sites,
)

GIVEN = 100.0


def memory(**changes):
    return dataclasses.replace(begin_segment(Memory(progress=0.0), segment=2, now=0.0), **changes)


def seen(now=1.0, state="running", segment=2, **more):
    return Seen(now=now, state=state, segment=segment, **more)


def follow(start, looks):
    """The first move that is not to go on, and the memory after it."""
    for one in looks:
        start, decision = decide(start, one, given=GIVEN)
        if decision.move != "keep":
            return start, decision
    return start, decision


def test_a_site_missed_by_the_segment_before_is_no_reason():
    """Its status may be read for minutes, while the new segment's processes start and compile."""
    silent = frozenset({"b"})
    looks = [seen(now=t, segment=1, silent=silent, at_work={"b": "no"}) for t in range(90)]
    assert follow(memory(), looks)[1].move == "keep"


@pytest.mark.parametrize("at_work", ["yes", "no answer"])
def test_a_site_that_runs_the_job_or_is_dead_is_no_reason(at_work):
    """The first is starting, or slow; FLARE lists the second as connected for half a minute."""
    looks = [seen(now=t, silent=frozenset({"b"}), at_work={"a": "yes", "b": at_work}) for t in range(90)]
    assert follow(memory(), looks)[1].move == "keep"


def test_a_site_that_is_back_without_the_job_is_let_in_and_each_time_waited_for_longer():
    start, times = memory(), []
    for segment in (2, 3, 4):
        looks = [
            seen(now=t, segment=segment, round=segment * 1000 + t, silent=frozenset({"b"}), at_work={"b": "no"})
            for t in range(100)
        ]
        for one in looks:
            start, decision = decide(start, one, given=GIVEN)
            if decision.move != "keep":
                break
        assert decision.move == "new segment"
        assert "b is connected again" in decision.why
        times.append(one.now)
        start = begin_segment(start, segment=segment + 1, now=0.0)
    assert times == [13, 25, 49]


def test_a_site_that_answers_meanwhile_is_not_let_in_by_force():
    away = [seen(now=t, silent=frozenset({"b"}), at_work={"b": "no"}) for t in range(10)]
    back = [seen(now=10 + t, at_work={}) for t in range(5)]
    again = [seen(now=15 + t, silent=frozenset({"b"}), at_work={"b": "no"}) for t in range(10)]
    assert follow(memory(), away + back + again)[1].move == "keep"


def test_a_silent_server_is_borne_for_a_minute_and_a_dead_one_is_not():
    silent = [seen(now=t, server="silent", server_why="busy") for t in range(59)]
    start, decision = follow(memory(), silent)
    assert decision.move == "keep"
    answered, _ = decide(start, seen(now=59.5, server="answers"), given=GIVEN)
    assert answered.silent_since is None
    assert decide(start, seen(now=62.0, server="silent", server_why="busy"), given=GIVEN)[1].move == "new segment"
    assert decide(memory(), seen(server="dead", server_why="the server died"), given=GIVEN)[1].why == "the server died"


def test_looks_between_two_questions_do_not_end_a_silence():
    """The server is asked every two seconds, the status is looked at ten times as often."""
    looks = [seen(now=t / 5, **({"server": "silent", "server_why": "hung"} if t % 10 == 0 else {})) for t in range(330)]
    assert follow(memory(), looks)[1] == Decision("new segment", "hung")
    answering = [seen(now=t / 5, **({"server": "answers"} if t % 10 == 0 else {})) for t in range(330)]
    assert follow(memory(), answering)[1].move == "keep"


def test_a_wait_for_sites_is_not_held_against_the_segment():
    waited = waited_for_sites(memory(), 890.0)
    assert decide(waited, seen(now=1_000.0), given=GIVEN)[1].move == "keep"
    assert decide(memory(), seen(now=1_000.0), given=GIVEN)[1].move == "pause"


def test_ends_of_a_segment():
    assert decide(memory(), seen(state="finished", segment=1), given=GIVEN)[1].move == "finished"
    assert decide(memory(), seen(state="stopped", why="no site agrees"), given=GIVEN)[1].why == "no site agrees"
    assert decide(memory(), seen(state="stopped", segment=1, why="old"), given=GIVEN)[1].move == "keep"
    assert decide(memory(), seen(state="waiting", why="quorum"), given=GIVEN)[1].move == "new segment"
    assert decide(memory(), seen(state="waiting", segment=1), given=GIVEN)[1].move == "keep"
    ended = decide(memory(), seen(state="interrupted", job="FINISHED:ABNORMAL"), given=GIVEN)[1]
    assert (ended.move, ended.why) == ("new segment", "the last one ended (FINISHED:ABNORMAL)")
    assert decide(memory(), seen(state="finished", job="FINISHED:COMPLETED"), given=GIVEN)[1].move == "finished"


def test_patience_grows_with_what_rounds_have_taken():
    fresh = memory()
    assert patience(fresh, GIVEN) == 160.0
    slow_start, _ = decide(fresh, seen(now=80.0, round=1, seconds_of_last_round=50.0), given=GIVEN)
    assert patience(slow_start, GIVEN) == 150.0
    assert patience(begin_segment(slow_start, segment=3, now=90.0), GIVEN) == 230.0
    assert decide(slow_start, seen(now=229.0, round=1), given=GIVEN)[1].move == "keep"
    paused = decide(slow_start, seen(now=231.0, round=1, silent=frozenset({"b"})), given=GIVEN)[1]
    assert (paused.move, "waiting for b" in paused.why) == ("pause", True)


def test_segments_that_finish_no_round_are_spaced_out():
    start, waits = begin_segment(Memory(progress=0.0), segment=1, now=0.0), []
    for segment in range(2, 10):
        waits.append(pause_before(start))
        start = begin_segment(start, segment=segment, now=0.0)
    assert waits == [2, 4, 8, 16, 32, 60, 60, 60]
    start, _ = decide(start, seen(segment=9, round=1), given=GIVEN)
    assert pause_before(start) == 0.0
