"""Fast simulated draws from random words: several coins per word, subsets without sorting.

For simulation only. Making random words is what takes the time where each client has a key (25 ns a word and core), so
each is used in full: a word makes eight equal coins by an alias table, or one whole number below a bound by its high product.
"""

from __future__ import annotations

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from populace.types import Array, Number

BLOCK = 8  # coins per word
WORD = 2**32
LARGEST_BOUND = 2**16  # of `below`


def threshold(probability: Fraction | float) -> np.uint32:
    """The word below which a coin of this probability shows heads: rounded down, by less than 2^-32."""
    return np.uint32(min(WORD - 1, int(probability * WORD)))


def below(word: Array, bound: Array | np.uint32) -> Array:
    """floor(word * bound / 2^32): a whole number below `bound` (`LARGEST_BOUND` at most), from uint32s, NumPy's or JAX's."""
    return ((word >> 16) * bound + (((word & 0xFFFF) * bound) >> 16)) >> 16


@functools.lru_cache(maxsize=256)
def pattern_table(probability: float) -> Array:
    """Alias table (Walker 1977) of the 256 outcomes of eight coins: 24 bits of threshold, 8 bits of alias per entry.

    The outcomes' probabilities are whole multiples of 2^-32 that sum to 1, so each coin is off by at most 2^-24.
    """
    ones = np.bitwise_count(np.arange(256, dtype=np.uint8)).astype(np.float64)
    ideal = probability**ones * (1 - probability) ** (BLOCK - ones) * WORD
    weights = np.floor(ideal).astype(np.int64)
    weights[np.argsort(weights - ideal, kind="stable")[: WORD - int(weights.sum())]] += 1
    full = WORD // 256
    table = np.zeros(256, np.uint32)
    small = [i for i in range(256) if weights[i] < full]
    large = [i for i in range(256) if weights[i] >= full]
    while small:
        low, high = small.pop(), large[-1]
        table[low] = (int(weights[low]) << 8) | high
        weights[high] -= full - weights[low]
        if weights[high] < full:
            small.append(large.pop())
    for last in large:  # exactly full: the entry is its own alias
        table[last] = last
    return table


def words_for(width: int) -> int:
    """Words that `draw_bits` needs for so many coins."""
    return -(-width // BLOCK)


def draw_bits(words: Array, table: Array, width: int) -> Array:
    """`width` independent coins from `words_for(width)` words and the `pattern_table` of their probability."""
    entry = jnp.asarray(table)[words & 255]
    pattern = jnp.where((words >> 8) < (entry >> 8), words & 255, entry & 255).astype(jnp.uint8)
    # The barrier keeps the table look-up out of the loop over coins: measured, a tenth faster.
    pattern = jax.lax.optimization_barrier(pattern)  # type: ignore[no-untyped-call]
    return _unpack(pattern, BLOCK, width)


def _unpack(words: Array, bits: int, width: int) -> Array:
    return ((words[:, None] >> jnp.arange(bits, dtype=words.dtype)) & 1).reshape(-1)[:width].astype(bool)


def words_for_subset(width: int, most: int) -> int:
    """Words that `draw_subset` needs: one for the own coin, and one per chosen value (Floyd) or per value (selection)."""
    return 1 + (most if _by_floyd(width, most) else width)


def _by_floyd(width: int, most: int) -> bool:
    # Costs per client, in steps: a word of randomness about 10, a word of the set or a step of selection about 1 or 2.
    return width <= LARGEST_BOUND and most * (10 + width // 32) <= 12 * width


def draw_subset(
    words: Array, value: Number, *, size: Number, chosen: Number, heads: Number, width: int, most: int
) -> Array:
    """A report of subset selection as a row of `width` booleans, of which only the first `size` can be true.

    `heads` is the `threshold` of p. `size`, `chosen` and `heads` may be traced, so that clients with different questions share
    one compiled function; `most` is a static bound on `chosen`.
    The other values are picked by Floyd's method, which needs one word per chosen value, or, if
    there are too many of them, by selection sampling, which needs one per value of the domain.
    """
    by = draw_by_floyd if _by_floyd(width, most) else draw_by_selection
    return by(words, value, size=size, chosen=chosen, heads=heads, width=width)


def _own_coin(word: Array, heads: Number, size: Number) -> Array:
    """Heads below the threshold; a domain of one value has nothing else to report."""
    return (word < heads) | (size == 1)


def draw_by_floyd(words: Array, value: Number, *, size: Number, chosen: Number, heads: Number, width: int) -> Array:
    """Floyd (Bentley and Floyd 1987, algorithm F2) over the other values, the set held as bits of words."""
    own = _own_coin(words[-1], heads, size)
    value = jnp.asarray(value).astype(jnp.uint32)
    needed = jnp.asarray(chosen).astype(jnp.uint32) - own
    first = jnp.asarray(size).astype(jnp.uint32) - 1 - needed
    indices = jnp.arange(-(-width // 32), dtype=jnp.uint32)

    def single(element: jax.Array) -> jax.Array:
        return jnp.where(indices == element >> 5, jnp.uint32(1) << (element & 31), jnp.uint32(0))

    def visit(members: jax.Array, item: tuple[jax.Array, Array]) -> tuple[jax.Array, None]:
        step, word = item
        last = first + step
        drawn = jnp.asarray(below(word, last + 1))
        drawn += drawn >= value  # skip the own value
        taken = (members & single(drawn)).any()
        element = jnp.where(taken, last + (last >= value), drawn)
        return members | jnp.where(step < needed, single(element), jnp.uint32(0)), None

    members = jnp.where(own, single(value), jnp.uint32(0))
    members, _ = jax.lax.scan(visit, members, (jnp.arange(len(words) - 1, dtype=jnp.uint32), words[:-1]))
    return _unpack(members, 32, width)


def draw_by_selection(words: Array, value: Number, *, size: Number, chosen: Number, heads: Number, width: int) -> Array:
    """Selection sampling (Knuth, algorithm S): value j is taken with probability needed/left."""
    own = _own_coin(words[-1], heads, size)
    uniforms = (words[:-1] >> 8).astype(jnp.float32) * jnp.float32(2**-24)

    def visit(
        carry: tuple[jax.Array, jax.Array], item: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        needed, left = carry
        index, uniform = item
        other = (index != value) & (index < size)
        take = other & (uniform * left < needed)
        return (needed - take, left - other), jnp.where(index == value, own, take)

    needed = jnp.asarray(chosen - own, jnp.int32)
    left = jnp.asarray(size - 1, jnp.int32)
    _, report = jax.lax.scan(visit, (needed, left), (jnp.arange(width), uniforms))
    return report
