"""`chain`: one method after another, the second begun from what the first made, under one budget.

The first method's generator is a release that was paid for; fitting the second's network to its samples is post-processing. The
budget of the whole is one composition of both methods' events, by privacy loss distributions.

Under trust `secure-sum` each of the two methods that offers it opens sums with noise in shares; one that does not keeps the
whole noise at each silo, which holds against everybody, and so against the server with silos that collude.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from populace.errors import SpecError, out_of_range
from populace.methods.base import Ask, Facts, Plan, Population, Protocol, Replies, Shard
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.sum_settings import check_sum_settings, sum_sites
from populace.methods.chain.links import Links, check_value, links_of, method_from_document, read_settings_text
from populace.methods.registry import protocol_class, settings_from_file
from populace.privacy.accounting import epsilon_of
from populace.privacy.events import Composed, Event
from populace.privacy.guarantee import Guarantee, Trust, check_epsilon
from populace.privacy.ledger import Charge
from populace.privacy.noise_shares import NoiseShares, claims_of
from populace.privacy.source import Source
from populace.types import Array, ArrayTree, JsonObject


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """Where the run stands, and both methods' states; the second's counts from the moment the first is done."""

    round: Array
    key: Array
    first: ArrayTree
    then: ArrayTree
    population: Population = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chain(Protocol):
    """Guarantee: (epsilon, delta)-DP for one record zeroed out, both methods together; a silo's one ledger pays for both.
    `silo`: against everybody; `secure-sum`: against the server with as many silos as may collude.

    Each method is a value, `Chain(epsilon=4, first=Moments(epsilon=4), then=LDpdVae(epsilon=4, participations=10))`, or a name,
    with settings behind a colon: `l-dpd-vae:participations=10,net=small`. A value is taken as it is; of a method given by name,
    what is not set is its own default, except for `l-dpd-vae`, which has others where it begins from samples (`BEGUN`, and
    `LARGER` unless another `net` is set). The chain sets epsilon, delta and noise multiplier of both, and trust, colluders and
    dropouts of those that have them.
    Edge cases: both methods must protect one record; others are refused, and so is a secure sum that neither method offers.
    """

    epsilon: float
    delta: float = 0.0
    trust: Literal["silo", "secure-sum"] = "silo"
    colluders: int = 0
    dropouts: int = 0
    budget_share: float = 0.9
    first: Protocol | str | JsonObject = "moments"
    then: Protocol | str | JsonObject = "l-dpd-vae"

    renamed: ClassVar[Mapping[str, str]] = {"share": "budget_share", "first_set": "first", "then_set": "then"}
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "The privacy budget of one record, for both methods together.",
        "delta": "The probability with which epsilon may fail; 0: from the number of records, by a public rule.",
        "trust": "silo: each silo adds the noise; secure-sum: all in shares, in those of the two methods that offer it.",
        "colluders": "Under secure-sum: how many silos may work together with the server.",
        "dropouts": "Under secure-sum: how many silos may be missing from a sum; every one costs noise.",
        "budget_share": "The first method's share of the budget, in squares of the noise multiplier's reciprocal.",
        "first": "The method that begins; on the command line its name, with settings as in moments:side=8.",
        "then": "The method that begins from the first one's samples; on the command line as in l-dpd-vae:net=small.",
    }
    small: ClassVar[Mapping[str, object]] = {
        "then": "l-dpd-vae:participations=2,hidden_size=3,latent_size=2,sleep_steps=1,fitting_steps=2,batch_size=1"
    }

    facts: ClassVar[Facts] = Facts(
        name="chain",
        page="dpd-vae",
        line="one method begun from another",
        title="one method begun from another's result under one budget (default: l-dpd-vae begun from moments)",
        paper="populace",
        trust=("silo", "secure-sum"),
        unit="record",
        kinds=("table", "images"),
        traffic="that of both methods",
    )

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if not 0 < self.budget_share < 1:
            raise out_of_range("budget_share", "in (0, 1)", self.budget_share)
        if not 0 <= self.delta < 1:
            raise out_of_range("delta", "in [0, 1)", self.delta)
        if self.trust not in self.facts.trust:
            raise SpecError(f"expected trust in {', '.join(self.facts.trust)}, got {self.trust!r}")
        check_sum_settings(self.trust, colluders=self.colluders, dropouts=self.dropouts)
        for name in ("first", "then"):
            method = getattr(self, name)
            if isinstance(method, dict):
                method = method_from_document(method, name)
                object.__setattr__(self, name, method)
            if isinstance(method, Protocol):
                check_value(self, name, method)
            else:
                protocol_class(str(method).partition(":")[0])  # an unknown name is answered at once

    @classmethod
    def settings_from_file(cls, settings: Mapping[str, object]) -> dict[str, object]:
        """Version 0.2.0 and before kept names and settings of both methods apart, the settings as text."""
        present = dict(settings)
        for name, default in (("first", "moments"), ("then", "l-dpd-vae")):
            text = str(present.pop(f"{name}_set", ""))
            method = str(present.get(name, default))
            if text:
                given = settings_from_file(method, read_settings_text(text))
                present[name] = f"{method}:{','.join(f'{key}={value}' for key, value in given.items())}"
        return {"budget_share" if name == "share" else name: value for name, value in present.items()}

    def together(self, ask: Ask, population: Population) -> bool:
        links = self.links(population)
        return (links.first if "first" in ask.common else links.then).together(ask, population)

    def links(self, population: Population) -> Links:
        return links_of(self, population)

    def round_count(self, population: Population) -> int:
        links = self.links(population)
        return links.first.round_count(population) + links.then.round_count(population)

    def answer_count(self, population: Population) -> int:
        links = self.links(population)
        return links.first.answer_count(population) + links.then.answer_count(population)

    def _handover(self, population: Population) -> int:
        """How many rounds the first method takes."""
        return self.links(population).first.round_count(population)

    def begin(self, population: Population, key: Array, warm: Synthesizer | None = None) -> State:
        links = self.links(population)
        first, then, kept = jax.random.split(key, 3)
        return State(
            round=jnp.int32(0), key=kept, first=links.first.begin(population, first, warm),
            then=links.then.begin(population, then), population=population,
        )  # fmt: skip

    def ask(self, state: State, population: Population, source: Source) -> Ask | None:
        links, handover = self.links(population), self._handover(population)
        opening = int(state.round) < handover
        method, inner = (links.first, state.first) if opening else (links.then, state.then)
        ask = method.ask(inner, population, source)
        if ask is None:
            return None
        return dataclasses.replace(ask, round=state.round, common={"first" if opening else "then": ask.common})

    def _inner(self, ask: Ask, population: Population) -> tuple[Protocol, Ask]:
        """The method an exchange belongs to, and the exchange as it asked it."""
        links, handover = self.links(population), self._handover(population)
        opening = int(ask.round) < handover
        common = next(iter(ask.common.values())) if isinstance(ask.common, dict) and ask.common else ask.common
        inner = dataclasses.replace(ask, round=ask.round if opening else ask.round - handover, common=common)
        return (links.first if opening else links.then), inner

    def charge(self, ask: Ask, population: Population) -> Charge:
        method, inner = self._inner(ask, population)
        return method.charge(inner, population)

    def sum_shares(self, ask: Ask, population: Population) -> NoiseShares | None:
        method, inner = self._inner(ask, population)
        return method.sum_shares(inner, population)

    def answer(
        self, common: ArrayTree, own: ArrayTree, shard: Shard, memory: ArrayTree, source: Source
    ) -> tuple[ArrayTree, ArrayTree]:
        links = self.links(shard.population)
        first, then = memory or ((), ())  # an engine keeps nothing where neither method does
        if "first" in common:
            reply, first = links.first.answer(common["first"], own, shard, first, source)
        else:
            reply, then = links.then.answer(common["then"], own, shard, then, source)
        return reply, (first, then) if memory else memory

    def remember(self, population: Population, key: Array) -> ArrayTree:
        links = self.links(population)
        first, then = jax.random.split(key)
        return links.first.remember(population, first), links.then.remember(population, then)

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        links, handover = self.links(state.population), self._handover(state.population)
        done = int(state.round)
        _, inner = self._inner(dataclasses.replace(ask, round=state.round), state.population)
        if done >= handover:
            then = links.then.absorb(state.then, inner, replies, source)
            return dataclasses.replace(state, round=state.round + 1, then=then)
        state = dataclasses.replace(
            state, round=state.round + 1, first=links.first.absorb(state.first, inner, replies, source)
        )
        return self._handed_over(state) if done + 1 == handover else state

    def _handed_over(self, state: State) -> State:
        """The second method begun from the first one's generator."""
        links = self.links(state.population)
        last, begin = jax.random.split(state.key)
        generator = links.first.finish(state.first, state.population, last)
        return dataclasses.replace(state, then=links.then.begin(state.population, begin, warm=generator))

    def finish(self, state: State, population: Population, key: Array) -> Synthesizer:
        return self.links(population).then.finish(state.then, population, key)

    def guarantee(self, population: Population) -> Guarantee:
        links = self.links(population)
        parts = [method.guarantee(population) for method in (links.first, links.then)]
        epsilon = epsilon_of(links.whole, delta=links.delta)
        # What sampling adds to each part's delta, at the epsilon of both: it grows by e^epsilon.
        sampling = sum(part.sampling_delta * math.exp(epsilon - part.epsilon) for part in parts)
        sites = sum_sites(self.trust, population.clients, colluders=self.colluders, dropouts=self.dropouts)
        return Guarantee(
            epsilon=epsilon,
            delta=links.delta + sampling,
            sampling_delta=sampling,
            unit="record",
            units=population.clients * population.records,
            neighbours="zero-out",
            trust=self.trust,
            mechanism=f"{links.first.facts.name}, then {links.then.facts.name}: {parts[0].mechanism}; {parts[1].mechanism}",
            read_from_data=population.read_from_data,
            domain_sources=population.domain_sources,
            derivation=(
                *(line for part in parts for line in part.derivation),
                *_whole_noise(parts, self.trust),
                "both composed by privacy loss distributions; what is fitted to or measured of the first method's samples is "
                "post-processing",
            ),
            assumptions=tuple(dict.fromkeys(line for part in parts for line in part.assumptions)),
            claims=()
            if sites is None
            else claims_of(sites, functools.partial(self.spends_to, population), delta=links.delta),
        )

    def spends(self, population: Population) -> Event:
        return self.links(population).whole

    def spends_to(self, population: Population, shares: int) -> Event:
        links = self.links(population)
        return Composed(tuple(method.spends_to(population, shares) for method in (links.first, links.then)))

    def plan(self, population: Population) -> Plan:
        links = self.links(population)
        plans = [method.plan(population) for method in (links.first, links.then)]
        rounds = [plan.rounds for plan in plans]
        return Plan(
            guarantee=self.guarantee(population),
            rounds=sum(rounds),
            bytes_up=sum(plan.bytes_up * count for plan, count in zip(plans, rounds, strict=True)) / sum(rounds),
            bytes_down=sum(plan.bytes_down * count for plan, count in zip(plans, rounds, strict=True)) / sum(rounds),
            errors={},
            notes=tuple(f"{plan.guarantee.mechanism}: {note}" for plan in plans for note in plan.notes),
        )

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        method, inner = self._inner(ask, population)
        return method.reply_bytes(inner, population)

    def question(self, population: Population, round_id: int) -> tuple[ArrayTree, ArrayTree]:
        links, handover = self.links(population), self._handover(population)
        name, method, inner = (
            ("first", links.first, round_id) if round_id < handover else ("then", links.then, round_id - handover)
        )
        common, own = method.question(population, inner)
        return {name: common}, own

    def quorum(self, ask: Ask, population: Population) -> int:
        method, inner = self._inner(ask, population)
        return method.quorum(inner, population)


def _whole_noise(parts: list[Guarantee], trust: Trust) -> tuple[str, ...]:
    """What is said of a chain of which one method opens sums and the other does not."""
    if {part.trust for part in parts} <= {trust}:
        return ()
    which = "first" if parts[0].trust != trust else "second"
    return (
        f"the {which} method opens no sum: its noise is whole at each silo, and holds against any number of other silos",
    )
