"""`populace schema`, and a table with everything in it through schema, synthesize, sample and a site's own reading."""

import datetime as dt
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from populace.cli.main import call
from populace.engines.site_file import SiteFile, read_hosted
from populace.tables.schema import load_schema
from populace.tables.table import read_frame, write_frame


def mixed(rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    days = [dt.date(2020, 1, 1) + dt.timedelta(days=int(day)) for day in rng.integers(0, 500, rows)]
    return pa.table(
        {
            "patient_id": [f"P{seed}-{i:05d}" for i in range(rows)],
            "admitted": [day.strftime("%d.%m.%Y") for day in days],
            "at": [f"{hour:02d}:{minute:02d}" for hour, minute in rng.integers(0, [24, 60], (rows, 2))],
            "seen": [dt.datetime(2020, 1, 1) + dt.timedelta(hours=int(hour)) for hour in rng.integers(0, 9_000, rows)],
            "ward": rng.choice(["A", "B", "?"], rows).tolist(),
            "smoker": rng.choice(["yes", "no"], rows).tolist(),
            "alive": rng.integers(0, 2, rows),
            "fever": [None if rng.random() < 0.1 else round(float(t), 1) for t in rng.normal(37, 0.7, rows)],
            "costs": np.where(rng.random(rows) < 0.6, 0.0, np.exp(rng.normal(5, 1, rows)).round(2)),
            "remarks": [f"note {rng.integers(1e9)} of the night shift" for _ in range(rows)],
        }
    )


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    for number in range(3):
        write_frame(mixed(400 + 100 * number, number), folder / f"site{number}.csv")
    write_frame(mixed(2_000, 9), folder / "public.csv")
    return folder


def test_several_files_give_one_schema_and_all_notes(sites, tmp_path, capsys):
    out = tmp_path / "s.toml"
    files = [str(sites / f"site{number}.csv") for number in range(3)]
    assert call(["schema", *files, "-o", str(out), "--target", "alive", "--drop", "seen"]) == 0
    shown = capsys.readouterr().out
    for note in (
        "patient_id: 1,500 distinct texts",
        "missing, written '?'",
        "remarks: 1,500 distinct texts",
        "free text",
    ):
        assert note in shown
    schema = load_schema(out)
    assert [(c.name, c.kind) for c in schema.columns] == [
        ("admitted", "date"), ("at", "time"), ("ward", "categorical"), ("smoker", "boolean"), ("alive", "boolean"),
        ("fever", "decimal"), ("costs", "decimal"),
    ]  # fmt: skip
    assert schema.column("costs").spikes == (0,)
    assert schema.target == "alive"
    assert call(["schema", files[0], "-o", str(tmp_path / "k.toml"), "--kind", "ward=nonsense"]) == 2
    assert "expected a kind in" in capsys.readouterr().err
    assert call(["schema", "-o", str(tmp_path / "k.toml")]) == 2


def test_domains_of_a_public_table_are_declared_and_the_data_only_checked(sites, tmp_path, capsys):
    out = tmp_path / "s.toml"
    arguments = ["schema", str(sites / "site0.csv"), "--public", str(sites / "public.csv"), "--clip", "-o", str(out)]
    assert call(arguments) == 0
    assert "every domain was read from the public table" in capsys.readouterr().out
    schema = load_schema(out)
    assert schema.read_from_data == ()
    assert {column.source for column in schema.columns} == {"public.csv"}
    clipped = 0
    for number in range(3):  # three sites read their rows under it as they are, without a manual step
        file = SiteFile(
            name=f"s{number}", federation="f", data=str(sites / f"site{number}.csv"), ledger="", log="", by="column",
            records_per_client=1, client_column="patient_id", records=1, epsilon=1.0, delta=0.0, unit="client", seed=None,
            agreed=(),
        )  # fmt: skip
        hosted = read_hosted(file, schema)
        assert len(hosted.accounts) == 400 + 100 * number
        assert hosted.accounts[0] == f"patient_id p{number}-00000"  # spellings of one name are one account
        clipped += sum(hosted.clients.data.clipped.values())
    assert clipped > 0


def test_sdv_metadata_goes_out_and_in(sites, tmp_path):
    out = tmp_path / "m.json"
    assert call(["schema", str(sites / "site0.csv"), "-o", str(out)]) == 0
    kinds = {name: entry["sdtype"] for name, entry in json.loads(out.read_text())["columns"].items()}
    assert kinds["patient_id"] == "id"
    assert kinds["admitted"] == kinds["at"] == "datetime"
    assert kinds["remarks"] == "unknown"
    arguments = [
        "synthesize",
        str(sites / "site0.csv"),
        "--schema",
        str(out),
        "--method",
        "independent",
        "--epsilon",
        "4",
    ]
    assert call([*arguments, "--rows", "20", "--out", str(tmp_path / "r")]) == 0


def test_a_table_with_everything_is_synthesized_and_sampled_without_a_manual_step(sites, tmp_path, capsys):
    arguments = [
        "synthesize",
        str(sites / "site2.csv"),
        "--method",
        "independent",
        "--epsilon",
        "4",
        "--target",
        "alive",
    ]
    assert call([*arguments, "--rows", "300", "--seed", "1", "--out", str(tmp_path / "r")]) == 0
    shown = capsys.readouterr().out
    assert "left out, being free text: remarks" in shown
    assert "made afresh in synthetic rows, being ids: patient_id" in shown
    frame = pq.read_table(tmp_path / "r/synthetic.parquet")
    assert frame.column_names == [name for name in mixed(1, 0).column_names if name != "remarks"]
    assert frame.column("patient_id").to_pylist()[:2] == ["syn-000001", "syn-000002"]
    assert pa.types.is_timestamp(frame.schema.field("seen").type)
    assert set(frame.column("ward").to_pylist()) == {"A", "B", "?"}
    assert abs(np.mean(np.array(frame.column("costs")) == 0) - 0.6) < 0.15
    at = f"{frame.column('at')[0].as_py():%H:%M}"  # a time that the model has: of some it has none under the noise
    wanted = {"admitted": "02.05.2020", "at": at, "ward": "?", "fever": "NA", "costs": "0", "alive": "1"}
    where = [part for pair in wanted.items() for part in ("--where", "=".join(pair))]
    assert call(["sample", str(tmp_path / "r"), "--rows", "4", *where, "-o", str(tmp_path / "some.csv")]) == 0
    rows = read_frame(tmp_path / "some.csv").to_pylist()
    assert rows[0]["patient_id"] == "syn-000301"
    for row in rows:
        assert (row["ward"], row["fever"], float(row["costs"]), row["alive"]) == ("?", None, 0.0, "1")
        assert row["admitted"][6:] == "2020"
    assert (
        call(["sample", str(tmp_path / "r"), "--rows", "4", "--where", "at=noon", "-o", str(tmp_path / "x.csv")]) == 2
    )
    assert "column 'at' has no value 'noon'" in capsys.readouterr().err
