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
from populace.models.codes import Codes
from populace.models.images import ImageGenerator
from populace.models.vae import NETS, ImageVae

Array = Any

CODES = ("means", "roots")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VaeImages(ImageGenerator):
    """Codes, as they are known to lie or standard normal, through the decoder; an image is what is expected of each pixel.

    Labels come evenly: what share each has among the records was not asked. A network of one class was told no labels.
    """

    kind: ClassVar[str] = "vae-images"
    vae: ImageVae
    theta: Array
    codes: Codes | None = None

    def __post_init__(self) -> None:
        if np.shape(self.theta) != (self.vae.decoder_size,):
            raise DataError(f"expected a decoder of {self.vae.decoder_size} numbers, got {np.shape(self.theta)}")
        if not np.isfinite(np.asarray(self.theta)).all():
            raise DataError("the decoder holds numbers that are not finite: it did not train; choose smaller steps")
        rows, latent = max(1, self.vae.classes), self.vae.latent
        if self.codes is not None:
            sizes = np.shape(self.codes.means), np.shape(self.codes.roots)
            if sizes != ((rows, latent), (rows, latent, latent)):
                raise DataError(f"expected codes of {rows} classes and {latent} numbers, got arrays of {sizes}")
            if not all(np.isfinite(part).all() for part in (self.codes.means, self.codes.roots)):
                raise DataError("the codes hold numbers that are not finite")

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
        if self.codes is not None:
            z = _drawn(self.codes, jnp.asarray(labels), z)
        return decoded(self.vae, jnp.asarray(self.theta), z, jnp.asarray(labels))

    def arrays(self) -> dict[str, Array]:
        found = {"theta": np.asarray(self.theta, np.float32), "design": told_design(self.vae)}
        if self.codes is not None:
            found |= {name: np.asarray(getattr(self.codes, name), np.float32) for name in CODES}
        return found

    @classmethod
    def from_arrays(cls, shape: tuple[int, ...], classes: int, arrays: Mapping[str, Array]) -> VaeImages:
        vae, _ = read_design(shape, classes, arrays)
        there = [name for name in CODES if name in arrays]
        if there and len(there) < len(CODES):
            raise DataError(f"the model tells only the {there[0]} of its codes; expected {' and '.join(CODES)}")
        codes = Codes(**{name: arrays[name] for name in CODES}) if there else None
        return cls(vae=vae, theta=arrays["theta"], codes=codes)


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
def _drawn(codes: Codes, labels: Array, noise: Array) -> Array:
    return codes.drawn(labels, noise)
