"""`central-vae`: a conditional VAE trained on everybody's records in one place. A baseline: NOT PRIVATE.

The upper row of table 1 of Pfitzner and Arnrich 2022: every client sends its records as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.base import (
    NO_ERROR,
    Ask,
    Facts,
    ImageShape,
    Population,
    Replies,
    Shard,
    check_counts,
    check_sizes,
)
from populace.methods.blocks.composed import Composition, Learner, Unprotected
from populace.methods.blocks.schedules import OneShot
from populace.methods.blocks.vae_generator import VaeGenerator, generator_of
from populace.methods.blocks.vae_networks import Net
from populace.methods.vae.training import NETWORK_MEANINGS, SMALL_NETWORK, VaeMethod, fit
from populace.privacy.source import Source
from populace.types import Array, ArrayTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Pool:
    """Everybody's records, padded, and which of them are there."""

    records: ArrayTree
    mask: Array


@dataclasses.dataclass(frozen=True)
class CentralVaeLearner(Learner):
    """Records are sent as they are, and the server trains both networks on them."""

    settings: CentralVae
    population: Population

    def begin(self, key: Array, warm: object = None) -> Pool:
        clients = self.population.clients
        blank = _blank(self.population)
        return Pool(
            records=jax.tree.map(lambda leaf: jnp.zeros((clients, *leaf.shape), leaf.dtype), blank),
            mask=jnp.zeros((clients, self.population.records), bool),
        )

    def answer(self, question: ArrayTree, own: Array, shard: Shard, source: Source) -> ArrayTree:
        return {"records": jax.tree.map(jnp.asarray, shard.records), "mask": jnp.asarray(shard.mask)}

    def absorb(self, state: Pool, ask: Ask, replies: Replies, source: Source) -> Pool:
        rows = jnp.where(replies.present, replies.clients, len(state.mask))

        def put(old: Array, new: Array) -> Array:
            return jnp.asarray(old).at[rows].set(new.astype(old.dtype), mode="drop")

        return Pool(
            records=jax.tree.map(put, state.records, replies.values["records"]),
            mask=put(state.mask, replies.values["mask"]),
        )

    def finish(self, state: Pool, key: Array) -> VaeGenerator:
        settings, vae = self.settings, self.settings.vae(self.population)
        there = np.flatnonzero(np.asarray(state.mask).reshape(-1))
        records = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[there], state.records)
        start, training = jax.random.split(key)
        phi, theta = vae.start(start)
        if len(there):
            _, theta = fit(
                vae, phi, theta, records, len(there), training, steps=settings.training_steps,
                learning_rate=settings.learning_rate,
            )  # fmt: skip
        return generator_of(vae, theta, self.population)

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        leaves = jax.tree.leaves(_blank(self.population))
        return 0.0, float(sum(leaf.size * leaf.dtype.itemsize for leaf in leaves))

    def notes(self) -> tuple[str, ...]:
        return "NOT PRIVATE: a baseline", NO_ERROR


@dataclasses.dataclass(frozen=True, kw_only=True)
class CentralVae(VaeMethod):
    """Guarantee: none. `epsilon` is taken so that commands look alike, and is not used.

    Edge cases: training happens in `finish`, so an interrupted run begins it again.
    """

    epsilon: float = 1.0
    net: Net = "small"
    hidden_size: int = 0
    latent_size: int = 8
    beta: float = 0.01
    training_steps: int = 20_000
    learning_rate: float = 1e-3

    renamed: ClassVar[Mapping[str, str]] = {
        "width": "hidden_size", "latent": "latent_size", "steps": "training_steps", "rate": "learning_rate",
    }  # fmt: skip
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "Taken so that commands look alike, and not used: nothing is guaranteed.",
        **NETWORK_MEANINGS,
        "training_steps": "How many steps of Adam there are.",
        "learning_rate": "The learning rate of Adam.",
    }
    small: ClassVar[Mapping[str, object]] = {"training_steps": 3, **SMALL_NETWORK}
    facts: ClassVar[Facts] = Facts(
        name="central-vae",
        page="dpd-vae",
        line="VAE on pooled records, NOT PRIVATE",
        title="conditional VAE on pooled records; NOT PRIVATE, a baseline",
        paper="Pfitzner and Arnrich, arXiv 2022 (table 1, central VAE)",
        trust=("not-private",),
        unit="client",
        kinds=("table", "images"),
        traffic="nothing down, all records up",
    )

    def __post_init__(self) -> None:
        self.check_vae()
        check_counts(training_steps=self.training_steps)
        check_sizes(learning_rate=self.learning_rate)

    def compose(self, population: Population) -> Composition:
        return Composition(
            OneShot(clients=population.clients, block=population.clients),
            Unprotected(reason="every client sends its records as they are; a baseline"),
            CentralVaeLearner(self, population),
        )


def _blank(population: Population) -> ArrayTree:
    """One client's records, all zero."""
    schema = population.schema
    if isinstance(schema, ImageShape):
        pixels = np.zeros((population.records, *schema.shape), np.uint8)
        return {"x": pixels, "y": np.zeros(population.records, np.int32)}
    return np.zeros((population.records, len(schema.sizes)), np.int32)
