"""`wae-a9a`: which cells there are, and that each kind of cell can be measured and shown."""

import numpy as np
import pytest

from populace.papers import wae
from populace.papers.grid import slug
from populace.tables.schema import Column, Schema
from populace.tables.table import from_codes


@pytest.fixture
def few_rows(monkeypatch):
    """Six binary columns that lean on the last, instead of a9a; few rows, few clients."""
    schema = Schema(
        columns=tuple(Column(name=f"c{i}", kind="categorical", categories=("0", "1")) for i in range(6)), target="c5"
    )
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 2, (400, 1))
    codes = np.concatenate([rng.random((400, 5)) < np.where(kind == 1, 0.8, 0.2), kind], axis=1).astype(np.int32)
    table = from_codes(codes, schema, rng)
    wae.people.cache_clear()
    for name, value in {"CLIENTS": 60, "ROWS": 200, "GENERATED": 50, "WIDTHS": (2, 4)}.items():
        monkeypatch.setattr(wae, name, value)
    monkeypatch.setattr(wae, "load", lambda part: table)
    monkeypatch.setattr(wae, "ATTACK", {"targets": 2, "shadows": 8, "attacked": 8, "rows": 20})
    yield table
    wae.people.cache_clear()


def test_cells_cover_the_papers_figures_and_differ():
    every, quick = wae.cells(False, 2), wae.cells(True, 2)
    assert len({slug(cell, 2) for cell in every}) == len(every)
    parts = {"baseline", "epsilon", "proposed", "limits", "records", "participations", "attack"}
    assert {cell["part"] for cell in every} == parts
    assert {cell["epsilon"] for cell in every if cell["part"] == "epsilon"} == {0.5, 1, 2, 4, 6, 8}
    assert {cell["epsilon"] for cell in every if cell["part"] == "attack"} == {None, 8, 2, 0.5}
    methods = {cell["method"] for cell in every if cell["part"] == "epsilon"}
    assert {"lopub", "locop", "independent", "poll", "fedsel-wae"} <= methods
    assert sum("alpha" in name for name in methods) == 2
    assert all(cell in every for cell in quick)
    assert {(c["method"], c["epsilon"]) for c in quick if c["part"] == "epsilon"} >= {
        ("dp-fed-wae", 8),
        ("dp-fed-wae", 4),
    }


@pytest.mark.slow
def test_without_noise_the_model_learns_and_is_shown(few_rows):
    cell = {"part": "limits", "method": "noise off", "clients": 60, "seed": 0}
    found = wae.measure(cell)
    assert found["nn"] > 0.8
    assert set(found) <= {*wae.METRICS, "guarantee", "rounds", "bytes_up", "bytes_down"}
    views = wae.views([{"cell": cell, **dict.fromkeys(wae.METRICS), **found}])
    assert any("noise off" in row for view in views for row in view.rows)


@pytest.mark.parametrize("part", ["epsilon", "proposed"])
def test_a_method_runs_on_a_csv_of_two_rows_a_client(few_rows, part):
    cell = {"part": part, "method": "independent", "epsilon": 8, "seed": 0}
    found = wae.measure(cell)
    assert found["guarantee"] == 8
    assert found["rounds"] == 1
    assert 0 < found["avd_2"] < found["avd_4"] < 1
    assert found["seconds_training"] > 0
    assert found["seconds_generating"] > 0
    (row,) = wae.views([{"cell": cell, **dict.fromkeys(wae.METRICS), **found}])[0].rows
    assert row[1] == ("independent" if part == "epsilon" else "independent, proposed schema")


@pytest.mark.slow
def test_membership_attack_is_measured_and_shown_beside_the_papers(few_rows):
    cell = {"part": "attack", "method": "dp-fed-wae", "epsilon": 8, "seed": 0}
    found = wae.measure(cell)
    assert 0 <= found["low"] <= found["mia"] <= found["high"] <= 1
    views = wae.views([{"cell": cell, **dict.fromkeys(wae.METRICS), **found}])
    assert views[-1].rows[0][0] == "8"
    assert views[-1].rows[0][2] == "0.535"
