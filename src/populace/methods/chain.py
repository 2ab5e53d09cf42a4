"""`chain`: one method after another, the second begun from what the first made, under one budget.

The first method's generator is a release that was paid for; fitting the second's network to its samples is post-processing. The
budget of the whole is one composition of both methods' events, by privacy loss distributions.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from populace.errors import SpecError, out_of_range
from populace.methods.base import Ask, Facts, Plan, Population, Protocol, Replies, Shard
from populace.methods.blocks.generator import Synthesizer
from populace.methods.registry import make_protocol
from populace.privacy.accounting import epsilon_of, noise_multiplier_for, sampled_gaussian
from populace.privacy.events import Composed, Event
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.randomizers.base import check_epsilon
from populace.privacy.source import Source
from populace.types import Array

TOLERANCE = 1e-3  # of the second method's noise multiplier
SEARCH = 1e-3  # discretisation while it is looked for: never optimistic
#: A method that begins from samples knows nearly all it will: few small steps, and a larger network than it could learn alone.
BEGUN: dict[str, dict[str, str]] = {"l-dpd-vae": {"participations": "10", "rate": "0.001", "codes": "1"}}
LARGER: dict[str, dict[str, str]] = {
    "l-dpd-vae": {"net": "basis", "waves": "16", "width": "256", "latent": "64", "beta": "0.0003"}
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """Where the run stands, and both methods' states; the second's counts from the moment the first is done."""

    round: Array
    key: Array
    first: Any
    then: Any
    population: Population = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True)
class Links:
    """Both methods with the noise that makes them fit into one budget, and their events composed."""

    first: Protocol
    then: Protocol
    delta: float
    whole: Event


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chain(Protocol):
    """Guarantee: (epsilon, delta)-DP for one record zeroed out, both methods together; a silo's one ledger pays for both.

    `share` of the budget is the first method's, in squares of its noise multiplier's reciprocal. `first_set` and `then_set` are
    settings of the methods, as `name=value` with commas between; what they leave out is the method's own default, except for
    `l-dpd-vae`, which has others where it begins from samples (`BEGUN`, and `LARGER` unless another `net` is set).
    Edge cases: both methods must protect the same unit under the same trust; others are refused.
    """

    epsilon: float
    delta: float = 0.0
    share: float = 0.9
    first: str = "moments"
    then: str = "l-dpd-vae"
    first_set: str = ""
    then_set: str = ""

    facts: ClassVar[Facts] = Facts(
        name="chain",
        page="dpd-vae",
        line="one method begun from another",
        title="one method begun from another's result under one budget (default: l-dpd-vae begun from moments)",
        paper="populace",
        trust=("silo",),
        unit="record",
        kinds=("table", "images"),
        traffic="that of both methods",
    )

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if not 0 < self.share < 1:
            raise out_of_range("share", "in (0, 1)", self.share)
        if not 0 <= self.delta < 1:
            raise out_of_range("delta", "in [0, 1)", self.delta)

    def together(self, ask: Ask, population: Population) -> bool:
        links = self.links(population)
        return (links.first if "first" in ask.common else links.then).together(ask, population)

    def links(self, population: Population) -> Links:
        return links_of(self, population)

    def round_count(self, population: Population) -> int:
        links = self.links(population)
        return links.first.round_count(population) + links.then.round_count(population)

    def _turn(self, population: Population) -> int:
        """Rounds of the first method."""
        return self.links(population).first.round_count(population)

    def begin(self, population: Population, key: Array, warm: Any = None) -> State:
        links = self.links(population)
        first, then, kept = jax.random.split(key, 3)
        return State(
            round=jnp.int32(0), key=kept, first=links.first.begin(population, first, warm),
            then=links.then.begin(population, then), population=population,
        )  # fmt: skip

    def ask(self, state: State, population: Population, source: Source) -> Ask | None:
        links, turn = self.links(population), self._turn(population)
        opening = int(state.round) < turn
        method, inner = (links.first, state.first) if opening else (links.then, state.then)
        ask = method.ask(inner, population, source)
        if ask is None:
            return None
        return dataclasses.replace(ask, round=state.round, common={"first" if opening else "then": ask.common})

    def _inner(self, ask: Ask, population: Population) -> tuple[Protocol, Ask]:
        """The method an exchange belongs to, and the exchange as it asked it."""
        links, turn = self.links(population), self._turn(population)
        opening = int(ask.round) < turn
        common = next(iter(ask.common.values())) if isinstance(ask.common, dict) and ask.common else ask.common
        inner = dataclasses.replace(ask, round=ask.round if opening else ask.round - turn, common=common)
        return (links.first if opening else links.then), inner

    def charge(self, ask: Ask, population: Population) -> Charge:
        method, inner = self._inner(ask, population)
        return method.charge(inner, population)

    def answer(self, common: Any, own: Any, shard: Shard, memory: Any, source: Source) -> tuple[Any, Any]:
        links = self.links(shard.population)
        first, then = memory or ((), ())  # an engine keeps nothing where neither method does
        if "first" in common:
            reply, first = links.first.answer(common["first"], own, shard, first, source)
        else:
            reply, then = links.then.answer(common["then"], own, shard, then, source)
        return reply, (first, then) if memory else memory

    def remember(self, population: Population, key: Array) -> Any:
        links = self.links(population)
        first, then = jax.random.split(key)
        return links.first.remember(population, first), links.then.remember(population, then)

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        links, turn = self.links(state.population), self._turn(state.population)
        done = int(state.round)
        _, inner = self._inner(dataclasses.replace(ask, round=state.round), state.population)
        if done >= turn:
            then = links.then.absorb(state.then, inner, replies, source)
            return dataclasses.replace(state, round=state.round + 1, then=then)
        state = dataclasses.replace(
            state, round=state.round + 1, first=links.first.absorb(state.first, inner, replies, source)
        )
        return self._handed_over(state) if done + 1 == turn else state

    def _handed_over(self, state: State) -> State:
        """The second method begun from the first one's generator."""
        links = self.links(state.population)
        last, begin = jax.random.split(state.key)
        made = links.first.finish(state.first, state.population, last)
        return dataclasses.replace(state, then=links.then.begin(state.population, begin, warm=made))

    def finish(self, state: State, population: Population, key: Array) -> Synthesizer:
        return self.links(population).then.finish(state.then, population, key)

    def guarantee(self, population: Population) -> Guarantee:
        links = self.links(population)
        parts = [method.guarantee(population) for method in (links.first, links.then)]
        epsilon = epsilon_of(links.whole, delta=links.delta)
        # What sampling adds to each part's delta, at the epsilon of both: it grows by e^epsilon.
        sampling = sum(part.sampling_delta * math.exp(epsilon - part.epsilon) for part in parts)
        return Guarantee(
            epsilon=epsilon,
            delta=links.delta + sampling,
            sampling_delta=sampling,
            unit="record",
            units=population.clients * population.records,
            neighbours="zero-out",
            trust="silo",
            mechanism=f"{self.first}, then {self.then}: {parts[0].mechanism}; {parts[1].mechanism}",
            read_from_data=population.read_from_data,
            domain_sources=population.domain_sources,
            derivation=(
                *(line for part in parts for line in part.derivation),
                "both composed by privacy loss distributions; what is fitted to or measured of the first method's samples is "
                "post-processing",
            ),
            assumptions=tuple(dict.fromkeys(line for part in parts for line in part.assumptions)),
        )

    def spends(self, population: Population) -> Event:
        return self.links(population).whole

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

    def question(self, population: Population, round_id: int) -> tuple[Any, Any]:
        links, turn = self.links(population), self._turn(population)
        name, method, inner = (
            ("first", links.first, round_id) if round_id < turn else ("then", links.then, round_id - turn)
        )
        common, own = method.question(population, inner)
        return {name: common}, own

    def quorum(self, ask: Ask, population: Population) -> int:
        method, inner = self._inner(ask, population)
        return method.quorum(inner, population)


def _settings(text: str) -> dict[str, str]:
    """`name=value` with commas between."""
    found = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise SpecError(f"expected settings as name=value with commas between, got {part!r}")
        if name.strip() in ("epsilon", "delta", "noise"):
            raise SpecError(f"a chain sets {name.strip()} of both methods itself; leave it out of their settings")
        found[name.strip()] = value.strip()
    return found


def _begun(method: str, given: dict[str, str]) -> dict[str, str]:
    """What is given, and what suits a method that begins from samples where nothing is."""
    larger = LARGER.get(method, {})
    if larger and given.get("net", larger["net"]) != larger["net"]:
        larger = {"width": "0"}  # the other network's own
    return {**BEGUN.get(method, {}), **larger, **given}


@functools.lru_cache(maxsize=16)
def links_of(chain: Chain, population: Population) -> Links:
    """Noise for both methods such that together they stay within the budget."""
    first_set, then_set = _settings(chain.first_set), _begun(chain.then, _settings(chain.then_set))
    trial = make_protocol(chain.then, {**then_set, "epsilon": chain.epsilon, "delta": chain.delta})
    claimed = trial.guarantee(population)
    if math.isinf(claimed.epsilon):
        raise SpecError(f"method {chain.then!r} guarantees nothing with these settings; a chain cannot mend that")
    delta = claimed.accounted_delta
    whole = noise_multiplier_for(epsilon=chain.epsilon, delta=delta)
    opening = epsilon_of(sampled_gaussian(noise_multiplier=whole / chain.share**0.5), delta=delta)
    first = make_protocol(chain.first, {**first_set, "epsilon": opening, "delta": delta})
    for method in (first, trial):
        claim = method.guarantee(population)
        if (claim.unit, claim.trust, claim.neighbours) != ("record", "silo", "zero-out"):
            raise SpecError(
                f"method {method.facts.name!r} protects one {claim.unit} with trust {claim.trust}; a chain takes methods that "
                "protect one record with trust silo"
            )

    if not any(field.name == "noise" for field in dataclasses.fields(trial)):  # type: ignore[arg-type]
        raise SpecError(f"method {chain.then!r} has no noise that can be set, and cannot be the second of a chain")

    def links(noise: float) -> Links:
        then = make_protocol(chain.then, {**then_set, "epsilon": chain.epsilon, "delta": delta, "noise": noise})
        return Links(first, then, delta, Composed((first.spends(population), then.spends(population))))

    def fits(noise: float) -> bool:
        return epsilon_of(links(noise).whole, delta=delta, interval=SEARCH) <= chain.epsilon

    low = high = trial.calibrated_noise(population)
    while not fits(high):
        low, high = high, 1.5 * high
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return links(high)
