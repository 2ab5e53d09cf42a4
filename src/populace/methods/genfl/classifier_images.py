"""Labelled images from several generators, and the classifier that was learned beside them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import DataError
from populace.methods.blocks.generator import ImageGenerator
from populace.methods.blocks.vae_images import decoded, read_design, told_design
from populace.methods.blocks.vae_networks import ImageVae
from populace.methods.genfl.wavelets import Scattering
from populace.tables.images import Images
from populace.types import Array

AT_ONCE = 256  # images classified together


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierImages(ImageGenerator):
    """Each image comes from one of the generators, evenly; labels come evenly. `classify` is the classifier.

    Edge cases: without generators (`thetas` of no rows) there is a classifier alone, and drawing is refused.
    """

    kind: ClassVar[str] = "classifier-images"
    vae: ImageVae
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

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.vae.shape

    @property
    def classes(self) -> int:  # type: ignore[override]
        return self.vae.classes

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
            made = decoded(self.vae, jnp.asarray(self.thetas[number]), z[some], jnp.asarray(labels)[some])
            x[mine] = np.asarray(made)[: len(mine)]
        return x

    def scores(self, images: Images) -> Array:
        """Probabilities of the classes, [n, classes]."""
        x = np.pad(images.x, ((0, -len(images) % AT_ONCE), *[(0, 0)] * len(self.shape)))
        parts = [jnp.asarray(x[start : start + AT_ONCE]) for start in range(0, len(x), AT_ONCE)]
        found = [np.asarray(_scores(self.features, jnp.asarray(self.weights), part)) for part in parts]
        return np.concatenate(found)[: len(images)]

    def classify(self, images: Images) -> Array:
        """The likeliest label of each image."""
        return self.scores(images).argmax(axis=1)

    def arrays(self) -> dict[str, Array]:
        return {
            "thetas": np.asarray(self.thetas, np.float32), "weights": np.asarray(self.weights, np.float32),
            "design": told_design(self.vae, features=self.cells),
        }  # fmt: skip

    @classmethod
    def from_arrays(cls, shape: tuple[int, ...], classes: int, arrays: Mapping[str, Array]) -> ClassifierImages:
        vae, rest = read_design(shape, classes, arrays, more=("features",))
        return cls(vae=vae, thetas=arrays["thetas"], weights=arrays["weights"], cells=rest["features"])


@functools.partial(jax.jit, static_argnums=0)
def _scores(features: Scattering, weights: Array, x: Array) -> Array:
    seen = features(x.astype(jnp.float32) / 255)
    return jax.nn.softmax(seen @ weights[:-1] + weights[-1], axis=1)
