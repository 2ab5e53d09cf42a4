"""`krr`: every client reports every attribute by randomised response with epsilon/d each.

The oldest baseline. Each report is a whole, mostly random record; the joint table is estimated over the
combinations reported most often, because the channel over all of them would fit no memory (Chen et al. 2023, section 5.1).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from populace.methods.base import Ask, Facts, Population, Replies, Shard, check_counts, choose_record
from populace.methods.blocks.composed import ComposedMethod, Composition, Learner
from populace.methods.blocks.frequency_estimation import regress
from populace.methods.blocks.one_report import expected_distance, one_report_release
from populace.methods.blocks.records_generator import Records
from populace.methods.blocks.schedules import OneShot
from populace.privacy.guarantee import check_epsilon
from populace.privacy.randomizers.grr import GrrPanel
from populace.privacy.source import Source
from populace.types import Array, ArrayTree


@dataclasses.dataclass(frozen=True)
class KrrLearner(Learner):
    """All randomised records, [clients, columns], -1 where a client has not answered; their joint table in the end."""

    population: Population
    panel: GrrPanel
    combinations: int

    def begin(self, key: Array, warm: Any = None) -> Array:
        del key, warm
        return jnp.full((self.population.clients, len(self.panel.sizes)), -1, jnp.int32)

    def answer(self, question: ArrayTree, own: Array, shard: Shard, source: Source) -> Array:
        sizes = self.panel.sizes
        which, empty, noise = source.split(3)
        record, any_record = choose_record(shard, which)
        uniform = jnp.stack([part.below(size) for part, size in zip(empty.split(len(sizes)), sizes, strict=True)])
        values = jnp.where(any_record, jnp.asarray(record), uniform)
        return jnp.asarray(self.panel.apply(values, jnp.arange(len(sizes)), noise))

    def absorb(self, state: Array, ask: Ask, replies: Replies, source: Source) -> Array:
        row = jnp.where(replies.present, replies.clients, len(state))  # absent ones fall off the end
        return jnp.asarray(state).at[row].set(replies.values, mode="drop")

    def finish(self, state: Array, key: Array) -> Records:
        reports = np.asarray(state)
        rows, counts = np.unique(reports[reports[:, 0] >= 0], axis=0, return_counts=True)
        kept = np.argsort(-counts, kind="stable")[: self.combinations]
        rows, counts = rows[kept], counts[kept]
        channel = np.ones((len(rows), len(rows)))
        for column, member in enumerate(self.panel.members):
            same = rows[:, column][:, None] == rows[:, column][None, :]
            channel *= np.where(same, member.p, member.q)
        weights = regress(channel / channel.max(), counts / counts.sum())
        return Records(schema=self.population.table_schema, codes=rows, weights=weights)

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        return 1.0, float(sum(member.wire_bytes for member in self.panel.members))

    def predicted_errors(self) -> dict[str, float]:
        distances = [
            expected_distance(float(m.variance(1 / m.size, 1)) if m.size > 1 else 0.0, m.size, self.population.clients)
            for m in self.panel.members
        ]
        return {"one-way total variation distance, mean over columns, by plain inversion": float(np.mean(distances))}

    def notes(self) -> tuple[str, ...]:
        return ("the joint table is estimated over the most frequent randomised records only: a baseline",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Krr(ComposedMethod):
    """Guarantee: epsilon-LDP, pure, for everything a client holds: d reports of epsilon/d about one record.

    Edge cases: a client without records answers as if all its values were drawn evenly. `combinations` bounds the joint table.
    """

    epsilon: float
    clients_per_batch: int = 16_384
    combinations: int = 1_000

    facts: ClassVar[Facts] = Facts(
        name="krr",
        line="every column by randomised response",
        title="every attribute by randomised response, epsilon split evenly",
        paper="baseline of Chen et al. 2023 (kRR: Kairouz et al. 2014)",
        trust=("local",),
        unit="client",
        kinds=("table",),
        traffic="one randomised record per client, one round",
    )
    renamed: ClassVar[Mapping[str, str]] = {"batch": "clients_per_batch"}
    small: ClassVar[Mapping[str, object]] = {"clients_per_batch": 8}
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "The privacy loss of one client, by pure local differential privacy.",
        "clients_per_batch": "How many clients are asked in one round; the guarantee does not depend on it.",
        "combinations": "The joint table is estimated over so many records, those reported most often.",
    }
    compiles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_counts(clients_per_batch=self.clients_per_batch, combinations=self.combinations)

    def compose(self, population: Population) -> Composition:
        sizes = population.table_schema.sizes
        panel = GrrPanel(sizes=sizes, epsilon=self.epsilon / len(sizes))
        event = panel.event(len(sizes))
        release = one_report_release(
            self.epsilon,
            event,
            mechanism="randomised response on every attribute of one record, epsilon split evenly, each client once",
            derivation=(f"each client sends: {event}",),
        )
        schedule = OneShot(clients=population.clients, block=self.clients_per_batch)
        return Composition(schedule, release, KrrLearner(population, panel, self.combinations))
