"""What both sides derive from public facts, what a client computes from its records, and how far the server steps by reports.

The published recipe sends what some epochs of Adam change. Clients with latent classes send a gradient. Reports are noisy and
there are few for each parameter, so that a step must be as long as what is known deserves: a parameter moves by the share the
new reports have beside the old ones and beside what was known before any came (Kalman's gain), where information on rare values
is scarce. `estimate` is the mean of the clients' gradients, each made a unit vector, as the reports show it; `gain` is how well
(the estimate of a coordinate from one report has the variance 1 / gain^2).
"""

from __future__ import annotations

import abc
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.base import Ask, Population, Protocol, State
from populace.methods.blocks.networks import count_parameters
from populace.methods.blocks.schedules import Passes
from populace.methods.wae.autoencoders import (
    ClassAutoencoder,
    ConvAutoencoder,
    DenseAutoencoder,
    choose_places,
    gradient_mask,
    mask_of_places,
    submodel_size,
)
from populace.methods.wae.images import Mosaic, read_tiles
from populace.privacy.events import Event
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.randomizers.several_signds import SeveralSignDS
from populace.privacy.randomizers.signds import SignDS
from populace.privacy.shuffling import shuffled_statement
from populace.types import Array, ArrayTree

Trained = DenseAutoencoder | ConvAutoencoder
Net = ClassAutoencoder | Trained

TURNS = 2  # of the rotation
SUBMODELS = 2**31 - 1  # the stream of the public coin that chooses sub-models; no round has this number
ADAM = (0.9, 0.999, 1e-8)
PRETRAINING_BATCH, PRETRAINING_EPOCHS = 64, 1
PRIOR = 0.4  # standard deviation of logits before any report
WEIGHT_PRIOR = 0.1  # the same of the logits of the classes' weights
FIRST_PRIOR = 0.3  # the same of shares, in the first rounds
FORGETTING = 4.0  # a report counts like the third power of its place in time: early ones saw other classes
SHORTER = 0.85  # than a gradient of certain classes is one of uncertain ones
LONGEST_STEP = 1.0  # of a logit


@dataclasses.dataclass(frozen=True)
class Design:
    """What both sides of `dp-fed-wae` derive from the settings and the public facts of the population."""

    net: Net
    mechanism: SignDS | SeveralSignDS
    records: int
    places: int = 0  # of the sub-model that is sent; 0: the whole model
    mosaic: Mosaic | None = None  # by which latent classes see images

    @property
    def parameters(self) -> int:
        return count_parameters(self.net.shapes)

    def signs(self, coin: Array, round_id: Array) -> Array:
        """The public random signs of a round's rotation."""
        key = jax.random.fold_in(jax.random.fold_in(coin, 0), round_id)
        words = jax.random.bits(key, (TURNS, self.mechanism.size))
        return jnp.where(words >> 31 == 1, 1.0, -1.0).astype(jnp.float32)

    def choose(self, net: ClassAutoencoder, coin: Array, round_id: Array) -> Array:
        """The places of the sub-model that a round's clients get."""
        return choose_places(net, self.places, jax.random.fold_in(jax.random.fold_in(coin, SUBMODELS), round_id))

    def kept(self, net: ClassAutoencoder, coin: Array, round_id: Array) -> Array:
        """The same places as a mask: 1 for those that are sent."""
        if not self.places:
            return np.ones(net.blocks.width, np.float32)
        return mask_of_places(net, self.choose(net, coin, round_id))

    @property
    def numbers_sent(self) -> int:
        """How many numbers of the model each client is sent."""
        if self.places and isinstance(self.net, ClassAutoencoder):
            return submodel_size(self.net, self.places)
        return self.parameters

    def read(self, records: ArrayTree) -> ArrayTree:
        """A client's records as the network takes them."""
        if isinstance(self.net, ConvAutoencoder):
            return self.net.read(records["x"])
        if isinstance(self.net, DenseAutoencoder):
            return self.net.blocks.encode(records)
        return self.net.read(records) if self.mosaic is None else read_tiles(self.net, self.mosaic, records)


def adam_update(
    net: Trained, theta: Array, x: Array, mask: Array, key: Array, *, epochs: int, learning_rate: float
) -> Array:
    """What so many full-batch epochs of Adam change (algorithm 2, lines 13 to 17)."""
    b1, b2, tiny = ADAM
    start = jnp.asarray(theta)

    def epoch(number: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        now, mean, square = carry
        gradient = jax.grad(net.loss)(now, x, mask, jax.random.fold_in(key, number))
        mean, square = b1 * mean + (1 - b1) * gradient, b2 * square + (1 - b2) * gradient**2
        t = jnp.asarray(number + 1, jnp.float32)
        step = mean / (1 - b1**t) / (jnp.sqrt(square / (1 - b2**t)) + tiny)
        return now - learning_rate * step, mean, square

    zero = jnp.zeros_like(start)
    end: Array = jax.lax.fori_loop(0, epochs, epoch, (start, zero, zero))[0]
    return end - start


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


class PassesOfReports(Protocol):
    """Methods that ask every client once a pass, `participations` passes; each report costs epsilon divided by their number."""

    epsilon: float
    participations: int

    @abc.abstractmethod
    def report_event(self, population: Population) -> Event:
        """The privacy event of one report, from the mechanism that makes it."""

    @abc.abstractmethod
    def clients_per_round(self, population: Population) -> int:
        """How many clients a round asks."""

    def schedule(self, population: Population) -> Passes:
        """Whom each round asks."""
        return Passes(
            clients=population.clients, cohort_size=self.clients_per_round(population), passes=self.participations
        )

    def round_count(self, population: Population) -> int:
        return self.schedule(population).exchanges

    def cohorts(self, population: Population, state: State, first: int, count: int) -> Array:
        return np.asarray(state.order)[first : first + count]

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=self.report_event(population), unit="client")

    def claim(self, population: Population, *, report: str, derivation: tuple[str, ...]) -> Guarantee:
        """The guarantee of every such method, marked where each client is asked once, for a central statement."""
        times = "once" if self.participations == 1 else f"{self.participations} times"
        return Guarantee(
            epsilon=float(self.epsilon),
            unit="client",
            units=population.clients,
            neighbours="replace",
            trust="local",
            mechanism=f"{report}, each client {times}",
            read_from_data=population.read_from_data,
            domain_sources=population.domain_sources,
            derivation=(
                *derivation,
                "reports of one client add up; its ledger refuses one more than it may send",
                "the server's steps and all sampling are post-processing",
            ),
            shuffles=self.participations == 1,
            assumptions=(
                "the number of clients and who takes part are public",
                "all of a person's records are held by one client; who is in several has the bound of the group line",
            ),
        )

    def shuffled(self, population: Population) -> tuple[str, ...]:
        """The central statement for a plan, where each client is asked once: if all of them answer."""
        if self.participations > 1:
            return ()
        return (f"if all answer, {shuffled_statement(local_epsilon=float(self.epsilon), answered=population.clients)}",)
