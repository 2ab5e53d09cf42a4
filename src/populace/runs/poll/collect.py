"""Acting for clients: each is asked its question, charges its ledger and answers; the answers go to a file.

Guarantee: an answer is written only after its client's ledger holds the charge and the very answer; a client whose ledger holds
an answer to the same question gives that answer again, and one that would overspend gives none. Numbers, and with them
questions and places in the file of answers, follow a secret random order that is kept with the ledgers: neither tells where a
client stands in the data.
Edge cases: without a seed answers are drawn exactly, from the operating system's generator, and ledgers are kept in an SQLite
file; with one they are those of the simulation with that seed, in the order of the data, reproducible and not private, and
ledgers end with the command.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa

from populace.border.databases.address import file_of, is_database
from populace.border.databases.reading import one_snapshot
from populace.engines.runtime import Keys, Progress, Report
from populace.errors import RunError, SpecError, out_of_range
from populace.methods.base import Ask, Population, Shard
from populace.methods.blocks.one_report import Survey
from populace.methods.poll.protocol import Poll
from populace.methods.registry import make_protocol
from populace.privacy import secure_random
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Budget, Charge, MemoryLedger
from populace.privacy.randomizers.wire import by_member
from populace.privacy.source import Keyed
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.runs.poll.assignment import ONE_STAGE, Assignment, check_one_stage
from populace.runs.poll.client_stream import CLIENTS, Block, Census, ClientStream
from populace.runs.poll.client_terms import keep_client_terms
from populace.runs.poll.files import (
    MOST_CLIENTS,
    AddAnswers,
    Terms,
    coin_from,
    coin_text,
    pack,
    questions_hash,
    writing,
)
from populace.runs.poll.numbers import kept_numbers
from populace.runs.poll.sorting import writing_by_number
from populace.runs.run import make_key
from populace.tables.schema import load_schema
from populace.types import Array, NumpyArray
from populace.version import __version__

Say = Callable[[str], None]
COIN = "populace"
ACTED = "whoever ran the collection acted for the clients, where their records are"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collection:
    """What is to be collected: whose rows, on what terms, and where ledgers are kept."""

    data: str
    schema_file: str
    epsilon: float
    target: str | None = None
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)
    records_per_client: int = 1
    client_column: str | None = None
    clients: int | None = None
    first_client: int = 0
    coin: str | None = None
    ledger: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if "epsilon" in self.settings:
            raise SpecError("give epsilon with --epsilon, not with --set")
        if not 0 <= self.first_client < MOST_CLIENTS:
            raise out_of_range("first-client", f"in [0, {MOST_CLIENTS})", self.first_client)
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise out_of_range("a seed", "in [0, 2^63)", self.seed)
        if self.seed is not None and self.ledger is not None:
            raise SpecError("a seeded collection is not private and keeps no ledger; leave --ledger or --seed out")

    def protocol(self) -> Poll:
        protocol = make_protocol("poll", {**ONE_STAGE, **self.settings, "epsilon": float(self.epsilon)})
        if not isinstance(protocol, Poll):
            raise TypeError("poll is not Poll")
        check_one_stage(protocol)
        return protocol

    @property
    def ledger_file(self) -> Path:
        """Beside the data, so that a second collection from them finds it wherever it writes."""
        if self.ledger is not None:
            return Path(self.ledger)
        if not is_database(self.data):
            return Path(f"{self.data.replace(':', '-')}.ledger")
        file = file_of(self.data)
        if file is None:
            raise SpecError(
                "a database on a server has no folder to keep the clients' ledgers in: name a file with --ledger FILE, the "
                "same for every collection from this database"
            )
        return Path(f"{file}.ledger")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collected:
    """What was written: how many answers, of clients with which numbers, and what they guarantee."""

    answers: int
    first: int
    last: int
    guarantee: Guarantee


def collect(
    wanted: Collection, out: str | Path, *, progress: Report | None = None, say: Say = lambda _: None
) -> Collected:
    """Answers of all clients of the data, into a new file; of a database at one moment, however often it is passed over."""
    with one_snapshot(wanted.data) if is_database(wanted.data) else contextlib.nullcontext():
        return _collect(wanted, Path(out), progress, say)


def _collect(wanted: Collection, out: Path, progress: Report | None, say: Say) -> Collected:
    protocol = wanted.protocol()
    plain = load_schema(wanted.schema_file)
    schema = plain.with_target(wanted.target)
    if out.suffix != ".parquet":
        raise SpecError(f"expected an --out that ends in .parquet, got {out.name!r}")
    if out.exists():
        raise RunError(f"{out} exists; choose another --out, or remove it")
    if not out.parent.is_dir():
        raise RunError(f"no folder {out.parent} to write {out.name} into; make it first")
    stream = ClientStream(
        data=wanted.data, schema=schema, records_per_client=wanted.records_per_client,
        client_column=wanted.client_column,
    )  # fmt: skip
    census = stream.census()
    end = wanted.first_client + census.clients
    clients = end if wanted.clients is None else wanted.clients
    if not end <= clients <= MOST_CLIENTS:
        raise out_of_range("clients", f"in [{end}, {MOST_CLIENTS}], the data's last client being {end - 1}", clients)
    population = Population(schema=schema, clients=clients, records=census.widest)
    keys = None if wanted.seed is None else Keys(make_key(wanted.seed))
    coin = keys.begin() if keys is not None and wanted.coin is None else coin_from(wanted.coin or COIN)
    assignment = Assignment(protocol, population, coin)
    terms = Terms(
        schema=plain.digest, target=wanted.target, parameters=dataclasses.asdict(protocol),
        questions=questions_hash(protocol, population), coin=coin_text(coin), clients=clients, records=census.widest,
        first_client=wanted.first_client, seeded=keys is not None, version=__version__,
    )  # fmt: skip
    answering: _Exact | _Seeded = (
        _Exact(assignment, terms, wanted, stream, census)
        if keys is None
        else _Seeded(assignment, keys, wanted, census.clients)
    )
    say(
        f"poll: {census.clients:,} clients, {census.rows:,} rows, {len(protocol.survey(population).groups):,} questions"
    )
    for name, count in census.moved.items():
        say(f"{name}: {count:,} of {census.rows:,} values lie outside its domain and were moved into it")
    done = 0
    with answering, answering.writing(out, terms) as add:
        for block in stream.blocks(census.widest):
            numbers = wanted.first_client + answering.numbers(block)
            questions = assignment.questions(numbers)
            add(numbers, questions, answering.answers(block, numbers, questions))
            done += len(numbers)
            if progress:
                progress(Progress(done=done, total=census.clients, clients=done))
    if answering.repeated:
        say(f"{answering.repeated:,} clients had answered before; their ledgers' answers were written again")
    guarantee = _stated(protocol.guarantee(population), wanted, census)
    return Collected(answers=done, first=wanted.first_client, last=end - 1, guarantee=guarantee)


def _stated(claim: Guarantee, wanted: Collection, census: Census) -> Guarantee:
    """The guarantee as whoever acts for the clients may state it: they hold the records and add the noise."""
    rows, column = wanted.records_per_client, wanted.client_column
    one = "one row of the file" if rows == 1 else f"{rows:,} rows that follow one another in the file"
    return dataclasses.replace(
        claim,
        trust="silo" if claim.trust == "local" else claim.trust,
        protects=one if column is None else f"all rows of the file with one value of column {column!r}",
        units=census.clients,
        counts_read=() if column is None else (f"the most records of one client ({census.widest:,})",),
        noise="" if wanted.seed is not None else "system",
        seeded=wanted.seed is not None,
        assumptions=(*claim.assumptions, ACTED),
    )


def charge_of(assignment: Assignment) -> Charge:
    """What one answer costs, from the object that makes the noise."""
    nobody = Ask(round=np.zeros((), np.int32), cohort=np.zeros(0, np.int32), common=(), own=np.zeros(0, np.int32))
    return assignment.protocol.charge(nobody, assignment.population)


class _Exact:
    """Answers as deployed clients give them: exact, from the operating system, kept in their ledgers before they leave."""

    def __init__(
        self, assignment: Assignment, terms: Terms, wanted: Collection, stream: ClientStream, census: Census
    ) -> None:
        self.asked = assignment.protocol.survey(assignment.population)
        self.charge = charge_of(assignment)
        self.run = f"poll {terms.questions[:16]} {terms.coin}"
        self.repeated = 0
        self.ledger = SqliteLedger(wanted.ledger_file, Budget(epsilon=wanted.epsilon, unit="client"))
        try:
            keep_client_terms(self.ledger, wanted.data, wanted.records_per_client, wanted.client_column)
            self._numbers = kept_numbers(self.ledger, self.run, stream, census)
        except BaseException:
            self.ledger.close()
            raise

    def __enter__(self) -> _Exact:
        return self

    def __exit__(self, *_: object) -> None:
        self.ledger.close()

    def numbers(self, block: Block) -> Array:
        """The numbers of the clients of a block, from 0 on: secret, and the same whenever they are asked."""
        return self._numbers[block.first : block.first + len(block.names)]

    def writing(self, out: Path, terms: Terms) -> AbstractContextManager[AddAnswers]:
        return writing_by_number(out, terms, beside=self.ledger.path)

    def answers(self, block: Block, numbers: Array, questions: Array) -> pa.BinaryArray:
        asked = [str(question) for question in questions.tolist()]
        accounts = list(zip(block.names, asked, strict=True))
        charges = self.ledger.read(block.names, run=self.run, round_id=0, questions=asked)
        replies = [charges.stored(name, text) for name, text in accounts]
        fresh = np.flatnonzero([reply is None for reply in replies])
        if len(fresh):
            reports = release(self.asked, questions[fresh], block.records[fresh], block.mask[fresh])
            sent = pack(self.asked.panel, questions[fresh], reports).to_pylist()
            booked = [(*accounts[row], reply, None) for row, reply in zip(fresh.tolist(), sent, strict=True)]
            self.ledger.commit_many(booked, self.charge, run=self.run, round_id=0)
            for row, reply in zip(fresh.tolist(), sent, strict=True):
                replies[row] = reply
        self.repeated += len(replies) - len(fresh)
        return pa.array(replies, pa.binary())


def release(asked: Survey, questions: Array, records: Array, mask: Array) -> Array:
    """One report per client, [clients, width]: `Survey.answer` from the operating system's randomness, for many at once.

    Guarantee: each report is epsilon-LDP for all the client's records: one is taken by an even private coin, and the mechanism
    of its question releases its cell exactly.
    Edge cases: a client without records is refused; files have none.
    """
    counts = np.asarray(mask).sum(axis=1)
    if len(counts) and counts.min() < 1:
        raise out_of_range("records of each client", "at least 1", int(counts.min()))
    chosen: NumpyArray = np.zeros(len(counts), np.int64)
    for count in np.unique(counts[counts > 1]).tolist():
        some = np.flatnonzero(counts == count)
        chosen[some] = secure_random.integers_below(count, len(some))
    cells = cells_of(asked, records[np.arange(len(counts)), chosen], questions)
    reports: NumpyArray = np.zeros((len(counts), asked.panel.width), bool)
    for member, rows in by_member(asked.panel, questions):
        reports[rows, : member.size] = member.release(cells[rows])
    return reports


def cells_of(asked: Survey, records: Array, questions: Array) -> Array:
    """The cell each client reports about, before any noise; padded so that few lengths are compiled."""
    pad = -len(records) % CLIENTS
    cells = _all_cells(asked, np.pad(records, ((0, pad), (0, 0))), np.pad(questions, (0, pad)).astype(np.int32))
    return np.asarray(cells)[: len(records)]


@functools.partial(jax.jit, static_argnums=0)
def _all_cells(asked: Survey, records: Array, questions: Array) -> Array:
    return jax.vmap(asked.cell)(records, questions)


class _Seeded:
    """Answers of the simulation with this seed: reproducible, not private; ledgers last as long as the command."""

    repeated = 0

    def __init__(self, assignment: Assignment, keys: Keys, wanted: Collection, clients: int) -> None:
        self.assignment, self.keys, self.charge = assignment, keys, charge_of(assignment)
        self.panel = assignment.protocol.survey(assignment.population).panel
        self.ledger = MemoryLedger(Budget(epsilon=wanted.epsilon, unit="client"), clients=clients)

    def __enter__(self) -> _Seeded:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def numbers(self, block: Block) -> Array:
        """The numbers of the clients of a block: the order of the data, as in the simulation."""
        return block.first + np.arange(len(block.names))

    def writing(self, out: Path, terms: Terms) -> AbstractContextManager[AddAnswers]:
        return writing(out, terms)

    def answers(self, block: Block, numbers: Array, questions: Array) -> pa.BinaryArray:
        self.ledger.book(block.first + np.arange(len(numbers)), self.charge, round_id=block.first)
        protocol, population = self.assignment.protocol, self.assignment.population
        pad = -len(numbers) % min(CLIENTS, 1 << (len(numbers) - 1).bit_length())
        shard = Shard(
            records=np.pad(block.records, ((0, pad), (0, 0), (0, 0))), mask=np.pad(block.mask, ((0, pad), (0, 0))),
            population=population,
        )  # fmt: skip
        clients, own = (np.pad(each, (0, pad)).astype(np.int32) for each in (numbers, questions))
        rounds = (clients // protocol.clients_per_batch).astype(np.int32)
        reports = np.asarray(_simulated(protocol, self.keys, rounds, clients, own, shard))
        return pack(self.panel, questions, reports[: len(numbers)])


@functools.partial(jax.jit, static_argnums=0)
def _simulated(protocol: Poll, keys: Keys, rounds: Array, clients: Array, own: Array, shard: Shard) -> Array:
    """Replies as an engine makes them: a client's key follows from its round and number alone."""

    def one(round_id: Array, client: Array, question: Array, records: Array, mask: Array) -> Array:
        one_shard = Shard(records=records, mask=mask, population=shard.population)
        reply: Array = protocol.answer((), question, one_shard, (), Keyed(keys.answer(round_id, client)))[0]
        return reply

    return jax.vmap(one)(rounds, clients, own, shard.records, shard.mask)
