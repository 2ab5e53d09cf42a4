"""Opened sums are plain sums, bit for bit, whoever drops out when; and masked numbers look even."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from populace.engines.secure_sum import primitives, steps
from populace.engines.secure_sum.messages import STEPS, unpack_numbers
from populace.engines.secure_sum.opening import TooFewSitesError, decided_from_bytes
from populace.engines.secure_sum.roster import Member, Opening, SumRoster, sum_roster_from_json
from populace.errors import SpecError
from secure_sums_for_tests import Sites, make_opening, make_roster, plain_sum, signing_key, vectors_of


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_an_opened_sum_is_the_plain_sum_of_the_survivors(data):
    count = data.draw(st.integers(2, 7))
    threshold = data.draw(st.integers(count // 2 + 1, count))
    gone = data.draw(st.dictionaries(st.integers(0, count - 1), st.sampled_from(STEPS), max_size=count - threshold))
    opening = make_opening(
        count, threshold, size=data.draw(st.integers(1, 40)), bits=data.draw(st.sampled_from([32, 64]))
    )
    vectors = vectors_of(opening, data.draw(st.integers(0, 99)))
    opened = Sites(opening, vectors, gone).open()
    masked = [place for place in range(count) if STEPS.index(gone.get(place, "reveal")) > STEPS.index("mask")]
    assert opened.survivors == tuple(masked)
    np.testing.assert_array_equal(opened.total, plain_sum(vectors, masked))


@pytest.mark.parametrize("step", STEPS)
def test_with_too_few_survivors_nothing_is_opened(step):
    opening = make_opening(4, 3)
    with pytest.raises(TooFewSitesError, match="at least 3 sites"):
        Sites(opening, vectors_of(opening), {0: step, 2: step}).open()


def test_long_vectors_pass_the_block_of_the_masks():
    opening = make_opening(3, 2, size=primitives.BLOCK_BYTES // 8 * 2 + 17)
    vectors = vectors_of(opening)
    np.testing.assert_array_equal(Sites(opening, vectors, {1: "mask"}).open().total, plain_sum(vectors, (0, 2)))


def test_masks_are_the_keystream_of_rfc_8439():
    """Section 2.4.2's cipher with an empty message: key 0, counter 0, nonce 0 gives the block of appendix A.1, vector 1."""
    numbers = np.zeros(16, np.uint32)
    primitives.add_masks(numbers, [(bytes(32), False)])
    block = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert numbers.astype("<u4").tobytes().hex() == block
    primitives.add_masks(numbers, [(bytes(32), True)])
    assert not numbers.any()


def test_a_coordinator_that_was_killed_after_any_step_goes_on_with_what_it_decided():
    opening = make_opening(4, 3, size=9)
    vectors = vectors_of(opening)
    for steps_before in range(4):
        sites, saved = Sites(opening, vectors), []

        def save(decided, saved=saved, most=steps_before):
            if len(saved) == most:
                raise KeyboardInterrupt
            saved.append(decided.to_bytes())

        if steps_before < 3:
            with pytest.raises(KeyboardInterrupt):
                sites.open(save=save)
        sites.gone = {3: "advertise"}  # away by now, whatever it has sent
        decided = decided_from_bytes(saved[-1]) if saved else None
        opened = sites.open(decided=decided)
        np.testing.assert_array_equal(opened.total, plain_sum(vectors, opened.survivors))


def chi_square_p(numbers) -> float:
    """The p-value of the bytes of a vector being even."""
    counts = np.bincount(np.ascontiguousarray(numbers).view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), 255))


@pytest.mark.parametrize("bits", [32, 64])
def test_masked_numbers_look_even_and_numbers_without_masks_do_not(bits):
    opening = make_opening(3, 2, size=50_000, bits=bits)
    vectors = np.random.default_rng(1).poisson(40, (3, opening.size)).astype(f"uint{bits}")
    sites = Sites(opening, vectors)
    sites.open()
    for place in range(3):
        sent = unpack_numbers(sites.sent["mask", place], opening)
        assert chi_square_p(sent) > 1e-4
        assert chi_square_p(vectors[place]) < 1e-12


def test_what_is_left_of_a_site_when_the_coordinator_used_what_was_revealed():
    """Of a survivor the self mask is opened: its masks with others hide it. Of a missing site the masks with others are: its
    self mask hides numbers that arrive late. Planted: a site that forgot the mask in question is seen through."""
    opening = make_opening(3, 2, size=50_000)
    vectors = np.random.default_rng(1).poisson(40, (3, opening.size)).astype(np.uint64)
    for forgotten in (None, "pairs", "self"):
        kept = {}
        keys = {}
        for place in range(3):
            kept[place], keys[place] = steps.advertise(opening, place=place, signing_key=signing_key(place))
        pairs = [
            (
                steps.pair_mask_key(
                    opening, primitives.private_key(kept[0].mask_key), steps.mask_public(keys[other]), (0, other)
                ),
                False,
            )
            for other in (1, 2)
        ]
        own = [(steps.self_mask_key(opening, kept[0].self_mask), False)]
        sent = vectors[0].copy()
        primitives.add_masks(sent, ([] if forgotten == "self" else own) + ([] if forgotten == "pairs" else pairs))
        survivor, late = sent.copy(), sent.copy()
        if forgotten != "self":
            primitives.add_masks(survivor, [(key, True) for key, _ in own])
        if forgotten != "pairs":
            primitives.add_masks(late, [(key, True) for key, _ in pairs])
        assert (chi_square_p(survivor) > 1e-4) == (forgotten != "pairs")
        assert (chi_square_p(late) > 1e-4) == (forgotten != "self")


def test_the_roster_needs_a_threshold_that_no_two_lists_of_survivors_reach():
    for count, threshold, colluders in ((3, 2, 0), (3, 3, 1), (10, 6, 0), (10, 7, 3), (2, 2, 0), (50, 50, 49)):
        assert make_roster(count, threshold, colluders).least_honest == threshold - colluders
    for count, threshold, colluders in ((3, 2, 1), (4, 2, 0), (3, 4, 0), (10, 6, 2), (2, 1, 0), (3, 3, 3)):
        with pytest.raises(SpecError, match="expected threshold above half"):
            make_roster(count, threshold, colluders)
    with pytest.raises(SpecError, match="in 2 to"):
        make_roster(1, 1)
    with pytest.raises(SpecError, match="colluders"):
        make_roster(3, 3, -1)


def test_a_roster_names_every_site_and_key_once_and_survives_its_file():
    roster = make_roster(3, 2)
    assert sum_roster_from_json(roster.to_json()) == roster
    for members in (
        (*roster.members, roster.members[0]),
        (*roster.members, Member(site="other", key=roster.members[0].key)),
        (*roster.members, Member(site="site-0", key="0" * 64)),
    ):
        with pytest.raises(SpecError, match="twice"):
            SumRoster(members=members, threshold=3)
    with pytest.raises(SpecError, match="64 hexadecimal digits"):
        Member(site="other", key="not a key")
    for damaged in (None, {}, {**roster.to_json(), "more": 1}, {**roster.to_json(), "threshold": None}):
        with pytest.raises(SpecError):
            sum_roster_from_json(damaged)


def test_openings_differ_where_anything_agreed_differs():
    first = make_opening(3, 2)
    others = [
        make_opening(3, 2, **change)
        for change in ({"run": "s"}, {"round": 1}, {"size": 6}, {"bits": 32}, {"question": "p"})
    ]
    others += [Opening(run="r", round=0, roster=make_roster(3, 3), size=5, question="q")]
    assert len({first.context, *(other.context for other in others)}) == len(others) + 1
