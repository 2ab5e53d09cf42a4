"""FLARE's long-lived processes: started apart from the terminal, found again by a small file, ended with all they started."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Literal

import psutil

from populace.border.models import read_document
from populace.engines.forms import ProcessForm
from populace.errors import RunError
from populace.tables.files import write_json

Kind = Literal["server", "client"]
GRACE_SECONDS = 8.0
SECONDS_APART = 2.0  # of two readings of when a process began: the time of the machine's start is rounded
#: A site runs FLARE's client with less to ask of it, a coordinator FLARE's server with a closer look at who comes.
MODULES = {"server": "populace.engines.flare.server", "client": "populace.engines.flare.client"}


def start(kit: Path, kind: Kind, *, name: str, org: str) -> int:
    """Start a server or a site's client from its kit, detached; returns its process number."""
    if alive(kit) is not None:
        raise RunError(f"{name} is running already (process {alive(kit)}); stop it first")
    (kit / "transfer").mkdir(exist_ok=True)
    who = ["org=" + org] if kind == "server" else ["uid=" + name, "org=" + org]
    command = [
        sys.executable, "-u", "-m", MODULES[kind], "-m", str(kit), "-s", f"fed_{kind}.json",
        "--set", "secure_train=true", *who, "config_folder=config",
    ]  # fmt: skip
    environment = {**os.environ, "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", "4")}
    log, create = str(kit / "process.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        sys.executable, command, environment, setsid=True,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, create, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )  # fmt: skip
    note(kit, pid)
    return pid


def note(kit: Path, pid: int) -> None:
    """Write down which process runs from a kit."""
    write_json(kit / "process.json", {"pid": pid, "seconds_after_boot": seconds_after_boot(psutil.Process(pid))})


def alive(kit: Path) -> int | None:
    """The number of the running process, or None.

    A number that another process has got since does not count, nor does that of the folder this one was copied from. When a
    process began is counted from the machine's start: by the clock it would change whenever the clock is set.
    """
    found = _process(kit)
    return None if found is None else int(found.pid)


def _process(kit: Path) -> psutil.Process | None:
    if not (kit / "process.json").is_file():
        return None
    noted = read_document(kit / "process.json", ProcessForm, advice="end the process yourself, then remove the file")
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(noted["pid"])
        if "began" in noted:  # up to version 0.3.0, by the clock
            same = abs(process.create_time() - noted["began"]) < 1.0
        else:
            same = abs(seconds_after_boot(process) - noted["seconds_after_boot"]) < SECONDS_APART
        if same and str(kit) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def seconds_after_boot(process: psutil.Process) -> float:
    """When a process began, counted from the machine's start: setting the clock does not change it."""
    return float(process.create_time() - psutil.boot_time())


def was_stopped(kit: Path) -> bool:
    """Whether nothing runs because somebody stopped it, rather than because it died."""
    return not (kit / "process.json").is_file()


def family(kit: Path) -> list[psutil.Process]:
    """The process and all its descendants, oldest first."""
    process = _process(kit)
    if process is None:
        return []
    with contextlib.suppress(psutil.Error):
        return [process, *process.children(recursive=True)]
    return [process]


def stop(kit: Path) -> bool:
    """Terminate the process and all it started, then kill what is left; return whether there was one."""
    members = family(kit)
    for member in members:
        with contextlib.suppress(psutil.Error):
            member.terminate()
    _, left = psutil.wait_procs(members, timeout=GRACE_SECONDS)
    for member in left:
        with contextlib.suppress(psutil.Error):
            member.kill()
    psutil.wait_procs(left, timeout=GRACE_SECONDS)
    (kit / "process.json").unlink(missing_ok=True)
    return bool(members)
