"""`flgan-adult9`: a GAN that travels through six silos of Adult's rows, beside `poll`, where every row is a client of its own.

Neither needs a trusted server, and both protect one row at the same epsilon: a record of a silo there, everything a client of
one record holds here. All settings are the methods' defaults. The small scale shows that all runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from populace.engines import simulation
from populace.methods.registry import make_protocol
from populace.papers.grid import Cell, Chart, Result, View, benchmark_of, largest, mean_over_seeds
from populace.papers.poll import ROWS, load, table_scores
from populace.papers.scores import text
from populace.runs.run import make_key
from populace.tables.partition import split, split_even
from populace.types import JsonObject

SILOS = 6
EPSILONS = (8.0, 4.0, 1.0)
DATA = "adult9"
SMALL_ROWS = 1_200
TRUST = {"record": "silo", "client": "local"}
METHODS = ("ufl-gan", "fl-gan", "poll")
FEW: JsonObject = {"generator_steps": 4, "batch_size": 16, "hidden_size": 8, "critic_hidden_size": 8}
METRICS = ("auc", "forest", "mlp", "two_way", "seconds")


def cells(quick: bool, seeds: int) -> list[Cell]:
    found: list[Cell] = []
    for scale, seed in itertools.product(("small",) if quick else ("small", "full"), range(seeds)):
        found.append({"method": "real rows", "epsilon": None, "scale": scale, "seed": seed})
        for epsilon, method in itertools.product(EPSILONS if scale == "full" else EPSILONS[:1], METHODS):
            found.append({"method": method, "epsilon": epsilon, "scale": scale, "seed": seed})
    return found


def measure(cell: Cell) -> Result:
    """One run and its figures."""
    method, seed, small = str(cell["method"]), int(cell["seed"] or 0), cell["scale"] == "small"
    train, test = load(DATA), load(DATA, "test")
    if small:
        train, test = train.take(np.arange(SMALL_ROWS)), test.take(np.arange(SMALL_ROWS))
    if method == "real rows":
        return table_scores(train, train, test)
    given = {**(FEW if small and method != "poll" else {}), "epsilon": float(cell["epsilon"] or 0)}
    clients = split(train) if method == "poll" else split_even(train, clients=SILOS, seed=seed)
    outcome = simulation.run(make_protocol(method, given), clients, root=make_key(seed))
    found = outcome.guarantee
    claim = {"guarantee": found.bound, "unit": found.unit, "trust": found.trust}
    made = outcome.generator.sample(SMALL_ROWS if small else ROWS, make_key(seed + 1_000))
    return {**claim, **table_scores(made, train, test)}


def views(results: Sequence[Result]) -> list[View]:
    """Each scale and unit by itself."""
    found = []
    units = dict.fromkeys(str(result.get("unit", "-")) for result in results)
    for scale, unit in itertools.product(("full", "small"), units):
        some = [r for r in results if r["cell"]["scale"] == scale and str(r.get("unit", "-")) == unit]
        claims = {(r["cell"]["method"], r["cell"]["epsilon"]): str(r.get("guarantee", "-")) for r in some}
        rows = [
            [
                str(name),
                claims[name, epsilon],
                *(text(values[key], 4) for key in METRICS[:-1]),
                text(values["seconds"], 0),
            ]
            for (name, epsilon), values in mean_over_seeds(some, METRICS, ("method", "epsilon")).items()
        ]
        if rows:
            what = {"record": f"{SILOS} silos, protects one record", "client": "each row a client, protects a client"}
            whom = f"trust: {TRUST.get(unit)}; {what[unit]}" if unit in what else "real rows"
            header = ["method", "guarantee", "AUC, logistic", "forest", "MLP", "2-way TVD", "s"]
            title = f"{whom}; {scale} scale; models trained on synthetic rows and tested on real ones"
            found.append(View(title=title, header=header, rows=rows))
    return found


def charts(results: Sequence[Result]) -> list[Chart]:
    """AUC by epsilon, each unit by itself, at the largest scale there is."""
    some = [r for r in results if r["cell"]["scale"] == largest(results)]
    real = {str(r["cell"]["method"]): float(r["auc"]) for r in some if r["cell"]["method"] == "real rows" and r["auc"]}
    found = []
    made = [r for r in some if r["cell"]["method"] != "real rows"]
    for unit in dict.fromkeys(str(r.get("unit", "-")) for r in made):
        lines: dict[str, list[tuple[float, float]]] = {}
        means = mean_over_seeds([r for r in made if str(r.get("unit", "-")) == unit], ("auc",), ("method", "epsilon"))
        for (name, epsilon), values in means.items():
            if values["auc"] is not None:
                lines.setdefault(str(name), []).append((float(epsilon), float(values["auc"])))
        lines = {name: sorted(points) for name, points in lines.items()}
        title = f"AUC of a logistic regression, trust: {TRUST.get(unit)}, unit: {unit}"
        chart = Chart(name=f"auc-by-epsilon-{unit}", title=title, across="epsilon", up="AUC", lines=lines, level=real)
        found.append(chart)
    return found


def _prepare() -> None:
    load(DATA)
    load(DATA, "test")


ADULT9 = benchmark_of(
    __name__,
    name="flgan-adult9",
    title="GANs that travel, on Adult, nine categorical columns",
    reference="no published figure: the paper has images only; our own `poll` stands beside",
    revision=1,
    prepare=_prepare,
)
