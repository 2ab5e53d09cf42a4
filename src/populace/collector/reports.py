"""Reports as they are sent and kept, and as a method absorbs them: a few bytes each, as the mechanism itself writes them."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Protocol as Interface

import numpy as np

from populace.errors import DataError, SpecError
from populace.methods.base import Population, Protocol
from populace.methods.blocks.composed import ComposedMethod
from populace.methods.blocks.one_report import Survey
from populace.privacy.randomizers.wire import decode_panel
from populace.types import Array, NumpyArray

CHANGED = "answers in the store are none that a device could have sent; the store was changed"


class Mechanism(Interface):
    """What writes a report as bytes, and reads it again."""

    @property
    def wire_bytes(self) -> int: ...
    def encode(self, report: Array, /) -> bytes: ...
    def decode(self, message: bytes, /) -> Array: ...


class Reports(abc.ABC):
    """How the reports of one method are written and read; `own` is what its device was asked."""

    @abc.abstractmethod
    def write(self, reply: Array, own: int) -> bytes:
        """One reply as sent."""

    @abc.abstractmethod
    def check(self, report: bytes, own: int) -> None:
        """Raise DataError for what no device could have sent in answer to its question."""

    @abc.abstractmethod
    def read(self, reports: Sequence[bytes], slots: NumpyArray, own: NumpyArray, like: Array) -> NumpyArray:
        """Replies in the order of `own`, zeros where there is none: `slots` says where each report belongs."""

    @property
    @abc.abstractmethod
    def most_bytes(self) -> int:
        """Bytes of the longest report."""


class SurveyReports(Reports):
    """Reports about one question each: `own` is the number of the question."""

    def __init__(self, survey: Survey) -> None:
        self.survey = survey

    def write(self, reply: Array, own: int) -> bytes:
        member = self.survey.panel.members[own]
        return member.encode(np.asarray(reply)[: member.size])

    def check(self, report: bytes, own: int) -> None:
        self.survey.panel.members[own].decode(report)

    def read(self, reports: Sequence[bytes], slots: NumpyArray, own: NumpyArray, like: Array) -> NumpyArray:
        values: NumpyArray = np.zeros((len(own), *like.shape), like.dtype)
        starts = np.concatenate([[0], np.cumsum([len(report) for report in reports], dtype=np.int64)])
        content = np.frombuffer(b"".join(reports), np.uint8)
        decoded, fine = decode_panel(self.survey.panel, own[slots], starts, content)
        if not fine.all():
            raise DataError(f"{int((~fine).sum()):,} {CHANGED}")
        values[slots] = decoded
        return values

    @property
    def most_bytes(self) -> int:
        return max(member.wire_bytes for member in self.survey.panel.members)


class MechanismReports(Reports):
    """Reports of a method whose devices all use one mechanism."""

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism = mechanism

    def write(self, reply: Array, own: int) -> bytes:
        del own
        return self.mechanism.encode(np.asarray(reply))

    def check(self, report: bytes, own: int) -> None:
        del own
        self.mechanism.decode(report)

    def read(self, reports: Sequence[bytes], slots: NumpyArray, own: NumpyArray, like: Array) -> NumpyArray:
        values: NumpyArray = np.zeros((len(own), *like.shape), like.dtype)
        try:
            for slot, report in zip(slots.tolist(), reports, strict=True):
                values[slot] = self.mechanism.decode(report)
        except DataError as error:
            raise DataError(f"some {CHANGED}") from error
        return values

    @property
    def most_bytes(self) -> int:
        return self.mechanism.wire_bytes


def reports_of(protocol: Protocol, population: Population, survey: Survey | None) -> Reports:
    """How the reports of a method for single people are written."""
    if survey is not None:
        return SurveyReports(survey)
    learner = protocol.parts(population).learner if isinstance(protocol, ComposedMethod) else None
    mechanism: Mechanism | None = getattr(learner, "mechanism", None)
    if mechanism is None:
        raise SpecError(f"method {protocol.facts.name!r} has no mechanism whose reports a device could send")
    return MechanismReports(mechanism)
