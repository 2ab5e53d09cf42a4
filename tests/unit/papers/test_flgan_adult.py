"""`flgan-adult9`: which cells there are, that a small one is measured, and that units of privacy share no table."""

import pytest

from populace.papers import flgan_adult
from populace.papers.flgan_adult import EPSILONS, charts, views
from populace.papers.registry import find_benchmark
from populace.tables import embedded

BENCHMARK = find_benchmark("flgan-adult9")


def result(method, epsilon, unit, scale="full", auc=0.8):
    cell = {"method": method, "epsilon": epsilon, "scale": scale, "seed": 0}
    claim = (
        {}
        if unit is None
        else {
            "unit": unit,
            "trust": "silo" if unit == "record" else "local",
            "guarantee": f"({epsilon}, 0)-DP for one {unit}",
        }
    )
    return {"cell": cell, "seconds": 3.0, "auc": auc, "forest": 0.7, "mlp": 0.7, "two_way": 0.1, **claim}


def test_cells_hold_every_method_at_every_epsilon_beside_real_rows():
    full = [cell for cell in BENCHMARK.cells(False, 1) if cell["scale"] == "full"]
    assert len(full) == 1 + 3 * len(EPSILONS)
    assert {cell["method"] for cell in full} == {"real rows", "poll", "fl-gan", "ufl-gan"}
    assert all(cell["scale"] == "small" for cell in BENCHMARK.cells(True, 2))


@pytest.mark.parametrize("method", ["real rows", pytest.param("ufl-gan", marks=pytest.mark.slow)])
def test_a_small_cell_is_measured(method, monkeypatch):
    monkeypatch.setattr(flgan_adult, "load", lambda name, part="train": embedded.harbour())
    cell = next(cell for cell in BENCHMARK.cells(True, 1) if cell["method"] == method)
    found = BENCHMARK.measure(cell)
    assert 0.4 < found["auc"] <= 1
    assert ("unit" in found) == (method == "ufl-gan")
    if "unit" in found:
        assert (found["unit"], found["trust"]) == ("record", "silo")
        assert 7.9 < float(found["guarantee"].strip("(").split(",")[0]) <= 8


def test_a_record_and_a_client_share_neither_a_table_nor_a_chart():
    results = [
        result("real rows", None, None, auc=0.9), result("ufl-gan", 8.0, "record"), result("ufl-gan", 4.0, "record"),
        result("poll", 8.0, "client"), result("poll", 8.0, "client", "small"),
    ]  # fmt: skip
    for view in views(results):
        assert len({"poll" in row[0] for row in view.rows}) == 1
    tables = [[row[0] for row in view.rows] for view in views(results)]
    assert sorted(map(tuple, tables)) == [("poll",), ("poll",), ("real rows",), ("ufl-gan", "ufl-gan")]
    found = charts(results)
    assert [set(chart.lines) for chart in found] == [{"ufl-gan"}, {"poll"}]
    assert found[0].lines["ufl-gan"] == [(4.0, 0.8), (8.0, 0.8)]
    assert found[0].level == {"real rows": 0.9}
