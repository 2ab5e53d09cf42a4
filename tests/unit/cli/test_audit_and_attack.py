"""`populace audit` and `populace attack`: what they print, where they write, and one sentence for every bad input."""

import json
import sys

import pytest

from populace.cli.main import call
from populace.tables.embedded import harbour
from populace.tables.table import write_frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of `independent` on a part of the invented survey, its rows, and rows that were not used."""
    path = tmp_path_factory.mktemp("runs")
    frame = harbour().frame.select(["district", "occupation", "health", "boat", "owns_home"])
    write_frame(frame.slice(0, 1500), path / "real.parquet")
    write_frame(frame.slice(1500, 1500), path / "other.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        base = [
            "synthesize",
            "real.parquet",
            "--epsilon",
            "2",
            "--method",
            "independent",
            "--rows",
            "600",
            "--seed",
            "1",
        ]
        assert call([*base, "--out", "run"]) == 0
    return path


def test_audit_of_a_mechanism(capsys, tmp_path):
    path = tmp_path / "a.json"
    arguments = ["audit", "grr", "--epsilon", "1", "--size", "4", "--samples", "4000", "--seed", "3"]
    assert call([*arguments, "--out", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "grr, 4 values, simulate" in printed
    assert "not refuted" in printed
    assert "does not prove the claim" in printed
    document = json.loads(path.read_text())
    assert document["claimed"]["epsilon"] == 1
    assert [row["what"] for row in document["rows"]] == ["grr, 4 values, simulate", "grr, 4 values, release"]
    for row in document["rows"]:
        assert row.keys() >= {"what", "claimed_epsilon", "measured_epsilon", "confidence", "samples", "flagged"}
        assert row["measured_epsilon"] > 0.5
        assert row["samples"] == 8000


def test_audit_of_a_run_goes_into_its_folder(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert call(["audit", "run", "--samples", "3000", "--seed", "1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((folder / "run/audit.json").read_text())
    assert printed["claimed"]["bound"] == "2-LDP"
    assert printed["rows"][0]["claimed_epsilon"] == 2
    assert printed["rows"][0]["measured_epsilon"] > 1
    assert not printed["flagged"]


def test_audit_of_canaries(capsys):
    arguments = ["audit", "canaries", "--canaries", "1000", "--guesses", "200", "--correct", "180", "--delta", "1e-5"]
    assert call([*arguments, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert row["measured_epsilon"] == pytest.approx(1.796285, abs=1e-5)
    assert row["claimed_epsilon"] is None
    assert call([*arguments, "--epsilon", "1"]) == 1
    assert "CLAIM REFUTED" in capsys.readouterr().out


@pytest.mark.slow
def test_audit_of_a_silo_method_on_images(capsys):
    """Messages, canaries in one run and recorded releases, each row with whom it is about."""
    arguments = ["audit", "moments", "--images", "--epsilon", "2", "--samples", "2000", "--seed", "1"]
    assert call([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["claimed"]["trust"] == "silo"
    names = [row["what"] for row in document["rows"]]
    for kind in ("canaries in one run", "scale of the noise", "whole message", "as Gaussian"):
        assert any(name.startswith("moments, silo, images") and kind in name for name in names)
    for row in document["rows"]:
        assert row.items() >= {"unit": "record", "neighbours": "zero-out", "trust": "silo", "flagged": False}.items()
        assert row["delta"] > 0
    recorded = document["recorded"][0]
    assert recorded["problems"] == []
    assert 0.9 < recorded["largest_difference_over_bound"] < 1.01
    assert not document["flagged"]


def test_audit_of_a_central_method(capsys):
    assert call(["audit", "moments", "--images", "--set", "trust=central", "--seed", "1"]) == 0
    printed = capsys.readouterr().out
    assert "moments, central, images, scale of the noise" in printed
    assert "largest difference / bound" in printed
    assert "nothing found" in printed
    assert "whole message" not in printed  # nobody adds noise to it


def test_audit_of_the_gaussian_mechanism(capsys):
    assert call(["audit", "gaussian", "--epsilon", "2", "--seed", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["what"] for row in document["rows"]] == ["gaussian, keyed, scale", "gaussian, exact, scale"]
    assert all(1.98 < row["certain_epsilon"] < 2 for row in document["rows"])
    assert [row["what"] for row in document["recorded"]] == ["gaussian, keyed, values", "gaussian, exact, values"]
    assert not document["flagged"]


def test_attack_on_a_run_and_its_own_synthetic_rows(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["populace", "attack", "run", "--real", "real.parquet"])
    arguments = [
        "attack",
        "run",
        "--real",
        "real.parquet",
        "--holdout",
        "other.parquet",
        "--targets",
        "2",
        "--shadows",
        "6",
    ]
    arguments += ["--attacked", "6", "--rows", "50", "--jobs", "1", "--sensitive", "health"]
    assert call(arguments) == 0
    printed = capsys.readouterr()
    assert "50 % proves nothing" in printed.out
    assert "attack: cell 12 of 12" in printed.err
    document = json.loads((folder / "run/attacks.json").read_text())
    membership = document["membership"]
    assert membership.keys() >= {"accuracy", "low", "high", "attacker", "targets", "models", "rows"}
    assert membership["models"] == 12
    assert document["attribute"]["column"] == "health"
    assert document["attribute"]["about"] == document["distances"]["about"] == "the run's own synthetic rows"
    assert document["distances"]["synthetic_rows"] == 600
    assert document["command"] == "populace attack run --real real.parquet"
    assert document["notes"]
    assert call([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == document


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["audit", "magic"], "neither a method"),
    (["audit", "grr", "--epsilon", "0"], "expected epsilon above 0"),
    (["audit", "grr", "--size", "1"], "expected size in [2, 4096]"),
    (["audit", "grr", "--size", "100000000000"], "expected size in [2, 4096]"),
    (["audit", "grr", "--samples", "5"], "expected samples at least 100"),
    (["audit", "grr", "--confidence", "1"], "expected confidence"),
    (["audit", "grr", "--schema", "x.toml"], "neither --schema nor --set"),
    (["audit", "independent", "--schema", "x.toml"], "no schema file"),
    (["audit", "independent", "--set", "colour=3"], "no setting 'colour'"),
    (["audit", "independent", "--clients", "0"], "expected clients at least 1"),
    (["audit", "all", "--set", "batch=3"], "leave it out with `all`"),
    (["audit", "all", "--images"], "leave it out with `all`"),
    (["audit", "poll", "--images"], "leave --images out"),
    (["audit", "gaussian", "--images"], "nor --images"),
    (["audit", "moments", "--images", "--schema", "x.toml"], "images are invented"),
    (["audit", "moments", "--set", "epsilon=3"], "not with --set"),
    (["audit", "moments", "--set", "trust=magic"], "expected"),
    (["audit", "moments", "--exact"], "leave it out"),
    (["audit", "fed-vae"], "claims nothing"),
    (["audit", "run", "--images"], "--images out"),
    (["audit", "run", "--epsilon", "1"], "a run carries its own epsilon"),
    (["audit", "run", "--clients", "5"], "leave --epsilon, --schema, --set, --clients"),
    (["audit", "run", "--records-per-client", "2"], "leave --epsilon, --schema, --set, --clients"),
    (["attack", "run", "--real", "real.parquet", "--records-per-client", "2"], "--records-per-client out"),
    (["audit", "grr", "--guesses", "4"], "populace audit canaries"),
    (["audit", "canaries"], "expected --canaries"),
    (["audit", "canaries", "--canaries", "4", "--guesses", "5", "--correct", "5"], "correct <= guesses <= canaries"),
    (["attack", "run"], "give the real rows once"),
    (["attack", "run", "real.parquet", "--real", "real.parquet"], "give the real rows once"),
    (["attack", "magic", "real.parquet"], "neither a method"),
    (["attack", "memorise", "nowhere.parquet"], "no file"),
    (["attack", "memorise", "real.parquet", "--epsilon", "3"], "no epsilon"),
    (["attack", "memorise", "real.parquet", "--rows", "4000"], "lower --rows"),
    (["attack", "memorise", "real.parquet", "--targets", "0"], "expected targets at least 1"),
    (["attack", "memorise", "real.parquet", "--shadows", "1"], "expected shadows at least 6"),
    (["attack", "memorise", "real.parquet", "--sensitive", "q"], "no column 'q'"),
    (["attack", "memorise", "real.parquet", "--jobs", "-1"], "expected jobs"),
    (["attack", "memorise", "real.parquet", "--holdout", "other.parquet"], "--holdout belongs"),
    (["attack", "run", "--real", "real.parquet", "--epsilon", "1"], "a run carries its own epsilon"),
    (["attack", "memorise", "real.parquet", "--out", "real.parquet"], "cannot make the folder"),
    (["attack", ".", "--real", "real.parquet"], "is not a run"),
])  # fmt: skip
def test_bad_input(arguments, sentence, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    before = sorted(path.name for path in folder.iterdir())
    assert call(arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == before
