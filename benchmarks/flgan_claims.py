"""What private FL-GAN's own settings cost: the epsilon stated beside those that follow. `python -m benchmarks.flgan_claims`.

10,000 records at a silo, batches of 64, noise multiplier 1, delta 1/n, as many steps as Renyi's accountant allows at the stated
epsilon: that is what the paper says. Columns: the claim redone by privacy loss distributions for L2 clipping and Poisson
batches, and with delta 1e-5; L2 clipping with shuffled batches, where a record enters one batch of each pass without
amplification; and coordinates clipped apart, as published, with the noise on the mean or on the sum of a batch.
"""

from __future__ import annotations

import math

from populace.privacy.accounting import epsilon_of, sampled_gaussian
from populace.privacy.gaussian import gaussian_epsilon

RECORDS, BATCH, NOISE = 10_000, 64, 1.0
DELTA, SMALL_DELTA = 1 / RECORDS, 1e-5
STATED = (4.0, 6.0, 8.0)
SIZES = (12_000, 1_000_000)  # parameters of the critic: ours, and that of a usual one
MOST_STEPS = 200_000


def steps_at(epsilon: float) -> int:
    """The most steps within epsilon by Renyi's accountant."""
    low, high = 1, MOST_STEPS
    while high - low > 1:
        middle = (low + high) // 2
        event = sampled_gaussian(noise_multiplier=NOISE, probability=BATCH / RECORDS, steps=middle)
        low, high = (middle, high) if epsilon_of(event, delta=DELTA, accountant="rdp") <= epsilon else (low, middle)
    return low


def main() -> None:
    names = ["stated", "steps", "valid", "delta 1e-5", "shuffled"]
    names += [f"{where}, d={size:,}" for size in SIZES for where in ("mean", "sum")]
    print("  ".join(f"{name:>14}" for name in names))
    for stated in STATED:
        steps = steps_at(stated)
        passes = math.ceil(steps * BATCH / RECORDS)
        event = sampled_gaussian(noise_multiplier=NOISE, probability=BATCH / RECORDS, steps=steps)
        row: list[float] = [stated, steps, epsilon_of(event, delta=DELTA), epsilon_of(event, delta=SMALL_DELTA)]
        row.append(gaussian_epsilon(NOISE / math.sqrt(passes), DELTA))
        for size in SIZES:
            row += [gaussian_epsilon(factor * NOISE / math.sqrt(size * passes), DELTA) for factor in (BATCH, 1)]
        print("  ".join(f"{value:14.5g}" for value in row), flush=True)


if __name__ == "__main__":
    main()
