"""Sums of whole numbers: what 32 bits hold, and how units of one grid become units of another."""

from __future__ import annotations

from populace.types import Array

EXACT = 24  # bits a float32 adds without error
WIDE = 31  # bits of a reply's number


def on_grid(units: Array, shift: int) -> Array:
    """Whole units to whole multiples of 2^shift, rounded; exact."""
    if shift <= 0:
        return units << -shift
    return (units >> shift) + ((units >> (shift - 1)) & 1)
