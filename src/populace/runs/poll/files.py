"""Files of answers: Parquet, one row per answer, and the terms they were given on in the file's metadata.

client     the client's number in the poll, over all files
question   the number of the question it was asked
report     the randomised report as sent, `SubsetSelection.encode`
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet

from populace.border.columnar import parquet_batches, parquet_facts
from populace.border.documents import parse_json
from populace.border.regular import check_regular
from populace.errors import DataError, InputError
from populace.methods.base import Population
from populace.methods.poll.protocol import Poll
from populace.methods.registry import make_protocol
from populace.privacy.randomizers.subset import SubsetPanel
from populace.privacy.randomizers.wire import decode_panel, encode_panel
from populace.tables.files import replacing
from populace.types import Array, JsonObject, NumpyArray

#: Adds answers to a file: the clients' numbers, their questions, their reports.
AddAnswers = Callable[[Array, Array, pa.BinaryArray], None]

FORMAT = 1
KEY = b"populace-poll"
ROWS = 2**16
COIN_BYTES = 8
MOST_CLIENTS = 2**31 - 2**20  # numbers of clients are 32 bits wide in a simulation
COLUMNS = pa.schema([pa.field("client", pa.int64()), pa.field("question", pa.int32()), pa.field("report", pa.binary())])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Terms:
    """What answers in a file were given on: all that must agree before they may be counted together, and where they came from.

    `questions` is a hash of the question design and of the mechanism's domains: files of two versions of populace are counted
    together if, and only if, these ask the same. `clients` and `records` are public facts the design may follow from.
    """

    schema: str
    target: str | None
    parameters: JsonObject
    questions: str
    coin: str
    clients: int
    records: int
    first_client: int
    seeded: bool
    version: str
    format: int = FORMAT

    def protocol(self, **settings: object) -> Poll:
        """The method as it was asked, with some settings changed."""
        protocol = make_protocol("poll", {**self.parameters, **settings})
        if not isinstance(protocol, Poll):
            raise TypeError("poll is not Poll")
        return protocol

    @property
    def key(self) -> Array:
        """The public coin."""
        words = np.frombuffer(bytes.fromhex(self.coin), "<u4").astype(np.uint32)
        key: Array = jax.random.wrap_key_data(jnp.asarray(words))
        return key


#: Files of answers, the terms each was collected on, and how many answers it holds.
Files = dict[Path, tuple[Terms, int]]


def coin_text(key: Array) -> str:
    """A key as it stands in a file."""
    return np.asarray(jax.random.key_data(key)).astype("<u4").tobytes().hex()


def coin_from(text: str) -> Array:
    """The public coin that a text everybody knows stands for."""
    words = np.frombuffer(hashlib.sha256(text.encode()).digest()[:8], "<u4").astype(np.uint32)
    key: Array = jax.random.wrap_key_data(jnp.asarray(words))
    return key


def questions_hash(protocol: Poll, population: Population) -> str:
    """A hash of everything that decides what is asked of whom, and what a report means."""
    panel = protocol.survey(population).panel
    parts = (protocol.design(population), panel.epsilon, [(member.size, member.chosen) for member in panel.members])
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@contextlib.contextmanager
def writing(path: Path, terms: Terms) -> Iterator[AddAnswers]:
    """A function that adds answers to a new file; nothing stands under its name until all are in."""
    schema = COLUMNS.with_metadata({KEY: json.dumps(dataclasses.asdict(terms), sort_keys=True)})
    with replacing(path) as temporary:
        options = {"compression": "zstd", "use_dictionary": ["question"]}
        with pyarrow.parquet.ParquetWriter(temporary, schema, **options) as writer:

            def add(clients: Array, questions: Array, reports: pa.BinaryArray) -> None:
                arrays = [pa.array(clients, pa.int64()), pa.array(questions, pa.int32()), reports]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=ROWS)

            yield add


def pack(panel: SubsetPanel, questions: Array, reports: Array) -> pa.BinaryArray:
    """Reports as sent, as an Arrow column."""
    starts, content = encode_panel(panel, questions, reports)
    buffers = [None, pa.py_buffer(starts.astype(np.int32)), pa.py_buffer(content)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(questions), buffers)


def unpack(panel: SubsetPanel, questions: Array, column: pa.BinaryArray) -> tuple[Array, Array]:
    """Reports [answers, width], and which of them are reports of their question at all."""
    content = column.buffers()[2]
    received = np.zeros(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
    return decode_panel(panel, questions, starts_of(column), received)


def starts_of(column: pa.BinaryArray) -> NumpyArray:
    """Where in the column's bytes each report starts, and the last one ends."""
    starts: NumpyArray = np.frombuffer(column.buffers()[1], np.int32)
    return starts[column.offset : column.offset + len(column) + 1]


def read_terms(path: Path) -> tuple[Terms, int]:
    """The terms of a file of answers, and how many there are."""
    check_regular(path, error=InputError)
    try:
        schema, answers = parquet_facts(path)
    except DataError as error:
        raise DataError(f"{error}; expected answers that `populace poll collect` wrote") from error
    text = (schema.metadata or {}).get(KEY)
    if text is None or any(COLUMNS.field(name) not in schema for name in COLUMNS.names):
        raise DataError(f"{path} holds no answers; expected a file that `populace poll collect` wrote")
    try:
        document = parse_json(text, where=f"the terms in {path}", error=DataError)
        if document["format"] != FORMAT:
            raise DataError(f"{path} has answers in format {document['format']!r}, expected {FORMAT}; update populace")
        document["parameters"] = Poll.settings_from_file(document["parameters"])
        terms = Terms(**document)
        _check_terms(terms)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"the terms in {path} are damaged: {error}; collect the answers again") from error
    return terms, answers


def _check_terms(terms: Terms) -> None:
    """A file may come from anybody: what stands in it is of the types and in the ranges `collect` writes, or is refused."""
    kinds: dict[str, type | tuple[type, ...]] = {"target": (str, type(None)), "parameters": dict, "seeded": bool}
    numbers = ("clients", "records", "first_client")
    for field in dataclasses.fields(Terms):
        kind = kinds.get(field.name, int if field.name in (*numbers, "format") else str)
        if not isinstance(getattr(terms, field.name), kind):
            raise TypeError(f"{field.name} is {getattr(terms, field.name)!r}")
    if not (1 <= terms.clients <= MOST_CLIENTS and terms.records >= 1 and 0 <= terms.first_client < terms.clients):
        raise ValueError(f"numbers of clients or records are {[getattr(terms, name) for name in numbers]}")
    if len(bytes.fromhex(terms.coin)) != COIN_BYTES:
        raise ValueError(f"the public coin is {terms.coin!r}")
    defaults = {field.name: field.default for field in dataclasses.fields(Poll)} | {"epsilon": 1.0, "workload": []}
    for name, value in terms.parameters.items():
        if name in defaults and type(value) is not type(defaults[name]) and not (name == "target" and value is None):
            raise TypeError(f"{name} is {value!r}")


AGREED = {
    "schema": "under another schema", "parameters": "with other settings", "target": "for another target",
    "questions": "with other questions", "coin": "with another public coin",
}  # fmt: skip
ADVICE = {
    "questions": "collect all with one version of populace and the same --clients",
    "coin": "collect all with the same --coin (and the same --seed, if any)",
}


def check_agreement(files: Files) -> None:
    """One sentence where files were not collected on the same terms."""
    first, (terms, _) = next(iter(files.items()))
    for path, (each, _) in files.items():
        for field, words in AGREED.items():
            ours, theirs = getattr(terms, field), getattr(each, field)
            if ours != theirs:
                advice = ADVICE.get(field, "collect all on the same terms, or fit them apart")
                raise DataError(f"{path} was collected {words} than {first}{_difference(ours, theirs)}; {advice}")


def _difference(first: object, other: object) -> str:
    if isinstance(first, dict) and isinstance(other, dict):
        name = next(name for name in {**first, **other} if first.get(name) != other.get(name))
        return f" ({name} {other.get(name)!r}, not {first.get(name)!r})"
    return "" if len(str(first)) > 32 else f" ({other!r}, not {first!r})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """Some answers of a file; a missing number is -1."""

    clients: Array
    questions: Array
    reports: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.clients)


def answer_batches(path: Path, *, skip: int = 0) -> Iterator[Batch]:
    """The answers of a file, at most `ROWS` at a time; the first `skip` batches are left out."""
    for batch in itertools.islice(parquet_batches(path, columns=COLUMNS.names, rows=ROWS), skip, None):
        clients, questions, reports = (batch.column(name) for name in COLUMNS.names)
        # A missing report is an empty one, which no question's mechanism makes: it is dropped and counted as malformed.
        yield Batch(clients=_numbers(clients), questions=_numbers(questions), reports=reports.fill_null(b""))


def _numbers(column: pa.Array) -> NumpyArray:
    numbers: NumpyArray = column.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers
