"""Columns asked about in groups: client and server see the same groups, every value is asked about, dependence survives."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from populace.engines import simulation
from populace.methods.base import Population
from populace.methods.blocks.one_report import LONG, VARIANTS, WHOLE, Survey, groups_of, has_views, kept
from populace.methods.poll.answer_counts import layout_of, mean_gains, question_probabilities
from populace.methods.poll.protocol import Poll
from populace.methods.poll.questions import later_schedule, viewed_design
from populace.tables.partition import split
from populace.tables.schema import Column, Schema
from populace.tables.table import from_codes


def scale(name, cells=12, *, spikes=(), nullable=False):
    edges = tuple(float(edge) for edge in range(1, cells + 2))
    return Column(name=name, kind="integer", edges=edges, spikes=spikes, nullable=nullable)


def listed(name, size, kind="categorical"):
    return Column(name=name, kind=kind, categories=tuple(f"v{i}" for i in range(size)))


MIXED = Schema(
    columns=(
        scale("age"), scale("income", 10, spikes=(0.0, 99.0)), scale("visits", 8, nullable=True), listed("ward", 5),
        listed("code", 90), listed("ill", 2),
    ),
    target="ill",
)  # fmt: skip


@pytest.mark.parametrize("groups", [2, 3, 4, 6])
@pytest.mark.parametrize("variant", range(VARIANTS))
def test_groups_of_a_scale_are_runs_and_leave_zero_and_nulls_alone(groups, variant):
    for column in MIXED.columns[:3]:
        found = groups_of(column, (groups, variant))
        inner = found[: column.levels]
        assert list(inner) == sorted(inner)
        assert 1 < max(inner) + 1 <= groups
        assert set(found) == set(range(max(found) + 1))
        if column.nullable:
            assert found.count(found[-1]) == 1
    income = groups_of(MIXED.columns[1], (groups, variant))
    assert income[0] == 0
    assert income.count(0) == 1  # zero, a spike at the end of the scale


def test_cuts_differ_between_variants_and_labels_do_not_matter():
    assert len({groups_of(scale("x", 16), (3, variant)) for variant in range(VARIANTS)}) > 2
    assert len({groups_of(listed("x", 90), (8, variant)) for variant in range(VARIANTS)}) == VARIANTS
    for size, view in ((90, (8, 1)), (6, (3, 1))):
        words, numbers = (
            listed("x", size),
            dataclasses.replace(listed("y", size), categories=tuple(map(str, range(size)))),
        )
        assert groups_of(words, view) == groups_of(numbers, view)
    assert groups_of(listed("x", 5), WHOLE) == tuple(range(5))
    assert kept(scale("x"), WHOLE) == 1 > kept(scale("x"), (4, 0)) > kept(scale("x"), (2, 0)) > 0.7


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_client_and_server_read_a_question_alike(epsilon):
    """The cell a client reports about, against codes looked up one by one; and its chance, against a sum over all records."""
    design = viewed_design(MIXED, epsilon, 5)
    asked = Survey(MIXED, design.groups, epsilon, folds=True, views=design.views)
    rng = np.random.default_rng(0)
    records = np.stack([rng.integers(0, size, 12) for size in MIXED.sizes], axis=1)
    layout = layout_of(asked, "ill")
    one_hot = np.zeros((1, 12, layout.values))
    for row, record in enumerate(records):
        one_hot[0, row, record + layout.offsets] = 1
    chances = list(question_probabilities(asked, layout, np.full((1, 12), 1 / 12), one_hot))
    for question in [*range(0, len(asked.groups), 7), len(asked.groups) - 1]:
        columns, views = asked.groups[question], asked.all_views[question]
        cells = []
        for record in records:
            codes = [groups_of(MIXED.columns[c], v)[record[c]] for c, v in zip(columns, views, strict=True)]
            cell = int(np.ravel_multi_index(codes, asked.shapes[question]))
            cells.append(int(asked.buckets(question)[cell]))
            assert int(asked.cell(record, question)) == cells[-1]
        wanted = np.bincount(cells, minlength=asked.panel.members[question].size) / 12
        assert np.allclose(chances[question][0][0], wanted, atol=1e-5)


@pytest.mark.parametrize("target", [None, 5, 0])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0, 9.0])
def test_every_column_is_asked_about_in_all_its_values(epsilon, target):
    design = viewed_design(MIXED, epsilon, target)
    whole = {g[v.index(WHOLE)] for g, v in zip(design.groups, design.views, strict=True) if WHOLE in v}
    assert set(range(6)) - {target} <= {
        c for g, vs in zip(design.groups, design.views, strict=True) for c, v in zip(g, vs, strict=True) if v == WHOLE
    }
    assert whole
    assert design.shares().sum() == pytest.approx(1)
    assert set(design.schedule) == set(range(len(design.groups)))
    asked = Survey(MIXED, design.groups, epsilon, folds=True, views=design.views)
    assert max(member.wire_bytes for member in asked.panel.members) <= 32
    scales = [set(g) for g, f in zip(design.groups, design.families, strict=True) if f == 2]
    assert all(len(group) > 1 and group <= {0, 1, 2} for group in scales)
    assert design == viewed_design(MIXED, epsilon, target)


def test_tables_without_scales_and_long_lists_are_asked_as_before():
    assert has_views(MIXED)
    assert has_views(Schema(columns=(listed("code", LONG + 1), listed("b", 2))))
    assert not has_views(Schema(columns=(listed("a", LONG), listed("b", 2), listed("c", 3, "ordinal"))))
    plain = Schema(columns=(listed("a", 5), listed("b", 2)))
    for schema in (MIXED, plain):
        asked = Poll(epsilon=1.0).survey(Population(schema=schema, clients=50))
        assert bool(asked.used_views) == has_views(schema)


def test_a_second_stage_keeps_shares_and_goes_where_a_mean_is_unsure():
    design = viewed_design(MIXED, 4.0, 5)
    family = np.asarray(design.families)
    gains = np.ones(len(family))
    of_means = np.zeros(len(family))
    of_means[3] = 1.0
    asked = later_schedule(design, gains, of_means, 20_000, np.random.default_rng(0))
    share = np.bincount(asked, minlength=len(family)) / 20_000
    for number in range(3):
        assert share[family == number].sum() == pytest.approx(design.shares()[family == number].sum(), abs=1e-3)
    assert share[3] > 0.45 * share[family == 0].sum()
    assert (np.diff(asked) < 0).any()


def test_what_an_answer_tells_about_means_follows_from_what_they_have_in_common():
    schema = Schema(columns=(scale("x", 4), listed("b", 2)))
    asked = Survey(schema, ((0,), (1,), (0, 1)), 3.0, folds=True, views=((WHOLE,), (WHOLE,), ((2, 0), WHOLE)))
    layout = layout_of(asked, None)
    rng = np.random.default_rng(0)
    tables = np.concatenate([rng.dirichlet(np.ones(4), (30, 1)), rng.dirichlet(np.ones(2), (30, 1))], axis=2)
    gains = mean_gains(asked, layout, np.ones((30, 1)), tables)
    centres = schema.columns[0].centres()
    means = tables[:, 0, :4] @ centres
    spread = np.sqrt(tables[:, 0, :4].mean(axis=0) @ (centres - means.mean()) ** 2)
    scaled = (means - means.mean()) / max(abs(means.mean()), 0.1 * spread)
    slow = 0.0
    member = asked.panel.members[0]
    for value in range(4):
        chance = tables[:, 0, value]
        support = member.q + (member.p - member.q) * chance.mean()
        slow += np.mean((chance - chance.mean()) * scaled) ** 2 * (member.p - member.q) ** 2 / (support * (1 - support))
    assert gains[0] == pytest.approx(slow, rel=1e-3)
    assert gains[0] > gains[2] > 0
    assert gains[1] < 0.2 * gains[0]  # its draws have nothing to do with the mean but chance


def related(correlation, rows, seed=0):
    """Two scales of twelve cells from normal numbers of this correlation, and a coin."""
    rng = np.random.default_rng(seed)
    x = rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], rows)
    cuts = [-1.38, -0.97, -0.67, -0.43, -0.21, 0, 0.21, 0.43, 0.67, 0.97, 1.38]
    codes = np.stack([np.searchsorted(cuts, x[:, 0]), np.searchsorted(cuts, x[:, 1]), rng.integers(0, 2, rows)], axis=1)
    schema = Schema(columns=(scale("x"), scale("y"), listed("b", 2)))
    return from_codes(codes.astype(np.int32), schema, rng)


@pytest.mark.slow
@pytest.mark.parametrize(("correlation", "low", "high"), [(0.5, 0.3, 0.65), (0.0, -0.12, 0.12)])
def test_correlation_of_two_scales_survives_and_is_not_invented(correlation, low, high):
    table = related(correlation, 8_000)
    poll = Poll(epsilon=4.0, chains=1, langevin_steps=50)
    model = simulation.run(poll, split(table), root=jax.random.key(0)).generator
    codes = model.sample(8_000, jax.random.key(1)).codes
    assert low < np.corrcoef(codes[:, 0], codes[:, 1])[0, 1] < high
    for column, other in itertools.pairwise((0, 2)):
        assert abs(np.corrcoef(codes[:, column], codes[:, other])[0, 1]) < 0.15


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
def test_few_noisy_answers_are_about_columns_alone(epsilon):
    """Without a target the share of questions about several columns rises with the clients, up to what it is for any number."""
    plain = dataclasses.replace(MIXED, target=None)

    def together(clients):
        design = viewed_design(plain, epsilon, None, (), clients)
        assert set(itertools.chain(*design.groups)) == set(range(6))
        return sum(s for s, g in zip(design.shares(), design.groups, strict=True) if len(g) > 1)

    shares = [together(10**power) for power in range(2, 9)]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] == pytest.approx(together(0), abs=0.03)
    assert together(0) > 0.3
    assert viewed_design(MIXED, epsilon, 5, (), 100) == viewed_design(MIXED, epsilon, 5)


def test_a_poll_of_few_clients_asks_about_columns_alone():
    plain = dataclasses.replace(MIXED, target=None)
    poll = Poll(epsilon=1.0)
    few, many = (poll.design(Population(schema=plain, clients=clients)) for clients in (400, 10_000_000))
    assert {len(group) for group in few.groups} == {1}
    assert max(len(group) for group in many.groups) > 1
