"""`local-adult9` and `local-bank`: all methods for tables under local privacy, as in the figures of Chen et al. 2023.

Figure 5 (error against epsilon, number of records, number of columns), 6 (logistic regression), 7 (bits sent) and 8 (mutual
information against batch size). The paper prints curves, and as numbers only the accuracy on the original data, the mutual
information of (marital-status, relationship), and the sizes of the data sets.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import jax
import numpy as np

from populace.engines import simulation
from populace.evaluation.marginals import mean_over_pairs, relative_error, two_way_distances
from populace.evaluation.prediction import Score, logistic_score, majority_score
from populace.evaluation.sets import all_sets, set_distances
from populace.methods.blocks.clique_tree import TreeGenerator
from populace.methods.blocks.composed import RunState
from populace.methods.blocks.one_report import mutual_information
from populace.methods.marginals.graphical_model import fit_graphical_model
from populace.methods.marginals.samprivsyn import SamPrivSyn
from populace.methods.registry import make_protocol
from populace.papers.grid import Benchmark, Cell, Chart, Result, View, benchmark_of, lines_over, mean_over_seeds
from populace.runs.run import make_key
from populace.tables import datasets
from populace.tables.partition import split
from populace.tables.schema import Schema
from populace.tables.table import Table, from_codes

ROWS = 30_000
PUBLISHED: dict[str, object] = {"oracle": "split-krr", "estimator": "lasso", "selection": "mutual-information"}
#: Row of the table -> method and its settings.
METHODS: dict[str, tuple[str, dict[str, object]]] = {
    "independent": ("independent", {}),
    "krr": ("krr", {}),
    "lopub": ("lopub", {"hashes": 2, "bits": 64}),
    "locop": ("locop", {"hashes": 2, "bits": 64}),
    "calm": ("calm", {}),
    "calm, as published": ("calm", {"estimator": "consistent"}),
    "calm, split budget": ("samprivsyn", {"oracle": "split-krr", "estimator": "consistent", "selection": "uniform"}),
    "pairs evenly, split budget, pgm": (
        "samprivsyn",
        {"oracle": "split-krr", "estimator": "pgm", "selection": "uniform"},
    ),
    "samprivsyn, as published": ("samprivsyn", {**PUBLISHED, "clients_per_batch": 2_000}),
    "samprivsyn": ("samprivsyn", {"oracle": "joint", "estimator": "pgm"}),
}
SWEPT = ("independent", "krr", "lopub", "calm, split budget", "samprivsyn, as published", "samprivsyn")
BASELINES = ("real rows", "true columns, shuffled", "majority class")
PAIR = ("marital-status", "relationship")
INFORMATION = ("information", "information_estimated", "information_real")
METRICS = ("two_way", "three_way", "relative", "auc", "accuracy", "bits", "seconds_run")
HEADER = ("2-way TVD", "3-way TVD", "relative error", "AUC", "accuracy", "bits up", "seconds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What differs between the two data sets."""

    data: str
    wide: str | None
    clients: tuple[int, ...]
    columns: tuple[int, ...]
    batches: tuple[int, ...]
    accuracy: float


ADULT9_SETTING = Setting(
    data="adult9",
    wide="adult",
    clients=(5_000, 10_000, 20_000, 30_162, 60_324),
    columns=(3, 5, 7, 9, 15),
    batches=(500, 1_000, 2_000, 5_000, 10_000, 30_000),
    accuracy=0.746,
)
BANK_SETTING = Setting(data="bank", wide=None, clients=(), columns=(5, 9, 13, 17), batches=(), accuracy=0.887)


@functools.lru_cache(maxsize=4)
def load(name: str, part: datasets.Split) -> Table:
    return datasets.load_table(name, part)


def cells(setting: Setting, quick: bool, seeds: int) -> list[Cell]:
    """All cells: every method for every epsilon, then the sweeps."""
    epsilons = (1, 2, 4, 8) if quick else tuple(range(1, 11))
    grid: list[Cell] = [{"part": "baseline", "method": name, "seed": 0} for name in BASELINES]
    for seed, epsilon, method in itertools.product(range(seeds), epsilons, METHODS):
        grid.append({"part": "epsilon", "method": method, "epsilon": epsilon, "seed": seed})
    for seed, clients, method in itertools.product(range(seeds), setting.clients, SWEPT):
        grid.append({"part": "clients", "method": method, "epsilon": 4, "clients": clients, "seed": seed})
    for seed, columns, method in itertools.product(range(seeds), setting.columns, SWEPT):
        grid.append({"part": "columns", "method": method, "epsilon": 4, "columns": columns, "seed": seed})
    for seed, batch, method in itertools.product(
        range(max(seeds, 3)), setting.batches, ("samprivsyn, as published", "samprivsyn")
    ):
        grid.append({"part": "batch", "method": method, "epsilon": 5, "batch": batch, "seed": seed})
    return grid


def measure(setting: Setting, cell: Cell) -> Result:
    """One run and its figures. Compiled functions are dropped afterwards: no two cells share any."""
    part, method = str(cell["part"]), str(cell["method"])
    if part == "baseline":
        return _baseline(setting, method)
    table, reference = _population(setting, cell)
    name, settings = METHODS[method]
    given: dict[str, object] = {"epsilon": float(cell["epsilon"] or 0), **settings}
    if part == "batch":
        given["clients_per_batch"] = cell["batch"]
    seed = int(cell["seed"] or 0)
    protocol = make_protocol(name, given)
    root = make_key(seed)
    outcome = simulation.run(protocol, split(table, records_per_client=1), root=root)
    synthetic = outcome.generator.sample(ROWS, make_key(seed + 1_000))
    jax.clear_caches()  # type: ignore[no-untyped-call]
    about: Result = {
        "bits": 8 * outcome.traffic.to_json()["bytes_from_one_client_per_message"],
        "guarantee": outcome.guarantee.epsilon,
    }
    if part == "batch" and isinstance(protocol, SamPrivSyn):
        return {
            **about,
            "information": information(synthetic),
            "information_estimated": estimated_information(protocol, outcome.state),
            "information_real": information(table),
        }
    return {**about, **_scores(synthetic, reference, load(setting.data, "test") if part == "epsilon" else None)}


def _population(setting: Setting, cell: Cell) -> tuple[Table, Table]:
    """The clients' rows, and the rows whose tables are compared."""
    train = load(setting.data, "train")
    if cell["part"] == "columns":
        table = _first_columns(setting, int(cell["columns"] or 0))
        return table, table
    if cell["part"] != "clients":
        return train, train
    wanted = int(cell["clients"] or 0)
    if wanted > len(train):
        drawn = _fitted(setting.data).sample(wanted, jax.random.key(11))
        return drawn, drawn
    return train.take(np.random.default_rng(11).permutation(len(train))[:wanted]), train


@functools.lru_cache(maxsize=2)
def _fitted(name: str) -> TreeGenerator:
    """A model of the real rows, without privacy, to draw more people from than there are: not copies of persons."""
    train = load(name, "train")
    sizes = train.schema.sizes
    pairs = []
    for a, b in itertools.combinations(range(len(sizes)), 2):
        cell = train.codes[:, a] * sizes[b] + train.codes[:, b]
        counts = np.bincount(cell, minlength=sizes[a] * sizes[b]) / len(train)
        pairs.append(((a, b), counts.reshape(sizes[a], sizes[b]), 1e-3))
    return TreeGenerator(schema=train.schema, tree=fit_graphical_model(sizes, pairs))


def _first_columns(setting: Setting, count: int) -> Table:
    """The first so many columns; of the wide data set, as many rows as the usual one has."""
    train = load(setting.data, "train")
    if count > len(train.schema.columns) and setting.wide:
        wide = load(setting.wide, "train")
        train = wide.take(np.random.default_rng(11).permutation(len(wide))[: len(train)])
    schema = Schema(columns=train.schema.columns[:count])
    return from_codes(train.codes[:, :count], schema, np.random.default_rng(11))


def _baseline(setting: Setting, name: str) -> Result:
    train, test = load(setting.data, "train"), load(setting.data, "test")
    target = str(train.schema.target)
    if name == "majority class":
        return _score(majority_score(train, test, target))
    if name == "real rows":
        return _score(logistic_score(train, test, target))
    rng = np.random.default_rng(11)
    codes = np.stack([rng.permutation(column) for column in train.codes.T], axis=1)
    return _scores(from_codes(codes, train.schema, rng), train, test)


def _scores(synthetic: Table, real: Table, test: Table | None) -> Result:
    matrix = two_way_distances(real, synthetic)
    scores: Result = {
        "one_way": float(np.diag(matrix).mean()),
        "two_way": mean_over_pairs(matrix),
        "three_way": float(set_distances(real, synthetic, all_sets(len(matrix), 3)).mean()),
        "relative": relative_error(real, synthetic),
    }
    if test is not None:
        scores |= _score(logistic_score(synthetic, test, str(test.schema.target)))
    return scores


def _score(score: Score) -> Result:
    return {"auc": score.auc.value if score.auc.known else None, "accuracy": score.accuracy.value}


def information(table: Table) -> float:
    """Mutual information of the paper's pair, in nats."""
    a, b = (table.schema.index(name) for name in PAIR)
    sizes = table.schema.sizes
    counts = np.bincount(table.codes[:, a] * sizes[b] + table.codes[:, b], minlength=sizes[a] * sizes[b])
    return mutual_information(counts.reshape(sizes[a], sizes[b]) / len(table))


def estimated_information(protocol: SamPrivSyn, state: RunState) -> float:
    """The same of the pair's estimated table, before rows are made from it: what the paper's figure 8 must show."""
    learner = protocol.learner(state.population)
    wanted = sorted(learner.survey.schema.index(name) for name in PAIR)
    how = "lasso" if protocol.estimator == "lasso" else "projected"
    pairs = [sorted(group) for group in learner.survey.groups if len(group) == 2]
    return mutual_information(learner.pair_tables(state.learner.counts, how)[pairs.index(wanted)])


def _of(results: Sequence[Result], part: str) -> list[Result]:
    return [{**result, "seconds_run": result["seconds"]} for result in results if result["cell"]["part"] == part]


def _text(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _row(values: Result) -> list[str]:
    digits = {"bits": 0, "seconds_run": 1}
    return [_text(values.get(key), digits.get(key, 3)) for key in METRICS]


def views(setting: Setting, results: Sequence[Result]) -> list[View]:
    """The terminal's tables, with what the paper prints beside."""
    rows = []
    for (method,), values in mean_over_seeds(_of(results, "baseline"), METRICS, ("method",)).items():
        paper = _text(setting.accuracy) if method == "real rows" else ""
        rows.append(["-", method, *_row({**values, "seconds_run": None}), paper])
    means = mean_over_seeds(_of(results, "epsilon"), METRICS, ("epsilon", "method"))
    rows += [[str(epsilon), method, *_row(values), ""] for (epsilon, method), values in means.items()]
    sections = [
        View(
            title=f"{setting.data}: distances to the training rows; logistic regression (one-hot) on {ROWS:,} synthetic rows, "
            "tested on real ones",
            header=["epsilon", "method", *HEADER, "paper: accuracy"],
            rows=rows,
        )
    ]
    for part, title in (("clients", "clients"), ("columns", "columns")):
        swept = mean_over_seeds(_of(results, part), METRICS, (part, "method"))
        if swept:
            body = [[str(n), method, *(_row(values)[i] for i in (0, 1, 2, 5))] for (n, method), values in swept.items()]
            header = [title, "method", *(HEADER[i] for i in (0, 1, 2, 5))]
            sections.append(View(title=f"\nepsilon 4, by number of {title}", header=header, rows=body))
    batches = mean_over_seeds(_of(results, "batch"), INFORMATION, ("batch", "method"))
    if batches:
        body = [
            [str(batch), method, *(_text(values[key]) for key in INFORMATION), "about 0.71"]
            for (batch, method), values in batches.items()
        ]
        header = ["batch", "method", "synthetic rows", "estimated table", "real rows", "paper: real"]
        sections.append(
            View(title="\nmutual information of (marital-status, relationship), epsilon 5", header=header, rows=body)
        )
    return sections


def charts(setting: Setting, results: Sequence[Result]) -> list[Chart]:
    """Lines like the paper's figures 5 to 8."""
    plots = []
    baseline = {result["cell"]["method"]: result for result in _of(results, "baseline")}
    shuffled, real = baseline.get(BASELINES[1], {}), baseline.get(BASELINES[0], {})
    wanted: tuple[tuple[str, str, str, str, dict[str, float | None], bool], ...] = (
        ("epsilon", "two_way", "epsilon", "2-way TVD", {"true columns, shuffled": shuffled.get("two_way")}, False),
        ("epsilon", "relative", "epsilon", "relative error", {}, True),
        ("epsilon", "auc", "epsilon", "AUC", {"real rows": real.get("auc")}, False),
        ("epsilon", "accuracy", "epsilon", "accuracy", {"real rows": real.get("accuracy")}, False),
        ("clients", "two_way", "clients", "2-way TVD", {}, False),
        ("columns", "two_way", "columns", "2-way TVD", {}, False),
        ("columns", "bits", "columns", "bits sent by a client", {}, True),
        ("batch", "information", "batch size", "mutual information of synthetic rows, nats", {}, False),
        ("batch", "information_estimated", "batch size", "mutual information of the estimated table, nats", {}, False),
    )
    for part, key, across, up, level, logarithmic in wanted:
        lines = lines_over(_of(results, part), key, part)
        if part == "batch" and lines:
            means = mean_over_seeds(_of(results, part), ("information_real",), (part, "method"))
            level = {"real rows": next(iter(means.values()))["information_real"]}
        if lines:
            plots.append(
                Chart(
                    name=f"{key}-by-{part}", title=setting.data, across=across, up=up, logarithmic=logarithmic, lines=lines,
                    level={name: value for name, value in level.items() if value is not None},
                )
            )  # fmt: skip
    return plots


def _benchmark(setting: Setting, title: str) -> Benchmark:
    def prepare() -> None:
        for name, part in ((setting.data, "train"), (setting.data, "test"), (setting.wide, "train")):
            if name is not None:
                load(name, part)  # type: ignore[arg-type]

    return benchmark_of(
        __name__,
        setting,
        name=f"local-{setting.data}",
        title=title,
        reference="Chen et al., Sci. China Inf. Sci. 66, 112101 (2023), figures 5 to 8: curves; few numbers are printed",
        revision=1,
        prepare=prepare,
    )


ADULT9 = _benchmark(ADULT9_SETTING, "methods under local privacy on Adult, nine categorical columns")
BANK = _benchmark(BANK_SETTING, "methods under local privacy on Bank Marketing, seventeen columns")
