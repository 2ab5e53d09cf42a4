"""Every command of the README's first five minutes works as it stands there."""

import shlex
import shutil
from pathlib import Path

import pytest

from populace.cli.main import call

ROOT = Path(__file__).parents[3]


def commands():
    section = (ROOT / "README.md").read_text().partition("## The first five minutes")[2].partition("From Python:")[0]
    lines = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    return [shlex.split(line, comments=True) for line in lines]


def test_the_readme_shows_the_commands_people_start_with():
    shown = {words[1] for words in commands() if words[0] == "populace"}
    assert shown == {
        "rehearse",
        "advise",
        "methods",
        "schema",
        "plan",
        "synthesize",
        "sample",
        "audit",
        "attack",
        "evaluate",
        "verify",
    }


@pytest.mark.slow
def test_every_command_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in commands():
        if words[0] == "cp":
            shutil.copy(ROOT / words[1], words[2])
        elif words[0] == "populace":
            assert call(words[1:]) == 0, words
    assert {path.name for path in Path("run").iterdir()} >= {
        "audit.json",
        "attacks.json",
        "metrics.json",
        "report.html",
    }


@pytest.mark.slow
def test_the_python_of_the_readme_works(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "src/populace/tables/harbour/harbour.csv", "people.csv")
    assert call(["schema", "people.csv", "-o", "people.toml"]) == 0
    code = (ROOT / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102
    assert "1e-05)-DP for one row of the table" in capsys.readouterr().out
    assert Path("report.html").is_file()
