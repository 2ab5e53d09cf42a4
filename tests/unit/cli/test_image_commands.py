"""Commands on images: a run, more images from it, and one sentence for what does not fit."""

import json
import re

import numpy as np
import pytest

from populace.cli.main import call
from populace.tables.embedded import harbour
from populace.tables.images import read_images


def write_squares(path, count):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, count)
    x = np.clip(40 + 170 * y[:, None, None] + rng.normal(0, 20, (count, 8, 8)), 0, 255).astype(np.uint8)
    np.savez(path, x=x, y=y)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Bright and dark squares, a run on them, and a run on a table beside it."""
    folder = tmp_path_factory.mktemp("images")
    write_squares(folder / "real.npz", 60)
    given = ["--epsilon", "8", "--rows", "40", "--seed", "1"]
    assert call(["synthesize", str(folder / "real.npz"), *given, "--out", str(folder / "run")]) == 0
    harbour().take(np.arange(200)).save(folder / "table.parquet")
    table = ["synthesize", str(folder / "table.parquet"), "--method", "independent", *given]
    assert call([*table, "--out", str(folder / "rows")]) == 0
    return folder


def test_synthesize_leaves_a_whole_run_of_images(place):
    run = place / "run"
    names = {path.name for path in run.iterdir()}
    assert names >= {"run.json", "privacy.json", "generator.json", "generator.npz", "synthetic.npz"}
    assert "synthetic.parquet" not in names
    details = json.loads((run / "run.json").read_text())
    assert (details["method"], details["classes"], details["clients"]) == ("moments", 2, 1)
    made = read_images(run / "synthetic.npz")
    assert made.x.shape == (40, 8, 8)
    assert json.loads((run / "privacy.json").read_text())["domains"] == {"classes": "read-from-data"}


def test_sample_draws_images_of_one_label(place, tmp_path, capsys):
    out = tmp_path / "ones.npz"
    arguments = ["sample", str(place / "run"), "--rows", "7", "--where", "label=1", "--seed", "2", "-o"]
    assert call([*arguments, str(out)]) == 0
    assert re.search(r"7 images; \(7\.99\d*, 1e-05\)-DP", capsys.readouterr().out)
    ones = read_images(out)
    assert ones.y.tolist() == [1] * 7
    assert call([*arguments, str(tmp_path / "again.npz")]) == 0
    np.testing.assert_array_equal(read_images(tmp_path / "again.npz").x, ones.x)


@pytest.mark.slow
def test_audit_of_a_run_of_images(place, capsys):
    """By the run's method and parameters, on invented images: an audit reads no records."""
    assert call(["audit", str(place / "run"), "--samples", "1000", "--seed", "1"]) == 0
    assert "moments, silo, images, whole message" in capsys.readouterr().out
    document = json.loads((place / "run" / "audit.json").read_text())
    assert document["claimed"]["epsilon"] == pytest.approx(8, abs=0.01)
    assert not document["flagged"]
    assert any("few steps" in note for note in document["notes"])


CASES = {
    "images as a table": (["sample", "run", "--rows", "3", "-o", "new.csv"], "the run made images: expected .* .npz"),
    "a table as images": (["sample", "rows", "--rows", "3", "-o", "new.npz"], "the run made rows of a table: expected"),
    "no such label": (["sample", "run", "--rows", "3", "--where", "label=2", "-o", "new.npz"], "label in 0 to 1"),
    "no columns": (
        ["sample", "run", "--rows", "3", "--where", "sex=F", "-o", "new.npz"],
        "images have no column 'sex'",
    ),
    "a table method": (["synthesize", "real.npz", "--epsilon", "1", "--method", "poll", "--out", "new"], "takes table"),
    "a classifier alone": (
        ["synthesize", "real.npz", "--epsilon", "1", "--method", "dp-fl", "--out", "new"],
        "makes no data",
    ),
    "a target": (["synthesize", "real.npz", "--epsilon", "1", "--target", "y", "--out", "new"], "images take none of"),
    "wide tiles": (
        ["synthesize", "real.npz", "--method", "dp-fed-wae", "--epsilon", "1", "--set", "tile=9", "--out", "new"],
        "expected tile in",
    ),
    "too fine": (
        ["synthesize", "real.npz", "--epsilon", "1", "--set", "side=-1", "--out", "new"],
        "expected side at least 0",
    ),
    "images judged by rows": (["evaluate", "run", "--real", "table.parquet"], "expected real images"),
    "rows judged by images": (["evaluate", "rows", "--real", "real.npz"], "expected"),
    "attack": (["attack", "run", "--real", "real.npz"], "made images"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_does_not_fit_is_one_sentence(place, name, capsys):
    words, reason = CASES[name]
    files = ("run", "rows", "real.npz", "table.parquet", "new", "new.csv", "new.npz")
    assert call([str(place / word) if word in files else word for word in words]) == 2
    error = capsys.readouterr().err.strip()
    assert re.search(reason, error), error
    assert "Traceback" not in error
    assert not list(place.glob("new*"))


@pytest.mark.slow
def test_evaluate_writes_figures_and_a_page_with_grids_by_class(place, capsys):
    """Of as many people, and by a method, that tell classes apart which differ in brightness alone."""
    real = place / "many.npz"
    write_squares(real, 1_000)
    given = ["--method", "dp-fed-wae", "--epsilon", "8", "--rows", "200", "--seed", "1", "--out", str(place / "judged")]
    assert call(["synthesize", str(real), *given]) == 0
    assert call(["evaluate", str(place / "judged"), "--real", str(real)]) == 0
    metrics = json.loads((place / "judged" / "metrics.json").read_text())
    assert metrics["kind"] == "images"
    assert metrics["metrics"]["accuracy: MLP"]["values"]["synthetic"]["value"] > 0.9
    assert metrics["metrics"]["accuracy: MLP"]["values"]["real"]["value"] > 0.9
    page = (place / "judged" / "report.html").read_text()
    assert page.count("data:image/png") == 4
    assert "Class 1" in page
    assert "8-LDP" in capsys.readouterr().out
