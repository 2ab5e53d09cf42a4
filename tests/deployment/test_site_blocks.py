"""Many clients of a site answered at once: the law of the single draw, the same ledger, and nothing that is not charged."""

import dataclasses
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare

from builders import INDEPENDENT, Relay, code_of, entries, make_site, request_of, small_protocol
from populace.engines import site_answers, wire
from populace.engines.agreement import draws_exactly, shapes_of
from populace.engines.runtime import population_of
from populace.engines.site import NUMBERS
from populace.methods.baselines.independent import Independent
from populace.privacy.ledger_file import BEGINNING, link, read_head
from populace.privacy.randomizers.subset import SubsetSelection
from populace.privacy.source import Keyed, uses_key
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.partition import split
from populace.tables.table import from_codes

ROWS = "account, run, round, question, unit, event, neighbours, trust, reply, at"
MANY = 100


@pytest.fixture
def one_by_one(monkeypatch):
    """Sites answer for each client alone, however many are asked."""

    def alone():
        monkeypatch.setattr(site_answers, "LEAST_TOGETHER", 10**9)

    return alone


@pytest.fixture(scope="module")
def hundred(small_table):
    return small_table.take(np.arange(MANY))


def asked(protocol, table, who, *, question=0, **changes):
    """A request to some clients of a site, in this order, each asked the same."""
    who = np.asarray(who, np.int32)
    parts = {"clients": who, "own": np.full(len(who), question, np.int32), "heard": np.zeros(len(who))}
    return request_of(protocol, table.schema, **({"total": len(table)} | parts | changes))


def rows_of(site, columns=ROWS):
    with sqlite3.connect(site.ledger_path) as raw:
        rows = raw.execute(f"SELECT {columns} FROM entry ORDER BY id").fetchall()  # noqa: S608 - our own names
    raw.close()
    return rows


def values_of(reply):
    arrays = wire.unpack(reply).arrays
    return arrays["clients"], arrays["value/0"]


def check_charged(site, reply, run="run-1"):
    """Every reply that left is one entry's, and no account has another entry in the run."""
    clients, values = values_of(reply)
    with SqliteLedger(site.ledger_path, site.budget) as ledger:
        numbers = np.frombuffer(ledger.begun(run).numbers, NUMBERS)
    kept = {}
    for account, of_run, sent in rows_of(site, "account, run, reply"):
        if of_run == run:
            assert account not in kept, f"{account} was charged twice"
            kept[account] = wire.unpack(sent).arrays["value/0"]
    for client, value in zip(clients, values, strict=True):
        account = site.hosted.accounts[numbers[client]]
        assert account in kept, f"a reply of {account} left without a charge"
        assert np.array_equal(kept[account], value)


@pytest.mark.parametrize("alone", [False, True], ids=["block", "alone"])
def test_reports_follow_the_mechanism_and_another_epsilon_is_rejected(small_table, tmp_path, one_by_one, alone):
    """About one value that all clients have: how often it is in a report, and how often each of the others is."""
    clients = 1_500 if alone else 6_000
    if alone:
        one_by_one()
    codes = np.tile(small_table.codes[:1], (clients, 1))
    table = from_codes(codes, small_table.schema, np.random.default_rng(0))
    protocol = Independent(epsilon=1.0)
    site = make_site(tmp_path, table, protocol, seed=None)
    question = int(np.argmax(table.schema.sizes))
    _, reports = values_of(site.reply(asked(protocol, table, np.arange(clients), question=question)))
    member = SubsetSelection(size=table.schema.sizes[question], epsilon=protocol.epsilon)
    counts = reports[:, : member.size].sum(axis=0)
    own = int(counts[codes[0, question]])
    for p, right in ((member.p, True), (dataclasses.replace(member, epsilon=1.4).p, False)):
        pvalue = chisquare([own, clients - own], [clients * p, clients * (1 - p)]).pvalue
        assert pvalue > 1e-6 if right else pvalue < 1e-6
    others = np.delete(counts, codes[0, question])
    if len(others) > 1:
        assert chisquare(others).pvalue > 1e-6
    assert (reports.sum(axis=1) == member.chosen).all()


def test_a_block_and_single_draws_have_one_law(small_table, tmp_path, one_by_one):
    """Whole reports of clients with two records each, so that the private choice of a record is tested too."""
    clients = 1_200
    codes = np.zeros((2 * clients, len(small_table.schema.sizes)), np.int32)
    question = int(np.argmax(small_table.schema.sizes))
    codes[1::2, question] = 1
    table = from_codes(codes, small_table.schema, np.random.default_rng(0))
    protocol = Independent(epsilon=1.0)

    def patterns(name, wanted):
        site = make_site(tmp_path, table, wanted, seed=None, records=2, name=name)
        request = asked(wanted, table, np.arange(clients), question=question, total=clients, records=2)
        words = values_of(site.reply(request))[1] @ (1 << np.arange(max(table.schema.sizes)))
        return np.bincount(words, minlength=1 << max(table.schema.sizes))

    block, wrong = patterns("block", protocol), patterns("wrong", Independent(epsilon=1.8))
    one_by_one()
    single = patterns("single", protocol)
    for found, same in ((block, True), (wrong, False)):
        both = np.stack([found, single])
        pvalue = chi2_contingency(both[:, both.sum(axis=0) > 0]).pvalue
        assert pvalue > 1e-6 if same else pvalue < 1e-4


def test_each_reply_is_of_its_client_and_its_question(hundred, tmp_path):
    """With next to no noise a report is the value itself; clients come in any order, each with a question of its own."""
    protocol = Independent(epsilon=40.0)
    site = make_site(tmp_path, hundred, protocol, seed=None, epsilon=40.0)
    who = np.random.default_rng(1).permutation(MANY)[:77]
    own = (who % len(hundred.schema.sizes)).astype(np.int32)
    clients, reports = values_of(site.reply(asked(protocol, hundred, who, own=own)))
    with SqliteLedger(site.ledger_path, site.budget) as ledger:
        places = np.frombuffer(ledger.begun("run-1").numbers, NUMBERS)[clients]
    assert clients.tolist() == who.tolist()
    assert (reports.sum(axis=1) == 1).all()
    assert np.array_equal(reports.argmax(axis=1), hundred.codes[places, own])


def test_clients_of_a_block_draw_independently_and_anew(hundred, tmp_path):
    protocol = Independent(epsilon=0.5)
    site = make_site(tmp_path, hundred, protocol, seed=None, epsilon=9.0)
    found = [values_of(site.reply(asked(protocol, hundred, np.arange(MANY), run=f"r{i}")))[1] for i in range(2)]
    assert not np.array_equal(*found)
    assert len({tuple(report) for report in found[0]}) > 1


def test_a_mixed_batch_leaves_the_same_ledger_either_way(hundred, tmp_path, one_by_one):
    """Fresh clients, stored ones, and some over their limit, over two copies of one history: rows, refusals, log, order."""
    protocol = Independent(epsilon=2.0)
    history = make_site(tmp_path, hundred, protocol, seed=None, epsilon=4.0)
    everybody = np.random.default_rng(2).permutation(MANY)
    first = history.reply(asked(protocol, hundred, everybody[:40]))
    for run in ("other-1", "other-2"):
        assert code_of(history.reply(asked(protocol, hundred, everybody[30:55], run=run))) == "reply"
    sites, said = {}, {}
    for name in ("block", "alone"):
        (tmp_path / name).mkdir()
        for path in tmp_path.glob("site.sqlite*"):
            shutil.copy(path, tmp_path / name)
        said[name] = []
        sites[name] = make_site(tmp_path / name, hundred, protocol, seed=None, epsilon=4.0, log=said[name].append)
    before = rows_of(history)
    replies = {"block": sites["block"].reply(asked(protocol, hundred, everybody))}
    changed = asked(protocol, hundred, everybody, question=1)
    refused = {"block": [code_of(sites["block"].reply(changed)), code_of(
        sites["block"].reply(asked(protocol, hundred, everybody, round_id=1)))]}  # fmt: skip
    one_by_one()
    replies["alone"] = sites["alone"].reply(asked(protocol, hundred, everybody))
    refused["alone"] = [code_of(sites["alone"].reply(changed)), code_of(
        sites["alone"].reply(asked(protocol, hundred, everybody, round_id=1)))]  # fmt: skip

    assert refused["block"] == refused["alone"]
    assert refused["block"][0] == "changed"
    assert said["block"] == said["alone"]
    assert any("left out" in line for line in said["block"])
    plain = {name: [(*row[:8], len(row[8])) for row in rows_of(site)] for name, site in sites.items()}
    assert plain["block"] == plain["alone"]
    for name, site in sites.items():
        rows = rows_of(site)
        assert rows[: len(before)] == before
        clients, values = values_of(replies[name])
        assert len(clients) == len(values) < MANY  # who is over the limit is left out
        stored = dict(zip(clients.tolist(), values.tolist(), strict=True))
        assert all(
            stored[client] == value for client, value in zip(*map(np.ndarray.tolist, values_of(first)), strict=True)
        )
        check_charged(site, replies[name])
        chain = BEGINNING
        for row, (kept,) in zip(rows, rows_of(site, "chain"), strict=True):
            chain = link(chain, row)
            assert kept == chain
        assert read_head(site.ledger_path).chain == chain
        assert site.reply(asked(protocol, hundred, everybody)) == replies[name]
        assert rows_of(site) == rows


def test_what_clients_keep_at_home_is_theirs(hundred, tmp_path, one_by_one):
    """In the second round some have been asked before and some have not."""
    protocol = Relay(epsilon=2.0, passes=2)
    for name in ("block", "alone"):
        if name == "alone":
            one_by_one()
        site = make_site(tmp_path, hundred, protocol, seed=None, name=name)
        for round_id, who in ((0, np.arange(40)), (1, np.arange(20, 90))):
            tally = {"tally": np.full(hundred.schema.sizes[0], round_id, np.int32)}
            reply = site.reply(asked(protocol, hundred, who, round_id=round_id, common=tally))
            times = wire.unpack(reply).arrays["value/0"]
            assert times.tolist() == [1 + (round_id == 1 and client < 40) for client in who]
        with SqliteLedger(site.ledger_path, site.budget) as ledger:
            kept = ledger.memories(site.hosted.accounts, run="run-1")
            assert sorted(int(wire.unpack(each).arrays["memory/0"]) for each in kept.values()) == [1] * 70 + [2] * 20
            assert {ledger.memory(account, run="run-1") == each for account, each in kept.items()} == {True}


class Careless(Relay):
    """A method whose author takes bits from the key of its source, which is not the operating system's randomness."""

    def answer(self, common, own, shard, memory, source):
        value, after = super().answer(common, own, shard, memory, source)
        return value | {"asked": value["asked"] + jax.random.bernoulli(source.key, 0.5)}, after


def test_a_method_that_draws_from_the_key_itself_is_never_answered_in_a_block(hundred, tmp_path):
    """Answered alone it finds no key, fails, and nothing leaves: a block would have sent what no statement covers."""
    site = make_site(tmp_path, hundred, Careless(epsilon=2.0), seed=None)
    population = population_of(site.hosted.clients)
    for protocol, right in ((Careless(epsilon=2.0), False), (Relay(epsilon=2.0), True)):
        assert draws_exactly(protocol, population, shapes_of(protocol, population, 0)) == right
    tally = {"tally": np.zeros(hundred.schema.sizes[0], np.int32)}
    assert code_of(site.reply(asked(Careless(epsilon=2.0), hundred, np.arange(MANY), common=tally))) == "failed"
    assert entries(site) == 0


@pytest.mark.parametrize("name", ["poll", "independent", "samprivsyn", "calm", "krr", "lopub", "locop"])
def test_methods_with_one_report_are_answered_in_blocks(name, hundred):
    protocol = small_protocol(name)
    population = population_of(split(hundred))
    assert protocol.vectorises
    assert draws_exactly(protocol, population, shapes_of(protocol, population, 0))


def test_draws_from_keys_are_told_from_latents_and_exact_draws():
    key = jax.random.key(0)
    exact = {
        "normal": lambda source: source.normal(3), "coins": lambda source: source.coins(0.5, 3),
        "order": lambda source: source.order(4), "below": lambda source: source.split(2)[1].below(7),
    }  # fmt: skip
    for draw in exact.values():
        assert not uses_key(jax.make_jaxpr(lambda key, draw=draw: draw(Keyed(key, exact=True)))(key))
    assert uses_key(jax.make_jaxpr(lambda key: Keyed(key).below(7))(key))
    inside = [
        lambda key: jax.lax.scan(
            lambda sum_, one: (sum_ + jax.random.uniform(one), None), 0.0, jax.random.split(key, 3)
        ),
        lambda key: jax.lax.cond(True, lambda: jax.random.normal(key), lambda: 0.0),
        jax.jit(lambda key: jax.vmap(jax.random.laplace)(jax.random.split(key, 3))),
        lambda key: Keyed(key, exact=True).normal(3) + jax.random.normal(key),
    ]
    assert all(uses_key(jax.make_jaxpr(draw)(key)) for draw in inside)


def test_planted_faults_of_the_books_are_noticed(hundred, tmp_path, monkeypatch):
    """A client charged twice, a reply that nobody paid for, and one that is not what was paid for."""
    commit_many = SqliteLedger.commit_many

    def forgetting(ledger, replies, *args, before, **options):
        commit_many(ledger, replies[:-1], *args, before=before[:-1], **options)

    def swapping(ledger, replies, *args, **options):
        swapped = [
            (account, question, replies[-1 - i][2], kept) for i, (account, question, _, kept) in enumerate(replies)
        ]
        commit_many(ledger, swapped, *args, **options)

    for name, fault in (("honest", commit_many), ("forgetting", forgetting), ("swapping", swapping)):
        monkeypatch.setattr(SqliteLedger, "commit_many", fault)
        site = make_site(tmp_path, hundred, INDEPENDENT, seed=None, name=name)
        reply = site.reply(asked(INDEPENDENT, hundred, np.arange(MANY)))
        if name == "honest":
            check_charged(site, reply)
            with sqlite3.connect(site.ledger_path) as raw:
                raw.execute(
                    "INSERT INTO entry (account, run, round, question, unit, event, reply, at) "
                    "SELECT account, run, 7, question, unit, event, reply, at FROM entry WHERE id = 50"
                )
            raw.close()
            with pytest.raises(AssertionError, match="charged twice"):
                check_charged(site, reply)
        else:
            with pytest.raises(AssertionError):
                check_charged(site, reply)


def test_a_block_that_another_process_overtook_is_looked_at_again(hundred, tmp_path, monkeypatch):
    """Between looking and booking another process answers for some: their stored replies leave, and nobody pays twice."""
    said = []
    site = make_site(tmp_path, hundred, INDEPENDENT, seed=None, log=said.append)
    other = make_site(tmp_path, hundred, INDEPENDENT, seed=None)
    answer_slots, between = site_answers.answer_slots, []

    def overtaken(*args):
        packed = answer_slots(*args)
        if not between:
            between.append(None)
            between.append(other.reply(asked(INDEPENDENT, hundred, np.arange(50))))
        return packed

    monkeypatch.setattr("populace.engines.site.answer_slots", overtaken)
    reply = site.reply(asked(INDEPENDENT, hundred, np.arange(MANY)))
    assert any("looking again" in line for line in said)
    assert np.array_equal(values_of(reply)[1][:50], values_of(between[1])[1])
    assert entries(site) == MANY
    check_charged(site, reply)


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from populace.engines import site as engine
    from populace.engines.agreement import Agreement
    from populace.engines.site import Hosted, Site
    from populace.methods.registry import make_protocol
    from populace.privacy import sqlite_ledger
    from populace.privacy.ledger import Budget
    from populace.tables.partition import split
    from populace.tables.schema import load_schema
    from populace.tables.table import read_table
    folder, where = Path(sys.argv[1]), sys.argv[2]
    table = read_table(folder / "rows.parquet", load_schema(folder / "s.toml"))
    protocol = make_protocol("independent", {"epsilon": 2.0, "clients_per_batch": 100})
    agreement = Agreement(protocol=protocol, schema=table.schema)
    linked, real_link, real_reply = [], sqlite_ledger.link, engine.make_reply

    def dying_link(*arguments):
        linked.append(arguments)
        if len(linked) == 60:
            os.kill(os.getpid(), signal.SIGKILL)
        return real_link(*arguments)

    def dying_reply(*arguments, **options):
        (folder / "unsent").write_bytes(real_reply(*arguments, **options))
        os.kill(os.getpid(), signal.SIGKILL)

    if where == "within the charge":
        sqlite_ledger.link = dying_link
    engine.make_reply = dying_reply
    accounts = tuple(f"row {i + 1}" for i in range(len(table)))
    site = Site(
        hosted=Hosted(clients=split(table), accounts=accounts, records=1), agreements={agreement.digest: agreement},
        ledger_path=folder / "site.sqlite", budget=Budget(epsilon=2.0),
    )
    site.reply((folder / "ask").read_bytes())
"""


@pytest.mark.parametrize("where", ["within the charge", "before the reply"])
def test_killed_around_the_charge_of_a_block_a_site_charges_once(hundred, tmp_path, where):
    """Killed within the charge nobody was charged; after it all were, once, and the same bytes leave later."""
    site = make_site(tmp_path, hundred, INDEPENDENT, seed=None)
    hundred.save(tmp_path / "rows.parquet")
    hundred.schema.save(tmp_path / "s.toml")
    ask = asked(INDEPENDENT, hundred, np.arange(MANY))
    (tmp_path / "ask").write_bytes(ask)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), where], env=os.environ, check=False,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert entries(site) == (0 if where == "within the charge" else MANY)
    reply = site.reply(ask)
    assert entries(site) == MANY
    check_charged(site, reply)
    if where == "before the reply":
        assert reply == (tmp_path / "unsent").read_bytes()
