"""PNG files that are read back as they were, and grids of samples."""

import io

import numpy as np
import pytest
from PIL import Image

from populace.errors import DataError
from populace.report.png import data_address, png, sample_grid
from populace.report.svg import percent, short, text, ticks
from populace.tables.images import Images


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (4, 3, 3), (2, 9, 4)])
def test_png_is_read_back(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    found = np.asarray(Image.open(io.BytesIO(png(pixels)), formats=["PNG"]))
    np.testing.assert_array_equal(found.reshape(pixels.shape), pixels)
    assert data_address(pixels).startswith("data:image/png;base64,iVBOR")


def test_what_is_no_picture_is_refused():
    with pytest.raises(DataError, match="uint8"):
        png(np.zeros((3, 3)))
    with pytest.raises(DataError, match="channels"):
        png(np.zeros((3, 3, 2), np.uint8))


def test_a_grid_holds_images_of_its_class_and_none_where_there_is_none():
    images = Images(
        x=np.stack([np.full((2, 2), 10 * i, np.uint8) for i in range(6)]), y=np.array([0, 0, 1, 1, 1, 0]), classes=3
    )
    grid = sample_grid(images, 1, across=2, down=2)
    assert grid.shape == (5, 5, 1)
    assert set(np.unique(grid)) == {20, 30, 40, 96}
    assert sample_grid(images, 2, across=2, down=2) is None


def test_small_parts_of_charts():
    assert ticks(0.7) == [0, 0.2, 0.4, 0.6, 0.8]
    assert ticks(0) == [0, 1]
    assert percent(0.1234) == "12 %"
    assert percent(0.00001) == "<0.01 %"
    assert short("abcdef", 4) == "abc…"
    assert "&lt;b&gt;" in text(0, 0, "<b>")
