"""`census-adult9`, `census-adult`, `census-a9a`, `census-bank`, `census-diabetes`: tables from silos.

`adult9` and `a9a` have categories alone: rows are dealt to silos of a simulation, under the declared schema, and scored in
cells. The others are raw files: every silo's rows are a CSV, `synthesize` finds domains under privacy (or takes the declared
ones), and values are scored. Noise is added by each silo, or once to the sum (`--trust central`, labelled "one noise draw").
All sums are of whole numbers, so that with one noise draw the error does not depend on the number of silos; with noise at each
it grows as its square root.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from populace.engines import simulation
from populace.errors import PopulaceError
from populace.evaluation.marginals import mean_over_pairs, two_way_distances
from populace.evaluation.prediction import scores
from populace.evaluation.sets import random_sets, set_distances
from populace.evaluation.value_scores import value_scores
from populace.methods.registry import make_protocol
from populace.papers import tables
from populace.papers.grid import (
    Benchmark,
    Cell,
    Chart,
    Result,
    View,
    benchmark_of,
    largest,
    lines_over,
    mean_over_seeds,
)
from populace.papers.scores import text
from populace.papers.user_path import synthesize_csv
from populace.runs.run import make_key
from populace.tables import datasets
from populace.tables.partition import Clients, split_dirichlet, split_even, split_silos
from populace.tables.table import Table, make_table

ROWS = 30_000
SMALL_ROWS = 1_500
SEEDS = 5
DELTA = 1e-5
EPSILONS = (0.3, 1.0, 2.0, 4.0, 8.0)
SILOS, OTHER_SILOS = 6, (3, 20, 50)
EPSILON = 1.0  # at which the numbers of silos, skew and a missing silo are compared
TRUSTS = {"silo": "noise at each silo", "central": "one noise draw"}
SUMS = (
    (1.0, 0),
    (1.0, 1),
    (1.0, 3),
    (4.0, 0),
)  # epsilon, and silos that may collude with the server, under secure sums
IN_SHARES = "secure sum"
SKEW = 0.3  # of the Dirichlet distribution of labels
REAL = "real rows"
FEW = {"components": 4, "members": 2, "fit_steps": 20}
METRICS = {
    "two_way": "2-way TVD", "avd3": "AVD3", "avd4": "AVD4", "auc": "AUC, logistic", "boosting": "boosting", "forest": "forest",
    "mlp": "MLP", "worst_ks": "worst KS", "zero_share_error": "zeros off", "pearson_error": "correlations off",
    "seconds_run": "s of the run",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A data set: categories in cells, or a raw file (`raw`), with the figures to reach by trust and epsilon."""

    data: str
    about: str
    raw: tables.Setting | None = None
    person: str = ""  # the column of the raw file that names persons
    reach: dict[tuple[str, float], str] = dataclasses.field(default_factory=dict)

    @property
    def metrics(self) -> tuple[str, ...]:
        cells = ("two_way", "avd3", "avd4", "auc", "boosting", "forest", "mlp", "seconds_run")
        return ("boosting", "worst_ks", "zero_share_error", "pearson_error", "seconds_run") if self.raw else cells

    @property
    def error(self) -> tuple[str, str]:
        """The figure whose growth with the number of silos is drawn."""
        return ("pearson_error", "mean error of correlations") if self.raw else ("two_way", "2-way TVD")


ADULT9_SETTING = Setting(
    data="adult9", about="Adult, nine categorical columns",
    reach={
        ("central", 1.0): "TVD .0155, AVD3 .039, AVD4 .069, AUC .873, boosting .868",
        ("silo", 1.0): "TVD .025, AUC .870, boosting .863",
        ("central", 4.0): "TVD .013, AVD3 .033, AVD4 .064, AUC .874, boosting .870",
    },
)  # fmt: skip
A9A_SETTING = Setting(
    data="a9a", about="a9a, 124 binary columns",
    reach={
        ("central", 1.0): "forest .82, MLP .83, AVD4 .012", ("silo", 1.0): "forest .82, MLP .83, AVD4 .018",
    },
)  # fmt: skip
ADULT_SETTING = Setting(
    data="adult", about="Adult, raw, 15 columns", raw=tables.ADULT_SETTING,
    reach={
        ("silo", 1.0): "boosting .890, KS .035, zeros .005, correlations .03",
        ("central", 1.0): "boosting .900, KS .015, zeros .003, correlations .018",
        ("silo", 4.0): "boosting .902, KS .012, zeros .003, correlations .018", ("central", 4.0): "boosting .910",
    },
)  # fmt: skip
BANK_SETTING = Setting(
    data="bank", about="Bank Marketing, raw, 17 columns", raw=tables.BANK_SETTING,
    reach={
        ("silo", 1.0): "boosting .888, KS .03", ("central", 1.0): "boosting .905, KS .012", ("silo", 4.0): "boosting .910",
    },
)  # fmt: skip
DIABETES_SETTING = Setting(
    data="diabetes130", about="Diabetes 130, raw, 48 columns, readmitted or not", raw=tables.DIABETES_SETTING,
    person="patient_nbr",
    reach={
        ("central", 1.0): "boosting .688, KS .01", ("silo", 1.0): "boosting .670", ("silo", 4.0): "boosting .690",
    },
)  # fmt: skip


def cells(setting: Setting, quick: bool, seeds: int) -> list[Cell]:
    """Epsilons at six silos alike; at one epsilon other numbers of silos, skewed labels, and one silo missing. The small
    scale shows that all runs."""
    grid: list[Cell] = [] if quick else cells(setting, True, 1)
    grid.append({"part": "baseline", "scale": "small" if quick else "full", "seed": 0})
    usual: dict[str, str | int] = {"silos": SILOS, "split": "alike", "domains": "found" if setting.raw else "declared"}
    if quick:
        parts = [("epsilon", usual, EPSILON)]
    else:
        parts = [("epsilon", usual, epsilon) for epsilon in EPSILONS]
        parts += [("silos", {**usual, "silos": silos}, EPSILON) for silos in OTHER_SILOS]
        parts += [(split, {**usual, "split": split}, EPSILON) for split in ("skewed", "one missing")]
        parts += [("declared", {**usual, "domains": "declared"}, EPSILON)] if setting.raw else []
        parts += [("person", {**usual, "split": "whole persons"}, EPSILON)] if setting.person else []
    scale = "small" if quick else "full"
    for seed, (part, how, epsilon), trust in itertools.product(
        range(seeds if quick else max(seeds, SEEDS)), parts, TRUSTS
    ):
        grid.append({"part": part, "trust": trust, "epsilon": epsilon, **how, "scale": scale, "seed": seed})
    for seed, (epsilon, colluders) in itertools.product(range(0 if quick else max(seeds, SEEDS)), SUMS):
        shares = {"part": IN_SHARES, "trust": "secure-sum", "epsilon": epsilon, **usual, "colluders": colluders}
        grid.append({**shares, "scale": scale, "seed": seed})
    return grid


def _noise(cell: Cell) -> str:
    """Who added the noise, in words; nobody to real rows."""
    if cell.get("trust") != "secure-sum":
        return TRUSTS.get(str(cell.get("trust")), REAL)
    return IN_SHARES if not cell["colluders"] else f"{IN_SHARES}, {cell['colluders']} may collude"


def measure(setting: Setting, cell: Cell) -> Result:
    """One run and its figures, or in one sentence why there is none."""
    small = cell["scale"] == "small"
    try:
        return _raw(setting, cell, small) if setting.raw else _in_cells(setting, cell, small)
    except PopulaceError as error:
        return {"refused": str(error)}


def dealt(table: Table, cell: Cell) -> Clients:
    """The rows as they are dealt to silos. A missing silo is one that never sends: its rows are in no sum."""
    silos, seed = int(cell["silos"] or 0), int(cell["seed"] or 0)
    if cell["split"] != "skewed":
        return split_even(table, clients=silos, seed=seed)
    labels = table.codes[:, table.schema.index(str(table.schema.target))]
    return split_dirichlet(table, labels=labels, clients=silos, alpha=SKEW, seed=seed)


def _in_cells(setting: Setting, cell: Cell, small: bool) -> Result:
    train, test = load(setting.data, "train"), load(setting.data, "test")
    if small:
        train, test = (table.take(np.arange(SMALL_ROWS)) for table in (train, test))
    if cell["part"] == "baseline":
        return cell_scores(train, train, test)
    clients = dealt(train, cell)
    if cell["split"] == "one missing":
        held = clients.order[: clients.starts[-2]]
        clients = split_silos(train.take(held), clients.widths[:-1].tolist(), most=clients.widest)
    given = {
        **(FEW if small else {}),
        "epsilon": float(cell["epsilon"] or 0),
        "delta": DELTA,
        "trust": str(cell["trust"]),
        "colluders": int(cell.get("colluders") or 0),
    }
    protocol = make_protocol("census", given)
    seed = int(cell["seed"] or 0)
    began = time.monotonic()
    outcome = simulation.run(protocol, clients, root=make_key(seed))
    seconds = time.monotonic() - began
    claim = outcome.guarantee
    made = outcome.generator.sample(SMALL_ROWS if small else ROWS, make_key(seed + 1_000))
    about = {"guarantee": str(claim.bound), "unit": claim.unit, "trust": claim.trust, "seconds_run": seconds}
    return {**about, **cell_scores(made, train, test)}


@functools.lru_cache(maxsize=2)
def load(data: str, part: datasets.Split) -> Table:
    """The rows of a data set of categories."""
    return datasets.load_table(data, part)


def cell_scores(synthetic: Table, real: Table, test: Table) -> Result:
    """Distances to the training rows over fixed sets of columns, and what models trained on synthetic rows get right."""
    columns, target = len(real.schema.columns), str(test.schema.target)
    found: Result = {"two_way": mean_over_pairs(two_way_distances(real, synthetic))}
    for width in (3, 4):
        found[f"avd{width}"] = float(set_distances(real, synthetic, random_sets(columns, width)).mean())
    learned = scores({"synthetic": synthetic}, test, target, draws=2)["synthetic"]
    logistic = learned["logistic regression"].auc
    return {
        **found,
        "auc": logistic.value if logistic.known else None,
        "boosting": value_scores(synthetic, real, test, target)["boosting_auc"],
        "forest": learned["random forest"].accuracy.value,
        "mlp": learned["MLP"].accuracy.value,
    }


@functools.lru_cache(maxsize=1)
def raw_rows_of(setting: tables.Setting) -> tables.Rows:
    """Raw rows; a target of several classes is one class and the rest before anything is synthesised."""
    rows = tables.load(setting.data)
    schema, (train, test) = tables.evaluated(setting, rows.schema, (rows.train, rows.test))
    return tables.Rows(train=train, test=test, schema=schema)


def _raw(setting: Setting, cell: Cell, small: bool) -> Result:
    """Through files, one for each silo."""
    if setting.raw is None:
        raise ValueError("a raw file is needed")
    plain = dataclasses.replace(setting.raw, alone="")
    rows = raw_rows_of(setting.raw)
    if small:
        rows = dataclasses.replace(rows, train=rows.train.slice(0, SMALL_ROWS), test=rows.test.slice(0, SMALL_ROWS))
    if cell["part"] == "baseline":
        return _as_boosting(
            {**tables.figures(plain, rows, rows.test), "auc": tables.figures(plain, rows, rows.train)["auc"]}
        )
    person = setting.person if cell["part"] == "person" else None
    persons = None if person is None else datasets.load_persons(setting.data).slice(0, rows.train.num_rows)
    result = synthesize_csv(
        silo_frames(rows, cell, persons, setting.person), rows.schema if cell["domains"] == "declared" else None,
        method="census", epsilon=float(cell["epsilon"] or 0), delta=DELTA, trust=str(cell["trust"]), target=rows.schema.target,
        rows=SMALL_ROWS if small else ROWS, seed=int(cell["seed"] or 0), limit=tables.LIMIT, person=person,
        settings={**(FEW if small else {}), **({"colluders": cell["colluders"]} if cell.get("colluders") else {})},
    )  # fmt: skip
    claim = result.run.guarantee
    about = {
        "guarantee": str(claim.bound), "unit": claim.unit, "trust": claim.trust, "seconds_run": result.seconds,
        "read_from_data": list(claim.read_from_data),
    }  # fmt: skip
    return {**about, **_as_boosting(tables.figures(plain, rows, result.frame))}


def _as_boosting(figures: Result) -> Result:
    return {**{name: value for name, value in figures.items() if name != "auc"}, "boosting": figures["auc"]}


def silo_frames(
    rows: tables.Rows, cell: Cell, persons: pa.ChunkedArray | None = None, name: str = ""
) -> list[pa.Table]:
    """Each silo's rows as a table of its own; silos without rows have no file. Persons, column `name`, are dealt out whole."""
    if persons is None:
        frame, clients = rows.train, dealt(make_table(rows.train, rows.schema), cell)
        order, starts = clients.order, clients.starts.tolist()
    else:
        frame = rows.train.append_column(name, persons)
        number = np.asarray(persons.combine_chunks().dictionary_encode().indices)
        silos, seed = int(cell["silos"] or 0), int(cell["seed"] or 0)
        owner = (np.random.default_rng(seed).permutation(number.max() + 1) % silos)[number]
        order, starts = np.argsort(owner, kind="stable"), [0, *np.cumsum(np.bincount(owner, minlength=silos)).tolist()]
    parts = [frame.take(pa.array(order[first:last])) for first, last in itertools.pairwise(starts)]
    kept = parts[:-1] if cell["split"] == "one missing" else parts
    return [part for part in kept if part.num_rows]


def _row(setting: Setting, values: Result) -> list[str]:
    return [text(values.get(key), 1 if key == "seconds_run" else 4) for key in setting.metrics]


def _named(results: Sequence[Result]) -> list[Result]:
    """The results that there are, whose cells say in words who added the noise."""
    return [
        {**result, "cell": {**result["cell"], "noise": _noise(result["cell"])}}
        for result in results
        if "refused" not in result
    ]


def views(setting: Setting, results: Sequence[Result]) -> list[View]:
    done = _named(results)
    by, full = ("part", "noise", "epsilon", "silos", "split", "domains"), largest(results) == "full"
    trusts = {words: trust for trust, words in TRUSTS.items()}
    rows = []
    for (part, noise, epsilon, silos, split, domains), values in mean_over_seeds(done, setting.metrics, by).items():
        if part == "baseline":
            rows.append([REAL, *["-"] * 4, *_row(setting, values), ""])
            continue
        reach = setting.reach.get((trusts.get(noise, ""), epsilon), "") if full and part == "epsilon" else ""
        how = f"{silos}, {split}"
        rows.append([noise, f"{epsilon:g}", how, domains, str(_seeds(done, part, noise, epsilon, silos)),
                     *_row(setting, values), reach])  # fmt: skip
    header = ["noise", "epsilon", "silos", "domains", "seeds", *(METRICS[key] for key in setting.metrics), "to reach"]
    refused = [[str(r["cell"]), str(r["refused"])] for r in results if "refused" in r]
    made = ROWS if full else SMALL_ROWS
    what = f"{setting.about}: mean over seeds, {made:,} synthetic rows, delta {DELTA:g}; {TRUSTS['central']}: --trust central"
    found = [View(title=what, header=header, rows=rows)]
    return [*found, View(title="\nrefused", header=["cell", "why"], rows=refused)] if refused else found


def _seeds(results: Sequence[Result], part: object, noise: object, epsilon: object, silos: object) -> int:
    wanted = {"part": part, "noise": noise, "epsilon": epsilon, "silos": silos}
    return len({r["cell"]["seed"] for r in results if wanted.items() <= r["cell"].items()})


def charts(setting: Setting, results: Sequence[Result]) -> list[Chart]:
    """Figures by epsilon for both trusts, and the error by the number of silos for both."""
    done = [result for result in _named(results) if result["cell"]["part"] != "baseline"]
    real = [result for result in results if result["cell"]["part"] == "baseline" and "refused" not in result]
    plots = []
    by_epsilon = [r for r in done if r["cell"]["part"] == "epsilon"]
    by_silos = [r for r in done if r["cell"]["part"] in ("epsilon", "silos") and r["cell"]["epsilon"] == EPSILON]
    error, error_words = setting.error
    for key, up in (("boosting", "AUC of boosting on the test rows"), (error, error_words)):
        lines = lines_over(by_epsilon, key, "epsilon", "noise")
        level = {REAL: float(real[0][key])} if real and key == "boosting" and real[0].get(key) is not None else {}
        if lines:
            name = f"{key}-by-epsilon"
            plots.append(Chart(name=name, title=setting.about, across="epsilon", up=up, lines=lines, level=level))
    lines = lines_over(by_silos, error, "silos", "noise")
    if lines:
        title = f"{setting.about}, epsilon {EPSILON:g}"
        plots.append(Chart(name=f"{error}-by-silos", title=title, across="silos", up=error_words, lines=lines))
    return plots


def _benchmark(name: str, setting: Setting) -> Benchmark:
    def prepare() -> None:
        if setting.raw:
            tables.load(setting.data)
        else:
            load(setting.data, "train")
            load(setting.data, "test")

    return benchmark_of(
        __name__, setting, name=name, title=f"census: {setting.about}", reference="our own method; figures to reach are beside",
        revision=3 if setting.raw else 2, prepare=prepare,
    )  # fmt: skip


ADULT9 = _benchmark("census-adult9", ADULT9_SETTING)
A9A = _benchmark("census-a9a", A9A_SETTING)
ADULT = _benchmark("census-adult", ADULT_SETTING)
BANK = _benchmark("census-bank", BANK_SETTING)
DIABETES = _benchmark("census-diabetes", DIABETES_SETTING)
