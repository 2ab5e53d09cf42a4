"""The files of the collector's pages, without a browser: what must not be in them, and that none is forgotten."""

import re

import pytest

from populace.collector.app import PAGES

FILES = sorted(path.name for path in PAGES.iterdir())
SCRIPTS = [name for name in FILES if name.endswith(".js")]


def text_of(name):
    return (PAGES / name).read_text(encoding="utf-8")


def modules_of(name):
    """A module and all that it imports, and so on."""
    found = {name}
    for other in re.findall(r'from "\./([\w.]+)"', text_of(name)):
        found |= modules_of(other)
    return found


@pytest.mark.parametrize("name", FILES)
def test_nothing_comes_from_elsewhere_and_nothing_is_inline(name):
    text = text_of(name).replace("http://www.w3.org/2000/svg", "")
    for word in (
        "http://",
        "https://",
        "//cdn",
        "@import",
        "url(",
        "innerHTML",
        "outerHTML",
        "eval(",
        "document.write",
        "cookie =",
    ):
        assert word not in text, word
    if name.endswith(".html"):
        assert "<style" not in text
        assert not re.search(r"\s(style|on\w+)=", text)
        assert re.findall(r"<script[^>]*>(.*?)</script>", text) == [""]


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_short_and_draw_by_the_cryptographic_generator_alone(name):
    text = text_of(name)
    assert len(text.splitlines()) < 300
    assert "Math.random" not in text
    assert ("getRandomValues" in text) == (name == "sampler.js")


def test_the_service_worker_keeps_every_file_of_the_person_s_page():
    listed = set(re.findall(r'"([\w./]+)"', text_of("service.js").partition("const FILES = [")[2].partition("]")[0]))
    assert listed == modules_of("person.js") | {"./", "style.css", "icon.svg"}


def test_the_sampler_divides_and_rounds_nothing():
    code = re.sub(r"//.*", "", text_of("sampler.js"))
    assert not re.search(r"[^/]/[^/]|%|\d\.\d|Math\.(?!clz32)", code)
