"""A run's folder: who may write into it, what stands in it, and how an unfinished one is recognised.

run.json         what was run, with which versions, how long it took, what went over the wire; "status" is written last
privacy.json     the guarantee and its derivation
generator.*      the model
synthetic.parquet
metrics.json, report.html     from `populace evaluate`
resume.json, checkpoint.npz   only while unfinished; private, removed at the end
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from populace.engines.checkpoint import Checkpoint
from populace.errors import RunError
from populace.tables.files import read_json, write_json


class RunFolder:
    """Paths and states of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self / "checkpoint.npz")

    @property
    def finished(self) -> bool:
        return (self / "run.json").is_file() and read_json(self / "run.json").get("status") == "finished"

    def document(self) -> dict[str, Any]:
        """run.json of a finished run."""
        if not (self / "run.json").is_file():
            raise RunError(f"{self.path} is not a run: it has no run.json; `populace synthesize` makes one")
        document: dict[str, Any] = read_json(self / "run.json")
        if document.get("status") != "finished":
            raise RunError(
                f"the run in {self.path} is not finished; give the same `populace synthesize` command to resume it"
            )
        return document

    @contextlib.contextmanager
    def claim(self, spec: dict[str, Any], digest: str) -> Iterator[bool]:
        """Take the folder for this specification; yields whether an unfinished run is being resumed."""
        self._refuse_others(digest)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the folder {self.path}: {error.strerror or error}") from error
        with self._locked():
            resuming = (self / "run.json").is_file()
            if not resuming:
                write_json(self / "run.json", {"status": "unfinished", "digest": digest, "spec": spec})
            yield resuming

    def _refuse_others(self, digest: str) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; expected a new folder for the run")
        if not self.path.is_dir():
            return
        if not (self / "run.json").is_file():
            if any(entry.name != ".lock" for entry in self.path.iterdir()):
                raise RunError(f"the folder {self.path} is not empty and holds no run; choose another --out")
            return
        document = read_json(self / "run.json")
        if document.get("status") == "finished":
            raise RunError(f"{self.path} holds a finished run; choose another --out, or remove it")
        if document.get("digest") != digest:
            raise RunError(
                f"{self.path} holds an unfinished run with another specification; give the same command to resume it, "
                "or choose another --out"
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            handle = (self / ".lock").open("w")
        except OSError as error:
            raise RunError(f"cannot write into {self.path}: {error.strerror or error}") from error
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(
                    f"another process is working on {self.path}; wait for it, or choose another --out"
                ) from None
            yield
        (self / ".lock").unlink(missing_ok=True)

    def check_same_data(self, *parts: bytes) -> None:
        """Refuse to resume on other data. The fingerprint is keyed with a secret of this run and removed at the end: a plain
        hash of private rows would let anybody test a guess about them."""
        path = self / "resume.json"
        salt = read_json(path)["salt"] if path.is_file() else secrets.token_hex(32)
        digest = hmac.new(bytes.fromhex(salt), digestmod=hashlib.sha256)
        for part in parts:
            digest.update(part)
        if path.is_file():
            if read_json(path)["fingerprint"] != digest.hexdigest():
                raise RunError(f"the data changed since {self.path} was begun; restore them, or choose another --out")
            return
        write_json(path, {"salt": salt, "fingerprint": digest.hexdigest()})
        os.chmod(path, 0o600)

    def finish(self, document: dict[str, Any]) -> None:
        write_json(self / "run.json", document)
        self.checkpoint.remove()
        (self / "resume.json").unlink(missing_ok=True)
