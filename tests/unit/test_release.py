"""What is released: wheel and sources with everything inside, the same bytes from either, and a demo in a clean environment."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from populace.version import __version__

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}


def build(folder, out, *targets):
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(out), *targets]
    subprocess.run(command, cwd=folder, env=ENVIRONMENT, check=True, capture_output=True)
    return out


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(dist):
    (found,) = dist.glob("*.whl")
    return found


def test_every_file_of_the_package_is_in_the_wheel_and_nothing_else(wheel):
    here = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src/populace").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert inside == here
    for name in (
        "report/templates/style.css", "collector/pages/index.html", "runs/cost_model.json", "tables/harbour/harbour.csv",
        "tables/hospitals/hospitals.toml", "py.typed",
    ):  # fmt: skip
        assert f"populace/{name}" in inside


def test_sources_make_the_same_wheel(dist, wheel, tmp_path):
    (sources,) = dist.glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    (again,) = build(unpacked, tmp_path / "again", "--target", "wheel").glob("*.whl")
    assert (again.name, again.read_bytes()) == (wheel.name, wheel.read_bytes())
    for name in ("LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "requirements.lock", "tests/conftest.py"):
        assert (unpacked / name).is_file(), name


def test_the_version_is_the_same_wherever_it_stands(wheel):
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == __version__
    assert f"-{__version__}-" in wheel.name
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^## \[?{re.escape(__version__)}\]?", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_citation_has_what_the_format_requires():
    """Keys of CFF 1.2.0: the four required ones, none that it does not know."""
    yaml = pytest.importorskip("yaml")
    document = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert document["cff-version"] == "1.2.0"
    assert document["authors"] == [{"name": "The populace authors"}]
    assert set(document) >= {"cff-version", "message", "title", "authors"}
    assert set(document) <= {
        "abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi", "identifiers", "keywords",
        "license", "license-url", "message", "preferred-citation", "references", "repository", "repository-artifact",
        "repository-code", "title", "type", "url", "version",
    }  # fmt: skip
    assert all(isinstance(document[name], str) for name in ("message", "title", "version", "license", "abstract"))


def test_hooks_before_a_commit_are_tools_of_the_environment_and_fetch_nothing():
    yaml = pytest.importorskip("yaml")
    document = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repository["repo"] for repository in document["repos"]] == ["local"]
    hooks = {hook["id"]: hook for hook in document["repos"][0]["hooks"]}
    assert set(hooks) >= {"ruff-check", "ruff-format", "mypy", "lint-imports"}
    assert all(hook["language"] == "system" and hook["entry"].startswith(".venv/bin/") for hook in hooks.values())
    assert "://" not in (ROOT / ".pre-commit-config.yaml").read_text()


@pytest.mark.slow
def test_the_wheel_runs_the_demo_in_a_clean_environment_outside_the_tree(wheel, tmp_path):
    """As the Makefile installs: what is locked, by its hashes, then the wheel and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "clean")], check=True)
    python, elsewhere = tmp_path / "clean/bin/python", tmp_path / "elsewhere"
    elsewhere.mkdir()
    alone = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "POPULACE_", "VIRTUAL_ENV"))
    }
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*install, "--require-hashes", "-r", str(ROOT / "requirements.lock")],
        env=alone,
        check=True,
        capture_output=True,
    )
    subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], env=alone, check=True, capture_output=True)

    def populace(*arguments):
        command = [str(tmp_path / "clean/bin/populace"), "--no-cache", *arguments]
        return subprocess.run(command, cwd=elsewhere, env=alone, check=True, capture_output=True, text=True).stdout

    where = subprocess.run(
        [str(python), "-c", "import populace; print(populace.__file__)"], cwd=elsewhere, env=alone, check=True,
        capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert str(tmp_path / "clean") in where
    assert populace("--version").startswith(f"populace {__version__}\n")
    assert "census" in populace("demo", "--out", "demo")
    for name in ("report.html", "privacy.html", "privacy.json", "synthetic.parquet"):
        assert (elsewhere / "demo/census" / name).stat().st_size > 1000
    assert populace("verify", "demo/census")
    (schema,) = (elsewhere / "demo/hospitals").glob("*.toml")
    shape = ("--schema", str(schema), "--clients", "3", "--records-per-client", "9000")
    assert "seconds" in populace("plan", *shape, "--epsilon", "1", "--json")
