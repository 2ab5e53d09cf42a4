"""A chain: both methods under one budget, the second begun from the first."""

import dataclasses

import dp_accounting
import jax
import numpy as np
import pytest

from populace.engines import debug, simulation
from populace.engines.exchange import population_of
from populace.errors import SpecError
from populace.privacy.source import Keyed
from populace.protocols import vae_rounds
from populace.protocols.chain import Chain
from populace.protocols.registry import make_protocol
from populace.tables.images import Images
from populace.tables.partition import split

THEN = "net=basis,width=2,waves=2,latent=2,participations=2,batch=2,codes=1,asleep=1,fitting=3"
CHAIN = Chain(epsilon=5.0, share=0.7, then_set=THEN)
KEY = jax.random.key(5)


@pytest.fixture(scope="module")
def clients():
    rng = np.random.default_rng(0)
    y = np.arange(24, dtype=np.int32) % 2
    x = np.where(y[:, None, None] == 1, 200, 40) + rng.integers(0, 40, (24, 6, 6))
    return split(Images(x=x.astype(np.uint8), y=y, classes=2), records_per_client=8)


@pytest.fixture(scope="module")
def short():
    patch = pytest.MonkeyPatch()
    patch.setattr(vae_rounds, "WARM_SAMPLES", 40)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def outcome(clients, short):
    return simulation.run(CHAIN, clients, root=KEY)


def test_both_methods_run_and_the_ledger_pays_for_both(clients, outcome):
    population = population_of(clients)
    links = CHAIN.links(population)
    assert outcome.rounds == links.first.rounds(population) + links.then.rounds(population) == 3
    assert outcome.ledger.spent()["epsilon"] == pytest.approx(outcome.guarantee.epsilon, rel=1e-9)
    assert outcome.ledger.spent()["charges"] == 3 * 3
    assert outcome.guarantee.epsilon <= 5.0
    assert (outcome.guarantee.unit, outcome.guarantee.trust) == ("record", "local")
    assert outcome.generator.sample(4, KEY).x.shape == (4, 6, 6)


def test_the_claim_is_what_dp_accounting_finds_for_the_events(clients):
    population = population_of(clients)
    links = CHAIN.links(population)
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp_accounting.GaussianDpEvent(links.first.noise_multiplier(population)))
    step = dp_accounting.GaussianDpEvent(links.then.noise_multiplier(population))
    accountant.compose(dp_accounting.PoissonSampledDpEvent(2 / 8, step), 2)
    claim = CHAIN.guarantee(population)
    assert claim.epsilon == pytest.approx(accountant.get_epsilon(claim.delta), rel=1e-3)
    assert claim.epsilon > 0.97 * 5.0  # and little of the budget is left


def test_a_larger_share_gives_the_first_method_less_noise(clients):
    population = population_of(clients)
    noises = [
        (links.first.noise_multiplier(population), links.then.noise_multiplier(population))
        for links in (Chain(epsilon=5.0, share=share, then_set=THEN).links(population) for share in (0.3, 0.9))
    ]
    assert noises[0][0] > noises[1][0]
    assert noises[0][1] < noises[1][1]


def test_the_second_method_begins_from_the_first_ones_samples(clients, outcome):
    """Its decoder is not where it would have started by itself."""
    population = population_of(clients)
    alone = CHAIN.begin(population, simulation.Keys(KEY).begin()).then
    assert np.abs(np.asarray(outcome.state.then.theta) - np.asarray(alone.theta)).max() > 1e-4


def test_one_client_at_a_time_gives_the_same(clients, short, outcome):
    other = debug.run(CHAIN, clients, root=KEY)
    np.testing.assert_allclose(other.state.then.theta, outcome.state.then.theta, atol=1e-4)
    assert other.traffic == outcome.traffic


def test_a_site_knows_the_shape_of_every_question(clients):
    population = population_of(clients)
    state = CHAIN.begin(population, KEY)
    ask = CHAIN.ask(state, population, Keyed(KEY))
    assert set(ask.common) == set(CHAIN.question(population, 0)[0]) == {"first"}
    assert set(CHAIN.question(population, 1)[0]) == {"then"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"then": "c-dpd-vae", "then_set": "turns=2"}, "protect one record"),
        ({"first": "poll"}, "poll"),
        ({"then_set": "participations"}, "name=value"),
        ({"share": 1.0}, "share"),
    ],
)
def test_what_does_not_fit_is_one_sentence(clients, settings, message):
    with pytest.raises(SpecError, match=message):
        make_protocol("chain", {"epsilon": 2.0, **settings}).guarantee(population_of(clients))


def test_clients_answer_together_where_the_method_in_turn_does(clients):
    """`moments` does, convolutions do not."""
    population = population_of(clients)
    chain = Chain(epsilon=5.0, share=0.7, then_set=THEN.replace("net=basis", "net=small"))
    first = chain.question(population, 0)[0]
    ask = chain.ask(chain.begin(population, KEY), population, Keyed(KEY))
    assert set(ask.common) == set(first) == {"first"}
    assert chain.together(ask, population)
    assert not chain.together(dataclasses.replace(ask, common={"then": ()}), population)
