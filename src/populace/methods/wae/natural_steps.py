"""What clients with latent classes tell of their records, and how far the server goes by it.

Reports are noisy and there are few for each parameter, so that a step must be as long as what is known deserves: a parameter
moves by the share the new reports have beside the old ones and beside what was known before any came (Kalman's gain), where
information on rare values is scarce. `told` estimates the mean of the clients' gradients, each made a unit vector; `gain` is
how well (the estimate of a coordinate from one report has the variance 1 / gain^2).
"""

from __future__ import annotations

import jax.numpy as jnp

from populace.methods.blocks.dense_networks import ClassAutoencoder
from populace.methods.wae.submodels import told_mask
from populace.types import Array

PRIOR = 0.4  # standard deviation of logits before any report
WEIGHT_PRIOR = 0.1  # the same of the logits of the classes' weights
FIRST_PRIOR = 0.3  # the same of shares, in the first rounds
FORGETTING = 4.0  # a report counts like the third power of its place in time: early ones saw other classes
SHORTER = 0.85  # than a gradient of certain classes is one of uncertain ones
LONGEST_STEP = 1.0  # of a logit


def told_slope(
    net: ClassAutoencoder, theta: Array, records: tuple[Array, Array], mask: Array, *,
    warming: Array, kept: Array | float = 1.0,
) -> Array:  # fmt: skip
    """The gradient a report is about: of the columns' own tables in the first rounds, of the rest later."""
    x, value = records
    first = net.first_slope(theta[: net.blocks.width], x, mask) * kept
    later = net.slope(theta, x, value, mask, kept)
    return jnp.where(warming, jnp.zeros_like(later).at[: net.blocks.width].set(first), later)


def first_step(
    net: ClassAutoencoder, theta: Array, means: Array, told: Array,
    *, gain: float, records: int, before: Array, heard: Array, kept: Array,
) -> Array:  # fmt: skip
    """The columns' shares: all estimates so far meaned, even ones counting like as many reports as they are worth."""
    base = theta[: net.blocks.width]
    share = jnp.mean(kept)  # of all reports, those that were about a given column
    length = jnp.sqrt(share) * net.first_length(base, records)
    estimate = net.blocks.probabilities(base) + length * told[: net.blocks.width]
    worth = (length / (gain * FIRST_PRIOR)) ** 2
    return means + kept * heard / (worth + share * before + heard) * (estimate - means)


def later_step(
    net: ClassAutoencoder, theta: Array, told: Array,
    *, gain: float, records: int, before: Array, heard: Array, kept: Array,
) -> Array:  # fmt: skip
    """Classes, effects and weights: each moves to where the reports put it, by their share beside all that is known of it.

    A report puts a parameter where told / information says, with the variance (length / gain / information)^2; before any
    came it was known to PRIOR^2. With FORGETTING = 1 this would be the mean of all reports and of the start.
    """
    share = jnp.mean(kept)
    length = SHORTER * jnp.sqrt(share) * net.length(theta[: net.blocks.width], records)
    information = net.information(theta)
    prior = jnp.where(jnp.arange(len(told)) < len(told) - net.outcomes * net.classes, PRIOR, WEIGHT_PRIOR)
    worth = (length / (gain * information * prior)) ** 2
    part = FORGETTING * heard / (worth + share * before + FORGETTING * heard)
    move = jnp.clip(part * length * told / information, -LONGEST_STEP, LONGEST_STEP)
    return jnp.asarray(theta).at[net.blocks.width :].add(move * told_mask(net, kept))
