"""`python -m benchmarks.growth`: how the cost of methods grows with clients, rows, columns, categories and sites.

    python -m benchmarks.growth [--small] [--seconds N] [--series NAME ...] [--at-once N] [--out docs/results]

Every size runs in a process of its own, twice: the first run compiles, the processor time of the second counts (of all threads,
from the first message to the generator; reading files and sampling rows are not in it). A series ends where its next size
would take longer than `--seconds` of processor time. Three slopes of the logarithm of time against that of size are stored:
`exponent`, by least squares over all sizes, constant costs included; `marginal`, of what both are beyond the smallest size,
which is 1 where time is a constant and a multiple of size, whatever the constant; and `last`, between the two largest sizes.
The peak of memory is that of the whole process, with the rows in it. Writes growth.json and growth.svg.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from benchmarks.wide import make

NINE = (7, 16, 7, 14, 6, 5, 2, 41, 2)
ROWS = 20_000  # where columns or categories grow
ROWS_OF_SITE = 1_000
PEOPLE = tuple(10**power for power in range(3, 8))
WIDTHS = (4, 8, 16, 32, 64, 128, 256)
CATEGORIES = (2, 4, 8, 16, 32, 64)
SITES = (2, 4, 8, 16, 32, 64)
EPSILON = {"poll": 4.0, "census": 1.0, "independent": 4.0, "dp-fed-wae": 8.0}
#: Series: the method, what grows, and its sizes.
SERIES: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "poll, clients": ("poll", "rows", PEOPLE),
    "independent, clients": ("independent", "rows", PEOPLE),
    "dp-fed-wae, clients": ("dp-fed-wae", "rows", PEOPLE),
    "census, rows": ("census", "rows", PEOPLE),
    "poll, columns": ("poll", "columns", WIDTHS),
    "census, columns": ("census", "columns", WIDTHS),
    "poll, categories": ("poll", "categories", CATEGORIES),
    "census, categories": ("census", "categories", CATEGORIES),
    "census, sites": ("census", "sites", SITES),
}
MOST = {"rows": 1.1, "sites": 1.1}  # what the exponents of these may be
CLEAR = 1.1  # times the smallest size's time, below which a run's is taken for noise about a constant
FEW = 3  # sizes of each series with --small
SECONDS = 300.0


def table_of(sizes: tuple[int, ...], rows: int) -> Any:
    """A table of categories whose columns depend on each other."""
    from populace.tables.columns import Column
    from populace.tables.schema import Schema
    from populace.tables.table import Table, from_codes

    columns = tuple(
        Column(name=f"c{i}", kind="categorical", categories=tuple(f"v{j}" for j in range(size)))
        for i, size in enumerate(sizes)
    )
    codes = make(sizes, rows).astype(np.int32)
    table: Table = from_codes(codes, Schema(columns=columns), np.random.default_rng(0))
    return table


def shape_of(grows: str, size: int) -> tuple[tuple[int, ...], int]:
    """The columns and rows of a case."""
    if grows == "columns":
        return (2,) * size, ROWS
    if grows == "categories":
        return (size,) * 8, ROWS
    return NINE, size * ROWS_OF_SITE if grows == "sites" else size


def measure(method: str, grows: str, size: int) -> dict[str, float]:
    """Processor seconds of a run whose programs are compiled already, and its peak memory."""
    import resource

    import jax

    from populace.engines import simulation
    from populace.methods.registry import make_protocol
    from populace.tables.partition import split, split_even

    sizes, rows = shape_of(grows, size)
    table, protocol = table_of(sizes, rows), make_protocol(method, {"epsilon": EPSILON[method]})
    if grows == "sites":
        run: Callable[[int], object] = lambda seed: over_sites(protocol, table, size, seed)  # noqa: E731
    else:
        clients = split_even(table, clients=1, seed=0) if method == "census" else split(table, records_per_client=1)
        run = lambda seed: simulation.run(protocol, clients, root=jax.random.key(seed))  # noqa: E731
    began = time.process_time()
    run(0)
    first, again = time.process_time() - began, time.process_time()
    run(1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"size": size, "seconds": time.process_time() - again, "first": first, "peak_megabytes": peak}


def over_sites(protocol: Any, table: Any, sites: int, seed: int) -> None:
    """A run over sites in this process: wire format, ledgers and checkpoints, no network; each site is one client."""
    import jax

    from populace.engines.agreement import Agreement
    from populace.engines.checkpoint import Checkpoint
    from populace.engines.coordinator import Coordinator
    from populace.engines.link import InProcess
    from populace.engines.roster import enrol
    from populace.engines.site import Hosted, Site
    from populace.privacy.ledger import Budget
    from populace.privacy.sqlite_ledger import SqliteLedger
    from populace.tables.partition import split_even

    agreement = Agreement(protocol=protocol, schema=table.schema)
    budget = Budget(epsilon=99.0, delta=1e-2, unit="record")
    with tempfile.TemporaryDirectory() as folder:
        link = {}
        for number, rows in enumerate(np.array_split(np.arange(len(table)), sites)):
            own = table.take(rows)
            hosted = Hosted(
                clients=split_even(own, clients=1, seed=0), accounts=(f"site-{number}",), records=ROWS_OF_SITE, by="site"
            )  # fmt: skip
            ledger = Path(folder) / f"{number}.sqlite"
            SqliteLedger(ledger, budget).close()  # as joining does
            site = Site(
                hosted=hosted, agreements={agreement.digest: agreement}, ledger_path=ledger, budget=budget,
                root=jax.random.key(number),
            )  # fmt: skip
            link[f"site-{number}"] = site.reply
        roster = enrol(agreement, InProcess(link), run="growth", least=sites, timeout=60.0)
        Coordinator(
            agreement=agreement, roster=roster, link=InProcess(link), run="growth", root=jax.random.key(seed),
            checkpoint=Checkpoint(Path(folder) / "checkpoint.npz"), seeded=True,
        ).go()  # fmt: skip


def exponent(points: list[dict[str, float]]) -> float:
    """The slope of log time against log size."""
    sizes, seconds = (np.log([point[name] for point in points]) for name in ("size", "seconds"))
    return float(np.polyfit(sizes, seconds, 1)[0])


def marginal(points: list[dict[str, float]]) -> float | None:
    """The slope of time beyond that of the smallest size, against size beyond it; None where time hardly grows."""
    least = points[0]
    beyond = [
        {name: point[name] - least[name] for name in ("size", "seconds")}
        for point in points[1:]
        if point["seconds"] > CLEAR * least["seconds"]
    ]
    return exponent(beyond) if len(beyond) > 1 else None


def run_series(name: str, *, most_seconds: float, few: bool) -> dict[str, Any]:
    """The points of a series, as far as time allows, and their exponents."""
    method, grows, sizes = SERIES[name]
    points: list[dict[str, float]] = []
    stopped = ""
    for size in sizes[:FEW] if few else sizes:
        if points:
            factor = size / points[-1]["size"]
            slope = min(2.0, max(1.0, exponent(points[-2:]))) if len(points) > 1 else 1.0
            if points[-1]["seconds"] * factor**slope > most_seconds:
                stopped = f"{size:,} would take about {points[-1]['seconds'] * factor**slope:,.0f} s"
                break
        words = [sys.executable, "-m", "benchmarks.growth", "--one", json.dumps([method, grows, size])]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            stopped = f"{size:,}: {(done.stderr.strip().splitlines() or ['killed'])[-1]}"
            break
        points.append(json.loads(done.stdout.splitlines()[-1]))
    found: dict[str, Any] = {"method": method, "grows": grows, "points": points, "stopped": stopped}
    if len(points) > 1:
        found |= {"exponent": exponent(points), "marginal": marginal(points), "last": exponent(points[-2:])}
    return found


def show(name: str, series: dict[str, Any]) -> None:
    times = "  ".join(f"{point['size']:,}: {point['seconds']:.3g} s" for point in series["points"])
    slopes = {kind: series[kind] for kind in ("exponent", "marginal", "last") if series.get(kind) is not None}
    most = MOST.get(series["grows"])
    held = "" if most is None or not slopes else f" (at most {most}: {'yes' if max(slopes.values()) <= most else 'NO'})"
    said = ", ".join(f"{kind} {slope:.2f}" for kind, slope in slopes.items())
    peak = f"peak {series['points'][-1]['peak_megabytes']:,.0f} MB" if series["points"] else ""
    print(f"{name:24} {said}{held}  {times}  {peak}  {series['stopped']}", flush=True)


def draw(found: dict[str, dict[str, Any]], path: Path) -> None:
    """One panel for each thing that grows; both axes logarithmic."""
    from matplotlib.figure import Figure

    from populace.papers.plots import COLOURS, MARKS, to_svg

    titles = {"rows": "clients, or rows of one silo", "columns": "binary columns", "categories": "categories of eight columns",
              "sites": "sites of 1,000 rows"}  # fmt: skip
    figure = Figure(figsize=(9.6, 6.4), layout="constrained")
    for axes, (grows, title) in zip(figure.subplots(2, 2).flat, titles.items(), strict=True):
        drawn = [(name, one) for name, one in found.items() if one["grows"] == grows and "exponent" in one]
        for number, (name, one) in enumerate(drawn):
            x, y = ([point[key] for point in one["points"]] for key in ("size", "seconds"))
            label = f"{name.partition(',')[0]}, exponent {one['exponent']:.2f}, last {one['last']:.2f}"
            axes.loglog(x, y, color=COLOURS[number], marker=MARKS[number], ms=4, lw=1.3, label=label)
        axes.set_xlabel(title)
        axes.set_ylabel("processor seconds")
        if drawn:
            axes.legend(frameon=False, fontsize=8)
    path.write_text(to_svg(figure), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help=f"the first {FEW} sizes of each series")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of processor time, that one run may take")
    parser.add_argument("--series", nargs="*", default=list(SERIES), choices=list(SERIES), metavar="NAME")
    parser.add_argument("--at-once", type=int, default=1, help="series; each should have cores of its own (taskset)")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(*json.loads(arguments.one))))
        return
    machine, found = describe(), dict[str, dict[str, Any]]()  # its load before the work begins

    def work(name: str) -> None:
        found[name] = run_series(name, most_seconds=arguments.seconds, few=arguments.small)
        show(name, found[name])
        ordered = {known: found[known] for known in SERIES if known in found}
        document = {
            "command": " ".join(["python -m benchmarks.growth", *sys.argv[1:]]),
            "machine": machine,
            "series": ordered,
        }
        (arguments.out / "growth.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    with ThreadPoolExecutor(arguments.at_once) as pool:
        list(pool.map(work, arguments.series))
    draw({known: found[known] for known in SERIES if known in found}, arguments.out / "growth.svg")


if __name__ == "__main__":
    main()
