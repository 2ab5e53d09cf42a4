"""A site's own file: which data, whose accounts, which limit, what was agreed. Written by its owner, never by a coordinator."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from populace.border.databases.address import file_of, moved_to
from populace.border.models import check_document, interpreting, read_document
from populace.border.regular import open_output, read_bytes
from populace.engines.agreement import Agreement, agreement_from_json, schema_digest
from populace.engines.forms import DataForm, SiteFileForm
from populace.engines.messages import Hosts
from populace.engines.runtime import make_key
from populace.engines.site import MOST_CLIENTS, MOST_RECORDS, Hosted, Site
from populace.errors import DataError, InputError, PopulaceError, RunError, SpecError
from populace.methods.base import ImageShape
from populace.privacy.guarantee import Unit
from populace.privacy.ledger import Budget
from populace.privacy.sqlite_ledger import SqliteLedger, kept_budget
from populace.tables.cell_text import cell_text
from populace.tables.coded import read_coded
from populace.tables.conversion import plain
from populace.tables.files import read_json, write_json
from populace.tables.images import Images, read_images
from populace.tables.partition import Clients, split, split_by_column, with_persons
from populace.tables.schema import Schema
from populace.types import JsonObject

FORMAT = 1
PATHS = ("data", "ledger", "log", "sum_key")
HASHED_AT_ONCE = 2**16  # rows
KEY_FILE_BYTES = 2**12
KEYED = re.compile(r"client #[0-9a-f]{32}")  # of an account's name that does not say whose it is


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiteFile:
    """What stands in the file. `by` says whom the site hosts: one client per so many rows, per value of a column, or itself.

    `records` is the most records one client may hold; it is public, as is the number of clients, and `records_declared` where
    it was not read from the data. `most_clients` and `most_records` bound the runs the site takes part in. `person` is the
    column that says whose each row is, where persons are protected. `sum_key` is the file of the key that signs secure sums.
    """

    name: str
    federation: str
    data: str
    ledger: str
    log: str
    by: Hosts
    records_per_client: int
    client_column: str | None
    records: int
    epsilon: float
    delta: float
    unit: Unit
    seed: int | None
    agreed: tuple[JsonObject, ...]
    most_clients: int = MOST_CLIENTS
    most_records: int = MOST_RECORDS
    records_declared: bool = False
    person: str | None = None
    sum_key: str | None = None

    @property
    def budget(self) -> Budget:
        return Budget(epsilon=self.epsilon, delta=self.delta, unit=self.unit)

    def to_json(self, folder: Path | None = None) -> JsonObject:
        """The document; what lies in the site's `folder` is named from there, so that the folder can be moved."""
        paths = {name: _from_folder(getattr(self, name), folder) for name in PATHS}
        return {"format": FORMAT, **dataclasses.asdict(self), **paths, "agreed": list(self.agreed)}

    def agreements(self) -> dict[str, Agreement]:
        """The site's agreements by digest; all are over one schema, under which its rows are read."""
        found = [agreement_from_json(document, where=f"the file of site {self.name}") for document in self.agreed]
        if not found:
            raise SpecError(f"site {self.name} has agreed to nothing")
        if len({schema_digest(agreement.schema) for agreement in found}) > 1:
            raise SpecError(
                "a site reads its rows under one schema, and the agreements have several; a site in another folder keeps a "
                "ledger of its own, and what was spent here counts there too: lower its --epsilon by it"
            )
        return {agreement.digest: agreement for agreement in found}


def read_site_file(path: Path) -> SiteFile:
    document = read_json(path)
    if isinstance(document, dict) and document.get("format", FORMAT) != FORMAT:
        raise RunError(f"{path} is of another version; join again")
    fields = dict(check_document(document, SiteFileForm, where=str(path), advice="join again"))
    with interpreting(str(path), advice="join again"):
        del fields["format"]
        paths = {name: _here(fields.get(name), path) for name in PATHS}
        return SiteFile(**{**fields, **paths, "agreed": tuple(fields["agreed"])})


def _from_folder(path: str | None, folder: Path | None) -> str | None:
    file = None if path is None else file_of(path)
    if path is None or folder is None or file is None or not file.is_relative_to(folder):
        return path
    return moved_to(path, file.relative_to(folder))


def _here(path: str | None, file: Path) -> str | None:
    """Where a file of the site is now: as the site's file names it, or under that name in the folder that was moved."""
    place = None if path is None else file_of(path)
    if path is None or place is None or len(file.parents) < 3:
        return path
    folder = file.absolute().parents[2]  # of FOLDER/kit/local/populace.json
    named = folder / place  # an absolute path stays what it is
    in_folder = folder / named.name
    moved = os.path.exists(in_folder) and not os.path.exists(named)  # a name that no file can have is simply not there
    return moved_to(path, in_folder if moved else named)


def read_agreements(path: Path) -> dict[str, Agreement]:
    return read_site_file(path).agreements()


def open_site(path: Path) -> Site:
    """The site, with its data read under its own schema. Refuses accounts that would change or lose their owners."""
    file = read_site_file(path)
    agreements = file.agreements()
    hosted = read_hosted(file, next(iter(agreements.values())).schema)
    check_data(file, hosted)
    hosted = own_accounts(file, hosted)
    return Site(
        hosted=hosted, agreements=agreements, ledger_path=Path(file.ledger), budget=file.budget,
        root=None if file.seed is None else make_key(file.seed), log=_log(Path(file.log)),
        most_clients=file.most_clients, most_records=file.most_records, signing_key=_signing_key(file),
    )  # fmt: skip


def _signing_key(file: SiteFile) -> bytes | None:
    if file.sum_key is None or not Path(file.sum_key).is_file():
        return None
    return read_bytes(Path(file.sum_key), most=KEY_FILE_BYTES)


def read_hosted(file: SiteFile, schema: Schema | ImageShape) -> Hosted:
    """The clients in the site's data, with their accounts."""
    frame = None
    if isinstance(schema, ImageShape):
        data: Any = read_images(file.data, schema.classes)
        if tuple(data.shape) != schema.shape:
            raise DataError(f"the images in {file.data} are {data.shape}, the agreement is about {schema.shape}")
    else:
        named = (file.client_column if file.by == "column" else None, file.person)
        also = tuple(dict.fromkeys(name for name in named if name is not None))
        data, frame = read_coded(file.data, schema, also=also)
    accounts: tuple[str, ...]
    if file.by == "site":
        clients, accounts = split(data, records_per_client=max(1, len(data))), ("site",)
    elif file.by == "rows":
        clients = split(data, records_per_client=file.records_per_client)
        accounts = tuple(f"rows from {start + 1}" for start in clients.starts[:-1])
    else:
        clients, accounts = _by_column(file, frame, data)
    if file.person is not None:
        clients = _of_persons(file, frame, data, clients)
    if clients.widest > file.records:
        raise DataError(
            f"a client in {file.data} holds {clients.widest} records, {file.records} were declared as the most; "
            "join again with a larger --records"
        )
    read = file.by != "rows" and not file.records_declared
    return Hosted(clients=clients, accounts=accounts, records=file.records, by=file.by, records_read=read)


def _by_column(file: SiteFile, frame: Any, data: Any) -> tuple[Clients, tuple[str, ...]]:
    name = str(file.client_column)
    if frame is None or name not in frame.column_names:
        raise DataError(f"no client column {name!r} in {file.data}")
    # A CSV is read as text: a type guessed from the rows would rename accounts when the table grows (7, later 007). Tidied,
    # one client has one name in whatever file, format or spelling: `P7 `, `p7`, and the number 7 for the text 7.
    column = plain(frame.column(name))
    texts = pc.if_else(column.is_valid(), cell_text(column), None)
    clients = split_by_column(texts, data, name=name)
    first = clients.order[clients.starts[:-1]]
    return clients, tuple(f"{name} {texts[int(row)].as_py()}" for row in first)


def _of_persons(file: SiteFile, frame: Any, data: Any, clients: Clients) -> Clients:
    name = str(file.person)
    if frame is None or name not in frame.column_names:
        raise DataError(f"no person column {name!r} in {file.data}; name the column that says whose each row is")
    if name in data.schema.names:
        raise DataError(
            f"the person column {name!r} is a column of the agreed schema and would be synthesised; do not join"
        )
    return with_persons(clients, frame.column(name), name=name)


def own_accounts(file: SiteFile, hosted: Hosted, *, other_clients: bool = False) -> Hosted:
    """The same clients under the names their accounts have in the ledger: of a column's values, keyed digests.

    Guarantee: neither ledger nor log says who the clients are without the secret in `data.json`. What was booked under a plain
    name, in whatever spelling, counts on the account of its digest.
    Edge cases: where fewer than half of those who were charged are in the data, they are under other names there, and what was
    spent would be forgotten: refused, unless the owner said at a join that they are other people (`other_clients`).
    """
    if file.by != "column":
        return hosted
    kept = _kept(file)
    names = tuple(_keyed(account, kept["salt"]) for account in hosted.accounts)
    with SqliteLedger(file.ledger, kept_budget(file.ledger) or file.budget, create=False) as ledger:
        prefix = f"{file.client_column} "
        plainly = [name for name in ledger.accounts() if not KEYED.fullmatch(name) and name.startswith(prefix)]
        texts = cell_text(pa.array([name.removeprefix(prefix) for name in plainly], pa.string())).to_pylist()
        if plainly:
            ledger.link_names(
                [(name, _keyed(prefix + text, kept["salt"])) for name, text in zip(plainly, texts, strict=True)]
            )
        others = [each["after"] for each in kept.get("other_clients", ())]
        charged = set(ledger.accounts(after=max(others, default=0)))
    found = len(charged & set(names))
    if 2 * found < len(charged) and not other_clients:
        raise DataError(
            f"{len(charged):,} clients were charged, and only {found:,} of them are in {file.data}: under other names in "
            f"column {file.client_column!r} (leading zeros lost, new pseudonyms) all would be spent again. Restore the "
            "names; if they are other people, join with --other-clients"
        )
    return dataclasses.replace(hosted, accounts=names)


def allow_other_clients(file: SiteFile) -> None:
    """Record the owner's statement that clients charged so far need not be in the data any more."""
    with SqliteLedger(file.ledger, file.budget, create=False) as ledger:
        said = {"after": ledger.last, "at": time.time()}
    kept = _kept(file)
    write_json(_data_path(file), {**kept, "other_clients": [*kept.get("other_clients", ()), said]}, mode=0o600)


def _keyed(account: str, salt: str) -> str:
    """An account's name that tells nobody without the salt whose it is."""
    digest = hmac.new(bytes.fromhex(salt), b"account " + account.encode(errors="surrogatepass"), hashlib.sha256)
    return f"client #{digest.hexdigest()[:32]}"


def begin_accounts(file: SiteFile, hosted: Hosted) -> None:
    """Record, before anything is spent, whom the accounts belong to."""
    salt = secrets.token_hex(32)
    write_json(
        _data_path(file), {"salt": salt, **_hosting(file), "fingerprint": _fingerprint(hosted, salt)}, mode=0o600
    )


def check_data(file: SiteFile, hosted: Hosted) -> None:
    """Refuse accounts that changed their owners: charges would land on others, and what was spent would be forgotten.

    Row numbers name accounts, so rows may not change; columns that name clients may grow: see `own_accounts`.
    """
    path = _data_path(file)
    if not path.is_file():
        raise RunError(f"{path} is gone, which says whose accounts the ledger keeps; put it back")
    kept = _kept(file)
    now = _hosting(file)
    begun = {name: kept.get(name) for name in now}
    if begun != now:
        raise InputError(
            f"the ledger {file.ledger} was begun with {_in_words(begun)}, and with {_in_words(now)} what was spent "
            "would be forgotten; say it as at the first join"
        )
    if file.by == "rows" and kept["fingerprint"] != _fingerprint(hosted, kept["salt"]):
        raise DataError(
            f"the rows of {file.data} changed since the ledger was begun, and its accounts are row numbers; restore them, or "
            "join in a new folder with --client-column, where what was spent here counts too: lower --epsilon by it"
        )


def _kept(file: SiteFile) -> JsonObject:
    return read_document(_data_path(file), DataForm, advice="put back the copy that belongs to the ledger")


def _data_path(file: SiteFile) -> Path:
    return Path(file.ledger).with_name("data.json")


def _hosting(file: SiteFile) -> JsonObject:
    """The part of the settings that decides which rows make a client, for this value of `by`."""
    rows = file.records_per_client if file.by == "rows" else None
    return {
        "by": file.by,
        "records_per_client": rows,
        "client_column": file.client_column if file.by == "column" else None,
        "person": file.person,
    }


def _in_words(hosting: JsonObject) -> str:
    persons = f", persons by column {hosting['person']!r}" if hosting.get("person") else ""
    if hosting["by"] == "site":
        return f"the site as one client{persons}"
    if hosting["by"] == "column":
        return f"one client per value of {hosting['client_column']!r}{persons}"
    return f"one client per {hosting['records_per_client']} row(s){persons}"


def _fingerprint(hosted: Hosted, salt: str) -> str:
    """Keyed with a secret of the site: a plain hash of private rows would let anybody test a guess."""
    data = hosted.clients.data
    digest = hmac.new(bytes.fromhex(salt), digestmod=hashlib.sha256)
    parts = (data.x, data.y) if isinstance(data, Images) else (data.codes,)
    for part in parts:
        for start in range(0, len(part), HASHED_AT_ONCE):
            some = part[start : start + HASHED_AT_ONCE]
            digest.update(np.ascontiguousarray(some, part.dtype if isinstance(data, Images) else np.int32).data)
    return digest.hexdigest()


def log_of(path: Path) -> Callable[[str], None]:
    """The log that a site's file names; where the file cannot be read, the usual one beside the kit."""
    try:
        return _log(Path(read_site_file(path).log))
    except PopulaceError:
        return _log(path.parents[2] / "site.log")


def _log(path: Path) -> Callable[[str], None]:
    """Write lines for the site's staff; a log that cannot be written does not prevent a refusal."""

    def write(text: str) -> None:
        with contextlib.suppress(OSError, RunError):
            path.touch(mode=0o600)
            with open_output(path) as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    return write
