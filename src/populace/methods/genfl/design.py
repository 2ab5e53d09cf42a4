"""What both sides of `genfl` and `dp-fl` derive from public facts: the noise of both stages, its cost, and the guarantee."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax

from populace.methods.base import Population
from populace.methods.blocks.dp_sgd import FactorBits, exact_linear_sum
from populace.methods.blocks.gan_training import VisitDesign
from populace.methods.blocks.vae_networks import ImageVae
from populace.methods.genfl.classifier import Scattering, gradient_factors
from populace.privacy.accounting import epsilon_of
from populace.privacy.events import Composed, Event, NonPrivate
from populace.privacy.guarantee import Guarantee
from populace.privacy.noised_steps import AT_A_SILO, NoisedSteps, sampled_delta
from populace.types import Array

REASON = "the generator is trained on the records without noise, as published, and its samples may repeat them"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Design:
    """Two stages about the same records: the GAN's steps, where there are generated examples, and the classifier's, where
    records enter it. `private` is false where the GAN is trained without noise."""

    generator: ImageVae
    scattering: Scattering
    delta: float
    chosen_delta: tuple[str, ...]
    visit: VisitDesign | None
    release: NoisedSteps | None
    bits: FactorBits  # of the classifier's gradients
    private: bool

    @property
    def weights(self) -> int:
        """The number of the classifier's weights."""
        return (self.scattering.size + 1) * self.generator.classes

    @property
    def gan_event(self) -> Event | None:
        """What the first stage costs."""
        if self.visit is None:
            return None
        return self.visit.steps.whole if self.private else NonPrivate(REASON)

    @property
    def step_event(self) -> Event | None:
        """What one step of the classifier costs."""
        return self.release.event(1) if self.release else None

    @property
    def whole(self) -> Event:
        """What both stages cost."""
        classifier = self.release.event(self.release.steps) if self.release else None
        stages = [event for event in (self.gan_event, classifier) if event is not None]
        return stages[0] if len(stages) == 1 else Composed(tuple(stages))

    def noised_gradient(
        self, weights: Array, x: Array, y: Array, *, clip_norm: float, drawn: Array, noise: Array
    ) -> Array:
        """The noised sum of the clipped gradients of the records drawn, in units of the clipping norm."""
        if self.release is None:
            raise AssertionError("no record enters the classifier")

        def factors_of(row: Array) -> tuple[Array, Array]:
            return gradient_factors(self.scattering, weights, x[row][None], y[row][None])

        return exact_linear_sum(
            factors_of, jnp.ravel, release=self.release, clip_norm=clip_norm, drawn=drawn, noise=noise, bits=self.bits
        ).total

    @property
    def mechanism(self) -> str:
        """What makes the noise, in words."""
        if self.visit is None:
            return "DP-SGD at the client"
        if not self.private:
            return "a GAN at the client without noise, then DP-SGD of a classifier"
        return "DP-SGD at the client: of a GAN's critic, then of a classifier"

    def derivation(self) -> tuple[str, ...]:
        """How the guarantee follows, line by line."""
        lines = []
        if self.visit:
            lines.append(f"a generator at each client: {self.gan_event}")
            lines.append("generated examples, the generators and the validation on them are post-processing of it")
        if self.release:
            lines.append(f"the classifier, {self.release.steps} rounds, each: {self.step_event}")
            lines.append(
                "records enter a step with a public probability, (1 - gamma) batch / records, and are clipped and counted"
            )
        return (*lines, "all composed by privacy loss distributions; the claim is that of every client")

    def guarantee(self, population: Population) -> Guarantee:
        epsilon = epsilon_of(self.whole, delta=self.delta)
        draws = sum(each.draws for each in (self.visit.steps if self.visit else None, self.release) if each)
        delta = sampled_delta(self.delta, epsilon, draws) if self.private else 0.0
        return Guarantee(
            epsilon=epsilon,
            delta=delta,
            sampling_delta=delta - self.delta if self.private else 0.0,
            unit="record",
            units=population.clients * population.records,
            neighbours="zero-out",
            trust="silo",
            mechanism=self.mechanism,
            read_from_data=population.read_from_data,
            domain_sources=population.domain_sources,
            derivation=self.derivation() if self.private else (),
            assumptions=(
                "the number of clients, who takes part, and the most records one holds are public",
                *AT_A_SILO,
                *self.chosen_delta,
            ),
            reason="" if self.private else REASON,
        )

    def notes(self) -> tuple[str, ...]:
        """The noise of both stages, for a plan."""
        stages = (("GAN", self.visit.steps if self.visit else None), ("classifier", self.release))
        return tuple(
            f"noise multiplier {each.noise_multiplier:.3g} at sampling rate {each.probability:.3g} ({name})"
            for name, each in stages
            if each
        )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """The classifier with its optimizer and moving average, and the generators of the clients that have sent one (`known`)."""

    round: Array
    coin: Array
    start: Array
    thetas: Array
    known: Array
    weights: Array
    optimizer_state: optax.OptState
    average: Array
    validated: Array
    design: Design = dataclasses.field(metadata={"static": True})
