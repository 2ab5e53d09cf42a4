"""Wasserstein GANs with a gradient penalty under two vectors of parameters, a critic's and a generator's.

Gulrajani et al. 2017, as Xin et al. 2021 use it. The generator is the decoder of one of the networks of `vae_networks`, so that
the same code draws from it. The critic sees an example's features, in which it is judged, interpolated and penalised:

`basis`   ours: low-frequency cosines of the image, dense layers, for noise that counts every parameter
`small`   convolutions of stride 2 over pixels, as published networks have them
`rows`    a table's one-hot blocks, dense layers
"""

from __future__ import annotations

import abc
import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.blocks.dp_sgd import Examples
from populace.methods.blocks.networks import (
    KERNEL_SIDE,
    Shapes,
    convolve,
    count_parameters,
    glorot,
    pack,
    unpack,
)
from populace.methods.blocks.vae_networks import BasisVae, ImageVae, Vae
from populace.types import Array, ArrayTree, NumpyArray

Arrays = dict[str, Array]  # the critic's parameters, or their gradient, by name

LEAK = 0.2  # the slope of a leaky unit below 0
TINY = 1e-12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gan(abc.ABC):
    """A critic, and a generator that is the decoder of the network `generator`; labels are given to both.

    Edge cases: a generator of one class is given no labels; every example then has that one.
    """

    generator: Vae
    hidden_size: int = 64  # of the critic
    gradient_penalty: float = 10.0

    @property
    @abc.abstractmethod
    def critic_shapes(self) -> Shapes: ...

    @abc.abstractmethod
    def features(self, x: Array) -> Array:
        """What the critic sees of examples, [n, ..]: linear, and no longer in L2 than the examples."""

    @abc.abstractmethod
    def score(self, critic: Arrays, features: Array, y: Array) -> Array:
        """One number for each example with its one-hot label; high for real ones."""

    @property
    def critic_size(self) -> int:
        return count_parameters(self.critic_shapes)

    @property
    def generator_size(self) -> int:
        return self.generator.decoder_size

    def start(self, key: Array) -> tuple[Array, Array]:
        """Critic and generator before training."""
        first, second = jax.random.split(key)
        return glorot(self.critic_shapes, first), self.generator.start(second)[1]

    def arrays(self, omega: Array) -> Arrays:
        """The critic's arrays by name."""
        return unpack(self.critic_shapes, omega)

    def flatten(self, arrays: Arrays) -> Array:
        """One vector of what has the shapes of the critic's arrays."""
        return pack(self.critic_shapes, arrays)

    def read(self, records: ArrayTree, mask: Array) -> Examples:
        """Features of a client's records and one-hot labels; `mask` says which of them are there."""
        if self.generator.classes == 1:
            records = {**records, "y": jnp.zeros_like(records["y"])}
        x, y = self.generator.read(records)
        return Examples(self.features(x), y, jnp.asarray(mask))

    def generate(self, theta: Array, z: Array, y: Array) -> Array:
        """Features of the generator's examples for these codes and labels."""
        return self.features(self.generator.means(self.generator.decode(theta, z, y)))

    def loss_of_one(self, critic: Arrays, real: Array, fake: Array, y: Array, mixing: Array) -> Array:
        """The critic's loss for one real example, one generated and one between them, with its gradient penalty (algorithm 1,
        line 9)."""

        def score(features: Array) -> Array:
            return self.score(critic, features[None], y[None])[0]

        gradient = jax.grad(score)(mixing * real + (1 - mixing) * fake)
        length = jnp.sqrt(jnp.sum(gradient**2) + TINY)
        return score(fake) - score(real) + self.gradient_penalty * (length - 1) ** 2

    def generator_loss(self, theta: Array, omega: Array, z: Array, y: Array) -> Array:
        """Minus the mean score of what the generator makes of these codes and labels."""
        return -jnp.mean(self.score(self.arrays(omega), self.generate(theta, z, y), y))

    def sum_by_group(self, arrays: Arrays) -> Array:
        """Sums over groups of the critic's parameters: the weights that lead to one unit; all biases of a layer."""
        sums = [
            arrays[name].sum(axis=0) if len(shape) > 1 else arrays[name].sum()[None]
            for name, shape in self.critic_shapes
        ]
        return jnp.concatenate(sums)

    def groups(self) -> NumpyArray:
        """The number of the group that each parameter of the flat vector belongs to."""
        numbers, first = [], 0
        for _, shape in self.critic_shapes:
            units = shape[-1] if len(shape) > 1 else 1
            numbers.append(first + np.arange(math.prod(shape)) % units)
            first += units
        return np.concatenate(numbers).astype(np.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseGan(Gan):
    """Two hidden layers; the label is given to the first, and to the last through what it makes of the second."""

    @property
    def places(self) -> int:
        return self.generator.places if isinstance(self.generator, BasisVae) else math.prod(self.generator.shape)

    @property
    def critic_shapes(self) -> Shapes:
        w, classes = self.hidden_size, self.generator.classes
        layers = [
            ("in", (self.places + classes, w)),
            ("in_bias", (w,)),
            ("half", (w, w)),
            ("half_bias", (w,)),
            ("out", (w, 1)),
        ]
        return (*layers, ("label", (w, classes))) if classes > 1 else tuple(layers)

    def features(self, x: Array) -> Array:
        return self.generator.seen(x) if isinstance(self.generator, BasisVae) else x.reshape(len(x), -1)

    def score(self, critic: Arrays, features: Array, y: Array) -> Array:
        inner = jax.nn.leaky_relu(jnp.concatenate([features, y], axis=1) @ critic["in"] + critic["in_bias"], LEAK)
        inner = jax.nn.leaky_relu(inner @ critic["half"] + critic["half_bias"], LEAK)
        score = (inner @ critic["out"])[:, 0]
        return score + jnp.sum((inner @ critic["label"]) * y, axis=1) if "label" in critic else score


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvGan(Gan):
    """Convolutions of w and 2w, each of stride 2, and one number of what is left; the label chooses among such numbers."""

    generator: ImageVae
    hidden_size: int = 16

    @property
    def grid(self) -> tuple[int, int, int]:
        return -(-self.generator.shape[0] // 4), -(-self.generator.shape[1] // 4), 2 * self.hidden_size

    @property
    def critic_shapes(self) -> Shapes:
        w, k, classes, inner = self.hidden_size, KERNEL_SIDE * KERNEL_SIDE, self.generator.classes, math.prod(self.grid)
        layers = [
            ("in", (k * self.generator.colours, w)), ("in_bias", (w,)), ("half", (k * w, 2 * w)), ("half_bias", (2 * w,)),
            ("out", (inner, 1)),
        ]  # fmt: skip
        return (*layers, ("label", (inner, classes))) if classes > 1 else tuple(layers)

    def features(self, x: Array) -> Array:
        return self.generator.framed(x, 4)

    def score(self, critic: Arrays, features: Array, y: Array) -> Array:
        inner = jax.nn.leaky_relu(convolve(features, critic["in"], stride=2) + critic["in_bias"], LEAK)
        inner = jax.nn.leaky_relu(convolve(inner, critic["half"], stride=2) + critic["half_bias"], LEAK).reshape(
            len(features), -1
        )
        score = (inner @ critic["out"])[:, 0]
        return score + jnp.sum((inner @ critic["label"]) * y, axis=1) if "label" in critic else score
