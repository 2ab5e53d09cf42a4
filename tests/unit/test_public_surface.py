"""The public names, listed once more, so that a change is a decision."""

import subprocess
import sys

import populace


def test_public_names():
    assert set(populace.__all__) == {
        "BudgetError", "Clients", "Column", "Device", "Evaluation", "Guarantee", "Images", "InputError", "Plan",
        "PopulaceError", "Protocol", "Run", "Schema", "SpecError", "Table", "advise", "attack", "audit", "evaluate", "load_run",
        "load_schema", "make_table", "method", "methods", "plan", "read_images", "read_table", "rehearse", "simulate", "split",
        "split_by_column", "synthesize",
    }  # fmt: skip
    for name in populace.__all__:
        assert getattr(populace, name) is not None
    assert "simulate" in dir(populace)


def test_importing_the_package_and_its_help_needs_no_jax():
    code = "import sys, populace, populace.cli.main; sys.exit('jax' in sys.modules or 'sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_method_is_a_line_in_the_registry_and_a_page():
    """What is said of a method stands in its own file; it needs no other list."""
    from pathlib import Path

    from populace.methods.registry import BUILT_IN, built_in_facts

    pages = Path(__file__).parents[2] / "docs" / "methods"
    for fact in built_in_facts():
        assert 0 < len(fact.line) <= 36, fact.name
        assert (pages / f"{fact.page or fact.name}.md").is_file(), fact.name
    assert [fact.name for fact in built_in_facts()] == list(BUILT_IN)


def test_facts_read_from_the_source_are_those_of_the_class():
    from populace.methods.registry import BUILT_IN, built_in_facts, protocol_class

    assert list(built_in_facts()) == [protocol_class(name).facts for name in BUILT_IN]


def test_methods_are_listed_without_jax():
    code = (
        "import sys; from populace.cli.main import call; call(['methods']);"
        "sys.exit(bool({'jax', 'scipy', 'numpy', 'pyarrow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


def test_every_setting_says_what_it_means():
    from populace.methods.blocks.settings import fields_of
    from populace.methods.registry import BUILT_IN, protocol_class

    for name in BUILT_IN:
        cls = protocol_class(name)
        assert set(cls.meanings) == set(fields_of(cls)), name


def test_other_packages_offer_methods(tmp_path):
    """Listed by name, imported when used; broken ones are one sentence, and the others stay."""
    (tmp_path / "guests.py").write_text(GUESTS)
    info = tmp_path / "guests-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guests\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[populace.methods]\nguest = guests:Guest\nkrr = guests:Guest\nlost = nowhere:Lost\nodd = guests:Odd\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{USE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


GUESTS = """
import dataclasses
from populace.methods.baselines.krr import Krr

@dataclasses.dataclass(frozen=True, kw_only=True)
class Guest(Krr):
    facts = dataclasses.replace(Krr.facts, name="guest")

class Odd:
    pass
"""
USE = """
import populace as pop
from populace.cli.main import call
from populace.methods.registry import METHODS, offered

assert {"guest", "lost", "odd"} <= set(METHODS) and "guests" not in sys.modules
assert [one.name for one in offered() if one.problem] == ["krr"]
assert pop.methods.Krr.__module__.startswith("populace.")
assert call(["methods"]) == 0
assert "guests" not in sys.modules
assert pop.method("guest", epsilon=2) == pop.methods.Guest(epsilon=2)
for name, words in (("lost", "cannot be imported"), ("odd", "is no method")):
    try:
        pop.method(name, epsilon=2)
    except pop.SpecError as error:
        assert words in str(error) and "guests" in str(error), error
    else:
        raise AssertionError(name)
assert call(["methods", "guest"]) == 0
"""


def test_every_library_that_is_imported_is_declared():
    """Not left to another library to bring along."""
    import ast
    import tomllib
    from importlib.metadata import packages_distributions
    from pathlib import Path

    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = [line for name, lines in project["optional-dependencies"].items() if name != "dev" for line in lines]
    stated = [*project["dependencies"], *extras]
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
