"""Wasserstein GANs with a gradient penalty under two vectors of parameters: a critic's and a generator's.

Gulrajani et al. 2017, as Xin et al. 2021 use it. The generator is the decoder of one of the networks of `vae`; what it makes is
then drawn by the same code. The critic sees an example's features, in which it is judged, interpolated and penalised:

`basis`   ours: low-frequency cosines of the image, dense layers, for noise that counts every parameter
`small`   convolutions of stride 2 over pixels, as published networks have them
`rows`    a table's one-hot blocks, dense layers
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.blocks.conv_networks import SIDE, convolve
from populace.methods.blocks.parameters import Shapes, count_parameters, glorot, pack, unpack
from populace.methods.blocks.vae_networks import BasisVae, ImageVae, Vae
from populace.types import Array

Parts = dict[str, Any]

SLOPE = 0.2  # of a leaky unit below 0
TINY = 1e-12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gan(abc.ABC):
    """`maker` is the network whose decoder is the generator; its labels are given to both sides.

    Edge cases: a maker of one class is not told labels; every example then has that one.
    """

    maker: Vae
    width: int = 64  # of the critic
    penalty: float = 10.0

    @property
    @abc.abstractmethod
    def critic_shapes(self) -> Shapes: ...

    @abc.abstractmethod
    def seen(self, x: Array) -> Array:
        """What the critic sees of examples, [n, ..]: linear, and no longer than the examples."""

    @abc.abstractmethod
    def score(self, critic: Parts, seen: Array, y: Array) -> Array:
        """One number for each example seen with its one-hot label; high for real ones."""

    @property
    def critic_size(self) -> int:
        return count_parameters(self.critic_shapes)

    @property
    def generator_size(self) -> int:
        return self.maker.decoder_size

    def start(self, key: Array) -> tuple[Array, Array]:
        """Critic and generator before training."""
        first, second = jax.random.split(key)
        return glorot(self.critic_shapes, first), self.maker.start(second)[1]

    def parts(self, omega: Array) -> Parts:
        """The critic's arrays by name."""
        return unpack(self.critic_shapes, omega)

    def flat(self, parts: Parts) -> Array:
        """One vector of what has the shapes of the critic's arrays."""
        return pack(self.critic_shapes, parts)

    def read(self, records: Any) -> tuple[Array, Array]:
        """What is seen of a client's records, and one-hot labels."""
        if self.maker.classes == 1:
            records = {**records, "y": jnp.zeros_like(records["y"])}
        x, y = self.maker.read(records)
        return self.seen(x), y

    def made(self, theta: Array, z: Array, y: Array) -> Array:
        """What is seen of the generator's examples."""
        return self.seen(self.maker.means(self.maker.decode(theta, z, y)))

    def loss_of_one(self, critic: Parts, real: Array, made: Array, y: Array, place: Array) -> Array:
        """The critic's loss for one real example, one made and one between them, with its penalty (algorithm 1, line 9)."""

        def score(seen: Array) -> Array:
            return self.score(critic, seen[None], y[None])[0]

        slope = jax.grad(score)(place * real + (1 - place) * made)
        length = jnp.sqrt(jnp.sum(slope**2) + TINY)
        return score(made) - score(real) + self.penalty * (length - 1) ** 2

    def generator_loss(self, theta: Array, omega: Array, z: Array, y: Array) -> Array:
        return -jnp.mean(self.score(self.parts(omega), self.made(theta, z, y), y))

    def grouped(self, parts: Parts) -> Array:
        """Sums over groups of the critic's parameters: those that lead to one unit; all shifts of a layer."""
        found = [
            parts[name].sum(axis=0) if len(shape) > 1 else parts[name].sum()[None] for name, shape in self.critic_shapes
        ]
        return jnp.concatenate(found)

    def groups(self) -> Array:
        """Which of those groups each parameter of the flat vector belongs to."""
        found, first = [], 0
        for _, shape in self.critic_shapes:
            units = shape[-1] if len(shape) > 1 else 1
            found.append(first + np.arange(math.prod(shape)) % units)
            first += units
        return np.concatenate(found).astype(np.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseGan(Gan):
    """Two hidden layers; the label is given to the first, and to the last through what it makes of the second."""

    @property
    def places(self) -> int:
        return self.maker.places if isinstance(self.maker, BasisVae) else math.prod(self.maker.shape)

    @property
    def critic_shapes(self) -> Shapes:
        w, classes = self.width, self.maker.classes
        found = [
            ("in", (self.places + classes, w)),
            ("in_bias", (w,)),
            ("half", (w, w)),
            ("half_bias", (w,)),
            ("out", (w, 1)),
        ]
        return (*found, ("label", (w, classes))) if classes > 1 else tuple(found)

    def seen(self, x: Array) -> Array:
        return self.maker.seen(x) if isinstance(self.maker, BasisVae) else x.reshape(len(x), -1)

    def score(self, critic: Parts, seen: Array, y: Array) -> Array:
        inner = jax.nn.leaky_relu(jnp.concatenate([seen, y], axis=1) @ critic["in"] + critic["in_bias"], SLOPE)
        inner = jax.nn.leaky_relu(inner @ critic["half"] + critic["half_bias"], SLOPE)
        score = (inner @ critic["out"])[:, 0]
        return score + jnp.sum((inner @ critic["label"]) * y, axis=1) if "label" in critic else score


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvGan(Gan):
    """Convolutions of w and 2w, each of stride 2, and one number of what is left; the label chooses among such numbers."""

    maker: ImageVae
    width: int = 16

    @property
    def grid(self) -> tuple[int, int, int]:
        return -(-self.maker.shape[0] // 4), -(-self.maker.shape[1] // 4), 2 * self.width

    @property
    def critic_shapes(self) -> Shapes:
        w, k, classes, inner = self.width, SIDE * SIDE, self.maker.classes, math.prod(self.grid)
        found = [
            ("in", (k * self.maker.colours, w)), ("in_bias", (w,)), ("half", (k * w, 2 * w)), ("half_bias", (2 * w,)),
            ("out", (inner, 1)),
        ]  # fmt: skip
        return (*found, ("label", (inner, classes))) if classes > 1 else tuple(found)

    def seen(self, x: Array) -> Array:
        return self.maker.framed(x, 4)

    def score(self, critic: Parts, seen: Array, y: Array) -> Array:
        inner = jax.nn.leaky_relu(convolve(seen, critic["in"], stride=2) + critic["in_bias"], SLOPE)
        inner = jax.nn.leaky_relu(convolve(inner, critic["half"], stride=2) + critic["half_bias"], SLOPE).reshape(
            len(seen), -1
        )
        score = (inner @ critic["out"])[:, 0]
        return score + jnp.sum((inner @ critic["label"]) * y, axis=1) if "label" in critic else score
