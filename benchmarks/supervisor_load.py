"""`python -m benchmarks.supervisor_load`: a run over three real sites on a machine that is busy with other work.

    python -m benchmarks.supervisor_load [--busy 10] [--rounds 200] [--timeout 60] [--kill-after ROUND] [--json FILE]

So many processes keep the processor busy while `populace federation run` works through cheap rounds that ask every site. Where
nobody dies there must be exactly one segment. With `--kill-after` one site's processes are killed for good after a round: the
rounds after it must be finished without the site.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.federation import Bench, agreement
from populace.engines.flare import processes
from populace.engines.segment import read_status
from populace.tables.files import read_json, write_json

SITES = 3


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that compute without end."""
    made = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in made:
            one.kill()
            one.wait()


def kill_site(bench: Bench, number: int) -> str:
    """As a power cut does it: a site's client and its job, at once."""
    site = bench.sites[number]
    for member in processes.family(site.kit):
        with suppress(psutil.Error):
            member.kill()
    return site.path.name


def measure(folder: Path, *, count: int, rounds: int, timeout: float, kill_after: int) -> dict[str, object]:
    """One run from start to end, and what became of it."""
    bench = Bench(folder, SITES, [agreement(1_000, rounds)])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [".", os.environ.get("PYTHONPATH")]))}
    os.environ.update(environment)
    out, log, killed = folder / "run", folder / "command.log", ""
    command = [
        *(sys.executable, "-m", "populace", "federation", "run", str(bench.federation.path), "--out", str(out)),
        *("--sites", str(SITES), "--rows", "100", "--timeout", str(timeout), "--json"),
    ]
    try:
        bench.start()
        with busy(count), log.open("w") as lines:
            began, killed_at = time.monotonic(), 0
            run = subprocess.Popen(command, stdout=lines, stderr=lines, env=environment)
            while run.poll() is None:
                time.sleep(0.2)
                place = _place(bench, out)
                if kill_after and not killed and place is not None and read_status(place)["round"] >= kill_after:
                    killed, killed_at = kill_site(bench, 1), int(read_status(place)["round"])
            seconds, load = time.monotonic() - began, os.getloadavg()[0]
        place = _place(bench, out)
        if run.returncode or place is None:
            raise RuntimeError(log.read_text()[-2000:])
        return {
            **_figures(place, killed_at),
            "seconds": round(seconds, 1),
            "load": load,
            "killed": killed,
            "busy": count,
        }
    finally:
        bench.stop()


def _place(bench: Bench, out: Path) -> Path | None:
    if not (out / "run.json").is_file():
        return None
    place = bench.federation.run_folder(read_json(out / "run.json")["spec"]["run"])
    return place if place.is_dir() else None


def _figures(place: Path, killed_at: int) -> dict[str, object]:
    lines = [json.loads(line) for line in (place / "rounds.jsonl").read_text().splitlines()]
    seconds = [line["seconds"] for line in lines]
    after = [line for line in lines if line["round"] > killed_at + 1] if killed_at else []
    return {
        "segments": read_status(place)["segment"],
        "rounds": len(lines),
        "rounds_with_everybody": sum(len(line["replies"]) == sum(line["replies"].values()) for line in lines),
        "median_round": statistics.median(seconds),
        "slowest_round": max(seconds),
        "first_round": seconds[0],
        "killed_after": killed_at,
        "rounds_since": len(after),
        "rounds_since_without_it": sum(bool(line["missing"]) for line in after),
        "median_round_since": statistics.median([line["seconds"] for line in after]) if after else 0.0,
        "five_slowest_since": sorted((line["seconds"] for line in after), reverse=True)[:5],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.supervisor_load", description=__doc__)
    parser.add_argument("--busy", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--kill-after", type=int, default=0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(
            Path(folder), count=asked.busy, rounds=asked.rounds, timeout=asked.timeout, kill_after=asked.kill_after
        )
    for name, value in found.items():
        print(f"{name:26}{value}")
    if asked.json:
        write_json(asked.json, found)


if __name__ == "__main__":
    main()
