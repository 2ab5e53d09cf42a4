"""One text for one value, however it was written; different ones stay different but for what the module says."""

import datetime
import decimal

import pyarrow as pa
import pytest

from populace.tables.cell_text import cell_text
from populace.tables.value_text import fold_name, value_text

DAY, MORNING = datetime.date(2024, 5, 31), datetime.datetime(2024, 5, 31, 9, 5)

ALIKE = {
    "numbers": [
        pa.array(["1.50", "100", "0.00001", "-3", None]), pa.array([1.5, 100.0, 1e-5, -3.0, None]),
        pa.array(["1,5", "0100", "1E-5", "-3.0", ""]), pa.array([" 1.5", "1e2", "0,000010", "-03", "NA"]),
        pa.array(["+1.5", "100.", "1.0e-05", "-3,00", "?"]),
    ],
    "float32": [pa.array([56.29, 0.1], pa.float32()), pa.array(["56.29", ".1"])],
    "fixed": [pa.array([decimal.Decimal("1.50")]), pa.array(["1.5"])],
    "whole": [pa.array([7, 2**62]), pa.array(["007", str(2**62)]), pa.array(["7.0", f"0{2**62}"])],
    "truths": [
        pa.array([True, False, None]), pa.array(["TRUE", "false", ""]), pa.array(["yes", "No", "n/a"]),
        pa.array([1, 0, None]), pa.array(["Y", "n", None]),
    ],
    "days": [
        pa.array([DAY]), pa.array([datetime.datetime(2024, 5, 31)]), pa.array(["2024-05-31T00:00:00Z"]),
        pa.array(["31.05.2024"]), pa.array(["5/31/2024"]), pa.array(["31/5/2024 00:00"]), pa.array(["2024/5/31"]),
        pa.array(["05-31-2024"]),
    ],
    "moments": [
        pa.array([MORNING]), pa.array([MORNING], pa.timestamp("ns")), pa.array(["2024-05-31T09:05"]),
        pa.array(["31.05.2024 9:05"]), pa.array(["2024-05-31 09:05:00.000+00:00"]), pa.array(["05/31/2024 09:05:00"]),
    ],
    "times": [pa.array([datetime.time(9, 5)]), pa.array(["09:05"]), pa.array(["9:05:00"])],
    "letters": [pa.array(["Köln", "ä"]), pa.array(["Ko\u0308ln ", "A\u0308"]).dictionary_encode()],
    "gaps": [pa.nulls(2), pa.array(["", "null"]), pa.array([None, None], pa.string())],
}  # fmt: skip


@pytest.mark.parametrize("name", ALIKE)
def test_one_value_has_one_text(name):
    texts = [value_text(values).to_pylist() for values in ALIKE[name]]
    assert all(text == texts[0] for text in texts), texts


def test_different_values_have_different_texts():
    different = [
        "1", "10", "1.05", "1.5", "-1", "-", "", "1e3", "1234567890123456789", "1234567890123456788", "a", "b", "1.2.3",
        "2024-05-31", "2024-05-30", "2023-05-31", "2024-05-31 9:05", "2024-05-31 9:06", "2024-05-31 9:05:30", "9:05", "19:05",
        "05.31.24", "no way", "0",
    ]  # fmt: skip
    assert len(set(value_text(pa.array(different)).to_pylist())) == len(different)
    assert len(set(value_text(pa.array([0.1, 0.1 + 2**-55, 1e300, float("inf"), -0.5])).to_pylist())) == 5


def test_a_cell_is_read_by_itself():
    """A part of a column has the texts that it has in the whole, whatever the rest looks like."""
    cells = ["1/2/2024", "2/1/2024", "25/1/2024", "yes", "0", "1", "7", "007", "NA", "x", "3,14", "1.000"]
    whole = value_text(pa.array(cells)).to_pylist()
    assert [value_text(pa.array([cell])).to_pylist()[0] for cell in cells] == whole
    assert whole[0] == whole[1]  # nobody knows which is the day


def test_what_is_no_text_stays():
    assert value_text(pa.array([[1], [2]])).to_pylist() == ["[1]", "[2]"]
    assert value_text(pa.array([b"\x00"])).to_pylist() == ["b'\\x00'"]
    assert value_text(pa.array([], pa.string())).to_pylist() == []


def test_cell_text_keeps_leading_zeros():
    assert cell_text(pa.array(["007", "7", " A", "1.50", None])).to_pylist() == ["007", "7", "a", "1.5", ""]


def test_names_of_columns():
    assert fold_name(" Patient\u00a0") == fold_name("PATIENT") == "patient"
    assert fold_name("Größe") == fold_name("Gro\u0308ße")
    assert fold_name("a b") != fold_name("ab")
