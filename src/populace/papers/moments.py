"""`moments-mnist` and `moments-fashion`: the quality from one noisy message per client, by epsilon, trust, clients and skew.

60,000 synthetic labelled images a run, made on the processor; the three classifiers of DPD-fVAE's appendix C.2 tested on the
real test images, and the Frechet distance on the features of that CNN trained on the real images. Public rules were chosen on
10,000 training images held out, never on the test images. Skewed: rows sorted by label before they are divided, so that a
client holds one label or two. The small scale shows that all runs, not what it reaches.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Sequence

import jax
import numpy as np

from populace.engines import simulation
from populace.methods.moments.protocol import Moments
from populace.papers.grid import Cell, Chart, Picture, Result, View, largest, mean_over_seeds
from populace.papers.image_grid import class_pictures, epsilon_suffix, pack_images
from populace.papers.scores import load, on_images, scores, text
from populace.runs.run import make_key
from populace.tables.images import Images
from populace.tables.partition import Clients, split

DELTA = 1e-5
METRICS = ("logistic", "mlp", "cnn", "frechet", "seconds_run", "seconds_sampling", "kilobytes")
REAL = "real"
EPSILONS = (10.0, 1.0, 0.2)
TRUSTS = ("silo", "central")
IN_SHARES = "secure-sum"
COLLUDING = (0, 2)  # of the clients none, or every second one, may collude with the server
CLIENTS = (6, 100, 500, 6_000)
USUAL = {"mnist": 500, "fashion_mnist": 100}  # clients of the published experiments


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """How much data, and how the synthetic images are evaluated."""

    rows: int
    images: int
    steps: int  # of a classifier's training, batches of 128
    tested: int

    @property
    def evaluation(self) -> dict[str, int]:
        return {"steps": self.steps, "images": self.images, "tested": self.tested}


FULL = Scale(rows=60_000, images=60_000, steps=4_690, tested=10_000)
SMALL = Scale(rows=600, images=1_000, steps=60, tested=1_000)
SMALL_CLIENTS = 10
#: Published accuracies of the CNN, with what each asks one to trust and what it protects.
PUBLISHED: dict[str, tuple[tuple[str, str, str, str, str], ...]] = {
    "mnist": (
        ("L-DPD-fVAE", "10", "silo", "record; the proof fails", ".913"),
        ("C-DPD-fVAE", "10", "central", "client", ".881"),
        ("DPDM", "1", "central", "record", ".953"),
        ("FETA-Pro", "1", "central", "record", ".971"),
    ),
    "fashion_mnist": (("L-DPD-fVAE", "10", "silo", "record; the proof fails", ".800"),),
}


def cells(data: str, quick: bool, seeds: int) -> list[Cell]:
    """Small ones first; then real images, every epsilon, trust and number of clients, and skew at the usual number."""
    grid: list[Cell] = []
    for seed in range(seeds):
        for trust, spread in itertools.product(TRUSTS, ("even", "skewed")):
            grid.append(_cell("small", trust, 10.0, SMALL_CLIENTS, spread, seed))
        if quick:
            continue
        if seed == 0:
            grid.append(_cell("full", REAL, None, 0, "even", 0))
        for trust, epsilon, clients in itertools.product(TRUSTS, EPSILONS, CLIENTS):
            grid.append(_cell("full", trust, epsilon, clients, "even", seed))
        for trust, epsilon in itertools.product(TRUSTS, EPSILONS):
            grid.append(_cell("full", trust, epsilon, USUAL[data], "skewed", seed))
        for epsilon, each in itertools.product(EPSILONS[:2], COLLUDING):
            colluders = USUAL[data] // each if each else 0
            grid.append({**_cell("full", IN_SHARES, epsilon, USUAL[data], "even", seed), "colluders": colluders})
    return grid


def _cell(scale: str, trust: str, epsilon: float | None, clients: int, spread: str, seed: int) -> Cell:
    return {"scale": scale, "trust": trust, "epsilon": epsilon, "clients": clients, "spread": spread, "seed": seed}


def clients_of(data: str, cell: Cell, scale: Scale) -> Clients:
    train = load(data, "train")
    order = np.random.default_rng(int(cell["seed"] or 0)).permutation(len(train))[: scale.rows]
    if cell["spread"] == "skewed":
        order = order[np.argsort(train.y[order], kind="stable")]
    return split(train.take(order), records_per_client=-(-len(order) // int(cell["clients"] or 1)))


def measure(data: str, cell: Cell) -> Result:
    """One run, its images, and what classifiers learn from them."""
    scale = SMALL if cell["scale"] == "small" else FULL
    seed = int(cell["seed"] or 0)
    if cell["trust"] == REAL:
        images = load(data, "train").take(np.random.default_rng(3).permutation(60_000)[: scale.images])
        return {**scores([images], data, **scale.evaluation, seed=seed), **pack_images(images, shown=8)}
    images, about = synthesised(data, cell, scale)
    return {**about, **scores([images], data, **scale.evaluation, seed=seed), **pack_images(images, shown=8)}


def synthesised(data: str, cell: Cell, scale: Scale) -> tuple[Images, Result]:
    """The images of a cell, made on the processor whatever else there is."""
    delta = DELTA if cell["scale"] == "full" else 0.0  # the house rule: 1e-5 is no small chance for few records
    protocol = Moments(
        epsilon=float(cell["epsilon"] or 1.0), delta=delta, trust=cell["trust"],  # type: ignore[arg-type]
        colluders=int(cell.get("colluders") or 0),
    )  # fmt: skip
    seed = int(cell["seed"] or 0)
    with jax.default_device(jax.devices("cpu")[0]):
        began = time.monotonic()
        outcome = simulation.run(protocol, clients_of(data, cell, scale), root=make_key(seed))
        run = time.monotonic()
        images = outcome.generator.sample(scale.images, make_key(1_000 + seed))
        sampled = time.monotonic()
    return images, {
        "guarantee": outcome.guarantee.bound, "unit": outcome.guarantee.unit, "seconds_run": run - began,
        "seconds_sampling": sampled - run, "kilobytes": outcome.traffic.up / max(outcome.traffic.messages, 1) / 1_000,
    }  # fmt: skip


def _trust(cell: Cell) -> tuple[str, int]:
    """The trust of a cell, and how many clients may collude with the server."""
    return str(cell["trust"]), int(cell.get("colluders") or 0)


def _trusts(results: Sequence[Result]) -> list[tuple[str, int]]:
    shares = sorted({_trust(r["cell"]) for r in results if r["cell"]["trust"] == IN_SHARES})
    return [(REAL, 0), *((trust, 0) for trust in TRUSTS), *shares]


def views(data: str, results: Sequence[Result]) -> list[View]:
    """Each scale and trust by itself: two trusts never share a table."""
    sections = []
    by = ("epsilon", "clients", "spread")
    for scale, (trust, colluders) in itertools.product(("full", "small"), _trusts(results)):
        some = [r for r in results if (r["cell"]["scale"], *_trust(r["cell"])) == (scale, trust, colluders)]
        body = []
        for (epsilon, clients, spread), values in mean_over_seeds(some, METRICS, by).items():
            claim = next(r for r in some if tuple(r["cell"][name] for name in by) == (epsilon, clients, spread))
            figures = [text(values[name]) for name in ("logistic", "mlp", "cnn")]
            rest = [text(values[name], 1) for name in ("frechet", "seconds_run", "seconds_sampling", "kilobytes")]
            body.append(
                [claim.get("guarantee", "-"), claim.get("unit", "-"), str(clients or "-"), str(spread), *figures, *rest]
            )
        if body:
            size = FULL if scale == "full" else SMALL
            may = f", {colluders} clients may collude" if colluders else ""
            sections.append(
                View(
                    title=f"{scale} scale, trust: {trust}{may}; {size.rows:,} records, {size.images:,} synthetic images, "
                    f"accuracy on {size.tested:,} real test images",
                    header=["guarantee", "unit", "clients", "labels", "logistic", "MLP", "CNN", "Frechet", "s", "s sampling",
                            "kB"],
                    rows=body,
                )
            )  # fmt: skip
    published = [list(row) for row in PUBLISHED[data]]
    header = ["published", "epsilon", "trust", "protects", "CNN"]
    return [*sections, View(title="published figures; trust and unit differ", header=header, rows=published)]


def charts(data: str, results: Sequence[Result]) -> list[Chart]:
    """CNN by epsilon for each number of clients, one chart for each trust, at the largest scale there is."""
    del data
    scale = largest(results)
    some = [r for r in results if r["cell"]["scale"] == scale]
    real = {f"{r['cell']['trust']} images": float(r["cnn"]) for r in some if r["cell"]["trust"] == REAL}
    plots = []
    for trust in TRUSTS:
        lines: dict[str, list[tuple[float, float]]] = {}
        mine = [r for r in some if r["cell"]["trust"] == trust]
        for (epsilon, clients, spread), values in mean_over_seeds(
            mine, METRICS, ("epsilon", "clients", "spread")
        ).items():
            name = f"{clients} clients" + (", labels skewed" if spread == "skewed" else "")
            lines.setdefault(name, []).append((float(epsilon), float(values["cnn"])))
        drawn = {name: sorted(points) for name, points in lines.items()}
        title = f"CNN by epsilon, trust: {trust}, unit: record"
        plots.append(
            Chart(
                name=f"cnn-by-epsilon-{trust}",
                title=title,
                across="epsilon",
                up="accuracy",
                lines=drawn,
                level=real,
                logarithmic=True,
            )
        )
    return plots


def pictures(data: str, results: Sequence[Result]) -> list[Picture]:
    """A grid by class for each trust and epsilon at the usual number of clients."""

    def name(cell: Cell) -> str | None:
        usual = cell["clients"] in (USUAL[data], SMALL_CLIENTS, 0) and cell["spread"] == "even"
        usual = usual and not cell.get("colluders")
        return f"moments-{data}-{cell['trust']}{epsilon_suffix(cell).replace('.', '-')}" if usual else None

    return class_pictures(results, name)


_on = functools.partial(
    on_images,
    __name__,
    reference="no paper: populace's own method; published figures of others stand beside, with their trust and unit",
)
MNIST = _on("mnist", "moments-mnist", "One noisy message per client on MNIST")
FASHION = _on("fashion_mnist", "moments-fashion", "One noisy message per client on Fashion-MNIST")
