"""Plans: from formulas and stored coefficients, without a run and without a compilation."""

import pytest

from populace.methods.base import Population
from populace.methods.registry import BUILT_IN, make_protocol, protocol_class
from populace.runs import plan as plans

NOT_PRIVATE = ("fed-vae", "central-vae")
MEASURED = [name for name in BUILT_IN if "table" in protocol_class(name).facts.kinds and name != "census"]


def method(name, **settings):
    return make_protocol(name, settings if name in NOT_PRIVATE else {"epsilon": 4.0, **settings})


@pytest.mark.parametrize("name", MEASURED)
def test_every_method_of_tables_has_been_measured(name):
    found = plans.cost_model()["methods"][name]
    assert set(found) == {"once", "answer", "value", "worst_ratio"}
    assert found["worst_ratio"] < 4
    assert found["once"] + found["answer"] + found["value"] > 0


def test_seconds_grow_with_clients_and_with_training(small_schema):
    few, many = (Population(schema=small_schema, clients=clients, records=2) for clients in (1_000, 100_000))
    paper = method("dp-fed-wae", recipe="paper")
    once = plans.cost_model()["methods"]["dp-fed-wae"]["once"]
    grown = plans.stored_seconds(paper, many) - once
    assert grown == pytest.approx(100 * (plans.stored_seconds(paper, few) - once))
    assert grown > 0
    longer = method("dp-fed-wae", recipe="paper", local_epochs=30)
    assert plans.stored_seconds(longer, many) - once == pytest.approx(3 * grown)
    assert plans.sizes_of(paper, few)["answer"] == 1_000 * paper.participations


def test_a_method_that_nobody_measured_has_no_estimate(small_schema, monkeypatch):
    monkeypatch.setattr(plans, "cost_model", lambda: {"methods": {}})
    predicted, seconds = plans.plan(method("poll"), Population(schema=small_schema, clients=100))
    assert seconds is None
    assert predicted.guarantee.epsilon == 4.0
