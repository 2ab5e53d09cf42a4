"""Bisection, for real and for whole numbers: where a condition that holds from some number on, or up to it, changes."""

from __future__ import annotations

from collections.abc import Callable


def bisect(
    enough: Callable[[float], bool], low: float, high: float, *, tolerance: float = 0.0, steps: int | None = None
) -> tuple[float, float]:
    """The interval in which numbers begin to be enough, halved until it is as short as `tolerance` times its end, or `steps`
    times.

    Guarantee: if `high` was enough and `low` was not, the same holds of the ends of what is returned.
    """
    done = 0
    while high - low > tolerance * high and (steps is None or done < steps):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
        done += 1
    return low, high


def largest_that_fits(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest whole number below `high` that fits, where `low` does and `high` does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
