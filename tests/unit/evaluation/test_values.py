"""Figures on values against scipy and pandas, with ties, gaps and spikes."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from populace.evaluation import dependence
from populace.evaluation.histograms import histogram
from populace.evaluation.value_figures import RealValues, compare_columns
from populace.evaluation.value_text import figure_text, number_text, share_text, spread_text, value_text
from populace.evaluation.values import (
    Categories,
    Numbers,
    ValueTable,
    gap_between,
    halved,
    sample,
    snapped,
    spikes,
)


def numbers(**columns):
    found = tuple(Numbers(name=k, kind="decimal", values=np.asarray(v, float)) for k, v in columns.items())
    return ValueTable(rows=len(found[0].values), numbers=found, categories=())


def draws(seed, rows=700, shift=0.0):
    """A column with a spike at 0, ties, and a long tail."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(rows) < 0.4, 0, np.round(np.exp(rng.normal(1 + shift, 1.5, rows)), 1))


@pytest.mark.parametrize("shift", [0.0, 0.3, 4.0])
def test_ks_and_wasserstein_are_scipys(shift):
    a, b = draws(0), draws(1, rows=450, shift=shift)
    gap = gap_between(np.sort(a), np.sort(b))
    assert gap.ks == pytest.approx(stats.ks_2samp(a, b).statistic)
    assert gap.wasserstein == pytest.approx(stats.wasserstein_distance(a, b))


def test_the_gap_of_equal_columns_is_none_and_of_disjoint_ones_all():
    a = np.sort(draws(0))
    assert gap_between(a, a).ks == pytest.approx(0, abs=1e-12)
    assert gap_between(a, a + 1e6).ks == pytest.approx(1)
    assert gap_between(a, a + 7).wasserstein == pytest.approx(7)


def test_missing_values_are_a_share_and_no_part_of_a_distance():
    values = np.array([1.0, 2.0, np.nan, 4.0, np.nan])
    found = sample(values)
    assert found.missing == pytest.approx(0.4)
    assert found.mean == pytest.approx(7 / 3)
    assert found.quantiles() == pytest.approx(list(np.quantile([1, 2, 4], (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99))))
    nothing = compare_columns("x", "decimal", found, sample(np.full(3, np.nan)), ())
    assert nothing.ks == 1
    assert nothing.to_json()["wasserstein"] is None


def test_halves_are_the_sorted_halves():
    values = draws(2)
    values[::7] = np.nan
    first = np.random.default_rng(0).random(len(values)) < 0.5
    whole, one, two = halved(values, first)
    for found, rows in ((whole, slice(None)), (one, first), (two, ~first)):
        expected = sample(values[rows])
        np.testing.assert_array_equal(found.ordered, expected.ordered)
        assert found.rows == expected.rows


def test_spikes_are_values_that_many_rows_have():
    values = np.concatenate([np.zeros(15), np.full(40, 99_999.0), np.arange(1, 946.0)])
    assert spikes(sample(values)) == (0.0, 99_999.0)
    assert spikes(sample(values[15:])) == (99_999.0,)
    assert spikes(sample(np.arange(20.0))) == ()  # each is 5 % of the rows, and one row
    even = np.repeat(np.arange(1, 21.0), 50)  # each has 5 % of the rows, and none stands out
    assert spikes(sample(even)) == ()
    assert spikes(sample(np.concatenate([even, np.full(60, 7.0)]))) == (7.0,)
    assert spikes(sample(np.repeat([1.0, 2.0, 5.0], [50, 60, 10]))) == (1.0, 2.0, 5.0)


def test_a_decimal_computed_in_two_ways_is_one_value():
    a, b = snapped(np.array([0.1 + 0.2, -1e9 / 3, 0.0, np.nan])), snapped(np.array([0.3, -(1e9 / 3), 0.0, np.nan]))
    np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(a[:3], [0.3, -1e9 / 3, 0], rtol=1e-10)


def test_correlations_are_those_of_pandas_with_gaps():
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"a": rng.normal(size=300)})
    frame["b"] = np.round(frame.a + rng.normal(size=300))
    frame["c"] = np.exp(frame.b * 2)
    frame["d"] = 5.0
    frame.loc[rng.random(300) < 0.2, "b"] = np.nan
    frame.loc[rng.random(300) < 0.3, "c"] = np.nan
    columns = [frame[name].to_numpy() for name in frame]
    for found, method in ((dependence.pearson(columns), "pearson"), (dependence.spearman(columns), "spearman")):
        np.testing.assert_allclose(found[:3, :3], frame.corr(method).to_numpy()[:3, :3], atol=1e-10)
        assert np.isnan(found[3, 0])


def test_correlation_of_dates_is_not_lost_to_their_size():
    days = np.random.default_rng(4).integers(0, 365, 500).astype(float)
    assert dependence.pearson([days + 1.7e9, days])[0, 1] == pytest.approx(1.0)


def test_means_by_category():
    frame = pd.DataFrame({"g": np.repeat([0, 1, 2], [100, 50, 5]), "x": np.arange(155.0)})
    other = frame.assign(x=frame.x + np.where(frame.g == 1, 31, 0))
    tables = [
        ValueTable(
            rows=155, numbers=(Numbers(name="x", kind="decimal", values=part.x.to_numpy()),),
            categories=(Categories(name="g", kind="categorical", labels=("p", "q", "r"), codes=part.g.to_numpy()),),
        )
        for part in (frame, other)
    ]  # fmt: skip
    (found,) = dependence.group_gaps(*tables)
    assert found.gap == pytest.approx(31 * 50 / 150 / frame.x.std(ddof=0))
    assert (found.worst, found.left_out) == ("q", 1)
    assert found.real == pytest.approx(frame.x[frame.g == 1].mean())


def test_cramers_v_on_a_grid_of_its_own_sees_what_cells_would_hide():
    rng = np.random.default_rng(5)
    x = rng.random(2000)
    real, mixed = numbers(x=x, y=x**3), numbers(x=x, y=rng.permutation(x) ** 3)
    grid = dependence.grid_of(real)
    assert grid.association(real)[0, 1] > 0.99
    assert grid.association(mixed)[0, 1] < 0.1
    assert grid.sizes == (8, 8)


def test_intervals_have_the_width_of_repeated_draws():
    def draw(rng, shift):
        x = rng.normal(size=800)
        return numbers(x=x + shift, y=0.5 * x + rng.normal(size=800) * (1 + shift))

    rng = np.random.default_rng(6)
    first = np.arange(800) % 2 == 0
    found = [RealValues(draw(rng, 0.0), first).compare(draw(rng, 0.5)).estimates() for _ in range(80)]
    for key in ("ks", "ks_worst", "wasserstein", "pearson_error"):
        spread = np.std([one[key].value for one in found], ddof=1)
        stated = np.mean([(one[key].high - one[key].low) / 3.92 for one in found])
        assert 0.7 < stated / spread < 1.4, key


def test_a_million_rows_are_compared_on_all_of_them_and_pairs_on_some():
    rng = np.random.default_rng(7)
    table = numbers(a=rng.normal(size=120_000), b=rng.normal(size=120_000))
    found = RealValues(table, rng.random(120_000) < 0.5).compare(table)
    assert found.columns[0].real.rows == 120_000
    assert found.to_json()["rows_of_pairs"] == [50_000, 50_000]


def shape(values, kind="decimal", other=None):
    real = sample(np.asarray(values, float))
    return histogram(compare_columns("x", kind, real, real if other is None else sample(other), spikes(real)))


def test_histograms_count_every_row_once():
    values = draws(8, rows=3000)
    values[:100] = np.nan
    found = shape(values, other=draws(9) * 50 - 3)
    for side in (0, 1):
        rest = (
            found.below[side] + found.above[side] + found.missing[side] + sum(spike[1 + side] for spike in found.spikes)
        )
        assert found.shares[side].sum() + rest == pytest.approx(1)
    assert found.spikes[0][0] == 0


def test_steps_follow_the_shape_of_the_real_values():
    rng = np.random.default_rng(10)
    assert shape(rng.normal(size=900)).steps == "even"
    assert shape(np.exp(rng.normal(0, 3, 900))).steps == "logarithmic"
    assert shape(rng.standard_t(1, 900) * 100).steps == "bent"
    few = shape(rng.integers(17, 60, 900), "integer")
    np.testing.assert_array_equal(few.edges, np.arange(15.5, 60, 2))
    hours = shape(rng.integers(0, 1440, 900) * 60, "time")
    np.testing.assert_array_equal(hours.edges, np.arange(25) * 3_600)
    assert len(shape(np.repeat([1.0, 2.0], 500)).edges) == 0


def test_values_in_words():
    assert value_text("date", 19_783.2) == "2024-03-01"
    assert value_text("datetime", 19_783 * 86_400 + 3_600) == "2024-03-01 01:00"
    assert value_text("time", 7 * 3_600 + 45 * 60) == "07:45"
    assert value_text("integer", 1082.4) == "1,082"
    assert value_text("decimal", 0.12345) == "0.123"
    assert value_text("date", 1e12) == "1e+12"
    assert spread_text("datetime", 3 * 86_400) == "3 days"
    assert number_text(-2.5) == "-2.5"
    assert [share_text(s) for s in (0.924, 0.034, 0, 0.0001)] == ["92 %", "3.4 %", "0 %", "below 0.1 %"]
    assert [figure_text(v) for v in (0.384, 1, 0, -0.05)] == [".38", "1.00", "0", "−.05"]
