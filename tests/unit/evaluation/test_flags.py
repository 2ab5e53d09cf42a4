"""Red flags: none on real rows or good synthetic ones, one for each way a column can break, and those of a run that broke."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from populace.evaluation.flags import flag_lines, prediction_flag, red_flags
from populace.evaluation.value_figures import RealValues, compare_two
from populace.evaluation.value_scores import value_scores, worst_column
from populace.evaluation.values import Categories, Numbers, ValueTable, value_tables
from populace.tables.embedded import harbour
from populace.tables.schema import Column, Schema
from populace.tables.table import make_table

ADULT = Path(__file__).parent / "adult" / "adult_rows.parquet"


@pytest.fixture(scope="module")
def adult():
    frame = pq.read_table(ADULT)
    frame = frame.set_column(0, "rows", frame.column("rows").cast(pa.string()))
    scale = {"age": (17, 91), "capital-gain": (0, 100_000), "capital-loss": (0, 5_000), "hours-per-week": (1, 100)}
    columns = [Column(name=name, kind="integer", edges=edges) for name, edges in scale.items()]
    columns += [
        Column(name="sex", kind="categorical", categories=("Female", "Male")),
        Column(name="income", kind="categorical", categories=("<=50K", ">50K")),
    ]
    schema = Schema(columns=tuple(columns), target="income")
    return {
        name: make_table(frame.filter(pc.equal(frame.column("rows"), name)), schema)
        for name in ("real", "other real", "broken")
    }


def test_the_run_that_was_called_perfect_raises_flags(adult):
    found = red_flags(compare_two(adult["broken"], adult["real"]))
    lines = flag_lines([flag.to_json() for flag in found])
    assert {line.split(":")[0] for line in lines} >= {"capital-gain", "capital-loss", "hours-per-week"}
    assert not any(line.startswith(("age:", "sex:", "income:")) for line in lines)
    said = "\n".join(lines)
    assert "91 % zeros became 0 %" in said
    assert "47 % had the value 40, now 9.2 %" in said
    assert "the mean 108 became 2,262" in said
    assert found[0].size == max(flag.size for flag in found)


def test_other_real_rows_raise_none(adult):
    assert red_flags(compare_two(adult["other real"], adult["real"])) == []
    judged = value_scores(adult["other real"], adult["real"], adult["broken"], "income")
    broken = value_scores(adult["broken"], adult["real"], adult["other real"], "income")
    assert judged["red_flags"] == 0 < broken["red_flags"]
    assert judged["worst_ks"] < 0.08
    assert worst_column(broken) == "capital-loss"
    assert broken["worst_ks"] == broken["ks: capital-loss"] > 0.9
    assert broken["zero_share_error"] == pytest.approx(0.94, abs=0.02)
    assert broken["mean_ratio: capital-loss"] > 10
    assert (
        0.5
        < broken["boosting_auc"]
        < value_scores(adult["real"], adult["real"], adult["other real"], "income")["boosting_auc"]
    )


@pytest.mark.parametrize("rows", [40, 150, 600, 1500])
def test_halves_of_real_rows_raise_none(adult, rows):
    rng = np.random.default_rng(0)
    both = pa.concat_tables([adult[name].frame for name in ("real", "other real")])
    for table in (make_table(both, adult["real"].schema), harbour()):
        (values,) = value_tables([table])
        for _ in range(20):
            chosen = rng.permutation(len(table))[:rows]
            first = np.arange(len(chosen)) % 2 == 0
            found = red_flags(RealValues(values.take(chosen), first).compare_halves())
            assert [flag.sentence for flag in found] == []


def draw(seed, rows=2000):
    """Eight columns of every sort, some of which depend on each other."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=rows)
    codes = rng.choice(4, rows, p=(0.5, 0.3, 0.14, 0.06))
    return {
        "amount": np.where(rng.random(rows) < 0.6, 0.0, np.exp(rng.normal(3, 1, rows))),
        "visit": 18_000.0 + rng.integers(0, 700, rows),
        "size": 170 + 10 * x,
        "weight": 70 + 8 * x + 8 * rng.normal(size=rows),
        "gaps": np.where(rng.random(rows) < 0.2, np.nan, rng.normal(size=rows)),
        "heavy": rng.standard_t(1, rows) * 10,
    }, {
        "group": codes, "follows": np.where(rng.random(rows) < 0.8, codes, rng.integers(0, 4, rows)),
        "rare": rng.choice(4, rows, p=(0.5, 0.46, 0.02, 0.02)),
    }  # fmt: skip


def table(drawn, **changes):
    numbers, groups = drawn
    numbers, groups = dict(numbers), dict(groups)
    for name, change in changes.items():
        part = numbers if name in numbers else groups
        part[name] = change(part[name])
    kinds = {"visit": "date"}
    return ValueTable(
        rows=len(numbers["size"]),
        numbers=tuple(Numbers(name=k, kind=kinds.get(k, "decimal"), values=v) for k, v in numbers.items()),
        categories=tuple(
            Categories(name=k, kind="categorical", labels=("a", "b", "c", "d"), codes=v) for k, v in groups.items()
        ),
    )


def flags_of(**changes):
    real, other = draw(0), draw(1)
    first = np.arange(2000) % 2 == 0
    return red_flags(RealValues(table(real), first).compare(table(other, **changes)))


def permuted(values):
    return np.random.default_rng(2).permutation(values)


def test_another_draw_of_the_same_raises_none():
    assert flags_of() == []


BREAKS = {
    "zeros lost": ("amount", lambda v: np.where(v == 0, 0.5, v), "59 % zeros became 0 %"),
    "zeros halved": ("amount", lambda v: np.where((v == 0) & (np.arange(len(v)) % 2 == 0), 3.3, v), "zeros became"),
    "mean": ("weight", lambda v: v + 5, "the mean 69.9 became 74.6"),
    "mean twice": ("amount", lambda v: v * 2.5, "the mean"),
    "spread lost": ("size", lambda v: 170 + (v - 170) * 0.4, "the SD"),
    "spread": ("size", lambda v: 170 + (v - 170) * 2.5, "the SD"),
    "one value": ("visit", lambda v: np.full(len(v), 18_300.0), "every value is 2020-02-08"),
    "range": ("visit", lambda v: v + 300, "outside the real range, 2019-04-14 to 2021-03-13"),
    "ends lost": ("visit", lambda v: np.where(v < np.quantile(v, 0.1), np.median(v) + np.arange(len(v)) % 50, v),
                  "10 % of the real values lie outside the range that is left"),
    "shape": ("visit", lambda v: np.where(v < 18_350, 18_000, 18_700), "KS"),
    "new spike": ("weight", lambda v: np.where(np.arange(len(v)) % 5 == 0, 70.0, v), "had the value 70, now 20 %"),
    "missing lost": ("gaps", lambda v: np.nan_to_num(v), "missing became 0 %"),
    "missing made": ("size", lambda v: np.where(np.arange(len(v)) % 4 == 0, np.nan, v), "0 % missing became 25 %"),
    "all missing": ("size", lambda v: np.full(len(v), np.nan), "0 % missing became 100 %"),
    "category lost": ("group", lambda v: np.where(v == 3, 0, v), "had the value d, now 0 %"),
    "rare category lost": ("rare", lambda v: np.where(v >= 2, 0, v), "% of the real rows have are in no synthetic row: "),
    "a few outside": ("visit", lambda v: np.where(np.arange(len(v)) % 40 == 0, 20_000.0, v), "2.5 % lie outside"),
    "category off": ("group", lambda v: np.where((v == 0) & (np.arange(len(v)) % 2 == 0), 1, v), "had the value a, now"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_every_break_raises_a_flag_for_its_column_and_no_other(name):
    column, change, words = BREAKS[name]
    found = flags_of(**{column: change})
    assert any(flag.columns == (column,) and words in flag.finding for flag in found), [f.sentence for f in found]
    assert all(column in flag.columns for flag in found)


def test_lost_dependence_raises_flags_for_pairs_only():
    (correlation,) = flags_of(weight=permuted)
    assert correlation.columns == ("size", "weight")
    assert "correlation .7" in correlation.finding
    (association,) = flags_of(follows=permuted)
    assert association.columns == ("group", "follows")
    assert association.finding.startswith("Cramér’s V .77 became .0")


def test_many_pairs_are_named_by_the_worst():
    rng = np.random.default_rng(3)
    x = rng.normal(size=1000)
    columns = {f"c{i}": x + 0.3 * rng.normal(size=1000) for i in range(6)}
    real, mixed = (
        ValueTable(
            rows=1000, categories=(),
            numbers=tuple(Numbers(name=k, kind="decimal", values=change(v)) for k, v in columns.items()),
        )
        for change in (lambda v: v, lambda v: np.random.default_rng(int(v[0] * 1e6) % 97).permutation(v))
    )  # fmt: skip
    found = red_flags(RealValues(real, np.arange(1000) % 2 == 0).compare(mixed))
    assert len(found) == 3
    assert "more pair" in found[-1].finding


def test_a_model_that_learned_nothing_is_flagged_and_a_good_one_is_not():
    real = {"value": 0.9, "low": 0.88, "high": 0.92}
    assert prediction_flag("y", "m", "AUC", {"value": 0.85, "low": 0.83, "high": 0.87}, real, 0.5) == []
    (flag,) = prediction_flag("y", "m", "AUC", {"value": 0.55, "low": 0.5, "high": 0.6}, real, 0.5)
    assert flag.sentence == "y: predicted with AUC .55 (m), from real rows .90; a guess has .50"
    assert prediction_flag("y", "m", "AUC", {"value": 0.5}, {"value": 0.55}, 0.5) == []
    assert prediction_flag("y", "m", "AUC", {"left_out": "x"}, real, 0.5) == []
