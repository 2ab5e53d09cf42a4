"""Check the built documentation: nothing is loaded from elsewhere, and every link of a page leads to a file that is there.

    python tools/check_site.py [site]     exit code 1, and a line for each problem, if there is one

MkDocs itself checks links between pages and their anchors; this looks at what was written, whoever wrote it.
"""

from __future__ import annotations

import re
import sys
import urllib.parse
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

ELSEWHERE = re.compile(r"^(https?:)?//", re.I)
#: What a browser loads by itself: element, attribute.
LOADED = {
    ("script", "src"), ("img", "src"), ("img", "srcset"), ("iframe", "src"), ("source", "src"), ("source", "srcset"),
    ("video", "src"), ("audio", "src"), ("embed", "src"), ("object", "data"), ("use", "href"), ("image", "href"),
}  # fmt: skip
#: A `link` of these kinds is not loaded: it names a page.
NAMES_A_PAGE = {"canonical", "prev", "next", "alternate"}


class Page(HTMLParser):
    """What a page loads, and where it leads."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.loads += [values[name] for name in values if (tag, name) in LOADED]
        if tag == "link" and not NAMES_A_PAGE & set(values.get("rel", "").split()):
            self.loads.append(values.get("href", ""))
        if tag == "a" and "href" in values:
            self.leads.append(values["href"])


def problems(site: Path) -> Iterator[str]:
    """A sentence for each thing that is wrong."""
    pages = sorted(site.rglob("*.html"))
    if not pages:
        yield f"{site} has no page: build it with `make docs`"
    for path in pages:
        page = Page()
        page.feed(path.read_text(encoding="utf-8"))
        name = path.relative_to(site)
        for target in page.loads:
            if ELSEWHERE.match(target):
                yield f"{name} loads {target} from elsewhere"
            elif not _there(path, target, site):
                yield f"{name} loads {target}, which is not there"
        yield from (
            f"{name} leads to {target}, which is not there" for target in page.leads if not _there(path, target, site)
        )
    for path in sorted(site.rglob("*.css")):
        for target in re.findall(
            r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", path.read_text(encoding="utf-8")
        ):
            if ELSEWHERE.match(target[0] or target[1]):
                yield f"{path.relative_to(site)} loads {target[0] or target[1]} from elsewhere"


def _there(page: Path, target: str, site: Path) -> bool:
    """Whether a target inside the site is a file; what lies elsewhere, and what is no file at all, is not looked for."""
    parts = urllib.parse.urlsplit(target)
    if parts.scheme or parts.netloc or not parts.path:
        return True
    start = site if parts.path.startswith("/") else page.parent
    path = start / urllib.parse.unquote(parts.path).lstrip("/")
    return path.is_file() or (path / "index.html").is_file()


def main() -> int:
    site = Path(sys.argv[1] if len(sys.argv) > 1 else "site")
    found = list(problems(site))
    for line in found:
        print(line)
    if not found:
        print(f"{site}: {len(list(site.rglob('*.html')))} pages, nothing from elsewhere, no link without a file")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
