"""`python -m benchmarks.evaluation`: AVD on a million rows, and every metric and the page for 100,000 rows of 15 columns.

    POPULACE_DATA=DIR python -m benchmarks.evaluation [--rows 100000] [--wide 1000000]

Real rows are Adult's, drawn with replacement; the synthetic ones are half such rows and half rows of independent columns, so
that they have about as many different combinations as a good method's. Seconds are of this machine as it is, other work
included; processor seconds stand beside.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from populace.evaluation.baselines import SYNTHETIC
from populace.evaluation.evaluate import evaluate_tables
from populace.evaluation.sets import average_distances
from populace.report.page import render_run
from populace.tables import datasets
from populace.tables.table import Table, from_codes

Array = np.ndarray[Any, Any]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--wide", type=int, default=1_000_000)
    chosen = parser.parse_args()
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
