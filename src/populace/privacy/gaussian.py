"""The Gaussian mechanism: a sum of clipped vectors on a grid, plus rounded Gaussian noise, whole numbers throughout.

A sum on the grid plus a Gaussian rounded to the grid is the Gaussian mechanism, rounded afterwards: round(x + N) = x + round(N)
for x on the grid. So a release is post-processing of the continuous mechanism with the sensitivity after rounding, its cost is
that of `events.Gaussian`, and no low bit of a float tells anything (Mironov 2012).
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import log_ndtr

from populace.errors import SpecError, out_of_range
from populace.privacy import accounting, keyed_normal, on_host, secure_random
from populace.privacy.bisection import bisect
from populace.privacy.events import Event, Gaussian
from populace.privacy.source import Keyed, Source
from populace.types import Array, ArrayTree, Number, NumpyArray

EXACT = 24  # bits a float32 adds without error
WIDE = 31  # bits of a number in a message
FINENESS = 256  # rounding adds at most 1/FINENESS to the sensitivity
MOST_TOTAL = 2**30  # in units of the grid: a sum is cut off here, so that noise below it fits beside it in 32 bits
MOST_DEVIATION = 2.0**26  # in units of the grid: twelve of them lie below MOST_TOTAL
#: Total variation distance of one coordinate's noise from its law, at most.
NOISE_DISTANCE = max(secure_random.NORMAL_DISTANCE, keyed_normal.KEYED_DISTANCE)
MARGIN = 1e-6  # of a clipped vector, for float rounding in sums of what was clipped
ROW = 16  # numbers added one after the other
TINY, HUGE = 1e-30, 1e30  # magnitudes whose reciprocals are ordinary floats too


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianSum:
    """Noise for a sum of vectors of `size` coordinates, of which one unit (record or client) changes at most `bound` in L2.

    Guarantee: `release` costs `event`, add or remove one unit, if sums with and without the unit differ by at most `bound`.
    Rounding to the grid is counted in `sensitivity`. One coordinate's noise is within `NOISE_DISTANCE` of the law, from either
    source, which adds 1 + e^epsilon times that to delta for each coordinate; from a `Keyed` source that is not `exact` this
    holds against whoever cannot search for its key, of 64 bits.
    Edge cases: errors of the float sum itself are the caller's: n vectors of norm `bound` added in float32 are off by up to
    n^2 2^-24 bounds (Casacuberta et al. 2022). A sum of `on_grid` vectors, in int32, has none; `release` takes either. What is
    too large costs accuracy, never privacy: a coordinate of a float sum is cut off at `MOST_TOTAL` grid units, a whole one
    wraps around; the sum of up to `capacity` units does neither. NaN in a sum counts as 0. A sum of one coordinate may be a
    scalar.
    """

    bound: float
    noise_multiplier: float
    size: int
    whole: bool = False  # sums are of whole numbers already: nothing is rounded, and the grid is 1

    def __post_init__(self) -> None:
        if not 1e-20 <= self.bound <= 1e20:
            raise out_of_range("bound", "in [1e-20, 1e20]", self.bound)
        if self.size < 1:
            raise out_of_range("size", "at least 1", self.size)
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            raise out_of_range("noise_multiplier", "above 0 and finite", self.noise_multiplier)
        if self.deviation > MOST_DEVIATION:
            most = MOST_DEVIATION * self.grid / self.sensitivity
            raise out_of_range(
                "noise_multiplier",
                f"at most {most:.4g} for {self.size} coordinates",
                self.noise_multiplier,
                advice="noise would not fit into 32 bits",
            )

    @property
    def event(self) -> Event:
        """What one release is, for the ledger."""
        return Gaussian(float(self.noise_multiplier))

    @property
    def grid(self) -> float:
        """What sums are rounded to multiples of: the largest power of two at most bound / (FINENESS sqrt(size))."""
        if self.whole:
            return 1.0
        return 2.0 ** (math.frexp(self.bound / (FINENESS * math.sqrt(self.size)))[1] - 1)

    @property
    def sensitivity(self) -> float:
        """After rounding, which moves each coordinate of either sum by at most half a grid unit."""
        return self.bound if self.whole else self.bound + self.grid * math.sqrt(self.size)

    @property
    def scale(self) -> float:
        """Standard deviation of the noise."""
        return self.noise_multiplier * self.sensitivity

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise, in units of the grid."""
        return self.scale / self.grid

    @property
    def capacity(self) -> int:
        """Units whose sum is never cut off and does not wrap around, even if all lie along one coordinate."""
        return math.floor(MOST_TOTAL * self.grid / self.bound)

    def noise(self, source: Source, shape: tuple[int, ...] | None = None) -> Array:
        """Noise in units of the grid, int32; of `size` coordinates unless given, and of any leading axes."""
        shape = (self.size,) if shape is None else shape
        if isinstance(source, Keyed):
            if source.exact:
                return on_host.drawn(_Rounded(shape, self.deviation), source.key, shape, jnp.int32)
            simulated: Array = keyed_normal.rounded_normal(source.key, self.deviation, shape)
            return simulated
        exact: NumpyArray = secure_random.rounded_normal(self.deviation, shape).astype(np.int32)
        return exact

    def on_grid(self, vector: Array) -> Array:
        """A float vector in whole units of the grid, int32; traceable. Of NumPy's float64 no digit is lost."""
        numpy = np if isinstance(vector, np.ndarray | np.generic) else jnp  # JAX would cut 64 bits to 32
        vector = vector.astype(numpy.promote_types(vector.dtype, numpy.float32))
        most = MOST_TOTAL * self.grid
        within = numpy.clip(numpy.where(numpy.isnan(vector), 0, vector), -most, most)
        steps: Array = numpy.round(within * (1 / self.grid)).astype(numpy.int32)
        return steps

    def release(self, total: Array, noise: Array) -> Array:
        """The noisy sum, float32, of a float sum or of an int32 one in units of the grid; traceable."""
        if total.shape[-1:] != (self.size,) and (self.size, total.ndim) != (1, 0):
            raise out_of_range("the last axis of a sum", f"of {self.size} coordinates", total.shape)
        whole = jnp.issubdtype(total.dtype, jnp.integer)
        units = (
            total.astype(np.int32) if whole else self.on_grid(total)
        )  # sums and noise modulo 2^32: still post-processing
        return (jnp.asarray(units) + jnp.asarray(noise, jnp.int32)).astype(jnp.float32) * self.grid

    def apply(self, total: Array, source: Source) -> Array:
        """The noisy sum, with noise of its own."""
        return self.release(total, self.noise(source, np.shape(total)))


@dataclasses.dataclass(frozen=True)
class _Rounded:
    """Exact noise, many times the same shape."""

    shape: tuple[int, ...]
    deviation: float

    def release_rows(self, count: int) -> Array:
        return secure_random.rounded_normal(self.deviation, (count, *self.shape))


def rescaled(units: Array, shift: int) -> Array:
    """Whole units to whole multiples of 2^shift, rounded; exact."""
    if shift <= 0:
        return units << -shift
    return (units >> shift) + ((units >> (shift - 1)) & 1)


def calibrated(
    *, epsilon: float, delta: float, bound: float, size: int, probability: float = 1.0, steps: int = 1
) -> GaussianSum:
    """The least noise whose `steps` Poisson-sampled releases stay within (epsilon, delta) by PLD."""
    multiplier = accounting.noise_multiplier_for(epsilon=epsilon, delta=delta, probability=probability, steps=steps)
    return GaussianSum(bound=bound, noise_multiplier=multiplier, size=size)


def analytic_delta(epsilon: float, noise_multiplier: float) -> float:
    """The exact delta of one Gaussian release at `epsilon` (Balle and Wang 2018, theorem 8), for checks of the accountant."""
    if not (noise_multiplier > 0 and epsilon >= 0):
        raise out_of_range("epsilon and noise_multiplier", "at least 0 and above 0", (epsilon, noise_multiplier))
    mu = 1 / noise_multiplier
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return float(math.exp(first) * -math.expm1(second - first))


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """The exact epsilon of one Gaussian release at `delta`, however large: for what was published without a guarantee."""
    low, high = 0.0, 1.0
    while analytic_delta(high, noise_multiplier) > delta:
        low, high = high, 2 * high
    return bisect(lambda epsilon: analytic_delta(epsilon, noise_multiplier) <= delta, low, high, tolerance=1e-9)[1]


def clip(vector: Array, bound: Number) -> Array:
    """The vector, float32, scaled down where its L2 norm is above `bound`.

    Guarantee: the L2 norm of the result, exactly computed, is at most bound * (1 - MARGIN), whatever the vector, for up to 2^20
    coordinates and a bound in [1e-20, 1e20], which may be traced.
    Edge cases: zero stays zero; NaN and infinite coordinates count as 0, those beyond HUGE as HUGE.
    """
    clipped: Array = clip_tree(vector, bound)
    return clipped


@jax.jit
def clip_tree(tree: ArrayTree, bound: Number) -> ArrayTree:
    """`clip` of all leaves together, as one vector."""
    leaves, form = jax.tree.flatten(tree)
    leaves = [_tame(leaf) for leaf in leaves]
    most = jnp.stack([jnp.abs(leaf).max(initial=TINY) for leaf in leaves]).max()
    shrunk = [
        leaf / most for leaf in leaves
    ]  # at most 1 each: no square overflows, and those that vanish do not matter
    norm = jnp.sqrt(_add_by_halves(jnp.stack([_add_by_halves(jnp.square(leaf).reshape(-1)) for leaf in shrunk])))
    limit = bound * (1 - 2.5 * MARGIN)  # one margin for the result, one and a half for the errors of this very function
    clipped = [
        jnp.where(most * norm > limit, small * (limit / norm), leaf) for leaf, small in zip(leaves, shrunk, strict=True)
    ]
    return jax.tree.unflatten(form, clipped)


def _tame(leaf: Array) -> Array:
    leaf = jnp.asarray(leaf, jnp.float32)
    return jnp.clip(jnp.where(jnp.isfinite(leaf), leaf, 0.0), -HUGE, HUGE)


def _add_by_halves(numbers: Array) -> Array:
    """Their sum, with an error that grows with the logarithm of how many they are: rows of `ROW`, then halvings.

    Guarantee: of up to 2^20 numbers, none negative, off by at most 31 roundings: a relative 1.9e-6, of their root half that.
    """
    numbers = jnp.pad(numbers, (0, max(ROW, 1 << max(0, numbers.size - 1).bit_length()) - numbers.size))
    numbers = jnp.sum(numbers.reshape(-1, ROW), axis=1)
    while numbers.size > 1:
        numbers = numbers[: numbers.size // 2] + numbers[numbers.size // 2 :]
    return numbers[0]


def quantile_step(bound: Array, noisy_fraction_below: Array, target: float, rate: float) -> Array:
    """The next clipping bound: a step towards the `target` quantile of norms (Andrew et al. 2021, algorithm 1)."""
    return bound * jnp.exp(-rate * (noisy_fraction_below - target))


def count_sum(count_multiplier: float) -> GaussianSum:
    """The noisy count of units below the bound, each reported as below - 1/2, so that one unit changes it by 1/2.

    `count_multiplier` is the standard deviation of the count's noise, in units.
    """
    return GaussianSum(bound=0.5, noise_multiplier=2 * count_multiplier, size=1)


def split_noise(noise_multiplier: float, count_multiplier: float) -> float:
    """The noise multiplier of the vectors, so that they and the count together cost `noise_multiplier`.

    Vector and count, each divided by its noise, are one Gaussian release with squared sensitivity
    1/z_vector^2 + (1/2)^2/z_count^2, which must be 1/z^2 (Andrew et al. 2021, theorem 1).
    """
    left = noise_multiplier**-2 - (2 * count_multiplier) ** -2
    if not left > 0:
        raise SpecError(
            f"expected count_multiplier above {noise_multiplier / 2!r}, got {count_multiplier!r}; "
            "the count alone would cost as much as all"
        )
    return float(left**-0.5)
