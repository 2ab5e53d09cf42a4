"""A served study, in processes of its own: nothing is lost and nothing doubled when they are killed, and nobody is logged."""

import base64
import contextlib
import json
import random
import re
import socket
import time

import jax
import numpy as np
import pytest
from benchmarks.collector_load import Devices, Outcome, Served, free_port, links, postgres, postgres_folder, serving

import populace as pop
from collector_for_tests import client_of, make_study, opened, seeded_answer, turn
from populace.cli.main import call
from populace.collector.fit import fit_study
from populace.collector.rounds import read_questions
from populace.engines import simulation
from populace.methods.base import Shard
from populace.privacy.randomizers.wire import encode_panel
from populace.privacy.source import Keyed
from populace.runs.run import load_run
from populace.tables.embedded import harbour
from populace.tables.files import read_json
from populace.tables.partition import split

ONE_STAGE = {"stages": 1}


def check_exactly_once(place, outcome):
    """Every receipt that was handed out is in the store, once; and the store has no answer beside those of used invitations."""
    from populace.collector.exchange import read_token
    from populace.collector.study import invitation_hash

    with opened(place) as store:
        kept = {
            bytes(h): bytes(r).hex()
            for h, r in store.rows("SELECT hash, receipt FROM invitation WHERE receipt IS NOT NULL")
        }
        for invitation, receipt in outcome.receipts.items():
            assert kept[invitation_hash(read_token(invitation))] == receipt
        counts = store.counts()
        assert counts["answers"] == counts["used"] == len(kept) == sum(at.answered for at in store.rounds())
        places = [row for at in store.rounds() for row in store.replies(at.number)]
        assert len(places) == counts["answers"]
    return counts["answers"]


BROKEN = {
    "an answer lost": "DELETE FROM answer WHERE place = 0",
    "an answer doubled": "INSERT INTO answer SELECT x'00', round, place + 100, report FROM answer WHERE place = 0",
    "another receipt": "UPDATE invitation SET receipt = x'00' WHERE receipt IS NOT NULL",
    "a receipt forgotten": "UPDATE invitation SET receipt = NULL",
    "a count that is off": "UPDATE round SET answered = answered + 1",
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_check_itself_finds_what_is_lost_or_doubled(tmp_path, name):
    place = make_study(tmp_path, "independent", clients=3)
    turn(place)
    tokens, outcome = links(tmp_path / "links.txt"), Outcome()
    with client_of(place) as client:
        for token in tokens:
            reply = seeded_answer(client, place, token, harbour())
            outcome.receipts[token] = reply.json()["receipt"]
    assert check_exactly_once(place, outcome) == 3
    with opened(place) as store, store.transaction(lock="alone"):
        store.run(BROKEN[name])
    with pytest.raises((AssertionError, KeyError)):
        check_exactly_once(place, outcome)


def killed_meanwhile(kill, start, *, after, times, everybody):
    """Kill and start again, each time when so many more receipts were handed out."""

    def during(outcome):
        for number in range(1, times + 1):
            while len(outcome.receipts) < min(number * after, everybody - 1):
                time.sleep(0.02)
            kill()
            start()

    return during


def test_a_killed_server_loses_and_doubles_nothing(tmp_path):
    place = make_study(tmp_path, "poll", clients=200, settings=ONE_STAGE)
    served = Served(study=place.path, port=free_port(), workers=1, log=tmp_path / "serve.log")
    try:
        served.start()
        devices = Devices(served.port, connections=32, patience=300.0)
        during = killed_meanwhile(served.kill, served.start, after=60, times=1, everybody=200)
        outcome = devices.run(links(tmp_path / "links.txt"), during)
    finally:
        served.kill()
    assert outcome.unsure > 0  # some were under way when it was killed
    assert len(outcome.receipts) == 200
    assert check_exactly_once(place, outcome) == 200


def test_the_server_writes_no_line_about_anybody(tmp_path):
    place = make_study(tmp_path, "independent", clients=5)
    tokens = links(tmp_path / "links.txt")
    with serving(place.path, log=tmp_path / "log") as served:
        device = pop.Device(f"{served.url}/#{tokens[0]}", ledger=tmp_path / "ledger")
        assert device.answer(harbour().frame.slice(0, 1), patience=30.0).fresh
        Devices(served.port, connections=2).run([tokens[1], "A" * 22])
        for number in range(60):
            garbage(served.port, random.Random(number))
        assert served.progress()["answers"] == 2
    written = (tmp_path / "log").read_text()
    assert "Traceback" not in written
    for secret in (*tokens, "populace/", "GET", "POST", "user-agent"):
        assert secret not in written
    assert set(re.findall(r"127\.0\.0\.1:(\d+)", written)) == {str(served.port)}  # its own address alone


def garbage(port, draw):
    """Bytes that are no request, or a broken one; whatever comes back is no success."""
    heads = [
        b"GET /v1/question HTTP/1.1\r\n",
        b"POST /v1/answer HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n",
        b"\x16\x03",
    ]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall(draw.choice(heads) + draw.randbytes(draw.randrange(2_000)) + b"\r\n\r\n")
        line.shutdown(socket.SHUT_WR)
        said = b""
        with contextlib.suppress(ConnectionResetError):
            while part := line.recv(4_096):
                said += part
    assert not said.startswith(b"HTTP/1.1 2")


@pytest.mark.slow
def test_a_server_killed_again_and_again(tmp_path):
    place = make_study(tmp_path, "poll", clients=4_000, settings=ONE_STAGE)
    served = Served(study=place.path, port=free_port(), workers=4, log=tmp_path / "serve.log")
    try:
        served.start()
        devices = Devices(served.port, connections=64, patience=600.0)
        during = killed_meanwhile(served.kill, served.start, after=900, times=4, everybody=4_000)
        outcome = devices.run(links(tmp_path / "links.txt"), during)
    finally:
        served.kill()
    assert len(outcome.receipts) == check_exactly_once(place, outcome) == 4_000


@pytest.mark.slow
@pytest.mark.skipif(postgres_folder() is None, reason="no PostgreSQL is installed here (postgres, initdb)")
def test_a_database_and_a_server_killed_in_turn(tmp_path):
    with postgres() as database:
        place = make_study(tmp_path, "poll", clients=3_000, settings=ONE_STAGE, store=database.url)
        served = Served(study=place.path, port=free_port(), workers=2, log=tmp_path / "serve.log")
        try:
            served.start()
            turns = iter([
                (database.kill, database.start), (served.kill, served.start), (database.kill, database.start),
                (served.kill, served.start),
            ])  # fmt: skip
            now = [None]

            def kill():
                now[0] = next(turns)
                now[0][0]()

            during = killed_meanwhile(kill, lambda: now[0][1](), after=600, times=4, everybody=3_000)
            outcome = Devices(served.port, connections=64, patience=600.0).run(links(tmp_path / "links.txt"), during)
        finally:
            served.kill()
        assert outcome.unsure + outcome.statuses.get(503, 0) > 0
        assert len(outcome.receipts) == check_exactly_once(place, outcome) == 3_000


@pytest.mark.slow
def test_two_stages_over_live_arrivals_from_the_command_line(tmp_path, capsys):
    """`poll` in two stages: the second one's questions come while devices wait; then fit, sample, evaluate, verify."""
    settings = {"latent_classes": 2, "prior_scale": 1.0, "chains": 1, "langevin_steps": 10}
    place = make_study(tmp_path, "poll", clients=300, invited=320, settings=settings)
    with serving(place.path, workers=2) as served:
        outcome = Devices(served.port, connections=16, patience=300.0).run(links(tmp_path / "links.txt")[:300])
        found = served.progress()
        assert [at["answered"] for at in found["rounds"]] == [100, 200]
        assert len(outcome.receipts) == 300
    assert call(["collector", "status", str(place.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["answers"] == 300
    out = tmp_path / "run"
    assert call(["collector", "fit", str(place.path), "--out", str(out), "--rows", "200", "--seed", "1"]) == 0
    harbour().take(np.arange(300)).save(tmp_path / "real.parquet")
    assert call(["evaluate", str(out), "--real", str(tmp_path / "real.parquet")]) == 0
    assert call(["sample", str(out), "--rows", "10", "-o", str(tmp_path / "ten.csv")]) == 0
    assert call(["verify", str(out)]) == 0
    assert load_run(out).guarantee.trust == "local"
    assert read_json(out / "run.json")["study"]["answers"] == 300


class Simulated(Devices):
    """Devices whose reports are those of the simulation's clients of the same numbers: a round's are made at once."""

    def __init__(self, port, place, table):
        super().__init__(port, connections=64, patience=1_200.0)
        self.place, self.study, self.table, self.reports = place, place.read(), table, {}

    def answer(self, asked):
        if asked["round"] not in self.reports:
            self.reports[asked["round"]] = self.round(asked["round"])
        report = self.reports[asked["round"]][asked["place"]]
        document = {
            "round": asked["round"],
            "place": asked["place"],
            "nonce": base64.b64encode(self.draw.randbytes(32)).decode(),
        }
        return json.dumps({**document, "report": base64.b64encode(report).decode()}).encode()

    def round(self, number):
        study = self.study
        with opened(self.place) as store:
            questions = read_questions(study, store.ask(number))
        clients, own = questions.cohort[questions.places], questions.numbers[questions.places]
        exchanges = questions.first + questions.places // (len(questions.cohort) // questions.count)

        def one(exchange, client, question, codes):
            shard = Shard(records=codes[None, :], mask=np.ones(1, bool), population=study.population)
            return study.protocol.answer((), question, shard, (), Keyed(study.keys.answer(exchange, client)))[0]

        told = jax.jit(jax.vmap(one))(exchanges.astype(np.int32), clients, own, self.table.codes[clients])
        starts, content = encode_panel(study.survey.panel, own, np.asarray(told))
        return [content[starts[i] : starts[i + 1]].tobytes() for i in range(len(own))]


@pytest.mark.slow
def test_twenty_thousand_devices_fit_to_the_model_of_the_simulation_bit_for_bit(tmp_path):
    number = 20_000
    settings = {"latent_classes": 4, "prior_scale": 1.0, "chains": 1, "langevin_steps": 60}
    table = harbour().take(np.arange(number) % len(harbour()))
    place = make_study(tmp_path, "poll", clients=number, settings=settings)
    with serving(place.path, workers=2) as served:
        outcome = Simulated(served.port, place, table).run(links(tmp_path / "links.txt"))
    assert len(outcome.receipts) == check_exactly_once(place, outcome) == number
    study = place.read()
    with opened(place) as store:
        fit_study(place, study, store, tmp_path / "run", rows=50, seed=1)
    simulated = simulation.run(study.protocol, split(table, records_per_client=1), root=study.keys.root)
    simulated.generator.save(tmp_path)
    for name in ("generator.json", "generator.npz"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
