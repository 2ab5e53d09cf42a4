from __future__ import annotations

import dataclasses
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given

from populace.errors import RunError, SchemaError
from populace.tables.schema import Column, Schema, category_text, load_schema, parse_category, schema_from_dict

from .strategies import FAST, schemas

COLOUR = {"name": "colour", "categories": ["red", "green"]}
AGE = {"name": "age", "kind": "numeric", "dtype": "integer", "edges": [0, 18, 65, 120]}


@FAST
@given(schemas(rules=True))
def test_any_schema_survives_toml(schema: Schema) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schema.toml"
        schema.save(path)
        again = load_schema(path)
    assert again == schema
    assert again.digest == schema.digest
    assert hash(again) == hash(schema)


@FAST
@given(schemas())
def test_every_code_has_its_own_label(schema: Schema) -> None:
    for column in schema.columns:
        labels = column.labels()
        assert len(labels) == column.size
        assert len(set(labels)) == column.size


def test_toml_written_by_hand_needs_only_names_and_domains() -> None:
    schema = schema_from_dict({"target": "colour", "column": [COLOUR, {"name": "x", "edges": [0, 0.5, 1]}]})
    assert schema.names == ("colour", "x")
    assert schema.sizes == (2, 2)
    assert schema.column("colour").kind == "categorical"
    assert schema.column("x").kind == "decimal"
    assert schema.column("x").dtype == "float"
    assert schema.read_from_data == ()
    assert schema.with_target("x").target == "x"
    assert schema.with_target(None).target == "colour"


def test_a_domain_read_from_the_data_is_named() -> None:
    schema = schema_from_dict({"column": [COLOUR, {**AGE, "domain": "read-from-data"}]})
    assert schema.read_from_data == ("age",)


def test_digest_depends_on_every_part() -> None:
    schema = schema_from_dict({"column": [COLOUR, AGE]})
    others = [
        schema.with_target("age"),
        dataclasses.replace(schema, columns=schema.columns[::-1]),
        schema_from_dict({"column": [{**COLOUR, "nullable": True}, AGE]}),
        schema_from_dict({"column": [COLOUR, {**AGE, "domain": "read-from-data"}]}),
        schema_from_dict({"column": [COLOUR, AGE], "forbid": [{"colour": "red", "age": "[0, 18)"}]}),
    ]
    assert len({schema.digest, *(other.digest for other in others)}) == 1 + len(others)


def test_labels_are_short_and_exact() -> None:
    assert Column(name="a", kind="integer", edges=(0, 18, 65), nullable=True).labels() == (
        "[0, 18)", "[18, 65]", "(no value)",
    )  # fmt: skip
    assert Column(name="a", kind="integer", edges=(1e6, 1e6 + 1, 1e6 + 2)).labels() == (
        "[1000000, 1000001)", "[1000001, 1000002]",
    )  # fmt: skip
    assert Column(name="a", kind="decimal", edges=(0.1, 0.100000000001, 0.5)).labels()[0] == ("[0.1, 0.100000000001)")


def test_an_interval_without_a_value_has_no_cell() -> None:
    column = Column(name="a", kind="integer", edges=(0, 2.5, 2.7, 4, 6), spikes=(0, 1, 2, 5))
    assert column.labels() == ("0", "1", "2", "[2.7, 4)", "[4, 6]", "5")
    assert column.centres().tolist() == [0, 1, 2, 3, 5, 5]


def test_edges_stay_floats_where_toml_has_no_such_integer(tmp_path: Path) -> None:
    schema = Schema(columns=(Column(name="a", kind="decimal", edges=(-1e300, 0.0, 1e300)),))
    schema.save(tmp_path / "s.toml")
    assert "1e+300" in (tmp_path / "s.toml").read_text()
    assert load_schema(tmp_path / "s.toml") == schema


@pytest.mark.parametrize(
    ("text", "dtype", "value"),
    [
        ("1", "integer", 1),
        ("-7", "integer", -7),
        ("0.5", "float", 0.5),
        ("true", "boolean", True),
        ("1", "string", "1"),
    ],
)
def test_categories_are_parsed_as_stored(text: str, dtype: str, value: object) -> None:
    assert parse_category(text, dtype, "c") == value
    assert category_text(value) == text


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("01", "integer"), ("1.0", "integer"), ("x", "integer"), (str(2**63), "integer"), ("1", "float"),
        ("nan", "float"), ("inf", "float"), ("-0.0", "float"), ("True", "boolean"), ("1", "boolean"),
    ],
)  # fmt: skip
def test_a_category_not_in_plain_form_is_refused(text: str, dtype: str) -> None:
    with pytest.raises(SchemaError, match=f"'c': category '{text}' is not a {dtype} in its plain form"):
        parse_category(text, dtype, "c")


def test_minus_zero_is_zero() -> None:
    assert category_text(-0.0) == "0.0"
    assert math.copysign(1, parse_category("0.0", "float", "c")) == 1


WRONG_COLUMNS = [
    ({}, "with a name"),
    ({"name": ""}, "expected a column name, got ''"),
    ({"name": 3}, "expected a column name, got 3"),
    ({"name": "\ud800"}, "expected a column name"),
    ({"name": "c"}, "'c': expected at least one category, got none"),
    ({"name": "c", "categories": "abc"}, "'c': expected a list of categories, got 'abc'"),
    ({"name": "c", "categories": [["a"]]}, r"'c': expected categories as text, got \['a'\]"),
    ({"name": "c", "categories": [1, 2]}, "'c': expected categories as text, got 1"),
    ({"name": "c", "categories": ["\ud800"]}, "'c': expected categories as text"),
    ({"name": "c", "categories": ["a", "b", "a"]}, "'c': category 'a' is listed twice"),
    ({"name": "c", "categories": ["(no value)"], "nullable": True}, "stands for null"),
    ({"name": "c", "categories": ["a"], "edges": [0, 1], "kind": "ordinal"}, "edges are for numeric columns"),
    (
        {"name": "c", "kind": "nominal", "categories": ["a"]},
        "expected kind in categorical, boolean, .* got 'nom",
    ),
    ({"name": "c", "dtype": "text", "categories": ["a"]}, "expected dtype in string, integer, float, boolean"),
    ({"name": "c", "domain": "guessed", "categories": ["a"]}, "expected domain in declared, read-from-data"),
    ({"name": "c", "nullable": "yes", "categories": ["a"]}, "expected nullable = true or false, got 'yes'"),
    ({"name": "c", "levels": 3, "categories": ["a"]}, "'c': unknown key 'levels'; known keys are name"),
    ({"name": "c", "edges": 5}, "'c': expected a list of edges, got 5"),
    ({"name": "c", "edges": ["0", 1]}, "'c': expected numbers as edges"),
    ({"name": "c", "edges": [True, 2]}, "'c': expected numbers as edges"),
    ({"name": "c", "edges": [0, 10**400]}, "'c': expected edges a float can hold"),
    ({"name": "c", "edges": [0]}, "'c': expected at least two edges, got 1"),
    ({"name": "c", "edges": [0, float("inf")]}, "'c': expected finite edges"),
    ({"name": "c", "edges": [0, 2, 2]}, "'c': expected rising edges"),
    ({"name": "c", "edges": [0, 1], "dtype": "boolean"}, "'c': expected dtype integer or float, got 'boolean'"),
    ({"name": "c", "edges": [0, 1], "kind": "numeric", "categories": ["a"]}, "edges, not categories"),
    ({"name": "c", "edges": [0.2, 0.4], "dtype": "integer"}, "no multiple of 1 lies between its edges"),
    ({"name": "c", "edges": [0, 2**60], "dtype": "integer"}, "edges up to 9.01e.15 with a step of 1"),
]


@pytest.mark.parametrize(("entry", "message"), WRONG_COLUMNS)
def test_a_wrong_column_is_named(entry: dict[str, object], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        schema_from_dict({"column": [entry]})


WRONG_DOCUMENTS = [
    ({}, "at least one .*column.* entry"),
    ({"column": []}, "at least one .*column.* entry"),
    ({"column": COLOUR}, "in double brackets"),
    ({"column": ["colour"]}, "in double brackets"),
    ({"column": [COLOUR, COLOUR]}, "column 'colour' is declared twice"),
    ({"column": [COLOUR], "target": "age"}, "the target 'age' is not a column; columns are colour"),
    ({"column": [COLOUR], "format": 3}, "expected schema format 1 or 2, got 3; update populace"),
    ({"column": [COLOUR], "colums": []}, "the schema: unknown key 'colums'"),
    ({"column": [COLOUR], "forbid": {"colour": "red"}}, "in double brackets"),
    ({"column": [COLOUR], "constraint": 3}, "in double brackets"),
]


@pytest.mark.parametrize(("document", "message"), WRONG_DOCUMENTS)
def test_a_wrong_document_is_explained(document: dict[str, object], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        schema_from_dict(document)


def test_an_empty_schema_and_an_unknown_column_are_refused() -> None:
    with pytest.raises(SchemaError, match="at least one column that is modelled, got none"):
        Schema(columns=())
    with pytest.raises(SchemaError, match="no column 'x'; columns are colour"):
        schema_from_dict({"column": [COLOUR]}).column("x")


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"no schema file .*s.toml; `populace schema DATA -o s.toml` proposes one"):
        load_schema(tmp_path / "s.toml")
    (tmp_path / "bad.toml").write_text("[[column")
    with pytest.raises(SchemaError, match="cannot read the schema"):
        load_schema(tmp_path / "bad.toml")
    (tmp_path / "latin.toml").write_bytes(b'target = "\xe9"')
    with pytest.raises(SchemaError, match="cannot read the schema"):
        load_schema(tmp_path / "latin.toml")
    with pytest.raises(SchemaError, match="cannot read the schema"):
        load_schema(tmp_path)
    with pytest.raises(RunError, match="cannot write"):
        schema_from_dict({"column": [COLOUR]}).save(tmp_path / "missing" / "s.toml")


EVERYTHING = """
format = 2
target = "workclass"
source = "adult.names, UCI 1996"

[[column]]
name = "capital-gain"
kind = "integer"
spikes = [0, 99999]
edges = [1, 3000, 5000, 10000, 41311]
law = "log"
clip = true
domain = "read-from-data"

[[column]]
name = "patient_nbr"
kind = "id"
dtype = "integer"

[[column]]
name = "visit"
kind = "date"
edges = [2020-01-01, 2020-07-01, 2021-01-01]
source = "ward protocol"

[[column]]
name = "at"
kind = "datetime"
edges = [2020-01-01T00:00:00, 2020-07-01T12:30:00Z]
step = 60

[[column]]
name = "clock"
kind = "time"
edges = [08:00:00, 12:00:00, 20:00:00]
spikes = [09:30:00]

[[column]]
name = "remarks"
kind = "text"

[[column]]
name = "workclass"
categories = ["Private", "State-gov"]
nullable = true
missing = ["?"]
other = "Other"
"""


def test_everything_a_file_can_say_is_read_and_written_again(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(EVERYTHING)
    schema = load_schema(tmp_path / "s.toml")
    assert schema.order == ("capital-gain", "patient_nbr", "visit", "at", "clock", "remarks", "workclass")
    assert [(o.name, o.kind, o.position, o.dtype) for o in schema.others] == [
        ("patient_nbr", "id", 1, "integer"), ("remarks", "text", 5, "string"),
    ]  # fmt: skip
    gain = schema.column("capital-gain")
    assert gain.laws == ("log",) * 4
    assert gain.labels() == ("0", "[1, 3000)", "[3000, 5000)", "[5000, 10000)", "[10000, 41311]", "99999")
    assert schema.column("visit").edges == (18_262, 18_444, 18_628)
    assert schema.column("visit").labels()[0] == "[2020-01-01, 2020-07-01)"
    assert schema.column("at").labels() == ("[2020-01-01T00:00:00, 2020-07-01T12:30:00]",)
    assert schema.column("clock").labels()[1] == "09:30:00"
    assert schema.column("workclass").categories == ("Private", "State-gov", "Other")
    assert schema.domain_sources == (
        ("declared by: ward protocol", ("visit",)),
        ("declared by: adult.names, UCI 1996", ("at", "clock", "workclass")),
    )
    schema.save(tmp_path / "again.toml")
    assert load_schema(tmp_path / "again.toml") == schema
    assert schema_from_dict(schema.to_dict()).digest == schema.digest


def test_a_declared_domain_says_by_whom(tmp_path: Path) -> None:
    text = 'format = 2\n[[column]]\nname = "a"\ncategories = ["x"]\n[[column]]\nname = "b"\ncategories = ["x"]\n'
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(SchemaError, match="the domain of a, b is declared, but not by whom; add source"):
        load_schema(tmp_path / "s.toml")
    (tmp_path / "s.toml").write_text(text.replace("format = 2", 'format = 2\nsource = "ICD-10 2025"'))
    assert load_schema(tmp_path / "s.toml").domain_sources == (("declared by: ICD-10 2025", ("a", "b")),)
    (tmp_path / "s.toml").write_text(text.replace("format = 2", "format = 1"))
    old = load_schema(tmp_path / "s.toml")
    assert old.domain_sources == (("declared, not said by whom", ("a", "b")),)
    old.save(tmp_path / "new.toml")
    assert load_schema(tmp_path / "new.toml") == old


def test_format_1_keeps_its_meaning() -> None:
    document = {"format": 1, "column": [AGE, {"name": "x", "kind": "numeric", "edges": [0, 0.5]},
                                        {"name": "flag", "dtype": "boolean", "categories": ["false", "true"]}]}  # fmt: skip
    schema = schema_from_dict(document)
    assert [column.kind for column in schema.columns] == ["integer", "decimal", "boolean"]
    assert schema.column("x").step == 0
    assert schema.sizes == (3, 1, 2)


def test_lists_are_folded_into_few_lines(tmp_path: Path) -> None:
    words = tuple(f'a "quoted, [listed]" word {i}\n' for i in range(40))
    schema = Schema(columns=(Column(name="w", kind="categorical", categories=words),))
    schema.save(tmp_path / "s.toml")
    assert len((tmp_path / "s.toml").read_text().splitlines()) < 25
    assert load_schema(tmp_path / "s.toml") == schema


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "c", "kind": "integer", "categories": ["a"]}, "its categories are no numbers"),
        ({"name": "c", "kind": "ordinal", "edges": [0, 5_000]}, "span more than 1,000 whole numbers"),
        ({"name": "c", "kind": "date", "edges": [0, 1]}, "expected each of its edges to be a date"),
        ({"name": "c", "kind": "time", "edges": ["25:00", "26:00"]}, "expected each of its edges to be a time"),
        ({"name": "c", "kind": "integer", "edges": [0, 1], "step": "one"}, "expected a number as step, got 'one'"),
        ({"name": "c", "kind": "boolean", "categories": ["a", "b", "c"]}, "a boolean has two categories, got 3"),
        ({"name": "c", "kind": "id", "dtype": "float"}, "expected dtype in string, integer, got 'float'"),
        ({"name": "c", "kind": "integer", "edges": [0, 1], "clip": 1}, "expected clip = true or false, got 1"),
    ],
)
def test_a_wrong_new_key_is_named(entry: dict[str, object], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        schema_from_dict({"column": [entry, COLOUR]})


def test_an_unlisted_value_needs_a_category_to_go_to() -> None:
    with pytest.raises(SchemaError, match="'Other', for unlisted values, is not among the categories"):
        Column(name="c", kind="categorical", categories=("a",), other="Other")
