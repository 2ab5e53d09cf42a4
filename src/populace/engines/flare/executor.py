"""The site's part in a FLARE job: the one class a job may name, and the filter every result passes.

Both take no arguments, because those stand in the job and the coordinator writes the job. All they need is in the site's own
file, `local/populace.json`.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from pathlib import Path

from nvflare.apis.executor import Executor
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from populace.border.databases.address import file_of
from populace.engines.agreement import Agreement
from populace.engines.flare.policy import SITE_FILE, check_site_policy
from populace.engines.flare.session import TASK
from populace.engines.flare.tally import check_tally
from populace.engines.messages import check_outgoing, make_refusal
from populace.engines.site import Site, refusal_of
from populace.engines.site_file import log_of, open_site, read_agreements, read_site_file
from populace.errors import PopulaceError

REQUEST, REPLY, TALLY = "request", "reply", "tally"


def _kit(fl_ctx: FLContext) -> Path:
    return Path(fl_ctx.get_engine().get_workspace().get_root_dir())


class SiteExecutor(Executor):  # type: ignore[misc]
    """Answers requests for the clients the site hosts. Its data are read when the first request comes, and again when they or
    the site's own file changed: who is no longer in the data answers no more."""

    def __init__(self) -> None:
        super().__init__()
        self._site: Site | None = None
        self._read_at: list[tuple[int, ...]] = []
        self._data: Path | None = None
        self._one_at_a_time = threading.Lock()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        del abort_signal
        if task_name != TASK:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        reply = make_reply(ReturnCode.OK)
        with self._one_at_a_time:
            try:
                site = self._open(_kit(fl_ctx))
                revoked = check_tally(shareable.get(TALLY), _kit(fl_ctx))
                reply[REPLY] = dataclasses.replace(site, revoked=revoked).reply(shareable.get(REQUEST))
            except Exception as error:
                word, sentence = refusal_of(error)
                log_of(_kit(fl_ctx) / "local" / SITE_FILE)(sentence)
                reply[REPLY] = make_refusal(word)
        return reply

    def _open(self, kit: Path) -> Site:
        file = kit / "local" / SITE_FILE
        if self._site is None or self._read_at != _stands(file, self._data):
            check_site_policy(kit)
            self._site = None  # what cannot be read any more does not answer
            self._data = file_of(read_site_file(file).data)
            stands = _stands(file, self._data)  # before reading: what changes meanwhile is read again
            self._site, self._read_at = open_site(file), stands
        return self._site


def _stands(*paths: Path | None) -> list[tuple[int, ...]]:
    """Marks that change when a file is written, replaced or touched."""
    found = [path.stat() for path in paths if path is not None]
    return [(each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in found]


class Gate(Filter):  # type: ignore[misc]
    """Rebuilds every result from what was checked against the site's agreements, so that nothing else can ride along."""

    def __init__(self) -> None:
        super().__init__()
        self._agreements: Mapping[str, Agreement] = {}
        self._read_at = 0

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return make_reply(
                code if code in (ReturnCode.EXECUTION_EXCEPTION, ReturnCode.TASK_UNKNOWN) else ReturnCode.ERROR
            )
        reply: Shareable = make_reply(ReturnCode.OK)
        reply[REPLY] = check_outgoing(shareable.get(REPLY), self._agreed(_kit(fl_ctx) / "local" / SITE_FILE))
        return reply

    def _agreed(self, file: Path) -> Mapping[str, Agreement]:
        """The agreements in the site's file now; none where it cannot be read, so that only refusals leave."""
        try:
            changed = file.stat().st_mtime_ns
            if changed != self._read_at:
                self._agreements, self._read_at = read_agreements(file), changed
        except (PopulaceError, OSError):
            self._agreements, self._read_at = {}, 0
        return self._agreements
