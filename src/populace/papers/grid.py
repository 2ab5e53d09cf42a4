"""A grid of cells, each measured once and kept as one small file, so that work that was done is never done again.

A cell is a small mapping of public parameters. A finished one is `<folder>/cells/<slug>.json`, written in one piece; giving the
same command again skips it. `<folder>/result.json` is the document of all cells of the last command. No cell depends on
another, so that several processes can share one folder, each with a part of the cells.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from populace.border.models import Form, read_document
from populace.errors import RunError, out_of_range
from populace.runs.run import versions
from populace.tables.files import write_json
from populace.types import JsonObject, NumpyArray

Scalar = str | int | float | bool | None
Cell = Mapping[str, Scalar]
Result = JsonObject
#: What some cells have in common: the values of a few of their parameters.
Group = tuple[Any, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """A table as shown on the terminal and kept in the document."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """Lines to be drawn: what each is called, and its points. Drawing is the report's work."""

    name: str
    title: str
    across: str
    up: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    level: Mapping[str, float] = dataclasses.field(default_factory=dict)
    logarithmic: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """Pixels to be kept as `<name>.png`, uint8 [height, width]."""

    name: str
    pixels: NumpyArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark:
    """An experiment: its cells, what one cell measures, and how the results are shown.

    `prepare` raises if the data are not there, before any work. `revision` goes up when the meaning of a cell changes: cells of
    another revision are not reused. `settings` are what a cell does not say and its meaning depends on: a folder that was begun
    with others is refused.
    """

    name: str
    title: str
    reference: str
    revision: int
    prepare: Callable[[], None]
    cells: Callable[[bool, int], Sequence[Cell]]
    measure: Callable[[Cell], Result]
    views: Callable[[Sequence[Result]], Sequence[View]]
    charts: Callable[[Sequence[Result]], Sequence[Chart]]
    pictures: Callable[[Sequence[Result]], Sequence[Picture]] = lambda _: ()
    settings: JsonObject = dataclasses.field(default_factory=dict)


def benchmark_of(
    module: str, *first: object, name: str, title: str, reference: str, revision: int = 1, prepare: Callable[[], None]
) -> Benchmark:
    """The benchmark of a module with the functions `cells`, `measure`, `views`, `charts` and, if any, `pictures`.

    `first`, where given, is the first argument of each of them: what differs between the benchmarks of the module.
    """
    home = sys.modules[module]
    parts = ("cells", "measure", "views", "charts", *(("pictures",) if hasattr(home, "pictures") else ()))
    functions: dict[str, Any] = {part: functools.partial(getattr(home, part), *first) for part in parts}
    return Benchmark(name=name, title=title, reference=reference, revision=revision, prepare=prepare, **functions)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """Progress after a cell."""

    done: int
    total: int
    cell: Cell
    skipped: bool
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Every `parts`-th cell, beginning with the `number`-th: what one of several processes measures."""

    number: int
    parts: int

    def of(self, cells: Sequence[Cell]) -> Sequence[Cell]:
        return cells[self.number - 1 :: self.parts]


def read_part(text: str) -> Part:
    """A part as it is written: 2/8 is the second of eight."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    number, parts = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= parts:
        raise out_of_range("part", "as K/N with K in 1 to N, such as 2/8", text)
    return Part(number=number, parts=parts)


def restricted(benchmark: Benchmark, only: Sequence[str]) -> Benchmark:
    """The benchmark with those cells alone that have, for every `name=value,value` given, one of the values."""
    wanted: dict[str, list[str]] = {}
    for text in only:
        name, equals, values = text.partition("=")
        if not equals or not name or not values:
            raise out_of_range("--only", "as name=value, or name=value,value", text)
        wanted[name] = values.split(",")

    def cells(quick: bool, seeds: int) -> Sequence[Cell]:
        every = benchmark.cells(quick, seeds)
        found = [c for c in every if all(str(c.get(name)) in values for name, values in wanted.items())]
        if not found:
            names = ", ".join(dict.fromkeys(name for cell in every for name in cell))
            raise out_of_range("--only", f"that some cell has, by {names}", " ".join(only))
        return found

    return dataclasses.replace(benchmark, cells=cells) if wanted else benchmark


def slug(cell: Cell, revision: int = 1) -> str:
    """A stable file name for a cell: readable, and different for different cells whatever their values look like."""
    text = json.dumps({**cell, "": revision}, sort_keys=True)
    readable = "-".join(f"{value:g}" if isinstance(value, float) else str(value) for value in cell.values())
    readable = re.sub(r"[^a-zA-Z0-9.]+", "-", readable).strip("-")[:80]
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def run_benchmark(
    benchmark: Benchmark,
    folder: Path,
    *,
    quick: bool = False,
    seeds: int = 1,
    command: str = "",
    progress: Callable[[Step], None] = lambda _: None,
) -> JsonObject:
    """Measure what is missing, then write and return the document of all cells."""
    if seeds < 1:
        raise out_of_range("seeds", "at least 1", seeds)
    benchmark.prepare()
    _claim(folder, benchmark)
    results = _results(benchmark, folder, benchmark.cells(quick, seeds), progress)
    document = {
        "benchmark": benchmark.name,
        "title": benchmark.title,
        "reference": benchmark.reference,
        "revision": benchmark.revision,
        "command": command,
        "quick": quick,
        "seeds": seeds,
        "versions": versions(),
        "seconds": sum(result["seconds"] for result in results),
        "tables": [dataclasses.asdict(view) for view in benchmark.views(results)],
        "cells": results,
    }
    write_json(folder / "result.json", document)
    return document


def run_part(
    benchmark: Benchmark,
    folder: Path,
    part: Part,
    *,
    quick: bool = False,
    seeds: int = 1,
    progress: Callable[[Step], None] = lambda _: None,
) -> int:
    """Measure what is missing of one part of the cells, and write no document; returns how many cells the part has.

    The parts of one command may run at the same time; `run_benchmark` then finds their cells and only collects them.
    """
    if seeds < 1:
        raise out_of_range("seeds", "at least 1", seeds)
    benchmark.prepare()
    _claim(folder, benchmark)
    return len(_results(benchmark, folder, part.of(benchmark.cells(quick, seeds)), progress))


def _results(
    benchmark: Benchmark, folder: Path, cells: Sequence[Cell], progress: Callable[[Step], None]
) -> list[JsonObject]:
    """The results of these cells, measured where they are missing."""
    results: list[JsonObject] = []
    for number, cell in enumerate(cells, start=1):
        path = folder / "cells" / f"{slug(cell, benchmark.revision)}.json"
        skipped = path.is_file()
        if not skipped:
            write_json(path, _measured(benchmark, cell))
        results.append(read_document(path, _Result, advice="remove it, and it is measured again"))
        progress(Step(done=number, total=len(cells), cell=cell, skipped=skipped, seconds=results[-1]["seconds"]))
    return results


class _Result(Form):
    cell: JsonObject
    seconds: float


class _Mark(Form):
    benchmark: str
    settings: JsonObject = pydantic.Field(default_factory=dict)


def _measured(benchmark: Benchmark, cell: Cell) -> JsonObject:
    began = time.monotonic()
    result = benchmark.measure(cell)
    return {"cell": dict(cell), "seconds": round(time.monotonic() - began, 3), **result}


def _claim(folder: Path, benchmark: Benchmark) -> None:
    """Make the folder, or take up one in which the same benchmark was begun."""
    mark = folder / "benchmark.json"
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file; expected a folder for the benchmark")
    if mark.is_file():
        document = read_document(mark, _Mark, advice="choose another --out")
        if (found := document["benchmark"]) != benchmark.name:
            raise RunError(f"{folder} holds the benchmark {found!r}, not {benchmark.name!r}; choose another --out")
        kept, asked = document.get("settings", {}), benchmark.settings
        if differ := sorted(name for name in {*kept, *asked} if kept.get(name) != asked.get(name)):
            raise RunError(f"{folder} was begun with other settings ({', '.join(differ)}); choose another --out")
    elif folder.is_dir() and _holds_files(folder) and not mark.is_file():  # it may have been claimed meanwhile
        raise RunError(f"the folder {folder} is not empty and holds no benchmark; choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not mark.is_file():
            settings = {"settings": benchmark.settings} if benchmark.settings else {}
            write_json(mark, {"benchmark": benchmark.name, **settings})
        (folder / "cells").mkdir(exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror or error}") from error


def _holds_files(folder: Path) -> bool:
    return any(not entry.name.startswith(".") for entry in folder.iterdir())


def largest(results: Sequence[Result]) -> str:
    """The largest scale there is: what charts and pictures show."""
    return "full" if any(result["cell"]["scale"] == "full" for result in results) else "small"


def mean_over_seeds(results: Sequence[Result], keys: Sequence[str], by: Sequence[str]) -> dict[Group, JsonObject]:
    """The mean of each key over results that agree on the parameters `by`; a missing value counts nowhere."""
    groups: dict[Group, list[Result]] = {}
    for result in results:
        groups.setdefault(tuple(result["cell"].get(name) for name in by), []).append(result)
    return {
        group: {key: _mean([member[key] for member in members if member.get(key) is not None]) for key in keys}
        for group, members in groups.items()
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def lines_over(
    results: Sequence[Result], metric: str, across: str, by: str = "method"
) -> dict[str, list[tuple[float, float]]]:
    """Means over seeds as the lines of a chart: a line for each value of `by`, a point for each value of `across`.

    A value that is missing or infinite, and a cell without `across`, has no point.
    """
    lines: dict[str, list[tuple[float, float]]] = {}
    for (name, at), values in mean_over_seeds(results, (metric,), (by, across)).items():
        if at is not None and values[metric] is not None and math.isfinite(values[metric]):
            lines.setdefault(str(name), []).append((float(at), float(values[metric])))
    return {name: sorted(points) for name, points in lines.items()}


def trust_and_unit(result: Result) -> tuple[str, str]:
    """Whom a result trusts and what it protects: results that differ in it must not share a table or a chart."""
    return str(result.get("trust", "-")), str(result.get("unit", "-"))
