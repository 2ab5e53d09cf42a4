"""Labelled images: pixels as bytes, and the public number of classes."""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from populace.border.arrays import read_arrays
from populace.border.regular import check_regular
from populace.errors import DataError, InputError, out_of_range
from populace.tables.columns import Domain
from populace.tables.files import replacing
from populace.types import NumpyArray

KEYS = (("x", "y"), ("x_train", "y_train"))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Images:
    """Images with one label each.

    `x` is uint8, [n, height, width] or [n, height, width, channels]; `y` is int32, [n], with labels 0 to classes - 1.
    The number of classes is public: `domain` says whether somebody declared it or it was read from the labels.
    """

    x: NumpyArray
    y: NumpyArray
    classes: int
    domain: Domain = "declared"

    def __post_init__(self) -> None:
        if self.classes < 1:
            raise out_of_range("classes", "of at least 1", self.classes)
        if self.x.dtype != np.uint8:
            raise DataError(f"expected pixels x as uint8 in 0 to 255, got {self.x.dtype}; scale and convert them")
        if self.x.ndim not in (3, 4) or 0 in self.x.shape[1:]:
            raise DataError(
                f"expected x of shape [n, height, width] or [n, height, width, channels], got {self.x.shape}"
            )
        if self.y.dtype.kind not in "iu":
            raise DataError(f"expected labels y as whole numbers, got {self.y.dtype}; convert them")
        if self.y.ndim != 1 or len(self.y) != len(self.x):
            raise DataError(f"expected one label per image, got y of shape {self.y.shape} for {len(self.x)} images")
        if len(self.x) == 0:
            raise DataError("expected at least one image, got none")
        lowest, highest = int(self.y.min()), int(self.y.max())
        if lowest < 0 or highest >= self.classes:
            raise DataError(
                f"expected labels in 0 to {self.classes - 1}, got {lowest if lowest < 0 else highest}; "
                "number the classes from 0, or correct the number of classes"
            )
        object.__setattr__(self, "y", self.y.astype(np.int32, copy=False))

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image: height, width and, in colour, channels."""
        return tuple(self.x.shape[1:])

    def take(self, rows: NumpyArray) -> Images:
        """The images with these numbers, or those a mask marks."""
        return dataclasses.replace(self, x=self.x[rows], y=self.y[rows])

    def save(self, path: str | Path) -> None:
        """Write the images and labels to a `.npz` file, as `read_images` reads it."""
        write_images(self, path)


def read_images(path: str | Path, classes: int | None = None) -> Images:
    """Read `.npz` with arrays `x` and `y`, or `x_train` and `y_train`; test arrays in it are ignored.

    Without `classes` their number is the greatest label plus one, and is marked as read from the data.
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise InputError(f"expected images in a .npz file, got {path.name!r}")
    check_regular(path, error=InputError)
    x, y = _read_arrays(path)
    try:
        if classes is not None:
            return Images(x=x, y=y, classes=classes)
        counted = int(y.max()) + 1 if y.dtype.kind in "iu" and y.size else 1
        return Images(x=x, y=y, classes=max(counted, 1), domain="read-from-data")
    except DataError as error:
        raise DataError(f"cannot use {path}: {error}") from None


def _read_arrays(path: Path) -> tuple[NumpyArray, NumpyArray]:
    present: list[str] = []

    def choose(names: Sequence[str]) -> Sequence[str]:
        present.extend(names)
        return next((pair for pair in KEYS if set(pair) <= set(names)), ())

    arrays = tuple(read_arrays(path, choose=choose, error=DataError).values())
    if len(arrays) != 2:
        raise DataError(
            f"expected arrays x and y, or x_train and y_train, in {path}, got {', '.join(present) or 'none'}"
        )
    return arrays[0], arrays[1]


def write_images(images: Images, path: str | Path) -> None:
    """Write `x` and `y` as compressed `.npz`; the number of classes is not in the file, so pass it when reading."""
    path = Path(path)
    if path.suffix != ".npz":
        raise InputError(f"expected an output name ending in .npz, got {path.name!r}")
    with (
        replacing(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        for name, array in (("x", images.x), ("y", images.y)):  # NumPy's own level takes four times as long
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
