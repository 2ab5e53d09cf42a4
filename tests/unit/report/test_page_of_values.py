"""A run on a table of dates, times, gaps and spikes: its page and console say what is wrong first, and refuse no real row."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from populace.cli.main import call
from populace.evaluation import prediction
from populace.methods.baselines.marginals import Marginals
from populace.privacy.guarantee import Guarantee
from populace.report.page import evaluate, evaluate_runs
from populace.runs.run import versions
from populace.tables.files import write_json
from populace.tables.schema import Column, Schema
from populace.tables.table import make_table, write_frame

SCHEMA = Schema(
    columns=(
        Column(name="cost", kind="decimal", edges=(0.0, 50.0, 500.0), spikes=(0.0,), step=0.01, nullable=True),
        Column(name="day", kind="date", edges=(18_000.0, 18_300.0, 18_700.0)),
        Column(name="hour", kind="time", edges=(0.0, 43_200.0, 86_340.0), step=60.0),
        Column(name="ward", kind="categorical", categories=("north", "south")),
        Column(name="well", kind="boolean", categories=("false", "true"), dtype="boolean"),
    ),
    target="well",
)


def rows(seed, count=400):
    rng = np.random.default_rng(seed)
    cost = np.where(rng.random(count) < 0.5, 0.0, np.round(rng.gamma(2, 60, count), 2).clip(0.01, 499))
    return pd.DataFrame(
        {
            "cost": np.where(rng.random(count) < 0.1, np.nan, cost),
            "day": pd.to_datetime(18_000 + rng.integers(0, 700, count), unit="D").date,
            "hour": [pd.Timestamp(int(m) * 60, unit="s").time() for m in rng.integers(0, 1439, count)],
            "ward": rng.choice(["north", "south"], count),
            "well": rng.random(count) < 0.4,
        }
    )


def broken(frame):
    return frame.assign(cost=frame.cost.replace(0.0, 250.0), day=pd.Timestamp("2020-01-01").date())


@pytest.fixture(scope="module", autouse=True)
def small_models():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction, "TREES", 5)
        patch.setattr(prediction, "STEPS", 30)
        yield


@pytest.fixture
def folder(tmp_path):
    """Two finished runs, one of them broken, and real rows with values the schema does not know."""
    for name, frame in (("good", rows(1)), ("bad", broken(rows(1)))):
        (tmp_path / name).mkdir()
        table = make_table(frame, SCHEMA)
        Marginals(schema=SCHEMA, tables=tuple(np.full(size, 1 / size) for size in SCHEMA.sizes)).save(tmp_path / name)
        table.save(tmp_path / name / "synthetic.parquet")
        write_json(
            tmp_path / name / "privacy.json",
            Guarantee(epsilon=1.0, unit="client", neighbours="replace", trust="local", mechanism="none").to_json(),
        )
        write_json(
            tmp_path / name / "run.json",
            {
                "status": "finished", "method": "marginals", "clients": 400, "rounds": 1, "versions": versions(), "digest": "x",
                "spec": {"data": "x.csv", "epsilon": 1.0, "seed": None, "settings": {}},
                "seconds": {"reading": 0.1, "training": 0.2, "sampling": 0.1, "total": 0.4},
                "traffic": {"bytes_from_clients": 800, "bytes_to_clients": 400, "messages": 400},
            },
        )  # fmt: skip
    real = rows(2)
    real.loc[0, ["cost", "ward"]] = [12_345.0, "east"]
    real.loc[1, "ward"] = None
    write_frame(pa.Table.from_pandas(real, preserve_index=False), tmp_path / "real.parquet")
    return tmp_path


def test_values_outside_the_schema_are_no_reason_to_refuse(folder):
    (document,) = evaluate_runs([folder / "good"], str(folder / "real.parquet"))
    assert document["red_flags"] == []
    assert document["values"]["columns"]["cost"]["real"]["most"] == 12_345
    assert "No red flags." in (folder / "good" / "report.html").read_text()


def test_the_page_and_the_metrics_say_what_is_wrong(folder):
    (document,) = evaluate_runs([folder / "bad"], str(folder / "real.parquet"))
    said = " ".join(document["red_flags_in_words"])
    assert "zeros became 0 %" in said
    assert "every value is 2020-01-01" in said
    page = (folder / "bad" / "report.html").read_text()
    assert "2 red flags" in page
    assert page.index("every value is 2020-01-01") < page.index('class="tiles')
    assert any(line.startswith("ward: ") and "east" in line for line in document["smaller_findings"])
    assert page.index("smaller finding") < page.index("in no synthetic row: east") < page.index('class="tiles')
    for part in (
        "2019-04-14",
        "Values shared by many rows",
        "Pearson correlation",
        "gradient boosting",
        "no value",
    ):
        assert part in page, part
    kinds = {name: figures["kind"] for name, figures in document["values"]["columns"].items()}
    assert kinds == {"cost": "decimal", "day": "date", "hour": "time"}


def test_the_console_says_red_flags_first_and_has_no_negative_notes(folder, capsys):
    assert call(["evaluate", str(folder / "bad"), "--real", str(folder / "real.parquet")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "bad: 2 RED FLAGS"
    assert lines[1].startswith("  ! ")
    table = [line for line in lines if line.startswith(("one-way", "6-way", "KS", "AUC, gradient"))]
    assert len({len(line) for line in table[:2]}) == 1
    assert any(line.endswith("–¹") for line in table)
    assert any(line.startswith("¹ left out: ") for line in lines)
    assert not any(" -1" in line for line in lines)
    assert call(["evaluate", str(folder / "good"), "--real", str(folder / "real.parquet")]) == 0
    assert capsys.readouterr().out.startswith("good: no red flags\n")


def test_runs_side_by_side_have_their_flags_and_a_number_may_be_the_target(folder):
    paths = [folder / "good", folder / "bad"]
    documents = evaluate_runs(paths, str(folder / "real.parquet"), target="cost")
    assert [bool(document["red_flags"]) for document in documents] == [False, True]
    assert "R², boosting" in (folder / "good" / "comparison.html").read_text()
    assert json.loads((folder / "good" / "comparison.json").read_text())["runs"][1]["red_flags"]


def test_tables_under_different_schemas_compare(tmp_path):
    wide = rows(3)
    wide.loc[0, "ward"] = "west"
    columns = tuple(c if c.name != "ward" else Column(name="ward", kind="categorical", categories=("north", "south", "west"))
                    for c in SCHEMA.columns)  # fmt: skip
    real = make_table(wide, Schema(columns=columns))
    found = evaluate(make_table(rows(4), SCHEMA), real=real, target="well")
    assert found.metrics["red_flags"] == []
    found.save(tmp_path / "report.html")
    assert "What raises a red flag" in (tmp_path / "report.html").read_text()
