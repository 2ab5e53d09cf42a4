from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from populace.errors import DataError, InputError, RunError
from populace.tables.images import Images, read_images, write_images

X = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
Y = np.array([0, 2, 1, 2, 0])


def images(**changes: object) -> Images:
    return Images(**{"x": X, "y": Y, "classes": 3, **changes})


def test_images_know_their_length_and_shape() -> None:
    grey = images()
    assert len(grey) == 5
    assert grey.shape == (4, 3)
    assert grey.y.dtype == np.int32
    assert images(x=X[..., None].repeat(3, -1)).shape == (4, 3, 3)
    assert grey.domain == "declared"
    assert grey == grey
    assert grey != images()


def test_take_keeps_the_public_number_of_classes() -> None:
    some = images(classes=7).take(np.array([3, 0]))
    assert some.y.tolist() == [2, 0]
    assert np.array_equal(some.x, X[[3, 0]])
    assert some.classes == 7
    assert images().take(Y == 2).y.tolist() == [2, 2]


def test_a_written_file_reads_back(tmp_path: Path) -> None:
    write_images(images(), tmp_path / "i.npz")
    assert os.listdir(tmp_path) == ["i.npz"]
    declared = read_images(tmp_path / "i.npz", classes=10)
    assert np.array_equal(declared.x, X)
    assert declared.y.tolist() == Y.tolist()
    assert (declared.classes, declared.domain) == (10, "declared")
    counted = read_images(tmp_path / "i.npz")
    assert (counted.classes, counted.domain) == (3, "read-from-data")


def test_test_arrays_are_ignored(tmp_path: Path) -> None:
    np.savez(tmp_path / "i.npz", x_train=X, y_train=Y, x_test=np.zeros(3), y_test=np.array(["a"]))
    assert len(read_images(tmp_path / "i.npz")) == 5


@pytest.mark.parametrize(
    ("arrays", "classes", "message"),
    [
        ({"x": X}, None, "expected arrays x and y, or x_train and y_train, in .*, got x"),
        ({"x_train": X, "y": Y}, None, "expected arrays x and y"),
        ({"x": X / 255, "y": Y}, None, "expected pixels x as uint8 in 0 to 255, got float64"),
        ({"x": X[0], "y": Y}, None, r"expected x of shape \[n, height, width\]"),
        ({"x": X[:, :0], "y": Y}, None, "expected x of shape"),
        ({"x": X, "y": Y / 2}, None, "expected labels y as whole numbers, got float64"),
        ({"x": X, "y": Y[:4]}, None, r"expected one label per image, got y of shape \(4,\) for 5 images"),
        ({"x": X, "y": Y[:, None]}, None, r"expected one label per image, got y of shape \(5, 1\)"),
        ({"x": X[:0], "y": Y[:0]}, None, "expected at least one image, got none"),
        ({"x": X, "y": Y - 1}, None, "expected labels in 0 to 1, got -1"),
        ({"x": X, "y": Y}, 2, "expected labels in 0 to 1, got 2; number the classes from 0"),
        ({"x": X, "y": np.array([{}] * 5)}, None, "cannot read .*Object arrays cannot be loaded"),
    ],
)
def test_wrong_arrays_are_explained(
    arrays: dict[str, np.ndarray], classes: int | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "i.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=message) as caught:
        read_images(path, classes=classes)
    assert "i.npz" in str(caught.value)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file .*i.npz"):
        read_images(tmp_path / "i.npz")
    with pytest.raises(InputError, match=r"expected images in a .npz file, got 'i.png'"):
        read_images(tmp_path / "i.png")
    write_images(images(x=np.random.default_rng(0).integers(0, 256, (5, 40, 30), np.uint8)), tmp_path / "whole.npz")
    whole = (tmp_path / "whole.npz").read_bytes()
    damaged = bytearray(whole)
    damaged[200:400] = bytes(200)
    np.save(tmp_path / "array.npy", X)
    wrong = {"cut": whole[:-30], "empty": b"", "text": b"not an archive", "damaged": bytes(damaged),
             "array": (tmp_path / "array.npy").read_bytes()}  # fmt: skip
    for name, content in wrong.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
        with pytest.raises(DataError, match=rf"cannot read .*{name}.npz: .*; the file may be truncated|got none"):
            read_images(tmp_path / f"{name}.npz")
    with pytest.raises(InputError, match=r"expected an output name ending in .npz, got 'i.png'"):
        write_images(images(), tmp_path / "i.png")
    with pytest.raises(RunError, match="cannot write"):
        write_images(images(), tmp_path / "missing" / "i.npz")


def test_at_least_one_class() -> None:
    with pytest.raises(InputError, match="expected classes of at least 1, got 0"):
        images(classes=0)
