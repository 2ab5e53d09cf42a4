"""Cells: what long columns are seen in, from noisy counts of their codes alone."""

import numpy as np
import pytest

from census_cases import estimates, noisy_parts
from populace.methods.census.cells import (
    LEAST_CELLS,
    LIST_CELLS,
    MOST_POSITIONS,
    SCALE_CELLS,
    SPIKE_SHARE,
    Coarse,
    cells_of,
    grouped,
)
from populace.methods.census.scales import SHORT_GAP, consistent, denoised, sum_noise
from populace.tables.schema import Column, Schema


def cut(column, counts, deviation):
    """The cell of each code, and its share of that cell."""
    found = grouped(column, counts, deviation)
    return found.cell, found.share


def scale(codes, *, nullable=False, name="amount"):
    return Column(name=name, kind="integer", edges=tuple(float(edge) for edge in range(codes + 1)), nullable=nullable)


def listed(codes, *, nullable=False, name="code"):
    return Column(
        name=name, kind="categorical", categories=tuple(f"c{number:04}" for number in range(codes)), nullable=nullable
    )


COLUMNS = [
    scale(500), scale(500, nullable=True), scale(SCALE_CELLS + 1), scale(1_000),
    listed(700), listed(700, nullable=True), listed(LIST_CELLS + 1), listed(LIST_CELLS + 2, nullable=True),
]  # fmt: skip


def laws(codes, rng):
    """Counts of codes of many forms: even, rare, empty, one value alone, a spike at each end, a heavy tail, noise alone."""
    yield "even", np.full(codes, 20.0)
    yield "empty", np.zeros(codes)
    yield "below zero", rng.normal(-5, 3, codes)
    yield "one value", np.eye(codes)[codes // 3] * 9_000
    yield "both ends", 4_000 * (np.eye(codes)[0] + np.eye(codes)[-1])
    yield "many spikes", 300.0 * (np.arange(codes) % 3 == 0)
    yield "a tail", 1e5 / (1 + np.arange(codes)) ** 1.5
    yield "an empty tail", np.where(np.arange(codes) < codes // 10, 400.0, 0.0)
    yield "noise", rng.normal(0, 50, codes)


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: f"{column.kind}-{column.size}")
@pytest.mark.parametrize("deviation", [0.0, 1.0, 60.0])
def test_every_code_has_a_cell_and_shares_of_a_cell_are_a_distribution(column, deviation):
    rng = np.random.default_rng(0)
    for name, counts in laws(column.size, rng):
        noisy = estimates(column, counts, deviation, rng)
        cells, shares = cut(column, noisy, deviation)
        wanted = cells_of(column)
        assert cells.shape == shares.shape == (column.size,), name
        assert cells.dtype == np.int32
        assert 0 <= cells.min() <= cells.max() < wanted, name
        totals = np.bincount(cells, shares, minlength=wanted)
        there = np.bincount(cells, minlength=wanted) > 0
        np.testing.assert_allclose(totals[there], 1, atol=1e-9, err_msg=name)
        assert shares.min() >= 0, name
        if column.nullable:  # "no value" is nobody's neighbour
            assert (cells == cells[-1]).sum() == 1, name
            assert shares[-1] == 1, name
        if column.is_ordered:  # cells of a scale are runs of neighbours
            assert (np.diff(cells[: column.levels]) >= 0).all(), name


def test_a_public_number_of_cells_and_no_more_than_codes():
    assert cells_of(scale(500)) == SCALE_CELLS
    assert cells_of(scale(500, nullable=True)) == SCALE_CELLS + 1
    assert cells_of(listed(700)) == LIST_CELLS
    assert cells_of(listed(700, nullable=True)) == LIST_CELLS + 1
    for short in (scale(5), scale(5, nullable=True), listed(3), listed(LIST_CELLS, nullable=True)):
        assert cells_of(short) == short.size


def test_only_long_columns_are_coarse():
    schema = Schema(columns=(scale(100, name="a"), listed(3, name="b"), listed(90, name="c"), scale(7, name="d")))
    coarse = Coarse(schema)
    assert coarse.columns == (0, 2)
    assert coarse.sizes == (SCALE_CELLS, 3, LIST_CELLS, 7)
    assert Coarse(Schema(columns=(listed(3, name="b"),))).columns == ()


@pytest.mark.parametrize(("number", "most"), [(90, LIST_CELLS), (200, None), (700, LEAST_CELLS)])
def test_many_long_columns_have_fewer_cells_together(number, most):
    """As many cells as there is room for in all, and short columns keep theirs; the cells are there for every code."""
    columns = tuple(listed(60, name=f"c{i}", nullable=i % 2 == 0) for i in range(number))
    coarse = Coarse(Schema(columns=(*columns, listed(5, name="short"), listed(LEAST_CELLS, name="target"))))
    assert coarse.sizes[-2:] == (5, LEAST_CELLS)
    assert coarse.columns == tuple(range(number))
    if most is not None:
        assert coarse.most == most
    else:
        assert LEAST_CELLS < coarse.most < LIST_CELLS
        one_more = sum(cells_of(column, coarse.most + 1) for column in coarse.schema.columns)
        assert sum(coarse.sizes) <= MOST_POSITIONS < one_more
    made = grouped(columns[0], np.arange(61.0), 1.0, coarse.most)
    assert made.cell.max() == coarse.sizes[0] - 1
    assert (np.bincount(made.cell, minlength=coarse.sizes[0]) > 0).all()


def test_frequent_values_along_a_scale_stand_alone():
    """Zero in half of the records, another value in a tenth; also under noise that would hide rarer ones."""
    column, rng = scale(400), np.random.default_rng(1)
    counts = np.full(400, 10.0)
    counts[0], counts[123] = 5_000, 1_000
    for deviation in (0.0, 30.0):
        cells, shares = cut(column, estimates(column, counts, deviation, rng), deviation)
        for spike in (0, 123):
            assert (cells == cells[spike]).sum() == 1
            assert shares[spike] == 1
        assert len(np.unique(cells)) > SCALE_CELLS // 2  # and the rest is still cut into parts


def test_what_noise_alone_makes_frequent_is_no_spike():
    """Few records, much noise: the largest count is above the share, and stands not alone."""
    column, rng = scale(400), np.random.default_rng(2)
    counts = estimates(column, np.full(400, 1.0), 100.0, rng)
    assert (counts > SPIKE_SHARE * max(counts.sum(), 1)).any()
    cells, _ = cut(column, counts, 100.0)
    alone = np.bincount(cells)[cells] == 1
    assert alone.sum() <= 4
    assert not alone[np.argmax(counts)]


def test_parts_of_a_scale_weigh_about_the_same():
    """Without noise and without spikes no cell holds much more than its share."""
    counts = 1e5 * np.exp(-np.arange(600) / 80.0) + 5
    cells, _ = cut(scale(600), counts, 0.0)
    weights = np.bincount(cells, counts) / counts.sum()
    assert len(weights) == SCALE_CELLS
    assert weights.max() < 2.0 / SCALE_CELLS
    assert weights.min() > 0.3 / SCALE_CELLS


def test_an_empty_tail_is_not_given_any_records():
    """Values lie below a tenth of the scale; noise stands above it, and hardly any of it is believed."""
    column, rng = scale(2_000), np.random.default_rng(3)
    counts = np.where(np.arange(2_000) < 200, 150.0, 0.0)
    cells, shares = cut(column, estimates(column, counts, 30.0, rng), 30.0)
    cell_weights = np.bincount(cells, counts, minlength=SCALE_CELLS) / counts.sum()
    drawn = cell_weights[cells] * shares
    assert drawn[:200].sum() > 0.97
    bare = np.maximum(counts + 30 * rng.normal(size=2_000), 0)  # cutting at zero alone would believe far more
    assert bare[:200].sum() / bare.sum() < 0.6


def test_the_most_frequent_categories_stand_alone_and_the_others_share_the_rest():
    counts = np.random.default_rng(4).permutation(1e5 / (1 + np.arange(700.0)) ** 1.2)
    cells, shares = cut(listed(700), counts, 0.0)
    alone = np.bincount(cells)[cells] == 1
    assert set(np.argsort(-counts)[:30]) <= set(np.flatnonzero(alone))
    assert len(np.unique(cells)) == LIST_CELLS
    np.testing.assert_allclose(shares, counts / np.bincount(cells, counts)[cells])


def test_denoising_keeps_what_is_there():
    """Steps far above the noise keep their places and sizes."""
    rng = np.random.default_rng(5)
    truth = np.repeat([400.0, 0.0, 900.0, 100.0], 256)
    found = denoised(consistent(*noisy_parts(truth, 20.0, rng)), sum_noise(1_024, 20.0))
    assert np.abs(found - truth).mean() < 8  # of the noise's 16
    assert found.sum() == pytest.approx(truth.sum(), rel=0.01)
    assert found.min() >= 0


def test_denoising_removes_noise_where_nothing_is():
    rng = np.random.default_rng(6)
    truth = np.zeros(1_024)
    truth[:64] = 800.0
    noisy = consistent(*noisy_parts(truth, 50.0, rng))
    found = denoised(noisy, sum_noise(1_024, 50.0))
    assert found[64:].sum() < 0.02 * truth.sum()
    assert np.maximum(noisy, 0)[64:].sum() > 0.3 * truth.sum()  # what cutting at zero would leave


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 1_000, 1_024, 1_025])
def test_denoising_without_noise_changes_nothing(size):
    counts = np.random.default_rng(7).poisson(30, size).astype(float)
    np.testing.assert_allclose(denoised(counts, sum_noise(size, 0.0)), counts)
    np.testing.assert_allclose(denoised(counts, sum_noise(size, 1e-9)), counts, rtol=1e-6)


def test_cells_in_which_nothing_shows_lie_next_to_what_is_there():
    """A cell that only noise may fill stands for values near the others, not for any at the far end of a grid."""
    rng = np.random.default_rng(3)
    column = scale(900)
    counts = np.where(np.isin(np.arange(900), np.arange(450, 457)), 4_000.0, 0.0)
    cells, shares = cut(column, estimates(column, counts, 20.0, rng), 20.0)
    below = np.flatnonzero((shares > 0) & (np.arange(900) < 440))
    assert len(np.unique(cells)) > 7
    assert len(below) == 0 or below.min() >= 440 - 2 * SHORT_GAP


def test_a_cell_of_codes_that_noise_hides_is_that_of_its_most_frequent_one():
    """Of a list of known codes: what may stand for such a cell is its likeliest code alone; others keep what is above noise."""
    column = Column(
        name="type_id", kind="categorical", categories=tuple(map(str, range(128))), dtype="integer", domain="released"
    )
    counts = np.random.default_rng(8).normal(0, 10.0, 128)
    counts[:50] += 400.0
    found = grouped(column, counts, 10.0)
    assert not found.doubtful[:50].any()
    for cell in np.unique(found.cell):
        where = np.flatnonzero(found.cell == cell)
        shown = where[~found.doubtful[where]]
        if len(shown):
            np.testing.assert_allclose(found.share[where] * counts[shown].sum(), np.where(
                found.doubtful[where], 0, counts[where]), rtol=0.05)  # fmt: skip
        else:
            assert (found.share[where] == (where == where[np.argmax(counts[where])])).all()
    hidden = [cell for cell in np.unique(found.cell) if found.doubtful[found.cell == cell].all()]
    assert hidden
