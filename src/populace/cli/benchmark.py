"""`populace benchmark`: a published experiment, as a table with the paper's figures beside."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from populace.cli import completion
from populace.papers.registry import BENCHMARKS, find_benchmark
from populace.types import JsonObject

EXAMPLE = "Example:  POPULACE_DATA=data populace benchmark local-adult9 --quick"


def command(
    name: str = typer.Argument(help=f"One of: {', '.join(BENCHMARKS)}.", autocompletion=completion.benchmarks),
    quick: bool = typer.Option(False, "--quick", help="Fewer cells; they count for the full run too."),
    as_json: bool = typer.Option(False, "--json", help="Print the result document as JSON."),
    out: Path | None = typer.Option(None, "--out", help="Folder of the cells and results; default benchmark-NAME."),
    seeds: int = typer.Option(1, "--seeds", help="How many seeds to average over."),
    part: str | None = typer.Option(
        None, "--part", help="Measure every Nth cell only, from the Kth on, and collect nothing.", metavar="K/N"
    ),
    only: list[str] = typer.Option(
        [], "--only", help="Only cells with this value, such as method=poll,krr; may be repeated.", metavar="NAME=VALUE"
    ),
) -> None:
    """Run a published experiment; what was measured before is not measured again.

    Processes with --part 1/N to N/N may share a folder; the same command without --part then collects.
    """
    from populace.cli import show
    from populace.papers.grid import read_part, restricted, run_benchmark, run_part

    benchmark = restricted(find_benchmark(name), only)
    again = _command(name, quick, out, seeds, only)
    folder = out or Path(f"benchmark-{name}")
    if part is not None:
        one = read_part(part)
        with show.steps(f"{name} {part}") as report:
            count = run_part(benchmark, folder, one, quick=quick, seeds=seeds, progress=report)
        show.say(f"part {part}: {count} cells in {folder}; to collect: {again}")
        return
    from populace.papers import plots

    plots.require()  # before hours of work
    with show.steps(name) as report:
        document = run_benchmark(benchmark, folder, quick=quick, seeds=seeds, command=again, progress=report)
    from populace.report.png import write_pictures

    written = plots.write_charts(benchmark.charts(document["cells"]), folder)
    written += write_pictures({of.name: of.pixels for of in benchmark.pictures(document["cells"])}, folder)
    if as_json:
        show.say_json(document)
        return
    _show(document, [folder / "result.json", *written])


def _show(document: JsonObject, files: list[Path]) -> None:
    from populace.cli import show

    show.say(f"{document['title']}\n{document['reference']}\n")
    for view in document["tables"]:
        show.table(list(view["header"]), [list(row) for row in view["rows"]], title=view["title"])
    show.say("\n" + "\n".join(str(path) for path in files))


def _command(name: str, quick: bool, out: Path | None, seeds: int, only: list[str]) -> str:
    words = ["populace", "benchmark", name]
    words += ["--quick"] if quick else []
    words += ["--out", str(out)] if out else []
    words += [word for one in only for word in ("--only", one)]
    return shlex.join(words + (["--seeds", str(seeds)] if seeds != 1 else []))
