"""DP-Fed-WAE on images: what is sent, what it costs, and that it learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from populace.engines import simulation
from populace.engines.runtime import new_ledger
from populace.errors import BudgetError, DataError, SpecError
from populace.methods.base import ImageShape, Population, Shard
from populace.methods.blocks.networks import Blocks, convolve, count_parameters
from populace.methods.wae.autoencoders import ClassAutoencoder, ConvAutoencoder
from populace.methods.wae.dp_fed_wae import DpFedWae
from populace.methods.wae.images import ConvDecoder, ImageClasses, Mosaic, read_tiles, usual_tile
from populace.methods.wae.training import adam_update
from populace.privacy.events import Pure
from populace.privacy.source import Keyed
from populace.tables.images import Images
from populace.tables.partition import split

MNIST = Population(schema=ImageShape(shape=(28, 28), classes=10, read_from_data=("classes",)), clients=100, records=2)
SHAPES = np.zeros((3, 4, 4))
SHAPES[0, :2], SHAPES[1, :, :2], SHAPES[2, 1:3, 1:3] = 1, 1, 1


def shapes(clients, seed=0):
    """Bars above, bars on the left and squares in the middle, two at a client."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, 2 * clients)
    x = np.clip(30 + 180 * SHAPES[y] + rng.normal(0, 20, (len(y), 4, 4)), 0, 255).astype(np.uint8)
    return split(Images(x=x, y=y, classes=3), records_per_client=2)


def test_recipes_have_their_networks_and_mechanisms():
    best = DpFedWae(epsilon=8.0).parts(MNIST).learner
    assert isinstance(best.net, ClassAutoencoder)
    assert (best.mosaic, best.net.target) == (Mosaic((28, 28), 2), 196)
    assert best.mechanism.size == 4_096
    paper = DpFedWae(epsilon=8.0, recipe="paper").parts(MNIST).learner
    assert isinstance(paper.net, ConvAutoencoder)
    assert (paper.net.shapes[-1], paper.mechanism.size) == (("in", (9, 8)), count_parameters(paper.net.shapes))
    assert paper.mechanism.chosen == round(0.05 * paper.mechanism.size)


@pytest.mark.parametrize(("shape", "tile"), [((8, 8), 1), ((28, 28), 2), ((32, 32, 3), 4), ((2, 500), 2)])
def test_tiles_are_as_small_as_the_public_rule_allows(shape, tile):
    assert usual_tile(shape) == tile


@pytest.mark.parametrize("recipe", ["best", "paper"])
def test_reports_cost_what_is_claimed(recipe):
    protocol = DpFedWae(epsilon=6.0, participations=3, recipe=recipe)
    assert protocol.parts(MNIST).release.event(0) == Pure(2.0)
    claim = protocol.guarantee(MNIST)
    assert (claim.epsilon, claim.delta, claim.unit, claim.trust) == (6.0, 0.0, "client", "local")
    assert claim.read_from_data == ("classes",)


def test_one_report_more_than_claimed_is_refused():
    protocol = DpFedWae(epsilon=1.0, participations=2)
    ask = protocol.ask(protocol.begin(MNIST, jax.random.key(0)), MNIST, Keyed(jax.random.key(1)))
    ledger, charge = new_ledger(protocol, MNIST), protocol.charge(ask, MNIST)
    for round_id in range(2):
        ledger.book(np.array([0]), charge, round_id=round_id)
    with pytest.raises(BudgetError):
        ledger.book(np.array([0]), charge, round_id=2)


def test_images_of_black_and_white_are_rows_of_codes():
    """The same network gets the same numbers as from a table of binary columns with the label as its last."""
    rng = np.random.default_rng(0)
    bits, y = rng.integers(0, 2, (5, 3, 2)), rng.integers(0, 3, 5)
    net = ClassAutoencoder(Blocks((2,) * 6 + (3,)), 2, 6)
    read = read_tiles(net, Mosaic((3, 2)), {"x": (255 * bits).astype(np.uint8), "y": y})
    wanted = net.read(np.concatenate([bits.reshape(5, 6), y[:, None]], axis=1))
    for found, other in zip(read, wanted, strict=True):
        np.testing.assert_allclose(found, other, atol=1e-6)


def contrast(images):
    """How much brighter the pixels of an image's own shape are than its others, on average; 0 if nothing was learned."""
    inside = SHAPES[images.y].astype(bool)
    return images.x[inside].mean() - images.x[~inside].mean()


@pytest.mark.slow
def test_learns_the_labels_and_their_images():
    outcome = simulation.run(
        DpFedWae(epsilon=8.0, latent_classes=2, cohort_size=6), shapes(600), root=jax.random.key(0)
    )
    assert isinstance(outcome.generator, ImageClasses)
    images = outcome.generator.sample(600, jax.random.key(1))
    assert np.bincount(images.y, minlength=3).min() > 100
    assert contrast(images) > 60
    np.testing.assert_array_less([55] * 3, [contrast(images.take(images.y == label)) for label in range(3)])
    assert outcome.ledger.spent()["charges"] == 600


@pytest.mark.slow
def test_with_next_to_no_epsilon_next_to_nothing_is_learned():
    outcome = simulation.run(
        DpFedWae(epsilon=0.05, latent_classes=2, cohort_size=6), shapes(600), root=jax.random.key(0)
    )
    assert abs(contrast(outcome.generator.sample(600, jax.random.key(1)))) < 40


@pytest.mark.slow
def test_published_recipe_gives_images_without_labels():
    clients = shapes(6)
    outcome = simulation.run(
        DpFedWae(epsilon=4.0, recipe="paper", hidden_size=16, latent_size=2, local_epochs=2, cohort_size=3,
        pretraining_steps=2), clients,
        root=jax.random.key(0),
    )  # fmt: skip
    assert isinstance(outcome.generator, ConvDecoder)
    assert outcome.rounds == 2
    images = outcome.generator.sample(5, jax.random.key(1))
    assert (images.x.shape, images.classes) == ((5, 4, 4), 1)
    with pytest.raises(DataError, match="without labels"):
        outcome.generator.sample(5, jax.random.key(1), {"label": "1"})


@pytest.mark.slow
def test_a_client_without_images_and_one_class_answer_too():
    population = Population(schema=ImageShape(shape=(3, 3), classes=1), clients=4, records=2)
    protocol = DpFedWae(epsilon=1.0, latent_classes=2)
    state = protocol.begin(population, jax.random.key(0))
    ask = protocol.ask(state, population, Keyed(jax.random.key(1)))
    records = {"x": np.zeros((2, 3, 3), np.uint8), "y": np.zeros(2, np.int32)}
    shard = Shard(records=records, mask=np.zeros(2, bool), population=population)
    reply, _ = protocol.answer(ask.common, ask.own[0], shard, (), Keyed(jax.random.key(2)))
    assert 0 <= int(reply) < 2 * protocol.parts(population).learner.mechanism.size
    made = protocol.finish(state, population, jax.random.key(3)).sample(4, jax.random.key(4))
    assert (made.classes, made.x.shape) == (1, (4, 3, 3))


def test_tiles_wider_than_the_image_are_refused():
    with pytest.raises(SpecError, match="tile"):
        DpFedWae(epsilon=1.0, tile=29).parts(MNIST)


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_agree_with_those_of_the_library(stride):
    x = jax.random.normal(jax.random.key(0), (2, 6, 4, 3))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 3, 5))
    wanted = jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), ((1, 1), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(convolve(x, kernel.reshape(27, 5), stride=stride), wanted, atol=1e-4)


@pytest.mark.slow
def test_local_training_of_the_convolutional_autoencoder_lowers_its_loss():
    net = ConvAutoencoder((5, 6), 2, 2)
    theta = net.start(jax.random.key(0))
    x = net.read(np.random.default_rng(0).integers(0, 256, (4, 5, 6)).astype(np.uint8))
    assert x.shape == (4, 8, 8, 1)
    after = theta + adam_update(net, theta, x, jnp.ones(4), jax.random.key(1), epochs=30, learning_rate=1e-2)
    prior = jax.random.normal(jax.random.key(2), (4, 2))
    before, later = (net.loss(each, x, jnp.ones(4), prior) for each in (theta, after))
    assert later < before - 0.02
