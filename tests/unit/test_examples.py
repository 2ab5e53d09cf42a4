"""The notebooks in examples/ run, without a warning, and are kept in the form that tools/notebooks.py writes."""

import base64
import importlib.util
import re
from pathlib import Path

import nbformat
import pytest

from builders import mark_slow

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "examples").glob("*.ipynb"))
NAMES = [path.stem for path in PATHS]
QUICK = ("first_steps", "three_hospitals")
MOST_BYTES = 150_000


def _tool():
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "tools/notebooks.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


tool = _tool()


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook_teaches_something_and_shows_a_picture(path):
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    assert tool.tidied(notebook) == text
    assert len(text.encode()) < MOST_BYTES
    assert 8 <= len(notebook.cells) <= 15
    assert notebook.cells[0].cell_type == "markdown"
    assert not re.search(r"/(?:work|tmp|home|root|Users)/|0x[0-9a-f]{8}", text)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error"]


def test_there_are_six_and_the_guide_speaks_of_each():
    assert len(PATHS) == 6
    assert set(QUICK) < set(NAMES)
    guide = (ROOT / "docs/guides/notebooks.md").read_text(encoding="utf-8")
    assert sorted(set(re.findall(r"examples/(\w+)\.ipynb", guide))) == NAMES


@pytest.mark.parametrize(("name", "picture"), [("how_much_privacy_costs", "costs"), ("three_hospitals", "hospitals")])
def test_the_guide_shows_the_picture_that_is_in_the_notebook(name, picture):
    """After a notebook was run anew, its picture in docs/assets has to be exported anew."""
    notebook = nbformat.read(ROOT / f"examples/{name}.ipynb", as_version=4)
    shown = [output["data"]["image/png"] for cell in notebook.cells for output in cell.get("outputs", [])
             if "image/png" in output.get("data", {})]  # fmt: skip
    assert (ROOT / f"docs/assets/notebook-{picture}.png").read_bytes() == base64.b64decode(shown[-1])


@pytest.mark.parametrize("name", mark_slow(NAMES, set(NAMES) - set(QUICK)))
def test_a_notebook_runs(name):
    again = tool.run(ROOT / f"examples/{name}.ipynb")
    assert not [output for cell in again.cells for output in cell.get("outputs", []) if output.output_type == "error"]


def test_a_notebook_that_fails_or_warns_is_noticed(tmp_path, capsys):
    for name, source in (("fails", "1 / 0"), ("warns", "import warnings; warnings.warn('late')")):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
        (tmp_path / f"{name}.ipynb").write_text(tool.tidied(notebook))
        assert tool.main(["--check", str(tmp_path / f"{name}.ipynb")]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out


def test_what_differs_between_machines_is_taken_out():
    cell = nbformat.v4.new_code_cell("x", metadata={"execution": {"iopub.execute_input": "2026"}}, execution_count=7)
    cell.outputs = [
        nbformat.v4.new_output("stream", name="stdout", text="<A at 0x7f00aa> in /home/me/populace/x.csv"),
        nbformat.v4.new_output("stream", name="stderr", text="warning"),
    ]
    kept = nbformat.reads(tool.tidied(nbformat.v4.new_notebook(cells=[cell])), as_version=4).cells[0]
    assert (kept.id, kept.metadata, kept.execution_count) == ("cell-01", {}, 1)
    assert [output.text for output in kept.outputs] == ["<A> in …"]
