"""What clients compute from their records, what they report of it at what cost, and how far the server steps by reports.

The published recipe sends what some epochs of Adam change. Clients with latent classes send a gradient. Reports are noisy and
there are few for each parameter, so that a step must be as long as what is known deserves: a parameter moves by the share the
new reports have beside the old ones and beside what was known before any came (Kalman's gain), where information on rare values
is scarce. `estimate` is the mean of the clients' gradients, each made a unit vector, as the reports show it; `gain` is how well
(the estimate of a coordinate from one report has the variance 1 / gain^2).
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.base import NO_ERROR, Ask, ImageShape, Population, Replies, Shard
from populace.methods.blocks.composed import Learner, LocalRelease, Wording
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.networks import Decoder, count_parameters, pack, unpack
from populace.methods.blocks.schedules import Cohort
from populace.methods.wae.autoencoders import (
    ClassAutoencoder,
    ConvAutoencoder,
    DenseAutoencoder,
    Layers,
    gradient_mask,
)
from populace.methods.wae.images import DECODER, ConvDecoder
from populace.privacy.events import Event
from populace.privacy.randomizers.fedsel import FedSel
from populace.privacy.randomizers.several_signds import SeveralSignDS
from populace.privacy.randomizers.signds import SignDS
from populace.privacy.shuffling import shuffled_statement
from populace.privacy.source import Source
from populace.types import Array, ArrayTree

Trained = DenseAutoencoder | ConvAutoencoder

ADAM = (0.9, 0.999, 1e-8)
PRETRAINING_BATCH, PRETRAINING_EPOCHS = 64, 1
PRIOR = 0.4  # standard deviation of logits before any report
WEIGHT_PRIOR = 0.1  # the same of the logits of the classes' weights
FIRST_PRIOR = 0.3  # the same of shares, in the first rounds
FORGETTING = 4.0  # a report counts like the third power of its place in time: early ones saw other classes
SHORTER = 0.85  # than a gradient of certain classes is one of uncertain ones
LONGEST_STEP = 1.0  # of a logit


def report_release(
    event: Event, *, epsilon: float, participations: int, report: str, derivation: tuple[str, ...]
) -> LocalRelease:
    """Reports of which a client sends so many; where it is asked once, a central statement may be made too."""
    times = "once" if participations == 1 else f"{participations} times"
    wording = Wording(
        mechanism=f"{report}, each client {times}",
        derivation=(
            *derivation,
            "reports of one client add up; its ledger refuses one more than it may send",
            "the server's steps and all sampling are post-processing",
        ),
        assumptions=(
            "the number of clients and who takes part are public",
            "all of a person's records are held by one client; who is in several has the bound of the group line",
        ),
    )
    return LocalRelease(
        epsilon=epsilon, report=event, most_replies=participations, shuffles=participations == 1, wording=wording
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportLearner(Learner):
    """A model that is sent with a public coin, and that moves by what the mechanism lets each client tell of a vector."""

    population: Population
    mechanism: SignDS | SeveralSignDS | FedSel
    release: LocalRelease
    note: str  # of a plan, about network and mechanism

    def split(self, key: Array) -> tuple[Array, Array]:
        return key, jax.random.split(key, 4)[2]  # `begin` takes the other three

    def question(self, state: Any, number: Array) -> dict[str, Array]:
        return {"theta": state.theta, "coin": jax.random.key_data(state.coin), "round": jnp.asarray(number)}

    def own_questions(self, state: ArrayTree, number: Array, cohort: Cohort) -> Array:
        """The client's place in its cohort, from which its coins follow."""
        return jnp.arange(len(cohort.clients), dtype=jnp.int32)

    def coins(self, question: dict[str, Array], own: Array) -> tuple[Array, Array]:
        """A client's public coins: where ties begin to be broken, and the key of latents."""
        root = jax.random.wrap_key_data(jnp.asarray(question["coin"]))
        ties, latents = jax.random.split(jax.random.fold_in(jax.random.fold_in(root, 1 + question["round"]), own))
        return jax.random.randint(ties, (), 0, self.mechanism.size), latents

    def mean_report(self, replies: Replies) -> tuple[Array, Array]:
        """The mean of the reports that came, as a vector, and how many there were."""
        heard = jnp.sum(replies.present)
        return self.mechanism.add_up(replies.values, replies.present) / jnp.maximum(heard, 1), heard

    def notes(self) -> tuple[str, ...]:
        if not self.release.shuffles:
            return self.note, NO_ERROR
        central = shuffled_statement(local_epsilon=float(self.release.epsilon), answered=self.population.clients)
        return self.note, NO_ERROR, f"if all answer, {central}"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameters:
    """The server's parameters, and the public coin of latents and ties."""

    coin: Array
    theta: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamLearner(ReportLearner):
    """The published recipe: a client tells one coordinate of what some epochs of Adam change, and the server adds it."""

    net: Trained
    local_epochs: int
    learning_rate: float
    server_learning_rate: float
    pretraining_steps: int

    def begin(self, key: Array, warm: object = None) -> Parameters:
        start, coin, _, random = jax.random.split(key, 4)
        theta = self.net.start(start)
        if self.pretraining_steps:
            theta = pretrain(
                self.net, theta, steps=self.pretraining_steps, learning_rate=self.learning_rate, key=random
            )
        return Parameters(coin=coin, theta=theta)

    def answer(self, question: dict[str, Array], own: Array, shard: Shard, source: Source) -> Array:
        start, latents = self.coins(question, own)
        update = self.update(question["theta"], shard.records, jnp.asarray(shard.mask, jnp.float32), latents)
        return self.mechanism.apply(update, source, start)

    def update(self, theta: Array, records: ArrayTree, mask: Array, latents: Array) -> Array:
        """What a client's training changes."""
        x = self.net.read(records["x"]) if isinstance(self.net, ConvAutoencoder) else self.net.blocks.encode(records)
        return adam_update(
            self.net, theta, x, mask, latents, epochs=self.local_epochs, learning_rate=self.learning_rate
        )

    def absorb(self, state: Parameters, ask: Ask, replies: Replies, source: Source) -> Parameters:
        return self.move(state, self.mean_report(replies)[0])

    def move(self, state: Parameters, mean: Array) -> Parameters:
        """The state after a step along the mean of what clients tell."""
        return dataclasses.replace(state, theta=state.theta + self.server_learning_rate * mean)

    def finish(self, state: Parameters, key: Array) -> Synthesizer:
        parts, shape = unpack(self.net.shapes, state.theta), self.population.schema
        if isinstance(shape, ImageShape):
            return ConvDecoder(shape=shape.shape, classes=1, layers={name: np.asarray(parts[name]) for name in DECODER})
        layers = {name: np.asarray(parts[name]) for name in ("up", "up_bias", "out", "out_bias")}
        return Decoder(schema=shape, layers=layers, arg_max=True)

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        """Parameters as 32-bit floats, a seed, the number of the round; one report."""
        return 4.0 * count_parameters(self.net.shapes) + 12.0, float(self.mechanism.wire_bytes)


def adam_update(
    net: Trained, theta: Array, x: Array, mask: Array, key: Array, *, epochs: int, learning_rate: float
) -> Array:
    """What so many full-batch epochs of Adam change (algorithm 2, lines 13 to 17).

    Layer by layer: the gradient by a flat vector is a sum of as many vectors of its length as there are layers, and the bytes
    that moves take several times longer than the rest.
    """
    b1, b2, tiny = ADAM
    start, gradient, changes = net.training(unpack(net.shapes, jnp.asarray(theta)), x)
    priors = jax.vmap(lambda number: jax.random.normal(jax.random.fold_in(key, number), (len(mask), net.latent)))(
        jnp.arange(epochs)
    )

    def epoch(number: Array, carry: tuple[Layers, Layers, Layers]) -> tuple[Layers, Layers, Layers]:
        now, mean, square = carry
        slope = gradient(now, mask, priors[number])
        t = jnp.asarray(number + 1, jnp.float32)
        rate, scale = learning_rate / (1 - b1**t), 1 / (1 - b2**t)
        mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, mean, slope)
        square = jax.tree.map(lambda s, g: b2 * s + (1 - b2) * g**2, square, slope)

        def moved(layer: Array, m: Array, s: Array) -> Array:
            return layer - rate * m / (jnp.sqrt(scale * s) + tiny)

        return jax.tree.map(moved, now, mean, square), mean, square

    zero = jax.tree.map(jnp.zeros_like, start)
    end: Layers = jax.lax.fori_loop(0, epochs, epoch, (start, zero, zero))[0]
    return pack(net.shapes, changes(jax.tree.map(operator.sub, end, start)))


def pretrain(net: Trained, theta: Array, *, steps: int, learning_rate: float, key: Array) -> Array:
    """The parameters after Adam on batches of rows drawn evenly from the public domain (section 5.2): no record of anybody."""

    def step(number: Array, now: Array) -> Array:
        rows, latents = jax.random.split(jax.random.fold_in(key, number))
        drawn, ones = net.draw(PRETRAINING_BATCH, rows), jnp.ones(PRETRAINING_BATCH)
        return now + adam_update(net, now, drawn, ones, latents, epochs=PRETRAINING_EPOCHS, learning_rate=learning_rate)

    after: Array = jax.jit(lambda begin: jax.lax.fori_loop(0, steps, step, begin))(theta)
    return after


def reported_gradient(
    net: ClassAutoencoder, theta: Array, records: tuple[Array, Array], mask: Array, *,
    warming: Array, kept: Array | float = 1.0,
) -> Array:  # fmt: skip
    """The gradient a report is about: by the columns' own tables in the first rounds, by the rest later."""
    x, value = records
    first = net.base_gradient(theta[: net.blocks.width], x, mask) * kept
    later = net.gradient(theta, x, value, mask, kept)
    return jnp.where(warming, jnp.zeros_like(later).at[: net.blocks.width].set(first), later)


def first_step(
    net: ClassAutoencoder, theta: Array, means: Array, estimate: Array,
    *, gain: float, records: int, before: Array, heard: Array, kept: Array,
) -> Array:  # fmt: skip
    """The columns' shares: the mean of all estimates so far, even shares counting like as many reports as they deserve."""
    base = theta[: net.blocks.width]
    share = jnp.mean(kept)  # of all reports, those that were about a given column
    norm = jnp.sqrt(share) * net.base_gradient_norm(base, records)
    shares = net.blocks.probabilities(base) + norm * estimate[: net.blocks.width]
    prior_reports = (norm / (gain * FIRST_PRIOR)) ** 2
    return means + kept * heard / (prior_reports + share * before + heard) * (shares - means)


def later_step(
    net: ClassAutoencoder, theta: Array, estimate: Array,
    *, gain: float, records: int, before: Array, heard: Array, kept: Array,
) -> Array:  # fmt: skip
    """Classes, effects and weights: each moves to where the reports put it, by their share beside all that is known of it.

    A report puts a parameter where estimate / information says, with the variance (norm / gain / information)^2; before any
    came it was known to PRIOR^2. With FORGETTING = 1 this would be the mean of all reports and of the start.
    """
    share = jnp.mean(kept)
    norm = SHORTER * jnp.sqrt(share) * net.gradient_norm(theta[: net.blocks.width], records)
    information = net.information(theta)
    others = len(estimate) - net.outcomes * net.classes
    prior = jnp.where(jnp.arange(len(estimate)) < others, PRIOR, WEIGHT_PRIOR)
    prior_reports = (norm / (gain * information * prior)) ** 2
    part = FORGETTING * heard / (prior_reports + share * before + FORGETTING * heard)
    step = jnp.clip(part * norm * estimate / information, -LONGEST_STEP, LONGEST_STEP)
    return jnp.asarray(theta).at[net.blocks.width :].add(step * gradient_mask(net, kept))
