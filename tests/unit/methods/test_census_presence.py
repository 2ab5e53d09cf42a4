"""Empty parts of a domain hold nobody: found from noisy counts, without losing what is there."""

import dataclasses

import jax
import numpy as np
import pytest

from census_cases import estimates
from populace.methods.base import Population
from populace.methods.census.cells import grouped, present_cells
from populace.methods.census.fit import Observed
from populace.methods.census.protocol import Census
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


SHAPES = [PairTables((3, 2, 4, 2), target=3), PairTables((3, 2, 4, 2)), PairTables((5, 2), target=1), PairTables((6,))]


def some_observed(tables, seed, *, left_out=0.0, alone=0.0):
    """Shares and noise at random; some pairs were not counted, and some columns were counted by themselves."""
    rng = np.random.default_rng(seed)
    deviations = np.where(rng.random(len(tables.pairs)) < left_out, np.inf, rng.uniform(0.5, 2.0, len(tables.pairs)))
    single = {column: rng.uniform(0.5, 2.0) if rng.random() < alone else np.inf for column in tables.columns}
    joint = rng.random((tables.outcomes, tables.entries))
    own = rng.random((tables.outcomes, tables.positions))
    widths = [tables.sizes[column] for column in tables.columns]
    return Observed(joint, deviations[tables.pair_of_entry], own, np.repeat([*single.values()], widths))


def one_way_slowly(tables, observed, column):
    """Every way to see a column, as its table and the variance of its cells: by loops over the cells, and then averaged."""
    (first, second), seen = tables.cells, []
    for number, pair in enumerate(tables.pairs):
        table, variance = np.zeros(tables.sizes[column]), np.zeros(tables.sizes[column])
        for outcome in range(tables.outcomes):
            for entry in np.flatnonzero(tables.pair_of_entry == number):
                at = {pair[0]: first[entry] - tables.offsets[pair[0]], pair[1]: second[entry] - tables.offsets[pair[1]]}
                if pair[0] == pair[1] and first[entry] != second[entry]:
                    if column == tables.target:  # nobody is off the diagonal, but noise is
                        table[outcome] += observed.shares[outcome, entry]
                        variance[outcome] += observed.deviations[entry] ** 2
                    continue
                if tables.target is not None:
                    at[tables.target] = outcome
                if column in at:
                    table[at[column]] += observed.shares[outcome, entry]
                    variance[at[column]] += observed.deviations[entry] ** 2
        if variance.all() and np.isfinite(variance).all():
            seen.append((table, variance[0]))
    if column in tables.offsets:
        where = slice(tables.offsets[column], tables.offsets[column] + tables.sizes[column])
        variance = tables.outcomes * observed.single_deviations[where][0] ** 2
        if np.isfinite(variance):
            seen.append((observed.single_shares[:, where].sum(axis=0), variance))
    if not seen:
        return np.full(tables.sizes[column], 1 / tables.sizes[column]), np.inf
    precision = sum(1 / variance for _, variance in seen)
    return sum(table / variance for table, variance in seen) / precision, precision**-0.5


@pytest.mark.parametrize("tables", SHAPES, ids=lambda tables: f"{tables.sizes}-{tables.target}")
@pytest.mark.parametrize(("left_out", "alone"), [(0.0, 0.0), (0.5, 0.0), (0.5, 0.5), (1.0, 1.0), (1.0, 0.0)])
def test_one_way_tables_are_means_of_all_that_shows_them_by_their_precision(tables, left_out, alone):
    for seed in range(4):
        seen = some_observed(tables, seed, left_out=left_out, alone=alone)
        found = seen.one_way(tables)
        assert len(found) == len(tables.sizes)
        for column, (table, deviation) in enumerate(found):
            wanted, spread = one_way_slowly(tables, seen, column)
            np.testing.assert_allclose(table, wanted, rtol=1e-9, err_msg=str(column))
            assert deviation == pytest.approx(spread, rel=1e-9)


def test_tables_that_were_not_counted_say_nothing_about_presence():
    """Their zeros are no evidence that nobody is there; of a column that nothing shows, one cell stays."""
    tables = PairTables((3, 2, 2, 2), target=3)
    joint, deviations = np.zeros((2, tables.entries)), np.full(tables.entries, np.inf)
    counted = tables.pair_of_entry == 0  # the first column with the second; the third is in no table that is counted
    joint[:, np.flatnonzero(counted)[:4]], deviations[counted] = 0.125, 1e-3
    bare = np.zeros((2, tables.positions)), np.full(tables.positions, np.inf)
    found = present_cells(tables, Observed(joint, deviations, *bare))
    assert [part.tolist() for part in found] == [[True, True, False], [True, True], [True, False], [True, True]]
    shares, noise = np.zeros((2, tables.positions)), np.full(tables.positions, np.inf)
    shares[:, -2:], noise[-2:] = 0.25, 1e-2  # the third by itself
    found = present_cells(tables, Observed(joint, deviations, shares, noise))
    assert [part.tolist() for part in found] == [[True, True, False], [True, True], [True, True], [True, True]]


def test_a_cell_without_codes_is_never_the_one_that_stays():
    """Noise is largest where no code is: the largest cell that has codes stays instead, and is there if it is clear."""
    tables = PairTables((4, 2))
    joint = np.repeat([0.01, 0.02, 0.0, 0.4], 2)[None]
    grouping = grouped(NUMBERS, np.zeros(NUMBERS.size), 1.0)
    groupings = [
        dataclasses.replace(grouping, cell=np.array([0, 0, 1, 2])), dataclasses.replace(grouping, cell=np.array([0, 1])),
    ]  # fmt: skip
    lost, clear = observed(tables, joint, 10.0), observed(tables, joint, 1e-3)
    assert present_cells(tables, lost)[0].tolist() == [False, False, False, True]
    assert present_cells(tables, lost, groupings)[0].tolist() == [False, True, False, False]
    assert present_cells(tables, clear, groupings)[0].tolist() == [True, True, False, False]


def test_counts_that_made_the_cells_do_not_say_who_is_there():
    """Of many codes that nobody has, noise lifts some into cells of their own; pairs, whose noise is new, decide alone."""
    tables = PairTables((3, 2))
    joint = np.repeat([0.5, 0.0, 0.02], 2)[None] / 2
    lifted = {0: (np.array([0.5, 0.05, 0.02]), np.full(3, 0.01))}
    seen = dataclasses.replace(observed(tables, joint, 0.005), cell_shares=lifted)
    assert present_cells(tables, seen)[0].tolist() == [True, False, True]
    alone = dataclasses.replace(seen, deviations=np.full(tables.entries, np.inf), shares=np.zeros_like(joint))
    assert present_cells(tables, alone)[0].tolist() == [True, True, False]  # no pair shows the column


@pytest.mark.parametrize("trust", ["central", "silo"])
def test_noise_alone_on_a_universal_grid_leaves_a_model(trust):
    """Whatever noise says, also that there are fewer records than none: every column has a law."""
    short = (Column(name=name, kind="categorical", categories=("no", "yes")) for name in "bc")
    schema = Schema(columns=(NUMBERS, *short), target="c")
    protocol = Census(epsilon=0.1, delta=1e-6, trust=trust, components=2, members=2, fit_steps=2)
    learner = protocol.parts(Population(schema=schema, clients=2, records=20)).learner
    empty, below = learner.begin(None), 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        one_way, pairs = (
            np.rint(rng.normal(0, learner.release.deviation(stage, 2), sums.shape)).astype(np.int64)
            for stage, sums in enumerate((empty.one_way, empty.pairs))
        )
        state = dataclasses.replace(empty, one_way=one_way, pairs=pairs, messages=np.array([2, 2], np.int32))
        below += learner.first.read(one_way)[0][0].sum() < 0
        model = learner.finish(state, jax.random.key(seed))
        for column in range(3):
            assert model.marginal((column,)).sum() == pytest.approx(1, rel=1e-3)
    assert 2 <= below <= 8
