"""The benchmarks of DPD-fVAE: which cells there are, and how results are shown."""

import numpy as np
import pytest

from populace.methods.registry import make_protocol
from populace.papers import dpd
from populace.papers.image_grid import pack_images
from populace.papers.registry import find_benchmark
from populace.tables.images import Images


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(10, dtype=np.int32), 60)
    return Images(x=rng.integers(0, 256, (600, 28, 28)).astype(np.uint8), y=y, classes=10)


def made_up(cell, images):
    figures = dict.fromkeys(dpd.METRICS, 0.5)
    claim = {}
    if cell["method"] != dpd.REAL:
        method = dpd.ROWS[cell["method"]].method
        trust = {"c-dpd-vae": "central", "fed-vae": "not-private", "central-vae": "not-private"}.get(method, "silo")
        unit = "record" if trust == "silo" else "client"
        claim = {
            "guarantee": "x",
            "unit": unit,
            "trust": trust,
            **({"norms": [1.0, 2.0]} if method == "fed-vae" else {}),
        }
    return {"cell": cell, **figures, **claim, **pack_images(images, shown=8)}


@pytest.mark.parametrize("name", ["dpd-mnist", "dpd-fashion"])
@pytest.mark.parametrize("quick", [True, False])
def test_quick_cells_are_some_of_the_full_ones_and_all_can_be_made(name, quick):
    benchmark = find_benchmark(name)
    data = "mnist" if name == "dpd-mnist" else "fashion_mnist"
    found = benchmark.cells(quick, 2)
    assert found
    assert all(cell in benchmark.cells(False, 2) for cell in found)
    assert ("c-dpd-vae" in {cell["method"] for cell in found}) == (data == "mnist")
    for cell in found:
        if cell["method"] != dpd.REAL:
            settings = dpd.settings_of(data, cell)
            assert settings.get("epsilon") == cell["epsilon"]
            make_protocol(dpd.ROWS[cell["method"]].method, settings)


@pytest.mark.parametrize("quick", [True, False])
def test_trusts_and_units_never_share_a_table_or_a_chart(quick, images):
    benchmark = find_benchmark("dpd-mnist")
    results = [made_up(cell, images) for cell in benchmark.cells(quick, 1)]
    for view in benchmark.views(results):
        assert all(len(row) == len(view.header) for row in view.rows)
        methods = {row[0] for row in view.rows}
        assert "c-dpd-vae" not in methods or methods <= {"c-dpd-vae", "c-dpd-vae, whole model"}
        assert ("NOT PRIVATE" in view.title) == ("DPD-fVAE" in methods)
    charts = {chart.name: chart for chart in benchmark.charts(results)}
    assert set(charts) == {"norms-by-round", "cnn-by-epsilon-central", "cnn-by-epsilon-silo"}
    assert all(chart.lines for chart in charts.values())
    pictures = benchmark.pictures(results)
    assert len({picture.name for picture in pictures}) == len(pictures) > 5


@pytest.mark.slow
def test_a_small_cell_is_measured(images, monkeypatch):
    """Without its classifiers, which other tests run."""
    monkeypatch.setattr(dpd, "load", lambda data, part: images)
    monkeypatch.setattr(dpd, "scores", lambda sets, *rest, **more: {"cnn": float(len(sets[0]))})
    cell = {"method": "DPD-fVAE", "epsilon": None, "scale": "small", "seed": 0}
    found = find_benchmark("dpd-mnist").measure(cell)
    assert found["cnn"] == dpd.SMALL["mnist"].images
    assert found["trust"] == "not-private"
    assert len(found["norms"]) == found["rounds"] == 4
