"""A site gives a run what the run guarantees and no more: rounds, questions, charges; after a crash the same bytes again."""

import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from builders import INDEPENDENT, CentralMean, Relay, code_of, entries, request_of
from populace.engines import wire
from populace.engines.messages import REASONS
from populace.engines.site import Site
from populace.methods.registry import make_protocol
from populace.privacy import events
from populace.privacy.accounting import epsilon_of
from populace.privacy.guarantee import Guarantee
from populace.privacy.sqlite_ledger import SqliteLedger

POLL = make_protocol("poll", {"epsilon": 2.0, "stages": 1})
BY_TWOS = dataclasses.replace(INDEPENDENT, clients_per_batch=2)  # three rounds of six clients; each is asked once


@pytest.fixture
def six(rows):
    return rows.take(np.arange(6))


def asked_again(protocol, schema, round_id, *, question):
    """Client 0 asked in a round of the coordinator's choice, with a question of its choice."""
    return request_of(protocol, schema, who=[0], round_id=round_id, own=np.array([question], np.int32))


def test_poll_asked_ten_times_under_ten_round_numbers_answers_once(six, make_site):
    """A limit of 20, a run of epsilon 2: version 0.1.0 gave ten answers, and 20 was spent in one run of 2."""
    site = make_site(six, POLL, epsilon=20.0, seed=None)
    words = [code_of(site.reply(request_of(POLL, six.schema, round_id=round_id))) for round_id in range(10)]
    assert words == ["reply"] + ["round"] * 9
    assert entries(site) == 6


def test_a_round_that_the_method_does_not_have_is_refused(six, make_site):
    site = make_site(six, BY_TWOS, epsilon=20.0)
    assert BY_TWOS.round_count(site.agreements[next(iter(site.agreements))].population(clients=6, records=1)) == 3
    assert code_of(site.reply(asked_again(BY_TWOS, six.schema, 3, question=0))) == "round"
    assert code_of(site.reply(asked_again(BY_TWOS, six.schema, 2, question=0))) == "reply"


def test_a_question_answered_in_another_round_is_refused(six, make_site):
    """Also where the run's guarantee has room for it; another question in that round is answered."""
    protocol = Relay(epsilon=2.0, passes=5)
    site = make_site(six, protocol, epsilon=20.0, seed=None)

    def ask(round_id, tally):
        common = {"tally": np.full(six.schema.sizes[0], tally, np.int32)}
        return request_of(protocol, six.schema, who=[0], round_id=round_id, common=common)

    first = site.reply(ask(0, 0))
    assert [code_of(site.reply(ask(round_id, 0))) for round_id in (1, 2, 29)] == ["repeated"] * 3
    assert code_of(site.reply(ask(1, 1))) == "reply"
    assert code_of(site.reply(ask(2, 1))) == "repeated"
    assert site.reply(ask(0, 0)) == first
    assert entries(site) == 2


def test_what_the_runs_own_guarantee_does_not_cover_is_refused(six, make_site):
    """Rounds the method has, questions it never asked: one answer is what epsilon 2 allows, whatever the site's limit."""
    said = []
    site = make_site(six, BY_TWOS, epsilon=20.0, seed=None, log=said.append)
    words = [
        code_of(site.reply(asked_again(BY_TWOS, six.schema, round_id, question=round_id))) for round_id in range(3)
    ]
    assert words == ["reply", "guarantee", "guarantee"]
    assert "would have spent epsilon 4 of 2" in said[0]
    assert entries(site) == 1
    assert set(words) - {"reply"} <= set(REASONS)
    other = asked_again(BY_TWOS, six.schema, 1, question=1)
    assert (
        code_of(site.reply(request_of(BY_TWOS, six.schema, run="run-2", who=[0]))) == "reply"
    )  # another run: the site's limit
    assert code_of(site.reply(other)) == "guarantee"


@pytest.mark.parametrize("covered", [1, 2, 3])
def test_gaussian_releases_are_composed_and_exactly_the_agreed_number_answered(six, make_site, covered):
    """The claim is the accountant's own figure for so many rounds: not one less, by rounding, and not one more."""
    delta, noise = 1e-5, 8.0

    class Covered(CentralMean):
        def guarantee(self, population):
            epsilon = epsilon_of(events.Repeated(events.Gaussian(noise), covered), delta=delta)
            return dataclasses.replace(super().guarantee(population), epsilon=epsilon)

    protocol = Covered(epsilon=9.0, noise_multiplier=noise, total_rounds=5)
    site = make_site(six, protocol, epsilon=50.0, delta=1e-3)
    words = [
        code_of(site.reply(request_of(protocol, six.schema, round_id=r, common={"round": np.int32(r)})))
        for r in range(5)
    ]
    assert words == ["reply"] * covered + ["guarantee"] * (5 - covered)


def test_what_a_sampler_may_add_is_not_there_to_be_spent(six, make_site):
    """Epsilon belongs to delta less the sampler's part: a site composes at the rest."""
    noise, delta = 8.0, 1e-5
    event = events.Repeated(events.Gaussian(noise), 2)

    class Sampled(CentralMean):
        def guarantee(self, population):
            claim = dataclasses.replace(super().guarantee(population), epsilon=epsilon_of(event, delta=delta))
            return dataclasses.replace(claim, sampling_delta=0.9 * claim.delta if self.quorum_share < 0.5 else 0.0)

    for quorum_share, words in ((0.5, ["reply", "reply"]), (0.4, ["reply", "guarantee"])):
        protocol = Sampled(epsilon=9.0, noise_multiplier=noise, total_rounds=2, quorum_share=quorum_share)
        site = make_site(six, protocol, epsilon=50.0, delta=1e-3, name=f"s{quorum_share}")
        asks = [request_of(protocol, six.schema, round_id=r, common={"round": np.int32(r)}) for r in range(2)]
        assert [code_of(site.reply(ask)) for ask in asks] == words


def test_a_baseline_without_a_guarantee_answers_all_its_rounds_and_no_others(six, make_site):
    class Open(CentralMean):
        def charge(self, ask, population):
            return dataclasses.replace(super().charge(ask, population), event=events.NonPrivate("a baseline"))

        def guarantee(self, population):
            return Guarantee(
                epsilon=np.inf,
                unit="client",
                neighbours="replace",
                trust="not-private",
                mechanism="none",
                reason="baseline",
            )

    protocol = Open(epsilon=1.0, total_rounds=3)
    site = make_site(six, protocol, epsilon=np.inf)
    asks = [request_of(protocol, six.schema, round_id=r, common={"round": np.int32(r)}) for r in range(4)]
    assert [code_of(site.reply(ask)) for ask in asks] == ["reply"] * 3 + ["round"]


def test_cohorts_that_must_stay_secret_are_not_answered_over_a_network(six, make_site):
    class Secret(CentralMean):
        def secret_cohorts(self, population):
            return True

    protocol = Secret(epsilon=3.0)
    for seed, word in ((None, "guarantee"), (3, "reply")):  # a seeded site is not private
        site = make_site(six, protocol, epsilon=3.0, delta=1e-5, seed=seed, name=f"s{seed}")
        assert code_of(site.reply(request_of(protocol, six.schema))) == word


KILLED = """
    import os, signal, sys
    from pathlib import Path
    import numpy as np
    from populace.engines import site as module
    from populace.engines.agreement import Agreement
    from populace.engines.site import Hosted, Site
    from populace.privacy.ledger import Budget
    from populace.methods.registry import make_protocol
    from populace.tables.partition import split
    from populace.tables.schema import load_schema
    from populace.tables.table import read_table
    folder = Path(sys.argv[1])
    table = read_table(folder / "rows.parquet", load_schema(folder / "s.toml"))
    protocol = make_protocol("independent", {"epsilon": 2.0, "clients_per_batch": 100})
    agreement = Agreement(protocol=protocol, schema=table.schema)
    real = module.make_reply

    def dying(*arguments, **options):
        (folder / "unsent").write_bytes(real(*arguments, **options))
        os.kill(os.getpid(), signal.SIGKILL)

    module.make_reply = dying
    site = Site(
        hosted=Hosted(clients=split(table), accounts=tuple(f"row {i + 1}" for i in range(len(table))), records=1),
        agreements={agreement.digest: agreement}, ledger_path=folder / "site.sqlite", budget=Budget(epsilon=2.0),
    )
    site.reply((folder / "ask").read_bytes())
"""


def test_killed_after_booking_and_before_sending_a_site_sends_the_same_bytes_later(six, make_site, tmp_path):
    """The whole message, not only its values; asked in other parts and orders, each client says what it said."""
    site = make_site(six, INDEPENDENT, seed=None)
    six.save(tmp_path / "rows.parquet")
    six.schema.save(tmp_path / "s.toml")
    (tmp_path / "ask").write_bytes(request_of(INDEPENDENT, six.schema))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)], env=os.environ, check=False, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert entries(site) == 6
    whole = site.reply(request_of(INDEPENDENT, six.schema))
    assert whole == (tmp_path / "unsent").read_bytes()
    said = dict(zip(*(wire.unpack(whole).arrays[name].tolist() for name in ("clients", "value/0")), strict=True))
    for who in ([4], [5, 0, 2], [3, 1]):
        part = wire.unpack(site.reply(request_of(INDEPENDENT, six.schema, who=who))).arrays
        assert part["clients"].tolist() == who
        assert part["value/0"].tolist() == [said[client] for client in who]
    assert entries(site) == 6


def in_step(protocol, parties):
    """The same method, whose answers wait for each other: all have looked at the ledger before any of them is booked."""
    together = threading.Barrier(parties)
    waited = threading.local()

    class InStep(type(protocol)):
        def answer(self, common, own, shard, memory, source):
            if not isinstance(own, jax.core.Tracer) and not hasattr(waited, "once"):
                waited.once = True
                together.wait(30)
            return super().answer(common, own, shard, memory, source)

    return InStep(**dataclasses.asdict(protocol))


def at_once(site, requests):
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(site.reply, requests))


def test_two_processes_asked_the_same_at_once_give_one_answer(six, make_site):
    protocol = in_step(Relay(epsilon=2.0), 2)
    said = []
    site = make_site(six, protocol, seed=None, log=said.append)
    first, second = at_once(site, [request_of(protocol, six.schema, who=[0])] * 2)
    assert code_of(first) == "reply"
    assert first == second
    assert entries(site) == 1
    assert any("looking again" in line for line in said)


@pytest.mark.parametrize(("limit", "answers"), [(2.0, 1), (4.0, 2)])
def test_two_runs_at_once_spend_no_more_than_one_after_the_other(six, make_site, limit, answers):
    protocol = in_step(Relay(epsilon=2.0), 2)
    site = make_site(six.take(np.arange(1)), protocol, seed=None, epsilon=limit)
    asks = [request_of(protocol, six.schema, who=[0], total=1, run=f"run-{number}") for number in (1, 2)]
    words = [code_of(reply) for reply in at_once(site, asks)]
    assert sorted(words) == sorted(["reply"] * answers + ["budget"] * (2 - answers))
    assert entries(site) == answers


def test_two_rounds_at_once_take_no_more_than_the_run_guarantees(six, make_site):
    """Each alone is covered, both together are not; and memory is never that of a round which lost."""
    protocol = in_step(Relay(epsilon=2.0, passes=1), 2)
    site = make_site(six, protocol, seed=None, epsilon=20.0)
    tallies = [{"tally": np.full(six.schema.sizes[0], tally, np.int32)} for tally in (0, 1)]
    asks = [request_of(protocol, six.schema, who=[0], round_id=r, common=tallies[r]) for r in (0, 1)]
    assert sorted(code_of(reply) for reply in at_once(site, asks)) == ["guarantee", "reply"]
    twice = in_step(Relay(epsilon=2.0, passes=2), 2)
    site = make_site(six.take(np.arange(1)), twice, seed=None, epsilon=20.0, name="twice")
    asks = [request_of(twice, six.schema, who=[0], total=1, round_id=r, common=tallies[r]) for r in (0, 1)]
    replies = at_once(site, asks)
    assert [code_of(reply) for reply in replies] == ["reply", "reply"]
    assert sorted(int(wire.unpack(reply).arrays["value/0"][0]) for reply in replies) == [1, 2]
    with SqliteLedger(site.ledger_path, site.budget) as ledger:
        kept = ledger.memory(site.hosted.accounts[0], run="run-1")
    assert int(wire.unpack(kept).arrays["memory/0"]) == 2


def test_a_site_says_why_in_words_to_its_own_people_only(six, make_site):
    said = []
    site: Site = make_site(six, BY_TWOS, epsilon=20.0, log=said.append)
    for round_id, question in ((0, 0), (1, 0), (1, 1), (7, 2)):
        site.reply(asked_again(BY_TWOS, six.schema, round_id, question=question))
    assert [line.split(":")[0] for line in said] == ["refused (repeated)", "refused (guarantee)", "refused (round)"]
    assert "has answered this very question in round 0" in said[0]
