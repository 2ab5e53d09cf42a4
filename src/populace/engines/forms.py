"""The files of a coordinator's run and of a site, as the code that reads them needs them."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from populace.border.models import Form
from populace.types import JsonObject

Count = Annotated[int, pydantic.Field(ge=0)]
Positive = Annotated[int, pydantic.Field(ge=1)]
Word = Annotated[int, pydantic.Field(ge=0, lt=2**32)]  # of a key
Hexadecimal = Annotated[str, pydantic.Field(pattern=r"^(?:[0-9a-f]{2})+$")]


class PlanForm(Form):
    """plan.json."""

    run: str
    agreement: JsonObject
    seed: int | None
    least: Positive
    timeout: float = pydantic.Field(gt=0, allow_inf_nan=False)
    patience: float | None = pydantic.Field(default=None, ge=0, allow_inf_nan=False)
    root: Annotated[list[Word], pydantic.Field(min_length=2, max_length=2)]


class SeatForm(Form):
    site: str
    first: Count
    clients: Positive
    hosts: str | None = None


class RosterForm(Form):
    """roster.json."""

    seats: list[SeatForm] = pydantic.Field(min_length=1)
    records: Positive
    seeded: bool
    records_read: bool = False


class SiteStatusForm(Form):
    last: str
    clients: Count
    replies: Count = 0  # of the last round, up to version 0.3.0
    replies_in_last_round: Count = 0
    replies_in_all: Count = 0
    epsilon: float


class StatusForm(Form):
    """status.json."""

    state: Literal["new", "running", "interrupted", "waiting", "stopped", "finished"]
    round: Count = 0
    why: str = ""
    at: float = 0.0
    sites: dict[str, SiteStatusForm] = pydantic.Field(default_factory=dict)
    rounds: Count = 0
    method: str = ""
    seconds_of_last_round: float = 0.0
    bytes_to_sites: float = 0.0
    bytes_from_sites: float = 0.0

    @pydantic.model_validator(mode="after")
    def _says_what_rounds_took(self) -> StatusForm:
        """What is written after every round is all there, or nothing of it."""
        missing = {"method", "seconds_of_last_round", "bytes_to_sites", "bytes_from_sites"} - self.model_fields_set
        if self.rounds and missing:
            raise ValueError(f"rounds without {', '.join(sorted(missing))}")
        return self


class ReleasedForm(Form):
    """The rounds to which a server has added noise."""

    rounds: Count


class SiteFileForm(Form):
    """A site's own file."""

    format: int
    name: str
    federation: str
    data: str
    ledger: str
    log: str
    by: Literal["rows", "column", "site"]
    records_per_client: Positive
    client_column: str | None
    records: Positive
    epsilon: float = pydantic.Field(gt=0, allow_inf_nan=False)
    delta: float = pydantic.Field(ge=0, lt=1)
    unit: str
    seed: int | None
    agreed: list[JsonObject]
    most_clients: Positive | None = None
    most_records: Positive | None = None
    records_declared: bool = False
    person: str | None = None
    sum_key: str | None = None


class OtherClientsForm(Form):
    after: Count


class DataForm(Form):
    """data.json: whose accounts a site's ledger keeps."""

    salt: Hexadecimal
    by: str
    fingerprint: str
    records_per_client: int | None = None
    client_column: str | None = None
    person: str | None = None
    other_clients: list[OtherClientsForm] = pydantic.Field(default_factory=list)


class ProcessForm(Form):
    """process.json."""

    pid: Positive
    began: float = 0.0  # by the clock, up to version 0.3.0
    seconds_after_boot: float = 0.0

    @pydantic.model_validator(mode="after")
    def _says_when_it_began(self) -> ProcessForm:
        if not {"began", "seconds_after_boot"} & self.model_fields_set:
            raise ValueError("nothing says when the process began")
        return self
