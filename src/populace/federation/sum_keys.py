"""The keys that sign secure sums, and the roster they make: part of the proposal, checked by each site when it joins."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from populace.border.regular import read_bytes
from populace.engines.agreement import Agreement
from populace.engines.flare.kits import check_name
from populace.engines.secure_sum.primitives import KEY_BYTES, signing_public
from populace.engines.secure_sum.roster import Member, SumRoster
from populace.errors import InputError, RunError
from populace.methods.base import Protocol


def make_sum_key(path: Path) -> None:
    """A new private key, readable by its owner alone; it never leaves the site."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(KEY_BYTES))


def public_sum_key(path: Path) -> str:
    """The public key that belongs to a site's private one, in hexadecimal digits: what the coordinator and others are told."""
    if not path.is_file():
        raise InputError(f"no key {path} for secure sums; `populace site request` in a new folder makes one")
    return signing_public(_key(path)).hex()


def _key(path: Path) -> bytes:
    key = read_bytes(path, most=2**12)
    if len(key) != KEY_BYTES:
        raise RunError(
            f"{path} is damaged: expected a key of {KEY_BYTES} bytes, got {len(key)}; restore it from a copy"
        )
    return key


def roster_of(protocol: Protocol, keys: Sequence[str]) -> SumRoster | None:
    """The roster in words of the command line, NAME=KEY each, for a method with these colluders and dropouts."""
    secure = getattr(protocol, "trust", "") == "secure-sum"
    if not secure:
        if keys:
            raise InputError("keys of sites are for trust secure-sum; leave --sum-key out, or ask for it with --trust")
        return None
    members = []
    for word in keys:
        name, _, key = word.partition("=")
        members.append(Member(site=check_name(name, "a site's name"), key=key.strip().lower()))
    if not members:
        raise InputError(
            "trust secure-sum needs the sites and their keys, as each site's `populace site request` showed them: "
            "--sum-key NAME=KEY for every site"
        )
    dropouts, colluders = getattr(protocol, "dropouts", 0), getattr(protocol, "colluders", 0)
    roster = SumRoster(members=tuple(members), threshold=len(members) - dropouts, colluders=colluders)
    roster.check_all_pairs()
    return roster


def check_own_seat(roster: SumRoster, name: str, key: Path) -> None:
    """Raise InputError unless a proposed roster has this site, with its own key."""
    own = public_sum_key(key)
    if not any((member.site, member.key) == (name, own) for member in roster.members):
        raise InputError(
            f"the proposal's secure sums do not have this site ({name}) with its own key {own}; do not join, and tell the "
            "coordinator this key"
        )


def seats_of(agreement: Agreement, hosted: int) -> int:
    """How many clients a run has that a site can speak of: all of a secure sum, else its own."""
    return hosted if agreement.roster is None else len(agreement.roster.members)


def roster_in_words(roster: SumRoster) -> str:
    """Who is in the sums, to compare over another channel."""
    members = "\n".join(f"  {member.site}  {member.key}" for member in roster.members)
    missing = len(roster.members) - roster.threshold
    return (
        f"secure sums over {len(roster.members)} sites, of which {missing} may be missing and {roster.colluders} may collude "
        f"with the coordinator; compare names and keys with the others, over another channel:\n{members}"
    )
