"""The documentation: complete, its links lead somewhere, its figures are those of the results. `make docs` builds it."""

import json
import re
import sys
from pathlib import Path
from statistics import mean

import pytest
import yaml

import populace
from populace.cli.main import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = {"changelog.md", "contributing.md", "reference/commands.md"}
PAGES = sorted(DOCS.rglob("*.md"))
WRITTEN = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


@pytest.fixture(scope="module", autouse=True)
def tools():
    """The tools of the site, which MkDocs imports by their own names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        yield
    for name in ("command_reference", "check_site", "site_hooks"):
        sys.modules.pop(name, None)


def in_navigation(entry):
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in in_navigation(part)]


def test_every_page_is_in_the_navigation_once():
    pages = in_navigation(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(pages) == sorted({page.relative_to(DOCS).as_posix() for page in PAGES} | GENERATED)


def test_the_site_is_strict_and_asks_nobody_else():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert site["theme"]["font"] is False
    for kind in site["validation"].values():
        assert set(kind.values()) == {"warn"}
    assert "--strict" in (ROOT / "Makefile").read_text().partition("\ndocs: ")[2].partition("\n\n")[0]
    assert "make docs" in (ROOT / ".ci" / "run").read_text()


def test_the_command_reference_has_every_command_with_every_option():
    import command_reference

    page = command_reference.reference()
    sections = {part.split("`")[0]: part for part in re.split(r"^##+ `", page, flags=re.M)[1:]}
    names = {f"populace {one.name}": one.callback for one in app.registered_commands}
    for group in app.registered_groups:
        names[f"populace {group.name}"] = None
        for one in group.typer_instance.registered_commands:
            names[f"populace {group.name} {one.name or one.callback.__name__}"] = one.callback
    assert len(names) > 35
    assert set(sections) == set(names) | {"populace"}
    for name, callback in names.items():
        assert len(sections[name]) > len(name) + 40
        declared = (
            [] if callback is None else [one for one in (callback.__defaults__ or ()) if hasattr(one, "param_decls")]
        )
        for option in (text for one in declared for text in one.param_decls or () if not getattr(one, "hidden", False)):
            assert all(part in sections[name] for part in option.split("/")), (name, option)


def anchors(page):
    """The anchors of a page's headings, as a forge and MkDocs make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for heading in re.findall(r"^#+ (.+)$", text, re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        yield re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_to_headings_that_are_there(page):
    text = re.sub(r"^```.*?^```|^    .*$", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if found.is_relative_to(DOCS) and found.relative_to(DOCS).as_posix() in GENERATED:
            continue
        assert found.exists(), target
        assert not anchor or anchor in set(anchors(found)), target


def test_the_python_page_has_every_public_name():
    page = (DOCS / "reference" / "python.md").read_text()
    shown = set(re.findall(r"^::: populace\..*?\.(\w+)$", page, re.M))
    assert shown | {"methods"} == set(populace.__all__)


def test_pages_that_the_code_names_are_there():
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.js"), *(ROOT / "tools").glob("*.py")]
    named = {name for path in sources for name in re.findall(r"docs/[\w/-]+\.(?:md|json)\b", path.read_text())}
    assert len(named) >= 10
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def cells(name, **where):
    found = json.loads((DOCS / "results" / f"{name}.json").read_text())["cells"]
    return [one for one in found if all(one["cell"].get(key) == value for key, value in where.items())]


def figure(name, key, **where):
    """A mean over seeds, as pages write it."""
    return f"{mean(one[key] for one in cells(name, **where)):.3f}".lstrip("0")


def test_the_figures_of_the_decision_page_are_those_of_the_results():
    page = (DOCS / "which-method.md").read_text()
    for epsilon in (1, 4):
        for key, line in (("two_way", "two-way distance"), ("auc", "AUC")):
            adult = [
                figure("census-adult9", key, scale="full", epsilon=float(epsilon), silos=6, split="alike", **trust)
                for trust in (
                    {"part": "epsilon", "trust": "silo"},
                    {"part": "secure sum", "colluders": 0},
                    {"part": "epsilon", "trust": "central"},
                )
            ]
            adult.append(figure("poll-adult9", key, part="figures", target="schema", epsilon=epsilon))
            assert (
                f"| {line} | {' | '.join(adult)} |"
                in page.partition(f"| epsilon {epsilon} | one")[2].partition("\n\n")[0]
            )
    for method in ("samprivsyn", "samprivsyn, as published", "calm", "independent", "lopub", "locop", "krr"):
        local = [figure("local-adult9", key, part="epsilon", method=method, epsilon=4) for key in ("two_way", "auc")]
        line = next(one for one in page.splitlines() if one.startswith(f"| [`{method.replace(',', '`,', 1)}"))
        assert line.endswith(f") | {' | '.join(local)} |"), method
    for table, title in (("adult", "Adult, 15"), ("bank", "Bank, 17"), ("diabetes", "Diabetes, 48")):
        raw = [
            figure(f"census-{table}", "boosting", part="epsilon", trust=trust, epsilon=1.0)
            for trust in ("silo", "central")
        ]
        raw.append(figure(f"tables-{table}", "auc", method="poll", schema="proposed", epsilon=4.0))
        real = figure(f"tables-{table}", "auc", method="real rows")
        assert f"| {title} columns ({real}) | {' | '.join(raw)} |" in page
    for epsilon in (1, 10):
        images = [figure("moments-mnist", "cnn", trust=trust, epsilon=float(epsilon)) for trust in ("silo", "central")]
        assert f"| epsilon {epsilon} | {' | '.join(images)} |" in page


def test_the_site_check_finds_what_is_loaded_from_elsewhere_and_what_is_missing(tmp_path):
    import check_site

    (tmp_path / "style.css").write_text("body { color: red }")
    (tmp_path / "index.html").write_text('<link rel="stylesheet" href="style.css"><a href="index.html#top">x</a>')
    assert list(check_site.problems(tmp_path)) == []
    (tmp_path / "style.css").write_text("@font-face { src: url(//fonts.example/a.woff) }")
    (tmp_path / "page.html").write_text(
        '<script src="https://cdn.example/a.js"></script><img src="gone.png"><a href="gone.html">x</a>'
        '<link rel="preconnect" href="https://fonts.example"><a href="https://example.org">fine</a>'
    )
    found = list(check_site.problems(tmp_path))
    assert [line.split(" ", 1)[1] for line in found] == [
        "loads https://cdn.example/a.js from elsewhere", "loads gone.png, which is not there",
        "loads https://fonts.example from elsewhere", "leads to gone.html, which is not there",
        "loads //fonts.example/a.woff from elsewhere",
    ]  # fmt: skip


def test_links_to_files_outside_the_docs_become_pages_or_names():
    import site_hooks

    text = "[c](../../CONTRIBUTING.md#a), [s](../../src/populace/api.py), [f](../results), [m](census.md), [w](https://x.org)"
    assert site_hooks.rebased(text, "docs/methods/poll.md", "methods") == (
        "[c](../contributing.md#a), `src/populace/api.py`, `docs/results`, [m](census.md), [w](https://x.org)"
    )
    assert site_hooks.rebased("[d](docs/ledger.md#x)", "", ".") == "[d](ledger.md#x)"
