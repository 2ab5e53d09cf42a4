"""PNG files from arrays, and as data addresses for a page that loads nothing."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from populace.errors import DataError
from populace.tables.files import replacing
from populace.tables.images import Images
from populace.types import NumpyArray

CHANNELS = (1, 3, 4)  # grey, red-green-blue, with opacity


def png(pixels: NumpyArray) -> bytes:
    """A uint8 array [height, width] or [height, width, 1, 3 or 4] as a PNG file."""
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or 0 in pixels.shape:
        raise DataError(f"expected uint8 pixels [height, width(, channels)], got {pixels.dtype} {pixels.shape}")
    if pixels.ndim == 3 and pixels.shape[2] not in CHANNELS:
        raise DataError(f"expected 1, 3 or 4 channels, got {pixels.shape[2]}")
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels).save(file, format="PNG", optimize=True)
    return file.getvalue()


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
    if x.shape[3] not in CHANNELS:
        x = x[..., :1]
    _, height, width, channels = x.shape
    page = np.full((down * (height + gap) - gap, across * (width + gap) - gap, channels), 96, np.uint8)
    for place, picture in enumerate(x):
        top, left = place // across * (height + gap), place % across * (width + gap)
        page[top : top + height, left : left + width] = picture
    return page
