"""Exact draws in all kinds of programs: anew at each execution, once for each key, never merged, moved, repeated or stuck."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from populace.privacy import on_host, secure_random
from populace.privacy.gaussian import GaussianSum, count_sum
from populace.privacy.source import Keyed, System

SIZE = 6
MECHANISM = GaussianSum(bound=1.0, noise_multiplier=1.0, size=SIZE)  # deviation some 1,000: equal draws are unlikely
KEY = jax.random.key(0)
KEYS = jax.random.split(KEY, 4)


def noise(key):
    return MECHANISM.noise(Keyed(key, exact=True))


def all_different(found):
    """No row is another's, as they would be if calls were merged or moved out of a loop."""
    rows = np.asarray(found).reshape(-1, SIZE)
    return len({tuple(row) for row in rows}) == len(rows)


@pytest.fixture
def drawn(monkeypatch):
    """Shapes asked of the operating system's sampler, which draws as ever."""
    shapes, sampler = [], secure_random.rounded_normal

    def counting(deviation, shape=()):
        shapes.append(shape)
        return sampler(deviation, shape)

    monkeypatch.setattr(secure_random, "rounded_normal", counting)
    return shapes


PROGRAMS = {
    "eager": lambda: noise(KEY)[None],
    "jit": lambda: jax.jit(noise)(KEY)[None],
    "vmap": lambda: jax.jit(jax.vmap(noise))(KEYS),
    "vmap twice": lambda: jax.vmap(jax.vmap(noise))(KEYS.reshape(2, 2)).reshape(4, SIZE),
    "map": lambda: jax.jit(lambda keys: jax.lax.map(noise, keys))(KEYS),
    "map in batches": lambda: jax.jit(lambda keys: jax.lax.map(noise, keys, batch_size=3))(KEYS),
    "scan": lambda: jax.jit(lambda keys: jax.lax.scan(lambda carry, key: (carry, noise(key)), 0, keys)[1])(KEYS),
    "scan with one key": lambda: jax.jit(
        lambda key: jax.lax.scan(lambda carry, _: (carry, noise(key)), 0, jnp.arange(4))[1]
    )(KEY),
    "vmap of scan": lambda: jax.jit(
        jax.vmap(lambda key: jax.lax.scan(lambda carry, one: (carry, noise(one)), 0, jax.random.split(key, 3))[1])
    )(KEYS).reshape(12, SIZE),
    "twice the same key": lambda: jax.jit(lambda key: jnp.stack([noise(key), noise(key)]))(KEY),
    "fori_loop": lambda: jax.jit(
        lambda key: jax.lax.fori_loop(
            0, 4, lambda i, all_: all_.at[i].set(noise(jax.random.fold_in(key, i))), jnp.zeros((4, SIZE), jnp.int32)
        )
    )(KEY),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_execution_draws_each_row_once_and_anew(name, drawn):
    on_host._drawer.cache_clear()
    first, second = PROGRAMS[name](), PROGRAMS[name]()
    assert first.dtype == jnp.int32
    assert all_different(np.concatenate([first, second]))
    assert sum(int(np.prod(shape)) for shape in drawn) == first.size + second.size


def test_a_compiled_function_draws_anew_each_time_it_is_called():
    compiled = jax.jit(noise)
    assert all_different([compiled(KEY) for _ in range(20)])


def test_uncompiled_and_shapes_alone(drawn):
    on_host._drawer.cache_clear()
    assert jax.eval_shape(noise, KEY).shape == (SIZE,)
    assert drawn == []
    with jax.disable_jit():
        assert all_different([noise(KEY), noise(KEY), *jax.vmap(noise)(KEYS)])
    assert jax.jit(lambda key: count_sum(10.0).apply(jnp.float32(3.5), Keyed(key, exact=True)))(KEY).shape == ()


def test_what_is_mapped_without_its_key_shares_its_draws():
    found = np.asarray(jax.jit(jax.vmap(lambda x: x + 0 * x + noise(KEY)))(jnp.zeros(3, jnp.int32)))
    assert (found == found[0]).all()


def test_one_draw_used_twice_is_the_same_draw():
    """A release that fed two computations with different noise would be two releases."""

    def both(key):
        release = noise(key)
        return release, jnp.sin(release.astype(jnp.float32)), release * 2

    one, wave, two = jax.jit(both)(KEY)
    assert np.array_equal(2 * one, two)
    assert np.asarray(wave) == pytest.approx(np.sin(np.asarray(one, np.float32)), abs=1e-5)


def test_a_program_that_would_repeat_the_draw_is_refused():
    def loss(x, key):
        return jnp.sum(x * jax.checkpoint(lambda y: y * noise(key))(x))

    with pytest.raises(NotImplementedError, match=r"[Ee]ffects"):
        jax.grad(loss)(jnp.ones(SIZE), KEY)


def test_the_flag_is_kept_by_split_and_concerns_what_protects_alone():
    for source in Keyed(KEY, exact=True).split(3):
        assert source.exact
        assert not np.array_equal(MECHANISM.noise(source), MECHANISM.noise(source))
        assert not np.array_equal(source.coins(0.5, 100), source.coins(0.5, 100))
        assert np.array_equal(source.normal(5), source.normal(5))
    plain = Keyed(KEY).split(2)[0]
    assert not plain.exact
    assert np.array_equal(MECHANISM.noise(plain), MECHANISM.noise(plain))
    assert np.array_equal(plain.coins(0.5, 100), plain.coins(0.5, 100))


ONE_PROCESSOR = """
import os
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
import jax, jax.numpy as jnp
from populace.privacy.source import Keyed
places = jnp.arange(300_000)
chosen = jax.jit(lambda key, mask: Keyed(key, exact=True).one_of(mask * 2 > 1))
assert all(int(chosen(jax.random.key(0), places % 3 == 1)) % 3 == 1 for _ in range(20))
"""


def test_large_arguments_reach_the_host_on_one_processor():
    """JAX copies arguments above 100 KiB in the background; a callback on the only thread would wait for that for ever."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("processors cannot be chosen on this system")
    subprocess.run([sys.executable, "-c", ONE_PROCESSOR], check=True, timeout=300)


@pytest.mark.parametrize("shape", [(0,), (5,), (300_000,), (7, 5_000, 3)])
def test_what_is_given_arrives_whole_from_pieces_of_limited_size(shape):
    array = jnp.arange(np.prod(shape, dtype=int), dtype=jnp.float32).reshape(shape)
    pieces = on_host._in_pieces(array)
    assert all(piece.nbytes <= on_host.MOST_BYTES < 100 * 1024 for piece in pieces.pieces)
    assert np.array_equal(pieces.whole(), array)


def test_a_source_passes_into_compiled_functions_with_its_flag():
    compiled = jax.jit(lambda source: MECHANISM.noise(source.split(2)[1]))
    exact, keyed = Keyed(KEY, exact=True), Keyed(KEY)
    assert not np.array_equal(compiled(exact), compiled(exact))
    assert np.array_equal(compiled(keyed), compiled(keyed))


def test_mapped_draws_are_independent_streams_of_the_law():
    rows, mechanism = 50, GaussianSum(bound=1.0, noise_multiplier=1.0, size=4_000)
    keys = jax.random.split(KEY, rows)
    found = np.asarray(jax.jit(jax.vmap(lambda key: mechanism.noise(Keyed(key, exact=True))))(keys))
    scaled = found / mechanism.deviation
    assert stats.kstest(scaled.reshape(-1), "norm").pvalue > 1e-6
    assert stats.kstest(1.1 * scaled.reshape(-1), "norm").pvalue < 1e-6
    together = np.corrcoef(scaled) - np.eye(rows)
    assert np.abs(together).max() < 6 / np.sqrt(mechanism.size)
    planted = np.corrcoef(np.r_[scaled, scaled[:1]])
    assert planted[0, -1] > 0.99
    assert isinstance(mechanism.noise(System()), np.ndarray)
