"""Run the notebooks in examples/, and keep them in a form whose differences can be read.

    python tools/notebooks.py                  run all of them in a temporary folder, and write what they show
    python tools/notebooks.py images.ipynb     one of them
    python tools/notebooks.py --check          run, write nothing; exit 1 where one does not run, or warns
    python tools/notebooks.py --tidy           run nothing; exit 1 where one is not in the form that this tool writes

Written form: cells are numbered; no times, no paths of the machine, no addresses of objects. Kernels are this Python's.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples"
SECONDS = 600  # that one cell may take on a busy machine
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
STRICT = (
    "import warnings; warnings.simplefilter('error'); warnings.filterwarnings('ignore', module='ipykernel'); "
    "import matplotlib; matplotlib.rcParams['figure.dpi'] = 64"
)
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
PATHS = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)*(?:populace|tmp|home|root|Users|var)[\w./+-]*")


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with what its cells show when run one after the other, where nothing else lies."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="notebook-") as folder:
        NotebookClient(
            notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": folder}},
            record_timing=False, extra_arguments=["--log-level=ERROR", f"--IPKernelApp.exec_lines={STRICT}"],
        ).execute()  # fmt: skip
    return notebook


def tidied(notebook: nbformat.NotebookNode) -> str:
    """The notebook as it is kept: numbered cells, outputs without what differs from one machine or run to the next."""
    kept = nbformat.from_dict(notebook)
    kept.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    count = 0
    for number, cell in enumerate(kept.cells, 1):
        cell.id, cell.metadata = f"cell-{number:02}", {}
        cell.source = cell.source.rstrip()
        if cell.cell_type != "code":
            continue
        count += 1
        cell.execution_count = count
        cell.outputs = [_tidied_output(output, count) for output in cell.outputs if output.get("name") != "stderr"]
    kept.nbformat, kept.nbformat_minor = 4, 5
    nbformat.validate(kept)
    return str(nbformat.writes(kept, indent=1, ensure_ascii=False)) + "\n"


def _tidied_output(output: nbformat.NotebookNode, count: int) -> nbformat.NotebookNode:
    if "execution_count" in output:
        output.execution_count = count
    if "metadata" in output:
        output.metadata = {}
    if "text" in output:
        output.text = _plain(output.text)
    for kind, value in output.get("data", {}).items():
        if isinstance(value, str) and kind.startswith("text/"):
            output.data[kind] = _plain(value)
        elif kind == "image/png":
            output.data[kind] = value.strip() + "\n"
    return output


def _plain(text: str) -> str:
    return PATHS.sub("…", ADDRESS.sub("", text))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all in examples/")
    parser.add_argument("--check", action="store_true", help="run them and write nothing")
    parser.add_argument("--tidy", action="store_true", help="run nothing, look at their form")
    options = parser.parse_args(arguments)
    paths = [path if path.exists() else FOLDER / path for path in options.notebooks] or sorted(FOLDER.glob("*.ipynb"))
    wrong = 0
    for path in paths:
        if options.tidy:
            text = path.read_text(encoding="utf-8")
            if tidied(nbformat.reads(text, as_version=4)) != text:
                wrong += 1
                print(f"{path.name}: not in the form that tools/notebooks.py writes; run it")
            continue
        start, used = time.perf_counter(), time.process_time()
        try:
            notebook = run(path)
        except CellExecutionError as error:
            wrong += 1
            print(f"{path.name}: {error}")
            continue
        if not options.check:
            path.write_text(tidied(notebook), encoding="utf-8")
        print(f"{path.name}: {time.perf_counter() - start:.0f} s ({time.process_time() - used:.0f} s in this process)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
