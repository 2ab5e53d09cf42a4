"""The generator that a trained decoder is: labelled images or rows, from codes by their law.

The law of the codes is a normal distribution for each class; the standard one where nothing else is known. An encoder that is
held to the standard normal only weakly (a small beta) puts its codes elsewhere, and a decoder fed from the standard normal then
makes what it never learned. So the codes of examples that may be seen are measured after training, and codes are drawn as they
were found (Ghosh et al. 2020, section 4).
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.border.documents import parse_json
from populace.errors import DataError
from populace.methods.base import Population
from populace.methods.blocks.generator import ImageGenerator, power_of
from populace.methods.blocks.networks import Decoder, unpack
from populace.methods.blocks.vae_networks import NETS, ImageVae, Vae
from populace.types import Array, JsonObject, NumpyArray

LAW = ("means", "roots")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class CodeLaw:
    """Means [classes, latent] and roots of the covariances [classes, latent, latent]; without labels there is one class."""

    means: Array
    roots: Array

    def draw(self, labels: Array, noise: Array) -> Array:
        """Codes of these labels from standard normal `noise`, [n, latent]; by the standard law the noise itself."""

        def add(total: Array, item: tuple[Array, Array, Array]) -> tuple[Array, None]:
            label, mean, root = item
            of_class = mean + jnp.matmul(noise, root.T, precision="highest")
            return total + jnp.where((labels == label)[:, None], of_class, 0), None

        # One class after the other: a root for every example would not fit.
        numbers = jnp.arange(len(self.means))
        start: Array = jnp.zeros_like(noise)
        codes: Array = jax.lax.scan(add, start, (numbers, self.means, self.roots))[0]
        return codes

    @property
    def is_standard(self) -> bool:
        return not np.any(self.means) and bool(np.all(np.asarray(self.roots) == np.eye(np.shape(self.means)[1])))


def make_standard_law(classes: int, latent: int) -> CodeLaw:
    """Standard normal in every class."""
    rows = max(1, classes)
    roots = np.tile(np.eye(latent, dtype=np.float32), (rows, 1, 1))
    return CodeLaw(means=jnp.asarray(np.zeros((rows, latent), np.float32)), roots=jnp.asarray(roots))


def measure_law(z: Array, labels: Array, classes: int) -> CodeLaw:
    """The law that codes [n, latent] of these labels show; a class of fewer than two keeps the standard law."""
    z = np.asarray(z, np.float64)
    if not np.isfinite(z).all():
        raise DataError("the encoder gives codes that are not finite: it did not train; choose smaller steps")
    labels = np.asarray(labels) if classes > 1 else np.zeros(len(z), int)
    standard = make_standard_law(classes, z.shape[1])
    means, roots = np.array(standard.means, np.float64), np.array(standard.roots, np.float64)
    for label in range(len(means)):
        some = z[labels == label]
        if len(some) < 2:
            continue
        means[label] = some.mean(axis=0)
        apart = some - means[label]
        roots[label] = power_of(apart.T @ apart / (len(some) - 1), 0.5)  # symmetric: no sign is arbitrary
    return CodeLaw(means=jnp.asarray(means, jnp.float32), roots=jnp.asarray(roots, jnp.float32))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderImages(ImageGenerator):
    """A generator whose images come from decoders of one network."""

    vae: ImageVae

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.vae.shape

    @property
    def classes(self) -> int:  # type: ignore[override]
        return self.vae.classes


@dataclasses.dataclass(frozen=True, kw_only=True)
class VaeImages(DecoderImages):
    """Codes, by their law or standard normal, through the decoder; an image is the intensity expected of each pixel.

    Labels come evenly: what share each has among the records was not asked. A network of one class was given no labels.
    """

    kind: ClassVar[str] = "vae-images"
    theta: Array
    law: CodeLaw | None = None

    def __post_init__(self) -> None:
        if np.shape(self.theta) != (self.vae.decoder_size,):
            raise DataError(f"expected a decoder of {self.vae.decoder_size} numbers, got {np.shape(self.theta)}")
        if not np.isfinite(np.asarray(self.theta)).all():
            raise DataError("the decoder holds numbers that are not finite: it did not train; choose smaller steps")
        rows, latent = max(1, self.vae.classes), self.vae.latent
        if self.law is not None:
            sizes = np.shape(self.law.means), np.shape(self.law.roots)
            if sizes != ((rows, latent), (rows, latent, latent)):
                raise DataError(f"expected a law of codes of {latent} numbers in {rows} classes, got arrays of {sizes}")
            if not all(np.isfinite(part).all() for part in (self.law.means, self.law.roots)):
                raise DataError("the law of the codes holds numbers that are not finite")

    def label_shares(self) -> NumpyArray | None:
        return np.full(self.classes, 1 / self.classes) if self.classes > 1 else None

    def draw_pixels(self, labels: Array, key: Array) -> Array:
        z = jax.random.normal(key, (len(labels), self.vae.latent))
        if self.law is not None:
            z = _coded(self.law, jnp.asarray(labels), z)
        pixels: Array = decoded(self.vae, jnp.asarray(self.theta), z, jnp.asarray(labels))
        return pixels

    def arrays(self) -> dict[str, Array]:
        theta = np.asarray(self.theta, np.float32)
        if self.law is None:
            return {"theta": theta, "design": design_bytes(self.vae)}
        law = {name: np.asarray(getattr(self.law, name), np.float32) for name in LAW}
        # Said in the design too: a reader that does not know of the law must not take the decoder without it.
        return {"theta": theta, "design": design_bytes(self.vae, law=True), **law}

    @classmethod
    def from_arrays(cls, shape: tuple[int, ...], classes: int, arrays: Mapping[str, Array]) -> VaeImages:
        law = {name: arrays[name] for name in LAW if name in arrays}
        if law and len(law) < len(LAW):
            raise DataError(f"the model holds only the {next(iter(law))} of its codes; expected {' and '.join(LAW)}")
        vae, _ = read_design(shape, classes, arrays, ("law",) if law else ())
        return cls(vae=vae, theta=arrays["theta"], law=CodeLaw(**law) if law else None)


def design_bytes(vae: ImageVae, **more: int) -> Array:
    """The network's kind and sizes, and what more there is to say, as bytes of JSON."""
    net = next(name for name, kind in NETS.items() if isinstance(vae, kind))
    fields = [field.name for field in dataclasses.fields(vae) if field.name not in ("shape", "classes")]
    design = {"net": net, **more, **{name: getattr(vae, name) for name in fields}}
    return np.frombuffer(json.dumps(design).encode(), np.uint8)


def read_design(
    shape: tuple[int, ...], classes: int, arrays: Mapping[str, Array], more: tuple[str, ...] = ()
) -> tuple[ImageVae, JsonObject]:
    """The network that `design_bytes` wrote, and what more it was given; whatever else is there is refused."""
    try:
        design = parse_json(
            np.asarray(arrays["design"], np.uint8).tobytes(), where="the model's design", error=DataError
        )
        rest = {name: design.pop(name) for name in more}
        return NETS[design.pop("net")](shape=shape, classes=classes, **design), rest
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"the model does not describe a decoder: {error!r}") from error


@functools.partial(jax.jit, static_argnames="vae")
def decoded(vae: ImageVae, theta: Array, z: Array, labels: Array) -> Array:
    """Intensities of images with these codes and labels."""
    return vae.means(vae.decode(theta, z, vae.labels(labels)))


@jax.jit
def _coded(law: CodeLaw, labels: Array, noise: Array) -> Array:
    return law.draw(labels, noise)


VaeGenerator = VaeImages | Decoder


def generator_of(maker: Vae, theta: Array, population: Population, law: CodeLaw | None = None) -> VaeGenerator:
    """What the decoder `theta` of this network makes of codes by this law; standard normal if none is given."""
    theta = np.asarray(theta)
    if isinstance(maker, ImageVae):
        return VaeImages(vae=maker, theta=theta, law=law)
    layers = dict(unpack(maker.decoder_shapes, theta))
    if law is not None:  # rows have one class, whose law the first layer takes in
        mean, root = np.asarray(law.means[0]), np.asarray(law.roots[0])
        layers |= {"up": root.T @ layers["up"], "up_bias": layers["up_bias"] + mean @ layers["up"]}
    return Decoder(schema=population.table_schema, layers=layers)
