"""The form of the person's page: fields of every kind, what is said about mistakes, and what a screen reader hears."""

import json

import numpy as np
import pytest

from populace.collector.questions import report_document
from populace.collector.study import plan_study
from populace.privacy.randomizers.subset import SubsetSelection
from populace.tables.embedded import FOLDER

from .person import FAINTEST, click, go_to_preview, picture, question_about_all, serve_study, shows, some_link

pytestmark = pytest.mark.slow
SCHEMA = """
format = 2
source = "a test"

[[column]]
name = "age"
kind = "integer"
edges = [16, 25, 100]

[[column]]
name = "income"
kind = "decimal"
step = 0.1
edges = [0, 20, 250]
nullable = true

[[column]]
name = "last_visit"
kind = "date"
edges = [2020-01-01, 2022-01-01, 2025-01-01]

[[column]]
name = "arrived"
kind = "datetime"
edges = [2024-01-01T00:00:00, 2024-07-01T00:00:00, 2025-01-01T00:00:00]
nullable = true

[[column]]
name = "gets_up"
kind = "time"
step = 60
edges = [04:00:00, 07:00:00, 12:00:00]
clip = true

[[column]]
name = "canton"
categories = ["Aargau", "Basel", "Bern", "Fribourg", "Genève", "Glarus", "Jura", "Luzern", "Zug", "Zürich"]

[[column]]
name = "boat"
kind = "boolean"
dtype = "boolean"
categories = ["false", "true"]
nullable = true

[[column]]
name = "children"
kind = "integer"
edges = []
spikes = [0, 1, 2, 5]
"""
SPOKEN = """(() => {
  const field = (name) => [...document.querySelectorAll('#fields > *')].find((e) => e.textContent.startsWith(name));
  return Object.fromEntries(['Age', 'Income', 'Last visit', 'Arrived', 'Gets up', 'Canton', 'Boat', 'Children'].map((name) =>
    [name, field(name).querySelector('.problem').textContent]));
})()"""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("schemas") / "all.toml"
    path.write_text(SCHEMA.replace("edges = []\n", ""), encoding="utf-8")
    return plan_study(schema=str(path), epsilon=1.0, method="independent", clients=500, title="All kinds")


@pytest.fixture
def form(browser, stub, study):
    """The form of a question about all columns."""
    serve_study(stub, study, question_about_all(study, epsilon=study.epsilon))
    with browser.person():
        browser.open(some_link(stub.address), width=375)
        shows(browser, "welcome")
        click(browser, "begin")
        shows(browser, "questions")
        yield browser


def type_in(browser, values):
    """Give fields their values, by the beginning of their names."""
    browser.evaluate(
        f"""(() => {{ for (const [name, value] of Object.entries({json.dumps(values)})) {{
          const field = [...document.querySelectorAll('#fields > *')].find((e) => e.textContent.startsWith(name));
          const control = field.querySelector('input:not([type=checkbox]), select');
          if (control.type === 'radio') field.querySelectorAll('input')[value].click();
          else if (control.tagName === 'SELECT') control.selectedIndex = value;
          else control.value = value; }} }})()"""
    )


RIGHT = {
    "Age": "37", "Income": "12,5", "Last visit": "2024-05-03", "Arrived": "2024-02-03T10:30", "Gets up": "06:45", "Canton": 3,
    "Boat": 1, "Children": "2",
}  # fmt: skip


def test_mistakes_are_said_in_one_sentence_at_the_field(form):
    click(form, "review")
    assert form.evaluate(SPOKEN) == {
        "Age": "Please enter a whole number.", "Income": "Please enter a number.", "Last visit": "Please enter a date.",
        "Arrived": "Please enter a date and a time.", "Gets up": "Please enter a time.", "Canton": "Please choose one.",
        "Boat": "Please choose one.", "Children": "Please enter a whole number.",
    }  # fmt: skip
    assert form.evaluate("document.activeElement.id") == "field-0"
    picture(form, "person-fields-wrong-375-light")
    type_in(form, {**RIGHT, "Age": "12", "Income": "1,000", "Last visit": "2019-12-31", "Children": "3"})
    click(form, "review")
    assert {name: said for name, said in form.evaluate(SPOKEN).items() if said} == {
        "Age": "Please enter a whole number from 16 to 100.", "Income": "Please enter a number, written like 125.",
        "Last visit": "Please enter a date from 2020-01-01 to 2025-01-01.",
        "Children": "3 is not one of the possible values of this study; please check it.",
    }  # fmt: skip
    type_in(form, {"Age": "30.5"})
    click(form, "review")
    assert form.evaluate(SPOKEN)["Age"] == "Please enter a whole number, written like 58."
    assert form.evaluate("document.getElementById('preview').hidden")


def test_what_is_right_is_shown_as_the_question_sees_it(form):
    type_in(form, {**RIGHT, "Gets up": "23:10"})  # outside, and clipped
    click(form, "review")
    shows(form, "preview")
    assert form.evaluate("[...document.querySelectorAll('#own li')].map((e) => e.textContent)") == [
        "age: 25 to 100", "income: 0 to under 20", "last visit: 2022-01-01 to 2025-01-01",
        "arrived: 2024-01-01 00:00 to under 2024-07-01 00:00", "gets up: 07:00 to 12:00", "canton: rest",
        "boat: yes or no answer", "children: 1 to 5",
    ]  # fmt: skip
    picture(form, "person-fields-preview-375-light")
    click(form, "change")
    shows(form, "questions")
    assert form.evaluate("document.getElementById('field-0').value") == "37"


def test_not_saying_is_possible_where_the_schema_allows_it(form):
    fields = form.evaluate("[...document.querySelectorAll('#fields > *')].map((e) => e.textContent)")
    assert sum("Prefer not to say" in field for field in fields) == 3
    type_in(form, RIGHT)
    form.evaluate("document.querySelectorAll('#fields input[type=checkbox]').forEach((e) => e.click())")
    type_in(form, {"Boat": 2})
    click(form, "review")
    shows(form, "preview")
    told = form.evaluate("[...document.querySelectorAll('#own li')].map((e) => e.textContent)")
    assert told[1] == "income: 20 to 250 or no answer"  # this question has one group for the two


def test_everything_has_a_name_for_a_screen_reader(form):
    form.call("Accessibility.enable")
    unnamed, heard = [], {}
    for node in form.call("Accessibility.getFullAXTree")["nodes"]:
        role, name = node.get("role", {}).get("value"), node.get("name", {}).get("value", "")
        heard.setdefault(role, []).append(name)
        focusable = any(one["name"] == "focusable" and one["value"]["value"] for one in node.get("properties", []))
        if focusable and role != "RootWebArea" and not node.get("ignored") and not name:
            unnamed.append((role, node.get("nodeId")))
    assert unnamed == []
    assert {"Age", "Income", "Children"} <= set(heard["textbox"])
    assert "Boat" in heard["group"]
    assert heard["radio"] == ["No", "Yes", "Prefer not to say"]
    assert "Canton" in heard["combobox"]
    assert {"All kinds", "Your questions"} <= set(heard["heading"])
    assert heard["status"]
    described = form.evaluate("document.getElementById('field-0').getAttribute('aria-describedby').split(' ')")
    assert form.evaluate(f"{json.dumps(described)}.every((id) => document.getElementById(id))")


def test_the_drawing_has_words_for_those_who_do_not_see_it(form):
    type_in(form, RIGHT)
    click(form, "review")
    shows(form, "preview")
    label = form.evaluate("document.querySelector('#drawing [role=img]').getAttribute('aria-label')")
    assert "of 256 are sent" in label
    assert form.evaluate("document.querySelectorAll('#drawing .dot').length") == 256
    first = form.evaluate("document.querySelector('#drawing').innerHTML")
    click(form, "another")
    assert form.evaluate("document.querySelector('#drawing').innerHTML") != first
    assert form.evaluate("document.getElementById('example-words').getAttribute('aria-live')") == "polite"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_kinds_on_a_phone_and_on_a_screen(form, scheme):
    for width in (375, 1280):
        form.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        form.call("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": scheme}])
        click(form, "review")
        picture(form, f"person-fields-{width}-{scheme}")
        assert form.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert form.evaluate(FAINTEST)[0] > 4.5
    assert form.complaints() == []


def test_boxes_and_single_values_are_said_in_words(browser, stub, study):
    rng = np.random.default_rng(8)
    asked = question_about_all(study, epsilon=1.0)
    boxes = report_document(SubsetSelection(size=100, epsilon=1.0))
    folded = {**asked, "values": rng.integers(0, 100, 256).tolist(), "report": boxes}
    alone = {**asked, "values": [0] * 256, "report": report_document(SubsetSelection(size=1, epsilon=1.0))}
    for question, words in (
        (folded, "one of 256 combinations, sorted into 100 boxes by a fixed public rule"),
        (alone, "only one possible value here, so nothing about you is told"),
    ):
        serve_study(stub, study, question)
        with browser.person():
            browser.open(some_link(stub.address), width=375)
            shows(browser, "welcome")
            click(browser, "begin")
            shows(browser, "questions")
            type_in(browser, RIGHT)
            click(browser, "review")
            shows(browser, "preview")
            assert words in browser.evaluate("document.getElementById('law').textContent")
            click(browser, "send")
            shows(browser, "done")
            assert browser.complaints() == []


def test_the_words_before_sending_are_the_law_s(browser, stub, tmp_path):
    """Twelve values, a set of four: the figures are those of the mechanism."""
    path = tmp_path / "twelve.toml"
    names = ", ".join(f'"m{i}"' for i in range(12))
    path.write_text(
        f'format = 2\nsource = "a test"\n[[column]]\nname = "month"\ncategories = [{names}]\n', encoding="utf-8"
    )
    study = plan_study(schema=str(path), epsilon=1.7, method="independent", clients=50)
    member = SubsetSelection(size=12, epsilon=1.7, chosen=4)
    column = {
        "column": 0,
        "name": "month",
        "groups": list(range(12)),
        "labels": [f"m{i}" for i in range(12)],
        "stride": 1,
    }
    question = {"question": 0, "columns": [column], "cells": 12, "values": None, "report": report_document(member)}
    serve_study(stub, study, question)
    with browser.person():
        browser.open(some_link(stub.address), width=375)
        go_to_preview(browser)
        words = browser.evaluate("document.getElementById('law').textContent").replace("\u00a0", " ")
        own, other = round(100 * member.p), round(100 * member.q)
        assert "Of these 12 values your device sends a set of 4." in words
        assert f"Yours is in it with probability {own} %, each other one with {other} %." in words
        promise = browser.evaluate("document.getElementById('cannot-tell').textContent")
        assert "at most 5.5 times less often" in promise  # e^1.7 is 5.47
        assert browser.evaluate("document.querySelectorAll('#drawing .chip').length") == 12
        assert browser.evaluate("document.querySelectorAll('#drawing .told').length") == 4
        picture(browser, "person-twelve-375-light")


def test_the_harbour_s_columns_read_well(browser, stub):
    study = plan_study(schema=str(FOLDER / "harbour.toml"), epsilon=1.0, method="independent", clients=500)
    serve_study(stub, study, 6)  # income
    with browser.person():
        browser.open(some_link(stub.address), width=375)
        assert shows(browser, "welcome")
        assert browser.evaluate("document.getElementById('topics').textContent").startswith(
            "age, district, years in town"
        )
        assert browser.evaluate("document.title") == "A few questions"
