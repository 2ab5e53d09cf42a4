"""Sentences about what somebody gave: no password in them, wherever an address or a setting was given by mistake."""

import pytest

from populace.cli.main import call
from populace.errors import InputError, readable

PLAIN = "hunter2"
ODD = f"{PLAIN}/x@y"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (f"got 'postgresql+psycopg2://ann:{ODD}@host/db'", "got 'postgresql+psycopg2://ann:***@host/db'"),
        (f"no ledger mysql:/ann:{PLAIN}@host/db; begin one", "no ledger mysql:/ann:***@host/db; begin one"),
        (f"got 'ann:{PLAIN}@host'", "got 'ann:***@host'"),
        (f"got 'mysql://ann:{PLAIN} two@host/db'", "got 'mysql://ann:***@host/db'"),
        (f"got 'host=h password={PLAIN}'; give", "got 'host=h password=***'; give"),
        (f"got \"host=h password='{PLAIN} b' user=u\"", 'got "host=h password=*** user=u"'),
        (f"x?sslmode=a&sslpassword={PLAIN}&b=1", "x?sslmode=a&sslpassword=***&b=1"),
        (f"PGPASSWORD={PLAIN}", "PGPASSWORD=***"),
    ],
)
def test_no_sentence_repeats_a_password(given, shown):
    error = InputError(given)
    assert str(error) == readable(given) == shown
    assert PLAIN not in repr(error)


@pytest.mark.parametrize(
    "sentence",
    [
        "no collector at http://127.0.0.1:8000/study; ask ann@clinic.org",
        "postgresql://ann@host:5432/db?password_from=WARD takes its password from the variable WARD",
        "expected --where as column=value, got 'ward:a'; a share is COLUMN=VALUE:0.3",
        "set PGPASSWORD in the environment; 12:30 and a/b:c@d stay",
    ],
)
def test_other_sentences_stay_as_they_are(sentence):
    assert str(InputError(sentence)) == sentence


@pytest.mark.parametrize(
    "arguments",
    [
        ["sample", "run", "--rows", "5", "-o", f"postgresql+psycopg2://ann:{PLAIN}@host/db", "--table", "t"],
        ["sample", "run", "--rows", "5", "-o", f"postgresql+psycopg2://ann:{PLAIN}@host"],
        ["schema", f"host=127.0.0.1 password={PLAIN}", "-o", "x.toml"],
        ["ledger", "show", f"postgresql+psycopg2://ann:{PLAIN}@host/db"],
        ["advise", "--data", f"postgresql+psycopg2://ann:{PLAIN}@host/db"],
        ["synthesize", "a.csv", "--epsilon", "1", "--out", "run", "--ledger", f"postgresql://ann:{PLAIN}@host/db"],
        ["synthesize", "a.csv", "--epsilon", f"password={PLAIN}", "--out", "run"],
        ["verify", f"postgresql://ann:{PLAIN}@host/db"],
        ["evaluate", f"postgresql://ann:{PLAIN}@host/db", "--real", "a.csv"],
        ["evaluate", "run", "--real", f"postgresql://ann:{PLAIN}@host/db"],
    ],
)
def test_no_command_repeats_a_password(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("a,b\n" + "1,x\n2,y\n" * 40)
    assert call(arguments) == 2
    said = capsys.readouterr()
    assert said.err.startswith("populace: ")
    assert PLAIN not in said.out + said.err
    assert [one.name for one in tmp_path.iterdir()] == ["a.csv"]


def test_where_nothing_can_be_booked_no_row_is_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "1")
    assert call(["synthesize", "postgresql://127.0.0.1:9/d", "--table", "t", "--epsilon", "1", "--out", "run"]) == 2
    assert "--ledger FILE" in capsys.readouterr().err
