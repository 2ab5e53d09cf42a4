"""Keys, masks, sealed boxes and signatures: thin names over the package `cryptography`, and nothing of our own making.

X25519 agrees on a secret (RFC 7748), HKDF-SHA256 makes keys of it (RFC 5869), ChaCha20 makes masks and ChaCha20-Poly1305
seals shares (RFC 8439), Ed25519 signs (RFC 8032). Every key is made for one purpose, one sum and one pair of sites.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from populace.errors import WireError
from populace.types import NumpyArray

PrivateKey = X25519PrivateKey

KEY_BYTES = 32
SIGNATURE_BYTES = 64
NONCE = bytes(12)  # of a sealed box: its key is used once
STREAM_START = bytes(16)  # counter and nonce of a mask: its key is used once
BLOCK_BYTES = 2**18  # of a mask at a time: few enough to stay in the cache


def derived(secret: bytes, *purpose: bytes) -> bytes:
    """A key of 32 bytes for one purpose; the parts of a purpose cannot run into each other."""
    info = b"".join(len(part).to_bytes(4, "big") + part for part in purpose)
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)


def public_key(private: bytes) -> bytes:
    """The X25519 public key of a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def private_key(private: bytes) -> PrivateKey:
    """A private key, read once where many secrets are agreed on with it: reading it takes as long as agreeing."""
    return X25519PrivateKey.from_private_bytes(private)


def agreed(private: PrivateKey, public: bytes, *purpose: bytes) -> bytes:
    """A key for one purpose that both owners of two X25519 key pairs can make, and nobody else.

    Edge cases: a public key of low order, with which everybody could make it, is refused.
    """
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise WireError("a site's public key is none that a secret can be agreed with") from error
    return derived(secret, *purpose)


def seal(key: bytes, content: bytes, *, bound_to: bytes) -> bytes:
    """Encrypt and authenticate once under a key; `bound_to` must be the same when it is opened."""
    return ChaCha20Poly1305(key).encrypt(NONCE, content, bound_to)


def unseal(key: bytes, sealed: bytes, *, bound_to: bytes) -> bytes:
    try:
        return ChaCha20Poly1305(key).decrypt(NONCE, sealed, bound_to)
    except InvalidTag as error:
        raise WireError("a sealed message was changed, or is of another sum or between other sites") from error


def signing_public(private: bytes) -> bytes:
    """The Ed25519 public key of a signing key."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, content: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(private).sign(content)


def is_signed(public: bytes, signature: bytes, content: bytes) -> bool:
    """Whether the owner of a signing key signed these bytes."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


def add_masks(numbers: NumpyArray, masks: Iterable[tuple[bytes, bool]]) -> None:
    """Add to unsigned whole numbers, in place and modulo their width, the ChaCha20 keystream of each key; True takes it off.

    Guarantee: to whoever does not have one of the keys, the result is indistinguishable from even random numbers, whatever the
    numbers were, if that key is used for this vector alone.
    """
    flat = numbers.reshape(-1)
    step = BLOCK_BYTES // flat.itemsize
    zeros, stream = bytes(BLOCK_BYTES), bytearray(BLOCK_BYTES)
    words = np.frombuffer(stream, flat.dtype.newbyteorder("<"))
    for key, negative in masks:
        encryptor = Cipher(ChaCha20(key, STREAM_START), mode=None).encryptor()
        for start in range(0, len(flat), step):
            part = flat[start : start + step]
            encryptor.update_into(zeros[: part.nbytes], stream)
            if negative:
                part -= words[: len(part)]
            else:
                part += words[: len(part)]
