"""Exact draws inside compiled code: made on the host, anew each time, by the law of the deployed sampler."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from populace.privacy.gaussian import GaussianSum
from populace.privacy.randomizers.fedsel import FedSel
from populace.privacy.randomizers.grr import Grr, GrrPanel
from populace.privacy.randomizers.hadamard import Hadamard
from populace.privacy.randomizers.hashing import Olh
from populace.privacy.randomizers.rappor import Rappor
from populace.privacy.randomizers.several_signds import SeveralSignDS
from populace.privacy.randomizers.signds import SignDS
from populace.privacy.randomizers.subset import SubsetPanel
from populace.privacy.randomizers.unary import Oue
from populace.privacy.source import Keyed

KEYS = jax.random.split(jax.random.key(7), 6_000)


VECTOR = jnp.linspace(-1.0, 1.0, 40)
PRIMITIVES = {
    "noise": lambda source: GaussianSum(bound=1.0, noise_multiplier=1.0, size=8).noise(source),
    "coins": lambda source: source.coins(0.5, (64,)),
    "one of": lambda source: source.one_of(jnp.ones(1_000, bool)),
    "below": lambda source: source.below(1_000_000),
    "subset panel": lambda source: SubsetPanel(sizes=(30, 40), epsilon=0.5).apply(3, 1, source),
    "randomised response": lambda source: GrrPanel(sizes=(50,) * 4, epsilon=0.1).apply(
        jnp.arange(4), jnp.zeros(4, jnp.int32), source
    ),
    "hadamard": lambda source: Hadamard(size=200, epsilon=0.5).apply(jnp.int32(3), source),
    "signds": lambda source: SignDS(size=40, chosen=20, epsilon=0.5).apply(VECTOR, source),
    "several signds": lambda source: SeveralSignDS(size=40, chosen=20, reported=3, epsilon=0.5).apply(VECTOR, source),
    "fedsel": lambda source: FedSel(size=40, chosen=20, epsilon=0.5, bound=1.0).apply(VECTOR, source),
    "rappor": lambda source: Rappor(size=20, epsilon=0.5).apply(jnp.int32(3), source),
    "local hashing": lambda source: Olh(size=20, epsilon=0.5).apply(jnp.int32(3), source),
    "unary": lambda source: Oue(size=40, epsilon=0.5).apply(jnp.int32(3), source),
}  # everything that protects somebody


def exact(key: jax.Array) -> Keyed:
    return Keyed(key, exact=True)


def test_reports_follow_the_exact_law_and_another_epsilon_is_rejected() -> None:
    panel = SubsetPanel(sizes=(4, 7), epsilon=1.5)
    asked = jax.jit(jax.vmap(lambda value, question, key: panel.apply(value, question, exact(key))))
    reports = np.asarray(asked(jnp.full(6_000, 2), jnp.arange(6_000) % 2, KEYS))
    for question, member in enumerate(panel.members):
        mine = reports[question::2]
        own, p = int(mine[:, 2].sum()), float(member.exact_p)
        assert chisquare([own, 3_000 - own], [3_000 * p, 3_000 * (1 - p)]).pvalue > 1e-6
        wrong = float(SubsetPanel(sizes=(member.size,), epsilon=1.8).members[0].exact_p)
        assert chisquare([own, 3_000 - own], [3_000 * wrong, 3_000 * (1 - wrong)]).pvalue < 1e-3
        assert (mine.sum(axis=1) == member.chosen).all()
        assert not mine[:, member.size :].any()


def test_every_execution_draws_anew_whatever_the_key() -> None:
    """A keyed draw repeats itself; an exact one does not, in or out of compiled code."""
    wide = GaussianSum(bound=1.0, noise_multiplier=1.0, size=64)
    for source, same in ((Keyed, True), (exact, False)):
        noise = jax.jit(lambda key, source=source: wide.noise(source(key)))
        assert (np.array_equal(noise(KEYS[0]), noise(KEYS[0]))) == same
        assert not np.array_equal(noise(KEYS[0]), noise(KEYS[1]))


def test_under_vmap_each_key_has_a_draw_of_its_own_and_given_values_are_their_rows() -> None:
    panel = GrrPanel(sizes=(5, 3), epsilon=20.0)  # next to no noise: what is told is what was given
    values = jnp.stack([jnp.arange(40) % 5, jnp.arange(40) % 3], axis=1)
    told = jax.jit(jax.vmap(lambda row, key: panel.apply(row, jnp.arange(2), exact(key))))(values, KEYS[:40])
    assert np.array_equal(told, values)
    nested = jax.vmap(jax.vmap(lambda row, key: panel.apply(row, jnp.arange(2), exact(key))))
    assert np.array_equal(nested(values.reshape(4, 10, 2), KEYS[:40].reshape(4, 10)), values.reshape(4, 10, 2))
    noise = jax.vmap(lambda key: GaussianSum(bound=1.0, noise_multiplier=9.0, size=8).noise(exact(key)))(KEYS[:50])
    assert len(np.unique(np.asarray(noise), axis=0)) == 50


@pytest.mark.parametrize("oracle", [Grr(size=6, epsilon=1.0), Hadamard(size=6, epsilon=1.0)], ids=["grr", "hadamard"])
def test_any_randomiser_reports_from_the_host_in_the_form_it_simulates(oracle: Grr) -> None:
    like = jax.eval_shape(lambda key: oracle.apply(jnp.int32(3), Keyed(key)), KEYS[0])
    found = jax.jit(lambda key: oracle.apply(jnp.int32(3), exact(key)))(KEYS[0])
    assert (found.shape, found.dtype) == (like.shape, like.dtype)
    debugged = oracle.apply(jnp.int32(3), exact(KEYS[0]))
    assert debugged.shape == like.shape


def test_coins_choices_and_numbers_come_from_the_host_too() -> None:
    coins = jax.jit(jax.vmap(lambda key: exact(key).coins(0.25, (5,))))(KEYS)
    assert np.asarray(coins).mean() == pytest.approx(0.25, abs=0.02)
    traced = jax.jit(jax.vmap(lambda share, key: exact(key).coins(share, (5,))))(jnp.full(200, 1.0), KEYS[:200])
    assert np.asarray(traced).all()
    mask = jnp.array([False, True, False, True])
    chosen = np.asarray(jax.jit(jax.vmap(lambda key: exact(key).one_of(mask)))(KEYS))
    assert set(chosen) == {1, 3}
    assert (chosen == 1).mean() == pytest.approx(0.5, abs=0.05)
    assert int(exact(KEYS[0]).one_of(jnp.zeros(4, bool))) == 0
    numbers = np.asarray(jax.jit(jax.vmap(lambda key: exact(key).below(3)))(KEYS))
    assert chisquare(np.bincount(numbers, minlength=3)).pvalue > 1e-6


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "one by one"])
@pytest.mark.parametrize("name", PRIMITIVES)
def test_no_primitive_draws_from_the_key(name: str, compiled: bool) -> None:
    """The same key again and again: a keyed source repeats itself, an exact one does not, for whatever it draws."""
    draw = PRIMITIVES[name]
    for source, repeats in ((Keyed, True), (exact, False)):
        once = (
            jax.jit(lambda key, source=source: draw(source(key)))
            if compiled
            else lambda key, source=source: draw(source(key))
        )
        found = [np.asarray(once(KEYS[3])).tobytes() for _ in range(12)]
        assert (len(set(found)) == 1) == repeats


def told(mechanism: object, vector: jax.Array) -> np.ndarray:
    return np.asarray(jax.jit(jax.vmap(lambda key: mechanism.apply(vector, exact(key))))(KEYS))  # type: ignore[attr-defined]


def test_reports_about_vectors_follow_their_exact_laws() -> None:
    vector = jnp.array([0.9, -0.4, 0.1, 0.7, -0.8])
    one = SignDS(size=5, chosen=2, epsilon=1.0)
    reports = told(one, vector)
    positive = reports[reports % 2 == 1] // 2
    law = [float(share) for share in one.probabilities(np.array([True, False, False, True, False]))]
    assert chisquare(np.bincount(positive, minlength=5), np.array(law) * len(positive)).pvalue > 1e-6
    wrong = SignDS(size=5, chosen=2, epsilon=1.4).probabilities(np.array([True, False, False, True, False]))
    assert chisquare(np.bincount(positive, minlength=5), np.array(wrong, float) * len(positive)).pvalue < 1e-3
    assert (reports % 2).mean() == pytest.approx(0.5, abs=0.03)

    selected = FedSel(size=5, chosen=2, epsilon=2.0, bound=1.0)
    shares = np.array(selected.probabilities(np.asarray(vector)), float)
    assert chisquare(np.bincount(told(selected, vector), minlength=10), shares * len(KEYS)).pvalue > 1e-6

    several = SeveralSignDS(size=5, chosen=2, reported=2, epsilon=1.0)
    pairs = told(several, vector)
    up = pairs[pairs[:, 0] % 2 == 1] // 2
    law_of_sets = several.law(np.array([True, False, False, True, False]))
    counts = [int((up == subset).all(axis=1).sum()) for subset in law_of_sets]
    assert sum(counts) == len(up)
    assert chisquare(counts, np.array([float(p) for p in law_of_sets.values()]) * len(up)).pvalue > 1e-6


def test_in_loops_every_turn_draws() -> None:
    wide = GaussianSum(bound=1.0, noise_multiplier=5.0, size=16)

    def turn(total: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        noise = wide.noise(exact(key))
        return total + noise, noise

    total, each = jax.jit(lambda keys: jax.lax.scan(turn, jnp.zeros(16, jnp.int32), keys))(KEYS[:20])
    assert len(np.unique(np.asarray(each), axis=0)) == 20
    assert np.array_equal(total, np.asarray(each).sum(axis=0))
    same = jax.jit(
        lambda key: jax.lax.fori_loop(0, 2, lambda _, t: t + wide.noise(exact(key)), jnp.zeros(16, jnp.int32))
    )
    assert not np.array_equal(np.asarray(same(KEYS[0])) % 2, np.zeros(16))  # not one draw counted twice
