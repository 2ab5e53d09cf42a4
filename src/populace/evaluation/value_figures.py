"""Every figure on the values of the rows: column by column, pair by pair, and the means that stand beside other metrics."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from populace.evaluation import dependence
from populace.evaluation.baselines import PRODUCT, REAL, SHUFFLED
from populace.evaluation.dependence import Grid, GroupGap
from populace.evaluation.estimate import Estimate, from_influence, left_out
from populace.evaluation.values import (
    QUANTILES,
    Sample,
    ValueTable,
    gap_between,
    halved,
    sample,
    sample_rows,
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
class GapFigures:
    """What is kept of the gap between two distribution functions, and what some values of either add to it.

    Influences are pairs, of real and synthetic values, NaN where there is no value.
    """

    ks: float
    wasserstein: float
    ks_influence: tuple[NumpyArray, NumpyArray]
    wasserstein_influence: tuple[NumpyArray, NumpyArray]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ColumnFigures:
    """A column of numbers in two tables."""

    name: str
    kind: str
    real: Sample
    synthetic: Sample
    gap: GapFigures | None
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


def compare_columns(
    name: str,
    kind: str,
    real: Sample,
    synthetic: Sample,
    atoms: tuple[float, ...],
    few: tuple[NumpyArray, NumpyArray] = (np.zeros(0), np.zeros(0)),
) -> ColumnFigures:
    """A column of two tables; `few` are the values of the rows by which intervals are computed."""
    both = len(real.ordered) and len(synthetic.ordered)
    gap = _gap_figures(real, synthetic, few) if both else None
    return ColumnFigures(name=name, kind=kind, real=real, synthetic=synthetic, gap=gap, spikes=atoms)


def _gap_figures(real: Sample, synthetic: Sample, few: tuple[NumpyArray, NumpyArray]) -> GapFigures:
    gap = gap_between(real.ordered, synthetic.ordered)

    def influence(of: Callable[[NumpyArray], NumpyArray], values: NumpyArray) -> NumpyArray:
        found = np.full(len(values), np.nan)
        present = ~np.isnan(values)
        found[present] = of(values[present])
        return found

    ks, wasserstein = (
        (influence(of, few[0]), influence(of, few[1])) for of in (gap.ks_influence, gap.wasserstein_influence)
    )
    return GapFigures(ks=gap.ks, wasserstein=gap.wasserstein, ks_influence=ks, wasserstein_influence=wasserstein)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CategoryCounts:
    """How many rows of two tables have no value (first), and each of the labels (then)."""

    name: str
    labels: tuple[str, ...]
    real: NumpyArray
    synthetic: NumpyArray


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
    """Every figure of two tables of values, real and synthetic, of so many `rows`."""

    rows: tuple[int, int]
    columns: tuple[ColumnFigures, ...]
    categories: tuple[CategoryCounts, ...]
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
        influences = self._influences(len(columns), {c.name: c.gap.ks_influence for c in columns if c.gap})
        return from_influence(value, *influences, rows=self.rows, most=1.0)

    def _mean_wasserstein(self) -> Estimate:
        columns = [column for column in self.columns if math.isfinite(column.wasserstein_over_sd)]
        if not columns:
            return left_out("no numeric column has both values and a spread in the real rows")
        value = float(np.mean([column.wasserstein_over_sd for column in columns]))
        scaled = {
            c.name: tuple(part / (c.real.sd or 1.0) for part in c.gap.wasserstein_influence) for c in columns if c.gap
        }
        influences = self._influences(len(columns), scaled)
        return from_influence(value, *influences, rows=self.rows)

    def _influences(self, columns: int, found: Mapping[str, tuple[NumpyArray, ...]]) -> list[NumpyArray]:
        """The influence of some rows of both tables on a mean over columns; rows without a value have the mean's."""
        totals = [np.zeros(len(sample_rows(rows, INFLUENCE_ROWS))) for rows in self.rows]
        for column in self.columns:
            for total, influence in zip(totals, found.get(column.name, ()), strict=False):
                present = ~np.isnan(influence)
                own = influence[present]
                if len(own):
                    total[present] += (own - own.mean()) * len(total) / len(own) / columns
        return totals

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


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """One of two tables that are compared: its columns of numbers sorted, categories counted, pairs on `some` rows."""

    rows: int
    samples: Sequence[Sample]
    counts: Sequence[NumpyArray]
    some: ValueTable
    dependence: Dependence

    def few(self) -> ValueTable:
        """The rows that intervals are computed from, which are among those of `some`."""
        return self.some.take(
            np.searchsorted(sample_rows(self.rows, dependence.ROWS), sample_rows(self.rows, INFLUENCE_ROWS))
        )


def _counted(codes: NumpyArray, labels: Sequence[str]) -> NumpyArray:
    return np.bincount(codes + 1, minlength=len(labels) + 1)


def _side(values: ValueTable, some: ValueTable, grid: Grid) -> Side:
    return Side(
        rows=values.rows, some=some, dependence=dependence_of(some, grid),
        samples=[sample(column.values) for column in values.numbers],
        counts=[_counted(column.codes, column.labels) for column in values.categories],
    )  # fmt: skip


class RealValues:
    """The real rows, sorted and counted once for every table they are compared with."""

    def __init__(self, values: ValueTable, first_half: NumpyArray) -> None:
        self.values = values
        self.first_half = first_half
        some = values.take(sample_rows(values.rows, dependence.ROWS))
        self.grid = dependence.grid_of(some)
        self.whole = _side(values, some, self.grid)
        self.spikes = [spikes(found) for found in self.whole.samples]
        self.dependence = self.whole.dependence

    def compare(self, synthetic: ValueTable) -> ValueComparison:
        some = synthetic.take(sample_rows(synthetic.rows, dependence.ROWS))
        return self._comparison(self.whole, _side(synthetic, some, self.grid))

    def compare_shuffled(self, some: ValueTable) -> ValueComparison:
        """The real rows with each column shuffled on its own, of which `some` are given: the same values, other pairs."""
        mixed = dataclasses.replace(self.whole, some=some, dependence=dependence_of(some, self.grid))
        return self._comparison(self.whole, mixed)

    def compare_halves(self) -> ValueComparison:
        """One half of the real rows against the other."""
        samples = [halved(column.values, self.first_half)[1:] for column in self.values.numbers]
        counts = [_counted(column.codes[self.first_half], column.labels) for column in self.values.categories]
        others = [whole - half for whole, half in zip(self.whole.counts, counts, strict=True)]
        return self._comparison(
            self._half(self.first_half, [found[0] for found in samples], counts),
            self._half(~self.first_half, [found[1] for found in samples], others),
        )

    def _half(self, marked: NumpyArray, samples: Sequence[Sample], counts: Sequence[NumpyArray]) -> Side:
        rows = np.flatnonzero(marked)
        some = self.values.take(rows[sample_rows(len(rows), dependence.ROWS)])
        found = dependence_of(some, self.grid)
        return Side(rows=len(rows), samples=samples, counts=counts, some=some, dependence=found)

    def _comparison(self, real: Side, synthetic: Side) -> ValueComparison:
        few = real.few().numbers, synthetic.few().numbers
        return ValueComparison(
            rows=(real.rows, synthetic.rows), real_dependence=real.dependence, dependence=synthetic.dependence,
            groups=tuple(dependence.group_gaps(real.some, synthetic.some)), some=(real.some, synthetic.some),
            columns=tuple(
                compare_columns(column.name, column.kind, a, b, atoms, (one.values, other.values))
                for column, a, b, atoms, one, other in zip(
                    self.values.numbers, real.samples, synthetic.samples, self.spikes, *few, strict=True
                )
            ),
            categories=tuple(
                CategoryCounts(name=column.name, labels=column.labels, real=a, synthetic=b)
                for column, a, b in zip(self.values.categories, real.counts, synthetic.counts, strict=True)
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
) -> tuple[dict[str, ValueComparison], JsonObject, dict[str, dict[str, Estimate]]]:
    """Comparisons by table, the figures of the two halves by column, and metric -> table -> figure.

    Of `shuffled` the sampled rows are enough: see `compare_shuffled`.
    """
    own, *others, mixed = value_tables([real, *synthetic.values()], [shuffled])
    reference = RealValues(own, first_half)
    found = {name: reference.compare(values) for name, values in zip(synthetic, others, strict=True)}
    estimates = {name: comparison.estimates() for name, comparison in found.items()}
    halves = reference.compare_halves()
    estimates |= {REAL: halves.estimates(), PRODUCT: reference.product()}
    estimates[SHUFFLED] = reference.compare_shuffled(mixed.take(np.arange(mixed.rows))).estimates()
    of_halves = {column.name: {"kind": column.kind, **column.to_json()} for column in halves.columns}
    return found, of_halves, {key: {name: figures[key] for name, figures in estimates.items()} for key in TITLES}


def compare_two(synthetic: Table, real: Table) -> ValueComparison:
    """All figures of two tables, without baselines."""
    own, other = value_tables([real, synthetic])
    first = np.zeros(own.rows, bool)
    first[::2] = True
    return RealValues(own, first).compare(other)
