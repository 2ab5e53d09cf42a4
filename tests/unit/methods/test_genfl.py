"""DP-GenFL: sums against a slow oracle, what one record moves, both stages in one ledger, claims that hold or do not."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st

from populace.engines import debug, simulation
from populace.engines.runtime import Keys, new_ledger, population_of
from populace.errors import BudgetError, DataError, SpecError
from populace.methods.base import ImageShape, Population, Replies, Shard
from populace.methods.genfl.linear import in_whole, pairs, restored
from populace.methods.genfl.protocol import DpFl, GenFl, noised_sum
from populace.privacy.source import Keyed, System
from populace.tables.images import Images
from populace.tables.partition import split

SIDE, RECORDS, LABELS, CLIENTS = 6, 12, 3, 3
POPULATION = Population(schema=ImageShape(shape=(SIDE, SIDE), classes=LABELS), clients=CLIENTS, records=RECORDS)
GAN = {"width": 4, "critic_width": 4, "latent": 2, "waves": 3, "iterations": 2, "critics": 2, "gan_batch": 4}
TINY = {"turns": 2, "batch": 6, "features": 1, **GAN}
MIXED = GenFl(epsilon=2.0, gamma=0.5, **TINY)
ALL_MADE = GenFl(epsilon=2.0, gamma=1.0, **TINY)
ALONE = DpFl(epsilon=2.0, turns=2, batch=6, features=1, width=4, latent=2, waves=3, critic_width=4)


def records(seed, count=RECORDS):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (count, SIDE, SIDE)) * rng.integers(0, 2, (count, 1, 1))
    return x.astype(np.uint8), rng.integers(0, LABELS, count)


@pytest.fixture(scope="module")
def clients():
    """The last holds two images fewer."""
    x, y = records(0, CLIENTS * RECORDS - 2)
    return split(Images(x=x, y=y, classes=LABELS), records_per_client=RECORDS)


@functools.lru_cache(maxsize=4)
def summer(bound):
    """The released sum without noise, compiled once."""
    protocol = dataclasses.replace(MIXED, bound=bound)
    design = protocol.design(POPULATION)

    @jax.jit
    def total(weights, x, y, drawn):
        silent = jnp.zeros(design.weights, jnp.int32)
        return noised_sum(protocol, design, weights, x, jax.nn.one_hot(y, LABELS), drawn, silent)

    return design, total


def weights_of(design, scale, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(0, scale, design.weights), jnp.float32)


# What is released


def test_the_sum_over_a_batch_is_exactly_that_of_whole_products():
    """In 64 bits, one record after the other; more records than are multiplied at once.

    That such a product is the clipped slope of a record is tested in `tests/unit/methods/test_linear.py`.
    """
    design, _ = summer(0.9)
    count, (x, y) = 3 * design.bits.at_once + 5, records(4, 3 * design.bits.at_once + 5)
    protocol, weights = dataclasses.replace(MIXED, bound=0.9), weights_of(design, 3.0)
    drawn, one_hot = np.random.default_rng(1).random(count) < 0.8, jax.nn.one_hot(y, LABELS)
    told = jax.jit(functools.partial(noised_sum, protocol, design))
    found = told(weights, x, one_hot, jnp.asarray(drawn), jnp.zeros(design.weights, jnp.int32))
    seen, off = jax.jit(functools.partial(pairs, design.features, bound=0.9))(weights, x=x, y=one_hot)
    seen, off = (
        np.asarray(in_whole(part, bits), np.int64) for part, bits in ((seen, design.bits.seen), (off, design.bits.off))
    )
    total = sum(np.outer(seen[row], off[row]) for row in np.flatnonzero(drawn)).reshape(-1)
    units = np.asarray(found, np.float64) / restored(design.bits) / design.release.mechanism.grid
    step = 2 ** (design.bits.both + round(math.log2(design.release.mechanism.grid)))
    np.testing.assert_allclose(units, np.floor(total / step + 0.5), atol=1e-2)  # float32 of the result; sums are whole


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6), row=st.integers(0, RECORDS - 1), scale=st.floats(0, 100), bound=st.sampled_from([0.01, 0.9])
)  # fmt: skip
def test_one_record_moves_the_sum_by_at_most_the_bound(seed, row, scale, bound):
    design, total = summer(bound)
    x, y = records(seed)
    weights, there = weights_of(design, scale, seed), np.ones(RECORDS, bool)
    both = []
    for held in (True, False):
        there[row] = held
        both.append(np.asarray(total(weights, x, y, jnp.asarray(there)), np.float64))
    mechanism = design.release.mechanism
    most = 1 + math.sqrt(mechanism.size) * mechanism.grid
    assert np.linalg.norm(both[0] - both[1]) <= most <= mechanism.sensitivity + 1e-9


def test_records_left_out_by_the_mask_are_never_drawn():
    """A client without records answers with the noise and its generated examples, whatever the padding holds."""
    design = MIXED.design(POPULATION)
    memory, common = MIXED.remember(POPULATION, jax.random.key(0)), {"weights": weights_of(design, 1.0)}

    @jax.jit
    def slope(x, y):
        shard = Shard(records={"x": x, "y": y}, mask=jnp.zeros(RECORDS, bool), population=POPULATION)
        return MIXED.answer(common, jnp.int32(0), shard, memory, Keyed(jax.random.key(4)))[0]["slope"]

    np.testing.assert_array_equal(slope(*records(1)), slope(*records(2)))


# What is claimed


def recomputed(parts, delta):
    """By dp-accounting's own distributions, nothing of ours; parts are noise multiplier, probability and steps."""
    each = [
        pld.from_gaussian_mechanism(noise, sampling_prob=probability, value_discretization_interval=1e-4).self_compose(
            steps
        )
        for noise, probability, steps in parts
    ]
    return functools.reduce(lambda one, other: one.compose(other), each).get_epsilon_for_delta(delta)


@pytest.mark.parametrize("protocol", [MIXED, ALL_MADE], ids=["mixed", "all made"])
def test_the_claim_is_the_composition_of_both_stages(protocol):
    design, claim = protocol.design(POPULATION), protocol.guarantee(POPULATION)
    steps = protocol.iterations * protocol.critics
    parts = [(design.first.release.mechanism.noise_multiplier, protocol.gan_batch / RECORDS, steps)]
    if protocol.gamma < 1:
        probability = (1 - protocol.gamma) * protocol.batch / RECORDS
        assert design.release.probability == pytest.approx(probability)
        assert recomputed(parts, design.delta) == pytest.approx(protocol.gan_share * protocol.epsilon, rel=0.02)
        parts.append((design.release.mechanism.noise_multiplier, probability, protocol.turns))
    assert claim.epsilon == pytest.approx(recomputed(parts, design.delta), rel=0.01)
    assert 0.97 * protocol.epsilon < claim.epsilon <= protocol.epsilon
    assert (claim.unit, claim.trust, claim.neighbours) == ("record", "silo", "zero-out")


@pytest.mark.slow
def test_a_larger_share_of_generated_examples_asks_for_less_noise():
    noises = [
        dataclasses.replace(MIXED, gamma=gamma, batch=8).design(POPULATION).release.noise_multiplier
        for gamma in (0.2, 0.6)
    ]
    assert noises[1] < noises[0]


@pytest.mark.parametrize("protocol", [MIXED, ALL_MADE, ALONE], ids=["mixed", "all made", "alone"])
def test_a_run_spends_what_is_claimed_and_one_more_round_is_refused(protocol):
    ledger = new_ledger(protocol, POPULATION)
    ask = protocol.ask(protocol.begin(POPULATION, jax.random.key(0)), POPULATION, Keyed(jax.random.key(1)))
    everybody = np.arange(CLIENTS)
    for number in range(protocol.round_count(POPULATION)):
        charge = protocol.charge(dataclasses.replace(ask, round=jnp.int32(number)), POPULATION)
        ledger.book(everybody, charge, round_id=number)
    assert ledger.spent()["epsilon"] == pytest.approx(protocol.guarantee(POPULATION).epsilon, rel=1e-3)
    with pytest.raises(BudgetError):
        ledger.book(np.array([1]), charge, round_id=number + 1)


@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_as_published_nothing_is_claimed_and_the_reason_is_said(gamma):
    protocol = dataclasses.replace(MIXED, recipe="paper", gamma=gamma)
    claim = protocol.guarantee(POPULATION)
    assert math.isinf(claim.epsilon)
    assert "without noise" in claim.reason
    assert not any("composed" in line for line in claim.derivation)
    if gamma < 1:  # the whole of epsilon is said to be the classifier's, as in the letter
        released = protocol.design(POPULATION).release
        parts = [(released.mechanism.noise_multiplier, released.probability, protocol.turns)]
        assert 1.95 < recomputed(parts, protocol.design(POPULATION).delta) <= 2.01


@pytest.mark.parametrize(
    "wrong",
    [
        {"gamma": -0.1}, {"gamma": 1.1}, {"gan_share": 0.0}, {"gan_share": 1.0}, {"recipe": "none"}, {"turns": 0},
        {"bound": 0.0}, {"average": 1.0}, {"features": 0}, {"net": "large"}, {"epsilon": 0.0},
        {"target": 1.0}, {"gan_rate": math.inf}, {"target": 0.9, "gamma": 1.0},
    ],
)  # fmt: skip
def test_bad_settings_are_refused_in_one_sentence(wrong):
    with pytest.raises(SpecError, match=r"expected"):
        dataclasses.replace(MIXED, **wrong)


def test_the_baseline_mixes_nothing_in_and_its_statement_speaks_of_no_generator():
    with pytest.raises(SpecError, match="expected gamma 0 for dp-fl"):
        dataclasses.replace(ALONE, gamma=0.5)
    said = {protocol: " ".join(protocol.guarantee(POPULATION).derivation) for protocol in (ALONE, ALL_MADE, MIXED)}
    assert "generat" not in said[ALONE]
    assert "the classifier" in said[ALONE]
    assert "the classifier" not in said[ALL_MADE]
    assert all(word in said[MIXED] for word in ("generated examples", "the classifier"))


def test_a_batch_larger_than_a_client_is_all_it_holds():
    """Records keep the share 1 - gamma of a step, however few they are."""
    told = {}
    for batch in (2 * RECORDS, 50 * RECORDS):
        protocol = dataclasses.replace(MIXED, gamma=0.5, batch=batch)
        design = protocol.design(POPULATION)
        assert design.release.probability == 1.0
        x, y = records(5)
        shard = Shard(records={"x": x, "y": y}, mask=jnp.ones(RECORDS, bool), population=POPULATION)
        weights, source = weights_of(design, 1.0), Keyed(jax.random.key(4))
        memory = protocol.remember(POPULATION, jax.random.key(0))  # no generator yet: records alone
        slope = jax.jit(protocol.answer)({"weights": weights}, jnp.int32(0), shard, memory, source)[0]["slope"]
        silent = jnp.zeros(design.weights, jnp.int32)
        told_by = jax.jit(functools.partial(noised_sum, protocol, design))
        plain = told_by(weights, jnp.asarray(x), jax.nn.one_hot(y, LABELS), jnp.ones(RECORDS, bool), silent)
        noise = jnp.asarray(design.release.mechanism.noise(source.split(3)[1])) * design.release.mechanism.grid
        told[batch] = np.asarray(slope - 0.5 * restored(design.bits) * noise / RECORDS, np.float64)
        np.testing.assert_allclose(told[batch], 0.5 * np.asarray(plain) / RECORDS, atol=1e-4)


# Runs


def assert_same(one, other):
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        if not jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(a, b, atol=1e-4)


PAPER = dataclasses.replace(MIXED, recipe="paper")


@pytest.fixture(scope="module")
def simulated(clients):
    return functools.lru_cache(lambda protocol: simulation.run(protocol, clients, root=jax.random.key(5)))


SLOWLY = [pytest.param(ALL_MADE, marks=pytest.mark.slow), ALONE, pytest.param(PAPER, marks=pytest.mark.slow)]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [MIXED, *SLOWLY], ids=["mixed", "all made", "alone", "paper"])
def test_simulation_and_debug_engine_end_alike(protocol, clients, simulated):
    fast = simulated(protocol)
    slow = debug.run(protocol, clients, root=jax.random.key(5))
    assert_same(fast.state, slow.state)
    assert fast.traffic == slow.traffic
    assert fast.ledger.spent() == slow.ledger.spent()
    assert fast.rounds == protocol.round_count(population_of(clients)) == {ALL_MADE: 1, ALONE: 2}.get(protocol, 3)
    assert fast.generator.weights.shape == (protocol.design(POPULATION).features.size + 1, LABELS)
    assert fast.generator.weights.any()
    assert len(fast.generator.classify(clients.data)) == len(clients.data)
    if protocol.gamma:
        assert fast.generator.sample(5, jax.random.key(1), {"label": "1"}).x.shape == (5, SIDE, SIDE)
    else:
        with pytest.raises(DataError, match="nothing to draw from"):
            fast.generator.sample(5, jax.random.key(1))


@pytest.mark.slow
def test_operating_system_randomness_gives_a_run_too(clients, simulated):
    exact = debug.run(MIXED, clients, root=jax.random.key(5), exact=True)
    assert exact.ledger.spent() == simulated(MIXED).ledger.spent()
    assert np.isfinite(exact.generator.weights).all()
    assert (exact.generator.weights != simulated(MIXED).generator.weights).any()
    assert (exact.generator.thetas != simulated(MIXED).generator.thetas).any()
    assert len(exact.generator.sample(5, jax.random.key(1))) == 5


def test_a_client_answers_from_the_operating_systems_randomness():
    """Noise and batches of the second stage, without a whole run."""
    design = MIXED.design(POPULATION)
    x, y = records(1)
    shard = Shard(records={"x": x, "y": y}, mask=np.ones(RECORDS, bool), population=POPULATION)
    memory = MIXED.remember(POPULATION, jax.random.key(0))
    told = [
        np.asarray(
            MIXED.answer({"weights": jnp.zeros(design.weights)}, jnp.int32(0), shard, memory, System())[0]["slope"]
        )
        for _ in range(2)
    ]
    assert np.isfinite(told[0]).all()
    assert (told[0] != told[1]).any()


def test_replies_count_by_client_whatever_their_order_and_absent_ones_do_not(clients):
    """In both stages; a padded slot belongs to nobody."""
    state, source = MIXED.begin(POPULATION, jax.random.key(0)), Keyed(jax.random.key(1))
    size = len(state.thetas[0])
    for _ in range(2):
        ask = MIXED.ask(state, POPULATION, source)
        name, width = ("theta", size) if int(state.round) == 0 else ("slope", MIXED.design(POPULATION).weights)
        values = {name: jnp.asarray(np.random.default_rng(3).normal(size=(4, width)), jnp.float32)}
        whom, present = jnp.array([0, 1, 2, -1]), jnp.array([True, False, True, False])
        ends = []
        for order, spoilt in ((np.arange(4), 0.0), (np.array([2, 3, 0, 1]), 9.0)):
            told = {name: jnp.where(present[:, None], values[name], spoilt)[order]}
            ends.append(
                MIXED.absorb(state, ask, Replies(clients=whom[order], present=present[order], values=told), source)
            )
        assert_same(*ends)
        state = ends[0]
        assert np.asarray(state.told).tolist() == [True, False, True]
        assert state.thetas.shape == (CLIENTS, size)
        assert not np.asarray(state.thetas[1]).any()


def test_a_client_without_a_generator_mixes_nothing():
    design = MIXED.design(POPULATION)
    weights, theta = weights_of(design, 1.0), jnp.ones(design.gan.generator_size)
    for told in (True, False):
        slope = MIXED._generated(design, weights, theta, jnp.asarray(told), jax.random.key(1))
        assert bool(np.asarray(slope).any()) == told


# What is learned


def bars(count, seed=0):
    """A bright bar in one of three places, upright or lying."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, LABELS, count)
    x = rng.integers(0, 40, (count, 8, 8))
    for row, label in enumerate(y):
        at = rng.integers(2, 5)
        if label == 0:
            x[row, :, at : at + 2] = rng.integers(180, 256)
        elif label == 1:
            x[row, at : at + 2] = rng.integers(180, 256)
        else:
            x[row, 2:6, 2:6] = rng.integers(180, 256)
    return Images(x=x.astype(np.uint8), y=y, classes=LABELS)


LEARNS = {"turns": 30, "batch": 60, "rate": 0.3, "features": 2, "delta": 1e-3}
MAKES = {
    "width": 16, "critic_width": 16, "latent": 4, "waves": 6, "iterations": 120, "critics": 3, "gan_batch": 40,
    "critic_rate": 3e-3, "gan_rate": 3e-3,
}  # fmt: skip


def right(outcome):
    test = bars(200, seed=9)
    return float((outcome.generator.classify(test) == test.y).mean())


@pytest.mark.slow
def test_records_alone_teach_bars_where_noise_is_small():
    outcome = simulation.run(
        DpFl(epsilon=50.0, **LEARNS), split(bars(360), records_per_client=120), root=jax.random.key(0)
    )
    assert right(outcome) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_it_learns_bars_where_noise_is_small(gamma):
    protocol = GenFl(epsilon=50.0, gamma=gamma, **LEARNS, **MAKES)
    outcome = simulation.run(protocol, split(bars(360), records_per_client=120), root=jax.random.key(0))
    assert right(outcome) > (0.9 if gamma < 1 else 0.7)
    made_now = outcome.generator.sample(300, jax.random.key(1))
    assert float((outcome.generator.classify(made_now) == made_now.y).mean()) > 0.7


def test_a_target_that_is_reached_ends_the_run(clients):
    """And what was not asked is not charged."""
    early = dataclasses.replace(MIXED, target=1e-6)
    outcome = simulation.run(early, clients, root=jax.random.key(5))
    assert outcome.rounds == 2 < early.round_count(population_of(clients))
    assert float(outcome.state.validated[0]) >= early.target
    assert outcome.ledger.spent()["charges"] == outcome.rounds * CLIENTS
    assert outcome.ledger.spent()["epsilon"] < early.guarantee(population_of(clients)).epsilon


def test_the_first_round_is_the_same_for_every_client_and_public():
    keys = Keys(jax.random.key(5))
    state = MIXED.begin(POPULATION, keys.begin())
    ask = MIXED.ask(state, POPULATION, Keyed(keys.ask(0)))
    common, own = MIXED.question(POPULATION, 0)
    assert jax.tree.map(jnp.shape, common) == jax.tree.map(jnp.shape, ask.common)
    assert own.shape == ask.own[0].shape
