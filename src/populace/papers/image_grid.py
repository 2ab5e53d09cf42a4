"""A few images of each class, kept in a cell's file as text and shown side by side."""

from __future__ import annotations

import base64
import zlib

import numpy as np

from populace.papers.grid import Result
from populace.tables.images import Images
from populace.types import JsonObject, NumpyArray

SHOWN = 4  # images of each class
GAP = 2
COLUMNS = 10  # for images without labels


def packed(made: Images, shown: int = SHOWN) -> JsonObject:
    """Some images of each class, the first that were drawn, as text that fits a cell's file."""
    if made.classes > 1:
        x = [made.x[np.flatnonzero(made.y == label)] for label in range(made.classes)]
    else:
        x = np.array_split(made.x, COLUMNS)
    strip = np.zeros((len(x), shown, *made.shape), np.uint8)
    for column, some in zip(strip, x, strict=True):
        column[: len(some[:shown])] = some[:shown]
    return {"images": base64.b64encode(zlib.compress(strip.tobytes(), 9)).decode(), "shape": list(strip.shape)}


def strip(result: Result) -> NumpyArray:
    """A cell's images side by side: a column for each class."""
    pixels = np.frombuffer(zlib.decompress(base64.b64decode(result["images"])), np.uint8).reshape(result["shape"])
    framed = np.pad(pixels, ((0, 0), (0, 0), (0, GAP), (0, GAP)), constant_values=96)
    return np.concatenate([np.concatenate(list(column), axis=0) for column in framed], axis=1)


def framed(result: Result) -> NumpyArray:
    """The strip with a grey edge."""
    return np.pad(strip(result), GAP, constant_values=96)
