"""What methods share whose server adds up clipped updates of clients, with noise (DP-FedAvg; McMahan et al. 2018).

Each round every client is drawn with probability `sampling_rate`; a drawn one sends an update, clipped to length 1 in units of
the clipping norm and rounded to the mechanism's grid, the others send zeros. The server adds noise to the sum and divides it by
the number of clients expected. Rounds that draw nobody release noise alone.

Under trust `central` the server draws, and keeps it secret. Under `secure-sum` it sees who takes part in a sum: all clients do,
in every one. Each draws by a coin of its own, trains in either case, and sends its update or zeros with its share of the noise,
so that who is drawn shows to nobody, and rounds are amplified by sampling under either trust.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import jax.numpy as jnp
import numpy as np

from populace.errors import SpecError
from populace.methods.base import NO_ERROR, NUMBER, Population, Replies, check_not_negative, check_rates
from populace.methods.blocks.composed import ComposedMethod, Composition, Learner, Wording
from populace.methods.blocks.dp_sgd import StepsRelease
from populace.methods.blocks.schedules import Sampled
from populace.methods.blocks.sum_settings import check_sum_settings, sum_assumptions, sum_sites
from populace.privacy.accounting import resolved_delta
from populace.privacy.gaussian import GaussianSum, clip
from populace.privacy.guarantee import check_epsilon
from populace.privacy.noised_steps import NoisedSteps, noised_steps
from populace.privacy.source import Source
from populace.types import Array

ALL_SEND = (
    "amplified by sampling: all clients are in every sum, each with its share of the noise, and a client's own coin decides "
    "whether its numbers there are its update or zeros"
)
TRUST_MEANINGS = {
    "trust": "central: a trusted server adds the noise to each sum; secure-sum: all clients, in shares.",
    "colluders": "Under secure-sum: how many clients may work together with the server.",
    "dropouts": "Under secure-sum: how many clients may be missing from a sum; every one costs noise.",
}
OWN_COINS = ("every client keeps its coins to itself: whom a round draws shows to nobody",)


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

    def takes_part(self, own: Array, source: Source) -> tuple[Array, Source]:
        """Whether a client is in a round, and its source of all else: as the server drew it, or by the client's own coin.

        Guarantee: the coin falls with the very probability that is accounted for, anew in every round, and nobody is told.
        """
        if self.release.sites is None:
            return jnp.asarray(own), source
        probability = self.release.steps.probability
        if probability == 1:
            return jnp.asarray(True), source
        coin, rest = source.split(2)
        return jnp.asarray(coin.coins(probability, ())), rest

    def clipped(self, change: Array, here: Array, beside: Array | None = None) -> Array:
        """What a client sends of a change in units of the clipping norm; zeros unless it has something to send.

        `beside` is a number that the bound of the sum counts beside the change: the weighted count of a secure sum.
        """
        vector = clip(change, 1.0)
        if beside is not None:
            vector = jnp.append(vector, beside)
        return jnp.where(here, self.mechanism.on_grid(vector), 0)

    def noised_total(self, replies: Replies, source: Source) -> Array:
        """The noised sum of what was sent, in units of the clipping norm: the noise is the server's, or the clients'."""
        changes = dataclasses.replace(replies, values=replies.values["change"])
        if self.release.sites is not None:
            opened, _ = self.release.total(changes)
            return jnp.asarray(opened * self.mechanism.grid, jnp.float32)
        total = jnp.sum(jnp.where(changes.present[:, None], changes.values, 0), axis=0, dtype=jnp.int32)
        return self.mechanism.apply(total, source)

    def mean_change(self, replies: Replies, source: Source) -> Array:
        """The noised sum of what was sent, over the number of clients expected; in units of the clipping norm."""
        return self.noised_total(replies, source) / self.clients_expected

    @property
    def sum_bytes(self) -> float:
        """Bytes of what a client sends of its change."""
        shares = self.release.shares(0)
        return (NUMBER if shares is None else shares.bits / 8) * self.mechanism.size

    def notes(self) -> tuple[str, ...]:
        shares = self.release.shares(0)
        summed = self.mechanism if shares is None else shares.summed(shares.clients)
        noise = summed.scale * math.sqrt(self.mechanism.size) / self.clients_expected
        return (
            f"noise multiplier {self.release.noise_multiplier:.3g}; noise on the mean update is {noise:.2g} clipping "
            f"norms long in all {self.mechanism.size:,} parameters",
            NO_ERROR,
        )


class ClientUpdates(ComposedMethod):
    """The fields every such method has, and what follows from them. The unit is everything one client holds."""

    epsilon: float
    delta: float
    trust: Literal["central", "secure-sum"]
    colluders: int
    dropouts: int
    rounds: int
    sampling_rate: float
    noise_multiplier: float

    @property
    def draws_clients(self) -> bool:
        """Clients draw themselves under secure sums, and each sends its share of the noise, drawn or not."""
        return self.trust == "central"

    def check_updates(self) -> None:
        check_epsilon(self.epsilon)
        if self.trust not in self.facts.trust:
            raise SpecError(f"expected trust in {', '.join(self.facts.trust)}, got {self.trust!r}")
        check_sum_settings(self.trust, colluders=self.colluders, dropouts=self.dropouts)
        check_rates(sampling_rate=self.sampling_rate)
        check_not_negative(noise_multiplier=self.noise_multiplier)

    def composed_of(self, learner: UpdatesLearner) -> Composition:
        """The learner with its release, every client asked in every round."""
        release, clients = learner.release, learner.population.clients
        schedule = Sampled(
            clients=clients, wanted=release.steps.steps, sampling_rate=self.sampling_rate,
            own_coins=release.sites is not None,
        )  # fmt: skip
        return Composition(schedule, release, learner)

    def release(self, population: Population, size: int, *, what: str, how: str, counting: float = 0.0) -> StepsRelease:
        """Sums of updates of so many numbers: `what` is learned from them, and `how` the rest of the claim follows."""
        delta, chosen_delta = resolved_delta(self.delta, population.clients)
        sites = sum_sites(self.trust, population.clients, colluders=self.colluders, dropouts=self.dropouts)
        steps = noised_steps(
            epsilon=self.epsilon, delta=delta, probability=self.sampling_rate, wanted=self.rounds, each=1,
            noise=self.noise_multiplier, size=size, counting=counting,
        )  # fmt: skip
        if sites is not None:
            steps = steps.in_one_vector()
        most = population.clients * (steps.mechanism.bound / steps.mechanism.grid + 1)  # in units of the grid
        if sites is None and most > np.iinfo(np.int32).max / 2:
            raise SpecError(
                f"{population.clients:,} updates of {size:,} numbers do not add up in 32 bits; choose a smaller net"
            )
        return StepsRelease(
            unit="client", trust=self.trust, delta=delta, wording=self._wording(steps, size, what, how, chosen_delta),
            steps=steps, reply=steps.event(1), run=steps.whole, most_replies=steps.steps,
            drawn_in_secret=self.sampling_rate < 1, sites=sites, most=most,
        )  # fmt: skip

    def _wording(self, steps: NoisedSteps, size: int, what: str, how: str, chosen_delta: tuple[str, ...]) -> Wording:
        rounds, sampled, shared = steps.steps, self.sampling_rate < 1, self.trust == "secure-sum"
        counted = ", with the noisy count that moves the bound" if steps.count or steps.count_weight else ""
        by = ", in shares of all clients" if shared else ""
        drawn = OWN_COINS if shared else ("whom a round draws is kept secret by the server",)
        return Wording(
            mechanism=f"{rounds} sums of clipped client updates with Gaussian noise{by} (DP-FedAvg of a {what})",
            derivation=(
                f"each round: {steps.event(1)}{counted}; {size:,} numbers clipped together",
                f"composed over {rounds} rounds by privacy loss distributions; every client pays for every round",
                *((ALL_SEND,) if sampled and shared else ()),
                how,
                "the sum is divided by the expected number of clients, which is public; rounding is in the sensitivity",
            ),
            assumptions=(
                "the number of clients and the most records one holds are public",
                *(drawn if sampled else ()),
                *(sum_assumptions(self.trust) if shared else ()),
                "all of a person's records are held by one client; who is in several has the bound of the group line",
                *chosen_delta,
            ),
        )
