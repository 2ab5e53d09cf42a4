"""Amplification by shuffling: against a plain enumeration, against an exact mechanism, and against published figures."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from populace.errors import SpecError
from populace.privacy.shuffling import shuffled_delta, shuffled_epsilon, shuffled_statement, usual_delta


def enumerated_delta(local, clients, epsilon):
    """The reduction's two laws, point by point."""
    a, found = 1 / (1 + math.exp(-local)), 0.0
    for c in range(clients):
        own, other = np.zeros(c + 2), np.zeros(c + 2)
        for seen in range(c + 1):
            chance = binom.pmf(seen, c, 0.5)
            own[seen + 1] += a * chance
            own[seen] += (1 - a) * chance
            other[seen + 1] += (1 - a) * chance
            other[seen] += a * chance
        found += binom.pmf(c, clients - 1, math.exp(-local)) * np.maximum(own - math.exp(epsilon) * other, 0).sum()
    return found


@pytest.mark.parametrize("local", [0.5, 2.0])
@pytest.mark.parametrize("clients", [1, 2, 5, 40])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.7])
def test_delta_is_that_of_the_enumerated_laws(local, clients, epsilon):
    found = shuffled_delta(local_epsilon=local, clients=clients, epsilon=epsilon)
    assert found == pytest.approx(enumerated_delta(local, clients, epsilon), rel=1e-7, abs=1e-14)


@pytest.mark.parametrize(
    ("clients", "local", "central"),
    [
        (5_000, 1, 0.080),
        (5_000, 4, 0.95),
        (50_000, 0.5, 0.009),
        (50_000, 2, 0.066),
        (50_000, 4, 0.25),
        (500_000, 4, 0.074),
    ],
)
def test_figures_at_delta_1e_6(clients, local, central):
    assert shuffled_epsilon(local_epsilon=local, clients=clients) == pytest.approx(central, rel=0.06)


def test_bound_holds_for_shuffled_randomised_response_and_is_not_idle():
    """The number of ones among n randomised bits, all zero but perhaps one: its exact delta is below the bound, not far."""
    local, clients, epsilon = 1.0, 200, 0.25
    truth = math.exp(local) / (1 + math.exp(local))
    others = binom.pmf(np.arange(clients), clients - 1, 1 - truth)
    zero = np.convolve(others, [truth, 1 - truth])
    one = np.convolve(others, [1 - truth, truth])
    exact = max(np.maximum(p - math.exp(epsilon) * q, 0).sum() for p, q in ((zero, one), (one, zero)))
    bound = shuffled_delta(local_epsilon=local, clients=clients, epsilon=epsilon)
    assert 0 < exact <= bound
    # Were a report counted as hidden among all others, not e^-eps0 of them, the bound would fail.
    assert enumerated_all_clones(local, clients, epsilon) < exact


def enumerated_all_clones(local, clients, epsilon):
    a = 1 / (1 + math.exp(-local))
    seen = binom.pmf(np.arange(clients), clients - 1, 0.5)
    own, other = np.convolve(seen, [1 - a, a]), np.convolve(seen, [a, 1 - a])
    return np.maximum(own - math.exp(epsilon) * other, 0).sum()


def test_never_worse_than_local_and_falls_with_more_clients():
    found = [shuffled_epsilon(local_epsilon=3.0, clients=n) for n in (1, 100, 10_000, 100_000)]
    assert found[0] == pytest.approx(3.0)
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.1


def test_statement_keeps_the_two_apart():
    words = shuffled_statement(local_epsilon=4.0, answered=50_000)
    assert "not part of it" in words
    assert "central model" in words
    assert "(0.24" in words
    nothing = shuffled_statement(local_epsilon=8.0, answered=5_000)
    assert "nothing better" in nothing
    assert usual_delta(50_000) == 1e-6
    assert usual_delta(10**7) == pytest.approx(10**-7.7)


def test_bad_input_is_refused():
    for wrong in ({"delta": 0.0}, {"delta": 1.0}, {"clients": 0}, {"local_epsilon": 0.0}):
        with pytest.raises(SpecError):
            shuffled_epsilon(**{"local_epsilon": 1.0, "clients": 10, **wrong})
