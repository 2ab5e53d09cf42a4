"""Auditing what clients send: every local mechanism, and every local method through the engines that run it.

The auditor sits where the server sits. It asks simulated clients with worst-case records what the method would ask them, the
same of all of them, hears their whole messages over all rounds they take part in, and hands the two piles to
`evaluation.audit`. No record of anybody is read: the inputs come from the public domain.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import jax
import numpy as np

from populace.audits.auditor import Script, Shards, hear, reply_shape, scripts_of, worst_shards
from populace.errors import SpecError, out_of_range
from populace.evaluation.audit import LEAST_SAMPLES, Bound, Finding, gaussian_bound
from populace.evaluation.audit import audit as audit_messages
from populace.evaluation.scores import Score
from populace.methods.base import Population, Protocol
from populace.privacy.events import Gaussian, Repeated, is_pure, pure_epsilon
from populace.privacy.gaussian import gaussian_epsilon
from populace.privacy.randomizers.base import FrequencyOracle, Randomizer, simulate_many
from populace.privacy.randomizers.grr import Grr
from populace.privacy.randomizers.hadamard import Hadamard
from populace.privacy.randomizers.hashing import Olh
from populace.privacy.randomizers.rappor import Rappor
from populace.privacy.randomizers.subset import SubsetSelection
from populace.privacy.randomizers.unary import Oue, Sue
from populace.runs.run import make_key
from populace.types import Array

Say = Callable[[str], None]

MECHANISMS: dict[str, Callable[..., Randomizer]] = {
    "grr": Grr, "subset": SubsetSelection, "oue": Oue, "sue": Sue, "olh": Olh, "hadamard": Hadamard, "rappor": Rappor,
}  # fmt: skip
FACES = ("simulate", "release")
BLOCK = 16_384  # reports drawn at a time
PROJECTED = 2_048  # messages from which the difference a unit makes is learned
MOST_VALUES = 4_096  # of a mechanism's domain: a block of unary reports then takes 64 MiB
MOST_NUMBERS = 2**28  # of all messages of one side together


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effort:
    """The effort of an audit: messages about each of the two inputs, and the confidence of the bound shown."""

    samples: int = 100_000
    confidence: float = 0.95
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise out_of_range("confidence", "in [0.5, 1)", self.confidence)
        if self.samples < LEAST_SAMPLES:
            raise out_of_range("samples", f"at least {LEAST_SAMPLES}", self.samples)


def make_mechanism(name: str, *, epsilon: float, size: int) -> Randomizer:
    if name not in MECHANISMS:
        raise SpecError(f"unknown mechanism {name!r}; mechanisms are {', '.join(MECHANISMS)}")
    if not 2 <= size <= MOST_VALUES:
        raise out_of_range(
            "size",
            f"in [2, {MOST_VALUES}]",
            size,
            advice="one value has nothing to tell, and so many show no more than few",
        )
    return MECHANISMS[name](size=size, epsilon=epsilon)


def audit_mechanism(oracle: Randomizer, *, effort: Effort, face: str = "simulate", what: str = "") -> Finding:
    """Audit one randomiser of values: `simulate` draws from a JAX key, `release` from the operating system, exactly."""
    if face not in FACES:
        raise SpecError(f"expected a face in {', '.join(FACES)}, got {face!r}")
    pairs = value_pairs(oracle)
    root = make_key(effort.seed)
    many = jax.jit(lambda values, key: simulate_many(oracle.simulate, values, key))

    def reports(value: int, count: int, key: Array) -> Array:
        if face == "release":
            return oracle.release(np.full(count, value))
        blocks = -(-count // BLOCK)
        values = np.full(BLOCK, value, np.int32)
        return np.concatenate([many(values, jax.random.fold_in(key, b)) for b in range(blocks)])[:count]

    def draw(pair: int, count: int, part: int) -> tuple[Array, Array]:
        first, second = (
            _read(oracle, reports(value, count, _key(root, part, pair, side)), pairs[pair])
            for side, value in enumerate(pairs[pair])
        )
        return first, second

    return audit_messages(
        draw, [f"values {a} and {b}" for a, b in pairs],
        what=what or f"{type(oracle).__name__.lower()}, {oracle.size} values, {face}",
        claimed=float(oracle.epsilon), samples=_within(effort.samples, oracle.width), confidence=effort.confidence,
    )  # fmt: skip


def value_pairs(oracle: Randomizer) -> list[tuple[int, int]]:
    """Candidate pairs of values: the ends of the domain, some at random, and where filters overlap the farthest."""
    if oracle.size < 2:
        return []
    rng = np.random.default_rng(0)
    pairs = [(0, 1), (0, oracle.size - 1)]
    pairs += [(int(a), int(b)) for a, b in (rng.choice(oracle.size, 2, replace=False) for _ in range(2))]
    if isinstance(oracle, Rappor) and oracle.size <= 1024:
        rows = oracle.candidates.astype(np.int64)
        apart = (rows[:, None, :] != rows[None, :, :]).sum(axis=2)
        a, b = np.unravel_index(int(apart.argmax()), apart.shape)
        pairs.append((int(a), int(b)))
    return list(dict.fromkeys(pairs))


def _read(oracle: Randomizer, reports: Array, pair: tuple[int, int]) -> Array:
    """A report as it came, and, as anybody can work out, whether it supports either value of the pair."""
    rows = np.asarray(reports).reshape(len(reports), -1)
    if not isinstance(oracle, FrequencyOracle) or rows.dtype == bool:
        return rows
    step = max(1, 2**22 // oracle.size)
    told = [np.asarray(oracle.support(reports[s : s + step]))[:, list(pair)] for s in range(0, len(reports), step)]
    return np.concatenate([rows.astype(np.int64), np.concatenate(told)], axis=1)


def audit_method(
    protocol: Protocol,
    population: Population,
    *,
    effort: Effort,
    exact: bool = False,
    what: str = "",
    say: Say = lambda _: None,
) -> Finding:
    """Audit a method on the whole message of a client or silo, through the simulation engine; with `exact` through the debug
    engine, one client at a time, from the operating system's randomness.

    Besides fitted scores, a message is scored by its projection on the mean difference that the unit makes with the noise held
    fixed: for a Gaussian release the ratio of likelihoods, the best score there is.
    """
    claim = protocol.guarantee(population)
    stage = _set_stage(protocol, population, effort)
    samples = _within(effort.samples, math.prod(stage.reply))
    say(
        f"{protocol.facts.name}: {len(stage.scripts)} question(s) x {len(stage.shards)} pair(s) of clients, "
        f"{samples:,} messages about each"
    )

    def draw(pair: int, count: int, part: int) -> tuple[Array, Array]:
        # Which pair to count may be chosen on any samples, so the pilot (part 0) need not be exact.
        return stage.hear(pair, count, part, exact=exact and part > 0)

    return audit_messages(
        draw, stage.names, what=what or f"{protocol.facts.name}, whole message" + (", exact" if exact else ""),
        claimed=claim.epsilon, delta=claim.delta, samples=samples, confidence=effort.confidence,
        known=stage.projections if claim.trust == "silo" and not exact else lambda _: (),
    )  # fmt: skip


def audit_as_gaussian(protocol: Protocol, population: Population, *, effort: Effort, what: str = "") -> Finding | None:
    """Audit one Gaussian release against its whole privacy curve, not only at one delta.

    The bound is on mu (Gaussian DP; Nasr et al. 2023 audit so), and epsilon that of a Gaussian release with this mu. Sound for
    mechanisms whose curve is Gaussian, which is what is claimed. None where the message is anything else.
    """
    claim = protocol.guarantee(population)
    stage = _set_stage(protocol, population, effort)
    event = protocol.charge(stage.scripts[0].ask, population).event
    if len(stage.scripts[0].steps) > 1 or not isinstance(event, Gaussian):
        return None
    found = audit_messages(
        stage.hear, stage.names, what=what or f"{protocol.facts.name}, whole message, as Gaussian",
        claimed=1 / event.noise_multiplier, samples=_within(effort.samples, math.prod(stage.reply)),
        confidence=effort.confidence, known=stage.projections, bound=gaussian_bound,
    )  # fmt: skip

    def in_epsilon(bound: Bound) -> Bound:
        epsilon = gaussian_epsilon(1 / bound.epsilon, claim.delta) if bound.epsilon > 0 else 0.0
        return dataclasses.replace(bound, epsilon=epsilon, event=f"mu at least {bound.epsilon:.4g}: {bound.event}")

    return dataclasses.replace(
        found,
        claimed=claim.epsilon,
        delta=claim.delta,
        measured=in_epsilon(found.measured),
        certain=in_epsilon(found.certain),
    )


def audit_part(protocol: Protocol, population: Population, *, effort: Effort) -> Finding | None:
    """Audit the most telling part of a message whose parts share epsilon evenly, against that share: what is spread too thin
    to be seen in the whole may be seen in a part. None where the method charges no such parts."""
    stage = _set_stage(protocol, population, effort)
    share = stage.share(protocol, population)
    if share is None:
        return None
    event, parts = share.event, share.count
    width = math.prod(stage.reply) // parts
    heard = functools.lru_cache(maxsize=1)(stage.hear)  # the same messages serve all their parts

    def draw(pair: int, count: int, part: int) -> tuple[Array, Array]:
        clients, place = divmod(pair, parts)
        first, second = (rows[:, place * width : (place + 1) * width] for rows in heard(clients, count, part))
        return first, second

    names = [f"{name}; part {place + 1}" for name in stage.names for place in range(parts)]
    return audit_messages(
        draw, names, what=f"{protocol.facts.name}, one of {parts} parts", claimed=pure_epsilon(event),
        samples=_within(effort.samples, math.prod(stage.reply)), confidence=effort.confidence,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """What is asked of which clients: every script with every pair of shards, and the shape of one reply."""

    scripts: Sequence[Script]
    shards: Sequence[Shards]
    reply: tuple[int, ...]
    listen: Callable[..., tuple[Array, Array]]

    @property
    def names(self) -> list[str]:
        return [f"{clients.name}; asked {script.name}" for script in self.scripts for clients in self.shards]

    def hear(self, pair: int, count: int, part: int, *, exact: bool = False) -> tuple[Array, Array]:
        script, clients = divmod(pair, len(self.shards))
        return self.listen(self.scripts[script], self.shards[clients], count, number=(1 + part, pair), exact=exact)

    def projections(self, pair: int) -> list[tuple[str, Score]]:
        """The projection of a message on what the unit adds to it, on average, with the same randomness."""
        script, clients = divmod(pair, len(self.shards))
        shards, number = self.shards[clients], (0, pair)
        with_it, _ = self.listen(self.scripts[script], shards, PROJECTED, number=number, exact=False)
        without, _ = self.listen(self.scripts[script], shards.swapped, PROJECTED, number=number, exact=False)
        gap = (with_it.astype(np.float64) - without).mean(axis=0)
        spread = without.astype(np.float64).var(axis=0)
        weights = np.where(spread > 0, gap / np.where(spread > 0, spread, 1.0), 0.0)
        if not weights.any():
            return []
        return [("projection on the difference", lambda messages: np.asarray(messages, np.float64) @ weights)]

    def share(self, protocol: Protocol, population: Population) -> Repeated | None:
        """The event of a reply that consists of equal parts, one beside the other; None if it does not."""
        script = self.scripts[0]
        event = protocol.charge(script.ask, population).event
        if len(script.steps) > 1 or not isinstance(event, Repeated) or not is_pure(event.event):
            return None
        return event if self.reply and self.reply[0] == event.count else None


def _set_stage(protocol: Protocol, population: Population, effort: Effort) -> Stage:
    claim = protocol.guarantee(population)
    if claim.trust not in ("local", "silo"):
        raise SpecError(
            f"method {protocol.facts.name!r} has trust {claim.trust!r}: its clients do not randomise their messages, so "
            "there is no randomiser of theirs to sample; it is audited by canaries"
        )
    root = make_key(effort.seed)
    scripts = scripts_of(protocol, population, key=jax.random.fold_in(root, 0))

    def listen(
        script: Script, shards: Shards, count: int, *, number: tuple[int, int], exact: bool
    ) -> tuple[Array, Array]:
        return hear(protocol, population, script, shards, count, key=_key(root, *number, 0), exact=exact)

    return Stage(
        scripts=scripts, shards=worst_shards(population, unit=claim.unit), listen=listen,
        reply=reply_shape(protocol, population, scripts[0]),
    )  # fmt: skip


def _within(samples: int, width: int) -> int:
    """The number of samples, limited by memory; no fewer than an audit needs."""
    return max(LEAST_SAMPLES, min(samples, MOST_NUMBERS // max(width, 1)))


def _key(root: Array, part: int, pair: int, side: int) -> Array:
    for number in (1 + part, pair, side):
        root = jax.random.fold_in(root, number)
    return root
