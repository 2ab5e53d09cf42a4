"""The coordinator's part in a FLARE job: a link over tasks, and one segment of a run on it.

A job is disposable. Whatever ends it, the run's own folder says how far it came, and the next job goes on from there.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from populace.engines.flare.executor import REPLY, REQUEST, TALLY
from populace.engines.flare.session import TASK
from populace.engines.flare.tally import Tally
from populace.engines.link import Link, LinkClosedError, Still
from populace.engines.segment import advance
from populace.types import JsonObject

SECONDS_BETWEEN_LOOKS = 0.02
RECENT = 8  # answers: the first one of a segment, which is compiled, is no measure for long


class FlareLink(Link):
    """A link that sends requests as FLARE tasks.

    A site that missed the last exchange is asked in the next ones too, but waited for in the first, second, fourth, eighth of
    them only, and then for twice the longest of its last eight answers: a dead site does not hold up every round, and one
    that is merely slow gets in again.
    """

    def __init__(self, controller: Controller, fl_ctx: FLContext, abort: Signal, tally: Tally | None = None) -> None:
        self._controller, self._fl_ctx, self._abort, self._tally = controller, fl_ctx, abort, tally
        self._missed: dict[str, int] = {}
        self._recent: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
        self._still: Still = lambda silent: silent
        self._lock = threading.Lock()  # of all exchanges: a late answer comes while the next one is under way

    def sites(self) -> list[str]:
        revoked = frozenset() if self._tally is None else self._tally.revoked()
        return [client.name for client in self._fl_ctx.get_engine().get_clients() if client.name not in revoked]

    def accepted(self, run: str, replies: Mapping[str, int]) -> None:
        if self._tally is not None:
            self._tally.note(run, replies)

    def while_waiting(self, still: Still) -> None:
        self._still = still

    def exchange(self, asks: Mapping[str, bytes], timeout: float) -> dict[str, bytes]:
        if not asks and not self._abort.triggered:
            return {}
        found: JsonObject = {}
        lock, news, began = self._lock, threading.Event(), time.monotonic()

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            del fl_ctx
            with lock:
                site = client_task.client.name
                found.setdefault(site, client_task.result)
                self._recent[site].append(time.monotonic() - began)
            news.set()

        tasks = []
        for site, ask in asks.items():
            stated = {} if self._tally is None else {TALLY: self._tally.statement(site)}
            task = Task(
                name=TASK,
                data=Shareable({REQUEST: ask, **stated}),
                timeout=max(1, int(timeout)),
                result_received_cb=received,
            )
            self._controller.broadcast(task=task, fl_ctx=self._fl_ctx, targets=[site], min_responses=1)
            tasks.append(task)
        with lock:
            slowest = {site: max(times) for site, times in self._recent.items()}
        seconds = waits(sorted(asks), timeout, missed=self._missed, slowest=slowest)
        while not self._abort.triggered:
            with lock:
                silent = frozenset(asks) - set(found)
            waited = time.monotonic() - began
            if not any(waited < seconds[site] for site in self._still(silent)):
                break
            news.wait(SECONDS_BETWEEN_LOOKS)
            news.clear()
        for task in tasks:
            if task.completion_status is None:
                self._controller.cancel_task(task, fl_ctx=self._fl_ctx)
        if self._abort.triggered:
            raise LinkClosedError("the job was aborted; nothing of this round is absorbed")
        with lock:
            self._missed |= {site: 0 if site in found else self._missed.get(site, 0) + 1 for site in asks}
            return {
                site: result.get(REPLY, b"")
                for site, result in found.items()
                if result.get_return_code() == ReturnCode.OK
            }


def waits(
    asked: Sequence[str], timeout: float, *, missed: Mapping[str, int], slowest: Mapping[str, float]
) -> dict[str, float]:
    """How many seconds each site of an exchange is waited for, given the exchanges it has missed in a row and the longest
    that each site's last answers have taken. Where all have missed the last one, each has the whole time."""
    if all(missed.get(site) for site in asked):
        return dict.fromkeys(asked, timeout)
    longest = max(slowest.values(), default=timeout)

    def wait(site: str) -> float:
        count = missed.get(site, 0)
        if not count:
            return timeout
        return min(timeout, 2 * slowest.get(site, longest)) if count & (count - 1) == 0 else 0.0

    return {site: wait(site) for site in asked}


class SegmentController(Controller):  # type: ignore[misc]
    """One segment of each of the runs kept in `folders`, one after the other; `segments` are their numbers."""

    def __init__(self, folders: list[str], segments: list[int | None]) -> None:
        super().__init__()
        self._runs = [(Path(folder), segment) for folder, segment in zip(folders, segments, strict=True)]

    def start_controller(self, fl_ctx: FLContext) -> None:
        del fl_ctx

    def stop_controller(self, fl_ctx: FLContext) -> None:
        del fl_ctx

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        del client, task_name, client_task_id, result, fl_ctx  # late: the round is over, and the site has charged it

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        for folder, segment in self._runs:
            if not abort_signal.triggered:
                advance(folder, FlareLink(self, fl_ctx, abort_signal, Tally(folder.parents[1])), segment)
