"""Every command with good input, in one process (the commands share compiled functions)."""

import hashlib
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from populace.cli.main import call
from populace.tables.embedded import harbour
from populace.tables.table import read_frame

QUICK = ("--method", "independent")  # where the method does not matter
LIGHT = (
    "--method",
    "poll",
    *(f"--set={one}" for one in ("stages=1", "chains=1", "langevin_steps=60", "latent_classes=4")),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    table = harbour()
    table.take(np.arange(800)).save(folder / "harbour.parquet")
    table.schema.save(folder / "harbour.toml")
    return folder


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    arguments = ["synthesize", str(data / "harbour.parquet"), "--schema", str(data / "harbour.toml"), *LIGHT]
    assert call([*arguments, "--epsilon", "4", "--rows", "500", "--seed", "1", "--out", str(out)]) == 0
    return out


def test_synthesize_leaves_a_whole_run(run):
    names = {path.name for path in run.iterdir()}
    assert names == {
        "run.json", "privacy.json", "privacy.html", "generator.json", "generator.npz", "synthetic.parquet",
    }  # fmt: skip
    document = json.loads((run / "run.json").read_text())
    assert document["status"] == "finished"
    assert document["clients"] == 800
    assert document["traffic"]["messages"] == 800
    assert document["seconds"]["total"] > 0
    assert pq.read_metadata(run / "synthetic.parquet").num_rows == 500


def test_privacy_json_marks_domains_only_when_they_were_read(run, data, tmp_path):
    assert "read-from-data" not in (run / "privacy.json").read_text()
    out = tmp_path / "inferred"
    assert (
        call(["synthesize", *QUICK, str(data / "harbour.parquet"), "--epsilon", "1", "--rows", "50", "--out", str(out)])
        == 0
    )
    privacy = json.loads((out / "privacy.json").read_text())
    assert set(privacy["domains"].values()) == {"read-from-data"}
    assert len(privacy["domains"]) == 11
    assert "from the operating system's generator" in privacy["randomness"]
    assert "simulated on one machine, which held all records" in privacy["statement"]


def test_seeded_runs_repeat_and_are_marked(run, data, tmp_path, capsys):
    out = tmp_path / "again"
    arguments = ["synthesize", str(data / "harbour.parquet"), "--schema", str(data / "harbour.toml"), *LIGHT]
    assert call([*arguments, "--epsilon", "4", "--rows", "500", "--seed", "1", "--out", str(out)]) == 0
    assert read_frame(out / "synthetic.parquet").equals(read_frame(run / "synthetic.parquet"))
    assert "reproducible, not private" in capsys.readouterr().out
    assert "reproducible, not private" in (out / "privacy.json").read_text()


def test_unseeded_runs_differ(data, tmp_path):
    for name in ("a", "b"):
        arguments = ["synthesize", *QUICK, str(data / "harbour.parquet"), "--schema", str(data / "harbour.toml")]
        assert call([*arguments, "--epsilon", "1", "--rows", "100", "--out", str(tmp_path / name)]) == 0
    assert not read_frame(tmp_path / "a/synthetic.parquet").equals(read_frame(tmp_path / "b/synthetic.parquet"))


def test_declared_rules_hold_in_every_synthetic_row(run):
    frame = read_frame(run / "synthetic.parquet").to_pandas()
    assert (frame["years_in_town"] <= frame["age"]).all()


def test_sample_and_where(run, tmp_path, capsys):
    out = tmp_path / "more.csv"
    assert call(["sample", str(run), "--rows", "70", "--where", "district=quayside", "-o", str(out)]) == 0
    frame = read_frame(out)
    assert frame.num_rows == 70
    assert set(frame.column("district").to_pylist()) == {"quayside"}
    assert "4-LDP" in capsys.readouterr().out
    seeded = [tmp_path / "x.parquet", tmp_path / "y.parquet"]
    for path in seeded:
        assert call(["sample", str(run), "--rows", "9", "--seed", "3", "-o", str(path)]) == 0
    assert read_frame(seeded[0]).equals(read_frame(seeded[1]))


def test_evaluate_writes_metrics_and_a_self_contained_page(run, data, capsys):
    assert call(["evaluate", str(run), "--real", str(data / "harbour.parquet"), "--target", "owns_home"]) == 0
    assert "two-way distance" in capsys.readouterr().out
    metrics = json.loads((run / "metrics.json").read_text())
    assert 0 < metrics["one_way"]["mean_tvd"] < 0.5
    assert len(metrics["two_way"]["tvd"]) == 11
    areas = metrics["metrics"]["auc: logistic regression"]["values"]
    assert set(areas) >= {"synthetic", "real", "majority class", "product of the true one-way tables"}
    assert areas["real"]["value"] > 0.75
    assert metrics["cost"]["traffic"]["bits_from_one_client"] > 0
    page = (run / "report.html").read_text()
    assert "4-LDP" in page
    assert "reproducible, not private" in page
    assert page.count("<script") == 1  # which copies the summary
    assert "src=" not in page
    assert 'href="privacy.html"' in page
    assert hashlib.sha256((run / "privacy.json").read_bytes()).hexdigest() in page
    publishable, figures = (part.partition("</pre>")[0] for part in page.split('<pre id="summary-')[1:])
    assert "4-LDP" in publishable
    assert "real rows" not in publishable
    assert "do not publish" in figures
    assert f"{areas['real']['value']:.3f}" not in publishable
    assert page.count("<svg") > 11 + 4
    assert "populace synthesize" in page


@pytest.mark.slow
def test_evaluate_compares_runs(run, data, tmp_path, capsys):
    other = tmp_path / "other"
    arguments = ["synthesize", *QUICK, str(data / "harbour.parquet"), "--schema", str(data / "harbour.toml")]
    assert call([*arguments, "--epsilon", "1", "--rows", "200", "--seed", "1", "--out", str(other)]) == 0
    assert call(["evaluate", str(other), str(run), "--real", str(data / "harbour.parquet"), "--json"]) == 0
    assert len(json.loads((other / "comparison.json").read_text())["runs"]) == 2
    assert (other / "comparison.html").is_file()
    assert not (other / "report.html").exists()
    assert '"1-LDP (simulated; reproducible, not private)"' in capsys.readouterr().out


def test_schema_proposes_and_marks(data, tmp_path, capsys):
    out = tmp_path / "proposed.toml"
    assert call(["schema", str(data / "harbour.parquet"), "-o", str(out)]) == 0
    assert out.read_text().count('domain = "read-from-data"') == 11
    assert "read from the data" in capsys.readouterr().out
    arguments = [
        "synthesize",
        *QUICK,
        str(data / "harbour.parquet"),
        "--schema",
        str(out),
        "--epsilon",
        "1",
        "--rows",
        "10",
    ]
    assert call([*arguments, "--out", str(tmp_path / "r")]) == 0


def test_plan_predicts(data, capsys):
    arguments = ["plan", "--schema", str(data / "harbour.toml"), "--clients", "5000", "--epsilon", "2", *QUICK]
    assert call([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["method"]
    assert document["guarantee"]["bound"] == "2-LDP"
    assert document["seconds_simulated"] > 0
    assert call(arguments) == 0
    assert "predicted" in capsys.readouterr().out


def test_methods_lists_everything(capsys):
    assert call(["methods", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"independent"} <= {entry["name"] for entry in document}
    assert call(["methods"]) == 0
    shown = capsys.readouterr().out
    assert "default for tables: census" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.slow
def test_demo_runs_twice(tmp_path, capsys):
    for _ in range(2):
        assert call(["demo", "--out", str(tmp_path / "demo")]) == 0
    assert (tmp_path / "demo-2" / "census" / "report.html").is_file()
    said = capsys.readouterr().out
    assert "report.html" in said
    assert "method: census, the default for tables" in said
    privacy = json.loads((tmp_path / "demo" / "census" / "privacy.json").read_text())
    assert not privacy["seeded"]
    assert "NOT covered" not in privacy["statement"]
    (census, poll) = [line.split() for line in said.splitlines() if line.startswith(("census  (", "poll  "))][-2:]
    assert (census[0], poll[0]) == ("census", "poll")
    assert float(census[-2]) < 0.08 < float(poll[-2])  # the price of local privacy
    assert float(census[-1]) > float(poll[-1])


def test_client_column(data, tmp_path):
    frame = read_frame(data / "harbour.parquet")
    import pyarrow as pa

    household = pa.array(np.arange(frame.num_rows) // 3)
    pq.write_table(frame.append_column("household_id", household), tmp_path / "h.parquet")
    arguments = ["synthesize", *QUICK, str(tmp_path / "h.parquet"), "--client-column", "household_id", "--epsilon", "2"]
    assert call([*arguments, "--rows", "20", "--out", str(tmp_path / "r")]) == 0
    document = json.loads((tmp_path / "r/run.json").read_text())
    assert document["clients"] == 267
    assert "household_id" not in read_frame(tmp_path / "r/synthetic.parquet").column_names


@pytest.mark.parametrize("command", ["", "demo", "methods", "schema", "plan", "synthesize", "sample", "evaluate"])
def test_help_shows_an_example(command, capsys):
    assert call([*([command] if command else []), "--help"]) == 0
    shown = capsys.readouterr().out
    assert ("Example" in shown) or not command


def test_evaluate_without_a_target_says_so(data, tmp_path, capsys):
    arguments = ["synthesize", *QUICK, str(data / "harbour.parquet"), "--epsilon", "1", "--rows", "60", "--seed", "1"]
    assert call([*arguments, "--out", str(tmp_path / "r")]) == 0
    assert call(["evaluate", str(tmp_path / "r"), "--real", str(data / "harbour.parquet")]) == 0
    assert "no target was named" in capsys.readouterr().out
    assert "No prediction" in (tmp_path / "r/report.html").read_text()


def test_runs_with_other_columns_do_not_compare(run, data, tmp_path, capsys):
    frame = read_frame(data / "harbour.parquet").drop_columns(["age", "years_in_town"])
    pq.write_table(frame, tmp_path / "less.parquet")
    arguments = ["synthesize", *QUICK, str(tmp_path / "less.parquet"), "--epsilon", "1", "--rows", "60", "--seed", "1"]
    assert call([*arguments, "--out", str(tmp_path / "r")]) == 0
    capsys.readouterr()
    assert call(["evaluate", str(run), str(tmp_path / "r"), "--real", str(data / "harbour.parquet")]) == 2
    assert "different columns" in capsys.readouterr().err


def test_marks_travel_with_the_bound(run, tmp_path, capsys):
    assert call(["sample", str(run), "--rows", "3", "-o", str(tmp_path / "x.csv")]) == 0
    assert "4-LDP (simulated; reproducible, not private)" in capsys.readouterr().out
