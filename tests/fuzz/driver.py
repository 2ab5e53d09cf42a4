"""Hands cases to a worker process, watches over it, and keeps what it finds: exceptions, crashes, hangs, with inputs."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOUND = Path(__file__).parent / "found"
CPU_SECONDS = 20.0  # of one case
WALL_SECONDS = 60.0  # of one case that uses no processor time: it waits for something
MOST_WALL_SECONDS = 300.0
PREPARING_SECONDS = 600.0
JOB = 200  # cases of one job: a worker that died begins with the next one

Say = Callable[[str], None]


@dataclasses.dataclass(kw_only=True)
class Finding:
    target: str
    case: str
    what: str
    where: str
    input: dict[str, Any] | None = None
    trace: str = ""

    @property
    def key(self) -> str:
        """The same for cases that fail at the same place in the same way."""
        return hashlib.sha256(f"{self.target} {self.where} {self.what[:40]}".encode()).hexdigest()[:10]


@dataclasses.dataclass(kw_only=True)
class Tally:
    """What came of all cases, by target."""

    counts: dict[str, collections.Counter[str]] = dataclasses.field(default_factory=dict)
    seconds: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    findings: list[Finding] = dataclasses.field(default_factory=list)

    @property
    def cases(self) -> int:
        return sum(sum(counter.values()) for counter in self.counts.values())

    def note(self, target: str, result: str, seconds: float) -> None:
        self.counts.setdefault(target, collections.Counter())[result] += 1
        self.seconds[target] += seconds


class Worker:
    """A worker process and the case it is at."""

    def __init__(self, corpus: Path, limits: tuple[float, float]) -> None:
        paths = [str(ROOT / "tests"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fuzz.worker", str(corpus)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.errors, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"},
        )  # fmt: skip
        self.buffer = b""
        self.cpu_seconds, self.wall_seconds = limits

    def send(self, job: dict[str, Any]) -> None:
        self.process.stdin.write((json.dumps(job) + "\n").encode())
        self.process.stdin.flush()

    def lines(self) -> Iterable[dict[str, Any]]:
        """What the worker says until its job is finished; ends early, with `died` or `hung`, where it does so."""
        began, cpu, preparing = time.monotonic(), self.cpu(), True
        while True:
            ready, _, _ = select.select([self.process.stdout], [], [], 1.0)
            if ready:
                content = os.read(self.process.stdout.fileno(), 2**20)
                if not content:
                    yield {"died": self.process.wait()}
                    return
                self.buffer += content
                began, cpu = time.monotonic(), self.cpu()
                *whole, self.buffer = self.buffer.split(b"\n")
                for line in map(json.loads, whole):
                    preparing = "preparing" in line
                    yield line
                    if "finished" in line:
                        return
                continue
            waited, used = time.monotonic() - began, self.cpu() - cpu
            idle = waited > self.wall_seconds and used < 1.0
            if (
                waited > PREPARING_SECONDS
                if preparing
                else idle or used > self.cpu_seconds or waited > MOST_WALL_SECONDS
            ):
                self.process.send_signal(signal.SIGABRT)  # faulthandler says where it stands
                try:
                    self.process.wait(5)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
                yield {"hung": f"{used:.0f} s of processor time in {waited:.0f} s"}
                return

    def cpu(self) -> float:
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def said(self) -> str:
        """What faulthandler said at the end, without its list of modules."""
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace")
        return text.partition("\nExtension modules:")[0][-6_000:]

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        if self.process.poll() is None:
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        self.errors.close()


class Driver:
    """Runs jobs one after the other, in a new worker after each death."""

    def __init__(
        self, corpus: Path, *, say: Say = lambda _: None, limits: tuple[float, float] = (CPU_SECONDS, WALL_SECONDS)
    ) -> None:
        self.corpus, self.say, self.limits = corpus, say, limits
        self.tally = Tally()
        self._worker: Worker | None = None

    def cases(self, target: str, *, seed: int, count: int, first: int = 0) -> None:
        """So many cases of a target, in jobs of some hundred."""
        at, end = first, first + count
        while at < end:
            size = min(JOB, end - at)
            at = self._job({"target": target, "seed": seed, "first": at, "count": size}, last=at + size)

    def inputs(self, target: str, name: str, case: dict[str, Any]) -> None:
        """One input that was kept."""
        self._job({"target": target, "name": name, "input": case}, last=0)

    def _job(self, job: dict[str, Any], *, last: int) -> int:
        if self._worker is None:
            self._worker = Worker(self.corpus, self.limits)
        worker, at = self._worker, None
        worker.send(job)
        for line in worker.lines():
            at = line.get("at", at)
            if "result" in line:
                self.tally.note(job["target"], line["result"], line["seconds"])
                if line["result"] == "finding":
                    self._keep(job, at, line["what"], line["where"], line["input"], line["trace"])
            elif "died" in line or "hung" in line:
                what = f"hang: {line['hung']}" if "hung" in line else f"crash: exit {line['died']}"
                said = worker.said()
                self._worker.close()
                self._worker = None
                if at is None:
                    raise RuntimeError(f"the worker ended before a case of {job['target']}: {what}\n{said}")
                self.tally.note(job["target"], "finding", 0.0)
                self._keep(job, at, what, _place(said), job.get("input") or self._drawn(job, at), said)
                return int(at) + 1 if "input" not in job else last
        return last

    def _drawn(self, job: dict[str, Any], case: str) -> dict[str, Any] | None:
        """The input of a case whose worker is dead, drawn again by another."""
        worker = Worker(self.corpus, self.limits)
        try:
            worker.send({**job, "first": int(case), "count": 1, "only_draw": True})
            return next((line["drawn"] for line in worker.lines() if "drawn" in line), None)
        finally:
            worker.close()

    def _keep(self, job: dict[str, Any], case: str, what: str, where: str, made: Any, trace: str) -> None:
        name = case if "input" in job else f"{job['seed']}/{job['target']}/{case}"
        finding = Finding(target=job["target"], case=name, what=what, where=where, input=made, trace=trace)
        self.tally.findings.append(finding)
        self.say(f"FOUND {name}: {what[:160]} at {where}")

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _place(said: str) -> str:
    """The innermost line of ours in what faulthandler said."""
    ours = [line.strip() for line in said.splitlines() if "/src/populace/" in line]
    return ours[0].rpartition("/")[2] if ours else "?"


def shares(costs: dict[str, float], cases: int, *, least: int) -> dict[str, int]:
    """Cases of each target: at least so many each, the rest in inverse proportion to what a case costs."""
    left = max(0, cases - least * len(costs))
    weights = {name: 1 / cost for name, cost in costs.items()}
    total = sum(weights.values())
    given = {name: least + int(left * weight / total) for name, weight in weights.items()}
    cheapest = min(costs, key=costs.__getitem__)
    given[cheapest] += max(0, cases - sum(given.values()))
    return given


def found_cases() -> dict[str, dict[str, Any]]:
    """What was ever found, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOUND.glob("*.json"))}


def write_findings(findings: list[Finding], folder: Path) -> list[Path]:
    """One file per place that fails, each a case that `--replay` runs again."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for finding in findings:
        path = folder / f"{finding.target}-{finding.key}.json"
        if path not in written:
            document = {"target": finding.target, "case": finding.case, "was": f"{finding.what} at {finding.where}",
                        "input": finding.input, "trace": finding.trace}  # fmt: skip
            path.write_text(json.dumps(document, indent=1) + "\n")
            written[path] = finding
    return list(written)
