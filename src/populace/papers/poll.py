"""`poll-adult9`, `poll-a9a`, `poll-ablation`: our own method, mean of five seeds, beside what was to be reached.

`poll-adult9`: one answer per row of the complete training rows, without a target and with income. `poll-a9a`: 50,000 clients
whose rows are drawn with replacement from the training rows, as in the DP-Fed-WAE paper (so the guarantee is per simulated
client, and a person is drawn 1.5 times on average). Both also compare `poll` without a target to `independent` from epsilon 0.1
to 10. Each run takes the path of a user: `synthesize` on a CSV with the declared schema and, once more, with the schema it
proposes itself. `poll-ablation`: Adult with one part of the method changed at a time.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np

from populace.engines import simulation
from populace.evaluation.correlation import correlation_distance
from populace.evaluation.marginals import mean_over_pairs, two_way_distances
from populace.evaluation.prediction import scores
from populace.evaluation.sets import random_sets, set_distances
from populace.methods.registry import make_protocol
from populace.papers.grid import Benchmark, Cell, Chart, Result, View, benchmark_of, mean_over_seeds
from populace.papers.user_path import raw_rows, synthesize_csv
from populace.runs.run import make_key
from populace.tables import datasets, embedded
from populace.tables.partition import split
from populace.tables.table import Table

ROWS = 30_000
SEEDS = 5
EPSILONS = (1, 2, 4, 8)
SMALL_AND_LARGE: tuple[float, ...] = (0.1, 0.3, 1, 3, 10)
METRICS = ("two_way", "avd2", "avd4", "cmd", "auc", "forest", "mlp", "seconds_run")
HEADER = ("2-way TVD", "2-way AVD", "4-way AVD", "CMD", "AUC, logistic", "forest", "MLP", "seconds")
VARIANTS: dict[str, dict[str, float]] = {
    "as it is": {},
    "one stage": {"stages": 1},
    "one stage, one chain": {"stages": 1, "chains": 1},
    "one chain": {"chains": 1},
    "4 classes": {"latent_classes": 4},
    "8 classes": {"latent_classes": 8},
    "24 classes": {"latent_classes": 24},
    "classes' spread 0.6": {"prior_scale": 0.6},
    "classes' spread 2": {"prior_scale": 2.0},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What differs between the benchmarks: data sets compared with `independent`, and the figures to reach."""

    data: str
    compared: tuple[str, ...]
    reach: dict[tuple[str, int], str]


ADULT9_SETTING = Setting(
    data="adult9",
    compared=("adult9", "bank", "harbour"),
    reach={
        **{("none", e): f"TVD {t}" for e, t in zip(EPSILONS, (".165", ".095", ".057", ".037"), strict=True)},
        **{
            ("schema", e): f"TVD {t}, AUC {a}"
            for e, t, a in zip(
                EPSILONS, (".180", ".105", ".070", ".045"), (".825", ".840", ".863", ".869"), strict=True
            )
        },
    },
)
A9A_SETTING = Setting(
    data="a9a",
    compared=("a9a",),
    reach={
        ("schema", e): f"4-way AVD {t}, forest and MLP {a}"
        for e, t, a in zip(EPSILONS, (".090", ".050", ".028", ".016"), (".785", ".815", ".822", ".828"), strict=True)
    },
)


@functools.lru_cache(maxsize=4)
def load(name: str, part: datasets.Split = "train") -> Table:
    """The rows of a data set; of a9a the same 50,000 that the comparison was drawn from."""
    if name == "harbour":
        return embedded.harbour()
    table = datasets.load_table(name, part)
    if name == "a9a" and part == "train":
        return table.take(np.random.default_rng(0).integers(0, len(table), 100_000)[:50_000])
    return table


def cells(setting: Setting, quick: bool, seeds: int) -> list[Cell]:
    """All cells: the figures with each schema, and the comparison with `independent`."""
    seeds = seeds if quick else max(seeds, SEEDS)
    targets = ("none", "schema") if setting.data == "adult9" else ("schema",)
    grid: list[Cell] = [{"part": "baseline", "method": "real rows", "seed": 0}]
    for part, seed, epsilon, target in itertools.product(("figures", "proposed"), range(seeds), EPSILONS, targets):
        grid.append({"part": part, "epsilon": epsilon, "target": target, "seed": seed})
    for data, seed, level, method in itertools.product(
        setting.compared, range(seeds), SMALL_AND_LARGE, ("poll", "independent")
    ):
        grid.append({"part": "compared", "data": data, "method": method, "epsilon": level, "seed": seed})
    return grid


def measure(setting: Setting, cell: Cell) -> Result:
    """One run on a CSV and its figures, under the declared schema whatever the run's was."""
    if cell["part"] == "baseline":
        train = load(setting.data)
        return table_scores(train, train, load(setting.data, "test"))
    table = load(str(cell.get("data") or setting.data))
    method = str(cell.get("method") or "poll")
    with_target = cell.get("target") == "schema"
    result = synthesize_csv(
        raw_rows(table), None if cell["part"] == "proposed" else table.schema, method=method,
        epsilon=float(cell["epsilon"] or 0), target=table.schema.target if with_target else None, rows=ROWS,
        settings={"target": None} if method == "poll" and not with_target else {}, seed=int(cell["seed"] or 0),
    )  # fmt: skip
    test = load(setting.data, "test") if with_target else None
    bits = 8 * result.run.details["traffic"]["bytes_from_one_client_per_message"]
    return {"bits": bits, "seconds_run": result.seconds, **table_scores(result.table(table.schema), table, test)}


def table_scores(synthetic: Table, real: Table, test: Table | None) -> Result:
    """Distances to the real rows, and, with test rows, what models trained on the synthetic ones get right there."""
    columns = len(real.schema.columns)
    distances: Result = {"two_way": mean_over_pairs(two_way_distances(real, synthetic))}
    for width in (2, 4):
        distances[f"avd{width}"] = float(set_distances(real, synthetic, random_sets(columns, width)).mean())
    if test is None:
        return distances
    distances["cmd"] = correlation_distance(real, synthetic).value
    learned = scores({"synthetic": synthetic}, test, str(test.schema.target), draws=2)["synthetic"]
    logistic = learned["logistic regression"].auc
    return {
        **distances,
        "auc": logistic.value if logistic.known else None,
        "forest": learned["random forest"].accuracy.value,
        "mlp": learned["MLP"].accuracy.value,
    }


def _of(results: Sequence[Result], part: str) -> list[Result]:
    return [{"seconds_run": result["seconds"], **result} for result in results if result["cell"]["part"] == part]


def _row(values: Result) -> list[str]:
    return ["-" if values.get(k) is None else f"{values[k]:.{1 if k == 'seconds_run' else 4}f}" for k in METRICS]


def _questions(part: str, target: str) -> str:
    name = "no target" if target == "none" else "with target"
    return f"{name}, proposed schema" if part == "proposed" else name


def views(setting: Setting, results: Sequence[Result]) -> list[View]:
    rows = [["-", "real rows", *_row(values), ""] for values in _of(results, "baseline")]
    for part in ("figures", "proposed"):
        for (target, epsilon), values in mean_over_seeds(_of(results, part), METRICS, ("target", "epsilon")).items():
            reach = setting.reach.get((target, epsilon), "")
            rows.append([str(epsilon), _questions(part, target), *_row(values), reach])
    compared = mean_over_seeds(_of(results, "compared"), ("two_way", "avd4"), ("data", "epsilon", "method"))
    body = []
    for (data, epsilon, method), values in compared.items():
        other = compared.get((data, epsilon, "independent"))
        if method == "poll" and other:
            pairs = [(values[key], other[key]) for key in ("two_way", "avd4")]
            ratios = [
                "-" if None in pair else f"{pair[0]:.4f} / {pair[1]:.4f} = {pair[0] / pair[1]:.3f}" for pair in pairs
            ]
            body.append([data, f"{epsilon:g}", *ratios])
    return [
        View(
            title=f"poll on {setting.data}: distances to the clients' rows, models trained on {ROWS:,} synthetic rows and "
            "tested on real ones",
            header=["epsilon", "questions", *HEADER, "to reach"],
            rows=rows,
        ),
        View(
            title="\npoll without a target / independent",
            header=["data", "epsilon", "2-way TVD", "4-way AVD"],
            rows=body,
        ),
    ]


def charts(setting: Setting, results: Sequence[Result]) -> list[Chart]:
    plots = []
    for key, up in (("two_way", "2-way TVD"), ("avd4", "4-way AVD"), ("auc", "AUC"), ("mlp", "accuracy of an MLP")):
        lines: dict[str, list[tuple[float, float]]] = {}
        for part in ("figures", "proposed"):
            for (target, epsilon), values in mean_over_seeds(_of(results, part), (key,), ("target", "epsilon")).items():
                if values[key] is not None:
                    lines.setdefault(_questions(part, target), []).append((float(epsilon), float(values[key])))
        if lines:
            plots.append(Chart(name=f"{key}-by-epsilon", title=setting.data, across="epsilon", up=up, lines=lines))
    return plots


def ablation_cells(quick: bool, seeds: int) -> list[Cell]:
    seeds = seeds if quick else max(seeds, SEEDS)
    epsilons = (2,) if quick else EPSILONS
    return [
        {"variant": variant, "target": target, "epsilon": epsilon, "seed": seed}
        for seed, epsilon, target, variant in itertools.product(range(seeds), epsilons, ("none", "schema"), VARIANTS)
    ]


def measure_variant(cell: Cell) -> Result:
    """Distances of one variant, and what a model learns from its rows where there is a target."""
    table, seed = load("adult9"), int(cell["seed"] or 0)
    given: dict[str, object] = {**VARIANTS[str(cell["variant"])], "epsilon": float(cell["epsilon"] or 0)}
    if cell["target"] == "none":
        given["target"] = None
    outcome = simulation.run(make_protocol("poll", given), split(table), root=make_key(seed))
    test = load("adult9", "test") if cell["target"] == "schema" else None
    return table_scores(outcome.generator.sample(ROWS, make_key(seed + 1_000)), table, test)


def ablation_views(results: Sequence[Result]) -> list[View]:
    means = mean_over_seeds(results, ("two_way", "auc"), ("target", "epsilon", "variant"))
    rows = [
        [str(epsilon), "no target" if target == "none" else "with target", variant]
        + ["-" if values[key] is None else f"{values[key]:.4f}" for key in ("two_way", "auc")]
        for (target, epsilon, variant), values in means.items()
    ]
    header = ["epsilon", "questions", "variant", "2-way TVD", "AUC, logistic"]
    return [View(title="poll on adult9, one part changed at a time", header=header, rows=rows)]


def _benchmark(setting: Setting, title: str) -> Benchmark:
    def prepare() -> None:
        for name in setting.compared:
            load(name)

    return benchmark_of(
        __name__,
        setting,
        name=f"poll-{setting.data}",
        title=title,
        reference="our own method; figures to reach are beside",
        revision=3,
        prepare=prepare,
    )


ADULT9 = _benchmark(ADULT9_SETTING, "poll on Adult, nine categorical columns, mean of five seeds")
A9A = _benchmark(A9A_SETTING, "poll on a9a, 124 binary columns, 50,000 clients, mean of five seeds")


def ablation_charts(results: Sequence[Result]) -> list[Chart]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for (target, epsilon, variant), values in mean_over_seeds(
        results, ("two_way",), ("target", "epsilon", "variant")
    ).items():
        if target == "none" and values["two_way"] is not None:
            lines.setdefault(str(variant), []).append((float(epsilon), float(values["two_way"])))
    return [Chart(name="ablation-by-epsilon", title="adult9, no target", across="epsilon", up="2-way TVD", lines=lines)]


def _load_adult9() -> None:
    load("adult9")


ABLATION = Benchmark(
    name="poll-ablation",
    title="poll on Adult, one part changed at a time",
    reference="our own method",
    revision=1,
    prepare=_load_adult9,
    cells=ablation_cells,
    measure=measure_variant,
    views=ablation_views,
    charts=ablation_charts,
)
