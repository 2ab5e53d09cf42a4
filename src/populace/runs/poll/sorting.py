"""A file of answers in the order of the clients' numbers, whatever the order they come in, in little memory.

Numbers are a secret random order of the data; answers written as they come would tell it. They go to one temporary file per
so many numbers, which lies with the ledgers, where the same stands anyway, and is readable by their owner alone; each is
then sorted and written.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from populace.runs.poll.files import COLUMNS, Terms, writing
from populace.types import Array

ANSWERS = 2**20  # of one temporary file: what is held in memory while it is sorted


@contextlib.contextmanager
def writing_by_number(
    path: Path, terms: Terms, *, beside: Path
) -> Iterator[Callable[[Array, Array, pa.BinaryArray], None]]:
    """Like `writing`; nothing stands under the name until all answers are in."""
    with (
        writing(path, terms) as write,
        tempfile.TemporaryDirectory(prefix=f".{beside.name}.", dir=beside.parent) as folder,
        contextlib.ExitStack() as open_files,
    ):
        parts: dict[int, pa.ipc.RecordBatchStreamWriter] = {}

        def add(clients: Array, questions: Array, reports: pa.BinaryArray) -> None:
            answers = pa.Table.from_arrays(
                [pa.array(clients, pa.int64()), pa.array(questions, pa.int32()), reports], schema=COLUMNS
            )
            part = np.asarray(clients) // ANSWERS
            for number in np.unique(part).tolist():
                if number not in parts:
                    file = pa.OSFile(str(Path(folder) / str(number)), "wb")
                    open_files.callback(file.close)
                    parts[number] = open_files.enter_context(pa.ipc.new_stream(file, COLUMNS))
                parts[number].write_table(answers.filter(pa.array(part == number)))

        yield add
        open_files.close()
        for number in sorted(parts):
            with pa.OSFile(str(Path(folder) / str(number)), "rb") as file, pa.ipc.open_stream(file) as answers:
                table = answers.read_all().sort_by("client").combine_chunks()
            columns = [table.column(name).chunk(0) for name in COLUMNS.names]
            write(columns[0], columns[1], columns[2])
