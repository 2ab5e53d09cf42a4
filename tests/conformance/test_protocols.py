"""Every protocol of the registry, on every engine, keeps the same promises."""

import contextlib
import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from builders import Diary, assert_same, leaves, mark_slow, small_protocol, table_methods
from populace.engines import debug, simulation
from populace.engines.checkpoint import Checkpoint
from populace.engines.runtime import Keys, population_of
from populace.errors import BudgetError, PopulaceError
from populace.methods.base import Replies
from populace.methods.registry import load_generator
from populace.privacy.accounting import contains_non_private
from populace.privacy.bracket import TOLERANCE, bracket
from populace.privacy.source import Keyed
from populace.tables.codec import encode
from populace.tables.partition import split

CLIENTS, FEW = 30, 5
EPSILON = 2.0
ASKED_ONCE = ("moments", "chain", "fl-gan", "ufl-gan")  # what the first question costs is paid once
ONE_ROUND = ("central-vae",)  # all records are sent at once
ONE_MESSAGE = ("census",)  # more than one where columns are long, which test_census.py has


TABLES = table_methods()
SLOW = ("chain",)  # its noise is searched for; both its methods are here themselves
#: One client after the other, uncompiled: methods that train, and those that are compiled for long.
TRAINED = ("dp-fed-wae", "fedsel-wae", "l-dpd-vae", "c-dpd-vae", "fl-gan", "ufl-gan")


@pytest.fixture(scope="module", params=mark_slow(TABLES, SLOW))
def protocol(request):
    return small_protocol(request.param, EPSILON)


def slow_for(*names):
    """Marks methods that take long in one test."""
    return pytest.mark.parametrize("protocol", mark_slow(TABLES, {*SLOW, *names}), indirect=True)


@pytest.fixture(scope="module")
def some_clients(small_table):
    return split(small_table.take(np.arange(2 * CLIENTS)), records_per_client=2)


@pytest.fixture(scope="module")
def clients(protocol, some_clients, small_table):
    """Fewer where one client after the other trains a network, uncompiled."""
    few = protocol.facts.name.endswith(("vae", "gan")) or protocol.facts.name == "chain"
    return split(small_table.take(np.arange(2 * FEW)), records_per_client=2) if few else some_clients


@pytest.fixture(scope="module")
def outcome(protocol, clients):
    return simulation.run(protocol, clients, root=jax.random.key(5))


def claims_nothing(protocol):
    return protocol.facts.trust == ("not-private",)


def assert_same_run(outcome, other, protocol):
    assert_same(outcome.state, other.state)
    assert other.rounds == outcome.rounds
    assert other.rounds > 1 or protocol.facts.name in (*ONE_ROUND, *ONE_MESSAGE)
    assert other.traffic == outcome.traffic
    assert other.ledger.spent() == outcome.ledger.spent()


@slow_for(*TRAINED, "poll", "calm", "lopub", "locop", "fed-vae", "fedavg-gan", "moments")
def test_same_key_same_result_on_the_debug_engine(protocol, clients, outcome):
    assert_same_run(outcome, debug.run(protocol, clients, root=jax.random.key(5)), protocol)


@slow_for("dp-fed-wae", "l-dpd-vae", "fed-vae")
def test_same_key_same_result_round_by_round(protocol, clients, outcome):
    other = simulation.run(protocol, clients, root=jax.random.key(5), compiled=False)
    assert_same_run(outcome, other, protocol)


@slow_for()
def test_same_key_same_result_compiled(protocol, clients, outcome):
    if not protocol.compiles:
        pytest.skip("its rounds do not compile into one loop")
    other = simulation.run(protocol, clients, root=jax.random.key(5), compiled=True)
    assert_same_run(outcome, other, protocol)


@slow_for(*TRAINED, "moments", "fed-vae", "fedavg-gan", "poll")
def test_same_key_same_replies(protocol, clients):
    """The replies themselves, client by client, simulation against debug."""
    population = population_of(clients)
    keys = Keys(jax.random.key(5))
    ask = protocol.ask(protocol.begin(population, keys.begin()), population, Keyed(keys.ask(0)))
    slow = debug.answer_one_by_one(protocol, ask, clients, population, keys, 0, {}, exact=False)
    assert_same(slow.values, answered_at_once(protocol, ask, clients, keys).values)


def answered_at_once(protocol, ask, clients, keys):
    """The replies to a first question, compiled."""
    population = population_of(clients)
    records, mask = clients.gather(np.asarray(ask.cohort), population.records)
    memory = simulation._memories(protocol, population, keys)
    return simulation._answer_cohort(protocol, population, keys, ask, records, mask, memory)[0]


def test_another_key_another_result(protocol, clients, outcome):
    """In the state or, where the state is the records themselves, in what was trained on them."""
    other = simulation.run(protocol, clients, root=jax.random.key(6))
    ends = [(leaves(one.state), list(one.generator.arrays().values())) for one in (outcome, other)]
    pairs = zip(ends[0][protocol.facts.name in ONE_ROUND], ends[1][protocol.facts.name in ONE_ROUND], strict=True)
    assert any((a != b).any() for a, b in pairs)


def test_without_a_seed_what_protects_does_not_come_from_the_key(protocol, clients, outcome):
    """The same key again, exact draws from the operating system: another result, of the same form; baselines draw nothing."""
    other = simulation.run(protocol, clients, root=jax.random.key(5), exact_noise=True)
    assert other.noise == "exact"
    assert [leaf.shape for leaf in leaves(other.state)] == [leaf.shape for leaf in leaves(outcome.state)]
    if not claims_nothing(protocol):
        assert any((a != b).any() for a, b in zip(leaves(outcome.state), leaves(other.state), strict=True))


def test_claim_follows_from_the_events_that_were_booked(protocol, outcome):
    """From below and from above, as `populace verify` looks at it; one hundredth less would not follow."""
    claim, event = outcome.guarantee, outcome.ledger.worst_event()
    if claims_nothing(protocol):
        assert contains_non_private(event)
        return
    found = bracket(event, delta=claim.accounted_delta)
    assert found.at_least <= found.proved <= claim.epsilon * (1 + 1e-9)
    assert 0.99 * claim.epsilon < found.proved
    assert found.renyi is None or claim.epsilon <= found.renyi + TOLERANCE


def test_guarantee_never_above_what_was_asked(protocol, outcome):
    """A method that guarantees nothing says so, and why."""
    if claims_nothing(protocol):
        assert outcome.guarantee.epsilon == math.inf
        assert outcome.guarantee.reason
    else:
        assert outcome.guarantee.epsilon <= EPSILON
    assert outcome.guarantee.trust in protocol.facts.trust
    assert outcome.guarantee.unit == protocol.facts.unit


def test_ledger_spent_is_what_was_planned(protocol, clients, outcome):
    spent = outcome.ledger.spent()
    assert spent["epsilon"] == pytest.approx(protocol.guarantee(population_of(clients)).epsilon, rel=1e-9)
    assert spent["accounts_charged"] == len(clients)


def test_charge_is_the_mechanisms_own_event_and_a_second_run_of_it_is_refused(protocol, clients):
    population = population_of(clients)
    ask = protocol.ask(protocol.begin(population, jax.random.key(0)), population, Keyed(jax.random.key(1)))
    ledger = simulation.new_ledger(protocol, population)
    cohort = np.asarray(ask.cohort)
    charge = protocol.charge(ask, population)
    members = cohort[cohort >= 0]
    once = protocol.guarantee(population)
    asked_once = once.pure or protocol.facts.name in ASKED_ONCE
    most = 1 if asked_once else protocol.round_count(population)
    for times in range(most):  # a later question may cost another amount
        ledger.book(
            members, protocol.charge(dataclasses.replace(ask, round=np.int32(times)), population), round_id=times
        )
    if claims_nothing(protocol):
        assert ledger.spent()["epsilon"] == math.inf  # nothing is promised, so nothing is overspent
        return
    with pytest.raises(BudgetError):
        ledger.book(members, charge, round_id=most)


@slow_for(*TRAINED)
def test_order_of_replies_does_not_matter_and_absent_ones_do_not_count(protocol, clients):
    population = population_of(clients)
    keys = Keys(jax.random.key(5))
    state = protocol.begin(population, keys.begin())
    ask = protocol.ask(state, population, Keyed(keys.ask(0)))
    replies = answered_at_once(protocol, ask, clients, keys)
    order = np.random.default_rng(0).permutation(len(ask.cohort))
    shuffled_ask, shuffled = (
        jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[order]), each) for each in (ask.own, replies)
    )
    shuffled_ask = dataclasses.replace(ask, cohort=ask.cohort[order], own=shuffled_ask)
    source = Keyed(keys.absorb(0))
    assert_same(protocol.absorb(state, ask, replies, source), protocol.absorb(state, shuffled_ask, shuffled, source))
    absent = np.arange(len(ask.cohort)) % 2 == 0
    present = replies.present & ~absent
    garbage = jax.tree.map(lambda x: x.at[absent].set(x[absent] ^ True if x.dtype == bool else 9), replies.values)
    assert_same(
        protocol.absorb(state, ask, Replies(clients=ask.cohort, present=present, values=replies.values), source),
        protocol.absorb(state, ask, Replies(clients=ask.cohort, present=present, values=garbage), source),
    )


@slow_for(*TRAINED, "fed-vae", "fedavg-gan")
def test_operating_system_randomness_gives_a_run_too(protocol, clients):
    """The replies a deployed client would make: other randomness, the same shapes, a working generator."""
    exact = debug.run(protocol, clients, root=jax.random.key(5), exact=True)
    assert len(exact.generator.sample(10, jax.random.key(0))) == 10
    assert exact.ledger.spent()["accounts_charged"] == len(clients)


def test_save_and_load_round_trip(outcome, tmp_path):
    outcome.generator.save(tmp_path)
    again = load_generator(tmp_path)
    first, second = outcome.generator.sample(200, jax.random.key(1)), again.sample(200, jax.random.key(1))
    assert first.frame.equals(second.frame)
    assert json.loads((tmp_path / "generator.json").read_text())["format"] == 1


@slow_for("l-dpd-vae")
def test_sample_respects_the_schema(outcome, small_schema):
    table = outcome.generator.sample(500, jax.random.key(2))
    np.testing.assert_array_equal(encode(table.frame, small_schema), table.codes)
    seen = table.codes[0]  # a combination the model makes, so that it can be asked for
    wanted = {name: small_schema.column(name).labels()[seen[small_schema.index(name)]] for name in ("colour", "weight")}
    given = outcome.generator.sample(50, jax.random.key(3), wanted)
    assert (given.codes[:, [0, 2]] == seen[[0, 2]]).all()


def test_plan_needs_no_data(protocol, small_schema, clients):
    plan = protocol.plan(population_of(clients))
    assert plan.guarantee.epsilon <= (math.inf if claims_nothing(protocol) else EPSILON)
    assert plan.bytes_up > 0
    assert all(0 <= error <= 1 for error in plan.errors.values())


def test_resume_after_every_round_gives_the_same_result(protocol, clients, outcome, tmp_path, monkeypatch):
    """Stopped after each checkpoint and started again, the run ends where an undisturbed one does."""

    class StopError(Exception):
        pass

    def stop(at):
        raise StopError

    monkeypatch.setattr(simulation, "_next_chunk", lambda *_: 1)
    checkpoint = Checkpoint(tmp_path / "c.npz")
    for _ in range(outcome.rounds):
        saved = checkpoint.path.read_bytes() if checkpoint.exists() else None
        try:
            # Progress is told before the checkpoint is written: the interruption loses the round.
            simulation.run(protocol, clients, root=jax.random.key(5), checkpoint=checkpoint, progress=stop)
        except StopError:
            assert saved is None or checkpoint.path.read_bytes() == saved
        done = []
        monkeypatch.setattr(Checkpoint, "save", _save_then_stop(Checkpoint.save, done, StopError))
        with contextlib.suppress(StopError):
            simulation.run(protocol, clients, root=jax.random.key(99), checkpoint=checkpoint)
        monkeypatch.undo()
        monkeypatch.setattr(simulation, "_next_chunk", lambda *_: 1)
    final = simulation.run(protocol, clients, root=jax.random.key(99), checkpoint=checkpoint)
    assert_same(final.state, outcome.state)
    assert final.ledger.spent() == outcome.ledger.spent()
    assert final.traffic == outcome.traffic


def _save_then_stop(save, done, stop):
    def wrapped(self, **kwargs):
        save(self, **kwargs)
        done.append(kwargs["rounds"])
        if kwargs["rounds"] > 0:
            raise stop

    return wrapped


@pytest.mark.parametrize("compiled", [False, True])
def test_memory_cohorts_and_rounds(some_clients, compiled):
    """Clients that remember, cohorts with empty slots, state that feeds back: all engines agree."""
    slow = debug.run(Diary(), some_clients, root=jax.random.key(3))
    fast = simulation.run(Diary(), some_clients, root=jax.random.key(3), compiled=compiled)
    assert_same(slow.state, fast.state)
    assert slow.ledger.entries == fast.ledger.entries
    assert int(slow.state.heard) == 6 * 4 - 3
    assert float(slow.state.total[0]) != 0


def test_who_was_not_booked_does_not_count(some_clients):
    """A protocol whose public schedule and whose questions differ: the compiled loop answers only who was paid for."""

    class Lying(Diary):
        def cohorts(self, population, state, first, count):
            return np.where(np.arange(self.cohort) == 0, super().cohorts(population, state, first, count), -1)

    honest = simulation.run(Diary(), some_clients, root=jax.random.key(3), compiled=True)
    lying = simulation.run(Lying(), some_clients, root=jax.random.key(3), compiled=True)
    assert int(lying.state.heard) == sum(entry[1] for entry in lying.ledger.entries) == 6
    assert int(honest.state.heard) == sum(entry[1] for entry in honest.ledger.entries) == 21


def test_debug_names_client_and_step(some_clients):
    class Broken(Diary):
        def answer(self, common, own, shard, memory, source):
            raise ZeroDivisionError("boom")

    with pytest.raises(PopulaceError, match=r"round 0, client \d+, step answer: ZeroDivisionError: boom"):
        debug.run(Broken(), some_clients, root=jax.random.key(3))
