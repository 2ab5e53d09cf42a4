"""FLAIM: counts, scores and replies keep their bounds on neighbours, wrong ones are noticed, and choices follow the papers."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from builders import dependent_codes, small_schema
from populace.audits import shapes
from populace.audits.grey_box import audit_grey_box
from populace.engines import simulation
from populace.errors import SpecError
from populace.methods.base import Ask, Population, Replies, Shard
from populace.methods.blocks.clique_tree import elimination_cells
from populace.methods.blocks.schedules import Cohort
from populace.methods.flaim.learner import FlaimLearner
from populace.methods.flaim.model import answers_of, fit_model, in_model, with_room
from populace.methods.flaim.protocol import AllThenSampled, Flaim
from populace.methods.flaim.release import calibrated_noise
from populace.methods.flaim.workload import Workload
from populace.privacy.accounting import epsilon_of
from populace.privacy.source import Keyed
from populace.tables.partition import split
from populace.tables.schema import Column, Schema
from populace.tables.table import from_codes

VARIANTS = ("naive", "augmented")
SIZES = small_schema().sizes
RECORDS = 40


def population(clients=4, records=RECORDS, schema=None):
    return Population(schema=schema or small_schema(), clients=clients, records=records)


def learner_of(variant, clients=4, records=RECORDS, schema=None, **settings):
    method = Flaim(**{"epsilon": 2.0, "variant": variant, "rounds": 3, "fit_steps": 20, **settings})
    return method.parts(population(clients, records, schema)).learner


def shard_of(learner, codes, mask=None, records=RECORDS):
    padded = np.zeros((records, len(learner.workload.sizes)), np.int32)
    padded[: len(codes)] = codes
    held = np.arange(records) < len(codes)
    return Shard(records=padded, mask=held if mask is None else held & mask, population=population(records=records))


def random_question(learner, seed, number=1):
    """What a server may send: model's answers that sum to one, measured columns that need not."""
    rng = np.random.default_rng(seed)
    workload = learner.workload
    answers = rng.exponential(size=workload.total_cells)
    answers /= np.bincount(workload.set_of_cell, answers)[workload.set_of_cell]
    if number == 0:
        return {"columns": jnp.int32(0)}
    return {
        "answers": jnp.asarray(answers, jnp.float32),
        "one_way": jnp.asarray(rng.normal(0.2, 0.3, workload.one_way_cells), jnp.float32),
        "allowed": jnp.asarray(workload.orders > 1),
    }


# Counts


def test_counts_are_the_tables_of_all_sets_and_a_record_is_in_one_cell_of_each():
    workload = Workload(SIZES, 3, 2**20)
    assert workload.sets[:4] == ((0,), (1,), (2,), (3,))
    assert len(workload.sets) == 4 + 6 + 4
    codes, mask = dependent_codes(small_schema(), 50), np.arange(50) < 41
    counts = np.asarray(workload.counts(codes, mask))
    for number, columns in enumerate(workload.sets):
        edges = [np.arange(SIZES[column] + 1) - 0.5 for column in columns]
        wanted = np.histogramdd(codes[:41][:, columns], edges)[0]
        np.testing.assert_array_equal(workload.table(counts, number), wanted)
    one = np.asarray(workload.counts(codes[:1], np.ones(1, bool)))
    np.testing.assert_array_equal(np.asarray(workload.sums(one)), np.ones(14))
    assert one.max() == 1


def test_sets_too_large_for_a_model_are_left_out_and_single_columns_never():
    workload = Workload((50, 40, 3), 3, 200)
    assert workload.sets == ((0,), (1,), (2,), (0, 2), (1, 2))


# Sensitivity


def largest_changes(learner, scores):
    """By how much one record, masked out, changes scores at most, over records and questions; by the order of the set."""
    codes = dependent_codes(small_schema(), 12, seed=3)
    largest = np.zeros(4)
    for seed, gone in itertools.product(range(3), range(len(codes))):
        question, own = random_question(learner, seed), jnp.float32(5.0 + 9 * seed)
        with_it, without = (
            np.asarray(scores(question, own, shard_of(learner, codes, mask)), np.int64)
            for mask in (None, np.arange(RECORDS) != gone)
        )
        for order in (1, 2, 3):
            change = np.abs(with_it - without)[learner.workload.orders == order].max()
            largest[order] = max(largest[order], change)
    return largest


def counted(learner, shard):
    return learner.workload.counts(shard.records, shard.mask)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_record_changes_scores_by_what_the_mechanism_allows_for(variant):
    learner = learner_of(variant)
    found = largest_changes(
        learner, lambda question, own, shard: learner.scores(question, own, counted(learner, shard))
    )
    assert found.max() <= learner.release.choice.sensitivity
    assert found.max() > 0.6 * learner.release.choice.sensitivity  # the bound is not idle
    assert (found <= np.arange(4) * learner.grid * (1 + learner.augmented)).all()


def test_scores_that_take_the_number_of_records_from_the_records_are_caught():
    learner = learner_of("naive")
    found = largest_changes(
        learner,
        lambda question, own, shard: learner.scores(question, jnp.float32(shard.mask.sum()), counted(learner, shard)),
    )
    assert found.max() > learner.release.choice.sensitivity


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("number", [0, 1])
def test_a_record_changes_what_the_server_sums_by_the_bound(variant, number):
    """Given the choice; in the first exchange the client's own number of records is a count of its own."""
    learner = learner_of(variant)
    codes = dependent_codes(small_schema(), 12, seed=3)
    question = random_question(learner, 0, number)
    if number:
        question["allowed"] = jnp.arange(len(learner.workload.sets)) == 6
    sent = [
        learner.answer(question, jnp.float32(12.0), shard_of(learner, codes, mask), Keyed(jax.random.key(0)))
        for mask in (None, np.arange(RECORDS) != 4)
    ]
    assert [int(one.get("choice", -1)) for one in sent] == [6 if number else -1] * 2
    change = sum(float(((part - sent[1][name]) ** 2).sum()) for name, part in sent[0].items() if name != "choice")
    mechanism = learner.release.later if number else learner.release.first
    assert math.sqrt(change + (number == 0)) == pytest.approx(mechanism.bound)
    assert mechanism.scale == pytest.approx(learner.release.deviation)


# Choices


@pytest.mark.parametrize("variant", VARIANTS)
def test_choices_of_a_client_follow_its_scores(variant):
    """With the epsilon that is booked; a client that chose with twice that would be noticed."""
    learner = learner_of(variant, epsilon=8.0)
    codes = dependent_codes(small_schema(), 30, seed=1)
    question, own, shard = random_question(learner, 2), jnp.float32(30.0), shard_of(learner, codes)
    draw = jax.jit(jax.vmap(lambda key: learner.answer(question, own, shard, Keyed(key))["choice"]))
    found = np.bincount(
        np.asarray(draw(jax.random.split(jax.random.key(7), 4000))), minlength=len(learner.workload.sets)
    )
    scores = np.asarray(learner.scores(question, own, counted(learner, shard)), np.float64)
    allowed = np.asarray(question["allowed"])

    def p_value(factor):
        choice = learner.release.choice
        weights = np.exp(factor * choice.epsilon / (2 * choice.sensitivity) * (scores - scores.max())) * allowed
        return stats.chisquare(found[allowed], (weights / weights.sum() * 4000)[allowed]).pvalue

    assert p_value(1) > 1e-3
    assert p_value(2) < 1e-6


def codes_of_unlike_clients(rows=4000):
    """Four binary columns, the last two alike in half the rows; the first client's first column is more often 1, the
    other's 0."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2, (2 * rows, 4))
    codes[:, 3] = np.where(rng.random(2 * rows) < 0.4, codes[:, 2], codes[:, 3])
    codes[:, 0] = rng.random(2 * rows) < np.where(np.arange(2 * rows) < rows, 0.75, 0.25)
    return codes.astype(np.int32)


def test_the_correction_turns_a_clients_choice_from_itself_to_what_all_share():
    schema = Schema(columns=tuple(Column(name=name, kind="categorical", categories=("0", "1")) for name in "abcd"))
    codes = codes_of_unlike_clients()
    chosen = {}
    for variant in VARIANTS:
        learner = learner_of(variant, clients=2, records=4000, schema=schema, workload="pairs", epsilon=4.0)
        columns = np.concatenate([np.bincount(codes[:, column], minlength=2) / len(codes) for column in range(4)])
        tables = [
            np.outer(columns[2 * i : 2 * i + 2], columns[2 * j : 2 * j + 2]) for i, j in learner.workload.sets[4:]
        ]
        question = {
            "answers": jnp.asarray(np.concatenate([columns, *(table.reshape(-1) for table in tables)]), jnp.float32),
            "one_way": jnp.asarray(columns, jnp.float32),
        }
        shard = shard_of(learner, codes[:4000], records=4000)
        scores = np.array(learner.scores(question, jnp.float32(4000.0), counted(learner, shard)))
        scores[:4] = scores.min()
        chosen[variant] = learner.workload.sets[int(scores.argmax())]
    assert 0 in chosen["naive"]
    assert chosen["augmented"] == (2, 3)


# The server


def absorbed(learner, state, number, choices, tables, one_way, key=0):
    clients = np.arange(len(choices))
    ask = Ask(round=number, cohort=clients, common=(), own=())
    table = np.zeros((len(choices), learner.workload.widest), np.int32)
    for row, one in enumerate(tables):
        table[row, : len(one)] = one
    values = {"choice": np.array(choices), "table": table, "one_way": np.asarray(one_way, np.int32)}
    replies = Replies(clients=clients, present=np.ones(len(choices), bool), values=values)
    return learner.absorb(state, ask, replies, Keyed(jax.random.key(key)))


def test_tables_of_those_who_chose_the_same_are_added_up_as_of_their_records():
    """With hardly any noise; a marginal that nobody chose stays unmeasured."""
    learner = learner_of("naive", clients=3, records=1000, epsilon=8.0, workload="pairs", fit_steps=300)
    workload = learner.workload
    all_codes = [dependent_codes(small_schema(), rows, seed=rows) for rows in (900, 500, 300)]
    counts = [np.asarray(workload.counts(codes, np.ones(len(codes), bool))) for codes in all_codes]
    state = absorbed(
        learner, learner.begin(None), 0, [-1] * 3, [[0]] * 3, [one[: workload.one_way_cells] for one in counts]
    )
    np.testing.assert_allclose(state.records, [900, 500, 300], atol=6 * learner.release.deviation)
    choices = [5, 5, 7]
    parts = [workload.table(one, choice).reshape(-1) for one, choice in zip(counts, choices, strict=True)]
    later = absorbed(learner, state, 1, choices, parts, np.zeros((3, workload.one_way_cells)), key=1)
    assert (np.flatnonzero(later.precision) == [0, 1, 2, 3, 5, 7]).all()
    wanted = (parts[0] + parts[1]) / 1400
    found = workload.table(later.weighted, 5).reshape(-1) / later.precision[5]
    np.testing.assert_allclose(found, wanted, atol=0.02)
    np.testing.assert_allclose(workload.table(later.answers, 5).reshape(-1), wanted, atol=0.03)
    assert later.precision[5] == pytest.approx((state.records[:2].sum()) ** 2)


def test_the_model_holds_what_fits_and_room_is_given_out_round_by_round():
    workload = Workload((4,) * 5, 3, 2**10)
    number = {columns: place for place, columns in enumerate(workload.sets)}
    precision = np.zeros(len(workload.sets))
    precision[:5] = 1.0
    both = elimination_cells(workload.sizes, [(0, 1, 2), (2, 3, 4)])
    precision[[number[0, 1, 2], number[2, 3, 4], number[0, 3]]] = 9.0, 5.0, 2.0
    assert [workload.sets[one] for one in in_model(workload, precision, both)][5:] == [(0, 1, 2), (2, 3, 4)]
    precision[number[0, 3]] = 0
    few = with_room(workload, precision, 10 * both, share=0.1, least_order=2)
    assert few[[number[0, 1], number[0, 1, 2], number[3, 4]]].all()
    assert not few[: len(workload.sizes)].any()
    assert not few[number[0, 3]]
    assert with_room(workload, precision, 1000, share=1.0, least_order=1).all()
    assert with_room(workload, precision, 10, share=0.1, least_order=2).any()  # there is always one


def test_a_model_of_exact_tables_answers_with_them():
    workload = Workload(SIZES, 2, 2**10)
    codes = dependent_codes(small_schema(), 5000)
    counts = np.asarray(workload.counts(codes, np.ones(5000, bool)), np.float64)
    measured = workload.orders < 2
    measured[[4, 5, 9]] = True  # columns 0 and 1, 0 and 2, 2 and 3
    weighted = np.where(measured[workload.set_of_cell], counts * 5000, 0)
    tree = fit_model(workload, weighted, np.where(measured, 5000.0**2, 0), 1.0, most_cells=2**10, fit_steps=1000)
    answers = answers_of(workload, tree)
    for number in np.flatnonzero(measured):
        np.testing.assert_allclose(workload.table(answers, number), workload.table(counts, number) / 5000, atol=2e-3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_with_much_budget_pairs_are_those_of_the_data(variant):
    schema = small_schema()
    table = from_codes(dependent_codes(schema, 3000), schema, np.random.default_rng(0))
    method = Flaim(epsilon=10.0, variant=variant, rounds=4, workload="pairs", fit_steps=500)
    outcome = simulation.run(method, split(table, records_per_client=1000), root=jax.random.key(1))
    tree = outcome.generator.tree
    for first, second in itertools.combinations(range(4), 2):
        real = np.histogram2d(table.codes[:, first], table.codes[:, second], [np.arange(n + 1) - 0.5 for n in
                              (schema.sizes[first], schema.sizes[second])])[0] / 3000  # fmt: skip
        assert np.abs(tree.marginal((first, second)) - real).sum() / 2 < 0.05


# What the recorder sees


@dataclasses.dataclass(frozen=True)
class LoudLearner(FlaimLearner):
    """Scores that count every record three times, under a mechanism that covers one."""

    def scores(self, question, own, counts):
        return 3 * super().scores(question, own, counts)


@dataclasses.dataclass(frozen=True)
class ChoosesTwice(FlaimLearner):
    """A second choice that nobody pays for, at every client."""

    def answer(self, question, own, shard, source):
        super().answer(question, own, shard, source)
        return super().answer(question, own, shard, source)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Careless(Flaim):
    flaw: Literal["loud", "twice"] = "loud"
    meanings: ClassVar = {**Flaim.meanings, "flaw": "What is wrong."}

    def compose(self, population):
        parts = super().compose(population)
        kind = {"loud": LoudLearner, "twice": ChoosesTwice}[self.flaw]
        fields = {field.name: getattr(parts.learner, field.name) for field in dataclasses.fields(FlaimLearner)}
        return dataclasses.replace(parts, learner=kind(**fields))


def problems_of(method):
    pairs, population = shapes.neighbouring_clients(shapes.shape_for("table"), unit="record", neighbours="zero-out")
    return audit_grey_box(method, pairs[:1], population, key=jax.random.key(3)).problems


def test_the_recorder_follows_choices_and_catches_scores_that_change_too_much_and_choices_not_paid_for():
    few = {"epsilon": 2.0, "rounds": 1, "workload": "pairs", "fit_steps": 2}
    assert problems_of(Flaim(**few)) == ()
    assert any("in a score, and the choice covers" in problem for problem in problems_of(Careless(**few, flaw="loud")))
    twice = problems_of(Careless(**few, flaw="twice"))
    assert any("client 1: epsilon" in problem and "was spent on reports" in problem for problem in twice)


# Schedule, cost, refusals


def test_everybody_first_then_a_public_share_and_never_nobody():
    schedule = AllThenSampled(clients=60, wanted=30, sampling_rate=0.2)
    key = schedule.start(jax.random.key(0))
    cohorts = [np.asarray(schedule.cohort(key, number, Keyed(jax.random.key(9))).clients) for number in range(31)]
    assert (cohorts[0] == np.arange(60)).all()
    asked = np.array([(one >= 0).sum() for one in cohorts[1:]])
    assert 0.15 < asked.mean() / 60 < 0.25
    assert len(np.unique(asked)) > 3
    assert not schedule.secret
    assert schedule.participations == 31
    rare = AllThenSampled(clients=5, wanted=20, sampling_rate=1e-6)
    assert all((np.asarray(rare.cohort(key, number, Keyed(key)).clients) >= 0).sum() == 1 for number in range(1, 21))


def test_a_client_that_was_never_heard_counts_as_the_mean():
    learner = learner_of("naive", clients=3)
    state = dataclasses.replace(learner.begin(None), records=np.array([10.0, 0.0, 30.0]))
    own = learner.own_questions(state, 1, Cohort(jnp.array([0, 1, 2]), jnp.zeros(3)))
    np.testing.assert_allclose(own, [10, 20, 30])


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_budget_is_kept_and_used_up(variant):
    release = Flaim(epsilon=1.0, variant=variant, rounds=7).parts(population()).release
    found = epsilon_of(release.whole, delta=release.delta)
    assert 0.995 < found <= 1.0
    quieter = dataclasses.replace(release.later, noise_multiplier=0.9 * release.later.noise_multiplier)
    less = dataclasses.replace(release, later=quieter)
    assert epsilon_of(less.whole, delta=release.delta) > 1.0


def test_choices_get_their_share():
    few, many = (
        calibrated_noise(epsilon=1.0, delta=1e-5, rounds=5, first=5, later=1, selection_share=share)
        for share in (0.1, 0.4)
    )
    assert many.choice_epsilon == pytest.approx(2 * few.choice_epsilon)
    assert many.deviation > 1.1 * few.deviation


def test_a_run_with_sampled_clients_says_so_and_costs_no_more_than_it_claims():
    schema = small_schema()
    table = from_codes(dependent_codes(schema, 60), schema, np.random.default_rng(0))
    method = Flaim(epsilon=2.0, rounds=2, workload="pairs", fit_steps=5, sampling_rate=0.4)
    outcome = simulation.run(method, split(table, records_per_client=10), root=jax.random.key(2))
    assert outcome.ledger.spent()["epsilon"] <= outcome.guarantee.epsilon <= 2.0
    assert any("that clients are drawn does not count" in line for line in outcome.guarantee.derivation)
    assert method.plan(population()).notes[0].startswith("10 marginals of up to 2 columns")


@pytest.mark.parametrize(
    ("settings", "where", "message"),
    [
        ({"selection_share": 1.0}, {}, "selection_share"),
        ({"rounds": 0}, {}, "rounds"),
        ({"sampling_rate": 0.0}, {}, "sampling_rate"),
        ({"model_cells": 5}, {}, "two columns"),
        ({}, {"clients": 2**23}, "silos"),
        ({}, {"records": 2**29}, "32 bits"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(settings, where, message):
    with pytest.raises(SpecError, match=message):
        Flaim(epsilon=1.0, **settings).parts(population(**where))
