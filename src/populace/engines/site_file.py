"""A site's own file: which data, whose accounts, which limit, what was agreed. Written by its owner, never by a coordinator."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from populace.engines.agreement import Agreement, agreement_from_json, schema_digest
from populace.engines.exchange import make_key
from populace.engines.site import Hosted, Site
from populace.errors import DataError, RunError, SpecError
from populace.privacy.guarantee import Unit
from populace.privacy.ledger import Budget
from populace.protocols.base import ImageShape
from populace.tables.files import read_json, write_json
from populace.tables.images import Images, read_images
from populace.tables.partition import Clients, split, split_by_column
from populace.tables.schema import Schema
from populace.tables.table import make_table, read_frame, text_columns

FORMAT = 1
By = Literal["rows", "column", "site"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiteFile:
    """What stands in the file. `by` says whom the site hosts: one client per so many rows, per value of a column, or itself.

    `records` is the most records one client may hold; it is public, as is the number of clients.
    """

    name: str
    federation: str
    data: str
    ledger: str
    log: str
    by: By
    records_per_client: int
    client_column: str | None
    records: int
    epsilon: float
    delta: float
    unit: Unit
    seed: int | None
    agreed: tuple[dict[str, Any], ...]

    @property
    def budget(self) -> Budget:
        return Budget(epsilon=self.epsilon, delta=self.delta, unit=self.unit)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **dataclasses.asdict(self), "agreed": list(self.agreed)}

    def agreements(self) -> dict[str, Agreement]:
        """The site's agreements by digest; all are over one schema, under which its rows are read."""
        found = [agreement_from_json(document, where=f"the file of site {self.name}") for document in self.agreed]
        if not found:
            raise SpecError(f"site {self.name} has agreed to nothing")
        if len({schema_digest(agreement.schema) for agreement in found}) > 1:
            raise SpecError(
                "a site reads its rows under one schema, and the agreements have several; join with another folder"
            )
        return {agreement.digest: agreement for agreement in found}


def read_site_file(path: Path) -> SiteFile:
    document = read_json(path)
    try:
        if document.pop("format") != FORMAT:
            raise RunError(f"{path} is of another version; join again")
        return SiteFile(**{**document, "agreed": tuple(document["agreed"])})
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is damaged: {error!r}; join again") from error


def read_agreements(path: Path) -> dict[str, Agreement]:
    return read_site_file(path).agreements()


def open_site(path: Path) -> Site:
    """The site, with its data read under its own schema. Refuses data that changed under row-numbered accounts."""
    file = read_site_file(path)
    agreements = file.agreements()
    hosted = read_hosted(file, next(iter(agreements.values())).schema)
    check_data(file, hosted)
    return Site(
        hosted=hosted, agreements=agreements, ledger_path=Path(file.ledger), budget=file.budget,
        root=None if file.seed is None else make_key(file.seed), log=_log(Path(file.log)),
    )  # fmt: skip


def read_hosted(file: SiteFile, schema: Schema | ImageShape) -> Hosted:
    """The clients in the site's data, with their accounts."""
    frame = None
    if isinstance(schema, ImageShape):
        data: Any = read_images(file.data, schema.classes)
        if tuple(data.shape) != schema.shape:
            raise DataError(f"the images in {file.data} are {data.shape}, the agreement is about {schema.shape}")
    else:
        frame = read_frame(file.data, text_columns=text_columns(schema))
        data = make_table(frame, schema)
    accounts: tuple[str, ...]
    if file.by == "site":
        clients, accounts = split(data, records_per_client=max(1, len(data))), ("site",)
    elif file.by == "rows":
        clients = split(data, records_per_client=file.records_per_client)
        accounts = tuple(f"rows from {start + 1}" for start in clients.starts[:-1])
    else:
        clients, accounts = _by_column(file, frame, data)
    if clients.widest > file.records:
        raise DataError(
            f"a client in {file.data} holds {clients.widest} records, {file.records} were declared as the most; "
            "join again with a larger --records"
        )
    return Hosted(clients=clients, accounts=accounts, records=file.records)


def _by_column(file: SiteFile, frame: Any, data: Any) -> tuple[Clients, tuple[str, ...]]:
    name = str(file.client_column)
    if frame is None or name not in frame.column_names:
        raise DataError(f"no client column {name!r} in {file.data}")
    column = frame.column(name)
    clients = split_by_column(column, data, name=name)
    first = clients.order[clients.starts[:-1]]
    return clients, tuple(f"{name} {column[int(row)].as_py()}" for row in first)


def check_data(file: SiteFile, hosted: Hosted) -> None:
    """Row numbers name accounts: if the rows changed, charges would land on others. Columns that name clients may grow.

    The fingerprint is keyed with a secret of the site: a plain hash of private rows would let anybody test a guess.
    """
    if file.by != "rows":
        return
    path = Path(file.ledger).with_name("data.json")
    kept = read_json(path) if path.is_file() else {"salt": secrets.token_hex(32)}
    data = hosted.clients.data
    parts = (data.x, data.y) if isinstance(data, Images) else (data.codes,)
    digest = hmac.new(bytes.fromhex(kept["salt"]), digestmod=hashlib.sha256)
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes())
    if "fingerprint" not in kept:
        write_json(path, {**kept, "fingerprint": digest.hexdigest()}, mode=0o600)
    elif kept["fingerprint"] != digest.hexdigest():
        raise DataError(
            f"the rows of {file.data} changed since the ledger was begun, and its accounts are row numbers; restore them, or "
            "join in a new folder with --client-column"
        )


def _log(path: Path) -> Callable[[str], None]:
    """Lines for the site's people alone."""

    def write(text: str) -> None:
        path.touch(mode=0o600)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    return write
