"""`python -m benchmarks.evaluation`: AVD on a million rows, and every metric and the page for 100,000 rows of 15 columns.

    POPULACE_DATA=DIR python -m benchmarks.evaluation [--rows 100000] [--wide 1000000]
    python -m benchmarks.evaluation --million docs/results/evaluation-million.json [--wide 1000000]

Real rows are Adult's, drawn with replacement; the synthetic ones are half such rows and half rows of independent columns, so
that they have about as many different combinations as a good method's. Seconds are of this machine as it is, other work
included; processor seconds stand beside.

`--million` makes a table of 20 columns (`million_rows.py`) and as many synthetic rows, and runs `populace evaluate` against it
as Parquet and as CSV and `populace synthesize --method poll`, each in a process of its own: seconds, processor seconds, peak
resident memory, and for evaluation how much of its limits (60 s on two idle cores, 1.5 GB) that is.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.million_rows import write
from populace.evaluation.baselines import SYNTHETIC
from populace.evaluation.evaluate import evaluate_tables
from populace.evaluation.sets import average_distances
from populace.report.page import render_run
from populace.tables import datasets
from populace.tables.table import Table, from_codes

Array = np.ndarray[Any, Any]

MOST_SECONDS, MOST_BYTES = 60, 1.5e9
#: Runs a command of populace, and prints its peak resident memory in KiB as the last line.
MEASURED = """
import resource, sys
from populace.cli.main import call
code = call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(code)
"""


def tables(rows: int) -> tuple[Table, Table]:
    adult = datasets.load("adult", "all")
    if not isinstance(adult, Table):
        raise TypeError("adult is not a table")
    rng = np.random.default_rng(0)
    codes = adult.codes
    real = codes[rng.integers(0, len(codes), rows)]
    loose = np.stack([column[rng.integers(0, len(codes), rows)] for column in codes.T], axis=1)
    mixed = np.where(rng.random((rows, 1)) < 0.5, codes[rng.integers(0, len(codes), rows)], loose)
    return from_codes(real, adult.schema, rng), from_codes(mixed, adult.schema, rng)


def clocked(function: Any) -> tuple[Any, dict[str, float]]:
    began, worked = time.monotonic(), time.process_time()
    found = function()
    return found, {"seconds": time.monotonic() - began, "processor_seconds": time.process_time() - worked}


def in_a_process(*arguments: str) -> dict[str, Any]:
    """What one command of `populace` takes, in a fresh process."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    load = os.getloadavg()[0]
    measured = [sys.executable, "-c", MEASURED, *arguments]
    done = subprocess.run(measured, check=True, stdout=subprocess.PIPE, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "command": " ".join(["populace", *(Path(part).name if os.sep in part else part for part in arguments)]),
        "seconds": round(time.monotonic() - began, 1),
        "processor_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "peak_bytes": 1024 * int(done.stdout.splitlines()[-1]),
        "load_average_before_and_after": [round(load, 1), round(os.getloadavg()[0], 1)],
    }


def million(rows: int, out: Path) -> None:
    """The whole of the large case, into a JSON file."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = write(Path(folder), rows)
        run, given = str(Path(folder) / "run"), str(files[1])
        size = ["--rows", str(rows), "--target", "bought", "--no-ledger"]
        in_a_process("synthesize", given, "--method", "independent", "--epsilon", "2", *size, "--out", run)
        for file in files:
            spent = in_a_process("evaluate", run, "--real", str(file), "--target", "bought")
            spent["of_the_limits"] = {
                "seconds": round(spent["seconds"] / MOST_SECONDS, 2),
                "peak_bytes": round(spent["peak_bytes"] / MOST_BYTES, 2),
            }
            found[f"evaluate, {rows:,} x {rows:,} rows, 20 columns, {file.suffix[1:]}"] = spent
        poll = in_a_process(
            "synthesize", given, "--method", "poll", "--epsilon", "2", "--target", "bought", "--no-ledger",
            "--out", str(Path(folder) / "poll"),
        )  # fmt: skip
        found[f"poll, {rows:,} rows"] = poll
    document = {
        "command": f"python -m benchmarks.evaluation --million {out} --wide {rows}",
        "processors": os.cpu_count(),
        "limits": {"seconds": MOST_SECONDS, "peak_bytes": MOST_BYTES},
        "found": found,
    }
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--million", type=Path, metavar="OUT", help="the large case alone, into this file")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--wide", type=int, default=1_000_000)
    chosen = parser.parse_args()
    if chosen.million:
        million(chosen.wide, chosen.million)
        return
    found: dict[str, Any] = {}
    real, synthetic = tables(chosen.wide)
    for width in range(1, 7):
        estimate, spent = clocked(lambda m=width: average_distances(real, {SYNTHETIC: synthetic}, m)[SYNTHETIC])
        found[f"{width}-way AVD, {chosen.wide:,} x {chosen.wide:,} rows, 100 sets"] = spent | estimate.to_json()
    real, synthetic = tables(chosen.rows)
    evaluated, spent = clocked(lambda: evaluate_tables({SYNTHETIC: synthetic}, real, target="income")[SYNTHETIC])
    found[f"every metric, {chosen.rows:,} x {chosen.rows:,} rows, 15 columns"] = spent | evaluated.document["seconds"]
    run = {"name": SYNTHETIC, "metrics": evaluated.document, "pairs": evaluated.pairs}
    page, spent = clocked(lambda: render_run("benchmark", run, real.schema))
    found["the page"] = spent | {"bytes": len(page.encode())}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
