"""The page of a person who answers, with a real study behind it: answered once, refused twice, offline, and by keyboard."""

import json

import pytest

from populace.collector.study import plan_study
from populace.tables.embedded import FOLDER

from .person import (
    FAINTEST,
    FILL,
    answers_posted,
    click,
    go_to_preview,
    ledger,
    picture,
    says,
    serve_study,
    shows,
    some_link,
)
from .studies import served

pytestmark = pytest.mark.slow
WIDTHS = (375, 1280)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("studies") / "harbour"
    with served(path, epsilon=1.0, clients=2_000, title="The harbour survey") as running:
        yield running


@pytest.fixture
def small_study():
    return plan_study(
        schema=str(FOLDER / "harbour.toml"), epsilon=1.0, method="independent", clients=100, title="Harbour"
    )


def test_filled_sent_and_received(browser, study):
    before, link = len(study.answers()), study.link()
    with browser.person():
        browser.open(link, width=375)
        go_to_preview(browser)
        assert browser.evaluate("location.href") == study.address  # the invitation is out of the address bar
        assert browser.evaluate("history.length") <= 2
        assert len(study.answers()) == before
        assert browser.evaluate("document.getElementById('law').textContent").count("probability") == 1
        click(browser, "send")
        shows(browser, "done")
        (entry,) = ledger(browser)
        assert entry["state"] == "received"
        shown = browser.evaluate("document.getElementById('receipt').textContent").replace(" ", "")
        assert shown == entry["receipt"]
        assert len(study.answers()) == before + 1
        kept = browser.evaluate("JSON.stringify({ ...localStorage, ...sessionStorage })")
        assert "nonce" not in kept
        assert "report" not in kept
        assert browser.evaluate("Object.keys(localStorage).length") == 1  # the entry alone: the invitation is used
        assert browser.evaluate("document.cookie") == ""
        assert browser.complaints() == []
        assert {url for url in browser.requests() if not url.startswith(study.address)} == set()
        assert not any(link.partition("#")[2] in url for url in browser.requests())


def test_a_second_answer_is_refused_by_the_device_and_by_the_server(browser, study):
    link = study.link()
    with browser.person():
        browser.open(link, width=375)
        go_to_preview(browser)
        click(browser, "send")
        shows(browser, "done")
        count = len(study.answers())
        for again in (link, study.link(), study.address):
            browser.open("about:blank", width=375)
            browser.open(again, width=375)
            says(browser, "This device has already answered this study")
            assert browser.evaluate("document.getElementById('welcome').hidden")
            assert browser.evaluate("document.getElementById('receipt').textContent.length") > 60
            assert not any(url.endswith("/v1/question") for url in browser.requests())
            assert browser.complaints() == []
        browser.evaluate("localStorage.clear()")
        browser.open("about:blank", width=375)
        browser.open(link, width=375)
        shows(browser, "welcome")
        click(browser, "begin")
        says(browser, "invitation has been used")
        assert "alarm" in browser.evaluate("document.getElementById('notice').className")
        assert len(study.answers()) == count


def test_without_a_connection_the_answer_is_kept_and_the_same_one_is_sent_later(browser, study):
    link, before = study.link(), len(study.answers())
    with browser.person():
        browser.open(link, width=375)
        go_to_preview(browser)
        browser.wait_for("caches.has('populace pages').then(async (there) => there && "
                         "(await (await caches.open('populace pages')).keys()).length > 10)")  # fmt: skip
        study.stop()
        try:
            click(browser, "send")
            says(browser, "Your answer is kept on this device")
            picture(browser, "person-kept-375-light")
            (kept,) = ledger(browser)
            assert kept["state"] == "kept"
            assert set(json.loads(kept["body"])) == {"round", "place", "report", "nonce"}
            browser.open(study.address, width=375)  # the browser was closed and opened again, still offline
            says(browser, "Your answer is kept on this device")
            assert ledger(browser) == [kept]
        finally:
            study.start()
        click(browser, "again")
        shows(browser, "done")
        assert len(study.answers()) == before + 1
        assert ledger(browser)[0]["receipt"]


#: Looks into the ledger at the very moment at which an answer is sent.
WATCH = """(() => { const send = window.fetch; window.fetch = (path, options) => {
  if (String(path).includes('v1/answer')) window.ledgerThen = { ...localStorage }; return send(path, options); }; })()"""


def test_the_ledger_is_written_before_anything_is_sent(browser, stub, small_study):
    serve_study(stub, small_study)
    with browser.person():
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        browser.open(some_link(stub.address), width=375)
        go_to_preview(browser)
        click(browser, "send")
        shows(browser, "done")
        (kept,) = browser.evaluate("Object.values(window.ledgerThen)")
        assert json.loads(kept)["body"].encode() == answers_posted(stub)[0]
        assert json.loads(kept)["digest"] == small_study.digest


def test_a_kept_answer_goes_out_when_the_browser_is_online_again(browser, stub, small_study):
    serve_study(stub, small_study)
    receive = stub.replies["/v1/answer"]
    stub.replies["/v1/answer"] = (503, b'{"error": "the server is busy"}')
    with browser.person():
        browser.open(some_link(stub.address), width=375)
        go_to_preview(browser)
        click(browser, "send")
        says(browser, "The server is busy. Your answer is kept")
        stub.replies["/v1/answer"] = receive
        count = len(stub.posted)
        browser.evaluate("dispatchEvent(new Event('online'))")
        shows(browser, "done")
        assert len(stub.posted) == count + 1
        assert len(set(answers_posted(stub))) == 1


@pytest.mark.parametrize("planted", [False, True])
def test_two_tabs_make_one_report(browser, stub, small_study, planted):
    """The planted page does not look into its ledger again when it draws: it makes two reports, and this test sees it."""
    serve_study(stub, small_study)
    if planted:
        text = stub.reply("/ledger.js", b"")[1].decode()
        assert "const before = entryOf(digest);" in text
        stub.files["/ledger.js"] = text.replace("const before = entryOf(digest);", "const before = null;").encode()
    deaf = "addEventListener('storage', (event) => event.stopImmediatePropagation(), true)"
    with browser.person() as first:
        browser.open(some_link(stub.address), width=375)
        go_to_preview(browser)
        second = browser.tab()
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=deaf)  # it does not hear of the other's answer
        browser.open(some_link(stub.address), width=375)
        go_to_preview(browser)
        browser.use(first)
        click(browser, "send")
        browser.use(second)
        click(browser, "send")
        for tab in (first, second):
            browser.use(tab)
            shows(browser, "done")
        assert len(set(answers_posted(stub))) == (2 if planted else 1)
        assert len(ledger(browser)) == 1


def test_a_tab_hears_that_another_one_has_answered(browser, stub, small_study):
    serve_study(stub, small_study)
    with browser.person() as first:
        browser.open(some_link(stub.address), width=375)
        go_to_preview(browser)
        second = browser.tab()
        browser.open(some_link(stub.address), width=375)
        go_to_preview(browser)
        click(browser, "send")
        shows(browser, "done")
        browser.use(first)
        shows(browser, "done")
        assert len(set(answers_posted(stub))) == 1
        assert second != first


def test_an_open_study_gives_one_invitation_to_all_tabs_of_a_person(browser, tmp_path):
    with served(tmp_path / "open", "independent", epsilon=2.0, clients=500, open_to_all=True) as open_study:
        with browser.person() as first:
            browser.open(open_study.address, width=375)
            go_to_preview(browser)
            browser.tab()
            browser.open(open_study.address, width=375)
            go_to_preview(browser)
            assert browser.evaluate("Object.keys(localStorage).length") == 1
            click(browser, "send")
            shows(browser, "done")
            browser.use(first)
            shows(browser, "done")
        with browser.person():  # an invitation of a study that was here before is thrown away
            browser.open(open_study.address, width=375)
            shows(browser, "welcome")
            browser.evaluate("localStorage.setItem('populace invitation /', 'AAAAAAAAAAAAAAAAAAAAAA')")
            browser.open("about:blank", width=375)
            browser.open(open_study.address, width=375)
            go_to_preview(browser)
            click(browser, "send")
            shows(browser, "done")
        assert len(open_study.answers()) == 2


def test_by_keyboard_alone(browser, stub, small_study):
    """Question 1 is about the district: a choice. The focus is always where a reader expects it, and can be seen."""
    serve_study(stub, small_study, 1)
    with browser.person():
        browser.open(some_link(stub.address), width=1280)
        shows(browser, "welcome")
        tab_to(browser, "begin")
        browser.press("Enter")
        shows(browser, "questions")
        assert browser.evaluate("document.activeElement.id") == "questions-heading"
        tab_to(browser, "review")
        browser.press("Enter")
        assert browser.evaluate("document.querySelector('.problem').textContent") == "Please choose one."
        assert browser.evaluate("document.activeElement.name") == "field-0"
        browser.press("Space")
        browser.press("ArrowDown")
        assert browser.evaluate("document.querySelector('#fields input:checked').value") == "1"
        assert browser.evaluate("getComputedStyle(document.activeElement.closest('label')).outlineStyle") == "solid"
        browser.press("Enter")  # sends the form, as in every form
        shows(browser, "preview")
        assert browser.evaluate("document.querySelector('.problem').textContent") == ""
        tab_to(browser, "another")
        browser.press("Space")
        tab_to(browser, "send")
        browser.press("Enter")
        shows(browser, "done")
        assert browser.evaluate("document.activeElement.id") == "done-heading"
        assert browser.complaints() == []


def tab_to(browser, name):
    for _ in range(20):
        browser.press("Tab")
        if browser.evaluate("document.activeElement.id") == name:
            return
    raise AssertionError(f"{name} cannot be reached by Tab")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_step_fits_the_screen_and_can_be_read(browser, study, width, scheme):
    with browser.person():
        browser.open(study.link(), width=width, scheme=scheme)
        shows(browser, "welcome")
        look(browser, f"person-1-welcome-{width}-{scheme}")
        browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        look(browser, f"person-1-welcome-open-{width}-{scheme}")
        click(browser, "begin")
        shows(browser, "questions")
        look(browser, f"person-2-questions-{width}-{scheme}")
        click(browser, "review")
        look(browser, f"person-2-problems-{width}-{scheme}")
        browser.evaluate(FILL)
        click(browser, "review")
        shows(browser, "preview")
        look(browser, f"person-3-preview-{width}-{scheme}")
        click(browser, "send")
        shows(browser, "done")
        look(browser, f"person-4-done-{width}-{scheme}")
        assert browser.complaints() == []


def look(browser, name):
    picture(browser, name)
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    ratio, text = browser.evaluate(FAINTEST)
    assert ratio > 4.5, (name, text)
    small = (
        "[...document.querySelectorAll('button, select, .choice, .field input:not([type=checkbox])')].filter((e) => "
    )
    assert browser.evaluate(small + "e.checkVisibility() && e.getBoundingClientRect().height < 44).length") == 0, name
