"""`tables-adult`, `tables-bank`, `tables-diabetes`: raw files through the path a user takes, evaluated by their values.

Every cell writes the training rows as a CSV and calls `synthesize` on it, with the schema that is proposed there or with the
one declared for the data set. One row is one client; methods that protect records get the file as six silos, in its order. As
many synthetic rows are drawn as there are training rows. No figure looks at the cells of a model.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from populace.errors import PopulaceError
from populace.evaluation.value_scores import KS_OF, value_scores, worst_column
from populace.methods.registry import protocol_class
from populace.papers.grid import Benchmark, Cell, Chart, Group, Result, View
from populace.papers.user_path import raw_rows, synthesize_csv
from populace.tables import datasets
from populace.tables.schema import Column, Schema
from populace.tables.table import make_table
from populace.tables.widening import widened

SEEDS = 3
SILOS = 6
EPSILON = 4.0
OTHER_EPSILONS = (1.0, 2.0, 8.0)  # of `poll` alone
SCHEMAS = ("proposed", "declared")
QUICK = ("poll", "independent")
METHODS = (
    *QUICK, "samprivsyn", "calm", "krr", "lopub", "locop", "dp-fed-wae", "fedsel-wae", "moments", "fl-gan", "ufl-gan",
    "l-dpd-vae", "chain",
)  # fmt: skip
REAL = "real rows"
REST = "other"
SPLIT_SEED = 0
LIMIT = 900.0  # seconds of one run
METRICS = ("worst_ks", "zero_share_error", "worst_mean_ratio", "pearson_error", "auc", "seconds_run")
HEADER = ("worst KS", "error of zeros", "worst mean", "correlation error", "AUC, boosting", "s")
RATIO_OF = "mean_ratio: "


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goal:
    """A figure that `poll` has to reach at epsilon 4; `value` takes the results of all seeds."""

    name: str
    bound: float
    value: Callable[[Sequence[Result]], float | None]
    at_least: bool = False

    def reached(self, value: float | None) -> str:
        if value is None:
            return "-"
        return "yes" if (value >= self.bound if self.at_least else value <= self.bound) else "no"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A data set and its figures to reach; `alone` is the class of the target whose AUC against the rest is taken."""

    data: str
    about: str
    goals: tuple[Goal, ...]
    alone: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Raw rows, and the declared schema, which also says which columns are evaluated as numbers."""

    train: pa.Table
    test: pa.Table
    schema: Schema


def largest_of(key: str) -> Callable[[Sequence[Result]], float | None]:
    return lambda results: max((r[key] for r in results if r.get(key) is not None), default=None)


def mean_of(key: str) -> Callable[[Sequence[Result]], float | None]:
    def value(results: Sequence[Result]) -> float | None:
        values = [r[key] for r in results if r.get(key) is not None]
        return sum(values) / len(values) if values else None

    return value


def mean_off(*, only: Sequence[str] = (), but: Sequence[str] = ()) -> Callable[[Sequence[Result]], float | None]:
    """How far the mean of a column is off at most, over the real mean; means are taken over the seeds first."""

    def value(results: Sequence[Result]) -> float | None:
        ratios = mean_ratios(results)
        off = [abs(r - 1) for name, r in ratios.items() if name not in but and (not only or name in only)]
        return max(off, default=None)

    return value


CAPITAL = ("capital-gain", "capital-loss")
WORST_KS = "KS of the worst column, worst seed"
AUC = "AUC of boosting on the test rows, mean of seeds"
ADULT_SETTING = Setting(
    data="adult",
    about="Adult, all 32,561 training rows and 15 columns",
    goals=(
        Goal(name=WORST_KS, bound=0.08, value=largest_of("worst_ks")),
        Goal(name="error of a share of zeros, worst seed", bound=0.03, value=largest_of("zero_share_error")),
        Goal(name="a mean off by, capital-gain and -loss apart", bound=0.15, value=mean_off(but=CAPITAL)),
        Goal(name="a mean off by, capital-gain and -loss", bound=0.40, value=mean_off(only=CAPITAL)),
        Goal(name="mean absolute error of correlations, mean of seeds", bound=0.03, value=mean_of("pearson_error")),
        Goal(name=AUC, bound=0.885, value=mean_of("auc"), at_least=True),
    ),
)
BANK_SETTING = Setting(
    data="bank",
    about="Bank Marketing, 75 % of 45,211 rows (a fixed division by row), 17 columns",
    goals=(
        Goal(name=WORST_KS, bound=0.10, value=largest_of("worst_ks")),
        Goal(name=AUC, bound=0.86, value=mean_of("auc"), at_least=True),
    ),
)
DIABETES_SETTING = Setting(
    data="diabetes130",
    about="Diabetes 130, 48 columns without the two ids, divided by patient; one encounter is one client; readmitted is "
    "synthesised with its three classes, its AUC is that of NO against the rest",
    goals=(
        Goal(name=WORST_KS, bound=0.10, value=largest_of("worst_ks")),
        Goal(name="a mean off by", bound=1 / 3, value=mean_off()),
        Goal(name=AUC, bound=0.64, value=mean_of("auc"), at_least=True),
        Goal(name="seconds of synthesize, mean of seeds", bound=60.0, value=mean_of("seconds_run")),
    ),
    alone="NO",
)


@functools.lru_cache(maxsize=1)
def load(data: str) -> Rows:
    """The published parts, or the loader's; Bank Marketing, whose rows name no person, is divided here."""
    if data == "bank":
        whole = datasets.load_table(data, "all")
        order = np.random.default_rng(SPLIT_SEED).permutation(len(whole))
        cut = 3 * len(whole) // 4
        train, test = whole.take(np.sort(order[:cut])), whole.take(np.sort(order[cut:]))
    else:
        train, test = datasets.load_table(data, "train"), datasets.load_table(data, "test")
    schema = dataclasses.replace(train.schema, others=())
    return Rows(train=raw_rows(train), test=raw_rows(test), schema=schema)


def cells(quick: bool, seeds: int) -> list[Cell]:
    seeds = seeds if quick else max(seeds, SEEDS)
    grid: list[Cell] = [{"method": REAL, "schema": None, "epsilon": None, "seed": 0}]
    methods = [(name, EPSILON) for name in (QUICK if quick else METHODS)]
    methods += [] if quick else [("poll", epsilon) for epsilon in OTHER_EPSILONS]
    for seed, schema, (method, epsilon) in itertools.product(range(seeds), SCHEMAS[:1] if quick else SCHEMAS, methods):
        grid.append({"method": method, "schema": schema, "epsilon": epsilon, "seed": seed})
    return grid


def measure(setting: Setting, cell: Cell) -> Result:
    """One run and its figures, or in one sentence why there is none."""
    rows = load(setting.data)
    method, seed = str(cell["method"]), int(cell["seed"] or 0)
    if method == REAL:
        learned = figures(setting, rows, rows.train)["auc"]
        return {**figures(setting, rows, rows.test), "auc": learned}
    per_client = -(-rows.train.num_rows // SILOS) if protocol_class(method).facts.unit == "record" else 1
    try:
        result = synthesize_csv(
            rows.train, rows.schema if cell["schema"] == "declared" else None, method=method,
            epsilon=float(cell["epsilon"] or 0), target=rows.schema.target, records_per_client=per_client,
            rows=rows.train.num_rows, seed=seed, limit=LIMIT,
        )  # fmt: skip
    except PopulaceError as error:
        return {"refused": str(error)}
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return {"refused": "it ran out of memory"}
    without = [name for name in rows.schema.names if name not in result.frame.column_names]
    if without:
        return {"refused": f"the {cell['schema']} schema leaves out {', '.join(without)}"}
    claim = result.run.guarantee
    about = {"guarantee": str(claim.bound), "unit": claim.unit, "trust": claim.trust, "seconds_run": result.seconds}
    return {**about, **figures(setting, rows, result.frame)}


def figures(setting: Setting, rows: Rows, synthetic: pa.Table) -> Result:
    """The quality of rows, by their values: the declared schema, widened, only says which columns hold numbers."""
    schema, frames = evaluated(setting, widened(rows.schema, synthetic), (synthetic, rows.train, rows.test))
    synthetic_table, real, test = (make_table(frame, schema) for frame in frames)
    scores = value_scores(synthetic_table, real, test, schema.target)
    ratios = {key.removeprefix(RATIO_OF): value for key, value in scores.items() if key.startswith(RATIO_OF)}
    mean_column, worst = worst_ratio(ratios)
    return {
        **{key: scores[key] for key in ("worst_ks", "zero_share_error", "pearson_error", "red_flags")},
        "worst_ks_column": worst_column(scores),
        "worst_mean_ratio": worst,
        "worst_mean_column": mean_column,
        "auc": scores["boosting_auc"],
        "ks": {key.removeprefix(KS_OF): value for key, value in scores.items() if key.startswith(KS_OF)},
        "mean_ratios": ratios,
    }


def evaluated(setting: Setting, schema: Schema, frames: Sequence[pa.Table]) -> tuple[Schema, list[pa.Table]]:
    """Schema and rows as they are evaluated: a target of several classes becomes one class and the rest."""
    if not setting.alone:
        return schema, list(frames)
    name = str(schema.target)
    index = schema.index(name)
    merged = dataclasses.replace(schema.columns[index], categories=(setting.alone, REST))
    columns: tuple[Column, ...] = (*schema.columns[:index], merged, *schema.columns[index + 1 :])
    changed = []
    for frame in frames:
        values = pc.if_else(pc.equal(frame.column(name), setting.alone), setting.alone, REST)
        changed.append(frame.set_column(frame.column_names.index(name), name, values))
    return dataclasses.replace(schema, columns=columns), changed


def worst_ratio(ratios: Mapping[str, float]) -> tuple[str, float | None]:
    """The column whose mean is furthest off, and its synthetic mean over the real one."""
    name = max(ratios, key=lambda column: abs(ratios[column] - 1), default="")
    return name, ratios.get(name)


def mean_ratios(results: Sequence[Result]) -> dict[str, float]:
    """Column by column, the mean over the seeds of the synthetic mean, over the real one."""
    every = [result["mean_ratios"] for result in results if result.get("mean_ratios")]
    return {name: float(np.mean([ratios[name] for ratios in every])) for name in (every[0] if every else {})}


def grouped(results: Sequence[Result]) -> dict[Group, list[Result]]:
    """Results of the seeds by schema, epsilon and method."""
    groups: dict[Group, list[Result]] = {}
    for result in results:
        cell = result["cell"]
        groups.setdefault((cell["schema"], cell["epsilon"], cell["method"]), []).append(result)
    return groups


def _row(group: Group, members: Sequence[Result]) -> list[str]:
    schema, epsilon, method = group
    whom = {"record": f"a record at one of {SILOS} silos", "client": "a client of one row"}
    protects = whom.get(str(members[0].get("unit")), "-")
    names = [method, schema or "-", "-" if epsilon is None else f"{epsilon:g}", protects]
    done = [member for member in members if "refused" not in member]
    if not done:
        return [*names, *["-"] * len(METRICS), str(members[0]["refused"])]
    shown = {key: mean_of(key)(done) for key in METRICS}
    column, ratio = worst_ratio(mean_ratios(done))
    shown["worst_mean_ratio"] = shown["worst_mean_ratio"] if ratio is None else ratio
    beside = {"worst_ks": done[0].get("worst_ks_column"), "worst_mean_ratio": column}
    texts = []
    for key in METRICS:
        value = shown[key]
        text = "-" if value is None else f"{value:.{0 if key == 'seconds_run' else 3}f}"
        texts.append(f"{text} {beside[key]}" if beside.get(key) else text)
    return [*names, *texts, ""]


def views(setting: Setting, results: Sequence[Result]) -> list[View]:
    groups = grouped(results)
    main = View(
        title=f"{setting.about}: means over seeds; KS and means of columns of numbers (mean: synthetic over real); error of "
        "zeros: largest error of a share of zeros; the real rows' figures are those of the test rows, their AUC that of "
        "the training rows",
        header=["method", "schema", "epsilon", "protects", *HEADER, "why not"],
        rows=[_row(group, members) for group, members in groups.items()],
    )
    poll = [[r for r in groups.get((schema, EPSILON, "poll"), []) if "refused" not in r] for schema in SCHEMAS]
    rows = []
    for goal in setting.goals:
        proposed, declared = (goal.value(members) for members in poll)
        bound = f"at {'least' if goal.at_least else 'most'} {goal.bound:.3g}"
        figures = ["-" if value is None else f"{value:.3f}" for value in (proposed, declared)]
        rows.append([goal.name, bound, *figures, goal.reached(proposed)])
    header = ["figure", "to reach", "proposed schema", "declared schema", "reached with the proposed one"]
    return [main, View(title=f"\npoll at epsilon {EPSILON:g}", header=header, rows=rows)]


def charts(setting: Setting, results: Sequence[Result]) -> list[Chart]:
    """A plot by epsilon, for each method and schema; other methods than `poll` are points."""
    plots = []
    groups = grouped(results)
    real = mean_of("auc")(groups.get((None, None, REAL), []))
    for key, up in (("worst_ks", "KS of the worst column"), ("auc", "AUC of boosting on the test rows")):
        lines: dict[str, list[tuple[float, float]]] = {}
        for (schema, epsilon, method), members in groups.items():
            value = mean_of(key)(members)
            if epsilon is not None and value is not None:
                lines.setdefault(f"{method}, {schema} schema", []).append((float(epsilon), value))
        level = {REAL: real} if key == "auc" and real is not None else {}
        ordered = {name: sorted(points) for name, points in lines.items()}
        if ordered:
            chart = Chart(
                name=f"{key}-by-epsilon", title=setting.data, across="epsilon", up=up, lines=ordered, level=level
            )
            plots.append(chart)
    return plots


def _benchmark(name: str, setting: Setting) -> Benchmark:
    def prepare() -> None:
        load(setting.data)

    return Benchmark(
        name=name,
        title=f"raw tables through synthesize: {setting.about}",
        reference="our own; figures to reach are beside",
        revision=1,
        prepare=prepare,
        cells=cells,
        measure=functools.partial(measure, setting),
        views=functools.partial(views, setting),
        charts=functools.partial(charts, setting),
    )


ADULT = _benchmark("tables-adult", ADULT_SETTING)
BANK = _benchmark("tables-bank", BANK_SETTING)
DIABETES = _benchmark("tables-diabetes", DIABETES_SETTING)
