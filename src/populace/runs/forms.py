"""The files of a run's folder, as the code that reads them needs them; versions from 0.1.0 on wrote at least this."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from populace.border.models import Form
from populace.types import JsonObject

Count = Annotated[int, pydantic.Field(ge=0)]
Size = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
Hexadecimal = Annotated[str, pydantic.Field(pattern=r"^(?:[0-9a-f]{2})+$")]


class RunForm(Form):
    """run.json of an unfinished run."""

    status: Literal["unfinished", "finished"]
    digest: str
    spec: JsonObject = pydantic.Field(default_factory=dict)
    version: str = "0.1.0"
    format: int = 1


class SaidForm(Form):
    """What is said of other runs on the same data."""

    said: str | None = None


class BookedForm(Form):
    """Where a run is booked: in a ledger under a number, or nowhere."""

    ledger: str | None = None
    booking: str | None = None
    standing: SaidForm | None = None

    @pydantic.model_validator(mode="after")
    def _is_found_in_its_ledger(self) -> BookedForm:
        if self.ledger and self.booking is None:
            raise ValueError("a ledger without the booking in it")
        return self


class TrafficForm(Form):
    """What a run sent over the wire."""

    messages: Count
    bytes_from_clients: Size
    bytes_to_clients: Size


class FinishedForm(RunForm):
    """run.json of a finished run."""

    spec: JsonObject
    method: str
    parameters: JsonObject = pydantic.Field(default_factory=dict)
    clients: Count = 0
    split: str = ""
    rows: Count = 0
    rounds: Count = 0
    versions: dict[str, str] = pydantic.Field(default_factory=dict)
    traffic: TrafficForm | None = None
    ledger: JsonObject = pydantic.Field(default_factory=dict)
    seconds: dict[str, float] = pydantic.Field(default_factory=dict)
    booked: BookedForm | None = None
    history: SaidForm | None = None
    command: str = ""
    classes: Count = 1
    sites: dict[str, JsonObject] = pydantic.Field(default_factory=dict)


class ResumeForm(Form):
    """resume.json: the secret and the fingerprint of the data, and digests of files that may not change."""

    salt: Hexadecimal
    fingerprint: str
    bound: dict[str, str] = pydantic.Field(default_factory=dict)


class PrivacyForm(Form):
    """privacy.json: the claim, from which its words and numbers follow. What else it must hold `populace verify` judges."""

    epsilon: Annotated[float, pydantic.Field(ge=0)] | Literal["inf"]
    delta: Annotated[float, pydantic.Field(ge=0, le=1)]
    unit: str
    neighbours: str
    trust: str
    mechanism: str
    headline: str
    statement: str
    randomness: str
    assumptions: list[str]
    derivation: list[str]
    format: int = 1
    protects: str = ""
    units: Count = 0
    domains: dict[str, str] | None = None
    domain_sources: dict[str, list[str]] | None = None
    sampling_delta: float = 0.0
    counts_read: list[str] = pydantic.Field(default_factory=list)
    claims: list[str] = pydantic.Field(default_factory=list)
    reason: str = ""
    noise: str = ""


class TokenForm(Form):
    """booking.json: where an unfinished run is booked, and nothing else."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid", frozen=True)
    ledger: str
    booking: str
    booked: bool


class ListsForm(pydantic.RootModel[list[dict[str, dict[str, int]]]]):
    """lists.json: for each silo, the values of each column that it released, with their noisy counts."""
