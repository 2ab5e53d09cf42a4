"""What the settings of the FL-GAN paper cost: the epsilon it states beside those that follow from its own description.

The paper says: 10,000 records at a silo, batches of 64, noise multiplier 1, delta 1/n, and as many steps as Renyi's accountant
allows at the stated epsilon. The columns are the claim recomputed with privacy loss distributions for L2 clipping and Poisson
sampling; the same at delta 1e-5; L2 clipping with shuffled batches, where a record enters one batch of each pass without
amplification by sampling; and each coordinate clipped apart, as published, with the noise on a batch's mean or on its sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from populace.papers.grid import Cell, Chart, Result, View, benchmark_of
from populace.privacy.accounting import epsilon_of, sampled_gaussian
from populace.privacy.bisection import largest_that_fits
from populace.privacy.gaussian import gaussian_epsilon

RECORDS, BATCH_SIZE, NOISE_MULTIPLIER = 10_000, 64, 1.0
SAMPLING_RATE = BATCH_SIZE / RECORDS
DELTA, SMALL_DELTA = 1 / RECORDS, 1e-5
STATED = (4.0, 6.0, 8.0)
SIZES = (12_000, 1_000_000)  # parameters of the critic: of ours, and of a usual one
MOST_STEPS = 200_000
METRICS = (
    "steps", "poisson", "poisson_small_delta", "shuffled", *(f"{where}_{size}" for size in SIZES for where in ("mean", "sum")),
)  # fmt: skip
NAMES = (
    "steps", "L2, Poisson", "L2, Poisson, delta 1e-5", "L2, shuffled",
    *(f"noise on {where}, d={size:,}" for size in SIZES for where in ("mean", "sum")),
)  # fmt: skip


def steps_within(epsilon: float) -> int:
    """The most steps of DP-SGD that Renyi's accountant allows within epsilon."""

    def fits(steps: int) -> bool:
        event = sampled_gaussian(noise_multiplier=NOISE_MULTIPLIER, probability=SAMPLING_RATE, steps=steps)
        return epsilon_of(event, delta=DELTA, accountant="rdp") <= epsilon

    return largest_that_fits(fits, 1, MOST_STEPS)


def cells(quick: bool, seeds: int) -> list[Cell]:
    """One cell for each epsilon of the paper; nothing is drawn at random."""
    del seeds
    return [{"stated": stated} for stated in (STATED[:1] if quick else STATED)]


def measure(cell: Cell) -> Result:
    """The number of steps, and epsilon under each reading of the paper."""
    steps = steps_within(float(cell["stated"] or 0))
    passes = math.ceil(steps * SAMPLING_RATE)
    event = sampled_gaussian(noise_multiplier=NOISE_MULTIPLIER, probability=SAMPLING_RATE, steps=steps)
    scale = NOISE_MULTIPLIER / math.sqrt(passes)
    apart = {
        f"{where}_{size}": gaussian_epsilon(factor * scale / math.sqrt(size), DELTA)
        for size in SIZES
        for where, factor in (("mean", BATCH_SIZE), ("sum", 1))
    }
    return {
        "steps": steps,
        "poisson": epsilon_of(event, delta=DELTA),
        "poisson_small_delta": epsilon_of(event, delta=SMALL_DELTA),
        "shuffled": gaussian_epsilon(scale, DELTA),
        **apart,
    }


def views(results: Sequence[Result]) -> list[View]:
    """Epsilon as stated and as it follows."""
    rows = [[f"{value:.5g}" for value in (one["cell"]["stated"], *(one[name] for name in METRICS))] for one in results]
    return [View(title="epsilon at delta 1e-4, as stated and as it follows", header=["stated", *NAMES], rows=rows)]


def charts(results: Sequence[Result]) -> list[Chart]:
    """Epsilon that follows against epsilon stated."""
    lines = {
        name: [(float(one["cell"]["stated"]), float(one[metric])) for one in results]
        for metric, name in zip(METRICS[1:], NAMES[1:], strict=True)
    }
    return [
        Chart(name="claims", title=CLAIMS.title, across="stated epsilon", up="epsilon", lines=lines, logarithmic=True)
    ]


CLAIMS = benchmark_of(
    __name__,
    name="flgan-claims",
    title="What FL-GAN's own settings cost",
    reference="the FL-GAN paper states epsilon 4, 6 and 8",
    revision=1,
    prepare=lambda: None,
)
