"""PNG files from arrays, with the standard library alone, and as data addresses for a page that loads nothing."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from populace.errors import DataError
from populace.tables.files import replacing
from populace.tables.images import Images
from populace.types import NumpyArray

COLOUR_TYPES = {1: 0, 3: 2, 4: 6}  # channels -> grey, red-green-blue, with opacity (PNG specification, 11.2.2)


def png(pixels: NumpyArray) -> bytes:
    """A uint8 array [height, width] or [height, width, 1, 3 or 4] as a PNG file."""
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or 0 in pixels.shape:
        raise DataError(f"expected uint8 pixels [height, width(, channels)], got {pixels.dtype} {pixels.shape}")
    stacked = pixels if pixels.ndim == 3 else pixels[:, :, None]
    height, width, channels = stacked.shape
    if channels not in COLOUR_TYPES:
        raise DataError(f"expected 1, 3 or 4 channels, got {channels}")
    lines = np.concatenate([np.zeros((height, 1), np.uint8), stacked.reshape(height, width * channels)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, body) for kind, body in chunks)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def write_pictures(pictures: Mapping[str, NumpyArray], folder: Path) -> list[Path]:
    """`<name>.png` for each."""
    written = []
    for name, pixels in pictures.items():
        written.append(folder / f"{name}.png")
        with replacing(written[-1]) as temporary:
            temporary.write_bytes(png(pixels))
    return written


def data_address(pixels: NumpyArray) -> str:
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode()


def sample_grid(
    images: Images, label: int, *, across: int, down: int, seed: int = 0, gap: int = 1
) -> NumpyArray | None:
    """Images of one class, drawn at random, side by side; None where there is none. Empty places stay dark."""
    rows = np.flatnonzero(images.y == label)
    if len(rows) == 0:
        return None
    chosen = np.random.default_rng(seed).permutation(rows)[: across * down]
    x = images.x[chosen]
    x = x if x.ndim == 4 else x[..., None]
    if x.shape[3] not in COLOUR_TYPES:
        x = x[..., :1]
    _, height, width, channels = x.shape
    page = np.full((down * (height + gap) - gap, across * (width + gap) - gap, channels), 96, np.uint8)
    for place, picture in enumerate(x):
        top, left = place // across * (height + gap), place % across * (width + gap)
        page[top : top + height, left : left + width] = picture
    return page
