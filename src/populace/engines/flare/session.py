"""What a coordinator says to its own FLARE server: submit a segment, look at it, abort it, see who is connected."""

from __future__ import annotations

import contextlib
import io
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from populace.engines.flare import require
from populace.engines.flare.kits import LEAD
from populace.engines.flare.policy import CONTROLLER, EXECUTOR
from populace.errors import RunError
from populace.tables.files import write_json

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session as FlareSession

T = TypeVar("T")
AtWork = Literal["yes", "no", "no answer"]

TASK = "populace"
SECONDS_BETWEEN_QUESTIONS = 0.05  # how often a site with nothing to do looks for a task
OVER = ("FINISHED", "ABORTED", "ABANDONED", "FAILED", "EXCEPTION")


class Session:
    """An admin connection as the coordinator's lead."""

    def __init__(self, inner: FlareSession) -> None:
        self._inner = inner

    def close(self) -> None:
        with _quiet(), contextlib.suppress(Exception):
            self._inner.close()

    def sites(self) -> list[str]:
        """The sites whose client is connected."""
        return sorted(client.name for client in self._ask(self._inner.get_system_info).client_info)

    def at_work(self, job_id: str) -> dict[str, AtWork]:
        """Of each connected site: whether its client runs a job, runs it not, or does not answer, as one that was killed."""
        asked = self._ask(self._inner.get_client_job_status) or []
        found: dict[str, AtWork] = {}
        for one in asked:
            name = str(one.get("client_name"))
            if one.get("job_id") == job_id:
                found[name] = "yes"
            elif one.get("status") == "no_reply":
                found.setdefault(name, "no answer")
            else:
                found.setdefault(name, "no")
        return found

    def submit(self, job: Path) -> str:
        return str(self._ask(self._inner.submit_job, str(job)))

    def over(self, job_id: str) -> bool:
        """Whether FLARE considers a job ended, for whatever reason."""
        status = str(self._ask(self._inner.get_job_meta, job_id).get("status", ""))
        return status.startswith(OVER)

    def status(self, job_id: str) -> str:
        return str(self._ask(self._inner.get_job_meta, job_id).get("status", ""))

    def abort(self, job_id: str) -> None:
        with _quiet(), contextlib.suppress(Exception):
            self._inner.abort_job(job_id)

    def _ask(self, call: Callable[..., T], *arguments: object) -> T:
        try:
            with _quiet():
                return call(*arguments)
        except Exception as error:
            raise RunError(f"the federation's server does not answer: {type(error).__name__}: {error}") from error


def connect(kit: Path, *, seconds: float) -> Session:
    """A session with the server, tried until it answers or the time is up."""
    require()
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    from populace.engines.flare.connecting import bound_connecting

    bound_connecting()
    until = time.monotonic() + seconds
    while True:
        try:
            with _quiet():
                return Session(new_secure_session(LEAD, str(kit), timeout=5.0))
        except Exception as error:
            if time.monotonic() >= until:
                raise RunError(
                    f"the federation's server does not answer within {seconds:g} s ({type(error).__name__}); "
                    "`populace federation start` starts it"
                ) from error
            time.sleep(0.3)


def write_job(folder: Path, *runs: Path, segment: int | None = None) -> Path:
    """A job as FLARE wants it: three files that name one class on each side, and no code. `segment` is the number of the
    segment of each run that the job is; without one, it is the next."""
    config = folder / "app" / "config"
    config.mkdir(parents=True, exist_ok=True)
    arguments = {"folders": [str(run) for run in runs], "segments": [segment] * len(runs)}
    write_json(
        folder / "meta.json",
        {"name": "populace", "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": ["@ALL"]}},
    )
    write_json(
        config / "config_fed_server.json",
        {
            "format_version": 2,
            "server": {"task_request_interval": SECONDS_BETWEEN_QUESTIONS},
            "workflows": [{"id": "segment", "path": CONTROLLER, "args": arguments}],
            "components": [],
        },
    )
    write_json(
        config / "config_fed_client.json",
        {
            "format_version": 2,
            "executors": [{"tasks": [TASK], "executor": {"path": EXECUTOR, "args": {}}}],
            "components": [],
        },
    )
    return folder


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence FLARE's client, which prints and logs to the terminal; results come back as values or errors."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
