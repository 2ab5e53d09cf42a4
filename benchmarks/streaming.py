"""`python -m benchmarks.streaming`: ten million answers, written to files in chunks and counted again, with the peak memory.

    python -m benchmarks.streaming [--answers N] [--json FILE]

Two kinds: one value each (randomised response) and rows of bits (subset selection, packed). Writing and counting each run in a
process of their own, so that the peak printed is that of the one step.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

SIZE = 64
EPSILON = 1.0
CHUNK = 2**18
FILES = 4


def oracle_of(kind: str) -> Any:
    from populace.privacy.randomizers.grr import Grr
    from populace.privacy.randomizers.subset import SubsetSelection

    return {"grr": Grr, "subset": SubsetSelection}[kind](size=SIZE, epsilon=EPSILON)


def truth() -> Any:
    import numpy as np

    weights = 1 / np.arange(1, SIZE + 1)
    return weights / weights.sum()


def write(kind: str, folder: str, answers: int) -> dict[str, float]:
    import jax
    import numpy as np

    from populace.privacy.randomizers.base import simulate_many
    from populace.tables.reports import write_reports

    oracle = oracle_of(kind)
    perturb = jax.jit(lambda values, key: simulate_many(oracle.simulate, values, key))
    began = time.perf_counter()

    def chunks(number: int) -> Any:
        rng = np.random.default_rng(number)
        left = answers // FILES + (answers % FILES if number == 0 else 0)
        while left:
            count = min(CHUNK, left)
            values = np.zeros(CHUNK, np.int32)
            values[:count] = rng.choice(SIZE, count, p=truth())
            told = perturb(values, jax.random.fold_in(jax.random.key(number), left))
            yield np.asarray(told)[:count].astype(np.uint8 if kind == "grr" else bool)
            left -= count

    for number in range(FILES):
        write_reports(Path(folder) / f"{number}.parquet", chunks(number))
    return {"seconds": time.perf_counter() - began}


def count(kind: str, folder: str, answers: int) -> dict[str, float]:
    import numpy as np

    from populace.runs.poll.tallies import tally_files

    oracle = oracle_of(kind)
    began = time.perf_counter()
    tally = tally_files(oracle, sorted(Path(folder).glob("*.parquet")))
    seconds = time.perf_counter() - began
    if int(tally.reports) != answers:
        raise SystemExit(f"{kind}: counted {int(tally.reports)} of {answers} answers")
    estimate = oracle.estimate(tally.counts, tally.reports)
    spread = np.sqrt(oracle.variance(truth(), answers))
    return {"seconds": seconds, "largest_z": float(np.abs((estimate - truth()) / spread).max())}


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--answers", type=int, default=10_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    for kind in ("grr", "subset"):
        with tempfile.TemporaryDirectory() as folder:
            written = apart(write, kind, folder, options.answers)
            size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 2**20
            counted = apart(count, kind, folder, options.answers)
        results[kind] = {"answers": options.answers, "file_mib": size, "write": written, "count": counted}
        print(
            f"{kind:7s} {options.answers:,} answers, {size:.0f} MiB on disk: written in {written['seconds']:.1f} s "
            f"(peak {written['peak_gib']:.2f} GiB), counted in {counted['seconds']:.1f} s "
            f"(peak {counted['peak_gib']:.2f} GiB), largest z of an estimate {counted['largest_z']:.1f}"
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
