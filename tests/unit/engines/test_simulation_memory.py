"""What clients keep at home, when it is too much for a device: it stays with the host, resumed runs included."""

import types

import jax
import numpy as np
import pytest

from builders import Diary
from populace.engines import simulation
from populace.engines.checkpoint import Checkpoint
from populace.tables.partition import split

DIARY = Diary(cohort=4, total_rounds=6)
ROOT = jax.random.key(3)


@pytest.fixture(scope="module")
def clients(small_table):
    return split(small_table.take(np.arange(10)), records_per_client=1)


@pytest.fixture(scope="module")
def undisturbed(clients):
    return simulation.run(DIARY, clients, root=ROOT, compiled=False)


class StopError(Exception):
    pass


def same(outcome, other):
    np.testing.assert_array_equal(outcome.state.total, other.state.total)
    assert int(outcome.state.heard) == int(other.state.heard)
    assert outcome.ledger.entries == other.ledger.entries
    assert outcome.traffic == other.traffic


def seen_memories(monkeypatch):
    """Whether the memory of every round lay on the host."""
    found, real = [], simulation._RoundByRound.advance

    def advance(self, state, memory, *rest):
        found.append(all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(memory)))
        return real(self, state, memory, *rest)

    monkeypatch.setattr(simulation._RoundByRound, "advance", advance)
    return found


def test_memory_on_the_host_gives_what_memory_on_the_device_gives(clients, undisturbed, monkeypatch):
    """Also where it is made in parts; and rounds are not compiled into one loop, which would take all of it."""
    monkeypatch.setattr(simulation, "MOST_MEMORY_ON_DEVICE", 0)
    monkeypatch.setattr(simulation, "CLIENTS_AT_ONCE", 3)
    found = seen_memories(monkeypatch)
    same(simulation.run(DIARY, clients, root=ROOT), undisturbed)
    assert found
    assert all(found)


def test_a_resumed_run_keeps_it_on_the_host(clients, undisturbed, monkeypatch, tmp_path):
    monkeypatch.setattr(simulation, "MOST_MEMORY_ON_DEVICE", 0)
    monkeypatch.setattr(simulation, "_next_chunk", lambda *_: 1)
    checkpoint, found = Checkpoint(tmp_path / "c.npz"), seen_memories(monkeypatch)

    def stop(at):
        if at.done == 4:
            raise StopError

    with pytest.raises(StopError):
        simulation.run(DIARY, clients, root=ROOT, checkpoint=checkpoint, progress=stop)
    same(simulation.run(DIARY, clients, root=jax.random.key(99), checkpoint=checkpoint), undisturbed)
    assert len(found) > 7
    assert all(found)


def test_memory_that_fits_stays_on_the_device(clients, undisturbed, monkeypatch):
    found = seen_memories(monkeypatch)
    same(simulation.run(DIARY, clients, root=ROOT, compiled=False), undisturbed)
    assert not any(found)


@pytest.mark.parametrize(("seconds", "wanted"), [(0.5, [0, 1, 2, 3, 4, 5, 6]), (5.0, [0, 1, 5, 6])])
def test_a_checkpoint_that_takes_long_is_written_less_often(
    clients, undisturbed, monkeypatch, tmp_path, seconds, wanted
):
    """A round takes 15 seconds: one that is written in half a second is written after every round, and the end always."""
    clock, saved, real = [0.0], [], Checkpoint.save

    def save(self, **content):
        clock[0] += seconds
        saved.append(content["rounds"])
        real(self, **content)

    def round_took(_):
        clock[0] += 15.0

    monkeypatch.setattr(simulation, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(Checkpoint, "save", save)
    monkeypatch.setattr(simulation, "_next_chunk", lambda *_: 1)
    checkpoint = Checkpoint(tmp_path / "c.npz")
    same(
        simulation.run(DIARY, clients, root=ROOT, checkpoint=checkpoint, progress=round_took, compiled=False),
        undisturbed,
    )
    assert saved == wanted
    resumed = simulation.run(DIARY, clients, root=jax.random.key(99), checkpoint=checkpoint, compiled=False)
    same(resumed, undisturbed)


class Training(Diary):
    """As if a client trained a network of its own."""

    vectorises = False


@pytest.mark.parametrize(
    ("cohort", "most", "blocks"),
    [(4, 3, 2), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((4, 64, 4), (5, 3, 3)))],
)
def test_clients_that_train_answer_in_blocks_on_an_accelerator(clients, monkeypatch, cohort, most, blocks):
    """Slopes of every record of every client at once would not fit; how many answer together changes no reply."""
    undisturbed = simulation.run(Diary(cohort=cohort, total_rounds=6), clients, root=ROOT, compiled=False)
    found, real = [], jax.lax.map

    def in_blocks(function, each, *, batch_size=None):
        found.append(batch_size)
        return real(function, each, batch_size=batch_size)

    monkeypatch.setattr(simulation.jax.lax, "map", in_blocks)
    monkeypatch.setattr(simulation.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(simulation, "MOST_TRAINING_AT_ONCE", most)
    jax.clear_caches()
    same(simulation.run(Training(cohort=cohort, total_rounds=6), clients, root=ROOT, compiled=False), undisturbed)
    assert set(found) == {blocks}


@pytest.mark.parametrize(
    ("clients", "expected"), [(500, 50), (9_343, 64), (100, 50), (6, 6), (64, 64), (1, 1), (67, 64)]
)
def test_blocks_leave_no_remainder_where_they_can(clients, expected):
    assert simulation._training_at_once(clients) == expected
