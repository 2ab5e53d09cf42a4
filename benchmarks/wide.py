"""`python -m benchmarks.wide`: what `poll` and `census` take on wide tables, through `populace synthesize`.

Tables of 30,000 rows whose columns depend on each other through a few latent classes: `wide` has 120 columns of 2 to 59 values,
`binary` has 500 of 0 and 1, `words` the same 500 written as two words, which `census` has to find. Each method runs in its own
process, one after the other; processor seconds, the peak of its memory and the mean distance of the two-way tables of its
rows (over pairs drawn at random) are said and stored.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import describe
from populace.types import NumpyArray

TABLES = ("wide", "binary", "words")
ROWS = 30_000
CLASSES = 6
SHARPNESS = 1.5  # of the classes' tables: 0 would be independent columns
EPSILON = {"poll": 4.0, "census": 1.0}
PAIRS = 200  # of columns, over which the distance is averaged
AT_ONCE = 2**16  # rows that are made together


def sizes_of(table: str) -> tuple[int, ...]:
    """How many values each column has."""
    if table != "wide":
        return (2,) * 500
    return tuple(int(size) for size in np.rint(np.geomspace(2, 59, 120)))


def make(sizes: tuple[int, ...], rows: int, seed: int = 0) -> NumpyArray:
    """Codes [rows, columns]: every class has its own table of every column."""
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, CLASSES, rows)
    columns = []
    for size in sizes:
        logits = rng.normal(size=size) + SHARPNESS * rng.normal(size=(CLASSES, size))
        shares = np.exp(logits)
        steps = np.cumsum(shares / shares.sum(axis=1, keepdims=True), axis=1)
        drawn, codes = rng.random(rows), np.empty(rows, np.int32)
        for start in range(0, rows, AT_ONCE):  # ten million rows are made too, and must not be what takes memory
            some = slice(start, start + AT_ONCE)
            codes[some] = np.minimum((drawn[some, None] > steps[chosen[some]]).sum(axis=1), size - 1)
        columns.append(codes)
    return np.stack(columns, axis=1)


def distance(real: NumpyArray, synthetic: NumpyArray, sizes: tuple[int, ...]) -> float:
    """The mean total variation distance of the two-way tables of some pairs of columns."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(PAIRS):
        a, b = rng.choice(len(sizes), 2, replace=False)
        one, other = (
            np.bincount(codes[:, a] * sizes[b] + codes[:, b], minlength=sizes[a] * sizes[b]) / len(codes)
            for codes in (real, synthetic)
        )
        found.append(0.5 * float(np.abs(one - other).sum()))
    return float(np.mean(found))


def measure(table: str, method: str, folder: Path, *, rows: int) -> dict[str, Any]:
    """One `populace synthesize` in a process of its own, without a compilation cache from before."""
    sizes = sizes_of(table)
    codes = make(sizes, rows)
    data, out = folder / f"{table}.parquet", folder / f"{table}-{method}"
    names = [f"c{number}" for number in range(len(sizes))]
    values = {
        name: pa.array([written(code, size, table) for code in codes[:, i]])
        for i, (name, size) in enumerate(zip(names, sizes, strict=True))
    }
    pq.write_table(pa.table(values), data)
    words = [
        sys.executable, "-m", "populace", "synthesize", str(data), "--method", method, "--epsilon", str(EPSILON[method]),
        "--seed", "0", "--rows", str(rows), "--no-ledger", "--out", str(out),
    ]  # fmt: skip
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / f"cache-{table}-{method}")}
    began = time.perf_counter()
    with (folder / "stderr.txt").open("wb") as messages:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=messages, env=environment)
        _, status, used = os.wait4(process.pid, 0)  # of this process alone: its peak, not that of all before it
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - began
    result: dict[str, Any] = {
        "table": table, "method": method, "columns": len(sizes), "rows": rows, "epsilon": EPSILON[method], "seconds": seconds,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "peak_megabytes": used.ru_maxrss / 1024,
    }  # fmt: skip
    if process.returncode:
        return result | {"failed": (folder / "stderr.txt").read_text(encoding="utf-8").strip().splitlines()[-1]}
    made = pq.read_table(out / "synthetic.parquet")
    # What is missing, or no value of the file, is counted as one more value.
    columns = [_codes(made.column(name), size, table) for name, size in zip(names, sizes, strict=True)]
    synthetic = np.stack(columns, axis=1)
    wider = tuple(size + 1 for size in sizes)
    return result | {"two_way_distance": distance(codes, synthetic, wider)}


def written(code: int, size: int, table: str) -> int | str:
    """A value as it stands in the file: 0 and 1, or words."""
    if table == "words":
        return ("with", "without")[code]
    return int(code) if size == 2 else f"v{code:02d}"


def _codes(column: pa.ChunkedArray, size: int, table: str) -> NumpyArray:
    known = {written(code, size, table): code for code in range(size)}
    return np.array([known.get(value, size) for value in column.to_pylist()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="*", default=list(TABLES), choices=TABLES)
    parser.add_argument("--methods", nargs="*", default=["poll", "census"], choices=["poll", "census"])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for table in arguments.tables:
            for method in arguments.methods:
                results.append(measure(table, method, Path(folder), rows=arguments.rows))
                print(json.dumps(results[-1]), flush=True)
                if arguments.json:  # after every run: the next may take long
                    document = {"command": "python -m benchmarks.wide", "machine": describe(), "results": results}
                    Path(arguments.json).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
