"""`flgan-mnist` and `flgan-fashion`: figures 2, 4 and 6 to 8 of private FL-GAN (Xin et al., Neurocomputing 2021).

A GAN that travels through six silos which hold some labels each (skewed), or through 2, 6 and 12 that are alike (even). Its
images are judged by a CNN trained on real ones: the shares of the classes it sees, the score exp(E KL(p(y|x) || p(y))), and a
Frechet distance; with labels, three classifiers trained on them are tested on real test images. The paper gives no figure for
the first. Fashion-MNIST is without coats and shirts, as there. The attack is on the critic's scores, learned from a shadow
GAN. The small scale shows that all runs, not what it reaches.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from populace.engines import simulation
from populace.engines.runtime import Outcome, population_of
from populace.evaluation.attacks.scores import Scored, attack_scores
from populace.evaluation.cnn import Cnn
from populace.methods.blocks.vae_generator import generator_of
from populace.methods.registry import make_protocol
from populace.papers import scores as image_scores
from populace.papers.grid import Cell, Chart, Picture, Result, View, largest, lines_over, mean_over_seeds
from populace.papers.image_grid import class_pictures, epsilon_suffix, pack_images
from populace.papers.scores import first_images, load, on_images, text
from populace.runs.run import make_key
from populace.tables.datasets import Split
from populace.tables.images import Images
from populace.tables.partition import Clients, split_even, split_labels
from populace.types import Array, JsonObject

Kind = tuple[str, str, bool]
Lines = dict[str, list[tuple[float, float]]]

METRICS = (
    "coverage", "inception", "frechet", "logistic", "mlp", "cnn", "precision", "attack_accuracy", "seconds_training",
)  # fmt: skip
REAL = "real images"
EPSILON = 8.0
EPSILONS = (4.0, 6.0, 8.0)  # figure 2
ATTACKED = (1.0, 4.0, 8.0)  # figure 8
SILOS = 6
NUMBERS = (2, 6, 12)  # of silos, figure 4
REMOVED = {"mnist": (), "fashion_mnist": (4, 6)}
LABELS = {"mnist": (7, 3, 8, 4, 8, 6), "fashion_mnist": (5, 3, 7, 4, 6, 5)}  # that each silo holds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """How many images train a GAN, what its images are judged by, and how many members, and others, are attacked."""

    records: int
    images: int
    steps: int  # of a classifier's training, batches of 128
    tested: int
    attacked: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A method with the settings that make it this row."""

    method: str
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @property
    def open(self) -> bool:
        return self.settings.get("recipe") == "open"

    @property
    def travels(self) -> bool:
        return self.method != "fedavg-gan"


SCALES = {
    "full": Scale(records=60_000, images=60_000, steps=1_500, tested=10_000, attacked=5_000),
    "small": Scale(records=600, images=200, steps=8, tested=200, attacked=60),
}
OPEN = "fl-gan, not private"
ROWS: dict[str, Row] = {
    "ufl-gan": Row(method="ufl-gan"),
    "replay only": Row(method="ufl-gan", settings={"ewc_weight": 0.0}),
    "EWC only": Row(method="ufl-gan", settings={"replay_weight": 0.0}),
    "fl-gan": Row(method="fl-gan"),
    OPEN: Row(method="fl-gan", settings={"recipe": "open"}),
    "fl-gan as published": Row(method="fl-gan", settings={"recipe": "paper"}),
    "ufl-gan without labels": Row(method="ufl-gan", settings={"conditional": False}),
    "fl-gan without labels": Row(method="fl-gan", settings={"conditional": False}),
    "fedavg-gan": Row(method="fedavg-gan"),
}
#: Of the full scale; a method's own where nothing is said.
SETTINGS: dict[str, JsonObject] = {name: {} for name in ROWS}
NARROW: JsonObject = {"batch_size": 16, "hidden_size": 8, "critic_hidden_size": 8, "basis_size": 5}
FEW = {  # travels or not
    True: {**NARROW, "generator_steps": 6, "critic_steps": 2},
    False: {**NARROW, "rounds": 6, "local_steps": 2},
}


def cells(data: str, quick: bool, seeds: int) -> list[Cell]:
    """Small ones first; at each scale real images, the skewed split, the even one, and the attack, which has its own."""
    del data
    found: dict[tuple[str | float | None, ...], None] = {}
    for scale, seed in itertools.product(("small",) if quick else ("small", "full"), range(seeds)):
        few = scale == "small"
        runs: list[tuple[str, float, str, int]] = [(name, EPSILON, "skewed", SILOS) for name in ROWS]
        runs += [("fl-gan", epsilon, "even", SILOS) for epsilon in (EPSILONS[-1:] if few else EPSILONS)]
        for name, silos in itertools.product(("fl-gan", "fedavg-gan", OPEN), NUMBERS[:2] if few else NUMBERS):
            runs.append((name, EPSILON, "even", silos))
        runs += [("ufl-gan", epsilon, "attack", SILOS) for epsilon in (ATTACKED[-1:] if few else ATTACKED)]
        runs.append((OPEN, EPSILON, "attack", SILOS))
        if seed == 0:
            found[REAL, None, "even", 0, scale, 0] = None
        for name, epsilon, spread, silos in runs:
            found[name, None if ROWS[name].open else epsilon, spread, silos, scale, seed] = None
    return [dict(zip(("method", "epsilon", "split", "clients", "scale", "seed"), cell, strict=True)) for cell in found]


def images_of(data: str, part: Split) -> Images:
    return _without(load(data, part), REMOVED[data])


@functools.lru_cache(maxsize=4)
def _without(images: Images, removed: tuple[int, ...]) -> Images:
    """The images of the other classes, numbered anew; one object for one object, so that its judge is trained once."""
    if not removed:
        return images
    kept = images.take(~np.isin(images.y, removed))
    number = np.cumsum(~np.isin(np.arange(images.classes), removed)) - 1
    return dataclasses.replace(kept, y=number[kept.y], classes=images.classes - len(removed))


def shuffled(data: str, cell: Cell) -> Images:
    """The training images of a cell, in an order that its seed decides."""
    train = images_of(data, "train")
    order = np.random.default_rng(int(cell["seed"] or 0)).permutation(len(train))
    return train.take(order[: SCALES[str(cell["scale"])].records])


def clients_of(data: str, cell: Cell) -> Clients:
    mine, silos, seed = shuffled(data, cell), int(cell["clients"] or SILOS), int(cell["seed"] or 0)
    if cell["split"] == "skewed":
        return split_labels(mine, labels=mine.y, clients=silos, labels_per_client=LABELS[data], seed=seed)
    return split_even(mine, clients=silos, seed=seed)


def settings_of(cell: Cell) -> JsonObject:
    """Without privacy epsilon decides nothing. The history is kept where silos differ."""
    name = str(cell["method"])
    row = ROWS[name]
    found = {**(FEW[row.travels] if cell["scale"] == "small" else SETTINGS[name]), **row.settings}
    found["epsilon"] = EPSILON if cell["epsilon"] is None else float(cell["epsilon"])
    return found | ({"keep_history": True} if row.travels and cell["split"] == "skewed" else {})


def measure(data: str, cell: Cell) -> Result:
    """One run and what its images are worth, or one attack. Compiled functions of large ones are dropped afterwards."""
    scale, seed = SCALES[str(cell["scale"])], int(cell["seed"] or 0)
    if cell["method"] == REAL:
        train = images_of(data, "train")
        made = train.take(np.random.default_rng(3).permutation(len(train))[: scale.images])
        return {**quality(data, made, scale, seed), **pack_images(made, shown=8)}
    if cell["split"] == "attack":
        found = attacked(data, cell, scale)
    else:
        clients = clients_of(data, cell)
        outcome, found = trained(cell, clients, seed)
        made = outcome.generator.sample(scale.images, make_key(1_000 + seed))
        found |= {**quality(data, made, scale, seed), **pack_images(made, shown=8)}
        if settings_of(cell).get("keep_history"):
            found["trail"] = trail_of(outcome, clients, judge_of(data, scale), min(2_000, scale.images))
    if cell["scale"] == "full":
        jax.clear_caches()  # type: ignore[no-untyped-call]
    return found


def trained(cell: Cell, clients: Clients, seed: int) -> tuple[Outcome, JsonObject]:
    """A run, and what it claims and took."""
    began = time.monotonic()
    protocol = make_protocol(ROWS[str(cell["method"])].method, settings_of(cell))
    outcome = simulation.run(protocol, clients, root=make_key(seed))
    claim = outcome.guarantee
    return outcome, {
        "guarantee": claim.bound, "unit": claim.unit, "trust": claim.trust, "holds": math.isfinite(claim.epsilon),
        "seconds_training": time.monotonic() - began,
    }  # fmt: skip


def judge_of(data: str, scale: Scale) -> Cnn:
    return image_scores.reference_cnn(images_of(data, "train"), scale.images, scale.steps)


def quality(data: str, made: Images, scale: Scale, seed: int) -> JsonObject:
    """What all images have, and what those with labels have."""
    test, by = first_images(images_of(data, "test"), scale.tested), judge_of(data, scale)
    found = image_scores.class_coverage(made, by, test.classes) | {
        "frechet": image_scores.frechet_distance(made, test, by)
    }
    return found | (image_scores.accuracies([made], test, steps=scale.steps, seed=seed) if made.classes > 1 else {})


def trail_of(outcome: Outcome, clients: Clients, by: Cnn, count: int) -> list[JsonObject]:
    """After each visit: the classes held by the silos visited so far, and the shares of all classes among the images."""
    data, population = clients.data, population_of(clients)
    if not isinstance(data, Images):
        raise TypeError("expected images")
    held: set[int] = set()
    found = []
    for theta, silo in zip(np.asarray(outcome.state.learner.history), np.ravel(outcome.state.order), strict=True):
        rows = clients.order[clients.starts[silo] : clients.starts[silo + 1]]
        held |= set(np.unique(data.y[rows]).tolist())
        made = generator_of(outcome.state.learner.design.gan.generator, theta, population).sample(
            count, make_key(2_000)
        )
        if not isinstance(made, Images):
            raise TypeError("expected images")
        found.append({"held": sorted(held), "shares": image_scores.class_coverage(made, by, data.classes)["shares"]})
    return found


def attacked(data: str, cell: Cell, scale: Scale) -> JsonObject:
    """Target and shadow are trained on disjoint halves, less the images of each that play the non-members."""
    every, seed = shuffled(data, cell), int(cell["seed"] or 0)
    games: list[Scored] = []
    found: JsonObject = {}
    for number, half in enumerate(np.array_split(np.arange(len(every)), 2)):
        members = every.take(half[scale.attacked :])
        clients = split_even(members, clients=int(cell["clients"] or SILOS), seed=seed)
        outcome, claim = trained(cell, clients, 2 * seed + number)
        asked = every.take(half[: 2 * scale.attacked])
        games.append(Scored(features=critic_features(outcome, asked), members=np.arange(len(asked)) >= scale.attacked))
        found = found or claim
    target, shadow = games
    told = attack_scores(shadow, target)
    kept = ("precision", "precision_low", "precision_high", "attacker", "attackers", "n", "called_members")
    found |= {key: told[key] for key in kept}
    return found | {f"attack_{key}": told[key] for key in ("accuracy", "accuracy_low", "accuracy_high")}


def critic_features(outcome: Outcome, asked: Images) -> Array:
    """The critic's score of each image less the mean of all, and less that of its label.

    A critic's scores have no zero, so that those of two critics can be compared only so.
    """
    gan = outcome.state.learner.design.gan
    everybody = jnp.ones(len(asked.y), bool)
    examples = gan.read({"x": jnp.asarray(asked.x), "y": jnp.asarray(asked.y)}, everybody)
    score = np.asarray(gan.score(gan.arrays(outcome.state.learner.omega), examples.x, examples.y), np.float64)
    means = np.bincount(asked.y, score, asked.classes) / np.maximum(np.bincount(asked.y, minlength=asked.classes), 1)
    return np.stack([score - score.mean(), score - means[asked.y]], axis=1)


def _kind(result: Result) -> Kind:
    """Trust, unit, and whether anything is guaranteed: what must not share a table or a chart."""
    return str(result.get("trust", "-")), str(result.get("unit", "-")), bool(result.get("holds", True))


def _whom(kind: Kind) -> str:
    trust, unit, holds = kind
    if trust == "-":
        return REAL
    if trust == "not-private":
        return "NOT PRIVATE"
    return f"trust: {trust}, protects one {unit}" if holds else f"NO GUARANTEE, noise as for trust: {trust}"


def _tag(kind: Kind) -> str:
    return kind[0] + ("" if kind[2] or kind[0] == "not-private" else "-without-guarantee")


def _by_kind(results: Sequence[Result]) -> dict[Kind, list[Result]]:
    found: dict[Kind, list[Result]] = {}
    for result in results:
        found.setdefault(_kind(result), []).append(result)
    return found


def views(data: str, results: Sequence[Result]) -> list[View]:
    """Each scale, trust and unit by itself, images and attacks apart."""
    del data
    found = []
    for scale, size in SCALES.items():
        for kind, some in _by_kind([r for r in results if r["cell"]["scale"] == scale]).items():
            images = [r for r in some if r["cell"]["split"] != "attack"]
            attacks = [r for r in some if r["cell"]["split"] == "attack"]
            head = f"{_whom(kind)}; {scale} scale, at most {size.records:,} training images"
            found += [_images_view(head, size, images)] if images else []
            found += [_attacks_view(head, attacks)] if attacks else []
    return found


def _images_view(head: str, size: Scale, some: Sequence[Result]) -> View:
    by = ("method", "epsilon", "split", "clients")
    claims = {tuple(r["cell"][name] for name in by): str(r.get("guarantee", "-")) for r in some}
    body = [
        [
            str(cell[0]), claims[cell], str(cell[2]), str(cell[3] or "-"),
            *(text(values[name]) for name in METRICS[:6]), text(values["seconds_training"], 0),
        ]
        for cell, values in mean_over_seeds(some, METRICS, by).items()
    ]  # fmt: skip
    header = "method, guarantee, labels, silos, least class, score, Frechet, logistic, MLP, CNN, s"
    title = (
        f"{head}, {size.images:,} synthetic ones; smallest share of a class, score and Frechet distance by a CNN trained on "
        f"real images; accuracy on at most {size.tested:,} real test images"
    )
    return View(title=title, header=header.split(", "), rows=body)


def _attacks_view(head: str, some: Sequence[Result]) -> View:
    def bounded(result: Result, name: str) -> str:
        return text(result.get(name)) + f" [{text(result.get(f'{name}_low'))}, {text(result.get(f'{name}_high'))}]"

    body = [
        [
            str(r["cell"]["method"]), str(r.get("guarantee", "-")), str(r["cell"]["seed"]), bounded(r, "precision"),
            bounded(r, "attack_accuracy"), str(r.get("attacker", "-")), str(r.get("n", "-")),
        ]
        for r in some
    ]  # fmt: skip
    title = f"{head}; membership inference by the critic's scores (figure 8), half are members; failure proves nothing"
    header = "method, guarantee, seed, precision, accuracy, attacker, records"
    return View(title=title, header=header.split(", "), rows=body)


def charts(data: str, results: Sequence[Result]) -> list[Chart]:
    """Figures 4, 6 or 7, and 8, at the largest scale there is."""
    some = [r for r in results if r["cell"]["method"] != REAL and r["cell"]["scale"] == largest(results)]
    found = []
    for kind, mine in _by_kind(some).items():
        alike = [r for r in mine if r["cell"]["split"] == "even" and r["cell"]["epsilon"] in (None, EPSILON)]
        attacks = [r for r in mine if r["cell"]["split"] == "attack" and r["cell"]["epsilon"] is not None]
        figure, even = 7 if REMOVED[data] else 6, {"even share": 1 / (10 - len(REMOVED[data]))}
        drawn: tuple[tuple[str, str, str, str, Lines, dict[str, float]], ...] = (
            ("score-by-silos", "score (figure 4)", "silos", "score", lines_over(alike, "inception", "clients"), {}),
            ("coverage-by-visit", f"least class of those held so far (figure {figure})", "silos visited", "share of images",
             _trails(mine), even),
            ("attack-by-epsilon", "membership inference (figure 8)", "epsilon", "precision",
             lines_over(attacks, "precision", "epsilon"), {"guessing": 0.5}),
        )  # fmt: skip
        for name, title, across, up, lines, level in drawn:
            if lines:
                name, title = f"{name}-{_tag(kind)}", f"{title}, {_whom(kind)}"
                found.append(Chart(name=name, title=title, across=across, up=up, lines=lines, level=level))
    return found


def _trails(some: Sequence[Result]) -> Lines:
    """The smallest share among the classes that the silos visited so far hold: what was forgotten shows."""
    return {
        str(r["cell"]["method"]): [
            (float(number), min(stop["shares"][label] for label in stop["held"]))
            for number, stop in enumerate(r["trail"], start=1)
        ]
        for r in some
        if "trail" in r and r["cell"]["seed"] == 0
    }


def pictures(data: str, results: Sequence[Result]) -> list[Picture]:
    """Figures 2, 6 and 7: an image grid for every row, split and epsilon at the usual number of silos."""

    def name(cell: Cell) -> str | None:
        if cell["clients"] not in (0, SILOS):
            return None
        return f"flgan-{data}-{cell['method']}-{cell['split']}{epsilon_suffix(cell)}".replace(", ", "-").replace(
            " ", "-"
        )

    return class_pictures(results, name)


_on = functools.partial(
    on_images,
    __name__,
    reference="Xin et al., private FL-GAN, Neurocomputing 2021, figures 2, 4 and 6 to 8",
)
MNIST = _on("mnist", "flgan-mnist", "GANs that travel, on MNIST")
FASHION = _on("fashion_mnist", "flgan-fashion", "GANs that travel, on Fashion-MNIST without coats and shirts")
