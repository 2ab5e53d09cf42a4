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
import zipfile
import zlib
from pathlib import Path

from populace.border.documents import parse_json
from populace.border.models import DAMAGED
from populace.border.regular import open_regular, read_text
from populace.engines.flare import require
from populace.engines.flare.certificates import Certificate, from_pem
from populace.errors import InputError, RunError
from populace.tables.files import replacing, write_json
from populace.types import JsonObject

Step = list[str | Path]

SECONDS = 120
MOST_BYTES = 64 * 2**10  # of a request's description
#: Runs several commands of FLARE's tool in one process, up to the first that fails.
PROGRAM = """
import json, sys
from nvflare import cli
for words in json.loads(sys.argv[1]):
    sys.argv = ["nvflare", *words]
    try:
        cli.main()
    except SystemExit as end:
        if end.code:
            raise
"""
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
LEAD = "coordinator@populace.org"  # FLARE wants a name in the form of an address; nothing is sent there


def check_name(name: str, what: str) -> str:
    if not NAME.fullmatch(name):
        raise InputError(f"expected {what} of small letters, digits and dashes, at most 40, got {name!r}")
    return name


def make_root(folder: Path, *, federation: str, host: str, port: int) -> str:
    """Make a root certificate, and the kits of the server and of the coordinator's lead; returns the root's fingerprint."""
    server = {"host": host, "fed_learn_port": port, "admin_port": port}
    profile = {"name": federation, "scheme": "tcp", "connection_security": "mtls", "server": server}
    write_json(folder / "profile.yml", profile)
    participants = _own_participants(host, port)
    steps: list[Step] = [["cert", "init", "--profile", folder / "profile.yml", "-o", folder / "ca"]]
    _flare(*steps, *_own_steps(folder, folder, federation, participants), home=folder)
    (folder / "ca").chmod(0o700)
    root = fingerprint(folder / "ca" / "rootCA.pem")
    for place in participants:
        assemble(folder / place, folder / place / f"{place}.signed.zip", folder / place / "key", root)
    return root


def _own_participants(host: str, port: int) -> dict[str, JsonObject]:
    """The coordinator's own two: the server, and the lead who submits runs to it."""
    return {
        "server": {"name": host, "type": "server", "org": "coordinator", "fed_learn_port": port, "admin_port": port},
        "lead": {"name": LEAD, "type": "admin", "org": "coordinator", "role": "lead"},
    }


def _own_steps(folder: Path, into: Path, federation: str, participants: dict[str, JsonObject]) -> list[Step]:
    steps: list[Step] = []
    for place, participant in participants.items():
        steps.append(_request_step(into, place, federation, participant))
        request = into / place / "key" / f"{participant['name']}.request.zip"
        steps.append(_approve_step(folder, request, into / place / f"{place}.signed.zip"))
    return steps


def renew_own(folder: Path, *, federation: str, host: str, port: int, new_keys: bool) -> None:
    """New certificates of the server and the lead, from the same root, put into their kits; with new keys or the old."""
    made, participants = folder / "renewed", _own_participants(host, port)
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(mode=0o700)
    try:
        if not new_keys:
            for place in participants:
                shutil.copytree(folder / place / "key", made / place / "key")
        steps = _own_steps(folder, made, federation, participants)
        _flare(*(step for step in steps if new_keys or step[1] == "approve"), home=folder)
        root = fingerprint(folder / "ca" / "rootCA.pem")
        for place in participants:
            kit = assemble(made / place, made / place / f"{place}.signed.zip", made / place / "key", root)
            install(kit, folder / place / "kit")
            shutil.rmtree(folder / place / "key", ignore_errors=True)
            (made / place / "key").replace(folder / place / "key")
            (made / place / f"{place}.signed.zip").replace(folder / place / f"{place}.signed.zip")
    finally:
        shutil.rmtree(made, ignore_errors=True)


def install(new: Path, kit: Path) -> None:
    """Put key and certificate of a new kit into one that is there, with all that was written since."""
    for kind in ("server", "client"):
        for end in ("key", "crt"):
            name = Path("startup") / f"{kind}.{end}"
            if (new / name).is_file() and (kit / name).is_file():
                with replacing(kit / name) as temporary:
                    shutil.copy(new / name, temporary)


def renew_site(folder: Path, signed: Path, key_folder: Path) -> None:
    """Put a new certificate into a site's kit; refuses one of another root than the kit has."""
    made = folder / "renewed"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(mode=0o700)
    try:
        install(
            assemble(made, signed, key_folder, fingerprint(folder / "kit" / "startup" / "rootCA.pem")), folder / "kit"
        )
    finally:
        shutil.rmtree(made, ignore_errors=True)


def signed_certificate(signed: Path) -> Certificate:
    """The certificate in a signed request."""
    try:
        with open_regular(signed, error=InputError) as file, zipfile.ZipFile(file) as packed:
            name = str(parse_json(_unpacked(packed, "signed.json"), where=str(signed), error=InputError)["cert_file"])
            return from_pem(_unpacked(packed, name))
    except (InputError, *DAMAGED, RuntimeError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"no signed request {signed}; expected the zip that `populace federation approve` made"
        ) from error


def fingerprint(certificate: Path) -> str:
    """SHA-256 of a certificate, as people read it out to each other."""
    try:
        content = ssl.PEM_cert_to_DER_cert(read_text(certificate, most=MOST_BYTES, error=InputError))
    except ValueError as error:
        raise InputError(f"cannot read the certificate {certificate}: {error}") from error
    digest = hashlib.sha256(content).hexdigest().upper()
    return "SHA256:" + ":".join(digest[i : i + 2] for i in range(0, len(digest), 2))


def request_site(folder: Path, *, federation: str, name: str, org: str, place: str = "request") -> Path:
    """A key, which stays in the folder, and a request to send; returns the request."""
    step = _request_step(folder, place, federation, {"name": name, "type": "client", "org": org})
    return Path(_flare(step, home=folder)[0]["request_zip"])


def _request_step(folder: Path, place: str, federation: str, participant: JsonObject) -> Step:
    (folder / place).mkdir(parents=True, exist_ok=True)
    (folder / place).chmod(0o700)
    definition = folder / place / "participant.yml"
    write_json(definition, {"name": federation, "participants": [participant]})
    return ["cert", "request", "-p", definition, "--out", folder / place / "key", "--force"]


def approve(folder: Path, request: Path, signed: Path) -> str:
    """Sign a request with the federation's root; returns the name it is for."""
    name = requested_name(request)
    made = _flare(_approve_step(folder, request, signed), home=folder)[0]
    if (made.get("name"), made.get("cert_type", "client")) != (name, "client"):
        signed.unlink(missing_ok=True)
        raise InputError(f"{request} asks for something else than a site's certificate; nothing was signed")
    return name


def requested_name(request: Path) -> str:
    """The name of the site a request is for; a request of a server or of a person with rights is refused."""
    try:
        with open_regular(request, error=InputError) as file, zipfile.ZipFile(file) as packed:
            document = parse_json(_unpacked(packed, "request.json"), where=str(request), error=InputError)
    except (InputError, *DAMAGED, RuntimeError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"no request {request}; expected the zip that `populace site request` made") from error
    if not isinstance(document, dict) or (document.get("kind"), document.get("cert_type")) != ("site", "client"):
        raise InputError(f"{request} does not ask for a site's certificate; only those are signed")
    return check_name(str(document.get("name")), "a site's name")


def _unpacked(packed: zipfile.ZipFile, name: str) -> bytes:
    """A member of an archive that somebody sent, if it is short."""
    if packed.getinfo(name).file_size > MOST_BYTES:
        raise InputError(f"{name} is too long")
    return packed.read(name)


def _approve_step(folder: Path, request: Path, signed: Path) -> Step:
    profile = folder / "profile.yml"
    return ["cert", "approve", request, "-c", folder / "ca", "--profile", profile, "--out", signed, "--force"]


def assemble(folder: Path, signed: Path, key_folder: Path, expected_fingerprint: str) -> Path:
    """The startup kit from a signed request; refuses a root with another fingerprint. Returns the kit's folder."""
    if not signed.is_file():
        raise InputError(f"no signed request {signed}; expected the zip that `populace federation approve` made")
    made = folder / "kit.new"
    shutil.rmtree(made, ignore_errors=True)
    words: Step = [
        "package",
        signed,
        "--request-dir",
        key_folder,
        "--fingerprint",
        expected_fingerprint,
        "-w",
        made,
        "--force",
    ]
    found = _flare(words, home=folder)[0]
    kit = folder / "kit"
    shutil.rmtree(kit, ignore_errors=True)
    Path(found["output_dir"]).replace(kit)
    shutil.rmtree(made, ignore_errors=True)
    kit.chmod(0o700)
    return kit


def _flare(*steps: Step, home: Path) -> list[JsonObject]:
    """Commands of FLARE's tool, one after the other; its audit files go below `home`, not into the user's own folder."""
    require()
    state = home / ".flare"
    state.mkdir(parents=True, exist_ok=True)
    words = [[*map(str, step), "--format", "json"] for step in steps]
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", PROGRAM, json.dumps(words)], capture_output=True, text=True, timeout=SECONDS,
            env={**os.environ, "HOME": str(state)}, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RunError(f"FLARE's tool did not answer within {SECONDS} s") from error
    answers = [answer for line in done.stdout.splitlines() if (answer := _answer(line)) is not None]
    for answer in answers:
        if answer["status"] != "ok":
            reason = answer.get("message") or (answer.get("error") or {}).get("message") or "no reason given"
            raise InputError(f"a certificate step was refused: {reason}")
    if len(answers) != len(steps):
        raise RunError(f"FLARE's tool failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return [answer["data"] for answer in answers]


def _answer(line: str) -> JsonObject | None:
    try:
        found = parse_json(line, where="FLARE's tool")
    except RunError:
        return None
    return found if isinstance(found, dict) and "status" in found else None
