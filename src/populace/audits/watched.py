"""A method under watch: it runs as it is, and what leaves its clients and its server is kept, or compared with another run."""

from __future__ import annotations

import jax
import numpy as np

from populace.audits.recorder import Recorder
from populace.audits.wrapped import Nothing, Wrapped
from populace.engines import wire
from populace.engines.sums import numbers_of, opened_replies
from populace.methods.base import Ask, Population, Protocol, Replies, Shard
from populace.methods.blocks.generator import Synthesizer
from populace.privacy.events import Event
from populace.privacy.ledger import Charge
from populace.privacy.noise_shares import NoiseShares
from populace.privacy.source import Source
from populace.types import Array, ArrayTree, JsonObject, NumpyArray


class Watched(Wrapped):
    """Runs a method, tells the recorder where in the run it is, and keeps questions, charges, replies and states.

    With a run `before`, what leaves must be the same as there: replies where clients or silos add the noise themselves, the
    server's state where the server does, or where sums are opened with noise in shares. What the method noises itself (whole
    numbers plus `GaussianSum.noise`), and what is opened, may differ by no more than the sensitivity. Differences are
    complained about once: the run goes on with what the first run had.
    """

    def __init__(
        self, method: Protocol, population: Population, recorder: Recorder, before: Watched | None = None
    ) -> None:
        self.method, self.population, self.recorder, self.before = method, population, recorder, before
        self.trusts_server = method.guarantee(population).trust not in ("local", "silo")
        self.opens_sums = method.guarantee(population).trust == "secure-sum"
        self.kept: JsonObject = {}
        self.charges: dict[str, tuple[Charge, tuple[str, ...]]] = {}
        self.others: dict[str, tuple[Charge, tuple[str, ...]]] = {}  # of further clients of a trusted server
        self._round, self._turn = 0, 0
        self._members: list[int] = []
        self._shares: NoiseShares | None = None
        self._replied: list[
            NumpyArray
        ] = []  # of a sum to be opened: what each client sends under masks, without its share

    def ask(self, state: ArrayTree, population: Population, source: Source) -> Ask | None:
        self.recorder.place = f"round {self._round}, ask"
        asked = self.method.ask(state, self.population, source)
        asked = self._leaves("the question", asked)
        if asked is not None:
            there = np.asarray(asked.cohort) >= 0
            work = self.method.working(asked)
            self._members = [
                int(c) for c in np.asarray(asked.cohort)[there if work is None else there & np.asarray(work)]
            ]
            self._turn, self._replied = 0, []
        return asked  # type: ignore[no-any-return]

    def charge(self, ask: Ask, population: Population) -> Charge:
        charge = self.method.charge(ask, self.population)
        places = tuple(f"round {self._round}, client {client}" for client in self._members)
        server = (f"round {self._round}, ask", f"round {self._round}, absorb")
        if self.trusts_server:  # a client pays for what the server releases, and for what it chose or reported itself
            self.charges[f"round {self._round}"] = (charge, (*server, *places[:1]))
            self.others.update({place: (charge, (*server, place)) for place in places[1:]})
        else:
            self.charges.update({place: (charge, (place,)) for place in places})
        return charge

    def answer(
        self, common: ArrayTree, own: ArrayTree, shard: Shard, memory: ArrayTree, source: Source
    ) -> tuple[ArrayTree, ArrayTree]:
        agreed = self.agreed(shard)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((shard, source))):
            return self.method.answer(common, own, agreed, memory, source)  # only the shape of a reply is wanted
        self.recorder.place = f"round {self._round}, client {self._members[self._turn]}"
        self._turn += 1
        reply, memory = self.method.answer(common, own, agreed, memory, source)
        if self.opens_sums:
            self._replied.append(numbers_of(reply))
        return (reply if self.trusts_server else self._leaves("the reply", reply)), memory

    def absorb(self, state: ArrayTree, ask: Ask, replies: Replies, source: Source) -> ArrayTree:
        self.recorder.place = f"round {self._round}, absorb"
        replies = self._opened(replies)
        found = self._leaves("the server's state", self.method.absorb(state, ask, replies, source))
        self._round += 1
        return found

    def sum_shares(self, ask: Ask, population: Population) -> NoiseShares | None:
        self._shares = self.method.sum_shares(ask, self.population)
        self.recorder.place = f"round {self._round}, secure sum"
        return self._shares

    def _opened(self, replies: Replies) -> Replies:
        """Replies of which an engine opened the sum, as the recorder lets the server see it; others as they are."""
        if self._shares is None or not replies.opened:
            return replies
        replied: NumpyArray = np.add.reduce(self._replied, axis=0)
        total = self.recorder.opened(
            self._shares, replied, numbers_of(replies.values), drawn_at=f"round {self._round}, secure sum"
        )
        like = jax.tree.map(np.asarray, replies.values)
        return opened_replies(
            total.view(np.uint64), like, clients=np.asarray(replies.clients), present=np.asarray(replies.present)
        )

    def finish(self, state: ArrayTree, population: Population, key: Array) -> Synthesizer:
        """Nothing is made: what the server makes of its state needs no record."""
        self.recorder.place = "after the last question"
        return Nothing()

    def spends(self, population: Population) -> Event:
        return self.method.spends(self.population)

    def working(self, ask: Ask) -> Array | None:
        return self.method.working(ask)

    def _leaves(self, what: str, found: ArrayTree) -> ArrayTree:
        """Keep what leaves; in a replay compare it, and go on with what the first run had."""
        place = f"{self.recorder.place}, {what}"
        self.kept[place] = found
        if self.before is None:
            return found
        if place not in self.before.kept:
            self.recorder.complain(f"{what} was not there on the neighbour")
            return found
        known = self.before.kept[place]
        noised = self.recorder.open_noise(self.recorder.place)
        for name, first, second in _differences(known, found):
            match = next((pair for pair in noised if _fits(pair[1].mechanism.size, first, second)), None)
            if match is None:
                self.recorder.complain(
                    f"{what} differs from the neighbour's ({name or 'its only part'}), and all that was released is the same"
                )
                continue
            number, call = match
            noised.remove(match)
            shift = self.recorder.shifts.get(number, np.zeros(1, np.int64)).reshape(-1)
            flat = (one.astype(np.int64).reshape(-1) for one in (first, second))
            self.recorder.apart(call.mechanism, next(flat), next(flat) - shift)
        for number, call in noised:
            if np.any(self.recorder.shifts.get(number, 0)):
                self.recorder.complain(f"noise of {call.mechanism.size} coordinates was drawn and is not in {what}")
        return known


def _fits(size: int, first: Array, second: Array) -> bool:
    return bool(first.shape == second.shape and first.size == size and first.dtype.kind == second.dtype.kind == "i")


def _differences(first: ArrayTree, second: ArrayTree) -> list[tuple[str, Array, Array]]:
    """The leaves in which two trees differ, bit by bit, with their names."""
    flat, shape = jax.tree_util.tree_flatten_with_path(first)
    other, other_shape = jax.tree_util.tree_flatten_with_path(second)
    if str(shape) != str(other_shape):
        return [("its structure", np.zeros(0), np.zeros(1))]
    pairs = [
        (jax.tree_util.keystr(path), wire.to_numpy(a), wire.to_numpy(b))
        for (path, a), (_, b) in zip(flat, other, strict=True)
    ]
    return [(name, a, b) for name, a, b in pairs if a.shape != b.shape or a.tobytes() != b.tobytes()]
