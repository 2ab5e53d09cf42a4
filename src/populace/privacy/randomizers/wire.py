"""Many subset-selection reports as they are sent, and back: `SubsetSelection.encode` and `decode`, vectorised.

Messages of a panel differ in length with the question; they stand end to end, message i in content[starts[i]:starts[i + 1]].
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from populace.privacy.randomizers.subset import SubsetPanel, SubsetSelection
from populace.types import Array


def encode_many(oracle: SubsetSelection, reports: Array) -> Array:
    """Rows of `size` booleans as rows of `wire_bytes` bytes."""
    reports = np.asarray(reports, bool)
    if _is_bits(oracle):
        return np.packbits(reports, axis=1)
    values = np.nonzero(reports)[1].reshape(len(reports), oracle.chosen)
    bits = (values[:, :, None] >> np.arange(_place_bits(oracle))) & 1
    return np.packbits(bits.astype(np.uint8).reshape(len(reports), -1), axis=1)


def decode_many(oracle: SubsetSelection, messages: Array) -> tuple[Array, Array]:
    """Reports, and which of them a client could have sent; the others are empty. The rules are `decode`'s."""
    bits = np.unpackbits(np.asarray(messages, np.uint8), axis=1)
    if _is_bits(oracle):
        reports, stray = bits[:, : oracle.size].view(bool), bits[:, oracle.size :]
        fine = reports.sum(axis=1) == oracle.chosen
    else:
        used = oracle.chosen * _place_bits(oracle)
        values = bits[:, :used].reshape(len(bits), oracle.chosen, _place_bits(oracle)) @ (
            1 << np.arange(_place_bits(oracle))
        )
        stray = bits[:, used:]
        fine = (values < oracle.size).all(axis=1) & (np.diff(values, axis=1) > 0).all(axis=1)
        reports = np.zeros((len(bits), oracle.size), bool)
        np.put_along_axis(reports, np.minimum(values, oracle.size - 1), True, axis=1)
    fine &= ~stray.any(axis=1)
    return reports & fine[:, None], fine


def _is_bits(oracle: SubsetSelection) -> bool:
    return oracle.size <= oracle.chosen * _place_bits(oracle)


def _place_bits(oracle: SubsetSelection) -> int:
    return max(1, (oracle.size - 1).bit_length())


def encode_panel(panel: SubsetPanel, questions: Array, reports: Array) -> tuple[Array, Array]:
    """Reports [n, width], each about its question, as messages end to end: where they start, and their bytes."""
    lengths = np.array([member.wire_bytes for member in panel.members])[questions]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    content = np.zeros(starts[-1], np.uint8)
    for member, rows in by_member(panel, questions):
        content[starts[rows][:, None] + np.arange(member.wire_bytes)] = encode_many(
            member, reports[rows, : member.size]
        )
    return starts, content


def decode_panel(panel: SubsetPanel, questions: Array, starts: Array, content: Array) -> tuple[Array, Array]:
    """The inverse of `encode_panel`: reports [n, width], and which of them a client could have sent; the others are empty."""
    reports, fine = np.zeros((len(questions), panel.width), bool), np.zeros(len(questions), bool)
    lengths = np.diff(starts)
    for member, rows in by_member(panel, questions):
        rows = rows[lengths[rows] == member.wire_bytes]
        messages = content[starts[rows][:, None] + np.arange(member.wire_bytes)]
        reports[rows, : member.size], fine[rows] = decode_many(member, messages)
    return reports, fine


def by_member(panel: SubsetPanel, questions: Array) -> Iterator[tuple[SubsetSelection, Array]]:
    """The distinct mechanisms among these questions, and the places of the questions each answers."""
    members, kinds = _kinds(panel)
    kind = kinds[questions]
    for number in np.unique(kind).tolist():
        yield members[number], np.flatnonzero(kind == number)


@functools.lru_cache(maxsize=16)
def _kinds(panel: SubsetPanel) -> tuple[tuple[SubsetSelection, ...], Array]:
    members = tuple(dict.fromkeys(panel.members))
    number_of = {member: number for number, member in enumerate(members)}
    return members, np.array([number_of[member] for member in panel.members])
