"""A table of many rows and 20 columns: numbers with tails and zeros, dates, codes of several sizes, a target, missing values.

    python -m benchmarks.million_rows FOLDER [--rows 1000000]

writes FOLDER/people.csv and FOLDER/people.parquet, always the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

Array = np.ndarray[Any, Any]

CODES = {"region": 16, "occupation": 240, "district": 1_500, "product": 24, "channel": 5, "marital": 6, "branch": 90}


def make_frame(rows: int, seed: int = 0) -> pa.Table:
    """Columns hang together through one hidden number per row."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=rows)
    columns: dict[str, Any] = {}
    columns["age"] = np.clip(45 + 12 * hidden + rng.normal(0, 9, rows), 17, 95).astype(np.int64)
    columns["income"] = np.round(np.exp(10 + 0.5 * hidden + rng.normal(0, 0.6, rows)), 2)
    columns["gain"] = np.where(rng.random(rows) < 0.9, 0, np.exp(7 + rng.normal(0, 1.5, rows))).astype(np.int64)
    columns["balance"] = np.round(800 * hidden + 500 * rng.standard_t(3, rows), 2)
    columns["hours"] = np.where(rng.random(rows) < 0.45, 40, np.clip(rng.normal(38, 12, rows), 1, 99)).astype(np.int64)
    columns["score"] = _gaps(np.round(rng.normal(size=rows) + 0.4 * hidden, 4), 0.08, rng)
    columns["weight"] = np.round(rng.gamma(9, 8, rows), 1)
    columns["visits"] = rng.poisson(np.exp(0.6 * hidden), rows)
    columns["distance"] = _gaps(np.round(rng.exponential(12, rows), 3), 0.03, rng)
    opened = (12_000 + 7_000 * rng.beta(2, 1.2, rows)).astype(np.int32)
    columns["opened"] = pa.array(opened).cast(pa.date32())
    seen = 1_500_000_000 + (1.5e8 * rng.beta(3, 1, rows)).astype(np.int64)
    columns["last_seen"] = pa.array(seen, mask=rng.random(rows) < 0.1).cast(pa.timestamp("s"))
    for place, (name, size) in enumerate(CODES.items()):
        columns[name] = _codes(name, size, hidden if place % 2 else rng.normal(size=rows), rng)
    columns["sex"] = pa.array(np.array(["female", "male"], object)[(rng.random(rows) < 0.48).astype(int)])
    bought = 1.2 * hidden + 0.4 * rng.normal(size=rows) + 0.3 * (columns["hours"] == 40) > 0.9
    columns["bought"] = pa.array(np.array(["no", "yes"], object)[bought.astype(int)])
    return pa.table(columns)


def _gaps(values: Array, share: float, rng: np.random.Generator) -> pa.Array:
    return pa.array(values, mask=rng.random(len(values)) < share)


def _codes(name: str, size: int, hidden: Array, rng: np.random.Generator) -> pa.Array:
    """Codes of falling frequency that move with the hidden number; every fifth column of them has missing values."""
    place = np.exp(np.log(size) * 1 / (1 + np.exp(-(hidden + rng.normal(0, 0.7, len(hidden)))))) - 1
    codes = pa.array(
        np.minimum(place, size - 1).astype(np.int32), mask=rng.random(len(hidden)) < 0.02 * (size % 5 == 0)
    )
    return pa.array([f"{name[:2].upper()}{code:04d}" for code in range(size)]).take(codes)


def write(folder: Path, rows: int) -> tuple[Path, Path]:
    """The CSV and the Parquet file."""
    folder.mkdir(parents=True, exist_ok=True)
    frame = make_frame(rows)
    files = folder / "people.csv", folder / "people.parquet"
    pyarrow.csv.write_csv(frame, files[0])
    pyarrow.parquet.write_table(frame, files[1])
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    chosen = parser.parse_args()
    write(chosen.folder, chosen.rows)


if __name__ == "__main__":
    main()
