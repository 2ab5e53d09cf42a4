"""Shadow runs: many small runs of one method, each with every target in or out by a coin of its own.

The rows are cut in two. Runs the attacker makes itself draw their people from the one half, runs that it attacks from the
other, so an attacker never sees who else is in a run it attacks. Every run has the same number of rows: a target takes
somebody's place. Each finished run is one small file, so interrupted work goes on where it stopped.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np

from populace.border.models import interpreting
from populace.engines import simulation
from populace.engines.runtime import Keys
from populace.errors import DataError, RunError, out_of_range
from populace.evaluation.attacks.membership import LEAST_RUNS, Games
from populace.evaluation.attacks.summaries import SUMMARIES, rarity, summarise
from populace.methods.base import Protocol
from populace.runs.run import make_key
from populace.runs.workers import begin_worker
from populace.tables.files import read_arrays, replacing
from populace.tables.partition import split
from populace.tables.table import Table
from populace.types import JsonObject, NumpyArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A membership attack: which method, on whose rows, how many targets and runs.

    `rows` go into each run, `drawn` synthetic ones come out (0: as many).
    """

    protocol: Protocol
    table: Table
    targets: int = 20
    shadows: int = 60
    attacked: int = 40
    rows: int = 1_000
    drawn: int = 0
    records_per_client: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("targets", 1),
            ("shadows", LEAST_RUNS),
            ("attacked", LEAST_RUNS),
            ("records_per_client", 1),
        ):
            if getattr(self, name) < least:
                raise out_of_range(name, f"at least {least}", getattr(self, name))
        if self.rows <= self.targets:
            raise out_of_range("rows of a run", f"above the {self.targets} targets", self.rows)
        if len(self.table) < self.targets + 4 * self.rows:
            raise DataError(
                f"expected at least {self.targets + 4 * self.rows} rows: {self.targets} targets, and for attacker and victim "
                f"twice the {self.rows} rows of a run each; got {len(self.table)}; lower --rows or --targets"
            )
        if self.drawn < 0:
            raise out_of_range("synthetic rows", "at least 1", self.drawn)

    @property
    def runs(self) -> int:
        return self.shadows + self.attacked

    @property
    def synthetic_rows(self) -> int:
        return self.drawn or self.rows

    def cast(self) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """Row numbers of the targets (first the rare half), of the attacker's people and of the victims'."""
        rng = np.random.default_rng([self.seed, 0])
        order = rng.permutation(len(self.table))
        rare = order[np.argsort(-rarity(self.table.codes, self.table.schema.sizes)[order], kind="stable")]
        chosen = rare[: (self.targets + 1) // 2]
        rest = order[~np.isin(order, chosen)]
        chosen = np.concatenate([chosen, rest[: self.targets // 2]])
        rest = rest[self.targets // 2 :]
        return chosen, rest[: len(rest) // 2], rest[len(rest) // 2 :]

    def members(self, run: int) -> tuple[NumpyArray, NumpyArray]:
        """Which targets are in this run, each by a fair coin of its own, and the numbers of all rows of the run."""
        targets, attackers, victims = self.cast()
        rng = np.random.default_rng([self.seed, 1, run])
        included = rng.random(self.targets) < 0.5
        pool = attackers if run < self.shadows else victims
        others = rng.choice(pool, self.rows - int(included.sum()), replace=False)
        return included, rng.permutation(np.concatenate([targets[included], others]))

    def victim_and_others(self) -> tuple[NumpyArray, NumpyArray]:
        """Rows of one more run without any target, and as many people of the same half who are not in it."""
        _, _, pool = self.cast()
        order = np.random.default_rng([self.seed, 2]).permutation(pool)
        return order[: self.rows], order[self.rows : 2 * self.rows]

    def generate(self, numbers: NumpyArray, run: int) -> Table:
        """A synthetic table of the method, made from these rows."""
        clients = split(self.table.take(numbers), records_per_client=self.records_per_client)
        root = jax.random.fold_in(make_key(self.seed), run)
        outcome = simulation.run(self.protocol, clients, root=root)
        found: Table = outcome.generator.sample(self.synthetic_rows, Keys(root).sample())
        return found

    def play(self, run: int) -> dict[str, NumpyArray]:
        """Play one run: which targets were in it, and the summaries of its synthetic table."""
        began = time.monotonic()
        included, numbers = self.members(run)
        synthetic = self.generate(numbers, run)
        targets = self.table.codes[self.cast()[0]]
        found = summarise(synthetic.codes, self.table.schema.sizes, targets, seed=self.seed)
        return {"included": included, "seconds": np.asarray(time.monotonic() - began), **found}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """Progress after a run; in the form `populace` shows the steps of long work."""

    done: int
    total: int
    cell: JsonObject
    skipped: bool
    seconds: float


Report = Callable[[Step], None]


def play_all(
    setting: Setting, folder: Path, *, jobs: int = 1, progress: Report = lambda _: None
) -> tuple[Games, Games]:
    """All runs, those not found in the folder by so many processes: the attacker's own, and those it attacks."""
    if jobs < 1:
        raise out_of_range("jobs", "at least 1", jobs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    paths = [folder / f"run-{run:05d}.npz" for run in range(setting.runs)]
    missing = [run for run, path in enumerate(paths) if not path.is_file()]
    done = setting.runs - len(missing)
    if done:
        progress(Step(done=done, total=setting.runs, cell={"found": done}, skipped=True, seconds=0.0))
    for run, found in _played(setting, missing, jobs):
        with replacing(paths[run]) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **{_plain(name): value for name, value in found.items()})
        done += 1
        progress(Step(done=done, total=setting.runs, cell={"run": run}, skipped=False, seconds=float(found["seconds"])))
    stored = [read_arrays(path) for path in paths]
    return _games(stored[: setting.shadows]), _games(stored[setting.shadows :])


def _games(stored: list[dict[str, NumpyArray]]) -> Games:
    with interpreting("a stored shadow run", advice="remove the attack's folder and start again"):
        return Games(
            included=np.stack([run["included"] for run in stored]),
            summaries={name: np.stack([run[_plain(name)] for run in stored]) for name in SUMMARIES},
        )


def _plain(name: str) -> str:
    return name.replace(" ", "_")


def _played(setting: Setting, runs: list[int], jobs: int) -> Iterator[tuple[int, dict[str, NumpyArray]]]:
    """Runs as they finish. Processes are spawned, because a compiled program does not survive a fork."""
    if min(jobs, len(runs)) <= 1:
        for run in runs:
            yield run, setting.play(run)
        return
    before = multiprocessing.active_children()
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(
        min(jobs, len(runs)), mp_context=context, initializer=_start, initargs=(setting,)
    )
    try:
        waiting = {pool.submit(_play, run): run for run in runs}
        for future in concurrent.futures.as_completed(waiting):
            yield waiting[future], future.result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise RunError(
            "a process that made shadow runs died (out of memory?); give the same command again with fewer --jobs"
        ) from error
    finally:
        for child in multiprocessing.active_children():
            if child not in before:  # idle when all is done; when interrupted, nobody waits for what they are at
                child.terminate()
        pool.shutdown(cancel_futures=True)


_setting: Setting | None = None


def _start(setting: Setting) -> None:
    """Keep the setting in a new process."""
    global _setting
    _setting = setting
    begin_worker()


def _play(run: int) -> dict[str, NumpyArray]:
    if _setting is None:
        raise RunError("a process that makes shadow runs was not set up")
    return _setting.play(run)
