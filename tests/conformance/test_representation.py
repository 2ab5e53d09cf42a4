"""How a table is written does not matter: the words of two-valued columns, and the order in which categories are listed."""

import dataclasses

import jax
import numpy as np
import pyarrow as pa
import pytest

from builders import mark_slow, small_protocol, small_settings, table_methods
from populace.engines import simulation
from populace.evaluation.marginals import mean_over_pairs, two_way_distances
from populace.methods.baselines.independent import Independent
from populace.methods.baselines.marginals import Marginals
from populace.methods.registry import make_protocol
from populace.tables.partition import split
from populace.tables.schema import Column, Schema
from populace.tables.table import from_codes, make_table, read_table, write_frame

# ---------------------------------------------------------------------------------- the same rows after relabelling

EPSILON = 4.0
WRITINGS = {"0 and 1": ("0", "1"), "false and true": ("false", "true"), "no and yes": ("no", "yes"),
            "two words": ("absent", "present")}  # fmt: skip
TABLES = table_methods()
TWO_VALUED = ("asthma", "smoker", "alive")
TRAINED = tuple(name for name in TABLES if name.endswith(("vae", "wae", "gan")) or name == "chain")  # networks
ALIKE = ("calm", "krr", "lopub")  # they look at values as samprivsyn does, through the same reports


class SmoothsNumbers(Independent):
    """Planted: columns stored as numbers are taken for scales, and their neighbouring codes for alike."""

    def smooths(self, column):
        return column.dtype == "integer"

    def finish(self, state, population, key):
        found = super().finish(state, population, key)
        tables = [
            smoothed(table) if self.smooths(column) else table
            for table, column in zip(found.tables, found.schema.columns, strict=True)
        ]
        return Marginals(schema=found.schema, tables=tuple(tables))


class SmoothsLists(SmoothsNumbers):
    """Planted: all lists are taken for scales."""

    def smooths(self, column):
        return True


def smoothed(table):
    padded = np.pad(np.asarray(table), 1, mode="edge")
    made = padded[:-2] / 4 + padded[1:-1] / 2 + padded[2:] / 4
    return made / made.sum()


def made(name):
    if isinstance(name, type):
        return name(epsilon=EPSILON)
    return small_protocol(name, EPSILON)


def written(codes, words, folder):
    """The table as a CSV with these words in its two-valued columns, read under the schema that is proposed for it."""
    listed = (*words, None)
    columns = {name: [listed[code] for code in codes[:, place]] for place, name in enumerate(TWO_VALUED)}
    columns["ward"] = [f"ward {code}" for code in codes[:, 3]]
    columns["visits"] = codes[:, 4].tolist()
    path = folder / f"{words[0]}.csv"
    write_frame(pa.table(columns), path)
    return read_table(path)


def two_valued_codes(rows):
    """Three columns of two values (the second with gaps, code 2), three wards and a count; every value occurs."""
    rng = np.random.default_rng(2)
    first = np.arange(rows) % 2
    second = np.where(rng.random(rows) < 0.7, first, 2)
    last = [rng.permutation(np.arange(rows) % size) for size in (2, 3, 5)]
    return np.stack([first, second, *last], axis=1)


def drawn(name, table):
    outcome = simulation.run(made(name), split(table, records_per_client=2), root=jax.random.key(5))
    return outcome.generator.sample(200, jax.random.key(6))


def relabelled(table, words):
    """Rows as text, with the two-valued columns as 0 and 1."""
    number = {word: str(place) for place, word in enumerate(words)}
    frame = table.frame.to_pydict()
    for name in TWO_VALUED:
        frame[name] = [
            None if value is None else number[str(value).lower() if isinstance(value, bool) else str(value)]
            for value in frame[name]
        ]
    return frame


def rows_of_every_writing(name, folder):
    codes = two_valued_codes(10 if name in TRAINED else 60)
    tables = {how: written(codes, words, folder) for how, words in WRITINGS.items()}
    for table in tables.values():
        assert table.schema.sizes == (2, 3, 2, 3, 5)
    return [relabelled(drawn(name, table), WRITINGS[how]) for how, table in tables.items()]


@pytest.mark.parametrize("name", mark_slow(TABLES, (*TRAINED, *ALIKE)))
def test_the_words_of_two_valued_columns_do_not_matter(name, tmp_path):
    """Through a CSV and the proposed schema: the same seeded run gives the same rows, exactly."""
    first, *others = rows_of_every_writing(name, tmp_path)
    for found in others:
        assert found == first


def test_a_method_that_looks_at_how_values_are_stored_is_found_out(tmp_path):
    first, *others = rows_of_every_writing(SmoothsNumbers, tmp_path)
    assert all(found != first for found in others)


# ------------------------------------------------------------------------ the same quality in another order of categories

CATEGORIES = 8
STRIDE = 3  # every third category is listed next: no two neighbours stay neighbours
RANKED = ("locop",)  # a copula ties columns by rank; its page says so
SEEDS = 5


def smooth_table(rows):
    """Lists whose frequencies rise and fall along the order they are listed in, each column near the one before."""
    rng = np.random.default_rng(4)
    last = CATEGORIES - 1
    columns = [np.clip(np.round(rng.normal(0.4, 0.15, rows) * last), 0, last)]
    for _ in range(2):
        columns.append(np.clip(columns[-1] + rng.choice([-1, 0, 1], rows, p=[0.2, 0.6, 0.2]), 0, last))
    listed = tuple(f"c{place}" for place in range(CATEGORIES))
    schema = Schema(columns=tuple(Column(name=name, kind="categorical", categories=listed) for name in "abc"))
    return from_codes(np.stack(columns, axis=1).astype(np.int32), schema, rng)


def reordered(table):
    """The same rows under a schema that lists the categories in another order."""
    columns = [
        dataclasses.replace(
            column,
            categories=tuple(column.categories[STRIDE * place % column.levels] for place in range(column.levels)),
        )
        for column in table.schema.columns
    ]
    return make_table(table.frame, dataclasses.replace(table.schema, columns=tuple(columns)))


def errors(protocol, table):
    """Mean one-way and two-way distance to the real rows, one line per seed."""
    found = []
    for seed in range(SEEDS):
        outcome = simulation.run(protocol, split(table), root=jax.random.key(seed))
        matrix = two_way_distances(table, outcome.generator.sample(10_000, jax.random.key(seed)))
        found.append((float(np.diag(matrix).mean()), mean_over_pairs(matrix)))
    return np.array(found)


def gap(protocol, rows):
    """How far the two orders lie apart, in standard errors of the difference; one-way and two-way."""
    table = smooth_table(rows)
    listed, shuffled = errors(protocol, table), errors(protocol, reordered(table))
    spread = np.sqrt((listed.var(axis=0, ddof=1) + shuffled.var(axis=0, ddof=1)) / SEEDS)
    return np.abs(listed.mean(axis=0) - shuffled.mean(axis=0)) / np.maximum(spread, 1e-3)


#: Settings under which a method learns something in little time; the others keep the small ones, in fewer batches.
LEARNING = {
    **{name: {} for name in ("independent", "samprivsyn", "calm", "krr", "lopub")},
    "poll": {"latent_classes": 4, "prior_scale": 1.0, "chains": 1, "langevin_steps": 24},
    "moments": {"trust": "central"},
    "central-vae": {"training_steps": 400, "hidden_size": 16, "latent_size": 4},
}
LIMIT = 5.0  # standard errors; a planted break lies at thirty


def ordered(name):
    return make_protocol(name, {"epsilon": EPSILON, **LEARNING.get(name, small_settings(name))})


@pytest.mark.parametrize(
    "name",
    mark_slow([n for n in TABLES if n not in RANKED], {*TRAINED, *ALIKE, "poll"} - {*RANKED}),
)
def test_the_order_in_which_categories_are_listed_does_not_matter(name):
    """Distances to the real rows over a few seeds, within noise."""
    assert gap(ordered(name), 1_500 if name in LEARNING else 40).max() < LIMIT


def test_a_method_that_smooths_along_a_list_is_found_out():
    assert gap(SmoothsLists(epsilon=EPSILON), 1_500).min() > 2 * LIMIT
    assert gap(Independent(epsilon=EPSILON), 1_500).max() < LIMIT / 2
