"""poll: questions follow from public facts, messages stay small, dependence is found where it is and not where it is not."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest

from populace.engines import simulation
from populace.engines.runtime import population_of
from populace.errors import SpecError
from populace.evaluation.marginals import mean_over_pairs, two_way_distances
from populace.methods.base import Population, Replies
from populace.methods.baselines.independent import Independent
from populace.methods.blocks.one_report import Survey
from populace.methods.poll.answer_counts import clip_counts, count_answers, forged_shift, layout_of, question_gains
from populace.methods.poll.protocol import Poll, workload_groups
from populace.methods.poll.questions import (
    MOST_CELLS,
    TARGET_SHARE,
    WORKLOAD_SHARE,
    design_for,
    information,
    quality,
    relative_variance,
    second_schedule,
    second_stage_groups,
)
from populace.methods.registry import make_protocol
from populace.privacy.randomizers.subset import SubsetSelection
from populace.tables.embedded import harbour
from populace.tables.partition import split
from populace.tables.schema import Column, Schema
from populace.tables.table import from_codes

BINARY = (2,) * 30
ADULT9 = (7, 16, 7, 14, 6, 5, 2, 41, 2)
SMALL = {"latent_classes": 6, "prior_scale": 0.8, "chains": 1, "langevin_steps": 100}
SMALLEST = {"latent_classes": 4, "prior_scale": 1.0, "chains": 1, "langevin_steps": 24}


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
        estimated = (reports - oracle.q) @ contrast / (oracle.p - oracle.q)
        assert estimated.var() / (contrast**2).mean() == pytest.approx(relative_variance(size, epsilon), rel=0.03)
    assert relative_variance(size, 30.0) == pytest.approx(1)


def test_information_falls_with_the_table_and_rises_with_epsilon():
    assert information(1, 1.0) == 0
    assert 0 < information(100, 1.0) < information(4, 1.0) < information(4, 4.0) < 0.5
    assert quality(3, 8, 4.0) > quality(1, 2, 4.0)


def test_what_a_user_names_is_asked_half_the_time(small_schema):
    names = small_schema.names
    groups = workload_groups([names[:2], (names[2], names[0], names[3])], small_schema)
    assert groups == ((0, 1), (0, 2, 3))
    design = design_for(small_schema.sizes, 2.0, None, groups)
    named = sum(s for s, g in zip(design.shares(), design.groups, strict=True) if g in groups)
    assert named >= WORKLOAD_SHARE - 0.05
    with pytest.raises(SpecError, match="cells"):
        workload_groups([("a", "b", "c")], wide_schema(50, 3))


def wide_schema(values, columns):
    names = "abcdefghij" if columns <= 10 else [f"c{i}" for i in range(columns)]
    return Schema(
        columns=tuple(
            Column(name=names[i], kind="categorical", categories=tuple(str(v) for v in range(values)))
            for i in range(columns)
        )
    )


@pytest.mark.parametrize("epsilon", [2.0, *(pytest.param(epsilon, marks=pytest.mark.slow) for epsilon in (0.5, 8.0))])
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
    poll = Poll(epsilon=12.0, target=None, stages=1, **{**SMALL, "prior_scale": 1.5})
    found = simulation.run(poll, clients, root=jax.random.key(0)).generator.sample(4_000, jax.random.key(1))
    plain = simulation.run(Independent(epsilon=12.0), clients, root=jax.random.key(0)).generator
    near = mean_over_pairs(two_way_distances(table, found))
    far = mean_over_pairs(two_way_distances(table, plain.sample(4_000, jax.random.key(1))))
    assert near < 0.06
    assert far > 2 * near


BEHIND = pytest.mark.xfail(reason="4,000 answers are spread over 55 pairs: 3 to 8 % behind", strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.1, 1.0, pytest.param(3.0, marks=BEHIND), 10.0])
def test_it_does_as_well_as_independent(epsilon):
    """On the embedded survey; the benchmarks do the same on Adult, Bank and a9a, with settings chosen from the answers."""
    table = harbour()
    clients = split(table)
    errors = {"poll": [], "independent": []}
    for seed in range(3):
        poll = Poll(epsilon=epsilon, target=None, **SMALL)
        for name, method in (("poll", poll), ("independent", Independent(epsilon=epsilon))):
            generator = simulation.run(method, clients, root=jax.random.key(seed)).generator
            found = generator.sample(10_000, jax.random.key(1))
            errors[name].append(mean_over_pairs(two_way_distances(table, found)))
    assert np.mean(errors["poll"]) <= 1.02 * np.mean(errors["independent"])


@pytest.mark.slow
def test_settings_come_from_held_out_answers_and_the_target_is_read_in_two_ways(small_table):
    clients = split(small_table)
    schema, population = small_table.schema, population_of(clients)
    poll = Poll(epsilon=4.0, stages=1, latent_classes=4, chains=4, langevin_steps=24)
    outcome = simulation.run(poll, clients, root=jax.random.key(0))
    model = outcome.generator
    kept, held = count_answers(poll.survey(population), outcome.state.learner.counts)
    assert kept.total + held.total == len(small_table)
    assert held.total == len(small_table) // 10
    assert model.deviations((0, 1)).shape == model.marginal((0, 1)).shape
    assert len(model.weights) == 16
    start = sum(schema.sizes[: schema.index(schema.target)])
    sure = np.asarray(model.tables)[:, start : start + schema.sizes[schema.index(schema.target)]].max(axis=1)
    assert (sure[12:] > 0.999).all()  # the last chain's classes belong to one value each
    assert (sure[:12] < 0.999).any()
    assert Poll(epsilon=3.0).goal(schema) == schema.target
    assert make_protocol("poll", {"epsilon": 3.0, "target": "none"}).goal(schema) is None


def asked_whom(poll, population):
    """All asks of a run whose clients all report value 0, and the state at its end."""
    state = poll.begin(population, jax.random.key(3))
    asks = []
    while (ask := poll.ask(state, population, None)) is not None:
        asks.append(ask)
        reports = jax.numpy.zeros((len(ask.cohort), poll.survey(population).panel.width), bool).at[:, 0].set(True)
        replies = Replies(clients=ask.cohort, present=ask.cohort >= 0, values=reports)
        state = poll.absorb(state, ask, replies, None)
    return asks, state


@pytest.mark.parametrize(
    "clients", [1, 2, 40, *(pytest.param(clients, marks=pytest.mark.slow) for clients in (3, 101))]
)
def test_in_two_stages_every_client_is_asked_once_and_a_third_first(small_schema, clients):
    population = Population(schema=small_schema, clients=clients)
    poll = Poll(epsilon=2.0, clients_per_batch=16, **SMALLEST)
    asks, state = asked_whom(poll, population)
    cohorts = [np.asarray(ask.cohort) for ask in asks]
    assert sorted(np.concatenate(cohorts)[np.concatenate(cohorts) >= 0].tolist()) == list(range(clients))
    assert len(asks) == poll.round_count(population)
    first = np.concatenate(cohorts[: poll.learner(population).first_rounds])
    assert (first >= 0).sum() == -(-clients // 3)
    assert clients < 40 or (np.diff(first[first >= 0]) < 0).any()  # not in the order they come in
    assert int(state.learner.counts.answers.sum()) == clients
    assert int(state.learner.first.answers.sum()) == -(-clients // 3)
    menu = len(poll.survey(population).groups)
    assert all(np.asarray(ask.own).min() >= 0 and np.asarray(ask.own).max() < menu for ask in asks)


def test_the_second_stage_follows_from_the_first_one_alone(small_schema):
    """What later clients answer changes nobody's question: a resumed run asks the same."""
    population = Population(schema=small_schema, clients=60)
    poll = Poll(epsilon=2.0, clients_per_batch=20, **SMALLEST)
    _, state = asked_whom(poll, population)
    learner, state = poll.learner(population), state.learner
    later = learner.later_questions(state)
    doubled = jax.tree.map(lambda leaf: 2 * leaf, state.counts)
    assert (learner.later_questions(dataclasses.replace(state, counts=doubled)) == later).all()
    more = dataclasses.replace(state, first=jax.tree.map(lambda leaf: 9 * leaf, state.first))
    assert (learner.later_questions(more) != later).any()
    assert not Poll(epsilon=2.0).compiles
    assert Poll(epsilon=2.0, stages=1).compiles


def test_a_question_is_worth_what_its_answers_would_tell(small_schema):
    """Against a slow computation, cell by cell; columns the draws agree on are worth nothing."""
    asked = Survey(small_schema, ((0,), (1,), (0, 1), (2, 0, 1)), 1.5, folds=True)
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(2), 5)
    tables = [rng.dirichlet(np.ones(size), (5, 2)) for size in small_schema.sizes]
    tables[1] = np.broadcast_to(tables[1][:1, :1], tables[1].shape)
    gains = question_gains(asked, layout_of(asked, None), weights, np.concatenate(tables, axis=2))
    for gain, group, member in zip(gains, asked.groups, asked.panel.members, strict=True):
        slow = 0.0
        for cell in itertools.product(*(range(small_schema.sizes[column]) for column in group)):
            chances = np.array([
                sum(weights[d, z] * math.prod(tables[c][d, z, v] for c, v in zip(group, cell, strict=True)) for z in (0, 1))
                for d in range(5)
            ])  # fmt: skip
            support = member.q + (member.p - member.q) * chances.mean()
            slow += chances.var() * (member.p - member.q) ** 2 / (support * (1 - support))
        assert gain == pytest.approx(slow, rel=1e-3, abs=1e-9)
    assert gains[1] == pytest.approx(0, abs=1e-9)
    assert gains[0] > 0


def test_later_questions_keep_the_shares_of_target_and_workload():
    menu = ((0, 1), (0, 2), (1, 2), (0,), (1,), (2,))
    gains = np.array([4.0, 1.0, 1.0, 1.0, 2.0, 0.0])
    asked = second_schedule(gains, menu, 0, (), 10_000, np.random.default_rng(0))
    share = np.bincount(asked, minlength=6) / 10_000
    assert share[[0, 1, 3]].sum() == pytest.approx(TARGET_SHARE, abs=1e-3)
    assert share[0] == pytest.approx(4 * share[1], rel=0.01)
    assert share[5] == 0
    named = second_schedule(gains, menu, None, ((1, 2),), 10_000, np.random.default_rng(0))
    assert np.mean(named == 2) == pytest.approx(WORKLOAD_SHARE, abs=1e-3)
    even = second_schedule(np.zeros(6), menu, None, (), 600, np.random.default_rng(0))
    assert set(np.bincount(even, minlength=6)) == {100}


def schema_of(sizes, target=None):
    columns = tuple(
        Column(name=f"c{i}", kind="categorical", categories=tuple(str(v) for v in range(size)))
        for i, size in enumerate(sizes)
    )
    return Schema(columns=columns, target=target)


@pytest.mark.parametrize("sizes", [pytest.param((1, 1, 2, 3), marks=pytest.mark.slow), (1,), (1, 1)])
def test_columns_of_one_value_do_no_harm(sizes):
    rows = np.stack([np.random.default_rng(0).integers(0, size, 60) for size in sizes], axis=1)
    clients = split(from_codes(rows, schema_of(sizes), np.random.default_rng(1)))
    model = simulation.run(Poll(epsilon=1.0, **SMALLEST), clients, root=jax.random.key(0)).generator
    found = model.sample(50, jax.random.key(1)).codes
    assert (found[:, np.array(sizes) == 1] == 0).all()
    assert np.isfinite(model.marginal((0,))).all()


def test_a_question_without_an_alternative_is_worth_nothing():
    asked = Survey(schema_of((1, 3)), ((0,), (1,)), 1.0, folds=True)
    tables = np.random.default_rng(0).dirichlet(np.ones(3), (5, 2))
    given = np.concatenate([np.ones((5, 2, 1)), tables], axis=2)
    gains = question_gains(asked, layout_of(asked, None), np.full((5, 2), 0.5), given)
    assert gains[0] == 0
    assert gains[1] > 0


@pytest.mark.parametrize("target", [None, 0, 2])
@pytest.mark.parametrize("sizes", [(1_000, 1_000, 2), (1_000,) * 5, (900, 500, 2, 2, 2), (5_000, 2, 3)])
def test_no_question_has_too_many_cells(sizes, target):
    for epsilon in (1.0, 8.0, 12.0):
        design = design_for(sizes, epsilon, target)
        assert set(itertools.chain(*design.groups)) == set(range(len(sizes)))
        assert all(len(g) == 1 or math.prod(sizes[c] for c in g) <= MOST_CELLS for g in design.groups)


@pytest.mark.slow
def test_every_value_of_the_target_has_a_class():
    codes = np.stack([np.arange(600) % 5, np.arange(600) % 2], axis=1)
    table = from_codes(codes, schema_of((5, 2), target="c0"), np.random.default_rng(0))
    poll = Poll(epsilon=8.0, stages=1, latent_classes=3, prior_scale=1.0, chains=4, langevin_steps=24)
    model = simulation.run(poll, split(table), root=jax.random.key(0)).generator
    assert model.marginal((0,)).min() > 0.13


@pytest.mark.slow
def test_in_one_stage_the_compiled_loop_counts_the_same(small_table):
    clients = split(small_table.take(np.arange(90)))
    poll = Poll(epsilon=2.0, stages=1, clients_per_batch=32, **SMALLEST)
    states = [
        simulation.run(poll, clients, root=jax.random.key(2), compiled=compiled).state for compiled in (True, False)
    ]
    assert (states[0].counts.supports == states[1].counts.supports).all()
    assert int(states[0].counts.answers.sum()) == 90


def test_traffic_is_that_of_the_questions_asked(small_schema):
    population = Population(schema=small_schema, clients=60)
    poll = Poll(epsilon=0.5, clients_per_batch=20, **SMALLEST)
    asks, _ = asked_whom(poll, population)
    sizes = np.array([member.wire_bytes for member in poll.survey(population).panel.members])
    for ask in asks:
        own = np.asarray(ask.own)[np.asarray(ask.cohort) >= 0]
        assert poll.reply_bytes(ask, population)[1] == pytest.approx(sizes[own].mean())


def test_a_second_stage_may_ask_columns_alone_and_all_pairs():
    design = design_for(BINARY, 1.0, None)
    menu = second_stage_groups(BINARY, 1.0, design.groups)
    assert menu[: len(design.groups)] == design.groups
    assert {(column,) for column in range(30)} <= set(menu)
    assert set(itertools.combinations(range(30), 2)) <= set(menu)
    wide = second_stage_groups(BINARY, 8.0, design_for(BINARY, 8.0, None).groups)
    assert not set(itertools.combinations(range(30), 2)) <= set(wide)
    assert all(len(set(group)) == len(group) for group in wide)


def test_only_scales_of_four_levels_or_more_have_neighbours_and_trends(small_schema):
    asked = Survey(small_schema, tuple((c,) for c in range(4)), 1.0)
    layout = layout_of(asked, small_schema.target)
    assert [column for column, _ in layout.scales] == [1]  # five levels; three bins are too few
    assert layout.neighbours == tuple((3 + v, 4 + v) for v in range(4))  # not with the null


def test_forged_answers_move_an_estimate_no_further_than_stated():
    oracle = SubsetSelection(size=8, epsilon=2.0)
    rng = np.random.default_rng(0)
    honest = np.asarray(oracle.simulate_batch(rng.integers(0, 8, 900), seed=0), bool)
    forged = np.zeros((100, 8), bool)
    forged[:, : oracle.chosen] = True  # all report value 0
    replaced = np.asarray(oracle.simulate_batch(rng.integers(0, 8, 100), seed=1), bool)

    def estimate(reports):
        return oracle.estimate(reports.sum(axis=0), len(reports))

    shift = estimate(np.concatenate([honest, forged])) - estimate(np.concatenate([honest, replaced]))
    bound = forged_shift(100, 1_000, oracle)
    chance = 4 * math.sqrt(float(oracle.variance(1 / 8, 1)) / 100) * 100 / 1_000
    assert np.abs(shift).max() <= bound + chance
    assert np.abs(shift).max() > 0.5 * bound  # the bound is not idle
    piled = forged.sum(axis=0) * 50
    assert clip_counts(piled, 5_000, oracle).max() < piled.max()
    fair = honest.sum(axis=0)
    assert (clip_counts(fair, 900, oracle) == fair).all()


def test_bad_parameters_are_one_sentence():
    for name, wrong in (
        ("latent_classes", -1), ("prior_scale", -2.0), ("chains", 0), ("langevin_steps", 0), ("stages", 3),
        ("clients_per_batch", 0),
    ):  # fmt: skip
        with pytest.raises(SpecError):
            Poll(epsilon=1.0, **{name: wrong})


def test_a_workload_is_groups_of_names_text_on_the_command_line_and_text_in_old_files(small_schema):
    groups = [("colour", "size"), ("sold", "weight")]
    poll = Poll(epsilon=1.0, workload=groups, target=None)
    assert poll == make_protocol("poll", {"epsilon": 1.0, "workload": "colour+size, sold+weight", "target": "none"})
    old = {"epsilon": 1.0, "workload": "colour+size, sold+weight", "target": "none", "batch": 16_384, "moves": 300}
    assert poll == Poll(**Poll.settings_from_file(old))
    assert poll.goal(small_schema) is None
    assert poll.survey(Population(schema=small_schema, clients=50)).groups.count((0, 1)) >= 1
    with pytest.raises(SpecError, match="workload"):
        Poll(epsilon=1.0, workload="colour+size")
