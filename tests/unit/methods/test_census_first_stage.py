"""The first message: what a record changes in it, whoever counts, and what is read from it."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from census_cases import listed, two_kinds, wide_schema
from populace.engines.runtime import population_of
from populace.methods.base import Shard
from populace.methods.census.cells import Coarse
from populace.methods.census.first_stage import MANY_COLUMNS, FirstStage
from populace.methods.census.protocol import Census
from populace.privacy.source import Keyed
from populace.tables.partition import split_silos
from populace.tables.schema import Column, Schema


def narrow_schema():
    edges = tuple(float(edge) for edge in range(1_301))
    cost = Column(name="cost", kind="integer", edges=edges, nullable=True)
    return Schema(columns=(cost, listed("code", 90), listed("ward", 3), listed("ill", 2)), target="ill")


STAGES = {
    "narrow": FirstStage(Coarse(narrow_schema()), 3),
    "wide": FirstStage(Coarse(wide_schema()), 29),
    "wide, no target": FirstStage(Coarse(wide_schema()), None),
    "wide, no long column": FirstStage(Coarse(wide_schema(long=False)), 29),
    "wide, the target first": FirstStage(Coarse(wide_schema()), 0),
}


@pytest.fixture(params=STAGES, scope="module")
def first(request):
    return STAGES[request.param]


def every_code(schema):
    """Records in which every code of every column occurs, once along the columns and once mixed."""
    rows = max(schema.sizes)
    codes = np.stack([np.resize(np.arange(size), rows) for size in schema.sizes], axis=1).astype(np.int32)
    return np.concatenate([codes, np.random.default_rng(0).permuted(codes, axis=0)])


def slowly(first, records, units):
    """The message by a loop over records, from the words of the docstring: all records, then by column, width and code."""
    columns, many = first.schema.columns, len(first.schema.columns) > MANY_COLUMNS
    outcomes = 1 if first.target is None else columns[first.target].size
    long = [number for number, column in enumerate(columns) if column.size > first.coarse.sizes[number]]
    found = [np.array([(4 if many else 2) * sum(units.tolist())])]
    for number in long:
        column, width = columns[number], 1
        while True:
            part = np.zeros(column.size if width == 1 else math.ceil(column.levels / width), np.int64)
            for code, unit in zip(records[:, number].tolist(), units.tolist(), strict=True):
                if width == 1 or code < column.levels:
                    part[code // width] += int(unit) * (2 if many else 1)
            found.append(part)
            if not column.is_ordered or column.levels <= 16 * width:
                break
            width *= 8
    for number, column in enumerate(columns):
        if many and number not in long and number != first.target:
            part = np.zeros((outcomes, column.size), np.int64)
            for row, unit in zip(records.tolist(), units.tolist(), strict=True):
                part[0 if first.target is None else row[first.target], row[number]] += int(unit)
            found.append(part.reshape(-1))
    return np.concatenate(found)


def test_messages_are_those_of_a_slow_loop_on_the_host_and_traced(first):
    records = np.resize(every_code(first.schema), (200, len(first.schema.columns)))
    rng = np.random.default_rng(1)
    for units in (np.arange(200) % 3 > 0, rng.integers(0, 61, 200)):
        wanted = slowly(first, records, units)
        plain, traced = first.counts(records, units), np.asarray(jax.jit(first.counts)(records, units))
        assert plain.shape == (first.numbers,)
        assert plain.dtype == traced.dtype == np.int32
        np.testing.assert_array_equal(plain, wanted)
        np.testing.assert_array_equal(traced, wanted)


@pytest.mark.parametrize("units", [1, 60])
def test_every_record_changes_the_message_by_exactly_the_bound(first, units):
    """In whole numbers, for every code there is; less by its groups, for each long scale without a value."""
    records = every_code(first.schema)
    everything = np.full(len(records), units)
    whole = first.counts(records, everything).astype(np.int64)
    square, reached = round(first.bound**2), 0
    assert first.bound == pytest.approx(math.sqrt(square), rel=1e-14)
    for row in range(0, len(records), 3):
        without = np.where(np.arange(len(records)) == row, 0, everything)
        change = whole - first.counts(records, without)
        left_out = sum(
            (len(widths) - 1) * first.weight**2
            for column, widths in first.widths.items()
            if records[row, column] >= first.schema.columns[column].levels
        )
        assert int((change**2).sum()) == units**2 * (square - left_out)
        reached += not left_out
    assert reached > len(records) // 8


def test_padding_changes_nothing(first):
    records = every_code(first.schema)
    assert not first.counts(records, np.zeros(len(records), bool)).any()
    assert not first.counts(records[:0], np.zeros(0, bool)).any()


def test_a_person_changes_the_message_of_a_wide_table_by_no_more_than_the_bound():
    """Twenty equal rows reach it, twenty different ones stay below, as do hundred rows."""
    schema = wide_schema(nullable=False)
    table = two_kinds(schema, 160)
    protocol = Census(epsilon=1.0, delta=1e-6, trust="central", unit="person")
    population = population_of(split_silos(table, [160]))
    learner = protocol.parts(population).learner
    bound = learner.release.mechanisms[0].bound
    assert bound == pytest.approx(60 * learner.first.bound)
    for held, equal in ((20, True), (20, False), (100, True), (100, False)):
        codes = table.codes.copy()
        codes[:held] = codes[0] if equal else np.arange(held)[:, None] % np.array(schema.sizes)
        persons = np.where(np.arange(160) < held, 7, 8 + np.arange(160) % 3)
        shard = Shard(records=codes, mask=np.ones(160, bool), population=population, persons=persons)
        gone = dataclasses.replace(shard, mask=persons != 7)
        source = Keyed(jax.random.key(0))
        whole, rest = (np.asarray(learner.answer({"codes": 0}, 0, one, source), np.int64) for one in (shard, gone))
        change = math.sqrt(((whole - rest) ** 2).sum())
        assert change == pytest.approx(bound, rel=1e-12) if equal else 0 < change < bound


def test_reading_a_message_without_noise_gives_the_counts_back(first):
    records = every_code(first.schema)
    everything = np.ones(len(records), bool)
    long, short = first.read(first.counts(records, everything))
    assert sorted(long) == list(first.long)
    assert sorted(short) == list(first.short)
    for column, counts in long.items():
        np.testing.assert_allclose(
            counts, np.bincount(records[:, column], minlength=first.schema.sizes[column]), atol=1e-9
        )
    for column, table in short.items():
        outcome = 0 if first.target is None else records[:, first.target]
        wanted = np.zeros((first.outcomes, first.schema.sizes[column]))
        np.add.at(wanted, (outcome, records[:, column]), 1)
        np.testing.assert_array_equal(table, wanted)


def test_counts_of_cells_and_their_noise():
    """Sums of the estimates of each cell's codes, over many draws of noise as far off as is said."""
    first, rng = STAGES["wide"], np.random.default_rng(2)
    counts = first.counts(two_kinds(first.schema, 3_000).codes, np.ones(3_000, bool))
    groupings = first.groupings(counts + rng.normal(0, 12.0, first.numbers), 12.0)
    exact = first.cell_counts(counts, groupings, 0.0)
    left = {column: [] for column in first.long}
    for _ in range(60):
        noisy = counts + rng.normal(0, 12.0, first.numbers)
        for column, (found, deviation) in first.cell_counts(noisy, groupings, 12.0).items():
            held = np.bincount(groupings[column].cell, minlength=len(found)) > 0  # cells without codes have no noise
            left[column].append(((found - exact[column][0]) / deviation)[held])
    for column, errors in left.items():
        assert exact[column][0].sum() == pytest.approx(3_000, rel=1e-9)
        assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(1, rel=0.1), column
