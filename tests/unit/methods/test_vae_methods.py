"""The VAE methods: what they claim against dp-accounting, when they stop, who is charged, what is kept, and that they learn."""

import dataclasses
import functools

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import pld

from builders import mark_slow
from populace.engines import debug, simulation
from populace.engines.runtime import Keys, Traffic, new_ledger, population_of
from populace.errors import BudgetError, PopulaceError, SpecError
from populace.methods.base import Ask, ImageShape, Population, Replies
from populace.methods.blocks.dp_sgd import Examples
from populace.methods.blocks.vae_generator import VaeImages
from populace.methods.blocks.vae_networks import BasisVae
from populace.methods.vae import training
from populace.methods.vae.c_dpd_vae import CDpdVae
from populace.methods.vae.central_vae import CentralVae
from populace.methods.vae.fed_vae import FedVae
from populace.methods.vae.l_dpd_vae import LDpdVae
from populace.privacy.accounting import default_delta, epsilon_of, sampled_gaussian
from populace.privacy.source import Keyed
from populace.tables.images import Images
from populace.tables.partition import split

SIDE, CLIENTS, RECORDS = 6, 4, 4
TINY = {"net": "basis", "hidden_size": 3, "latent_size": 2}
POPULATION = Population(schema=ImageShape(shape=(SIDE, SIDE), classes=2), clients=CLIENTS, records=RECORDS)
MANY = dataclasses.replace(POPULATION, clients=500, records=40)
FIRST = Ask(round=0, cohort=np.arange(CLIENTS), common=(), own=())
BARS, BLOBS = np.zeros((SIDE, SIDE)), np.zeros((SIDE, SIDE))
BARS[:, 1::3], BLOBS[2:4, 2:4] = 1, 1
SHAPES = np.stack([BARS, BLOBS])


def pictures(clients=CLIENTS, records=RECORDS, seed=0):
    """Bars and blobs, bright on dark, with a little noise."""
    rng = np.random.default_rng(seed)
    y = np.arange(clients * records) % 2
    x = np.clip(30 + 190 * SHAPES[y] + rng.normal(0, 20, (len(y), SIDE, SIDE)), 0, 255).astype(np.uint8)
    return split(Images(x=x, y=y, classes=2), records_per_client=records)


# What is claimed


def recomputed(*, noise_multiplier, probability, steps, delta):
    """By dp-accounting's own accountant and events, nothing of ours."""
    event = dp_accounting.GaussianDpEvent(noise_multiplier)
    if probability < 1:
        event = dp_accounting.PoissonSampledDpEvent(probability, event)
    accountant = pld.PLDAccountant()
    return accountant.compose(dp_accounting.SelfComposedDpEvent(event, steps)).get_epsilon(delta)


CLAIMS = {
    "local": (LDpdVae(epsilon=4.0, participations=3, local_steps=2, batch_size=4, **TINY), 6, 0.1, 500 * 40),
    "local, joint": (LDpdVae(epsilon=4.0, encoder="joint", participations=3, local_steps=2, batch_size=4, **TINY), 6,
    0.1, 500 * 40),
    "local, quantile": (LDpdVae(epsilon=4.0, clip_quantile=0.5, participations=3, local_steps=2, batch_size=4,
    **TINY), 6, 0.1, 500 * 40),
    "central": (CDpdVae(epsilon=4.0, rounds=6, sampling_rate=0.1, **TINY), 6, 0.1, 500),
    "central, everybody": (CDpdVae(epsilon=4.0, rounds=3, **TINY), 3, 1.0, 500),
    "central, quantile": (CDpdVae(epsilon=4.0, rounds=6, sampling_rate=0.1, clip_quantile=0.5, **TINY), 6, 0.1, 500),
}  # fmt: skip


@pytest.mark.parametrize("name", mark_slow(CLAIMS, [name for name in CLAIMS if "," in name]))
def test_the_claim_is_what_dp_accounting_finds_for_the_noise_that_is_added(name):
    """From the noise of the mechanisms themselves; vectors and count of one step are one Gaussian release."""
    protocol, steps, probability, units = CLAIMS[name]
    parts, claim = protocol.parts(MANY), protocol.guarantee(MANY)
    noised, vae = parts.release.steps, parts.learner.vae
    costs = [noised.mechanism.noise_multiplier**-2]
    if protocol.clip_quantile:
        costs.append(noised.count.noise_multiplier**-2)
    together = sum(costs) ** -0.5
    assert together == pytest.approx(parts.release.noise_multiplier, rel=1e-9)
    assert claim.delta == default_delta(units)
    wanted = recomputed(noise_multiplier=together, probability=probability, steps=steps, delta=claim.delta)
    assert claim.epsilon == pytest.approx(wanted, rel=2e-3)
    assert 3.9 < claim.epsilon <= 4.0
    assert noised.mechanism.size == vae.decoder_size + (vae.encoder_size if "joint" in name else 0)


def test_baselines_and_the_published_encoder_claim_nothing():
    for protocol in (
        FedVae(**TINY),
        CentralVae(**TINY),
        LDpdVae(epsilon=1.0, encoder="paper", participations=2, **TINY),
    ):
        claim = protocol.guarantee(MANY)
        assert claim.epsilon == np.inf
        assert claim.reason
        assert epsilon_of(protocol.charge(FIRST, MANY).event, delta=1e-5) == np.inf


def test_delta_follows_the_house_rule_or_is_asked_for_and_never_reaches_one_in_n():
    assert LDpdVae(epsilon=1.0, **TINY).parts(MANY).release.delta == default_delta(20_000)
    asked = CDpdVae(epsilon=4.0, rounds=2, delta=1e-3, **TINY).guarantee(MANY)
    assert asked.delta == 1e-3
    assert any("delta 0.001 was asked for" in line for line in asked.assumptions)
    for protocol, units in (
        (LDpdVae(epsilon=1.0, delta=1e-4, **TINY), 20_000),
        (CDpdVae(epsilon=1.0, delta=2e-3, **TINY), 500),
    ):
        with pytest.raises(PopulaceError, match=f"below 1/n for n = {units:,} protected units") as caught:
            protocol.guarantee(MANY)
        assert "\n" not in str(caught.value)


# Clients stop before they overspend


@pytest.mark.parametrize(
    ("protocol", "probability", "each"),
    [
        pytest.param(
            LDpdVae(epsilon=3.0, noise_multiplier=2.0, participations=10_000, local_steps=2, batch_size=4, **TINY),
            0.1,
            2,
            marks=pytest.mark.slow,
        ),
        (CDpdVae(epsilon=3.0, noise_multiplier=2.0, rounds=10_000, sampling_rate=0.1, **TINY), 0.1, 1),
    ],
    ids=["local", "central"],
)
def test_with_noise_given_rounds_end_before_the_step_that_would_overspend(protocol, probability, each):
    release, claim = protocol.parts(MANY).release, protocol.guarantee(MANY)
    rounds = protocol.round_count(MANY)
    spent = functools.partial(sampled_gaussian, noise_multiplier=2.0, probability=probability)
    assert 1 < rounds < 10_000
    assert claim.epsilon == epsilon_of(spent(steps=rounds * each), delta=release.delta) <= 3.0
    assert epsilon_of(spent(steps=(rounds + 1) * each), delta=release.delta) > 3.0
    ledger, charge = new_ledger(protocol, MANY), protocol.charge(FIRST, MANY)
    for round_id in range(rounds):
        ledger.book(np.arange(3), charge, round_id=round_id)
    with pytest.raises(BudgetError, match="nothing left"):
        ledger.book(np.array([2]), charge, round_id=rounds)


@pytest.mark.slow
def test_noise_that_does_not_allow_one_round_is_refused():
    with pytest.raises(SpecError, match="choose more noise"):
        CDpdVae(epsilon=0.1, noise_multiplier=0.5, **TINY).round_count(MANY)
    with pytest.raises(SpecError, match="choose more noise or fewer steps"):
        LDpdVae(epsilon=0.1, noise_multiplier=0.5, **TINY).round_count(MANY)


# Who computes, who is charged, what is kept


CENTRAL = CDpdVae(
    epsilon=5.0,
    rounds=2,
    sampling_rate=0.5,
    local_epochs=1,
    batch_size=RECORDS,
    learning_rate=0.01,
    ema_decay=0.0,
    momentum=0.0,
    **TINY,
)


@pytest.fixture(scope="module")
def clients():
    return pictures()


@pytest.fixture(scope="module")
def exchange(clients):
    """One round of the central method: question, memories before, replies, memories after."""
    population, keys = population_of(clients), Keys(jax.random.key(1))
    state = CENTRAL.begin(population, keys.begin())
    ask = CENTRAL.ask(state, population, Keyed(keys.ask(0)))
    drawn = np.array([True, False, False, True])
    slots = np.append(np.arange(CLIENTS), np.full(simulation.SLOTS - CLIENTS, -1)).astype(np.int32)
    own = np.append(drawn, np.zeros(simulation.SLOTS - CLIENTS, bool))
    ask = dataclasses.replace(ask, cohort=jnp.asarray(slots), own=jnp.asarray(own))
    memory = simulation._memories(CENTRAL, population, keys)
    records, mask = clients.gather(slots, RECORDS)
    replies, after = simulation._answer_cohort(CENTRAL, population, keys, ask, records, mask, memory)
    again = dataclasses.replace(ask, round=jnp.int32(1))
    second, _ = simulation._answer_cohort(CENTRAL, population, keys, again, records, mask, after)
    return state, ask, drawn, memory, replies, after, second


def test_only_who_was_drawn_sends_and_remembers(exchange):
    _, ask, drawn, memory, replies, after, _ = exchange
    np.testing.assert_array_equal(CENTRAL.working(ask)[:CLIENTS], drawn)
    pairs = [tuple(map(np.asarray, pair)) for pair in zip(*map(jax.tree.leaves, (memory, after)), strict=True)]
    changed = [any((old[client] != new[client]).any() for old, new in pairs) for client in range(CLIENTS)]
    np.testing.assert_array_equal(changed, drawn)
    np.testing.assert_array_equal(np.asarray(after.begun), drawn)
    np.testing.assert_array_equal(np.asarray(replies.values["change"]).any(axis=1)[:CLIENTS], drawn)
    np.testing.assert_array_equal((np.asarray(replies.values["below"]) != 0)[:CLIENTS], drawn)


def test_the_decoders_optimiser_begins_anew_and_the_encoders_goes_on(exchange):
    """A first step of Adam is as long as its rate wherever there is a slope; a client keeps no more than its encoder."""
    state, _, drawn, _, _, after, second = exchange
    learner = CENTRAL.parts(state.population).learner
    grid, bound = learner.mechanism.grid, float(state.learner.clip_norm)
    for change in np.asarray(second.values["change"])[:CLIENTS][drawn]:
        steps = np.abs(change * grid * bound)
        assert np.median(steps) == pytest.approx(CENTRAL.learning_rate, rel=0.05)
    counts = [
        leaf for leaf in jax.tree.leaves(after.train_state.optimizer_state) if np.issubdtype(leaf.dtype, np.integer)
    ]
    np.testing.assert_array_equal(counts[0], drawn.astype(int))
    sizes = {leaf.shape[1:] for leaf in jax.tree.leaves(after.train_state)}
    assert sizes == {(), (learner.vae.encoder_size,)}


def test_every_client_is_charged_for_every_round_though_few_compute(clients):
    outcome = simulation.run(CENTRAL, clients, root=jax.random.key(2))
    assert outcome.ledger.spent()["charges"] == CLIENTS * CENTRAL.rounds
    assert outcome.traffic.messages < CLIENTS * CENTRAL.rounds
    assert outcome.ledger.spent()["epsilon"] == outcome.guarantee.epsilon


def test_a_round_that_draws_nobody_releases_noise_alone(clients):
    """On both engines: the same zeros, everybody charged, nobody's memory touched."""
    population = population_of(clients)

    def question(seed):
        keys = Keys(jax.random.key(seed))
        state = CENTRAL.begin(population, keys.begin())
        return keys, state, CENTRAL.ask(state, population, Keyed(keys.ask(0)))

    keys, state, ask = next(found for seed in range(500) if not (found := question(seed))[2].own.any())
    ledger, before = new_ledger(CENTRAL, population), simulation._memories(CENTRAL, population, keys)
    runner = simulation._RoundByRound(CENTRAL, clients, population, keys, ledger)
    end, memory, traffic, _ = runner.advance(state, before, Traffic(), 0, 1)
    assert traffic.messages == 0
    assert ledger.spent()["charges"] == CLIENTS
    assert not memory.begun.any()
    memories = {}
    slow = debug.answer_one_by_one(CENTRAL, ask, clients, population, keys, 0, memories, exact=False)
    assert memories == {}
    assert not slow.values["change"].any()
    mechanism, source = CENTRAL.parts(population).learner.mechanism, Keyed(keys.absorb(0))
    noise = np.asarray(mechanism.noise(source.split(2)[0])) * mechanism.grid
    step = noise * CENTRAL.clip_norm / (CENTRAL.sampling_rate * CLIENTS)
    for after in (end, CENTRAL.absorb(state, ask, slow, source)):
        np.testing.assert_allclose(after.learner.theta, state.learner.theta + step, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("encoder", [pytest.param("joint", marks=pytest.mark.slow), "sleep"])
def test_only_who_is_asked_remembers(encoder, clients):
    protocol = LDpdVae(
        epsilon=5.0, encoder=encoder, participations=1, cohort_size=2, batch_size=2, sleep_steps=1, **TINY
    )
    population, keys = population_of(clients), Keys(jax.random.key(1))
    if encoder == "sleep":
        assert protocol.remember(population, keys.memory(0)) == ()
        return
    ask = protocol.ask(protocol.begin(population, keys.begin()), population, Keyed(keys.ask(0)))
    records, mask = clients.gather(np.asarray(ask.cohort), RECORDS)
    memory = simulation._memories(protocol, population, keys)
    _, after = simulation._answer_cohort(protocol, population, keys, ask, records, mask, memory)
    asked = np.isin(np.arange(CLIENTS), ask.cohort)
    np.testing.assert_array_equal(after.begun, asked)
    np.testing.assert_array_equal(np.asarray(after.train_state.parameters).any(axis=1), asked)


# Options


def test_the_bound_moves_towards_the_quantile():
    """All short: down. All long: up. At the quantile: nowhere. And only by the noisy count."""
    local = LDpdVae(
        epsilon=4.0,
        clip_quantile=0.5,
        participations=3,
        batch_size=2,
        sleep_steps=1,
        server_optimizer="sgd",
        encoder="frozen",
        **TINY,
    )
    central = dataclasses.replace(CENTRAL, clip_quantile=0.5)
    for protocol, whole in ((local, 0.5 * 2 * np.ones(CLIENTS)), (central, 0.5 * np.array([1, 1, 0, 0]))):
        state = protocol.begin(POPULATION, jax.random.key(0))
        ask = protocol.ask(state, POPULATION, Keyed(jax.random.key(1)))
        size, dtype = len(state.learner.theta), jnp.float32 if protocol is local else jnp.int32

        def after(below, protocol=protocol, state=state, ask=ask, size=size, dtype=dtype):
            values = {"change": jnp.zeros((CLIENTS, size), dtype), "below": jnp.asarray(below, jnp.float32)}
            replies = Replies(clients=ask.cohort, present=jnp.ones(CLIENTS, bool), values=values)
            end = protocol.absorb(state, ask, replies, Keyed(jax.random.key(2)))
            return float(end.learner.clip_norm / state.learner.clip_norm)

        short, still, long = after(whole), after(0 * whole), after(-whole)
        assert short / still == pytest.approx(np.exp(-0.2 * 0.5), rel=1e-4)
        assert long / still == pytest.approx(np.exp(0.2 * 0.5), rel=1e-4)
        if protocol is local:
            assert still == pytest.approx(1.0)


def test_a_clients_noisy_count_is_of_its_short_slopes(clients):
    protocol = LDpdVae(epsilon=8.0, clip_quantile=0.5, participations=1, batch_size=RECORDS, encoder="frozen", **TINY)
    learner = protocol.parts(POPULATION).learner
    phi, theta = learner.vae.start(jax.random.key(0))
    records, mask = clients.gather(np.array([0]), RECORDS)
    examples = Examples(*learner.vae.read(jax.tree.map(lambda rows: rows[0], records)), mask[0])
    draws = {
        "drawn": jnp.arange(RECORDS) > 0, "noise": jnp.zeros(learner.steps.mechanism.size, jnp.int32),
        "codes": jnp.zeros((RECORDS, 2)), "count": jnp.full(1, 64, jnp.int32),
    }  # fmt: skip
    told = jax.jit(lambda bound: learner.training.noised_gradient(phi, theta, bound, examples, draws)[1])
    noise = 64 * learner.steps.count.grid
    assert float(told(jnp.float32(1e3))) == pytest.approx(3 / 2 + noise)
    assert float(told(jnp.float32(1e-6))) == pytest.approx(-3 / 2 + noise)


@pytest.mark.parametrize("kind", [FedVae, CDpdVae])
def test_whole_shares_both_halves_and_keeps_nothing_at_home(kind, clients):
    options = {"epsilon": 5.0, "rounds": 1, "sampling_rate": 1.0, "local_epochs": 1, "batch_size": RECORDS, **TINY}
    protocol = kind(shared="whole", **options)
    population = population_of(clients)
    vae = protocol.vae(population)
    assert protocol.remember(population, jax.random.key(0)) == ()
    assert kind(shared="decoder", **options).remember(population, jax.random.key(0)) != ()
    start = protocol.begin(population, jax.random.key(0))
    before = start.learner
    assert before.momentum.shape == (vae.encoder_size + vae.decoder_size,)
    assert protocol.plan(population).bytes_up == 4 * (vae.encoder_size + vae.decoder_size + 1)
    ask = protocol.ask(start, population, Keyed(jax.random.key(1)))
    change = np.concatenate([np.ones(vae.encoder_size), np.full(vae.decoder_size, 2)])
    values = {"change": jnp.asarray(np.tile(change, (CLIENTS, 1)), jnp.float32), "norm": jnp.ones(CLIENTS)}
    if kind is CDpdVae:
        units = jnp.asarray(np.tile(1000 * change, (CLIENTS, 1)), jnp.int32)
        values = {"change": units, "below": jnp.zeros(CLIENTS)}
    replies = Replies(clients=ask.cohort, present=jnp.ones(CLIENTS, bool), values=values)
    after = protocol.absorb(start, ask, replies, Keyed(jax.random.key(2))).learner
    moves = np.mean(after.phi - before.phi), np.mean(after.theta - before.theta)
    if kind is FedVae:
        np.testing.assert_allclose(moves, [1, 2], rtol=1e-4)
    else:
        assert (after.phi != before.phi).mean() > 0.9


def test_a_warm_start_begins_from_a_generators_samples(monkeypatch):
    monkeypatch.setattr(training, "WARM_STEPS", 2)
    monkeypatch.setattr(training, "WARM_SAMPLES", 8)
    vae = BasisVae(shape=(SIDE, SIDE), classes=2, latent=2, width=3)
    warm = VaeImages(vae=vae, theta=np.asarray(vae.start(jax.random.key(9))[1]))
    for protocol in (CENTRAL, FedVae(rounds=1, **TINY)):
        cold, hot, same = (
            protocol.begin(POPULATION, jax.random.key(0), warm=start).learner.theta for start in (None, warm, warm)
        )
        assert np.abs(cold - hot).max() > 1e-4
        np.testing.assert_array_equal(hot, same)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (LDpdVae, {"encoder": "awake"}), (LDpdVae, {"participations": 0}), (LDpdVae, {"clip_norm": 0.0}),
        (LDpdVae, {"noise_multiplier": -1.0}), (LDpdVae, {"server_optimizer": "lion"}), (LDpdVae, {"net": "huge"}),
        (CDpdVae, {"sampling_rate": 0.0}),
        (CDpdVae, {"sampling_rate": 1.1}), (CDpdVae, {"shared": "half"}), (CDpdVae, {"momentum": 1.0}), (FedVae,
        {"clip_norm": -1.0}),
        (FedVae, {"rounds": 0}), (CentralVae, {"learning_rate": 0.0}), (CentralVae, {"latent_size": 0}),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused_in_one_sentence(kind, wrong):
    with pytest.raises(SpecError, match="expected") as caught:
        kind(epsilon=1.0, **wrong)
    assert "\n" not in str(caught.value)


# They learn


def likeness(generator, label):
    """How far the mean image of a label goes with the shape of its class."""
    images = generator.sample(40, jax.random.key(1), {"label": str(label)})
    return np.corrcoef(images.x.mean(axis=0).ravel(), SHAPES[label].ravel())[0, 1]


def loss_of(state, vae, images):
    """Of the real images under an encoder that knows nothing: codes from the prior."""
    x, y = vae.read({"x": images.x, "y": images.y})
    z = jax.random.normal(jax.random.key(3), (len(x), vae.latent))
    return float(vae.reconstruction(vae.decode(state.learner.theta, z, y), x).mean())


LEARNERS = {
    "fed-vae": FedVae(rounds=15, sampling_rate=1.0, local_epochs=4, batch_size=RECORDS, learning_rate=0.02, **TINY),
    "c-dpd-vae": CDpdVae(
        epsilon=8.0, rounds=15, sampling_rate=1.0, clip_norm=5.0, local_epochs=4, batch_size=RECORDS,
        learning_rate=0.02, ema_decay=0.0, **TINY
    ),
    "l-dpd-vae": LDpdVae(epsilon=8.0, participations=60, batch_size=RECORDS, clip_norm=0.1, server_learning_rate=0.1,
    sleep_steps=1, ema_decay=0.0, **TINY),
}  # fmt: skip


@pytest.fixture(scope="module")
def crowd():
    return pictures(clients=150)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name != "l-dpd-vae" else name for name in LEARNERS]
)
def test_it_learns_bars_and_blobs_where_noise_is_small(name, crowd):
    protocol = LEARNERS[name]
    outcome = simulation.run(protocol, crowd, root=jax.random.key(0))
    start = protocol.begin(population_of(crowd), Keys(jax.random.key(0)).begin())
    vae = protocol.vae(population_of(crowd))
    assert loss_of(outcome.state, vae, crowd.data) < loss_of(start, vae, crowd.data) - 0.1
    assert min(likeness(outcome.generator, label) for label in range(2)) > 0.8


def test_central_training_learns_bars_and_blobs(clients):
    outcome = simulation.run(
        CentralVae(training_steps=150, learning_rate=0.02, **TINY), clients, root=jax.random.key(0)
    )
    assert min(likeness(outcome.generator, label) for label in range(2)) > 0.8
