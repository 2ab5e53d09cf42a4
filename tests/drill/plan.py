"""What is disturbed, when and how: drawn from one seeded generator, before anything happens."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

#: Kinds of disturbance with their weights. Where a kind names `site`, one honest site is its target.
KINDS = {
    "kill-site": 3,
    "kill-site-client": 2,
    "kill-site-job": 2,
    "kill-server": 2,
    "kill-server-process": 1,
    "kill-server-job": 2,
    "kill-command": 2,
    "kill-everything": 1,
    "stop-site": 3,
    "stop-site-job": 2,
    "stop-server": 2,
    "stop-command": 1,
    "clock-site": 3,
    "clock-coordinator": 3,
    "disk-site": 4,
    "disk-coordinator": 3,
    "slow-site": 2,
    "late-site": 2,
    "silent-site": 3,
    "cut-site": 3,
    "half-open-site": 2,
    "restart-site": 2,
}
LONGEST_STOP = 40.0
WAITS = 0.7  # the share of disturbances that wait for the run to have got over the last one


@dataclasses.dataclass(frozen=True, kw_only=True)
class Disturbance:
    """One thing that happens: so many seconds after the one before, to a target, for so long, so strongly.

    One that `waits` comes only once the run has gone on since the one before; the others come on top of it.
    """

    after: float
    waits: bool
    kind: str
    site: str
    seconds: float
    amount: float


def draw(coin: np.random.Generator, sites: Sequence[str], count: int) -> list[Disturbance]:
    """The disturbances of one run."""
    names, weights = list(KINDS), np.array(list(KINDS.values()), float)
    found = []
    for _ in range(count):
        kind = str(coin.choice(names, p=weights / weights.sum()))
        found.append(
            Disturbance(
                after=round(float(coin.uniform(1.0, 8.0)), 2),
                waits=bool(coin.random() < WAITS),
                kind=kind,
                site=str(coin.choice(list(sites))),
                seconds=_seconds(coin, kind),
                amount=_amount(coin, kind),
            )
        )
    return found


def _seconds(coin: np.random.Generator, kind: str) -> float:
    longest = LONGEST_STOP if kind.startswith("stop") else 12.0
    return round(float(np.exp(coin.uniform(0.0, np.log(longest)))), 2)  # short ones more often: 1 s to the longest


def _amount(coin: np.random.Generator, kind: str) -> float:
    """Seconds a clock jumps by, bytes a file may still have, bytes a second, seconds of latency; else nothing."""
    if kind.startswith("clock"):
        return round(float(coin.choice([-1, 1]) * np.exp(coin.uniform(0.0, np.log(3 * 86_400.0)))), 1)
    if kind.startswith("disk"):
        return float(coin.choice([0, 512, 4096, 30_000]))
    if kind == "slow-site":
        return float(coin.choice([1_000, 4_000, 20_000]))
    return round(float(coin.uniform(0.1, 1.5)), 2)
