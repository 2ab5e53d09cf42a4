"""SignDS: of a long vector, report one coordinate among its largest (or smallest) and which of the two (Jiang et al. 2022).

A client draws a sign s by a fair coin, marks the k largest coordinates of s times its vector, and reports one marked coordinate
with probability p = e^eps k / (d - k + e^eps k), evenly, otherwise one of the others, evenly, and s. A report is one whole
number, 2 * coordinate + (1 if s is +).

For vectors whose coordinates look Gaussian the mean report points along the vector with length gain/sqrt(d), and with
k = matched_share(eps) d the gain is that of PrivUnitG, the best there is for unit vectors. `rotate` makes vectors look so:
turns of public random signs and a Hadamard transform, undone by the server. One turn does so well for vectors with many
coordinates that are not zero; of few, at a large epsilon, the tails stay thin and part of the gain is lost (a quarter for 40
of 1,024). Two turns do so for all vectors.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction
from statistics import NormalDist
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import DataError, out_of_range
from populace.privacy import secure_random
from populace.privacy.events import Event, Pure
from populace.privacy.guarantee import check_epsilon
from populace.privacy.randomizers.base import check_size, number_bytes, read_number
from populace.privacy.randomizers.draws import threshold
from populace.privacy.source import Keyed, Source
from populace.types import Array

SMALLEST_SHARE, LARGEST_SHARE = 1e-6, 0.5
FACTOR = 64  # of a Hadamard matrix applied at once: a long transform is a few small products
STEPS = 1_000  # of `settle`, in a standard deviation
LARGEST_WHOLE = 2**31 - 1
BLOCK = 128  # entries of a mask that are counted together
NORMAL = NormalDist()


def top_probability(epsilon: float, share: float) -> float:
    """p, the probability of a top coordinate, for k/d = share (lemma 1, with equality)."""
    weight = math.exp(epsilon) * share
    return weight / (1 - share + weight)


def least_share(epsilon: float, probability: float) -> float:
    """The smallest k/d at which a top coordinate has this probability (corollary 1)."""
    return probability / (math.exp(epsilon) * (1 - probability) + probability)


def least_epsilon(share: float, probability: float) -> float:
    """The smallest epsilon at which a top coordinate has this probability (corollary 2)."""
    return math.log(probability * (1 - share) / ((1 - probability) * share))


def gain(epsilon: float, share: float) -> float:
    """sqrt(d) times the mean inner product of a report with a unit vector of Gaussian-looking coordinates."""
    density = NORMAL.pdf(NORMAL.inv_cdf(1 - share))
    p = top_probability(epsilon, share)
    return p * density / share - (1 - p) * density / (1 - share)


@functools.lru_cache(maxsize=256)
def matched_share(epsilon: float) -> float:
    """The k/d of the largest gain: a public rule, so that no data choose it."""
    grid = np.exp(np.linspace(math.log(SMALLEST_SHARE), math.log(LARGEST_SHARE), 2_000))
    return float(max(grid, key=lambda share: gain(epsilon, float(share))))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SignDS:
    """One coordinate and one sign of a vector of `size` coordinates, `chosen` of which are its top.

    Guarantee: epsilon-LDP, pure, for the whole vector and all it was made from: whatever two vectors, the probabilities of any
    report differ by at most a factor e^epsilon. The sign is drawn before the vector is looked at. `release` uses a p that is
    rounded down to a multiple of 2^-63; `simulate` the same to 2^-32.
    Edge cases: exactly `chosen` coordinates are the top, whatever the vector: NaN counts as 0, minus zero as zero, and of
    equal values those come first that follow `start` in a circle. With chosen = size a report says nothing.
    """

    size: int
    epsilon: float
    chosen: int

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_size(self.size)
        if not 1 <= self.chosen <= self.size:
            raise out_of_range("chosen", f"in [1, {self.size}]", self.chosen)

    @functools.cached_property
    def exact_p(self) -> Fraction:
        """p as `release` uses it."""
        if self.chosen == self.size:
            return Fraction(1)
        weight = secure_random.exp_below(self.epsilon) * self.chosen
        return secure_random.rounded_down(weight / (self.size - self.chosen + weight))

    @property
    def p(self) -> float:
        """Probability that the coordinate reported is one of the top."""
        return float(self.exact_p)

    @property
    def gain(self) -> float:
        """See `gain`; nothing where all coordinates are the top."""
        return 0.0 if self.chosen == self.size else gain(self.epsilon, self.chosen / self.size)

    @property
    def pull(self) -> float:
        """sqrt(d) times the mean inner product of a report with such a unit vector: of one coordinate, the gain."""
        return self.gain

    @property
    def event(self) -> Event:
        """What one report is, for the ledger."""
        return Pure(float(self.epsilon))

    def worst_ratio(self) -> float:
        """The largest ratio of a report's probabilities under two vectors, from the numbers `release` uses."""
        if self.chosen == self.size:
            return 1.0
        inside = self.exact_p / self.chosen
        outside = (1 - self.exact_p) / (self.size - self.chosen)
        return float(max(inside / outside, outside / inside))

    def probabilities(self, top: Array) -> list[Fraction]:
        """The exact law of the coordinate reported, given which coordinates are the top."""
        others = self.size - self.chosen
        return [self.exact_p / self.chosen if marked else (1 - self.exact_p) / others for marked in np.asarray(top)]

    def simulate(self, vector: Array, key: Array, start: Array | int = 0) -> Array:
        """One report about one vector, from a JAX key; traceable, to be vmapped."""
        coin, place_key = jax.random.split(key)
        positive = (jax.random.bits(coin) >> 31).astype(bool)
        top = mark_top(jnp.where(positive, vector, -vector), self.chosen, start)
        return (2 * self.simulate_coordinate(top, place_key) + positive).astype(jnp.int32)

    def simulate_coordinate(self, top: Array, key: Array) -> Array:
        """The coordinate reported, given which are the top."""
        coin, rank = jax.random.split(key)
        inside = (jax.random.bits(coin) < threshold(self.exact_p)) | (self.chosen == self.size)
        pool = jnp.where(inside, top, ~top)
        wanted = jax.random.randint(rank, (), 0, jnp.where(inside, self.chosen, max(1, self.size - self.chosen)))
        return nth_true(pool, wanted)

    def release(self, vector: Array, start: Array | int = 0) -> np.int32:
        """One report about one vector, from the operating system's generator, exactly."""
        vector = np.asarray(vector, np.float32)
        if vector.shape != (self.size,):
            raise DataError(f"expected a vector of {self.size} coordinates, got shape {vector.shape}")
        positive = bool(secure_random.integers_below(2))
        top = np.asarray(mark_top(jnp.asarray(vector if positive else -vector), self.chosen, start))
        return np.int32(2 * self.release_coordinate(top) + positive)

    def release_coordinate(self, top: Array) -> int:
        """The coordinate reported, given which are the top, exactly."""
        inside = bool(secure_random.bernoulli(self.exact_p)) if self.chosen < self.size else True
        pool = np.flatnonzero(top if inside else ~top)
        return int(pool[secure_random.integers_below(len(pool))])

    def apply(self, vector: Array, source: Source, start: Array | int = 0) -> Array:
        """One report about one vector, from either kind of source; traceable from a key, also where the host draws exactly."""
        if not isinstance(source, Keyed):
            return cast(
                "Array", self.release(vector, start)
            )  # a scalar of NumPy's: it has all that is asked of an array
        if not source.exact:
            return self.simulate(vector, source.key, start)
        sign, coordinate = source.split(2)
        positive = sign.below(2) == 1
        top = mark_top(jnp.where(positive, vector, -vector), self.chosen, start)
        return (2 * self.exact_coordinate(top, coordinate) + positive).astype(jnp.int32)

    def exact_coordinate(self, top: Array, source: Source) -> Array:
        """The coordinate reported, given which are the top, drawn by the source's own coins and numbers; traceable."""
        coin, rank = source.split(2)
        inside = coin.coins(self.exact_p, ()) | (self.chosen == self.size)
        pool = jnp.where(inside, top, ~top)
        wanted = rank.below(jnp.where(inside, self.chosen, max(1, self.size - self.chosen)))
        return nth_true(pool, wanted)

    def add_up(self, reports: Array, present: Array) -> Array:
        """The sum of the signed unit vectors the present reports stand for."""
        coordinate = jnp.where(present, reports // 2, self.size)  # absent ones fall off the end
        signs = jnp.where(reports % 2 == 1, 1.0, -1.0).astype(jnp.float32)
        return jnp.zeros(self.size, jnp.float32).at[coordinate].add(signs, mode="drop")

    @property
    def wire_bytes(self) -> int:
        """Bytes of one report as sent: a whole number below 2 d."""
        return number_bytes(2 * self.size)

    def encode(self, report: Array | np.int32) -> bytes:
        """One report as sent."""
        return int(report).to_bytes(self.wire_bytes, "little")

    def decode(self, message: bytes) -> np.int32:
        """The inverse of `encode`; refuses what no client could have sent."""
        if len(message) != self.wire_bytes:
            raise DataError(f"expected a report of {self.wire_bytes} bytes, got {len(message)}")
        return np.int32(read_number(message, 2 * self.size))


@functools.partial(jax.jit, static_argnames="count")
def mark_top(vector: Array, count: int, start: Array | int = 0) -> Array:
    """Exactly `count` coordinates, the largest; ties by the circle from `start`. Traceable; no sort, but 32 counts.

    Floats in the order of their bits are whole numbers in the order of their values: the count-th largest is found bit by bit.
    """
    vector = jnp.asarray(vector, jnp.float32)
    bits = jax.lax.bitcast_convert_type(jnp.where(jnp.isnan(vector) | (vector == 0), 0.0, vector), jnp.int32)
    order = jnp.where(bits < 0, bits ^ LARGEST_WHOLE, bits)

    def settle(step: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
        trial = found[0] ^ (
            jnp.int32(1) << jnp.asarray(31 - step, jnp.int32)
        )  # at first the sign, which makes it larger
        reached = count_true(order >= trial)
        enough = reached >= count
        return jnp.where(enough, trial, found[0]), jnp.where(enough, reached, found[1])

    lowest = jnp.int32(-LARGEST_WHOLE - 1), jnp.int32(len(vector))
    least, reached = jax.lax.fori_loop(0, 32, settle, lowest)
    above, equal = order > least, order == least
    place = jnp.arange(len(vector))
    larger, earlier = count_true(above), count_true(equal & (place < start))
    last = nth_true(equal, jnp.mod(earlier + count - larger - 1, reached - larger))

    def from_start(place: Array) -> Array:
        """The place in the circle."""
        return jnp.where(place < start, place + len(vector), place)

    top: Array = above | (equal & (from_start(place) <= from_start(last)))
    return top


def count_true(mask: Array) -> Array:
    """How many entries are true. Floats are added many times faster than whole numbers, and exactly up to 2^24 of them."""
    parts = [jnp.sum(mask[first : first + 2**24], dtype=jnp.float32) for first in range(0, len(mask), 2**24)]
    return jnp.sum(jnp.stack(parts).astype(jnp.int32))


def nth_true(mask: Array, rank: Array | int) -> Array:
    """The index of the true entry that has `rank` true ones before it; 0 if there is none.

    By the counts of blocks first, then within one of them: a running count of a long mask is slow to compile and to run.
    """
    size = len(mask)
    whole = size // BLOCK
    counts = jnp.sum(mask[: whole * BLOCK].reshape(whole, BLOCK), axis=1, dtype=jnp.float32)
    counts = jnp.append(counts, jnp.sum(mask[whole * BLOCK :], dtype=jnp.float32)).astype(jnp.int32)
    ends = jnp.cumsum(counts)
    block = jnp.argmax(ends > rank)
    first = jnp.minimum(BLOCK * block, max(0, size - BLOCK))  # the last block is shorter than what is looked at
    places = first + jnp.arange(min(BLOCK, size))
    looked = jax.lax.dynamic_slice(mask, (first,), (min(BLOCK, size),)) & (places >= BLOCK * block)
    inside = jnp.argmax(jnp.cumsum(looked) == rank - (ends - counts)[block] + 1)
    return jnp.where(rank < ends[-1], first + inside, 0)


def padded_size(size: int) -> int:
    """The next power of two: what `rotate` makes of so many coordinates. Padding costs no accuracy."""
    return 1 << max(0, size - 1).bit_length()


def rotate(vector: Array, signs: Array) -> Array:
    """A vector, padded with zeros; for each row of public signs times them, then through the orthonormal Hadamard transform."""
    padding = [(0, 0)] * (jnp.ndim(vector) - 1) + [(0, jnp.shape(signs)[-1] - jnp.shape(vector)[-1])]
    vector = jnp.pad(vector, padding)
    for row in signs:
        vector = hadamard_transform(vector * row)
    return vector


def settle(vector: Array) -> Array:
    """A rotated vector in steps of a thousandth of its coordinates' deviation, as whole numbers.

    Coordinates that are equal in exact arithmetic then stay equal, so that their order does not hang on how a compiler adds.
    """
    step = jnp.sqrt(jnp.mean(jnp.square(vector), axis=-1, keepdims=True)) / STEPS
    return jnp.round(vector / jnp.where(step == 0, 1.0, step))


def rotate_back(vector: Array, signs: Array, size: int) -> Array:
    """The first `size` coordinates of what `rotate` was given, or of the part of any vector that lies there."""
    for row in signs[::-1]:
        vector = hadamard_transform(vector) * row
    return vector[..., :size]


def hadamard_transform(vector: Array) -> Array:
    """Orthonormal, its own inverse; the length is a power of two. As products with small matrices, which both kinds of
    processor do fast."""
    length = jnp.shape(vector)[-1]
    if length & (length - 1):
        raise out_of_range("the length of the vector", "a power of two", length)
    lead = jnp.shape(vector)[:-1]
    done, left = 1, length
    while left > 1:
        factor = min(FACTOR, left)
        matrix = jnp.asarray(_hadamard_matrix(factor))
        cube = jnp.reshape(vector, (*lead, done, factor, left // factor))
        vector = jnp.einsum("ij,...ajb->...aib", matrix, cube, precision="highest")
        done, left = done * factor, left // factor
    return jnp.reshape(vector, (*lead, length)) / np.float32(math.sqrt(length))


@functools.lru_cache(maxsize=16)
def _hadamard_matrix(size: int) -> Array:
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix
