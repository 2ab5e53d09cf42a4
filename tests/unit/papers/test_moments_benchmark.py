"""The benchmarks of `moments`: which cells there are, and how results are shown."""

import numpy as np
import pytest

from populace.papers import moments
from populace.papers.image_grid import pack_images
from populace.papers.registry import find_benchmark
from populace.tables.images import Images


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(10, dtype=np.int32), 60)
    return Images(x=rng.integers(0, 256, (600, 28, 28)).astype(np.uint8), y=y, classes=10)


def made_up(cell, images):
    figures = dict.fromkeys(moments.METRICS, 0.5)
    claim = {} if cell["trust"] == moments.REAL else {"guarantee": "(10, 1e-05)-DP", "unit": "record"}
    return {"cell": cell, **figures, **claim, **pack_images(images, shown=8)}


@pytest.mark.parametrize("name", ["moments-mnist", "moments-fashion"])
def test_quick_cells_are_some_of_the_full_ones(name):
    benchmark = find_benchmark(name)
    quick, full = benchmark.cells(True, 2), benchmark.cells(False, 2)
    assert quick
    assert all(cell in full for cell in quick)
    assert {cell["clients"] for cell in full if cell["scale"] == "full"} == {0, 6, 100, 500, 6_000}
    assert {(cell["trust"], cell["epsilon"]) for cell in full} >= {("silo", 0.2), ("central", 1.0), ("silo", 10.0)}
    assert {cell["spread"] for cell in full} == {"even", "skewed"}


@pytest.mark.parametrize("quick", [True, False])
def test_trusts_never_share_a_table_and_there_is_something_to_see(quick, images):
    benchmark = find_benchmark("moments-mnist")
    results = [made_up(cell, images) for cell in benchmark.cells(quick, 1)]
    views = benchmark.views(results)
    assert any("trust: silo" in view.title for view in views)
    trusts = [*moments.TRUSTS, moments.IN_SHARES]
    assert all(sum(f"trust: {trust}" in view.title for trust in trusts) <= 1 for view in views[:-1])
    assert quick or any("250 clients may collude" in view.title for view in views)
    assert all(len(row) == len(view.header) for view in views for row in view.rows)
    for chart in benchmark.charts(results):
        assert chart.lines
    pictures = benchmark.pictures(results)
    assert len(pictures) == (2 if quick else 9)
    assert len({picture.name for picture in pictures}) == len(pictures)


@pytest.mark.slow
def test_a_small_cell_is_synthesised(images, monkeypatch):
    monkeypatch.setattr(moments, "load", lambda data, part: images)
    for spread in ("even", "skewed"):
        cell = moments._cell("small", "silo", 10.0, moments.SMALL_CLIENTS, spread, 0)
        made, found = moments.synthesised("mnist", cell, moments.SMALL)
        assert made.x.shape == (moments.SMALL.images, 28, 28)
        assert found["unit"] == "record"
        assert found["kilobytes"] > 1
        held = moments.clients_of("mnist", cell, moments.SMALL)
        labels = [len(np.unique(images.y[held.order[a:b]])) for a, b in zip(held.starts, held.starts[1:], strict=False)]
        assert len(held) == moments.SMALL_CLIENTS
        assert spread == "even" or max(np.diff(held.starts)) == 60
        assert labels
