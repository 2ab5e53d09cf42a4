"""A table with dates, times, an id, free text, gaps, truth values, codes and a heavy tail, from the file to the report."""

import datetime as dt
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from messy_table import DIAGNOSES, FIRST_DAY, HEADER, ROWS, messy_rows, write_messy_table
from populace.cli.main import call
from populace.tables.schema import load_schema
from populace.tables.table import read_frame

EPSILON = 12  # little noise: what is tested here is the way, not the method
SETTINGS = ("chains=1", "langevin_steps=24", "latent_classes=4", "prior_scale=1", "stages=1")
QUICK = ["--method", "poll", *(part for pair in SETTINGS for part in ("--set", pair))]
KINDS = {
    "admitted": "date", "discharged": "date", "seen_at": "datetime", "round": "time", "ward": "categorical",
    "diagnosis": "categorical", "insurance_code": "categorical", "smoker": "boolean", "alive": "boolean",
    "temperature": "decimal", "pulse": "integer", "dose": "decimal", "costs": "decimal",
}  # fmt: skip


@pytest.fixture(scope="module")
def real():
    return messy_rows()


@pytest.fixture(scope="module")
def folder(real, tmp_path_factory):
    """The table, its proposed schema and a finished run: two commands, nothing by hand."""
    place = tmp_path_factory.mktemp("messy")
    data = write_messy_table(place / "visits.csv", real)
    assert call(["schema", str(data), "--target", "smoker", "-o", str(place / "visits.toml")]) == 0
    arguments = ["synthesize", str(data), "--schema", str(place / "visits.toml"), "--epsilon", str(EPSILON), *QUICK]
    assert call([*arguments, "--rows", str(ROWS), "--seed", "1", "--out", str(place / "run")]) == 0
    return place


@pytest.fixture(scope="module")
def synthetic(folder):
    return pq.read_table(folder / "run/synthetic.parquet")


def share_missing(values, *markers):
    return sum(value is None or value in markers for value in values) / len(values)


def column(rows, name):
    return [row[name] for row in rows]


def test_every_column_is_recognised_and_everything_is_said_at_once(folder, tmp_path, capsys):
    schema = load_schema(folder / "visits.toml")
    assert {one.name: one.kind for one in schema.columns} == KINDS
    assert {one.name: one.kind for one in schema.others} == {"visit_id": "id", "remarks": "text"}
    assert schema.order == HEADER
    assert schema.column("diagnosis").levels == DIAGNOSES
    assert schema.column("costs").spikes == (0,)
    assert schema.column("dose").step == schema.column("costs").step == 0.01
    assert (schema.column("seen_at").step, schema.column("round").step) == (60, 900)
    assert call(["schema", str(folder / "visits.csv"), "-o", str(tmp_path / "again.toml")]) == 0
    said = capsys.readouterr().out
    for note in (
        "visit_id: 600 distinct",
        "remarks: 600 distinct",
        "ward: ",
        "temperature: ",
        "pulse: ",
        "look like codes",
    ):
        assert note in said
    assert (tmp_path / "again.toml").read_text() == (folder / "visits.toml").read_text().replace(
        'target = "smoker"\n', ""
    )


def test_synthetic_rows_look_like_the_table(folder, real, synthetic):
    assert synthetic.column_names == [name for name in HEADER if name != "remarks"]
    ids = synthetic.column("visit_id").to_pylist()
    assert ids == [f"syn-{number:06d}" for number in range(1, ROWS + 1)]
    admitted = synthetic.column("admitted").to_pylist()
    days = [dt.date.fromisoformat(day) for day in column(real, "admitted")]
    assert min(days) <= min(admitted)
    assert max(admitted) <= max(days)
    for text in filter(None, synthetic.column("discharged").to_pylist()):
        assert dt.datetime.strptime(text, "%d.%m.%Y").date() > FIRST_DAY
    assert pa.types.is_timestamp(synthetic.schema.field("seen_at").type)
    assert {moment.second for moment in synthetic.column("seen_at").to_pylist()} == {0}
    assert {time.minute for time in synthetic.column("round").to_pylist()} <= {0, 15, 30, 45}
    assert set(synthetic.column("diagnosis").to_pylist()) <= set(column(real, "diagnosis"))
    assert set(map(str, synthetic.column("insurance_code").to_pylist())) <= set(column(real, "insurance_code"))
    for name in ("dose", "costs"):
        numbers = np.array(synthetic.column(name), float)
        np.testing.assert_allclose(numbers, np.round(numbers, 2), atol=1e-9)


@pytest.mark.parametrize(
    ("name", "gaps", "room"),
    [
        ("discharged", ("",), 0.06),
        ("ward", ("?",), 0.15),  # few of 600 people are asked about it
        ("temperature", ("NA",), 0.08),
        ("pulse", ("?", ""), 0.08),
    ],
)
def test_as_much_is_missing_as_was(name, gaps, room, real, synthetic):
    wanted = share_missing(column(real, name), *gaps)
    assert 0.03 < wanted < 0.25
    assert share_missing(synthetic.column(name).to_pylist(), *gaps) == pytest.approx(wanted, abs=room)


def test_truth_values_and_zeros_keep_their_shares(real, synthetic):
    for name, value in (("smoker", "yes"), ("alive", 1)):
        wanted = np.mean([text == str(value) for text in column(real, name)])
        assert np.mean([found == value for found in synthetic.column(name).to_pylist()]) == pytest.approx(
            wanted, abs=0.15
        )
    zeros = np.mean(np.array(column(real, "costs"), float) == 0)
    assert np.mean(np.array(synthetic.column("costs"), float) == 0) == pytest.approx(zeros, abs=0.12)


def test_more_rows_where_a_date_a_spike_and_a_category_are_given(folder, tmp_path):
    out = tmp_path / "some.csv"
    where = {"admitted": "2023-05-02", "costs": "0", "diagnosis": "A00.0", "pulse": "NA"}
    pairs = [part for pair in where.items() for part in ("--where", "=".join(pair))]
    assert call(["sample", str(folder / "run"), "--rows", "7", *pairs, "--seed", "3", "-o", str(out)]) == 0
    rows = read_frame(out).to_pylist()
    assert [row["visit_id"] for row in rows] == [f"syn-{ROWS + number:06d}" for number in range(1, 8)]
    for row in rows:
        assert (float(row["costs"]), row["diagnosis"], row["pulse"]) == (0, "A00.0", None)
        assert row["admitted"] == "2023-05-02"


def test_the_evaluation_reads_the_same_file_and_looks_at_the_values(folder, capsys):
    assert call(["evaluate", str(folder / "run"), "--real", str(folder / "visits.csv")]) == 0
    assert "KS distance of values" in capsys.readouterr().out
    found = json.dumps(json.loads((folder / "run/metrics.json").read_text()))
    for name in ("admitted", "round", "temperature", "costs"):
        assert name in found
    assert "remarks" not in found
    assert (folder / "run/report.html").stat().st_size > 10_000


def test_without_a_schema_the_run_says_what_it_left_out(folder, tmp_path, capsys):
    arguments = ["synthesize", str(folder / "visits.csv"), "--method", "independent", "--epsilon", "4", "--rows", "5"]
    assert call([*arguments, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "left out, being free text: remarks" in said
    assert "made afresh in synthetic rows, being ids: visit_id" in said
