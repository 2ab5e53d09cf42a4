"""What is fuzzed: a target draws an input from a generator of random numbers, and runs it. And what counts as a finding."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import os
import random
import shutil
import socket
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuzz.mutate import PLACES, damaged
from populace.errors import PopulaceError

if TYPE_CHECKING:
    from fuzz.corpus import Corpus

#: An input: names, texts, numbers and bytes, from which a case can be run again by itself.
Input = dict[str, Any]
LONGEST_SENTENCE = 600
HERE = b"@CORPUS@"  # stands in inputs for where the corpus lies
FORMS = {".json": "json", ".toml": "toml", ".csv": "csv", ".npz": "npz", ".zip": "zip", ".head": "json"}


class FindingError(AssertionError):
    """Something that must not happen did, though nothing was raised."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """`prepare` makes what the cases need, once in a process; `draw` makes an input; `run` tries it, and raises what it raises.

    `cost` is about how many milliseconds a case takes: cheap targets get more cases. `known` are errors a target may raise
    beside PopulaceError.
    """

    name: str
    prepare: Callable[[Corpus], Any]
    draw: Callable[[Any, random.Random], Input]
    run: Callable[[Any, Input], None]
    cost: float = 2.0


def outcome(target: Target, state: Any, case: Input) -> str:
    """`ok` or `refused`; raises whatever is a finding."""
    try:
        target.run(state, case)
    except PopulaceError as error:
        check_sentence(str(error))
        return "refused"
    return "ok"


def check_sentence(text: str) -> None:
    """One sentence: short, on one line, without what a program says to its authors."""
    if not text.strip():
        raise FindingError("an error without a sentence")
    if len(text) > LONGEST_SENTENCE:
        raise FindingError(f"a sentence of {len(text)} characters: {text[:200]!r}")
    if "\n" in text.strip() or "Traceback (most recent" in text:
        raise FindingError(f"more than a sentence: {text[:300]!r}")


def to_text(case: Input) -> Input:
    """An input as JSON holds it."""
    return {name: _packed(value) for name, value in case.items()}


def from_text(case: Input) -> Input:
    return {name: _unpacked(value) for name, value in case.items()}


def _packed(value: Any) -> Any:
    if isinstance(value, bytes):
        small = zlib.compress(value, 9)
        form, content = ("deflated", small) if len(small) < len(value) else ("base64", value)
        return {form: base64.b64encode(content).decode()}
    if isinstance(value, str):
        return {"text": value.encode("utf-8", "surrogatepass").hex()} if not value.isprintable() else value
    if isinstance(value, list | tuple):
        return [_packed(each) for each in value]
    return {"map": {key: _packed(each) for key, each in value.items()}} if isinstance(value, dict) else value


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(each) for each in value]
    if isinstance(value, dict) and "base64" in value:
        return base64.b64decode(value["base64"])
    if isinstance(value, dict) and "deflated" in value:
        return zlib.decompress(base64.b64decode(value["deflated"]))
    if isinstance(value, dict) and "text" in value:
        return bytes.fromhex(value["text"]).decode("utf-8", "surrogatepass")
    return {key: _unpacked(each) for key, each in value["map"].items()} if isinstance(value, dict) else value


def put(path: Path, place: str) -> None:
    """Put something else than a file where one is expected."""
    clear(path)
    if place == "fifo":
        os.mkfifo(path)
    elif place == "folder":
        path.mkdir()
    elif place == "dangling":
        path.symlink_to(path.with_name("nothing-there"))
    elif place == "loop":
        path.symlink_to(path)
    elif place == "device":
        path.symlink_to("/dev/zero")
    elif place in ("empty", "unreadable"):
        path.touch(mode=0o644 if place == "empty" else 0)
    elif place == "socket":
        here = Path.cwd()
        os.chdir(path.parent)  # names of sockets are short
        try:
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(path.name[:90])
        finally:
            os.chdir(here)


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


@dataclasses.dataclass(kw_only=True)
class Files:
    """The valid files of a target, and the folder in which cases are tried."""

    valid: dict[str, bytes]
    scratch: Path
    root: bytes
    touched: tuple[str, ...] = ()


def file_target(
    name: str,
    valid: Callable[[Corpus], Mapping[str, bytes]],
    use: Callable[[Path], object],
    *,
    cost: float = 2.0,
) -> Target:
    """A reader of one file: it is given each valid file, damaged."""

    def prepare(corpus: Corpus) -> Files:
        scratch = corpus.folder / "scratch" / name
        scratch.mkdir(parents=True, exist_ok=True)
        return Files(valid=dict(valid(corpus)), scratch=scratch, root=str(corpus.folder).encode())

    def draw(files: Files, rng: random.Random) -> Input:
        chosen = rng.choice(sorted(files.valid))
        return {"file": Path(chosen).name, **damaged_file(rng, files, chosen)}

    def run(files: Files, case: Input) -> None:
        path = files.scratch / case["file"]
        _place(path, case, files.root)
        try:
            use(path)
        finally:
            clear(path)

    return Target(name=name, prepare=prepare, draw=draw, run=run, cost=cost)


def damaged_file(rng: random.Random, files: Files, chosen: str) -> Input:
    """What stands in a file's place: damaged content, or now and then no file at all."""
    if rng.random() < 0.04:
        return {"place": rng.choice(PLACES)}
    data = files.valid[chosen]
    suffix = Path(chosen).suffix
    others = [content for other, content in files.valid.items() if Path(other).suffix == suffix and other != chosen]
    made = damaged(rng, data, others or list(files.valid.values()), form=FORMS.get(suffix, ""))
    return {"data": made.replace(files.root, HERE)}


def _place(path: Path, case: Input, root: bytes) -> None:
    clear(path)
    if "place" in case:
        put(path, case["place"])
    else:
        path.write_bytes(case["data"].replace(HERE, root))


def folder_target(
    name: str,
    part: str,
    use: Callable[[Path, str], object],
    *,
    damage: Iterable[str] = ("*",),
    within: Iterable[str] = ("",),
    cost: float = 10.0,
) -> Target:
    """A reader of a folder: one of its files is damaged, those that `damage` names; `within` are folders of the part to use."""
    patterns, folders = tuple(damage), tuple(within)

    def prepare(corpus: Corpus) -> Files:
        files = corpus.files(part)
        return Files(valid=files, scratch=corpus.part(part), root=str(corpus.folder).encode())

    def draw(files: Files, rng: random.Random) -> Input:
        folder = rng.choice(folders)
        names = [
            each
            for each in sorted(files.valid)
            if each.startswith(folder) and any(Path(each).match(pattern) for pattern in patterns)
        ]
        chosen = rng.choice(names)
        return {"folder": folder, "file": chosen, **damaged_file(rng, files, chosen)}

    def run(files: Files, case: Input) -> None:
        restore(files)
        _place(files.scratch / case["file"], case, files.root)
        try:
            use(files.scratch / case["folder"], case["file"])
        finally:
            clear(files.scratch / case["file"])

    return Target(name=name, prepare=prepare, draw=draw, run=run, cost=cost)


def restore(files: Files) -> None:
    """The folder as it was built: files that a case changed or added are put back or removed."""
    for entry in os.scandir(files.scratch):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
    for name, content in files.valid.items():
        path = files.scratch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
