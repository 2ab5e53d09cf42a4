"""What a supervisor does next, decided from what it sees: no clock, no file and no server is touched here.

    sites      waits until the sites of the run are connected
    rounds     a segment is at work; `decide` says after every look whether it goes on
    fitting, sampling, writing    all rounds are done
    finished, paused              the end of the command; a paused run goes on with the same command

`docs/deployment.md` draws the states and says what moves a run from one to the next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

Move = Literal["keep", "new segment", "pause", "finished"]
Server = Literal["answers", "silent", "dead"]

SECONDS_TO_RETURN = 12.0  # a site's client reports every ten seconds
SECONDS_OF_SILENCE = 60.0  # of a server whose process is alive
SECONDS_TO_START = 60.0  # processes, data and compilation, before the first round of a segment
TIMES_THE_SLOWEST = 3.0
LONGEST_WAIT = 60.0  # between two segments


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """One look: the run's status as its present segment wrote it, the job, the server and who runs the job.

    `server` is None where it was not asked this time. `silent` are the sites that have missed the last round of this segment
    that asked them, or that the round under way has waited for. `at_work` says of each connected site whether it runs this
    job; None where nobody was asked this time.
    """

    now: float
    state: str
    why: str = ""
    segment: int = 0
    round: int = 0
    seconds_of_last_round: float = 0.0
    silent: frozenset[str] = frozenset()
    job: str = ""  # how it ended, where it did
    server: Server | None = None
    server_why: str = ""
    at_work: Mapping[str, str] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """What is remembered between looks: of the run, and from `segment` on of the present segment alone."""

    progress: float
    round: int = 0
    slowest: float = 0.0
    slowest_first: float = 0.0
    bears: Mapping[str, float] = dataclasses.field(default_factory=dict)
    barren: int = 0  # segments in a row that finished no round
    segment: int = 0
    began: float = 0.0
    finished_rounds: bool = False
    back: Mapping[str, float] = dataclasses.field(default_factory=dict)
    silent_since: float | None = None  # of the server


@dataclasses.dataclass(frozen=True)
class Decision:
    """What to do now, and why."""

    move: Move
    why: str = ""


KEEP = Decision("keep")


def begin_segment(memory: Memory, *, segment: int, now: float) -> Memory:
    """The memory at the start of a segment: nothing of the one before counts, but for how long rounds took."""
    return dataclasses.replace(
        memory, segment=segment, began=now, finished_rounds=False, back={}, silent_since=None,
        barren=0 if memory.finished_rounds or not memory.segment else memory.barren + 1,
    )  # fmt: skip


def waited_for_sites(memory: Memory, seconds: float) -> Memory:
    """The memory after a wait for sites, which has a limit of its own and is not held against the segment that follows."""
    return dataclasses.replace(memory, progress=memory.progress + seconds)


def pause_before(memory: Memory) -> float:
    """Seconds to wait before the next segment: none after one that finished rounds, then 2, 4, 8 and so on."""
    barren = 0 if memory.finished_rounds else memory.barren + 1
    return min(LONGEST_WAIT, 2.0**barren) if barren else 0.0


def patience(memory: Memory, given: float) -> float:
    """Seconds without a finished round that are borne: what was given, or three times the slowest round so far where that is
    more; before the first round of a segment a minute is added, or the slowest first round so far where that is more."""
    first = 0.0 if memory.finished_rounds else max(SECONDS_TO_START, memory.slowest_first)
    return max(given, TIMES_THE_SLOWEST * memory.slowest) + first


def decide(memory: Memory, seen: Seen, *, given: float) -> tuple[Memory, Decision]:
    """What follows from one look; `given` is the patience that was asked for.

    A segment is replaced where it ended, where its server died or is silent for a minute, and where a site that it misses is
    connected again without running its job, for 12 s and then twice as long each time. A site that runs the job is never a
    reason, however long it takes: it is starting, or slow.
    """
    memory = _progressed(memory, seen)
    memory = _returning(memory, seen)
    own = seen.segment == memory.segment
    if seen.state == "finished":
        return memory, Decision("finished")
    if seen.state == "stopped" and own:
        return memory, Decision("pause", seen.why)
    if seen.now - memory.progress > (borne := patience(memory, given)):
        waited = seen.why or (f"waiting for {', '.join(sorted(seen.silent))}" if seen.silent else "no reply")
        return memory, Decision(
            "pause", f"no round was finished in {borne:.0f} s ({waited}); give the same command again to go on"
        )
    if seen.state == "waiting" and own:
        return memory, Decision("new segment", seen.why)
    if seen.server == "dead":
        return memory, Decision("new segment", seen.server_why)
    since = memory.silent_since
    if seen.server == "silent" and since is not None and seen.now - since > SECONDS_OF_SILENCE:
        return memory, Decision("new segment", seen.server_why)
    if seen.job:
        return memory, Decision("new segment", f"the last one ended ({seen.job})")
    back = sorted(s for s, since in memory.back.items() if seen.now - since > memory.bears.get(s, SECONDS_TO_RETURN))
    if back:
        bears = {**memory.bears, **{site: 2 * memory.bears.get(site, SECONDS_TO_RETURN) for site in back}}
        return dataclasses.replace(memory, bears=bears), Decision(
            "new segment", f"{', '.join(back)} {'is' if len(back) == 1 else 'are'} connected again"
        )
    return memory, KEEP


def _progressed(memory: Memory, seen: Seen) -> Memory:
    """The memory after a look at rounds and server."""
    silent = None if seen.server == "answers" else memory.silent_since  # a look that asked nobody changes nothing
    if seen.server == "silent" and silent is None:
        silent = seen.now
    memory = dataclasses.replace(memory, silent_since=silent)
    if seen.round == memory.round:
        return memory
    took, slowest, slowest_first = seen.seconds_of_last_round, memory.slowest, memory.slowest_first
    own = seen.segment == memory.segment
    if own and not memory.finished_rounds:
        slowest_first = max(slowest_first, seen.now - memory.began)
    return dataclasses.replace(
        memory, round=seen.round, progress=seen.now, slowest=max(slowest, took), slowest_first=slowest_first,
        finished_rounds=memory.finished_rounds or own,
    )  # fmt: skip


def _returning(memory: Memory, seen: Seen) -> Memory:
    """Since when each site that this segment misses is connected without running its job."""
    if seen.segment != memory.segment:
        return dataclasses.replace(memory, back={})
    if seen.at_work is None:
        return memory
    idle = {site for site in seen.silent if seen.at_work.get(site) == "no"}
    return dataclasses.replace(memory, back={site: memory.back.get(site, seen.now) for site in idle})
