"""`genfl` and `dp-fl`: a classifier learned together from records and generated data (DP-GenFL), and from records alone.

Li et al. 2023. First each client trains a conditional GAN on its own records; then all learn one classifier, each step on a
mixture with a share (gamma in the letter) of the client's generated examples. Here both stages are DP-SGD in one ledger: the
GAN's critic is noised (the visit of `fl-gan`), and in the second stage only records are clipped, noised and counted: each
enters a step with probability (1 - gamma) batch / records, while generated examples are post-processing of the first. The
classifier is linear on public wavelet features. Validation is on generated images at the server.

`recipe` valid is that; `paper` trains the GAN without noise, as published, and reports inf.

Under trust `secure-sum` the noise of the second stage is drawn once, in shares of all clients: a round is one step of all, of
which the server needs the sum alone. The first stage has no sum: a generator is one client's, with that client's whole noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from populace.errors import SpecError, out_of_range
from populace.methods.base import Facts, ImageShape, Population, check_counts, check_shares, check_sizes
from populace.methods.blocks.composed import ComposedMethod, Composition
from populace.methods.blocks.dp_sgd import factor_bits
from populace.methods.blocks.gan_training import GanNetworks, GanTraining
from populace.methods.blocks.schedules import Sampled
from populace.methods.blocks.sum_settings import check_sum_settings, sum_sites
from populace.methods.blocks.vae_networks import ImageVae
from populace.methods.genfl.classifier import Scattering
from populace.methods.genfl.design import check_room, two_stages
from populace.methods.genfl.learner import GenFlLearner
from populace.privacy.accounting import resolved_delta
from populace.privacy.guarantee import check_epsilon
from populace.privacy.noised_steps import noised_steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenFl(ComposedMethod, GanNetworks):
    """Guarantee: (epsilon, delta)-DP for one record zeroed out: `silo`, against everybody, the server included: noise is added
    at the client, in both stages, which are composed; `secure-sum`, against the server with as many clients as may collude: the
    steps' noise is added in shares. With `recipe` paper nothing is guaranteed.

    `budget_share` of epsilon is what the GAN's stage alone would cost; the rest follows by composition. Half was chosen on
    public images (`docs/methods/genfl.md`).
    Edge cases: `synthetic_share` 1 learns from generated examples alone, and all of epsilon is the GAN's; 0 is `dp-fl`: there
    is no generator, and drawing from the result is refused. A client that does not send its generator is left out of the
    validation and of the mixture. A secure sum is refused where there is none (`synthetic_share` 1), and for `recipe` paper.
    """

    trust: Literal["silo", "secure-sum"] = "silo"
    colluders: int = 0
    dropouts: int = 0
    synthetic_share: float = 0.2
    budget_share: float = 0.5
    recipe: Literal["valid", "paper"] = "valid"
    rounds: int = 100
    batch_size: int = 512
    clip_norm: float = 0.3
    learning_rate: float = 0.2
    momentum: float = 0.9
    stop_accuracy: float = 0.0
    ema_decay: float = 0.95
    features: int = 4
    generator_steps: int = 150
    critic_steps: int = 5
    gan_batch_size: int = 128
    gan_clip_norm: float = 1.0
    critic_learning_rate: float = 1e-3
    gan_learning_rate: float = 1e-3

    facts: ClassVar[Facts] = Facts(
        name="genfl",
        line="classifier and GAN by DP-SGD",
        title="a classifier learned together from records and generated images, both by DP-SGD; record level (DP-GenFL)",
        paper="Li et al., Science China Information Sciences 2023; its generator and its ledger corrected",
        trust=("silo", "secure-sum"),
        unit="record",
        kinds=("images",),
        traffic="a generator up once; a classifier down and its noised gradient up, per round",
    )
    renamed: ClassVar[Mapping[str, str]] = {
        **GanNetworks.renamed, "gamma": "synthetic_share", "gan_share": "budget_share", "target": "stop_accuracy",
        "turns": "rounds", "batch": "batch_size", "bound": "clip_norm", "rate": "learning_rate", "average": "ema_decay",
        "iterations": "generator_steps", "critics": "critic_steps", "gan_batch": "gan_batch_size",
        "gan_bound": "gan_clip_norm", "gan_rate": "gan_learning_rate", "critic_rate": "critic_learning_rate",
    }  # fmt: skip
    small: ClassVar[Mapping[str, object]] = {
        "synthetic_share": 0.5, "rounds": 2, "batch_size": 6, "features": 1, "generator_steps": 2, "critic_steps": 2,
        "gan_batch_size": 4, "hidden_size": 4, "critic_hidden_size": 4, "latent_size": 2, "basis_size": 3,
    }  # fmt: skip
    meanings: ClassVar[Mapping[str, str]] = {
        **GanNetworks.meanings,
        "epsilon": "privacy loss of one record over the whole run",
        "trust": "silo: each client adds the noise of its gradients; secure-sum: all clients, in shares, to their sum",
        "colluders": "under secure-sum: how many clients may work together with the server",
        "dropouts": "under secure-sum: how many clients may be missing from a sum; every one costs noise",
        "synthetic_share": "share of generated examples in a step of the classifier (gamma in the letter)",
        "budget_share": "share of epsilon that the GAN's stage alone would cost",
        "recipe": "valid: DP-SGD in both stages; paper: the GAN learns without noise, no guarantee",
        "rounds": "rounds, or steps, of the classifier",
        "batch_size": "examples expected in a batch of the classifier, generated ones included",
        "clip_norm": "L2 norm that the classifier's gradient of each example is clipped to",
        "learning_rate": "learning rate of the classifier at the server (Adam)",
        "momentum": "first decay of the classifier's Adam",
        "stop_accuracy": "accuracy on generated images at which the run ends; 0 runs all rounds",
        "ema_decay": "decay of the moving average of the classifier; 0 takes the last weights",
        "features": "windows in each direction that wavelet features are averaged over",
        "generator_steps": "steps of the generator at each client",
        "critic_steps": "steps of the critic for each step of the generator",
        "gan_batch_size": "records expected in a Poisson batch of the GAN",
        "gan_clip_norm": "L2 norm that the critic's gradient of each record is clipped to",
        "critic_learning_rate": "learning rate of the critic (Adam)",
        "gan_learning_rate": "learning rate of the generator (Adam)",
    }
    vectorises: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        self.check_networks()
        check_counts(
            rounds=self.rounds, batch_size=self.batch_size, generator_steps=self.generator_steps, features=self.features,
            critic_steps=self.critic_steps, gan_batch_size=self.gan_batch_size,
        )  # fmt: skip
        check_sizes(
            clip_norm=self.clip_norm, learning_rate=self.learning_rate, gan_clip_norm=self.gan_clip_norm,
            critic_learning_rate=self.critic_learning_rate, gan_learning_rate=self.gan_learning_rate,
        )  # fmt: skip
        check_shares(momentum=self.momentum, ema_decay=self.ema_decay, stop_accuracy=self.stop_accuracy)
        if not 0 <= self.synthetic_share <= 1:
            raise out_of_range("synthetic_share", "in [0, 1]", self.synthetic_share)
        if not 0 < self.budget_share < 1:
            raise out_of_range("budget_share", "in (0, 1)", self.budget_share)
        if self.stop_accuracy and not 0 < self.synthetic_share < 1:
            raise SpecError(
                "expected stop_accuracy 0 where synthetic_share is 0 or 1: no rounds to end, or nothing to try"
            )
        self._check_trust()

    def _check_trust(self) -> None:
        if self.trust not in self.facts.trust:
            raise SpecError(f"expected trust in {', '.join(self.facts.trust)}, got {self.trust!r}")
        check_sum_settings(self.trust, colluders=self.colluders, dropouts=self.dropouts)
        if self.trust != "secure-sum":
            return
        if self.synthetic_share == 1:
            raise SpecError(
                "with synthetic_share 1 every client sends a generator and there is no sum to open; use trust silo"
            )
        if self.recipe == "paper" and self.synthetic_share:
            raise SpecError("recipe paper sends generators that were trained without noise, which no secure sum mends")

    @property
    def gan_training(self) -> GanTraining:
        """How the GAN is trained at a client."""
        return GanTraining(
            recipe="valid" if self.recipe == "valid" else "open", critic_steps=self.critic_steps,
            batch_size=self.gan_batch_size, clip_norm=self.gan_clip_norm, critic_learning_rate=self.critic_learning_rate,
            learning_rate=self.gan_learning_rate,
        )  # fmt: skip

    @property
    def makes_data(self) -> bool:
        return self.synthetic_share > 0

    def compose(self, population: Population) -> Composition:
        """Both stages' noise is calibrated together."""
        shape, records, share = population.schema, population.records, self.synthetic_share
        gan = self.gan(population)
        if not (isinstance(shape, ImageShape) and isinstance(gan.generator, ImageVae)):
            raise SpecError(f"method {self.facts.name!r} takes images; `populace methods` lists what takes tables")
        scattering = Scattering(shape.shape, self.features)
        delta, chosen_delta = resolved_delta(self.delta, population.clients * records)
        private = self.recipe == "valid" or not share
        first = second = None
        if share:
            first = noised_steps(
                epsilon=self.epsilon * (self.budget_share if share < 1 else 1.0), delta=delta, each=self.critic_steps,
                probability=min(1.0, self.gan_batch_size / records), wanted=self.generator_steps * self.critic_steps,
                noise=0.0, size=gan.critic_size,
            )  # fmt: skip
        if share < 1:
            second = noised_steps(
                epsilon=self.epsilon, delta=delta, probability=min(1.0, (1 - share) * self.batch_size / records),
                wanted=self.rounds, each=1, noise=0.0, size=(scattering.size + 1) * shape.classes,
                before=first.whole if first and private else None,
            )  # fmt: skip
        sites = sum_sites(self.trust, population.clients, colluders=self.colluders, dropouts=self.dropouts)
        release = two_stages(
            first, second, private=private, delta=delta, chosen_delta=chosen_delta, sites=sites,
            most=0.0 if second is None or sites is None else check_room(second, share=share, population=population),
        )  # fmt: skip
        learner = GenFlLearner(
            settings=self, population=population, generator=gan.generator, scattering=scattering,
            bits=factor_bits(scattering.size + 1, records), release=release,
        )  # fmt: skip
        return Composition(Sampled(clients=population.clients, wanted=release.replies), release, learner)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DpFl(GenFl):
    """Guarantee: that of `genfl` without its first stage: no generated data.

    Edge cases: the result classifies; there is nothing to draw from.
    """

    synthetic_share: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.synthetic_share:
            raise SpecError(
                f"expected synthetic_share 0 for dp-fl, got {self.synthetic_share!r}; genfl mixes generated images in"
            )

    facts: ClassVar[Facts] = Facts(
        name="dp-fl",
        page="genfl",
        line="classifier by DP-SGD",
        title="a classifier learned together from records by DP-SGD; record level (DP-FL)",
        paper="Li et al., Science China Information Sciences 2023; its generator and its ledger corrected",
        trust=("silo", "secure-sum"),
        unit="record",
        kinds=("images",),
        traffic="a classifier down and its noised gradient up, per round",
    )
    small: ClassVar[Mapping[str, object]] = {**GenFl.small, "synthetic_share": 0.0}
