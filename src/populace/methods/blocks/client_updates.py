"""What methods share whose server adds up clipped updates of clients, with noise (DP-FedAvg; McMahan et al. 2018).

Each round every client is drawn with probability `sampling_rate`; a drawn one sends an update, clipped to length 1 in units of
the clipping norm and rounded to the mechanism's grid, the others send zeros. The server adds noise to the sum and divides it by
the number of clients expected. Rounds that draw nobody release noise alone.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from populace.errors import SpecError
from populace.methods.base import NO_ERROR, Population, Replies, check_not_negative, check_rates
from populace.methods.blocks.composed import ComposedMethod, Composition, Learner, Wording
from populace.methods.blocks.dp_sgd import StepsRelease
from populace.methods.blocks.schedules import Sampled
from populace.privacy.accounting import resolved_delta
from populace.privacy.gaussian import GaussianSum, clip
from populace.privacy.noised_steps import noised_steps
from populace.privacy.randomizers.base import check_epsilon
from populace.privacy.source import Source
from populace.types import Array


@dataclasses.dataclass(frozen=True)
class UpdatesLearner(Learner):
    """A learner whose clients send clipped updates. They are in units of the clipping norm, so that it may change."""

    population: Population
    release: StepsRelease

    def split(self, key: Array) -> tuple[Array, Array]:
        """The whole key is the learner's: whom a round draws is decided in secret, when it is asked."""
        return key, key

    @property
    def mechanism(self) -> GaussianSum:
        return self.release.steps.mechanism

    @property
    def clients_expected(self) -> float:
        """How many clients a round draws in the mean."""
        return self.release.steps.probability * self.population.clients

    def clipped(self, change: Array, here: Array) -> Array:
        """What a client sends of a change in units of the clipping norm; zeros unless it has something to send."""
        return jnp.where(here, self.mechanism.on_grid(clip(change, 1.0)), 0)

    def mean_change(self, replies: Replies, source: Source) -> Array:
        """The noised sum of what was sent, over the number of clients expected; in units of the clipping norm."""
        total = jnp.sum(jnp.where(replies.present[:, None], replies.values["change"], 0), axis=0, dtype=jnp.int32)
        return self.mechanism.apply(total, source) / self.clients_expected

    def notes(self) -> tuple[str, ...]:
        noise = self.mechanism.scale * math.sqrt(self.mechanism.size) / self.clients_expected
        return (
            f"noise multiplier {self.release.noise_multiplier:.3g}; noise on the mean update is {noise:.2g} clipping "
            f"norms long in all {self.mechanism.size:,} parameters",
            NO_ERROR,
        )


class ClientUpdates(ComposedMethod):
    """The fields every such method has, and what follows from them. The unit is everything one client holds."""

    epsilon: float
    delta: float
    rounds: int
    sampling_rate: float
    noise_multiplier: float

    draws_clients: ClassVar[bool] = True

    def check_updates(self) -> None:
        check_epsilon(self.epsilon)
        check_rates(sampling_rate=self.sampling_rate)
        check_not_negative(noise_multiplier=self.noise_multiplier)

    def composed_of(self, learner: UpdatesLearner) -> Composition:
        """The learner with its release, every client asked in every round."""
        release, clients = learner.release, learner.population.clients
        schedule = Sampled(clients=clients, wanted=release.steps.steps, sampling_rate=self.sampling_rate)
        return Composition(schedule, release, learner)

    def release(self, population: Population, size: int, *, what: str, how: str, counting: float = 0.0) -> StepsRelease:
        """Sums of updates of so many numbers: `what` is learned from them, and `how` the rest of the claim follows."""
        delta, chosen_delta = resolved_delta(self.delta, population.clients)
        steps = noised_steps(
            epsilon=self.epsilon, delta=delta, probability=self.sampling_rate, wanted=self.rounds, each=1,
            noise=self.noise_multiplier, size=size, counting=counting,
        )  # fmt: skip
        if population.clients * 2 > np.iinfo(np.int32).max * steps.mechanism.grid:
            raise SpecError(
                f"{population.clients:,} updates of {size:,} numbers do not add up in 32 bits; choose a smaller net"
            )
        rounds, sampled = steps.steps, self.sampling_rate < 1
        counted = ", with the noisy count that moves the bound" if counting else ""
        wording = Wording(
            mechanism=f"{rounds} sums of clipped client updates with Gaussian noise (DP-FedAvg of a {what})",
            derivation=(
                f"each round: {steps.event(1)}{counted}; {size:,} numbers clipped together",
                f"composed over {rounds} rounds by privacy loss distributions; every client pays for every round",
                how,
                "the sum is divided by the expected number of clients, which is public; rounding is in the sensitivity",
            ),
            assumptions=(
                "the number of clients and the most records one holds are public",
                *(("whom a round draws is kept secret by the server",) if sampled else ()),
                "all of a person's records are held by one client; who is in several has the bound of the group line",
                *chosen_delta,
            ),
        )
        return StepsRelease(
            unit="client", trust="central", delta=delta, wording=wording, steps=steps, reply=steps.event(1), run=steps.whole,
            most_replies=rounds, drawn_in_secret=sampled,
        )  # fmt: skip
