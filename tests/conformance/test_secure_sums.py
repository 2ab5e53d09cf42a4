"""Methods that train, under secure sums: engines agree, claims are those of whole noise, and noise and coins are as claimed."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from scipy import stats

from builders import assert_same, mark_slow, noise_images, small_protocol
from populace.engines import debug, simulation
from populace.engines.runtime import Keys, padded_shard, population_of
from populace.engines.sums import add_up
from populace.errors import SpecError
from populace.methods.base import Replies
from populace.methods.blocks.composed import Composition
from populace.methods.blocks.schedules import Sampled
from populace.methods.genfl.protocol import GenFl
from populace.methods.registry import make_protocol, protocol_class
from populace.methods.vae.l_dpd_vae import LDpdVae
from populace.privacy import events
from populace.privacy.accounting import epsilon_of
from populace.privacy.bracket import bracket
from populace.privacy.gaussian import GaussianSum
from populace.privacy.guarantee import guarantee_from_json
from populace.privacy.noise_shares import NoiseShares
from populace.privacy.noised_steps import noised_steps
from populace.privacy.source import Keyed, System
from populace.tables.partition import split

UPDATES = ("c-dpd-vae", "fedavg-gan")  # of clients, in whole; the others' records are in a sum
STEPS = ("dp-fl", "genfl")
METHODS = (*UPDATES, *STEPS, "chain")
CLIENTS = 6
ACCEPT, REJECT = 1e-6, 1e-12


def method_of(name, **settings):
    return small_protocol(name, 2.0, **{"trust": "secure-sum", **settings})


def other_trust(name):
    """Under which the same noise is whole: at the server, or at each silo."""
    return protocol_class(name).facts.trust[0]


@pytest.fixture(scope="module")
def clients_for(small_table):
    tables = split(small_table.take(np.arange(2 * CLIENTS)), records_per_client=2)
    images = split(noise_images(4 * CLIENTS - 1, (5, 5), 2), records_per_client=4)
    return lambda name: images if name in STEPS else tables


@functools.cache
def simulated(protocol, clients):
    return simulation.run(protocol, clients, root=jax.random.key(8))


@pytest.mark.parametrize("name", mark_slow(METHODS, METHODS[1:]))
def test_masked_sums_and_simulated_ones_are_the_same(name, clients_for):
    protocol, clients = method_of(name, colluders=1, dropouts=1), clients_for(name)
    masked = debug.run(protocol, clients, root=jax.random.key(8))
    fast = simulated(protocol, clients)
    assert_same(fast.state, masked.state)
    assert fast.ledger.entries == masked.ledger.entries
    assert fast.traffic == masked.traffic
    assert fast.guarantee == masked.guarantee


@pytest.mark.parametrize("name", mark_slow(METHODS, ("genfl", "chain")))
def test_a_run_books_what_is_claimed_and_every_client_pays_for_every_round(name, clients_for):
    protocol, clients = method_of(name, colluders=1, dropouts=1), clients_for(name)
    outcome, claim = simulated(protocol, clients), protocol.guarantee(population_of(clients))
    found = bracket(outcome.ledger.worst_event(), delta=claim.accounted_delta)
    assert found.at_least <= found.proved <= claim.epsilon * (1 + 1e-9) <= 2.0
    assert 0.99 * claim.epsilon < found.proved
    assert outcome.guarantee.trust == "secure-sum"
    assert outcome.ledger.spent()["charges"] == CLIENTS * outcome.rounds
    if name != "chain":  # who is not drawn sends its share of the noise as well
        assert outcome.traffic.messages == CLIENTS * outcome.rounds


@pytest.mark.parametrize("name", METHODS)
def test_the_bound_is_that_of_whole_noise_and_the_claims_say_to_whom(name, clients_for):
    """The same sampling and the same noise multiplier, whoever adds it; less to the world, more to a site of the sum."""
    population = population_of(clients_for(name))
    whole = small_protocol(name, 2.0, trust=other_trust(name))
    for settings in ({}, {"colluders": 2}, {"colluders": 1, "dropouts": 2}):
        protocol = method_of(name, **settings)
        claim, spent = protocol.guarantee(population), protocol.spends(population)
        assert spent == whole.spends(population)
        assert (claim.epsilon, claim.unit) == (whole.guarantee(population).epsilon, whole.facts.unit)
        at = functools.partial(epsilon_of, delta=claim.accounted_delta)
        known = functools.partial(protocol.spends_to, population)
        colluders = settings.get("colluders", 0)
        assert at(known(colluders)) <= claim.epsilon <= 1.001 * at(known(colluders))
        assert at(known(0)) < claim.epsilon or not settings
        assert at(known(colluders + 1)) > claim.epsilon
        world, coalition = claim.claims
        assert "to the world" in world
        assert (f"up to {colluders} of the 6 sites" if colluders else "colluders 1 would bring") in coalition
        assert guarantee_from_json(claim.to_json()).claims == claim.claims
        assert claim.sampling_delta < 1e-6 * claim.delta


def test_the_statement_says_how_cohorts_stay_secret(clients_for):
    for name in UPDATES:
        population = population_of(clients_for(name))
        words = method_of(name).guarantee(population)
        assert any("amplified by sampling: all clients are in every sum" in line for line in words.derivation)
        assert any("keeps its coins to itself" in line for line in words.assumptions)
        everybody = method_of(name, sampling_rate=1.0).guarantee(population)
        assert not any("amplified" in line for line in everybody.derivation)
        assert "by the server" in " ".join(small_protocol(name, 2.0).guarantee(population).assumptions)


def silence(monkeypatch):
    """No noise, neither whole nor in shares."""
    monkeypatch.setattr(
        GaussianSum,
        "noise",
        lambda self, source, shape=None: np.zeros((self.size,) if shape is None else shape, np.int32),
    )


@pytest.mark.parametrize("name", mark_slow((*UPDATES, "dp-fl"), ("fedavg-gan",)))
def test_without_noise_the_opened_sums_are_those_of_the_other_trust(name, clients_for, monkeypatch):
    """The same sums, and the same model in the end."""
    silence(monkeypatch)
    sampled = {"sampling_rate": 1.0} if name in UPDATES else {}
    settings = {**sampled, "epsilon": 2.001}  # another method object than with noise: nothing compiled is shared
    made = [
        make_protocol(name, {**protocol_class(name).small, **settings, "trust": trust})
        for trust in ("secure-sum", other_trust(name))
    ]
    opened, whole = (simulation.run(method, clients_for(name), root=jax.random.key(8)) for method in made)
    assert_same(opened.state, whole.state)


def test_generated_examples_weigh_in_an_opened_sum_what_they_weigh_in_a_silos_gradient(clients_for, monkeypatch):
    """Without noise, a client's whole numbers stand for its gradient: records exactly, generated examples to half a unit."""
    silence(monkeypatch)
    clients = clients_for("genfl")
    population = population_of(clients)
    sums, whole = (
        small_protocol("genfl", 2.002, trust=trust, batch_size=3).parts(population).learner for trust in ("secure-sum", "silo")
    )  # fmt: skip
    rng = np.random.default_rng(2)
    question = {"weights": rng.normal(0, 0.1, sums.weights).astype(np.float32)}
    memory = {"theta": rng.normal(0, 1, sums.generator.decoder_size).astype(np.float32), "trained": np.bool_(True)}
    shard = padded_shard(clients, 0, population)
    units, gradient = (
        np.asarray(learner.answer_and_keep(question, True, shard, memory, Keyed(jax.random.key(3)))[0]["gradient"])
        for learner in (sums, whole)
    )
    unit = sums.release.classifier.mechanism.grid * sums.unit_weight
    assert units.dtype == np.int32
    assert np.abs(gradient).max() > 100 * unit
    np.testing.assert_allclose(units * unit, gradient, atol=0.51 * unit)
    opened = Replies(clients=np.arange(6), present=np.ones(6, bool), values={"gradient": 6 * units}, opened=True)
    np.testing.assert_allclose(sums._mean_gradient(opened), gradient, atol=0.51 * unit)


# ------------------------------------------------------------------------------------------------ noise of a whole run


def noise_of_a_run(clients, *, exact=False, **settings):
    """What a round adds to the sum of updates when nobody is drawn, in deviations of the noise that central trust adds."""
    protocol = make_protocol(
        "c-dpd-vae",
        {"epsilon": 2.0, "noise_multiplier": 1.0, "rounds": 1, "sampling_rate": 1e-3, "hidden_size": 96, "momentum": 0.0,
         "local_epochs": 1, "batch_size": 2, **settings},
    )  # fmt: skip
    learner = protocol.parts(population_of(clients)).learner
    outcome = simulation.run(protocol, clients, root=jax.random.key(7), exact_noise=exact)
    mean = np.asarray(outcome.state.learner.momentum, np.float64) / protocol.clip_norm
    return mean * learner.clients_expected / learner.mechanism.scale


def p_value(noise, variance):
    """Of so much variance, two-sided."""
    found = stats.chi2(len(noise)).cdf(np.sum(noise**2) / variance)
    return 2 * min(found, 1 - found)


class WeakShares(NoiseShares):
    """Planted: shares as if every site were honest and there."""

    @property
    def share(self):
        return self._scaled(self.mechanism.deviation / np.sqrt(self.clients))


@pytest.mark.parametrize("exact", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["keyed", "exact"])
def test_the_noise_of_a_run_is_that_of_all_clients_shares_drawn_or_not(exact, clients_for, monkeypatch):
    """With c and d it has K / (K - c - d) times the variance; shares for too many, or of too few clients, are rejected."""
    clients = clients_for("c-dpd-vae")
    shares = {"trust": "secure-sum", "colluders": 1, "dropouts": 1}
    noise = noise_of_a_run(clients, exact=exact, **shares)
    assert len(noise) > 1500
    assert p_value(noise, 6 / 4) > ACCEPT
    assert p_value(noise, 1.0) < REJECT
    assert p_value(noise_of_a_run(clients, exact=exact, trust="secure-sum"), 1.0) > ACCEPT  # as under central trust
    monkeypatch.setattr("populace.privacy.noise_shares.NoiseShares", WeakShares)
    assert p_value(noise_of_a_run(clients, exact=exact, **shares), 6 / 4) < REJECT


@pytest.mark.parametrize("name", [*UPDATES, *STEPS])
def test_shares_of_the_honest_alone_carry_what_is_charged(name, clients_for):
    """Those of K - c - d clients have the deviation of the event in the ledger; a planted scale is rejected."""
    population = population_of(clients_for(name))
    batch = {"batch_size": 2} if name in STEPS else {}  # of fewer records than a client holds
    protocol = method_of(name, colluders=1, dropouts=1, **batch)
    last = protocol.round_count(population) - 1
    ask = protocol.ask(protocol.begin(population, jax.random.key(0)), population, Keyed(jax.random.key(1)))
    ask = dataclasses.replace(ask, round=np.int32(last))
    shares = protocol.sum_shares(ask, population)
    charged = protocol.charge(ask, population).event
    assert charged == events.PoissonSampled(charged.probability, events.Gaussian(shares.mechanism.noise_multiplier))

    def noise(shares, present):
        zeros = Replies(
            clients=np.arange(CLIENTS), present=np.arange(CLIENTS) < present,
            values={"a": np.zeros((CLIENTS, shares.mechanism.size), np.int32)},
        )  # fmt: skip
        runs = [
            add_up(zeros, shares, lambda client, run=run: Keyed(jax.random.key(CLIENTS * run + client))).values["a"]
            for run in range(-(-2000 // shares.mechanism.size))
        ]
        return np.concatenate(runs) / shares.mechanism.deviation

    assert p_value(noise(shares, CLIENTS - 2), 1.0) > ACCEPT
    planted = dataclasses.replace(shares, colluders=0, dropouts=0)
    assert p_value(noise(planted, CLIENTS - 2), 1.0) < REJECT


# -------------------------------------------------------------------------------------------------------- clients' coins


@pytest.mark.parametrize("source", [Keyed(jax.random.key(1)), System()], ids=["keyed", "operating system"])
@pytest.mark.parametrize("name", UPDATES)
def test_a_clients_own_coin_falls_with_the_probability_that_is_accounted(name, source, clients_for):
    population = population_of(clients_for(name))
    protocol = method_of(name, sampling_rate=0.25)
    learner = protocol.parts(population).learner
    ask = protocol.ask(protocol.begin(population, jax.random.key(0)), population, Keyed(jax.random.key(1)))
    assert np.asarray(ask.own).all()  # the server has drawn nobody, and what it says does not count
    draws = 1000
    drawn = [bool(learner.takes_part(np.bool_(False), one)[0]) for one in source.split(draws)]
    accounted = protocol.charge(ask, population).event.probability
    assert accounted == 0.25
    assert stats.binomtest(sum(drawn), draws, accounted).pvalue > ACCEPT
    assert stats.binomtest(sum(drawn), draws, 0.5).pvalue < REJECT


def test_who_is_not_drawn_sends_zeros_and_keeps_its_encoder(clients_for):
    """Numbers and memory, by the coin that the client's own key gives: some are drawn and some are not."""
    protocol, clients = method_of("c-dpd-vae"), clients_for("c-dpd-vae")
    population, keys = population_of(clients), Keys(jax.random.key(8))
    learner = protocol.parts(population).learner
    ask = protocol.ask(protocol.begin(population, keys.begin()), population, Keyed(keys.ask(0)))
    records, mask = clients.gather(np.asarray(ask.cohort), population.records)
    memory = simulation._memories(protocol, population, keys)
    replies, after = simulation._answer_cohort(protocol, population, keys, ask, records, mask, memory)
    drawn = [bool(learner.takes_part(True, Keyed(keys.answer(0, client)))[0]) for client in range(CLIENTS)]
    assert 0 < sum(drawn) < CLIENTS
    assert (np.abs(np.asarray(replies.values["change"])).sum(axis=1) > 0).tolist() == drawn
    assert np.asarray(after.begun).tolist() == drawn


def test_cohorts_that_the_server_draws_are_refused_under_a_secure_sum(clients_for):
    """And amplification without a coin, or a coin that is not accounted."""
    population = population_of(clients_for("c-dpd-vae"))
    parts = method_of("c-dpd-vae").parts(population)
    with pytest.raises(SpecError, match="coins of their own"):
        Composition(dataclasses.replace(parts.schedule, own_coins=False), parts.release, parts.learner)
    for schedule, secret in ((Sampled(clients=6, wanted=2, own_coins=True), True), (parts.schedule, False)):
        with pytest.raises(SpecError, match="disagree"):
            Composition(schedule, dataclasses.replace(parts.release, drawn_in_secret=secret), parts.learner)


# ------------------------------------------------------------------------------------------------ a count in the vector


def test_a_count_in_one_vector_has_the_noise_it_had_beside_it():
    apart = noised_steps(epsilon=2.0, delta=1e-5, probability=0.2, wanted=12, size=50, noise=0.0, each=1, counting=9.0)
    together = apart.in_one_vector()
    assert (together.count, together.mechanism.size) == (None, 51)
    assert together.noise_multiplier == pytest.approx(apart.noise_multiplier, rel=1e-12)
    assert together.whole == apart.whole
    fineness = 0.02  # what rounding to either grid adds to the noise, at most
    assert together.mechanism.scale == pytest.approx(apart.mechanism.scale, rel=fineness)
    assert together.mechanism.scale / together.count_weight == pytest.approx(apart.count.scale, rel=fineness)
    bound = np.hypot(1.0, together.count_weight / 2)
    assert together.mechanism.bound == pytest.approx(bound)
    longest = np.append(np.full(50, 50**-0.5, np.float32), np.float32(together.count_weight / 2))
    units = np.asarray(together.mechanism.on_grid(longest), np.int64)
    assert np.linalg.norm(units) * together.mechanism.grid <= together.mechanism.sensitivity
    assert noised_steps(
        epsilon=2.0, delta=1e-5, probability=0.2, wanted=12, size=50, noise=0.0, each=1
    ).in_one_vector().count_weight == 0  # fmt: skip


def test_the_clipping_norm_follows_the_count_of_an_opened_sum(clients_for):
    """Without noise to speak of, the fraction that was short is that of the clients; the norm moves as under central trust."""
    quick = {"clip_quantile": 0.5, "sampling_rate": 1.0, "noise_multiplier": 0.0, "clip_norm": 1e-3, "rounds": 1}
    norms = [
        float(
            simulation.run(
                make_protocol("c-dpd-vae", {**protocol_class("c-dpd-vae").small, **quick, "epsilon": 50.0, "trust": trust}),
                clients_for("c-dpd-vae"), root=jax.random.key(8),
            ).state.learner.clip_norm
        )
        for trust in ("secure-sum", "central")
    ]  # fmt: skip
    assert norms[0] == pytest.approx(norms[1], rel=0.05)
    assert norms[0] > 1.05e-3  # all updates were longer


# --------------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        *((name, {"trust": other_trust(name), "colluders": 1}, "for trust secure-sum") for name in METHODS),
        *((name, {"trust": "local"}, "secure-sum") for name in METHODS),
        ("genfl", {"synthetic_share": 1.0}, "no sum to open"),
        ("genfl", {"recipe": "paper"}, "no secure sum mends"),
        ("chain", {"first": "moments:colluders=1"}, "sets colluders of both methods"),
        ("chain", {"trust": "silo", "first": "moments:trust=secure-sum"}, "with trust silo"),
        ("chain", {"then": "c-dpd-vae:rounds=2"}, "protect one record"),
        ("chain", {"first": "l-dpd-vae:participations=1,net=basis"}, "neither 'l-dpd-vae' nor 'l-dpd-vae' offers"),
    ],
)
def test_what_is_no_sum_is_refused_in_one_sentence(name, settings, sentence, clients_for):
    with pytest.raises(SpecError, match=sentence):
        method_of(name, **settings).guarantee(population_of(clients_for(name)))


def test_sums_that_would_wrap_before_their_noise_are_refused(clients_for):
    population = dataclasses.replace(population_of(clients_for("dp-fl")), records=2**18)
    settings = {"epsilon": 2.0, "synthetic_share": 0.0, "rounds": 2}
    assert GenFl(**settings).guarantee(population).trust == "silo"
    with pytest.raises(SpecError, match="split the records among more clients"):
        GenFl(**settings, trust="secure-sum").guarantee(population)


def test_single_replies_are_never_absorbed(clients_for):
    for name in (*UPDATES, "dp-fl"):
        protocol, population = method_of(name), population_of(clients_for(name))
        state = protocol.begin(population, jax.random.key(0))
        ask = protocol.ask(state, population, Keyed(jax.random.key(1)))
        size = protocol.sum_shares(ask, population).mechanism.size
        part = "gradient" if name == "dp-fl" else "change"
        values = {part: np.zeros((CLIENTS, size), np.int32)}
        replies = Replies(clients=np.arange(CLIENTS), present=np.ones(CLIENTS, bool), values=values)
        with pytest.raises(SpecError, match="got the replies of single clients"):
            protocol.absorb(state, ask, replies, Keyed(jax.random.key(2)))


def test_a_chain_says_which_of_its_methods_opens_no_sum(clients_for):
    population = population_of(clients_for("chain"))
    claim = method_of("chain").guarantee(population)
    assert any("the second method opens no sum" in line for line in claim.derivation)
    links = method_of("chain", colluders=2).links(population)
    assert (links.first.trust, links.first.colluders) == ("secure-sum", 2)
    assert isinstance(links.then, LDpdVae)
