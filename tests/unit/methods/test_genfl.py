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
from populace.methods.blocks.dp_sgd import clip_rows, whole_rows
from populace.methods.genfl.classifier import gradient_factors
from populace.methods.genfl.protocol import DpFl, GenFl
from populace.privacy.source import Keyed, System
from populace.tables.images import Images
from populace.tables.partition import split

SIDE, RECORDS, LABELS, CLIENTS = 6, 12, 3, 3
POPULATION = Population(schema=ImageShape(shape=(SIDE, SIDE), classes=LABELS), clients=CLIENTS, records=RECORDS)
NARROW = {"hidden_size": 4, "critic_hidden_size": 4, "latent_size": 2, "basis_size": 3}
CLASSIFIER = {"rounds": 2, "batch_size": 6, "features": 1, **NARROW}
TINY = {**CLASSIFIER, "generator_steps": 2, "critic_steps": 2, "gan_batch_size": 4}
MIXED = GenFl(epsilon=2.0, synthetic_share=0.5, **TINY)
ALL_MADE = GenFl(epsilon=2.0, synthetic_share=1.0, **TINY)
ALONE = DpFl(epsilon=2.0, **CLASSIFIER)


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
    learner = MIXED.parts(POPULATION).learner

    @jax.jit
    def total(weights, x, y, drawn):
        silent = jnp.zeros(learner.weights, jnp.int32)
        one_hot = jax.nn.one_hot(y, LABELS)
        return learner.noised_gradient(weights, x, one_hot, clip_norm=bound, drawn=drawn, noise=silent)

    return learner, total


def weights_of(learner, scale, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(0, scale, learner.weights), jnp.float32)


# What is released


def test_the_sum_over_a_batch_is_exactly_that_of_whole_products():
    """In 64 bits, one record after the other; more records than are multiplied at once.

    That such a product is the clipped gradient of a record is tested in `tests/unit/methods/test_linear.py`.
    """
    learner, _ = summer(0.9)
    count, (x, y) = 3 * learner.bits.at_once + 5, records(4, 3 * learner.bits.at_once + 5)
    weights = weights_of(learner, 3.0)
    drawn, one_hot = np.random.default_rng(1).random(count) < 0.8, jax.nn.one_hot(y, LABELS)
    released = jax.jit(functools.partial(learner.noised_gradient, clip_norm=0.9))
    found = released(weights, x, one_hot, drawn=jnp.asarray(drawn), noise=jnp.zeros(learner.weights, jnp.int32))

    @jax.jit
    def clipped_factors(weights, x, y):
        features, errors = gradient_factors(learner.scattering, weights, x, y)
        return features, clip_rows(errors, 0.9)

    features, errors = clipped_factors(weights, x, one_hot)
    features = np.asarray(whole_rows(features, learner.bits.features), np.int64)
    errors = np.asarray(whole_rows(errors, learner.bits.errors), np.int64)
    total = sum(np.outer(features[row], errors[row]) for row in np.flatnonzero(drawn)).reshape(-1)
    units = np.asarray(found, np.float64) / learner.bits.correction / learner.release.classifier.mechanism.grid
    step = 2 ** (learner.bits.both + round(math.log2(learner.release.classifier.mechanism.grid)))
    np.testing.assert_allclose(units, np.floor(total / step + 0.5), atol=1e-2)  # float32 of the result; sums are whole


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6), row=st.integers(0, RECORDS - 1), scale=st.floats(0, 100), bound=st.sampled_from([0.01, 0.9])
)  # fmt: skip
def test_one_record_moves_the_sum_by_at_most_the_bound(seed, row, scale, bound):
    learner, total = summer(bound)
    x, y = records(seed)
    weights, there = weights_of(learner, scale, seed), np.ones(RECORDS, bool)
    both = []
    for held in (True, False):
        there[row] = held
        both.append(np.asarray(total(weights, x, y, jnp.asarray(there)), np.float64))
    mechanism = learner.release.classifier.mechanism
    most = 1 + math.sqrt(mechanism.size) * mechanism.grid
    assert np.linalg.norm(both[0] - both[1]) <= most <= mechanism.sensitivity + 1e-9


def test_records_left_out_by_the_mask_are_never_drawn():
    """A client without records answers with the noise and its generated examples, whatever the padding holds."""
    learner = MIXED.parts(POPULATION).learner
    memory, common = MIXED.remember(POPULATION, jax.random.key(0)), {"weights": weights_of(learner, 1.0)}

    @jax.jit
    def gradient(x, y):
        shard = Shard(records={"x": x, "y": y}, mask=jnp.zeros(RECORDS, bool), population=POPULATION)
        return MIXED.answer(common, jnp.int32(0), shard, memory, Keyed(jax.random.key(4)))[0]["gradient"]

    np.testing.assert_array_equal(gradient(*records(1)), gradient(*records(2)))


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


@pytest.mark.parametrize("protocol", [MIXED, pytest.param(ALL_MADE, marks=pytest.mark.slow)], ids=["mixed", "all made"])
def test_the_claim_is_the_composition_of_both_stages(protocol):
    release, claim = protocol.parts(POPULATION).release, protocol.guarantee(POPULATION)
    steps = protocol.generator_steps * protocol.critic_steps
    parts = [(release.gan.mechanism.noise_multiplier, protocol.gan_batch_size / RECORDS, steps)]
    if protocol.synthetic_share < 1:
        probability = (1 - protocol.synthetic_share) * protocol.batch_size / RECORDS
        assert release.classifier.probability == pytest.approx(probability)
        assert recomputed(parts, release.delta) == pytest.approx(protocol.budget_share * protocol.epsilon, rel=0.02)
        parts.append((release.classifier.mechanism.noise_multiplier, probability, protocol.rounds))
    assert claim.epsilon == pytest.approx(recomputed(parts, release.delta), rel=0.01)
    assert 0.97 * protocol.epsilon < claim.epsilon <= protocol.epsilon
    assert (claim.unit, claim.trust, claim.neighbours) == ("record", "silo", "zero-out")


@pytest.mark.slow
def test_a_larger_share_of_generated_examples_asks_for_less_noise():
    less, more = (dataclasses.replace(MIXED, synthetic_share=gamma, batch_size=8) for gamma in (0.2, 0.6))
    noises = [each.parts(POPULATION).release.classifier.noise_multiplier for each in (less, more)]
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
    protocol = dataclasses.replace(MIXED, recipe="paper", synthetic_share=gamma)
    claim = protocol.guarantee(POPULATION)
    assert math.isinf(claim.epsilon)
    assert "without noise" in claim.reason
    assert not any("composed" in line for line in claim.derivation)
    if gamma < 1:  # the whole of epsilon is said to be the classifier's, as in the letter
        release = protocol.parts(POPULATION).release
        released = release.classifier
        parts = [(released.mechanism.noise_multiplier, released.probability, protocol.rounds)]
        assert 1.95 < recomputed(parts, release.delta) <= 2.01


@pytest.mark.parametrize(
    "wrong",
    [
        {"synthetic_share": -0.1}, {"synthetic_share": 1.1}, {"budget_share": 0.0}, {"budget_share": 1.0},
        {"recipe": "none"}, {"rounds": 0}, {"clip_norm": 0.0}, {"ema_decay": 1.0}, {"features": 0}, {"net": "large"},
        {"epsilon": 0.0}, {"stop_accuracy": 1.0}, {"gan_learning_rate": math.inf},
        {"stop_accuracy": 0.9, "synthetic_share": 1.0},
    ],
)  # fmt: skip
def test_bad_settings_are_refused_in_one_sentence(wrong):
    with pytest.raises(SpecError, match=r"expected"):
        dataclasses.replace(MIXED, **wrong)


def test_the_baseline_mixes_nothing_in_and_its_statement_speaks_of_no_generator():
    with pytest.raises(SpecError, match="expected synthetic_share 0 for dp-fl"):
        dataclasses.replace(ALONE, synthetic_share=0.5)
    said = {protocol: " ".join(protocol.guarantee(POPULATION).derivation) for protocol in (ALONE, ALL_MADE, MIXED)}
    assert "generat" not in said[ALONE]
    assert "the classifier" in said[ALONE]
    assert "the classifier" not in said[ALL_MADE]
    assert all(word in said[MIXED] for word in ("generated examples", "the classifier"))


@pytest.mark.slow
def test_a_batch_larger_than_a_client_is_all_it_holds():
    """Records keep the share 1 - gamma of a step, however few they are."""
    told = {}
    for batch in (2 * RECORDS, 50 * RECORDS):
        protocol = dataclasses.replace(MIXED, synthetic_share=0.5, batch_size=batch)
        learner = protocol.parts(POPULATION).learner
        assert learner.release.classifier.probability == 1.0
        x, y = records(5)
        shard = Shard(records={"x": x, "y": y}, mask=jnp.ones(RECORDS, bool), population=POPULATION)
        weights, source = weights_of(learner, 1.0), Keyed(jax.random.key(4))
        memory = protocol.remember(POPULATION, jax.random.key(0))  # no generator yet: records alone
        gradient = jax.jit(protocol.answer)({"weights": weights}, jnp.int32(0), shard, memory, source)[0]["gradient"]
        silent = jnp.zeros(learner.weights, jnp.int32)
        released = jax.jit(functools.partial(learner.noised_gradient, clip_norm=protocol.clip_norm))
        everybody = jnp.ones(RECORDS, bool)
        plain = released(weights, jnp.asarray(x), jax.nn.one_hot(y, LABELS), drawn=everybody, noise=silent)
        mechanism = learner.release.classifier.mechanism
        noise = jnp.asarray(mechanism.noise(source.split(3)[1])) * mechanism.grid
        told[batch] = np.asarray(gradient - 0.5 * learner.bits.correction * noise / RECORDS, np.float64)
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
    assert fast.generator.weights.shape == (protocol.parts(POPULATION).learner.scattering.size + 1, LABELS)
    assert fast.generator.weights.any()
    assert len(fast.generator.classify(clients.data)) == len(clients.data)
    if protocol.synthetic_share:
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


@pytest.mark.slow
def test_a_client_answers_from_the_operating_systems_randomness():
    """Noise and batches of the second stage, without a whole run."""
    learner = MIXED.parts(POPULATION).learner
    x, y = records(1)
    shard = Shard(records={"x": x, "y": y}, mask=np.ones(RECORDS, bool), population=POPULATION)
    memory = MIXED.remember(POPULATION, jax.random.key(0))
    told = [
        np.asarray(
            MIXED.answer({"weights": jnp.zeros(learner.weights)}, jnp.int32(0), shard, memory, System())[0]["gradient"]
        )
        for _ in range(2)
    ]
    assert np.isfinite(told[0]).all()
    assert (told[0] != told[1]).any()


def test_replies_count_by_client_whatever_their_order_and_absent_ones_do_not(clients):
    """In both stages; a padded slot belongs to nobody."""
    state, source = MIXED.begin(POPULATION, jax.random.key(0)), Keyed(jax.random.key(1))
    size = len(state.learner.thetas[0])
    for _ in range(2):
        ask = MIXED.ask(state, POPULATION, source)
        name, width = ("theta", size) if int(state.round) == 0 else ("gradient", len(state.learner.weights))
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
        assert np.asarray(state.learner.known).tolist() == [True, False, True]
        assert state.learner.thetas.shape == (CLIENTS, size)
        assert not np.asarray(state.learner.thetas[1]).any()


def test_a_client_without_a_generator_mixes_nothing():
    learner = MIXED.parts(POPULATION).learner
    weights, theta = weights_of(learner, 1.0), jnp.ones(learner.generator.decoder_size)
    generated = jax.jit(learner.generated)
    for told in (True, False):
        gradient = generated(weights, theta, jnp.asarray(told), jax.random.key(1))
        assert bool(np.asarray(gradient).any()) == told


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


LEARNS = {"rounds": 30, "batch_size": 60, "learning_rate": 0.3, "features": 2, "delta": 1e-3}
MAKES = {
    "hidden_size": 16, "critic_hidden_size": 16, "latent_size": 4, "basis_size": 6, "generator_steps": 120,
    "critic_steps": 3, "gan_batch_size": 40, "critic_learning_rate": 3e-3, "gan_learning_rate": 3e-3,
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
    protocol = GenFl(epsilon=50.0, synthetic_share=gamma, **LEARNS, **MAKES)
    outcome = simulation.run(protocol, split(bars(360), records_per_client=120), root=jax.random.key(0))
    assert right(outcome) > (0.9 if gamma < 1 else 0.7)
    made_now = outcome.generator.sample(300, jax.random.key(1))
    assert float((outcome.generator.classify(made_now) == made_now.y).mean()) > 0.7


def test_a_target_that_is_reached_ends_the_run(clients):
    """And what was not asked is not charged."""
    early = dataclasses.replace(MIXED, stop_accuracy=1e-6)
    outcome = simulation.run(early, clients, root=jax.random.key(5))
    assert outcome.rounds == 2 < early.round_count(population_of(clients))
    assert float(outcome.state.learner.validated[0]) >= early.stop_accuracy
    assert outcome.ledger.spent()["charges"] == outcome.rounds * CLIENTS
    assert outcome.ledger.spent()["epsilon"] < early.guarantee(population_of(clients)).epsilon


@pytest.mark.parametrize("protocol", [MIXED, ALONE], ids=["mixed", "alone"])
def test_a_site_expects_of_every_round_the_shapes_that_are_sent(protocol):
    """The first round sends a start of the GAN, where there is one, and every other the classifier."""
    keys = Keys(jax.random.key(5))
    first = protocol.begin(POPULATION, keys.begin())
    for number in range(protocol.round_count(POPULATION)):
        state = dataclasses.replace(first, round=np.int32(number))
        ask = protocol.ask(state, POPULATION, Keyed(keys.ask(number)))
        common, own = protocol.question(POPULATION, number)
        assert jax.tree.map(jnp.shape, common) == jax.tree.map(jnp.shape, ask.common)
        assert (own.shape, own.dtype) == (ask.own[0].shape, ask.own.dtype)
