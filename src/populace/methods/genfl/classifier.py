"""The classifier of `genfl`: linear, on public wavelet features; its gradients, and the result that carries it.

A linear classifier on a scattering transform (Bruna and Mallat 2013), which is public and learned from nobody, does better
under noise that counts every parameter than a network of its own features (Tramer and Boneh 2021). Moduli of Morlet wavelets
at two scales and `ANGLES` directions, and of those of the first at the second scale, are averaged over windows. Each map is
scaled, the image's mean over all maps is taken away, and the whole is scaled to length 1, so that no record's features are
longer than another's.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from populace.errors import DataError
from populace.methods.blocks.dp_sgd import clip_rows, update_ema
from populace.methods.blocks.gan_training import draw_labels
from populace.methods.blocks.vae_generator import DecoderImages, decoded, design_bytes, read_design
from populace.methods.blocks.vae_networks import ImageVae
from populace.tables.images import Images
from populace.types import Array, ArrayTree, NumpyArray

ANGLES = 8
SIDES = (5, 7)  # of a wavelet at either scale, in pixels
WIDTHS = (1.0, 1.8)
PITCHES = (3 * math.pi / 4, 3 * math.pi / 8)
SLANT = 0.6  # how much longer than wide
FAINT = 0.05  # a map weaker than this stays weak
TINY = 1e-6


VALIDATED = 1_000  # generated images a classifier is tried on
AT_ONCE = 256  # images classified together


@dataclasses.dataclass(frozen=True)
class Scattering:
    """Features of images of this shape; each map is averaged in `cells` x `cells` windows that overlap by half."""

    shape: tuple[int, ...]
    cells: int = 4

    @property
    def colours(self) -> int:
        return self.shape[2] if len(self.shape) == 3 else 1

    @property
    def maps(self) -> int:
        return (1 + 2 * ANGLES + ANGLES * ANGLES) * self.colours

    @property
    def size(self) -> int:
        return self.maps * self.cells**2

    def __call__(self, x: Array) -> Array:
        """[n, ..] intensities in [0, 1] to [n, size]."""
        pixels = jnp.moveaxis(x.reshape(-1, *self.shape[:2], self.colours), 3, 1).reshape(-1, 1, *self.shape[:2])
        fine = moduli(pixels, _bank(0), 1)
        coarse = moduli(pixels, _bank(1), 2)  # smooth enough for every other pixel
        half = fine[:, :, ::2, ::2]
        second = moduli(half.reshape(-1, 1, *half.shape[2:]), _bank(0), 1)  # on every other pixel: the coarse scale
        parts = [
            self._averaged(part) for part in (pixels, fine, coarse, second.reshape(len(half), -1, *half.shape[2:]))
        ]
        maps = jnp.concatenate(parts, axis=1).reshape(-1, self.colours, self.maps // self.colours, self.cells**2)
        scaled = maps / (jnp.sqrt(jnp.mean(maps**2, axis=3, keepdims=True) + TINY) + FAINT)  # weak maps count as well
        centred = scaled - jnp.mean(scaled, axis=(2, 3), keepdims=True)  # what all share would only slow learning
        flat = centred.reshape(len(centred), -1)
        return flat / jnp.sqrt(jnp.sum(flat**2, axis=1, keepdims=True) + TINY)

    def _averaged(self, maps: Array) -> Array:
        down, across = (windows(side, self.cells) for side in maps.shape[2:])
        return jnp.einsum("nmhw,hi,wj->nmij", maps, down, across).reshape(*maps.shape[:2], self.cells**2)


def moduli(x: Array, kernels: Array, stride: int) -> Array:
    """[n, 1, high, wide] and complex kernels [side, side, k] to moduli [n, k, ..] at every `stride`th pixel.

    Black beyond the edges.
    """
    n, _, high, wide = x.shape
    side, _, count = kernels.shape
    half = side // 2
    padded = jnp.pad(x, ((0, 0), (0, 0), (half, half), (half, half)))
    near = [padded[:, :, i : i + high : stride, j : j + wide : stride] for i in range(side) for j in range(side)]
    both = jnp.concatenate([kernels.real, kernels.imag], axis=2).reshape(-1, 2 * count)
    waves = jnp.einsum("kc,nkp->ncp", both, jnp.concatenate(near, axis=1).reshape(n, side * side, -1))
    cosine, sine = waves[:, :count], waves[:, count:]
    return jnp.sqrt(cosine**2 + sine**2 + TINY).reshape(n, count, *near[0].shape[2:])


@functools.lru_cache(maxsize=8)
def windows(side: int, cells: int) -> NumpyArray:
    """The weights of so many smooth windows, spread evenly, [side, cells]."""
    centres = (np.arange(cells) + 0.5) * side / cells
    distance = (np.arange(side)[:, None] + 0.5 - centres) * cells / side
    weights: NumpyArray = np.exp(-(distance**2) * 2)
    return np.asarray(weights / weights.sum(axis=0), np.float32)


@functools.lru_cache(maxsize=4)
def _bank(scale: int) -> NumpyArray:
    """The wavelets of a scale, [side, side, ANGLES]."""
    wavelets = [_morlet(scale, math.pi * angle / ANGLES) for angle in range(ANGLES)]
    return np.stack(wavelets, axis=2).astype(np.complex64)


def _morlet(scale: int, angle: float) -> NumpyArray:
    """A wave of the scale's pitch and this direction under a bump, its mean taken away, of length 1."""
    side, width, pitch = SIDES[scale], WIDTHS[scale], PITCHES[scale]
    down, across = np.meshgrid(*[np.arange(side) - side // 2] * 2, indexing="ij")
    along = math.cos(angle) * down + math.sin(angle) * across
    beside = -math.sin(angle) * down + math.cos(angle) * across
    bump = np.exp(-(along**2 + (SLANT * beside) ** 2) / (2 * width**2))
    wave = bump * np.exp(1j * pitch * along)
    wave = wave - bump * wave.sum() / bump.sum()
    return np.asarray(wave / np.linalg.norm(wave))


@functools.lru_cache(maxsize=64)
def optimizer_of(learning_rate: float, momentum: float) -> optax.GradientTransformation:
    """Adam, the same object for the same settings."""
    return optax.adam(learning_rate, b1=momentum)


def logits(weights: Array, features: Array) -> Array:
    """The logits of examples with these features, [.., classes]; the last row of weights is the bias."""
    parts = weights.reshape(features.shape[-1] + 1, -1)
    return features @ parts[:-1] + parts[-1]


def intensities(x: Array) -> Array:
    """Pixels in [0, 1]."""
    return x.astype(jnp.float32) / 255 if x.dtype == jnp.uint8 else x


def gradient_factors(scattering: Scattering, weights: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """[n, size + 1] of length 1 and [n, classes]: their outer product is the gradient of an example's cross-entropy.

    That gradient is the example's features times the errors of its probabilities; what the first were longer, the second take.
    """
    features = scattering(intensities(x))
    errors = jax.nn.softmax(logits(weights, features)) - y
    whole = jnp.concatenate([features, jnp.ones((len(features), 1))], axis=1)
    length = jnp.linalg.norm(whole, axis=1, keepdims=True)
    return whole / length, errors * length


def generate_examples(generator: ImageVae, theta: Array, count: int, key: Array) -> tuple[Array, Array]:
    """Images of a generator and their one-hot labels, which come evenly."""
    labels, codes = jax.random.split(key)
    y = draw_labels(generator, jnp.ones(generator.classes), count, labels)
    z = jax.random.normal(codes, (count, generator.latent))
    return generator.means(generator.decode(theta, z, y)), y


def generated_gradient(
    generator: ImageVae,
    scattering: Scattering,
    weights: Array,
    theta: Array,
    count: int,
    clip_norm: float,
    key: Array,
) -> Array:
    """The mean of clipped gradients of so many generated examples, in units of the clipping norm: one product of matrices."""
    x, y = generate_examples(generator, theta, count, key)
    features, errors = gradient_factors(scattering, weights, x, y)
    return (features.T @ clip_rows(errors, clip_norm)).reshape(-1) / count


@functools.partial(
    jax.jit,
    static_argnums=(0, 1),
    static_argnames=("steps", "batch_size", "clip_norm", "learning_rate", "momentum", "ema_decay"),
)
def train_on_generated(
    generator: ImageVae,
    scattering: Scattering,
    thetas: Array,
    known: Array,
    key: Array,
    *,
    steps: int,
    batch_size: int,
    clip_norm: float,
    learning_rate: float,
    momentum: float,
    ema_decay: float,
) -> Array:
    """The moving average of a classifier's weights, trained on examples of the known generators and on nothing else."""
    optimizer = optimizer_of(learning_rate, momentum)

    def step(carry: ArrayTree, item: tuple[Array, Array]) -> tuple[ArrayTree, None]:
        weights, state, mean = carry
        done, key = item
        gradients = jax.lax.map(
            lambda one: generated_gradient(generator, scattering, weights, one[0], batch_size, clip_norm, one[1]),
            (thetas, jax.random.split(key, len(thetas))),
        )
        gradient = jnp.sum(gradients * known[:, None], axis=0) / jnp.maximum(jnp.sum(known), 1)
        change, state = optimizer.update(gradient, state)
        weights = weights + change
        return (weights, state, update_ema(mean, weights, done, ema_decay)), None

    start = jnp.zeros((scattering.size + 1) * generator.classes)
    items = (jnp.arange(steps), jax.random.split(key, steps))
    return jax.lax.scan(step, (start, optimizer.init(start), start), items)[0][2]


@functools.partial(jax.jit, static_argnums=(0, 1))
def accuracy_on_generated(
    generator: ImageVae, scattering: Scattering, weights: Array, thetas: Array, known: Array, key: Array
) -> Array:
    """The accuracy of the classifier on images of the known generators."""
    each = -(-VALIDATED // len(thetas))

    def accuracy(item: tuple[Array, Array]) -> Array:
        theta, key = item
        x, y = generate_examples(generator, theta, each, key)
        guessed = jnp.argmax(logits(weights, scattering(x)), axis=1)
        return jnp.mean(guessed == jnp.argmax(y, axis=1))

    every = jax.lax.map(accuracy, (thetas, jax.random.split(key, len(thetas))))
    return jnp.sum(every * known) / jnp.maximum(jnp.sum(known), 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierImages(DecoderImages):
    """Each image comes from one of the generators, evenly; labels come evenly. `classify` is the classifier.

    Edge cases: without generators (`thetas` of no rows) there is a classifier alone, and drawing is refused.
    """

    kind: ClassVar[str] = "classifier-images"
    thetas: Array  # [generators, size]
    weights: Array  # [features + 1, classes]
    cells: int

    def __post_init__(self) -> None:
        if np.ndim(self.thetas) != 2 or np.shape(self.thetas)[1] != self.vae.decoder_size:
            raise DataError(f"expected generators of {self.vae.decoder_size} numbers, got {np.shape(self.thetas)}")
        if np.shape(self.weights) != (self.features.size + 1, self.vae.classes):
            raise DataError(f"expected a classifier of {self.features.size + 1} features, got {np.shape(self.weights)}")
        if not (np.isfinite(self.thetas).all() and np.isfinite(self.weights).all()):
            raise DataError("the model holds numbers that are not finite: it did not train; choose smaller steps")

    @functools.cached_property
    def features(self) -> Scattering:
        return Scattering(self.vae.shape, self.cells)

    def label_shares(self) -> Array:
        return np.full(self.classes, 1 / self.classes)

    def draw_pixels(self, labels: Array, key: Array) -> Array:
        if not len(self.thetas):
            raise DataError("this run learned a classifier without generated data, so there is nothing to draw from")
        which, codes = jax.random.split(key)
        owner = np.asarray(jax.random.randint(which, (len(labels),), 0, len(self.thetas)))
        z = jax.random.normal(codes, (len(labels), self.vae.latent))
        x = np.empty((len(labels), *self.shape), np.float32)
        most = int(np.bincount(owner).max())
        for number in np.unique(owner):
            mine = np.flatnonzero(owner == number)
            some = np.resize(mine, most)  # as many for each, so that all run the same code
            images = decoded(self.vae, jnp.asarray(self.thetas[number]), z[some], jnp.asarray(labels)[some])
            x[mine] = np.asarray(images)[: len(mine)]
        return x

    def scores(self, images: Images) -> Array:
        """The probabilities of the classes, [n, classes]."""
        x = np.pad(images.x, ((0, -len(images) % AT_ONCE), *[(0, 0)] * len(self.shape)))
        parts = [jnp.asarray(x[start : start + AT_ONCE]) for start in range(0, len(x), AT_ONCE)]
        scores = [np.asarray(_scores(self.features, jnp.asarray(self.weights), part)) for part in parts]
        return np.concatenate(scores)[: len(images)]

    def classify(self, images: Images) -> Array:
        """The likeliest label of each image."""
        return self.scores(images).argmax(axis=1)

    def arrays(self) -> dict[str, Array]:
        return {
            "thetas": np.asarray(self.thetas, np.float32), "weights": np.asarray(self.weights, np.float32),
            "design": design_bytes(self.vae, features=self.cells),
        }  # fmt: skip

    @classmethod
    def from_arrays(cls, shape: tuple[int, ...], classes: int, arrays: Mapping[str, Array]) -> ClassifierImages:
        vae, rest = read_design(shape, classes, arrays, more=("features",))
        return cls(vae=vae, thetas=arrays["thetas"], weights=arrays["weights"], cells=rest["features"])


@functools.partial(jax.jit, static_argnums=0)
def _scores(features: Scattering, weights: Array, x: Array) -> Array:
    return jax.nn.softmax(features(x.astype(jnp.float32) / 255) @ weights[:-1] + weights[-1], axis=1)
