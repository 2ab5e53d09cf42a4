"""What the methods that train a GAN share: its design from public facts, steps, and the generator that comes out."""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import SpecError, out_of_range
from populace.models.gan import ConvGan, DenseGan, Gan
from populace.models.generator import Synthesizer
from populace.models.parameters import unpack
from populace.models.vae import NETS, ImageVae, RowsVae
from populace.models.vae_images import VaeImages
from populace.models.wae import Blocks, Decoder
from populace.privacy.source import Source
from populace.protocols.base import ImageShape, Population, Protocol
from populace.tables.schema import Schema

Array = Any
Net = Literal["basis", "small"]

NUMBER = 4.0  # bytes


class GanRounds(Protocol):
    """The fields every such method has, and what follows from them."""

    net: Net
    width: int
    critic_width: int
    latent: int
    waves: int
    penalty: float

    def check_gan(self) -> None:
        if self.net not in ("basis", "small"):
            raise SpecError(f"expected net in basis, small, got {self.net!r}")
        for name in ("width", "critic_width", "latent", "waves"):
            if getattr(self, name) < 1:
                raise out_of_range(name, "at least 1", getattr(self, name))
        if not 0 <= self.penalty < math.inf:
            raise out_of_range("penalty", "at least 0", self.penalty)

    def gan(self, population: Population) -> Gan:
        return design_gan(
            self.net, self.width, self.critic_width, self.latent, self.waves, self.penalty, getattr(self, "conditional", True),
            population.schema,
        )  # fmt: skip


@functools.lru_cache(maxsize=64)
def design_gan(
    net: Net,
    width: int,
    critic_width: int,
    latent: int,
    waves: int,
    penalty: float,
    conditional: bool,
    schema: Schema | ImageShape,
) -> Gan:
    """The networks for these public facts. A table's target is one of its columns, so no label is given apart."""
    if not isinstance(schema, ImageShape):
        blocks = Blocks(schema.sizes)
        rows = RowsVae(shape=(blocks.width,), classes=0, latent=latent, width=width, blocks=blocks)
        return DenseGan(maker=rows, width=critic_width, penalty=penalty)
    chosen: dict[str, Any] = {"waves": waves} if net == "basis" else {}
    maker = NETS[net](
        shape=schema.shape, classes=schema.classes if conditional else 1, latent=latent, width=width, **chosen
    )
    kind = DenseGan if net == "basis" else ConvGan
    return kind(maker=maker, width=critic_width, penalty=penalty)


def generator_of(gan: Gan, theta: Array, population: Population) -> Synthesizer:
    theta = np.asarray(theta)
    if isinstance(gan.maker, ImageVae):
        return VaeImages(vae=gan.maker, theta=theta)
    return Decoder(schema=population.table_schema, layers=unpack(gan.maker.decoder_shapes, theta))


def coin_of(source: Source) -> Array:
    """A key for codes, labels and orders: nothing that protects anybody."""
    words = [jnp.asarray(half.below(2**31 - 1), jnp.uint32) for half in source.split(2)]
    return jax.random.wrap_key_data(jnp.stack(words))
