"""Counts along a scale, from noisy counts of its codes and of groups of codes in a row; post-processing.

A single code's count drowns in noise where a few records are spread over hundreds of codes; the count of a group of them does
not. So codes are counted one by one, in groups of `GROUP` and in groups of groups (Hay et al. 2010), and the estimates of all
codes that fit these counts best are taken. What noise alone would show in them is then left out: small wavelet coefficients,
and stretches of the scale that nothing clearly lies in.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from populace.types import NumpyArray

GROUP = 8  # codes of the smallest groups, and groups of each larger one
DRAWS = 200  # of noise, from which the noise of sums of estimates is found
SURE_SOMEWHERE = (
    4.5  # standard deviations above which something is there, though any of thousands of stretches might show it
)
NEAR = 4  # codes beyond what is surely there of which little is asked to be there too
SHORT_GAP = 16  # codes between what is there
THRESHOLD = 1.0  # of wavelet coefficients, as a part of the largest that noise alone would give


def group_widths(levels: int) -> tuple[int, ...]:
    """The widths in which the codes of a scale are counted: single codes first."""
    widths = [1]
    while levels > 2 * GROUP * widths[-1]:
        widths.append(GROUP * widths[-1])
    return tuple(widths)


def groups_of(levels: int, width: int) -> int:
    return -(-levels // width)


def in_groups(counts: Any, width: int) -> Any:
    """Sums of `width` neighbouring counts each, the last of what is left; along the last axis. Of NumPy's arrays or JAX's."""
    size = counts.shape[-1]
    groups = groups_of(size, width)
    numpy = np if isinstance(counts, np.ndarray) else jnp
    padding = [*[(0, 0)] * (counts.ndim - 1), (0, groups * width - size)]
    return numpy.pad(counts, padding).reshape(*counts.shape[:-1], groups, width).sum(axis=-1)


def consistent(parts: Sequence[NumpyArray], widths: Sequence[int]) -> NumpyArray:
    """The counts of codes that fit the noisy counts of all groups best, by least squares; along the last axis.

    `parts` holds the counts for each width, all with the same noise. From the codes up, each group's own count and the sum of
    its parts are averaged by their precision; down again, what a group has left is shared out among its parts by theirs.
    """
    means, variances = [np.asarray(parts[0], np.float64)], [np.ones(parts[0].shape[-1])]
    for below, width, part in zip(widths, widths[1:], parts[1:], strict=False):
        inner, spread = in_groups(means[-1], width // below), in_groups(variances[-1], width // below)
        precision = 1 + 1 / spread
        means.append((part + inner / spread) / precision)
        variances.append(1 / precision)
    best = means[-1]
    for level in range(len(widths) - 2, -1, -1):
        times = widths[level + 1] // widths[level]
        left = (best - in_groups(means[level], times)) / in_groups(variances[level], times)
        best = means[level] + np.repeat(left, times, axis=-1)[..., : means[level].shape[-1]] * variances[level]
    return best


@dataclasses.dataclass(frozen=True, eq=False)
class SumNoise:
    """The standard deviation of noise in sums of neighbouring estimates, of 1, 2, 4, .. codes: anywhere on a scale, and of
    stretches that begin at multiples of their width, which coincide with groups that were counted."""

    anywhere: NumpyArray
    aligned: NumpyArray

    def of(self, widths: NumpyArray | float) -> NumpyArray:
        """Of any width, between those that are known."""
        place = np.log2(np.maximum(widths, 1))
        found: NumpyArray = np.exp(np.interp(place, np.arange(len(self.anywhere)), np.log(self.anywhere)))
        return found

    def of_aligned(self, width: int) -> float:
        return float(self.aligned[min(width.bit_length() - 1, len(self.aligned) - 1)])


def sum_noise(levels: int, deviation: float) -> SumNoise:
    """The noise of sums of estimates along a scale, each of whose counts has noise of this standard deviation."""
    anywhere, aligned = _unit_noise(levels)
    return SumNoise(deviation * anywhere, deviation * aligned)


def noise_in_cells(levels: int, cells: NumpyArray, size: int) -> NumpyArray:
    """The noise of the sums of estimates over each of `size` cells, `cells` the cell of each code, for noise of deviation 1."""
    sums = np.zeros((size, DRAWS))
    np.add.at(sums, cells, _unit_draws(levels).T)
    deviations: NumpyArray = np.sqrt(np.mean(sums**2, axis=1))
    return deviations


@functools.lru_cache(maxsize=32)
def _unit_draws(levels: int) -> NumpyArray:
    """Estimates of codes where nothing is, for noise of deviation 1: draws that are the same in every run."""
    rng, widths = np.random.default_rng(0), group_widths(levels)
    return consistent([rng.normal(size=(DRAWS, groups_of(levels, width))) for width in widths], widths)


@functools.lru_cache(maxsize=128)
def _unit_noise(levels: int) -> tuple[NumpyArray, NumpyArray]:
    """For noise of deviation 1."""
    drawn = _unit_draws(levels)
    before = np.concatenate([np.zeros((DRAWS, 1)), np.cumsum(drawn, axis=1)], axis=1)
    anywhere, aligned = [], []
    for power in range(levels.bit_length() + 1):
        width = min(1 << power, levels)
        anywhere.append(np.mean((before[:, width:] - before[:, :-width]) ** 2))
        ends = before[:, : levels // width * width + 1 : width]
        aligned.append(np.mean(np.diff(ends, axis=1) ** 2))
    return np.sqrt(anywhere), np.sqrt(aligned)


def denoised(counts: NumpyArray, noise: SumNoise, known: NumpyArray | None = None) -> NumpyArray:
    """Noisy counts along a scale without what noise alone would show: Haar coefficients below the largest of pure noise are
    taken as 0 (averaged over two shifts), and so are counts below 0 and where nothing is; scaled to their total. `known` are
    codes that are surely there beside them."""
    if len(counts) < 4 or noise.aligned[0] <= 0:
        return np.maximum(counts, 0.0)
    size = 1 << (len(counts) - 1).bit_length()
    widths = 1 << np.arange(size.bit_length() - 1)
    largest = THRESHOLD * math.sqrt(2 * math.log(size))
    aligned = np.array([noise.of_aligned(int(width)) for width in widths])
    found = np.zeros(len(counts))
    for shift, deviations in ((0, aligned), (size // 3, noise.of(widths))):
        padded = np.roll(np.pad(counts, (0, size - len(counts))), shift)
        found += np.roll(_thresholded(padded, largest * deviations / np.sqrt(widths)), -shift)[: len(counts)] / 2
    positive = np.where(supported(counts, noise, known), np.maximum(found, 0.0), 0.0)
    total = max(float(counts.sum()), 0.0)
    return positive * (total / positive.sum()) if positive.sum() > 0 else positive


def _thresholded(values: NumpyArray, least: NumpyArray) -> NumpyArray:
    """Values (a power of two of them) whose orthonormal Haar coefficients below `least`, for each width, are taken as 0."""
    details = []
    smooth = values.astype(np.float64)
    for smallest in least:
        even, odd = smooth[0::2], smooth[1::2]
        detail = (even - odd) / math.sqrt(2)
        details.append(np.where(np.abs(detail) > smallest, detail, 0.0))
        smooth = (even + odd) / math.sqrt(2)
    for detail in reversed(details):
        both = np.empty(2 * len(smooth))
        both[0::2], both[1::2] = (smooth + detail) / math.sqrt(2), (smooth - detail) / math.sqrt(2)
        smooth = both
    return smooth


def supported(counts: NumpyArray, noise: SumNoise, known: NumpyArray | None = None) -> NumpyArray:
    """Where along a scale anything is: noise alone leaves a little everywhere, also far from all values.

    Stretches that are surely there (and what is `known` to be) are widened on both sides by the next codes, few or many, as
    long as their sum is above noise: the more codes, the clearer. Short gaps are closed.
    """
    known = np.zeros(len(counts), bool) if known is None else known
    there = _surely(counts, noise, something=bool(known.any())) | known
    before = np.concatenate([[0.0], np.cumsum(counts)])
    down, up = _ends(before, -1, noise), _ends(before, 1, noise)
    for first, last in _runs(there):
        there[down[first] : up[last]] = True
    for first, last in _runs(~there):
        if last - first <= SHORT_GAP and first > 0 and last < len(there):
            there[first:last] = True
    return there


def _surely(counts: NumpyArray, noise: SumNoise, *, something: bool = False) -> NumpyArray:
    """Codes in the narrowest stretches (of a power of two codes) that are surely there; where there is
    none, and nothing else is known to be there, the likeliest code."""
    size = 1 << (len(counts) - 1).bit_length()
    sums = np.pad(np.asarray(counts, np.float64), (0, size - len(counts)))
    found = np.zeros(size, bool)
    likeliest = int(np.argmax(sums))
    while len(sums):
        width = size // len(sums)
        inside = found.reshape(-1, width).any(axis=1)
        found |= np.repeat((sums > SURE_SOMEWHERE * noise.of_aligned(width)) & ~inside, width)
        sums = sums.reshape(-1, 2).sum(axis=1) if len(sums) > 1 else sums[:0]
    found[likeliest] |= not (something or found.any())
    return found[: len(counts)]


def _runs(there: NumpyArray) -> list[tuple[int, int]]:
    """Beginnings and ends of what is true in a row."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], there.astype(np.int8), [0]])))
    return [(int(first), int(last)) for first, last in edges.reshape(-1, 2)]


def _ends(before: NumpyArray, way: int, noise: SumNoise) -> NumpyArray:
    """For every place where a stretch may end, how far it goes on from there, up or down; `before` are the sums of all counts
    before each code."""
    places = np.arange(len(before))
    widths = 2 ** np.arange(len(before).bit_length())
    asked = noise.of(widths) * (1 + np.log2(1 + widths / NEAR) / 2)
    ends = np.clip(places[:, None] + way * widths, 0, len(before) - 1)
    clear = way * (before[ends] - before[:, None]) > asked
    clear[[0, -1]] = False
    following = np.where(clear.any(axis=1), ends[places, clear.argmax(axis=1)], places)
    while not np.array_equal(further := following[following], following):
        following = further
    return following
