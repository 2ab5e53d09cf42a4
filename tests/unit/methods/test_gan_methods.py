"""The GANs' protocols: sums against a slow oracle, what one record moves, ledgers, replay, EWC, claims that hold or do not."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from populace.engines import simulation
from populace.engines.runtime import new_ledger, population_of
from populace.errors import BudgetError, SpecError
from populace.methods.base import ImageShape, Population, Replies, Shard
from populace.methods.blocks.dp_sgd import Examples, noised_sum, start_training
from populace.methods.blocks.gan_training import BETAS, Visit, fisher_sum, replay_examples, row_gradient
from populace.methods.gan.fedavg_gan import FedAvgGan
from populace.methods.gan.fl_gan import FlGan, UflGan
from populace.privacy.accounting import epsilon_of
from populace.privacy.events import Composed, Gaussian, PoissonSampled, Repeated
from populace.privacy.source import Keyed, System
from populace.tables.images import Images
from populace.tables.partition import Clients

SIDE, RECORDS, LABELS = 5, 12, 3
POPULATION = Population(schema=ImageShape(shape=(SIDE, SIDE), classes=LABELS), clients=3, records=RECORDS)
NARROW = {"hidden_size": 4, "critic_hidden_size": 4, "latent_size": 2, "basis_size": 3, "batch_size": 4}
TINY = {**NARROW, "generator_steps": 2, "critic_steps": 2}


def records(seed, count=RECORDS):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (count, SIDE, SIDE)) * rng.integers(0, 2, (count, 1, 1))
    return {"x": x.astype(np.uint8), "y": rng.integers(0, LABELS, count)}


def visit_of(protocol, seed=0, visited=1, population=POPULATION):
    design, state = protocol.design(population), protocol.begin(population, jax.random.key(seed))
    names = ("omega", "theta", "average", "fisher", "counts")
    received = {name: getattr(state.learner, name) for name in names} | {"visited": jnp.int32(visited)}
    examples = design.gan.read(records(seed), jnp.ones(RECORDS, bool))
    return Visit(
        protocol, design, received, examples, jnp.full(LABELS if design.labels else 0, 4.0), jax.random.key(seed + 50)
    )


one_step = jax.jit(Visit.step)


def critic_after_one_step(visit, drawn, omega=None):
    critic = start_training(visit.received["omega"] if omega is None else omega, 1e-3, BETAS)
    generator = start_training(visit.received["theta"], 1e-3, BETAS)
    return one_step(visit, (critic, generator, visit.received["theta"]), jnp.int32(0), drawn)[0].parameters


@functools.lru_cache(maxsize=8)
def summer(net):
    """The released sum without noise, compiled once."""
    protocol = FlGan(epsilon=2.0, net=net, **TINY)
    visit = visit_of(protocol)

    @jax.jit
    def total(omega, theta, x, y, drawn, mask, bound):
        seen = Examples(x, y, mask)
        gradient_of = row_gradient(visit.design.gan, omega, theta, seen, jax.random.key(9))
        silent = jnp.zeros(visit.design.steps.mechanism.size, jnp.int32)
        release, gan = visit.design.steps, visit.design.gan
        return noised_sum(
            gradient_of, gan.flatten, release=release, clip_norm=bound, drawn=drawn & mask, noise=silent
        ).total

    return visit, total


@pytest.mark.parametrize("net", ["basis", "small"])
def test_the_sum_over_a_batch_is_that_of_one_record_after_the_other(net):
    visit, total = summer(net)
    omega, theta = visit.received["omega"] * 3, visit.received["theta"]
    drawn = jnp.asarray(np.random.default_rng(1).random(RECORDS) < 0.7)
    mask = jnp.arange(RECORDS) < RECORDS - 2
    found = total(omega, theta, visit.examples.x, visit.examples.y, drawn, mask, 0.8)
    expected = np.zeros(visit.design.steps.mechanism.size)
    gan = visit.design.gan
    one = jax.jit(lambda row: gan.flatten(row_gradient(gan, omega, theta, visit.examples, jax.random.key(9))(row)))
    lengths = []
    for row in np.flatnonzero(drawn & mask):
        gradient = np.asarray(one(row), np.float64) / 0.8
        lengths.append(np.linalg.norm(gradient))
        expected += gradient / max(1.0, lengths[-1])
    assert max(lengths) > 1, "nothing was clipped: the test would not see it"
    np.testing.assert_allclose(found, expected, atol=RECORDS * visit.design.steps.mechanism.grid)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6), row=st.integers(0, RECORDS - 1), scale=st.floats(0.01, 100), bound=st.floats(0.01, 10)
)
def test_one_record_moves_the_sum_by_at_most_the_bound(seed, row, scale, bound):
    visit, total = summer("basis")
    held = records(seed)
    examples = visit.design.gan.read(held, np.ones(RECORDS, bool))
    x, y = examples.x, examples.y
    omega = visit.received["omega"] * scale
    drawn, mask = jnp.ones(RECORDS, bool), np.ones(RECORDS, bool)
    sums = []
    for there in (True, False):
        mask[row] = there
        sums.append(
            np.asarray(total(omega, visit.received["theta"], x, y, drawn, jnp.asarray(mask), bound), np.float64)
        )
    most = 1 + math.sqrt(visit.design.steps.mechanism.size) * visit.design.steps.mechanism.grid
    assert np.linalg.norm(sums[0] - sums[1]) <= most <= visit.design.steps.mechanism.sensitivity + 1e-9


def test_clipping_each_coordinate_as_published_moves_it_by_more():
    visit = visit_of(FlGan(epsilon=2.0, recipe="paper", **TINY))
    omega = visit.received["omega"] * 20
    gradient = row_gradient(visit.design.gan, omega, visit.received["theta"], visit.examples, jax.random.key(9))(0)
    gradient = visit.design.gan.flatten(gradient)
    assert np.linalg.norm(np.clip(np.asarray(gradient), -1, 1)) > 2


@functools.cache
def squarer():
    """The Fisher information's sum without noise, compiled once."""
    visit = visit_of(UflGan(epsilon=2.0, **TINY))

    @jax.jit
    def total(omega, x, y, mask):
        gradient_of = row_gradient(
            visit.design.gan, omega, visit.received["theta"], Examples(x, y, mask), jax.random.key(2)
        )
        return fisher_sum(visit.design, gradient_of, 1.0, mask)

    return visit, total


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), row=st.integers(0, RECORDS - 1), scale=st.floats(0.1, 30))
def test_one_record_moves_the_fisher_information_by_at_most_one(seed, row, scale):
    visit, total = squarer()
    examples = visit.design.gan.read(records(seed), np.ones(RECORDS, bool))
    x, y = examples.x, examples.y
    masks = [jnp.ones(RECORDS, bool).at[row].set(there) for there in (True, False)]
    sums = [np.asarray(total(visit.received["omega"] * scale, x, y, mask), np.int64) for mask in masks]
    fisher = visit.design.fisher
    assert np.linalg.norm((sums[0] - sums[1]) * fisher.grid) <= 1 + math.sqrt(fisher.size) * fisher.grid
    assert (sums[0] >= 0).all()


def test_the_claim_is_that_of_the_event_recomputed_from_what_makes_the_noise():
    protocol = UflGan(epsilon=3.0, side_noise_multiplier=8.0, **TINY)
    design, claim = protocol.design(POPULATION), protocol.guarantee(POPULATION)
    step = PoissonSampled(4 / RECORDS, Gaussian(design.steps.mechanism.noise_multiplier))
    whole = Composed((Repeated(step, 4), Gaussian(8.0), Gaussian(8.0)))
    assert claim.epsilon == pytest.approx(epsilon_of(whole, delta=protocol.parts(POPULATION).release.delta), rel=1e-9)
    assert 2.9 < claim.epsilon <= 3.0
    assert (claim.unit, claim.trust, claim.neighbours) == ("record", "silo", "zero-out")
    without = UflGan(epsilon=3.0, ewc_weight=0.0, replay_weight=0.0, **TINY).design(POPULATION)
    assert without.steps.noise_multiplier < design.steps.noise_multiplier


@pytest.mark.parametrize(("batch", "expected"), [(4, 4), (100, RECORDS)])
def test_a_sum_is_divided_by_the_batch_expected_and_never_by_more_than_a_silo_holds(batch, expected):
    plain = FlGan(epsilon=2.0, **{**TINY, "batch_size": batch})
    assert float(visit_of(plain).denominator()) == pytest.approx(expected)
    counted = visit_of(dataclasses.replace(plain, replay_weight=1.0))
    assert float(counted.denominator()) == pytest.approx(expected)  # noisy counts add up to what the silo holds
    fewer = dataclasses.replace(counted, counts=counted.counts / 2)
    assert float(fewer.denominator()) == pytest.approx(expected / 2)


@pytest.mark.slow
def test_generator_steps_follow_from_the_budget_and_the_noise():
    settings = {**TINY, "generator_steps": 60, "critic_steps": 5}
    protocol = FlGan(epsilon=3.0, noise_multiplier=3.0, **settings)
    steps = protocol.design(POPULATION).steps.steps
    assert 5 <= steps < 300
    assert steps % 5 == 0
    more = dataclasses.replace(protocol, epsilon=6.0).design(POPULATION).steps.steps
    assert more > steps
    with pytest.raises(SpecError, match="choose more noise or fewer steps"):
        FlGan(epsilon=0.1, noise_multiplier=0.3, **settings).design(POPULATION)


def test_each_silo_is_charged_once_and_refuses_a_second_visit():
    protocol = FlGan(epsilon=2.0, **TINY)
    ask = protocol.ask(protocol.begin(POPULATION, jax.random.key(0)), POPULATION, Keyed(jax.random.key(1)))
    ledger, charge = new_ledger(protocol, POPULATION), protocol.charge(ask, POPULATION)
    ledger.book(np.array([0, 1, 2]), charge, round_id=0)
    with pytest.raises(BudgetError):
        ledger.book(np.array([1]), charge, round_id=1)


@pytest.mark.parametrize("recipe", ["paper", "open"])
def test_what_is_published_or_open_claims_nothing(recipe):
    claim = FlGan(epsilon=8.0, recipe=recipe, **TINY).guarantee(POPULATION)
    assert math.isinf(claim.epsilon)
    assert claim.reason
    if recipe == "paper":
        assert "costs epsilon" in claim.reason
        assert claim.trust == "silo"


def test_replayed_samples_are_weighed_by_the_records_behind_them():
    visit = visit_of(UflGan(epsilon=2.0, **TINY))
    past = jnp.array([6.0, 0.0, 6.0])
    visit = dataclasses.replace(visit, received={**visit.received, "counts": past}, counts=jnp.array([0.0, 4.0, 0.0]))
    weight, again, wanted = visit.label_shares()
    assert float(weight) == pytest.approx(12 / 16)
    assert np.asarray(again) == pytest.approx([0.5, 0, 0.5])
    assert np.asarray(wanted) == pytest.approx([6 / 16, 4 / 16, 6 / 16], abs=1e-4)
    unlabelled = visit_of(UflGan(epsilon=2.0, conditional=False, **TINY), visited=3)
    assert float(unlabelled.label_shares()[0]) == pytest.approx(3 / 4)


def test_the_first_silo_replays_nothing_and_is_pulled_nowhere():
    """Its gradient is that of the records alone; with replay, later ones' are not."""
    plain, universal = FlGan(epsilon=2.0, **TINY), UflGan(epsilon=2.0, **TINY)
    drawn = {"drawn": jnp.ones(RECORDS, bool), "noise": jnp.zeros(plain.design(POPULATION).gan.critic_size, jnp.int32)}
    after = {}
    for name, protocol, visited in (("plain", plain, 0), ("first", universal, 0), ("later", universal, 1)):
        visit = visit_of(protocol, visited=visited)
        if protocol.replay_weight and visited:
            visit = dataclasses.replace(visit, received={**visit.received, "counts": jnp.full(LABELS, 9.0)})
        after[name] = np.asarray(critic_after_one_step(visit, drawn))
    np.testing.assert_allclose(after["plain"], after["first"], atol=1e-6)
    assert np.abs(after["later"] - after["first"]).max() > 1e-5


def test_ewc_pulls_back_after_the_noise():
    """Far from the critic received, a strong pull turns the step around; it passes no clipping."""
    protocol = UflGan(epsilon=2.0, replay_weight=0.0, **{**TINY, "critic_steps": 1}, ewc_weight=1e6)
    visit = visit_of(protocol)
    design = visit.design
    common = {**visit.received, "fisher": jnp.ones(design.fisher.size)}
    visit = dataclasses.replace(visit, received=common)
    drawn = {"drawn": jnp.ones(RECORDS, bool), "noise": jnp.zeros(design.gan.critic_size, jnp.int32)}
    away = common["omega"] + 0.5
    assert (critic_after_one_step(visit, drawn, away) < away).all()


@pytest.mark.slow
def test_a_keyed_and_a_system_source_take_the_same_path():
    """Both train; the second draws step by step from the operating system."""
    protocol = UflGan(epsilon=2.0, **TINY)
    state = protocol.begin(POPULATION, jax.random.key(0))
    ask = protocol.ask(state, POPULATION, Keyed(jax.random.key(1)))
    shard = Shard(records=records(3), mask=np.ones(RECORDS, bool), population=POPULATION)
    replies = [
        protocol.answer(ask.common, ask.own[0], shard, (), each)[0] for each in (Keyed(jax.random.key(2)), System())
    ]
    for one, other in zip(*map(jax.tree.leaves, replies), strict=True):
        assert one.shape == other.shape
        assert np.isfinite(other).all()
    assert (np.asarray(replies[0]["omega"]) != np.asarray(replies[1]["omega"])).any()


def test_a_silo_that_does_not_answer_is_passed_over():
    protocol = UflGan(epsilon=2.0, **TINY)
    state = protocol.begin(POPULATION, jax.random.key(0))
    ask = protocol.ask(state, POPULATION, Keyed(jax.random.key(1)))
    shard = Shard(records=records(3), mask=np.ones(RECORDS, bool), population=POPULATION)
    answer = functools.partial(protocol.answer, memory=(), source=Keyed(jax.random.key(2)))
    shapes, _ = jax.eval_shape(answer, ask.common, ask.own[0], shard)
    reply = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), shapes)
    for present in (True, False):
        replies = Replies(
            clients=ask.cohort, present=jnp.array([present]), values=jax.tree.map(lambda leaf: leaf[None], reply)
        )
        after = protocol.absorb(state, ask, replies, Keyed(jax.random.key(3)))
        assert int(after.round) == 1
        assert int(after.learner.visited) == present
        omega = reply["omega"] if present else state.learner.omega
        assert (np.asarray(after.learner.omega) == np.asarray(omega)).all()


def unlike():
    """Three silos, one label each: bright squares in three places."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(LABELS), 40)
    x = rng.integers(0, 40, (120, SIDE, SIDE))
    for row, label in enumerate(y):
        x[row, :, label : label + 2] = rng.integers(200, 256)
    data = Images(x=x.astype(np.uint8), y=y, classes=LABELS)
    return Clients(data=data, order=np.arange(120), starts=np.array([0, 40, 80, 120]), how="one label each")


def kept(protocol, key, **settings):
    """Shares of the labels among the images made after all silos, by where the bright square is; and who came last."""
    where = np.stack([[label <= column < label + 2 for column in range(SIDE)] for label in range(LABELS)])
    wide = {**TINY, "hidden_size": 16, "critic_hidden_size": 16, "batch_size": 20, "basis_size": 5}
    wide |= {"generator_steps": 400, "critic_steps": 5}
    rates = {"critic_learning_rate": 3e-3, "learning_rate": 3e-3}
    made = protocol(epsilon=50.0, delta=1e-3, conditional=False, **wide, **rates, **settings)
    outcome = simulation.run(made, unlike(), root=jax.random.key(key))
    columns = np.asarray(outcome.generator.sample(600, jax.random.key(2)).x, float).mean(axis=1)
    contrast = np.stack([columns[:, w].mean(axis=1) - columns[:, ~w].mean(axis=1) for w in where], axis=1)
    return np.bincount(contrast.argmax(axis=1), minlength=LABELS) / 600, int(outcome.state.order[-1, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "least"),
    [({"recipe": "open"}, 0.2), ({"recipe": "valid", "clip_norm": 0.3}, 0.1)],
    ids=["open", "valid"],
)
def test_with_replay_the_labels_of_earlier_silos_are_kept_and_without_they_are_forgotten(settings, least):
    """Little noise or none: what is tested is the memory, not the budget. A silo holds the label of its own number."""
    lasts = set()
    for key in (1, 2, 3, 4):
        assert kept(UflGan, key, **settings)[0].min() > least
        shares, last = kept(FlGan, key, **settings)
        assert shares[last] > 0.9
        lasts.add(last)
    assert lasts == set(range(LABELS))


@pytest.mark.parametrize(
    "recipe", ["valid", *(pytest.param(recipe, marks=pytest.mark.slow) for recipe in ("paper", "open"))]
)
def test_replayed_samples_are_clipped_the_way_records_are(recipe):
    """So that their weight beside records means the same: to the bound, number by number, or not at all."""
    bound = 0.02
    protocol = UflGan(epsilon=2.0, recipe=recipe, clip_norm=bound, **TINY)
    visit = visit_of(protocol)
    gan, common = visit.design.gan, visit.received
    shares, samples, key = jnp.full(LABELS, 1 / LABELS), jax.random.key(3), jax.random.key(4)
    found = jax.jit(Visit.replay_gradient)(visit, common["omega"], common["theta"], shares, samples, key)
    again = replay_examples(gan, common["average"], shares, protocol.batch_size, samples)
    gradient = jax.jit(lambda row: gan.flatten(row_gradient(gan, common["omega"], common["theta"], again, key)(row)))
    each = np.stack([np.asarray(gradient(row), np.float64) for row in range(protocol.batch_size)]) / bound
    lengths = np.linalg.norm(each, axis=1, keepdims=True)
    assert lengths.min() > 1
    assert np.abs(each).max() > 1
    clipped = {"valid": each / np.maximum(lengths, 1), "paper": np.clip(each, -1, 1), "open": each}[recipe]
    np.testing.assert_allclose(found, clipped.mean(axis=0), atol=1e-4, rtol=1e-4)


def test_fedavg_charges_clients_in_every_round_and_claims_for_clients():
    protocol = FedAvgGan(epsilon=4.0, rounds=3, local_steps=2, **NARROW)
    claim = protocol.guarantee(POPULATION)
    assert (claim.unit, claim.trust) == ("client", "central")
    assert 3.9 < claim.epsilon <= 4.0
    ask = protocol.ask(protocol.begin(POPULATION, jax.random.key(0)), POPULATION, Keyed(jax.random.key(1)))
    ledger, charge = new_ledger(protocol, POPULATION), protocol.charge(ask, POPULATION)
    for round_id in range(3):
        ledger.book(np.arange(3), charge, round_id=round_id)
    with pytest.raises(BudgetError):
        ledger.book(np.array([0]), charge, round_id=3)


def test_fedavg_updates_are_clipped_and_a_client_without_records_sends_nothing():
    protocol = FedAvgGan(epsilon=4.0, rounds=3, local_steps=2, clip_norm=1e-4, **NARROW)
    state = protocol.begin(POPULATION, jax.random.key(0))
    ask = protocol.ask(state, POPULATION, Keyed(jax.random.key(1)))
    mechanism = protocol.parts(POPULATION).learner.mechanism
    for there in (True, False):
        shard = Shard(records=records(3), mask=np.full(RECORDS, there), population=POPULATION)
        reply, _ = protocol.answer(ask.common, jnp.asarray(True), shard, (), Keyed(jax.random.key(2)))
        length = np.linalg.norm(np.asarray(reply["change"], np.float64)) * mechanism.grid
        assert length == (pytest.approx(1, abs=0.01) if there else 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"net": "large"},
        {"batch_size": 0},
        {"clip_norm": 0.0},
        {"replay_weight": -1.0},
        {"ema_decay": 1.0},
        {"basis_size": 0},
    ],
)
def test_bad_settings_are_refused_in_one_sentence(wrong):
    with pytest.raises(SpecError):
        UflGan(epsilon=2.0, **{**TINY, **wrong})


def test_a_model_does_not_travel_through_a_million_phones():
    with pytest.raises(SpecError, match="for at most 1,000 silos"):
        FlGan(epsilon=2.0, **TINY).design(dataclasses.replace(POPULATION, clients=10**6))


def test_population_of_unlike_silos_is_what_the_widest_holds():
    assert population_of(unlike()).records == 40
