"""Bisection: both ends of what is left are as they were promised."""

import pytest

from populace.privacy.bisection import bisect, largest_that_fits


@pytest.mark.parametrize("edge", [0.1, 1.0, 3.7, 9.99])
def test_numbers_begin_to_be_enough_inside_what_is_left(edge):
    low, high = bisect(lambda number: number >= edge, 0.0, 10.0, tolerance=1e-6)
    assert low < edge <= high
    assert high - low <= 1e-6 * high


def test_an_interval_is_halved_no_more_often_than_asked():
    asked = []
    low, high = bisect(lambda number: bool(asked.append(number)) or number >= 3, 0.0, 8.0, steps=2)
    assert asked == [4.0, 2.0]
    assert (low, high) == (2.0, 4.0)


@pytest.mark.parametrize("edge", range(1, 9))
def test_the_largest_whole_number_that_fits(edge):
    assert largest_that_fits(lambda number: number <= edge, 1, 9) == edge
