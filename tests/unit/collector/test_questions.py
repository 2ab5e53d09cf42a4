"""Questions as data: what a page makes of them is what the mechanism makes, and a wrong table would be noticed."""

import json
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

import collector_twin as twin
from populace.collector.questions import code_of, question_document, schema_document
from populace.collector.study import survey_of
from populace.methods.base import Population
from populace.methods.registry import make_protocol
from populace.tables.embedded import harbour, harbour_schema
from populace.tables.schema import Column, Schema, category_text
from populace.tables.table import make_table

LISTED = Schema(
    columns=(
        Column(name="town", kind="categorical", categories=tuple(f"t{i}" for i in range(90)), source="tests"),
        Column(name="street", kind="categorical", categories=tuple(f"s{i}" for i in range(40)), source="tests"),
        Column(name="one", kind="categorical", categories=("only",), source="tests"),
    )
)
SURVEYS = [
    ("poll", harbour_schema(), 1.0), ("poll", harbour_schema(), 6.0), ("independent", harbour_schema(), 0.5),
    ("samprivsyn", harbour_schema(), 2.0), ("samprivsyn", LISTED, 0.7), ("poll", LISTED, 1.0),
]  # fmt: skip


def survey(method, schema, epsilon):
    return survey_of(make_protocol(method, {"epsilon": epsilon}), Population(schema=schema, clients=1000))


@pytest.mark.parametrize(("method", "schema", "epsilon"), SURVEYS)
def test_the_twin_of_a_page_makes_reports_that_the_mechanism_reads(method, schema, epsilon):
    asked = survey(method, schema, epsilon)
    draw = np.random.default_rng(0)
    for question in draw.choice(len(asked.groups), min(40, len(asked.groups)), replace=False):
        document = json.loads(json.dumps(question_document(asked, int(question))))
        codes = [int(draw.integers(size)) for size in schema.sizes]
        told = twin.told_values(document, codes)
        member = asked.panel.members[question]
        read = member.decode(twin.packed(document["report"], told))
        assert set(np.flatnonzero(read)) == told
        certain = twin.told_values(document, codes, high=2**31, low=0)
        assert (
            int(asked.cell(np.array(codes), int(question))) in certain
        )  # the own value is the record's cell, or its bucket
        assert len(document["columns"]) == len(asked.groups[question])
        for each in document["columns"]:
            assert len(each["labels"]) == max(each["groups"]) + 1


def test_the_table_holds_the_exact_probability():
    asked = survey("poll", harbour_schema(), 2.0)
    for question, member in enumerate(asked.panel.members[:60]):
        report = question_document(asked, question)["report"]
        assert Fraction(int(report["numerator"]), int(report["denominator"])) == member.exact_p
        assert int(report["numerator"]) == (report["high"] << 32) + report["low"]
        assert report["bytes"] == member.wire_bytes


def counts_of(document, codes, draws, **wrong):
    counts = np.zeros(document["report"]["size"], int)
    for _ in range(draws):
        counts[list(twin.told_values(document, codes, **wrong))] += 1
    return counts


def p_value(document, counts, own, draws):
    """Of the own value's count and of the others', under the table's law."""
    p = document["report"]["probability"]
    told = stats.binomtest(int(counts[own]), draws, p).pvalue
    others = np.delete(counts, own)
    return told, stats.chisquare(others).pvalue if len(others) > 1 else 1.0


def test_reports_follow_the_table_and_a_wrong_table_is_rejected():
    asked = survey("samprivsyn", harbour_schema(), 1.0)
    document = question_document(asked, 3)
    codes, draws = [1] * 11, 6_000
    own = sum(each["groups"][codes[each["column"]]] * each["stride"] for each in document["columns"])
    told, others = p_value(document, counts_of(document, codes, draws), own, draws)
    assert min(told, others) > 1e-4
    report = document["report"]
    wrong = int((report["probability"] + 0.05) * 2**31)
    told, _ = p_value(document, counts_of(document, codes, draws, high=wrong, low=0), own, draws)
    assert told < 1e-6


SCALES = [
    Column(name="x", kind="integer", edges=(0, 18, 30, 65, 100), spikes=(0, 42), source="t"),
    Column(name="x", kind="decimal", edges=(-1.5, 0.0, 2.5, 10.0), step=0.01, clip=True, source="t"),
    Column(name="x", kind="decimal", edges=(0.0, 0.1, 0.7, 1e6), source="t", clip=True),
    Column(name="x", kind="integer", edges=(1, 10, 20), step=5, source="t", nullable=True),
    Column(name="x", kind="decimal", edges=(0.0, 1.0), spikes=(-1.0, 0.5), step=0.25, source="t"),
    Column(name="x", kind="decimal", spikes=(0.0, 1.0, 3.0), step=1.0, source="t", clip=True),
]


@pytest.mark.parametrize("column", SCALES, ids=range(len(SCALES)))
def test_a_typed_number_becomes_the_code_that_a_table_would_give_it(column):
    document = json.loads(json.dumps(schema_document(Schema(columns=(column,)))[0]))
    draw = np.random.default_rng(1)
    ends = [*column.edges, *column.spikes]
    numbers = np.concatenate([
        draw.uniform(min(ends) - 3, max(ends) + 3, 3_000), np.round(draw.uniform(min(ends) - 1, max(ends) + 1, 2_000), 2),
        np.repeat(ends, 3) + np.tile([-0.005, 0.0, 0.005], len(ends)),
    ])  # fmt: skip
    if column.kind == "integer":
        numbers = np.rint(numbers)
    scale = column.scale
    expected = scale.codes(numbers)
    if column.clip:
        expected = np.where(expected < 0, scale.codes(scale.nearest(numbers)), expected)
    assert code_of(document, 1e308) is None or document["number"]["clip"]
    found = [code_of(document, float(number)) for number in numbers]
    assert [-1 if code is None else code for code in found] == expected.tolist()


def test_dates_and_times_take_whole_days_and_seconds():
    columns = (
        Column(name="day", kind="date", edges=(0.0, 365.0, 20_000.0), source="t"),
        Column(name="at", kind="time", edges=(0.0, 43_200.0, 86_399.0), step=60.0, source="t"),
    )
    schema = Schema(columns=columns)
    documents = schema_document(schema)
    frame = pa.table({"day": pa.array([364, 365], pa.date32()), "at": ["11:59:59", "12:00:00"]})
    codes = make_table(frame, schema).codes
    assert codes.tolist() == [
        [code_of(documents[0], 364), code_of(documents[1], 43_199)],
        [code_of(documents[0], 365), code_of(documents[1], 43_200)],
    ]


def test_whole_records_of_the_embedded_table_get_the_same_codes():
    schema, table = harbour_schema(), harbour()
    documents = json.loads(json.dumps(schema_document(schema)))
    for row, record in enumerate(table.frame.slice(0, 200).to_pylist()):
        typed = {
            name: category_text(value) if schema.column(name).categories else value for name, value in record.items()
        }
        assert twin.record_codes(documents, typed) == table.codes[row].tolist()
