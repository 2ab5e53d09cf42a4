"""What local reports guarantee centrally if nobody learns who sent which: amplification by shuffling.

Clients send epsilon-LDP reports one after the other, in a uniformly random order that stays secret, each once; a later question
may depend on earlier reports. What is made of them is then (epsilon', delta)-DP in the central model, for everything one
client holds (Feldman, McMillan and Talwar, "Hiding among the clones", FOCS 2021, theorem 3.2). Their reduction, kept in closed
form: C ~ Bin(n - 1, e^-epsilon) other clients answer as either of two neighbours would, A ~ Bin(C, 1/2) of them as the first,
and the client itself as the first with probability a = e^epsilon / (1 + e^epsilon); seen is how many of the C + 1 did.

This is another statement than the local one, with another trust and a delta. The two are never added or compared.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from scipy.special import bdtrc

from populace.errors import out_of_range
from populace.privacy.bisection import bisect
from populace.privacy.guarantee import Guarantee, check_epsilon
from populace.types import NumpyArray

LEAST_DELTA = 1e-12  # below it rounding errors would count
DEVIATIONS = 8.5  # from the mean: numbers of clones that are not looked at count as failures
ROUNDING = 1e-9  # relative, of the tables of probabilities
USUAL_DELTA = 1e-6
STEPS = 28  # of the bisection
BINS = 128


def shuffled_delta(*, local_epsilon: float, clients: int, epsilon: float) -> float:
    """An upper bound on the delta that goes with `epsilon`."""
    from scipy.stats import binom  # takes half a second, which other methods need not wait for

    check_epsilon(local_epsilon)
    if clients < 1:
        raise out_of_range("clients", "at least 1", clients)
    if not epsilon >= 0:
        raise out_of_range("epsilon", "at least 0", epsilon)
    others, share = clients - 1, math.exp(-local_epsilon)
    reach = DEVIATIONS * (math.sqrt(others * share) + DEVIATIONS)
    clones = np.arange(max(0, math.floor(others * share - reach)), min(others, math.ceil(others * share + reach)) + 1)
    chances = binom.pmf(clones, others, share)
    missing = max(0.0, 1.0 - float(chances.sum()))
    # One clone more is one fair coin more, so delta falls with their number: the least of a bin stands for all of it.
    firsts = np.arange(0, len(clones), -(-len(clones) // BINS))
    deltas = _clone_delta(local_epsilon, clones[firsts], epsilon)
    return (1 + ROUNDING) * float(np.add.reduceat(chances, firsts) @ deltas) + missing


def _clone_delta(local_epsilon: float, clones: NumpyArray, epsilon: float) -> NumpyArray:
    """The same with so many clones: the two laws' ratio rises with the number seen, so that only one tail counts."""
    a, factor, total = 1 / (1 + math.exp(-local_epsilon)), math.exp(epsilon), clones + 1
    edge = total * (factor * a - (1 - a)) / ((2 * a - 1) * (1 + factor))
    least = np.ceil(edge).astype(np.int64)

    def tail(at_least: NumpyArray) -> NumpyArray:
        """P(A >= at_least), A ~ Bin(clones, 1/2)."""
        inside = np.clip(at_least - 1, 0, clones)
        probability = np.where(at_least > clones, 0.0, bdtrc(inside, clones, 0.5))
        return np.where(at_least <= 0, 1.0, probability)

    with_it, without = tail(least - 1), tail(least)
    own, other = a * with_it + (1 - a) * without, (1 - a) * with_it + a * without
    return np.where(least > total, 0.0, np.maximum(own - factor * other, 0.0))


@functools.lru_cache(maxsize=256)
def shuffled_epsilon(*, local_epsilon: float, clients: int, delta: float = USUAL_DELTA) -> float:
    """The smallest epsilon proved for `delta`; never above the local one, which holds whatever anybody learns."""
    if not LEAST_DELTA <= delta < 1:
        raise out_of_range("delta", f"in [{LEAST_DELTA:g}, 1)", delta)
    check_epsilon(local_epsilon)

    def enough(epsilon: float) -> bool:
        return shuffled_delta(local_epsilon=local_epsilon, clients=clients, epsilon=epsilon) <= delta

    return float(bisect(enough, 0.0, local_epsilon, steps=STEPS)[1])


def usual_delta(clients: int) -> float:
    """1e-6, or less where there are so many clients that it would let a record out."""
    return max(LEAST_DELTA, min(USUAL_DELTA, math.pow(clients, -1.1)))


def shuffled_statement(*, local_epsilon: float, answered: int) -> str:
    """The central statement in words that keep it apart from the local one.

    Only clients that answered hide one another: `answered` is their number, not that of those who were asked.
    """
    delta = usual_delta(answered)
    epsilon = shuffled_epsilon(local_epsilon=local_epsilon, clients=answered, delta=delta)
    apart = (
        "beside the local guarantee, not part of it, and only if nobody who sees the result learns in which order clients were "
        "asked (a trusted shuffler, or a server that forgets it)"
    )
    if epsilon > 0.99 * local_epsilon:
        return f"{apart}: amplification by shuffling proves nothing better here"
    rounded_up = math.ceil(epsilon * 1e4) / 1e4
    return (
        f"{apart}: what is released is ({rounded_up:g}, {delta:.3g})-DP in the central model for everything one client holds "
        f"({answered:,} clients that answered, in random order, each once; Feldman, McMillan and Talwar 2021)"
    )


def with_shuffling(guarantee: Guarantee, *, answered: int) -> Guarantee:
    """The guarantee with the central statement about those who answered, where each reports once in an order that can stay
    secret; any other unchanged."""
    if not guarantee.shuffles or not guarantee.pure or answered < 1:
        return guarantee
    line = shuffled_statement(local_epsilon=guarantee.epsilon, answered=answered)
    return dataclasses.replace(guarantee, derivation=(*guarantee.derivation, line), shuffles=False)
