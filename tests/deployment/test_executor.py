"""A site's class and gate in a job, and the coordinator's link: failures are a word, a changed file counts at once."""

import time
from types import SimpleNamespace

import jax
import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("nvflare")

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from builders import code_of, request_of
from populace.engines import messages
from populace.engines.agreement import Agreement, shapes_of
from populace.engines.flare import policy
from populace.engines.flare.controller import FlareLink
from populace.engines.flare.executor import REPLY, REQUEST, Gate, SiteExecutor
from populace.engines.flare.session import TASK
from populace.engines.link import LinkClosedError
from populace.engines.site_file import SiteFile, begin_accounts, read_hosted
from populace.errors import WireError
from populace.methods.registry import make_protocol
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.files import read_json, write_json

METHODS = ("independent", "krr")


@pytest.fixture
def agreements(rows):
    return {name: Agreement(protocol=make_protocol(name, {"epsilon": 2.0}), schema=rows.schema) for name in METHODS}


@pytest.fixture
def kit(rows, agreements, tmp_path):
    """A site's kit that has agreed to two methods, as far as its class and its gate look at it."""
    kit = tmp_path / "site" / "kit"
    (kit / "local").mkdir(parents=True)
    write_json(kit / "local" / "resources.json.default", {"client": {}, "components": []})
    pq.write_table(rows.frame, tmp_path / "rows.parquet")
    file = SiteFile(
        name="site", federation="f", data=str(tmp_path / "rows.parquet"), ledger=str(kit.parent / "ledger.sqlite"),
        log=str(kit.parent / "site.log"), by="rows", records_per_client=1, client_column=None, records=1, epsilon=4.0,
        delta=0.0, unit="client", seed=None, agreed=tuple(one.to_json() for one in agreements.values()),
    )  # fmt: skip
    policy.write_site_policy(kit, file.to_json())
    SqliteLedger(file.ledger, file.budget).close()
    begin_accounts(file, read_hosted(file, rows.schema))
    return kit


@pytest.fixture
def ask(kit, agreements):
    """What a site's job process says to a request for its facts, past the gate: return code, and the facts or a word."""
    context = SimpleNamespace(get_engine=lambda: SimpleNamespace(get_workspace=lambda: workspace))
    workspace = SimpleNamespace(get_root_dir=lambda: str(kit))
    executor, gate = SiteExecutor(), Gate()

    def ask(method):
        request = Shareable({REQUEST: messages.make_facts_request(agreements[method], run="r")})
        result = gate.process(executor.execute(TASK, request, context, None), context)
        assert result.get_return_code() == ReturnCode.OK
        try:
            return messages.read_facts(result[REPLY]).clients
        except messages.RefusedError as no:
            return no.code

    ask.gate = lambda reply: gate.process(reply, context)
    return ask


def test_a_site_that_cannot_open_its_data_refuses_and_says_why_in_its_own_log(kit, ask, rows, tmp_path):
    """Each cause is one word outside and a line inside; mended, the next request is answered."""
    log, data = kit.parent / "site.log", tmp_path / "rows.parquet"
    content = data.read_bytes()
    data.write_bytes(b"secret-value")
    assert ask("krr") == "failed"
    assert f"failed: DataError: cannot read {data}" in log.read_text()
    data.write_bytes(content)
    assert ask("krr") == len(rows)
    file = kit / "local" / policy.SITE_FILE
    document = file.read_text()
    file.write_text("{")
    assert ask("krr") == "failed"
    assert f"failed: RunError: cannot read {file}" in log.read_text()
    file.unlink()
    assert ask("krr") == "failed"
    file.write_text(document)
    assert ask("krr") == len(rows)
    assert log.stat().st_mode & 0o077 == 0


def test_what_is_withdrawn_is_refused_from_the_next_request_on(kit, ask, rows, agreements):
    """Both the class and the gate, each by itself, while the job goes on."""
    assert [ask(method) for method in METHODS] == [len(rows)] * 2
    agreement = agreements["independent"]
    population = agreement.population(clients=12, records=1)
    like = make_reply(ReturnCode.OK)
    shapes = shapes_of(agreement.protocol, population, 0).reply
    values = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype), shapes)
    like[REPLY] = messages.make_reply(agreement, population, run="r", round_id=0, clients=[0], values=values)
    assert ask.gate(like)[REPLY] == like[REPLY]
    path = kit / "local" / policy.SITE_FILE
    document = read_json(path)
    write_json(path, {**document, "agreed": [one for one in document["agreed"] if one["method"] != "independent"]})
    assert [ask(method) for method in METHODS] == ["method", len(rows)]
    with pytest.raises(WireError, match="has not agreed to"):
        ask.gate(like)


def test_nobody_to_ask_is_nobody_to_wait_for():
    began = time.monotonic()
    assert FlareLink(None, None, SimpleNamespace(triggered=False)).exchange({}, 30.0) == {}
    assert time.monotonic() - began < 5
    with pytest.raises(LinkClosedError):
        FlareLink(None, None, SimpleNamespace(triggered=True)).exchange({}, 30.0)


def test_data_that_changed_are_read_again_before_the_next_answer(rows, agreements, tmp_path):
    """Two patients withdraw between two rounds and their rows are deleted: nobody of that run answers with them any more."""
    kit, data = tmp_path / "site" / "kit", tmp_path / "rows.parquet"
    (kit / "local").mkdir(parents=True)
    write_json(kit / "local" / "resources.json.default", {"client": {}, "components": []})
    protocol = make_protocol("independent", {"epsilon": 2.0, "clients_per_batch": 6})
    agreement = Agreement(protocol=protocol, schema=rows.schema)

    def write(count):
        pq.write_table(
            rows.take(np.arange(count)).frame.append_column("patient", [[f"p{i}" for i in range(count)]]), data
        )

    write(12)
    file = SiteFile(
        name="site", federation="f", data=str(data), ledger=str(kit.parent / "ledger.sqlite"),
        log=str(kit.parent / "site.log"), by="column", records_per_client=1, client_column="patient", records=1, epsilon=9.0,
        delta=0.0, unit="client", seed=None, agreed=(agreement.to_json(),),
    )  # fmt: skip
    policy.write_site_policy(kit, file.to_json())
    SqliteLedger(file.ledger, file.budget).close()
    begin_accounts(file, read_hosted(file, rows.schema))
    executor = SiteExecutor()

    def ask(run, round_id):
        who = np.arange(6 * round_id, 6 * round_id + 4, dtype=np.int32)
        request = request_of(protocol, rows.schema, total=12, run=run, round_id=round_id, clients=who, heard=np.zeros(4),
                         own=np.zeros(4, np.int32))  # fmt: skip
        return code_of(executor._open(kit).reply(request))

    assert ask("run-1", 0) == "reply"
    stands = executor._site
    assert ask("run-1", 0) == "reply"
    assert executor._site is stands  # read once while nothing changes
    write(10)
    assert ask("run-1", 1) == "population"
    assert ask("run-2", 0) == "reply"
    write(12)
    assert ask("run-1", 1) == "reply"
