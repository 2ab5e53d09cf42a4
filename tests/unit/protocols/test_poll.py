"""poll: questions follow from public facts, messages stay small, dependence is found where it is and not where it is not."""

import itertools
import math

import jax
import numpy as np
import pytest

from populace.engines import simulation
from populace.engines.exchange import population_of
from populace.errors import SpecError
from populace.evaluation.marginals import mean_over_pairs, two_way_distances
from populace.privacy.randomizers.subset import SubsetSelection
from populace.protocols.independent import Independent
from populace.protocols.poll import Poll, answers_of, clipped, forged_shift
from populace.protocols.questions import (
    TARGET_SHARE,
    WORKLOAD_SHARE,
    design_for,
    information,
    read_workload,
    relative_variance,
    worth,
)
from populace.protocols.registry import make_protocol
from populace.protocols.survey import Survey
from populace.tables.embedded import harbour
from populace.tables.partition import split
from populace.tables.schema import Column, Schema

BINARY = (2,) * 30
ADULT9 = (7, 16, 7, 14, 6, 5, 2, 41, 2)
SMALL = {"classes": 6, "spread": 0.8, "chains": 1, "moves": 100}


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 8.0])
@pytest.mark.parametrize("target", [None, 3])
@pytest.mark.parametrize("sizes", [BINARY, ADULT9, (3, 5, 2), (1, 900, 2, 2), (4,), (2, 2)])
def test_every_column_is_asked_and_the_target_in_its_share_of_questions(sizes, epsilon, target):
    if target is not None and target >= len(sizes):
        target = 0
    design = design_for(sizes, epsilon, target)
    assert set(itertools.chain(*design.groups)) == set(range(len(sizes)))
    assert set(design.schedule) == set(range(len(design.groups)))
    shares = design.shares()
    assert shares.sum() == pytest.approx(1)
    if target is not None:
        with_target = sum(share for share, group in zip(shares, design.groups, strict=True) if target in group)
        assert with_target >= TARGET_SHARE - 0.07
    assert design == design_for(sizes, epsilon, target)


def test_larger_epsilons_ask_about_more_columns():
    widths = [max(len(g) for g in design_for(BINARY, epsilon, None).groups) for epsilon in (1.0, 2.0, 4.0, 8.0)]
    assert widths == sorted(widths)
    assert widths[0] == 2
    assert widths[-1] >= 7


@pytest.mark.parametrize(("size", "epsilon"), [(12, 1.5), (8, 4.0)])
def test_every_contrast_has_the_same_relative_variance(size, epsilon):
    oracle = SubsetSelection(size=size, epsilon=epsilon)
    values = np.random.default_rng(0).integers(0, size, 200_000)
    reports = np.asarray(oracle.simulate_batch(values, seed=1), np.float64)
    for marked in (np.arange(size) < size // 4, np.arange(size) % 2):
        contrast = marked - np.mean(marked)
        told = (reports - oracle.q) @ contrast / (oracle.p - oracle.q)
        assert told.var() / (contrast**2).mean() == pytest.approx(relative_variance(size, epsilon), rel=0.03)
    assert relative_variance(size, 30.0) == pytest.approx(1)


def test_information_falls_with_the_table_and_rises_with_epsilon():
    assert information(1, 1.0) == 0
    assert 0 < information(100, 1.0) < information(4, 1.0) < information(4, 4.0) < 0.5
    assert worth(3, 8, 4.0) > worth(1, 2, 4.0)


def test_what_a_user_names_is_asked_half_the_time(small_schema):
    names = small_schema.names
    groups = read_workload(f"{names[0]}+{names[1]}, {names[2]}+{names[0]}+{names[3]}", small_schema)
    assert groups == ((0, 1), (0, 2, 3))
    design = design_for(small_schema.sizes, 2.0, None, groups)
    named = sum(s for s, g in zip(design.shares(), design.groups, strict=True) if g in groups)
    assert named >= WORKLOAD_SHARE - 0.05
    with pytest.raises(SpecError, match="cells"):
        read_workload("a+b+c", wide_schema(50, 3))


def wide_schema(values, columns):
    names = "abcdefghij" if columns <= 10 else [f"c{i}" for i in range(columns)]
    return Schema(
        columns=tuple(
            Column(name=names[i], kind="categorical", categories=tuple(str(v) for v in range(values)))
            for i in range(columns)
        )
    )


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_a_message_takes_at_most_32_bytes_for_a_thousand_columns(epsilon):
    sizes = tuple(np.random.default_rng(0).integers(2, 60, 1_000).tolist())
    schema = Schema(
        columns=tuple(
            Column(name=f"c{i}", kind="categorical", categories=tuple(str(v) for v in range(size)))
            for i, size in enumerate(sizes)
        )
    )
    design = design_for(schema.sizes, epsilon, None)
    asked = Survey(schema, design.groups, epsilon, folds=True)
    assert max(member.wire_bytes for member in asked.panel.members) <= 32


def test_clients_and_server_fold_alike():
    schema = wide_schema(40, 3)
    design = design_for(schema.sizes, 1.0, None)
    asked = Survey(schema, design.groups, 1.0, folds=True)
    assert any(asked.is_folded)
    for question in range(len(asked.groups)):
        table = asked.buckets(question)
        for record in np.random.default_rng(question).integers(0, 40, (20, 3)):
            cell = np.ravel_multi_index(tuple(record[list(asked.groups[question])]), asked.shapes[question])
            assert int(asked.cell(record, question)) == table[cell]
    assert len({tuple(asked.buckets(q)) for q, group in enumerate(asked.groups) if group == (0, 1)}) > 1


def test_with_little_noise_it_finds_the_dependence_independence_misses(small_table):
    table = small_table.take(np.random.default_rng(0).integers(0, len(small_table), 4_000))
    clients = split(table)
    poll = Poll(epsilon=12.0, target="none", **{**SMALL, "spread": 1.5})
    found = simulation.run(poll, clients, root=jax.random.key(0)).generator.sample(4_000, jax.random.key(1))
    plain = simulation.run(Independent(epsilon=12.0), clients, root=jax.random.key(0)).generator
    near = mean_over_pairs(two_way_distances(table, found))
    far = mean_over_pairs(two_way_distances(table, plain.sample(4_000, jax.random.key(1))))
    assert near < 0.06
    assert far > 2 * near


BEHIND = pytest.mark.xfail(
    reason="4,000 answers are spread over 55 pairs: 6 % behind; the design ignores n", strict=True
)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, pytest.param(3.0, marks=BEHIND), 10.0])
def test_it_does_as_well_as_independent(epsilon):
    """On the embedded survey; the benchmarks do the same on Adult, Bank and a9a, with settings chosen from the answers."""
    table = harbour()
    clients = split(table)
    errors = {"poll": [], "independent": []}
    for seed in range(3):
        poll = Poll(epsilon=epsilon, target="none", **SMALL)
        for name, method in (("poll", poll), ("independent", Independent(epsilon=epsilon))):
            generator = simulation.run(method, clients, root=jax.random.key(seed)).generator
            found = generator.sample(10_000, jax.random.key(1))
            errors[name].append(mean_over_pairs(two_way_distances(table, found)))
    assert np.mean(errors["poll"]) <= 1.02 * np.mean(errors["independent"])


def test_settings_are_chosen_from_held_out_answers(small_table):
    clients = split(small_table)
    population = population_of(clients)
    poll = Poll(epsilon=3.0, classes=2, chains=1, moves=20)
    outcome = simulation.run(poll, clients, root=jax.random.key(0))
    kept, held = answers_of(poll.survey(population), outcome.state.counts)
    assert kept.total + held.total == len(small_table)
    assert held.total == len(small_table) // 10
    assert outcome.generator.deviations((0, 1)).shape == outcome.generator.marginal((0, 1)).shape
    assert Poll(epsilon=3.0).goal(population.table_schema) == population.table_schema.target
    assert make_protocol("poll", {"epsilon": 3.0, "target": "none"}).goal(population.table_schema) is None


def test_forged_answers_move_an_estimate_no_further_than_stated():
    oracle = SubsetSelection(size=8, epsilon=2.0)
    rng = np.random.default_rng(0)
    honest = np.asarray(oracle.simulate_batch(rng.integers(0, 8, 900), seed=0), bool)
    forged = np.zeros((100, 8), bool)
    forged[:, : oracle.chosen] = True  # all tell value 0
    replaced = np.asarray(oracle.simulate_batch(rng.integers(0, 8, 100), seed=1), bool)

    def estimate(reports):
        return oracle.estimate(reports.sum(axis=0), len(reports))

    shift = estimate(np.concatenate([honest, forged])) - estimate(np.concatenate([honest, replaced]))
    bound = forged_shift(100, 1_000, oracle)
    chance = 4 * math.sqrt(float(oracle.variance(1 / 8, 1)) / 100) * 100 / 1_000
    assert np.abs(shift).max() <= bound + chance
    assert np.abs(shift).max() > 0.5 * bound  # the bound is not idle
    piled = forged.sum(axis=0) * 50
    assert clipped(piled, 5_000, oracle).max() < piled.max()
    fair = honest.sum(axis=0)
    assert (clipped(fair, 900, oracle) == fair).all()


def test_bad_parameters_are_one_sentence():
    for wrong in ({"classes": -1}, {"chains": 0}, {"batch": 0}, {"spread": -2.0}, {"moves": 0}):
        with pytest.raises(SpecError):
            Poll(epsilon=1.0, **wrong)
