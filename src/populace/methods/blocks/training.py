"""What methods that train networks share: checks of their settings, keys, the generator, a baseline's statement."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import out_of_range
from populace.methods.base import Population
from populace.methods.blocks.code_law import CodeLaw
from populace.methods.blocks.generator import Synthesizer
from populace.methods.blocks.networks import Decoder, unpack
from populace.methods.blocks.vae_images import VaeImages
from populace.methods.blocks.vae_networks import ImageVae, Vae
from populace.privacy.guarantee import Guarantee
from populace.privacy.source import Source
from populace.types import Array

NUMBER = 4.0  # bytes
NO_ERROR = "no error is predicted: training has no closed form"


def check_counts(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise out_of_range(name, "at least 1", value)


def check_sizes(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise out_of_range(name, "above 0", value)


def check_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise out_of_range(name, "at least 0", value)


def check_shares(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < 1:
            raise out_of_range(name, "in [0, 1)", value)


def check_some(share: float) -> None:
    if not 0 < share <= 1:
        raise out_of_range("share", "in (0, 1]", share)


def training_key(source: Source) -> Array:
    """A key for orders of batches, codes and labels: nothing that protects anybody."""
    words = [jnp.asarray(half.below(2**31 - 1), jnp.uint32) for half in source.split(2)]
    return jax.random.wrap_key_data(jnp.stack(words))


def generator_of(maker: Vae, theta: Array, population: Population, law: CodeLaw | None = None) -> Synthesizer:
    """What the decoder `theta` of this network makes of codes by this law; standard normal if none is given."""
    theta = np.asarray(theta)
    if isinstance(maker, ImageVae):
        return VaeImages(vae=maker, theta=theta, law=law)
    layers = dict(unpack(maker.decoder_shapes, theta))
    if law is not None:  # rows have one class, whose law the first layer takes in
        mean, root = np.asarray(law.means[0]), np.asarray(law.roots[0])
        layers |= {"up": root.T @ layers["up"], "up_bias": layers["up_bias"] + mean @ layers["up"]}
    return Decoder(schema=population.table_schema, layers=layers)


def not_private(population: Population, reason: str) -> Guarantee:
    """What a baseline may state."""
    return Guarantee(
        epsilon=math.inf, unit="client", neighbours="replace", trust="not-private", mechanism="none", reason=reason,
        read_from_data=population.read_from_data,
        domain_sources=population.domain_sources,
    )  # fmt: skip
