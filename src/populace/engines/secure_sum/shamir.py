"""Shamir's t-of-n secret sharing over one prime field (Shamir 1979): any t shares give the secret, fewer tell nothing."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence

from populace.errors import SpecError, out_of_range

PRIME = 2**521 - 1  # Mersenne: above every secret of 32 bytes
SECRET_BYTES = 32
SHARE_BYTES = 66


def split_secret(
    secret: bytes, *, threshold: int, places: Sequence[int], below: Callable[[int], int] = secrets.randbelow
) -> dict[int, int]:
    """Shares of a secret of 32 bytes, one for each place: values of a random polynomial of degree `threshold` - 1.

    Guarantee: fewer than `threshold` shares are independent of the secret, where `below` draws evenly; by default it takes the
    operating system's generator.
    Edge cases: with threshold 1 every share is the secret itself. Place 0 would be the secret, and is refused.
    """
    if len(secret) != SECRET_BYTES:
        raise out_of_range("a secret", f"of {SECRET_BYTES} bytes", len(secret))
    if len(set(places)) != len(places) or any(not 0 < place < PRIME for place in places):
        raise out_of_range("the places of shares", "different whole numbers from 1 on", list(places))
    if not 1 <= threshold <= len(places):
        raise out_of_range("threshold", f"in 1 to the number of shares, {len(places)}", threshold)
    coefficients = [int.from_bytes(secret, "big"), *(below(PRIME) for _ in range(threshold - 1))]
    return {place: polynomial(coefficients, place) for place in places}


def polynomial(coefficients: Sequence[int], place: int) -> int:
    """The value of a polynomial at a place, the constant coefficient first, modulo `PRIME`."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % PRIME
    return value


def join_secret(shares: Mapping[int, int]) -> bytes:
    """The secret behind shares by their places: the polynomial through them, at 0 (Lagrange).

    Guarantee: with at least the threshold of true shares, the secret.
    Edge cases: with fewer, or with a changed share, some other number, which is refused where it is longer than a secret;
    callers check what they get against a commitment.
    """
    total = 0
    for place, share in shares.items():
        above = below = 1
        for other in shares:
            if other != place:
                above = above * other % PRIME
                below = below * (other - place) % PRIME
        total = (total + share * above * pow(below, -1, PRIME)) % PRIME
    if total >= 1 << (8 * SECRET_BYTES):
        raise SpecError("the shares do not belong to one secret: too few, or one was changed")
    return total.to_bytes(SECRET_BYTES, "big")
