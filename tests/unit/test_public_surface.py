"""The public names, listed once more, so that a change is a decision."""

import subprocess
import sys

import populace


def test_public_names():
    assert set(populace.__all__) == {
        "BudgetError", "Clients", "Column", "Evaluation", "Guarantee", "Images", "Independent", "InputError",
        "PopulaceError", "Run", "Schema", "Table", "evaluate", "load_run", "load_schema", "make_table", "read_images",
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

    from populace.protocols.registry import METHODS

    contracts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]["importlinter"]
    by_name = {contract["name"]: contract for contract in contracts["contracts"]}
    modules = {target.partition(":")[0] for target in METHODS.values()}
    assert set(by_name["papers never import each other"]["modules"]) == modules
    listed = set(by_name["engines import protocols.base, never a paper"]["forbidden_modules"])
    assert listed == modules | {"populace.protocols.registry"}
