"""One process that runs cases and says which one it is at, so that the driver knows what a crash or a hang was about.

Reads jobs as JSON from its standard input, one a line: a target with case numbers, or inputs to run again. Writes one line
before each case and one for each finding.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import resource
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parents[2]
MOST_GROWTH = 600 * 2**20  # of resident memory within one case
ROOM = 4 * 2**30  # of addresses beyond what the process has when it begins


def main(corpus_folder: str) -> None:
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever is printed by a case is not ours
    faulthandler.enable(sys.stderr)
    from fuzz.target import to_text

    work = Path(corpus_folder) / "cwd"
    work.mkdir(parents=True, exist_ok=True)
    os.chdir(work)
    states: dict[str, Any] = {}
    for line in sys.stdin:
        job = json.loads(line)
        target = find_target(job["target"])
        if target.name not in states:
            limit_memory(room=None)
            channel.write(json.dumps({"preparing": target.name}) + "\n")
            states[target.name] = target.prepare(find_corpus(corpus_folder))
        limit_memory(room=ROOM)
        for case in job_cases(job, target, states[target.name]):
            if job.get("only_draw"):  # the input of a case that killed a worker
                channel.write(json.dumps({"drawn": to_text(case[1]())}) + "\n")
                continue
            _one(target, states[target.name], case, channel)
        channel.write(json.dumps({"finished": True}) + "\n")


def find_target(name: str) -> Any:
    """A target by its name; planted ones without all that the others import."""
    if name.startswith("planted"):
        from fuzz import planted

        return next(target for target in planted.TARGETS if target.name == name)
    import conftest  # noqa: F401 - the environment that all tests have
    from fuzz.registry import TARGETS

    return TARGETS[name]


def find_corpus(folder: str) -> Any:
    if "fuzz.corpus" not in sys.modules:
        return None  # planted targets need none
    return sys.modules["fuzz.corpus"].Corpus(Path(folder))


def job_cases(job: dict[str, Any], target: Any, state: Any):
    """The cases of a job: their names, and how to make their inputs."""
    from fuzz.target import from_text

    if "input" in job:
        yield job["name"], lambda: from_text(job["input"])
        return
    for number in range(job["first"], job["first"] + job["count"]):
        rng = random.Random(f"{job['seed']}/{target.name}/{number}")
        rng.case = (job["seed"], number)  # type: ignore[attr-defined]
        yield str(number), lambda rng=rng: target.draw(state, rng)


def _one(target: Any, state: Any, named: Any, channel: TextIO) -> None:
    from fuzz.target import FindingError, outcome, to_text

    name, make = named
    case: dict[str, Any] = {}
    began, before = time.process_time(), peak_memory(reset=True)
    channel.write(json.dumps({"at": name}) + "\n")
    found, where = "", ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case = make()
            result = outcome(target, state, case)
        grown = peak_memory() - before
        if grown > MOST_GROWTH:
            raise FindingError(f"{grown / 2**20:.0f} MB of memory")
    except Exception as error:
        result = "finding"
        found = f"{type(error).__name__}: {str(error)[:400]}"
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "/src/populace/" in frame.filename]
        last = (ours or frames)[-1]
        where = f"{Path(last.filename).name}:{last.lineno} {last.name}" + ("" if ours else " (harness)")
        trace = "".join(traceback.format_exception(error))[-6_000:]
    line = {"done": name, "result": result, "seconds": time.process_time() - began}
    if found:
        line |= {"what": found, "where": where, "input": to_text(case), "trace": trace}
    channel.write(json.dumps(line) + "\n")


def peak_memory(*, reset: bool = False) -> int:
    """The most resident memory since the last reset, in bytes."""
    with contextlib.suppress(OSError):
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        with open("/proc/self/status", "rb") as status:
            for line in status:
                if line.startswith(b"VmHWM:"):
                    return int(line.split()[1]) * 1024
    return 0


def limit_memory(*, room: int | None) -> None:
    """No more addresses than so many beyond those in use: a case that asks for the moon fails by itself."""
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (most if room is None else used + room, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main(sys.argv[1])
