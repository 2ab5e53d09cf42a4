"""What `populace advise` knows: the stored results of the benchmarks, as one table of situations.

    python tools/expectations.py            write src/populace/runs/advise/expectations.json from docs/results
    python tools/expectations.py --check    exit code 1 if it is not what the results give

A situation is a method with its guarantee (unit, trust), a data set with its size, the number of clients, and epsilon. Its
metrics are means over seeds, with the standard deviation over them. Variants of a method that are not what `synthesize` runs
by default, results without a guarantee, and small-scale cells are left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
TARGET = ROOT / "src" / "populace" / "runs" / "advise" / "expectations.json"
VERSION = 1

#: The data sets as the benchmarks load them: training rows, modelled columns, whether some are numbers.
DATA: dict[str, dict[str, Any]] = {
    "adult": {"about": "UCI Adult, raw", "kind": "table", "rows": 32_561, "columns": 15, "numbers": True},
    "bank": {"about": "Bank Marketing, raw", "kind": "table", "rows": 33_908, "columns": 17, "numbers": True},
    "diabetes130": {"about": "Diabetes 130, raw", "kind": "table", "rows": 81_403, "columns": 48, "numbers": True},
    "adult9": {"about": "Adult, categories", "kind": "table", "rows": 30_162, "columns": 9, "numbers": False},
    "a9a": {"about": "Adult, 124 yes/no", "kind": "table", "rows": 32_561, "columns": 124, "numbers": False},
    "mnist": {"about": "MNIST", "kind": "images", "rows": 60_000, "columns": 784, "numbers": True},
    "fashion": {"about": "Fashion-MNIST", "kind": "images", "rows": 60_000, "columns": 784, "numbers": True},
    "mnist-5000": {"about": "MNIST, 5,000", "kind": "images", "rows": 5_000, "columns": 784, "numbers": True},
    "fashion-5000": {
        "about": "Fashion, 5,000", "kind": "images", "rows": 5_000, "columns": 784, "numbers": True,
    },
}  # fmt: skip
#: Which metrics of a file are kept, under one name each wherever they mean the same.
VALUES = {"worst_ks": "worst_ks", "pearson_error": "correlation_error"}
CENSUS_RAW = {**VALUES, "boosting": "auc_boosting"}
TABLES = {**VALUES, "auc": "auc_boosting"}
CELLS = {"two_way": "two_way", "auc": "auc_logistic"}
IMAGES = {"cnn": "cnn", "mlp": "mlp"}
#: File, data set, metrics. The first file with a baseline of a data set gives its figures of real rows.
FILES: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("census-adult", "adult", CENSUS_RAW),
    ("census-bank", "bank", CENSUS_RAW),
    ("census-diabetes", "diabetes130", CENSUS_RAW),
    ("census-adult9", "adult9", CELLS),
    ("census-adult9-silos", "adult9", CELLS),
    ("census-a9a", "a9a", CELLS),
    ("flgan-adult9", "adult9", CELLS),
    ("poll-adult9", "adult9", CELLS),
    ("poll-a9a", "a9a", CELLS),
    ("local-adult9", "adult9", CELLS),
    ("tables-adult", "adult", TABLES),
    ("tables-bank", "bank", TABLES),
    ("tables-diabetes", "diabetes130", TABLES),
    ("moments-mnist", "mnist", IMAGES),
    ("moments-fashion", "fashion", IMAGES),
    ("dpd-mnist", "mnist", IMAGES),
    ("dpd-fashion", "fashion", IMAGES),
    ("flgan-mnist", "mnist", IMAGES),
    ("flgan-fashion", "fashion", IMAGES),
    ("wae-images", "", IMAGES),
)
#: Names of the benchmarks for methods at their defaults, where those differ from the method's own.
VARIANTS = {"moments, then l-dpd-vae": "chain", "l-dpd-vae, sleep": "l-dpd-vae"}
REAL, SHUFFLED = ("real rows", "real images"), "true columns, shuffled"
LOCAL = {"unit": "client", "trust": "local"}


def collect(folder: Path) -> dict[str, Any]:
    """The whole document: data sets with their figures of real rows, and situations with their metrics."""
    data = {name: {**facts, "real": {}, "shuffled": {}} for name, facts in DATA.items()}
    situations: dict[str, dict[str, Any]] = {}
    for file, data_set, metrics in FILES:
        document = json.loads((folder / f"{file}.json").read_text(encoding="utf-8"))
        groups: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
        for result in document["cells"]:
            name = data_set or f"{result['cell']['data'].split('_')[0]}-5000"
            if (baseline := _baseline(result)) is not None:
                for metric, value in _kept(result, metrics).items():
                    data[name][baseline].setdefault(metric, round(value, 5))
                continue
            if (about := _situation(file, result, data[name], name)) is not None:
                groups.setdefault(json.dumps(about), (about, []))[1].append(_kept(result, metrics))
        for key, (about, found) in groups.items():
            if key not in situations and found[0]:  # the first file with a situation is the one with more seeds
                situations[key] = {**about, "metrics": dict(_spread(found)), **_source(file, document)}
    return {
        "version": VERSION,
        "command": "python tools/expectations.py",
        "data": data,
        "situations": [*situations.values()],
    }


def _baseline(result: Mapping[str, Any]) -> str | None:
    cell = result["cell"]
    if cell.get("method") in REAL or (cell.get("part") == "baseline" and "method" not in cell):
        return "real"
    return "shuffled" if cell.get("method") == SHUFFLED else None


def _kept(result: Mapping[str, Any], metrics: Mapping[str, str]) -> dict[str, float]:
    return {kept: float(result[name]) for name, kept in metrics.items() if result.get(name) is not None}


def _situation(file: str, result: Mapping[str, Any], data: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """What was measured: method, guarantee, data, clients, epsilon; None for what is not kept."""
    cell = result["cell"]
    method = VARIANTS.get(str(cell.get("method")), cell.get("method") or file.split("-")[0])
    epsilon, trust = cell.get("epsilon"), cell.get("trust") or result.get("trust")
    guarantee = {"unit": result.get("unit"), "trust": trust}
    if file.startswith(("poll", "local", "wae")):
        guarantee = LOCAL
    if (
        not epsilon or "," in method or " " in method or "refused" in result or cell.get("scale") == "small"
        or "no guarantee" in str(result.get("guarantee")) or cell.get("colluders") or cell.get("split") == "one missing"
        or cell.get("part") in ("proposed", "columns", "batch", "baseline") or cell.get("schema") == "declared"
        or (file.startswith("poll") and cell.get("target") == "none")
    ):  # fmt: skip
        return None
    rows = int(cell.get("clients") or data["rows"]) if guarantee is LOCAL else data["rows"]
    if file == "poll-a9a":
        rows = 50_000  # people drawn from the rows, as the benchmark's title says
    clients = rows if guarantee["trust"] == "local" else _silos(file, cell)
    return {
        "method": method, **guarantee, "data": name, "rows": rows, "columns": data["columns"], "clients": clients,
        "epsilon": float(epsilon), "domains": "declared" if not data["numbers"] else "found",
        "split": "skewed" if cell.get("split") == "skewed" else "even",
    }  # fmt: skip


def _silos(file: str, cell: Mapping[str, Any]) -> int:
    """How many silos, as the benchmark deals rows out: in the cell, or one file, or as its tables' titles say."""
    stated = {"tables": 1, "flgan-adult9": 6, "dpd-mnist": 500, "dpd-fashion": 100}
    return int(cell.get("silos") or cell.get("clients") or stated.get(file) or stated[file.split("-")[0]])


def _spread(found: list[dict[str, float]]) -> Iterator[tuple[str, dict[str, float | int | None]]]:
    """Mean and standard deviation over seeds, of every metric that there is; one seed has no deviation."""
    for metric in found[0]:
        values = [one[metric] for one in found if metric in one]
        deviation = round(statistics.stdev(values), 5) if len(values) > 1 else None
        yield metric, {"mean": round(statistics.fmean(values), 5), "deviation": deviation, "seeds": len(values)}


def _source(file: str, document: Mapping[str, Any]) -> dict[str, str]:
    return {"command": f"populace benchmark {document['benchmark']}", "source": f"docs/results/{file}.json"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    document = collect(RESULTS)
    text = json.dumps(document, indent=1) + "\n"
    if parser.parse_args().check:
        same = TARGET.read_text(encoding="utf-8") == text
        print("up to date" if same else f"{TARGET} is not what docs/results give: run python tools/expectations.py")
        return 0 if same else 1
    TARGET.write_text(text, encoding="utf-8")
    print(f"{TARGET}: {len(document['situations'])} situations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
