"""The coordinator's part in a FLARE job: a link over tasks, and one segment of a run on it.

A job is disposable. Whatever ends it, the run's own folder says how far it came, and the next job goes on from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
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
from populace.engines.link import Link, LinkClosedError
from populace.engines.segment import advance
from populace.types import JsonObject

SECONDS_BETWEEN_LOOKS = 0.02


class FlareLink(Link):
    """A link that sends requests as FLARE tasks. A site that missed the last exchange is asked, but not waited for."""

    def __init__(self, controller: Controller, fl_ctx: FLContext, abort: Signal, tally: Tally | None = None) -> None:
        self._controller, self._fl_ctx, self._abort, self._tally = controller, fl_ctx, abort, tally
        self._suspects: set[str] = set()

    def sites(self) -> list[str]:
        revoked = frozenset() if self._tally is None else self._tally.revoked()
        return [client.name for client in self._fl_ctx.get_engine().get_clients() if client.name not in revoked]

    def accepted(self, run: str, replies: Mapping[str, int]) -> None:
        if self._tally is not None:
            self._tally.note(run, replies)

    def exchange(self, asks: Mapping[str, bytes], timeout: float) -> dict[str, bytes]:
        if not asks and not self._abort.triggered:
            return {}
        found: JsonObject = {}
        lock, done = threading.Lock(), threading.Event()
        wanted = set(asks) - self._suspects or set(asks)

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            del fl_ctx
            with lock:
                found.setdefault(client_task.client.name, client_task.result)
                if wanted <= set(found):
                    done.set()

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
        until = time.monotonic() + timeout
        while not done.wait(SECONDS_BETWEEN_LOOKS) and time.monotonic() < until and not self._abort.triggered:
            pass
        for task in tasks:
            if task.completion_status is None:
                self._controller.cancel_task(task, fl_ctx=self._fl_ctx)
        if self._abort.triggered:
            raise LinkClosedError("the job was aborted; nothing of this round is absorbed")
        with lock:
            self._suspects = set(asks) - set(found)
            return {
                site: result.get(REPLY, b"")
                for site, result in found.items()
                if result.get_return_code() == ReturnCode.OK
            }


class SegmentController(Controller):  # type: ignore[misc]
    """One segment of each of the runs kept in `folders`, one after the other."""

    def __init__(self, folders: list[str]) -> None:
        super().__init__()
        self._folders = [Path(folder) for folder in folders]

    def start_controller(self, fl_ctx: FLContext) -> None:
        del fl_ctx

    def stop_controller(self, fl_ctx: FLContext) -> None:
        del fl_ctx

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        del client, task_name, client_task_id, result, fl_ctx  # late: the round is over, and the site has charged it

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        for folder in self._folders:
            if not abort_signal.triggered:
                advance(folder, FlareLink(self, fl_ctx, abort_signal, Tally(folder.parents[1])))
