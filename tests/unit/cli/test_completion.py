"""What the shell offers behind TAB, and what `populace --version` says: both at once, without loading JAX."""

import os
import platform
import re
import resource
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from populace.cli import completion, versions
from populace.cli.main import call
from populace.methods.registry import BUILT_IN
from populace.papers.registry import BENCHMARKS
from populace.version import __version__

QUICK = 0.3  # seconds that a key press, or --version, may take on an idle machine


def complete(line, folder, shell="bash"):
    """What a shell gets for a line whose last word is being typed, from a process of its own, and whether JAX was loaded."""
    words = line.split(" ")
    environment = {
        **os.environ,
        "_POPULACE_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "_TYPER_COMPLETE_ARGS": line,
    }
    code = (
        "import sys; sys.argv = ['populace']\nfrom populace.cli.main import call\n"
        "try:\n    call([])\nfinally:\n    print('jax' in sys.modules, 'rich' in sys.modules, file=sys.stderr)"
    )
    environment["COMP_CWORD"] = str(len(words) - 1)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stderr.split()[0] == "False"
    return done.stdout.splitlines()


@pytest.fixture
def folder(tmp_path):
    for name in ("run", "ruined", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "run/run.json").write_text("{}")
    (tmp_path / "other/run.json").write_text("{}")
    (tmp_path / "runs.csv").write_text("a\n1\n")
    return tmp_path


def test_the_shell_completes_commands_methods_benchmarks_trust_and_runs(folder):
    assert complete("populace syn", folder) == ["synthesize"]
    assert complete("populace synthesize people.csv --method c", folder) == [
        name for name in BUILT_IN if name.startswith("c")
    ]
    assert complete("populace evaluate run oth", folder) == ["other"]
    assert "--epsilon" in complete("populace plan --eps", folder)
    assert complete("populace advise --trust s", folder) == ["silo", "secure-sum"]
    assert complete("populace rehearse --trust s", folder) == ["silo", "secure-sum"]


def test_a_description_stands_beside_each_method_where_the_shell_shows_one(folder):
    shown = "\n".join(complete("populace methods cen", folder, "zsh"))
    assert '"census":"' in shown
    assert '"central-vae":"' in shown
    assert "NOT PRIVATE" in shown


def test_only_what_begins_so_is_offered(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert completion.runs("ru") == ["run"]
    assert completion.runs(f"{folder}/o") == [f"{folder}/other"]
    assert completion.runs("nowhere/r") == []
    assert [name for name, _ in completion.runs_and_methods("o")] == ["other"]
    assert [name for name, _ in completion.runs_and_methods("")][:2] == ["other", "run"]
    assert completion.benchmarks("") == list(BENCHMARKS)
    assert completion.benchmarks("wae-") == [name for name in BENCHMARKS if name.startswith("wae-")]
    assert [name for name, _ in completion.trust("s")] == ["silo", "secure-sum"]


def test_the_script_for_the_shell_is_shown():
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m populace --show-completion; true"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "COMPREPLY" in done.stdout


def test_version_says_what_a_report_of_a_bug_needs(capsys, monkeypatch):
    assert call(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"populace {__version__}"
    assert f"python {platform.python_version()} (CPython)" in lines
    for name in ("jax", "numpy", "pyarrow", "dp-accounting", "scikit-learn"):
        assert f"{name} {version(name)}" in lines
    assert f"extra papers: matplotlib {version('matplotlib')}" in lines
    monkeypatch.setitem(versions.EXTRAS, "papers", ("matplotlib", "no-such-package"))
    assert any("lacks no-such-package" in line and "populace[papers]" in line for line in versions.version_lines())


def test_every_extra_of_the_project_is_named():
    wanted = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(versions.EXTRAS) == set(wanted) - {"dev", "docs"}
    for extra, names in versions.EXTRAS.items():
        assert set(names) <= {re.match(r"[\w-]+", one)[0] for one in wanted[extra]}


def test_version_is_quick_and_loads_no_library():
    code = "import sys; from populace.cli.main import call; call(['--version']); print({'jax', 'numpy'} & set(sys.modules))"
    seconds = []
    for _ in range(3):
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime)
    assert done.stdout.splitlines()[-1] == "set()"
    assert min(seconds) < 2 * QUICK  # of processor time; other tests slow that too
