"""The reference client: one report per study, kept before it is sent, the same bytes again; and nothing taken on trust."""

import base64
import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import populace as pop
from collector_for_tests import client_of, make_study, opened, tokens, turn
from populace.cli.main import call
from populace.collector.device import ACCOUNT, AwayError, NotTakenError, read_terms
from populace.collector.documents import study_document
from populace.collector.record import encode_record
from populace.errors import BudgetError, DataError, InputError, PopulaceError, SpecError, WireError
from populace.privacy.ledger import Budget
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.embedded import harbour, harbour_schema

RECORD = harbour().frame.slice(0, 1).to_pylist()[0]


class Wire:
    """A network that can fail: every request goes to the application, or does not, or its answer is lost."""

    def __init__(self, client):
        self.client, self.seen, self.plan = client, [], []
        wire = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                wire.handle(self, b"")

            def do_POST(self):
                wire.handle(self, self.rfile.read(int(self.headers.get("content-length", 0))))

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def handle(self, handler, body):
        self.seen.append((handler.command, handler.path, body))
        todo = self.plan.pop(0) if self.plan and handler.path == "/v1/answer" else "pass"
        if todo == "drop":
            handler.close_connection = True
            return
        if callable(todo):
            todo()
        headers = {name.lower(): value for name, value in handler.headers.items()}
        reply = self.client.request(handler.command, handler.path, content=body, headers=headers)
        if todo == "lose":
            handler.close_connection = True
            return
        content, status, kind = reply.content, reply.status_code, reply.headers["content-type"]
        if isinstance(todo, bytes):
            content = todo
        elif isinstance(todo, tuple):
            status, content = todo
            kind = "text/html"
        handler.send_response(status)
        handler.send_header("content-type", kind)
        handler.send_header("content-length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def sent(self):
        return [body for verb, path, body in self.seen if (verb, path) == ("POST", "/v1/answer")]


@contextlib.contextmanager
def network(place):
    with client_of(place) as client:
        wire = Wire(client)
        try:
            yield wire
        finally:
            wire.server.shutdown()
            wire.server.server_close()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    made = make_study(tmp_path_factory.mktemp("device"), "independent", clients=40)
    turn(made)
    return made


@pytest.fixture
def link(place, request):
    number = getattr(request.config, "_next_device", 0)
    request.config._next_device = number + 1
    token = tokens(place)[number]
    return lambda wire: f"{wire.url}/#{token}"


def answers(place):
    with opened(place) as store:
        return store.counts()["answers"]


def test_a_device_answers_once_and_says_the_same_again(place, link, tmp_path):
    with network(place) as wire:
        device = pop.Device(link(wire), ledger=tmp_path / "ledger")
        before = answers(place)
        first = device.answer(RECORD)
        again = device.answer(RECORD)
        assert (first.fresh, again.fresh, first.receipt) == (True, False, again.receipt)
        assert answers(place) == before + 1
        one, other = wire.sent()
        assert one == other
    with SqliteLedger(tmp_path / "ledger", Budget(epsilon=2.0, unit="client")) as ledger:
        assert ledger.entries(ACCOUNT) == 1


@pytest.mark.parametrize("plan", [["drop"], ["lose"], ["drop", "lose", "drop"]])
def test_whatever_is_lost_on_the_way_the_same_bytes_are_sent_until_the_receipt_comes(place, link, tmp_path, plan):
    with network(place) as wire:
        wire.plan = list(plan)
        before = answers(place)
        receipt = pop.Device(link(wire), ledger=tmp_path / "ledger").answer(RECORD, patience=60.0)
        assert len(set(wire.sent())) == 1
        assert len(wire.sent()) == len(plan) + 1
        assert answers(place) == before + 1
        assert receipt.fresh == ("lose" not in plan)


def test_an_answer_is_in_the_ledger_before_it_is_sent_and_a_restart_sends_it(place, link, tmp_path):
    with network(place) as wire:
        wire.plan = ["drop"]
        with pytest.raises(AwayError, match="kept in"):
            pop.Device(link(wire), ledger=tmp_path / "ledger").answer(RECORD)
        with SqliteLedger(tmp_path / "ledger", Budget(epsilon=2.0, unit="client")) as ledger:
            assert ledger.entries(ACCOUNT) == 1
        asked = sum(path == "/v1/question" for _, path, _ in wire.seen)
        assert pop.Device(link(wire), ledger=tmp_path / "ledger").answer(RECORD).fresh
        assert sum(path == "/v1/question" for _, path, _ in wire.seen) == asked  # no second question
        assert len(set(wire.sent())) == 1


def test_a_second_invitation_does_not_make_a_second_answer(place, link, tmp_path, request):
    with network(place) as wire:
        pop.Device(link(wire), ledger=tmp_path / "ledger").answer(RECORD)
        number = request.config._next_device
        request.config._next_device += 1
        other = f"{wire.url}/#{tokens(place)[number]}"
        before = answers(place)
        with pytest.raises(InputError, match="given with another link; a person answers once"):
            pop.Device(other, ledger=tmp_path / "ledger").answer(RECORD)
        assert answers(place) == before


def test_a_record_that_cannot_be_sent_leaves_no_ledger(place, link, tmp_path):
    with network(place) as wire, pytest.raises(PopulaceError):
        pop.Device(link(wire), ledger=tmp_path / "ledger").answer(tmp_path / "none.json")
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_that_would_overspend_refuses_before_anything_is_asked(place, link, tmp_path):
    with SqliteLedger(tmp_path / "ledger", Budget(epsilon=1.0, unit="client")):
        pass
    with network(place) as wire:
        with pytest.raises(BudgetError):
            pop.Device(link(wire), ledger=tmp_path / "ledger").answer(RECORD)
        assert not wire.sent()
        assert not any(path == "/v1/question" for _, path, _ in wire.seen)
        assert pop.Device(link(wire), ledger=tmp_path / "ledger", limit=2.0).answer(RECORD).fresh


def test_two_studies_add_up(place, link, tmp_path):
    second = make_study(tmp_path / "second", "independent", clients=5, epsilon=1.0)
    turn(second)
    with network(place) as wire, network(second) as other:
        pop.Device(link(wire), ledger=tmp_path / "ledger").answer(RECORD)
        url = f"{other.url}/#{tokens(second)[0]}"
        with pytest.raises(BudgetError):
            pop.Device(url, ledger=tmp_path / "ledger").answer(RECORD)
        pop.Device(url, ledger=tmp_path / "ledger", limit=3.0).answer(RECORD)


def test_two_records_of_one_user_are_answered_from_one_ledger(tmp_path, monkeypatch, capsys):
    """A second study of the same epsilon passes the limit, whatever the record's file is called."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    record = json.dumps(RECORD)
    codes = []
    for name in ("one", "two"):
        place = make_study(tmp_path / name, "independent", clients=3)
        turn(place)
        (tmp_path / f"{name}.json").write_text(record)
        with network(place) as wire:
            link = f"{wire.url}/#{tokens(place)[0]}"
            codes.append(call(["device", "answer", link, "--record", str(tmp_path / f"{name}.json")]))
    assert codes == [0, 2]
    assert "would have spent epsilon 4 of 2" in capsys.readouterr().err


def test_a_wrong_receipt_is_noticed(place, link, tmp_path):
    with network(place) as wire:
        wire.plan = [json.dumps({"receipt": "0" * 64, "fresh": True}).encode()]
        with pytest.raises(WireError, match="receipt"):
            pop.Device(link(wire), ledger=tmp_path / "ledger").answer(RECORD)


def test_an_answer_that_comes_when_its_round_was_counted_is_refused_and_spent(tmp_path):
    """The report had left the device: it counts nowhere, and is paid for; the collector says so, now and later."""
    made = make_study(tmp_path, "samprivsyn", clients=20, settings={"clients_per_batch": 10})
    turn(made)
    study = made.read()

    def count_early():
        with opened(made) as store:
            store.seal(0)
        turn(made)

    with network(made) as wire:
        wire.plan = [count_early]
        device = pop.Device(f"{wire.url}/#{tokens(made)[0]}", ledger=tmp_path / "ledger")
        for _ in range(2):
            with pytest.raises(NotTakenError, match="does not count"):
                device.answer(RECORD)
        assert len(set(wire.sent())) == 1
        with opened(made) as store:
            assert store.counts()["answers"] == 0
            assert [at.number for at in store.rounds()] == [1, 0]
    with SqliteLedger(tmp_path / "ledger", Budget(epsilon=2.0, unit="client")) as ledger:
        assert ledger.entries(ACCOUNT) == 1
    assert study.epsilon == 2.0


def test_a_used_invitation_on_a_new_device_is_refused(place, link, tmp_path):
    with network(place) as wire:
        pop.Device(link(wire), ledger=tmp_path / "one").answer(RECORD)
        with pytest.raises(NotTakenError, match="used"):
            pop.Device(link(wire), ledger=tmp_path / "two").answer(RECORD)


def test_a_study_must_be_what_it_says(place):
    document = json.loads(json.dumps(study_document(place.read())))
    assert read_terms(document).digest == place.read().digest
    changed = json.loads(json.dumps(document))
    changed["facts"]["terms"]["parameters"]["epsilon"] = 8.0
    with pytest.raises(WireError, match="digest"):
        read_terms(changed)
    from populace.collector.study import study_digest

    for change in ({"questions": "0" * 64}, {"clients": 0}):
        other = json.loads(json.dumps(document))
        other["facts"] |= change
        other["digest"] = study_digest(other["facts"])
        with pytest.raises(SpecError):
            read_terms(other)
    foreign = json.loads(json.dumps(document))
    foreign["facts"]["terms"]["method"] = "moments"
    foreign["digest"] = study_digest(foreign["facts"])
    with pytest.raises(SpecError, match="moments"):
        read_terms(foreign)


WRONG = {
    "two records": {name: [value, value] for name, value in RECORD.items()},
    "a column less": {name: value for name, value in RECORD.items() if name != "age"},
    "outside": {**RECORD, "age": 4_000},
    "unknown": {**RECORD, "district": "nowhere"},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_record_that_does_not_fit_costs_nothing(place, link, tmp_path, name):
    import pyarrow as pa

    record = pa.table(WRONG[name]) if name == "two records" else WRONG[name]
    with network(place) as wire:
        with pytest.raises(DataError):
            pop.Device(link(wire), ledger=tmp_path / "ledger").answer(record)
        assert not wire.sent()
        with SqliteLedger(tmp_path / "ledger", Budget(epsilon=2.0, unit="client")) as ledger:
            assert ledger.entries(ACCOUNT) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"district": "nowhere"}, r"^your answer to 'district' is none of the choices; choose one of [^;]*, [^;]*$"),
        ({"age": 4_000}, r"^your answer to 'age' is none that the study can take; give a whole number from \d+ to \d+"),
        ({"age": "ninety"}, r"^your answer to 'age' is none that the study can take; give a whole number"),
        ({"district": None}, r"^your answer to 'district' is empty; choose one of"),
        (
            {"district": "nowhere", "age": 4_000},
            r"^2 problems: \(1\) your answer to 'age' .*\(2\) your answer to 'district'",
        ),
    ],
)
def test_what_is_wrong_with_an_answer_is_said_to_a_person(change, words):
    """No row, no schema, no cells: those are words for an analyst; and the answer itself is not repeated."""
    with pytest.raises(DataError, match=words) as said:
        encode_record({**RECORD, **change}, harbour_schema())
    for word in ("row", "schema", "column", "cells", "nullable", "nowhere", "4000", "ninety"):
        assert word not in str(said.value), word
    with pytest.raises(DataError, match=r"^there is no answer to 'age' in your record; give a whole number from"):
        encode_record({name: value for name, value in RECORD.items() if name != "age"}, harbour_schema())
    with pytest.raises(DataError, match=r"^there is no answer to 'age', .* and 'owns_home' in your record; add them$"):
        encode_record({"what": 1}, harbour_schema())


def test_records_from_files(tmp_path):
    expected = harbour().codes[0].tolist()
    (tmp_path / "me.json").write_text(json.dumps(RECORD))
    names = list(RECORD)
    (tmp_path / "me.csv").write_text(
        ",".join(names) + "\n" + ",".join(str(RECORD[name]).lower() for name in names) + "\n"
    )
    for file in ("me.json", "me.csv"):
        assert encode_record(tmp_path / file, harbour_schema()).tolist() == expected
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "bad.json").write_text("{")
    for file in ("list.json", "bad.json", "none.json", "none.csv"):
        with pytest.raises(PopulaceError):
            encode_record(tmp_path / file, harbour_schema())


NOT_THE_STUDY = {
    "a login page": (200, b"<html>welcome</html>"),
    "a proxy without a sentence": (403, b"<html>forbidden</html>"),
    "a proxy's JSON": (403, b'{"message": "blocked"}'),
    "an address that moved": (404, b"nothing here"),
    "a legal block": (451, b'{"error": "blocked"}'),
    "a gateway": (520, b"<html>unknown</html>"),
    "one that failed": (599, b""),
    "a deep one": (200, b"[" * 100_000),
    "a list": (200, b"[]"),
    "a number": (422, b"7"),
}


@pytest.mark.parametrize("name", NOT_THE_STUDY)
def test_only_the_study_itself_refuses_everything_else_is_sent_again(place, link, tmp_path, name):
    with network(place) as wire:
        device = pop.Device(link(wire), ledger=tmp_path / "ledger")
        wire.plan = [NOT_THE_STUDY[name]]
        with pytest.raises(AwayError, match="kept in"):
            device.answer(RECORD)
        assert not device.answer(RECORD).fresh  # it had arrived; the same bytes get the receipt
        assert len(set(wire.sent())) == 1


def test_an_open_study_needs_no_invitation_and_another_one_does(place, tmp_path):
    made = make_study(tmp_path, "independent", clients=5, open_to_all=True)
    turn(made)
    with network(made) as wire:
        assert pop.Device(wire.url, ledger=tmp_path / "ledger").answer(RECORD).fresh
        assert not pop.Device(wire.url, ledger=tmp_path / "ledger").answer(RECORD).fresh
    with network(place) as wire, pytest.raises(InputError, match="invited"):
        pop.Device(wire.url, ledger=tmp_path / "other").answer(RECORD)


@pytest.mark.slow
def test_an_autoencoder_by_check_in(tmp_path):
    """`dp-fed-wae`: the model comes down as a message, one index and one sign go up, round after round."""
    made = make_study(tmp_path, "dp-fed-wae", clients=4, settings={"cohort_size": 2, "latent_classes": 2})
    turn(made)
    table = harbour().frame
    with network(made) as wire:
        for number, token in enumerate(tokens(made)):
            device = pop.Device(f"{wire.url}/#{token}", ledger=tmp_path / f"ledger-{number}")
            assert device.answer(table.slice(number, 1)).fresh
            turn(made)
    with opened(made) as store:
        assert [at.state for at in store.rounds()] == ["absorbed", "absorbed"]
        assert store.counts()["answers"] == 4
        assert store.fact("closed") is not None


def test_reports_of_devices_estimate_the_truth(tmp_path):
    """Four hundred devices with one column of two values, all in the same one: the estimate is near it, and not elsewhere."""
    from populace.collector.progress import column_estimates, tally_of
    from populace.tables.schema import Column, Schema

    schema = Schema(columns=(Column(name="c", kind="categorical", categories=("a", "b", "c"), source="t"),))
    made = make_study(tmp_path, "independent", clients=400, schema=schema, epsilon=1.0)
    turn(made)
    study = made.read()
    import collector_twin as twin
    from collector_for_tests import bearer

    with client_of(made) as client:
        for token in tokens(made):
            question = client.get("/v1/question", headers=bearer(token)).json()
            body = {
                "round": question["round"], "place": question["place"], "nonce": base64.b64encode(bytes(32)).decode(),
                "report": base64.b64encode(twin.make_report(question, [1])).decode(),
            }  # fmt: skip
            assert client.post("/v1/answer", json=body, headers=bearer(token)).status_code == 200
    with opened(made) as store:
        (estimate,) = column_estimates(study.survey, tally_of(study, study.survey, store))
    assert np.all(np.abs(estimate.shares - [0, 1, 0]) < 4.5 * estimate.deviations)
    assert abs(estimate.shares[0] - 1) > 4.5 * estimate.deviations[0]


def test_the_client_needs_no_web_server():
    """`pop.Device` works where the extra is not installed; `serve` then gives the install line."""
    import subprocess
    import sys

    code = (
        "import sys\n"
        "for name in ('starlette', 'uvicorn', 'psycopg'): sys.modules[name] = None\n"
        "import populace; populace.Device\n"
        "from populace.errors import MissingExtra\n"
        "from populace.collector import serve, postgres_store\n"
        "for needed in (serve._uvicorn, postgres_store._library):\n"
        "    try: needed()\n"
        "    except MissingExtra as error: assert 'populace[collector]' in str(error)\n"
        "    else: sys.exit(3)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
