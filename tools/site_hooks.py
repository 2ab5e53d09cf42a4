"""What MkDocs calls while it builds the site: pages written from something else, and links that leave `docs/`."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import command_reference
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
#: Files at the root of the repository that are pages of the site.
ROOT_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "README.md": "index.md"}
GENERATED = ("changelog.md", "contributing.md", "reference/commands.md")
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]\n]+)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the command reference and the pages that are kept at the root of the repository."""
    files.append(File.generated(config, "reference/commands.md", content=command_reference.reference()))
    for source in ("CHANGELOG.md", "CONTRIBUTING.md"):
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, ROOT_PAGES[source], content=rebased(text, "", ".")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to files outside `docs/` into links to their pages, or into plain names where they have none."""
    if page.file.src_uri in GENERATED:
        return markdown
    return rebased(markdown, posixpath.join("docs", page.file.src_uri), posixpath.dirname(page.file.src_uri))


def rebased(markdown: str, source: str, folder: str) -> str:
    """The text with links of a file of the repository rewritten for a page in a folder of the site.

    `source` is the file's path in the repository (for a file at the root: nothing), `folder` is the page's, in the site.
    """

    def one(match: re.Match[str]) -> str:
        target, anchor = match["target"], match["anchor"] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        inside = ROOT_PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if inside is None or (ROOT / path).is_dir():  # no page of the site: its name has to do
            return match["text"] if "`" in match["text"] else f"`{path}`"
        return f"[{match['text']}]({posixpath.relpath(inside, folder or '.')}{anchor})"

    return LINK.sub(one, markdown)
