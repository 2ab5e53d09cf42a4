"""Reports as sent, many at a time: the same bytes, and the same refusals, as one at a time."""

import numpy as np
import pytest

from populace.errors import DataError
from populace.privacy.randomizers.subset import SubsetPanel, SubsetSelection
from populace.privacy.randomizers.wire import by_member, decode_many, decode_panel, encode_many, encode_panel

ORACLES = [
    SubsetSelection(size=size, epsilon=epsilon)
    for size, epsilon in ((1, 1.0), (2, 1.0), (7, 4.0), (9, 0.5), (64, 4.0), (256, 1.0), (300, 6.0), (4096, 6.0))
]


def says(oracle, message):
    try:
        return oracle.decode(message)
    except DataError:
        return None


@pytest.mark.parametrize("oracle", ORACLES, ids=str)
def test_messages_are_those_of_one_client(oracle):
    reports = oracle.release(np.arange(40) % oracle.size)
    messages = encode_many(oracle, reports)
    assert [row.tobytes() for row in messages] == [oracle.encode(report) for report in reports]
    found, fine = decode_many(oracle, messages)
    assert fine.all()
    assert np.array_equal(found, reports)


@pytest.mark.parametrize("oracle", ORACLES, ids=str)
def test_refusals_are_those_of_one_client(oracle):
    rng = np.random.default_rng(0)
    messages = encode_many(oracle, oracle.release(np.arange(300) % oracle.size))
    flipped = rng.integers(0, 8 * oracle.wire_bytes, len(messages))  # one wrong bit in most messages
    flip = np.arange(len(messages)) % 4 > 0
    messages[flip, flipped[flip] // 8] ^= (1 << (flipped[flip] % 8)).astype(np.uint8)
    found, fine = decode_many(oracle, messages)
    expected = [says(oracle, row.tobytes()) for row in messages]
    assert fine.tolist() == [report is not None for report in expected]
    assert 0 < fine.sum() < len(fine)
    for row, report in zip(found, expected, strict=True):
        assert np.array_equal(row, np.zeros(oracle.size, bool) if report is None else report)


def test_a_panels_messages_have_their_questions_lengths():
    panel = SubsetPanel(sizes=(2, 40, 300, 2), epsilon=3.0)
    questions = np.array([3, 1, 2, 0, 1, 2])
    reports = np.zeros((6, 300), bool)
    for row, question in enumerate(questions):
        member = panel.members[question]
        reports[row, : member.size] = member.release(np.array([1]))[0]
    starts, content = encode_panel(panel, questions, reports)
    assert np.diff(starts).tolist() == [panel.members[question].wire_bytes for question in questions]
    found, fine = decode_panel(panel, questions, starts, content)
    assert fine.all()
    assert np.array_equal(found, reports)
    other = decode_panel(panel, np.array([3, 1, 1, 0, 1, 2]), starts, content)[1]
    assert other.tolist() == [True, True, False, True, True, True]
    assert [member.size for member, _ in by_member(panel, questions)] == [2, 40, 300]
