"""What a drill found, in figures that can be kept."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from .scene import LIAR
from .verify import Verdict

#: In the order in which they are checked.
OF_A_RUN = (
    "hash chains intact, heads on them",
    "one charge per participation",
    "nobody beyond the run's guarantee or the site's limit",
    "every absorbed reply charged",
    "nothing absorbed beyond a ledger's head",
    "a charge without an absorbed reply is missed in the log",
    "log and checkpoint agree",
    "checkpoint bit-identical to an undisturbed run",
    "generator bit-identical",
    "charges, questions and replies identical",
    "every participation decided",
    "a lying coordinator refused and not charged",
    "finished, or paused with a sentence",
)
OF_THE_DRILL = (
    "no process left",
    "no file half-written",
    "modes of secrets unchanged",
    "no traceback but named ones",
    "memory bounded",
)


@dataclasses.dataclass
class Ran:
    """What became of one run."""

    number: int
    method: str
    seconds: float = 0.0
    commands: int = 0
    segments: int = 0
    pauses: list[str] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)
    verdict: Verdict | None = None


def summarise(runs: Sequence[Ran]) -> dict[str, object]:
    """The figures of all runs together, and a line for each."""
    verdicts = [ran.verdict for ran in runs if ran.verdict is not None]
    return {
        "runs": len(runs),
        "runs_by_method": dict(Counter(ran.method for ran in runs)),
        "runs_where_nobody_was_lost": sum(_nobody_lost(one) for one in verdicts),
        "rounds": sum(one.rounds for one in verdicts),
        "rounds_that_went_on_without_a_site": sum(_of_honest(one.missed) for one in verdicts),
        "replies_absorbed": sum(one.absorbed for one in verdicts),
        "charges": sum(one.charged for one in verdicts),
        "charged_but_lost": sum(_of_honest(one.lost) for one in verdicts),
        "charged_but_lies": sum(one.lost.get(LIAR, 0) for one in verdicts),
        "log_lines_lost": sum(one.lines_lost for one in verdicts),
        "requests_of_a_lying_coordinator": sum(one.lies for one in verdicts),
        "commands": sum(ran.commands for ran in runs),
        "segments": sum(ran.segments for ran in runs),
        "pauses": dict(Counter(said for ran in runs for said in ran.pauses)),
        "states_of_finished_runs": dict(Counter(one.status for one in verdicts)),
        "checks": sum(one.checks for one in verdicts) + len(OF_THE_DRILL),
        "each_run": [_line(ran) for ran in runs],
    }


def _line(ran: Ran) -> dict[str, object]:
    found = ran.verdict
    figures = {} if found is None else {"rounds": found.rounds, "absorbed": found.absorbed, "charged": found.charged}
    return {
        "method": ran.method,
        "seconds": round(ran.seconds),
        "commands": ran.commands,
        "segments": ran.segments,
        **figures,
    }


def _of_honest(counts: Mapping[str, int]) -> int:
    return sum(count for site, count in counts.items() if site != LIAR)


def _nobody_lost(verdict: Verdict) -> bool:
    return not _of_honest(verdict.lost) and not _of_honest(verdict.missed)
