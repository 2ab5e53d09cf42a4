"""What somebody new types, with a table of their own: whatever is wrong is one sentence, and exit code 2."""

import json
import re

import numpy as np
import pytest

from populace.cli.main import call

HEADER = "order_no,day,city,age,paid,member"
TOML = 'format = 2\n{top}\n[[column]]\nname = "{name}"\nkind = "{kind}"\n{rest}\n'
SOURCE = 'source = "the shop"'


def lines():
    rng = np.random.default_rng(1)
    return [
        f"{10_000 + 7 * i},2024-{rng.integers(1, 13):02d}-{rng.integers(1, 29):02d},{rng.choice(['Ulm', 'Köln', 'Bonn'])},"
        f"{rng.integers(18, 90)},{0 if rng.random() < 0.4 else rng.gamma(2, 20):.2f},{rng.choice(['yes', 'no'])}"
        for i in range(120)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place, rows = tmp_path_factory.mktemp("shop"), lines()
    files = {
        "shop": [HEADER, *rows],
        "header": [HEADER],
        "short": [HEADER, *rows[:30], "1,2024-01-01,Ulm", *rows[30:]],
        "long": [HEADER, *rows[:30], rows[30] + ",again,and again", *rows[31:]],
        "unclosed": [HEADER, '1,2024-01-01,"Ulm,30,0,yes', *rows],
        "twice": [HEADER.replace("member", "age"), *rows],
        "unnamed": [HEADER.replace("age", ""), *rows],
        "trailing": [line + "," for line in [HEADER, *rows]],
        "bom": ["\ufeff" + HEADER, *rows],
        "semicolons": [line.replace(",", ";").replace(".", ",") for line in [HEADER, *rows]],
    }
    for name, content in files.items():
        (place / f"{name}.csv").write_text("\n".join(content) + "\n", encoding="utf-8")
    (place / "latin.csv").write_bytes("\n".join(files["shop"]).encode("latin-1"))
    (place / "empty.csv").write_text("")
    schemas = {
        "unsaid": TOML.format(top="", name="city", kind="categorical", rest='categories = ["Ulm", "Köln", "Bonn"]'),
        "elsewhere": TOML.format(top=SOURCE, name="colour", kind="categorical", rest='categories = ["red"]'),
        "month": TOML.format(
            top=SOURCE, name="day", kind="date", rest='edges = [2024-01-01, 2025-01-01]\nformat = "%Y-%m"'
        ),
        "dated": TOML.format(top=SOURCE, name="age", kind="integer", rest='edges = [0, 99]\nformat = "%d"'),
        "text": TOML.format(top=SOURCE, name="age", kind="integer", rest='edges = "0-99"'),
        "kind": TOML.format(top=SOURCE, name="age", kind="number", rest="edges = [0, 99]"),
        "key": TOML.format(top=SOURCE, name="age", kind="integer", rest="edges = [0, 99]\nbins = 4"),
    }
    for name, content in schemas.items():
        (place / f"{name}.toml").write_text(content, encoding="utf-8")
    (place / "metadata.json").write_text(json.dumps({"columns": {}}))
    return place


def schema(*words):
    return ["schema", *words, "-o", "x.toml"]


def synthesize(*words):
    return ["synthesize", *words, "--epsilon", "4", "--method", "independent", "--out", "x"]


CASES = [
    (schema("nowhere.csv"), "no file nowhere.csv"),
    (schema("shop.csv", "nowhere.csv"), "no file nowhere.csv"),
    (schema("."), "expected a folder of Parquet files alone, which are one table, and . also holds 'bom.csv'; take it out"),
    (schema("shop.csv", "--drop", "zip", "--id", "nr"), "no column 'zip', 'nr' in the table; columns are order_no"),
    (schema("shop.csv", "--kind", "age=number"), "expected a kind in categorical, boolean"),
    (schema("shop.csv", "--kind", "age"), "expected --kind column=kind, got 'age'"),
    (schema("shop.csv", "--kind", "age=date", "--kind", "age=integer"), "names column 'age' twice"),
    (schema("shop.csv", "--kind", "city=date", "--kind", "day=integer"), "2 problems: "),
    (schema("shop.csv", "--drop", "age", "--id", "age"), "age: named by more than one of --drop, --id and --kind"),
    (schema("shop.csv", "--target", "order_no"), "the target 'order_no' is of kind id, which is not modelled"),
    (schema("shop.csv", *(f"--drop={name}" for name in HEADER.split(","))), "every column is dropped"),
    (schema("empty.csv"), "empty.csv is empty; expected a header and at least one row"),
    (schema("header.csv"), "header.csv has no rows"),
    (schema("short.csv"), "line 32 has 3 fields, the header 6"),
    (schema("long.csv"), "line 32 has 8 fields, the header 6"),
    (schema("unclosed.csv"), "line 2 has 3 fields, the header 6"),
    (schema("latin.csv"), "it is not UTF-8 text; save it as CSV in UTF-8"),
    (schema("twice.csv"), "two columns named 'age'"),
    (schema("unnamed.csv"), "column 4 of the table has no name"),
    (schema("trailing.csv"), "column 7 of the table has no name"),
    (synthesize("shop.csv", "--schema", "unsaid.toml"), "the domain of city is declared, but not by whom; add source"),
    (synthesize("shop.csv", "--schema", "elsewhere.toml"), "none of the schema's columns (colour) is in the table"),
    (synthesize("shop.csv", "--schema", "month.toml"), "that says a whole date as format, such as '%d.%m.%Y', got '%Y-%m'"),
    (synthesize("shop.csv", "--schema", "dated.toml"), "expected format 'comma' of numbers"),
    (synthesize("shop.csv", "--schema", "text.toml"), "expected a list of edges, got '0-99'"),
    (synthesize("shop.csv", "--schema", "kind.toml"), "expected kind in categorical"),
    (synthesize("shop.csv", "--schema", "key.toml"), "unknown key 'bins'"),
    (synthesize("shop.csv", "--schema", "metadata.json"), "has no columns"),
    (synthesize("shop.csv", "--schema", "shop.csv"), "expected a schema in TOML, got a table: shop.csv"),
    (synthesize("shop.csv", "--schema", "."), "cannot read the schema .: Is a directory"),
    (["plan", "--schema", "metadata.json", "--clients", "9", "--epsilon", "1"], "SDV metadata, which has no domains"),
    (["federation", "init", "x", "--name", "a", "--schema", "unsaid.toml", "--epsilon", "4"], "but not by whom"),
    (["methods", "pol"], "unknown method 'pol'"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "sentence"), CASES, ids=[" ".join(words[:4]) for words, _ in CASES])
def test_what_is_wrong_is_one_sentence(arguments, sentence, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert call(arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not (folder / "x.toml").exists()
    assert not (folder / "x").exists()


@pytest.mark.parametrize("name", ["bom", "semicolons"])
def test_tables_as_spreadsheets_write_them(name, folder, monkeypatch, tmp_path, capsys):
    """A mark at the beginning, semicolons with decimal commas: the same schema but for how numbers are written."""
    monkeypatch.chdir(folder)
    found = []
    for file in ("shop", name):
        assert call(["schema", f"{file}.csv", "-o", str(tmp_path / f"{file}.toml")]) == 0
        found.append((tmp_path / f"{file}.toml").read_text().replace('format = "comma"\n', ""))
    assert found[0] == found[1]


def test_a_method_shows_its_parameters(capsys):
    assert call(["methods", "poll"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"epsilon +given by --epsilon +\S", shown)
    assert max(map(len, shown.splitlines())) <= 80
    assert "Guarantee: epsilon-LDP" in shown
    assert call(["methods", "poll", "--json"]) == 0
    assert [fact["name"] for fact in json.loads(capsys.readouterr().out)] == ["poll"]
