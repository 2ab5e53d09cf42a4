"""Both faces of FedSel have the law they claim, to 5.5 standard deviations, and planted errors lie far outside."""

import functools

import jax
import numpy as np
import pytest

from populace.privacy.randomizers.fedsel import FedSel

LIMIT = 5.5
VECTOR = np.array([0.3, -0.9, 0, 2.0, -0.1, np.nan], np.float32)
SETTINGS = {"size": 6, "epsilon": 2.4, "chosen": 2, "bound": 1.0}
REPORTS = {"simulate": 200_000, "release": 10_000}


@functools.cache
def frequencies(face):
    mechanism = FedSel(**SETTINGS)
    if face == "simulate":
        keys = jax.random.split(jax.random.key(3), REPORTS[face])
        reports = np.asarray(jax.jit(jax.vmap(lambda key: mechanism.simulate(VECTOR, key)))(keys))
    else:
        reports = np.array([mechanism.release(VECTOR) for _ in range(REPORTS[face])])
    return np.bincount(reports, minlength=12) / len(reports)


def z_scores(found, mechanism, reports):
    expected = np.array([float(p) for p in mechanism.probabilities(VECTOR)])
    return np.abs(found - expected) / np.sqrt(expected * (1 - expected) / reports)


@pytest.mark.parametrize("face", ["simulate", "release"])
def test_the_law_is_accepted_and_wrong_ones_are_rejected(face):
    found = frequencies(face)
    assert z_scores(found, FedSel(**SETTINGS), REPORTS[face]).max() < LIMIT
    for wrong in ({"epsilon": 3.6}, {"chosen": 3}, {"first": 0.8}, {"bound": 2.0}):
        assert z_scores(found, FedSel(**{**SETTINGS, **wrong}), REPORTS[face]).max() > LIMIT
