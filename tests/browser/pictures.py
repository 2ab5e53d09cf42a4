"""The pictures of the documentation: `python -m tests.browser.pictures [--demo FOLDER]` makes docs/assets/*.webp again.

They show what `populace demo` leaves behind, and the collector's page for a person, as a browser shows them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from . import chromium

ROOT = Path(__file__).parents[2]
POPULACE = [sys.executable, "-m", "populace"]
WIDTH = 960
#: A picture, the page of the demo's run, where it begins (an element), and how many pixels of it are shown.
OF_A_RUN = (
    ("report-top", "report.html", "body", 960),
    ("report-columns", "report.html", "#columns", 820),
    ("report-prediction", "report.html", "#prediction", 760),
    ("statement", "privacy.html", "body", 900),
)
PORT = 8791
MOST_BYTES = 150_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, help="what `populace demo --out FOLDER` made; made anew if left out")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "assets")
    given = parser.parse_args()
    path = chromium.find()
    if path is None:
        sys.stderr.write("a picture needs chromium\n")
        return 2
    with tempfile.TemporaryDirectory() as scratch, chromium.browser(path) as browser:
        demo = given.demo or Path(scratch) / "demo"
        if given.demo is None:
            subprocess.run([*POPULACE, "demo", "--out", str(demo)], check=True)
        for name, page, start, height in OF_A_RUN:
            browser.open((demo / "census" / page).resolve().as_uri(), width=WIDTH, height=height)
            browser.evaluate(f"scrollTo(0, document.querySelector('{start}').getBoundingClientRect().top - 12)")
            save(browser.picture(whole=False), given.out / f"{name}.webp")
        with survey(Path(scratch) / "study") as link:
            photograph_survey(browser, link, given.out)
    return 0


def save(png: bytes, path: Path) -> None:
    """Keep a picture, as small as it can be without showing it."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.save(path, "WEBP", quality=82, method=6)
    if path.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{path} has {path.stat().st_size} bytes, more than {MOST_BYTES}")
    sys.stdout.write(f"{path} {path.stat().st_size}\n")


@contextlib.contextmanager
def survey(folder: Path) -> Iterator[str]:
    """A study about the harbour's people, served on loopback; gives one invitation's link."""
    schema = ROOT / "src" / "populace" / "tables" / "harbour" / "harbour.toml"
    links, address = folder.with_suffix(".txt"), f"http://127.0.0.1:{PORT}/"
    title = ["--title", "Life in the harbour"]
    start = ["init", str(folder), "--schema", str(schema), "--epsilon", "2", "--clients", "200", *title]
    invite = ["invite", str(folder), "--count", "1", "--url", address, "-o", str(links)]
    for command in (start, invite):
        subprocess.run([*POPULACE, "collector", *command], check=True, stdout=subprocess.DEVNULL)
    serving = subprocess.Popen([*POPULACE, "collector", "serve", str(folder), "--port", str(PORT)])
    try:
        wait_for(f"{address}v1/health")
        yield links.read_text().split()[0]
    finally:
        serving.terminate()
        serving.wait(20)


def wait_for(address: str, *, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(address, timeout=5).close()  # noqa: S310
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def photograph_survey(browser: chromium.Browser, link: str, out: Path) -> None:
    """Three steps of the page on a telephone, side by side: the promise, the questions, what would be sent."""
    browser.open(link, width=375, height=720)
    shown = []
    for step, script in (("welcome", "begin"), ("questions", "review"), ("preview", "")):
        browser.wait_for(f"document.getElementById('{step}')?.hidden === false")
        if step == "questions":
            browser.evaluate(FILL)
        browser.evaluate("window.scrollTo(0, 0)")
        shown.append(Image.open(io.BytesIO(browser.picture(whole=False))).convert("RGB"))
        if script:
            browser.evaluate(f"document.getElementById('{script}').click()")
    whole = Image.new("RGB", (375 * 3 + 40, 720), "white")
    for at, one in enumerate(shown):
        whole.paste(one, (at * 395, 0))
    buffer = io.BytesIO()
    whole.save(buffer, "PNG")
    save(buffer.getvalue(), out / "survey.webp")


#: Fill in every field with something that fits.
FILL = """(() => {
  for (const group of document.querySelectorAll('#fields fieldset')) group.querySelectorAll('input')[1].click();
  for (const list of document.querySelectorAll('#fields select')) list.selectedIndex = 2;
  for (const field of document.querySelectorAll('#fields .field input:not([type=checkbox])')) field.value = '37';
})()"""

if __name__ == "__main__":
    sys.exit(main())
