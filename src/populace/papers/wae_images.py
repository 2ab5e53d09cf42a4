"""`wae-images`: DP-Fed-WAE on MNIST and Fashion-MNIST, as figure 11 of Jiang et al. (PoPETs 2022) shows it: a picture.

The paper prints pictures and no numbers. Beside them stand the accuracy of a small MLP trained on the synthetic images and
tested on the real test images, and the same of real images. Without privacy ("none") means the same model, cohorts and steps
with the clients' directions averaged as they are: NOT PRIVATE.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from populace.engines import simulation
from populace.engines.runtime import population_of
from populace.evaluation.prediction import LEARNERS, resamples, score_arrays
from populace.methods.blocks.generator import Synthesizer
from populace.methods.wae.dp_fed_wae import ClassLearner, DpFedWae
from populace.methods.wae.training import AdamLearner, Parameters, reported_gradient
from populace.papers.grid import Cell, Chart, Picture, Result, View, benchmark_of, mean_over_seeds
from populace.papers.image_grid import GAP, grid_pixels, pack_images
from populace.papers.scores import load
from populace.runs.run import make_key
from populace.tables.images import Images
from populace.tables.partition import Clients, split
from populace.types import Array, ArrayTree, JsonObject

DATA = ("mnist", "fashion_mnist")
RECORDS = 2
CLIENTS, QUICK_CLIENTS = 30_000, 5_000
QUICK_PUBLISHED = 500  # clients of the published recipe, whose rounds take longer
EPSILONS = (None, 8, 4)
#: Row of the table -> settings of dp-fed-wae.
METHODS: dict[str, JsonObject] = {"dp-fed-wae": {}, "dp-fed-wae, as published": {"recipe": "paper"}}
REAL = "real images"
TRAINED, TESTED = 5_000, 5_000  # images a classifier is trained on and tested on
METRICS = ("mlp", "seconds_training")


def cells(quick: bool, seeds: int) -> list[Cell]:
    """Each data set: real images, then both recipes without privacy and at epsilon 8 and 4."""
    found: list[Cell] = []
    for data, seed in itertools.product(DATA, range(seeds)):
        if seed == 0:
            found.append({"data": data, "method": REAL, "epsilon": None, "clients": 0, "seed": 0})
        for method, epsilon in itertools.product(METHODS, EPSILONS):
            few = QUICK_PUBLISHED if "recipe" in METHODS[method] else QUICK_CLIENTS
            for clients in (few,) if quick else (few, CLIENTS):
                found.append({"data": data, "method": method, "epsilon": epsilon, "clients": clients, "seed": seed})
    return found


def measure(cell: Cell) -> Result:
    """One run: its picture, and what a classifier learns from it. Compiled functions are dropped afterwards."""
    data, method, seed = str(cell["data"]), str(cell["method"]), int(cell["seed"] or 0)
    train = load(data, "train")
    began = time.monotonic()
    if method == REAL:
        made = train.take(np.random.default_rng(3).permutation(len(train))[:TRAINED])
        return {**_scores(made, data), **pack_images(made)}
    order = np.random.default_rng(seed).permutation(len(train))[: RECORDS * int(cell["clients"] or 0)]
    clients = split(train.take(order), records_per_client=RECORDS)
    epsilon = cell["epsilon"]
    if epsilon is None:
        generator = trained_without_noise(DpFedWae(epsilon=8.0, **METHODS[method]), clients, make_key(seed))
    else:
        protocol = DpFedWae(epsilon=float(epsilon), **METHODS[method])
        generator = simulation.run(protocol, clients, root=make_key(seed)).generator
    trained = time.monotonic()
    made = generator.sample(TRAINED, make_key(seed + 1_000))
    jax.clear_caches()  # type: ignore[no-untyped-call]
    return {"seconds_training": trained - began, **_scores(made, data), **pack_images(made)}


def trained_without_noise(protocol: DpFedWae, clients: Clients, key: Array) -> Synthesizer:
    """The same model, cohorts and steps, with the clients' directions averaged as they are: NOT PRIVATE, the limit."""
    population = population_of(clients)
    learner = protocol.parts(population).learner
    if not isinstance(learner, ClassLearner | AdamLearner):
        raise TypeError("both recipes train an autoencoder")

    @jax.jit
    def one(state: Any, round_id: Array, records: ArrayTree, mask: Array) -> Parameters:
        here = jnp.asarray(mask, jnp.float32)

        def direction(images: ArrayTree, there: Array, number: Array) -> Array:
            if isinstance(learner, AdamLearner):
                coin = jax.random.fold_in(jax.random.fold_in(state.coin, round_id), number)
                return learner.update(state.theta, images, there, coin)
            warming = round_id < learner.first_rounds
            gradient = reported_gradient(learner.net, state.theta, learner.read(images), there, warming=warming)
            return gradient / jnp.maximum(jnp.linalg.norm(gradient), 1e-12)

        heard = jnp.sum(jnp.any(mask, axis=1))
        each = jax.vmap(direction)(records, here, jnp.arange(len(here)))
        mean = jnp.sum(each * jnp.any(mask, axis=1)[:, None], axis=0) / jnp.maximum(heard, 1)
        if isinstance(learner, AdamLearner):
            return learner.move(state, mean)
        return learner.learn(state, round_id, mean, heard)

    start = protocol.begin(population, key)
    state: Any = start.learner
    for number, cohort in enumerate(np.asarray(start.order)):
        state = one(state, jnp.int32(number), *clients.gather(cohort, population.records))
    return learner.finish(state, key)


def _scores(made: Images, data: str) -> JsonObject:
    """Accuracy of a small MLP; none for images without labels."""
    if made.classes == 1:
        return {"mlp": None}
    test = load(data, "test")
    test = test.take(np.arange(min(TESTED, len(test))))
    seen, unseen = ((of.x.reshape(len(of), -1).astype(np.float32) / 255, of.y) for of in (made, test))
    return {"mlp": score_arrays(LEARNERS["MLP"](len(made), 0), seen, unseen, resamples(len(test), 0, 2)).accuracy.value}


def _text(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _name(epsilon: float | None) -> str:
    return "none" if epsilon is None else str(epsilon)


def views(results: Sequence[Result]) -> list[View]:
    """What a classifier learns from the images."""
    body = []
    by = ("data", "method", "epsilon", "clients")
    for (data, method, epsilon, clients), values in mean_over_seeds(results, METRICS, by).items():
        name = "-" if method == REAL else _name(epsilon)
        figures = [_text(values["mlp"]), _text(values["seconds_training"], 1)]
        body.append([data, method, name, f"{clients:,}" if clients else "-", *figures])
    return [
        View(
            title=f"clients of {RECORDS} images; an MLP trained on {TRAINED:,} synthetic images, tested on {TESTED:,} real "
            "test images (the published recipe makes images without labels); epsilon none is NOT PRIVATE",
            header=["data", "method", "epsilon", "clients", "accuracy", "s training"],
            rows=body,
        )
    ]


def charts(results: Sequence[Result]) -> list[Chart]:
    """Accuracy by epsilon, for each data set and number of clients."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for (data, epsilon, clients), values in mean_over_seeds(results, METRICS, ("data", "epsilon", "clients")).items():
        if epsilon is not None and values["mlp"] is not None:
            lines.setdefault(f"{data}, {clients:,} clients", []).append((float(epsilon), float(values["mlp"])))
    real = {f"{r['cell']['data']}, real": float(r["mlp"]) for r in results if r["cell"]["method"] == REAL}
    title = "MLP trained on synthetic images"
    return [Chart(name="accuracy-by-epsilon", title=title, across="epsilon", up="accuracy", lines=lines, level=real)]


def pictures(results: Sequence[Result]) -> list[Picture]:
    """Figure 11: for each data set and method, from top to bottom without privacy, epsilon 8, epsilon 4; most clients."""
    found = []
    first = [result for result in results if result["cell"]["seed"] == 0]
    for data, method in itertools.product(DATA, (REAL, *METHODS)):
        some = [r for r in first if (r["cell"]["data"], r["cell"]["method"]) == (data, method)]
        some = [r for r in some if r["cell"]["clients"] == max(other["cell"]["clients"] for other in some)]
        if some:
            rows = [np.pad(grid_pixels(result), ((0, 3 * GAP), (0, 0)), constant_values=255) for result in some]
            name = f"{data}-{method}".replace(", ", "-").replace(" ", "-")
            found.append(Picture(name=name, pixels=np.concatenate(rows, axis=0)))
    return found


def prepare() -> None:
    for data, part in itertools.product(DATA, ("train", "test")):
        load(data, part)  # type: ignore[arg-type]


IMAGES = benchmark_of(
    __name__,
    name="wae-images",
    title="DP-Fed-WAE on images",
    reference="Jiang, Zhou and Grossklags, PoPETs 2022 (1), figure 11: pictures, no numbers",
    revision=1,
    prepare=prepare,
)
