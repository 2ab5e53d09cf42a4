"""The model of `census`: what it recovers, what it never makes, and how far off it says it is."""

import dataclasses

import jax
import numpy as np
import pytest

from populace.engines import simulation
from populace.methods.census.fit import Observed, Settings, fit_members, fit_mixture
from populace.methods.census.protocol import Census
from populace.methods.census.tables import PairTables
from populace.tables.constraints import Forbidden
from populace.tables.partition import split_even
from populace.tables.schema import Column, Schema
from populace.tables.table import from_codes

MODEST = {"components": 6, "members": 2, "fit_steps": 200}


def listed(name, size):
    return Column(name=name, kind="categorical", categories=tuple(f"{name}{number}" for number in range(size)))


def schema_of(*sizes, target=None):
    names = [f"c{number}" for number in range(len(sizes))]
    columns = tuple(listed(name, size) for name, size in zip(names, sizes, strict=True))
    return Schema(columns=columns, target=None if target is None else names[target])


def planted(schema, rows, seed=0, kinds=3):
    """Rows of a mixture of a few products."""
    rng = np.random.default_rng(7)
    laws = [[rng.dirichlet(np.full(size, 0.7)) for size in schema.sizes] for _ in range(kinds)]
    rng = np.random.default_rng(seed)
    kind = rng.choice(kinds, rows, p=np.arange(1, kinds + 1) / sum(range(1, kinds + 1)))
    codes = np.empty((rows, len(schema.sizes)), np.int32)
    for number, law in enumerate(laws):
        here = np.flatnonzero(kind == number)
        for column, p in enumerate(law):
            codes[here, column] = rng.choice(len(p), len(here), p=p)
    return from_codes(codes, schema, rng)


def fitted(table, *, epsilon=50.0, seed=0, silos=3, **settings):
    protocol = Census(**{"epsilon": epsilon, "delta": 1e-6, "trust": "central", **MODEST, **settings})
    return simulation.run(protocol, split_even(table, clients=silos, seed=0), root=jax.random.key(seed)).generator


def shares(codes, sizes, columns):
    places = np.ravel_multi_index([codes[:, column] for column in columns], [sizes[column] for column in columns])
    counts = np.bincount(places, minlength=int(np.prod([sizes[column] for column in columns])))
    return counts.reshape([sizes[column] for column in columns]) / len(codes)


def distance(first, second):
    return float(np.abs(first - second).sum() / 2)


@pytest.mark.parametrize("target", [3, None])
def test_a_planted_mixture_is_recovered_where_there_is_little_noise(target):
    """Pairs, which are measured, and four columns together, which are not; independent columns are far off."""
    table = planted(schema_of(4, 3, 5, 2, target=target), 20_000)
    sizes, model = table.schema.sizes, fitted(table)
    for columns, most in (((0, 1), 0.02), ((1, 3), 0.02), ((0, 1, 2, 3), 0.08)):
        real = shares(table.codes, sizes, columns)
        assert distance(model.marginal(columns), real) < most
    whole = shares(table.codes, sizes, (0, 1, 2, 3))
    alone = np.einsum("a,b,c,d->abcd", *(shares(table.codes, sizes, (column,)) for column in range(4)))
    assert distance(alone, whole) > 0.15
    made = model.sample(20_000, jax.random.key(1))
    assert distance(shares(made.codes, sizes, (0, 2)), shares(table.codes, sizes, (0, 2))) < 0.03


@pytest.mark.parametrize(
    ("sizes", "target"),
    [((5,), None), ((5,), 0), ((4, 3), None), ((4, 3), 1), ((2, 3, 12), 2), ((1, 4, 2), 2)],
    ids=["one", "one, the target", "two", "two with a target", "a target of many values", "a column of one value"],
)
def test_tables_of_any_width(sizes, target):
    """Also where the target has too many values to stand in every table, and without any."""
    table = planted(schema_of(*sizes, target=target), 4_000)
    model = fitted(table)
    for columns in [(column,) for column in range(len(sizes))] + ([(0, 1)] if len(sizes) > 1 else []):
        assert distance(model.marginal(columns), shares(table.codes, table.schema.sizes, columns)) < 0.05
    assert len(model.sample(10, jax.random.key(0))) == 10


def test_no_target_is_asked_for_although_the_schema_has_one():
    table = planted(schema_of(4, 3, 2, target=2), 4_000)
    model = fitted(table, target=None)
    assert distance(model.marginal((0, 2)), shares(table.codes, table.schema.sizes, (0, 2))) < 0.05


def test_structural_zeros_never_appear_and_conditions_hold():
    schema = schema_of(4, 3, 5, 2, target=3)
    zero = Forbidden(values=(("c0", ("c00", "c01")), ("c1", ("c12",))))
    drawn = planted(schema, 4_000).codes
    keep = ~(np.isin(drawn[:, 0], (0, 1)) & (drawn[:, 1] == 2))
    schema = dataclasses.replace(schema, forbidden=(zero,))
    table = from_codes(drawn[keep], schema, np.random.default_rng(0))
    model = fitted(table, epsilon=1.0)
    made = model.sample(20_000, jax.random.key(1))
    assert not zero.broken_by(made.codes, schema.columns).any()
    given = model.sample(2_000, jax.random.key(2), {"c1": "c12", "c3": "c30"})
    assert (given.codes[:, [1, 3]] == [2, 0]).all()
    assert not np.isin(given.codes[:, 0], (0, 1)).any()
    wanted = model.conditional((2,), {1: 2, 3: 0, 0: 3})
    asked = model.sample(20_000, jax.random.key(3), {"c0": "c03", "c1": "c12", "c3": "c30"})
    assert distance(shares(asked.codes, schema.sizes, (2,)), wanted) < 0.02


def test_more_noise_is_a_larger_distance():
    table = planted(schema_of(4, 3, 5, 2, target=3), 3_000)
    real = shares(table.codes, table.schema.sizes, (0, 2))
    little, much = (distance(fitted(table, epsilon=epsilon).marginal((0, 2)), real) for epsilon in (50.0, 0.1))
    assert little < 0.03 < much


@pytest.mark.xfail(strict=True, reason="stated errors are too small: two of them cover about 76 %, not 95 %")
def test_standard_errors_are_about_as_large_as_the_errors():
    """Over runs with other noise: two standard errors cover the rows' own shares about as often as they say."""
    table = planted(schema_of(3, 3, 2, target=2), 4_000)
    real = shares(table.codes, table.schema.sizes, (0, 1))
    inside, ratios = [], []
    for seed in range(12):
        model = fitted(table, epsilon=1.0, seed=seed, members=6, fit_steps=150)
        stated = model.deviations((0, 1))
        error = np.abs(model.marginal((0, 1)) - real)
        inside.append((error < 2 * stated).mean())
        ratios.append(np.sqrt((error**2).mean() / (stated**2).mean()))
    assert np.mean(inside) > 0.8
    assert 0.5 < np.mean(ratios) < 1.6


def test_other_noise_needs_no_other_program():
    """How strongly components are pulled follows from the noise, and is an argument of the compiled fit."""
    tables = PairTables((3, 4, 2))
    settings = Settings(components=3, members=2, steps=5, pull=0.0)
    shares = np.concatenate([np.full(size, 1 / size) for size in tables.table_sizes])[None]
    none = np.zeros((1, tables.positions)), np.full(tables.positions, np.inf)
    found = []
    for deviation in (0.002, 0.004):  # between the least and the strongest pull
        observed = Observed(shares + 0.1 * np.sin(np.arange(shares.size)), np.full(tables.entries, deviation), *none)
        found.append(fit_mixture(tables, observed, settings, jax.random.key(0)))
        if len(found) == 1:
            compiled = fit_members._cache_size()
    assert fit_members._cache_size() == compiled
    assert not np.allclose(found[0].tables, found[1].tables)
