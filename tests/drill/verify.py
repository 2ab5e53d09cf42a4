"""All invariants of one run, over what it left on disk and an undisturbed run of the same plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from populace.engines.segment import read_plan, read_status
from populace.methods.base import Population

from . import invariants
from .evidence import Books, Log, read_books, read_log
from .lies import lie_to
from .replay import Replayed, replay


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found about one run: sentences of what is wrong, and what was counted.

    `lost` are the charges of each site without an absorbed reply, `missed` the rounds that went on without it.
    """

    wrong: tuple[str, ...]
    checks: int
    rounds: int
    absorbed: int
    charged: int
    lost: Mapping[str, int]
    missed: Mapping[str, int]
    lines_lost: int
    lies: int
    status: str


def compare(log: Log, books: Mapping[str, Books], again: Replayed, generator: Path) -> list[list[str]]:
    """Against an undisturbed run: state, generator, and every charge."""
    own = {path.name: path for path in generator.glob("generator.*")}
    wanted = {path.name: path for path in again.generator.glob("generator.*")}
    differ = [name for name in wanted if name not in own or not _same_file(own[name], wanted[name])]
    return [
        invariants.check_same("the last checkpoint", log.checkpoint, again.checkpoint),
        [f"{name} differs from that of an undisturbed run" for name in differ] or ([] if wanted else ["no generator"]),
        [
            said
            for site in log.seats
            for said in invariants.check_same_charges(site, books[site].of(log.run), again.books[site].of(log.run))
        ],
        list(again.link.undecided),
    ]


def _same_file(first: Path, second: Path) -> bool:
    if first.suffix != ".npz":
        return first.read_bytes() == second.read_bytes()
    with np.load(first, allow_pickle=False) as one, np.load(second, allow_pickle=False) as two:
        return not [name for name in set(one) | set(two) if name not in one or name not in two
                    or one[name].tobytes() != two[name].tobytes()]  # fmt: skip


def consistent(log: Log, books: Mapping[str, Books], guarantees: Mapping[str, float]) -> list[list[str]]:
    """The ledgers among themselves, and against the coordinator's log."""
    each = books.items()
    return [
        [said for site, one in each for said in invariants.check_chain(site, one)],
        [said for site, one in each for said in invariants.check_one_charge(site, one)],
        [said for site, one in each for said in invariants.check_spending(site, one, guarantees)],
        invariants.check_absorbed(log, books),
        invariants.check_head(log, books),
        invariants.check_lost(log, books),
        invariants.check_log(log),
    ]


def verify(
    place: Path,
    ledgers: Mapping[str, Path],
    copies: Mapping[str, Path],
    *,
    generator: Path,
    scratch: Path,
    guarantees: dict[str, float],
    coin: np.random.Generator,
) -> Verdict:
    """Check one finished run; `guarantees` of earlier runs are completed by its own."""
    log = read_log(place)
    books = {site: read_books(path) for site, path in ledgers.items()}
    agreement = read_plan(place).agreement
    population: Population = agreement.population(clients=len(log.heard), records=1)
    guarantees[log.run] = agreement.protocol.guarantee(population).epsilon
    again = replay(place, copies, log, books, scratch)
    checks = [*consistent(log, books, guarantees), *compare(log, books, again, generator)]
    rounds, requests, wrong = agreement.protocol.round_count(population), 0, []
    for site in sorted({site for site, _ in again.link.asked}):
        own = sorted(number for name, number in again.link.asked if name == site)
        number = int(coin.choice(own))
        said = lie_to(
            again.sites[site], site, again.link.asked[site, number], again.link.replied[site, number], rounds=rounds
        )
        requests, wrong = requests + said.requests, wrong + list(said.wrong)
    checks.append(wrong)
    state = str(read_status(place)["state"])
    checks.append([] if state == "finished" else [f"the run is over, and its status says {state!r}"])
    return Verdict(
        wrong=tuple(said for check in checks for said in check[:10]), checks=len(checks), rounds=log.rounds,
        absorbed=int(log.heard.sum()), charged=sum(len(one.of(log.run)) for one in books.values()),
        lost=invariants.count_lost(log, books), missed=invariants.count_missed(log),
        lies=requests, status=state,
        lines_lost=log.rounds - len({line.round for line in log.lines}),
    )  # fmt: skip
