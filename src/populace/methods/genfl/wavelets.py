"""What a linear classifier sees of an image: a scattering transform, which is public and learned from nobody.

Bruna and Mallat 2013; under noise that counts every parameter a linear classifier on it does better than a network of its own
features (Tramer and Boneh 2021). Moduli of Morlet wavelets at two scales and `ANGLES` directions, and of those of the first at
the second scale, are averaged over windows. Each map is scaled, the image's mean over all maps is taken away, and the whole is
scaled to length 1, so that no record's features are longer than another's.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax.numpy as jnp
import numpy as np

from populace.types import Array

ANGLES = 8
SIDES = (5, 7)  # of a wavelet at either scale, in pixels
WIDTHS = (1.0, 1.8)
PITCHES = (3 * math.pi / 4, 3 * math.pi / 8)
SLANT = 0.6  # how much longer than wide
FAINT = 0.05  # a map weaker than this stays weak
TINY = 1e-6


@dataclasses.dataclass(frozen=True)
class Scattering:
    """Features of images of this shape; each map is averaged in `cells` x `cells` windows that overlap by half."""

    shape: tuple[int, ...]
    cells: int = 4

    @property
    def colours(self) -> int:
        return self.shape[2] if len(self.shape) == 3 else 1

    @property
    def maps(self) -> int:
        return (1 + 2 * ANGLES + ANGLES * ANGLES) * self.colours

    @property
    def size(self) -> int:
        return self.maps * self.cells**2

    def __call__(self, x: Array) -> Array:
        """[n, ..] intensities in [0, 1] to [n, size]."""
        pixels = jnp.moveaxis(x.reshape(-1, *self.shape[:2], self.colours), 3, 1).reshape(-1, 1, *self.shape[:2])
        fine = moduli(pixels, _bank(0), 1)
        coarse = moduli(pixels, _bank(1), 2)  # smooth enough for every other pixel
        half = fine[:, :, ::2, ::2]
        second = moduli(half.reshape(-1, 1, *half.shape[2:]), _bank(0), 1)  # on every other pixel: the coarse scale
        parts = [
            self._averaged(part) for part in (pixels, fine, coarse, second.reshape(len(half), -1, *half.shape[2:]))
        ]
        told = jnp.concatenate(parts, axis=1).reshape(-1, self.colours, self.maps // self.colours, self.cells**2)
        scaled = told / (jnp.sqrt(jnp.mean(told**2, axis=3, keepdims=True) + TINY) + FAINT)  # weak maps speak up
        centred = scaled - jnp.mean(scaled, axis=(2, 3), keepdims=True)  # what all share would only slow learning
        flat = centred.reshape(len(centred), -1)
        return flat / jnp.sqrt(jnp.sum(flat**2, axis=1, keepdims=True) + TINY)

    def _averaged(self, maps: Array) -> Array:
        down, across = (windows(side, self.cells) for side in maps.shape[2:])
        return jnp.einsum("nmhw,hi,wj->nmij", maps, down, across).reshape(*maps.shape[:2], self.cells**2)


def moduli(x: Array, kernels: Array, stride: int) -> Array:
    """[n, 1, high, wide] and complex kernels [side, side, k] to moduli [n, k, ..] at every `stride`th pixel.

    Black beyond the edges.
    """
    n, _, high, wide = x.shape
    side, _, count = kernels.shape
    half = side // 2
    padded = jnp.pad(x, ((0, 0), (0, 0), (half, half), (half, half)))
    near = [padded[:, :, i : i + high : stride, j : j + wide : stride] for i in range(side) for j in range(side)]
    both = jnp.concatenate([kernels.real, kernels.imag], axis=2).reshape(-1, 2 * count)
    told = jnp.einsum("kc,nkp->ncp", both, jnp.concatenate(near, axis=1).reshape(n, side * side, -1))
    cosine, sine = told[:, :count], told[:, count:]
    return jnp.sqrt(cosine**2 + sine**2 + TINY).reshape(n, count, *near[0].shape[2:])


@functools.lru_cache(maxsize=8)
def windows(side: int, cells: int) -> Array:
    """[side, cells]: weights of so many smooth windows, spread evenly."""
    centres = (np.arange(cells) + 0.5) * side / cells
    distance = (np.arange(side)[:, None] + 0.5 - centres) * cells / side
    weights = np.exp(-(distance**2) * 2)
    return (weights / weights.sum(axis=0)).astype(np.float32)


@functools.lru_cache(maxsize=4)
def _bank(scale: int) -> Array:
    """Wavelets of a scale, [side, side, ANGLES]."""
    found = [_morlet(scale, math.pi * angle / ANGLES) for angle in range(ANGLES)]
    return np.stack(found, axis=2).astype(np.complex64)


def _morlet(scale: int, angle: float) -> Array:
    """A wave of the scale's pitch and this direction under a bump, its mean taken away, of length 1."""
    side, width, pitch = SIDES[scale], WIDTHS[scale], PITCHES[scale]
    down, across = np.meshgrid(*[np.arange(side) - side // 2] * 2, indexing="ij")
    along = math.cos(angle) * down + math.sin(angle) * across
    beside = -math.sin(angle) * down + math.cos(angle) * across
    bump = np.exp(-(along**2 + (SLANT * beside) ** 2) / (2 * width**2))
    wave = bump * np.exp(1j * pitch * along)
    wave = wave - bump * wave.sum() / bump.sum()
    return wave / np.linalg.norm(wave)
