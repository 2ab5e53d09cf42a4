"""Generators: exact margins, rules, conditions, files."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from populace.errors import DataError, RunError, SpecError
from populace.methods.baselines.marginals import Marginals, project_to_simplex
from populace.methods.registry import load_generator
from populace.tables.constraints import Comparison, Forbidden
from populace.tables.schema import Column, Schema


def two_columns(**rules):
    return Schema(
        columns=(
            Column(name="a", kind="decimal", edges=(0.0, 1.0, 2.0)),
            Column(name="b", kind="decimal", edges=(0.0, 1.0, 2.0)),
        ),
        **rules,
    )


EVEN = (np.array([0.5, 0.5]), np.array([0.5, 0.5]))


def test_samples_follow_the_tables(small_schema):
    tables = tuple(np.arange(1, size + 1) / (size * (size + 1) / 2) for size in small_schema.sizes)
    codes = Marginals(schema=small_schema, tables=tables).sample_codes(100_000, jax.random.key(0), {})
    for index, table in enumerate(tables):
        found = np.bincount(codes[:, index], minlength=len(table)) / 100_000
        np.testing.assert_allclose(found, table, atol=0.01)


def test_no_row_breaks_a_rule():
    schema = two_columns(
        forbidden=(Forbidden(values=(("a", ("[0, 1)",)), ("b", ("[0, 1)",)))),),
        comparisons=(Comparison(left="a", relation="<=", right="b"),),
    )
    table = Marginals(schema=schema, tables=EVEN).sample(5_000, jax.random.key(0))
    a, b = (table.frame.column(name).to_numpy() for name in "ab")
    assert (a <= b).all()
    assert not ((a < 1) & (b < 1)).any()
    assert len(table) == 5_000


def test_impossible_rules_end_with_a_sentence(monkeypatch):
    schema = two_columns(comparisons=(Comparison(left="a", relation=">", right="b"),))
    never = Marginals(schema=schema, tables=(np.array([1.0, 0.0]), np.array([0.0, 1.0])))
    monkeypatch.setattr("populace.methods.blocks.generator.CHUNK", 512)
    with pytest.raises(DataError, match="obey the declared rules"):
        never.sample(10, jax.random.key(0))


def test_conditions_and_their_errors(small_schema):
    model = Marginals(schema=small_schema, tables=tuple(np.full(s, 1 / s) for s in small_schema.sizes))
    table = model.sample(40, jax.random.key(0), {"size": "(no value)", "sold": "true"})
    assert table.frame.column("size").null_count == 40
    with pytest.raises(DataError, match="has no value"):
        model.sample(5, jax.random.key(0), {"colour": "mauve"})
    with pytest.raises(DataError, match="in this model: its cells go from"):
        model.sample(5, jax.random.key(0), {"weight": "77"})
    with pytest.raises(SpecError, match="rows"):
        model.sample(0, jax.random.key(0))


def test_damaged_generators_are_refused(tmp_path, small_schema):
    Marginals(schema=small_schema, tables=tuple(np.full(s, 1 / s) for s in small_schema.sizes)).save(tmp_path)
    (tmp_path / "generator.npz").write_bytes(b"no")
    with pytest.raises(RunError, match=r"cannot read .*generator\.npz"):
        load_generator(tmp_path)
    document = json.loads((tmp_path / "generator.json").read_text())
    (tmp_path / "generator.json").write_text(json.dumps({**document, "kind": "oracle"}))
    with pytest.raises(RunError, match="unknown kind"):
        load_generator(tmp_path)


def test_every_kind_is_found_among_the_methods_by_a_program_that_imported_none(tmp_path):
    """No list of generators is kept: the kinds that version 0.2.0 wrote are found, and none twice."""
    kinds = [
        "marginals", "clique-tree", "records", "gaussian-copula", "latent-class", "decoder", "image-classes", "conv-decoder",
        "image-gaussians", "row-gaussians", "vae-images", "classifier-images",
    ]  # fmt: skip
    program = (
        "import sys; from populace.methods.registry import generator_class; "
        "print(all(generator_class(kind).kind == kind for kind in sys.argv[1:]), generator_class('oracle'))"
    )
    found = subprocess.run([sys.executable, "-c", program, *kinds], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "None"]


def test_two_generators_of_one_kind_are_refused():
    with pytest.raises(TypeError, match="'marginals'"):
        type("Other", (Marginals,), {"kind": "marginals"})


def test_a_table_that_is_no_distribution_is_refused(small_schema):
    with pytest.raises(DataError, match="not a distribution"):
        Marginals(schema=small_schema, tables=tuple(np.full(s, 0.7) for s in small_schema.sizes))


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=12))
def test_projection_is_the_nearest_distribution(values):
    estimate = np.array(values)
    found = project_to_simplex(estimate)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1)
    rng = np.random.default_rng(0)
    for other in rng.dirichlet(np.ones(len(values)), 30):
        assert np.sum((found - estimate) ** 2) <= np.sum((other - estimate) ** 2) + 1e-9
