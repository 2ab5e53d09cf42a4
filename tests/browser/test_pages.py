"""The pages in a real browser: no complaint, every chart there, nothing wider than the screen, nothing loaded from elsewhere.

`make test-browser` runs them and requires a browser.
"""

import base64
import csv
import hashlib
import json
import os
import re
import shutil

import jax
import numpy as np
import pytest

from populace.errors import DataError
from populace.evaluation import images, prediction
from populace.evaluation.evaluate import evaluate_tables
from populace.methods.baselines.marginals import Marginals
from populace.privacy.events import Gaussian, PoissonSampled, Repeated, to_json
from populace.privacy.guarantee import Guarantee
from populace.report.page import evaluate_runs, render_run
from populace.report.statement import statement
from populace.report.templating import environment
from populace.runs.run import versions
from populace.tables.embedded import harbour
from populace.tables.files import write_json
from populace.tables.images import Images, write_images

pytestmark = pytest.mark.slow
MOST_BYTES = 3_000_000
WIDTHS = (375, 1280)
#: What must hold of every chart: it has a size, and lies inside the page.
LOST = """[...document.querySelectorAll('.chart')].filter(c => {
  const closed = c.closest('details:not([open])'), box = c.getBoundingClientRect();
  const right = document.documentElement.clientWidth + 1;
  return !closed && (box.width < 60 || box.height < 15 || box.left < -1 || box.right > right);
}).length"""
#: Text of a chart that sticks out of it on the left or right, where it would be cut off.
CUT = """[...document.querySelectorAll('svg.chart text')].filter(t => {
  if (t.closest('details:not([open])')) return false;
  const box = t.getBoundingClientRect(), chart = t.closest('svg').getBoundingClientRect();
  return box.left < chart.left - 2 || box.right > chart.right + 2 || box.bottom > chart.bottom + 3;
}).map(t => t.textContent)"""
#: The smallest letters of any chart, as they show.
SMALLEST = """Math.min(...[...document.querySelectorAll('svg.chart text')].map(t => {
  if (t.closest('details:not([open])')) return Infinity;
  const chart = t.closest('svg'), scale = chart.getBoundingClientRect().width / chart.viewBox.baseVal.width;
  return parseFloat(getComputedStyle(t).fontSize) * scale;
}))"""
#: How far the faintest text of the page is from what lies behind it (WCAG's contrast ratio).
FAINTEST = """(() => {
  const linear = x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4;
  const tone = c => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => linear(x / 255));
    return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
  const paper = tone(getComputedStyle(document.body).backgroundColor);
  return Math.min(...[...document.querySelectorAll('p, li, dd, dt, td, th, figcaption, a, .words, .beside')].map(e => {
    const ink = tone(getComputedStyle(e).color); return (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05); }));
})()"""


def guarantee(**changes):
    values = {
        "epsilon": 2.0,
        "unit": "client",
        "neighbours": "replace",
        "trust": "local",
        "mechanism": "made up for a test",
    }
    return Guarantee(
        **(values | {"derivation": ("one message <each>",), "assumptions": ("simulated",)} | changes)
    ).to_json()


def details(method, seed=None):
    return {
        "status": "finished", "method": method, "clients": 400, "rounds": 1, "versions": versions(), "digest": "x",
        "spec": {"data": "people.csv", "epsilon": 2.0, "seed": seed, "settings": {}, "target": "owns_home"},
        "seconds": {"reading": 0.1, "training": 0.2, "sampling": 0.1, "total": 0.4},
        "traffic": {"bytes_from_clients": 800, "bytes_to_clients": 400, "messages": 400},
    }  # fmt: skip


class WithErrors:
    """A generator that states standard errors."""

    def __init__(self, sizes):
        self.sizes = sizes

    def deviations(self, columns):
        return np.full([self.sizes[c] for c in columns], 0.01)


AUDIT = {"claimed": {}, "rows": [
    {"what": what, "claimed_epsilon": 2.0, "measured_epsilon": found, "confidence": 0.95, "samples": 9000, "flagged": found > 2}
    for what, found in (("one message", 1.7), ("planted", 4.1))
]}  # fmt: skip
ATTACKS = {
    "membership": {"accuracy": 0.52, "low": 0.47, "high": 0.57, "attacker": "forest", "targets": 20, "models": 40,
                   "rows": [{"attacker": "forest", "accuracy": 0.52}]},
    "attribute": {"column": "boat", "difference": -0.02, "low": -0.05, "high": 0.01, "rows": [{"attacker": "forest"}]},
    "distances": {"share_of_members_nearer": 0.49, "low": 0.4, "high": 0.6, "members": {"rows": 9}}, "notes": ["few targets"],
}  # fmt: skip


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A run with everything on its page, a run with nothing beside it, a comparison, and a run of images."""
    with pytest.MonkeyPatch.context() as patch:  # a page looks the same with smaller models
        patch.setattr(prediction, "TREES", 10)
        patch.setattr(prediction, "STEPS", 60)
        patch.setattr(images, "CNN_STEPS", 40)
        return _write_pages(tmp_path_factory.mktemp("pages"))


def _write_pages(folder):
    real = harbour().take(np.arange(400))
    synthetic = harbour().take(np.arange(400, 900))
    for name, epsilon, seed in (("first", 1.0, None), ("second", 2.0, None), ("third", 2.0, 3)):
        _write_run(folder / name, real, guarantee(epsilon=epsilon, seeded=seed is not None), seed)
    real.save(folder / "real.parquet")
    evaluate_runs([folder / "first"], str(folder / "real.parquet"))
    evaluate_runs([folder / "first", folder / "second", folder / "third"], str(folder / "real.parquet"))
    evaluated = evaluate_tables({"synthetic": synthetic}, real, target="owns_home")["synthetic"]
    run = {
        "name": "<everything>", "details": details("made-up"), "privacy": guarantee(read_from_data=("district",)),
        "metrics": evaluated.document | {"cost": {"traffic": {"left_out": "not counted"}, "time": {"left_out": "no"}}},
        "pairs": evaluated.pairs, "values": evaluated.values, "generator": WithErrors(real.schema.sizes),
        "command": "populace synthesize <x>", "audit": AUDIT, "attacks": ATTACKS,
    }  # fmt: skip
    (folder / "everything.html").write_text(render_run("everything <b>", run, real.schema), encoding="utf-8")
    _write_images(folder)
    shutil.copy(folder / "first" / "comparison.html", folder / "comparison.html")
    return folder


def _write_run(folder, real, privacy, seed):
    folder.mkdir()
    ways = [
        np.bincount(codes, minlength=size) / len(real)
        for codes, size in zip(real.codes.T, real.schema.sizes, strict=True)
    ]
    generator = Marginals(schema=real.schema, tables=tuple(ways))
    generator.save(folder)
    generator.sample(300, jax.random.key(0)).save(folder / "synthetic.parquet")
    write_json(folder / "privacy.json", privacy)
    write_json(folder / "run.json", details("marginals", seed))


def _write_images(folder):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    x = rng.integers(0, 255, (60, 8, 8, 3)).astype(np.uint8)
    run = folder / "pictures"
    run.mkdir()
    write_images(Images(x=x, y=y, classes=3), folder / "real.npz")
    write_images(Images(x=x[:40], y=np.minimum(y[:40], 1), classes=3), run / "synthetic.npz")
    write_json(run / "privacy.json", guarantee(epsilon=float("inf"), trust="not-private", reason="made up"))
    write_json(run / "run.json", details("made-up") | {"classes": 3})
    evaluate_runs([run], str(folder / "real.npz"))
    shutil.copy(run / "report.html", folder / "images.html")


PAGES = ("everything", "comparison", "images")
CHARTS = {"everything": 11 + 4 + 3 * 4 + 3, "comparison": 8 + 3, "images": 5 + 2}


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_loads_without_complaint_and_shows_every_chart(browser, pages, name, width, scheme):
    browser.open((pages / f"{name}.html").as_uri(), width=width, scheme=scheme)
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:"))] == []
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert browser.evaluate("document.querySelectorAll('.chart').length") >= CHARTS[name]
    assert browser.evaluate(LOST) == 0
    assert browser.evaluate(CUT) == []
    assert browser.evaluate(SMALLEST) > 7.5
    assert browser.evaluate(FAINTEST) > 4.5
    if os.environ.get("POPULACE_SCREENSHOTS"):
        out = os.environ["POPULACE_SCREENSHOTS"]
        with open(f"{out}/{name}-{width}-{scheme}.png", "wb") as file:
            file.write(browser.picture())


@pytest.mark.parametrize("name", PAGES)
def test_a_printed_page_unfolds_and_fits(browser, pages, name):
    browser.open((pages / f"{name}.html").as_uri(), width=794, scheme="dark", media="print")
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth + 1")
    assert browser.evaluate(
        "[...document.querySelectorAll('details')].every(d => d.offsetHeight > d.firstElementChild.offsetHeight + 20)"
    )
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.pdf().startswith(b"%PDF")


def test_links_inside_the_page_lead_somewhere(browser, pages):
    browser.open((pages / "everything.html").as_uri(), width=1280)
    targets = browser.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    inside = [target for target in targets if target.startswith("#")]
    assert len(inside) >= 10
    assert all(browser.evaluate(f"!!document.querySelector({json.dumps(target)})") for target in inside)
    assert {target.partition(",")[0] for target in set(targets) - set(inside)} == {"data:text/csv;charset=utf-8;base64"}
    for page, statements in (("report", {"privacy.html"}), ("comparison", {"privacy.html"})):
        browser.open((pages / "first" / f"{page}.html").as_uri(), width=1280)
        targets = browser.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
        outside = {target for target in targets if not target.startswith(("#", "data:"))}
        assert outside == statements
        assert all((pages / "first" / target).is_file() for target in outside)


def test_what_is_behind_the_figures_is_saved_by_a_click_from_a_file(browser, pages, tmp_path):
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.open((pages / "everything.html").as_uri(), width=1280)
    for name in ("values", "metrics", "columns", "pairs"):
        browser.evaluate(f"document.querySelector('a[download=\"{name}.csv\"]').click()")
        browser.wait_for("new Promise(done => setTimeout(() => done(true), 300))")
    files = {
        path.name: list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        for path in tmp_path.glob("*.csv")
    }
    assert set(files) == {"values.csv", "metrics.csv", "columns.csv", "pairs.csv"}
    assert len(files["pairs.csv"]) == 11 * 10 / 2
    real = harbour().take(np.arange(400)).to_pandas()
    shares = {row["value"]: float(row["real"]) for row in files["columns.csv"] if row["column"] == "district"}
    assert shares == pytest.approx(dict(real["district"].value_counts(normalize=True)), abs=1e-5)
    age = {row["rows"]: float(row["mean"]) for row in files["values.csv"] if row["column"] == "age"}
    assert age["real"] == pytest.approx(real["age"].mean(), rel=1e-4)


@pytest.mark.parametrize("page", ["report", "pictures"])
def test_the_summary_is_copied_with_a_button_and_selected_by_a_click(browser, pages, page):
    where = pages / "pictures/report.html" if page == "pictures" else pages / "first/report.html"
    browser.open(where.as_uri(), width=1280)
    boxes = browser.evaluate("[...document.querySelectorAll('.paste pre')].map(box => box.textContent)")
    assert len(boxes) == 2
    assert all(4 <= len(box.splitlines()) <= 10 for box in boxes)
    assert "SHA-256" in boxes[0]
    assert boxes[1].startswith("KEEP WITH THE DATA, do not publish")
    buttons = browser.evaluate("[...document.querySelectorAll('.paste button')].map(b => b.checkVisibility())")
    assert buttons == [True, True]
    for number, box in enumerate(boxes):
        browser.evaluate(f"document.querySelectorAll('.paste button')[{number}].click()")
        assert browser.wait_for(f"document.querySelectorAll('.paste button')[{number}].textContent != 'Copy'")
        assert browser.evaluate("getSelection().toString()").split() == box.split()
    assert browser.evaluate("getComputedStyle(document.querySelector('.paste pre')).userSelect") == "all"


def test_without_script_the_page_has_no_button_and_all_its_text(browser, pages):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open((pages / "first/report.html").as_uri(), width=375)
        found = browser.call("DOM.getDocument", depth=0)["root"]["nodeId"]
        text = browser.call("DOM.getOuterHTML", nodeId=found)["outerHTML"]
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert text.count('<button type="button" hidden=""') == 2
    assert "KEEP WITH THE DATA" in text


LONG = {
    "delta": 1e-6, "unit": "record", "neighbours": "zero-out", "trust": "silo", "units": 120_000, "sampling_delta": 1e-9,
    "protects": "one row of the table", "noise": "keyed", "counts_read": ("the most records of one client (57)",),
    "read_from_data": tuple(f"a_column_with_a_long_name_{i}" for i in range(40)),
    "domain_sources": (("declared by: ward protocol", tuple(f"column_{i}" for i in range(40))),),
    "derivation": ("a line about how the mechanism was calibrated to a sensitivity of its own, with numbers",) * 6,
    "assumptions": ("a line about what has to be true for the bound to hold, as long as such lines are",) * 6,
}  # fmt: skip


@pytest.fixture(scope="module")
def statements(tmp_path_factory):
    """Statements: of a private run, a seeded one, one that guarantees nothing, and one with much to say."""
    folder = tmp_path_factory.mktemp("statements")
    event = {"event": to_json(Repeated(PoissonSampled(0.01, Gaussian(1.1)), 500))}
    files = {"files": dict.fromkeys(("generator.json", "generator.npz", "synthetic.parquet"), "ab" * 32)}
    for name, privacy in (
        ("private", guarantee()),
        ("seeded", guarantee(seeded=True)),
        ("nothing", guarantee(epsilon=float("inf"), trust="not-private", reason="made up")),
        ("long", guarantee(**LONG) | event | files),
    ):
        (folder / f"{name}.html").write_text(statement(privacy, digest="cd" * 32), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", ["private", "seeded", "nothing", "long"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_statement_is_read_on_every_screen_and_fits_on_two_sheets(browser, statements, name, scheme):
    for width in WIDTHS:
        browser.open((statements / f"{name}.html").as_uri(), width=width, scheme=scheme)
        assert browser.complaints() == []
        assert [url for url in browser.requests() if not url.startswith(("file:", "data:"))] == []
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert browser.evaluate(FAINTEST) > 4.5
        red = browser.evaluate("getComputedStyle(document.querySelector('header .alarm') || document.body).color")
        assert (red in ("rgb(163, 39, 28)", "rgb(255, 157, 146)")) == (name in ("seeded", "nothing"))
        if os.environ.get("POPULACE_SCREENSHOTS"):
            with open(f"{os.environ['POPULACE_SCREENSHOTS']}/statement-{name}-{width}-{scheme}.png", "wb") as file:
                file.write(browser.picture())
    printed = browser.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"]
    sheets = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", base64.b64decode(printed))
    assert len(sheets) in (1, 2)
    assert all((round(float(wide)), round(float(high))) == (595, 842) for wide, high in sheets)  # A4, in points


def test_the_browser_tests_can_fail(browser, tmp_path):
    """A page with a script error, a chart of no size and one too wide for the screen is caught."""
    page = tmp_path / "broken.html"
    page.write_text(
        "<!doctype html><script>nothing.here()</script><img src='missing.png'>"
        "<svg class='chart' width='0' height='0'></svg><svg class='chart' viewBox='0 0 9 9' width='3000' height='9'></svg>"
    )
    browser.open(page.as_uri(), width=375)
    assert len(browser.complaints()) >= 2
    assert browser.evaluate(LOST) == 2
    assert not browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_one_file_whose_only_script_copies(pages, name):
    """Needs no browser. The page's own policy allows that script, by its digest, and nothing else."""
    text = (pages / f"{name}.html").read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_BYTES
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'" in text
    assert text.count("<script") == 1
    for word in ("@import", "http://", "https://", "url(", "undefined", ">None<"):
        assert word not in text, word
    assert "<b>" not in text
    assert "proves nothing" in text


def test_every_part_of_the_page_is_there(pages):
    """Needs no browser."""
    text = (pages / "everything.html").read_text(encoding="utf-8")
    for part in (
        "What is protected?", "exact statement, for an expert", "What was read from the data", "district", "one-way distance",
        "Train on synthetic, test on real", "claim refuted", "not refuted", "52.0 %", "few targets",
        "49.0 %", "2.0 % less often",
        "not counted", "How to reproduce it", "populace synthesize &lt;x&gt;", "standard error", "framed",
        "What is not on this page, and why",
    ):  # fmt: skip
        assert part in text, part
    comparison = (pages / "comparison.html").read_text(encoding="utf-8")
    assert "Repeated seeds" in comparison
    assert "Not run." in comparison
    assert "reproducible, not private" in comparison
    images = (pages / "images.html").read_text(encoding="utf-8")
    assert "None of this class." in images
    assert "NOT PRIVATE" in images
    assert images.count("data:image/png") == 5


def test_runs_that_do_not_compare_are_refused_in_words(pages):
    """Needs no browser."""
    table, images = str(pages / "real.parquet"), str(pages / "real.npz")
    for runs, real, words in (
        (["first", "first"], table, "named twice"),
        (["pictures"], table, "expected real images"),
        (["pictures", "first"], images, "one at a time"),
    ):
        with pytest.raises(DataError, match=words):
            evaluate_runs([pages / run for run in runs], real)


def test_templates_refuse_what_they_do_not_know():
    with pytest.raises(Exception, match="undefined"):
        environment().from_string("{{ missing }}").render()
