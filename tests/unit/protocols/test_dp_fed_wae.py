"""DP-Fed-WAE: what is sent, what it costs, and that it learns."""

import dataclasses

import jax
import numpy as np
import pytest

from populace.engines import simulation
from populace.engines.exchange import population_of
from populace.errors import BudgetError, SpecError
from populace.models.wae import ClassAutoencoder, DenseAutoencoder
from populace.privacy.events import Pure
from populace.privacy.source import Keyed
from populace.protocols.base import Shard
from populace.protocols.dp_fed_wae import DpFedWae
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
    schema = binary_people(4, columns=124).data.schema
    paper = DpFedWae(epsilon=8.0, recipe="paper").design(schema)
    assert isinstance(paper.net, DenseAutoencoder)
    assert (paper.mechanism.size, paper.mechanism.chosen, paper.rotated) == (18_188, 909, False)
    best = DpFedWae(epsilon=8.0).design(schema)
    assert isinstance(best.net, ClassAutoencoder)
    assert (best.parameters, best.mechanism.size, best.mechanism.chosen, best.rotated) == (1_116, 2_048, 6, True)
    assert best.mechanism.wire_bytes == 2


def test_learns_dependence_that_independent_columns_do_not_have():
    clients = binary_people(20_000)
    outcome = simulation.run(DpFedWae(epsilon=4.0, classes=4), clients, root=jax.random.key(0))
    codes = outcome.generator.sample_codes(20_000, jax.random.key(1), {})
    found, real = np.corrcoef(codes.T), np.corrcoef(np.asarray(clients.data.codes).T)
    away = ~np.eye(8, dtype=bool)
    assert real[away].mean() == pytest.approx(0.49, abs=0.02)
    assert found[away].mean() > 0.25
    assert np.abs(codes.mean(axis=0) - 0.5).max() < 0.1


def test_paper_recipe_runs_and_decodes_by_arg_max():
    clients = binary_people(60)
    protocol = DpFedWae(epsilon=4.0, recipe="paper", hidden=6, latent=2, epochs=2, pretraining=3)
    outcome = simulation.run(protocol, clients, root=jax.random.key(0))
    assert outcome.rounds == 6
    assert outcome.generator.arg_max
    first = protocol.begin(population_of(clients), jax.random.fold_in(jax.random.key(0), 0))
    moved = np.asarray(outcome.state.theta - first.theta)
    np.testing.assert_allclose(moved * 10, np.round(moved * 10), atol=1e-4)  # gamma s/n at the coordinates told


def test_participations_share_epsilon_and_one_more_is_refused():
    clients = binary_people(20)
    protocol = DpFedWae(epsilon=4.0, participations=4, cohort=5, classes=2)
    population = population_of(clients)
    assert protocol.rounds(population) == 16
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
    protocol = DpFedWae(epsilon=4.0, participations=2, cohort=5, classes=2)
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
    protocol = DpFedWae(epsilon=4.0, recipe=recipe, hidden=4, latent=2, epochs=2, classes=2)
    ask = protocol.ask(protocol.begin(population, jax.random.key(0)), population, Keyed(jax.random.key(1)))
    blank = Shard(records=np.zeros((2, 8), np.int32), mask=np.zeros(2, bool), population=population)
    full = dataclasses.replace(blank, records=np.ones((2, 8), np.int32))
    key = Keyed(jax.random.key(5))
    assert protocol.answer(ask.common, 0, blank, (), key)[0] == protocol.answer(ask.common, 0, full, (), key)[0]


def test_steps_fall_geometrically_after_the_biases_were_learned():
    protocol = DpFedWae(epsilon=4.0, step=2.0, last_step=0.2)
    warming, step = (np.asarray(x) for x in jax.vmap(lambda r: protocol.schedule(r, 1000))(np.arange(1000)))
    assert warming.sum() == 150
    assert step[150] == pytest.approx(2.0)
    assert step[999] == pytest.approx(0.2, rel=0.01)
    np.testing.assert_allclose(step[152:] / step[151:-1], step[152] / step[151], rtol=1e-4)


def test_only_biases_move_while_warming():
    clients = binary_people(40)
    protocol = DpFedWae(epsilon=8.0, cohort=40, warm=0.9, classes=2, participations=10)
    population = population_of(clients)
    outcome = simulation.run(protocol, clients, root=jax.random.key(0))
    first = protocol.begin(population, jax.random.fold_in(jax.random.key(0), 0))
    weights = np.asarray(outcome.state.design.weights(True))
    assert weights.sum() == 8
    assert weights[:8].all()
    assert (np.asarray(outcome.state.theta - first.theta)[:8] != 0).all()


def test_bad_settings_are_refused():
    for wrong in (
        {"epsilon": 0.0}, {"classes": 0}, {"participations": 0}, {"share": 1.5}, {"warm": 1.0}, {"step": -1.0},
        {"learning_rate": 0.0}, {"recipe": "other"}, {"pretraining": 5}, {"epsilon": 1e-6, "participations": 2},
    ):  # fmt: skip
        with pytest.raises(SpecError):
            DpFedWae(**{"epsilon": 4.0, **wrong})
