"""`python -m benchmarks.poll`: how long `poll` takes to collect, count and fit, and the memory that ten million answers need.

    POPULACE_DATA=DIR python -m benchmarks.poll [--quick] [--only fit|growth|memory] [--json FILE] [--figure FILE.svg]

fit      50,000 answers over a9a's 124 columns: one fit with given classes, and one that chooses among settings; each twice, the
         second time when all is compiled
growth   `populace poll collect` (exact, with ledgers) and `populace poll fit` for 10^4, 10^5 and 10^6 clients
memory   `populace poll fit` of 10^7 answers, made beforehand by the mechanism's fast simulation

Rows are a9a's, drawn with replacement. Every step is a process of its own; the peak is that process's. Seconds are of this
machine as it is, other work included; processor seconds (of all cores) and the load before each step stand beside.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.streaming import apart

EPSILON = 4.0
CHUNK = 2**17
GIVEN = {"latent_classes": 16, "prior_scale": 0.6}
SIZES = (10_000, 100_000, 1_000_000)
MANY = 10_000_000
QUICK = {"sizes": (1_000, 10_000), "many": 200_000, "answers": 5_000}


def rows(count: int) -> Any:
    """Codes of a9a rows drawn with replacement, in chunks, and the schema."""
    import numpy as np

    from populace.tables import datasets

    table = datasets.load("a9a", "all")
    rng = np.random.default_rng(0)
    left = [min(CHUNK, count - start) for start in range(0, count, CHUNK)]
    return (table.codes[rng.integers(0, len(table), size)] for size in left), table.schema


def write_rows(folder: str, count: int) -> dict[str, float]:
    """people.parquet and people.toml, a chunk at a time."""
    import numpy as np
    import pyarrow.parquet as pq

    from populace.tables.codec import decode

    chunks, schema = rows(count)
    schema.save(Path(folder) / "people.toml")
    writer = None
    for codes in chunks:
        frame = decode(codes, schema, np.random.default_rng(0))
        writer = writer or pq.ParquetWriter(Path(folder) / "people.parquet", frame.schema)
        writer.write_table(frame, row_group_size=2**16)
    if writer is not None:
        writer.close()
    return {}


def write_answers(folder: str, count: int) -> dict[str, float]:
    """answers.parquet as `collect` writes it, with reports by `simulate_batch`: the same law, many times faster."""
    import numpy as np

    from populace.methods.base import Population
    from populace.methods.poll.protocol import Poll
    from populace.privacy.randomizers.wire import by_member
    from populace.runs.poll.assignment import ONE_STAGE, Assignment
    from populace.runs.poll.collect import cells_of
    from populace.runs.poll.files import Terms, coin_from, coin_text, pack, questions_hash, writing
    from populace.version import __version__

    chunks, schema = rows(count)
    schema.save(Path(folder) / "people.toml")
    protocol, population = Poll(epsilon=EPSILON, **ONE_STAGE), Population(schema=schema, clients=count)
    asked, coin = protocol.survey(population), coin_from("benchmark")
    assignment = Assignment(protocol, population, coin)
    terms = Terms(
        schema=schema.digest, target=None, parameters=dataclasses.asdict(protocol), coin=coin_text(coin), seeded=True,
        questions=questions_hash(protocol, population), clients=count, records=1, first_client=0, version=__version__,
    )  # fmt: skip
    done = 0
    with writing(Path(folder) / "answers.parquet", terms) as add:
        for codes in chunks:
            clients = done + np.arange(len(codes))
            questions = assignment.questions(clients)
            cells = cells_of(asked, codes, questions)
            reports = np.zeros((len(codes), asked.panel.width), bool)
            for number, (member, places) in enumerate(by_member(asked.panel, questions)):
                reports[places, : member.size] = member.simulate_batch(cells[places], done + number)
            add(clients, questions, pack(asked.panel, questions, reports))
            done += len(codes)
    return {"mib": (Path(folder) / "answers.parquet").stat().st_size / 2**20}


def clocked(work: Any) -> tuple[Any, dict[str, float]]:
    load, began, worked = os.getloadavg()[0], time.monotonic(), time.process_time()
    found = work()
    spent = {"seconds": time.monotonic() - began, "processor_seconds": time.process_time() - worked}
    return found, {**spent, "load_before": load}


def collect(folder: str) -> dict[str, Any]:
    from populace.runs.poll.collect import Collection
    from populace.runs.poll.collect import collect as work

    wanted = Collection(
        data=f"{folder}/people.parquet", schema_file=f"{folder}/people.toml", epsilon=EPSILON,
        settings=dict(GIVEN), ledger=f"{folder}/ledger",
    )  # fmt: skip
    return clocked(lambda: work(wanted, f"{folder}/answers.parquet"))[1]


def fit(folder: str) -> dict[str, Any]:
    from populace.runs.poll.fit import Fit, fit_answers

    wanted = Fit(answers=(f"{folder}/answers.parquet",), schema_file=f"{folder}/people.toml", rows=10_000, seed=0)
    counted: list[float] = []
    began = time.process_time()

    def note(_: Any) -> None:
        counted[:] = [time.process_time() - began]  # the last note is that of the last batch

    run, spent = clocked(lambda: fit_answers(wanted, f"{folder}/run", progress=note))
    return {
        **spent, "answers": run.details["clients"], "parts": dict(run.details["seconds"]),
        "processor_seconds_counting": counted[0], "processor_seconds_model": spent["processor_seconds"] - counted[0],
    }  # fmt: skip


def fit_again(folder: str) -> dict[str, Any]:
    """Fits of one state, without and with the choice among settings; the first of each compiles."""
    import jax

    from populace.methods.base import Population
    from populace.runs.poll.assignment import Assignment
    from populace.runs.poll.count import count_files, nothing_counted
    from populace.runs.poll.files import read_terms
    from populace.tables.schema import load_schema

    path = Path(folder) / "answers.parquet"
    terms, answers = read_terms(path)
    population = Population(schema=load_schema(Path(folder) / "people.toml"), clients=answers)
    assignment = Assignment(terms.protocol(), population, terms.key)
    state = count_files([path], assignment, nothing_counted(assignment)).state
    found: dict[str, Any] = {"answers": answers, "columns": len(population.table_schema.columns)}
    for name, settings in (("one fit", GIVEN), ("with the choice among settings", {})):
        for time_of_day, key in (("first, compiling", 1), ("again", 2)):
            protocol = terms.protocol(**settings)
            work = lambda p=protocol, k=key: p.finish(state, population, jax.random.key(k))  # noqa: E731
            found[f"{name}, {time_of_day}"] = clocked(work)[1]
    return found


def measure_fit(answers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        apart(write_answers, folder, answers)
        found = apart(fit_again, folder)
    print(f"{found['answers']:,} answers over {found['columns']} columns, epsilon {EPSILON:g}")
    for name, spent in found.items():
        if isinstance(spent, dict):
            print(f"  {name:50s} {shown(spent)}")
    return found


def measure_growth(sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    found = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            apart(write_rows, folder, size)
            collected, fitted = apart(collect, folder), apart(fit, folder)
        found.append({"answers": size, "collect": collected, "fit": fitted})
        print(f"{size:>10,} answers: collect {shown(collected)}")
        print(
            f"{'':20s}fit     {shown(fitted)}: counting {fitted['processor_seconds_counting']:.1f}, "
            f"model (compilation included) {fitted['processor_seconds_model']:.1f} processor seconds"
        )
    return found


def measure_memory(answers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        written = apart(write_answers, folder, answers)
        found = apart(fit, folder)
    print(
        f"{answers:,} answers, {written['mib']:.0f} MiB on disk: fit {shown(found)}, counting {found['parts']['reading']:.1f} s"
    )
    return {**found, "file_mib": written["mib"]}


def shown(spent: dict[str, Any]) -> str:
    peak = f", peak {spent['peak_gib']:.2f} GiB" if "peak_gib" in spent else ""
    return (
        f"{spent['seconds']:.1f} s ({spent['processor_seconds']:.1f} processor seconds, "
        f"load {spent['load_before']:.1f} before){peak}"
    )


def draw(results: dict[str, Any], path: Path) -> None:
    """Seconds against answers; counting up to the ten million, where they were measured."""
    from populace.papers.grid import Chart
    from populace.papers.plots import draw_lines, to_svg

    growth = results["growth"]["found"]
    many = [results["memory"]["found"]] if "memory" in results else []
    lines = {
        "collect: exact noise, ledgers, file": [
            (row["answers"], row["collect"]["processor_seconds"]) for row in growth
        ],
        "fit: read, check, count": [
            (row["answers"], row["processor_seconds_counting"]) for row in [*(row["fit"] for row in growth), *many]
        ],
        "fit: model, compilation included": [(row["answers"], row["fit"]["processor_seconds_model"]) for row in growth],
    }
    chart = Chart(
        name=path.stem,
        title="poll on a9a's 124 columns",
        across="answers",
        up="processor seconds",
        lines=lines,
        logarithmic=True,
    )
    path.write_text('<?xml version="1.0" encoding="utf-8"?>\n' + to_svg(draw_lines(chart)))
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="Small numbers, to see that it works.")
    parser.add_argument("--only", choices=("fit", "growth", "memory"), action="append")
    parser.add_argument("--json", type=Path, help="Write results here; parts not measured now are kept.")
    parser.add_argument("--figure", type=Path, help="Draw the growth here, as SVG.")
    options = parser.parse_args()
    parts = options.only or ["fit", "growth", "memory"]
    rows(1)  # says at once where the data set is missing
    results: dict[str, Any] = {}
    if options.json and options.json.is_file():
        results = json.loads(options.json.read_text())
    command = " ".join(["python -m benchmarks.poll", *sys.argv[1:]])
    about = {"command": command, "cores": os.cpu_count(), "python": platform.python_version()}
    work = {
        "fit": lambda: measure_fit(QUICK["answers"] if options.quick else 50_000),
        "growth": lambda: measure_growth(QUICK["sizes"] if options.quick else SIZES),
        "memory": lambda: measure_memory(QUICK["many"] if options.quick else MANY),
    }
    for part in parts:
        results[part] = {**about, "found": work[part]()}
        if options.json:
            options.json.write_text(json.dumps(results, indent=2) + "\n")
    if options.figure and "growth" in results:
        draw(results, options.figure)


if __name__ == "__main__":
    main()
