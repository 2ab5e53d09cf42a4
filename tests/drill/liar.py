"""A site that answers every question with a lie: what it sends must count as a refusal, or as nothing."""

from __future__ import annotations

import itertools
import random

import numpy as np

from populace.engines import wire
from populace.engines.wire import Message

REPLY, REQUEST = "reply", "request"


class Liar:
    """Replaces the answers of a site's executor, and its gate, which would stop most of them."""

    def __init__(self, module, seed: int) -> None:
        self._module, self._random = module, random.Random(seed)
        self._earlier: list[bytes] = []
        self._lies = itertools.cycle(self._random.sample(LIES, len(LIES)))

    def take_over(self) -> None:
        honest = self._module.SiteExecutor.execute

        def execute(executor, task_name, shareable, fl_ctx, abort_signal):
            reply = honest(executor, task_name, shareable, fl_ctx, abort_signal)
            request = shareable.get(REQUEST)
            if isinstance(request, bytes) and wire.unpack(request).kind == "ask":  # its facts are true: it is let in
                reply[REPLY] = self.lie(reply[REPLY])
            return reply

        self._module.SiteExecutor.execute = execute
        self._module.Gate.process = lambda gate, shareable, fl_ctx: shareable

    def lie(self, honest: bytes) -> object:
        self._earlier.append(honest)
        found = next(self._lies)(self._earlier, self._random)
        return b"" if found == honest else found


def _changed(data: bytes, **arrays) -> bytes:
    message = wire.unpack(data)
    return wire.pack(Message(kind=message.kind, fields=message.fields, arrays={**message.arrays, **arrays}))


def _others_clients(earlier, coin):
    clients = wire.unpack(earlier[-1]).arrays.get("clients")
    return b"" if clients is None else _changed(earlier[-1], clients=np.maximum(clients - 1 - len(clients), 0))


def _nobody(earlier, coin):
    clients = wire.unpack(earlier[-1]).arrays.get("clients")
    return b"" if clients is None else _changed(earlier[-1], clients=clients + np.int32(10**6))


def _wrong_shapes(earlier, coin):
    arrays = {
        name: np.concatenate([value, value]) for name, value in wire.unpack(earlier[-1]).arrays.items() if value.ndim
    }
    return _changed(earlier[-1], **arrays)


def _one_twice(earlier, coin):
    clients = wire.unpack(earlier[-1]).arrays.get("clients")
    return (
        b"" if clients is None or len(clients) < 2 else _changed(earlier[-1], clients=np.full_like(clients, clients[0]))
    )


LIES = (
    lambda earlier, coin: coin.randbytes(200),
    lambda earlier, coin: b"",
    lambda earlier, coin: None,
    lambda earlier, coin: "a word",
    lambda earlier, coin: coin.randbytes(2**20),
    lambda earlier, coin: earlier[-1][: len(earlier[-1]) // 2],
    lambda earlier, coin: earlier[-1] + b"more",
    lambda earlier, coin: earlier[-2] if len(earlier) > 1 else b"",  # the reply to another round
    _others_clients,
    _nobody,
    _wrong_shapes,
    _one_twice,
)
