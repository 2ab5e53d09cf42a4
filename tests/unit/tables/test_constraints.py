from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from populace.errors import DataError, SchemaError
from populace.tables.constraints import RELATIONS, Comparison, Forbidden
from populace.tables.schema import Column, Schema, schema_from_dict
from populace.tables.table import make_table

AGE = Column(name="age", kind="integer", edges=(0, 18, 65, 120))
YEARS = Column(name="years", kind="integer", edges=(0, 10, 120), nullable=True)
JOB = Column(name="job", kind="categorical", categories=("none", "clerk", "retired"), nullable=True)
RANKS = ("low", "middle", "high")
FIRST = Column(name="first", kind="ordinal", categories=RANKS, nullable=True)
LAST = Column(name="last", kind="ordinal", categories=RANKS)


def forbid(**values: tuple[str, ...]) -> Forbidden:
    return Forbidden(values=tuple(values.items()))


def compare(left: str, relation: str, right: str) -> Comparison:
    return Comparison(left=left, relation=relation, right=right)


def test_a_structural_zero_marks_only_the_whole_combination() -> None:
    rule = forbid(age=("[0, 18)",), job=("retired", "(no value)"))
    codes = np.array([[0, 2], [0, 3], [0, 1], [1, 2], [1, 3]])
    assert rule.broken_by(codes, (AGE, JOB)).tolist() == [True, True, False, False, False]
    assert str(rule) == "age in {[0, 18)} and job in {retired, (no value)} never occurs"


@pytest.mark.parametrize(("relation", "broken"), [("<", [0, 1, 1]), ("<=", [0, 0, 1]), (">", [1, 1, 0]),
                                                  (">=", [1, 0, 0]), ("==", [1, 0, 1]), ("!=", [0, 1, 0])])  # fmt: skip
def test_comparisons_hold_where_a_value_is_missing(relation: str, broken: list[int]) -> None:
    left = np.array([1.0, 2.0, 3.0, np.nan, 2.0])
    right = np.array([2.0, 2.0, 2.0, 2.0, np.nan])
    assert compare("a", relation, "b").broken_by(left, right).tolist() == [*map(bool, broken), False, False]


def test_a_table_that_breaks_a_rule_is_refused_with_the_row_and_the_rule() -> None:
    schema = Schema(columns=(AGE, YEARS, JOB), forbidden=(forbid(age=("[0, 18)",), job=("retired",)),),
                    comparisons=(compare("years", "<=", "age"),))  # fmt: skip
    good = {"age": [70, 5, 30], "years": [70, None, 2], "job": ["retired", "none", None]}
    assert len(make_table(pa.table(good), schema)) == 3
    with pytest.raises(DataError, match=r"row 2 contradicts the declared rule 'age in .* never occurs'"):
        make_table(pa.table({**good, "job": ["retired", "retired", None]}), schema)
    with pytest.raises(DataError, match="row 3 contradicts the declared rule 'years <= age'; correct"):
        make_table(pa.table({**good, "years": [70, None, 31]}), schema)


def test_ordinal_columns_compare_by_rank() -> None:
    schema = Schema(columns=(FIRST, LAST), comparisons=(compare("first", "<=", "last"),))
    assert len(make_table(pa.table({"first": ["low", None], "last": ["high", "low"]}), schema)) == 2
    with pytest.raises(DataError, match="'first <= last'"):
        make_table(pa.table({"first": ["high"], "last": ["middle"]}), schema)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (forbid(), "forbids nothing"),
        (forbid(age=()), "forbids nothing"),
        (forbid(height=("[0, 1)",)), "names 'height', which is not a column"),
        (forbid(job=("pilot",)), "'pilot' is not in the domain of column 'job'"),
        (forbid(age=("(no value)",)), "not in the domain of column 'age'"),
        (forbid(last=RANKS), "that forbids every row"),
        (Forbidden(values=(("job", ("none",)), ("job", ("clerk",)))), "names a column twice"),
        (compare("age", "=<", "years"), "expected relation in < <= > >= == !=, got '=<'"),
        (compare("age", "<", "height"), "names 'height', which is not a column"),
        (compare("age", "<", "age"), "compares a column with itself"),
        (compare("age", "<", "last"), "expected two columns of numbers, two of dates"),
        (compare("job", "<", "job2"), "which is not a column"),
    ],
)
def test_a_wrong_rule_is_explained(rule: Forbidden | Comparison, message: str) -> None:
    rules = {"forbidden": (rule,)} if isinstance(rule, Forbidden) else {"comparisons": (rule,)}
    with pytest.raises(SchemaError, match=message):
        Schema(columns=(AGE, YEARS, JOB, FIRST, LAST), **rules)


@pytest.mark.parametrize(
    ("key", "entry", "message"),
    [
        ("forbid", {"job": []}, "expected a list of values for column 'job'"),
        ("forbid", {"job": [1]}, "as text, got"),
        ("forbid", {"job": True}, "as text, got True"),
        ("constraint", {"left": "age"}, r"expected left, relation and right, got \['left'\]"),
        ("constraint", {"left": ["age"], "relation": "<", "right": "years"}, "which is not a column"),
        ("constraint", {"left": "age", "relation": ["<"], "right": "years"}, "expected relation in"),
    ],
)
def test_rules_in_toml_are_checked(key: str, entry: dict[str, object], message: str) -> None:
    columns = [{"name": "age", "edges": [0, 120]}, {"name": "years", "edges": [0, 120]},
               {"name": "job", "categories": ["none", "clerk"]}]  # fmt: skip
    with pytest.raises(SchemaError, match=message):
        schema_from_dict({"column": columns, key: [entry]})


def test_every_relation_is_known() -> None:
    assert set(RELATIONS) == {"<", "<=", ">", ">=", "==", "!="}
