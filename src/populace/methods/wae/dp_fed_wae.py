"""`dp-fed-wae`: an autoencoder trained by one index and one sign per client (Jiang, Zhou and Grossklags, PoPETs 2022).

Each round the server sends its parameters to a few clients; each computes, on its own records, the direction in which they
should move, and tells one coordinate of it by SignDS. Two recipes:

`paper`   as published: dense WAE, ten Adam epochs on the client's two records, SignDS on the raw update with alpha .05, the
          server adds gamma s/n at the coordinate told, rows by arg-max
`best`    the gradient of log P(records) under a decoder of latent classes; public random signs and Hadamard transforms, anew
          each round, before SignDS and their inverse at the server, k by the public rule of `matched_share`; the first
          rounds learn the columns' own tables only; the server's step on a parameter is as long as what the reports told
          of it deserves; rows drawn from the decoder's probabilities

Images (section 5.1): `paper` is a convolutional WAE with mean squared error, without labels; `best` the same latent classes,
over the tiles of a mosaic, with the label as the target.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import SpecError, out_of_range
from populace.methods.base import Ask, Facts, ImageShape, Population, Replies, Shard
from populace.methods.blocks.composed import ComposedMethod, Composition, LocalRelease
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.networks import Blocks, Decoder, count_parameters
from populace.methods.blocks.schedules import Passes
from populace.methods.wae.autoencoders import (
    ClassAutoencoder,
    ConvAutoencoder,
    DenseAutoencoder,
    choose_places,
    extend_submodel,
    mask_of_places,
    submodel_places,
    submodel_size,
    take_submodel,
)
from populace.methods.wae.images import Mosaic, image_classes, image_net, read_tiles
from populace.methods.wae.training import (
    AdamLearner,
    Parameters,
    ReportLearner,
    Trained,
    first_step,
    later_step,
    report_release,
    reported_gradient,
)
from populace.privacy.guarantee import check_epsilon
from populace.privacy.randomizers.several_signds import SeveralSignDS
from populace.privacy.randomizers.signds import SignDS, matched_share, padded_size, rotate, rotate_back, settle
from populace.privacy.source import Source
from populace.types import Array, ArrayTree

PAPER_SHARE = 0.05  # k/d of the paper's best figures
PAPER_COHORT = 10
USUAL_ROUNDS = 1_000
WARMUP_REPORTS, MOST_WARMUP = 0.8, 0.5  # share of the rounds that are first ones: this divided by epsilon, at most that
TURNS = 2  # of the rotation
SUBMODELS = 2**31 - 1  # the stream of the public coin that chooses sub-models; no round has this number
BESIDE = 16.0  # bytes of a seed and two numbers of the round


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassParameters(Parameters):
    """Those of latent classes, and what the length of a step follows from; the coin is of rotation and sub-models too."""

    means: Array  # of the columns' places, as the first rounds estimate them: unbiased, so perhaps negative
    heard: Array  # reports of this kind of round


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassLearner(ReportLearner):
    """Recipe `best`: clients tell one coordinate of a rotated gradient; steps are as long as the reports deserve."""

    mechanism: SignDS | SeveralSignDS
    net: ClassAutoencoder
    mosaic: Mosaic | None  # by which latent classes see images
    places: int  # of the sub-model that is sent; 0: the whole model
    first_rounds: int

    def begin(self, key: Array, warm: object = None) -> ClassParameters:
        start, coin, _, _ = jax.random.split(key, 4)
        theta = self.net.parameters_of(warm.layers) if isinstance(warm, Decoder) else self.net.start(start)
        means = self.net.blocks.probabilities(theta[: self.net.blocks.width])
        return ClassParameters(coin=coin, theta=theta, means=means, heard=jnp.int32(0))

    def question(self, state: ClassParameters, number: Array) -> dict[str, Array]:
        sent = super().question(state, number) | {"warming": jnp.asarray(number < self.first_rounds)}
        if self.places:
            sent["theta"] = take_submodel(self.net, state.theta, self.choose(state.coin, number))
        return sent

    def answer(self, question: dict[str, Array], own: Array, shard: Shard, source: Source) -> Array:
        coin, number, theta = (
            jax.random.wrap_key_data(jnp.asarray(question["coin"])),
            question["round"],
            question["theta"],
        )
        if self.places:
            theta = extend_submodel(self.net, theta, self.choose(coin, number))
        gradient = reported_gradient(
            self.net, theta, self.read(shard.records), jnp.asarray(shard.mask, jnp.float32),
            warming=question["warming"], kept=self.kept(coin, number),
        )  # fmt: skip
        start, _ = self.coins(question, own)
        return self.mechanism.apply(settle(rotate(gradient, self.signs(coin, number))), source, start)

    def absorb(self, state: ClassParameters, ask: Ask, replies: Replies, source: Source) -> ClassParameters:
        mean, heard = self.mean_report(replies)
        # The inverse of what a report does to a unit vector on average: unbiased for Gaussian-looking coordinates.
        unit = math.sqrt(self.mechanism.size) / self.mechanism.pull
        back = rotate_back(mean, self.signs(state.coin, ask.round), len(state.theta) - self.net.blocks.width)
        return self.learn(state, ask.round, unit * back, heard)

    def learn(self, state: ClassParameters, number: Array | int, estimate: Array, heard: Array) -> ClassParameters:
        """The state after so many reports of a round, given the estimate of their mean unit vector."""
        net, warming = self.net, jnp.asarray(number < self.first_rounds)
        before = jnp.where(number == self.first_rounds, 0, state.heard)
        known: dict[str, Any] = {
            "gain": self.mechanism.gain, "records": self.population.records,
            "before": before, "heard": heard, "kept": self.kept(state.coin, number),
        }  # fmt: skip
        means = first_step(net, state.theta, state.means, estimate, **known)
        first = jnp.asarray(state.theta).at[: net.blocks.width].set(net.base_of(means))
        return dataclasses.replace(
            state,
            theta=jnp.where(warming, first, later_step(net, state.theta, estimate, **known)),
            means=jnp.where(warming, means, state.means),
            heard=before + heard,
        )

    def finish(self, state: ClassParameters, key: Array) -> Synthesizer:
        shape = self.population.schema
        if isinstance(shape, ImageShape) and self.mosaic is not None:
            return image_classes(self.net, self.mosaic, state.theta, shape)
        return Decoder(
            schema=self.population.table_schema, layers=jax.tree.map(np.asarray, self.net.tables(state.theta))
        )

    def signs(self, coin: Array, number: Array | int) -> Array:
        """The public random signs of a round's rotation."""
        key = jax.random.fold_in(jax.random.fold_in(coin, 0), number)
        words = jax.random.bits(key, (TURNS, self.mechanism.size))
        return jnp.where(words >> 31 == 1, 1.0, -1.0).astype(jnp.float32)

    def choose(self, coin: Array, number: Array | int) -> Array:
        """The places of the sub-model that a round's clients get."""
        return choose_places(self.net, self.places, jax.random.fold_in(jax.random.fold_in(coin, SUBMODELS), number))

    def kept(self, coin: Array, number: Array | int) -> Array:
        """The same places as a mask: 1 for those that are sent."""
        if not self.places:
            return np.ones(self.net.blocks.width, np.float32)
        return mask_of_places(self.net, self.choose(coin, number))

    def read(self, records: ArrayTree) -> tuple[Array, Array]:
        """A client's records as the network takes them."""
        return self.net.read(records) if self.mosaic is None else read_tiles(self.net, self.mosaic, records)

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        """Parameters as 32-bit floats, a seed, two numbers of the round; one report."""
        numbers = submodel_size(self.net, self.places) if self.places else count_parameters(self.net.shapes)
        return 4.0 * numbers + BESIDE, float(self.mechanism.wire_bytes)

    def notes(self) -> tuple[str, ...]:
        model, error, *central = super().notes()
        if not self.places:
            return model, error, *central
        whole_bytes, part = 4.0 * count_parameters(self.net.shapes) + BESIDE, self.message_bytes()[0]
        saved = (
            f"sub-models of {self.places} of {self.net.blocks.width} places: {part:,.0f} bytes down instead of "
            f"{whole_bytes:,.0f}, {1 - part / whole_bytes:.0%} saved"
        )
        return model, error, saved, *central


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperLearner(AdamLearner):
    """Recipe `paper`, in messages of the same form: no round is one of the first."""

    def question(self, state: Parameters, number: Array) -> dict[str, Array]:
        return super().question(state, number) | {"warming": jnp.asarray(False)}

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        return 4.0 * count_parameters(self.net.shapes) + BESIDE, float(self.mechanism.wire_bytes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DpFedWae(ComposedMethod):
    """Guarantee: epsilon-LDP, pure, for everything a client holds: it sends `participations` reports of epsilon divided by
    that number, and its ledger refuses one more.

    Edge cases: a client without records sends what a zero update gives. `begin` starts from a former run's decoder of a table
    if it is given one (recipe `best`); what that run cost is in its own ledger, and adds up where the clients are the same.
    Clients left over when the cohorts do not come out even form a smaller last cohort.
    """

    epsilon: float
    recipe: Literal["best", "paper"] = "best"
    cohort_size: int = 0
    participations: int = 1
    top_share: float = 0.0
    indices: int = 1
    overlap: int = 0
    server_learning_rate: float = 1.0
    latent_classes: int = 8
    warmup_share: float = 0.0
    submodel: float = 1.0
    hidden_size: int = 64
    latent_size: int = 16
    local_epochs: int = 10
    learning_rate: float = 1e-3
    pretraining_steps: int = 0
    tile: int = 0

    renamed: ClassVar[Mapping[str, str]] = {
        "cohort": "cohort_size", "share": "top_share", "step": "server_learning_rate", "warm": "warmup_share",
        "classes": "latent_classes", "hidden": "hidden_size", "latent": "latent_size", "epochs": "local_epochs",
        "pretraining": "pretraining_steps",
    }  # fmt: skip
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "The local privacy budget of everything one client holds.",
        "recipe": "The method with latent classes (best), or the autoencoder as published (paper).",
        "cohort_size": "How many clients a round asks; 0: ten for recipe paper, else a thousandth of all.",
        "participations": "How many reports each client sends; they share epsilon.",
        "top_share": "The share of coordinates that count as the top (k/d); 0: by a public rule, or 0.05 for recipe paper.",
        "indices": "How many coordinates a report names.",
        "overlap": "How many of the named coordinates must be among the top; 0: the more the better.",
        "server_learning_rate": "The length of the server's step, the paper's gamma (recipe paper).",
        "latent_classes": "How many latent classes there are (recipe best).",
        "warmup_share": "The share of the rounds that learn single columns only; 0: by a public rule (recipe best).",
        "submodel": "The share of the model that is sent, other columns in each round (recipe best).",
        "hidden_size": "The units of each hidden layer; for images, eight times the channels (recipe paper).",
        "latent_size": "The dimension of the Gaussian code (recipe paper).",
        "local_epochs": "How often a client goes through its records before it reports (recipe paper).",
        "learning_rate": "The learning rate of Adam at a client (recipe paper).",
        "pretraining_steps": "Steps on rows drawn evenly from the public domain, before the first round (recipe paper).",
        "tile": "The side in pixels of the tiles in which images are seen; 0: so that there are at most 256 (recipe best).",
    }
    small: ClassVar[Mapping[str, object]] = {"cohort_size": 15, "latent_classes": 2}
    facts: ClassVar[Facts] = Facts(
        name="dp-fed-wae",
        line="autoencoder, one sign per client",
        title="autoencoder trained by one index and one sign per client (SignDS)",
        paper="Jiang, Zhou and Grossklags, PoPETs 2022",
        trust=("local",),
        unit="client",
        kinds=("table", "images"),
        traffic="a model down, one index and one sign up, per client and participation",
    )
    compiles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        for name in ("participations", "indices", "latent_classes", "hidden_size", "latent_size", "local_epochs"):
            if getattr(self, name) < 1:
                raise out_of_range(name, "at least 1", getattr(self, name))
        for name in ("cohort_size", "overlap", "pretraining_steps", "server_learning_rate", "tile"):
            if not 0 <= getattr(self, name) < math.inf:
                raise out_of_range(name, "at least 0", getattr(self, name))
        for name in ("top_share", "warmup_share"):
            if not 0 <= getattr(self, name) < 1:
                raise out_of_range(name, "in [0, 1)", getattr(self, name))
        if not 0 < self.submodel <= 1:
            raise out_of_range("submodel", "in (0, 1]", self.submodel)
        if self.submodel < 1 and self.recipe == "paper":
            raise SpecError("expected submodel 1 with recipe paper: columns can be left out of latent classes only")
        if not 0 < self.learning_rate < math.inf:
            raise out_of_range("learning_rate", "above 0", self.learning_rate)
        if self.recipe not in ("best", "paper"):
            raise SpecError(f"expected recipe in best, paper, got {self.recipe!r}")
        check_epsilon(self.epsilon / self.participations)
        if self.pretraining_steps and self.recipe == "best":
            raise SpecError(
                "expected pretraining_steps 0 with recipe best: classes learn nothing from even columns; they belong to paper"
            )

    def compose(self, population: Population) -> Composition:
        schedule = Passes(
            clients=population.clients, cohort_size=self.clients_per_round(population), passes=self.participations
        )
        net, mosaic = self._net(population)
        mechanism = self._mechanism(net)
        chance = f", told with probability {mechanism.p:.3f}" if isinstance(mechanism, SignDS) else ""
        known: dict[str, Any] = {
            "population": population, "mechanism": mechanism, "release": self._release(mechanism),
            "note": f"{count_parameters(net.shapes):,} parameters, {mechanism.chosen} of {mechanism.size:,} coordinates "
            f"the top{chance}",
        }  # fmt: skip
        learner: ReportLearner
        if isinstance(net, ClassAutoencoder):
            places = submodel_places(net, self.submodel) if self.submodel < 1 else 0
            first = self.first_rounds(schedule.exchanges)
            learner = ClassLearner(net=net, mosaic=mosaic, places=places, first_rounds=first, **known)
        else:
            learner = PaperLearner(
                net=net, local_epochs=self.local_epochs, learning_rate=self.learning_rate,
                server_learning_rate=self.server_learning_rate, pretraining_steps=self.pretraining_steps, **known,
            )  # fmt: skip
        return Composition(schedule, learner.release, learner)

    def clients_per_round(self, population: Population) -> int:
        """What was set; else ten as published, or a thousandth of the clients, so that about a thousand rounds take place."""
        usual = PAPER_COHORT if self.recipe == "paper" else max(1, population.clients // USUAL_ROUNDS)
        return min(self.cohort_size or usual, population.clients)

    def first_rounds(self, rounds: int) -> int:
        """How many of so many rounds learn the columns' own tables only."""
        if self.recipe == "paper":
            return 0
        share = self.warmup_share or min(MOST_WARMUP, WARMUP_REPORTS * self.participations / self.epsilon)
        return max(1, int(share * rounds))

    def _net(self, population: Population) -> tuple[ClassAutoencoder | Trained, Mosaic | None]:
        shape = population.schema
        if isinstance(shape, ImageShape):
            if self.recipe == "paper":
                return ConvAutoencoder(shape.shape, max(1, self.hidden_size // 8), self.latent_size), None
            return image_net(shape, self.tile, self.latent_classes)
        if self.recipe == "paper":
            return DenseAutoencoder(Blocks(shape.sizes), self.hidden_size, self.latent_size), None
        target = None if shape.target is None else shape.index(shape.target)
        return ClassAutoencoder(Blocks(shape.sizes), self.latent_classes, target), None

    def _mechanism(self, net: ClassAutoencoder | Trained) -> SignDS | SeveralSignDS:
        epsilon, size, share = self.epsilon / self.participations, count_parameters(net.shapes), PAPER_SHARE
        if isinstance(net, ClassAutoencoder):
            size, share = padded_size(size - net.blocks.width), matched_share(epsilon)
        chosen = min(max(1, size - 1), max(1, round((self.top_share or share) * size)))
        if self.indices == 1:
            return SignDS(size=size, epsilon=epsilon, chosen=chosen)
        return SeveralSignDS(size=size, epsilon=epsilon, chosen=chosen, reported=self.indices, least=self.overlap)

    def _release(self, mechanism: SignDS | SeveralSignDS) -> LocalRelease:
        report = "one index and one sign" if self.indices == 1 else f"{self.indices} indices and one sign"
        return report_release(
            mechanism.event, epsilon=self.epsilon, participations=self.participations,
            report=f"{report} of an update (SignDS)",
            derivation=(
                f"each report: {mechanism.event}, {mechanism.chosen} of {mechanism.size} coordinates being the top",
                "the sign is a fair coin independent of the data; cohorts, rotation and ties are public coins",
            ),
        )  # fmt: skip
