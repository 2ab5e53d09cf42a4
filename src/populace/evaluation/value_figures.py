"""Every figure on the values of the rows: column by column, pair by pair, and the means that stand beside other metrics."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from populace.evaluation import dependence
from populace.evaluation.baselines import PRODUCT, REAL, SHUFFLED
from populace.evaluation.dependence import Grid, GroupGap
from populace.evaluation.estimate import Estimate, from_influence, left_out
from populace.evaluation.values import (
    QUANTILES,
    Gap,
    Numbers,
    Sample,
    ValueTable,
    gap_between,
    halved,
    sample,
    spikes,
    value_tables,
)  # fmt: skip
from populace.tables.table import Table
from populace.types import JsonObject, NumpyArray

INFLUENCE_ROWS = 20_000
GROUPS_OF_A_COLUMN = 3  # of the worst means by category
NO_NUMBERS = "no column of numbers, dates or times"
ONE_NUMBER = "fewer than two columns of numbers, dates or times"
NO_GROUPS = "no category with 30 rows or more in both tables beside a numeric column"
ONE_COLUMN = "the table has one column; expected two or more"
SAME_VALUES = "by construction: every column has exactly its real values"
NO_INTERVAL = "no interval is computed for it; the column `real` shows what sampling alone does"
#: key -> (title, which way is better)
TITLES: dict[str, tuple[str, str]] = {
    "ks": ("KS distance of values, mean over numeric columns", "lower"),
    "ks_worst": ("KS distance of values, worst column", "lower"),
    "wasserstein": ("Wasserstein distance of values over the real SD, mean over numeric columns", "lower"),
    "pearson_error": ("error of Pearson correlations of values, mean over pairs of numeric columns", "lower"),
    "spearman_error": ("error of Spearman correlations of values, mean over pairs of numeric columns", "lower"),
    "group_means": (
        "error of means by category over the real SD, mean over numeric and categorical columns",
        "lower",
    ),
    "cramers_v_error": ("error of Cramér’s V on bins of its own, mean over all pairs of columns", "lower"),
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ColumnFigures:
    """A column of numbers in two tables."""

    name: str
    kind: str
    real: Sample
    synthetic: Sample
    gap: Gap | None
    spikes: tuple[float, ...]

    @property
    def ks(self) -> float:
        """1 where one of the two has no value at all: they have nothing in common."""
        if self.gap is None:
            return 0.0 if len(self.real.ordered) == len(self.synthetic.ordered) else 1.0
        return self.gap.ks

    @property
    def wasserstein(self) -> float:
        return math.nan if self.gap is None else self.gap.wasserstein

    @property
    def wasserstein_over_sd(self) -> float:
        if self.gap is None or self.real.sd == 0:
            return 0.0 if self.wasserstein == 0 else math.nan
        return self.wasserstein / self.real.sd

    def to_json(self) -> JsonObject:
        return {
            "ks": _known(self.ks), "wasserstein": _known(self.wasserstein),
            "wasserstein_over_sd": _known(self.wasserstein_over_sd),
            "real": summary(self.real, self.spikes), "synthetic": summary(self.synthetic, self.spikes),
        }  # fmt: skip


def compare_columns(name: str, kind: str, real: Sample, synthetic: Sample, atoms: tuple[float, ...]) -> ColumnFigures:
    both = len(real.ordered) and len(synthetic.ordered)
    gap = gap_between(real.ordered, synthetic.ordered) if both else None
    return ColumnFigures(name=name, kind=kind, real=real, synthetic=synthetic, gap=gap, spikes=atoms)


def summary(column: Sample, atoms: Sequence[float]) -> JsonObject:
    """Mean, SD, quantiles and shares, as metrics.json has them; in the column's units, dates as days since 1970."""
    return {
        "mean": _known(column.mean), "sd": _known(column.sd), "missing": column.missing,
        "least": _known(column.ordered[0] if len(column.ordered) else math.nan),
        "most": _known(column.ordered[-1] if len(column.ordered) else math.nan),
        "quantiles": {f"{q:g}": _known(v) for q, v in zip(QUANTILES, column.quantiles(), strict=True)},
        "spikes": [{"value": value, "share": column.share(value)} for value in atoms],
    }  # fmt: skip


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Dependence:
    """How the columns of one table hang together; NaN where a correlation is not defined."""

    numbers: tuple[str, ...]
    pearson: NumpyArray
    spearman: NumpyArray
    columns: tuple[str, ...]
    sizes: tuple[int, ...]
    association: NumpyArray


def dependence_of(table: ValueTable, grid: Grid) -> Dependence:
    columns = [column.values for column in table.numbers]
    return Dependence(
        numbers=tuple(column.name for column in table.numbers), pearson=dependence.pearson(columns),
        spearman=dependence.spearman(columns), columns=grid.names,
        sizes=grid.sizes, association=grid.association(table),
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ValueComparison:
    """Two tables of values, `real` and `synthetic`, and every figure of them."""

    real: ValueTable
    synthetic: ValueTable
    columns: tuple[ColumnFigures, ...]
    real_dependence: Dependence
    dependence: Dependence
    groups: tuple[GroupGap, ...]
    some: tuple[ValueTable, ValueTable]  # the rows that pairs of columns are compared on

    def estimates(self) -> dict[str, Estimate]:
        """The headline means, with intervals where they are cheap."""
        found = dict.fromkeys(TITLES, left_out(NO_NUMBERS))
        if self.columns:
            worst = max(self.columns, key=lambda column: column.ks)
            found["ks"] = self._mean_ks(self.columns)
            found["ks_worst"] = self._mean_ks([worst])
            found["wasserstein"] = self._mean_wasserstein()
        if len(self.columns) > 1:
            found["pearson_error"] = self._pearson_error()
            found["spearman_error"] = _mean(dependence.over_pairs(np.abs(self._gap("spearman"))), ONE_NUMBER)
        else:
            found["pearson_error"] = found["spearman_error"] = left_out(ONE_NUMBER)
        found["group_means"] = _mean(np.array([group.gap for group in self.groups]), NO_GROUPS)
        found["cramers_v_error"] = _mean(dependence.over_pairs(np.abs(self._gap("association"))), ONE_COLUMN)
        return found

    def _gap(self, what: str) -> NumpyArray:
        return np.asarray(getattr(self.dependence, what) - getattr(self.real_dependence, what))

    def _mean_ks(self, columns: Sequence[ColumnFigures]) -> Estimate:
        value = float(np.mean([column.ks for column in columns]))
        influences = self._influences(columns, lambda column, values: column.gap.ks_influence(values))
        return from_influence(value, *influences, rows=[self.real.rows, self.synthetic.rows], most=1.0)

    def _mean_wasserstein(self) -> Estimate:
        columns = [column for column in self.columns if math.isfinite(column.wasserstein_over_sd)]
        if not columns:
            return left_out("no numeric column has both values and a spread in the real rows")
        value = float(np.mean([column.wasserstein_over_sd for column in columns]))
        influences = self._influences(
            columns, lambda column, values: column.gap.wasserstein_influence(values) / (column.real.sd or 1.0)
        )
        return from_influence(value, *influences, rows=[self.real.rows, self.synthetic.rows])

    def _influences(self, columns: Sequence[ColumnFigures], influence: Any) -> list[NumpyArray]:
        """The influence of some rows of both tables on a mean over columns; rows without a value have the mean's."""
        wanted = {column.name: column for column in columns if column.gap is not None}
        found = []
        for table in (self.real.some(INFLUENCE_ROWS), self.synthetic.some(INFLUENCE_ROWS)):
            total = np.zeros(table.rows)
            for part in table.numbers:
                if part.name in wanted:
                    present = ~np.isnan(part.values)
                    own = influence(wanted[part.name], part.values[present])
                    if len(own):
                        total[present] += (own - own.mean()) * table.rows / len(own) / len(columns)
            found.append(total)
        return found

    def _pearson_error(self) -> Estimate:
        errors = dependence.over_pairs(np.abs(self._gap("pearson")))
        if not len(errors):
            return left_out("no two numeric columns have a correlation in both tables")
        first, second = self.real_dependence.pearson, self.dependence.pearson
        influences = [
            dependence.pearson_influence(own, other, [c.values for c in table.numbers])
            for own, other, table in ((first, second, self.some[0]), (second, first, self.some[1]))
        ]
        return from_influence(float(errors.mean()), *influences, rows=[table.rows for table in self.some], most=2.0)

    def to_json(self) -> JsonObject:
        """The figures of each column, and the pairs with the largest errors."""
        pairs: JsonObject = {}
        for what, names in (
            ("pearson", self.dependence.numbers), ("spearman", self.dependence.numbers),
            ("association", self.dependence.columns),
        ):  # fmt: skip
            worst = dependence.worst_pair(self._gap(what), names)
            pairs[what] = {
                "columns": list(names), "real": _rounded(getattr(self.real_dependence, what)),
                "synthetic": _rounded(getattr(self.dependence, what)), "worst": list(worst) if worst else None,
            }  # fmt: skip
        return {
            "columns": {column.name: {"kind": column.kind, **column.to_json()} for column in self.columns},
            **pairs,
            "group_means": [dataclasses.asdict(group) for group in self._worst_groups()],
            "rows_of_pairs": [table.rows for table in self.some],
        }

    def _worst_groups(self) -> list[GroupGap]:
        """The largest errors first, a few of each numeric column: one with a wrong mean has it in every category."""
        found: dict[str, list[GroupGap]] = {}
        for group in sorted(self.groups, key=lambda group: -group.gap):
            found.setdefault(group.number, []).append(group)
        kept = [group for groups in found.values() for group in groups[:GROUPS_OF_A_COLUMN]]
        return sorted(kept, key=lambda group: -group.gap)


def _rounded(matrix: NumpyArray) -> list[list[float | None]]:
    return [[round(float(v), 5) if math.isfinite(v) else None for v in row] for row in matrix]


def _mean(values: NumpyArray, why: str) -> Estimate:
    return Estimate(value=float(values.mean()), why=NO_INTERVAL) if len(values) else left_out(why)


class RealValues:
    """The real rows, sorted and counted once for every table they are compared with."""

    def __init__(self, values: ValueTable, first_half: NumpyArray) -> None:
        self.values = values
        self.first_half = first_half
        self.samples = [halved(column.values, first_half) for column in values.numbers]
        self.spikes = [spikes(whole) for whole, _, _ in self.samples]
        self.some = values.some(dependence.ROWS)
        self.grid = dependence.grid_of(self.some)
        self.dependence = dependence_of(self.some, self.grid)

    def compare(self, synthetic: ValueTable) -> ValueComparison:
        whole = [found[0] for found in self.samples]
        other = [sample(column.values) for column in synthetic.numbers]
        return self._comparison(self.values, whole, self.some, self.dependence, synthetic, other)

    def compare_halves(self) -> ValueComparison:
        """One half of the real rows against the other."""
        first, second = self.values.take(self.first_half), self.values.take(~self.first_half)
        samples = [found[1] for found in self.samples], [found[2] for found in self.samples]
        some = first.some(dependence.ROWS)
        return self._comparison(first, samples[0], some, dependence_of(some, self.grid), second, samples[1])

    def _comparison(
        self, real: ValueTable, own: Sequence[Sample], some: ValueTable, found: Dependence, synthetic: ValueTable,
        other: Sequence[Sample],
    ) -> ValueComparison:  # fmt: skip
        names: Sequence[Numbers] = self.values.numbers
        some_other = synthetic.some(dependence.ROWS)
        return ValueComparison(
            real=real, synthetic=synthetic, real_dependence=found, dependence=dependence_of(some_other, self.grid),
            groups=tuple(dependence.group_gaps(some, some_other)), some=(some, some_other),
            columns=tuple(
                compare_columns(column.name, column.kind, a, b, atoms)
                for column, a, b, atoms in zip(names, own, other, self.spikes, strict=True)
            ),
        )  # fmt: skip

    def product(self) -> dict[str, Estimate]:
        """Independent columns with exactly the real values: no correlation, no difference of group means, no dependence."""
        exact = Estimate(value=0.0, why=SAME_VALUES)
        found = dict.fromkeys(TITLES, exact if self.values.numbers else left_out(NO_NUMBERS))
        for key, matrix in (("pearson_error", self.dependence.pearson), ("spearman_error", self.dependence.spearman)):
            found[key] = _mean(dependence.over_pairs(np.abs(matrix)), ONE_NUMBER)
        found["cramers_v_error"] = _mean(dependence.over_pairs(self.dependence.association), ONE_COLUMN)
        found["group_means"] = left_out("not computed for the product; the shuffled table has it")
        return found


def compare_values(
    synthetic: Mapping[str, Table], real: Table, first_half: NumpyArray, shuffled: Table
) -> tuple[dict[str, ValueComparison], dict[str, dict[str, Estimate]]]:
    """Comparisons by table (the halves under `real`), and metric -> table -> figure."""
    own, mixed, *others = value_tables([real, shuffled, *synthetic.values()])
    reference = RealValues(own, first_half)
    found = {name: reference.compare(values) for name, values in zip(synthetic, others, strict=True)}
    found[REAL] = reference.compare_halves()
    estimates = {name: comparison.estimates() for name, comparison in found.items()}
    estimates |= {PRODUCT: reference.product(), SHUFFLED: reference.compare(mixed).estimates()}
    return found, {key: {name: figures[key] for name, figures in estimates.items()} for key in TITLES}


def compare_two(synthetic: Table, real: Table) -> ValueComparison:
    """All figures of two tables, without baselines."""
    own, other = value_tables([real, synthetic])
    first = np.zeros(own.rows, bool)
    first[::2] = True
    return RealValues(own, first).compare(other)
