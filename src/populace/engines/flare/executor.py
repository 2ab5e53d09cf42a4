"""The site's part in a FLARE job: the one class a job may name, and the filter every result passes.

Both take no arguments, because those stand in the job and the coordinator writes the job. All they need is in the site's own
file, `local/populace.json`.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from populace.engines.flare.policy import SITE_FILE, check_site_policy
from populace.engines.flare.session import TASK
from populace.engines.messages import check_outgoing
from populace.engines.site_file import open_site, read_agreements

REQUEST, REPLY = "request", "reply"


def _kit(fl_ctx: Any) -> Path:
    return Path(fl_ctx.get_engine().get_workspace().get_root_dir())


class SiteExecutor(Executor):  # type: ignore[misc]
    """Answers requests for the clients the site hosts. Its data are read once, when the first request comes."""

    def __init__(self) -> None:
        super().__init__()
        self._site: Any = None
        self._one_at_a_time = threading.Lock()

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        del abort_signal
        if task_name != TASK:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            with self._one_at_a_time:
                if self._site is None:
                    check_site_policy(_kit(fl_ctx))
                    self._site = open_site(_kit(fl_ctx) / "local" / SITE_FILE)
                reply = make_reply(ReturnCode.OK)
                reply[REPLY] = self._site.reply(shareable.get(REQUEST))
                return reply
        except Exception as error:
            self.log_warning(fl_ctx, f"could not answer: {type(error).__name__}: {error}", fire_event=False)
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)


class Gate(Filter):  # type: ignore[misc]
    """Rebuilds every result from what was checked against the site's agreements, so that nothing else can ride along."""

    def __init__(self) -> None:
        super().__init__()
        self._agreements: Any = None

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return make_reply(
                code if code in (ReturnCode.EXECUTION_EXCEPTION, ReturnCode.TASK_UNKNOWN) else ReturnCode.ERROR
            )
        if self._agreements is None:
            self._agreements = read_agreements(_kit(fl_ctx) / "local" / SITE_FILE)
        reply: Shareable = make_reply(ReturnCode.OK)
        reply[REPLY] = check_outgoing(shareable.get(REPLY), self._agreements)
        return reply
