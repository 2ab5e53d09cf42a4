"""`tables-*`: the path of a user on a small table, figures on values, and reasons instead of crashes."""

import dataclasses
import signal

import numpy as np
import pyarrow as pa
import pytest

from populace.papers import tables
from populace.papers.grid import run_benchmark
from populace.papers.user_path import raw_rows, synthesize_csv, time_limit
from populace.tables.schema import Column, Other, Schema
from populace.tables.table import make_table

GAIN = Column(name="gain", kind="integer", edges=(1, 100, 1_000, 5_000), spikes=(0,), source="test")
SCHEMA = Schema(
    columns=(
        Column(name="age", kind="integer", edges=(18, 30, 45, 60, 91), source="test"),
        Column(name="work", kind="categorical", categories=("office", "sea"), nullable=True, missing=("?",), source="test"),
        GAIN,
        Column(name="back", kind="categorical", categories=("NO", ">30", "<30"), source="test"),
    ),
    target="back",
)  # fmt: skip


def frame(rows, seed):
    """Ages and gains that say whether somebody comes back; most gains are zero."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 91, rows)
    gain = np.where(rng.random(rows) < 0.7, 0, rng.integers(1, 5_000, rows))
    late = np.where(rng.random(rows) < 0.5, ">30", "<30")
    back = np.where(age / 90 + (gain > 0) + rng.normal(0, 0.3, rows) < 0.9, "NO", late)
    work = np.where(rng.random(rows) < 0.1, "?", np.where(age < 50, "sea", "office"))
    return pa.table({"age": age, "work": work, "gain": gain, "back": back})


@pytest.fixture
def small(monkeypatch):
    rows = tables.Rows(train=frame(1_500, 0), test=frame(500, 1), schema=SCHEMA)
    monkeypatch.setattr(tables, "load", lambda data: rows)
    return dataclasses.replace(tables.DIABETES_SETTING, data="small", about="a small table")


def independent(schema):
    return {"method": "independent", "schema": schema, "epsilon": 8.0, "seed": 0}


@pytest.mark.parametrize("schema", tables.SCHEMAS)
def test_a_cell_goes_through_a_csv_and_is_judged_by_its_values(small, schema):
    found = tables.measure(small, independent(schema))
    assert found["unit"] == "client"
    assert found["seconds_run"] > 0
    assert 0 < found["worst_ks"] < 0.2
    assert found["worst_ks"] == max(found["ks"].values())
    assert set(found["ks"]) == set(found["mean_ratios"]) == {"age", "gain"}
    assert found["zero_share_error"] < 0.15
    assert found["mean_ratios"][found["worst_mean_column"]] == found["worst_mean_ratio"]
    assert 0.3 < found["auc"] < 0.7  # independent columns say nothing about the target


def test_real_rows_stand_beside_and_their_auc_is_of_one_class_against_the_rest(small):
    found = tables.measure(small, {"method": tables.REAL, "schema": None, "epsilon": None, "seed": 0})
    assert found["auc"] > 0.85  # the other two classes cannot be told apart: their mean AUC would be lower
    several = tables.measure(dataclasses.replace(small, alone=""), {"method": tables.REAL, "seed": 0})
    assert several["auc"] < found["auc"] - 0.03
    assert found["worst_ks"] < 0.1


def test_wrong_values_show_although_their_cells_are_right(small):
    rows = tables.load("small")
    gain = np.asarray(rows.train.column("gain"))
    wrong = rows.train.set_column(2, "gain", pa.array(np.where(gain == 0, 0, np.where(gain < 1_000, gain, 4_999))))
    found = tables.figures(small, rows, wrong)
    assert found["worst_ks_column"] == "gain"
    assert found["worst_mean_column"] == "gain"
    assert found["worst_mean_ratio"] > 1.3
    assert found["zero_share_error"] == 0
    beyond = rows.train.set_column(2, "gain", pa.array(gain * 3))
    assert tables.figures(small, rows, beyond)["worst_mean_ratio"] == pytest.approx(3)


def test_methods_that_protect_records_get_silos(small, monkeypatch):
    seen = {}

    def remembered(*args, **options):
        seen.update(options)
        return synthesize_csv(*args, **options)

    monkeypatch.setattr(tables, "synthesize_csv", remembered)
    found = tables.measure(small, {"method": "moments", "schema": "declared", "epsilon": 4.0, "seed": 0})
    assert seen["records_per_client"] == 250
    assert found["unit"] == "record"


def test_what_cannot_be_done_keeps_its_reason(small, monkeypatch):
    rows = tables.load("small")
    narrow = dataclasses.replace(
        SCHEMA,
        columns=(*SCHEMA.columns[:2], dataclasses.replace(GAIN, edges=(1, 50), laws=("linear",)), SCHEMA.columns[3]),
    )
    monkeypatch.setattr(tables, "load", lambda data: dataclasses.replace(rows, schema=narrow))
    found = tables.measure(small, independent("declared"))
    assert set(found) == {"refused"}
    assert "gain" in found["refused"]
    assert found["refused"].count("\n") == 0
    named = rows.train.append_column("name", pa.array([f"person {i} of the table" for i in range(1_500)]))
    schema = dataclasses.replace(
        SCHEMA, columns=(*SCHEMA.columns, Column(name="name", kind="categorical", categories=("a",), source="t"))
    )
    monkeypatch.setattr(tables, "load", lambda data: tables.Rows(train=named, test=rows.test, schema=schema))
    assert tables.measure(small, independent("proposed"))["refused"] == "the proposed schema leaves out name"


def test_a_run_that_takes_too_long_is_a_reason_and_the_next_one_is_not_stopped(small, monkeypatch):
    monkeypatch.setattr(tables, "LIMIT", 0.05)
    assert "not finished after" in tables.measure(small, independent("proposed"))["refused"]
    with time_limit(60):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    monkeypatch.setattr(tables, "LIMIT", None)
    assert "refused" not in tables.measure(small, independent("proposed"))


def test_a_grid_of_runs_and_refusals_is_shown(small, tmp_path, monkeypatch):
    few = [
        {"method": tables.REAL, "schema": None, "epsilon": None, "seed": 0},
        independent("proposed"),
        independent("declared"),
    ]
    poll = [{"method": "poll", "schema": "proposed", "epsilon": 4.0, "seed": seed} for seed in (0, 1)]
    measured = {
        0: {"worst_ks": 0.05, "auc": 0.7, "seconds_run": 1.0, "mean_ratios": {"age": 1.5, "gain": 1.0}},
        1: {"worst_ks": 0.2, "auc": 0.6, "seconds_run": 3.0, "mean_ratios": {"age": 0.7, "gain": 1.0}},
    }

    def measure(cell):
        if cell["method"] == "poll":
            return measured[cell["seed"]]
        return {"refused": "too many cells"} if cell["schema"] == "declared" else tables.measure(small, cell)

    benchmark = dataclasses.replace(
        tables.DIABETES, prepare=lambda: None, cells=lambda quick, seeds: [*few, *poll], measure=measure
    )
    document = run_benchmark(benchmark, tmp_path / "b")
    main, goals = document["tables"]
    by_method = {(row[0], row[1]): row for row in main["rows"]}
    assert by_method["independent", "declared"][-1] == "too many cells"
    assert by_method["independent", "proposed"][-1] == ""
    reached = {row[0]: row[2:] for row in goals["rows"]}
    assert reached[tables.WORST_KS] == ["0.200", "-", "no"]  # the worst seed counts
    assert reached["a mean off by"] == ["0.100", "-", "yes"]  # means are taken over the seeds first
    assert reached[tables.AUC] == ["0.650", "-", "yes"]
    assert reached["seconds of synthesize, mean of seeds"] == ["2.000", "-", "yes"]
    assert {chart.name for chart in benchmark.charts(document["cells"])} == {"worst_ks-by-epsilon", "auc-by-epsilon"}


def test_cells_cover_methods_and_schemas_and_quick_is_short():
    every, quick = tables.cells(False, 1), tables.cells(True, 1)
    made = [cell for cell in every if cell["method"] != tables.REAL]
    assert {(cell["method"], cell["schema"], cell["seed"]) for cell in made} == {
        (method, schema, seed) for method in tables.METHODS for schema in tables.SCHEMAS for seed in range(3)
    }
    assert {cell["epsilon"] for cell in made if cell["method"] == "poll"} == {1, 2, 4, 8}
    assert {cell["epsilon"] for cell in made if cell["method"] != "poll"} == {4}
    assert [(cell["method"], cell["schema"]) for cell in quick] == [
        (tables.REAL, None), ("poll", "proposed"), ("independent", "proposed"),
    ]  # fmt: skip


def test_raw_rows_have_their_markers_and_no_ids():
    schema = dataclasses.replace(SCHEMA, others=(Other(name="id", kind="id", position=0),))
    table = make_table(frame(50, 2).add_column(0, "id", pa.array([str(i) for i in range(50)])), schema)
    assert table.frame.column("work").null_count > 0
    raw = raw_rows(table)
    assert raw.column_names == list(SCHEMA.names)
    assert "?" in raw.column("work").to_pylist()
    assert raw.column("work").null_count == 0
