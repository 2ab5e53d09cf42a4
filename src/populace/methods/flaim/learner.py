"""What clients compute, and what the server makes of it, in the two variants of FLAIM.

A client scores every marginal q of the workload by how far its own records are from the model, in counts and whole numbers:

    naive      |q| ( ||M_q(D_k) - n_k p_q||_1 - sqrt(2/pi) sigma cells_q )
    augmented  the same, less the sum over the columns j of q of ||M_j(D_k) - n_k m_j||_1

where p is the model, m the noisy frequencies of single columns over all clients and n_k the client's own noisy number of
records. All but the counts M are public, so that a record changes a score by at most |q|, or 2 |q|, units of the grid.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.base import NUMBER, Ask, Replies, Shard
from populace.methods.blocks.clique_tree import CliqueTree, TreeGenerator
from populace.methods.blocks.composed import Learner
from populace.methods.blocks.schedules import Cohort
from populace.methods.flaim.model import answers_of, fit_model, with_room
from populace.methods.flaim.release import RoundsRelease
from populace.methods.flaim.workload import Workload
from populace.privacy.source import Source
from populace.tables.schema import Schema
from populace.types import Array, ArrayTree, NumpyArray


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured so far, and what clients are told of it next.

    `weighted` and `precision` are as `fit_model` takes them; `records` is the noisy number of every client's records, 0 where
    it was never heard; `answers` is the model's, for all cells; `allowed` says which marginals may be chosen.
    """

    weighted: Array
    precision: Array
    records: Array
    answers: Array
    allowed: Array


@dataclasses.dataclass(frozen=True)
class FlaimLearner(Learner):
    """Choices and counts at the clients, sums and the model at the server."""

    schema: Schema
    workload: Workload
    release: RoundsRelease
    clients: int
    most_records: int
    grid: int  # units of a score for one record
    augmented: bool
    model_cells: int
    fit_steps: int

    def begin(self, key: Array, warm: Any = None) -> Measured:
        del key, warm
        return Measured(
            weighted=np.zeros(self.workload.total_cells),
            precision=np.zeros(len(self.workload.sets)),
            records=np.zeros(self.clients),
            answers=np.zeros(self.workload.total_cells, np.float32),
            allowed=np.zeros(len(self.workload.sets), bool),
        )

    def question(self, state: Measured, number: Array) -> dict[str, Array]:
        if int(number) == 0:
            return {"columns": jnp.int32(0)}
        question: dict[str, Array] = {"answers": jnp.asarray(state.answers), "allowed": jnp.asarray(state.allowed)}
        if self.augmented:
            question["one_way"] = jnp.asarray(self._one_way(state), jnp.float32)
        return question

    def example(self, number: int) -> dict[str, Array]:
        return self.question(self.begin(jax.random.key(0)), jnp.int32(number))

    def own_questions(self, state: Measured, number: Array, cohort: Cohort) -> Array:
        """How many records the server takes each client to have; the mean where it was not heard before."""
        del number
        heard = np.asarray(state.records)
        mean = heard[heard > 0].mean() if (heard > 0).any() else 1.0
        return jnp.asarray(np.where(heard > 0, heard, mean)[np.asarray(cohort.clients)], jnp.float32)

    def _one_way(self, state: Measured) -> NumpyArray:
        """The measured frequencies of single columns, which may be negative; zeros before there are any."""
        precision = np.asarray(state.precision)[: len(self.workload.sizes)].repeat(self.workload.sizes)
        weighted = np.asarray(state.weighted)[: self.workload.one_way_cells]
        frequencies: NumpyArray = np.divide(weighted, precision, out=np.zeros_like(weighted), where=precision > 0)
        return frequencies

    def answer(self, question: ArrayTree, own: ArrayTree, shard: Shard, source: Source) -> dict[str, Array]:
        counts = self.workload.counts(shard.records, shard.mask)
        columns = {"one_way": counts[: self.workload.one_way_cells]}
        if "columns" in question:
            return columns
        choice = self.release.choice.apply(self.scores(question, own, counts), question["allowed"], source)
        places = jnp.asarray(self.workload.starts, jnp.int32)[choice] + jnp.arange(self.workload.widest)
        inside = jnp.arange(self.workload.widest) < jnp.asarray(self.workload.cells, jnp.int32)[choice]
        table = jnp.where(inside, counts[jnp.minimum(places, self.workload.total_cells - 1)], 0)
        return {"choice": jnp.asarray(choice, jnp.int32), "table": table, **(columns if self.augmented else {})}

    def scores(self, question: ArrayTree, own: Array, counts: Array) -> Array:
        """[sets] int32: how much each marginal is worth to this client, in units of the grid."""
        records = self.grid * jnp.clip(own, 1, self.most_records)
        expected = jnp.round(records * jnp.clip(jnp.nan_to_num(question["answers"]), 0, 1)).astype(jnp.int32)
        errors = self.workload.sums(jnp.abs(self.grid * counts - expected))
        orders = jnp.asarray(self.workload.orders)
        scores = orders * (errors - jnp.asarray(self.noise_alone))
        if self.augmented:
            columns = jnp.clip(jnp.nan_to_num(question["one_way"]), 0, 1)
            away = jnp.abs(self.grid * counts[: len(columns)] - jnp.round(records * columns).astype(jnp.int32))
            of_cell = jnp.asarray(np.repeat(np.arange(len(self.workload.sizes)), self.workload.sizes))
            unlike = jax.ops.segment_sum(away, of_cell, len(self.workload.sizes), indices_are_sorted=True)
            scores = scores - jnp.asarray(self.workload.holds) @ unlike
        return scores

    @property
    def noise_alone(self) -> NumpyArray:
        """[sets] The L1 error that the noise of a measurement has on average, in units of the grid."""
        return noise_alone(self.workload, self.release.deviation, self.grid)

    def absorb(self, state: Measured, ask: Ask, replies: Replies, source: Source) -> Measured:
        number = int(ask.round)
        here = np.flatnonzero(np.asarray(replies.present))
        clients = np.asarray(replies.clients)[here]
        values = {name: np.asarray(part)[here] for name, part in replies.values.items()}
        if number == 0:
            state = self._absorb_columns(state, clients, values["one_way"], source)
        else:
            state = self._absorb_choices(state, clients, values, number, source)
        tree = self._fit(state)
        precision = np.asarray(state.precision)
        share = (number + 1) / self.release.rounds
        least = 2 if self.augmented else 1
        allowed = with_room(self.workload, precision, self.model_cells, share=share, least_order=least)
        return dataclasses.replace(state, answers=answers_of(self.workload, tree), allowed=allowed)

    def _absorb_columns(self, state: Measured, clients: NumpyArray, columns: NumpyArray, source: Source) -> Measured:
        """The state after the first exchange: counts of single columns, and each client's number of records, with noise."""
        held = np.zeros(self.clients, np.int64)
        held[clients] = columns[:, : self.workload.sizes[0]].sum(axis=1)
        total = np.concatenate([columns.sum(axis=0, dtype=np.int64), held])
        noisy = self.release.at_server(0, total, source)
        records = np.zeros(self.clients)
        records[clients] = noisy[self.workload.one_way_cells :][clients].clip(1, self.most_records)
        measured = np.arange(len(self.workload.sets)) < len(self.workload.sizes)
        cells = np.zeros(self.workload.total_cells)
        cells[: self.workload.one_way_cells] = noisy[: self.workload.one_way_cells]
        return self._add(dataclasses.replace(state, records=records), cells, np.where(measured, records.sum(), 0))

    def _absorb_choices(
        self, state: Measured, clients: NumpyArray, values: Mapping[str, NumpyArray], number: int, source: Source
    ) -> Measured:
        """The state after a round: for every marginal, the counts of those who chose it, with noise, as of their records."""
        heard = np.asarray(state.records)
        mean = heard[heard > 0].mean() if (heard > 0).any() else 1.0
        records = np.where(heard > 0, heard, mean)[clients]
        total = np.zeros(self.workload.total_cells, np.int64)
        held = np.zeros(len(self.workload.sets))
        for choice, table, of_client in zip(values["choice"], values["table"], records, strict=True):
            start, end = self.workload.starts[choice : choice + 2]
            total[start:end] += table[: end - start]
            held[choice] += of_client
        if self.augmented:
            total[: self.workload.one_way_cells] += values["one_way"].sum(axis=0, dtype=np.int64)
            held[: len(self.workload.sizes)] += records.sum()
        noisy = self.release.at_server(number, total, source)
        return self._add(state, noisy, held)

    def _add(self, state: Measured, noisy: NumpyArray, held: NumpyArray) -> Measured:
        """The state with one more measurement of every marginal that is of more than 0 records."""
        weights = held[self.workload.set_of_cell]
        return dataclasses.replace(
            state,
            weighted=np.asarray(state.weighted) + weights * noisy,
            precision=np.asarray(state.precision) + held**2,
        )

    def _fit(self, state: Measured) -> CliqueTree:
        return fit_model(
            self.workload, np.asarray(state.weighted), np.asarray(state.precision), self.release.deviation,
            most_cells=self.model_cells, fit_steps=self.fit_steps,
        )  # fmt: skip

    def finish(self, state: Measured, key: Array) -> TreeGenerator:
        return TreeGenerator(schema=self.schema, tree=self._fit(state))

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        columns = NUMBER * self.workload.one_way_cells
        first, again = (2 * NUMBER, columns), columns if self.augmented else 0.0
        later = (
            NUMBER * (1 + self.workload.total_cells) + again + len(self.workload.sets),
            NUMBER * (1 + self.workload.widest) + again,
        )
        if ask is not None:
            return later if int(ask.round) else first
        rounds = self.release.rounds
        return (first[0] + rounds * later[0]) / (1 + rounds), (first[1] + rounds * later[1]) / (1 + rounds)

    def notes(self) -> tuple[str, ...]:
        return (
            f"{len(self.workload.sets):,} marginals of up to {self.workload.order} columns, {self.workload.total_cells:,} "
            f"cells in a question; noise on a count of a sum {self.release.deviation:,.1f}",
        )


def noise_alone(workload: Workload, deviation: float, grid: int) -> NumpyArray:
    """[sets] sqrt(2/pi) deviation cells: the mean L1 norm of a marginal's noise, in units of the grid, int32."""
    return np.round(math.sqrt(2 / math.pi) * deviation * grid * workload.cells).astype(np.int32)
