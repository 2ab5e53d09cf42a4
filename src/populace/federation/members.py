"""Whom a federation's root has signed, whom its list revokes, and when certificates end.

issued.json    name, serial number, digest of the key and end of every certificate that was signed; private
revoked.crl    the list, signed by the root; sites get it with the coordinator's requests
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import fcntl
from collections.abc import Iterable, Iterator
from pathlib import Path

from populace.border.regular import open_output
from populace.engines.flare.certificates import (
    DAYS_TO_WARN,
    Certificate,
    Entry,
    RevocationList,
    keep_list,
    make_list,
    read_certificate,
    read_list,
)
from populace.engines.flare.policy import LIST_FILE
from populace.errors import InputError, RunError
from populace.tables.files import read_json, write_json
from populace.types import JsonObject

ISSUED = "issued.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Issued:
    """One certificate that the root signed."""

    name: str
    serial: int
    key: str
    ends: str


def note_issued(folder: Path, certificate: Certificate) -> None:
    """Record a certificate before it is handed out."""
    new = Issued(
        name=certificate.name, serial=certificate.serial, key=certificate.key, ends=certificate.ends.isoformat()
    )
    with _alone(folder):
        documents = [
            {**dataclasses.asdict(one), "serial": f"{one.serial:x}"} for one in dict.fromkeys([*issued(folder), new])
        ]
        write_json(folder / ISSUED, documents, mode=0o600)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else writes records or lists of this federation meanwhile."""
    with open_output(folder / ".members.lock") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def issued(folder: Path, name: str | None = None) -> list[Issued]:
    """Every certificate known to have been signed, of one name or of all; for older folders from FLARE's own records."""
    found: dict[int, Issued] = {}
    try:
        for record in sorted((folder / ".flare" / ".nvflare" / "cert_approves").glob("*.json")):
            approval = read_json(record)["approval"]
            serial = int(approval["certificate"]["serial"], 16)
            found[serial] = Issued(
                name=str(approval["name"]), serial=serial, key=str(approval["hashes"]["public_key_sha256"]),
                ends=str(approval["certificate"]["valid_until"]),
            )  # fmt: skip
        if (folder / ISSUED).is_file():
            for one in read_json(folder / ISSUED):
                entry = Issued(name=one["name"], serial=int(one["serial"], 16), key=one["key"], ends=one["ends"])
                found[entry.serial] = entry
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"the records of signed certificates in {folder} are damaged: {error!r}; restore them"
        ) from error
    return [one for one in found.values() if name in (None, one.name)]


def current_list(folder: Path) -> RevocationList:
    """The federation's list; raises RunError where an older one, or none, stands in place of the newest."""
    found = read_list(folder / LIST_FILE, folder / "ca" / "rootCA.pem")
    newest = int(read_json(folder / "federation.json").get("list", 0))
    if found.number < newest:
        raise RunError(
            f"{folder / LIST_FILE} is gone or older than list {newest}, which was the last: put it back, those it revokes "
            "would be let in again"
        )
    return found


def _publish(folder: Path, entries: Iterable[Entry]) -> RevocationList:
    """The next list. Its number is noted after it stands, so that a crash between the two forgets nobody."""
    made = make_list(folder / "ca", current_list(folder).number + 1, entries)
    keep_list(folder / LIST_FILE, made)
    write_json(folder / "federation.json", {**read_json(folder / "federation.json"), "list": made.number})
    return made


def revoke_name(folder: Path, name: str) -> RevocationList:
    """Put every certificate of a site on the list, and its name."""
    certificates = issued(folder, name)
    if not certificates:
        raise InputError(f"{name} was never approved; `populace federation status {folder}` lists who was")
    with _alone(folder):
        before = current_list(folder)
        if name in before.names:
            raise InputError(f"{name} is revoked already, by list {before.number}")
        others = [entry for entry in before.entries if entry.name != name]
        own = [Entry(name=name, serial=one.serial, whole_name=True) for one in certificates]
        return _publish(folder, [*others, *own])


def replace_certificates(folder: Path, name: str, *, keep: Certificate) -> RevocationList:
    """Put the earlier certificates of a name on the list; the name itself is good again."""
    with _alone(folder):
        others = [entry for entry in current_list(folder).entries if entry.name != name]
        earlier = [one for one in issued(folder, name) if one.serial != keep.serial]
        own = [Entry(name=name, serial=one.serial, whole_name=False) for one in earlier]
        return _publish(folder, [*others, *own])


def day(moment: datetime.datetime) -> str:
    return moment.date().isoformat()


def read_if_there(path: Path) -> Certificate | None:
    return read_certificate(path) if path.is_file() else None


def check_not_over(certificate: Certificate | None, *, what: str, cure: str) -> None:
    """Raise RunError for a certificate that has ended: nobody would take it, and connecting would only wait."""
    if certificate is not None and certificate.days_left() <= 0:
        raise RunError(f"the certificate of {what} ended on {day(certificate.ends)}; {cure}")


def warning(certificate: Certificate | None, *, what: str, cure: str) -> list[str]:
    """A sentence for a certificate that has ended or will within a month; none for others."""
    if certificate is None or certificate.days_left() > DAYS_TO_WARN:
        return []
    if certificate.days_left() <= 0:
        return [f"the certificate of {what} ended on {day(certificate.ends)}: {cure}"]
    return [f"the certificate of {what} ends on {day(certificate.ends)}, in {certificate.days_left():.0f} days: {cure}"]


def standing(folder: Path, *, server: Path, lead: Path, revoked: RevocationList) -> JsonObject:
    """When the federation's certificates end, who is revoked, and what should be done about it soon."""
    renew = f"`populace federation renew {folder}` makes a new one"
    own = {
        "root": (folder / "ca" / "rootCA.pem", "it cannot be renewed: found a new federation in time"),
        "server": (server / "startup" / "server.crt", renew),
        "lead": (lead / "startup" / "client.crt", renew),
    }
    ends: JsonObject = {}
    warnings: list[str] = []
    for what, (path, cure) in own.items():
        found = read_if_there(path)
        ends[what] = None if found is None else day(found.ends)
        warnings += warning(found, what=f"the federation's {what}", cure=cure)
    last: dict[str, Issued] = {}
    listed = {entry.serial for entry in revoked.entries}
    for one in issued(folder):
        if one.serial not in listed and (one.name not in last or last[one.name].ends < one.ends):
            last[one.name] = one
    sites = {name: one for name, one in last.items() if (folder / "sites" / f"{name}.signed.zip").is_file()}
    for name, one in sites.items():
        moment = datetime.datetime.fromisoformat(one.ends)
        left = (moment - datetime.datetime.now(datetime.UTC)).total_seconds() / 86400
        if left <= DAYS_TO_WARN:
            warnings.append(
                f"the certificate of {name} {'ends' if left > 0 else 'ended'} on {day(moment)}: "
                f"`populace federation renew {folder} {name}` makes a new one, to send to it"
            )
    ends["sites"] = {name: day(datetime.datetime.fromisoformat(one.ends)) for name, one in sorted(sites.items())}
    return {"ends": ends, "revoked": sorted(revoked.names), "list": revoked.number, "warnings": warnings}
