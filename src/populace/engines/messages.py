"""The messages of a federation, each with exactly its fields and arrays: ask, reply, facts, refusal, and steps of sums.

A reader here raises WireError for anything else. What a site may send is checked by `check_outgoing` once more, by a filter of
its own, just before it leaves.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Literal

import numpy as np

from populace.engines import wire
from populace.engines.agreement import Agreement, shapes_of
from populace.engines.secure_sum.messages import REPLY_BYTES, REQUEST_BYTES, STEPS, Rows, Step, read_rows, row_arrays
from populace.engines.wire import Message
from populace.errors import PopulaceError, WireError
from populace.methods.base import Population
from populace.types import ArrayTree, JsonObject, NumpyArray

Code = Literal[
    "malformed", "version", "method", "schema", "parameters", "roster", "sum", "population", "round", "changed", "repeated",
    "guarantee", "budget", "rolled-back", "old-run", "coordinator", "failed",
]  # fmt: skip
#: What a client is at a site: so many rows, all rows with one value of a column, or the site itself.
Hosts = Literal["rows", "column", "site"]
HOSTS: tuple[Hosts, ...] = ("rows", "column", "site")

#: All a site ever says about why it does not answer.
REASONS: dict[str, str] = {
    "malformed": "the request was malformed, or held numbers or shapes that the method does not send",
    "version": "the site runs another version of populace",
    "method": "the site has not agreed to this method",
    "schema": "the site has not agreed to this schema",
    "parameters": "the site has not agreed to these parameters",
    "roster": "the site has not agreed to these sites of a secure sum, or their keys",
    "sum": "the site has taken this step of the secure sum for another request, or what it was shown is not what was agreed",
    "population": "the site does not host these clients, or others than when the run began, or allows no run as large",
    "round": "the method has no such round",
    "changed": "the site has answered another question in this round, or other terms in this run",
    "repeated": "the site has answered this question in another round of this run",
    "guarantee": "the run would take more than the guarantee that was agreed for it",
    "budget": "the site's limit would be passed",
    "rolled-back": "the site's ledger is older than what the site has answered: it was restored or replaced",
    "old-run": "the run was begun under version 0.1.0; begin a new one, what was spent stays counted",
    "coordinator": "the request has no signed count of the site's replies, or of a coordinator that is revoked or unknown",
    "failed": "the site could not answer; its own log says why",
}
#: What a well-formed message may say; a site's own bounds are much lower.
MOST_CLIENTS, MOST_RECORDS = 10**8, 10**7
TERMS = ("version", "method", "parameters", "schema")
OF_SUMS = ("roster",)  # what terms hold beside, where sums are secure
DIGEST = re.compile(r"[0-9a-f]{64}")
RUN = re.compile(r"[a-z0-9][a-z0-9.-]{0,79}")


class RefusedError(PopulaceError):
    """A site's refusal: one word of a closed list, which is sent, and a sentence, which stays in the site's log."""

    def __init__(self, code: Code, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """One round's question to the clients of one site, as it arrives; with `step`, one step of a secure sum.

    `question` is a digest of what all sites of that sum are asked, and `rows` are what the step is about.
    """

    run: str
    round: int
    terms: JsonObject
    clients_in_all: int
    records: int
    first: int
    message: Message
    step: Step | None = None
    question: str = ""
    rows: Rows = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What a site reports before a run: how many clients it hosts, how many records one may hold, whether it is seeded.

    `hosts` says what a client is there, `records_read` whether the number of records was read from the data rather than
    declared; None where a site does not tell, as in version 0.1.0.
    """

    clients: int
    records: int
    seeded: bool
    hosts: Hosts | None = None
    records_read: bool | None = None


def make_ask(
    agreement: Agreement,
    population: Population,
    *,
    run: str,
    round_id: int,
    first: int,
    clients: NumpyArray,
    heard: NumpyArray,
    common: ArrayTree,
    own: ArrayTree,
) -> bytes:
    """What one site is asked in one round; `heard` is how many replies the coordinator has had from each client in this run."""
    fields = {
        "run": run, "round": round_id, "terms": agreement.terms, "clients": population.clients, "records": population.records,
        "first": first,
    }  # fmt: skip
    arrays = {"clients": np.asarray(clients, np.int32), "heard": np.asarray(heard, np.int32)}
    return wire.pack(
        Message(kind="ask", fields=fields, arrays=arrays | wire.leaves(common, "common") | wire.leaves(own, "own"))
    )


def make_sum_request(
    ask: bytes | None, agreement: Agreement, population: Population, *, run: str, round_id: int, first: int, step: Step,
    question: str, rows: Rows,
) -> bytes:  # fmt: skip
    """One step of a secure sum, for one site; with the `ask` that its numbers answer, where it is asked for them."""
    fields = {
        "run": run, "round": round_id, "terms": agreement.terms, "clients": population.clients, "records": population.records,
        "first": first, "step": step, "question": question,
    }  # fmt: skip
    arrays = {} if ask is None else dict(wire.unpack(ask).arrays)
    return wire.pack(Message(kind="sum?", fields=fields, arrays={**arrays, **row_arrays(rows)}))


def make_sum_reply(agreement: str, *, run: str, round_id: int, step: Step, taken: bytes) -> bytes:
    """What a site sends of a step that it took: the arrays of the step's own reply, under run, round and agreement."""
    fields = {"run": run, "round": round_id, "agreement": agreement, "step": step}
    return wire.pack(Message(kind="sum", fields=fields, arrays=wire.unpack(taken).arrays))


def read_sum_reply(data: bytes, agreement: Agreement, *, run: str, round_id: int, step: Step) -> bytes:
    """The reply of a step as the site made it; raises RefusedError where the site said no, WireError for another's."""
    message = _unpack_or_refuse(data, "sum")
    if _sum_fields(message) != (run, round_id, agreement.digest, step):
        raise WireError("a step of a secure sum belongs to another run, round, agreement or step")
    return wire.pack(Message(kind=step, arrays=message.arrays))


def _sum_fields(message: Message) -> tuple[str, int, str, Step]:
    kinds: dict[str, type] = {"run": str, "round": int, "agreement": str, "step": str}
    run, round_id, digest, step = wire.take_fields(message, kinds)
    if not 0 <= round_id < 2**31:
        raise WireError("the round of a step of a secure sum is out of range")
    return run, round_id, digest, _step(step)


def _check_sum_reply(message: Message, agreements: Mapping[str, Agreement]) -> bytes:
    """A step of a secure sum, rebuilt: rows of the step's own width, or masked numbers, and nothing else."""
    run, round_id, digest, step = _sum_fields(message)
    _check_run(run)
    if digest not in agreements or agreements[digest].roster is None:
        raise WireError("a step of a secure sum that the site has not agreed to does not leave it")
    if step == "mask":
        numbers = message.arrays.get("numbers")
        wide = numbers is not None and numbers.dtype in (np.dtype(np.uint32), np.dtype(np.uint64)) and numbers.ndim == 1
        if numbers is None or not wide or set(message.arrays) != {"numbers"}:
            raise WireError("masked numbers are 32 or 64 bits wide, and go alone")
        taken = wire.pack(Message(kind=step, arrays={"numbers": numbers}))
    else:
        taken = wire.pack(Message(kind=step, arrays=row_arrays(read_rows(message.arrays, REPLY_BYTES[step]))))
    return make_sum_reply(digest, run=run, round_id=round_id, step=step, taken=taken)


def make_facts_request(agreement: Agreement, *, run: str) -> bytes:
    return wire.pack(Message(kind="facts?", fields={"run": run, "terms": agreement.terms}))


def read_request(data: bytes) -> Request | JsonObject:
    """An ask, or the terms a site is asked to state its facts for."""
    message = wire.unpack(data)
    if message.kind == "facts?":
        run, terms = wire.take_fields(message, {"run": str, "terms": dict})
        _check_run(run)
        _check_terms(terms)
        return dict(terms)
    if message.kind not in ("ask", "sum?"):
        raise WireError(f"expected an ask, got a {message.kind!r} message")
    kinds: dict[str, type] = {"run": str, "round": int, "terms": dict, "clients": int, "records": int, "first": int}
    more: dict[str, type] = {"step": str, "question": str} if message.kind == "sum?" else {}
    run, round_id, terms, clients, records, first, *of_sum = wire.take_fields(message, {**kinds, **more})
    _check_run(run)
    _check_terms(terms)
    if not (
        0 <= round_id < 2**31 and 1 <= clients <= MOST_CLIENTS and 1 <= records <= MOST_RECORDS and 0 <= first < clients
    ):
        raise WireError("round, clients, records or first of an ask are out of range")
    request = Request(
        run=run, round=round_id, terms=terms, clients_in_all=clients, records=records, first=first, message=message
    )
    return _step_of(request, *of_sum) if of_sum else request


def _step_of(request: Request, name: str, question: str) -> Request:
    """A request as a step of a secure sum: its rows apart, what is left in its message an ask where numbers are asked for."""
    step = _step(name)
    arrays = dict(request.message.arrays)
    rows = read_rows({part: arrays.pop(part, np.zeros(0)) for part in ("members", "rows")}, REQUEST_BYTES[step])
    if arrays and step != "mask":
        raise WireError(f"step {step!r} of a secure sum holds more than its rows")
    if not DIGEST.fullmatch(question):
        raise WireError("a step of a secure sum names no question")
    message = dataclasses.replace(request.message, arrays=arrays)
    return dataclasses.replace(request, step=step, question=question, rows=rows, message=message)


def _step(name: str) -> Step:
    found = next((step for step in STEPS if step == name), None)
    if found is None:
        raise WireError("a secure sum has no such step")
    return found


def _check_run(run: str) -> None:
    if not RUN.fullmatch(run):
        raise WireError("a run's name is made of small letters, digits, dots and dashes, at most 80")


def _check_terms(terms: JsonObject) -> None:
    """Check that terms hold nothing but what they must: they are kept with the run."""
    if set(terms) - set(OF_SUMS) != set(TERMS):
        raise WireError(f"the terms of a request are {', '.join(TERMS)}, and nothing else")


def make_facts(facts: Facts) -> bytes:
    known = {name: value for name, value in dataclasses.asdict(facts).items() if value is not None}
    return wire.pack(Message(kind="facts", fields=known))


def make_refusal(code: Code) -> bytes:
    return wire.pack(Message(kind="refusal", fields={"code": code}))


def make_reply(
    agreement: Agreement, population: Population, *, run: str, round_id: int, clients: NumpyArray, values: ArrayTree
) -> bytes:
    fields = {
        "run": run, "round": round_id, "agreement": agreement.digest, "clients": population.clients,
        "records": population.records,
    }  # fmt: skip
    arrays = {"clients": np.asarray(clients, np.int32)} | wire.leaves(values, "value")
    return wire.pack(Message(kind="reply", fields=fields, arrays=arrays))


def read_facts(data: bytes) -> Facts:
    """A site's facts; raises RefusedError where it said no, WireError for anything else."""
    message = _unpack_or_refuse(data, "facts")
    kinds: dict[str, type] = {"clients": int, "records": int, "seeded": bool}
    with_hosts = "hosts" in message.fields
    more: dict[str, type] = {"hosts": str, "records_read": bool} if with_hosts else {}
    clients, records, seeded, *hosting = wire.take_fields(message, {**kinds, **more})
    if message.arrays or not (1 <= clients <= MOST_CLIENTS and 1 <= records <= MOST_RECORDS):
        raise WireError("a site's facts are out of range")
    if with_hosts and hosting[0] not in HOSTS:
        raise WireError("a site says what its clients are in a word outside the closed list")
    hosts, read = hosting if with_hosts else (None, None)
    return Facts(clients=clients, records=records, seeded=seeded, hosts=hosts, records_read=read)


def read_reply(
    data: bytes, agreement: Agreement, population: Population, *, run: str, round_id: int
) -> tuple[NumpyArray, ArrayTree]:
    """Client numbers and stacked values; raises RefusedError where the site said no, WireError for garbage or another round."""
    message = _unpack_or_refuse(data, "reply")
    found = _reply_fields(message)
    if found != (run, round_id, agreement.digest, population.clients, population.records):
        raise WireError("a reply belongs to another run, round, agreement or population")
    return _reply_values(message, agreement, population, round_id)


def _unpack_or_refuse(data: bytes, kind: str) -> Message:
    message = wire.unpack(data)
    if message.kind == "refusal":
        code = read_code(message)
        raise RefusedError(code, REASONS[code])
    if message.kind != kind:
        raise WireError(f"expected a {kind!r} message, got {message.kind!r}")
    return message


def read_code(message: Message) -> Code:
    (code,) = wire.take_fields(message, {"code": str})
    if code not in REASONS or message.arrays:
        raise WireError("a refusal gives a reason outside the closed list")
    return code  # type: ignore[no-any-return]


def _reply_fields(message: Message) -> tuple[str, int, str, int, int]:
    kinds = {"run": str, "round": int, "agreement": str, "clients": int, "records": int}
    run, round_id, digest, clients, records = wire.take_fields(message, kinds)
    if not (0 <= round_id < 2**31 and 1 <= clients <= MOST_CLIENTS and 1 <= records <= MOST_RECORDS):
        raise WireError("round, clients or records of a reply are out of range")
    return run, round_id, digest, clients, records


def _reply_values(
    message: Message, agreement: Agreement, population: Population, round_id: int
) -> tuple[NumpyArray, ArrayTree]:
    clients = message.arrays.get("clients")
    if clients is None or clients.ndim != 1 or clients.dtype != np.int32 or len(np.unique(clients)) != len(clients):
        raise WireError("a reply does not say which clients it is of, each once")
    like = shapes_of(agreement.protocol, population, round_id).reply
    values = wire.fill(like, message.arrays, "value", rows=len(clients))
    if set(message.arrays) != {"clients", *wire.leaves(values, "value")}:
        raise WireError("a reply holds more than the replies")
    return clients, values


def check_outgoing(data: bytes, agreements: Mapping[str, Agreement]) -> bytes:
    """The same message, rebuilt from what was checked, so that nothing else is sent; raises WireError for anything else.

    `agreements` are the site's own, by digest.
    """
    message = wire.unpack(data)
    if message.kind == "refusal":
        return make_refusal(read_code(message))
    if message.kind == "facts":
        return make_facts(read_facts(data))
    if message.kind == "sum":
        return _check_sum_reply(message, agreements)
    if message.kind != "reply":
        raise WireError(f"a {message.kind!r} message does not leave a site")
    run, round_id, digest, clients, records = _reply_fields(message)
    _check_run(run)
    if digest not in agreements:
        raise WireError("a reply under terms the site has not agreed to does not leave it")
    agreement = agreements[digest]
    population = agreement.population(clients=clients, records=records)
    who, values = _reply_values(message, agreement, population, round_id)
    return make_reply(agreement, population, run=run, round_id=round_id, clients=who, values=values)
