"""`census`: every silo counts the tables of all pairs of columns, with noise; one mixture of products is fitted to their sum.

First stage, where columns have more codes than cells (numbers on a fine grid, long lists) or a table has many columns: one-way
counts of codes, of which cells are made and from which follows which pairs are worth their budget. Second stage: the table of
every pair of columns, with the target where there is one. Counts are whole numbers and add up, so that it does not matter which
silo holds what; each silo adds noise (`silo`), or the server once (`central`). Everything after the sums is post-processing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from populace.errors import SpecError, out_of_range
from populace.methods.base import NUMBER, Facts, Population, check_counts, check_not_negative, check_shares
from populace.methods.blocks.composed import ComposedMethod, Composition, Wording
from populace.methods.blocks.schedules import Stages
from populace.methods.blocks.sum_settings import check_sum_settings, sum_assumptions, sum_sites
from populace.methods.census.cells import Coarse
from populace.methods.census.first_stage import FirstStage
from populace.methods.census.fit import Settings
from populace.methods.census.learner import CensusLearner
from populace.methods.census.persons import MOST_ROWS, Contribution, contribution_of
from populace.methods.census.release import Shares, StagedRelease, shared_out
from populace.methods.census.scale_pairs import ScalePairs
from populace.methods.census.tables import MOST_WEIGHT, PairTables
from populace.privacy.accounting import resolved_delta
from populace.privacy.events import Gaussian
from populace.privacy.gaussian import MOST_TOTAL, GaussianSum
from populace.privacy.guarantee import Unit, check_epsilon
from populace.tables.schema import Schema
from populace.tables.universal import is_open, released

MOST_OUTCOMES = 8  # values of a target up to which it stands in every table
AT_ONCE = 2**24  # numbers of a block's replies
COUNTED_ON_HOST = 2**12  # records of a silo from which on they are counted by NumPy, not by compiled products


@dataclasses.dataclass(frozen=True, kw_only=True)
class Census(ComposedMethod):
    """Guarantee: (epsilon, delta)-DP for one record zeroed out: `silo`, each silo's messages by themselves; `secure-sum`,
    the opened sums, for the server with as many silos as may collude; or `central`, the sums of all messages, for whoever does
    not see the messages. A record adds a public weight to one cell of every table, whatever cells a server asks for; weights
    that would change a message by more than the usual ones are not used. So the L2 sensitivity of a message is public and
    reached. With `unit="person"` the same holds for one person with all their rows at a silo, zeroed out: rows count in whole
    units, of which a person has a fixed number (`census.persons` has the rules and the proof), and the model is of persons,
    each of whom counts once.

    Edge cases: a silo without records sends noise (`silo`) or zeros. A silo that misses a stage is missing from that stage's
    sums alone. A target of more than `MOST_OUTCOMES` cells stands in pairs like any other column.
    """

    epsilon: float
    delta: float = 0.0
    trust: Literal["silo", "secure-sum", "central"] = "silo"
    colluders: int = 0
    dropouts: int = 0
    target: str | None = ""
    domain_share: float = 0.1
    lists_share: float = 0.0
    unit: Literal["record", "person"] = "record"
    rows_per_person: int = 0
    components: int = 40
    members: int = 8
    fit_steps: int = 1_000
    prior_precision: float = 0.0
    message_megabytes: float = 50.0

    facts: ClassVar[Facts] = Facts(
        name="census",
        line="noisy tables of all pairs, by silos",
        title="noisy tables of all pairs of columns in one message per silo; a mixture of products at the server",
        paper="populace",
        trust=("silo", "secure-sum", "central"),
        unit="record",
        kinds=("table",),
        traffic="one or two messages of at most 50 MB per silo",
        persons=True,
    )
    small: ClassVar[Mapping[str, Any]] = {"components": 3, "members": 2, "fit_steps": 10}
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "The privacy budget of one record.",
        "delta": "The probability with which epsilon may fail; 0: from the number of records, by a public rule.",
        "trust": "Who adds the noise: each silo to its own message, all silos in shares to a sum that nobody opens into its "
        "parts (secure-sum), or a trusted server once to the sum (central).",
        "colluders": "Under secure-sum: how many silos may work together with the server.",
        "dropouts": "Under secure-sum: how many silos may be missing from a sum; every one costs noise.",
        "target": "The column that stands in every table: by default the schema's target, none for no target.",
        "domain_share": "The share of the budget for one-way counts, where columns are long or a table has many.",
        "lists_share": "The share of the budget for lists of categories that silos release first; 0: domains are declared.",
        "unit": "Whom the budget protects: one record, or one person with all their rows at a silo (see --person).",
        "rows_per_person": "Of a person, how many rows count, as one each; 0: all rows, which share the weight of one.",
        "components": "The components of each fitted mixture, for every value of the target.",
        "members": "How many mixtures are fitted from other starts and averaged.",
        "fit_steps": "The steps of each fit.",
        "prior_precision": "How strongly components are pulled towards the one-way tables; 0: by the noise.",
        "message_megabytes": "The most megabytes that a silo sends at once.",
    }
    vectorises: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if self.trust not in self.facts.trust:
            raise SpecError(f"expected trust in {', '.join(self.facts.trust)}, got {self.trust!r}")
        check_sum_settings(self.trust, colluders=self.colluders, dropouts=self.dropouts)
        if self.unit not in ("record", "person"):
            raise SpecError(f"expected unit in record, person, got {self.unit!r}")
        if not 0 <= self.rows_per_person <= MOST_ROWS:
            raise out_of_range("rows_per_person", f"in 0 to {MOST_ROWS}", self.rows_per_person)
        if self.rows_per_person and self.unit == "record":
            raise SpecError("rows_per_person is for persons: name their column with --person, or leave it out")
        check_shares(delta=self.delta)
        check_counts(components=self.components, members=self.members, fit_steps=self.fit_steps)
        if not 0 < self.domain_share < 1:
            raise out_of_range("domain_share", "in (0, 1)", self.domain_share)
        if not 0 <= self.lists_share < 1:
            raise out_of_range("lists_share", "in [0, 1)", self.lists_share)
        check_not_negative(prior_precision=self.prior_precision)
        if not 0 < self.message_megabytes < 2_000:
            raise out_of_range("message_megabytes", "above 0 and below 2,000", self.message_megabytes)

    @property
    def protected_unit(self) -> Unit:
        return self.unit

    def on_host(self, population: Population) -> bool:
        return population.records >= COUNTED_ON_HOST

    def compose(self, population: Population) -> Composition:
        schema = population.table_schema
        coarse = Coarse(schema)
        target = self._target(schema)
        first, tables = FirstStage(coarse, target), self._tables(coarse, target)
        scale_pairs = ScalePairs(schema, tables)
        bound = math.sqrt(tables.squares + scale_pairs.squares)
        heaviest = MOST_WEIGHT if first.wide else int(tables.weights.max())
        room = MOST_TOTAL // (population.records * heaviest)
        if not room:
            raise SpecError(f"counts of {population.records:,} records of one silo do not fit into 32 bits")
        contribution = contribution_of(self.unit, rows=self.rows_per_person, room=room)
        delta, chosen_delta = resolved_delta(self.delta, population.clients * population.records)
        stages = 2 if first.parts else 1
        budget = shared_out(
            epsilon=self.epsilon, delta=delta, stages=stages, domain_share=self.domain_share, lists_share=self.lists_share,
            listed=len(released(schema)),
        )  # fmt: skip
        sums = (
            *(((first.bound, first.numbers),) if first.parts else ()),
            (bound, tables.numbers + scale_pairs.numbers),
        )
        release = StagedRelease(
            unit=self.unit, trust=self.trust, delta=delta, lists=budget.lists, spare=budget.spare,
            sites=sum_sites(self.trust, population.clients, colluders=self.colluders, dropouts=self.dropouts),
            most=float(population.clients * population.records * contribution.most * heaviest),
            wording=self._wording(first, scale_pairs, budget, chosen_delta, contribution),
            mechanisms=tuple(
                GaussianSum(bound=contribution.most * bound, noise_multiplier=multiplier, size=size, whole=True)
                for (bound, size), multiplier in zip(sums, budget.stages, strict=True)
            ),
            blocks=-(-population.clients // self._block(population, tables)),
        )  # fmt: skip
        schedule = Stages(clients=population.clients, block=self._block(population, tables), stages=stages)
        settings = Settings(
            components=self.components, members=self.members, steps=self.fit_steps, pull=self.prior_precision
        )
        learner = CensusLearner(
            schema, first, tables, scale_pairs, schedule, release, settings, contribution, population.records
        )
        return Composition(schedule, release, learner)

    def _tables(self, coarse: Coarse, target: int | None) -> PairTables:
        """The tables of pairs; of more cells than a message has room for, those are sent that are worth most."""
        tables = PairTables(coarse.sizes, target)
        grouped = ScalePairs(coarse.schema, tables).numbers
        room = max(0, int(1e6 * self.message_megabytes / NUMBER) - grouped) // tables.outcomes
        if tables.entries <= room:
            return tables
        if not FirstStage(coarse, target).wide or room < int(tables.table_sizes.max()):
            numbers = tables.numbers + grouped
            size = NUMBER * numbers / 1e6
            raise SpecError(
                f"a message would hold {numbers:,} cells, {size:,.3g} MB; allow more with message_megabytes, declare what "
                "categories there are in a schema (`populace schema`), or leave columns out"
            )
        return PairTables(coarse.sizes, target, room)

    def _block(self, population: Population, tables: PairTables) -> int:
        """Silos whose messages are held in memory together: all of those whose sum is opened."""
        return (
            population.clients
            if self.trust == "secure-sum"
            else min(population.clients, max(1, AT_ONCE // tables.numbers))
        )

    def _target(self, schema: Schema) -> int | None:
        name = None if self.target is None else self.target or schema.target
        if name is None or len(schema.sizes) == 1:
            return None
        column = schema.index(name)
        return column if schema.sizes[column] <= MOST_OUTCOMES else None

    def _wording(
        self, first: FirstStage, scales: ScalePairs, budget: Shares, chosen_delta: tuple[str, ...], rule: Contribution
    ) -> Wording:
        bound = math.sqrt(scales.tables.squares + scales.squares)
        number = len(scales.tables.pairs) + (len(scales.grouped.pairs) if scales.columns else 0)
        multipliers, found = budget.stages, any(map(is_open, first.schema.columns))
        public = "kinds, precision and how dates, truth values and missing values are written" if found else "kinds"
        at_silo = self.trust == "silo"
        by = "in shares of all silos" if self.trust == "secure-sum" else "at the server"
        who = "each silo's own message" if at_silo else f"the sum of all silos' messages, {by}"
        one_way = (
            f"one-way counts of {len(first.long) + len(first.short)} columns, of single codes and of groups of them: "
            f"{Gaussian(multipliers[0])}; a record adds a fixed number to at most one count of each of "
            f"{len(first.parts)} parts, {first.bound:.6g} in L2{rule.of_persons(first.bound)}"
        )
        chosen = "at most" if first.wide else "exactly,"
        return Wording(
            mechanism=f"noisy counts of the tables of all pairs of columns{rule.counted}; noise on {who}",
            derivation=(
                *budget.in_words(self.unit),
                *((rule.rule,) if rule.rule else ()),
                *((one_way,) if first.parts else ()),
                f"tables of pairs: {Gaussian(multipliers[-1])}; a record adds to one cell of each of {number:,} "
                f"tables, {bound:.6g} in L2, {chosen} whatever the cells are{rule.of_persons(bound)}",
                *(("all composed by privacy loss distributions",) if first.parts or budget.lists else ()),
                "counts are whole numbers and noise is rounded to whole numbers; cells, weights of tables, mixture and all "
                "sampling are post-processing",
            ),
            assumptions=(
                f"column names, {public}, the number of silos and the most records of one are public",
                *sum_assumptions(self.trust),
                *rule.assumptions,
                *chosen_delta,
            ),
        )
