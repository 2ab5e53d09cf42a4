"""`python -m tests.fuzz`: many cases, or one again."""

from __future__ import annotations

import argparse
import collections
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from fuzz.driver import CPU_SECONDS, WALL_SECONDS, Driver, found_cases, shares, write_findings  # noqa: E402

LEAST = 200


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="how many, over all targets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], help="targets whose name begins so; may be repeated")
    parser.add_argument("--least", type=int, default=LEAST, help="fewest cases of a target")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"), help="folder of what is found")
    parser.add_argument("--corpus", type=Path, help="folder of the valid inputs, kept for the next time")
    parser.add_argument(
        "--replay", help="a case again: SEED/TARGET/NUMBER, a file of findings, or a name in tests/fuzz/found"
    )
    parser.add_argument("--wall", type=float, default=WALL_SECONDS, help="seconds a case may wait for something")
    parser.add_argument("--list", action="store_true", help="print the targets")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="populace-fuzz-") as made:
        corpus = (given.corpus or Path(made) / "corpus").resolve()
        with Driver(corpus, say=say, limits=(CPU_SECONDS, given.wall)) as driver:
            if given.list:
                say("\n".join(_costs([])))
            elif given.replay:
                replay(driver, given.replay)
            else:
                fuzz(driver, given)
        return report(driver, given.out, again=bool(given.replay))


def _costs(only: list[str]) -> dict[str, float]:
    from fuzz.registry import TARGETS

    return {
        name: target.cost
        for name, target in TARGETS.items()
        if not name.startswith("planted") and (not only or any(name.startswith(start) for start in only))
    }


def fuzz(driver: Driver, given: argparse.Namespace) -> None:
    for name, kept in found_cases().items():
        if not given.only or any(kept["target"].startswith(start) for start in given.only):
            driver.inputs(kept["target"], name, kept["input"])
    for target, count in shares(_costs(given.only), given.cases, least=given.least).items():
        began = time.monotonic()
        driver.cases(target, seed=given.seed, count=count)
        counts = dict(driver.tally.counts[target])
        say(f"{target}: {counts} in {time.monotonic() - began:.0f} s")


def replay(driver: Driver, name: str) -> None:
    path = Path(name)
    if path.is_file():
        kept = json.loads(path.read_text())
        driver.inputs(kept["target"], path.stem, kept["input"])
    elif name in found_cases():
        kept = found_cases()[name]
        driver.inputs(kept["target"], name, kept["input"])
    else:
        seed, target, number = name.split("/")
        driver.cases(target, seed=int(seed), count=1, first=int(number))
    for finding in driver.tally.findings:
        say(finding.trace)


def report(driver: Driver, out: Path, *, again: bool) -> int:
    tally = driver.tally
    total: collections.Counter[str] = collections.Counter()
    for counts in tally.counts.values():
        total.update(counts)
    say(f"{tally.cases} cases, {dict(total)}, {sum(tally.seconds.values()):.0f} s of processor time")
    if tally.findings and not again:
        for path in write_findings(tally.findings, out):
            say(f"{path}  python -m tests.fuzz --replay {path}")
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
