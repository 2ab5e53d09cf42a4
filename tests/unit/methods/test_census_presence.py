"""Empty parts of a domain hold nobody: found from noisy counts, without losing what is there."""

import numpy as np
import pytest

from census_cases import estimates
from populace.methods.census.cells import grouped, present_cells
from populace.methods.census.fit import Observed
from populace.methods.census.scales import sum_noise, supported
from populace.methods.census.tables import PairTables
from populace.tables.schema import Column, Schema
from populace.tables.universal import opened

NUMBERS = opened(
    Schema(columns=(Column(name="a", kind="integer", edges=(0.0, 9.0), domain="read-from-data"),))
).columns[0]
NOISE = 30.0


def noisy(values, seed):
    counts = np.bincount(NUMBERS.scale.codes(np.asarray(values, np.float64)), minlength=NUMBERS.size)
    return counts, estimates(NUMBERS, counts, NOISE, np.random.default_rng(seed))


@pytest.mark.parametrize("seed", range(5))
def test_a_scale_is_used_where_values_are_and_nearby(seed):
    values = np.random.default_rng(seed).lognormal(8, 0.6, 20_000).round()
    counts, measured = noisy(values, seed)
    there = supported(measured[:-1], sum_noise(NUMBERS.levels, NOISE))
    assert counts[:-1][there].sum() > 0.98 * counts.sum()
    assert there.sum() < 3 * (counts > 0).sum()
    assert NUMBERS.centres()[there].max() < 50 * values.max()
    everywhere = measured[:-1] > 0  # what thresholding at zero would leave
    assert NUMBERS.centres()[everywhere].max() > 1_000 * values.max()


@pytest.mark.parametrize("seed", range(5))
def test_cells_of_a_universal_grid_follow_the_values(seed):
    rng = np.random.default_rng(seed)
    values = np.where(rng.random(20_000) < 0.6, 0, rng.lognormal(6, 1, 20_000)).round()
    counts, measured = noisy(values, seed)
    found = grouped(NUMBERS, measured, NOISE)
    cells, shares = found.cell, found.share
    masses = np.bincount(cells, counts, minlength=cells.max() + 1) / len(values)
    made = masses[cells] * shares
    assert np.abs(np.cumsum(made) - np.cumsum(counts / len(values))).max() < 0.03
    assert made[NUMBERS.scale.codes(np.array([0.0]))[0]] == pytest.approx((values == 0).mean(), abs=0.005)


def observed(tables, joint, deviation):
    """Tables of pairs alone: no column was counted by itself."""
    shape = (tables.outcomes, tables.positions)
    deviations = np.full(tables.entries, deviation)
    return Observed(joint, deviations, np.zeros(shape), np.full(tables.positions, np.inf))


def test_cells_below_noise_hold_nobody_and_others_do():
    tables = PairTables((3, 2, 2), target=2)
    joint = np.zeros((2, tables.entries))
    joint[:, [0, 1, 2, 3]] = 0.125  # the third cell of the first column is empty
    clear = observed(tables, joint, 1e-3)
    assert [part.tolist() for part in present_cells(tables, clear)] == [[True, True, False], [True, True], [True, True]]
    lost = observed(tables, joint, 10.0)
    assert [int(part.sum()) for part in present_cells(tables, lost)] == [1, 1, 1]
