"""The coordinator of a run over sites: one loop over ask and absorb for every method.

It splits an ask among the sites, absorbs the replies that came, and leaves a checkpoint after every round, so that whoever
starts it again goes on where it stopped.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from populace.border.models import read_document
from populace.engines import messages, wire
from populace.engines.agreement import Agreement, shapes_of
from populace.engines.checkpoint import Checkpoint
from populace.engines.coordinator_sums import SumRound, checked_roster, decided_path
from populace.engines.forms import ReleasedForm
from populace.engines.link import Link, LinkClosedError
from populace.engines.link import QuorumError as QuorumError
from populace.engines.roster import Roster
from populace.engines.runtime import Keys, Traffic, new_ledger
from populace.errors import RunError, SpecError, WireError
from populace.methods.base import Ask, Population, Replies
from populace.privacy.ledger import MemoryLedger
from populace.privacy.source import Keyed, Source, System
from populace.tables.files import write_json
from populace.types import Array, ArrayTree, NumpyArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Round:
    """What happened in one round, as the coordinator saw it."""

    number: int
    total: int
    seconds: float
    replies: Mapping[str, int]
    replies_in_all: Mapping[str, int]
    refusals: Mapping[str, str]
    missing: tuple[str, ...]
    skipped: frozenset[str]
    epsilon: Mapping[str, float]
    traffic: Traffic


Watch = Callable[[Round], bool]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progressed:
    """The state in which the loop stopped; `over` is true when the protocol has no further round."""

    over: bool
    rounds: int
    state: ArrayTree
    ledger: MemoryLedger
    traffic: Traffic


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Coordinator:
    """One run over a link. `patience` is how long a round without its quorum is asked again before the run pauses.

    `skipped` is looked at before and during every exchange: its sites are passed over, neither asked nor waited for, and a
    round that asks nobody else is absorbed with nobody. `waiting` is told whom a round waits for; `stopping` says whether a
    round that lacks its quorum should be given up.

    Randomness: cohorts and other public coins come from `root`, so that a round asked again after a crash is the same
    question. Noise added by `absorb` comes from the operating system, or from `root` where the run is seeded.
    """

    agreement: Agreement
    roster: Roster
    link: Link
    run: str
    root: Array
    checkpoint: Checkpoint
    timeout: float = 300.0
    patience: float = 900.0
    seeded: bool = False
    skipped: Callable[[], frozenset[str]] = frozenset
    waiting: Callable[[int, frozenset[str]], None] = lambda *_: None
    stopping: Callable[[], bool] = lambda: False

    @property
    def population(self) -> Population:
        return self.agreement.population(clients=self.roster.clients, records=self.roster.records)

    def start(self) -> tuple[Keys, ArrayTree, NumpyArray, MemoryLedger, Traffic, int]:
        """Return keys, state, replies received per client, ledger, traffic and rounds done; from the checkpoint, if any."""
        protocol, population, saved = self.agreement.protocol, self.population, self.checkpoint
        if protocol.secret_cohorts(population) and not self.seeded:
            raise SpecError(
                f"method {protocol.facts.name!r} with these settings draws cohorts that must stay secret, which a run over "
                "sites does not keep; ask every client in every round (sampling_rate 1)"
            )
        if protocol.guarantee(population).trust == "secure-sum":
            checked_roster(self)
        keys = Keys(saved.root() if saved.exists() else self.root)
        ledger = new_ledger(protocol, population)
        state, heard = protocol.begin(population, keys.begin()), {"heard": np.zeros(population.clients, np.int32)}
        if not saved.exists():
            self._check_released(0)
            saved.save(root=keys.root, rounds=0, state=state, memory=heard, ledger=ledger, traffic=Traffic())
            return keys, state, heard["heard"], ledger, Traffic(), 0
        state, heard, done, traffic = saved.load(state=state, memory=heard, ledger=ledger)
        self._check_released(done)
        return keys, state, np.array(heard["heard"]), ledger, traffic, done

    @property
    def _released(self) -> Path:
        """The file that counts the rounds to which the server has added noise."""
        return self.checkpoint.path.with_suffix(".released")

    def _check_released(self, done: int) -> None:
        """Refuse to release a round again: a second draw of noise for the same sum would average out."""
        if not self._released.exists():
            return
        released = int(read_document(self._released, ReleasedForm)["rounds"])
        if done < released:
            raise RunError(
                f"{self.checkpoint.path} is gone or older than the {released} rounds this run has released; with noise added "
                "at the server, going on would release them again with other noise: put it back, or plan another run"
            )

    def _note_released(self, done: int) -> None:
        if self.agreement.protocol.guarantee(self.population).trust == "central":
            write_json(self._released, {"rounds": done}, mode=0o600)

    def go(self, watch: Watch = lambda _: True) -> Progressed:
        """Run rounds until the protocol is over, or until `watch`, which is called after every checkpoint, returns False."""
        protocol, population = self.agreement.protocol, self.population
        keys, state, heard, ledger, traffic, done = self.start()
        self.link.accepted(self.run, self._absorbed(heard))  # also what a coordinator absorbed just before it died
        going = True
        while going:
            began = time.monotonic()
            ask = protocol.ask(state, population, Keyed(keys.ask(done)))
            if ask is None:
                return Progressed(over=True, rounds=done, state=state, ledger=ledger, traffic=traffic)
            members = np.asarray(ask.cohort)
            ledger.book(members[members >= 0], protocol.charge(ask, population), round_id=done)
            gathered = self._gather(ask, done, heard)
            source: Source = Keyed(keys.absorb(done)) if self.seeded else System()
            state = protocol.absorb(state, ask, gathered.replies(), source)
            heard[members[gathered.present]] += 1
            traffic = Traffic(
                down=traffic.down + gathered.down, up=traffic.up + gathered.up,
                messages=traffic.messages + int(gathered.present.sum()),
            )  # fmt: skip
            done += 1
            self.checkpoint.save(
                root=keys.root, rounds=done, state=state, memory={"heard": heard}, ledger=ledger, traffic=traffic
            )
            self._note_released(done)
            self.link.accepted(self.run, self._absorbed(heard))
            decided_path(self.checkpoint.path, done - 1).unlink(missing_ok=True)
            going = watch(self._round(done, time.monotonic() - began, gathered, ledger, traffic, heard))
        return Progressed(over=False, rounds=done, state=state, ledger=ledger, traffic=traffic)

    def _gather(self, ask: Ask, round_id: int, heard: NumpyArray) -> _Gathered | SumRound:
        """Ask until the quorum is reached; sites that have answered are not asked again."""
        protocol, population = self.agreement.protocol, self.population
        self._check_sendable(ask, round_id)
        self.link.while_waiting(lambda silent: self._still(round_id, silent))
        if (shares := protocol.sum_shares(ask, population)) is not None:
            sums = SumRound(self, ask, round_id, heard, shares)
            sums.gather()
            return sums
        gathered = _Gathered(np.asarray(ask.cohort), shapes_of(protocol, population, round_id).reply)
        until = time.monotonic() + self.patience
        while True:
            asks = self._asks(ask, round_id, heard, without=gathered.answered)
            gathered.down += sum(map(len, asks.values()))
            gathered.note(
                asks,
                self.link.exchange(asks, self.timeout),
                self.agreement,
                population,
                run=self.run,
                round_id=round_id,
            )
            needed = self._quorum(ask)
            if gathered.present.sum() >= needed:
                return gathered
            if time.monotonic() >= until:
                raise QuorumError(
                    f"round {round_id} had {int(gathered.present.sum())} replies, its quorum is "
                    f"{needed}{gathered.reasons()}; give the same command again to go on"
                )
            self.wait(round_id, self._asked(gathered.cohort) - gathered.answered, until=until)

    def wait(self, round_id: int, silent: frozenset[str], *, until: float) -> None:
        """Wait a moment before a round is asked again, unless the run is to stop: a segment that nobody follows any more would
        keep the next one out."""
        if self.stopping():
            raise LinkClosedError("a stop was requested; nothing of this round is absorbed")
        self.waiting(round_id, silent - self.skipped())
        time.sleep(min(1.0, max(0.0, until - time.monotonic())))

    def _quorum(self, ask: Ask) -> int:
        """The fewest replies a round is absorbed with: none where all whom it asks are passed over, and the method can do
        with one; a method that needs more is never given fewer."""
        needed = self.agreement.protocol.quorum(ask, self.population)
        return needed if needed > 1 or self._asked(np.asarray(ask.cohort)) - self.skipped() else 0

    def _still(self, round_id: int, silent: frozenset[str]) -> frozenset[str]:
        left = silent - self.skipped()
        self.waiting(round_id, left)
        return left

    def _asked(self, cohort: NumpyArray) -> frozenset[str]:
        """The sites that host a cohort."""
        return frozenset(
            seat.site
            for seat in self.roster.seats
            if ((cohort >= seat.first) & (cohort < seat.first + seat.clients)).any()
        )

    def _check_sendable(self, ask: Ask, round_id: int) -> None:
        """Raise SpecError for a method whose questions change their shape without saying so: every site would refuse it."""
        like = shapes_of(self.agreement.protocol, self.population, round_id)
        one = jax.tree.map(lambda rows: rows[0], ask.own)
        if (wire.shapes(ask.common), wire.shapes(one)) != (like.common, like.own):
            raise SpecError(
                f"method {self.agreement.method!r} asks in round {round_id} for other shapes than its `question` shows"
            )

    def _asks(self, ask: Ask, round_id: int, heard: NumpyArray, *, without: set[str]) -> dict[str, bytes]:
        """The part of an ask that goes to each site, as one message."""
        members, here = np.asarray(ask.cohort), set(self.link.sites()) - self.skipped()
        asks: dict[str, bytes] = {}
        for seat in self.roster.seats:
            slots = np.flatnonzero((members >= seat.first) & (members < seat.first + seat.clients))
            if not len(slots) or seat.site in without or seat.site not in here:
                continue
            asks[seat.site] = messages.make_ask(
                self.agreement, self.population, run=self.run, round_id=round_id, first=seat.first,
                clients=members[slots], heard=heard[members[slots]], common=ask.common,
                own=jax.tree.map(lambda rows, slots=slots: rows[slots], ask.own),
            )  # fmt: skip
        return asks

    def _round(
        self, done: int, seconds: float, gathered: _Gathered | SumRound, ledger: MemoryLedger, traffic: Traffic,
        heard: NumpyArray,
    ) -> Round:  # fmt: skip
        present, skipped = set(gathered.cohort[gathered.present].tolist()), self.skipped()
        replies = {
            seat.site: sum(seat.first <= client < seat.first + seat.clients for client in present)
            for seat in self.roster.seats
        }
        in_all = {seat.site: int(heard[seat.first : seat.first + seat.clients].sum()) for seat in self.roster.seats}
        silent = sorted(self._asked(gathered.cohort) - gathered.answered - set(gathered.refusals) - skipped)
        return Round(
            number=done, total=self.agreement.protocol.round_count(self.population), seconds=seconds, replies=replies,
            replies_in_all=in_all, refusals=dict(gathered.refusals), missing=tuple(silent), skipped=skipped,
            epsilon=self._spent(ledger), traffic=traffic,
        )  # fmt: skip

    def _absorbed(self, heard: NumpyArray) -> dict[str, int]:
        """How many replies of each site the run has absorbed."""
        return {seat.site: int(heard[seat.first : seat.first + seat.clients].sum()) for seat in self.roster.seats}

    def _spent(self, ledger: MemoryLedger) -> dict[str, float]:
        """The largest epsilon charged to a client of each site in this run."""
        return {
            seat.site: ledger.spent(clients=slice(seat.first, seat.first + seat.clients))["epsilon"]
            for seat in self.roster.seats
        }


class _Gathered:
    """The replies of one round, collected as they arrive."""

    def __init__(self, cohort: NumpyArray, like: ArrayTree) -> None:
        self.cohort = cohort
        self.present = np.zeros(len(cohort), bool)
        self.values = jax.tree.map(lambda leaf: np.zeros((len(cohort), *leaf.shape), leaf.dtype), like)
        self.answered: set[str] = set()
        self.refusals: dict[str, str] = {}
        self.down = self.up = 0.0

    def note(
        self,
        asks: Mapping[str, bytes],
        answers: Mapping[str, bytes],
        agreement: Agreement,
        population: Population,
        *,
        run: str,
        round_id: int,
    ) -> None:
        """Add the answers that arrived; malformed ones, and those for clients that were not asked, count as refusals."""
        for site, data in answers.items():
            try:
                if not isinstance(data, bytes):
                    raise WireError(f"expected bytes, got {type(data).__name__}")
                self.up += len(data)
                clients, values = messages.read_reply(data, agreement, population, run=run, round_id=round_id)
                asked = wire.unpack(asks[site]).arrays["clients"]
                if not np.isin(clients, asked).all():
                    raise WireError("a site answers for clients it was not asked about")
            except messages.RefusedError as no:
                self.refusals[site] = no.code
                continue
            except (WireError, KeyError):
                self.refusals[site] = "garbage"
                continue
            self.refusals.pop(site, None)
            self.answered.add(site)
            slot_of = {int(client): slot for slot, client in enumerate(self.cohort)}
            slots = np.array([slot_of[int(client)] for client in clients], np.int64)
            self.present[slots] = True
            for whole, part in zip(jax.tree.leaves(self.values), jax.tree.leaves(values), strict=True):
                whole[slots] = part

    def replies(self) -> Replies:
        return Replies(
            clients=jnp.asarray(self.cohort),
            present=jnp.asarray(self.present),
            values=jax.tree.map(jnp.asarray, self.values),
        )

    def reasons(self) -> str:
        said = [f"{site}: {messages.REASONS.get(code, code)}" for site, code in sorted(self.refusals.items())]
        return f" ({'; '.join(said)})" if said else ""
