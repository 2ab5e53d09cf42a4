from __future__ import annotations

import importlib.util
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from populace.tables.codec import one_hot
from populace.tables.embedded import harbour, harbour_schema
from populace.tables.table import Table

TOOL = Path(__file__).parents[3] / "tools" / "make_harbour.py"


@pytest.fixture(scope="module")
def table() -> Table:
    return harbour()


def test_the_survey_has_every_kind_of_column(table: Table) -> None:
    schema = harbour_schema()
    assert table.schema == schema
    assert len(table) == 4_000
    assert {column.kind for column in schema.columns} == {"categorical", "boolean", "ordinal", "integer", "decimal"}
    assert {column.dtype for column in schema.columns} == {"string", "integer", "float", "boolean"}
    assert [column.name for column in schema.columns if column.nullable] == ["income"]
    assert schema.target == "owns_home"
    assert schema.column("owns_home").size == 2
    assert schema.read_from_data == ()
    assert len(schema.forbidden) == len(schema.comparisons) == 1


def test_every_value_of_every_domain_occurs(table: Table) -> None:
    for index, column in enumerate(table.schema.columns):
        shares = np.bincount(table.codes[:, index], minlength=column.size) / len(table)
        assert shares.min() > 0.005, column.name
        assert shares.max() < 0.9, column.name


def test_the_target_can_be_predicted(table: Table) -> None:
    target = table.schema.index("owns_home")
    sizes = tuple(size for i, size in enumerate(table.schema.sizes) if i != target)
    x, y = one_hot(np.delete(table.codes, target, axis=1), sizes), table.codes[:, target]
    model = LogisticRegression(max_iter=1_000).fit(x[:3_000], y[:3_000])
    assert roc_auc_score(y[3_000:], model.predict_proba(x[3_000:])[:, 1]) >= 0.8


def test_boats_depend_on_district_and_occupation_together(table: Table) -> None:
    frame = table.to_pandas()
    share = frame.assign(fisher=frame.occupation == "fishing").groupby(["fisher", "district"])["boat"].mean()
    assert share[True]["hillside"] - share[False]["hillside"] > 0.5
    assert share[True]["netherfield"] - share[False]["netherfield"] < 0.3


def test_the_tool_makes_the_files_that_are_embedded(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_harbour", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    tool.main(tmp_path)
    for name in ("harbour.csv", "harbour.toml"):
        embedded = resources.files("populace.tables") / "harbour" / name
        assert (tmp_path / name).read_bytes() == embedded.read_bytes()
    assert (tmp_path / "harbour.csv").stat().st_size < 400_000
