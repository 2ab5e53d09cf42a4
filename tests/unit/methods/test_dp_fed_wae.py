"""DP-Fed-WAE: what is sent, what it costs, and that it learns."""

import dataclasses

import jax
import numpy as np
import pytest

from populace.engines import simulation
from populace.engines.runtime import population_of
from populace.errors import BudgetError, SpecError
from populace.methods.base import Replies, Shard
from populace.methods.blocks.networks import count_parameters
from populace.methods.wae.autoencoders import ClassAutoencoder, DenseAutoencoder
from populace.methods.wae.dp_fed_wae import DpFedWae
from populace.privacy.events import Pure
from populace.privacy.shuffling import with_shuffling
from populace.privacy.source import Keyed
from populace.tables.partition import split
from populace.tables.schema import Column, Schema
from populace.tables.table import from_codes


def binary_people(clients, columns=8, seed=0):
    """Two kinds of people: every column leans the same way as the first, or against it."""
    rng = np.random.default_rng(seed)
    schema = Schema(
        columns=tuple(Column(name=f"c{i}", kind="categorical", categories=("0", "1")) for i in range(columns))
    )
    kind = rng.integers(0, 2, 2 * clients)
    codes = (rng.random((2 * clients, columns)) < np.where(kind[:, None] == 1, 0.85, 0.15)).astype(np.int32)
    return split(from_codes(codes, schema, rng), records_per_client=2)


def test_recipes_have_their_networks_and_mechanisms():
    population = population_of(binary_people(4, columns=124))
    paper = DpFedWae(epsilon=8.0, recipe="paper").parts(population).learner
    assert isinstance(paper.net, DenseAutoencoder)
    assert (paper.mechanism.size, paper.mechanism.chosen) == (18_188, 909)
    best = DpFedWae(epsilon=8.0).parts(population).learner
    assert isinstance(best.net, ClassAutoencoder)
    assert (count_parameters(best.net.shapes), best.mechanism.size, best.mechanism.chosen) == (1_124, 1_024, 3)
    assert best.mechanism.wire_bytes == 2
    aimed = dataclasses.replace(population, schema=dataclasses.replace(population.schema, target="c3"))
    tied = DpFedWae(epsilon=8.0).parts(aimed).learner
    assert (tied.net.target, count_parameters(tied.net.shapes), tied.mechanism.size) == (3, 10 * 124 + 16, 2_048)


def learned(epsilon, target=None):
    """Correlations of the first column with the others and among the others, and the columns' means, of rows made."""
    clients = binary_people(4_000)
    if target:
        clients = dataclasses.replace(
            clients, data=dataclasses.replace(clients.data, schema=clients.data.schema.with_target(target))
        )
    outcome = simulation.run(
        DpFedWae(epsilon=epsilon, latent_classes=2, cohort_size=20), clients, root=jax.random.key(0)
    )
    codes = outcome.generator.sample_codes(20_000, jax.random.key(1), {})
    found = np.corrcoef(codes.T)
    return found[0, 1:].mean(), found[1:, 1:][~np.eye(7, dtype=bool)].mean(), codes.mean(axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("target", [None, "c0"])
def test_learns_the_dependence_there_is(target):
    """It is .49 between any two columns; independent columns have none."""
    first, others, means = learned(8.0, target)
    assert first == pytest.approx(0.49, abs=0.12)
    assert others == pytest.approx(0.49, abs=0.12)
    assert np.abs(means - 0.5).max() < 0.05


def test_with_next_to_no_epsilon_next_to_nothing_is_learned():
    first, others, _ = learned(0.05)
    assert abs(first) < 0.15
    assert abs(others) < 0.15


def test_paper_recipe_runs_and_decodes_by_arg_max():
    clients = binary_people(60)
    protocol = DpFedWae(epsilon=4.0, recipe="paper", hidden_size=6, latent_size=2, local_epochs=2, pretraining_steps=3)
    outcome = simulation.run(protocol, clients, root=jax.random.key(0))
    assert outcome.rounds == 6
    assert outcome.generator.arg_max
    first = protocol.begin(population_of(clients), jax.random.fold_in(jax.random.key(0), 0))
    moved = np.asarray(outcome.state.learner.theta - first.learner.theta)
    np.testing.assert_allclose(moved * 10, np.round(moved * 10), atol=1e-4)  # gamma s/n at the coordinates told


def test_participations_share_epsilon_and_one_more_is_refused():
    clients = binary_people(20)
    protocol = DpFedWae(epsilon=4.0, participations=4, cohort_size=5, latent_classes=2)
    population = population_of(clients)
    assert protocol.round_count(population) == 16
    outcome = simulation.run(protocol, clients, root=jax.random.key(0))
    spent = outcome.ledger.spent()
    assert spent["epsilon"] == pytest.approx(4.0)
    assert spent["charges"] == 80
    ask = protocol.ask(protocol.begin(population, jax.random.key(0)), population, Keyed(jax.random.key(1)))
    assert protocol.charge(ask, population).event == Pure(1.0)
    with pytest.raises(BudgetError):
        outcome.ledger.book(np.array([0]), protocol.charge(ask, population), round_id=99)


def test_every_client_is_asked_once_a_pass_and_leftovers_form_a_smaller_cohort():
    clients = binary_people(23)
    protocol = DpFedWae(epsilon=4.0, participations=2, cohort_size=5, latent_classes=2)
    state = protocol.begin(population_of(clients), jax.random.key(0))
    order = np.asarray(state.order)
    assert order.shape == (10, 5)
    for half in (order[:5], order[5:]):
        assert sorted(half[half >= 0].tolist()) == list(range(23))
    assert (order[:5] != order[5:]).any()


@pytest.mark.parametrize("recipe", ["best", "paper"])
def test_client_without_records_answers_as_if_its_update_were_zero(recipe):
    clients = binary_people(20)
    population = population_of(clients)
    protocol = DpFedWae(epsilon=4.0, recipe=recipe, hidden_size=4, latent_size=2, local_epochs=2, latent_classes=2)
    ask = protocol.ask(protocol.begin(population, jax.random.key(0)), population, Keyed(jax.random.key(1)))

    @jax.jit
    def answer(records):
        shard = Shard(records=records, mask=np.zeros(2, bool), population=population)
        return protocol.answer(ask.common, 0, shard, (), Keyed(jax.random.key(5)))[0]

    assert answer(np.zeros((2, 8), np.int32)) == answer(np.ones((2, 8), np.int32))


def test_first_rounds_learn_the_columns_own_tables_and_later_ones_keep_them():
    clients = binary_people(400)
    protocol = DpFedWae(epsilon=8.0, cohort_size=40, warmup_share=0.5, latent_classes=2)
    population = population_of(clients)
    state = protocol.begin(population, jax.random.key(0))
    thetas, kinds = [np.asarray(state.learner.theta)], []
    records = np.asarray(clients.data.codes).reshape(400, 2, 8)

    @jax.jit
    def answer(common, records, key):
        shard = Shard(records=records, mask=np.ones(2, bool), population=population)
        return protocol.answer(common, 0, shard, (), Keyed(key))[0]

    for number in range(10):
        ask = protocol.ask(state, population, Keyed(jax.random.key(number)))
        kinds.append(bool(ask.common["warming"]))
        reports = [
            answer(ask.common, records[client], jax.random.fold_in(jax.random.key(number), slot))
            for slot, client in enumerate(np.asarray(ask.cohort)[:4])
        ]
        replies = Replies(clients=ask.cohort[:4], present=np.ones(4, bool), values=np.array(reports))
        state = jax.jit(protocol.absorb)(state, ask, replies, Keyed(jax.random.key(9)))
        thetas.append(np.asarray(state.learner.theta))
    assert kinds == [True] * 5 + [False] * 5
    for kind, before, after in zip(kinds, thetas, thetas[1:], strict=False):
        changed = before != after
        assert changed[:8].any() == kind
        assert changed[8:].any() != kind
    assert protocol.ask(state, population, Keyed(jax.random.key(0))) is None
    assert int(state.learner.heard) == 5 * 4


@pytest.mark.parametrize(("epsilon", "participations", "first"), [(8, 1, 100), (4, 1, 200), (8, 2, 200), (1, 1, 500)])
def test_share_of_first_rounds_by_the_public_rule(epsilon, participations, first):
    assert DpFedWae(epsilon=epsilon, participations=participations).first_rounds(1_000) == first
    assert DpFedWae(epsilon=epsilon, participations=participations, warmup_share=0.3).first_rounds(1_000) == 300
    assert DpFedWae(epsilon=epsilon, recipe="paper").first_rounds(1_000) == 0


def test_a_part_of_the_model_is_sent_and_moves_that_part_only():
    clients = binary_people(400, columns=20)
    protocol = DpFedWae(epsilon=8.0, cohort_size=4, latent_classes=2, submodel=0.4, warmup_share=0.01)
    population = population_of(clients)
    learner = protocol.parts(population).learner
    assert (learner.places, count_parameters(learner.net.shapes)) == (8, 3 * 20 + 2)
    assert protocol.reply_bytes(None, population)[0] == 4 * 26 + 16
    assert any("saved" in note and "55%" in note for note in protocol.plan(population).notes)
    state = dataclasses.replace(protocol.begin(population, jax.random.key(0)), round=np.int32(50))
    ask = protocol.ask(state, population, Keyed(jax.random.key(1)))
    assert ask.common["theta"].shape == (26,)
    replies = Replies(clients=ask.cohort, present=np.ones(4, bool), values=np.array([3, 5, 8, 64]))
    after = jax.jit(protocol.absorb)(state, ask, replies, Keyed(jax.random.key(2)))
    moved = np.asarray(after.learner.theta != state.learner.theta)
    kept = np.asarray(learner.kept(state.learner.coin, 50)) > 0
    assert kept.sum() == 8
    assert not moved[:20].any()
    for row in moved[20:60].reshape(2, 20):
        assert not row[~kept].any()
        assert row[kept].mean() > 0.5
    with pytest.raises(SpecError, match="recipe paper"):
        DpFedWae(epsilon=8.0, recipe="paper", submodel=0.5)


@pytest.mark.slow
def test_a_part_of_the_model_still_learns():
    """Half of the columns at a time: correlations of .49 come out above a third."""
    clients = binary_people(6_000)
    protocol = DpFedWae(epsilon=8.0, latent_classes=2, cohort_size=20, submodel=0.5)
    outcome = simulation.run(protocol, clients, root=jax.random.key(0))
    found = np.corrcoef(outcome.generator.sample_codes(20_000, jax.random.key(1), {}).T)
    assert found[~np.eye(8, dtype=bool)].mean() > 0.33
    per_client = outcome.traffic.to_json()["bytes_to_one_client_per_message"]
    assert per_client == protocol.reply_bytes(None, population_of(clients))[0] < 4 * 26 + 16


def test_a_run_can_start_from_a_former_decoder():
    clients = binary_people(200)
    population = population_of(clients)
    protocol = DpFedWae(epsilon=4.0, latent_classes=2, cohort_size=100)
    former = simulation.run(protocol, clients, root=jax.random.key(0)).generator
    state = protocol.begin(population, jax.random.key(1), warm=former)
    again = protocol.finish(state, population, jax.random.key(2))
    np.testing.assert_allclose(again.layers["chances"], former.layers["chances"], atol=1e-3)
    np.testing.assert_allclose(again.layers["classes"], former.layers["classes"], atol=0.05)
    cold = protocol.finish(protocol.begin(population, jax.random.key(1)), population, jax.random.key(2))
    assert np.abs(cold.layers["classes"] - former.layers["classes"]).max() > 0.3


def test_several_indices_are_told_as_one_set_at_the_same_cost():
    clients = binary_people(40)
    protocol = DpFedWae(epsilon=4.0, recipe="paper", hidden_size=4, latent_size=2, local_epochs=1, indices=3, overlap=2)
    outcome = simulation.run(protocol, clients, root=jax.random.key(0))
    mechanism = protocol.parts(population_of(clients)).learner.mechanism
    assert (mechanism.reported, mechanism.least, mechanism.event) == (3, 2, Pure(4.0))
    assert outcome.ledger.spent()["epsilon"] == pytest.approx(4.0)
    first = protocol.begin(population_of(clients), jax.random.fold_in(jax.random.key(0), 0))
    assert np.abs(np.asarray(outcome.state.learner.theta - first.learner.theta) * 10).sum() <= 3 * 40 + 0.1


def test_central_statement_stands_beside_the_local_one_and_only_where_each_is_asked_once():
    population = population_of(binary_people(20))
    population = dataclasses.replace(population, clients=50_000)
    statement = DpFedWae(epsilon=4.0).guarantee(population)
    assert (statement.epsilon, statement.delta, statement.trust) == (4.0, 0.0, "local")
    assert statement.shuffles
    assert "not part of it" in with_shuffling(statement, answered=50_000).derivation[-1]
    assert "not part of it" not in str(statement)
    assert any("central model" in note for note in DpFedWae(epsilon=4.0).plan(population).notes)
    twice = DpFedWae(epsilon=4.0, participations=2).guarantee(population)
    assert not twice.shuffles
    assert with_shuffling(twice, answered=50_000) == twice


def test_bad_settings_are_refused():
    for wrong in (
        {"epsilon": 0.0}, {"latent_classes": 0}, {"participations": 0}, {"top_share": 1.5}, {"warmup_share": 1.0},
        {"server_learning_rate": -1.0},
        {"learning_rate": 0.0}, {"recipe": "other"}, {"pretraining_steps": 5}, {"epsilon": 1e-6, "participations": 2},
    ):  # fmt: skip
        with pytest.raises(SpecError):
            DpFedWae(**{"epsilon": 4.0, **wrong})
