"""The public names, listed once more, so that a change is a decision."""

import subprocess
import sys

import populace


def test_public_names():
    assert set(populace.__all__) == {
        "BudgetError", "Clients", "Column", "Evaluation", "Guarantee", "Images", "Independent", "InputError",
        "Poll", "PopulaceError", "Run", "Schema", "Table", "evaluate", "load_run", "load_schema", "make_table", "read_images",
        "read_table", "simulate", "split", "split_by_column",
    }  # fmt: skip
    for name in populace.__all__:
        assert getattr(populace, name) is not None
    assert "simulate" in dir(populace)


def test_importing_the_package_and_its_help_needs_no_jax():
    code = "import sys, populace, populace.cli.main; sys.exit('jax' in sys.modules or 'sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_import_contracts_name_every_method():
    """A new method must be listed where the contracts keep methods apart."""
    import tomllib
    from pathlib import Path

    from populace.methods.registry import METHODS

    contracts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]["importlinter"]
    by_name = {contract["name"]: contract for contract in contracts["contracts"]}
    modules = {target.partition(":")[0] for target in METHODS.values()}
    assert set(by_name["papers never import each other"]["modules"]) == modules
    listed = set(by_name["engines import protocols.base, never a paper"]["forbidden_modules"])
    assert listed == modules | {"populace.methods.registry"}


def test_every_library_that_is_imported_is_declared():
    """Not left to another library to bring along."""
    import ast
    import tomllib
    from importlib.metadata import packages_distributions
    from pathlib import Path

    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    stated = [*project["dependencies"], *project["optional-dependencies"]["federation"]]
    declared = {_plain(line.partition(">")[0]) for line in stated}
    imported = set()
    for path in (root / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(str(node.module).partition(".")[0])
    found = packages_distributions()
    libraries = {_plain(found[name][0]) for name in imported - {"populace"} if name in found}
    assert {"numpy", "threadpoolctl"} <= libraries
    assert libraries - declared == set()


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(".", "-")
