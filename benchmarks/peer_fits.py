"""The fit of noisy tables of all pairs of nine columns: our mixture, and the estimators of mbi (private-pgm).

    python -m benchmarks.peer_fits ours|mirror-descent|lbfgs|mixture-of-products

Rows follow latent classes (`benchmarks.wide.make`), the columns have as many values as the nine of Adult, and every pair table
has Gaussian noise. mbi computes in steps of fifty. Prints one line of JSON: seconds with compilation, seconds of a second fit
where the first was short, and the mean distance of all two-way tables from those of the rows.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.wide import make
from populace.types import NumpyArray

SIZES = (7, 16, 7, 14, 6, 5, 2, 41, 2)
ROWS = 30_162
DEVIATION = 60.0  # of the noise on a count: about that of 36 tables at epsilon 1, delta 1e-5
SHORT = 30.0  # seconds of a first fit after which it is not done again
PAIRS = tuple(itertools.combinations(range(len(SIZES)), 2))
MBI_STEPS = {"mirror-descent": 50, "lbfgs": 50, "mixture-of-products": 1_000}
KINDS = ("ours", *MBI_STEPS)
Tables = list[NumpyArray]


def tables_of_rows() -> tuple[Tables, Tables]:
    """The counts of every pair, and the same with noise."""
    codes, rng = make(SIZES, ROWS), np.random.default_rng(1)
    exact = [
        np.bincount(codes[:, a] * SIZES[b] + codes[:, b], minlength=SIZES[a] * SIZES[b]).reshape(SIZES[a], SIZES[b])
        for a, b in PAIRS
    ]
    return exact, [table + rng.normal(0, DEVIATION, table.shape) for table in exact]


def ours(noisy: Tables) -> Tables:
    """The shares of every pair under our mixture, with the settings of `census`."""
    import jax

    from populace.methods.census.fit import Observed, Settings, fit_mixture
    from populace.methods.census.protocol import Census
    from populace.methods.census.tables import PairTables

    tables = PairTables(SIZES)
    defaults = Census(epsilon=1.0)
    settings = Settings(components=defaults.components, members=defaults.members, steps=defaults.fit_steps, pull=0.0)
    shares = np.concatenate([table.reshape(-1) for table in noisy])[None] / ROWS
    observed = Observed(
        shares, np.full(tables.entries, DEVIATION / ROWS),
        np.zeros((1, tables.positions)), np.full(tables.positions, np.inf),
    )  # fmt: skip
    mixture = fit_mixture(tables, observed, settings, jax.random.key(0))
    weights = mixture.weights.reshape(-1) / len(mixture.weights)
    parts = np.split(mixture.tables.reshape(len(weights), -1), np.cumsum(SIZES)[:-1], axis=1)
    return [np.einsum("z,za,zb->ab", weights, parts[a], parts[b]) for a, b in PAIRS]


def of_mbi(kind: str, noisy: Tables) -> Tables:
    """The shares of every pair under a model of mbi."""
    import mbi
    import optax
    from mbi import estimation
    from mbi.extensions.mixture_of_products import MixtureOfProductsEstimator

    names = [f"c{number}" for number in range(len(SIZES))]
    measured = [
        mbi.LinearMeasurement(table.reshape(-1), (names[a], names[b]), stddev=DEVIATION)
        for (a, b), table in zip(PAIRS, noisy, strict=True)
    ]
    estimators: dict[str, Callable[[], Any]] = {
        "mirror-descent": estimation.MirrorDescent,
        "lbfgs": estimation.LBFGS,
        "mixture-of-products": lambda: MixtureOfProductsEstimator(optimizer=optax.adam(0.1)),
    }
    domain = mbi.Domain(names, SIZES)
    model = estimators[kind]().estimate(domain, measured, known_total=float(ROWS), iters=MBI_STEPS[kind])
    return [
        np.asarray(model.project((names[a], names[b])).datavector()).reshape(SIZES[a], SIZES[b]) / ROWS
        for a, b in PAIRS
    ]


def measure(kind: str) -> dict[str, Any]:
    exact, noisy = tables_of_rows()
    fit = (lambda: ours(noisy)) if kind == "ours" else (lambda: of_mbi(kind, noisy))
    began, worked = time.perf_counter(), time.process_time()
    fitted = fit()
    result: dict[str, Any] = {
        "fit": kind, "seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - worked,
        "two_way_distance": mean_distance(exact, fitted),
        "distance_of_noise": mean_distance(exact, [table / ROWS for table in noisy]),
    }  # fmt: skip
    if kind in MBI_STEPS:
        result["steps"] = MBI_STEPS[kind]
    if result["seconds"] < SHORT:
        began, worked = time.perf_counter(), time.process_time()
        fit()
        result |= {
            "seconds_again": time.perf_counter() - began,
            "processor_seconds_again": time.process_time() - worked,
        }
    return result


def mean_distance(exact: Tables, shares: Tables) -> float:
    """The mean total variation distance of the tables."""
    return float(np.mean([0.5 * np.abs(a / ROWS - b).sum() for a, b in zip(exact, shares, strict=True)]))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(measure(sys.argv[1])))
