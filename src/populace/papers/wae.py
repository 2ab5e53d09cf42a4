"""`wae-a9a`: DP-Fed-WAE on LIBSVM's a9a, the Adult of Jiang et al. (PoPETs 2022), figures 4 to 6, 8 to 10, 12, tables 3 to 5.

As in the paper 100,000 rows are drawn with replacement from the 32,561 training rows and dealt to 50,000 clients of two: a
person sits at 3.1 clients on average, so the guarantee is a simulated client's, not that of a person in the file. Every run of
a method takes the path of a user: `synthesize` on a CSV of 0 and 1, two rows a client, with the declared schema and, for some,
with the one it proposes itself.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from populace.attacks.shadows import Setting
from populace.evaluation.attacks.membership import Games, attack
from populace.evaluation.attacks.summaries import SUMMARIES
from populace.evaluation.correlation import correlation_distance
from populace.evaluation.prediction import LEARNERS, scores
from populace.evaluation.sets import random_sets, set_distances
from populace.methods.base import Population
from populace.methods.blocks.generator import Generator
from populace.methods.blocks.networks import Decoder
from populace.methods.registry import make_protocol
from populace.methods.wae.dp_fed_wae import ClassLearner, ClassParameters, DpFedWae
from populace.methods.wae.training import reported_gradient
from populace.papers.grid import Cell, Chart, Result, View, benchmark_of, mean_over_seeds
from populace.papers.user_path import raw_rows, synthesize_csv
from populace.privacy.guarantee import MOST_EPSILON
from populace.runs.run import make_key
from populace.tables import datasets
from populace.tables.table import Table, from_codes
from populace.types import Array, JsonObject

DATA = "a9a"
ROWS = 30_000
GENERATED = 100_000  # rows timed, as in table 3
CLIENTS, RECORDS = 50_000, 2
EPSILONS = (0.5, 1, 2, 4, 6, 8)
WIDTHS = (2, 3, 4, 5, 6)
#: Row of the table -> method and its settings.
METHODS: dict[str, tuple[str, JsonObject]] = {
    "dp-fed-wae": ("dp-fed-wae", {}),
    "dp-fed-wae, as published": ("dp-fed-wae", {"recipe": "paper"}),
    "dp-fed-wae, as published, alpha .1": ("dp-fed-wae", {"recipe": "paper", "top_share": 0.1}),
    "dp-fed-wae, as published, alpha .25": ("dp-fed-wae", {"recipe": "paper", "top_share": 0.25}),
    "dp-fed-wae, as published, pre-trained": ("dp-fed-wae", {"recipe": "paper", "pretraining_steps": 2_000}),
    "dp-fed-wae, as published, two indices": ("dp-fed-wae", {"recipe": "paper", "indices": 2, "overlap": 2}),
    "fedsel-wae": ("fedsel-wae", {}),
    "independent": ("independent", {}),
    "poll": ("poll", {}),
    "lopub": ("lopub", {"hashes": 4}),
    "locop": ("locop", {"hashes": 4}),
}
PROPOSED = ("dp-fed-wae", "independent", "poll")  # run with the proposed schema too
QUICK = ("dp-fed-wae", "dp-fed-wae, as published", "independent", "poll")
BASELINES = ("real rows", "true columns, shuffled")
#: Table 5, Adult: (epsilon, pre-trained) -> NN, RF.
PUBLISHED = {
    (8, False): (0.808, 0.812),
    (8, True): (0.815, 0.820),
    (4, False): (0.787, 0.775),
    (4, True): (0.798, 0.789),
}
#: Table 4, Adult: epsilon (None: no privacy) -> accuracy of the membership attack.
PUBLISHED_ATTACK = {None: 0.642, 8: 0.535, 2: 0.519, 0.5: 0.506}
ATTACK = {"targets": 10, "shadows": 40, "attacked": 30, "rows": 1_000}
METRICS = (
    "avd_2",
    "avd_3",
    "avd_4",
    "avd_5",
    "avd_6",
    "cmd",
    "nn",
    "rf",
    "seconds_training",
    "seconds_generating",
    "mia",
)
HEADER = ("2-way AVD", "4-way AVD", "6-way AVD", "CMD", "NN", "RF", "s training", "s for 1e5 rows")
SHOWN = ("avd_2", "avd_4", "avd_6", "cmd", "nn", "rf", "seconds_training", "seconds_generating")


@functools.lru_cache(maxsize=2)
def load(part: datasets.Split) -> Table:
    return datasets.load_table(DATA, part)


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Baselines; methods by epsilon; then what limits it: noise off, more clients; and the paper's other sweeps."""
    found: list[Cell] = [{"part": "baseline", "method": name, "seed": 0} for name in BASELINES]
    for seed in range(seeds):
        methods, epsilons = (QUICK, (4, 8)) if quick else (tuple(METHODS), EPSILONS)
        for epsilon, method in itertools.product(epsilons, methods):
            found.append({"part": "epsilon", "method": method, "epsilon": epsilon, "seed": seed})
        for epsilon, method in itertools.product((4, 8), PROPOSED):
            found.append({"part": "proposed", "method": method, "epsilon": epsilon, "seed": seed})
        found.append({"part": "limits", "method": "noise off", "clients": CLIENTS, "seed": seed})
        found.append({"part": "limits", "method": "dp-fed-wae", "epsilon": 8, "clients": 500_000, "seed": seed})
        if quick:
            continue
        for attacked in PUBLISHED_ATTACK:
            found.append({"part": "attack", "method": "dp-fed-wae", "epsilon": attacked, "seed": seed})
        for clients, method in itertools.product((5_000, 500_000), ("dp-fed-wae", "dp-fed-wae, as published")):
            found.append({"part": "records", "method": method, "epsilon": 8, "clients": clients, "seed": seed})
        for clients, epsilon in itertools.product((5_000, 500), (2, 4, 8)):
            found.append(
                {"part": "participations", "method": "dp-fed-wae", "epsilon": epsilon, "clients": clients, "seed": seed}
            )
    return found


def measure(cell: Cell) -> Result:
    """One run and its figures. Compiled functions are dropped afterwards: no two cells share any."""
    part, method, seed = str(cell["part"]), str(cell["method"]), int(cell["seed"] or 0)
    if part == "baseline":
        return _baseline(method)
    if part == "attack":
        return _attacked(None if cell["epsilon"] is None else float(cell["epsilon"]), seed)
    if method == "noise off":
        began = time.monotonic()
        generator: Generator = trained_without_noise(
            people(int(cell.get("clients") or CLIENTS), RECORDS), make_key(seed)
        )
        found: JsonObject = {"seconds_training": time.monotonic() - began}
        synthetic = generator.sample(ROWS, make_key(seed + 1_000))
    else:
        generator, synthetic, found = _synthesized(cell)
    began = time.monotonic()
    generator.sample_codes(GENERATED, make_key(seed + 1), {})
    found["seconds_generating"] = time.monotonic() - began
    jax.clear_caches()  # type: ignore[no-untyped-call]
    return {**found, **_scores(synthetic)}


def _synthesized(cell: Cell) -> tuple[Generator, Table, JsonObject]:
    """A run of a method on a CSV: its generator, its rows under the declared schema, and what it took."""
    part, clients = str(cell["part"]), int(cell.get("clients") or CLIENTS)
    times = CLIENTS // clients if part == "participations" else 1
    name, settings = METHODS[str(cell["method"])]
    if times > 1:
        settings = {**settings, "participations": times, "cohort_size": 50 if settings.get("recipe") != "paper" else 10}
    rows = people(clients, RECORDS * times)
    made = synthesize_csv(
        raw_rows(rows), None if part == "proposed" else rows.schema, method=name, epsilon=float(cell["epsilon"] or 0),
        target=rows.schema.target, records_per_client=RECORDS * times, settings=settings, rows=ROWS,
        seed=int(cell["seed"] or 0),
    )  # fmt: skip
    if not isinstance(made.run.generator, Generator):
        raise TypeError(f"{name} made no table")
    details = made.run.details
    found = {
        "guarantee": made.run.guarantee.epsilon,
        "rounds": details["rounds"],
        "bytes_up": details["traffic"]["bytes_from_one_client_per_message"],
        "bytes_down": details["traffic"]["bytes_to_one_client_per_message"],
        "seconds_training": details["seconds"]["training"],
    }
    return made.run.generator, made.table(rows.schema), found


@functools.lru_cache(maxsize=2)
def people(clients: int, records: int) -> Table:
    """Rows drawn with replacement; the first 100,000 are those of all figures on this data set."""
    train = load("train")
    return train.take(np.random.default_rng(0).integers(0, len(train), clients * records))


def trained_without_noise(rows: Table, key: Array) -> Decoder:
    """The same model, cohorts and steps, with the clients' unit gradients averaged as they are: NOT PRIVATE, the limit."""
    protocol = DpFedWae(epsilon=8.0)
    population = Population(schema=rows.schema, clients=len(rows) // RECORDS, records=RECORDS)
    start, learner = protocol.begin(population, key), protocol.parts(population).learner
    if not isinstance(learner, ClassLearner):
        raise TypeError("the default recipe has latent classes")
    net, rounds = learner.net, protocol.round_count(population)
    codes = jnp.asarray(rows.codes).reshape(-1, RECORDS, len(rows.schema.columns))
    ones = jnp.ones(RECORDS)

    def one(state: ClassParameters, number: Array) -> tuple[ClassParameters, None]:
        cohort, warming = start.order[number], number < learner.first_rounds

        def unit(client: Array) -> Array:
            gradient = reported_gradient(net, state.theta, net.read(codes[client]), ones, warming=warming)
            return jnp.where(client >= 0, gradient / jnp.maximum(jnp.linalg.norm(gradient), 1e-12), 0.0)

        heard = jnp.sum(cohort >= 0)
        mean = jnp.sum(jax.vmap(unit)(cohort), axis=0) / heard
        return learner.learn(state, number, mean, heard), None

    state, _ = jax.jit(lambda first: jax.lax.scan(one, first, jnp.arange(rounds)))(start.learner)
    return Decoder(schema=rows.schema, layers=jax.tree.map(np.asarray, net.tables(state.theta)))


def _attacked(epsilon: float | None, seed: int) -> Result:
    """Membership inference with shadow runs of 1,000 rows, two a client; without privacy it is the most epsilon there is."""
    protocol = make_protocol("dp-fed-wae", {"epsilon": float(MOST_EPSILON if epsilon is None else epsilon)})
    setting = Setting(protocol=protocol, table=load("train"), records_per_client=RECORDS, seed=seed, **ATTACK)
    plays = [setting.play(run) for run in range(setting.runs)]

    def games(part: list[JsonObject]) -> Games:
        summaries = {name: np.stack([play[name] for play in part]) for name in SUMMARIES}
        return Games(included=np.stack([play["included"] for play in part]), summaries=summaries)

    judged = attack(games(plays[: setting.shadows]), games(plays[setting.shadows :]))
    jax.clear_caches()  # type: ignore[no-untyped-call]
    return {"mia": judged["accuracy"], "low": judged["low"], "high": judged["high"], "attacker": judged["attacker"]}


def _baseline(name: str) -> Result:
    train = load("train")
    if name == "real rows":
        return _scores(train.take(np.random.default_rng(3).permutation(len(train))[:ROWS]), distances=False)
    rng = np.random.default_rng(11)
    codes = np.stack([rng.permutation(column) for column in train.codes.T], axis=1)
    return _scores(from_codes(codes, train.schema, rng).take(np.arange(ROWS)))


def _scores(synthetic: Table, *, distances: bool = True) -> JsonObject:
    train, test = load("train"), load("test")
    found: JsonObject = {}
    if distances:
        for width in WIDTHS:
            sets = random_sets(len(train.schema.columns), width)
            found[f"avd_{width}"] = float(set_distances(train, synthetic, sets).mean())
        found["cmd"] = correlation_distance(train, synthetic).value
    learners = {name: LEARNERS[name] for name in ("MLP", "random forest")}
    judged = scores({"": synthetic}, test, str(test.schema.target), learners=learners, draws=2)[""]
    return found | {"nn": judged["MLP"].accuracy.value, "rf": judged["random forest"].accuracy.value}


def _text(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _row(values: JsonObject) -> list[str]:
    return [_text(values.get(key), 1 if key == "seconds_training" else 2 if "seconds" in key else 3) for key in SHOWN]


def _of(results: Sequence[Result], part: str) -> list[Result]:
    return [result for result in results if result["cell"]["part"] == part]


def views(results: Sequence[Result]) -> list[View]:
    """The terminal's tables, with table 5 of the paper beside."""
    rows = [
        ["-", method, *_row(values), ""]
        for (method,), values in mean_over_seeds(_of(results, "baseline"), METRICS, ("method",)).items()
    ]
    proposed = [
        {**result, "cell": {**result["cell"], "method": f"{result['cell']['method']}, proposed schema"}}
        for result in _of(results, "proposed")
    ]
    runs = [*_of(results, "epsilon"), *proposed]
    for (epsilon, method), values in mean_over_seeds(runs, METRICS, ("epsilon", "method")).items():
        paper = PUBLISHED.get((epsilon, method.endswith("pre-trained"))) if method.startswith("dp-fed-wae") else None
        rows.append([str(epsilon), method, *_row(values), " / ".join(map(_text, paper)) if paper else ""])
    found = [
        View(
            title=f"{DATA}: {CLIENTS:,} clients of {RECORDS} rows drawn with replacement; AVD over 100 sets of columns; "
            f"classifiers trained on {ROWS:,} synthetic rows, tested on the real test rows",
            header=["epsilon", "method", *HEADER, "paper: NN / RF"],
            rows=rows,
        )
    ]
    for part, title in (
        (
            "limits",
            "what limits it: the same model without noise (NOT PRIVATE), and ten times the clients at epsilon 8",
        ),
        ("records", "epsilon 8, by number of clients of two records"),
        (
            "participations",
            "100,000 records at fewer clients, each asked that much more often with that much less epsilon",
        ),
    ):
        swept = mean_over_seeds(_of(results, part), METRICS, ("epsilon", "clients", "method"))
        if swept:
            body = [[_text(e, 0), f"{n:,}", method, *_row(values)] for (e, n, method), values in swept.items()]
            found.append(View(title=f"\n{title}", header=["epsilon", "clients", "method", *HEADER], rows=body))
    attacked = mean_over_seeds(_of(results, "attack"), METRICS, ("epsilon",))
    if attacked:
        body = [
            ["none" if e is None else str(e), _text(values["mia"]), _text(PUBLISHED_ATTACK.get(e))]
            for (e,), values in attacked.items()
        ]
        title = f"\nmembership attack on runs of {ATTACK['rows']:,} rows (none: epsilon {MOST_EPSILON:g}, NOT PRIVATE)"
        found.append(View(title=title, header=["epsilon", "accuracy", "paper, table 4"], rows=body))
    return found


def charts(results: Sequence[Result]) -> list[Chart]:
    """Lines like the paper's figures 4, 5, 6, 8 and 12."""
    found = []
    baseline = {result["cell"]["method"]: result for result in _of(results, "baseline")}
    real, shuffled = baseline.get(BASELINES[0], {}), baseline.get(BASELINES[1], {})
    means = mean_over_seeds(_of(results, "epsilon"), METRICS, ("epsilon", "method"))
    for key, up, level in (
        ("avd_4", "4-way AVD", {BASELINES[1]: shuffled.get("avd_4")}),
        ("cmd", "CMD", {BASELINES[1]: shuffled.get("cmd")}),
        ("nn", "accuracy, NN", {BASELINES[0]: real.get("nn")}),
        ("rf", "accuracy, RF", {BASELINES[0]: real.get("rf")}),
    ):
        lines: dict[str, list[tuple[float, float]]] = {}
        for (epsilon, method), values in means.items():
            if values[key] is not None and math.isfinite(values[key]):
                lines.setdefault(method, []).append((float(epsilon), float(values[key])))
        if lines:
            kept = {name: value for name, value in level.items() if value is not None}
            found.append(Chart(name=f"{key}-by-epsilon", title=DATA, across="epsilon", up=up, lines=lines, level=kept))
    return found


def prepare() -> None:
    load("train")
    load("test")


A9A = benchmark_of(
    __name__,
    name="wae-a9a",
    title="DP-Fed-WAE on a9a (the paper's Adult)",
    reference="Jiang, Zhou and Grossklags, PoPETs 2022 (1), figures 4 to 6, 8 to 10, tables 3 and 5: numbers in table 5 only",
    revision=3,
    prepare=prepare,
)
