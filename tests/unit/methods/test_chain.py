"""A chain: both methods under one budget, the second begun from the first."""

import dataclasses
import json

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from populace.engines import debug, simulation
from populace.engines.checkpoint import Checkpoint
from populace.engines.runtime import population_of
from populace.errors import SpecError
from populace.methods.base import Replies
from populace.methods.blocks.vae_generator import make_standard_law
from populace.methods.blocks.vae_networks import BasisVae
from populace.methods.chain.links import LARGER
from populace.methods.chain.protocol import Chain
from populace.methods.moments.protocol import Moments
from populace.methods.registry import make_protocol, settings_from_file
from populace.methods.vae import l_dpd_vae
from populace.methods.vae.l_dpd_vae import LDpdVae
from populace.methods.vae.training import BATCH_SIZE, warm_samples
from populace.privacy.source import Keyed
from populace.tables.images import Images
from populace.tables.partition import split

THEN = (
    "l-dpd-vae:net=basis,hidden_size=2,basis_size=2,latent_size=2,participations=2,batch_size=2,codes_per_example=1,sleep_steps=1,"
    "fitting_steps=3"
)
CHAIN = Chain(epsilon=2.0, budget_share=0.7, then=THEN)
KEY = jax.random.key(5)


@pytest.fixture(scope="module")
def clients():
    rng = np.random.default_rng(0)
    y = np.arange(24, dtype=np.int32) % 2
    x = np.where(y[:, None, None] == 1, 200, 40) + rng.integers(0, 40, (24, 6, 6))
    return split(Images(x=x.astype(np.uint8), y=y, classes=2), records_per_client=8)


@pytest.fixture(scope="module")
def outcome(clients):
    return simulation.run(CHAIN, clients, root=KEY)


def test_both_methods_run_and_the_ledger_pays_for_both(clients, outcome):
    population = population_of(clients)
    links = CHAIN.links(population)
    assert outcome.rounds == links.first.round_count(population) + links.then.round_count(population) == 3
    assert outcome.ledger.spent()["epsilon"] == pytest.approx(outcome.guarantee.epsilon, rel=1e-9)
    assert outcome.ledger.spent()["charges"] == 3 * 3
    assert outcome.guarantee.epsilon <= 2.0
    assert (outcome.guarantee.unit, outcome.guarantee.trust) == ("record", "silo")
    assert outcome.generator.sample(4, KEY).x.shape == (4, 6, 6)


def test_the_claim_is_what_dp_accounting_finds_for_the_events(clients):
    population = population_of(clients)
    links = CHAIN.links(population)
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp_accounting.GaussianDpEvent(links.first.calibrated_noise(population)))
    step = dp_accounting.GaussianDpEvent(links.then.calibrated_noise(population))
    accountant.compose(dp_accounting.PoissonSampledDpEvent(2 / 8, step), 2)
    claim = CHAIN.guarantee(population)
    assert claim.epsilon == pytest.approx(accountant.get_epsilon(claim.delta), rel=1e-3)
    assert claim.epsilon > 0.97 * 2.0  # and little of the budget is left


@pytest.mark.slow
def test_a_larger_share_gives_the_first_method_less_noise(clients):
    population = population_of(clients)
    noises = [
        (links.first.calibrated_noise(population), links.then.calibrated_noise(population))
        for links in (Chain(epsilon=2.0, budget_share=share, then=THEN).links(population) for share in (0.3, 0.9))
    ]
    assert noises[0][0] > noises[1][0]
    assert noises[0][1] < noises[1][1]


def test_the_second_method_begins_from_the_first_ones_samples(clients, outcome):
    """Its decoder is not where it would have started by itself, and its codes are drawn from where theirs lie."""
    population = population_of(clients)
    alone = CHAIN.begin(population, simulation.Keys(KEY).begin()).then.learner
    state = outcome.state.then.learner
    assert np.abs(np.asarray(state.theta) - np.asarray(alone.theta)).max() > 1e-4
    assert alone.law.is_standard
    assert not state.law.is_standard
    np.testing.assert_array_equal(outcome.generator.law.means, state.law.means)
    np.testing.assert_array_equal(outcome.generator.law.roots, state.law.roots)


def test_asleep_the_encoder_sees_codes_by_the_law_that_was_measured(clients, outcome):
    population = population_of(clients)
    then, state = CHAIN.links(population).then, outcome.state.then
    ask = then.ask(then.begin(population, KEY), population, Keyed(KEY))
    values = {"change": jnp.zeros((3, len(state.learner.theta))), "below": jnp.zeros(3)}
    replies = Replies(clients=ask.cohort, present=jnp.ones(3, bool), values=values)
    before = dataclasses.replace(state, learner=dataclasses.replace(state.learner, law=make_standard_law(2, 2)))
    ends = [then.absorb(each, ask, replies, Keyed(KEY)).learner for each in (state, state, before)]
    after = [end.encoder.parameters for end in ends]
    np.testing.assert_array_equal(after[0], after[1])
    assert np.abs(after[0] - after[2]).max() > 1e-5


def test_stopped_at_the_hand_over_and_resumed_it_ends_alike(clients, outcome, tmp_path, monkeypatch):
    """The law is measured once, before the stop, and comes back with the state."""

    class StopError(Exception):
        pass

    def stop(at):
        if at.done == 2:
            raise StopError

    monkeypatch.setattr(simulation, "_next_chunk", lambda *_: 1)
    checkpoint = Checkpoint(tmp_path / "c.npz")
    with pytest.raises(StopError):
        simulation.run(CHAIN, clients, root=KEY, checkpoint=checkpoint, progress=stop)
    monkeypatch.setattr(l_dpd_vae, "measure_codes", None)
    again = simulation.run(CHAIN, clients, root=jax.random.key(99), checkpoint=checkpoint)
    found, wanted = (each.state.then.learner for each in (again, outcome))
    np.testing.assert_array_equal(found.law.means, wanted.law.means)
    np.testing.assert_allclose(found.theta, wanted.theta, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "steps", "wanted"),
    [
        ((28, 28), 2, 2 * BATCH_SIZE),
        ((28, 28), 20_000, 120_000),
        ((512, 512, 3), 20_000, 341),
        ((40_000, 40_000), 9, BATCH_SIZE),
    ],
)
def test_as_many_samples_as_are_looked_at_and_fit(shape, steps, wanted):
    assert warm_samples(BasisVae(shape=shape, classes=2), steps) == wanted


@pytest.mark.slow
def test_one_client_at_a_time_gives_the_same(clients, outcome):
    other = debug.run(CHAIN, clients, root=KEY)
    np.testing.assert_allclose(other.state.then.learner.theta, outcome.state.then.learner.theta, atol=1e-4)
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
        ({"then": "c-dpd-vae:rounds=2"}, "protect one record"),
        ({"then": "fl-gan:generator_steps=1,batch_size=2"}, "cannot be the second of a chain"),
        ({"first": "poll"}, "poll"),
        ({"then": "l-dpd-vae:participations"}, "name=value"),
        ({"budget_share": 1.0}, "budget_share"),
        ({"then": "l-dpd-vae:epsilon=1"}, "leave it out"),
        ({"first": Moments(epsilon=1.0)}, r"expected first\.epsilon 2, got 1"),
        ({"then": LDpdVae(epsilon=2.0, noise_multiplier=3.0)}, r"expected then\.noise_multiplier 0, got 3"),
        ({"then": {"method": "l-dpd-vae"}}, "with its method and settings"),
        ({"then_set": "net=small"}, "it is called 'then'"),
    ],
)
def test_what_does_not_fit_is_one_sentence(clients, settings, message):
    with pytest.raises(SpecError, match=message):
        make_protocol("chain", {"epsilon": 2.0, **settings}).guarantee(population_of(clients))


def test_clients_answer_together_where_the_method_in_turn_does(clients):
    """`moments` does, convolutions do not, and dense networks do as long as their gradients fit."""
    population = population_of(clients)
    chain = Chain(epsilon=2.0, budget_share=0.7, then=THEN.replace("net=basis", "net=small"))
    first = chain.question(population, 0)[0]
    ask = chain.ask(chain.begin(population, KEY), population, Keyed(KEY))
    assert set(ask.common) == set(first) == {"first"}
    assert chain.together(ask, population)
    turned = dataclasses.replace(ask, common={"then": ()})
    assert not chain.together(turned, population)
    assert CHAIN.together(turned, population)
    steps = CHAIN.links(population).then.parts(population).release.steps
    crowd = dataclasses.replace(turned, cohort=np.zeros(2**28 // steps.mechanism.size))
    assert not CHAIN.together(crowd, population)


def test_what_is_not_set_is_what_suits_a_method_that_begins_from_samples(clients):
    population = population_of(clients)
    then = Chain(epsilon=2.0, then="l-dpd-vae:participations=2,hidden_size=7").links(population).then
    assert (then.hidden_size, then.participations) == (7, 2)
    assert (then.latent_size, then.beta) == (LARGER["l-dpd-vae"]["latent_size"], LARGER["l-dpd-vae"]["beta"])
    alone = l_dpd_vae.LDpdVae(epsilon=1.0)
    assert then.latent_size != alone.latent_size
    other = Chain(epsilon=2.0, then="l-dpd-vae:participations=2,net=small").links(population).then
    assert (other.hidden_size, other.latent_size) == (
        0,
        alone.latent_size,
    )  # sizes of a dense network are none for convolutions
    assert other.server_learning_rate == then.server_learning_rate != alone.server_learning_rate


def test_methods_given_as_values_are_taken_as_they_are(clients):
    population = population_of(clients)
    then = LDpdVae(epsilon=2.0, participations=2, batch_size=2, hidden_size=2, basis_size=2, latent_size=2)
    links = Chain(epsilon=2.0, budget_share=0.7, first=Moments(epsilon=2.0, side=3), then=then).links(population)
    assert links.first.side == 3
    assert links.then == dataclasses.replace(then, delta=links.delta, noise_multiplier=links.then.noise_multiplier)
    assert links.then.noise_multiplier > 0


def test_a_chain_is_written_to_a_file_and_read_again():
    """With its methods by name, as values, and as version 0.2.0 wrote it."""
    chain = Chain(epsilon=2.0, first=Moments(epsilon=2.0, side=3), then=LDpdVae(epsilon=2.0, clip_norm=0.5))
    for each in (CHAIN, chain):
        document = json.loads(json.dumps(each.settings_to_file()))
        assert make_protocol("chain", settings_from_file("chain", document)) == each
        assert make_protocol("chain", document) == each
    old = {
        "epsilon": 2.0, "delta": 0.0, "share": 0.7, "first": "moments", "then": "l-dpd-vae", "first_set": "",
        "then_set": "net=basis,width=2,waves=2,latent=2,participations=2,batch=2,codes=1,asleep=1,fitting=3",
    }  # fmt: skip
    assert make_protocol("chain", settings_from_file("chain", old)) == CHAIN
