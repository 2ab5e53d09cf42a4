"""Shares of a secret: any threshold of them give it, fewer tell nothing."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from populace.engines.secure_sum.shamir import PRIME, join_secret, polynomial, split_secret
from populace.errors import SpecError


def coefficients(*numbers):
    left = iter(numbers)
    return lambda bound: next(left) % bound


def test_the_polynomial_of_the_textbook_example():
    """1234 + 166 x + 94 x^2, the worked example that is in every text on the scheme."""
    shares = split_secret((1234).to_bytes(32, "big"), threshold=3, places=range(1, 7), below=coefficients(166, 94))
    assert shares == {1: 1494, 2: 1942, 3: 2578, 4: 3402, 5: 4414, 6: 5614}
    for three in itertools.combinations(shares, 3):
        assert join_secret({place: shares[place] for place in three}) == (1234).to_bytes(32, "big")


def test_shares_that_pass_the_prime_come_back():
    assert polynomial([5, PRIME - 1], 3) == 2
    assert polynomial([0, 2**520], 2) == 1  # 2^521 = 1 modulo 2^521 - 1
    shares = split_secret(b"\xff" * 32, threshold=2, places=(1, 2), below=coefficients(PRIME - 1))
    assert shares == {1: 2**256 - 2, 2: 2**256 - 3}


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.data())
def test_any_threshold_of_shares_gives_the_secret(secret, count, data):
    threshold = data.draw(st.integers(1, count))
    shares = split_secret(secret, threshold=threshold, places=range(1, count + 1))
    chosen = data.draw(st.permutations(range(1, count + 1)))[:threshold]
    assert join_secret({place: shares[place] for place in chosen}) == secret
    assert join_secret(shares) == secret


def test_too_few_shares_fit_every_secret():
    """For any other secret there is a polynomial through the same shares: fewer than the threshold tell nothing."""
    shares = split_secret(bytes(32), threshold=3, places=(1, 2, 3))
    two = {place: shares[place] for place in (1, 2)}
    for other in (1, 2**255, 2**256 - 1):
        third = (other - 3 * two[1] + 3 * two[2]) % PRIME  # f(3) of the one parabola through f(0) = other, f(1), f(2)
        assert join_secret({**two, 3: third}) == other.to_bytes(32, "big")


def test_shares_whose_secret_would_be_too_long_are_refused():
    """A small change may give another secret of 32 bytes: callers compare with a commitment."""
    shares = split_secret(b"\x07" * 32, threshold=3, places=(1, 2, 3))
    assert join_secret({**shares, 2: (shares[2] + 1) % PRIME}) != b"\x07" * 32
    shares[2] = (shares[2] + 2**300) % PRIME
    with pytest.raises(SpecError, match="one was changed"):
        join_secret(shares)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"threshold": 0, "places": (1, 2)}, "threshold"),
        ({"threshold": 3, "places": (1, 2)}, "threshold"),
        ({"threshold": 1, "places": (0, 1)}, "places"),
        ({"threshold": 1, "places": (1, 1)}, "places"),
    ],
)
def test_impossible_sharings_are_refused(settings, sentence):
    with pytest.raises(SpecError, match=sentence):
        split_secret(bytes(32), **settings)
    with pytest.raises(SpecError, match="32 bytes"):
        split_secret(b"short", threshold=1, places=(1,))
