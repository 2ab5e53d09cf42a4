"""The design of `genfl` and `dp-fl`: both stages' noise, calibrated together, from public facts."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from populace.errors import SpecError
from populace.methods.base import ImageShape, Population
from populace.methods.blocks.gan_networks import Gan
from populace.methods.blocks.gan_visit import Design as VisitDesign
from populace.methods.genfl.linear import Bits, bits_for
from populace.methods.genfl.wavelets import Scattering
from populace.privacy.accounting import resolved_delta
from populace.privacy.events import Composed, Event, NonPrivate
from populace.privacy.noised_steps import NoisedSteps, noised_steps

if TYPE_CHECKING:
    from populace.methods.genfl.protocol import GenFl

REASON = "the generator is trained on the records without noise, as published, and its samples may repeat them"


@dataclasses.dataclass(frozen=True)
class Design:
    """What both sides derive from public facts."""

    gan: Gan
    features: Scattering
    delta: float
    said: tuple[str, ...]
    first: VisitDesign | None  # the GAN's steps, where there are generated examples
    release: NoisedSteps | None  # the classifier's, where records enter it
    bits: Bits  # of the classifier's slopes
    opening: Event | None
    step: Event | None
    whole: Event
    reason: str

    @property
    def weights(self) -> int:
        return (self.features.size + 1) * self.gan.maker.classes

    @property
    def mechanism(self) -> str:
        """What makes the noise, in words."""
        if self.first is None:
            return "DP-SGD at the client"
        if self.reason:
            return "a GAN at the client without noise, then DP-SGD of a classifier"
        return "DP-SGD at the client: of a GAN's critic, then of a classifier"


@functools.lru_cache(maxsize=64)
def design_of(protocol: GenFl, population: Population) -> Design:
    shape = population.schema
    if not isinstance(shape, ImageShape):
        raise SpecError(f"method {protocol.facts.name!r} takes images; `populace methods` lists what takes tables")
    gan = protocol.gan(population)
    features = Scattering(shape.shape, protocol.features)
    delta, said = resolved_delta(protocol.delta, population.clients * population.records)
    valid = protocol.recipe == "valid" or not protocol.gamma
    first = release = None
    opening: Event | None = None
    if protocol.gamma:
        steps = noised_steps(
            epsilon=protocol.epsilon * (protocol.gan_share if protocol.gamma < 1 else 1.0), delta=delta,
            probability=min(1.0, protocol.gan_batch / population.records), wanted=protocol.iterations * protocol.critics,
            each=protocol.critics, noise=0.0, size=gan.critic_size,
        )  # fmt: skip
        opening = steps.whole if valid else NonPrivate(REASON)
        first = VisitDesign(
            gan=gan, delta=delta, said=said, release=steps, labels=None, fisher=None, visit=opening, reason=""
        )
    if protocol.gamma < 1:
        release = noised_steps(
            epsilon=protocol.epsilon, delta=delta,
            probability=min(1.0, (1 - protocol.gamma) * protocol.batch / population.records), wanted=protocol.turns, each=1,
            noise=0.0, size=(features.size + 1) * shape.classes, before=opening if valid else None,
        )  # fmt: skip
    step = release.event(1) if release else None
    parts = [event for event in (opening, release.event(release.steps) if release else None) if event is not None]
    return Design(
        gan=gan, features=features, delta=delta, said=said, first=first, release=release,
        bits=bits_for(features.size + 1, population.records), opening=opening, step=step,
        whole=parts[0] if len(parts) == 1 else Composed(tuple(parts)), reason="" if valid else REASON,
    )  # fmt: skip
