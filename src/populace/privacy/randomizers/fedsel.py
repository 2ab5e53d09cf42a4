"""FedSel: of a long vector, report one coordinate among its largest in size, then that coordinate's value as one bit.

Two stages that share epsilon (Liu, Cao, Yoshikawa and Chen, DASFAA 2020; perturbed sampling): with the first part the
coordinate, one of the k largest in absolute value with probability p = e^eps1 k / (d - k + e^eps1 k), otherwise another; with
the second a bit that is 1 with probability 1/2 + v (e^eps2 - 1) / (2 (e^eps2 + 1)), v the value clipped to the bound and
divided by it (Duchi, Jordan and Wainwright 2013). A report is 2 * coordinate + bit.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import DataError, out_of_range
from populace.privacy import on_host, secure_random
from populace.privacy.events import Event, Pure
from populace.privacy.guarantee import check_epsilon
from populace.privacy.randomizers.base import rounded_up
from populace.privacy.randomizers.draws import WORD
from populace.privacy.randomizers.signds import SignDS, mark_top
from populace.privacy.source import Keyed, Source
from populace.types import Array

LARGEST_WORD = np.float32(WORD - 256)  # the largest 32-bit float below 2^32


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedSel:
    """One coordinate of a vector of `size`, `chosen` of which are its top in size, and one bit of its value.

    Guarantee: epsilon-LDP, pure, for the whole vector and all it was made from: the coordinate costs `first` of epsilon, the
    bit the rest, and the two add up. `release` rounds both probabilities against itself, to multiples of 2^-63;
    `simulate` uses them to 2^-23.
    Edge cases: exactly `chosen` coordinates are the top, ties in a circle from `start`; NaN counts as 0, what lies beyond the
    bound as the bound.
    """

    size: int
    epsilon: float
    chosen: int
    bound: float
    first: float = 0.5

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if not 0 < self.first < 1:
            raise out_of_range("first", "in (0, 1)", self.first)
        if not 0 < self.bound < math.inf:
            raise out_of_range("bound", "above 0 and finite", self.bound)
        for part in self.parts:
            check_epsilon(part)
        if not 1 <= self.chosen <= self.size:
            raise out_of_range("chosen", f"in [1, {self.size}]", self.chosen)

    @property
    def parts(self) -> tuple[float, float]:
        """Epsilon of the coordinate and of the bit; rounded so that they never add up to more than epsilon."""
        coordinate = self.epsilon * self.first
        return coordinate, math.nextafter(self.epsilon - coordinate, 0.0)

    @functools.cached_property
    def coordinate(self) -> SignDS:
        """The first stage: SignDS's choice, of which no sign is used."""
        return SignDS(size=self.size, epsilon=self.parts[0], chosen=self.chosen)

    @functools.cached_property
    def exact_low(self) -> Fraction:
        """The smallest probability of a 1, that of -bound; of a 0, that of bound."""
        return rounded_up(1 / (1 + secure_random.exp_below(self.parts[1])))

    @property
    def unit(self) -> float:
        """What a bit stands for: this times the bound or its negative is an unbiased estimate of the clipped value."""
        return 1 / (1 - 2 * float(self.exact_low))

    @property
    def event(self) -> Event:
        """What one report is, for the ledger."""
        return Pure(float(self.epsilon))

    def worst_ratio(self) -> float:
        """The largest ratio of a report's probabilities under two vectors, from the numbers `release` uses."""
        return self.coordinate.worst_ratio() * float((1 - self.exact_low) / self.exact_low)

    def one_probability(self, value: float) -> Fraction:
        """The exact probability of a 1 for this value of the coordinate reported."""
        value = 0.0 if math.isnan(value) else min(max(value, -self.bound), self.bound)
        share = (Fraction(value) / Fraction(self.bound) + 1) / 2
        return secure_random.rounded_down(self.exact_low + (1 - 2 * self.exact_low) * share)

    def probabilities(self, vector: Array, start: int = 0) -> list[Fraction]:
        """The exact law of all 2 d reports about a vector."""
        top = np.asarray(mark_top(jnp.abs(jnp.asarray(vector, jnp.float32)), self.chosen, start))
        law = []
        for share, value in zip(self.coordinate.probabilities(top), np.asarray(vector, np.float32), strict=True):
            one = self.one_probability(float(value))
            law += [share * (1 - one), share * one]
        return law

    def simulate(self, vector: Array, key: Array, start: Array | int = 0) -> Array:
        """One report about one vector, from a JAX key; traceable, to be vmapped."""
        first, second = jax.random.split(key)
        vector = jnp.nan_to_num(jnp.asarray(vector, jnp.float32), posinf=self.bound, neginf=-self.bound)
        coordinate = self.coordinate.simulate_coordinate(mark_top(jnp.abs(vector), self.chosen, start), first)
        value = jnp.clip(vector[coordinate] / self.bound, -1, 1)
        low = float(self.exact_low)
        heads = jnp.minimum((low + (1 - 2 * low) * (value + 1) / 2) * np.float32(WORD), LARGEST_WORD)
        return (2 * coordinate + (jax.random.bits(second) < heads.astype(jnp.uint32))).astype(jnp.int32)

    def release(self, vector: Array, start: Array | int = 0) -> np.int32:
        """One report about one vector, from the operating system's generator, exactly."""
        vector = np.asarray(vector, np.float32)
        if vector.shape != (self.size,):
            raise DataError(f"expected a vector of {self.size} coordinates, got shape {vector.shape}")
        top = np.asarray(mark_top(jnp.abs(jnp.asarray(vector)), self.chosen, start))
        coordinate = self.coordinate.release_coordinate(top)
        one = bool(secure_random.bernoulli(self.one_probability(float(vector[coordinate]))))
        return np.int32(2 * coordinate + one)

    def apply(self, vector: Array, source: Source, start: Array | int = 0) -> Array:
        """One report about one vector, from either kind of source; traceable from a key, also where the host draws exactly."""
        if not isinstance(source, Keyed):
            return cast(
                "Array", self.release(vector, start)
            )  # a scalar of NumPy's: it has all that is asked of an array
        if not source.exact:
            return self.simulate(vector, source.key, start)
        first, second = source.split(2)
        coordinate = self.coordinate.exact_coordinate(mark_top(jnp.abs(vector), self.chosen, start), first)
        one = on_host.drawn(self, second.key, (), bool, vector[coordinate])  # type: ignore[union-attr]
        return (2 * coordinate + one).astype(jnp.int32)

    def release_rows(self, count: int, values: Array) -> Array:
        """Exact coins about the values of the coordinates reported, as the host draws them for compiled code."""
        del count
        return np.array([bool(secure_random.bernoulli(self.one_probability(float(value)))) for value in values])

    def add_up(self, reports: Array, present: Array) -> Array:
        """The sum of what the present reports say of the vectors, in units of the bound."""
        return self.unit * self.coordinate.add_up(reports, present)

    @property
    def wire_bytes(self) -> int:
        return self.coordinate.wire_bytes

    def encode(self, report: Array | np.int32) -> bytes:
        return self.coordinate.encode(report)

    def decode(self, message: bytes) -> np.int32:
        return self.coordinate.decode(message)
