"""Certificates and startup kits, made by FLARE's own tool. Private keys stay where they are made.

The coordinator keeps the root certificate. A site makes a key and a request; the coordinator signs the request; the site checks
the root's fingerprint, which it had by another way, and puts its kit together.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

from populace.engines.flare import require
from populace.errors import InputError, RunError
from populace.tables.files import write_json

SECONDS = 120
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
LEAD = "coordinator@populace.org"  # FLARE wants a name in the form of an address; nothing is sent there


def check_name(name: str, what: str) -> str:
    if not NAME.fullmatch(name):
        raise InputError(f"expected {what} of small letters, digits and dashes, at most 40, got {name!r}")
    return name


def make_root(folder: Path, *, federation: str, host: str, port: int) -> str:
    """A new root certificate; returns its fingerprint."""
    server = {"host": host, "fed_learn_port": port, "admin_port": port}
    profile = {"name": federation, "scheme": "tcp", "connection_security": "mtls", "server": server}
    write_json(folder / "profile.yml", profile)
    _flare("cert", "init", "--profile", folder / "profile.yml", "-o", folder / "ca", home=folder)
    (folder / "ca").chmod(0o700)
    return fingerprint(folder / "ca" / "rootCA.pem")


def fingerprint(certificate: Path) -> str:
    """SHA-256 of a certificate, as people read it out to each other."""
    try:
        content = ssl.PEM_cert_to_DER_cert(certificate.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the certificate {certificate}: {error}") from error
    digest = hashlib.sha256(content).hexdigest().upper()
    return "SHA256:" + ":".join(digest[i : i + 2] for i in range(0, len(digest), 2))


def request_server(folder: Path, *, federation: str, host: str, port: int) -> Path:
    participant = {"name": host, "type": "server", "org": "coordinator", "fed_learn_port": port, "admin_port": port}
    return _request(folder, "server", federation, participant)


def request_lead(folder: Path, *, federation: str) -> Path:
    participant = {"name": LEAD, "type": "admin", "org": "coordinator", "role": "lead"}
    return _request(folder, "lead", federation, participant)


def request_site(folder: Path, *, federation: str, name: str, org: str) -> Path:
    """A key, which stays in the folder, and a request to send; returns the request."""
    return _request(folder, "request", federation, {"name": name, "type": "client", "org": org})


def _request(folder: Path, place: str, federation: str, participant: dict[str, Any]) -> Path:
    (folder / place).mkdir(parents=True, exist_ok=True)
    (folder / place).chmod(0o700)
    definition = folder / place / "participant.yml"
    write_json(definition, {"name": federation, "participants": [participant]})
    found = _flare("cert", "request", "-p", definition, "--out", folder / place / "key", "--force", home=folder)
    return Path(found["request_zip"])


def approve(folder: Path, request: Path, signed: Path) -> str:
    """Sign a request with the federation's root; returns the name it is for."""
    if not request.is_file():
        raise InputError(f"no request {request}; expected the zip that `populace site request` made")
    found = _flare(
        "cert", "approve", request, "-c", folder / "ca", "--profile", folder / "profile.yml", "--out", signed, "--force",
        home=folder,
    )  # fmt: skip
    return str(found["name"])


def assemble(folder: Path, signed: Path, key_folder: Path, expected_fingerprint: str) -> Path:
    """The startup kit from a signed request; refuses a root with another fingerprint. Returns the kit's folder."""
    if not signed.is_file():
        raise InputError(f"no signed request {signed}; expected the zip that `populace federation approve` made")
    made = folder / "kit.new"
    shutil.rmtree(made, ignore_errors=True)
    found = _flare(
        "package", signed, "--request-dir", key_folder, "--fingerprint", expected_fingerprint, "-w", made, "--force",
        home=folder,
    )  # fmt: skip
    kit = folder / "kit"
    shutil.rmtree(kit, ignore_errors=True)
    Path(found["output_dir"]).replace(kit)
    shutil.rmtree(made, ignore_errors=True)
    kit.chmod(0o700)
    return kit


def _flare(*words: str | Path, home: Path) -> dict[str, Any]:
    """One command of FLARE's tool; its audit files go below `home`, not into the user's own folder."""
    require()
    command = [sys.executable, "-m", "nvflare.cli", *map(str, words), "--format", "json"]
    state = home / ".flare"
    state.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "HOME": str(state)}
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter
            command,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(f"FLARE's tool did not answer within {SECONDS} s to: {' '.join(map(str, words))}") from error
    for line in reversed(done.stdout.splitlines()):
        try:
            answer = json.loads(line)
        except ValueError:
            continue
        if isinstance(answer, dict) and answer.get("status") == "ok":
            found: dict[str, Any] = answer["data"]
            return found
        if isinstance(answer, dict) and "status" in answer:
            reason = answer.get("message") or (answer.get("error") or {}).get("message") or "no reason given"
            raise InputError(f"the certificate step `{words[0]}` was refused: {reason}")
    raise RunError(f"FLARE's tool failed at {words[0]}: {(done.stderr or done.stdout).strip()[-300:]}")
