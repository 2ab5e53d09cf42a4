"""A secret order is uniform: every order equally often, also a planted one that is not is told."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from populace.errors import SpecError
from populace.privacy.secure_random import integers_below, permutation


def evenness(draws):
    counts = Counter(tuple(draw.tolist()) for draw in draws)
    return chisquare([*counts.values(), *([0] * (24 - len(counts)))]).pvalue


def test_every_order_of_four_is_equally_likely():
    assert evenness([permutation(4) for _ in range(6000)]) > 1e-6


def test_the_test_tells_swaps_with_any_place_from_fisher_and_yates():
    """The well-known wrong shuffle: 4^4 equally likely ways for 24 orders."""

    def wrong():
        order = np.arange(4)
        for place in range(4):
            other = int(integers_below(4))
            order[[place, other]] = order[[other, place]]
        return order

    assert evenness([wrong() for _ in range(6000)]) < 1e-6


@pytest.mark.parametrize("size", [0, 1, 2, 1000])
def test_every_place_stands_in_it_once(size):
    assert sorted(permutation(size)) == list(range(size))


def test_two_are_not_the_same_and_no_size_is_below_nought():
    assert not np.array_equal(permutation(1000), permutation(1000))
    with pytest.raises(SpecError, match="size"):
        permutation(-1)
