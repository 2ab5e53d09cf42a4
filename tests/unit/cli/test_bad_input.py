"""Bad input: one sentence on stderr, exit code 2, no traceback, nothing half-written left behind."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from populace.cli.main import call
from populace.privacy.guarantee import FORMAT
from populace.tables.embedded import harbour
from populace.version import __version__

TODAY = {"version": __version__, "format": FORMAT}

TOML = """
format = 1
[[column]]
name = "a"
categories = ["x", "y"]
[[column]]
name = "b"
edges = [0, 1, 2]
"""


@pytest.fixture
def files(tmp_path):
    pq.write_table(pa.table({"a": ["x", "y"] * 20, "b": [0.5, 1.5] * 20}), tmp_path / "good.parquet")
    pq.write_table(pa.table({"a": pa.array([], pa.string())}), tmp_path / "empty.parquet")
    pq.write_table(pa.table({"a": ["x", "z"], "b": [0.5, 1.5]}), tmp_path / "unknown.parquet")
    pq.write_table(pa.table({"a": ["x", "y"], "b": [0.5, float("nan")]}), tmp_path / "nan.parquet")
    pq.write_table(pa.table({"a": ["x", "y"], "b": [0.5, 7.0]}), tmp_path / "outside.parquet")
    pq.write_table(pa.table({"a": ["x", "y"], "c": ["one", "one"]}), tmp_path / "other.parquet")
    whole = (tmp_path / "good.parquet").read_bytes()
    (tmp_path / "truncated.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "schema.toml").write_text(TOML)
    (tmp_path / "broken.toml").write_text("format = 1\n[[column]\n")
    np.savez(tmp_path / "images.npz", x=np.zeros((4, 2, 2), np.uint8), y=np.zeros(4, np.int64))
    return tmp_path


CASES = {
    "missing file": (["nowhere.parquet"], "no file"),
    "empty table": (["empty.parquet"], "no rows"),
    "unknown category": (["unknown.parquet", "--schema", "schema.toml"], "unknown category 'z' in row 2"),
    "NaN in a column that is not nullable": (["nan.parquet", "--schema", "schema.toml"], "no value in row 2"),
    "outside the edges": (["outside.parquet", "--schema", "schema.toml"], "outside its declared cells 0 to 2"),
    "schema does not match": (["other.parquet", "--schema", "schema.toml"], "column 'b' is not in the table"),
    "broken schema": (["good.parquet", "--schema", "broken.toml"], "cannot read the schema"),
    "no schema file": (["good.parquet", "--schema", "no.toml"], "no schema file"),
    "epsilon zero": (["good.parquet", "--epsilon", "0"], "expected epsilon above 0"),
    "epsilon negative": (["good.parquet", "--epsilon", "-1"], "expected epsilon above 0"),
    "epsilon NaN": (["good.parquet", "--epsilon", "nan"], "expected epsilon above 0"),
    "epsilon infinite": (["good.parquet", "--epsilon", "inf"], "expected epsilon above 0 and finite"),
    "epsilon tiny": (["good.parquet", "--epsilon", "1e-300"], "in [1e-06, 50]"),
    "epsilon huge": (["good.parquet", "--epsilon", "800"], "in [1e-06, 50]"),
    "epsilon text": (["good.parquet", "--epsilon", "much"], "Invalid value for '--epsilon'"),
    "images": (["images.npz", "--method", "independent"], "takes table data, and the data are images"),
    "one client": (["other.parquet", "--client-column", "c"], "expected at least two clients"),
    "no client column": (["good.parquet", "--client-column", "zz"], "no client column 'zz'"),
    "both splits": (["good.parquet", "--client-column", "a", "--records-per-client", "2"], "not both"),
    "truncated": (["truncated.parquet"], "truncated"),
    "unknown method": (["good.parquet", "--method", "magic"], "unknown method 'magic'"),
    "unknown parameter": (["good.parquet", "--set", "colour=3"], "no setting 'colour'"),
    "bad parameter": (["good.parquet", "--set", "clients_per_batch=many"], "clients_per_batch as a whole number"),
    "malformed set": (["good.parquet", "--set", "batch"], "expected --set name=value"),
    "epsilon by set": (["good.parquet", "--set", "epsilon=3"], "--epsilon"),
    "delta for a pure method": (["good.parquet", "--delta", "1e-5"], "leave --delta out"),
    "trust not offered": (["good.parquet", "--trust", "central"], "works with trust local"),
    "unknown target": (["good.parquet", "--target", "zz"], "the target 'zz' is not a column"),
    "no rows asked": (["good.parquet", "--rows", "0"], "rows of at least 1"),
    "records per client": (["good.parquet", "--records-per-client", "0"], "at least 1"),
    "suffix": (["schema.toml"], "expected a table in one of"),
    "negative seed": (["good.parquet", "--seed", "-3"], "expected a seed"),
}


@pytest.mark.parametrize("name", CASES)
def test_synthesize(name, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    arguments, sentence = CASES[name]
    epsilon = [] if "--epsilon" in arguments else ["--epsilon", "1"]
    method = [] if "--method" in arguments or "images" in name else ["--method", "independent"]
    code = call(["synthesize", *arguments, *epsilon, *method, "--out", "run"])
    error = capsys.readouterr().err
    assert code == 2
    assert sentence in error
    assert error.count("\n") == 1
    assert "Traceback" not in error
    assert not (files / "run").exists()


def test_finished_and_different_runs_are_refused_and_kept(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    first = ["synthesize", "good.parquet", "--method", "independent", "--rows", "10", "--out", "run"]
    assert call([*first, "--epsilon", "1", "--seed", "1"]) == 0
    before = {path.name: path.read_bytes() for path in (files / "run").iterdir()}
    assert call([*first, "--epsilon", "1", "--seed", "1"]) == 2
    assert "holds a finished run" in capsys.readouterr().err
    begun = {"status": "unfinished", "digest": "other"}
    for more, sentence in (({}, "another populace (0.1.0) began"), (TODAY, "another specification")):
        (files / "run/run.json").write_text(json.dumps({**begun, **more}))
        assert call([*first, "--epsilon", "1", "--seed", "1"]) == 2
        assert sentence in capsys.readouterr().err
    (files / "run/run.json").write_bytes(before["run.json"])
    assert {path.name: path.read_bytes() for path in (files / "run").iterdir()} == before
    (files / "full").mkdir()
    (files / "full/letter.txt").write_text("dear")
    assert call(["synthesize", "good.parquet", "--epsilon", "1", "--out", "full"]) == 2
    assert "not empty" in capsys.readouterr().err
    assert call(["synthesize", "good.parquet", "--epsilon", "1", "--out", "good.parquet"]) == 2
    assert "is a file" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["sample", "nowhere", "--rows", "5", "-o", "x.csv"], "is not a run"),
    (["sample", "run", "--rows", "0", "-o", "x.csv"], "rows of at least 1"),
    (["sample", "run", "--rows", "5", "-o", "x.txt"], "expected an output name"),
    (["sample", "run", "--rows", "5", "-o", "good.parquet"], "exists"),
    (["sample", "run", "--rows", "5", "--where", "a", "-o", "x.csv"], "expected a condition such as"),
    (["sample", "run", "--rows", "5", "--where", "a=x", "--where", "a=y", "-o", "x.csv"], "leave no value"),
    (["sample", "run", "--rows", "5", "--where", "a=q", "-o", "x.csv"], "has no value 'q'"),
    (["sample", "run", "--rows", "5", "--where", "q=1", "-o", "x.csv"], "no column 'q'"),
    (["evaluate", "run", "--real", "nowhere.parquet"], "no file"),
    (["evaluate", "run", "--real", "unknown.parquet"], "at least 10 real rows"),
    (["evaluate", "nowhere", "--real", "good.parquet"], "is not a run"),
    (["evaluate", "run", "--real", "good.parquet", "--target", "q"], "no column 'q'"),
    (["schema", "nowhere.csv", "-o", "s.toml"], "no file"),
    (["schema", "good.parquet", "-o", "s.txt"], "ending in .toml or .json"),
    (["schema", "good.parquet", "-o", "schema.toml"], "exists"),
    (["plan", "--schema", "schema.toml", "--clients", "0", "--epsilon", "1"], "expected clients at least 1"),
    (["plan", "--schema", "schema.toml", "--clients", "9", "--epsilon", "nan"], "expected epsilon"),
    (["plan", "--schema", "no.toml", "--clients", "9", "--epsilon", "1"], "no schema file"),
    (["nonsense"], "No such command"),
    (["synthesize"], "Missing"),
])  # fmt: skip
def test_other_commands(arguments, sentence, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    base = ["synthesize", "good.parquet", "--method", "independent", "--schema", "schema.toml", "--rows", "10"]
    assert call([*base, "--epsilon", "1", "--seed", "1", "--out", "run"]) == 0
    capsys.readouterr()
    assert call(arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_full_disk_leaves_nothing_under_the_final_name(tmp_path, monkeypatch, capsys):
    """Writes beyond a small file size fail, as on a full disk: one sentence, exit 2, and the run stays resumable."""
    harbour().save(tmp_path / "h.parquet")
    arguments = ["synthesize", "h.parquet", "--epsilon", "4", "--method", "independent"]
    arguments += ["--seed", "1", "--rows", "200000", "--out", "run"]
    limited = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)); "
        "from populace.cli.main import run; run()"
    )
    failed = subprocess.run([sys.executable, "-c", limited, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert failed.returncode == 2
    assert "cannot write" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not (tmp_path / "run/synthetic.parquet").exists()
    assert not list((tmp_path / "run").glob(".*.tmp"))
    monkeypatch.chdir(tmp_path)
    assert call(arguments) == 0
    assert "resuming" in capsys.readouterr().out
    assert pq.read_metadata(tmp_path / "run/synthetic.parquet").num_rows == 200_000


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("both", [False, True], ids=["what is said", "and errors"])
def test_a_full_disk_under_what_is_said_ends_in_a_sentence_and_exit_code_2(both):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "populace", "methods"],
            stdout=full,
            stderr=full if both else subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    if not both:
        assert done.stderr.count("\n") == 1
        assert "No space left" in done.stderr
