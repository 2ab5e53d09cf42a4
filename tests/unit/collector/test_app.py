"""The HTTP interface: right answers, one sentence and the right status for everything else, and no word about anybody."""

import base64
import json
import logging
import random
import re

import pytest

import collector_twin as twin
from collector_for_tests import bearer, client_of, make_study, opened, tokens, turn
from populace.collector import openapi
from populace.collector.app import MINTED_PER_SECOND, WIRE, make_app
from populace.collector.documents import Sent, answer_from, answer_message
from populace.collector.limits import MOST_BODY, Rate
from populace.collector.store import StoreError
from populace.collector.study import receipt_of
from populace.engines import wire

NONCE = base64.b64encode(bytes(32)).decode()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    made = make_study(
        tmp_path_factory.mktemp("app"), "poll", clients=30, invited=60, settings={"stages": 1}, title="Tëst"
    )
    turn(made)
    return made


@pytest.fixture(scope="module")
def client(place):
    with client_of(place) as found:
        yield found


@pytest.fixture
def token(place, request):
    """An invitation that no other test uses."""
    number = getattr(request.config, "_next_invitation", 0)
    request.config._next_invitation = number + 1
    return tokens(place)[number]


def answer_of(question, *, codes=None):
    report = twin.make_report(question, codes or [0] * 11)
    return {
        "round": question["round"],
        "place": question["place"],
        "report": base64.b64encode(report).decode(),
        "nonce": NONCE,
    }


def test_a_device_asks_answers_and_gets_the_receipt_it_can_make_itself(client, place, token):
    question = client.get("/v1/question", headers=bearer(token)).json()
    assert question["state"] == "ask"
    body = answer_of(question)
    reply = client.post("/v1/answer", json=body, headers=bearer(token))
    assert reply.status_code == 200
    expected = receipt_of(
        place.read().id, bytes(32), body["round"], body["place"], base64.b64decode(body["report"])
    ).hex()
    assert reply.json() == {"receipt": expected, "fresh": True}
    assert client.post("/v1/answer", json=body, headers=bearer(token)).json() == {"receipt": expected, "fresh": False}
    other = {**body, "nonce": base64.b64encode(b"\1" * 32).decode()}
    assert client.post("/v1/answer", json=other, headers=bearer(token)).status_code == 409
    assert client.get("/v1/question", headers=bearer(token)).status_code == 409


def test_both_forms_ask_the_same(client, token):
    page = client.get("/v1/question", headers=bearer(token)).json()
    message = wire.unpack(client.get("/v1/question", headers={**bearer(token), "accept": WIRE}).content)
    assert message.fields["place"] == page["place"]
    assert int(message.arrays["own/0"]) == page["question"]


def test_the_study_says_what_it_is(client, place):
    found = client.get("/v1/study").json()
    study = place.read()
    assert (found["title"], found["digest"], found["epsilon"], found["open"]) == ("Tëst", study.digest, 2.0, False)
    assert [column["name"] for column in found["columns"]] == list(study.schema.names)
    assert any("88.1 %" in sentence for sentence in found["in_words"])  # e^2 / (1 + e^2), rounded up
    assert found["guarantee"][0]["words"].startswith("2-LDP")


BODY = {"round": 0, "place": 0, "report": "AA==", "nonce": NONCE}
REFUSED = {
    "no invitation": ("GET", "/v1/question", {}, b"", 401),
    "another scheme": ("GET", "/v1/question", {"authorization": "Basic abc"}, b"", 401),
    "a short invitation": ("GET", "/v1/question", {"authorization": "Bearer abc"}, b"", 401),
    "no base64": ("GET", "/v1/question", {"authorization": "Bearer §§§§§§§§§§§§§§§§§§§§§§"}, b"", 401),
    "an unknown invitation": ("GET", "/v1/question", bearer("A" * 22), b"", 403),
    "answer without invitation": ("POST", "/v1/answer", {}, b"{}", 401),
    "answer of a stranger": ("POST", "/v1/answer", bearer("A" * 22), json.dumps(BODY).encode(), (403, 422)),
    "no JSON": ("POST", "/v1/answer", bearer("A" * 22), b"{", 400),
    "another JSON": ("POST", "/v1/answer", bearer("A" * 22), b"[]", 400),
    "deep JSON": ("POST", "/v1/answer", bearer("A" * 22), b"[" * 9_000, 400),
    "more in it": ("POST", "/v1/answer", bearer("A" * 22), json.dumps({**BODY, "name": "x"}).encode(), 400),
    "less in it": ("POST", "/v1/answer", bearer("A" * 22), json.dumps({"round": 0}).encode(), 400),
    "a place in words": ("POST", "/v1/answer", bearer("A" * 22), json.dumps({**BODY, "place": "0"}).encode(), 400),
    "a true place": ("POST", "/v1/answer", bearer("A" * 22), json.dumps({**BODY, "place": True}).encode(), 400),
    "a negative place": ("POST", "/v1/answer", bearer("A" * 22), json.dumps({**BODY, "place": -1}).encode(), 400),
    "a place far away": ("POST", "/v1/answer", bearer("A" * 22), json.dumps({**BODY, "place": 10**30}).encode(), 400),
    "no such place": ("POST", "/v1/answer", bearer("A" * 22), json.dumps({**BODY, "place": 30}).encode(), 422),
    "no such round": ("POST", "/v1/answer", bearer("A" * 22), json.dumps({**BODY, "round": 7}).encode(), 422),
    "no base64 report": ("POST", "/v1/answer", bearer("A" * 22), json.dumps({**BODY, "report": "?"}).encode(), 400),
    "a report in numbers": ("POST", "/v1/answer", bearer("A" * 22), json.dumps({**BODY, "report": 7}).encode(), 400),
    "a short nonce": ("POST", "/v1/answer", bearer("A" * 22), json.dumps({**BODY, "nonce": "AA=="}).encode(), 400),
    "a long report": ("POST", "/v1/answer", bearer("A" * 22), json.dumps({**BODY, "report": "AAAA" * 99}).encode(), 422),
    "a report of nothing": ("POST", "/v1/answer", bearer("A" * 22), json.dumps({**BODY, "report": ""}).encode(), 422),
    "nowhere": ("GET", "/v2/study", {}, b"", 404),
    "up and away": ("GET", "/../study.json", {}, b"", 404),
    "another verb": ("POST", "/v1/study", {}, b"", 405),
    "one more verb": ("DELETE", "/v1/answer", {}, b"", 405),
    "an invitation to a closed study": ("POST", "/v1/invitation", {}, b"", 403),
    "progress for all": ("GET", "/v1/progress", {}, b"", 401),
    "progress for others": ("GET", "/v1/progress", bearer("guess"), b"", 403),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_every_refusal_is_one_sentence_and_the_right_status(client, name):
    method, path, headers, content, status = REFUSED[name]
    headers = {"content-type": "application/json", **headers} if method == "POST" else headers
    reply = client.request(method, path, headers=headers, content=content)
    assert reply.status_code in (status if isinstance(status, tuple) else (status,)), reply.content
    error = reply.json()
    assert set(error) == {"error"}
    assert "\n" not in error["error"]
    assert "Traceback" not in error["error"]


def test_a_report_that_no_device_could_have_sent_is_refused_and_nothing_kept(client, place, token):
    question = client.get("/v1/question", headers=bearer(token)).json()
    report = question["report"]
    everything = base64.b64encode(b"\xff" * report["bytes"]).decode()
    before = count(place)
    for wrong in (everything, base64.b64encode(bytes(report["bytes"] + 1)).decode()):
        reply = client.post("/v1/answer", json={**answer_of(question), "report": wrong}, headers=bearer(token))
        assert reply.status_code == 422
    assert count(place) == before
    assert client.post("/v1/answer", json=answer_of(question), headers=bearer(token)).status_code == 200


def count(place):
    with opened(place) as store:
        return store.counts()["answers"]


def test_bodies_at_and_over_the_limit(client, token):
    headers = {**bearer(token), "content-type": "application/json"}
    padded = json.dumps(BODY).encode()
    at = padded + b" " * (MOST_BODY - len(padded))
    assert client.request("POST", "/v1/answer", headers=headers, content=at).status_code in (410, 422)
    assert client.request("POST", "/v1/answer", headers=headers, content=at + b" ").status_code == 413
    slyly = {**headers, "content-length": "10"}
    chunks = [b"x" * 8_000] * 3
    assert client.request("POST", "/v1/answer", headers=slyly, chunks=chunks).status_code == 413
    assert (
        client.request("POST", "/v1/answer", headers={**bearer(token), "content-type": "text/html"}).status_code == 415
    )


def test_a_body_that_does_not_come_is_not_waited_for(client, token, monkeypatch):
    from populace.collector import limits

    monkeypatch.setattr(limits, "SECONDS_FOR_BODY", 0.05)

    async def never():
        import asyncio

        await asyncio.sleep(5)

    import asyncio

    async def slow():
        answer = {}
        scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": "/v1/answer", "raw_path": b"",
            "query_string": b"", "root_path": "", "headers": [(b"authorization", f"Bearer {token}".encode())], "server": None,
            "client": None,
        }  # fmt: skip

        async def send(message):
            answer.setdefault("status", message.get("status"))

        await client.app(scope, never, send)
        return answer["status"]

    assert asyncio.run_coroutine_threadsafe(slow(), client.loop).result(10) == 408


def test_a_rate_is_kept():
    rate = Rate(5)
    assert [rate.take() for _ in range(7)] == [True] * 5 + [False] * 2


def test_a_rate_below_one_lets_somebody_in(monkeypatch):
    from populace.collector import limits

    now = [100.0]
    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    rate = Rate(0.25)
    assert [rate.take(), rate.take()] == [True, False]
    now[0] += 4.0
    assert [rate.take(), rate.take()] == [True, False]


def test_workers_share_the_rates(place):
    app = make_app(place.path, per_second=100.0, workers=4)
    assert app.rate.per_second == 25.0
    assert app.app.service.minting.per_second == MINTED_PER_SECOND / 4


@pytest.mark.parametrize(
    ("error", "status"), [("1e-200", 400), ("0.00009", 400), ("nan", 400), ("1", 400), ("0.0001", 200)]
)
def test_the_error_that_is_wanted_has_a_floor(client, place, error, status):
    reply = client.get(f"/v1/progress?error={error}", headers=bearer(place.token()))
    assert reply.status_code == status


def test_too_many_requests_are_told_to_come_back(place):
    with client_of(place, per_second=3) as client:
        replies = [client.get("/v1/study") for _ in range(6)]
    assert [reply.status_code for reply in replies[:3]] == [200] * 3
    assert replies[-1].status_code == 429
    assert replies[-1].headers["retry-after"] == "1"


def test_a_store_that_is_away_is_503_and_comes_back(place, token, monkeypatch):
    from populace.collector import app as module

    away = [True]
    real = module.patient_store

    def sometimes(folder, study):
        if away[0]:
            raise StoreError("the store is gone")
        return real(folder, study)

    monkeypatch.setattr(module, "patient_store", sometimes)
    with client_of(place) as client:
        for path in ("/v1/question", "/v1/health"):
            reply = client.get(path, headers=bearer(token))
            assert reply.status_code == 503
            assert int(reply.headers["retry-after"]) >= 1
        away[0] = False
        assert client.get("/v1/question", headers=bearer(token)).status_code == 200
        assert client.get("/v1/health").json() == {"state": "ready"}


def test_pages_and_interface_carry_strict_headers(client):
    page, interface = client.get("/"), client.get("/v1/study")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert page.headers["referrer-policy"] == interface.headers["referrer-policy"] == "no-referrer"
    assert interface.headers["cache-control"] == "no-store"
    assert "server" not in page.headers


def test_nobody_is_logged(place, token, caplog, capsys):
    """Neither address nor agent nor invitation nor report appears anywhere."""
    caplog.set_level(logging.DEBUG)
    with client_of(place) as client:
        headers = {**bearer(token), "user-agent": "Somebody/1.0"}
        question = client.get("/v1/question", headers=headers).json()
        client.post("/v1/answer", json=answer_of(question), headers=headers)
        client.post("/v1/answer", content=b"{", headers={**headers, "content-type": "application/json"})
    written = caplog.text + "".join(capsys.readouterr())
    assert not re.search(rf"192\.0\.2\.7|Somebody|{re.escape(token)}", written)


def test_the_description_has_every_route_and_every_answer_fits_it(client, place, token):
    described = client.get("/v1/openapi.json").json()
    assert described == json.loads(json.dumps(openapi.document()))
    assert described["openapi"] == "3.1.0"
    routes = {(path, method.lower()) for path, (method, _) in make_app(place.path).app.routes.items()}
    assert routes == {(path, method) for path, methods in described["paths"].items() for method in methods}
    schemas = described["components"]["schemas"]
    question = client.get("/v1/question", headers=bearer(token)).json()
    fits(question, schemas["Question"]["oneOf"][1], schemas)
    fits({"state": "wait", "retry_after": 3, "why": ""}, schemas["Question"]["oneOf"][0], schemas)
    fits(client.get("/v1/study").json(), schemas["Study"], schemas)
    body = answer_of(question)
    fits(body, schemas["Answer"], schemas)
    fits(client.post("/v1/answer", json=body, headers=bearer(token)).json(), schemas["Receipt"], schemas)
    fits(client.get("/v1/progress", headers=bearer(place.token())).json(), schemas["Progress"], schemas)
    fits(client.get("/v2").json(), schemas["Error"], schemas)


TYPES = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict,
    "null": type(None),
}  # fmt: skip


def fits(value, schema, schemas):
    """Whether a value is as a schema says: all that is described, and nothing else."""
    if "$ref" in schema:
        return fits(value, schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "const" in schema:
        assert value == schema["const"]
    if "enum" in schema:
        assert value in schema["enum"]
    if "oneOf" in schema:
        kinds = [each for each in schema["oneOf"] if (value is None) == (each.get("type") == "null")]
        return fits(value, kinds[0], schemas)
    named = schema.get("type")
    if named is not None:
        names = named if isinstance(named, list) else [named]
        assert any(isinstance(value, TYPES[name]) and (name == "boolean" or value is not True) for name in names), value
    if isinstance(value, dict) and "properties" in schema:
        assert set(schema["required"]) <= set(value) <= set(schema["properties"])
        for name, each in value.items():
            fits(each, schema["properties"][name], schemas)
    if isinstance(value, list) and "items" in schema:
        for each in value:
            fits(each, schema["items"], schemas)
    return None


def test_progress_is_for_the_organiser_and_has_no_row(client, place):
    found = client.get("/v1/progress?error=0.1", headers=bearer(place.token())).json()
    assert found["wanted_error"] == 0.1
    assert found["answers"] == count(place)
    assert {"report", "reports", "rows", "record"}.isdisjoint(json.dumps(found).replace('"', " ").split())
    assert client.get("/v1/progress?error=2", headers=bearer(place.token())).status_code == 400
    assert client.get("/v1/progress?error=x", headers=bearer(place.token())).status_code == 400


def test_an_open_study_gives_invitations_to_anybody_and_is_robust(tmp_path):
    place = make_study(tmp_path, "poll", clients=9, settings={"stages": 1}, open_to_all=True)
    turn(place)
    assert place.read().protocol.robust
    with client_of(place) as client:
        assert client.get("/v1/study").json()["open"]
        token = client.post("/v1/invitation").json()["invitation"]
        question = client.get("/v1/question", headers=bearer(token)).json()
        assert client.post("/v1/answer", json=answer_of(question), headers=bearer(token)).status_code == 200


def fuzzed(draw, valid):
    """A request that is wrong somewhere: path, verb, header, or a body that was cut, changed or made up."""
    paths = ["/v1/answer"] * 6 + [
        "/v1/question",
        "/v1/progress",
        "/v1/study",
        "/v1/invitation",
        "/v1/",
        "/",
        "/%00",
        "/..%2f",
    ]
    path = draw.choice(paths)
    usual = "POST" if path in ("/v1/answer", "/v1/invitation") else "GET"
    verb = draw.choice([usual] * 9 + ["GET", "POST", "PUT", "HEAD", "OPTIONS", "PATCH"])
    kind = draw.choice(["application/json"] * 4 + [WIRE] * 4 + ["", "text/plain", "a/b;" + "x" * 50])
    token = draw.choice(["A" * 22, "B" * 22, "", "!" * 22, "A" * 2_000, valid["token"]])
    body = bytearray(
        draw.choice([valid["json"], valid["wire"], b"", b"null", b"{}", draw.randbytes(draw.randrange(300))])
    )
    for _ in range(draw.randrange(6)):
        if body:
            at = draw.randrange(len(body))
            how = draw.randrange(3)
            if how == 0:
                body[at] = draw.randrange(256)
            elif how == 1:
                del body[at : at + draw.randrange(1, 20)]
            else:
                body[at:at] = draw.randbytes(draw.randrange(1, 30))
    return verb, path, {"content-type": kind, "authorization": f"Bearer {token}"}, bytes(body)


def storm(place, requests, seed):
    """So many fuzzed requests; how many answers are in the store before and after, and the statuses."""
    draw, statuses = random.Random(seed), {}
    with client_of(place) as client:
        own = tokens(place)[-1]
        question = client.get("/v1/question", headers=bearer(own)).json()
        body = answer_of(question)
        sent = Sent(round=body["round"], place=body["place"], report=base64.b64decode(body["report"]), nonce=bytes(32))
        assert client.post("/v1/answer", json=body, headers=bearer(own)).status_code == 200
        valid = {"token": own, "json": json.dumps(body).encode(), "wire": answer_message(sent)}
        before = count(place)
        for _ in range(requests):
            verb, path, headers, content = fuzzed(draw, valid)
            reply = client.request(verb, path, headers=headers, content=content)
            statuses[reply.status_code] = statuses.get(reply.status_code, 0) + 1
            assert reply.status_code < 500, (verb, path, headers, content)
            if 200 <= reply.status_code < 300 and path == "/v1/answer":  # only the very answer that is in
                assert answer_from(content, wire_form=headers["content-type"] == WIRE) == sent
            elif 200 <= reply.status_code < 300:
                assert path not in ("/v1/question", "/v1/progress", "/v1/invitation"), (verb, path, content)
            elif verb != "HEAD":
                assert set(reply.json()) == {"error"}
        assert count(place) == before
    return statuses


def test_some_hundred_fuzzed_requests(place):
    statuses = storm(place, 400, 1)
    assert {200, 400, 401, 403, 404, 405, 409, 415} <= set(statuses), statuses


@pytest.mark.slow
def test_ten_thousand_fuzzed_requests(tmp_path):
    place = make_study(tmp_path, "poll", clients=30, settings={"stages": 1})
    turn(place)
    statuses = storm(place, 10_000, 2)
    assert sum(statuses.values()) == 10_000
