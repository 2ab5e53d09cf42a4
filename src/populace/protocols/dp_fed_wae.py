"""`dp-fed-wae`: an autoencoder trained by one index and one sign per client (Jiang, Zhou and Grossklags, PoPETs 2022).

Each round the server sends its parameters to a few clients; each computes, on its own records, the direction in which they
should move, and tells one coordinate of it by SignDS. Two recipes:

`paper`   as published: dense WAE, ten Adam epochs on the client's two records, SignDS on the raw update with alpha .05, the
          server adds gamma s/n at the coordinate told, rows by arg-max
`best`    the gradient of -log P(records) under a decoder of latent classes; public random signs and a Hadamard transform
          before SignDS and their inverse at the server, k by the public rule of `matched_share`; the first rounds move the
          output biases only; steps fall geometrically; rows drawn from the decoder's probabilities
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
from populace.models.wae import Blocks, ClassAutoencoder, Decoder, DenseAutoencoder, count_parameters, unpack
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.randomizers.base import check_epsilon
from populace.privacy.randomizers.signds import SignDS, gain, matched_share, padded_size, rotate, rotate_back
from populace.privacy.source import Source
from populace.protocols.base import Ask, Facts, Plan, Population, Protocol, Replies, Shard
from populace.tables.schema import Schema

Array = Any

PAPER_SHARE = 0.05  # k/d of the paper's best figures
ADAM = (0.9, 0.999, 1e-8)
PAPER_COHORT, PAPER_STEP = 10, 1.0  # n and gamma
USUAL_ROUNDS = 1_000
STEPS = (1.0, 0.3)  # first and last, as lengths in the space of parameters
WARM_STEPS = (1.5, 0.05)  # the same while only the output biases move
BIAS_WEIGHT = 0.3  # of the output biases' gradient afterwards
PRETRAINING_BATCH, PRETRAINING_EPOCHS = 64, 1


@dataclasses.dataclass(frozen=True)
class Design:
    """What both sides derive from the protocol's fields and the public schema."""

    net: ClassAutoencoder | DenseAutoencoder
    mechanism: SignDS
    rotated: bool

    @property
    def parameters(self) -> int:
        return count_parameters(self.net.shapes)

    @property
    def biases(self) -> int:
        return self.net.blocks.width

    def weights(self, warming: Array) -> Array:
        """What each coordinate's gradient counts for: at first the output biases only, then those less than the rest.

        A record's gradient never vanishes, and nearly all of its length lies in the biases: they would drown the rest.
        """
        bias = jnp.arange(self.parameters) < self.biases
        return jnp.where(bias, jnp.where(warming, 1.0, BIAS_WEIGHT), jnp.where(warming, 0.0, 1.0)).astype(jnp.float32)

    def signs(self, coin: Array) -> Array:
        """The public random signs of the rotation."""
        words = jax.random.bits(jax.random.fold_in(coin, 0), (self.mechanism.size,))
        return jnp.where(words >> 31 == 1, 1.0, -1.0).astype(jnp.float32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """The server's parameters, the public order of the clients, and the public coin of rotation, latents and ties."""

    round: Array
    coin: Array
    order: Array
    theta: Array
    design: Design = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class DpFedWae(Protocol):
    """Guarantee: epsilon-LDP, pure, for everything a client holds: it sends `participations` reports of epsilon divided by
    that number, and its ledger refuses one more.

    Edge cases: a client without records sends what a zero update gives. `share` 0 is k/d by the public rule (`best`) or .05
    (`paper`); `step` and `last_step` 0 are the recipe's own. Clients left over when the cohorts do not come out even form a
    smaller last cohort.
    """

    epsilon: float
    recipe: Literal["best", "paper"] = "best"
    cohort: int = 0
    participations: int = 1
    share: float = 0.0
    step: float = 0.0
    last_step: float = 0.0
    classes: int = 8
    warm: float = 0.15
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
        for name in ("cohort", "pretraining", "step", "last_step"):
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

    def design(self, schema: Schema) -> Design:
        return design_of(self, schema)

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
        design = self.design(population.table_schema)
        start, coin, order, random = jax.random.split(key, 4)
        theta = design.net.start(start)
        if isinstance(design.net, DenseAutoencoder) and self.pretraining:
            theta = pretrain(design.net, theta, self.pretraining, self.learning_rate, random)
        return State(round=jnp.int32(0), coin=coin, order=self._order(population, order), theta=theta, design=design)

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
        warming, step = self.schedule(state.round, rounds)
        cohort = state.order[state.round]
        common = {
            "theta": state.theta,
            "coin": jax.random.key_data(state.coin),
            "round": state.round,
            "warming": warming,
            "step": step,
        }
        return Ask(round=state.round, cohort=cohort, common=common, own=jnp.arange(len(cohort), dtype=jnp.int32))

    def schedule(self, round_id: Array, rounds: int) -> tuple[Array, Array]:
        """Whether only the output biases move, and the step, in this round: the paper's gamma, or geometrically falling."""
        if self.recipe == "paper":
            return jnp.bool_(False), jnp.float32(self.step or PAPER_STEP)
        warm = int(self.warm * rounds)
        first, last = self.step or STEPS[0], self.last_step or STEPS[1]
        warming = round_id < warm
        done = jnp.where(warming, round_id / max(warm, 1), (round_id - warm) / max(rounds - warm, 1))
        first_now = jnp.where(warming, WARM_STEPS[0], first)
        last_now = jnp.where(warming, WARM_STEPS[1], last)
        return warming, (first_now * (last_now / first_now) ** done).astype(jnp.float32)

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=self.design(population.table_schema).mechanism.event, unit="client")

    def answer(self, common: Any, own: Array, shard: Shard, memory: Any, source: Source) -> tuple[Array, Any]:
        design = self.design(shard.table_schema)
        x = design.net.blocks.encode(shard.records)
        mask = jnp.asarray(shard.mask, jnp.float32)
        root = jax.random.wrap_key_data(jnp.asarray(common["coin"]))
        coin = jax.random.fold_in(jax.random.fold_in(root, 1 + common["round"]), own)
        ties, latents = jax.random.split(coin)
        start = jax.random.randint(ties, (), 0, design.mechanism.size)
        if isinstance(design.net, DenseAutoencoder):
            update = adam_update(design.net, common["theta"], x, mask, latents, self.epochs, self.learning_rate)
            return design.mechanism.apply(update, source, start), memory
        update = -jax.grad(design.net.loss)(common["theta"], x, mask) * design.weights(common["warming"])
        return design.mechanism.apply(rotate(update, design.signs(root)), source, start), memory

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        mechanism = state.design.mechanism
        heard = jnp.maximum(jnp.sum(replies.present), 1)
        told = mechanism.add_up(replies.values, replies.present) / heard
        if state.design.rotated:
            # What one report tells of a unit vector, undone: steps are lengths whatever epsilon and the number of parameters.
            unit = math.sqrt(mechanism.size) / gain(mechanism.epsilon, mechanism.chosen / mechanism.size)
            told = unit * rotate_back(told, state.design.signs(state.coin), len(state.theta))
            told = told * state.design.weights(ask.common["warming"])
        return dataclasses.replace(state, round=state.round + 1, theta=state.theta + ask.common["step"] * told)

    def finish(self, state: State, population: Population, key: Array) -> Decoder:
        net, schema = state.design.net, population.table_schema
        if isinstance(net, ClassAutoencoder):
            return Decoder(schema=schema, layers={"classes": np.asarray(net.class_logits(state.theta))})
        parts = unpack(net.shapes, state.theta)
        layers = {name: np.asarray(parts[name]) for name in ("up", "up_bias", "out", "out_bias")}
        return Decoder(schema=schema, layers=layers, arg_max=True)

    def guarantee(self, population: Population) -> Guarantee:
        mechanism = self.design(population.table_schema).mechanism
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
        design = self.design(population.table_schema)
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
        return self._bytes(self.design(population.table_schema))

    def _bytes(self, design: Design) -> tuple[float, float]:
        """Parameters as 32-bit floats, a seed, two numbers of the round; one report."""
        return 4.0 * design.parameters + 16.0, float(design.mechanism.wire_bytes)


@functools.lru_cache(maxsize=64)
def design_of(protocol: DpFedWae, schema: Schema) -> Design:
    """The network and the mechanism: from public facts alone."""
    blocks = Blocks(schema.sizes)
    epsilon = protocol.epsilon / protocol.participations
    if protocol.recipe == "paper":
        net: ClassAutoencoder | DenseAutoencoder = DenseAutoencoder(blocks, protocol.hidden, protocol.latent)
        size, share = count_parameters(net.shapes), protocol.share or PAPER_SHARE
    else:
        net = ClassAutoencoder(blocks, protocol.classes)
        size, share = padded_size(count_parameters(net.shapes)), protocol.share or matched_share(epsilon)
    chosen = min(size, max(1, round(share * size)))
    return Design(net, SignDS(size=size, epsilon=epsilon, chosen=chosen), rotated=protocol.recipe == "best")


def adam_update(
    net: DenseAutoencoder, theta: Array, x: Array, mask: Array, key: Array, epochs: int, learning_rate: float
) -> Array:
    """What so many full-batch epochs of Adam change (algorithm 2, lines 13 to 17)."""
    b1, b2, tiny = ADAM

    def epoch(number: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        now, mean, square = carry
        slope = jax.grad(net.loss)(now, x, mask, jax.random.fold_in(key, number))
        mean, square = b1 * mean + (1 - b1) * slope, b2 * square + (1 - b2) * slope**2
        t = jnp.asarray(number + 1, jnp.float32)
        move = mean / (1 - b1**t) / (jnp.sqrt(square / (1 - b2**t)) + tiny)
        return now - learning_rate * move, mean, square

    zero = jnp.zeros_like(theta)
    end, _, _ = jax.lax.fori_loop(0, epochs, epoch, (theta, zero, zero))
    return end - theta


def pretrain(net: DenseAutoencoder, theta: Array, steps: int, learning_rate: float, key: Array) -> Array:
    """Adam on batches of rows drawn evenly from the public domain (section 5.2): no record of anybody."""
    sizes = jnp.asarray(net.blocks.sizes)

    def batch(step_key: Array) -> Array:
        return net.blocks.encode(jax.random.randint(step_key, (PRETRAINING_BATCH, len(sizes)), 0, sizes))

    def step(number: Array, now: Array) -> Array:
        rows, latents = jax.random.split(jax.random.fold_in(key, number))
        ones = jnp.ones(PRETRAINING_BATCH)
        return now + adam_update(net, now, batch(rows), ones, latents, PRETRAINING_EPOCHS, learning_rate)

    found: Array = jax.jit(lambda begin: jax.lax.fori_loop(0, steps, step, begin))(theta)
    return found
