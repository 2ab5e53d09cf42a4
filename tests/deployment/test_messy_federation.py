"""A table with dates, times, ids, free text and gaps at three real sites: domains from a public table, no step by hand."""

import json

import pyarrow.parquet as pq
import pytest

pytest.importorskip("nvflare")
from federation_for_tests import environment, free_port
from messy_table import HEADER, messy_rows, write_messy_table
from populace.cli.main import call
from populace.tables.files import read_json

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SITES = ("north", "south", "west")
EPSILON = "12"
QUICK = [
    part
    for pair in ("chains=1", "langevin_steps=24", "latent_classes=4", "prior_scale=1", "stages=1")
    for part in ("--set", pair)
]


def done(*words):
    assert call([str(word) for word in words]) == 0, words


@pytest.fixture
def place(tmp_path):
    """Three sites' files, which together are the table, and a public table of the same form."""
    rows = messy_rows()
    write_messy_table(tmp_path / "all.csv", rows)
    write_messy_table(tmp_path / "public.csv", messy_rows(1_200, seed=9))
    for number, site in enumerate(SITES):
        write_messy_table(tmp_path / f"{site}.csv", rows[200 * number : 200 * (number + 1)])
    return tmp_path


def test_three_sites_make_rows_of_a_messy_table(place, capsys):
    files = [place / f"{site}.csv" for site in SITES]
    schema, study, run = place / "visits.toml", place / "study", place / "run"
    done("schema", *files, "--public", place / "public.csv", "--clip", "--target", "smoker", "-o", schema)
    port = free_port()
    with environment():
        done(
            "federation",
            "init",
            study,
            "--name",
            "study",
            "--schema",
            schema,
            "--method",
            "poll",
            "--epsilon",
            EPSILON,
            "--port",
            port,
            *QUICK,
        )
        fingerprint = read_json(study / "federation.json")["fingerprint"]
        try:
            done("federation", "start", study)
            for site in SITES:
                join(place, site, fingerprint)
            said = capsys.readouterr().out
            assert said.count("left out, being free text: remarks") == len(SITES)
            assert "read from public data: public.csv" in said
            done("federation", "run", study, "--sites", len(SITES), "--rows", "600", "--out", run)
        finally:
            for site in SITES:
                call(["site", "stop", str(place / site)])
            call(["federation", "stop", str(study)])
    assert "NOT covered" not in capsys.readouterr().out  # no domain was read from a site's rows
    frame = pq.read_table(run / "synthetic.parquet")
    assert frame.column_names == [name for name in HEADER if name != "remarks"]
    assert len(set(frame.column("visit_id").to_pylist())) == 600
    assert json.loads((run / "run.json").read_text())["replies"] == 600
    out = place / "some.csv"
    done("sample", run, "--rows", "5", "--where", "admitted=2023-05-02", "--where", "costs=0", "-o", out)
    done("evaluate", run, "--real", place / "all.csv")
    assert (run / "report.html").is_file()


def join(place, site, fingerprint):
    """What the person at one site types, and the coordinator's one command between."""
    done("site", "request", place / site, "--name", site, "--org", site, "--federation", "study")
    done("federation", "approve", place / "study", place / site / "request" / "key" / f"{site}.request.zip")
    done(
        "site", "join", place / site, place / "study/sites" / f"{site}.signed.zip", "--fingerprint", fingerprint,
        "--proposal", place / "study/study.proposal.json", "--data", place / f"{site}.csv", "--epsilon", EPSILON,
    )  # fmt: skip
