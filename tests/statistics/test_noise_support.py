"""An attack on noise that cannot take all values: from one noised vector, which of two neighbours is impossible?

The attacker knows every other record. For each neighbour, one record there or its slot empty, the noise must have been what was
released less that neighbour's sum. If the noise can take some values only, such as the 2^23 of a rounded float32 normal, the
wrong neighbour soon asks for one that it cannot take, and is excluded with certainty, whatever epsilon is.
"""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from populace.engines import simulation
from populace.methods.base import Shard
from populace.methods.moments.protocol import Moments
from populace.methods.moments.sums import summed
from populace.privacy import keyed_normal
from populace.privacy.gaussian import rescaled
from populace.privacy.source import Keyed
from populace.tables.images import Images
from populace.tables.partition import split

RECORDS, TRIALS = 120, 20
SHAPE, CLASSES = (16, 16), 4
PROTOCOL = Moments(epsilon=2.0, side=8, covariance="class")


@functools.partial(jax.jit, static_argnums=(1, 2))
def float_noise(key, deviation, shape):
    """The planted break: a float32 normal, rounded."""
    return jnp.round(jax.random.normal(key, shape, jnp.float32) * deviation).astype(jnp.int32)


@functools.cache
def float_values(deviation):
    """All whole numbers that `float_noise` can take: JAX makes a float32 normal from one of 2^23 even numbers in (-1, 1)."""

    @jax.jit
    def of(words):
        even = jax.lax.bitcast_convert_type(words | np.uint32(0x3F800000), jnp.float32) - 1
        low = np.nextafter(np.float32(-1), np.float32(0))
        even = jnp.maximum(low, even * (np.float32(1) - low) + low)
        return jnp.round(np.float32(np.sqrt(2)) * jax.lax.erf_inv(even) * deviation).astype(jnp.int32)

    return np.unique(np.asarray(of(np.arange(2**23, dtype=np.uint32))))


def keyed_reach(deviation):
    """The largest noise that the tables of a keyed draw can make."""
    return sum(level.most * level.stride for level in keyed_normal.levels_of(deviation))


def float_possible(noise, deviation):
    return np.isin(noise, float_values(deviation)).all()


def keyed_possible(noise, deviation):
    return bool((np.abs(noise) <= keyed_reach(deviation)).all())


def excludes(released, right, wrong, possible):
    """Whether the attacker, by what noise can take, rules out the wrong neighbour and not the right one."""
    return bool(possible(released - right) and not possible(released - wrong))


def images(number):
    rng = np.random.default_rng(number)
    x, y = rng.integers(0, 256, (RECORDS, *SHAPE), np.uint8), rng.integers(0, CLASSES, RECORDS, np.int32)
    return split(Images(x=x, y=y, classes=CLASSES), records_per_client=RECORDS)


POPULATION = simulation.population_of(images(0))


@functools.cache
def neighbours(number):
    """One client of 120 records; the same with one record's slot empty; and the sums of both, in units of the grid."""
    clients = images(number)
    design = PROTOCOL.parts(POPULATION).learner
    records, mask = jax.tree.map(lambda leaf: leaf[0], clients.gather(np.array([0]), RECORDS))
    without = mask & (np.arange(RECORDS) != number % RECORDS)
    sums = tuple(
        np.asarray(rescaled(summed(design.features, design.layout, records, who), design.shift), np.int64)
        for who in (mask, without)
    )
    return clients, design.mechanism.deviation, sums


def successes(released_of, possible):
    """Trials of the attack that succeed. The record is there: the neighbour to exclude is the one without it."""
    found = 0
    for number in range(TRIALS):
        clients, deviation, (there, empty) = neighbours(number)
        released = np.asarray(released_of(clients, there, deviation, number), np.int64)
        found += excludes(released, there, empty, lambda noise, deviation=deviation: possible(noise, deviation))
    return found


def test_the_attack_catches_planted_float_noise():
    def planted(clients, there, deviation, number):
        return there + np.asarray(float_noise(jax.random.key(number), deviation, there.shape))

    assert successes(planted, float_possible) == TRIALS


@pytest.mark.parametrize("exact", [False, True])
def test_the_attack_excludes_nobody_from_a_message(exact):
    """Neither by what rounded floats can take, nor by what the tables can."""

    @jax.jit
    def answer(records, mask, source):
        shard = Shard(records=records, mask=mask, population=POPULATION)
        return PROTOCOL.answer((), jnp.int32(0), shard, (), source)[0]

    def message(clients, there, deviation, number):
        records, mask = jax.tree.map(lambda leaf: leaf[0], clients.gather(np.array([0]), RECORDS))
        return answer(records, mask, Keyed(jax.random.key(number), exact=exact))

    assert successes(message, float_possible) == 0
    assert successes(message, keyed_possible) == 0


@pytest.mark.parametrize("exact", [False, True])
def test_the_attack_excludes_nobody_from_a_run(exact):
    """The same through the engine, once."""
    clients, deviation, (there, empty) = neighbours(0)
    outcome = simulation.run(PROTOCOL, clients, root=jax.random.key(0), exact_noise=exact)
    assert outcome.noise == ("exact" if exact else "keyed")
    assert not np.array_equal(outcome.state.learner.total, there)
    for possible in (float_possible, keyed_possible):
        assert not excludes(outcome.state.learner.total, there, empty, lambda noise, of=possible: of(noise, deviation))


@pytest.mark.parametrize("deviation", [0.01, 0.3, 7.7, 1366.0, 4e5, 6e7])
def test_every_whole_number_within_reach_can_occur(deviation):
    """In every table every magnitude has a mass, and a table reaches over the stride of the next."""
    levels = keyed_normal.levels_of(deviation)
    for level in levels:
        assert min(keyed_normal.masses_of(level)[: level.most + 1]) > 0
    for level, above in itertools.pairwise(levels):
        assert 2 * level.most + 1 >= above.stride // level.stride
    assert keyed_reach(deviation) >= keyed_normal.REACH * deviation - 0.5
