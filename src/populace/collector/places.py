"""The order in which places of a round are handed out."""

from __future__ import annotations

import hashlib


def secret_place(secret: bytes, size: int, turn: int) -> int:
    """Which place is handed out in a turn: a permutation of all turns below `size` that only the secret tells.

    Four rounds are enough for a Feistel network to be a pseudorandom permutation; eight are taken, for small sizes. What
    falls outside goes through again until it is inside.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask, at = (1 << half) - 1, turn
    while True:
        left, right = at >> half, at & mask
        for step in range(8):
            mixed = hashlib.blake2b(bytes([step]) + right.to_bytes(8, "big"), key=secret, digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(mixed, "big") & mask)
        at = left << half | right
        if at < size:
            return at
