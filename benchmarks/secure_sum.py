"""`python -m benchmarks.secure_sum`: seconds and bytes of a site in a secure sum, beside the same sum without masks.

    python -m benchmarks.secure_sum [--sizes N ...] [--sites K ...] [--json FILE]

All sites run in this process, one after the other, each with a journal on disk as at a real site. A site's seconds are its own
work: drawing its share of the noise, all five steps, writing what it keeps; without masks, drawing, packing and writing the
same numbers. CPU seconds stand beside, because what a disk takes to confirm a write (five times in a sum, once without masks)
differs from disk to disk. The coordinator's seconds are its own work too. The network is not in it; bytes are those of the
messages. Where all sites together would take long (`MOST_WORK`), keys and shares are those of all, two sites mask, and the
masks that the coordinator takes off are timed alone: the sum is not opened there, and `opened` says so.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from populace.engines.secure_sum import messages, primitives, steps
from populace.engines.secure_sum.journal import SqliteJournal
from populace.engines.secure_sum.opening import open_sum
from populace.engines.secure_sum.primitives import signing_public
from populace.engines.secure_sum.roster import Member, Opening, SumRoster
from populace.engines.secure_sum.site import SumSite
from populace.privacy import secure_random

SIZES, SITES = (10**4, 10**6, 10**7), (3, 10, 50)
MOST_WORK = 3 * 10**9  # numbers of all keystreams of all sites
SAMPLED = 2  # sites that mask, where not all do
DEVIATION = 20.0  # of a share, in units of the grid


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def timed_twice(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds by the clock, those of the processor, and the result."""
    cpu = time.process_time()
    took, result = timed(work)
    return took, time.process_time() - cpu, result


def numbers_with_noise(counts: np.ndarray) -> np.ndarray:
    return (counts + secure_random.rounded_normal(DEVIATION, counts.shape)).view(np.uint64)


class Site:
    """One site and its clock; what it sends and gets is counted."""

    def __init__(self, opening: Opening, place: int, key: bytes, folder: Path) -> None:
        self.db = sqlite3.connect(folder / f"{place}.sqlite", isolation_level=None)
        self.db.execute("PRAGMA synchronous=EXTRA")
        self.own = SumSite(opening=opening, place=place, signing_key=key, journal=SqliteJournal(self.db))
        self.seconds = self.cpu = 0.0
        self.up = self.down = 0

    def answer(self, step: messages.Step, request: messages.Rows, counts: np.ndarray) -> bytes:
        took, cpu, reply = timed_twice(lambda: self.own.answer(step, request, lambda: numbers_with_noise(counts)))
        self.seconds += took
        self.cpu += cpu
        self.up += len(reply)
        self.down += len(messages.pack_rows(step, request))
        return reply


def masked(count: int, size: int) -> dict[str, Any]:
    keys = [os.urandom(32) for _ in range(count)]
    members = tuple(Member(site=f"site-{i}", key=signing_public(key).hex()) for i, key in enumerate(keys))
    roster = SumRoster(members=members, threshold=count // 2 + 1)
    opening = Opening(run="benchmark", round=0, roster=roster, size=size)
    counts = np.arange(size, dtype=np.int64) % 1_000
    with tempfile.TemporaryDirectory() as folder:
        sites = [Site(opening, place, key, Path(folder)) for place, key in enumerate(keys)]
        whole = count * count * size <= MOST_WORK
        return opened_by_all(opening, sites, counts) if whole else sampled(opening, sites, counts)


def opened_by_all(opening: Opening, sites: list[Site], counts: np.ndarray) -> dict[str, Any]:
    def exchange(step: messages.Step, requests: Any) -> Any:
        for place, request in requests.items():
            yield place, sites[place].answer(step, request, counts)

    took, opened = timed(lambda: open_sum(opening, exchange))
    own = sum(site.seconds for site in sites)
    noise = opened.total.view(np.int64) - len(sites) * counts
    spread = float(noise.std() / (DEVIATION * len(sites) ** 0.5))
    return figures(sites, took - own) | {"opened": True, "noise over its deviation": round(spread, 3)}


def sampled(opening: Opening, sites: list[Site], counts: np.ndarray) -> dict[str, Any]:
    """Keys and shares of all; masks of some; the coordinator's masks by themselves."""
    packed = [site.answer("advertise", {}, counts) for site in sites]
    keys: dict[int, bytes] = {}
    for reply in packed:
        keys |= messages.unpack_rows(reply, kind="advertise", width=messages.ADVERTISED_BYTES)
    boxes = {
        place: messages.unpack_rows(site.answer("share", keys, counts), kind="share", width=messages.SEALED_BYTES)
        for place, site in enumerate(sites)
    }
    for place in range(SAMPLED):
        mine = {other: boxes[other][place] for other in boxes if other != place}
        sites[place].answer("mask", mine, counts)
    total = np.zeros(opening.size, np.uint64)
    secrets = [(steps.self_mask_key(opening, os.urandom(32)), True) for _ in sites]
    took, _ = timed(lambda: primitives.add_masks(total, secrets))
    adding, _ = timed(lambda: [np.add(total, total, out=total) for _ in sites])
    return figures(sites[:SAMPLED], took + adding) | {"opened": False}


def figures(sites: list[Site], coordinator: float) -> dict[str, Any]:
    return {
        "seconds_of_a_site": statistics.median(site.seconds for site in sites),
        "cpu_seconds_of_a_site": statistics.median(site.cpu for site in sites),
        "seconds_of_the_coordinator": coordinator,
        "bytes_from_a_site": statistics.median(site.up for site in sites),
        "bytes_to_a_site": statistics.median(site.down for site in sites),
    }


def plain(count: int, size: int) -> dict[str, Any]:
    """The same numbers, packed, written and added up without masks."""
    counts = np.arange(size, dtype=np.int64) % 1_000
    asked = min(count, SAMPLED + 1)
    with tempfile.TemporaryDirectory() as folder:
        db = sqlite3.connect(Path(folder) / "plain.sqlite", isolation_level=None)
        db.execute("PRAGMA synchronous=EXTRA")
        db.execute("CREATE TABLE kept (reply BLOB)")

        def answer() -> bytes:
            reply = messages.pack_numbers(numbers_with_noise(counts))
            db.execute("INSERT INTO kept VALUES (?)", (reply,))
            return reply

        each = [timed_twice(answer) for _ in range(asked)]
    total = np.zeros(size, np.uint64)
    opening = Opening(run="p", round=0, roster=_any_roster(), size=size)
    took, _ = timed(lambda: np.add(total, messages.unpack_numbers(each[0][2], opening), out=total))
    return {
        "seconds_of_a_site": statistics.median(took for took, _, _ in each),
        "cpu_seconds_of_a_site": statistics.median(cpu for _, cpu, _ in each),
        "seconds_of_the_coordinator": count * took,
        "bytes_from_a_site": len(each[0][2]),
    }


def _any_roster() -> SumRoster:
    members = tuple(Member(site=f"site-{i}", key=signing_public(bytes([i + 1]) * 32).hex()) for i in range(2))
    return SumRoster(members=members, threshold=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--sites", type=int, nargs="+", default=list(SITES))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for size in options.sizes:
        for count in options.sites:
            without, with_masks = plain(count, size), masked(count, size)
            ratio, of_cpu = (
                with_masks[name] / without[name] for name in ("seconds_of_a_site", "cpu_seconds_of_a_site")
            )
            row = {
                "numbers": size, "sites": count, "masked": with_masks, "plain": without, "ratio_of_a_site": ratio,
                "cpu_ratio_of_a_site": of_cpu,
            }  # fmt: skip
            rows.append(row)
            print(
                f"{size:>10,} numbers, {count:>2} sites: a site {with_masks['seconds_of_a_site']:.3f} s "
                f"(plain {without['seconds_of_a_site']:.3f}, {ratio:.2f} times, CPU {of_cpu:.2f}), coordinator "
                f"{with_masks['seconds_of_the_coordinator']:.3f} s (plain {without['seconds_of_the_coordinator']:.3f}), "
                f"{with_masks['bytes_from_a_site'] / 1e6:.2f} MB up, {with_masks['bytes_to_a_site'] / 1e3:.1f} kB down"
            )
    if options.json is not None:
        command = "python -m benchmarks.secure_sum --json docs/results/secure-sum.json"
        options.json.write_text(json.dumps({"command": command, "bits": 64, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
