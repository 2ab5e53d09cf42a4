"""Small studies, their stores and devices without a network, as the collector's tests need them."""

from __future__ import annotations

import contextlib
import functools
import secrets
from pathlib import Path

import jax
import numpy as np
from benchmarks.collector_load import links

from asgi_client import AsgiClient
from populace.collector.app import WIRE, make_app
from populace.collector.device import read_question, read_terms
from populace.collector.documents import Sent, answer_message
from populace.collector.invite import invite
from populace.collector.reports import reports_of
from populace.collector.rounds import step
from populace.collector.stores import study_store
from populace.collector.study import StudyFolder, Timing, plan_study, survey_of
from populace.methods.base import Shard
from populace.privacy.source import Keyed
from populace.tables.embedded import harbour_schema

ADDRESS = "http://127.0.0.1:1/"


def make_study(folder, method="poll", *, clients=30, epsilon=2.0, invited=None, store=None, schema=None, **more):
    """A study's folder with invitations; `more` are options of a study, `settings` those of its method."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "schema.toml"
    (schema or harbour_schema()).save(path)
    study = plan_study(schema=str(path), epsilon=epsilon, method=method, clients=clients, **more)
    place = StudyFolder(folder / "study")
    place.create(study, path)
    with opened(place, store) as kept:
        if not study.open:
            invite(study, kept, clients if invited is None else invited, folder / "links.txt", url=ADDRESS)
    return place


@contextlib.contextmanager
def opened(place, given=None):
    store = study_store(place, place.read(), given)
    try:
        yield store
    finally:
        store.close()


def tokens(place):
    return links(place.path.parent / "links.txt")


def turn(place):
    """Let the coordinator do all there is to do."""
    with opened(place) as store:
        study = place.read()
        while step(study, store):
            pass


@contextlib.contextmanager
def client_of(place, **options):
    """The application in this process, without a server."""
    with AsgiClient(make_app(place.path, **options)) as client:
        yield client


def bearer(token):
    return {"authorization": f"Bearer {token}"}


@functools.lru_cache(maxsize=16)
def _answering(protocol, population):
    @jax.jit
    def answer(common, own, codes, key):
        shard = Shard(records=codes[None, :], mask=np.ones(1, bool), population=population)
        return protocol.answer(common, own, shard, protocol.remember(population, jax.random.key(0)), Keyed(key))[0]

    return answer


def seeded_answer(client, place, token, table):
    """One device that answers as the simulation's client of its number would: reproducible, for comparisons."""
    study = place.read()
    terms = read_terms(client.get("/v1/study").json())
    reply = client.get("/v1/question", headers={**bearer(token), "accept": WIRE})
    if reply.headers["content-type"] != WIRE:
        return reply
    fields, common, own = read_question(terms, reply.content)
    key = study.keys.answer(fields["exchange"], fields["client"])
    told = _answering(terms.protocol, terms.population)(common, own, table.codes[fields["client"]], key)
    reports = reports_of(terms.protocol, terms.population, survey_of(terms.protocol, terms.population))
    report = reports.write(told, int(np.asarray(own)))
    sent = Sent(round=fields["round"], place=fields["place"], report=report, nonce=secrets.token_bytes(32))
    return client.post("/v1/answer", content=answer_message(sent), headers={**bearer(token), "content-type": WIRE})


QUICK = Timing(hold=60.0, round=60.0, grace=0.0)
HERE = Path(__file__).parent
