"""A long list of codes: `schema` says what becomes of it undeclared, and a run that lost it warns beside what to do next."""

import numpy as np
import pandas as pd
import pytest

from populace.cli.main import call
from populace.runs.unlisted import unlisted_in_words
from populace.tables.schema import Column, Schema
from populace.tables.table import make_table

LIGHT = ["--set", "components=3", "--set", "members=2", "--set", "fit_steps=10", "--rows", "200", "--seed", "1"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("codes") / "ward.csv"
    codes = [f"C{code:03d}" for code in np.where(rng.random(3000) < 0.3, 0, rng.integers(1, 300, 3000))]
    pd.DataFrame({"code": codes, "sex": rng.choice(["f", "m"], 3000)}).to_csv(path, index=False)
    return path


def test_schema_says_what_becomes_of_a_long_list(file, tmp_path, capsys):
    assert call(["schema", str(file), "-o", str(tmp_path / "ward.toml")]) == 0
    said = capsys.readouterr().out
    assert "code: a list of 299 values in 3,000 rows" in said
    assert "most of them become '(other)'" in said
    assert "sex: a list" not in said
    assert call(["schema", "-o", str(tmp_path / "public.toml"), "--public", str(file)]) == 0
    assert "a list of" not in capsys.readouterr().out


def test_a_run_that_lost_a_list_warns_beside_what_to_do_next(file, tmp_path, capsys):
    assert call(["synthesize", str(file), "--epsilon", "1", "--no-ledger", "--out", str(tmp_path / "run"), *LIGHT]) == 0
    lines = [line for stream in capsys.readouterr() for line in stream.splitlines()]
    (warning,) = [line for line in lines if line.startswith("warning: ")]
    assert "% of code ((other))" in warning
    assert "sex" not in warning
    assert "costs no privacy" in warning
    assert lines[lines.index(warning) + 1].startswith("next: ")
    (moved,) = [line for line in lines if line.startswith("code: ")]
    assert "are on none of its lists and count as '(other)'" in moved


def test_a_declared_list_and_a_small_rest_raise_no_warning():
    column = Column(name="code", kind="categorical", categories=("a", "(other)"), other="(other)", domain="released")
    schema = Schema(columns=(column,))
    few, many = (make_table(pd.DataFrame({"code": ["a"] * (100 - n) + ["(other)"] * n}), schema) for n in (4, 40))
    assert unlisted_in_words(schema, few) == ()
    (warning,) = unlisted_in_words(schema, many)
    assert "40 % of code" in warning
    declared = Schema(columns=(Column(name="code", kind="categorical", categories=("a", "(other)"), other="(other)"),))
    assert unlisted_in_words(declared, many) == ()


def test_an_option_of_schema_given_to_synthesize_names_schema(file, tmp_path, capsys):
    assert call(["synthesize", str(file), "--epsilon", "1", "--out", str(tmp_path / "run"), "--drop", "sex"]) == 2
    said = capsys.readouterr().err
    assert "--drop" in said
    assert "populace schema FILE --drop" in said
