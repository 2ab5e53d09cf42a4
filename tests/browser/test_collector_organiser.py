"""The organiser's page in a real browser: figures as the server has them, refreshed, in words where something is wrong."""

import time

import numpy as np
import pytest

from populace.collector.documents import study_document
from populace.tables.embedded import harbour

from .person import FAINTEST, picture
from .studies import served

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("studies") / "harbour"
    rows = np.asarray(harbour().codes).tolist()
    with served(path, "independent", epsilon=4.0, clients=2_000, title="The harbour survey") as running:
        for link, row in zip(running.links(150), rows, strict=False):
            running.answer(link, row)
        yield running


@pytest.fixture
def page(browser, study):
    """The page with the token typed in."""
    with browser.person():
        browser.open(study.address + "organiser.html", width=1280)
        enter(browser, study.folder.token())
        browser.wait_for("!document.getElementById('study').hidden")
        yield browser


def enter(browser, token):
    browser.evaluate(f"document.getElementById('token').value = '{token}'")
    browser.evaluate("document.getElementById('token-form').requestSubmit()")


def text(browser, name):
    return browser.evaluate(f"document.getElementById('{name}').textContent")


def progress(study, error=0.05):
    token = study.folder.token()
    return study.call(f"v1/progress?error={error}", headers={"authorization": f"Bearer {token}"})


def test_a_wrong_token_is_refused_at_the_field(browser, study):
    with browser.person():
        browser.open(study.address + "organiser.html", width=375)
        enter(browser, "wrong")
        browser.wait_for("document.getElementById('token-problem').textContent.includes('not the organiser')")
        assert browser.evaluate("document.getElementById('study').hidden")
        assert browser.evaluate("sessionStorage.length") == 0
        enter(browser, "with a space")
        assert "without spaces" in text(browser, "token-problem")


def test_figures_are_those_of_the_server(page, study):
    found = progress(study)
    assert text(page, "answers") == "150"
    assert text(page, "planned") == "of 2,000 planned"
    assert f"{found['answers_needed']:,}" in text(page, "needed")
    assert text(page, "enough") == "Not yet"
    tables = page.evaluate(
        "[...document.querySelectorAll('#columns > section')].map((card) => [card.querySelector('h3').textContent, "
        "[...card.querySelectorAll('tbody tr')].map((row) => [...row.children].map((cell) => cell.textContent))])"
    )
    assert [name for name, _ in tables] == [column["name"].replace("_", " ") for column in found["columns"]]
    for (_, rows), column in zip(tables, found["columns"], strict=True):
        assert len(rows) == len(column["labels"]) > 1
        for (_, _, figures), share, half in zip(rows, column["shares"], column["half_widths"], strict=True):
            shown, width = (float(part.replace("−", "-").replace("%", "")) for part in figures.split("±"))
            assert shown == pytest.approx(100 * share, abs=0.51)
            assert width == pytest.approx(100 * half, abs=0.51)
    ages = [row[0] for row in tables[0][1]]
    assert ages[0] == "16 to 24"
    assert ages[-1] == "75 to 100"
    assert [row[0] for row in tables[9][1]] == ["no", "yes"]
    assert "98." in text(page, "words")  # epsilon in plain words
    assert page.evaluate("sessionStorage.length") == 1
    assert page.evaluate("localStorage.length") == 0
    assert page.complaints() == []


def test_the_wanted_error_decides_what_is_enough(page, study):
    page.evaluate("(e => { e.value = '0.1'; e.dispatchEvent(new Event('change')); })(document.getElementById('error'))")
    wanted = f"{progress(study, 0.1)['answers_needed']:,}"
    page.wait_for(f"document.getElementById('needed').textContent.includes('{wanted}')")
    assert "± 10 points" in text(page, "needed")


def test_it_refreshes_itself_and_keeps_what_is_open(page, study):
    page.evaluate("document.getElementById('refresh').focus()")
    before = int(text(page, "answers"))
    study.answer(study.link(), [0] * 11)
    page.wait_for(f"document.getElementById('answers').textContent === '{before + 1}'", seconds=15)
    assert page.evaluate("document.activeElement.id") == "refresh"
    assert "Last refreshed at" in text(page, "refreshed")


def test_it_rests_while_nobody_looks(page):
    page.evaluate("Object.defineProperty(document, 'hidden', { configurable: true, value: true })")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    time.sleep(1)
    page.events.clear()
    time.sleep(7)
    page.evaluate("1")
    assert page.requests() == []
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for("1")
    time.sleep(1)
    page.evaluate("1")
    assert len(page.requests()) == 1


def test_a_server_that_is_away_is_said_in_words_and_comes_back(page, study):
    study.stop()
    try:
        page.evaluate("document.getElementById('refresh').click()")
        page.wait_for("document.getElementById('notice-text').textContent.includes('cannot be reached')")
        assert page.evaluate("document.getElementById('notice').className") == "alarm"
        assert text(page, "answers") != ""  # what was there stays
        picture(page, "organiser-away-1280-light")
    finally:
        study.start()
    page.wait_for("document.getElementById('notice-text').textContent === ''", seconds=15)


def test_the_token_is_forgotten_on_demand(page):
    page.evaluate("document.getElementById('leave').click()")
    assert page.evaluate("sessionStorage.length") == 0
    assert page.evaluate("document.getElementById('study').hidden")
    assert page.evaluate("document.activeElement.id") == "token"


def test_answers_that_are_malformed_are_said_in_words(browser, stub, study):
    stub.replies["/v1/study"] = study_document(study.study)
    good = progress(study)
    with browser.person():
        wrong = ({**good, "answers": "many"}, {**good, "columns": [{"name": "x"}]})
        for reply in ((200, b"<html>"), {}, [], *wrong, (404, b"{}")):
            stub.replies["/v1/progress"] = reply
            browser.open(stub.address + "organiser.html", width=375)
            enter(browser, "token")
            browser.wait_for("document.getElementById('notice').className === 'alarm'")
            assert browser.evaluate("document.getElementById('study').hidden")
            browser.evaluate("sessionStorage.clear()")
        empty = [{**column, "labels": [], "shares": [], "half_widths": [], "answers": 0, "answers_needed": None}
                 for column in good["columns"]]  # fmt: skip
        nothing = {"columns": empty, "answers": 0, "answers_needed": None, "enough": None, "rounds": []}
        stub.replies["/v1/progress"] = {**good, **nothing}
        browser.open(stub.address + "organiser.html", width=375)
        enter(browser, "token")
        browser.wait_for("!document.getElementById('study').hidden")
        assert text(browser, "enough") == "Not known yet"
        assert text(browser, "columns").count("Nothing is known about it yet.") == len(empty)
        picture(browser, "organiser-nothing-375-light")


def test_everything_has_a_name_for_a_screen_reader(page):
    page.call("Accessibility.enable")
    unnamed = []
    for node in page.call("Accessibility.getFullAXTree")["nodes"]:
        role, name = node.get("role", {}).get("value"), node.get("name", {}).get("value", "")
        focusable = any(one["name"] == "focusable" and one["value"]["value"] for one in node.get("properties", []))
        named = focusable or role in ("table", "progressbar", "region")
        if named and role != "RootWebArea" and not node.get("ignored") and not name:
            unnamed.append(role)
    assert unnamed == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_it_fits_the_screen_and_can_be_read(browser, study, width, scheme):
    with browser.person():
        browser.open(study.address + "organiser.html", width=width, scheme=scheme)
        picture(browser, f"organiser-token-{width}-{scheme}")
        enter(browser, study.folder.token())
        browser.wait_for("!document.getElementById('study').hidden")
        picture(browser, f"organiser-{width}-{scheme}")
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert browser.evaluate(FAINTEST)[0] > 4.5
        bars = "[...document.querySelectorAll('#columns svg')].map((e) => e.getBoundingClientRect().width)"
        assert min(browser.evaluate(bars)) > 50
        assert browser.complaints() == []
