"""Many requests, one transaction: what arrives while one is being written goes into the next.

A request is answered only after the transaction that holds it is on disk. One thread of each process writes, another reads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from populace.collector.store import Refusal, Result, Store, StoreError, Work

MOST_AT_ONCE = 512
MOST_WAITING = 8_192
AWAY = "the store cannot be written at the moment; send the same again in a few seconds, nothing is counted twice"
BUSY = "too many requests are waiting; send the same again in a few seconds"

log = logging.getLogger("populace.collector")
Found = TypeVar("Found")


class Batches:
    """A queue in front of a store, for one event loop."""

    def __init__(self, store: Callable[[], Store], *, hold: float) -> None:
        self._make, self._hold = store, hold
        self._stores: dict[str, Store] = {}
        self._waiting: list[tuple[Work, asyncio.Future[Result]]] = []
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="writer")
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reader")
        self._busy = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def do(self, item: Work) -> Result:
        """The result of one piece of work, on disk."""
        if len(self._waiting) >= MOST_WAITING:
            return Refusal(status=503, sentence=BUSY)
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if not self._busy:
            self._busy = True
            task = asyncio.create_task(self._drain())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def read(self, query: Callable[[Store], Found]) -> Found:
        """Something read from the store, beside what is being written. Raises StoreError where it is away."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, lambda: query(self._opened("reading")))

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST_AT_ONCE], self._waiting[MOST_AT_ONCE:]
            items = [item for item, _ in batch]
            results: list[Any]
            try:
                results = await loop.run_in_executor(self._writer, self._write, items)
            except StoreError:
                results = [Refusal(status=503, sentence=AWAY)] * len(batch)
            except Exception as error:
                log.error("a batch of %d failed: %s", len(batch), type(error).__name__)
                results = [Refusal(status=503, sentence=AWAY)] * len(batch)
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)
        self._busy = False

    def _write(self, items: list[Work]) -> list[Result]:
        return self._opened("writing").work(items, now=time.time(), hold=self._hold)

    def _opened(self, what: str) -> Store:
        """The store of one thread, opened when it is first needed."""
        if what not in self._stores:
            self._stores[what] = self._make()
        return self._stores[what]

    def close(self) -> None:
        """Finish what is being written, and let go of the store."""
        for thread in (self._writer, self._reader):
            thread.shutdown(wait=True)
        for store in self._stores.values():
            store.close()
