"""`python -m benchmarks.census_counting`: ten million records of 20 columns, read and counted by a site, with the peak memory.

    python -m benchmarks.census_counting [--rows N] [--kinds parquet folder csv] [--json FILE]

Invented rows (categories, whole numbers, decimals, dates) are written to a temporary folder, some at a time. A process of its
own then does what a site with them does: reading and encoding them under a declared schema, one-way tables of the long columns,
tables of all pairs with the target, and the noise of both messages. The same with a tenth of the rows says what grows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CHUNK = 2**18
FILES = 8  # of a folder
KINDS = ("parquet", "folder", "csv")
LISTS = {"region": 16, "job": 40, "branch": 21, "status": 5, "channel": 4, "product": 120, "ward": 12, "owner": 2}
WHOLE = {"age": 100, "visits": 40, "points": 1_000, "days": 365}
DECIMAL = {"income": 2_000, "weight": 300, "rate": 100, "score": 50}
DATES = {"born": 36_500, "joined": 3_650, "left": 3_650}
TARGET = "outcome"


def schema() -> Any:
    from populace.tables.schema import Column, Schema

    columns = [
        Column(name=name, kind="categorical", categories=tuple(f"{name} {number}" for number in range(size)))
        for name, size in LISTS.items()
    ]
    columns += [
        Column(name=name, kind="integer", edges=tuple(map(float, range(size + 1)))) for name, size in WHOLE.items()
    ]
    columns += [
        Column(name=name, kind="decimal", edges=tuple(10.0 * number for number in range(size + 1)))
        for name, size in DECIMAL.items()
    ]
    columns += [
        Column(name=name, kind="date", edges=tuple(map(float, range(0, days + 1, 10))), nullable=name == "left")
        for name, days in DATES.items()
    ]
    columns.append(Column(name=TARGET, kind="boolean", dtype="boolean", categories=("false", "true")))
    return Schema(columns=tuple(columns), target=TARGET)


def chunk(rows: int, seed: int) -> Any:
    """Some invented rows."""
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(seed)
    made: dict[str, Any] = {}
    for name, size in LISTS.items():
        listed = pa.array([f"{name} {number}" for number in range(size)])
        made[name] = listed.take(pa.array((size * rng.random(rows) ** 2).astype(np.int32)))
    for name, size in WHOLE.items():
        made[name] = pa.array((size * rng.random(rows) ** 2).astype(np.int64))
    for name, size in DECIMAL.items():
        made[name] = pa.array(np.round(10 * size * rng.random(rows) ** 2, 2))
    for name, days in DATES.items():
        drawn = (days * rng.random(rows)).astype(np.int32)
        mask = rng.random(rows) < 0.3 if name == "left" else None
        made[name] = pa.array(drawn, pa.int32(), mask=mask).cast(pa.date32())
    made[TARGET] = pa.array(rng.random(rows) < 0.3)
    return pa.table(made)


def write(kind: str, folder: str, rows: int) -> dict[str, float]:
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    began = time.perf_counter()
    numbers, sizes = range(-(-rows // CHUNK)), []
    place = data_of(kind, folder)
    shape = chunk(1, 0).schema
    if kind == "folder":
        place.mkdir()
        files = [place / f"part-{number}.parquet" for number in range(FILES)]
    else:
        files = [place]
    for file_number, path in enumerate(files):
        writer = pc.CSVWriter(path, shape) if kind == "csv" else pq.ParquetWriter(path, shape)
        with writer:
            for number in list(numbers)[file_number :: len(files)]:
                sizes.append(min(CHUNK, rows - number * CHUNK))
                writer.write_table(chunk(sizes[-1], number))
    return {"seconds": time.perf_counter() - began}


def data_of(kind: str, folder: str) -> Path:
    return Path(folder) / {"parquet": "rows.parquet", "csv": "rows.csv", "folder": "rows"}[kind]


def count(kind: str, folder: str, rows: int) -> dict[str, float]:
    """What a site does: read its rows, and answer both questions with noise from the operating system."""
    import numpy as np

    from populace.engines.runtime import whole_shard
    from populace.engines.site_file import SiteFile, read_hosted
    from populace.methods.base import Population, Replies
    from populace.methods.census.protocol import Census
    from populace.privacy.source import System

    public = schema()
    file = SiteFile(
        name="a", federation="f", data=str(data_of(kind, folder)), ledger="", log="", by="site", records_per_client=1,
        client_column=None, records=rows, epsilon=1.0, delta=1e-8, unit="record", seed=None, agreed=(),
    )  # fmt: skip
    began, processors = time.perf_counter(), time.process_time()
    hosted = read_hosted(file, public)
    read = time.perf_counter()
    method = Census(epsilon=1.0)
    population = Population(schema=public, clients=1, records=rows)
    shard = whole_shard(hosted.clients, 0, population)
    state, source = method.begin(population, _key()), System()
    seconds = {"reading": read - began}
    for stage in ("stage 0", "stage 1"):
        start = time.perf_counter()
        ask = method.ask(state, population, source)
        if ask is None:
            raise SystemExit("expected two stages")
        reply, _ = method.answer(ask.common, ask.own, shard, (), source)
        seconds[stage] = time.perf_counter() - start
        replies = Replies(clients=np.zeros(1, int), present=np.ones(1, bool), values=np.asarray(reply)[None])
        state = method.absorb(state, ask, replies, source)
    spent = time.process_time() - processors
    return {"seconds": sum(seconds.values()), **seconds, "cpu_seconds": spent, "numbers": float(np.size(reply))}


def _key() -> Any:
    import jax

    return jax.random.key(0)


def step(work: Any, queue: Any, arguments: tuple[Any, ...]) -> None:
    found = work(*arguments)
    queue.put({**found, "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20})


def apart(work: Any, *arguments: Any) -> dict[str, float]:
    """The step in a process of its own, with its peak memory."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=step, args=(work, queue, arguments))
    process.start()
    found: dict[str, float] = queue.get()
    process.join()
    return found


def measured(kind: str, rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        apart(write, kind, folder, rows)
        place = data_of(kind, folder)
        files = [place] if place.is_file() else list(place.iterdir())
        size = sum(path.stat().st_size for path in files) / 2**20
        return {"rows": rows, "file_mib": size, **apart(count, kind, folder, rows)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {"command": " ".join(["python -m benchmarks.census_counting", *sys.argv[1:]])}
    for kind in options.kinds:
        small, large = measured(kind, options.rows // 10), measured(kind, options.rows)
        ratio = {name: large[name] / small[name] for name in ("seconds", "peak_gib")}
        results[kind] = {"tenth": small, "all": large, "ratio": ratio}
        print(
            f"{kind:8s}{options.rows:,} rows, {large['file_mib']:.0f} MiB on disk: {large['seconds']:.1f} s (reading "
            f"{large['reading']:.1f}, stage 0 {large['stage 0']:.1f}, stage 1 {large['stage 1']:.1f}; of processors "
            f"{large['cpu_seconds']:.1f}), peak "
            f"{large['peak_gib']:.2f} GiB; {ratio['seconds']:.1f} times the seconds and {ratio['peak_gib']:.1f} times the "
            f"memory of a tenth of the rows"
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
