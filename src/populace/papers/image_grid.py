"""A few images of each class, kept in a cell's file as text and shown side by side."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from populace.papers.grid import Cell, Picture, Result, largest
from populace.tables.images import Images
from populace.types import JsonObject, NumpyArray

SHOWN = 4  # images of each class
GAP = 2
COLUMNS = 10  # for images without labels


def pack_images(made: Images, shown: int = SHOWN) -> JsonObject:
    """Some images of each class, the first that were drawn, as text that fits a cell's file."""
    if made.classes > 1:
        x = [made.x[np.flatnonzero(made.y == label)] for label in range(made.classes)]
    else:
        x = np.array_split(made.x, COLUMNS)
    shown_images = np.zeros((len(x), shown, *made.shape), np.uint8)
    for column, some in zip(shown_images, x, strict=True):
        column[: len(some[:shown])] = some[:shown]
    return {
        "images": base64.b64encode(zlib.compress(shown_images.tobytes(), 9)).decode(),
        "shape": list(shown_images.shape),
    }


def grid_pixels(result: Result) -> NumpyArray:
    """A cell's images side by side: a column for each class."""
    pixels = np.frombuffer(zlib.decompress(base64.b64decode(result["images"])), np.uint8).reshape(result["shape"])
    framed = np.pad(pixels, ((0, 0), (0, 0), (0, GAP), (0, GAP)), constant_values=96)
    return np.concatenate([np.concatenate(list(column), axis=0) for column in framed], axis=1)


def framed_grid(result: Result) -> NumpyArray:
    """A cell's image grid with a grey edge."""
    return np.pad(grid_pixels(result), GAP, constant_values=96)


def class_pictures(results: Sequence[Result], name: Callable[[Cell], str | None]) -> list[Picture]:
    """The framed grid of every cell that `name` gives a file name, for the first seed at the largest scale there is."""
    scale = largest(results)
    pictures = []
    for result in results:
        cell = result["cell"]
        shown = cell["scale"] == scale and cell["seed"] == 0 and "images" in result
        file = name(cell) if shown else None
        if file is not None:
            pictures.append(Picture(name=file, pixels=framed_grid(result)))
    return pictures


def epsilon_suffix(cell: Cell) -> str:
    """The end of a file name that says a cell's epsilon; empty without one."""
    return "" if cell["epsilon"] is None else f"-epsilon-{cell['epsilon']:g}"
