"""A site's long-lived process: FLARE's client with what a job needs, and without what else a server could ask of it.

FLARE's client looks at its authorization file only where the request says that it should, and the server writes the request. A
changed server would so read any file (`cat`), remove the policy (`delete_run local`) or stop the process. What a site must not
do is therefore not there at all: of FLARE's commands those are kept that deploy, start, watch and end a job; they are taken
from the server alone, for job numbers of FLARE's own form; and a job starts only while the policy files stand as populace
wrote them. It connects to a server of the federation's root alone, unless that is on the site's list of revoked ones.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

from nvflare.apis.fl_context import FLContext
from nvflare.app_common.job_launcher import client_process_launcher
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic, new_cell_message
from nvflare.private.fed.app.client import client_train
from nvflare.private.fed.client import fed_client_base
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from populace.engines.flare.connecting import bound_connecting
from populace.engines.flare.policy import check_site_policy
from populace.engines.flare.tls import guard_connections
from populace.errors import PopulaceError

KEPT = frozenset(
    {
        TrainingTopic.CHECK_RESOURCE, TrainingTopic.CANCEL_RESOURCE, TrainingTopic.DEPLOY, TrainingTopic.START_JOB,
        TrainingTopic.ABORT, TrainingTopic.ABORT_TASK, TrainingTopic.CHECK_STATUS, TrainingTopic.NOTIFY_JOB_STATUS,
        SysCommandTopic.REPORT_VERSION,
    }
)  # fmt: skip
REFUSED = "refused by the site"
FLARES_WORKER, OWN_WORKER = "nvflare.private.fed.app.client.worker_process", "populace.engines.flare.worker"


class SilentAgent:
    """A replacement of FLARE's network agent, which would report processes and settings to a server and stop cells."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def close(self) -> None:
        """Nothing was opened."""


def may_pass(origin: object, topic: object, job: object, kit: Path) -> bool:
    """Whether a site accepts a command: one of those kept, from the server, about a job with a number of FLARE's form."""
    if topic not in KEPT or origin != FQCN.ROOT_SERVER:
        return False
    if job is not None and not _is_number(job):
        return False
    if topic in (TrainingTopic.DEPLOY, TrainingTopic.START_JOB):
        if job is None:
            return False
        try:
            check_site_policy(kit)
        except PopulaceError:
            return False
    return True


def _is_number(job: object) -> bool:
    try:
        return isinstance(job, str) and str(uuid.UUID(job)) == job
    except ValueError:
        return False


def guard(kit: Path) -> None:
    """Remove what a job does not need; called before FLARE's client is started."""
    ClientRequestProcessors.request_processors = [
        processor for processor in ClientRequestProcessors.request_processors if set(processor.get_topics()) <= KEPT
    ]
    fed_client_base.NetAgent = SilentAgent
    dispatch = FedAdminAgent._dispatch_request

    def guarded(self: FedAdminAgent, request: Message) -> Message:
        asked = request.payload
        job = asked.get_header(RequestHeader.JOB_ID)
        if not may_pass(request.get_header(MessageHeaderKey.ORIGIN), asked.topic, job, kit):
            return new_cell_message({}, error_reply(REFUSED))
        return dispatch(self, request)

    FedAdminAgent._dispatch_request = guarded


def start_own_workers() -> None:
    """Have jobs started with the same checks of connections as this process: FLARE's own worker has none of them."""
    generate = client_process_launcher.generate_client_command

    def command(fl_ctx: FLContext) -> str:
        words = str(generate(fl_ctx))
        if FLARES_WORKER not in words:
            raise RuntimeError(f"FLARE starts its jobs otherwise than known: {FLARES_WORKER} is not in its command")
        return words.replace(FLARES_WORKER, OWN_WORKER, 1)

    client_process_launcher.generate_client_command = command


def main() -> int:
    arguments = client_train.parse_arguments()
    guard(Path(arguments.workspace))
    guard_connections(Path(arguments.workspace))
    bound_connecting()
    start_own_workers()
    return int(MainProcessMonitor.run(main_func=client_train.main, run_dir=arguments.workspace, args=arguments) or 0)


if __name__ == "__main__":
    sys.exit(main())
