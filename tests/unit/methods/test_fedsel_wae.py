"""fedsel-wae: what is sent, what it costs, and what the server makes of it."""

import jax
import numpy as np
import pytest

from populace.engines import simulation
from populace.engines.runtime import population_of
from populace.errors import BudgetError, SpecError
from populace.methods.wae.fedsel_wae import FedSelWae
from populace.privacy.events import Pure
from populace.privacy.source import Keyed
from populace.tables.partition import split

SMALL = {"epsilon": 4.0, "cohort_size": 5, "hidden_size": 4, "latent_size": 2, "local_epochs": 2}


@pytest.fixture(scope="module")
def clients(small_table):
    return split(small_table.take(np.arange(40)), records_per_client=2)


def test_the_published_setting():
    design = FedSelWae(epsilon=8.0)
    assert (design.cohort_size, design.top_share, design.selection_budget_share, design.local_epochs) == (
        10,
        0.05,
        0.5,
        10,
    )


def test_moves_are_bits_at_the_coordinates_told_and_rows_by_arg_max(clients):
    protocol = FedSelWae(**SMALL, pretraining_steps=2)
    outcome = simulation.run(protocol, clients, root=jax.random.key(0))
    assert outcome.rounds == 4
    assert outcome.generator.arg_max
    first = protocol.begin(population_of(clients), jax.random.fold_in(jax.random.key(0), 0))
    mechanism = protocol.parts(population_of(clients)).learner.mechanism
    assert mechanism.bound == pytest.approx(2e-3)
    moved = np.asarray(outcome.state.learner.theta - first.learner.theta) * 5 / mechanism.unit
    np.testing.assert_allclose(moved, np.round(moved), atol=1e-3)
    assert 0 < np.abs(np.round(moved)).sum() <= 20


def test_both_stages_are_charged_and_one_more_report_is_refused(clients):
    protocol = FedSelWae(**{**SMALL, "participations": 2})
    population = population_of(clients)
    outcome = simulation.run(protocol, clients, root=jax.random.key(0))
    assert outcome.ledger.spent()["epsilon"] == pytest.approx(4.0)
    ask = protocol.ask(protocol.begin(population, jax.random.key(0)), population, Keyed(jax.random.key(1)))
    assert protocol.charge(ask, population).event == Pure(2.0)
    with pytest.raises(BudgetError):
        outcome.ledger.book(np.array([0]), protocol.charge(ask, population), round_id=99)
    statement = protocol.guarantee(population)
    assert (statement.epsilon, statement.trust, statement.unit) == (4.0, "local", "client")
    assert "index costs 1 " in statement.derivation[0]


def test_bad_settings_are_refused():
    for wrong in (
        {"epsilon": 0.0}, {"cohort_size": 0}, {"top_share": 0.0}, {"top_share": 1.0},
        {"selection_budget_share": 1.0}, {"server_learning_rate": -1.0},
        {"learning_rate": 0.0}, {"epsilon": 1e-6},
    ):  # fmt: skip
        with pytest.raises(SpecError):
            FedSelWae(**{"epsilon": 4.0, **wrong})
