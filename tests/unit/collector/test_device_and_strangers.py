"""The reference client against servers that are no study, links that are none, and addresses that lead elsewhere."""

import base64
import dataclasses
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import populace as pop
from collector_for_tests import make_study
from populace.cli.main import call
from populace.collector.device import AwayError, parse_link, read_terms
from populace.collector.documents import study_document
from populace.collector.exchange import Exchange, read_pause
from populace.errors import InputError, WireError
from populace.tables.embedded import harbour

RECORD = harbour().frame.slice(0, 1).to_pylist()[0]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return make_study(tmp_path_factory.mktemp("device"), "independent", clients=40)


class Elsewhere:
    """A server that says one thing to everybody; it keeps the headers it was sent."""

    def __init__(self, status, content, *, kind="application/json", location=None):
        self.headers = []
        elsewhere = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                elsewhere.headers.append({name.lower(): value for name, value in self.headers.items()})
                self.send_response(status)
                self.send_header("content-type", kind)
                if location:
                    self.send_header("location", location)
                self.end_headers()
                self.wfile.write(content)

            def do_POST(self):
                self.do_GET()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_an_invitation_goes_to_no_other_address(tmp_path, status):
    with Elsewhere(200, b"{}") as other, Elsewhere(status, b"", location=other.url + "/v1/question") as first:
        exchange = Exchange(first.url, seconds=10.0)
        with pytest.raises(AwayError, match="another address"):
            exchange.call("GET", "/v1/question", token=bytes(16))
        with pytest.raises(AwayError, match="another address"):
            pop.Device(f"{first.url}/#{'A' * 22}", ledger=tmp_path / "ledger").answer(RECORD)
        assert first.headers[0]["authorization"].startswith("Bearer ")
        assert other.headers == []


HOSTILE = {
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 50_000,
    "a page": b"<html></html>",
    "a list": b"[]",
    "nothing": b"",
    "empty": b"{}",
    "facts that are none": b'{"facts": [], "digest": 7}',
    "a huge number": b'{"facts": {"clients": ' + b"9" * 5_000 + b"}}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_server_that_describes_no_study_is_one_sentence(tmp_path, name, capsys):
    with Elsewhere(200, HOSTILE[name]) as server:
        (tmp_path / "me.json").write_text(json.dumps(RECORD))
        words = ["device", "answer", f"{server.url}/#{'A' * 22}", "--record", str(tmp_path / "me.json")]
        assert call([*words, "--ledger", str(tmp_path / "ledger"), "--patience", "0"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("populace: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("content", [*HOSTILE.values(), b"\x00" * 64])
@pytest.mark.parametrize("kind", ["application/json", "application/x-populace"])
def test_a_question_that_is_none_is_one_sentence(place, tmp_path, content, kind):
    terms = read_terms(json.loads(json.dumps(study_document(place.read()))))
    with Elsewhere(200, content, kind=kind) as server:
        device = pop.Device(server.url, ledger=tmp_path / "ledger")
        with pytest.raises((AwayError, WireError)):
            device._question(terms, bytes(16), time.monotonic())
        with pytest.raises((AwayError, WireError)):
            device._invitation(dataclasses.replace(terms, open=True))


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (7, 7.0), (0, 1.0), (-5, 1.0), (1e400, 3_600.0), (10**400, 5.0), (float("nan"), 5.0), ("x", 5.0), (None, 5.0),
        ([], 5.0), (3_601, 3_600.0),
    ],
)  # fmt: skip
def test_a_device_waits_a_second_at_least_and_an_hour_at_most(said, seconds):
    assert read_pause(said) == seconds


@pytest.mark.parametrize(
    "url",
    [
        "study.example", "ftp://x/#a", "http:///#a", "https://x/?a=b#c", "https://x/#short", "http://[::1/#x",
        "http://x:99999/", "http://x:y/", "http://:80/",
    ],
)  # fmt: skip
def test_a_link_that_is_none(url):
    with pytest.raises(InputError):
        parse_link(url)


def test_a_link_has_an_address_and_an_invitation():
    base, token = parse_link(f"https://x.example/study/#{base64.urlsafe_b64encode(bytes(16)).decode().rstrip('=')}")
    assert (base, token) == ("https://x.example/study", bytes(16))
    assert parse_link("https://x.example")[1] is None


def test_nobody_there(tmp_path):
    began = time.monotonic()
    with pytest.raises(AwayError, match="cannot be reached"):
        pop.Device("http://127.0.0.1:9/#" + "A" * 22, ledger=tmp_path / "ledger").answer(RECORD)
    assert time.monotonic() - began < 10
