"""The parts of the attacks against slow oracles, and planted leaks that each of them must see."""

import numpy as np
import pytest

from populace.errors import DataError, SchemaError, SpecError
from populace.evaluation.attacks.attribute import infer_attribute
from populace.evaluation.attacks.distances import column_gaps, compare_distances, nearest, share_nearer
from populace.evaluation.attacks.membership import Games, attack
from populace.evaluation.attacks.summaries import agreement, column_sets, rarity, summarise
from populace.tables.schema import Column, Schema
from populace.tables.table import from_codes


@pytest.fixture(scope="module")
def people():
    """Rows of many columns, so that hardly two are alike; the last column follows the first with noise."""
    sizes = (4, 5, 3, 6, 4, 2)
    schema = Schema(columns=tuple(
        Column(name=f"c{i}", kind="ordinal" if i == 3 else "categorical", categories=tuple(map(str, range(size))))
        for i, size in enumerate(sizes)
    ))  # fmt: skip
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, size, 1200) for size in sizes], axis=1).astype(np.int32)
    codes[:, -1] = np.where(rng.random(1200) < 0.7, codes[:, 0] % 2, codes[:, -1])
    return from_codes(codes, schema, rng)


def test_agreement_by_hand():
    codes = np.array([[0, 0, 0], [0, 0, 1], [1, 1, 1], [0, 2, 0]])
    sets = np.array([[True, True, False], [True, False, True]])
    found = agreement(codes, np.array([[0, 0, 0], [2, 2, 2]]), sets)
    assert found[0].tolist() == [0.5, 0.5, 0.25, 0.75, 0.75, 1.0, 3.0]
    assert found[1].tolist() == [0, 0, 0, 0, 0.25, 1.0, 1.0]


def test_summaries_have_one_shape_whatever_the_rows(people):
    sizes, targets = people.schema.sizes, people.codes[:5]
    first = summarise(people.codes[:300], sizes, targets)
    second = summarise(people.codes[300:1200], sizes, targets)
    assert {name: value.shape for name, value in first.items()} == {name: value.shape for name, value in second.items()}
    assert first["one-way tables"].sum() == pytest.approx(len(sizes))
    assert first["agreement with the target"].shape[0] == 5
    assert (column_sets(6).sum(axis=1) >= 2).all()
    assert column_sets(1).tolist() == [[True]]


def test_rare_rows_are_rare(people):
    codes = people.codes.copy()
    codes[:, 1] = 0
    codes[7, 1] = 4
    assert rarity(codes, people.schema.sizes).argmax() == 7


def test_nearest_against_a_loop(people):
    some, synthetic = people.take(np.arange(40)), people.take(np.arange(200, 500))
    found, place = nearest(some, synthetic)
    for row, (distance, at) in enumerate(zip(found, place, strict=True)):
        each = [
            np.mean([column_gaps(people.schema, c)[a, b] for c, (a, b) in enumerate(zip(some.codes[row], other, strict=True))])
            for other in synthetic.codes
        ]  # fmt: skip
        assert distance == pytest.approx(min(each), abs=1e-6)
        assert each[at] == pytest.approx(min(each), abs=1e-6)
    assert column_gaps(people.schema, 3)[0, 5] == 1
    assert column_gaps(people.schema, 3)[2, 3] == pytest.approx(0.2)
    table = from_codes(people.codes[:5, :1], Schema(columns=people.schema.columns[:1]), np.random.default_rng(0))
    with pytest.raises(DataError, match="another column"):
        nearest(table, table, without=0)


def test_a_missing_value_is_far_from_every_other():
    column = Column(name="a", kind="ordinal", categories=("1", "2", "3"), nullable=True)
    gaps = column_gaps(Schema(columns=(column,)), 0)
    assert gaps[3].tolist() == [1, 1, 1, 0]
    assert gaps[0, 1] == 0.5


def test_share_nearer_counts_pairs_and_covers():
    rng = np.random.default_rng(1)
    near, far = rng.integers(0, 5, 50), rng.integers(0, 6, 70)
    pairs = [(a < b) + (a == b) / 2 for a in near for b in far]
    assert share_nearer(near, far, 0.95)[0] == pytest.approx(np.mean(pairs))
    covered = 0
    for _ in range(400):
        _, low, high = share_nearer(rng.normal(size=60), rng.normal(size=60), 0.95)
        covered += low <= 0.5 <= high
    assert covered / 400 > 0.92


def test_rows_that_all_say_the_same_are_no_certainty():
    """All members nearer, or all alike: the interval still has a width, which shrinks with the rows."""
    for near, far, share in ((0.0, 1.0, 1.0), (1.0, 1.0, 0.5)):
        widths = []
        for rows in (20, 2000):
            found, low, high = share_nearer(np.full(rows, near), np.full(rows, far), 0.95)
            assert found == share
            assert low < share <= high
            widths.append(high - low)
        assert widths[0] > 10 * widths[1]


def test_copies_are_near_and_fresh_rows_are_not(people):
    members, others, fresh = (people.take(np.arange(a, a + 400)) for a in (0, 400, 800))
    leak = compare_distances(members, members, others)
    assert leak["members"]["share_with_a_copy"] == 1
    assert leak["low"] > 0.8
    none = compare_distances(fresh, members, others)
    assert none["low"] < 0.5 < none["high"]
    assert "proves nothing" in none["note"]


def test_attributes_of_members_are_read_off_copies_and_not_off_fresh_rows(people):
    members, others, fresh = (people.take(np.arange(a, a + 400)) for a in (0, 400, 800))
    leak = infer_attribute(members, members, others, "c1")
    assert leak["low"] > 0.2
    none = infer_attribute(fresh, members, others, "c5")
    assert none["low"] < 0 < none["high"]
    assert min(row["others"] for row in none["rows"]) > 0.55  # what the population teaches is no leak
    with pytest.raises(SchemaError, match="no column"):
        infer_attribute(fresh, members, others, "no such column")


def games(runs, targets, strength, seed):
    rng = np.random.default_rng(seed)
    included = rng.random((runs, targets)) < 0.5
    about = rng.normal(size=(runs, targets, 3))
    about[:, :, 0] += strength * included
    return Games(
        included=included,
        summaries={
            "one-way tables": rng.normal(size=(runs, 4)),
            "correlations": rng.normal(size=(runs, 2)),
            "agreement with the target": about,
        },
    )


def test_attackers_see_a_planted_signal_and_none_where_there_is_none():
    leak = attack(games(24, 3, 6.0, 0), games(16, 3, 6.0, 1))
    assert leak["accuracy"] > 0.9
    assert leak["low"] > 0.5
    assert leak["attacker"].endswith(("agreement with the target", "all targets together"))
    assert len(leak["rows"]) == 20
    none = attack(games(24, 3, 0.0, 2), games(30, 3, 0.0, 3))
    assert none["low"] < 0.5 < none["high"]
    best = none["best_afterwards"]
    assert best["accuracy"] == max(row["accuracy"] for row in none["rows"])
    assert best["high"] - best["low"] > none["high"] - none["low"]  # widened for the choice among all
    assert none["models"] == 54


def test_the_attacker_is_chosen_before_its_guesses_are_scored():
    """Other guesses to score, the same choice."""
    shadows = games(18, 2, 2.0, 4)
    assert attack(shadows, games(8, 2, 2.0, 5))["attacker"] == attack(shadows, games(8, 2, 0.0, 6))["attacker"]


def test_too_few_runs_are_refused():
    with pytest.raises(SpecError, match="runs"):
        games(3, 2, 0.0, 0)
