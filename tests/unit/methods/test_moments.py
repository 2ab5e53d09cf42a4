"""One noisy message per client: its sensitivity, its noise, and what becomes of it."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from populace.engines import debug, simulation
from populace.engines.runtime import new_ledger, population_of
from populace.errors import BudgetError, SpecError
from populace.methods.base import ImageShape, Population, Shard
from populace.methods.moments.features import ImageFeatures, TableFeatures
from populace.methods.moments.protocol import Moments
from populace.methods.moments.sums import DIAGONAL, layout_of, quantised, summed, unpacked
from populace.methods.registry import load_generator
from populace.privacy.gaussian import analytic_delta, rescaled
from populace.privacy.ledger import Budget
from populace.privacy.source import Keyed, System
from populace.tables.images import Images
from populace.tables.partition import split
from populace.tables.schema import Column, Schema

SHAPE = (12, 10)


def pictures(count, seed=0, classes=3, shape=SHAPE):
    """Bars whose place is the class, on a dark ground."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, count).astype(np.int32)
    x = rng.integers(0, 30, (count, *shape)).astype(np.uint8)
    for row, label in zip(x, y, strict=True):
        row[2 + 3 * label : 4 + 3 * label] = rng.integers(150, 255)
    return Images(x=x, y=y, classes=classes)


def shape_of(images):
    return ImageShape(shape=images.shape, classes=images.classes)


def design(shared=False, records=20, tilt=0.5, side=6, **how):
    population = Population(schema=ImageShape(shape=SHAPE, classes=3), clients=50, records=records)
    protocol = Moments(epsilon=2.0, side=side, tilt=tilt, covariance="shared" if shared else "class", **how)
    return protocol, population, protocol.parts(population).learner


def adversarial(features, rng):
    """Images that strain the bound: black, white, one pixel, single frequencies, noise, almost nothing."""
    x = rng.integers(0, 256, (60, *features.shape)).astype(np.uint8)
    x[0], x[1], x[2] = 0, 255, 0
    x[2, 3, 4] = 255
    x[3], x[3, 0, 0] = 0, 1
    for i, wave in enumerate(features.basis[:40]):
        x[10 + i] = np.where(wave.reshape(features.shape) > 0, 255, 0)
    return {"x": x, "y": rng.integers(0, features.classes, len(x)).astype(np.int32)}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("records", [1, 20, 5_000])
def test_no_record_changes_the_sum_by_more_than_the_bound(shared, records):
    """Exactly: whole numbers in, whole numbers out."""
    _, _, found = design(shared, records)
    rng = np.random.default_rng(1)
    some = adversarial(found.features, rng)
    alone = jax.jit(lambda one: summed(found.features, found.layout, one, np.ones(1, bool)))
    each = [
        np.asarray(alone(jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], some))).astype(np.int64)
        for i in range(len(some["y"]))
    ]
    norms = [math.sqrt(int((one * one).sum())) for one in each]
    assert max(norms) <= found.layout.bound
    assert max(norms) > 0.9 * found.layout.bound  # and it is not slack: a full-length record nearly reaches it
    both = np.asarray(summed(found.features, found.layout, some, np.ones(len(each), bool)))
    np.testing.assert_array_equal(both, sum(each))  # so adding a record adds just that


def test_features_beyond_anything_are_cut_in_whole_numbers():
    _, _, found = design()
    rng = np.random.default_rng(2)
    h = np.concatenate(
        [
            rng.normal(size=(50, 36)) * 10.0 ** rng.integers(-30, 30, (50, 1)),
            np.full((1, 36), np.nan),
            np.full((1, 36), np.inf),
        ]
    ).astype(np.float32)
    whole, length, square = quantised(found.features, found.layout, h)
    units = np.asarray(whole).astype(np.int64)
    assert (units**2).sum(axis=1).max() <= found.layout.unit**2
    for told in (length, square):
        assert np.asarray(told).min() >= 0
        assert np.asarray(told).max() <= found.layout.unit


def test_second_moments_weigh_every_direction_alike():
    """7/5 for sqrt(2): a unit vector's second moments are between .98 and 1 long, in units of 5."""
    layout = design()[2].layout
    rng = np.random.default_rng(0)
    f = rng.normal(size=(200, layout.size))
    f[0] = np.eye(layout.size)[0]
    f /= np.linalg.norm(f, axis=1, keepdims=True)
    products = f[:, layout.pairs[0]] * f[:, layout.pairs[1]] * layout.factors
    norms = np.linalg.norm(products, axis=1) / DIAGONAL
    assert norms.max() <= 1 + 1e-12
    assert norms.min() > 0.98


def test_sums_are_those_of_a_slow_loop():
    _, _, found = design(records=300)
    images = pictures(300)
    mask = np.arange(300) < 290
    got = unpacked(
        found.layout, np.asarray(summed(found.features, found.layout, {"x": images.x, "y": images.y}, mask)), 0.0
    )
    h = np.asarray(found.features.measured(images.x / 255.0), np.float64)
    phi = h / np.maximum(np.linalg.norm(h, axis=1), found.features.floor)[:, None]
    for label in range(3):
        mine = phi[mask & (images.y == label)]
        assert got.counts[label] == len(mine)
        np.testing.assert_allclose(got.means[label] / len(mine), mine.mean(axis=0), atol=1e-3)
        np.testing.assert_allclose(got.seconds[label] / len(mine), mine.T @ mine / len(mine), atol=2e-3)
        lengths = np.linalg.norm(h[mask & (images.y == label)], axis=1) / found.features.ceiling
        np.testing.assert_allclose(got.lengths[label] / len(mine), [lengths.mean(), (lengths**2).mean()], atol=2e-3)


def test_sums_of_many_records_never_wrap():
    """White images, all of one class: the largest sums there can be."""
    _, _, found = design(shared=True, records=30_000)
    images = {"x": np.full((30_000, *SHAPE), 255, np.uint8), "y": np.zeros(30_000, np.int32)}
    got = unpacked(found.layout, np.asarray(summed(found.features, found.layout, images, np.ones(30_000, bool))), 0.0)
    assert got.counts[0] == 30_000
    assert (np.diagonal(got.seconds[0]) >= 0).all()
    assert 0.9 < np.trace(got.seconds[0]) / 30_000 < 1.1


def test_labels_outside_the_classes_add_to_none():
    _, _, found = design()
    images = pictures(20)
    odd = {"x": images.x, "y": np.full(20, 7, np.int32)}
    np.testing.assert_array_equal(summed(found.features, found.layout, odd, np.ones(20, bool)), 0)


@pytest.mark.parametrize("shift", [-3, 0, 1, 4])
def test_rounding_to_the_grid_is_the_nearest(shift):
    units = np.arange(-1_000, 1_000, dtype=np.int32)
    got = np.asarray(rescaled(jnp.asarray(units), shift))
    assert np.abs(got * 2.0**shift - units).max() <= 2.0**shift / 2


@pytest.mark.parametrize("trust", ["silo", "central"])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 10.0])
def test_noise_is_calibrated_to_the_claim(trust, epsilon):
    """Against the closed form of the Gaussian mechanism; never above, and not far below."""
    population = Population(schema=ImageShape(shape=SHAPE, classes=3), clients=50, records=20)
    protocol = Moments(epsilon=epsilon, delta=1e-5, trust=trust)
    claim = protocol.guarantee(population)
    multiplier = protocol.parts(population).learner.mechanism.noise_multiplier
    assert (claim.unit, claim.neighbours, claim.trust) == ("record", "zero-out", trust)
    assert claim.accounted_delta == pytest.approx(1e-5, rel=1e-9)
    assert claim.delta - claim.accounted_delta < 1e-12
    assert claim.units == 50 * 20
    assert 0.99 * epsilon < claim.epsilon <= epsilon
    assert analytic_delta(epsilon, multiplier) <= 1e-5 < analytic_delta(epsilon, 0.99 * multiplier)
    assert protocol.spends(population) == protocol.parts(population).learner.mechanism.event


def test_delta_follows_the_house_rule_and_a_larger_one_is_said():
    population = Population(schema=ImageShape(shape=SHAPE, classes=3), clients=500, records=120)
    assert Moments(epsilon=1.0).guarantee(population).delta == pytest.approx(60_000**-1.1)
    said = Moments(epsilon=1.0, delta=1e-5).guarantee(population)
    assert any("house rule" in line for line in said.assumptions)
    with pytest.raises(SpecError, match="below 1/n"):
        Moments(epsilon=1.0, delta=1e-3).guarantee(population)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"trust": "nobody"}, "trust"), ({"covariance": "none"}, "covariance"), ({"deformations": "x"}, "deformations"),
     ({"side": -1}, "side"),
     ({"clients_per_batch": 0}, "clients_per_batch"),
     ({"tilt": 3.0}, "tilt"), ({"delta": 1.0}, "delta"), ({"epsilon": 0.0}, "epsilon")],
)  # fmt: skip
def test_wrong_settings_are_named(wrong, words):
    with pytest.raises(SpecError, match=words):
        Moments(**{"epsilon": 1.0, **wrong})


@pytest.mark.parametrize("trust", ["silo", "central"])
def test_noise_is_there_once_or_at_every_client(trust):
    """Clients without records: what remains is noise, of every client under local trust, of the server alone under central."""
    protocol, population, found = design(trust=trust)
    shard = Shard(
        records={"x": np.zeros((20, *SHAPE), np.uint8), "y": np.zeros(20, np.int32)}, mask=np.zeros(20, bool),
        population=population,
    )  # fmt: skip
    for source in (Keyed(jax.random.key(0)), System()):
        reply = np.asarray(protocol.answer((), 0, shard, (), source)[0])
        deviation = reply.std() / found.mechanism.deviation
        assert deviation == 0 if trust == "central" else 0.9 < deviation < 1.1
    images = pictures(200)
    outcome = simulation.run(protocol, split(images, records_per_client=20), root=jax.random.key(1))
    exact = np.asarray(
        summed(found.features, found.layout, {"x": images.x, "y": images.y}, np.ones(200, bool)), np.int64
    )
    left = (outcome.state.learner.total * found.mechanism.grid - exact) / found.mechanism.scale
    assert left.std() == pytest.approx(math.sqrt(10) if trust == "silo" else 1.0, rel=0.1)
    assert int(outcome.state.learner.messages) == 10


def test_without_noise_the_generator_has_the_moments_and_shares_of_the_data():
    images = pictures(3_000)
    clients = split(images, records_per_client=30)
    protocol = Moments(epsilon=50.0, delta=1e-5, trust="central", side=10, deformations="none")
    generator = simulation.run(protocol, clients, root=jax.random.key(0)).generator
    made = generator.sample(3_000, jax.random.key(1))
    np.testing.assert_allclose(generator.label_shares(), np.bincount(images.y) / 3_000, atol=0.01)
    for label in range(3):
        real, synthetic = (of.x[of.y == label].mean(axis=0) / 255 for of in (images, made))
        assert np.abs(real - synthetic).mean() < 0.05
        assert np.corrcoef(real.ravel(), synthetic.ravel())[0, 1] > 0.95


def test_skew_of_labels_among_clients_does_no_harm():
    """The release is a sum: who holds what cannot be seen in it, but for the noise."""
    images = pictures(400)
    protocol = Moments(epsilon=5.0, trust="central", clients_per_batch=7)
    order = np.argsort(images.y, kind="stable")
    first, second = (
        simulation.run(protocol, split(of, records_per_client=10), root=jax.random.key(4)).state.learner.total
        for of in (images, images.take(order))
    )
    assert np.abs(first - second).max() <= 40  # of the grid: each client's sum is rounded once


@pytest.mark.parametrize(
    "shape", [(9, 14), (8, 8, 3), *(pytest.param(shape, marks=pytest.mark.slow) for shape in ((5, 40, 1), (1, 6)))]
)
def test_any_size_and_channels(shape):
    rng = np.random.default_rng(0)
    images = Images(
        x=rng.integers(0, 256, (40, *shape)).astype(np.uint8), y=np.arange(40, dtype=np.int32) % 2, classes=2
    )
    outcome = simulation.run(Moments(epsilon=5.0), split(images, records_per_client=5), root=jax.random.key(0))
    made = outcome.generator.sample(30, jax.random.key(1))
    assert made.shape == shape
    assert len(np.unique(made.y)) == 2


@pytest.mark.slow
def test_saved_and_loaded_it_draws_the_same(tmp_path):
    images = pictures(120)
    outcome = debug.run(
        Moments(epsilon=8.0, clients_per_batch=3),
        split(images, records_per_client=30),
        root=jax.random.key(0),
        exact=True,
    )
    outcome.generator.save(tmp_path)
    again = load_generator(tmp_path)
    first, second = (of.sample(50, jax.random.key(2)) for of in (outcome.generator, again))
    np.testing.assert_array_equal(first.x, second.x)
    asked = again.sample(10, jax.random.key(3), {"label": "1"})
    assert (asked.y == 1).all()


def test_more_noise_means_fewer_frequencies_and_shared_covariances():
    images = ImageShape(shape=(28, 28), classes=10)

    def chosen(**how):
        found = Moments(delta=1e-5, **how).parts(Population(schema=images, clients=500, records=120)).learner
        return found.features.side, found.layout.shared

    assert chosen(epsilon=10.0, trust="central") == (14, False)
    assert chosen(epsilon=1.0, trust="central") == (12, False)
    assert chosen(epsilon=10.0) == (10, False)
    assert chosen(epsilon=1.0) == (10, True)
    assert chosen(epsilon=0.2) == (8, True)


def test_batches_of_large_messages_are_smaller():
    sizes = [
        Moments(epsilon=1.0, trust="central")
        .parts(Population(schema=ImageShape(shape=shape, classes=10), clients=1_000, records=1_000))
        .schedule.block
        for shape in ((28, 28), (32, 32, 3))
    ]
    assert sizes == [64, 9]


def test_the_plan_tells_size_and_noise():
    population = Population(schema=ImageShape(shape=(28, 28), classes=10), clients=500, records=120)
    plan = Moments(epsilon=10.0, delta=1e-5).plan(population)
    assert plan.rounds == 1
    assert plan.bytes_up == 4 * (10 + 20 + 1_000 + 10 * 5_050)
    less = Moments(epsilon=10.0, delta=1e-5, trust="central", side=10).plan(population)
    for name, error in plan.errors.items():
        assert error == pytest.approx(less.errors[name] * math.sqrt(500), rel=1e-6)


def test_tables_are_scaled_and_one_hot(small_table, small_schema):
    features = TableFeatures(small_schema)
    assert features.widths == (3, 2, 1)
    h = np.asarray(features.measured(small_table.codes))
    assert (np.linalg.norm(h, axis=1) <= features.floor + 1e-6).all()
    codes = np.asarray(features.examples(h))
    kept = list(features.columns)
    np.testing.assert_array_equal(codes[:, kept], small_table.codes[:, kept])


def test_image_features_of_what_they_make_are_the_same():
    features = ImageFeatures((12, 10, 2), 3, 4)
    h = np.zeros((2, features.size), np.float32)
    h[:, features.orders.reshape(-1) == 0] = 5.0  # flat, and within the range
    np.testing.assert_allclose(features.measured(features.examples(h)), h, atol=1e-4)


def test_bits_shrink_with_records():
    features = ImageFeatures((28, 28), 3, 10)
    assert [layout_of(features, shared=False, records=records).bits for records in (1, 120, 10_000, 10**6)] == [
        9,
        9,
        7,
        5,
    ]
    assert population_of(split(pictures(10), records_per_client=5)).records == 5
    assert dataclasses.is_dataclass(layout_of(features, shared=True, records=5))


def test_clients_whose_message_could_wrap_are_refused_under_central_trust():
    """Of one column of 600 values, records that are all alike: one more would move the sum of wrapped messages by 2^32."""
    column = Column(name="a", kind="categorical", categories=tuple(f"c{i}" for i in range(600)))
    crowded = Population(schema=Schema(columns=(column,)), clients=2, records=20_000)
    with pytest.raises(SpecError, match="split the records among clients of at most"):
        Moments(epsilon=1.0, trust="central").guarantee(crowded)
    Moments(epsilon=1.0, trust="silo").guarantee(crowded)
    fits = int(re.search(r"at most ([0-9,]+)", _refusal(crowded)).group(1).replace(",", ""))
    found = Moments(epsilon=1.0, trust="central").parts(dataclasses.replace(crowded, records=fits)).learner
    alike = np.zeros((fits, 1), np.int32)
    units = np.asarray(summed(found.features, found.layout, alike, np.ones(fits, bool)), np.int64)
    message = np.asarray(rescaled(summed(found.features, found.layout, alike, np.ones(fits, bool)), found.shift))
    assert (np.abs(units) < 2**31).all()
    exact = units * 2 ** max(0, -found.shift) if found.shift <= 0 else units >> found.shift
    assert np.abs(message - exact).max() <= 1


def _refusal(population):
    with pytest.raises(SpecError) as caught:
        Moments(epsilon=1.0, trust="central").guarantee(population)
    return str(caught.value)


def test_tables_of_too_many_values_are_refused_in_a_sentence():
    column = Column(name="a", kind="categorical", categories=tuple(f"c{i}" for i in range(3_000)))
    with pytest.raises(SpecError, match="merge rare categories"):
        Moments(epsilon=1.0).guarantee(Population(schema=Schema(columns=(column,)), clients=20, records=1))


def test_the_old_word_for_noise_at_the_silo_is_read():
    """Agreements and plans of version 0.1.0 say "local"; the method is the same."""
    old = {"epsilon": 1.0, "trust": "local", "moves": "slant", "batch": 5}
    assert Moments(**Moments.settings_from_file(old)) == Moments(
        epsilon=1.0, trust="silo", deformations="slant", clients_per_batch=5
    )
    with pytest.raises(SpecError, match="silo"):
        Moments(epsilon=1.0, trust="local")


def test_the_largest_epsilon_stays_within_what_was_asked():
    """At epsilon 50 what sampling may add to delta counts, and the noise leaves room for it."""
    columns = tuple(Column(name=name, kind="categorical", categories=("a", "b")) for name in "xy")
    population = Population(schema=Schema(columns=columns), clients=2, records=300)
    asked = Budget(epsilon=50.0, delta=1e-5, unit="record")
    new_ledger(Moments(epsilon=50.0, delta=1e-5), population, asked)
    claim = Moments(epsilon=50.0, delta=1e-5).guarantee(population)
    assert claim.sampling_delta > 1e-10
    with pytest.raises(BudgetError, match="more than the epsilon 40"):
        new_ledger(Moments(epsilon=50.0, delta=1e-5), population, Budget(epsilon=40.0, delta=1e-5, unit="record"))
