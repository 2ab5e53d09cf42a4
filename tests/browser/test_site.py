"""The documentation in a real browser, opened as files: it is searched, fits a telephone, and loads nothing from elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PAGES = (
    "index", "start", "which-method", "guides/hospitals", "methods/census", "deployment", "reference/python",
    "reference/commands", "papers",
)  # fmt: skip
#: What sticks out of the page on the right, unless it scrolls by itself.
WIDE = """[...document.querySelectorAll('.md-content *')].filter(e => {
  const box = e.getBoundingClientRect();
  if (!box.width || box.right <= document.documentElement.clientWidth + 1) return false;
  for (let up = e; up; up = up.parentElement) if (/auto|scroll|hidden/.test(getComputedStyle(up).overflowX)) return false;
  return true;
}).map(e => e.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_pages_are_readable_and_load_nothing_from_elsewhere(width, scheme, site, browser):
    for name in PAGES:
        browser.open((site / f"{name}.html").as_uri(), width=width, scheme=scheme)
        browser.wait_for("document.querySelector('.md-content h1') !== null")
        if folder := os.environ.get("POPULACE_SCREENSHOTS"):
            picture = Path(folder) / f"site-{name.replace('/', '-')}-{width}-{scheme}.png"
            picture.write_bytes(browser.picture(whole=False))
        assert browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), name
        assert browser.evaluate(WIDE) == [], name
        assert [one for one in browser.requests() if not one.startswith(("file:", "data:", "about:", "blob:"))] == []
        assert browser.complaints() == [], name
        shown = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, shown[4:-1].split(","))) < 380) == (scheme == "dark"), (name, shown)


@pytest.mark.parametrize(
    ("words", "page"), [("colluders", "secure-sums"), ("worst KS", "evaluation"), ("revoke", "commands")]
)
def test_the_search_finds_pages_without_a_server(words, page, site, browser):
    browser.open((site / "index.html").as_uri(), width=1280)
    browser.wait_for("document.querySelector('[data-md-component=search-query]') !== null")
    browser.evaluate(f"""(() => {{
      document.querySelector('#__search').click();
      const field = document.querySelector('[data-md-component=search-query]');
      field.focus(); field.value = '{words}';
      for (const kind of ['input', 'keyup']) field.dispatchEvent(new Event(kind, {{ bubbles: true }}));
    }})()""")
    script = "[...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
    found = browser.wait_for(f"(links => links.length ? links : null)({script})", seconds=30)
    assert any(page in link for link in found), found
    assert browser.complaints() == []
