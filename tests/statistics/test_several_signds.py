"""Both faces of SignDS with several coordinates have the law they claim, to 5.5 standard deviations; planted errors do not."""

import functools
import itertools

import jax
import numpy as np
import pytest

from builders import FAST_CODE
from populace.privacy.randomizers.several_signds import SeveralSignDS
from populace.privacy.randomizers.signds import mark_top

SIZE, LIMIT = 7, 5.5
VECTOR = np.array([3, -1, 0, 5, -7, 0, 2], np.float32)
SETTINGS = {"size": SIZE, "epsilon": 1.5, "chosen": 3, "reported": 2}
REPORTS = {"simulate": 200_000, "release": 10_000}
PLACES = {pair: i for i, pair in enumerate(itertools.combinations(range(SIZE), 2))}


def law(mechanism):
    """Exact probabilities of all pairs under either sign."""
    each = [mechanism.law(np.asarray(mark_top(sign * VECTOR, mechanism.chosen))) for sign in (-1, 1)]
    return np.array([float(p) / 2 for one in each for p in one.values()])


@functools.cache
def frequencies(face, least):
    mechanism = SeveralSignDS(**SETTINGS, least=least)
    if face == "simulate":
        keys = jax.random.split(jax.random.key(3), REPORTS[face])
        reports = np.asarray(
            jax.jit(jax.vmap(lambda key: mechanism.simulate(VECTOR, key)), compiler_options=FAST_CODE)(keys)
        )
    else:
        reports = np.array([mechanism.release(VECTOR) for _ in range(REPORTS[face])])
    codes = [PLACES[a // 2, b // 2] + len(PLACES) * (a % 2) for a, b in reports.tolist()]
    return np.bincount(codes, minlength=2 * len(PLACES)) / len(codes)


def z_scores(found, expected, reports):
    return np.abs(found - expected) / np.sqrt(expected * (1 - expected) / reports)


@pytest.mark.parametrize("least", [0, 1, 2])
@pytest.mark.parametrize("face", ["simulate", "release"])
def test_the_law_is_accepted_and_wrong_ones_are_rejected(face, least):
    found = frequencies(face, least)
    assert z_scores(found, law(SeveralSignDS(**SETTINGS, least=least)), REPORTS[face]).max() < LIMIT
    apart = 1.2 if face == "simulate" else 2.0
    for wrong in (
        SeveralSignDS(**{**SETTINGS, "epsilon": 1.5 * apart}, least=least),
        SeveralSignDS(**{**SETTINGS, "chosen": 4}, least=least),
    ):
        assert z_scores(found, law(wrong), REPORTS[face]).max() > LIMIT
