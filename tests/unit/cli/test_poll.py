"""`populace poll collect` and `fit`, with good input and bad."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from populace.cli.main import call
from populace.tables.table import read_frame

FAST = ["--set", "latent_classes=2", "--set", "prior_scale=0.6", "--set", "chains=1", "--set", "langevin_steps=10"]


@pytest.fixture(scope="module")
def place(small_table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("poll")
    small_table.save(folder / "small.csv")
    small_table.take(np.arange(300)).save(folder / "north.parquet")
    small_table.take(np.arange(300, 600)).save(folder / "south.parquet")
    small_table.schema.save(folder / "small.toml")
    (folder / "broken.toml").write_text("format = 1\n[[column]\n")
    (folder / "rubbish.parquet").write_bytes(b"not a file of answers")
    return folder


@pytest.fixture(scope="module")
def run(place):
    """Two sites collect, exactly; a server fits."""
    for name, first in (("north", "0"), ("south", "300")):
        data, out = str(place / f"{name}.parquet"), str(place / f"{name[0]}.parquet")
        words = ["poll", "collect", data, "--schema", str(place / "small.toml"), "--epsilon", "3", *FAST]
        assert call([*words, "--clients", "600", "--first-client", first, "--out", out]) == 0
    answers = [str(place / "n.parquet"), str(place / "s.parquet")]
    words = ["poll", "fit", *answers, "--schema", str(place / "small.toml"), "--rows", "200"]
    assert call([*words, "--out", str(place / "run")]) == 0
    return place / "run"


def test_a_poll_of_two_sites_is_a_run(run, place):
    document = json.loads((run / "run.json").read_text())
    assert document["clients"] == 600
    assert [file["first_client"] for file in document["answers"]["files"]] == [0, 300]
    privacy = json.loads((run / "privacy.json").read_text())
    assert privacy["headline"] == "3-DP"  # whoever collects holds the records and adds the noise
    assert privacy["ledger"]["charges"] == 600
    assert pq.read_metadata(run / "synthetic.parquet").num_rows == 200
    assert (place / "north.parquet.ledger").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_other_commands_take_the_run(run, place):
    out = place / "more.csv"
    assert call(["sample", str(run), "--rows", "20", "--where", "colour=red", "-o", str(out)]) == 0
    assert set(read_frame(out).column("colour").to_pylist()) == {"red"}
    assert call(["evaluate", str(run), "--real", str(place / "north.parquet")]) == 0
    page = (run / "report.html").read_text()
    assert "populace poll fit" in page
    assert "populace synthesize" not in page
    assert call(["audit", str(run), "--samples", "2000", "--seed", "1"]) == 0
    assert json.loads((run / "audit.json").read_text())["flagged"] is False


def test_a_collection_says_what_it_did(place, tmp_path, capsys):
    words = ["poll", "collect", str(place / "small.csv"), "--schema", str(place / "small.toml"), "--epsilon", "3"]
    assert call([*words, "--seed", "1", "--out", str(tmp_path / "a.parquet")]) == 0
    shown = capsys.readouterr()
    assert "600 answers, of clients 0 to 599" in shown.out
    assert "reproducible, not private" in shown.out
    assert "client 600 of 600" in shown.err


def test_help_is_there(capsys):
    assert call(["poll", "--help"]) == 0
    assert "collect" in capsys.readouterr().out
    for name in ("collect", "fit"):
        assert call(["poll", name, "--help"]) == 0
        assert "populace poll" in " ".join(capsys.readouterr().out.split())


GOOD = ["small.csv", "--schema", "small.toml", "--epsilon", "3"]
COLLECT = {
    "no file": (["none.csv", *GOOD[1:]], "no file none.csv"),
    "no schema": (["small.csv", "--epsilon", "3"], "Missing option '--schema'"),
    "broken schema": (["small.csv", "--schema", "broken.toml", "--epsilon", "3"], "cannot read the schema"),
    "epsilon": ([*GOOD[:4], "0"], "expected epsilon above 0"),
    "epsilon by set": ([*GOOD, "--set", "epsilon=3"], "--epsilon"),
    "unknown setting": ([*GOOD, "--set", "colour=3"], "no setting 'colour'"),
    "two stages": ([*GOOD, "--set", "stages=2"], "stages"),
    "unknown target": ([*GOOD, "--target", "zz"], "the target 'zz' is not a column"),
    "both splits": ([*GOOD, "--client-column", "a", "--records-per-client", "2"], "not both"),
    "no such column": ([*GOOD, "--client-column", "who"], "no client or person column 'who'"),
    "a column of the schema": ([*GOOD, "--client-column", "size"], "also a column of the schema"),
    "records": ([*GOOD, "--records-per-client", "0"], "records-per-client of at least 1"),
    "too few clients": ([*GOOD, "--clients", "599"], "expected clients in [600,"),
    "negative number": ([*GOOD, "--first-client", "-1"], "expected first-client in [0,"),
    "numbers too large": ([*GOOD, "--first-client", "2147483647"], "expected first-client in [0,"),
    "seed": ([*GOOD, "--seed", "-1"], "expected a seed in [0,"),
    "ledger of a seed": ([*GOOD, "--seed", "1", "--ledger", "x"], "leave --ledger or --seed out"),
    "ledger in no folder": ([*GOOD, "--ledger", "none/x"], "cannot open the ledger"),
    "images": (["x.npz", *GOOD[1:]], "expected a table in one of"),
    "embedded": (["embedded:mars", *GOOD[1:]], "expected embedded:harbour"),
}


@pytest.mark.parametrize("name", COLLECT)
def test_bad_input_to_collect(name, place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(place)
    arguments, sentence = COLLECT[name]
    before = sorted(path.name for path in place.iterdir())
    assert call(["poll", "collect", *arguments, "--out", str(tmp_path / "a.parquet")]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
    assert sorted(path.name for path in place.iterdir()) == before


def test_an_output_that_exists_is_kept(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(place)
    (tmp_path / "a.parquet").write_text("mine")
    assert call(["poll", "collect", *GOOD, "--out", str(tmp_path / "a.parquet")]) == 2
    assert "exists; choose another --out" in capsys.readouterr().err
    assert (tmp_path / "a.parquet").read_text() == "mine"
    assert call(["poll", "collect", *GOOD, "--out", str(tmp_path / "a.csv")]) == 2
    assert "ends in .parquet" in capsys.readouterr().err
    assert call(["poll", "collect", *GOOD, "--out", str(tmp_path / "none/a.parquet")]) == 2
    assert "no folder" in capsys.readouterr().err
    assert not (place / "small.csv.ledger").exists()


FIT = {
    "no file": (["none.parquet"], "no file none.parquet"),
    "rubbish": (["rubbish.parquet"], "expected answers that `populace poll collect` wrote"),
    "a table": (["north.parquet"], "north.parquet holds no answers"),
    "rows": (["n.parquet", "--rows", "0"], "rows of at least 1"),
    "setting": (["n.parquet", "--set", "colour=1"], "no setting 'colour'"),
    "questions": (["n.parquet", "--set", "epsilon=1"], "changes the questions"),
    "twice": (["n.parquet", "n.parquet"], "named twice"),
}


@pytest.mark.parametrize("name", FIT)
def test_bad_input_to_fit(name, run, place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(place)
    arguments, sentence = FIT[name]
    assert call(["poll", "fit", *arguments, "--schema", "small.toml", "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
