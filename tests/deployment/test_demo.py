"""`populace federation demo`: one command, three sites, rows, report and ledgers."""

import json

import pytest

from populace.cli.main import call
from populace.federation.demo import SITES

pytest.importorskip("nvflare")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_the_demo_leaves_rows_report_and_one_charge_per_person(tmp_path, capsys):
    out = tmp_path / "demo"
    assert call(["federation", "demo", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert {path.name for path in (out / "run").iterdir()} >= {
        "run.json", "privacy.json", "privacy.html", "synthetic.parquet", "metrics.json", "report.html", "generator.json",
    }  # fmt: skip
    assert call(["verify", str(out / "run")]) == 0
    assert "could not be checked" not in capsys.readouterr().out
    privacy = json.loads((out / "run" / "privacy.json").read_text())
    assert privacy["bound"] == "4-DP"  # a site answers for its patients: it adds the noise
    assert "reproducible, not private" not in privacy["headline"]
    charged = 0
    for site in SITES:
        assert site in said
        assert call(["site", "status", str(out / site), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["process"] is None
        assert found["ledger"]["epsilon_of_the_account_that_spent_most"] == 4.0
        assert found["ledger"]["charges"] == found["ledger"]["accounts_charged"]
        charged += found["ledger"]["charges"]
    assert charged == json.loads((out / "run" / "run.json").read_text())["replies"] == 4_000
    assert call(["federation", "demo", "--out", str(out)]) == 2
    assert "is not empty" in capsys.readouterr().err
