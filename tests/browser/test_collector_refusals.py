"""The page of a person who answers, before a server that says something wrong, and in a browser that cannot keep a ledger.

Whatever it is, the page says one sentence, and nothing is sent.
"""

import copy
import json
import time

import pytest

from populace.collector.study import plan_study
from populace.tables.embedded import FOLDER

from .person import answers_posted, click, go_to_preview, ledger, picture, says, serve_study, shows, some_link

pytestmark = pytest.mark.slow
NOT_JSON = (200, b"<html>it works</html>")
REFUSED = (
    "document.getElementById('notice').className === 'alarm' && document.getElementById('notice-text').textContent"
)


@pytest.fixture(scope="module")
def study():
    return plan_study(schema=str(FOLDER / "harbour.toml"), epsilon=1.0, method="poll", clients=2_000, title="Harbour")


def changed(document, path, value):
    """A copy with one thing changed; `None.__class__` as a value takes it out."""
    document = copy.deepcopy(document)
    *way, last = path
    at = document
    for step in way:
        at = at[step]
    if value is type(None):
        del at[last]
    else:
        at[last] = value
    return document


MISSING = type(None)
STUDIES = {
    "another version": (["interface"], 2),
    "no digest": (["digest"], MISSING),
    "a digest that is none": (["digest"], "abc"),
    "no columns": (["columns"], []),
    "columns that are none": (["columns"], "age"),
    "a kind that is not known": (["columns", 0, "kind"], "colour"),
    "too few labels": (["columns", 1, "labels"], ["a"]),
    "a null code where there is none": (["columns", 1, "null_code"], 3),
    "no pieces": (["columns", 0, "number", "pieces"], []),
    "a piece with a code outside": (["columns", 0, "number", "pieces", 0, 2], 99),
    "a grid of nothing": (["columns", 0, "number", "ticks"], {"times": 0, "over": 1, "round": "nearest"}),
    "epsilon as text": (["epsilon"], "1"),
    "no epsilon": (["epsilon"], 0),
    "a promise that is not words": (["in_words"], [1, 2]),
    "no facts": (["facts"], MISSING),
    "huge": (["title"], "x" * 9_000_000),
}
QUESTIONS = {
    "another state": (["state"], "dance"),
    "no columns": (["columns"], []),
    "a column that is not there": (["columns", 0, "column"], 99),
    "another name": (["columns", 0, "name"], "salary"),
    "a group outside": (["columns", 0, "groups", 0], 40),
    "a group below zero": (["columns", 0, "groups", 0], -1),
    "a broken group": (["columns", 0, "groups", 0], 0.5),
    "too few groups": (["columns", 0, "groups"], [0]),
    "a stride that leads outside": (["columns", 0, "stride"], 1_000),
    "more groups than cells": (["columns", 0, "labels"], ["a", "b", "c"]),
    "a negative place": (["place"], -1),
    "no end of the place": (["seconds_left"], MISSING),
    "no report": (["report"], MISSING),
    "a numerator above the denominator": (["report", "numerator"], str(2**63 + 1)),
    "a numerator that is no number": (["report", "numerator"], "many"),
    "another denominator": (["report", "denominator"], str(2**62)),
    "words that are not the numerator's": (["report", "high"], 2**31 - 1),
    "a huge size": (["report", "size"], 10**9),
    "another size": (["report", "size"], 5),
    "all values told": (["report", "chosen"], 4),
    "nothing told": (["report", "chosen"], 0),
    "another encoding": (["report", "encoding"], "morse"),
    "another length": (["report", "bytes"], 2),
    "values outside": (["values"], [0, 1, 2, 9]),
    "values of other cells": (["values"], [0, 1]),
    "not as promised, by 3 %": (["report"], 1.03),
    "not as promised, the other way": (["report"], 0.1),
    "always the truth": (["report"], "always"),
}


def refused(browser):
    """The sentence with which the page refuses; exactly one, and an end to everything."""
    sentence = browser.wait_for(REFUSED)
    steps = "['welcome', 'questions', 'preview', 'done'].every((id) => document.getElementById(id).hidden)"
    assert browser.evaluate(steps)
    assert 20 < len(sentence) < 400
    return sentence


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_that_is_malformed_is_refused(browser, stub, study, name):
    serve_study(stub, study, 3)
    stub.replies["/v1/study"] = changed(stub.replies["/v1/study"], *STUDIES[name])
    with browser.person():
        browser.open(some_link(stub.address), width=375)
        assert "sent" in refused(browser)
        assert stub.posted == []
        assert browser.complaints() == []


def reweighted(report, times):
    numerator = 2**63 if times == "always" else int(int(report["numerator"]) * times)
    return {**report, "numerator": str(numerator), "high": numerator >> 32, "low": numerator & 0xFFFFFFFF}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_that_is_malformed_or_breaks_the_promise_is_refused(browser, stub, study, name):
    serve_study(stub, study, 3)
    path, value = QUESTIONS[name]
    question = stub.replies["/v1/question"]
    assert question["cells"] == 4  # what the cases above are made for
    if path == ["report"] and value is not MISSING:
        value = reweighted(question["report"], value)
    stub.replies["/v1/question"] = changed(question, path, value)
    with browser.person():
        browser.open(some_link(stub.address), width=375)
        shows(browser, "welcome")
        click(browser, "begin")
        promised = "promise" in refused(browser)
        assert promised == (name.startswith("not as promised") or name == "always the truth")
        assert stub.posted == []
        assert ledger(browser) == []
        assert browser.complaints() == []


@pytest.mark.parametrize("path", ["/v1/study", "/v1/question"])
@pytest.mark.parametrize(
    "reply", [NOT_JSON, (200, b""), (200, b"[]"), (200, b"null"), (404, b"{}"), (403, b'{"error": 7}')]
)
def test_what_is_no_answer_at_all_is_refused(browser, stub, study, path, reply):
    serve_study(stub, study, 3)
    stub.replies[path] = reply
    with browser.person():
        browser.open(some_link(stub.address), width=375)
        if path == "/v1/question":
            shows(browser, "welcome")
            click(browser, "begin")
        refused(browser)
        assert stub.posted == []


def test_markup_in_what_the_server_says_is_only_text(browser, stub, study):
    serve_study(stub, study, 3)
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    document = changed(stub.replies["/v1/study"], ["title"], evil)
    document["in_words"] = [evil, evil]
    document["columns"][1]["categories"][0] = document["columns"][1]["labels"][0] = evil
    stub.replies["/v1/study"] = document
    with browser.person():
        browser.open(some_link(stub.address), width=375)
        go_to_preview(browser)
        assert browser.evaluate("document.getElementById('title').textContent") == evil
        assert browser.evaluate("document.querySelectorAll('main img, body script').length") == 0
        assert browser.complaints() == []


def test_receipts_that_are_not_those_of_the_answer_are_not_believed(browser, stub, study):
    serve_study(stub, study, 3)
    receive = stub.replies["/v1/answer"]
    with browser.person():
        browser.open(some_link(stub.address), width=375)
        go_to_preview(browser)
        stub.replies["/v1/answer"] = {"receipt": "0" * 64, "fresh": True}
        click(browser, "send")
        for reply in (NOT_JSON, [], {"receipt": 5}):
            says(browser, "receipt is not that of your answer")
            stub.replies["/v1/answer"] = reply
            browser.evaluate("document.getElementById('notice-text').textContent = ''")
            click(browser, "again")
        assert ledger(browser)[0]["state"] == "kept"
        stub.replies["/v1/answer"] = receive
        click(browser, "again")
        shows(browser, "done")
        assert len(set(answers_posted(stub))) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 409, 410, 413, 415, 422])
def test_an_answer_that_is_refused_for_good_is_spent(browser, stub, study, status):
    serve_study(stub, study, 3)
    stub.replies["/v1/answer"] = (status, json.dumps({"error": "the round has been counted"}).encode())
    with browser.person():
        browser.open(some_link(stub.address), width=375)
        go_to_preview(browser)
        click(browser, "send")
        assert "The round has been counted." in refused(browser)
        (entry,) = ledger(browser)
        assert entry["state"] == "refused"
        browser.open("about:blank", width=375)
        browser.open(some_link(stub.address), width=375)
        assert "no second one is made" in refused(browser)
        assert len(stub.posted) == 1


NOT_THE_STUDY = [
    (403, b"<html>forbidden</html>"), (403, b'{"message": "blocked"}'), (410, b'{"error": 7}'), (422, b"[]"),
    (404, b'{"error": "no such page"}'), (451, b'{"error": "blocked"}'), (302, b""), (511, b"<html>log in</html>"),
]  # fmt: skip


@pytest.mark.parametrize("reply", NOT_THE_STUDY, ids=str)
def test_what_is_not_the_study_s_own_refusal_is_not_reached_and_the_same_answer_is_sent_again(
    browser, stub, study, reply
):
    serve_study(stub, study, 3)
    receive = stub.replies["/v1/answer"]
    stub.replies["/v1/answer"] = reply
    with browser.person():
        browser.open(some_link(stub.address), width=375)
        go_to_preview(browser)
        click(browser, "send")
        says(browser, "Your answer is kept on this device")
        assert ledger(browser)[0]["state"] == "kept"
        stub.replies["/v1/answer"] = receive
        click(browser, "again")
        shows(browser, "done")
        assert len(set(answers_posted(stub))) == 1


def test_the_page_waits_where_the_server_says_so_and_comes_back_when_it_fails(browser, stub, study):
    serve_study(stub, study, 3)
    question = stub.replies["/v1/question"]
    stub.replies["/v1/question"] = {"state": "wait", "retry_after": 1, "why": "the next round is being prepared"}
    document = stub.replies["/v1/study"]
    stub.replies["/v1/study"] = (503, b'{"error": "the store is away"}')
    with browser.person():
        browser.open(some_link(stub.address), width=375)
        says(browser, "The store is away. This page tries again")
        stub.replies["/v1/study"] = document
        click(browser, "again")
        shows(browser, "welcome")
        click(browser, "begin")
        says(browser, "The next round is being prepared.")
        picture(browser, "person-wait-375-light")
        stub.replies["/v1/question"] = {**question, "seconds_left": 1}
        says(browser, "The round is about to end. This page looks again in 1 second.")
        stub.replies["/v1/question"] = question
        shows(browser, "questions")


def test_a_place_that_was_lost_is_asked_for_again_before_anything_is_drawn(browser, stub, study):
    serve_study(stub, study, 3)
    question = stub.replies["/v1/question"]
    stub.replies["/v1/question"] = {**question, "seconds_left": 3}
    with browser.person():
        browser.open(some_link(stub.address), width=375)
        go_to_preview(browser)
        serve_study(stub, study, 4)  # meanwhile, it is another question
        time.sleep(1.2)
        click(browser, "send")
        says(browser, "here is another one; nothing was sent")
        assert stub.posted == []
        assert ledger(browser) == []
    with browser.person():
        stub.replies["/v1/question"] = {**question, "seconds_left": 3}
        browser.open(some_link(stub.address), width=375)
        go_to_preview(browser)
        stub.replies["/v1/question"] = {**question, "place": 11}  # the same question at another place
        time.sleep(1.2)
        click(browser, "send")
        shows(browser, "done")
        assert json.loads(answers_posted(stub)[0])["place"] == 11


BROWSERS = {
    "no storage": ("Object.defineProperty(window, 'localStorage', { get() { throw new DOMException(''); } })", "only once"),
    "full storage": ("Storage.prototype.setItem = () => { throw new DOMException('full'); }", "answer only once"),
    "forgetful storage": ("Storage.prototype.setItem = () => {}", "answer only once"),
    "no locks": ("Object.defineProperty(Navigator.prototype, 'locks', { value: undefined })", "too old"),
    "not secure": ("Object.defineProperty(window, 'isSecureContext', { value: false })", "https"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROWSERS)
def test_without_a_ledger_there_is_no_answer(browser, stub, study, name):
    serve_study(stub, study, 3)
    script, words = BROWSERS[name]
    with browser.person():
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=script)
        browser.open(some_link(stub.address), width=375)
        assert words in refused(browser)
        assert not any("/v1/" in url for url in browser.requests())


def test_storage_that_fails_at_the_last_moment_keeps_the_answer_back(browser, stub, study):
    serve_study(stub, study, 3)
    with browser.person():
        browser.open(some_link(stub.address), width=375)
        go_to_preview(browser)
        browser.evaluate("Storage.prototype.setItem = () => { throw new DOMException('full'); }; 1")
        click(browser, "send")
        assert "answer only once" in refused(browser)
        assert stub.posted == []


def test_links_that_are_not_whole_and_no_link_at_all(browser, stub, study):
    serve_study(stub, study, 3)
    for link, words in ((stub.address + "#oR4", "not complete"), (stub.address, "invited")):
        with browser.person():
            browser.open(link, width=375)
            assert words in refused(browser)
            assert browser.evaluate("location.hash") == ""
            browser.evaluate(f"location.href = '{some_link(stub.address)}'")  # then the whole link, into the same tab
            shows(browser, "welcome")
            assert browser.evaluate("location.hash") == ""


def test_a_damaged_ledger_counts_as_an_answer(browser, stub, study):
    serve_study(stub, study, 3)
    with browser.person():
        browser.open(some_link(stub.address), width=375)
        shows(browser, "welcome")
        browser.evaluate(f"localStorage.setItem('populace answer {study.digest}', 'garbage')")
        browser.open("about:blank", width=375)
        browser.open(some_link(stub.address), width=375)
        assert "damaged" in refused(browser)


def test_a_method_for_programs_alone_says_so(browser, stub, study):
    serve_study(stub, study, 3)
    stub.replies["/v1/study"] = changed(stub.replies["/v1/study"], ["method", "for_pages"], False)
    with browser.person():
        browser.open(some_link(stub.address), width=375)
        assert "Python" in refused(browser)
