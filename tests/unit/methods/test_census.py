"""`census`: what a silo sends, what it costs, and that sums do not care who holds what."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest

from builders import assert_same, code_of, debug_state, entries, make_coordinator, make_site, make_sites, request_of
from populace.engines import debug, simulation
from populace.engines.checkpoint import Checkpoint
from populace.engines.runtime import Keys, population_of
from populace.errors import SpecError
from populace.methods.base import Population, Replies, Shard
from populace.methods.census import protocol as census
from populace.methods.census.protocol import Census
from populace.privacy.accounting import epsilon_of
from populace.privacy.events import Composed
from populace.privacy.source import Keyed, System
from populace.tables.partition import split, split_dirichlet, split_even, split_silos
from populace.tables.schema import Column, Schema
from populace.tables.table import from_codes

DELTA = 1e-6
ROWS = 600
FAST = {"components": 3, "members": 2, "fit_steps": 10}


def long_schema():
    """A scale and a list longer than their cells, one of them with gaps, and short columns beside them."""
    return Schema(
        columns=(
            Column(name="cost", kind="integer", edges=tuple(float(edge) for edge in range(121)), nullable=True),
            Column(name="ward", kind="categorical", categories=("north", "south", "east")),
            Column(name="code", kind="categorical", categories=tuple(f"c{number:03}" for number in range(60))),
            Column(name="ill", kind="categorical", categories=("no", "yes")),
        ),
        target="ill",
    )


def made_table(schema, rows=ROWS, seed=0):
    """Two kinds of records, so that columns depend on each other."""
    rng = np.random.default_rng(seed)
    kind = rng.random(rows) < 0.4
    columns = []
    for size in schema.sizes:
        low = np.minimum(rng.geometric(0.5, rows) - 1, size - 1)
        columns.append(np.where(kind, low, size - 1 - np.minimum(rng.geometric(0.3, rows) - 1, size - 1)))
    return from_codes(np.stack(columns, axis=1).astype(np.int32), schema, rng)


@pytest.fixture(scope="module")
def table():
    return made_table(long_schema())


def protocol_of(**settings):
    return Census(**{"epsilon": 2.0, "delta": DELTA, **FAST, **settings})


def partitions(table):
    """Alike, by label, of other sizes, one with one row, one without any; the same rows each time."""
    rows = len(table)
    return {
        "one": split_silos(table, [rows]),
        "three alike": split_even(table, clients=3, seed=0),
        "skewed": split_dirichlet(table, labels=table.codes[:, 3], clients=5, alpha=0.2, seed=1),
        "one row": split_silos(table, [rows - 1, 1]),
        "none": split_silos(table, [0, 100, rows - 100, 0]),
    }


def exact_sums(protocol, table, state):
    """The sums without noise, of one silo that holds everything, asked for the cells of a run."""
    learner = protocol.parts(population_of(split_silos(table, [len(table)]))).learner
    everything = np.ones(len(table), bool)
    cells = learner.question(state, np.int32(1))["cells"]
    counts = learner.tables.counts(learner._as_cells(table.codes, np.asarray(cells)), everything)
    return np.asarray(learner.first.counts(table.codes, everything)), np.asarray(counts, np.int64)


# Sums


def test_sums_do_not_depend_on_who_holds_what(table):
    """With noise once on the sum and the same key, every partition of the rows ends in the same sums and the same model."""
    protocol = protocol_of(trust="central")
    ends = {
        name: simulation.run(protocol, clients, root=jax.random.key(3)) for name, clients in partitions(table).items()
    }
    first = ends.pop("one")
    for name, other in ends.items():
        for part in ("one_way", "pairs"):
            wanted, found = (np.asarray(getattr(end.state.learner, part)) for end in (first, other))
            np.testing.assert_array_equal(found, wanted, err_msg=f"{name}: {part}")
        np.testing.assert_allclose(other.generator.tables, first.generator.tables, atol=1e-6)


@pytest.mark.parametrize("trust", ["silo", "central"])
def test_noise_is_there_once_or_at_every_silo(table, trust):
    """What is in the sums beside the counts: one draw's deviation, or the root of as many as there are silos."""
    protocol, silos = protocol_of(trust=trust), 4
    outcome = simulation.run(protocol, split_even(table, clients=silos, seed=0), root=jax.random.key(1))
    state = outcome.state.learner
    release = protocol.parts(population_of(split_even(table, clients=silos, seed=0))).release
    wanted = math.sqrt(silos) if trust == "silo" else 1.0
    for stage, (found, exact) in enumerate(
        zip((state.one_way, state.pairs), exact_sums(protocol, table, state), strict=True)
    ):
        left = np.asarray(found) - exact
        assert left.std() / release.mechanisms[stage].scale == pytest.approx(wanted, rel=0.15)
        assert release.deviation(stage, silos) == pytest.approx(wanted * release.mechanisms[stage].scale)
        assert abs(left.mean()) < 5 * left.std() / math.sqrt(left.size)
    np.testing.assert_array_equal(state.messages, [silos, silos])


@pytest.mark.parametrize("source", [Keyed(jax.random.key(0)), System()], ids=["keyed", "exact"])
def test_a_silo_without_records_sends_noise_or_zeros(table, source):
    for trust in ("silo", "central"):
        protocol = protocol_of(trust=trust)
        population = population_of(split_even(table, clients=3, seed=0))
        parts = protocol.parts(population)
        empty = Shard(records=np.zeros((5, 4), np.int32), mask=np.zeros(5, bool), population=population)
        for stage in range(parts.schedule.stages):
            question = parts.learner.example(stage * parts.schedule.blocks)
            reply = np.asarray(protocol.answer(question, 0, empty, (), source)[0])
            if trust == "central":
                assert not reply.any()
            else:
                assert reply.std() == pytest.approx(parts.release.mechanisms[stage].scale, rel=0.25)


def test_noise_once_although_silos_are_heard_in_blocks(table, monkeypatch):
    """Blocks exist for memory: nine exchanges, two draws of noise, the same sums."""
    protocol, clients = protocol_of(trust="central", epsilon=1.9), split_even(table, clients=9, seed=0)
    together = simulation.run(protocol, clients, root=jax.random.key(3))
    monkeypatch.setattr(census, "AT_ONCE", 1)
    alone = protocol_of(trust="central", epsilon=1.9 + 1e-12)  # not the composition that is kept
    apart = simulation.run(alone, clients, root=jax.random.key(3))
    assert (together.rounds, apart.rounds) == (2, 18)
    exact = exact_sums(protocol, table, apart.state.learner)
    release = alone.parts(population_of(clients)).release
    for stage, found in enumerate((apart.state.learner.one_way, apart.state.learner.pairs)):
        left = np.asarray(found) - exact[stage]
        assert left.std() / release.mechanisms[stage].scale == pytest.approx(1.0, rel=0.15)
    events = [release.event(number) for number in range(18)]
    assert events == [release.mechanisms[0].event] * 9 + [release.mechanisms[1].event] * 9
    np.testing.assert_array_equal(apart.state.learner.messages, [9, 9])


def rounds_without(protocol, clients, absent):
    """The state after all exchanges, in each of which some silos' replies do not arrive."""
    population, keys = population_of(clients), Keys(jax.random.key(2))
    state, number = protocol.begin(population, keys.begin()), 0
    while (ask := protocol.ask(state, population, Keyed(keys.ask(number)))) is not None:
        replies = debug.answer_one_by_one(protocol, ask, clients, population, keys, number, {}, exact=False)
        present = np.asarray(replies.present) & ~np.isin(np.asarray(ask.cohort), absent.get(number, ()))
        state = protocol.absorb(
            state, ask, Replies(clients=ask.cohort, present=present, values=replies.values), Keyed(keys.absorb(number))
        )
        number += 1
    return state


@pytest.mark.parametrize("trust", ["silo", "central"])
def test_a_silo_that_misses_a_stage_is_missing_from_that_stage_alone(table, trust):
    protocol, clients = protocol_of(trust=trust, epsilon=12.0), split_even(table, clients=3, seed=0)
    everybody = rounds_without(protocol, clients, {})
    fewer = rounds_without(protocol, clients, {1: [2]})
    np.testing.assert_array_equal(fewer.learner.messages, [3, 2])
    np.testing.assert_array_equal(fewer.learner.one_way, everybody.learner.one_way)
    learner = protocol.parts(population_of(clients)).learner
    scale = learner.release.mechanisms[1].scale
    counts = np.asarray(fewer.learner.pairs).sum() / np.asarray(everybody.learner.pairs).sum()
    assert counts == pytest.approx(2 / 3, abs=0.1)
    seen = learner.observed(fewer.learner)  # shares of the records that are there, and as much noise as there is
    assert seen.shares.sum() / len(learner.tables.pairs) == pytest.approx(1, abs=0.1)
    records = (scale * (math.sqrt(2) if trust == "silo" else 1)) / (
        seen.deviations * learner.tables.weights[learner.tables.pair_of_entry]
    )
    np.testing.assert_allclose(records, 400, rtol=0.15)
    generator = protocol.finish(fewer, population_of(clients), jax.random.key(0))
    assert len(generator.sample(50, jax.random.key(1))) == 50


def test_nobody_answers_and_there_still_is_a_model(table):
    """Every reply is lost: a model of nothing, and no error."""
    protocol, clients = protocol_of(), split_even(table, clients=3, seed=0)
    state = rounds_without(protocol, clients, {0: [0, 1, 2], 1: [0, 1, 2]})
    generator = protocol.finish(state, population_of(clients), jax.random.key(0))
    assert len(generator.sample(20, jax.random.key(1))) == 20


# Sensitivity


def strange_cells(schema, rng):
    """Maps of codes to cells as a server may send them: right, all in one, numbers of other columns, negative, huge."""
    size = sum(schema.sizes)
    limits = np.iinfo(np.int32)
    yield np.zeros(size, np.int32)
    yield np.arange(size, dtype=np.int32)
    yield rng.permutation(size).astype(np.int32)
    yield np.full(size, -1, np.int32)
    yield np.full(size, limits.max, np.int32)
    yield np.full(size, limits.min, np.int32)
    yield rng.integers(limits.min, limits.max, size, dtype=np.int32)
    yield (np.arange(size) * 7919 - 500).astype(np.int32)


def test_every_record_changes_a_message_by_exactly_its_bound_whatever_a_server_asks(table):
    """The squares of what a record adds, in whole numbers, for strange maps of codes to cells and every code.

    A record without a cost stands in no group of costs, and adds to one count less of the first message.
    """
    schema, rng = table.schema, np.random.default_rng(0)
    protocol = protocol_of(trust="central")  # its replies have no noise: what a silo adds noise to
    population = population_of(split_silos(table, [len(table)]))
    parts = protocol.parts(population)
    codes = np.stack([np.resize(np.arange(size), 121) for size in schema.sizes], axis=1).astype(np.int32)
    codes = np.concatenate([codes, rng.permuted(codes, axis=0)])
    base = Shard(records=codes, mask=np.ones(len(codes), bool), population=population)
    for question in ({"codes": np.int32(0)}, *({"cells": cells} for cells in strange_cells(schema, rng))):
        stage = int("cells" in question)
        whole = np.asarray(protocol.answer(question, 0, base, (), Keyed(jax.random.key(0)))[0], np.int64)
        square = parts.release.mechanisms[stage].bound ** 2
        assert stage or (codes[::5, 0] == schema.sizes[0] - 1).any()
        total = np.zeros_like(whole)
        for row in range(0, len(codes), 5):
            without = dataclasses.replace(base, mask=np.arange(len(codes)) != row)
            rest = np.asarray(protocol.answer(question, 0, without, (), Keyed(jax.random.key(0)))[0], np.int64)
            change = whole - rest
            assert change.min() >= 0
            left_out = int(stage == 0 and codes[row, 0] == schema.sizes[0] - 1)
            assert int((change**2).sum()) == pytest.approx(square - left_out, rel=1e-12)
            total += change
        assert (total <= whole).all()


def test_the_same_counts_by_numpy_and_traced(table):
    """The simulation may trace what a site counts plainly."""
    protocol = protocol_of(trust="central")
    population = population_of(split_silos(table, [len(table)]))
    mask = np.arange(len(table)) % 3 > 0
    learner = protocol.parts(population).learner
    cells = next(itertools.islice(strange_cells(table.schema, np.random.default_rng(1)), 2, None))
    for question in ({"codes": np.int32(0)}, {"cells": cells}):

        def answer(records, mask, question=question):
            shard = Shard(records=records, mask=mask, population=population)
            return learner.answer(question, 0, shard, Keyed(jax.random.key(0)))

        np.testing.assert_array_equal(answer(table.codes, mask), jax.jit(answer)(table.codes, mask))


def test_a_site_refuses_cells_of_another_shape(table, tmp_path):
    """A map for fewer codes than there are would have records counted elsewhere; nothing is charged for it."""
    protocol = protocol_of(epsilon=1.0)
    site = make_site(tmp_path, table, protocol, epsilon=99.0, delta=1e-3, unit="record", records=ROWS // 4)
    asked = {"total": 4, "records": ROWS // 4}
    assert code_of(site.reply(request_of(protocol, table.schema, **asked))) == "reply"
    before = entries(site)
    whole = np.zeros(sum(table.schema.sizes), np.int32)
    for wrong in (whole[:-1], whole.astype(np.int64), whole.astype(np.float32), whole[None]):
        request = request_of(protocol, table.schema, **asked, round_id=1, common={"cells": wrong})
        assert code_of(site.reply(request)) == "malformed"
    early = request_of(protocol, table.schema, **asked, round_id=0, common={"cells": whole}, run="run-2")
    assert code_of(site.reply(early)) == "malformed"  # the second stage's question in the first, which is paid less
    assert entries(site) == before
    right = request_of(protocol, table.schema, **asked, round_id=1, common={"cells": whole})
    assert code_of(site.reply(right)) == "reply"
    assert entries(site) == 2 * before


# Cost


@pytest.mark.parametrize("trust", ["silo", "central"])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 8.0])
def test_stages_together_cost_what_is_claimed(table, trust, epsilon):
    """Never more than asked, and hardly less; each stage is booked as the noise it adds."""
    protocol = protocol_of(epsilon=epsilon, trust=trust)
    population = population_of(split_even(table, clients=3, seed=0))
    release, claim = protocol.parts(population).release, protocol.guarantee(population)
    assert 0.99 * epsilon < claim.epsilon <= epsilon
    assert (claim.unit, claim.neighbours, claim.trust) == ("record", "zero-out", trust)
    assert claim.accounted_delta == pytest.approx(DELTA, rel=1e-9)
    assert release.whole == Composed(tuple(mechanism.event for mechanism in release.mechanisms))
    assert epsilon_of(release.whole, delta=DELTA) == pytest.approx(claim.epsilon, rel=1e-6)
    share = release.mechanisms[0].noise_multiplier ** -2 / sum(m.noise_multiplier**-2 for m in release.mechanisms)
    assert share == pytest.approx(protocol.domain_share)
    assert release.noise_multiplier < min(mechanism.noise_multiplier for mechanism in release.mechanisms)


def test_one_stage_where_all_columns_are_short(small_table):
    """A table of few codes saves the share for long columns: one message, one release."""
    population = population_of(split(small_table, records_per_client=100))
    parts = protocol_of().parts(population)
    assert parts.schedule.exchanges == 1
    assert len(parts.release.mechanisms) == 1
    assert parts.release.whole == parts.release.event(0) == parts.release.mechanisms[0].event
    assert 1.98 < protocol_of().guarantee(population).epsilon <= 2.0
    long = protocol_of().parts(population_of(split(made_table(long_schema(), 100), records_per_client=50)))
    assert long.schedule.exchanges == 2


def test_bounds_of_the_mechanisms_are_those_of_the_messages(table):
    population = population_of(split_even(table, clients=3, seed=0))
    parts = protocol_of().parts(population)
    first, second = parts.release.mechanisms
    # all records with twice the weight, codes, groups of eight of them, and a list
    assert (first.bound, first.size) == (math.sqrt(4 + 3), 1 + 121 + 15 + 60)
    assert (second.bound, second.size) == (parts.learner.tables.bound, parts.learner.tables.numbers)
    assert first.whole
    assert second.whole
    assert first.grid == second.grid == 1.0


def test_trust_of_the_release_is_checked(table):
    release = protocol_of().parts(population_of(split_even(table, clients=2, seed=0))).release
    with pytest.raises(SpecError, match="silo, secure-sum, central"):
        dataclasses.replace(release, trust="local")


def test_the_statement_says_who_adds_noise_and_what_a_person_with_more_records_has(table):
    population = population_of(split_even(table, clients=3, seed=0))
    for trust, words in (("silo", "each silo's own message"), ("central", "the sum of all silos' messages")):
        claim = protocol_of(trust=trust).guarantee(population)
        assert words in claim.mechanism
        assert any("several silos" in line for line in claim.assumptions)
        assert any("shows nobody" in line for line in claim.assumptions) == (trust == "central")
        assert claim.read_from_data == ()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"epsilon": 0.0}, "epsilon"), ({"delta": 1.0}, "delta"), ({"trust": "local"}, "silo, secure-sum, central"),
     ({"domain_share": 0.0}, "domain_share"), ({"domain_share": 1.0}, "domain_share"), ({"components": 0}, "components"),
     ({"members": 0}, "members"), ({"fit_steps": 0}, "fit_steps"), ({"prior_precision": -1.0}, "prior_precision"),
     ({"prior_precision": math.inf}, "prior_precision"), ({"message_megabytes": 0.0}, "message_megabytes")],
)  # fmt: skip
def test_wrong_settings_are_named(wrong, words):
    with pytest.raises(SpecError, match=words):
        protocol_of(**wrong)


def test_silos_whose_counts_would_not_fit_are_refused(small_schema):
    with pytest.raises(SpecError, match="32 bits"):
        protocol_of().plan(Population(schema=small_schema, clients=3, records=2**28))


# Engines


@pytest.fixture(scope="module")
def outcome(table):
    return simulation.run(protocol_of(), split_even(table, clients=3, seed=0), root=jax.random.key(5))


def test_two_stages_end_alike_on_every_engine(table, outcome, tmp_path):
    """One after the other, and as messages to sites."""
    protocol = protocol_of()
    assert_same(outcome.state, debug_state(protocol, split_even(table, clients=3, seed=0), jax.random.key(5))[0])
    wanted = simulation.run(protocol, split(table, records_per_client=150), root=jax.random.key(5))
    sites = make_sites(tmp_path, table, protocol, epsilon=99.0, delta=1e-3, unit="record", records=150)
    found = make_coordinator(tmp_path, table.schema, protocol, sites).go()
    assert_same(found.state, wanted.state)
    assert found.rounds == wanted.rounds == 2


def test_a_run_interrupted_between_the_stages_ends_alike(table, outcome, tmp_path, monkeypatch):
    class StopError(Exception):
        pass

    def stop(at):
        if at.done == 2:
            raise StopError

    checkpoint = Checkpoint(tmp_path / "c.npz")
    protocol, clients = protocol_of(), split_even(table, clients=3, seed=0)
    with pytest.raises(StopError):
        simulation.run(protocol, clients, root=jax.random.key(5), checkpoint=checkpoint, progress=stop)
    again = simulation.run(protocol, clients, root=jax.random.key(5), checkpoint=checkpoint)
    assert_same(again.state, outcome.state)


def test_without_a_seed_both_stages_have_noise_of_the_operating_system(table, outcome):
    other = simulation.run(
        protocol_of(), split_even(table, clients=3, seed=0), root=jax.random.key(5), exact_noise=True
    )
    assert other.noise == "exact"
    for part in ("one_way", "pairs"):
        first, second = (np.asarray(getattr(one.state.learner, part)) for one in (outcome, other))
        assert (first != second).mean() > 0.9
