"""What the methods that train a GAN share: its design from public facts, steps, and the generator that comes out."""

from __future__ import annotations

import functools
from typing import Any, Literal

from populace.errors import SpecError
from populace.methods.base import ImageShape, Population, Protocol
from populace.methods.blocks.gan_networks import ConvGan, DenseGan, Gan
from populace.methods.blocks.networks import Blocks
from populace.methods.blocks.training import check_counts, check_not_negative
from populace.methods.blocks.vae_networks import NETS, RowsVae
from populace.tables.schema import Schema

Net = Literal["basis", "small"]


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
        check_counts(width=self.width, critic_width=self.critic_width, latent=self.latent, waves=self.waves)
        check_not_negative(penalty=self.penalty)

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
