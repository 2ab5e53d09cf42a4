"""Targets: messages as bytes, to everything that reads one."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
from typing import Any

import numpy as np

from builders import INDEPENDENT, request_of, small_schema
from fuzz.corpus import Corpus
from fuzz.mutate import NUMBERS, change_document, some_bytes
from fuzz.target import FindingError, Input, Target
from populace.collector.documents import Sent, answer_from, answer_message
from populace.engines import messages, wire
from populace.engines.agreement import Agreement
from populace.engines.secure_sum.messages import REPLY_BYTES, STEPS, unpack_numbers, unpack_rows
from populace.engines.secure_sum.steps import Kept, kept_from_bytes
from populace.engines.wire import HEAD, MAGIC, VERSION
from secure_sums_for_tests import Sites, make_opening, vectors_of


@functools.cache
def agreed() -> Agreement:
    return Agreement(protocol=INDEPENDENT, schema=small_schema())


@dataclasses.dataclass
class Valid:
    """Valid messages by what they are, and a population to read replies under."""

    messages: dict[str, bytes]
    population: Any
    opening: Any


def prepare(_: Corpus) -> Valid:
    agreement = agreed()
    population = agreement.population(clients=6, records=1)
    opening = make_opening()
    sites = Sites(opening, vectors_of(opening))
    sites.open()
    sums = {f"step {step}": data for (step, place), data in sites.sent.items() if place == 0}
    for step in STEPS:
        rows = sites.asked[step, 0]
        ask = request_of(INDEPENDENT, small_schema()) if step == "mask" else None
        sums[f"sum? {step}"] = messages.make_sum_request(
            ask, agreement, population, run="run-1", round_id=0, first=0, step=step, question="0" * 64, rows=rows
        )
        taken = sites.sent[step, 0]
        sums[f"sum {step}"] = messages.make_sum_reply(agreement.digest, run="run-1", round_id=0, step=step, taken=taken)
    values = np.zeros((6, *_reply_shape(agreement, population)), np.int32)
    found = {
        "ask": request_of(INDEPENDENT, small_schema()),
        "facts?": messages.make_facts_request(agreement, run="run-1"),
        "facts": messages.make_facts(
            messages.Facts(clients=6, records=1, seeded=False, hosts="rows", records_read=False)
        ),
        "old facts": messages.make_facts(messages.Facts(clients=6, records=1, seeded=True)),
        "refusal": messages.make_refusal("budget"),
        "reply": _reply(agreement, population, values),
        "answer": answer_message(Sent(round=0, place=3, report=b"abc", nonce=bytes(32))),
        **sums,
    }
    return Valid(messages=found, population=population, opening=opening)


def _reply_shape(agreement: Agreement, population: Any) -> tuple[int, ...]:
    from populace.engines.agreement import shapes_of

    return shapes_of(agreement.protocol, population, 0).reply.shape


def _reply(agreement: Agreement, population: Any, values: Any) -> bytes:
    from populace.engines.agreement import shapes_of

    values = values.astype(shapes_of(agreement.protocol, population, 0).reply.dtype)
    return messages.make_reply(agreement, population, run="run-1", round_id=0, clients=np.arange(6), values=values)


def damaged_message(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """A message with its fields, its arrays' shapes and types, its sizes or its bytes made wrong."""
    how = rng.random()
    if how < 0.3 or len(data) < HEAD.size:
        return some_bytes(rng, data, others)
    _, _, size, _ = HEAD.unpack_from(data)
    document = json.loads(data[HEAD.size : HEAD.size + size])
    body = data[HEAD.size + size :]
    if how < 0.75:
        changed, raw = change_document(rng, document)
        text = json.dumps(changed)
        for mark, value in raw.items():
            text = text.replace(f'"{mark}"', value)
        header = text.encode("utf-8", "surrogatepass")
    else:
        header, body = _arrays(rng, document, body)
    head = HEAD.pack(MAGIC, VERSION, len(header) % 2**32, len(body))
    if rng.random() < 0.1:
        numbers = [rng.choice(NUMBERS) % 2**64 for _ in range(3)]
        head = HEAD.pack(MAGIC, numbers[0] % 2**16, numbers[1] % 2**32, numbers[2])
    return head + header + body


def _arrays(rng: random.Random, document: dict[str, Any], body: bytes) -> tuple[bytes, bytes]:
    """Arrays of other numbers: extreme ones, not finite ones; or other shapes over the same bytes."""
    entries = document["arrays"]
    if entries and rng.random() < 0.5:
        entry = rng.choice(entries)
        entry[rng.choice((1, 2))] = rng.choice((
            "int64", "float32", "bool", "uint8", "float16", [0], [], [1, 1, 1], [2**31], [0, 2**62], [-1], [2**40, 0],
            [0] * 9, entry[2][::-1],
        ))  # fmt: skip
        return json.dumps(document).encode(), body
    width = rng.choice((4, 8))
    if len(body) < width:
        return json.dumps(document).encode(), body + bytes(4)
    at = rng.randrange(0, len(body) - width + 1)
    number = rng.choice(NUMBERS) % 2 ** (8 * width)
    special = rng.choice((number.to_bytes(width, "little"), np.float32("nan").tobytes(), np.float32("inf").tobytes()))
    return json.dumps(document).encode(), body[:at] + special + body[at + len(special) :]


def drawing(*starts: str):
    """Messages of these kinds damaged, and now and then others."""

    def draw(valid: Valid, rng: random.Random) -> Input:
        fitting = sorted(name for name in valid.messages if name.startswith(starts))
        name = rng.choice(fitting if fitting and rng.random() < 0.8 else sorted(valid.messages))
        return {"message": damaged_message(rng, valid.messages[name], list(valid.messages.values()))}

    return draw


def _unpack(valid: Valid, case: Input) -> None:
    """What was unpacked packs to a message that reads the same."""
    message = wire.unpack(case["message"])
    again = wire.unpack(wire.pack(message))
    same = again.kind == message.kind and list(again.arrays) == list(message.arrays)
    if not same or any(
        a.tobytes() != b.tobytes() for a, b in zip(again.arrays.values(), message.arrays.values(), strict=True)
    ):
        raise FindingError("a message is another one after it was packed and unpacked")


def _request(valid: Valid, case: Input) -> None:
    messages.read_request(case["message"])


def _facts(valid: Valid, case: Input) -> None:
    messages.read_facts(case["message"])


def _reply_of(valid: Valid, case: Input) -> None:
    clients, _ = messages.read_reply(case["message"], agreed(), valid.population, run="run-1", round_id=0)
    if len(set(clients.tolist())) != len(clients):
        raise FindingError("a reply names a client twice")


def _sum_reply(valid: Valid, case: Input) -> None:
    for step in STEPS:
        try:
            taken = messages.read_sum_reply(case["message"], agreed(), run="run-1", round_id=0, step=step)
        except messages.PopulaceError:
            continue
        if step == "mask":
            unpack_numbers(taken, valid.opening)
        else:
            unpack_rows(taken, kind=step, width=REPLY_BYTES[step])


def _outgoing(valid: Valid, case: Input) -> None:
    """What passes the gate once passes it again, unchanged."""
    rebuilt = messages.check_outgoing(case["message"], {agreed().digest: agreed()})
    if messages.check_outgoing(rebuilt, {agreed().digest: agreed()}) != rebuilt:
        raise FindingError("the gate changes what it let through")


def _steps(valid: Valid, case: Input) -> None:
    for step, width in REPLY_BYTES.items():
        try:
            unpack_rows(case["message"], kind=step, width=width)
        except messages.PopulaceError:
            continue
    unpack_numbers(case["message"], valid.opening)


def _answer(valid: Valid, case: Input) -> None:
    answer_from(case["message"], wire_form=True)


def _json_answer_draw(valid: Valid, rng: random.Random) -> Input:
    text = b'{"round": 0, "place": 3, "report": "YWJj", "nonce": "' + b"A" * 43 + b'="}'
    from fuzz.mutate import damaged

    return {"message": damaged(rng, text, [], form="json")}


def _json_answer(valid: Valid, case: Input) -> None:
    answer_from(case["message"], wire_form=False)


def _kept_draw(valid: Valid, rng: random.Random) -> Input:
    kept = Kept(
        sealing_key=bytes(32),
        mask_key=bytes(32),
        self_mask=bytes(32),
        keys={0: b"a", 1: b"b"},
        held={0: b"c"},
        survivors=(0, 1),
    )
    from fuzz.mutate import damaged

    return {"message": damaged(rng, kept.to_bytes(), [], form="json")}


def _kept(valid: Valid, case: Input) -> None:
    kept_from_bytes(case["message"])


def _target(name: str, run: Any, make: Any, cost: float = 0.3) -> Target:
    return Target(name=name, prepare=prepare, draw=make, run=run, cost=cost)


TARGETS: tuple[Target, ...] = (
    _target("wire-unpack", _unpack, drawing("")),
    _target("wire-request", _request, drawing("ask", "facts?", "sum?")),
    _target("wire-facts", _facts, drawing("facts", "old facts", "refusal")),
    _target("wire-reply", _reply_of, drawing("reply", "refusal"), cost=0.5),
    _target("wire-sum-reply", _sum_reply, drawing("sum ", "refusal"), cost=0.5),
    _target("wire-outgoing", _outgoing, drawing("reply", "sum ", "facts", "refusal"), cost=0.5),
    _target("wire-steps", _steps, drawing("step ")),
    _target("wire-answer", _answer, drawing("answer")),
    _target("json-answer", _json_answer, _json_answer_draw),
    _target("kept-of-sum", _kept, _kept_draw),
)
