"""Pipes and folders in place of files: refused at once, never waited for."""

import os
import signal

import pytest

from populace.cli.main import call

COMMANDS = {
    "a table to describe": ["schema", "pipe.csv", "-o", "s.toml"],
    "a Parquet file": ["schema", "pipe.parquet", "-o", "s.toml"],
    "an Arrow file": ["schema", "pipe.arrow", "-o", "s.toml"],
    "a schema": ["synthesize", "table.csv", "--schema", "pipe.toml", "--epsilon", "1", "--out", "run"],
    "a folder as a schema": ["synthesize", "table.csv", "--schema", "folder", "--epsilon", "1", "--out", "run"],
    "images": ["synthesize", "pipe.npz", "--epsilon", "1", "--out", "run"],
    "a ledger": ["synthesize", "table.csv", "--epsilon", "1", "--ledger", "pipe.json", "--out", "run"],
    "a run's folder": ["synthesize", "table.csv", "--epsilon", "1", "--out", "pipe.csv"],
    "answers": ["poll", "fit", "pipe.parquet", "--schema", "pipe.toml", "--out", "run"],
    "a run to verify": ["verify", "pipe.csv"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_what_is_no_file_ends_with_2_at_once(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text("a,b\n" + "1,2\n3,4\n" * 20)
    (tmp_path / "folder").mkdir()
    for name in ("csv", "parquet", "arrow", "toml", "npz", "json"):
        os.mkfifo(tmp_path / f"pipe.{name}")

    def late(*_):
        raise TimeoutError("waited for a pipe")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    try:
        assert call(command) == 2
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert not (tmp_path / "run").exists()
