"""How many records there are: one count of the first message, its noise, and of whom each stage's shares are."""

import dataclasses
import math

import numpy as np
import pytest

from census_cases import listed, two_kinds, wide_schema
from populace.methods.base import Population
from populace.methods.census.cells import Coarse
from populace.methods.census.first_stage import TOTAL, FirstStage
from populace.methods.census.protocol import Census
from populace.tables.schema import Column, Schema

LARGE, SMALL = 3_000, 1_000  # records of two silos, of other kinds


def narrow_schema(codes=120):
    cost = Column(name="cost", kind="integer", edges=tuple(float(edge) for edge in range(codes + 1)))
    return Schema(columns=(cost, listed("ward", 3), listed("ill", 2)), target="ill")


SCHEMAS = {"narrow": narrow_schema(), "wide": wide_schema(nullable=False)}


@pytest.fixture(params=SCHEMAS)
def schema(request):
    return SCHEMAS[request.param]


def learner_of(schema, *, clients=2, **settings):
    protocol = Census(**{"epsilon": 2.0, "delta": 1e-6, "trust": "central", **settings})
    return protocol.parts(Population(schema=schema, clients=clients, records=LARGE)).learner


def silos_of(schema):
    """Codes of two silos: the second has the values of the first turned round, so that no share is the same."""
    first, second = two_kinds(schema, LARGE, seed=1).codes, two_kinds(schema, SMALL, seed=2).codes
    return first, np.array(schema.sizes) - 1 - second


def sums_of(learner, first, second, *, messages, rng=None):
    """What is added up of the records that each stage saw: counts of persons of one row, where persons count."""
    units = learner.contribution.whole

    def noise(stage, shape):
        if rng is None:
            return 0
        return np.rint(rng.normal(0, learner.release.deviation(stage, messages[stage]), shape)).astype(np.int64)

    state = learner.begin(None)
    one_way = learner.first.counts(first, np.full(len(first), units)).astype(np.int64)
    state = dataclasses.replace(state, one_way=one_way + noise(0, one_way.shape), messages=np.array(messages, np.int32))
    cells = learner._cells_of_codes(np.concatenate([one.cell for one in learner._groupings(state)]))
    weights = learner._weights(state) if learner.first.short else None
    pairs = learner.tables.counts(second, np.full(len(second), units), cells, weights).astype(np.int64)
    return dataclasses.replace(state, pairs=pairs + noise(1, pairs.shape))


def records_of(learner, state):
    """The numbers of records that the shares of the second and the first stage are of, from what their noise is said to be."""
    observed, noise = learner.observed(state), learner._first_noise(state)
    weights = learner._weights(state)[learner.tables.pair_of_entry] * learner.contribution.whole
    counted = int(np.argmax(weights > 0))
    second = learner.release.deviation(1, int(state.messages[-1])) / weights[counted] / observed.deviations[counted]
    counts = learner.first.cell_counts(np.asarray(state.one_way), learner._groupings(state), noise)
    column = learner.first.long[0]
    first = counts[column][1] / observed.cell_shares[column][1] / learner.contribution.whole
    assert np.ptp(first) < 1e-6 * first[0]
    return second, first[0]


# The count


def test_all_records_are_counted_first_and_with_twice_the_weight(schema):
    first = FirstStage(Coarse(schema), schema.index("ill"))
    assert first.parts[0] == (TOTAL, 1, 1)
    assert [column for column, _, _ in first.parts].count(TOTAL) == 1
    weight = 2 * (2 if first.short else 1)
    others = sum(first.weight**2 if width else 1 for column, width, _ in first.parts if column != TOTAL)
    assert first.bound == pytest.approx(math.sqrt(weight**2 + others), rel=1e-14)
    codes = two_kinds(schema, 300).codes
    for units in (np.ones(300, bool), np.arange(300) % 61):
        message = first.counts(codes, units)
        assert message[0] == weight * units.sum()
        assert first.records(message, 5.0) == (units.sum(), 5.0 / weight)


def test_nothing_is_counted_where_there_is_no_first_stage():
    first = FirstStage(Coarse(Schema(columns=(listed("ward", 3), listed("ill", 2)))), None)
    assert first.parts == ()
    assert first.numbers == 0
    learner = learner_of(first.schema)
    assert learner.begin(None).messages.shape == (1,)


def test_the_noise_of_the_count_is_the_one_that_is_said(schema):
    """Over many draws; half or twice the noise would be found out."""
    first, rng = FirstStage(Coarse(schema), None), np.random.default_rng(0)
    message = first.counts(two_kinds(schema, 900).codes, np.ones(900, bool))
    found = [first.records(message + rng.normal(0, 30.0, len(message)), 30.0) for _ in range(4_000)]
    counts, deviations = np.array(found).T
    assert np.mean(counts) == pytest.approx(900, abs=4 * deviations[0] / math.sqrt(4_000))
    assert np.std(counts) == pytest.approx(deviations[0], rel=0.05)


# Both stages


@pytest.mark.parametrize("unit", ["record", "person"])
def test_if_nobody_is_missing_both_stages_are_of_the_same_records_by_their_precision(unit):
    """The estimate scatters as the mean of both by their precision does: less than either by itself."""
    learner = learner_of(SCHEMAS["narrow"], unit=unit, epsilon=0.5, domain_share=0.01)  # both alike
    codes, rng = np.concatenate(silos_of(learner.schema)), np.random.default_rng(3)
    found = []
    for _ in range(300):
        second, first = records_of(learner, sums_of(learner, codes, codes, messages=(2, 2), rng=rng))
        assert first == pytest.approx(second, rel=1e-6)
        found.append(second)
    whole, tables = learner.contribution.whole, learner.tables
    own = learner.release.deviation(0, 2) / 2 / whole
    totals = learner.release.deviation(1, 2) / whole / tables.weights * np.sqrt(tables.outcomes * tables.table_sizes)
    said = (own**-2 + np.sum(totals**-2.0)) ** -0.5
    assert said < 0.8 * min(own, np.sum(totals**-2.0) ** -0.5)
    assert np.std(found) == pytest.approx(said, rel=0.12)
    assert np.mean(found) == pytest.approx(LARGE + SMALL, abs=4 * said / math.sqrt(300))


@pytest.mark.parametrize("unit", ["record", "person"])
@pytest.mark.parametrize(
    ("first", "second"),
    [((0, 1), (0,)), ((0,), (0, 1)), ((0,), (1,)), ((0,), (0,)), ((0, 1), (0, 1))],
    ids=["the second stage", "the first stage", "each another stage", "both stages", "none"],
)
def test_shares_of_each_stage_are_of_the_records_it_saw(schema, unit, first, second):
    """Silos that miss a stage: also if as many answered each, but not the same ones."""
    learner, silos = learner_of(schema, unit=unit), silos_of(schema)
    seen = [np.concatenate([silos[silo] for silo in stage]) for stage in (first, second)]
    state = sums_of(learner, *seen, messages=(len(first), len(second)))
    observed, tables = learner.observed(state), learner.tables
    records = records_of(learner, state)
    assert records == pytest.approx((len(seen[1]), len(seen[0])), rel=1e-9)
    groupings = learner._groupings(state)
    for column, (shares, _) in observed.cell_shares.items():
        cells = groupings[column].cell[seen[0][:, column]]
        np.testing.assert_allclose(shares, np.bincount(cells, minlength=len(shares)) / len(cells), atol=1e-9)
    for column in learner.first.short:
        where = slice(tables.offsets[column], tables.offsets[column] + tables.sizes[column])
        wanted = np.bincount(seen[0][:, column], minlength=tables.sizes[column]) / len(seen[0])
        np.testing.assert_allclose(observed.single_shares[:, where].sum(axis=0), wanted, atol=1e-9)
    totals = np.bincount(tables.pair_of_entry, observed.shares.sum(axis=0))
    counted = np.isfinite(observed.deviations[np.cumsum(tables.table_sizes) - 1])
    np.testing.assert_allclose(totals[counted], 1, rtol=1e-9)
    number = int(np.argmax(counted))
    a, b = (groupings[column].cell[seen[1][:, column]] for column in tables.pairs[number])
    wanted = np.bincount(a * tables.shapes[number][1] + b, minlength=int(tables.table_sizes[number])) / len(seen[1])
    np.testing.assert_allclose(observed.shares[:, tables.pair_of_entry == number].sum(axis=0), wanted, atol=1e-9)


def test_noise_that_hides_all_records_leaves_one():
    """Shares are never of less than one record, whatever the noise makes of the totals."""
    learner = learner_of(SCHEMAS["narrow"])
    state = learner.begin(None)
    for messages in ([2, 2], [2, 1], [0, 0]):
        below = dataclasses.replace(
            state, one_way=np.full_like(state.one_way, -900), pairs=np.full_like(state.pairs, -900),
            messages=np.array(messages, np.int32),
        )  # fmt: skip
        assert records_of(learner, below) == pytest.approx((1, 1), rel=1e-9)


def test_counts_that_ranked_a_list_are_used_again_only_where_no_pair_shows_it():
    """Its largest counts are those that noise favours; a scale is cut without regard to which code is largest."""
    learner, schema = learner_of(SCHEMAS["wide"], epsilon=20.0), SCHEMAS["wide"]
    codes = two_kinds(schema, LARGE).codes
    scale, ranked = schema.index("cost"), schema.index("code")
    state = sums_of(learner, codes, codes, messages=(2, 2))
    assert learner._weights(state)[[ranked in pair for pair in learner.tables.pairs]].any()
    assert list(learner.observed(state).cell_shares) == [scale]
    codes = codes.copy()
    codes[:, ranked] = 1  # of one value, so that no table with it is worth anything
    state = sums_of(learner, codes, codes, messages=(2, 2))
    assert not learner._weights(state)[[ranked in pair for pair in learner.tables.pairs]].any()
    found = learner.observed(state).cell_shares
    assert list(found) == [scale, ranked]
    assert found[ranked][0][learner._groupings(state)[ranked].cell[1]] == pytest.approx(1, rel=1e-9)
