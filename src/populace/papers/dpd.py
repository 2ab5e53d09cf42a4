"""`dpd-mnist` and `dpd-fashion`: tables 1 and 2 and figures 2 to 7 of DPD-fVAE (Pfitzner and Arnrich, arXiv 2022).

60,000 synthetic labelled images, five sets of them in the rows that are compared most, fewer in the others (`Row.sets`),
three classifiers tested on the real test images (appendix C.2), and the Frechet distance on the features of that CNN trained
on the real images. How settings were chosen is said in `docs/methods/dpd-vae.md`; none was by the test images. The small scale
is for processors: a fiftieth of the clients, few rounds, one set; it shows that all runs, not what it reaches.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from populace.engines import simulation
from populace.methods.registry import make_protocol
from populace.papers.grid import Cell, Chart, Picture, Result, View, largest, mean_over_seeds, trust_and_unit
from populace.papers.image_grid import class_pictures, epsilon_suffix, pack_images
from populace.papers.scores import load, on_images, scores, text
from populace.runs.run import make_key
from populace.tables.partition import Clients, split

Settings = Mapping[str, object]

DELTA = 1e-5  # the paper's
METRICS = ("logistic", "mlp", "cnn", "frechet", "seconds_training")
REAL = "real images"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """How many clients of how many images, and what the synthetic images are judged by."""

    clients: int
    records: int
    images: int
    steps: int  # of a classifier's training, batches of 128
    tested: int

    @property
    def judging(self) -> dict[str, int]:
        return {"steps": self.steps, "images": self.images, "tested": self.tested}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table: a method with its settings, the epsilons it is run at, and its settings at the small scale."""

    method: str
    settings: Settings
    epsilons: tuple[float | None, ...]
    small: Settings
    at: Mapping[float, Settings] = dataclasses.field(default_factory=dict)  # other settings at some epsilons
    sets: int = 2  # of synthetic images


FULL = {
    "mnist": Scale(clients=500, records=120, images=60_000, steps=4_690, tested=10_000),
    "fashion_mnist": Scale(clients=100, records=600, images=60_000, steps=4_690, tested=10_000),
}
SMALL = {name: Scale(clients=10, records=60, images=1_000, steps=60, tested=1_000) for name in FULL}
FEW: Settings = {"rounds": 4, "sampling_rate": 0.5, "local_epochs": 2, "hidden_size": 4}
CODE: Settings = {"latent_size": 16, "beta": 0.001}
FED: Settings = {
    "latent_size": 16, "beta": 0.002, "hidden_size": 64, "rounds": 300, "sampling_rate": 0.1, "momentum": 0.9,
    "learning_rate": 0.001,
}  # fmt: skip
CDPD: Settings = {"latent_size": 16, "beta": 0.002, "clip_norm": 1.5, "local_epochs": 10, "learning_rate": 0.002}
FEW_STEPS: Settings = {"participations": 4, "codes_per_example": 1, "hidden_size": 4}
THEN = (
    "l-dpd-vae:net=small,hidden_size=32,latent_size=128,beta=0.0001,fitting_steps=20000,participations=10,codes_per_example=1,"
    "server_learning_rate=0.001"
)
CHAIN: Settings = {"first": "moments", "then": THEN, "budget_share": 0.9}
SHORT: Settings = {"then": "l-dpd-vae:net=small,hidden_size=4,participations=2,codes_per_example=1,fitting_steps=50"}

#: Where a client holds five times the images: fewer rounds of as many batches, and batches of the same share of them.
MANY_RECORDS: dict[str, Settings] = {
    "fed-vae": {"rounds": 80},
    "l-dpd-vae": {"batch_size": 100},
    "chain": {"then": f"{THEN},batch_size=100"},
}

ROWS: dict[str, Row] = {
    "central VAE": Row(
        method="central-vae", settings=CODE, epsilons=(None,), small={"training_steps": 50, "hidden_size": 4}
    ),
    "fVAE": Row(method="fed-vae", settings={**FED, "shared": "whole"}, epsilons=(None,), small=FEW, sets=5),
    "DPD-fVAE": Row(method="fed-vae", settings=FED, epsilons=(None,), small=FEW, sets=5),
    "fVAE, updates clipped at .2": Row(
        method="fed-vae", settings={**FED, "shared": "whole", "clip_norm": 0.2}, epsilons=(None,), small=FEW
    ),
    "DPD-fVAE, updates clipped at .2": Row(
        method="fed-vae", settings={**FED, "clip_norm": 0.2}, epsilons=(None,), small=FEW
    ),
    "fVAE, noise of .05": Row(
        method="fed-vae", settings={**FED, "shared": "whole", "noise_deviation": 0.05}, epsilons=(None,), small=FEW
    ),
    "DPD-fVAE, noise of .05": Row(
        method="fed-vae", settings={**FED, "noise_deviation": 0.05}, epsilons=(None,), small=FEW
    ),
    "c-dpd-vae": Row(
        method="c-dpd-vae",
        settings=CDPD,
        epsilons=(10, 5, 2, 1),
        small=FEW,
        at={
            1: {
                "latent_size": 8,
                "beta": 0.01,
                "clip_norm": 2.0,
                "learning_rate": 0.003,
                "rounds": 10,
                "hidden_size": 8,
            }
        },
        sets=5,
    ),
    "c-dpd-vae, whole model": Row(method="c-dpd-vae", settings={**CDPD, "shared": "whole"}, epsilons=(10,), small=FEW),
    "l-dpd-vae, sleep": Row(
        method="l-dpd-vae", settings={"encoder": "sleep"}, epsilons=(10, 5, 2, 1), small=FEW_STEPS, sets=5
    ),
    "l-dpd-vae, frozen": Row(method="l-dpd-vae", settings={"encoder": "frozen"}, epsilons=(10,), small=FEW_STEPS),
    "l-dpd-vae, joint": Row(method="l-dpd-vae", settings={"encoder": "joint"}, epsilons=(10,), small=FEW_STEPS),
    "l-dpd-vae, encoder as published": Row(
        method="l-dpd-vae", settings={"encoder": "paper"}, epsilons=(10,), small=FEW_STEPS
    ),
    "moments, then l-dpd-vae": Row(method="chain", settings=CHAIN, epsilons=(10, 1), small=SHORT, sets=5),
}
#: (data, row, epsilon) -> logistic regression, MLP, CNN of the paper, in per cent.
PUBLISHED: dict[tuple[str, str, float | None], tuple[float | None, float | None, float]] = {
    ("mnist", REAL, None): (92.6, 97.5, 98.9),
    ("mnist", "central VAE", None): (None, None, 97.0),
    ("mnist", "fVAE", None): (None, None, 96.7),
    ("mnist", "DPD-fVAE", None): (None, None, 97.3),
    ("mnist", "c-dpd-vae", 10): (79.4, 81.1, 88.1),
    ("mnist", "l-dpd-vae, encoder as published", 10): (81.4, 81.8, 91.3),
    ("fashion_mnist", REAL, None): (84.4, 88.3, 91.8),
    ("fashion_mnist", "central VAE", None): (None, None, 82.4),
    ("fashion_mnist", "fVAE", None): (None, None, 83.3),
    ("fashion_mnist", "DPD-fVAE", None): (None, None, 76.7),
    ("fashion_mnist", "l-dpd-vae, encoder as published", 10): (75.0, 75.4, 80.0),
}


def cells(data: str, quick: bool, seeds: int) -> list[Cell]:
    """Small ones first; then every row at every epsilon."""
    found: list[Cell] = []
    for scale, seed in itertools.product(("small",) if quick else ("small", "full"), range(seeds)):
        if seed == 0:
            found.append({"method": REAL, "epsilon": None, "scale": scale, "seed": 0})
        for name, row in ROWS.items():
            if data == "fashion_mnist" and row.method == "c-dpd-vae":
                continue  # a hundred clients are too few for the client level; the paper has no figure either
            for epsilon in row.epsilons if scale == "full" else row.epsilons[:1]:
                found.append({"method": name, "epsilon": epsilon, "scale": scale, "seed": seed})
    return found


def clients_of(data: str, scale: Scale, seed: int) -> Clients:
    train = load(data, "train")
    order = np.random.default_rng(seed).permutation(len(train))[: scale.clients * scale.records]
    return split(train.take(order), records_per_client=scale.records)


def settings_of(data: str, cell: Cell) -> dict[str, object]:
    row = ROWS[str(cell["method"])]
    epsilon = cell["epsilon"]
    many = MANY_RECORDS.get(row.method, {}) if data == "fashion_mnist" else {}
    settings: dict[str, object] = {**row.settings, **many}
    if epsilon is not None:
        settings |= {**row.at.get(float(epsilon), {}), "epsilon": float(epsilon), "delta": DELTA}
    if cell["scale"] == "small":
        settings |= row.small
        settings.pop("delta", None)  # by the public rule: 1e-5 is no small chance for few records
    return settings


def measure(data: str, cell: Cell) -> Result:
    """One run, its images, and what classifiers learn from them. Compiled functions are dropped afterwards."""
    scale = (SMALL if cell["scale"] == "small" else FULL)[data]
    name, seed = str(cell["method"]), int(cell["seed"] or 0)
    if name == REAL:
        train = load(data, "train")
        made = train.take(np.random.default_rng(3).permutation(len(train))[: scale.images])
        return {**scores([made], data, **scale.judging, seed=seed), **pack_images(made, shown=8)}
    protocol = make_protocol(ROWS[name].method, settings_of(data, cell))
    began = time.monotonic()
    outcome = simulation.run(protocol, clients_of(data, scale, seed), root=make_key(seed))
    trained = time.monotonic()
    count = ROWS[name].sets if cell["scale"] == "full" else 1
    sets = [outcome.generator.sample(scale.images, make_key(1_000 + number)) for number in range(count)]
    found = {
        "guarantee": outcome.guarantee.bound,
        "unit": outcome.guarantee.unit,
        "trust": outcome.guarantee.trust,
        "rounds": outcome.rounds,
        "seconds_training": trained - began,
        **scores(sets, data, **scale.judging, seed=seed),
        **pack_images(sets[0], shown=8),
    }
    if protocol.facts.name == "fed-vae":
        found["norms"] = np.round(np.asarray(outcome.state.learner.norms, np.float64), 4).tolist()
    jax.clear_caches()  # type: ignore[no-untyped-call]
    return found


def _published(data: str, name: str, epsilon: float | None) -> str:
    found = PUBLISHED.get((data, name, epsilon))
    return "-" if found is None else " / ".join("-" if value is None else f"{value / 100:.3f}" for value in found)


def views(data: str, results: Sequence[Result]) -> list[View]:
    """Tables 1 and 2: each scale, trust and unit by itself."""
    found = []
    for scale, (trust, unit) in itertools.product(
        ("full", "small"), dict.fromkeys(trust_and_unit(result) for result in results)
    ):
        some = [r for r in results if r["cell"]["scale"] == scale and trust_and_unit(r) == (trust, unit)]
        claims = {(r["cell"]["method"], r["cell"]["epsilon"]): r.get("guarantee", "-") for r in some}
        body = [
            [
                str(name), claims[name, epsilon], *(text(values[metric]) for metric in ("logistic", "mlp", "cnn", "frechet")),
                text(values["seconds_training"], 0), _published(data, str(name), epsilon) if scale == "full" else "-",
            ]
            for (name, epsilon), values in mean_over_seeds(some, METRICS, ("method", "epsilon")).items()
        ]  # fmt: skip
        if not body:
            continue
        size = (FULL if scale == "full" else SMALL)[data]
        whom = "real images" if trust == "-" else f"trust: {trust}, protects one {unit}"
        if trust == "not-private":
            whom = "NOT PRIVATE"
        found.append(
            View(
                title=f"{whom}; {scale} scale: {size.clients} clients x {size.records} images, {size.images:,} synthetic "
                f"images, accuracy on {size.tested:,} real test images; Frechet distance on features of the CNN trained on "
                "real images; published: logistic regression / MLP / CNN",
                header=["method", "guarantee", "logistic", "MLP", "CNN", "Frechet", "s", "published"],
                rows=body,
            )
        )
    return found


def charts(data: str, results: Sequence[Result]) -> list[Chart]:
    """Figure 2 (norms of updates) and figure 4 (CNN by epsilon, each trust by itself), at the largest scale there is."""
    del data
    scale = largest(results)
    first = [r for r in results if r["cell"]["scale"] == scale and r["cell"]["seed"] == 0]
    norms = {
        str(r["cell"]["method"]): [(float(i + 1), float(v)) for i, v in enumerate(r["norms"][:50])]
        for r in first
        if r["cell"]["method"] in ("fVAE", "DPD-fVAE") and "norms" in r
    }
    real = {str(r["cell"]["method"]): float(r["cnn"]) for r in first if r["cell"]["method"] == REAL}
    found = []
    if norms:
        title = "median norm of a client's update (figure 2)"
        found.append(Chart(name="norms-by-round", title=title, across="round", up="norm", lines=norms))
    for trust, unit in dict.fromkeys(trust_and_unit(r) for r in first if r["cell"]["epsilon"] is not None):
        lines: dict[str, list[tuple[float, float]]] = {}
        for r in first:
            if r["cell"]["epsilon"] is not None and trust_and_unit(r) == (trust, unit):
                lines.setdefault(str(r["cell"]["method"]), []).append((float(r["cell"]["epsilon"]), float(r["cnn"])))
        found.append(
            Chart(
                name=f"cnn-by-epsilon-{trust}",
                title=f"CNN by epsilon (figure 4), trust: {trust}, unit: {unit}",
                across="epsilon",
                up="accuracy",
                lines={name: sorted(points) for name, points in lines.items()},
                level=real,
            )
        )
    return found


def pictures(data: str, results: Sequence[Result]) -> list[Picture]:
    """Figures 3 and 5 to 7: a grid by class for every row and epsilon, at the largest scale there is."""

    def name(cell: Cell) -> str:
        return f"{data}-{cell['method']}{epsilon_suffix(cell)}".replace(", ", "-").replace(" ", "-").replace(".", "")

    return class_pictures(results, name)


_on = functools.partial(
    on_images,
    __name__,
    revision=3,  # fVAE and DPD-fVAE have other settings than in 1, and the chain than in 2
    reference="Pfitzner and Arnrich, DPD-fVAE, arXiv 2022, tables 1 and 2, figures 2 to 7",
)
MNIST = _on("mnist", "dpd-mnist", "DPD-fVAE on MNIST")
FASHION = _on("fashion_mnist", "dpd-fashion", "DPD-fVAE on Fashion-MNIST")
