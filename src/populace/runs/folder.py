"""A run's folder: who may write into it, what stands in it, and how an unfinished one is recognised.

run.json         what was run, with which versions, how long it took, what went over the wire; "status" is written last
privacy.json     the guarantee, the events it follows from, and the SHA-256 of what may be published with it
privacy.html     the same for people: a statement without any figure from real rows
generator.*      the model
synthetic.parquet, or synthetic.npz for images
metrics.json, report.html     from `populace evaluate`; comparison.json, comparison.html where it compares several runs
generator.schema.json   the schema of the run, where the model's is smaller: without cells that nothing falls into
resume.json, checkpoint.npz, booking.json, lists.json   only while unfinished; private, removed at the end
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import hmac
import importlib.metadata
import os
import platform
import secrets
from collections.abc import Iterator
from pathlib import Path

from populace.border.models import check_document, interpreting, read_document
from populace.border.regular import open_output, open_regular
from populace.engines.checkpoint import Checkpoint
from populace.errors import RunError
from populace.privacy import events
from populace.privacy.events import Event
from populace.privacy.guarantee import FORMAT, Guarantee, guarantee_from_json
from populace.runs.forms import FinishedForm, PrivacyForm, ResumeForm, RunForm
from populace.tables.files import read_json, write_json
from populace.tables.images import Images
from populace.tables.table import Table
from populace.types import JsonObject
from populace.version import __version__

LISTS = "lists.json"  # of categories that each silo released, while a run is unfinished
#: What was made under the guarantee, may be published with it, and is needed to verify it.
RELEASED = ("generator.*", "synthetic.*")
#: What of run.json stands in privacy.json too: public before any record is read, or declared public by the claim.
PUBLIC = ("method", "parameters", "clients", "split", "rows", "rounds", "versions", "population")
#: What was asked for, of it.
ASKED = ("epsilon", "delta", "records_per_client", "client_column", "most_records", "target")
#: What stands there only where it was said.
MAY_BE_ASKED = ("silos", "person")
#: Whose versions a run keeps, beside Python's.
VERSIONS = ("populace", "jax", "numpy", "pyarrow", "dp-accounting")


def versions() -> dict[str, str]:
    """What ran: this code by its own word, libraries by what is installed."""
    found = {"python": platform.python_version(), "populace": __version__}
    for name in VERSIONS:
        if name not in found:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                found[name] = "not installed"
    return found


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a run that was made under its guarantee, by name."""
    paths = sorted(path for pattern in RELEASED for path in folder.glob(pattern) if path.is_file())
    return {path.name: digest_of(path) for path in paths}


def digest_of(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from error


def where_of(document: JsonObject) -> str:
    """Where a run took place, by its run.json: at sites, on people's devices, in files of answers, or in a simulation."""
    if "sites" in document:
        return "sites"
    return "devices" if "study" in document else "files" if "answers" in document else "simulation"


def claim_json(guarantee: Guarantee, history: JsonObject | None) -> JsonObject:
    """What of privacy.json follows from the claim and from what a ledger says of other runs."""
    document = guarantee.to_json()
    return (
        document
        if history is None
        else {**document, "statement": f"{guarantee.statement}\nother runs: {history['said']}"}
    )


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
        return (self / "run.json").is_file() and self.read().get("status") == "finished"

    def read(self) -> JsonObject:
        """run.json, of a finished run or an unfinished one."""
        document = read_json(self / "run.json")
        form = FinishedForm if isinstance(document, dict) and document.get("status") == "finished" else RunForm
        return check_document(document, form, where=str(self / "run.json"), advice="remove the folder, or restore it")

    def document(self) -> JsonObject:
        """run.json of a finished run."""
        if self.path.is_file():
            raise RunError(
                f"{self.path} is a file, not the folder of a run; give real rows by --real, once for each file"
            )
        if not (self / "run.json").is_file():
            raise RunError(f"{self.path} is not a run: it has no run.json; `populace synthesize` makes one")
        document = self.read()
        if document.get("status") != "finished":
            raise RunError(
                f"the run in {self.path} is not finished; give the same `populace synthesize` command to resume it"
            )
        self._sweep()
        return document

    def privacy(self) -> JsonObject:
        """privacy.json."""
        return read_document(self / "privacy.json", PrivacyForm)

    def guarantee(self) -> Guarantee:
        """The guarantee in privacy.json."""
        document = self.privacy()
        with interpreting(str(self / "privacy.json")):
            return guarantee_from_json(document)

    def check_released(self) -> None:
        """Refuse a model other than the one the guarantee was written for; version 0.1.0 listed none."""
        listed = self.privacy().get("files")
        for name, digest in listed.items() if isinstance(listed, dict) else ():
            if name.startswith("generator.") and digest_of(self / Path(name).name) != digest:
                raise RunError(f"{self / name} is not the file that this run wrote, by its privacy.json; restore it")

    @contextlib.contextmanager
    def claim(self, spec: JsonObject, digest: str) -> Iterator[bool]:
        """Take the folder for this specification; yields whether an unfinished run is being resumed."""
        self._refuse_others(digest)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the folder {self.path}: {error.strerror or error}") from error
        with self._locked():
            self._refuse_others(digest)  # again: another process may have finished it meanwhile
            self._sweep()
            resuming = (self / "run.json").is_file()
            if not resuming:
                begun = {
                    "status": "unfinished",
                    "version": __version__,
                    "format": FORMAT,
                    "digest": digest,
                    "spec": spec,
                }
                write_json(self / "run.json", begun)
            yield resuming

    def _refuse_others(self, digest: str) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; expected a new folder for the run")
        if not self.path.is_dir():
            return
        if not (self / "run.json").is_file():
            if any(not entry.name.startswith(".") for entry in self.path.iterdir()):
                raise RunError(f"the folder {self.path} is not empty and holds no run; choose another --out")
            return
        document = self.read()
        if document.get("status") != "unfinished":
            self._sweep()
            raise RunError(f"{self.path} holds a finished run; choose another --out, or remove it")
        begun_by = (str(document.get("version", "0.1.0")), document.get("format", 1))
        if begun_by != (__version__, FORMAT):
            raise RunError(
                f"{self.path} holds an unfinished run that another populace ({begun_by[0]}) began: other code makes other "
                "replies; finish it with that version, or choose another --out"
            )
        if document.get("digest") != digest:
            raise RunError(
                f"{self.path} holds an unfinished run with another specification; give the same command to resume it, "
                "or choose another --out"
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock. Its holder removes it at the end, so a waiting process looks whether it still counts."""
        path = self / ".lock"
        try:
            handle = open_output(path)
        except RunError as error:
            raise RunError(f"cannot write into {self.path}: {error}") from error
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                current = path.exists() and os.path.samestat(os.fstat(handle.fileno()), path.stat())
            except OSError:
                current = False
            if not current:
                raise RunError(f"another process is working on {self.path}; wait for it, or choose another --out")
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove what a killed process may have left: half-written files, and, of a finished run, what resuming needs.

        Both can hold the key the noise was drawn from.
        """
        left = list(self.path.glob(".*.tmp"))
        if self.finished:
            left += [self.checkpoint.path, self / "resume.json", self / "booking.json", self / LISTS]
        for path in left:
            path.unlink(missing_ok=True)

    def check_same_data(self, *parts: bytes | memoryview) -> None:
        """Refuse to resume on other data. The fingerprint is keyed with a secret of this run and removed at the end: a plain
        hash of private rows would let anybody test a guess about them."""
        path = self / "resume.json"
        kept = self._resume() if path.exists() else None
        salt = kept["salt"] if kept else secrets.token_hex(32)
        digest = hmac.new(bytes.fromhex(salt), digestmod=hashlib.sha256)
        for part in parts:
            digest.update(part)
        if kept:
            if kept["fingerprint"] != digest.hexdigest():
                raise RunError(f"the data changed since {self.path} was begun; restore them, or choose another --out")
            return
        path.touch(mode=0o600)
        write_json(path, {"salt": salt, "fingerprint": digest.hexdigest()}, mode=0o600)

    def _resume(self) -> JsonObject:
        """resume.json, which is whole: without its secret nobody can tell whether the data are the same."""
        return read_document(self / "resume.json", ResumeForm, advice="restore it, or choose another --out")

    def bound(self, name: str) -> bool:
        """Whether this unfinished run has noted the content of a file."""
        return name in self._resume().get("bound", {})

    def bind(self, name: str) -> None:
        """Note what a file holds, until the run is finished; refuse one that is gone, or holds something else since."""
        resume, path = self / "resume.json", self / name
        kept = self._resume()
        noted = kept.get("bound", {})
        if name not in noted:
            write_json(resume, {**kept, "bound": {**noted, name: digest_of(path)}}, mode=0o600)
        elif not path.is_file() or digest_of(path) != noted[name]:
            raise RunError(
                f"{path} is not the file that this run wrote; restore it, or choose another --out to begin (and pay for) a new "
                "run"
            )

    def save_synthetic(self, drawn: Table | Images) -> Path:
        """What a generator made, under the name its kind has."""
        path = self / ("synthetic.npz" if isinstance(drawn, Images) else "synthetic.parquet")
        drawn.save(path)
        return path

    def save_privacy(
        self,
        guarantee: Guarantee,
        document: JsonObject,
        *,
        event: Event | None,
        history: JsonObject | None = None,
    ) -> None:
        """privacy.json, after everything it lists and before run.json, whose content to be is `document`.

        `event` is all that was released about the unit charged most, `history` what a ledger says of other runs.
        """
        run = {"where": where_of(document), **{name: document[name] for name in PUBLIC if name in document}}
        spec = document["spec"]
        more_asked = (name for name in MAY_BE_ASKED if spec.get(name) is not None)
        asked = {name: spec.get(name) for name in (*ASKED, *more_asked)}
        more = {
            "written": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "ledger": document["ledger"],
            "event": None if event is None else events.to_json(event),
            "history": None if history is None else dict(history),
            "run": {**run, "asked": asked},
            "files": digests(self.path),
        }
        write_json(self / "privacy.json", {**claim_json(guarantee, history), **more})

    def finish(self, document: JsonObject) -> None:
        """Write run.json, which makes the run finished, and remove what only a resumed one needs."""
        write_json(self / "run.json", document)
        self._sweep()
