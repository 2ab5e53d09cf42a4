"""Runs that 0.2.0 wrote open and are verified, though settings have other names now; what it left unfinished is refused."""

import json
import shutil
from pathlib import Path

import pytest

from populace.cli.main import call
from populace.runs.run import load_run

WRITTEN = Path(__file__).parent / "runs_of_0_2_0"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    shutil.copytree(WRITTEN, tmp_path / "runs")
    monkeypatch.chdir(tmp_path / "runs")
    return tmp_path / "runs"


@pytest.mark.parametrize("name", ["moments", "flgan", "chain"])
def test_it_opens_and_is_sampled(runs, name):
    run = load_run(runs / name)
    assert run.guarantee.epsilon == pytest.approx(4, rel=0.01)
    assert run.guarantee.trust == "silo"
    assert len(run.sample(5)) == 5


@pytest.mark.parametrize(
    "name", ["moments", pytest.param("flgan", marks=pytest.mark.slow), pytest.param("chain", marks=pytest.mark.slow)]
)
def test_its_claim_is_made_again_from_its_old_settings(runs, name, capsys):
    """All but the page, which another version made, is checked; a changed old setting is found out."""
    assert call(["verify", name]) == 3
    printed = capsys.readouterr().out
    assert "1 could not be checked" in printed
    assert "privacy.html: was made by another version" in printed
    path = runs / name / "privacy.json"
    document = json.loads(path.read_text())
    document["run"]["parameters"]["epsilon"] = 3.0
    path.write_text(json.dumps(document))
    assert call(["verify", name]) == 1


def test_an_unfinished_run_is_refused_in_words_and_kept(runs, capsys):
    before = {path.name: path.read_bytes() for path in (runs / "interrupted").iterdir()}
    given = [
        "synthesize",
        "other.csv",
        "--schema",
        "people.toml",
        "--epsilon",
        "4",
        "--method",
        "fl-gan",
        "--no-ledger",
    ]
    given += ["--records-per-client", "30", "--rows", "200", "--set", "generator_steps=400", "--out", "interrupted"]
    assert call(given) == 2
    assert "holds an unfinished run that another populace (0.2.0) began" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (runs / "interrupted").iterdir()} == before


def test_an_old_name_on_the_command_line_is_answered_with_the_new_one(runs, capsys):
    given = ["synthesize", "people.csv", "--schema", "people.toml", "--epsilon", "4", "--no-ledger", "--out", "new"]
    assert call([*given, "--method", "fl-gan", "--set", "bound=1"]) == 2
    assert "it is called 'clip_norm'" in capsys.readouterr().err
    assert not (runs / "new").exists()
