"""What `genfl` and `dp-fl` release and what it costs, and what the server keeps."""

from __future__ import annotations

import dataclasses
import math

import jax
import optax

from populace.errors import SpecError
from populace.methods.base import Population
from populace.methods.blocks.composed import Release, Wording
from populace.methods.blocks.sum_settings import sum_assumptions
from populace.privacy.events import Composed, Event, NonPrivate
from populace.privacy.guarantee import Trust, Unit
from populace.privacy.noise_shares import NoiseShares, SumSites
from populace.privacy.noised_steps import AT_A_SILO, NoisedSteps
from populace.types import Array

MOST_SUM = 2**31 - 1  # of a client's numbers
REASON = "the generator is trained on the records without noise, as published, and its samples may repeat them"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoStages(Release):
    """Two stages about the same records: the GAN's steps, where there are generated examples, all in one reply, and the
    classifier's, where records enter it, a step in each. `gan_event` is none where the GAN is trained without noise.

    With `sites` the classifier's steps are opened as sums of all clients, a coordinate at most `most` units of the grid, with
    noise in shares; the GAN's noise is each client's own under either trust."""

    unit: Unit = "record"
    trust: Trust = "silo"
    gan: NoisedSteps | None
    gan_event: Event | None
    classifier: NoisedSteps | None
    most: float = math.inf

    @property
    def gan_rounds(self) -> int:
        return 0 if self.gan is None else 1

    @property
    def classifier_rounds(self) -> int:
        """Rounds of the second stage; where no record enters it, the server learns alone."""
        return 0 if self.classifier is None else self.classifier.steps

    @property
    def whole(self) -> Event:
        classifier = self.classifier.event(self.classifier.steps) if self.classifier else None
        stages = [event for event in (self.gan_event, classifier) if event is not None]
        return stages[0] if len(stages) == 1 else Composed(tuple(stages))

    def event(self, number: int) -> Event:
        if self.gan_event and number < self.gan_rounds:
            return self.gan_event
        if self.classifier is None:
            raise AssertionError("no record is read in this round")
        return self.classifier.event(1)

    @property
    def draws(self) -> int:
        shared = 1 if self.sites is None else self.sites.clients
        return (self.gan.draws if self.gan else 0) + shared * (self.classifier.draws if self.classifier else 0)

    def shares(self, number: int) -> NoiseShares | None:
        if self.sites is None or self.classifier is None or number < self.gan_rounds:
            return None
        return self.sites.shares(self.classifier.mechanism, most=self.most)

    def known(self, shares: int) -> Event:
        if self.sites is None or self.classifier is None:
            return super().known(shares)
        classifier = self.classifier.known_to(self.sites, shares)
        return classifier if self.gan_event is None else Composed((self.gan_event, classifier))

    @property
    def distance(self) -> float:
        return 0.0 if self.sites is None or self.classifier is None else self.classifier.distance_in(self.sites)

    @property
    def replies(self) -> int:
        return self.gan_rounds + self.classifier_rounds

    def notes(self) -> tuple[str, ...]:
        """The noise of both stages, for a plan."""
        return tuple(
            f"noise multiplier {stage.noise_multiplier:.3g} at sampling rate {stage.probability:.3g} ({name})"
            for name, stage in (("GAN", self.gan), ("classifier", self.classifier))
            if stage
        )


def two_stages(
    gan: NoisedSteps | None,
    classifier: NoisedSteps | None,
    *,
    private: bool,
    delta: float,
    chosen_delta: tuple[str, ...],
    sites: SumSites | None = None,
    most: float = math.inf,
) -> TwoStages:
    """The release of both stages with its wording; `private` is false where the GAN is trained without noise."""
    trust: Trust = "silo" if sites is None else "secure-sum"
    gan_event = None if gan is None else gan.whole if private else NonPrivate(REASON)
    mechanism = "DP-SGD at the client"
    if gan:
        mechanism += ": of a GAN's critic, then of a classifier"
    if sites:
        mechanism += ", whose sums over all clients have noise in shares of all"
    lines = []
    if gan:
        whole = "; it is no sum, and has that client's whole noise" if sites else ""
        lines.append(f"a generator at each client: {gan_event}{whole}")
        lines.append("generated examples, the generators and the validation on them are post-processing of it")
    if classifier:
        lines.append(f"the classifier, {classifier.steps} rounds, each: {classifier.event(1)}")
        lines.append(
            "records enter a step with a public probability, (1 - gamma) batch / records, and are clipped and counted"
        )
    lines.append("all composed by privacy loss distributions; the claim is that of every client")
    wording = Wording(
        mechanism=mechanism if private else "a GAN at the client without noise, then DP-SGD of a classifier",
        derivation=tuple(lines) if private else (),
        assumptions=(
            "the number of clients, who takes part, and the most records one holds are public",
            *AT_A_SILO,
            *sum_assumptions(trust),
            *chosen_delta,
        ),
        reason="" if private else REASON,
    )
    return TwoStages(
        trust=trust,
        delta=delta,
        wording=wording,
        gan=gan,
        gan_event=gan_event,
        classifier=classifier,
        sites=sites,
        most=most,
    )


def check_room(classifier: NoisedSteps, *, share: float, population: Population) -> float:
    """What a coordinate of all clients' sums can be, in units of the grid; refuses clients whose own sum could pass 32 bits:
    it would wrap before its noise is added, and a sum of wrapped numbers has no sensitivity."""
    made = share / (1 - share) * classifier.probability  # generated examples for every record held
    each = math.ceil(population.records * (1 + made) / classifier.mechanism.grid) + 2
    if each > MOST_SUM:
        raise SpecError(
            f"a client of up to {population.records:,} records does not fit into 32 bits without noise; split the records "
            "among more clients, or use trust silo"
        )
    return float(population.clients * each)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Learned:
    """The classifier with its optimizer and moving average, and the generators of the clients that have sent one (`known`)."""

    coin: Array
    start: Array
    thetas: Array
    known: Array
    weights: Array
    optimizer_state: optax.OptState
    average: Array
    validated: Array
