"""The way a user takes: a CSV of raw rows, `synthesize` with or without a schema, and the file of synthetic rows."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import pyarrow as pa

from populace.errors import RunError
from populace.runs.ledger.history import NOWHERE
from populace.runs.run import Run, synthesize
from populace.runs.spec import make_spec
from populace.tables.schema import Schema
from populace.tables.table import Table, make_table, output_frame, read_frame, write_frame


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FileRun:
    """A run on a CSV: the synthetic rows as they stand in its file, and the seconds that `synthesize` took."""

    frame: pa.Table
    run: Run
    seconds: float

    def table(self, schema: Schema) -> Table:
        """The synthetic rows under a schema, which need not be the one they were made with."""
        return make_table(self.frame, schema)


def synthesize_csv(
    frame: pa.Table | Sequence[pa.Table], schema: Schema | None, *, limit: float | None = None, **options: object
) -> FileRun:  # fmt: skip
    """Write the rows as a CSV (several tables: as many, a silo each) and call `synthesize`; without a schema it finds domains.

    `options` are those of the command line, as `make_spec` takes them; `limit` is how many seconds it may take. Compiled
    functions are dropped afterwards, so that every run pays for its own, as a user does.
    """
    with tempfile.TemporaryDirectory(prefix="populace-benchmark-") as name:
        folder = Path(name)
        several = not isinstance(frame, pa.Table)
        files = (
            [folder / f"rows-{number + 1}.csv" for number in range(len(frame))] if several else [folder / "rows.csv"]
        )
        for part, file in zip(frame if several else [frame], files, strict=True):
            write_frame(part, file)
        if schema is not None:
            schema.save(folder / "schema.toml")
            options["schema_file"] = str(folder / "schema.toml")
        spec = make_spec(data=tuple(map(str, files)) if several else str(files[0]), **options)
        began = time.monotonic()
        try:
            with time_limit(limit):
                run = synthesize(spec, folder / "run", keeping=NOWHERE)
        finally:
            jax.clear_caches()  # type: ignore[no-untyped-call]
        seconds = time.monotonic() - began
        return FileRun(frame=read_frame(folder / "run" / "synthetic.parquet"), run=run, seconds=seconds)


class _TimeIsUp(BaseException):
    """Not an Exception: a library that the alarm finds at work must not take it for a failure of its own and go on."""


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise a RunError after so many seconds, as soon as the interpreter has its turn; in the main thread only."""

    def stop(number: int, where: object) -> None:
        raise _TimeIsUp

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds or 0.0)  # 0 never rings
    try:
        yield
    except _TimeIsUp:
        raise RunError(f"not finished after {seconds:,.0f} s, the most a cell may take") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def raw_rows(table: Table) -> pa.Table:
    """The modelled columns of a table as its file has them: gaps in text with their marker, no ids."""
    return output_frame(table.frame, dataclasses.replace(table.schema, others=()))
