"""A site decides for itself: each refusal, the ledger before the reply, the stored reply, memory, no words out."""

import dataclasses
import sqlite3

import numpy as np
import pytest

from builders import INDEPENDENT, CentralMean, Relay, code_of, entries, request_of
from populace.engines import messages, wire
from populace.engines.agreement import Agreement
from populace.errors import WireError
from populace.methods.registry import make_protocol
from populace.privacy.source import Keyed
from populace.privacy.sqlite_ledger import SqliteLedger

WAE = make_protocol("dp-fed-wae", {"epsilon": 2.0, "cohort_size": 4, "latent_classes": 2})


@pytest.fixture
def six(rows):
    return rows.take(np.arange(6))


def test_an_honest_request_is_answered_and_charged(six, make_site):
    site = make_site(six, INDEPENDENT, seed=None)
    assert code_of(site.reply(request_of(INDEPENDENT, six.schema))) == "reply"
    assert entries(site) == 6


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda schema: {"agreement": Agreement(protocol=make_protocol("krr", {"epsilon": 2.0}), schema=schema)}, "method"),
        (
            lambda schema: {"agreement": Agreement(protocol=dataclasses.replace(INDEPENDENT, epsilon=2.5), schema=schema)},
            "parameters",
        ),
        (
            lambda schema: {
                "agreement": Agreement(protocol=INDEPENDENT, schema=dataclasses.replace(schema, target="colour"))
            },
            "schema",
        ),
        (lambda schema: {"first": 1}, "population"),
        (lambda schema: {"clients": np.array([0, 9]), "own": np.zeros(2, np.int32), "heard": np.zeros(2)}, "population"),
        (lambda schema: {"clients": np.array([0, 0]), "own": np.zeros(2, np.int32), "heard": np.zeros(2)}, "malformed"),
        (lambda schema: {"clients": np.zeros(0), "own": np.zeros(0, np.int32), "heard": np.zeros(0)}, "malformed"),
        (lambda schema: {"own": np.zeros((6, 2), np.int32)}, "malformed"),
        (lambda schema: {"own": np.zeros(6, np.float32)}, "malformed"),
        (lambda schema: {"common": {"more": np.zeros(3)}}, "malformed"),
        (lambda schema: {"run": "No Such/Name"}, "malformed"),
        (lambda schema: {"heard": np.array([1, 0, 0, 0, 0, 0])}, "rolled-back"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)  # fmt: skip
def test_each_refusal_leaves_as_one_word_and_charges_nothing(six, make_site, change, word):
    said = []
    site = make_site(six, INDEPENDENT, log=said.append)
    reply = site.reply(request_of(INDEPENDENT, six.schema, **change(six.schema)))
    assert code_of(reply) == word
    assert wire.unpack(reply).fields == {"code": word}
    assert len(said) == 1
    assert entries(site) == 0


def test_another_version_is_refused(six, make_site, monkeypatch):
    request = request_of(INDEPENDENT, six.schema)
    monkeypatch.setattr("populace.engines.agreement.__version__", "0.0.1")
    assert code_of(make_site(six, INDEPENDENT).reply(request)) == "version"


def test_a_broadcast_that_is_not_finite_or_of_another_shape_is_refused(six, make_site):
    site = make_site(six, WAE)
    population = Agreement(protocol=WAE, schema=six.schema).population(clients=6, records=1)
    common = WAE.question(population, 0)[0]
    right = np.asarray(common["theta"])
    for theta in (np.full_like(right, np.nan), np.full_like(right, np.inf), right[:3], right.astype(np.float64)):
        assert code_of(site.reply(request_of(WAE, six.schema, common=common | {"theta": theta}))) == "malformed"
    assert entries(site) == 0
    assert code_of(site.reply(request_of(WAE, six.schema))) == "reply"


@pytest.mark.parametrize("data", [b"", b"\x80\x04garbage", b"x" * 1000])
def test_bytes_that_are_no_request_are_refused(six, make_site, data):
    assert code_of(make_site(six, INDEPENDENT).reply(data)) == "malformed"


def test_a_question_asked_again_gets_the_stored_reply_and_another_is_refused(six, make_site):
    """Never a fresh randomisation, also in a new process with the same ledger."""
    site = make_site(six, INDEPENDENT, seed=None)
    first = site.reply(request_of(INDEPENDENT, six.schema))
    again = make_site(six, INDEPENDENT, seed=None)
    assert [again.reply(request_of(INDEPENDENT, six.schema)) for _ in range(5)] == [first] * 5
    other = request_of(INDEPENDENT, six.schema, own=np.full(6, 3, np.int32))
    assert code_of(again.reply(other)) == "changed"
    assert entries(again) == 6


def test_terms_do_not_change_within_a_run(six, make_site):
    site = make_site(six, Relay(epsilon=2.0, passes=2))
    assert code_of(site.reply(request_of(Relay(epsilon=2.0, passes=2), six.schema, total=7))) == "reply"
    moved = request_of(Relay(epsilon=2.0, passes=2), six.schema, total=8, round_id=1)
    assert code_of(site.reply(moved)) == "changed"


def test_a_third_request_on_a_budget_for_one_is_refused(six, make_site):
    """The second is the first again and gets its stored reply; the third, of a new run, would spend."""
    site = make_site(six, INDEPENDENT, seed=None)
    first = site.reply(request_of(INDEPENDENT, six.schema))
    assert site.reply(request_of(INDEPENDENT, six.schema)) == first
    assert code_of(site.reply(request_of(INDEPENDENT, six.schema, run="run-2"))) == "budget"
    assert entries(site) == 6


def test_who_cannot_pay_is_left_out_and_the_others_answer(six, make_site):
    site = make_site(six, INDEPENDENT)
    site.reply(request_of(INDEPENDENT, six.schema, who=[1, 4]))
    reply = site.reply(request_of(INDEPENDENT, six.schema, run="run-2"))
    assert wire.unpack(reply).arrays["clients"].tolist() == [0, 2, 3, 5]
    assert entries(site) == 6


def test_a_budget_too_small_for_the_method_is_never_touched(six, make_site):
    site = make_site(six, INDEPENDENT, epsilon=1.9)
    assert code_of(site.reply(request_of(INDEPENDENT, six.schema))) == "budget"
    assert code_of(make_site(six, CentralMean(epsilon=9.0), unit="record", name="b").reply(
        request_of(CentralMean(epsilon=9.0), six.schema))) == "budget"  # fmt: skip
    assert entries(site) == 0


def test_the_charge_is_on_disk_before_anything_is_returned(six, make_site, monkeypatch):
    """If the ledger cannot be written, no reply is made: not even a part."""
    site = make_site(six, INDEPENDENT)

    def full(*_, **__):
        raise sqlite3.OperationalError("disk is full of secret-value-42")

    said = []
    monkeypatch.setattr(SqliteLedger, "commit_many", full)
    reply = dataclasses.replace(site, log=said.append).reply(request_of(INDEPENDENT, six.schema))
    assert code_of(reply) == "failed"
    assert b"secret" not in reply
    assert "secret-value-42" in said[0]
    monkeypatch.undo()
    assert entries(site) == 0


def test_no_exception_text_leaves(six, make_site):
    class Broken(Relay):
        def answer(self, common, own, shard, memory, source):
            if not isinstance(source, Keyed):
                raise ValueError(f"secret-value-from-private-data-{shard.records}")
            return super().answer(common, own, shard, memory, source)

    said = []
    site = make_site(six, Broken(epsilon=2.0), seed=None, log=said.append)
    assert site.reply(request_of(Broken(epsilon=2.0), six.schema)) == messages.make_refusal("failed")
    assert "secret-value" in said[0]
    assert entries(site) == 0


def test_memory_lives_beside_the_ledger_and_survives_a_restart(six, make_site):
    protocol = Relay(epsilon=2.0, passes=2)
    asked = []
    for round_id, heard in ((0, 0), (1, 1)):
        site = make_site(six, protocol)  # a new object each time: as after a restart
        tally = {"tally": np.full(six.schema.sizes[0], round_id, np.int32)}
        reply = site.reply(
            request_of(protocol, six.schema, round_id=round_id, who=[0], heard=np.array([heard]), common=tally),
        )
        asked.append(int(wire.unpack(reply).arrays["value/0"][0]))
    assert asked == [1, 2]


def test_a_restored_old_ledger_is_noticed(six, make_site):
    """The coordinator has heard more than the ledger shows: somebody put an old one back. One that is gone is not replaced."""
    protocol = Relay(epsilon=2.0, passes=2)
    site = make_site(six, protocol)
    assert code_of(site.reply(request_of(protocol, six.schema, who=[0]))) == "reply"
    for path in site.ledger_path.parent.glob("site.sqlite*"):
        path.unlink()
    again = request_of(protocol, six.schema, round_id=1, who=[0], heard=np.array([1]))
    said = []
    assert code_of(dataclasses.replace(site, log=said.append).reply(again)) == "failed"
    assert "is gone, and with it what was spent" in said[0]
    assert not site.ledger_path.exists()
    SqliteLedger(site.ledger_path, site.budget).close()
    assert code_of(site.reply(again)) == "rolled-back"


def test_an_old_ledger_put_back_answers_nothing_whatever_the_coordinator_says(six, make_site):
    """Asked the same again and again over an old copy, version 0.1.0 gave a fresh answer each time."""
    said = []
    site = make_site(six, INDEPENDENT, seed=None, log=said.append)
    old = site.ledger_path.read_bytes()
    ask = request_of(INDEPENDENT, six.schema)
    first = site.reply(ask)
    new = site.ledger_path.read_bytes()
    site.ledger_path.write_bytes(old)
    assert code_of(site.reply(ask)) == "rolled-back"
    assert "is not the one that was written last" in said[-1]
    site.ledger_path.write_bytes(new)
    assert site.reply(ask) == first


def test_a_reply_stored_before_a_crash_leaves_only_after_the_head(six, make_site, monkeypatch):
    """Killed between the charge and the head: asked again, the stored reply leaves, and then an older copy is noticed."""
    site = make_site(six, INDEPENDENT, seed=None)
    old = site.ledger_path.read_bytes()
    monkeypatch.setattr(
        "populace.privacy.sqlite_ledger.keep_head", lambda *_: (_ for _ in ()).throw(OSError("power cut"))
    )
    assert code_of(site.reply(request_of(INDEPENDENT, six.schema))) == "failed"
    assert entries(site) == 6
    monkeypatch.undo()
    assert code_of(site.reply(request_of(INDEPENDENT, six.schema))) == "reply"
    site.ledger_path.write_bytes(old)
    assert code_of(site.reply(request_of(INDEPENDENT, six.schema))) == "rolled-back"


def test_charges_of_methods_that_mean_different_things_are_not_added(six, make_site):
    """Replies under `replace`, and updates under `add-remove` that the coordinator sees bare: no limit covers both."""
    said = []
    central = CentralMean(epsilon=9.0, total_rounds=1, noise_multiplier=12.0)
    wide = {"epsilon": 20.0, "delta": 1e-2}
    sites = [make_site(six, protocol, name=name, log=said.append, **wide) for name, protocol in
             (("a", INDEPENDENT), ("b", central))]  # fmt: skip
    both = {digest: agreement for site in sites for digest, agreement in site.agreements.items()}
    asks = [request_of(protocol, six.schema, run=f"run-{protocol.facts.name}") for protocol in (INDEPENDENT, central)]
    for site, order in zip(sites, (asks, asks[::-1]), strict=True):
        site = dataclasses.replace(site, agreements=both)
        assert [code_of(site.reply(ask)) for ask in order] == ["reply", "budget"]
        assert "they do not add up. Agree to it in another folder" in said[-1]
        assert entries(site) == 6
        assert code_of(site.reply(order[0])) == "reply"


def test_terms_hold_nothing_but_what_they_are(six, make_site):
    """They are kept with the run, so a request could have filled the disk with them."""
    site = make_site(six, INDEPENDENT)
    for request in (
        request_of(INDEPENDENT, six.schema),
        messages.make_facts_request(Agreement(protocol=INDEPENDENT, schema=six.schema), run="r"),
    ):
        message = wire.unpack(request)
        terms = message.fields["terms"]
        for wrong in ({**terms, "junk": "x" * 1000}, {name: terms[name] for name in list(terms)[:3]}):
            changed = dataclasses.replace(message, fields={**message.fields, "terms": wrong})
            assert code_of(site.reply(wire.pack(changed))) == "malformed"
        assert code_of(site.reply(request)) in ("reply", "facts")


def test_a_run_larger_than_the_site_allows_is_refused_before_memory_is_set_aside(six, make_site, monkeypatch):
    def touched(*_):
        raise MemoryError

    monkeypatch.setattr("populace.engines.site.shapes_of", touched)
    agreement = Agreement(protocol=INDEPENDENT, schema=six.schema)
    site = make_site(six, INDEPENDENT)
    bounded = dataclasses.replace(site, most_clients=50, most_records=5)
    parts = {
        "run": "r", "round_id": 0, "first": 0, "clients": np.arange(6), "heard": np.zeros(6), "common": (), "own": ()
    }  # fmt: skip
    for one, clients, records, word in (
        (site, 10**7 + 1, 1, "population"), (site, 6, 10**4 + 1, "population"), (site, 10**7, 10**4, "failed"),
        (bounded, 51, 1, "population"), (bounded, 6, 6, "population"), (bounded, 50, 5, "failed"),
    ):  # fmt: skip
        population = agreement.population(clients=clients, records=records)
        assert code_of(one.reply(messages.make_ask(agreement, population, **parts))) == word


def test_an_unseeded_site_draws_anew_each_run(six, make_site):
    """Two runs of one site: with a seed the same replies, from the operating system others."""
    wide = make_protocol("independent", {"epsilon": 0.5, "clients_per_batch": 100})
    for seed, same in ((3, True), (None, False)):
        site = make_site(six, wide, epsilon=99.0, seed=seed, name=f"s{seed}")
        replies = [
            wire.unpack(site.reply(request_of(wide, six.schema, run=f"r{i}"))).arrays["value/0"] for i in range(6)
        ]
        assert all((replies[0] == other).all() for other in replies) == same


def test_facts_are_told_to_who_names_agreed_terms_only(six, make_site):
    said = []
    site = make_site(six, INDEPENDENT, seed=None, records=2, log=said.append)
    agreement = Agreement(protocol=INDEPENDENT, schema=six.schema)
    facts = messages.read_facts(site.reply(messages.make_facts_request(agreement, run="r")))
    assert facts == messages.Facts(clients=3, records=2, seeded=False, hosts="rows", records_read=False)
    assert said == ["reported the public facts"]
    other = Agreement(protocol=make_protocol("krr", {"epsilon": 2.0}), schema=six.schema)
    assert code_of(site.reply(messages.make_facts_request(other, run="r"))) == "method"


def test_the_gate_lets_out_what_a_site_says_and_nothing_else(six, make_site):
    site = make_site(six, INDEPENDENT)
    reply = site.reply(request_of(INDEPENDENT, six.schema))
    facts = site.reply(messages.make_facts_request(Agreement(protocol=INDEPENDENT, schema=six.schema), run="r"))
    for message in (reply, facts, messages.make_refusal("budget")):
        assert messages.check_outgoing(message, site.agreements) == message
    good = wire.unpack(reply)
    bad = [
        b"row 7: red, 3, 2.5, true",
        request_of(INDEPENDENT, six.schema),
        wire.pack(wire.Message(kind="refusal", fields={"code": "because row 7 is red"})),
        wire.pack(wire.Message(kind="refusal", fields={"code": "budget", "rows": [1, 2, 3]})),
        wire.pack(wire.Message(kind="facts", fields=wire.unpack(facts).fields, arrays={"rows": six.codes})),
        wire.pack(dataclasses.replace(good, arrays={**good.arrays, "rows": six.codes})),
        wire.pack(dataclasses.replace(good, arrays={**good.arrays, "value/0": six.codes})),
        wire.pack(dataclasses.replace(good, fields={**good.fields, "agreement": "another"})),
        wire.pack(dataclasses.replace(good, fields={**good.fields, "note": "hello"})),
    ]
    for message in bad:
        with pytest.raises(WireError):
            messages.check_outgoing(message, site.agreements)
