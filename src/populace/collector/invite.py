"""Invitations: random capabilities, one link each. The study keeps their hashes alone, so a lost file is lost."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path

from populace.collector.store import Store
from populace.collector.study import TOKEN_BYTES, Study, invitation_hash
from populace.errors import InputError, RunError
from populace.tables.files import write_text

MOST_AT_ONCE = 10_000_000


def invite(study: Study, store: Store, count: int, out: Path, *, url: str) -> None:
    """Write so many new links. The file stands before the store knows its invitations, so that none of them is lost."""
    if study.open:
        raise InputError("this study is open: anybody may answer at its address, and needs no invitation")
    if not 1 <= count <= MOST_AT_ONCE:
        raise InputError(f"expected a count of invitations in [1, {MOST_AT_ONCE}], got {count}")
    if store.fact("closed") is not None:
        raise InputError("this study is closed and takes no more answers; nobody can be invited to it")
    if out.exists():
        raise RunError(f"{out} exists; choose another file for the links")
    if not url.startswith(("http://", "https://")) or "#" in url:
        raise InputError(f"expected the address of the study as https://..., got {url!r}")
    tokens = [secrets.token_bytes(TOKEN_BYTES) for _ in range(count)]
    write_text(out, "".join(f"{link(url, token)}\n" for token in tokens), mode=0o600)
    with store.transaction(lock="shared"):
        store.add_invitations([invitation_hash(token) for token in tokens])


def link(url: str, token: bytes) -> str:
    """The link of an invitation. What stands after # is not sent to any server by a browser, nor written to its log."""
    return f"{url.rstrip('/')}/#{base64.urlsafe_b64encode(token).decode().rstrip('=')}"
