"""What the methods that train a VAE share: its design from public facts, the server's steps, the generator."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from populace.errors import SpecError, out_of_range
from populace.methods.base import ImageShape, Population, Protocol, Shard
from populace.methods.blocks.dp_sgd import Examples, TrainState, start_training
from populace.methods.blocks.networks import Blocks
from populace.methods.blocks.training import training_key
from populace.methods.blocks.vae_networks import NETS, Net, RowsVae, Vae
from populace.methods.vae.training import BATCH, fit, train_at_client
from populace.privacy.source import Source
from populace.tables.images import Images
from populace.tables.schema import Schema
from populace.types import Array

WARM_SAMPLES, WARM_STEPS, WARM_RATE = 120_000, 8_000, 1e-3
MOST_WARM_PLACES = 2**28  # numbers in all samples together


class Start(NamedTuple):
    """Encoder and decoder, and the samples that they were fitted to, if there were any."""

    phi: Array
    theta: Array
    samples: Any = None


class VaeRounds(Protocol):
    """The fields every such method has, and what follows from them."""

    net: Net
    width: int
    latent: int
    beta: float

    def check_vae(self) -> None:
        if self.net not in NETS:
            raise SpecError(f"expected net in {', '.join(NETS)}, got {self.net!r}")
        if self.latent < 1 or self.width < 0:
            raise out_of_range("latent and width", "at least 1, and at least 0", (self.latent, self.width))
        if not 0 <= self.beta < math.inf:
            raise out_of_range("beta", "at least 0", self.beta)

    def vae(self, population: Population) -> Vae:
        return design_vae(self.net, self.width, self.latent, self.beta, getattr(self, "waves", 0), population.schema)

    def starts(self, vae: Vae, key: Array, warm: Any) -> Start:
        """What to begin with; fitted to a generator's samples if one is given (post-processing of it)."""
        first, samples, training = jax.random.split(key, 3)
        phi, theta = vae.start(first)
        if warm is None:
            return Start(phi, theta)
        steps = getattr(self, "fitting", WARM_STEPS)
        count = warm_samples(vae, steps)
        drawn = warm.sample(count, samples)
        records = {"x": drawn.x, "y": drawn.y} if isinstance(drawn, Images) else drawn.codes
        records = jax.tree.map(jnp.asarray, records)
        phi, theta = fit(vae, phi, theta, records, count, training, steps=steps, rate=WARM_RATE)
        return Start(phi, theta, records)


class Averaged(VaeRounds):
    """Methods whose clients train both halves for some epochs and send what changed, of the decoder alone or of the whole."""

    shared: Literal["decoder", "whole"]
    epochs: int
    batch: int
    rate: float

    def unbegun(self, population: Population) -> Any:
        """What a client keeps before its first round: an encoder that has not begun; nothing where both halves are shared."""
        if self.shared == "whole":
            return ()
        blank = jnp.zeros(self.vae(population).encoder_size)
        return Encoders(begun=jnp.asarray(False), train_state=start_training(blank, self.rate))

    def trained(self, vae: Vae, common: Any, shard: Shard, memory: Any, source: Source) -> tuple[Array, Any]:
        """What local training changes of what is shared, and what the client keeps (algorithm 1, lines 17 to 24)."""
        examples = Examples(*vae.read(shard.records), jnp.asarray(shard.mask))
        encoder = encoder_of(memory, common["phi"], self.rate)
        after, theta = train_at_client(
            vae, encoder, common["theta"], examples, training_key(source), epochs=self.epochs, batch=self.batch,
            rate=self.rate,
        )  # fmt: skip
        change = theta - common["theta"]
        if self.shared == "whole":
            return jnp.concatenate([after.parameters - common["phi"], change]), memory
        return change, Encoders(begun=jnp.asarray(True), train_state=after)


def warm_samples(vae: Vae, steps: int) -> int:
    """How many to draw: no more than are looked at once, nor than memory holds easily."""
    return max(BATCH, min(WARM_SAMPLES, BATCH * steps, MOST_WARM_PLACES // math.prod(vae.shape)))


@functools.lru_cache(maxsize=64)
def design_vae(net: Net, width: int, latent: int, beta: float, waves: int, schema: Schema | ImageShape) -> Vae:
    """The network for these public facts; `width` 0 and `waves` 0 are the design's own."""
    chosen = {"width": width} if width else {}
    if waves and net == "basis" and isinstance(schema, ImageShape):
        chosen["waves"] = waves
    if isinstance(schema, ImageShape):
        return NETS[net](shape=schema.shape, classes=schema.classes, latent=latent, beta=beta, **chosen)
    blocks = Blocks(schema.sizes)
    return RowsVae(shape=(blocks.width,), classes=0, latent=latent, beta=beta, blocks=blocks, **chosen)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoders:
    """What a client keeps at home: its encoder with its optimiser, once it has begun."""

    begun: Array
    train_state: TrainState


def encoder_of(memory: Any, start: Array, rate: float) -> TrainState:
    """The client's own encoder; the public start in its first round, or where it keeps none."""
    first = start_training(start, rate)
    if not isinstance(memory, Encoders):
        return first
    kept: TrainState = jax.tree.map(lambda own, new: jnp.where(memory.begun, own, new), memory.train_state, first)
    return kept
