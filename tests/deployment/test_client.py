"""What a site's process takes from a server that has been changed: nothing but jobs, and those by the site's own policy."""

import subprocess
import sys
import types
import uuid

import pytest

pytest.importorskip("nvflare")

from nvflare.app_common.job_launcher import client_process_launcher
from nvflare.fuel.f3.cellnet.core_cell import Message as CellMessage
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.sec.audit import AuditService
from nvflare.private.admin_defs import Message
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic
from nvflare.private.fed.client import fed_client_base
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from populace.engines.flare import client, policy
from populace.engines.flare.client import FLARES_WORKER, OWN_WORKER, start_own_workers
from populace.engines.flare.processes import MODULES
from populace.tables.files import write_json

JOB = str(uuid.UUID(int=7))


@pytest.fixture
def kit(tmp_path):
    """A kit whose policy files stand as populace writes them."""
    (tmp_path / "local").mkdir()
    given = {"client": {}, "components": [{"id": "resource_manager"}]}
    write_json(tmp_path / "local" / "resources.json.default", given)
    policy.write_site_policy(tmp_path, {})
    return tmp_path


@pytest.fixture
def agent(kit, tmp_path, monkeypatch):
    """FLARE's own agent of a site, guarded, on a wire of its own."""
    for owner, name in (
        (ClientRequestProcessors, "request_processors"), (fed_client_base, "NetAgent"), (FedAdminAgent, "_dispatch_request"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, getattr(owner, name))
    AuditService.initialize(str(tmp_path / "audit.log"))
    client.guard(kit)
    wire = types.SimpleNamespace(register_request_cb=lambda **given: None)
    made = FedAdminAgent("site", wire, None)
    for processor in ClientRequestProcessors.request_processors:
        made.register_processor(processor)
    yield made
    AuditService.close()


def ask(agent, topic, origin="server", body="", **headers):
    """What a server gets for a command sent without FLARE's request to authorize it."""
    message = Message(topic=topic, body=body)
    for name, value in headers.items():
        message.set_header(name, value)
    return agent._dispatch_request(CellMessage(headers={MessageHeaderKey.ORIGIN: origin}, payload=message)).payload


def test_a_server_that_leaves_authorization_out_reads_no_file(agent, tmp_path):
    secret = tmp_path / "patients.csv"
    secret.write_text("name,diagnosis\nann,gout\n")
    reply = ask(agent, SysCommandTopic.SHELL, body=f"cat {secret}", **{RequestHeader.ADMIN_COMMAND: "cat"})
    assert reply.body == client.REFUSED
    assert SysCommandTopic.SHELL not in agent.processors
    assert set(agent.processors) <= client.KEPT


@pytest.mark.parametrize(
    "topic",
    [
        TrainingTopic.DELETE_RUN, TrainingTopic.SHUTDOWN, TrainingTopic.RESTART, SysCommandTopic.SYS_INFO,
        SysCommandTopic.REPORT_ENV, SysCommandTopic.CONFIGURE_SITE_LOG, TrainingTopic.CONFIGURE_JOB_LOG,
    ],
)  # fmt: skip
def test_what_no_job_needs_is_not_there(agent, topic):
    assert ask(agent, topic, **{RequestHeader.JOB_ID: JOB}).body == client.REFUSED
    assert topic not in agent.processors


def test_jobs_pass_from_the_server_with_a_number_while_the_policy_stands(kit):
    for topic in (TrainingTopic.DEPLOY, TrainingTopic.START_JOB):
        assert client.may_pass("server", topic, JOB, kit)
        for job in ("local", "startup", "../x", JOB.upper() + "x", "{" + JOB + "}", None, 7):
            assert not client.may_pass("server", topic, job, kit)
        assert not client.may_pass("site-2", topic, JOB, kit)
        assert not client.may_pass(None, topic, JOB, kit)
    assert client.may_pass("server", TrainingTopic.CHECK_RESOURCE, None, kit)
    (kit / "local" / "privacy.json").unlink()
    assert not client.may_pass("server", TrainingTopic.START_JOB, JOB, kit)
    assert client.may_pass("server", TrainingTopic.ABORT, JOB, kit)


def test_the_network_agent_is_silent_and_sites_start_guarded(agent):
    assert fed_client_base.NetAgent is client.SilentAgent
    fed_client_base.NetAgent("any cell").close()
    assert MODULES["client"] == client.__name__


def test_jobs_are_started_with_the_checks_of_connections(monkeypatch):
    """The worker carries requests and replies over a connection of its own."""
    monkeypatch.setattr(
        client_process_launcher, "generate_client_command", lambda _: f"python -u -m {FLARES_WORKER} -n 1"
    )
    start_own_workers()
    assert client_process_launcher.ClientProcessJobLauncher().get_command({}, None) == f"python -u -m {OWN_WORKER} -n 1"
    monkeypatch.setattr(client_process_launcher, "generate_client_command", lambda _: "python -m something.new")
    start_own_workers()
    with pytest.raises(RuntimeError, match="otherwise than known"):
        client_process_launcher.ClientProcessJobLauncher().get_command({}, None)


def test_the_worker_takes_certificates_of_the_federations_root_alone(tmp_path):
    code = """
import sys
from pathlib import Path
from nvflare.fuel.f3.drivers import tcp_driver
from populace.engines.flare import connecting, tls, worker
worker.guard(Path(sys.argv[1]))
checked = tcp_driver.get_ssl_context is not tls.flares_context
sys.exit(0 if checked and tcp_driver.TcpDriver.connect is connecting.connect else 1)
"""
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == 0
