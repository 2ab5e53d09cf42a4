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
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import SpecError, out_of_range
from populace.methods.base import Ask, Facts, ImageShape, Plan, Population, Replies, Shard
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.networks import Blocks, Decoder, count_parameters, unpack
from populace.methods.wae.autoencoders import (
    ClassAutoencoder,
    ConvAutoencoder,
    DenseAutoencoder,
    extend_submodel,
    submodel_places,
    take_submodel,
)
from populace.methods.wae.images import DECODER, ConvDecoder, Mosaic, image_classes, image_net
from populace.methods.wae.training import (
    Design,
    Net,
    PassesOfReports,
    adam_update,
    first_step,
    later_step,
    pretrain,
    reported_gradient,
)
from populace.privacy.events import Event
from populace.privacy.guarantee import Guarantee
from populace.privacy.randomizers.base import check_epsilon
from populace.privacy.randomizers.several_signds import SeveralSignDS
from populace.privacy.randomizers.signds import SignDS, matched_share, padded_size, rotate, rotate_back, settle
from populace.privacy.source import Source
from populace.types import Array, ArrayTree

PAPER_SHARE = 0.05  # k/d of the paper's best figures
PAPER_COHORT = 10
USUAL_ROUNDS = 1_000
WARMUP_REPORTS, MOST_WARMUP = 0.8, 0.5  # share of the rounds that are first ones: this divided by epsilon, at most that


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """The server's parameters, the public order of the clients, and the public coin of rotation, latents and ties."""

    round: Array
    coin: Array
    order: Array
    theta: Array
    means: Array  # of the columns' places, as the first rounds estimate them: unbiased, so perhaps negative
    heard: Array  # reports of this kind of round
    design: Design = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class DpFedWae(PassesOfReports):
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

    def design(self, population: Population) -> Design:
        return design_of(self, population)

    def report_event(self, population: Population) -> Event:
        return self.design(population).mechanism.event

    def clients_per_round(self, population: Population) -> int:
        """What was set; else ten as published, or a thousandth of the clients, so that about a thousand rounds take place."""
        usual = PAPER_COHORT if self.recipe == "paper" else max(1, population.clients // USUAL_ROUNDS)
        return min(self.cohort_size or usual, population.clients)

    def begin(self, population: Population, key: Array, warm: object = None) -> State:
        design = self.design(population)
        start, coin, order, random = jax.random.split(key, 4)
        theta = design.net.start(start)
        means: Array = jnp.zeros(0)
        if isinstance(design.net, ClassAutoencoder):
            if isinstance(warm, Decoder):
                theta = design.net.parameters_of(warm.layers)
            means = design.net.blocks.probabilities(theta[: design.net.blocks.width])
        elif self.pretraining_steps:
            theta = pretrain(
                design.net, theta, steps=self.pretraining_steps, learning_rate=self.learning_rate, key=random
            )
        cohorts = self.schedule(population).start(order)
        return State(
            round=jnp.int32(0), coin=coin, order=cohorts, theta=theta, means=means, heard=jnp.int32(0), design=design
        )

    def ask(self, state: State, population: Population, source: Source) -> Ask | None:
        rounds = self.round_count(population)
        if not isinstance(state.round, jax.core.Tracer) and int(state.round) >= rounds:
            return None
        cohort = state.order[state.round]
        design, theta = state.design, state.theta
        if design.places and isinstance(design.net, ClassAutoencoder):
            theta = take_submodel(design.net, theta, design.choose(design.net, state.coin, state.round))
        common = {
            "theta": theta,
            "coin": jax.random.key_data(state.coin),
            "round": state.round,
            "warming": state.round < self.first_rounds(rounds),
        }
        return Ask(round=state.round, cohort=cohort, common=common, own=jnp.arange(len(cohort), dtype=jnp.int32))

    def first_rounds(self, rounds: int) -> int:
        """How many of so many rounds learn the columns' own tables only."""
        if self.recipe == "paper":
            return 0
        share = self.warmup_share or min(MOST_WARMUP, WARMUP_REPORTS * self.participations / self.epsilon)
        return max(1, int(share * rounds))

    def answer(
        self, common: ArrayTree, own: Array, shard: Shard, memory: ArrayTree, source: Source
    ) -> tuple[Array, ArrayTree]:
        design = self.design(shard.population)
        mask = jnp.asarray(shard.mask, jnp.float32)
        root = jax.random.wrap_key_data(jnp.asarray(common["coin"]))
        coin = jax.random.fold_in(jax.random.fold_in(root, 1 + common["round"]), own)
        ties, latents = jax.random.split(coin)
        start = jax.random.randint(ties, (), 0, design.mechanism.size)
        records = design.read(shard.records)
        if not isinstance(design.net, ClassAutoencoder):
            update = adam_update(
                design.net, common["theta"], records, mask, latents, epochs=self.local_epochs, learning_rate=self.learning_rate
            )  # fmt: skip
            return design.mechanism.apply(update, source, start), memory
        theta = common["theta"]
        if design.places:
            theta = extend_submodel(design.net, theta, design.choose(design.net, root, common["round"]))
        kept = design.kept(design.net, root, common["round"])
        gradient = reported_gradient(design.net, theta, records, mask, warming=common["warming"], kept=kept)
        rotated = settle(rotate(gradient, design.signs(root, common["round"])))
        return design.mechanism.apply(rotated, source, start), memory

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        mechanism, net = state.design.mechanism, state.design.net
        heard = jnp.sum(replies.present)
        mean = mechanism.add_up(replies.values, replies.present) / jnp.maximum(heard, 1)
        if not isinstance(net, ClassAutoencoder):
            return dataclasses.replace(
                state, round=state.round + 1, theta=state.theta + self.server_learning_rate * mean
            )
        # The inverse of what a report does to a unit vector on average: unbiased for Gaussian-looking coordinates.
        unit = math.sqrt(mechanism.size) / mechanism.pull
        signs = state.design.signs(state.coin, ask.common["round"])
        estimate = unit * rotate_back(mean, signs, len(state.theta) - net.blocks.width)
        return self.learn(state, net, estimate, heard, ask.common["warming"])

    def learn(self, state: State, net: ClassAutoencoder, estimate: Array, heard: Array, warming: Array) -> State:
        """The state after so many reports, given the estimate of their mean unit vector."""
        before = jnp.where(state.round == self.first_rounds(len(state.order)), 0, state.heard)
        kept = state.design.kept(net, state.coin, state.round)
        known: dict[str, Any] = {
            "gain": state.design.mechanism.gain, "records": state.design.records,
            "before": before, "heard": heard, "kept": kept,
        }  # fmt: skip
        means = first_step(net, state.theta, state.means, estimate, **known)
        first = jnp.asarray(state.theta).at[: net.blocks.width].set(net.base_of(means))
        return dataclasses.replace(
            state,
            round=state.round + 1,
            theta=jnp.where(warming, first, later_step(net, state.theta, estimate, **known)),
            means=jnp.where(warming, means, state.means),
            heard=before + heard,
        )

    def finish(self, state: State, population: Population, key: Array) -> Synthesizer:
        net, mosaic, shape = state.design.net, state.design.mosaic, population.schema
        if isinstance(shape, ImageShape):
            if isinstance(net, ClassAutoencoder) and mosaic is not None:
                return image_classes(net, mosaic, state.theta, shape)
            parts = unpack(net.shapes, state.theta)
            return ConvDecoder(shape=shape.shape, classes=1, layers={name: np.asarray(parts[name]) for name in DECODER})
        if isinstance(net, ClassAutoencoder):
            return Decoder(schema=shape, layers=jax.tree.map(np.asarray, net.tables(state.theta)))
        parts = unpack(net.shapes, state.theta)
        layers = {name: np.asarray(parts[name]) for name in ("up", "up_bias", "out", "out_bias")}
        return Decoder(schema=shape, layers=layers, arg_max=True)

    def guarantee(self, population: Population) -> Guarantee:
        mechanism = self.design(population).mechanism
        report = "one index and one sign" if self.indices == 1 else f"{self.indices} indices and one sign"
        return self.claim(
            population,
            report=f"{report} of an update (SignDS)",
            derivation=(
                f"each report: {mechanism.event}, {mechanism.chosen} of {mechanism.size} coordinates being the top",
                "the sign is a fair coin independent of the data; cohorts, rotation and ties are public coins",
            ),
        )

    def plan(self, population: Population) -> Plan:
        design = self.design(population)
        down, up = self._bytes(design)
        chance = f", told with probability {design.mechanism.p:.3f}" if isinstance(design.mechanism, SignDS) else ""
        return Plan(
            guarantee=self.guarantee(population),
            rounds=self.round_count(population),
            bytes_up=up,
            bytes_down=down,
            errors={},
            notes=(
                f"{design.parameters:,} parameters, {design.mechanism.chosen} of {design.mechanism.size:,} coordinates "
                f"the top{chance}",
                "no error is predicted: training has no closed form",
                *self._saved(design),
                *self.shuffled(population),
            ),
        )

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return self._bytes(self.design(population))

    def _bytes(self, design: Design) -> tuple[float, float]:
        """Parameters as 32-bit floats, a seed, two numbers of the round; one report."""
        return 4.0 * design.numbers_sent + 16.0, float(design.mechanism.wire_bytes)

    def _saved(self, design: Design) -> tuple[str, ...]:
        """What a part of the model saves."""
        if not design.places or not isinstance(design.net, ClassAutoencoder):
            return ()
        whole_bytes, part = 4.0 * design.parameters + 16.0, self._bytes(design)[0]
        return (
            f"sub-models of {design.places} of {design.net.blocks.width} places: {part:,.0f} bytes down instead of "
            f"{whole_bytes:,.0f}, {1 - part / whole_bytes:.0%} saved",
        )


@functools.lru_cache(maxsize=64)
def design_of(protocol: DpFedWae, population: Population) -> Design:
    """The network and the mechanism: from public facts alone."""
    net, mosaic = _net_of(protocol, population)
    epsilon = protocol.epsilon / protocol.participations
    if isinstance(net, ClassAutoencoder):
        size = padded_size(count_parameters(net.shapes) - net.blocks.width)
        share = protocol.top_share or matched_share(epsilon)
    else:
        size, share = count_parameters(net.shapes), protocol.top_share or PAPER_SHARE
    chosen = min(max(1, size - 1), max(1, round(share * size)))
    places = (
        submodel_places(net, protocol.submodel) if isinstance(net, ClassAutoencoder) and protocol.submodel < 1 else 0
    )
    return Design(net, mechanism_of(protocol, size, epsilon, chosen), population.records, places, mosaic)


def _net_of(protocol: DpFedWae, population: Population) -> tuple[Net, Mosaic | None]:
    shape = population.schema
    if isinstance(shape, ImageShape):
        if protocol.recipe == "paper":
            return ConvAutoencoder(shape.shape, max(1, protocol.hidden_size // 8), protocol.latent_size), None
        return image_net(shape, protocol.tile, protocol.latent_classes)
    if protocol.recipe == "paper":
        return DenseAutoencoder(Blocks(shape.sizes), protocol.hidden_size, protocol.latent_size), None
    target = None if shape.target is None else shape.index(shape.target)
    return ClassAutoencoder(Blocks(shape.sizes), protocol.latent_classes, target), None


def mechanism_of(protocol: DpFedWae, size: int, epsilon: float, chosen: int) -> SignDS | SeveralSignDS:
    if protocol.indices == 1:
        return SignDS(size=size, epsilon=epsilon, chosen=chosen)
    return SeveralSignDS(size=size, epsilon=epsilon, chosen=chosen, reported=protocol.indices, least=protocol.overlap)
