"""The benchmarks of DP-GenFL: which cells there are, what one measures, and how results are shown."""

import numpy as np
import pytest

from populace.methods.registry import make_protocol
from populace.papers import genfl
from populace.papers.image_grid import pack_images
from populace.papers.registry import find_benchmark
from populace.tables.images import Images

NAMES = {"genfl-mnist": "mnist", "genfl-fashion": "fashion_mnist"}


@pytest.fixture(scope="module")
def images():
    """Bars that lie or stand, on noise."""
    rng = np.random.default_rng(0)
    y = np.arange(400, dtype=np.int32) % 2
    x = rng.integers(0, 120, (400, 8, 8))
    for row, label in enumerate(y):
        at = rng.integers(1, 6)
        x[(row, slice(None), slice(at, at + 2)) if label else (row, slice(at, at + 2))] = 255
    return Images(x=x.astype(np.uint8), y=y, classes=2)


def made_up(cell, images):
    private = cell["method"] in ("dp-fl", "genfl")
    claim = {"guarantee": "x", "unit": "record", "trust": "silo" if private else "not-private"}
    shown = pack_images(images, shown=8) if cell["gamma"] is not None else {}
    return {"cell": cell, **dict.fromkeys(genfl.METRICS, 0.5), **claim, **shown}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quick", [True, False])
def test_quick_cells_are_some_of_the_full_ones_and_all_can_be_made(name, quick):
    benchmark, data = find_benchmark(name), NAMES[name]
    found = benchmark.cells(quick, 2)
    assert all(cell in benchmark.cells(False, 2) for cell in found)
    assert len({tuple(cell.items()) for cell in found}) == len(found) == 8 * 2 * (1 if quick else 2)
    for cell in found:
        settings, method = genfl.settings_of(data, cell), genfl.ROWS[cell["method"]].method
        assert settings.get("epsilon") == cell["epsilon"] == (4.0 if method else None)
        assert ("delta" in settings) == (cell["scale"] == "full" and bool(method))
        if method:
            protocol = make_protocol(method, settings)
            assert protocol.synthetic_share == (cell["gamma"] or 0.0)
            assert (protocol.recipe == "paper") == (cell["method"] == "genfl as published")


def test_the_full_scale_is_all_training_images_once():
    assert genfl.FULL.members + genfl.FULL.outsiders == 60_000
    order = Images(x=np.zeros((60_000, 1, 1), np.uint8), y=np.arange(60_000), classes=60_000)
    members, others = genfl.drawn(order, genfl.FULL, 0, 0)
    assert not set(members.y) & set(others.y)
    shadow, _ = genfl.drawn(order, genfl.FULL, 0, 1)
    share = np.isin(members.y, shadow.y).mean(), np.isin(others.y, shadow.y).mean()
    assert share == pytest.approx((5 / 6, 5 / 6), abs=0.02), "who is in the shadow's says nothing about the target's"


@pytest.mark.parametrize("quick", [True, False])
def test_what_is_not_private_has_a_table_and_charts_of_its_own(quick, images):
    benchmark = find_benchmark("genfl-mnist")
    results = [made_up(cell, images) for cell in benchmark.cells(quick, 2)]
    tables = benchmark.views(results)
    assert len(tables) == (2 if quick else 4)
    for view in tables:
        assert all(len(row) == len(view.header) for row in view.rows)
        private = {row[0] for row in view.rows} == {"dp-fl", "genfl"}
        assert private or {row[0] for row in view.rows} == {genfl.OPEN, "genfl as published"}
        assert ("NOT PRIVATE" in view.title) == (not private)
    charts = {chart.name: chart for chart in benchmark.charts(results)}
    kinds = ("silo", "not-private")
    assert set(charts) == {f"{metric}-by-gamma-{kind}" for metric in ("accuracy", "precision") for kind in kinds}
    for chart in charts.values():
        assert [at for at, _ in next(iter(chart.lines.values()))] == [0.2, 0.6, 1.0]
        assert set(chart.level) == {"dp-fl" if chart.name.endswith("silo") else genfl.OPEN}
    pictures = benchmark.pictures(results)
    assert len({picture.name for picture in pictures}) == len(pictures) == 6


def test_published_figures_stand_beside_full_rows_only(images):
    benchmark = find_benchmark("genfl-fashion")
    results = [made_up(cell, images) for cell in benchmark.cells(False, 1)]
    for view in benchmark.views(results):
        shown = {(row[0], row[1]): row[-1] for row in view.rows if row[-1] != "-"}
        if "small scale" in view.title:
            assert not shown
        elif "NOT PRIVATE" in view.title:
            assert shown["genfl as published", "0.6"] == "0.518 / 0.750"
        else:
            assert shown == {("dp-fl", "-"): "0.543 / 0.769"}


def test_an_attack_that_calls_nobody_a_member_is_shown(images):
    benchmark = find_benchmark("genfl-mnist")
    results = [
        made_up(cell, images) | {"precision": None, "precision_low": 0.0, "precision_high": 1.0}
        for cell in benchmark.cells(True, 1)
    ]
    assert all(row[4:6] == ["-", "0.000 to 1.000"] for view in benchmark.views(results) for row in view.rows)
    assert not [chart for chart in benchmark.charts(results) if "precision" in chart.name]


def test_what_is_told_about_a_record(images):
    """Its loss first, the posterior of its class, then the whole in falling order; as many members as others."""

    def posterior(some):
        right = np.where(some.x.reshape(len(some), -1).mean(axis=1) > 80, 0.9, 0.2)
        found = np.repeat((1 - right)[:, None], 2, axis=1)
        found[np.arange(len(some)), some.y] = right
        return found

    found = genfl.told(
        posterior, images.take(np.arange(300)), images.take(np.arange(300, 400)), np.random.default_rng(0)
    )
    assert found.members.sum() == 100
    assert found.features.shape == (200, 4)
    np.testing.assert_allclose(found.features[:, 0], -np.log(found.features[:, 1]))
    np.testing.assert_allclose(found.features[:, 2], np.maximum(found.features[:, 1], 1 - found.features[:, 1]))


SCALE = genfl.Scale(clients=2, records=60, outsiders=60, tested=100, shadows=1)


def measured(method, gamma, images, monkeypatch):
    monkeypatch.setattr(genfl, "load", lambda data, part: images)
    monkeypatch.setattr(genfl, "SMALL", SCALE)
    cell = {
        "method": method, "epsilon": 4.0 if genfl.ROWS[method].method else None, "gamma": gamma, "scale": "small", "seed": 0,
    }  # fmt: skip
    found = find_benchmark("genfl-mnist").measure(cell)
    assert set(genfl.METRICS) <= set(found)
    assert found["precision_low"] <= (found["precision"] or 0) <= found["precision_high"]
    assert found["n"] == 2 * SCALE.outsiders
    return found


def test_the_classifier_without_privacy_is_measured(images, monkeypatch):
    found = measured(genfl.OPEN, None, images, monkeypatch)
    assert found["accuracy"] > 0.9
    assert found["trust"] == "not-private"
    assert "images" not in found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "gamma"), [("dp-fl", None), ("genfl", 1.0), ("genfl", 0.6), ("genfl as published", 0.6)]
)
def test_small_cells_are_measured(method, gamma, images, monkeypatch):
    found = measured(method, gamma, images, monkeypatch)
    assert found["trust"] == ("not-private" if method == "genfl as published" else "silo")
    assert ("inf" not in found["guarantee"]) == (found["trust"] == "silo")
    assert found["rounds"] == (1 if gamma == 1 else 3 if gamma is None else 4)
    assert ("images" in found) == (gamma is not None)
