"""Methods under secure sums: engines open the same sums, the noise is that of the survivors' shares, and guards hold."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from builders import assert_same
from populace.engines import debug, simulation, sums
from populace.engines.runtime import Keys, population_of
from populace.engines.sums import add_up, numbers_of, open_in_process, with_share
from populace.errors import SpecError
from populace.methods.base import Replies
from populace.methods.census.protocol import Census
from populace.methods.moments.protocol import Moments
from populace.privacy.accounting import epsilon_of
from populace.privacy.gaussian import GaussianSum
from populace.privacy.guarantee import guarantee_from_json
from populace.privacy.noise_shares import NoiseShares
from populace.privacy.source import Keyed
from populace.tables.partition import split

METHODS = {
    "census": (Census, {"components": 3, "members": 2, "fit_steps": 10}),
    "moments": (Moments, {}),
}


def method_of(name, **settings):
    cls, small = METHODS[name]
    return cls(**{"epsilon": 2.0, "trust": "secure-sum", **small, **settings})


@pytest.fixture(scope="module")
def clients(small_table):
    return split(small_table.take(np.arange(60)), records_per_client=10)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("settings", [{}, {"colluders": 2, "dropouts": 1}])
def test_masked_sums_and_simulated_ones_are_the_same_bit_for_bit(name, settings, clients):
    protocol = method_of(name, **settings)
    simulated = simulation.run(protocol, clients, root=jax.random.key(5))
    masked = debug.run(protocol, clients, root=jax.random.key(5))
    assert_same(simulated.state, masked.state)
    assert simulated.ledger.entries == masked.ledger.entries
    assert simulated.guarantee == masked.guarantee
    assert simulated.guarantee.trust == "secure-sum"


@pytest.fixture
def openings(monkeypatch):
    """The sums that are opened in this process."""
    found, right = [], sums.Opening
    monkeypatch.setattr(sums, "Opening", lambda **facts: found.append(right(**facts)) or found[-1])
    return found


def test_many_clients_open_their_sum_along_a_sparse_graph_of_masks(openings):
    def source(client):
        return Keyed(jax.random.key(client))

    shares = dataclasses.replace(SHARES, clients=120, colluders=3, dropouts=2)
    values = np.random.default_rng(0).integers(-1_000, 1_000, (120, 6))
    masked, plain = (
        open_in_process(replies_of(values), shares, source, round_id=0),
        add_up(replies_of(values), shares, source),
    )
    np.testing.assert_array_equal(masked.values["a"], plain.values["a"])
    assert openings[0].graph.degree < 30
    assert openings[0].roster.threshold == 118
    open_in_process(replies_of(values[:3]), SHARES, source, round_id=0)
    assert openings[1].graph is None


@pytest.mark.slow
def test_moments_of_five_hundred_clients_are_the_same_under_masks_and_in_a_simulation(openings, small_table):
    many = split(small_table.take(np.arange(500)), records_per_client=1)
    protocol = method_of("moments", colluders=3, dropouts=2, clients_per_batch=500)
    masked = debug.run(protocol, many, root=jax.random.key(5))
    assert_same(simulation.run(protocol, many, root=jax.random.key(5)).state, masked.state)
    (opening,) = openings
    assert opening.graph.degree < 50


@pytest.mark.parametrize("name", METHODS)
def test_without_noise_the_opened_sum_is_the_sum_of_the_messages_under_central_trust(name, clients, monkeypatch):
    """Noise off: shares and the server's noise are zeros, and the sums of both trusts are equal, bit for bit."""
    monkeypatch.setattr(
        GaussianSum,
        "noise",
        lambda self, source, shape=None: np.zeros((self.size,) if shape is None else shape, np.int32),
    )
    opened = debug.run(method_of(name), clients, root=jax.random.key(5))
    central = simulation.run(method_of(name, trust="central"), clients, root=jax.random.key(5))
    assert_same(opened.state, central.state)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("colluders", "dropouts"), [(0, 0), (2, 0), (1, 2)])
def test_noise_in_the_sum_is_that_of_central_trust_times_the_root_of_k_over_the_honest(
    name, colluders, dropouts, clients
):
    """With no colluders the same noise as under central trust; with c, worse by sqrt(K / (K - c)), and no more."""
    population = population_of(clients)
    count = population.clients

    def deviation(trust, **settings):
        release = method_of(name, trust=trust, **settings).parts(population).release
        return release.deviation(count) if name == "moments" else release.deviation(0, count)

    ratio = deviation("secure-sum", colluders=colluders, dropouts=dropouts) / deviation("central")
    assert ratio == pytest.approx(math.sqrt(count / (count - colluders - dropouts)), rel=1e-6)
    assert deviation("silo") / deviation("central") == pytest.approx(math.sqrt(count))


@pytest.mark.parametrize("name", METHODS)
def test_the_statement_says_what_is_claimed_to_the_world_and_to_a_coalition(name, clients):
    population = population_of(clients)
    protocol = method_of(name, colluders=2)
    claim = protocol.guarantee(population)
    release = protocol.parts(population).release
    assert claim.epsilon == epsilon_of(release.whole, delta=release.delta) <= 2.0
    assert epsilon_of(release.known(2), delta=release.delta) == pytest.approx(claim.epsilon, rel=1e-3)
    assert epsilon_of(release.known(0), delta=release.delta) < claim.epsilon
    world, coalition = claim.claims
    assert "to the world" in world
    assert "up to 2 of the 6 sites" in coalition
    assert "the shares of 4 honest sites carry it" in coalition
    assert world in claim.statement
    assert ("claim", coalition) in claim.lines
    assert guarantee_from_json(claim.to_json()).claims == claim.claims
    assert "colluders 1 would bring every single site" in method_of(name).guarantee(population).claims[1]
    assert claim.sampling_delta < 1e-6 * claim.delta


def test_replies_of_single_clients_are_never_absorbed_under_a_secure_sum(clients):
    """An engine that does not know of sums fails; it does not absorb numbers without noise."""
    protocol, population = method_of("moments"), population_of(clients)
    keys = Keys(jax.random.key(0))
    state = protocol.begin(population, keys.begin())
    ask = protocol.ask(state, population, Keyed(keys.ask(0)))
    replies = debug.answer_one_by_one(protocol, ask, clients, population, keys, 0, {}, exact=False)
    with pytest.raises(SpecError, match="got the replies of single clients"):
        protocol.absorb(state, ask, replies, Keyed(keys.absorb(0)))


def test_a_sum_over_a_part_of_the_clients_is_refused_under_masks(clients):
    with pytest.raises(SpecError, match="over all 6 clients at once"):
        debug.run(method_of("moments", clients_per_batch=4), clients, root=jax.random.key(5))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"trust": "silo", "colluders": 1}, "for trust secure-sum"),
        ({"trust": "central", "dropouts": 1}, "for trust secure-sum"),
        ({"colluders": -1}, "at least 0"),
    ],
)
def test_settings_of_other_trusts_are_refused(name, settings, sentence):
    with pytest.raises(SpecError, match=sentence):
        method_of(name, **settings)


@pytest.mark.parametrize("name", METHODS)
def test_too_many_colluders_and_single_sites_are_refused(name, clients, small_table):
    with pytest.raises(SpecError, match="two sets of sites"):
        method_of(name, colluders=6).guarantee(population_of(clients))
    alone = population_of(split(small_table.take(np.arange(10)), records_per_client=10))
    with pytest.raises(SpecError, match="use trust silo"):
        method_of(name).guarantee(alone)


SHARES = NoiseShares(mechanism=GaussianSum(bound=5.0, noise_multiplier=2.0, size=6, whole=True), clients=3)


def replies_of(values):
    values = np.asarray(values)
    return Replies(clients=np.arange(len(values)), present=np.ones(len(values), bool), values={"a": values})


def test_sums_beyond_32_bits_and_negative_numbers_are_exact():
    values = np.array([[2**31 - 1, -(2**31)] * 3] * 3, np.int32)

    def source(client):
        return Keyed(jax.random.key(client))

    noise = sum(np.asarray(SHARES.draw(source(client)), np.int64) for client in range(3))
    for opened in (
        add_up(replies_of(values), SHARES, source),
        open_in_process(replies_of(values), SHARES, source, round_id=0),
    ):
        assert opened.opened
        np.testing.assert_array_equal(opened.values["a"], values.sum(axis=0, dtype=np.int64) + noise)


@pytest.mark.parametrize(
    ("most", "bits"), [(math.inf, 64), (2.0**31, 64), (2.0**31 - 1, 64), (2.0**30, 32), (10.0, 32)]
)
def test_numbers_are_as_wide_as_their_sum_needs(most, bits):
    shares = dataclasses.replace(SHARES, most=most)
    assert shares.bits == bits
    values = np.array([[1000, -7, 0, 2**28, -(2**28), 3]] * 3, np.int32)

    def source(client):
        return Keyed(jax.random.key(client))

    noise = sum(np.asarray(SHARES.draw(source(client)), np.int64) for client in range(3))
    for opened in (
        add_up(replies_of(values), shares, source),
        open_in_process(replies_of(values), shares, source, round_id=0),
    ):
        assert opened.values["a"].dtype == np.int64
        np.testing.assert_array_equal(opened.values["a"], values.sum(axis=0, dtype=np.int64) + noise)


def test_census_takes_narrow_numbers_where_counts_are_small(clients):
    population = population_of(clients)
    protocol = method_of("census")
    ask = protocol.ask(protocol.begin(population, jax.random.key(0)), population, Keyed(jax.random.key(1)))
    assert protocol.sum_shares(ask, population).bits == 32
    many = dataclasses.replace(population, records=2**27)
    assert protocol.sum_shares(ask, many).bits == 64


def test_replies_that_are_no_whole_numbers_or_of_another_length_are_refused():
    with pytest.raises(SpecError, match="whole numbers"):
        numbers_of({"a": np.zeros(6, np.float32)})
    with pytest.raises(SpecError, match="expected 6 numbers"):
        with_share(np.zeros(5, np.int32), SHARES, Keyed(jax.random.key(0)))


def test_absent_clients_add_nothing():
    replies = dataclasses.replace(
        replies_of(np.ones((3, 6), np.int32)), present=np.array([True, False, True]), clients=np.array([0, -1, 2])
    )
    opened = add_up(replies, SHARES, lambda client: Keyed(jax.random.key(client)))
    noise = sum(np.asarray(SHARES.draw(Keyed(jax.random.key(client))), np.int64) for client in (0, 2))
    np.testing.assert_array_equal(opened.values["a"], 2 + noise)
    assert opened.clients.tolist() == [0, 2]
