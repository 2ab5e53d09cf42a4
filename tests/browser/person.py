"""What a person does on the collector's page, and what the page shows."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from populace.collector.documents import study_document
from populace.collector.questions import question_document, report_document
from populace.collector.study import Study, receipt_of
from populace.privacy.randomizers.subset import SubsetSelection

from .chromium import Browser
from .studies import Stub

#: Fill in every field with something that fits.
FILL = """(() => {
  for (const group of document.querySelectorAll('#fields fieldset')) group.querySelectorAll('input')[1].click();
  for (const list of document.querySelectorAll('#fields select')) list.selectedIndex = 2;
  const typed = { date: '2024-05-03', time: '10:30', 'datetime-local': '2024-05-03T10:30', text: '37' };
  for (const field of document.querySelectorAll('#fields .field input:not([type=checkbox])')) field.value = typed[field.type];
})()"""
#: The faintest text that is seen, by WCAG's contrast ratio with what lies behind it.
FAINTEST = """(() => {
  const linear = x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4;
  const parts = c => c.match(/[\\d.]+/g).map(Number);
  const tone = v => .2126 * linear(v[0] / 255) + .7152 * linear(v[1] / 255) + .0722 * linear(v[2] / 255);
  const behind = e => { for (; e; e = e.parentElement) { const v = parts(getComputedStyle(e).backgroundColor);
    if (v.length < 4 || v[3] === 1) return v; } return [255, 255, 255]; };
  let faintest = [99, ''];
  for (const e of document.querySelectorAll('body *')) {
    const text = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data).join('').trim();
    if (!text || !e.checkVisibility() || e.matches('option, noscript, :disabled')) continue;
    const [ink, paper] = [tone(parts(getComputedStyle(e).color)), tone(behind(e))];
    const ratio = (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05);
    if (ratio < faintest[0]) faintest = [ratio, text];
  }
  return faintest;
})()"""


def shows(browser: Browser, step: str) -> Any:
    """Wait for a step of the page."""
    return browser.wait_for(f"document.getElementById('{step}')?.hidden === false")


def says(browser: Browser, words: str, *, seconds: float = 20.0) -> str:
    """Wait until the notice has these words; gives all of it."""
    script = f"(t => t.includes({json.dumps(words)}) ? t : '')(document.getElementById('notice-text').textContent)"
    try:
        return str(browser.wait_for(script, seconds=seconds))
    except TimeoutError as error:
        said = browser.evaluate("document.getElementById('notice-text').textContent")
        raise AssertionError(f"expected {words!r}, the page says {said!r}") from error


def click(browser: Browser, name: str) -> None:
    browser.evaluate(f"document.getElementById('{name}').click()")


def go_to_preview(browser: Browser) -> None:
    """From the page's opening to what would be sent."""
    shows(browser, "welcome")
    click(browser, "begin")
    shows(browser, "questions")
    browser.evaluate(FILL)
    click(browser, "review")
    shows(browser, "preview")


def ledger(browser: Browser) -> list[dict[str, Any]]:
    """The entries that the page keeps."""
    script = (
        "Object.entries(localStorage).filter(([k]) => k.startsWith('populace answer')).map(([, v]) => JSON.parse(v))"
    )
    found: list[dict[str, Any]] = browser.evaluate(script)
    return found


def serve_study(stub: Stub, study: Study, question: dict[str, Any] | int = 0) -> None:
    """Let the stub serve this study with one question, and give true receipts."""
    asked = question_document(study.survey, question) if isinstance(question, int) else question
    where = {"state": "ask", "round": 0, "place": 7, "client": 7, "seconds_left": 3_000}

    def receive(body: bytes) -> tuple[int, bytes]:
        sent = json.loads(body)
        report, nonce = (base64.b64decode(sent[name]) for name in ("report", "nonce"))
        receipt = receipt_of(study.id, nonce, sent["round"], sent["place"], report).hex()
        return 200, json.dumps({"receipt": receipt, "fresh": True}).encode()

    stub.replies = {"/v1/study": study_document(study), "/v1/question": where | asked, "/v1/answer": receive}


def question_about_all(study: Study, *, epsilon: float) -> dict[str, Any]:
    """A question about all columns, each in two groups."""
    columns, stride = [], 1
    for number, column in enumerate(study.schema.columns):
        groups = [int(code > 0) for code in range(column.size)]
        columns.append(
            {"column": number, "name": column.name, "groups": groups, "labels": ["first", "rest"], "stride": stride}
        )
        stride *= 2
    report = report_document(SubsetSelection(size=stride, epsilon=epsilon))
    return {"question": 0, "columns": columns, "cells": stride, "values": None, "report": report}


def answers_posted(stub: Stub) -> list[bytes]:
    return [body for path, body in stub.posted if path == "/v1/answer"]


def picture(browser: Browser, name: str) -> None:
    """Keep a picture where POPULACE_SCREENSHOTS says so."""
    if folder := os.environ.get("POPULACE_SCREENSHOTS"):
        Path(folder, f"{name}.png").write_bytes(browser.picture())


def some_link(address: str) -> str:
    token = hashlib.sha256(address.encode()).digest()[:16]
    return f"{address}#{base64.urlsafe_b64encode(token).decode().rstrip('=')}"
