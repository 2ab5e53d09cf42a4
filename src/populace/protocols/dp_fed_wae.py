"""`dp-fed-wae`: an autoencoder trained by one index and one sign per client (Jiang, Zhou and Grossklags, PoPETs 2022).

Each round the server sends its parameters to a few clients; each computes, on its own records, the direction in which they
should move, and tells one coordinate of it by SignDS. Two recipes:

`paper`   as published: dense WAE, ten Adam epochs on the client's two records, SignDS on the raw update with alpha .05, the
          server adds gamma s/n at the coordinate told, rows by arg-max
`best`    the gradient of log P(records) under a decoder of latent classes; public random signs and Hadamard transforms, anew
          each round, before SignDS and their inverse at the server, k by the public rule of `matched_share`; the first
          rounds learn the columns' own tables only; the server's step on a parameter is as long as what the reports told
          of it deserves; rows drawn from the decoder's probabilities
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import SpecError, out_of_range
from populace.models.local_training import adam_update, pretrain
from populace.models.wae import Blocks, ClassAutoencoder, Decoder, DenseAutoencoder, count_parameters, unpack
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.randomizers.base import check_epsilon
from populace.privacy.randomizers.signds import SignDS, gain, matched_share, padded_size, rotate, rotate_back
from populace.privacy.source import Source
from populace.protocols.base import Ask, Facts, Plan, Population, Protocol, Replies, Shard

Array = Any

PAPER_SHARE = 0.05  # k/d of the paper's best figures
PAPER_COHORT = 10
USUAL_ROUNDS = 1_000
TURNS = 2  # of the rotation
PRIOR = 0.4  # standard deviation of logits: a parameter's step is the less, the less the reports say beside it
WEIGHT_PRIOR = 0.1  # the same of the classes' own
FIRST_PRIOR = 0.3  # the same of shares, in the first rounds
FIRST_REPORTS, MOST_FIRST = (
    0.8,
    0.5,
)  # share of the rounds that are first ones: this divided by epsilon, and at most that
FORGETTING = 4.0  # a report counts like the fourth power of its place in time: early ones saw other classes
SHORTER = 0.85  # than a gradient of certain classes is one of uncertain ones
LONGEST_STEP = 1.0  # of a logit


@dataclasses.dataclass(frozen=True)
class Design:
    """What both sides derive from the protocol's fields and the public facts of the population."""

    net: ClassAutoencoder | DenseAutoencoder
    mechanism: SignDS
    records: int

    @property
    def parameters(self) -> int:
        return count_parameters(self.net.shapes)

    @property
    def gain(self) -> float:
        return gain(self.mechanism.epsilon, self.mechanism.chosen / self.mechanism.size)

    def signs(self, coin: Array, round_id: Array) -> Array:
        """The public random signs of a round's rotation."""
        key = jax.random.fold_in(jax.random.fold_in(coin, 0), round_id)
        words = jax.random.bits(key, (TURNS, self.mechanism.size))
        return jnp.where(words >> 31 == 1, 1.0, -1.0).astype(jnp.float32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """The server's parameters, the public order of the clients, and the public coin of rotation, latents and ties."""

    round: Array
    coin: Array
    order: Array
    theta: Array
    means: Array  # of the columns' places, as the first rounds estimate them: unbiased, so perhaps negative
    heard: Array  # reports of this kind of round
    design: Design = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class DpFedWae(Protocol):
    """Guarantee: epsilon-LDP, pure, for everything a client holds: it sends `participations` reports of epsilon divided by
    that number, and its ledger refuses one more.

    Edge cases: a client without records sends what a zero update gives. `share` 0 is k/d by the public rule (`best`) or .05
    (`paper`); `warm` 0 is the public rule for the share of first
    rounds; `step` is the paper's gamma. Clients left over when the cohorts do not come out even form a smaller last
    cohort.
    """

    epsilon: float
    recipe: Literal["best", "paper"] = "best"
    cohort: int = 0
    participations: int = 1
    share: float = 0.0
    step: float = 1.0
    classes: int = 8
    warm: float = 0.0
    hidden: int = 64
    latent: int = 16
    epochs: int = 10
    learning_rate: float = 1e-3
    pretraining: int = 0

    facts: ClassVar[Facts] = Facts(
        name="dp-fed-wae",
        title="autoencoder trained by one index and one sign per client (SignDS)",
        paper="Jiang, Zhou and Grossklags, PoPETs 2022",
        trust=("local",),
        unit="client",
        kinds=("table",),
        traffic="a model down, one index and one sign up, per client and participation",
    )
    compiles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        for name in ("participations", "classes", "hidden", "latent", "epochs"):
            if getattr(self, name) < 1:
                raise out_of_range(name, "at least 1", getattr(self, name))
        for name in ("cohort", "pretraining", "step"):
            if not 0 <= getattr(self, name) < math.inf:
                raise out_of_range(name, "at least 0", getattr(self, name))
        if not 0 <= self.share <= 1 or not 0 <= self.warm < 1:
            raise out_of_range("share and warm", "in [0, 1]", (self.share, self.warm))
        if not 0 < self.learning_rate < math.inf:
            raise out_of_range("learning_rate", "above 0", self.learning_rate)
        if self.recipe not in ("best", "paper"):
            raise SpecError(f"expected recipe in best, paper, got {self.recipe!r}")
        check_epsilon(self.epsilon / self.participations)
        if self.pretraining and self.recipe == "best":
            raise SpecError(
                "expected pretraining 0 with recipe best: classes learn nothing from even columns; it belongs to recipe paper"
            )

    def design(self, population: Population) -> Design:
        return design_of(self, population)

    def cohort_size(self, population: Population) -> int:
        """What was set; else ten as published, or a thousandth of the clients, so that about a thousand rounds take place."""
        usual = PAPER_COHORT if self.recipe == "paper" else max(1, population.clients // USUAL_ROUNDS)
        return min(self.cohort or usual, population.clients)

    def rounds(self, population: Population) -> int:
        return self.participations * self._pass(population)

    def _pass(self, population: Population) -> int:
        """Rounds in which every client is asked once."""
        return -(-population.clients // self.cohort_size(population))

    def begin(self, population: Population, key: Array, warm: Any = None) -> State:
        design = self.design(population)
        start, coin, order, random = jax.random.split(key, 4)
        theta, means = design.net.start(start), jnp.zeros(0)
        if isinstance(design.net, ClassAutoencoder):
            means = design.net.blocks.probabilities(jnp.zeros(design.net.blocks.width))
        elif self.pretraining:
            theta = pretrain(design.net, theta, self.pretraining, self.learning_rate, random)
        return State(
            round=jnp.int32(0), coin=coin, order=self._order(population, order), theta=theta, means=means,
            heard=jnp.int32(0), design=design,
        )  # fmt: skip

    def _order(self, population: Population, key: Array) -> Array:
        """[rounds, cohort]: all clients in a random order, anew in every pass; -1 where they run out."""
        size, rounds = self.cohort_size(population), self._pass(population)
        clients = jnp.arange(population.clients, dtype=jnp.int32)
        padding = (0, rounds * size - population.clients)
        passes = [
            jnp.pad(jax.random.permutation(one, clients), padding, constant_values=-1).reshape(rounds, size)
            for one in jax.random.split(key, self.participations)
        ]
        return jnp.concatenate(passes)

    def cohorts(self, population: Population, state: State, first: int, count: int) -> Array:
        return np.asarray(state.order)[first : first + count]

    def ask(self, state: State, population: Population, source: Source) -> Ask | None:
        rounds = self.rounds(population)
        if not isinstance(state.round, jax.core.Tracer) and int(state.round) >= rounds:
            return None
        cohort = state.order[state.round]
        common = {
            "theta": state.theta,
            "coin": jax.random.key_data(state.coin),
            "round": state.round,
            "warming": state.round < self.first_rounds(rounds),
        }
        return Ask(round=state.round, cohort=cohort, common=common, own=jnp.arange(len(cohort), dtype=jnp.int32))

    def first_rounds(self, rounds: int) -> int:
        """Of so many, those that learn the columns' own tables only."""
        if self.recipe == "paper":
            return 0
        share = self.warm or min(MOST_FIRST, FIRST_REPORTS * self.participations / self.epsilon)
        return max(1, int(share * rounds))

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=self.design(population).mechanism.event, unit="client")

    def answer(self, common: Any, own: Array, shard: Shard, memory: Any, source: Source) -> tuple[Array, Any]:
        design = self.design(shard.population)
        mask = jnp.asarray(shard.mask, jnp.float32)
        root = jax.random.wrap_key_data(jnp.asarray(common["coin"]))
        coin = jax.random.fold_in(jax.random.fold_in(root, 1 + common["round"]), own)
        ties, latents = jax.random.split(coin)
        start = jax.random.randint(ties, (), 0, design.mechanism.size)
        if isinstance(design.net, DenseAutoencoder):
            x = design.net.blocks.encode(shard.records)
            update = adam_update(design.net, common["theta"], x, mask, latents, self.epochs, self.learning_rate)
            return design.mechanism.apply(update, source, start), memory
        slope = told_slope(design.net, common["theta"], shard.records, mask, common["warming"])
        turned = rotate(slope, design.signs(root, common["round"]))
        return design.mechanism.apply(turned, source, start), memory

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        mechanism, net = state.design.mechanism, state.design.net
        heard = jnp.sum(replies.present)
        told = mechanism.add_up(replies.values, replies.present) / jnp.maximum(heard, 1)
        if isinstance(net, DenseAutoencoder):
            return dataclasses.replace(state, round=state.round + 1, theta=state.theta + self.step * told)
        # What one report tells of a unit vector, undone: unbiased for Gaussian-looking coordinates.
        unit = math.sqrt(mechanism.size) / state.design.gain
        signs = state.design.signs(state.coin, ask.common["round"])
        told = unit * rotate_back(told, signs, len(state.theta) - net.blocks.width)
        return self.learn(state, net, told, heard, ask.common["warming"])

    def learn(self, state: State, net: ClassAutoencoder, told: Array, heard: Array, warming: Array) -> State:
        """The state after so many reports whose mean unit vector is estimated to be `told`."""
        before = jnp.where(state.round == self.first_rounds(len(state.order)), 0, state.heard)
        means = first_step(state, net, told, before, heard)
        first = state.theta.at[: net.blocks.width].set(net.base_of(means))
        return dataclasses.replace(
            state,
            round=state.round + 1,
            theta=jnp.where(warming, first, later_step(state, net, told, before, heard)),
            means=jnp.where(warming, means, state.means),
            heard=before + heard,
        )

    def finish(self, state: State, population: Population, key: Array) -> Decoder:
        net, schema = state.design.net, population.table_schema
        if isinstance(net, ClassAutoencoder):
            return Decoder(schema=schema, layers=jax.tree.map(np.asarray, net.tables(state.theta)))
        parts = unpack(net.shapes, state.theta)
        layers = {name: np.asarray(parts[name]) for name in ("up", "up_bias", "out", "out_bias")}
        return Decoder(schema=schema, layers=layers, arg_max=True)

    def guarantee(self, population: Population) -> Guarantee:
        mechanism = self.design(population).mechanism
        times = "once" if self.participations == 1 else f"{self.participations} times"
        return Guarantee(
            epsilon=float(self.epsilon),
            unit="client",
            neighbours="replace",
            trust="local",
            mechanism=f"one index and one sign of an update (SignDS), each client {times}",
            read_from_data=population.table_schema.read_from_data,
            derivation=(
                f"each report: {mechanism.event}, {mechanism.chosen} of {mechanism.size} coordinates being the top",
                "reports of one client add up; its ledger refuses one more than it may send",
                "the sign is a fair coin independent of the data; cohorts, rotation and ties are public coins",
                "the server's steps and all sampling are post-processing",
            ),
            assumptions=("the number of clients and who takes part are public", "a person's records sit at one client"),
        )

    def plan(self, population: Population) -> Plan:
        design = self.design(population)
        down, up = self._bytes(design)
        return Plan(
            guarantee=self.guarantee(population),
            rounds=self.rounds(population),
            bytes_up=up,
            bytes_down=down,
            errors={},
            notes=(
                f"{design.parameters:,} parameters, {design.mechanism.chosen} of {design.mechanism.size:,} coordinates "
                f"the top, told with probability {design.mechanism.p:.3f}",
                "no error is predicted: training has no closed form",
            ),
        )

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return self._bytes(self.design(population))

    def _bytes(self, design: Design) -> tuple[float, float]:
        """Parameters as 32-bit floats, a seed, two numbers of the round; one report."""
        return 4.0 * design.parameters + 16.0, float(design.mechanism.wire_bytes)


@functools.lru_cache(maxsize=64)
def design_of(protocol: DpFedWae, population: Population) -> Design:
    """The network and the mechanism: from public facts alone."""
    schema = population.table_schema
    blocks = Blocks(schema.sizes)
    epsilon = protocol.epsilon / protocol.participations
    if protocol.recipe == "paper":
        net: ClassAutoencoder | DenseAutoencoder = DenseAutoencoder(blocks, protocol.hidden, protocol.latent)
        size, share = count_parameters(net.shapes), protocol.share or PAPER_SHARE
    else:
        target = None if schema.target is None else schema.index(schema.target)
        net = ClassAutoencoder(blocks, protocol.classes, target)
        size = padded_size(count_parameters(net.shapes) - blocks.width)
        share = protocol.share or matched_share(epsilon)
    chosen = min(size, max(1, round(share * size)))
    return Design(net, SignDS(size=size, epsilon=epsilon, chosen=chosen), population.records)


def told_slope(net: ClassAutoencoder, theta: Array, records: Array, mask: Array, warming: Array) -> Array:
    """The gradient a report is about: of the columns' own tables in the first rounds, of the rest later."""
    first = net.first_slope(theta[: net.blocks.width], records, mask)
    later = net.slope(theta, records, mask)
    return jnp.where(warming, jnp.zeros_like(later).at[: net.blocks.width].set(first), later)


def first_step(state: State, net: ClassAutoencoder, told: Array, before: Array, heard: Array) -> Array:
    """The columns' shares: all estimates so far meaned, even ones counting like as many reports as they are worth."""
    base = state.theta[: net.blocks.width]
    length = net.first_length(base, state.design.records)
    estimate = net.blocks.probabilities(base) + length * told[: net.blocks.width]
    worth = (length / (state.design.gain * FIRST_PRIOR)) ** 2
    return state.means + heard / (worth + before + heard) * (estimate - state.means)


def later_step(state: State, net: ClassAutoencoder, told: Array, before: Array, heard: Array) -> Array:
    """Classes, effects and weights: each moves to where the reports put it, by their share beside all that is known of it.

    A report puts a parameter where told / information says, with the variance (length / gain / information)^2; before any
    came it was known to PRIOR^2. With FORGETTING = 1 this would be the mean of all reports and of the start (Kalman's gain).
    """
    base = state.theta[: net.blocks.width]
    length = SHORTER * net.length(base, state.design.records)
    information = net.information(state.theta)
    prior = jnp.where(jnp.arange(len(told)) < len(told) - net.outcomes * net.classes, PRIOR, WEIGHT_PRIOR)
    worth = (length / (state.design.gain * information * prior)) ** 2
    share = FORGETTING * heard / (worth + before + FORGETTING * heard)
    move = jnp.clip(share * length * told / information, -LONGEST_STEP, LONGEST_STEP)
    return state.theta.at[net.blocks.width :].add(move)
