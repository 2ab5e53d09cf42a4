"""What `moments` measures: features of records, and their first and second moments per class, read through known noise.

A record's features are a vector `h` of public length. Images: low-frequency cosine coefficients, the higher ones weighed more,
because they are smaller. Tables: ordered columns scaled to [-1, 1], others one-hot. What is summed up is h divided by the
larger of its length and a public `floor`, so at most 1 long, and the length itself.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np

from populace.tables.schema import Schema
from populace.types import Array

EDGE = 1.02  # an eigenvalue counts when it is so many times the largest that noise alone gives
MOVES = ("down", "across", "taller", "wider", "turned", "sheared")
TRIED = np.array([0.02, 0.02, 0.05, 0.05, 0.07, 0.1])  # moves whose effect on the mean image is looked at
USUAL_SPREAD = 0.15  # deviation of lengths, as a share of their mean, where it was not measured
LEAST_SHARE = 0.1  # of an even share: what a class has at least


class Features(Protocol):
    """The public map from records to vectors and back."""

    @property
    def floor(self) -> float: ...

    @property
    def ceiling(self) -> float: ...

    @property
    def size(self) -> int: ...

    @property
    def classes(self) -> int: ...

    @property
    def groups(self) -> Array:
        """[size]: coordinates of one group are of like magnitude."""

    @property
    def keeps_length(self) -> bool:
        """Whether generated examples must have the measured lengths, or only the directions matter."""

    def read(self, records: Any) -> tuple[Array, Array]:
        """[n, size] and the classes [n]; traceable."""

    def examples(self, h: Array) -> Array:
        """The images or codes that features stand for; traceable."""

    def measured(self, examples: Array) -> Array:
        """The features of generated examples."""

    def deformed(self, examples: Array, moves: Array) -> Array:
        """Generated images, deformed; rows stay as they are."""


@dataclasses.dataclass(frozen=True)
class ImageFeatures:
    """Cosine coefficients of the lowest `side` x `side` frequencies of every channel, times (1 + i + j)^tilt.

    Natural images lose power with frequency; weighing it up spreads equal noise to where the variance is.
    """

    shape: tuple[int, ...]
    classes: int
    side: int
    tilt: float = 0.5

    @property
    def pixels(self) -> int:
        return math.prod(self.shape)

    @property
    def floor(self) -> float:
        return 0.4 * math.sqrt(self.pixels)

    @property
    def ceiling(self) -> float:
        return 2.0 * math.sqrt(self.pixels)

    @property
    def keeps_length(self) -> bool:
        return True

    @property
    def channels(self) -> int:
        return self.shape[2] if len(self.shape) == 3 else 1

    @functools.cached_property
    def orders(self) -> Array:
        """[channels, frequencies]: the sum of the frequencies down and across."""
        down, across = (np.arange(min(self.side, pixels)) for pixels in self.shape[:2])
        return np.tile((down[:, None] + across).reshape(-1), (self.channels, 1))

    @functools.cached_property
    def basis(self) -> Array:
        """Orthonormal cosines of one channel, [frequencies, pixels]."""
        down, across = (_cosines(min(self.side, pixels), pixels) for pixels in self.shape[:2])
        return np.kron(down, across).astype(np.float32)

    @functools.cached_property
    def weights(self) -> Array:
        return ((1.0 + self.orders) ** self.tilt).astype(np.float32)

    @property
    def groups(self) -> Array:
        return self.orders.reshape(-1)

    @property
    def size(self) -> int:
        return int(self.orders.size)

    def read(self, records: Any) -> tuple[Array, Array]:
        x = jnp.asarray(records["x"], jnp.float32) * np.float32(1 / 255)
        return self.measured(x), jnp.asarray(records["y"])

    def measured(self, examples: Array) -> Array:
        x = jnp.asarray(examples, jnp.float32).reshape(len(examples), -1, self.channels)
        coefficients = jnp.matmul(x.swapaxes(1, 2), self.basis.T, precision="highest")
        return (coefficients * self.weights).reshape(len(x), -1)

    def examples(self, h: Array) -> Array:
        coefficients = jnp.asarray(h).reshape(len(h), *self.weights.shape) * (1 / self.weights)
        x = jnp.matmul(coefficients, self.basis, precision="highest").swapaxes(1, 2)
        return jnp.clip(x.reshape(len(h), *self.shape), 0, 1)

    def deformed(self, examples: Array, moves: Array) -> Array:
        return deformed(examples, moves)


def _cosines(frequencies: int, pixels: int) -> Array:
    """An orthonormal basis of cosines, [frequencies, pixels]."""
    place = (np.arange(pixels) + 0.5) * math.pi / pixels
    basis: np.ndarray = np.sqrt(2 / pixels) * np.cos(np.arange(frequencies)[:, None] * place)
    basis[0] /= math.sqrt(2)
    return basis.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class TableFeatures:
    """All columns but the target: ordered ones scaled to [-1, 1] (and one coordinate for "no value"), others one-hot.

    Every column's part is at most 1 long, so `h` is at most the root of their number: its length tells nothing more.
    """

    schema: Schema

    @functools.cached_property
    def columns(self) -> tuple[int, ...]:
        return tuple(i for i, column in enumerate(self.schema.columns) if column.name != self.schema.target)

    @property
    def target(self) -> int | None:
        return None if self.schema.target is None else self.schema.index(self.schema.target)

    @property
    def classes(self) -> int:
        return 1 if self.target is None else self.schema.columns[self.target].size

    @property
    def floor(self) -> float:
        return math.sqrt(max(1, len(self.columns)))

    ceiling = floor

    @property
    def keeps_length(self) -> bool:
        return False

    @functools.cached_property
    def widths(self) -> tuple[int, ...]:
        """Coordinates of each column."""
        return tuple(
            1 + int(self.schema.columns[i].nullable) if self._ordered(i) else self.schema.columns[i].size
            for i in self.columns
        )

    def _ordered(self, column: int) -> bool:
        return self.schema.columns[column].is_ordered

    @property
    def groups(self) -> Array:
        return np.zeros(self.size, int)

    @property
    def size(self) -> int:
        return max(1, sum(self.widths))

    def read(self, records: Any) -> tuple[Array, Array]:
        codes = jnp.asarray(records)
        labels = jnp.zeros(len(codes), jnp.int32) if self.target is None else codes[:, self.target]
        return self.measured(codes), labels

    def measured(self, examples: Array) -> Array:
        codes = jnp.asarray(examples)
        parts = []
        for i in self.columns:
            column, code = self.schema.columns[i], codes[:, i]
            if not self._ordered(i):
                parts.append((code[:, None] == jnp.arange(column.size)).astype(jnp.float32))
                continue
            there = code < column.levels
            parts.append(jnp.where(there, (2 * code.astype(jnp.float32) + 1) / column.levels - 1, 0.0)[:, None])
            if column.nullable:
                parts.append((~there).astype(jnp.float32)[:, None])
        return jnp.concatenate(parts, axis=1) if parts else jnp.zeros((len(codes), 1), jnp.float32)

    def examples(self, h: Array) -> Array:
        """Codes, [n, columns]; the target's are left at 0."""
        h = jnp.asarray(h)
        codes = [jnp.zeros(len(h), jnp.int32)] * len(self.schema.columns)
        start = 0
        for i, width in zip(self.columns, self.widths, strict=True):
            column, part = self.schema.columns[i], h[:, start : start + width]
            start += width
            if not self._ordered(i):
                codes[i] = jnp.argmax(part, axis=1).astype(jnp.int32)
                continue
            level = jnp.floor((part[:, 0] + 1) / 2 * column.levels).astype(jnp.int32)
            level = jnp.clip(level, 0, column.levels - 1)
            codes[i] = jnp.where(part[:, 1] > 0.5, column.levels, level) if column.nullable else level
        return jnp.stack(codes, axis=1)

    def deformed(self, examples: Array, moves: Array) -> Array:
        del moves
        return examples


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sums:
    """Noisy sums over records, and the standard deviation of the noise in each kind.

    `seconds` is [classes, size, size], or [1, size, size] over all classes; `noise_seconds` that of a diagonal entry, those
    beside it having 1/sqrt(2) of it. `lengths` are sums of length / ceiling and of its square, [classes, 2] or [1, 2] over all.
    """

    counts: Array
    means: Array
    seconds: Array
    lengths: Array
    noise_counts: float
    noise_means: float
    noise_seconds: float
    noise_lengths: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimates:
    """Per class: its share, mean, noisy covariance, the directions of variance that noise does not explain, and the mean and
    deviation of lengths."""

    shares: Array
    means: Array
    covariances: tuple[Array, ...]
    variances: tuple[Array, ...]
    directions: tuple[Array, ...]
    lengths: Array


def estimate(sums: Sums, groups: Array) -> Estimates:
    """Everything the noisy sums tell, each number shrunk as far as its known noise demands."""
    counts = shrunk(sums.counts[:, None], np.full(len(sums.counts), sums.noise_counts))[:, 0]
    counts = np.maximum(counts, LEAST_SHARE * max(counts.mean(), 1.0))
    shares = counts / counts.sum()
    means, noise = sums.means / counts[:, None], sums.noise_means / counts
    spikes_of_classes, covariances = [], []
    if len(sums.seconds) == 1 and len(counts) > 1:
        within = sums.seconds[0] / counts.sum() - (means * shares[:, None]).T @ means
        within += np.eye(len(within)) * (shares * noise**2).sum()
        covariances = [within] * len(counts)
        spikes_of_classes = [spikes(within, sums.noise_seconds / counts.sum())] * len(counts)
    else:
        for second, mean, count, error in zip(sums.seconds, means, counts, noise, strict=True):
            within = second / count - np.outer(mean, mean) + np.eye(len(mean)) * error**2
            covariances.append(within)
            spikes_of_classes.append(spikes(within, sums.noise_seconds / count))
    better = np.empty_like(means)
    for group in np.unique(groups):
        better[:, groups == group] = shrunk(means[:, groups == group], noise, shares)
    if len(sums.lengths) == len(counts):
        lengths = shrunk(sums.lengths / counts[:, None], sums.noise_lengths / counts, shares, apart=True)
        middle = np.clip(lengths[:, 0], 0.02, 1.0)
        spread = np.sqrt(np.clip(lengths[:, 1] - lengths[:, 0] ** 2, 1e-4, None))
    else:  # one mean for all classes: noise hides the deviation
        middle = np.full(len(counts), np.clip(sums.lengths[0, 0] / counts.sum(), 0.02, 1.0))
        spread = USUAL_SPREAD * middle
    return Estimates(
        shares=shares, means=better, covariances=tuple(covariances),
        variances=tuple(values for values, _ in spikes_of_classes),
        directions=tuple(vectors for _, vectors in spikes_of_classes),
        lengths=np.stack([middle, np.minimum(spread, middle / 2)], axis=1),
    )  # fmt: skip


def shrunk(rows: Array, noise: Array, shares: Array | None = None, *, apart: bool = False) -> Array:
    """Rows [classes, k] with noise of deviation `noise` [classes], drawn towards their mean: by Wiener's filter, with the
    variance between classes estimated from the rows themselves, together or (`apart`) for each column."""
    if len(rows) == 1:
        return rows
    shares = np.full(len(rows), 1 / len(rows)) if shares is None else shares
    middle = shares @ rows
    apart_from = rows - middle
    excess = apart_from**2 - (noise**2)[:, None] * (1 - 1 / len(rows))
    between = np.maximum(excess.mean(axis=0) if apart else excess.mean(), 0.0)
    return middle + apart_from * (between / (between + (noise**2)[:, None] + 1e-30))


def spikes(matrix: Array, noise: float) -> tuple[Array, Array]:
    """Eigenvalues and vectors that stand out of symmetric Gaussian noise (diagonal deviation `noise`), the values freed of the
    noise's push: an eigenvalue v is seen at v + s^2 size/v with s the deviation beside the diagonal, and nothing above the
    edge 2 s sqrt(size) where there is only noise (Benaych-Georges and Nadakuditi 2011)."""
    seen, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    spread = noise**2 / 2 * len(matrix)
    kept = seen > EDGE * 2 * math.sqrt(spread) + 1e-9
    seen = seen[kept]
    return (seen + np.sqrt(np.maximum(seen**2 - 4 * spread, 0))) / 2, vectors[:, kept]


def deformed(x: Array, moves: Array) -> Array:
    """Images [n, height, width, ...] moved by [n, 6]; what comes in from outside repeats the border. Traceable."""
    height, width = x.shape[1:3]
    down, across, taller, wider, turned, sheared = jnp.asarray(moves).T[:, :, None]
    rows, columns = np.mgrid[:height, :width].reshape(2, -1).astype(np.float32)
    y, x_ = rows - (height - 1) / 2, columns - (width - 1) / 2
    cos, sin = jnp.cos(turned), jnp.sin(turned)
    from_row = jnp.exp(taller) * cos * y - sin * x_ + down * height + (height - 1) / 2
    from_column = (sin + sheared) * y + jnp.exp(wider) * cos * x_ + across * width + (width - 1) / 2
    top, over = _split(from_row, height)
    left, beyond = _split(from_column, width)
    flat = x.reshape(len(x), height * width, -1)

    def at(step_down: int, step_across: int) -> Array:
        row, column = jnp.minimum(top + step_down, height - 1), jnp.minimum(left + step_across, width - 1)
        return jnp.take_along_axis(flat, (row * width + column)[:, :, None], axis=1)

    over, beyond = over[:, :, None], beyond[:, :, None]
    upper = (1 - beyond) * at(0, 0) + beyond * at(0, 1)
    lower = (1 - beyond) * at(1, 0) + beyond * at(1, 1)
    return ((1 - over) * upper + over * lower).reshape(x.shape)


def _split(place: Array, size: int) -> tuple[Array, Array]:
    """The pixel below a place, and how far above it the place lies."""
    inside = jnp.clip(place, 0, size - 1)
    below = jnp.floor(inside)
    return below.astype(jnp.int32), inside - below
