"""The files of a federation's and a site's folder, as the code that reads them needs them."""

from __future__ import annotations

from typing import Annotated

import pydantic

from populace.border.models import Form
from populace.types import JsonObject


class FederationForm(Form):
    """federation.json."""

    name: str
    host: str
    port: Annotated[int, pydantic.Field(ge=1, le=65535)]
    fingerprint: str


class SiteForm(Form):
    """site.json."""

    name: str
    org: str
    federation: str


class ProposalForm(Form):
    """A proposal; it comes from elsewhere."""

    format: int
    federation: str = ""
    server: str = ""
    fingerprint: str = ""
    agreement: JsonObject


class DoingForm(Form):
    """supervisor.json: what the command that supervises a run does, and which process it is."""

    state: str
    words: str = ""
    at: float
    process: Annotated[int, pydantic.Field(ge=1)]
    seconds_after_boot: float


class SubmittedForm(Form):
    """submitted.json: the job that was submitted last, and the number of its segment; no job while it is being submitted."""

    job: str
    segment: Annotated[int, pydantic.Field(ge=0)] = 0
