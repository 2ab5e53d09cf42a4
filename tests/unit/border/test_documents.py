"""JSON, TOML and what may be opened: limits, and one sentence for what is beyond them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pydantic
import pytest

from populace.border.documents import MOST_DEPTH, parse_json, parse_toml, read_json
from populace.border.models import Form, check_document, read_document
from populace.border.regular import check_output, open_regular, read_bytes, read_text
from populace.errors import DataError, RunError, SchemaError
from populace.tables.files import write_json
from populace.tables.reading import read_frame, write_frame
from populace.tables.schema import load_schema

DEEP = {
    "lists": "[" * 100_000,
    "objects": '{"a":' * 100_000,
    "closed": "[" * 100_000 + "]" * 100_000,
    "over": "[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1),
    "a string without an end": '["' + '\\"' * 200_000,
    "digits": "9" * 5_000,
    "fewer digits": f"[{'9' * 450}]",
    "half a pair": '["\\ud800"]',
    "half a pair as a key": '{"\\ud800": 1}',
    "not UTF-8": b'["\xff"]',
    "empty": "",
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_json_beyond_the_limits_is_refused_in_one_sentence(text: str | bytes) -> None:
    began = time.process_time()
    with pytest.raises(SchemaError, match="cannot read here: ") as caught:
        parse_json(text, where="here", error=SchemaError)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert time.process_time() - began < 2


def test_json_within_the_limits_is_read() -> None:
    depth = "[" * MOST_DEPTH + "]" * MOST_DEPTH
    assert json.dumps(parse_json(depth, where="x")) == depth
    many = '[["[[[[[[[[", "\\"{{{{"],' * 3 + "[]" + "]" * 3
    assert parse_json(many, where="x")[1][1][0] == ["[[[[[[[[", '"{{{{']
    brackets = '["' + "[" * 5_000 + '"]'
    assert parse_json(brackets, where="x") == ["[" * 5_000]
    assert parse_json("[NaN, 1e999]", where="x")[1] == float("inf")
    with pytest.raises(RunError, match="expected numbers, got NaN"):
        parse_json("[NaN]", where="x", strict=True)
    with pytest.raises(RunError, match="each name once"):
        parse_json('{"a": 1, "a": 2}', where="x", strict=True)


TOML = {
    "brackets": "a = " + "[" * 2_000,
    "braces": "a = " + "{b = " * 2_000,
    "dotted keys": ".".join("a" * 5_000) + " = 1",
    "a dotted table": "[" + ".".join("a" * 5_000) + "]",
    "very long keys": ".".join("a" * 400_000) + " = 1",  # the parser itself would take gigabytes
    "quoted parts": ".".join(['"a"'] * 400_000) + " = 1",
    "digits": "a = " + "1" * 5_000,
    "fewer digits": "a = " + "1" * 450,
    "no end": 'a = """' + '\\"""' * 100_000 + "[" * 101,
    "nothing": "a =",
    "a half": 'a = "\\ud800"',
}


@pytest.mark.parametrize("text", TOML.values(), ids=TOML)
def test_toml_beyond_the_limits_is_refused_in_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(SchemaError, match=r"cannot read the schema .*s.toml: ") as caught:
        load_schema(tmp_path / "s.toml")
    assert "\n" not in str(caught.value)


def test_many_points_that_belong_to_no_key_are_read() -> None:
    text = "a = [" + ", ".join(["1.5"] * 500) + "]\nb = '" + "." * 500 + "' # " + "." * 500 + "\nc.d.e = 1.0\n"
    assert len(parse_toml(text, where="x")["a"]) == 500


def test_toml_within_the_limits_is_read() -> None:
    text = (
        "a = '"
        + "[" * 300
        + "'\nb = \""
        + "{" * 300
        + '"\n# '
        + "[" * 300
        + "\nc = [[1], [2]]\n"
        + 'd = """'
        + "[" * 300
        + '"""'
    )
    assert parse_toml(text, where="x")["c"] == [[1], [2]]


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    for path, words in ((tmp_path / "pipe.csv", "pipe"), (tmp_path, "directory"), (Path("/dev/zero"), "device")):
        for read in (open_regular, read_bytes, read_text, read_json):
            with pytest.raises(RunError, match=f"cannot read .*: Is a {words}"):
                read(path)
        with pytest.raises(RunError, match=f"cannot write .*: Is a {words}"):
            check_output(path)
    with pytest.raises(RunError, match="no file"):
        read_json(tmp_path / "not there")
    with pytest.raises(RunError, match="cannot read"):
        read_json(tmp_path / "a\0b")
    with pytest.raises(RunError, match="cannot write"):
        write_json(tmp_path / "pipe.csv", {})
    frame = read_frame(_small(tmp_path))
    with pytest.raises(RunError, match="cannot write"):
        write_frame(frame, tmp_path / "pipe.csv")
    with pytest.raises(Exception, match="Is a pipe"):
        read_frame(tmp_path / "pipe.csv")


def _small(folder: Path) -> Path:
    (folder / "small.csv").write_text("a,b\n1,2\n")
    return folder / "small.csv"


def test_length_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * 11)
    assert read_bytes(tmp_path / "long", most=11) == b"x" * 11
    with pytest.raises(DataError, match="expected at most 10 bytes"):
        read_bytes(tmp_path / "long", most=10, error=DataError)


class Kept(Form):
    salt: str
    counts: dict[str, int] = pydantic.Field(default_factory=dict)
    number: float = 0.0


def test_our_own_files_are_checked_by_a_model(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    write_json(path, {"salt": "ab", "number": 1, "other": [1]})
    assert read_document(path, Kept) == {"salt": "ab", "number": 1, "other": [1]}
    wrong: dict[str, object] = {
        "it lacks 'salt'": {}, "'salt': ": {"salt": 5}, "'counts.a': ": {"salt": "", "counts": {"a": "1"}},
        "'number'": {"salt": "", "number": True}, "expected an object, got a list": [], "got nothing": None,
    }  # fmt: skip
    for words, document in wrong.items():
        with pytest.raises(RunError, match=rf"here is damaged: .*{words}"):
            check_document(document, Kept, where="here")


def test_the_sentence_about_a_wrong_field_does_not_repeat_its_value() -> None:
    with pytest.raises(RunError) as caught:
        check_document({"salt": "", "counts": "secret"}, Kept, where="here")
    assert "secret" not in str(caught.value)
