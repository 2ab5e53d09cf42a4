"""A few hundred seeded cases of every target, and every case that ever was a finding. `make fuzz` runs many more."""

from __future__ import annotations

import pytest

from fuzz.driver import Driver, found_cases
from fuzz.registry import TARGETS

SEED = 1
CASES = 5
DEAR = 100.0  # milliseconds of a case from which on a target has one only


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with Driver(tmp_path_factory.mktemp("corpus")) as made:
        yield made


def said(driver: Driver) -> list[str]:
    return [f"{one.case}: {one.what} at {one.where}" for one in driver.tally.findings]


def test_a_few_hundred_cases_have_no_finding(driver):
    for name, target in TARGETS.items():
        if not name.startswith("planted"):
            driver.cases(name, seed=SEED, count=CASES if target.cost < DEAR else 1)
    assert said(driver) == []
    assert driver.tally.cases >= 250
    assert sum(counts["refused"] for counts in driver.tally.counts.values()) > driver.tally.cases // 3


def test_what_was_ever_found_stays_mended(driver):
    found = found_cases()
    for name, kept in found.items():
        driver.inputs(kept["target"], name, kept["input"])
    assert said(driver) == []
    assert len(found) > 20
