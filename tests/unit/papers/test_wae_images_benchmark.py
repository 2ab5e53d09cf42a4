"""`wae-images`: which cells there are, that each kind can be measured, and that the pictures show what was made."""

import numpy as np
import pytest
from PIL import Image

from populace.papers import wae_images
from populace.papers.grid import run_benchmark, slug
from populace.papers.registry import find_benchmark
from populace.report.png import write_pictures
from populace.tables.images import Images


@pytest.fixture
def few_images(monkeypatch):
    """Bright and dark squares instead of digits; few clients and images."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 240)
    x = np.clip(40 + 170 * y[:, None, None] + rng.normal(0, 20, (240, 4, 4)), 0, 255).astype(np.uint8)
    images = Images(x=x, y=y, classes=2)
    small = {"DATA": ("mnist",), "EPSILONS": (None, 8), "QUICK_CLIENTS": 120, "QUICK_PUBLISHED": 20}
    small |= {"TRAINED": 80, "TESTED": 100}
    for name, value in small.items():
        monkeypatch.setattr(wae_images, name, value)
    monkeypatch.setattr(wae_images, "load", lambda data, part: images)
    monkeypatch.setitem(wae_images.METHODS, "dp-fed-wae", {"latent_classes": 1, "cohort_size": 4})
    published = {"recipe": "paper", "hidden_size": 8, "latent_size": 2, "local_epochs": 1}
    monkeypatch.setitem(wae_images.METHODS, "dp-fed-wae, as published", published)
    return images


def test_cells_cover_the_papers_figure_and_differ():
    every, quick = wae_images.cells(False, 2), wae_images.cells(True, 1)
    assert len({slug(cell) for cell in every}) == len(every)
    for found in (every, quick):
        private = {(cell["data"], cell["epsilon"]) for cell in found if cell["method"] == "dp-fed-wae"}
        assert private == {(data, epsilon) for data in ("mnist", "fashion_mnist") for epsilon in (None, 8, 4)}
    assert find_benchmark("wae-images") is wae_images.IMAGES


@pytest.mark.slow
def test_cells_are_measured_shown_and_drawn(few_images, tmp_path):
    document = run_benchmark(wae_images.IMAGES, tmp_path / "bench", quick=True)
    by = {(cell["cell"]["method"], cell["cell"]["epsilon"]): cell for cell in document["cells"]}
    assert len(by) == 5
    assert by["dp-fed-wae", None]["mlp"] > 0.9
    assert by["dp-fed-wae", 8]["mlp"] > 0.9
    assert by["dp-fed-wae, as published", 8]["mlp"] is None
    assert len(document["tables"][0]["rows"]) == 5
    found = {picture.name: picture.pixels for picture in wae_images.pictures(document["cells"])}
    assert set(found) == {"mnist-real-images", "mnist-dp-fed-wae", "mnist-dp-fed-wae-as-published"}
    first = few_images.take(np.random.default_rng(3).permutation(240)[:80])
    np.testing.assert_array_equal(found["mnist-real-images"][:4, 6:10], first.x[np.flatnonzero(first.y == 1)[0]])
    written = write_pictures(found, tmp_path)
    again = np.asarray(Image.open(written[0], formats=["PNG"]))
    np.testing.assert_array_equal(again, found["mnist-real-images"])
