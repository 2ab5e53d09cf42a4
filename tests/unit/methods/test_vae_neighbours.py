"""What one record can change in a sum that `l-dpd-vae` releases.

Two clients that differ in one record have released the very same so far: what the noise of one was follows from the other's.
Then their next sums must differ by no more than the bound. So they do with a public encoder or one learned from releases; with
the published one, which keeps what it saw, they differ by more.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from populace.methods.base import ImageShape, Population, Shard
from populace.methods.blocks import dp_sgd
from populace.methods.blocks.dp_sgd import Examples, start_training
from populace.methods.vae.l_dpd_vae import LDpdVae
from populace.methods.vae.training import train_on_own_samples
from populace.privacy.gaussian import clip
from populace.privacy.source import Keyed

SIDE, RECORDS, ROUNDS, CODES = 6, 6, 3, 2
POPULATION = Population(schema=ImageShape(shape=(SIDE, SIDE), classes=2), clients=4, records=RECORDS)
CHECKERBOARD = np.indices((SIDE, SIDE)).sum(axis=0) % 2 * 255
ADVERSARIAL = {
    "black": np.zeros((SIDE, SIDE)), "white": np.full((SIDE, SIDE), 255), "checkerboard": CHECKERBOARD,
    "inverse": 255 - CHECKERBOARD,
}  # fmt: skip


def method(encoder, **options):
    """Everybody's records in every batch, small bounds: every gradient is clipped to its direction."""
    return LDpdVae(
        epsilon=9.0, encoder=encoder, participations=2, batch_size=RECORDS, clip_norm=1e-3, local_learning_rate=0.3,
        encoder_learning_rate=1.0,
        sleep_steps=2, codes_per_example=CODES, net="basis", hidden_size=3, latent_size=2, **options,
    )  # fmt: skip


def pair(seed, last=None):
    """A client's records, with the last of them and without."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (RECORDS, SIDE, SIDE)) * rng.integers(0, 2, (RECORDS, 1, 1))
    if last is not None:
        x[-1] = ADVERSARIAL[last]
    vae = method("frozen").vae(POPULATION)
    pixels, labels = vae.read({"x": x.astype(np.uint8), "y": rng.integers(0, 2, RECORDS)})
    return [Examples(pixels, labels, np.arange(RECORDS) < count) for count in (RECORDS, RECORDS - 1)]


def learner_of(protocol):
    return protocol.parts(POPULATION).learner


def silent(learner, seed, mask):
    """The draws of one step with all records and no noise."""
    return {
        "drawn": jnp.asarray(mask),
        "noise": jnp.zeros(learner.steps.mechanism.size, jnp.int32),
        "codes": jax.random.normal(jax.random.key(seed), (RECORDS, CODES, learner.vae.latent)),
    }


@functools.lru_cache(maxsize=8)
def compiled(protocol):
    return jax.jit(learner_of(protocol).training.noised_gradient)


def widest_difference(protocol, one, other, seed):
    """The most the sums differ over some rounds in which both clients release the same. In units of the bound."""
    learner = learner_of(protocol)
    state = protocol.begin(POPULATION, jax.random.key(seed)).learner
    keeps = protocol.remember(POPULATION, jax.random.key(0)) != ()
    public, theta, bound = state.encoder, state.theta, jnp.float32(protocol.clip_norm)
    homes = [start_training(public.parameters, protocol.encoder_learning_rate)] * 2
    widest = 0.0
    for number in range(ROUNDS):
        draws = [silent(learner, 100 * seed + number, examples.mask) for examples in (one, other)]
        sums = [
            np.asarray(compiled(protocol)(half.parameters, theta, bound, examples, draw)[0], np.float64)
            for half, examples, draw in zip(homes, (one, other), draws, strict=True)
        ]
        widest = max(widest, float(np.linalg.norm(sums[0] - sums[1])))
        made_up = np.round((sums[0] - sums[1]) / learner.steps.mechanism.grid).astype(np.int32)
        draws[1]["noise"] = jnp.asarray(made_up)
        ends = [
            learner.training.steps(
                half, theta, bound, examples, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], draw)
            )
            for half, examples, draw in zip(homes, (one, other), draws, strict=True)
        ]
        np.testing.assert_array_equal(ends[0][1], ends[1][1])  # the same was released
        theta = theta + ends[0][1]
        if protocol.encoder == "sleep":
            public = train_on_own_samples(
                learner.vae, public, theta, state.law, jax.random.key(number), steps=protocol.sleep_steps
            )
        homes = [end[0] if keeps else start_training(public.parameters, protocol.encoder_learning_rate) for end in ends]
    return widest


PAIRS = [(0, None), (1, None), (2, None), *((seed, name) for seed, name in enumerate(ADVERSARIAL, start=3))]


@pytest.mark.parametrize("encoder", [pytest.param("sleep", marks=pytest.mark.slow), "frozen", "joint"])
def test_one_record_changes_a_sum_by_no_more_than_the_bound(encoder):
    protocol = method(encoder)
    most = learner_of(protocol).steps.mechanism.sensitivity
    found = [widest_difference(protocol, *pair(seed, last), seed) for seed, last in PAIRS]
    assert max(found) <= most
    assert max(found) > 0.9  # the record does count: the test looks at something


def test_the_published_encoder_breaks_the_bound():
    """Although what was released is the same, the encoders are not: one record changes every other record's slope."""
    protocol = method("paper")
    found = [widest_difference(protocol, *pair(seed, last), seed) for seed, last in PAIRS]
    assert max(found) > 2 * learner_of(protocol).steps.mechanism.sensitivity  # the checkerboard
    claim = protocol.guarantee(POPULATION)
    assert claim.epsilon == np.inf
    assert "every other record's slope" in claim.reason


def test_without_clipping_the_bound_breaks_too(monkeypatch):
    """The same comparison finds a mechanism that was broken on purpose."""
    protocol = method("frozen", beta=0.02)
    monkeypatch.setattr(dp_sgd, "clip_tree", lambda tree, bound: tree)
    learner, state = learner_of(protocol), protocol.begin(POPULATION, jax.random.key(0)).learner
    sums = [
        jax.jit(learner.training.noised_gradient)(
            state.encoder.parameters, state.theta, state.clip_norm, examples, silent(learner, 0, examples.mask)
        )[0]
        for examples in pair(0)
    ]
    assert np.linalg.norm(sums[0] - sums[1]) > learner.steps.mechanism.sensitivity


def test_a_sum_is_that_of_records_clipped_one_by_one():
    """Against equation 1 written out and differentiated record by record, clipped and rounded in NumPy."""
    protocol = method("frozen")
    learner, state = learner_of(protocol), protocol.begin(POPULATION, jax.random.key(0)).learner
    vae, bound, examples = learner.vae, 0.01, pair(0)[0]
    phi, theta = state.encoder.parameters, state.theta
    draws = silent(learner, 0, np.array([True, False, True, True, False, True]))
    released = np.asarray(compiled(protocol)(phi, theta, jnp.float32(bound), examples, draws)[0])
    lengths = []

    @jax.jit
    def slope(theta, x, y, noise):
        def loss(theta, draw):
            mean, log_variance = vae.encode(phi, x[None], y[None])
            p = jax.nn.sigmoid(vae.decode(theta, mean + jnp.sqrt(jnp.exp(log_variance)) * draw, y[None])[0])
            return -jnp.mean(x * jnp.log(p) + (1 - x) * jnp.log(1 - p))

        return sum(jax.grad(loss)(theta, draw) for draw in noise) / CODES

    total = np.zeros(learner.steps.mechanism.size, np.int64)
    for row in np.flatnonzero(draws["drawn"]):
        one = np.asarray(slope(theta, examples.x[row], examples.y[row], draws["codes"][row]), np.float64) / bound
        lengths.append(np.linalg.norm(one))
        total += np.round(one / max(1, lengths[-1]) / learner.steps.mechanism.grid).astype(np.int64)
    assert max(lengths) > 1  # some are clipped
    np.testing.assert_allclose(released / learner.steps.mechanism.grid, total, atol=4)
    none = dict(draws, drawn=jnp.zeros(RECORDS, bool))
    assert not compiled(protocol)(phi, theta, jnp.float32(bound), examples, none)[0].any()


def test_only_what_was_noised_leaves():
    """Without a count that was paid for, a reply holds the decoder's change and a number that says nothing."""
    protocol = dataclasses.replace(method("frozen"), clip_norm=100.0)
    state = protocol.begin(POPULATION, jax.random.key(0))
    ask = protocol.ask(state, POPULATION, Keyed(jax.random.key(1)))
    records = {"x": np.zeros((RECORDS, SIDE, SIDE), np.uint8), "y": np.zeros(RECORDS, np.int32)}
    answer = jax.jit(lambda shard: protocol.answer(ask.common, ask.own[0], shard, (), Keyed(jax.random.key(2)))[0])
    for there in (0, 3, RECORDS):
        reply = answer(Shard(records=records, mask=np.arange(RECORDS) < there, population=POPULATION))
        assert float(reply["below"]) == 0
        assert reply["change"].shape == (learner_of(protocol).vae.decoder_size,)


@pytest.mark.parametrize("length", [0.0, 1e-9, 0.5, 1.0, 1e6])
def test_what_one_record_adds_is_within_the_sensitivity(length):
    mechanism = learner_of(method("frozen")).steps.mechanism
    vector = np.random.default_rng(0).normal(size=mechanism.size).astype(np.float32)
    vector *= length / np.linalg.norm(vector)
    units = np.asarray(mechanism.on_grid(clip(vector, 1.0)), np.float64)
    assert np.linalg.norm(units * mechanism.grid) <= mechanism.sensitivity
