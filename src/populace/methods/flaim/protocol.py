"""`flaim`: AIM among clients, each of which chooses by itself which marginal it measures (Maddock, Cormode and Maple 2024).

At the start all clients count the values of every column. In each round a client is sent the model's answers, chooses the
marginal in which its own records differ most from them, by the exponential mechanism, and counts it. The server adds up the
tables of those who chose the same, adds noise and fits a graphical model anew. With unlike clients such choices lead astray:
what differs is often the client. `augmented` takes off how far the client's single columns are from those of all.
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
from populace.methods.base import Facts, Population, check_counts, check_rates, check_shares
from populace.methods.blocks.composed import ComposedMethod, Composition, Wording
from populace.methods.blocks.schedules import Cohort, Schedule
from populace.methods.flaim.learner import FlaimLearner, noise_alone
from populace.methods.flaim.release import Noise, RoundsRelease, calibrated_noise
from populace.methods.flaim.workload import Workload
from populace.privacy.accounting import resolved_delta
from populace.privacy.exponential import MOST_SCORE, ExponentialMechanism
from populace.privacy.gaussian import MOST_TOTAL, GaussianSum
from populace.privacy.guarantee import check_epsilon
from populace.privacy.source import Source
from populace.types import Array, ArrayTree

MOST_CELLS = 2**22  # of a question
MOST_REPLIED = 2**28  # numbers in the replies of one exchange
FINEST = 256  # units of a score for one record
ORDERS = {"pairs": 2, "triples": 3}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllThenSampled(Schedule):
    """Everybody first; then, `wanted` times, each client with a probability that is public, by a coin that is public too.

    Where the coin leaves nobody, the client that came nearest is asked.
    """

    wanted: int
    sampling_rate: float

    @property
    def exchanges(self) -> int:
        return 1 + self.wanted

    @property
    def participations(self) -> int:
        return 1 + self.wanted

    def start(self, key: Array) -> Array:
        return key

    def cohort(self, order: ArrayTree, number: Array, source: Source) -> Cohort:
        del source
        everybody = jnp.arange(self.clients, dtype=jnp.int32)
        coins = jax.random.uniform(jax.random.fold_in(order, int(number)), (self.clients,))
        drawn = (coins < self.sampling_rate) | (coins == coins.min()) | (int(number) == 0)
        return Cohort(jnp.where(drawn, everybody, -1), jnp.zeros_like(everybody))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flaim(ComposedMethod):
    """Guarantee: (epsilon, delta)-DP for one record zeroed out, for whoever does not see the messages: which marginal each
    client chose, by the exponential mechanism, and sums of counts with Gaussian noise, all composed. A record changes a score
    by at most the most columns of a marginal (`augmented`: twice that) and one cell of every table that is sent, exactly.

    Edge cases: a client without records chooses and sends zeros. A client that misses the first exchange is taken to have the
    mean number of records. Marginals too large for the model are never chosen, and those for which others left no room are not
    used. At least two columns are needed.
    """

    epsilon: float
    delta: float = 0.0
    variant: Literal["augmented", "naive"] = "augmented"
    rounds: int = 10
    sampling_rate: float = 1.0
    workload: Literal["pairs", "triples"] = "triples"
    selection_share: float = 0.1
    model_cells: int = 2**15
    fit_steps: int = 1000

    facts: ClassVar[Facts] = Facts(
        name="flaim",
        line="marginals chosen by clients (AIM)",
        title="federated AIM: each client chooses the marginals it measures; a graphical model at the server",
        paper="Maddock, Cormode, Maple 2024 (KDD, arXiv 2310.03447)",
        trust=("central",),
        unit="record",
        kinds=("table",),
        traffic="the model's answers to each client and a table back, every round",
    )
    small: ClassVar[Mapping[str, Any]] = {"rounds": 2, "workload": "pairs", "fit_steps": 20}
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "The privacy budget of one record.",
        "delta": "The probability with which epsilon may fail; 0: from the number of records, by a public rule.",
        "variant": "How clients score marginals: corrected for how unlike the others they are (augmented), or not (naive).",
        "rounds": "How often clients choose a marginal.",
        "sampling_rate": "The probability with which a client takes part in a round, by a public coin.",
        "workload": "The marginals that may be chosen: all sets of up to two columns (pairs), or up to three (triples).",
        "selection_share": "The share of the budget for choices; the rest is for counts.",
        "model_cells": "The most cells of the model's cliques together.",
        "fit_steps": "The most steps of each fit of the model.",
    }
    vectorises: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_shares(delta=self.delta)
        check_counts(rounds=self.rounds, model_cells=self.model_cells, fit_steps=self.fit_steps)
        check_rates(sampling_rate=self.sampling_rate)
        if not 0 < self.selection_share < 1:
            raise out_of_range("selection_share", "in (0, 1)", self.selection_share)

    def compose(self, population: Population) -> Composition:
        schema = population.table_schema
        workload = Workload(schema.sizes, min(ORDERS[self.workload], len(schema.sizes)), self.model_cells)
        self._check_size(population, workload)
        delta, chosen_delta = resolved_delta(self.delta, population.clients * population.records)
        first, later = 1 + len(schema.sizes), 1 + len(schema.sizes) if self._augmented else 1
        noise = calibrated_noise(
            epsilon=self.epsilon, delta=delta, rounds=self.rounds, first=first, later=later,
            selection_share=self.selection_share,
        )  # fmt: skip
        grid = self._grid(population, workload, noise)
        release = RoundsRelease(
            unit="record", trust="central", delta=delta, rounds=self.rounds,
            wording=self._wording(workload, noise, chosen_delta),
            first=_counts(first, noise, workload.one_way_cells + population.clients),
            later=_counts(later, noise, workload.total_cells),
            choice=ExponentialMechanism(
                epsilon=noise.choice_epsilon, sensitivity=grid * workload.order * (2 if self._augmented else 1)
            ),
        )  # fmt: skip
        schedule = AllThenSampled(clients=population.clients, wanted=self.rounds, sampling_rate=self.sampling_rate)
        learner = FlaimLearner(
            schema, workload, release, clients=population.clients, most_records=population.records, grid=grid,
            augmented=self._augmented, model_cells=self.model_cells, fit_steps=self.fit_steps,
        )  # fmt: skip
        return Composition(schedule, release, learner)

    @property
    def _augmented(self) -> bool:
        return self.variant == "augmented"

    def _check_size(self, population: Population, workload: Workload) -> None:
        if workload.order < 2 or len(workload.sets) == len(workload.sizes):
            raise SpecError(
                "method 'flaim' needs two columns of which one table fits into model_cells; allow more cells"
            )
        if workload.total_cells > MOST_CELLS:
            raise SpecError(
                f"a question would hold {workload.total_cells:,} cells, at most {MOST_CELLS:,} are sent; choose "
                "--set workload=pairs, fewer model_cells or fewer columns"
            )
        if population.clients * workload.widest > MOST_REPLIED:
            raise SpecError(
                f"{population.clients:,} clients would send tables of up to {workload.widest:,} cells at once; this method is "
                "for silos, so let a client hold more records"
            )

    def _grid(self, population: Population, workload: Workload, noise: Noise) -> int:
        """Units of a score for one record: the largest power of two with which no score leaves 32 bits."""
        records = 2 * (2 if self._augmented else 1) * population.records + workload.widest
        largest = workload.order * (records + int(noise_alone(workload, 1.0, 1).max() * noise.deviation))
        if largest > MOST_SCORE or population.records > MOST_TOTAL:
            raise SpecError(f"scores of {population.records:,} records of one client do not fit into 32 bits")
        return int(min(FINEST, 2 ** math.floor(math.log2(MOST_SCORE / largest))))

    def _wording(self, workload: Workload, noise: Noise, chosen_delta: tuple[str, ...]) -> Wording:
        columns = len(workload.sizes)
        later = math.sqrt(1 + columns) if self._augmented else 1.0
        tables = f"the chosen table and those of {columns} columns" if self._augmented else "the chosen table"
        return Wording(
            mechanism="choices of clients by the exponential mechanism, and Gaussian noise on the sums of what they chose, at "
            "the server",
            derivation=(
                f"first exchange: counts of {columns} columns and each client's number of records; a record changes them by "
                f"{math.sqrt(1 + columns):.6g} in L2, noise of standard deviation {noise.deviation:.6g} on each",
                f"each of {self.rounds} rounds: a choice of epsilon {noise.choice_epsilon:.6g}, and counts of {tables}; a "
                f"record changes them by {later:.6g} in L2, with the same noise",
                "a choice counts as any mechanism of its epsilon, which is an upper bound; all composed by privacy loss "
                "distributions, for a client that takes part in every round; that clients are drawn does not count",
                "scores and counts are whole numbers and noise is rounded to whole numbers; the model and all sampling are "
                "post-processing",
            ),
            assumptions=(
                "column names, kinds, the number of clients and the most records of one are public",
                "the server adds the noise to the sums and shows nobody a message without it",
                "a person with records at several clients, or with several records, has the bound of the group line",
                *chosen_delta,
            ),
        )


def _counts(tables: int, noise: Noise, size: int) -> GaussianSum:
    """Counts of which a record changes one cell in each of so many tables."""
    bound = float(np.sqrt(tables))
    return GaussianSum(bound=bound, noise_multiplier=noise.deviation / bound, size=size, whole=True)
