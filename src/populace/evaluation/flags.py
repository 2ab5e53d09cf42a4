"""Red flags: what is clearly wrong with synthetic rows, in sentences, worst first.

A finding has to pass two bars. The first is a fixed size of the error, below; good synthetic data stay under it. The second
is chance: the error must exceed 4.5 standard errors of sampling (KS: 2.5 sqrt(1/n + 1/m), exceeded by chance about seven times
in a million), so that few rows, or one half of the real rows against the other, raise none. Both are the same for every table.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from populace.evaluation.value_figures import CategoryCounts, ColumnFigures, ValueComparison
from populace.evaluation.value_text import figure_text, share_text, spread_text, value_text
from populace.evaluation.values import Sample, distinct
from populace.types import JsonObject, NumpyArray

KS = 0.15
SHARE = 0.10  # a spike, a category or missing values: percentage points off
LOST_FROM, LOST_TO = 0.05, 1 / 3  # or: from 5 % of the rows to less than a third of that
MEAN_IN_SD = 0.3
MEAN_RATIO = 2.0  # or: twice or half the real mean
SD_RATIO = 2.0
OUTSIDE = 0.01  # share of values below the least or above the largest real value
ENDS = 0.05  # the same the other way round: share of real values beyond the synthetic ones
GONE = 0.005  # share of the real rows whose category no synthetic row has
TOTAL_VARIATION = 0.25  # of a column of categories
CORRELATION = 0.2
ASSOCIATION = 0.3
PREDICTION_KEPT = 0.5  # of what real rows teach beyond a guess
STANDARD_ERRORS, KS_STANDARD_ERRORS = 4.5, 2.5
MOST_PAIRS, MOST_NAMED = 3, 4
WORST = 10.0

NONE = "no red flags"
#: What is looked at, for the documentation and the report.
RULES: tuple[str, ...] = (
    f"the KS distance of a numeric column is above {figure_text(KS)}",
    f"the share of a spike, of a category or of missing values is off by more than {share_text(SHARE)} of the rows, or falls "
    f"from {share_text(LOST_FROM)} or more to less than a third",
    f"a mean is off by more than {MEAN_IN_SD:g} real SDs, or is less than half or more than twice the real one",
    "an SD is less than half or more than twice the real one, and so many rows hold it that chance is ruled out: where a few "
    "far values make most of an SD, the smaller findings say it instead",
    f"more than {share_text(OUTSIDE)} of the values lie outside the real range, or more than {share_text(ENDS)} of the real "
    "values outside the range that is left",
    f"categories of more than {share_text(GONE)} of the real rows in all do not occur, each of them too frequent for chance",
    f"the total variation distance of a categorical column is above {figure_text(TOTAL_VARIATION)}",
    f"a Pearson or Spearman correlation is off by more than {figure_text(CORRELATION)}, Cramér’s V by more than "
    f"{figure_text(ASSOCIATION)}",
    "a model trained on synthetic rows keeps less than half of what a model learns from real rows beyond guessing",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flag:
    """One finding: the columns it is about, what sort it is, a sentence, and its size in units of its bar."""

    columns: tuple[str, ...]
    sort: str
    finding: str
    size: float

    @property
    def sentence(self) -> str:
        return f"{' and '.join(self.columns)}: {self.finding}"

    def to_json(self) -> JsonObject:
        return {
            "columns": list(self.columns),
            "sort": self.sort,
            "sentence": self.sentence,
            "size": round(self.size, 2),
        }


def red_flags(comparison: ValueComparison) -> list[Flag]:
    """All findings about columns and pairs of columns, the worst columns first."""
    found: list[Flag] = []
    for column in comparison.columns:
        found += _numbers(column)
    for counted in comparison.categories:
        found += _categories(counted, comparison.rows)
    return ordered(found) + _pairs(comparison)


def ordered(flags: Sequence[Flag]) -> list[Flag]:
    """Findings about one column together, the worst column first."""
    worst: dict[tuple[str, ...], float] = {}
    for flag in flags:
        worst[flag.columns] = max(worst.get(flag.columns, 0.0), flag.size)
    return sorted(flags, key=lambda flag: (-worst[flag.columns], flag.columns, -flag.size))


def flag_lines(flags: Sequence[JsonObject]) -> list[str]:
    """One line per column (from metrics.json): "capital-gain: 92 % had the value 0, now 0 %; the mean ..."."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for flag in flags:
        name = " and ".join(flag["columns"])
        lines.setdefault(tuple(flag["columns"]), []).append(str(flag["sentence"]).removeprefix(f"{name}: "))
    return [f"{' and '.join(columns)}: {'; '.join(findings)}" for columns, findings in lines.items()]


def _numbers(column: ColumnFigures) -> list[Flag]:
    real, synthetic = column.real, column.synthetic
    found = _missing(column.name, (real.missing, real.rows), (synthetic.missing, synthetic.rows))
    if column.gap is None:
        return found
    found += _spikes(column)
    bar = max(KS, KS_STANDARD_ERRORS * math.sqrt(1 / len(real.ordered) + 1 / len(synthetic.ordered)))
    if column.ks > bar:
        found.append(_flag(column, "ks", f"KS {figure_text(column.ks)}", column.ks / KS))
    return found + _mean(column) + _spread(column) + _outside(column) + _lost_ends(column)


def _flag(column: ColumnFigures, sort: str, finding: str, size: float) -> Flag:
    return Flag(columns=(column.name,), sort=sort, finding=finding, size=min(size, WORST))


def _share_error(first: tuple[float, int], second: tuple[float, int]) -> float:
    """The standard error of the difference of two shares under one share for both."""
    (a, n), (b, m) = first, second
    pooled = (a * n + b * m) / (n + m)
    return math.sqrt(max(pooled * (1 - pooled), 1e-12) * (1 / n + 1 / m))


def _share_size(first: tuple[float, int], second: tuple[float, int]) -> float:
    """How many times its bar the difference of two shares is; 0 where it does not pass both bars."""
    real, synthetic = first[0], second[0]
    gap = abs(real - synthetic)
    if gap <= STANDARD_ERRORS * _share_error(first, second):
        return 0.0
    lost = real >= LOST_FROM and synthetic < LOST_TO * real
    return max(gap / SHARE, 1.01) if lost or gap > SHARE else 0.0


def _missing(name: str, real: tuple[float, int], synthetic: tuple[float, int]) -> list[Flag]:
    size = _share_size(real, synthetic)
    if not size:
        return []
    said = f"{share_text(real[0])} missing became {share_text(synthetic[0])}"
    return [Flag(columns=(name,), sort="missing", finding=said, size=min(size, WORST))]


def _spikes(column: ColumnFigures) -> list[Flag]:
    """Single values that lost or gained rows: those of the real rows, and the largest new one of the synthetic rows."""
    found = []
    for value in dict.fromkeys((*column.spikes, *_new_spike(column))):
        shares = column.real.share(value), column.synthetic.share(value)
        size = _share_size((shares[0], column.real.rows), (shares[1], column.synthetic.rows))
        if not size:
            continue
        if value == 0 and column.kind in ("integer", "decimal"):
            said = f"{share_text(shares[0])} zeros became {share_text(shares[1])}"
        else:
            said = (
                f"{share_text(shares[0])} had the value {value_text(column.kind, value)}, now {share_text(shares[1])}"
            )
        found.append(_flag(column, "spike", said, size))
    return sorted(found, key=lambda flag: -flag.size)[:2]


def _new_spike(column: ColumnFigures) -> tuple[float, ...]:
    points, counts = distinct(column.synthetic.ordered)
    at = int(counts.argmax())
    return (float(points[at]),) if counts[at] >= SHARE * column.synthetic.rows else ()


def _mean(column: ColumnFigures) -> list[Flag]:
    real, synthetic = column.real, column.synthetic
    gap = abs(synthetic.mean - real.mean)
    error = math.sqrt(real.sd**2 / len(real.ordered) + synthetic.sd**2 / len(synthetic.ordered))
    if gap <= STANDARD_ERRORS * error or gap <= 1e-9 * max(abs(real.mean), abs(synthetic.mean)):
        return []
    sizes = [gap / (MEAN_IN_SD * real.sd) if real.sd else WORST]
    if column.kind in ("integer", "decimal") and real.mean * synthetic.mean > 0:
        sizes.append(abs(math.log(synthetic.mean / real.mean)) / math.log(MEAN_RATIO))
    elif column.kind in ("integer", "decimal") and synthetic.mean == 0:
        sizes.append(WORST)
    if max(sizes) <= 1:
        return []
    said = f"the mean {value_text(column.kind, real.mean)} became {value_text(column.kind, synthetic.mean)}"
    return [_flag(column, "mean", said, max(sizes))]


def _spread(column: ColumnFigures) -> list[Flag]:
    real, synthetic = column.real, column.synthetic
    if real.sd == 0 or len(real.ordered) < 2:
        return []
    if synthetic.sd == 0:
        rare = _share_size((1 - real.share(float(synthetic.ordered[0])), real.rows), (0.0, synthetic.rows))
        value = value_text(column.kind, float(synthetic.ordered[0]))
        return [_flag(column, "sd", f"every value is {value}", WORST)] if rare else []
    size = spread_size(column)
    return [_flag(column, "sd", spread_words(column), size)] if size > 1 and _variances_differ(real, synthetic) else []


def spread_size(column: ColumnFigures) -> float:
    """How far the SD is off in units of its bar, whatever chance may do; 0 where one of the two is constant."""
    real, synthetic = column.real.sd, column.synthetic.sd
    return abs(math.log(synthetic / real)) / math.log(SD_RATIO) if real > 0 and synthetic > 0 else 0.0


def spread_words(column: ColumnFigures) -> str:
    real, synthetic = (spread_text(column.kind, side.sd) for side in (column.real, column.synthetic))
    return f"the SD {real} became {synthetic}"


def _variances_differ(real: Sample, synthetic: Sample) -> bool:
    """Whether two variances differ beyond chance, which is large where a few values make most of them."""
    squares = [(column.ordered - column.mean) ** 2 for column in (real, synthetic)]
    error = math.sqrt(sum(float(part.var()) / len(part) for part in squares))
    return abs(float(squares[0].mean() - squares[1].mean())) > STANDARD_ERRORS * error


def outside(column: ColumnFigures) -> int:
    """How many synthetic values lie below the least or above the largest real one."""
    real, synthetic = column.real.ordered, column.synthetic.ordered
    inside = np.searchsorted(synthetic, real[-1], "right") - np.searchsorted(synthetic, real[0], "left")
    return len(synthetic) - int(inside)


def _outside(column: ColumnFigures) -> list[Flag]:
    real, synthetic = column.real.ordered, column.synthetic.ordered
    share = outside(column) / len(synthetic)
    if share <= OUTSIDE or share <= STANDARD_ERRORS * _share_error((0.0, len(real)), (share, len(synthetic))):
        return []
    low, high = (value_text(column.kind, float(value)) for value in (real[0], real[-1]))
    return [_flag(column, "range", f"{share_text(share)} lie outside the real range, {low} to {high}", share / OUTSIDE)]


def _lost_ends(column: ColumnFigures) -> list[Flag]:
    """Real values beyond the least and the largest synthetic one: the ends of a column that is cut off."""
    real, synthetic = column.real.ordered, column.synthetic.ordered
    inside = np.searchsorted(real, synthetic[-1], "right") - np.searchsorted(real, synthetic[0], "left")
    share = 1 - float(inside) / len(real)
    if share <= ENDS or share <= STANDARD_ERRORS * _share_error((share, len(real)), (0.0, len(synthetic))):
        return []
    low, high = (value_text(column.kind, float(value)) for value in (synthetic[0], synthetic[-1]))
    said = f"{share_text(share)} of the real values lie outside the range that is left, {low} to {high}"
    return [_flag(column, "ends", said, share / ENDS)]


def _categories(column: CategoryCounts, rows: tuple[int, int]) -> list[Flag]:
    counts = column.real, column.synthetic
    shares = [found / size for found, size in zip(counts, rows, strict=True)]
    found = _missing(column.name, (float(shares[0][0]), rows[0]), (float(shares[1][0]), rows[1]))
    sizes = [
        _share_size((float(a), rows[0]), (float(b), rows[1])) for a, b in zip(shares[0][1:], shares[1][1:], strict=True)
    ]
    for place in np.argsort(-np.array(sizes), kind="stable")[:2] if sizes else ():
        if sizes[place] > 0:
            before, after = (share_text(float(part[place + 1])) for part in shares)
            said = f"{before} had the value {column.labels[place]}, now {after}"
            found.append(Flag(columns=(column.name,), sort="category", finding=said, size=min(sizes[place], WORST)))
    distance = float(np.abs(shares[0] - shares[1]).sum() / 2)
    found += _gone(column, rows)
    if not found and distance > max(TOTAL_VARIATION, _chance_distance(counts, rows)):
        said = f"{share_text(distance)} of the rows have another value than they should"
        found.append(Flag(columns=(column.name,), sort="categories", finding=said, size=distance / TOTAL_VARIATION))
    return found


def _gone(column: CategoryCounts, rows: tuple[int, int]) -> list[Flag]:
    """Categories that no synthetic row has; a category counts where so many absent rows are beyond chance."""
    shares = [float(count) / rows[0] for count in column.real[1:]]
    gone = [
        place
        for place in absent(column)
        if shares[place] > STANDARD_ERRORS * _share_error((shares[place], rows[0]), (0.0, rows[1]))
    ]
    share = sum(shares[place] for place in gone)
    if share <= GONE:
        return []
    size = min(max(share / SHARE, 1.01), WORST)
    return [Flag(columns=(column.name,), sort="gone", finding=gone_words(column, gone, rows[0]), size=size)]


def absent(column: CategoryCounts) -> list[int]:
    """The places of labels that real rows have and no synthetic row has, the most frequent first."""
    gone = np.flatnonzero((column.real[1:] > 0) & (column.synthetic[1:] == 0))
    return [int(place) for place in sorted(gone, key=lambda place: -column.real[place + 1])]


def gone_words(column: CategoryCounts, gone: Sequence[int], rows: int) -> str:
    share = sum(int(column.real[place + 1]) for place in gone) / rows
    named = ", ".join(column.labels[place] for place in gone[:MOST_NAMED])
    more = f" and {len(gone) - MOST_NAMED:,} more" if len(gone) > MOST_NAMED else ""
    what, verb = ("value", "is") if len(gone) == 1 else ("values", "are")
    return (
        f"{len(gone):,} {what} that {share_text(share)} of the real rows have {verb} in no synthetic row: {named}{more}"
    )


def _chance_distance(counts: Sequence[NumpyArray], rows: tuple[int, int]) -> float:
    """The total variation distance that sampling alone may give a column of many categories."""
    shares = (counts[0] + counts[1]) / sum(rows)
    each = np.sqrt(2 / np.pi * shares * (1 - shares) * (1 / rows[0] + 1 / rows[1]))
    return float(each.sum() / 2) + STANDARD_ERRORS / 2 * math.sqrt(1 / rows[0] + 1 / rows[1])


def _pairs(comparison: ValueComparison) -> list[Flag]:
    """The correlations with the largest errors, then dependences that correlations do not show."""
    rows = [table.rows for table in comparison.some]
    chance = STANDARD_ERRORS * math.sqrt(1 / rows[0] + 1 / rows[1])
    found: dict[tuple[str, str], Flag] = {}
    for what, said, bar in (
        ("spearman", "rank correlation", CORRELATION), ("pearson", "correlation", CORRELATION),
        ("association", "Cramér’s V", ASSOCIATION),
    ):  # fmt: skip
        real, synthetic = (getattr(side, what) for side in (comparison.real_dependence, comparison.dependence))
        names = comparison.dependence.columns if what == "association" else comparison.dependence.numbers
        gaps = np.triu(np.nan_to_num(np.abs(synthetic - real)), 1)
        for i, j in np.argwhere(gaps > max(bar, chance)):
            pair = (names[i], names[j])
            if what == "association" and gaps[i, j] <= chance + _chance_association(comparison, int(i), int(j)):
                continue
            if what == "pearson" and gaps[i, j] <= STANDARD_ERRORS * _pearson_error(comparison, int(i), int(j)):
                continue
            if what == "association" and pair in found:
                continue
            finding = f"{said} {figure_text(real[i, j])} became {figure_text(synthetic[i, j])}"
            size = min(float(gaps[i, j]) / bar, WORST)
            if pair not in found or size > found[pair].size:
                found[pair] = Flag(columns=pair, sort="pair", finding=finding, size=size)
    worst = sorted(found.values(), key=lambda flag: -flag.size)
    kept = worst[:MOST_PAIRS]
    if len(worst) > MOST_PAIRS:
        rest = len(worst) - MOST_PAIRS
        more = f"{kept[-1].finding}; {rest} more pair{'s' if rest > 1 else ''} of columns off"
        kept[-1] = dataclasses.replace(kept[-1], finding=more)
    return kept


def _chance_association(comparison: ValueComparison, i: int, j: int) -> float:
    """Cramer's V of independent columns, from so few rows: the root of levels over rows."""
    levels = max(comparison.dependence.sizes[i], comparison.dependence.sizes[j])
    return math.sqrt(levels / min(table.rows for table in comparison.some))


def _pearson_error(comparison: ValueComparison, i: int, j: int) -> float:
    """The standard error of the difference of two correlations, from each row's influence: large under heavy tails."""
    variance = 0.0
    for table, side in zip(comparison.some, (comparison.real_dependence, comparison.dependence), strict=True):
        x, y = table.numbers[i].values, table.numbers[j].values
        both = ~np.isnan(x) & ~np.isnan(y)
        a, b = ((v[both] - v[both].mean()) / (v[both].std() or 1.0) for v in (x, y))
        influence = a * b - side.pearson[i, j] * (a**2 + b**2) / 2
        variance += float(np.nanvar(influence)) / max(1, int(both.sum()))
    return math.sqrt(variance)


def prediction_flag(
    target: str, model: str, what: str, own: Mapping[str, float], real: Mapping[str, float], guess: float
) -> list[Flag]:
    """The best model learned from synthetic rows less than half of what it learns from real ones, beyond chance."""
    if "value" not in own or "value" not in real or real["value"] - guess < 0.1:
        return []
    kept = (own["value"] - guess) / (real["value"] - guess)
    if kept >= PREDICTION_KEPT or own.get("high", own["value"]) >= real.get("low", real["value"]):
        return []
    said = (
        f"predicted with {what} {figure_text(own['value'])} ({model}), from real rows {figure_text(real['value'])}; "
        f"a guess has {figure_text(guess)}"
    )
    return [
        Flag(columns=(target,), sort="prediction", finding=said, size=min(WORST, (1 - kept) / (1 - PREDICTION_KEPT)))
    ]
