"""`genfl-mnist` and `genfl-fashion`: table 1 of DP-GenFL (Li et al., Science China Information Sciences 2023).

Test accuracy of a classifier learned together, and how precise a membership attack on it is. Clients, records and rounds are in
an appendix we do not have; here ten clients hold 5,000 training images each, and the other 10,000 are the attack's non-members.
A shadow model is trained the same way on a draw of its own: at full scale a draw leaves few images out, so shadow and target
share most, but who is a member of one says nothing about the other. Settings were not chosen on the test images. The small
scale is for processors: it shows that all runs, not what it reaches.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from populace.engines import simulation
from populace.evaluation.attacks.scores import Scored, attack_scores
from populace.evaluation.dense import Logistic
from populace.methods.genfl.classifier import AT_ONCE, ClassifierImages, Scattering
from populace.methods.registry import make_protocol
from populace.papers.grid import (
    Cell,
    Chart,
    Picture,
    Result,
    View,
    largest,
    lines_over,
    mean_over_seeds,
    trust_and_unit,
)
from populace.papers.image_grid import class_pictures, pack_images
from populace.papers.scores import load, on_images, text
from populace.runs.run import make_key
from populace.tables.images import Images
from populace.tables.partition import split
from populace.types import Array, JsonObject

Posterior = Callable[[Images], Array]

EPSILON, DELTA = 4.0, 1e-5
METRICS = ("accuracy", "precision", "precision_low", "precision_high", "attack_accuracy", "seconds_training")
OPEN = "no privacy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """Who holds how many images, how many nobody holds, and how many shadow models the attacker trains."""

    clients: int
    records: int
    outsiders: int
    tested: int
    shadows: int

    @property
    def members(self) -> int:
        return self.clients * self.records


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A method with its settings, the shares of generated examples it is run at, and its settings at the small scale."""

    method: str
    settings: Mapping[str, object]
    gammas: tuple[float | None, ...]
    small: Mapping[str, object]
    at: Mapping[float, Mapping[str, object]] = dataclasses.field(default_factory=dict)  # other settings at some shares


FULL = Scale(clients=10, records=5_000, outsiders=10_000, tested=10_000, shadows=1)
SMALL = Scale(clients=3, records=80, outsiders=120, tested=300, shadows=1)
GAMMAS = (1.0, 0.6, 0.2)
LEARNING: JsonObject = {"rounds": 60, "batch_size": 512, "clip_norm": 0.3, "learning_rate": 0.2, "features": 4}
#: Steps of the GANs are few so that the grid runs on processors; they were not chosen by what they reach. The share of the
#: budget is that of the stored figures, not the method's default, which was chosen later.
MADE: JsonObject = {**LEARNING, "generator_steps": 40, "gan_batch_size": 64, "budget_share": 0.3}
PAPER: JsonObject = {
    **LEARNING, "recipe": "paper", "generator_steps": 200, "critic_steps": 3, "gan_batch_size": 64, "budget_share": 0.3,
}  # fmt: skip
FEW: JsonObject = {"rounds": 3, "batch_size": 32, "features": 2}
FEW_MADE: JsonObject = {
    **FEW, "generator_steps": 4, "critic_steps": 2, "gan_batch_size": 16, "hidden_size": 16, "critic_hidden_size": 16,
}  # fmt: skip
#: Of the classifier without privacy: L-BFGS, and what its features are multiplied by, so that its penalty is light.
WITHOUT: JsonObject = {"features": 4, "iterations": 100, "strength": 10.0}

ROWS: dict[str, Row] = {
    OPEN: Row(method="", settings=WITHOUT, gammas=(None,), small={"features": 2, "iterations": 10}),
    "dp-fl": Row(method="dp-fl", settings=LEARNING, gammas=(None,), small=FEW),
    "genfl": Row(method="genfl", settings=MADE, gammas=GAMMAS, small=FEW_MADE),
    "genfl as published": Row(method="genfl", settings=PAPER, gammas=GAMMAS, small=FEW_MADE),
}
#: What differs between the data sets, by row.
OTHERWISE: dict[str, dict[str, Mapping[str, object]]] = {"mnist": {}, "fashion_mnist": {}}

#: (data, row, gamma) -> precision of the attack and test accuracy, as published. The letter's generators carry no noise.
PUBLISHED: dict[tuple[str, str, float | None], tuple[float, float]] = {
    ("mnist", OPEN, None): (0.584, 0.977),
    ("mnist", "dp-fl", None): (0.533, 0.934),
    ("mnist", "genfl as published", 1.0): (0.510, 0.501),
    ("mnist", "genfl as published", 0.6): (0.515, 0.947),
    ("mnist", "genfl as published", 0.2): (0.519, 0.962),
    ("fashion_mnist", OPEN, None): (0.613, 0.826),
    ("fashion_mnist", "dp-fl", None): (0.543, 0.769),
    ("fashion_mnist", "genfl as published", 1.0): (0.510, 0.550),
    ("fashion_mnist", "genfl as published", 0.6): (0.518, 0.750),
    ("fashion_mnist", "genfl as published", 0.2): (0.533, 0.789),
}


def cells(data: str, quick: bool, seeds: int) -> list[Cell]:
    """Small ones first; then every row at every share."""
    del data
    return [
        {"method": name, "epsilon": EPSILON if row.method else None, "gamma": gamma, "scale": scale, "seed": seed}
        for scale, seed in itertools.product(("small",) if quick else ("small", "full"), range(seeds))
        for name, row in ROWS.items()
        for gamma in row.gammas
    ]


def settings_of(data: str, cell: Cell) -> JsonObject:
    name, gamma = str(cell["method"]), cell["gamma"]
    row = ROWS[name]
    found: JsonObject = {**row.settings, **OTHERWISE[data].get(name, {})}
    if row.method:
        found |= {"epsilon": float(cell["epsilon"] or 0), "delta": DELTA}
    if gamma is not None:
        found |= {**row.at.get(float(gamma), {}), "synthetic_share": float(gamma)}
    if cell["scale"] == "small":
        found |= row.small
        found.pop("delta", None)  # the house rule: 1e-5 is no small chance for few records
    return found


def drawn(images: Images, scale: Scale, seed: int, number: int) -> tuple[Images, Images]:
    """Members and non-members of one model: the target's is number 0, the shadows' follow."""
    order = np.random.default_rng([seed, number]).permutation(len(images))
    if len(order) < scale.members + scale.outsiders:
        raise ValueError(f"{len(order)} images are fewer than {scale.members} members and {scale.outsiders} others")
    order = order[: scale.members + scale.outsiders]
    return images.take(order[: scale.members]), images.take(order[scale.members :])


def trained(
    data: str, cell: Cell, members: Images, scale: Scale, key: Array
) -> tuple[Posterior, JsonObject, ClassifierImages | None]:
    """A model of this cell's row, what is claimed of it, and its generator if it has one."""
    settings = settings_of(data, cell)
    method = ROWS[str(cell["method"])].method
    if not method:
        claim: JsonObject = {"guarantee": "no guarantee (epsilon = inf)", "unit": "record", "trust": "not-private"}
        return without_privacy(members, **settings), claim, None
    clients = split(members, records_per_client=scale.records)
    outcome = simulation.run(make_protocol(method, settings), clients, root=key)
    guarantee, model = outcome.guarantee, outcome.generator
    if not isinstance(model, ClassifierImages):
        raise TypeError("expected a classifier with generators")
    claim = {
        "guarantee": guarantee.bound,
        "unit": guarantee.unit,
        "trust": "not-private" if math.isinf(guarantee.epsilon) else guarantee.trust,
        "rounds": outcome.rounds,
    }
    return model.scores, claim, model if len(model.thetas) else None


def without_privacy(members: Images, *, features: int, iterations: int, strength: float) -> Posterior:
    """The same linear classifier, fitted to all records in one place without noise."""
    look = Scattering(members.shape, features)
    model = Logistic(iterations=iterations).fit(strength * seen(look, members), members.y)

    def posterior(images: Images) -> Array:
        found = np.zeros((len(images), images.classes))
        found[:, model.classes_] = model.predict_proba(strength * seen(look, images))
        return found

    return posterior


def seen(look: Scattering, images: Images) -> Array:
    """Features, [n, size]."""
    x = np.pad(images.x, ((0, -len(images) % AT_ONCE), *[(0, 0)] * len(images.shape)))
    parts = [jnp.asarray(x[start : start + AT_ONCE]) for start in range(0, len(x), AT_ONCE)]
    return np.concatenate([np.asarray(_features(look, part)) for part in parts])[: len(images)]


@functools.partial(jax.jit, static_argnums=0)
def _features(look: Scattering, x: Array) -> Array:
    return look(x.astype(jnp.float32) / 255)


def told(posterior: Posterior, members: Images, others: Images, rng: np.random.Generator) -> Scored:
    """What a model says about as many of its members, from all clients, as there are others.

    Features of a record: its loss, the posterior of its class, and the whole posterior in falling order.
    """
    some = members.take(rng.permutation(len(members))[: len(others)])
    rows = []
    for images in (some, others):
        found = np.asarray(posterior(images), np.float64)
        right = found[np.arange(len(images)), images.y]
        rows.append(np.column_stack([-np.log(np.maximum(right, 1e-12)), right, -np.sort(-found, axis=1)]))
    return Scored(features=np.concatenate(rows), members=np.arange(len(some) + len(others)) < len(some))


def measure(data: str, cell: Cell) -> Result:
    """Train the target and the shadows, test the one, and attack it by what the others say. Compiled functions are dropped."""
    scale, seed = SMALL if cell["scale"] == "small" else FULL, int(cell["seed"] or 0)
    train, test = load(data, "train"), load(data, "test")
    test = test.take(np.arange(min(scale.tested, len(test))))
    said: list[Scored] = []
    found: JsonObject = {}
    for number in range(1 + scale.shadows):
        members, others = drawn(train, scale, seed, number)
        began = time.monotonic()
        posterior, claim, generator = trained(data, cell, members, scale, make_key(seed + 1_000 * number))
        seconds = time.monotonic() - began
        if number == 0:
            right = np.asarray(posterior(test)).argmax(axis=1) == test.y
            found = {**claim, "seconds_training": seconds, "accuracy": float(right.mean())}
            if generator is not None:
                found |= pack_images(generator.sample(40 * test.classes, make_key(1_000 + seed)), shown=8)
        said.append(told(posterior, members, others, np.random.default_rng([seed, number, 1])))
    shadow = Scored(
        features=np.concatenate([each.features for each in said[1:]]),
        members=np.concatenate([each.members for each in said[1:]]),
    )
    attacked = attack_scores(shadow, said[0])
    jax.clear_caches()  # type: ignore[no-untyped-call]
    names = ("precision", "precision_low", "precision_high", "attacker", "n")
    return {**found, **{name: attacked[name] for name in names}, "attack_accuracy": attacked["accuracy"]}


def _published(data: str, name: str, gamma: float | None) -> str:
    published = PUBLISHED.get((data, name, gamma))
    return "-" if published is None else f"{published[0]:.3f} / {published[1]:.3f}"


def views(data: str, results: Sequence[Result]) -> list[View]:
    """Table 1: each scale by itself, and what is not private apart."""
    found = []
    kinds = dict.fromkeys(trust_and_unit(result) for result in results)
    for (size, scale), (trust, unit) in itertools.product((("full", FULL), ("small", SMALL)), kinds):
        some = [r for r in results if r["cell"]["scale"] == size and trust_and_unit(r) == (trust, unit)]
        claims = {(r["cell"]["method"], r["cell"]["gamma"]): str(r.get("guarantee", "-")) for r in some}
        body = [
            [
                str(name), text(gamma, 1), claims[name, gamma], text(values["accuracy"]), text(values["precision"]),
                f"{text(values['precision_low'])} to {text(values['precision_high'])}", text(values["seconds_training"], 0),
                _published(data, str(name), gamma) if size == "full" else "-",
            ]
            for (name, gamma), values in mean_over_seeds(some, METRICS, ("method", "gamma")).items()
        ]  # fmt: skip
        if not body:
            continue
        whom = "NOT PRIVATE" if trust == "not-private" else f"trust: {trust}, protects one {unit}"
        found.append(
            View(
                title=f"{whom}; {size} scale: {scale.clients} clients x {scale.records:,} images, accuracy on "
                f"{scale.tested:,} test images; precision of a membership attack, half of whose {2 * scale.outsiders:,} "
                "records are members, with its 95 % interval (of each seed, averaged); published: precision / accuracy",
                header=["method", "gamma", "guarantee", "accuracy", "precision", "interval", "s", "published"],
                rows=body,
            )
        )
    return found


def charts(data: str, results: Sequence[Result]) -> list[Chart]:
    """Accuracy and precision by gamma, at the largest scale there is; what is not private apart."""
    del data
    scale = largest(results)
    some = [r for r in results if r["cell"]["scale"] == scale]
    found = []
    for (metric, up), kind in itertools.product(
        (("accuracy", "test accuracy"), ("precision", "precision of the attack")),
        dict.fromkeys(map(trust_and_unit, some)),
    ):
        mine = [r for r in some if trust_and_unit(r) == kind]
        lines = lines_over(mine, metric, "gamma")
        without = mean_over_seeds([r for r in mine if r["cell"]["gamma"] is None], (metric,), ("method",))
        if lines:
            found.append(
                Chart(
                    name=f"{metric}-by-gamma-{kind[0]}",
                    title=f"{up} by the share of generated examples, trust: {kind[0]}, unit: {kind[1]}",
                    across="gamma",
                    up=up,
                    lines=lines,
                    level={str(name): each[metric] for (name,), each in without.items() if each[metric] is not None},
                )
            )
    return found


def pictures(data: str, results: Sequence[Result]) -> list[Picture]:
    """Images of the generators by class, at the largest scale there is."""

    def name(cell: Cell) -> str:
        return f"{data}-{cell['method']}-gamma-{cell['gamma']:g}".replace(" ", "-").replace(".", "")

    return class_pictures(results, name)


_on = functools.partial(
    on_images,
    __name__,
    reference="Li et al., DP-GenFL, Science China Information Sciences 2023, table 1",
)
MNIST = _on("mnist", "genfl-mnist", "DP-GenFL on MNIST")
FASHION = _on("fashion_mnist", "genfl-fashion", "DP-GenFL on Fashion-MNIST")
