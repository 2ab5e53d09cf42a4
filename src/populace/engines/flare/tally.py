"""The coordinator's count of a site's replies over all runs, signed and sent with every request; and the site's look at it.

Guarantee: a site whose ledger holds fewer charges than the coordinator has absorbed replies answers nothing (`rolled-back`),
also in a run that is new: its folder was set back to an old copy. The count is of one key of the site and only grows, and a
run that is asked again from its beginning does not count twice. It is signed with the server's key, whose certificate must be
of the federation's root, within its time and not on the site's list of revoked ones. The newest list travels with it.
Edge cases: a coordinator that lies, or has lost its own count, says too little, and nothing is noticed: this is against
accidents. A site with a new key (`populace federation approve --again`) is counted from zero.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import pydantic

from populace.border.regular import open_output, read_bytes
from populace.engines import wire
from populace.engines.flare import kits
from populace.engines.flare.certificates import (
    Certificate,
    RevocationList,
    check_list,
    from_der,
    is_issued_by,
    is_signed,
    keep_list,
    read_certificate,
    read_list,
    sign,
)
from populace.engines.flare.policy import LIST_FILE, SITE_FILE
from populace.engines.messages import RefusedError
from populace.engines.site_file import read_site_file
from populace.engines.wire import Message
from populace.errors import InputError, RunError, WireError
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.files import read_json, write_json
from populace.types import JsonObject

COUNTS = "replies.json"  # in the federation's folder: key of a site -> run -> replies absorbed
MOST_BYTES = 2**21
COUNTED = pydantic.TypeAdapter(
    dict[str, dict[str, Annotated[int, pydantic.Field(ge=0)]]], config=pydantic.ConfigDict(strict=True)
)
FIELDS: dict[str, type] = {"federation": str, "site": str, "key": str, "replies": int}


class Tally:
    """The counts of a federation, in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def note(self, run: str, replies: Mapping[str, int]) -> None:
        """Keep how many replies of each site a run has absorbed, before the next request is sent. Counts only grow."""
        with self._alone():
            counts = self._read()
            for site, count in replies.items():
                of_site = counts.setdefault(self._key(site), {})
                of_site[run] = max(count, int(of_site.get(run, 0)))
            write_json(self._folder / COUNTS, counts, mode=0o600)

    def statement(self, site: str) -> bytes:
        """What goes with a request to a site."""
        startup = self._folder / "server" / "kit" / "startup"
        key = self._key(site)
        fields = {
            "federation": str(read_json(self._folder / "federation.json")["name"]), "site": site, "key": key,
            "replies": sum(self._read().get(key, {}).values()),
        }  # fmt: skip
        listed = self._folder / LIST_FILE
        arrays = {
            "signature": sign(startup / "server.key", _signed_bytes(fields)),
            "certificate": read_certificate(startup / "server.crt").content,
            "list": read_bytes(listed, most=MOST_BYTES) if listed.exists() else b"",
        }
        return wire.pack(
            Message(kind="tally", fields=fields, arrays={name: _array(part) for name, part in arrays.items()})
        )

    def _key(self, site: str) -> str:
        """The key the site was last approved with."""
        return kits.signed_certificate(self._folder / "sites" / f"{site}.signed.zip").key

    def revoked(self) -> frozenset[str]:
        """The names on the federation's list: they are not asked."""
        return read_list(self._folder / LIST_FILE, self._folder / "ca" / "rootCA.pem").names

    def _read(self) -> dict[str, dict[str, int]]:
        path = self._folder / COUNTS
        found = read_json(path) if path.is_file() else {}
        try:
            return COUNTED.validate_python(found)
        except pydantic.ValidationError as error:
            raise RunError(f"{path} is damaged; restore it, or remove it and count from zero") from error

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with open_output(self._folder / ".replies.lock") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def _array(content: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(content, np.uint8)


def _signed_bytes(fields: JsonObject) -> bytes:
    return b"replies absorbed over all runs\n" + json.dumps(fields, sort_keys=True).encode()


def check_tally(data: object, kit: Path) -> frozenset[str]:
    """Refuse a request that comes with no valid count, or with one that the ledger falls short of; returns who is revoked.

    A kit without a root certificate cannot be connected, and is not looked at.
    """
    root, own = kit / "startup" / "rootCA.pem", kit / "startup" / "client.crt"
    if not root.is_file():
        return frozenset()
    if not isinstance(data, bytes):
        raise RefusedError("coordinator", "the request has no signed count: the coordinator runs an older populace")
    fields, coordinator, signature, listed = _read(data)
    _check_signer(coordinator, kit, read_list(kit.parent / LIST_FILE, root))
    if not is_signed(coordinator, signature, _signed_bytes(fields)):
        raise RefusedError("coordinator", "the count of replies is not signed by the coordinator that sent it")
    revoked = _newest(listed, kit.parent / LIST_FILE, root)
    _check_signer(coordinator, kit, revoked)
    file = read_site_file(kit / "local" / SITE_FILE)
    if (fields["federation"], fields["site"], fields["key"]) != (
        file.federation,
        file.name,
        read_certificate(own).key,
    ):
        raise RefusedError("coordinator", "the count of replies is of another federation, site or key")
    with SqliteLedger(file.ledger, file.budget, create=False) as ledger:
        booked = ledger.last
    if booked < fields["replies"]:
        raise RefusedError(
            "rolled-back",
            f"the coordinator has had {fields['replies']} replies of this site, the ledger {file.ledger} knows of {booked}: "
            "the site's folder is an old copy; put the newest back",
        )
    return revoked.names


def _read(data: bytes) -> tuple[JsonObject, Certificate, bytes, bytes]:
    message = wire.unpack(data, most_bytes=MOST_BYTES)
    values = wire.take_fields(message, FIELDS)
    parts = [message.arrays.get(name) for name in ("signature", "certificate", "list")]
    if message.kind != "tally" or len(message.arrays) != len(parts):
        raise WireError("the count that goes with a request holds other parts than it should")
    content = [b"" if part is None or part.dtype != np.uint8 else part.tobytes() for part in parts]
    try:
        return dict(zip(FIELDS, values, strict=True)), from_der(content[1]), content[0], content[2]
    except InputError as error:
        raise WireError(str(error)) from error


def _newest(content: bytes, path: Path, root: Path) -> RevocationList:
    """The newest list of what came and what is kept; an older one than the site's own changes nothing."""
    kept = read_list(path, root)
    if not content:
        return kept
    try:
        given = check_list(content, root, where="a request")
    except InputError as error:
        raise RefusedError("coordinator", str(error)) from error
    if given.number > kept.number:
        keep_list(path, given)
        return given
    return kept


def _check_signer(coordinator: Certificate, kit: Path, revoked: RevocationList) -> None:
    """Refuse a certificate that is not the federation's server's; a site's own would serve a server too."""
    now = datetime.datetime.now(datetime.UTC)
    servers = read_json(kit / "startup" / "fed_client.json").get("servers", [])
    if coordinator.name not in {server.get("identity") for server in servers}:
        raise RefusedError("coordinator", f"the count of replies is signed by {coordinator.name!r}, not by the server")
    if not is_issued_by(coordinator, kit / "startup" / "rootCA.pem"):
        raise RefusedError("coordinator", "the count of replies is signed with a certificate of another federation")
    if revoked.holds(coordinator.name, coordinator.serial):
        raise RefusedError("coordinator", f"the certificate of the server {coordinator.name} is revoked")
    if not coordinator.begins <= now <= coordinator.ends:
        raise RefusedError(
            "coordinator",
            f"the certificate of the server {coordinator.name} is valid from {coordinator.begins} to {coordinator.ends}",
        )
