"""Labelled images from a trained decoder."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import DataError
from populace.methods.blocks.code_law import CodeLaw
from populace.methods.blocks.generator import ImageGenerator
from populace.methods.blocks.vae_networks import NETS, ImageVae
from populace.types import Array

LAW = ("means", "roots")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VaeImages(ImageGenerator):
    """Codes, by their law or standard normal, through the decoder; an image is the intensity expected of each pixel.

    Labels come evenly: what share each has among the records was not asked. A network of one class was told no labels.
    """

    kind: ClassVar[str] = "vae-images"
    vae: ImageVae
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

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.vae.shape

    @property
    def classes(self) -> int:  # type: ignore[override]
        return self.vae.classes

    def label_shares(self) -> Array | None:
        return np.full(self.classes, 1 / self.classes) if self.classes > 1 else None

    def draw_pixels(self, labels: Array, key: Array) -> Array:
        z = jax.random.normal(key, (len(labels), self.vae.latent))
        if self.law is not None:
            z = _coded(self.law, jnp.asarray(labels), z)
        return decoded(self.vae, jnp.asarray(self.theta), z, jnp.asarray(labels))

    def arrays(self) -> dict[str, Array]:
        theta = np.asarray(self.theta, np.float32)
        if self.law is None:
            return {"theta": theta, "design": told_design(self.vae)}
        told = {name: np.asarray(getattr(self.law, name), np.float32) for name in LAW}
        # Said in the design too: a reader that does not know of the law must not take the decoder without it.
        return {"theta": theta, "design": told_design(self.vae, law=True), **told}

    @classmethod
    def from_arrays(cls, shape: tuple[int, ...], classes: int, arrays: Mapping[str, Array]) -> VaeImages:
        told = {name: arrays[name] for name in LAW if name in arrays}
        if told and len(told) < len(LAW):
            raise DataError(f"the model tells only the {next(iter(told))} of its codes; expected {' and '.join(LAW)}")
        vae, _ = read_design(shape, classes, arrays, ("law",) if told else ())
        return cls(vae=vae, theta=arrays["theta"], law=CodeLaw(**told) if told else None)


def told_design(vae: ImageVae, **more: Any) -> Array:
    """The network's kind and sizes, and what more there is to say, as bytes of JSON."""
    net = next(name for name, kind in NETS.items() if isinstance(vae, kind))
    fields = [field.name for field in dataclasses.fields(vae) if field.name not in ("shape", "classes")]
    design = {"net": net, **more, **{name: getattr(vae, name) for name in fields}}
    return np.frombuffer(json.dumps(design).encode(), np.uint8)


def read_design(
    shape: tuple[int, ...], classes: int, arrays: Mapping[str, Array], more: tuple[str, ...] = ()
) -> tuple[ImageVae, dict[str, Any]]:
    """The network that `told_design` told, and the rest of what it said; whatever else is there is refused."""
    try:
        design = json.loads(np.asarray(arrays["design"], np.uint8).tobytes())
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
