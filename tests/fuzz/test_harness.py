"""The harness finds what is planted: exceptions, hangs, crashes, memory, sentences that are none, charges that are two."""

from __future__ import annotations

import json
import random

import pytest

from fuzz import exchanges, mutate
from fuzz.corpus import Corpus
from fuzz.driver import Driver, shares, write_findings
from fuzz.target import FindingError, from_text, to_text
from populace.engines.site import Site
from populace.privacy import events
from populace.privacy.ledger import Charge
from populace.privacy.sqlite_ledger import SqliteLedger

WORDS = {
    "key-error": "KeyError: 'nothing'",
    "busy": "hang:",
    "blocked": "hang:",
    "crash": "crash: exit -11",
    "exit": "crash: exit 0",
    "memory": "MB of memory",
    "salad": "more than a sentence",
    "silent": "an error without a sentence",
    "recursion": "RecursionError",
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with Driver(tmp_path_factory.mktemp("corpus"), limits=(1.5, 2.5)) as made:
        yield made


def first_bad(seed: int = 1, target: str = "") -> int:
    """The number of the first case that meets the planted fault."""
    return next(n for n in range(1_000) if random.Random(f"{seed}/planted-{target}/{n}").randrange(100) % 10 == 3)


@pytest.mark.parametrize("fault", WORDS)
def test_every_planted_fault_is_found_with_the_case_it_came_from(driver, fault):
    at, before = first_bad(target=fault), len(driver.tally.findings)
    first = max(0, at - 2)
    driver.cases(f"planted-{fault}", seed=1, first=first, count=at - first + 1)
    (found,) = driver.tally.findings[before:]
    assert WORDS[fault] in found.what
    assert found.case == f"1/planted-{fault}/{at}"
    assert found.input is not None
    assert from_text(found.input)["number"] % 10 == 3
    assert sum(driver.tally.counts[f"planted-{fault}"].values()) == at - first + 1  # the others were run too


def test_a_target_without_a_fault_has_no_finding(driver):
    driver.cases("planted-nothing", seed=1, count=40)
    assert set(driver.tally.counts["planted-nothing"]) == {"ok", "refused"}


def test_a_finding_is_a_file_that_runs_again(driver, tmp_path):
    driver.cases("planted-key-error", seed=1, first=first_bad(target="key-error"), count=1)
    path = next(path for path in write_findings(driver.tally.findings, tmp_path) if "key-error" in path.name)
    kept, before = json.loads(path.read_text()), len(driver.tally.findings)
    driver.inputs(kept["target"], path.stem, kept["input"])
    assert len(driver.tally.findings) == before + 1


def test_long_sentences_are_cut_by_the_error_itself_and_found_where_they_are_not():
    from fuzz.target import check_sentence
    from populace.errors import InputError, readable

    assert len(readable("x" * 5_000)) < 600
    assert str(InputError("a" + "x" * 5_000 + "; mend it")).endswith("; mend it")
    with pytest.raises(FindingError, match="5000 characters"):
        check_sentence("x" * 5_000)


def test_a_site_that_charges_twice_or_charges_for_a_refusal_is_found(tmp_path, monkeypatch):
    asked = exchanges._prepare_sites(Corpus(tmp_path))
    honest = {"site": "independent", "before": 0, "request": asked["independent"].requests[0]}
    exchanges._run_site(asked, honest)
    reply = Site.reply

    def booked(self, data):
        """Every request books a charge, whatever is said then."""
        with SqliteLedger(self.ledger_path, self.budget) as ledger:
            charge = Charge(event=events.Pure(0.1), unit="client")
            ledger.commit_many([("row 1", f"q{ledger.last}", b"", None)], charge, run=f"r{ledger.last}", round_id=0)
        return reply(self, data)

    monkeypatch.setattr(Site, "reply", booked)
    with pytest.raises(FindingError, match=r"charges for a reply of|charged twice"):
        exchanges._run_site(asked, honest)
    with pytest.raises(FindingError, match="a refusal after which"):
        exchanges._run_site(asked, {**honest, "request": b"nonsense"})


def test_a_site_that_fails_inside_is_found_though_it_refuses_in_words(tmp_path, monkeypatch):
    asked = exchanges._prepare_sites(Corpus(tmp_path))
    monkeypatch.setattr(Site, "_answer", lambda *_: {}["nothing"])
    with pytest.raises(FindingError, match="the site failed"):
        exchanges._run_site(asked, {"site": "independent", "before": 0, "request": asked["independent"].requests[0]})


def test_the_same_seed_gives_the_same_damage_and_another_one_other_damage():
    data = json.dumps({"a": [1, 2, {"b": None}], "c": "text"}).encode()
    made = [mutate.damaged(random.Random(f"1/x/{n}"), data, [b"other"], form="json") for n in range(50)]
    assert made == [mutate.damaged(random.Random(f"1/x/{n}"), data, [b"other"], form="json") for n in range(50)]
    assert made != [mutate.damaged(random.Random(f"2/x/{n}"), data, [b"other"], form="json") for n in range(50)]
    assert len(set(made)) > 40


def test_inputs_survive_being_written():
    case = {"data": bytes(range(256)), "words": ["a", "\udcff", "b\n"], "more": {"x": b"y"}, "number": 3, "cut": [1, 2]}
    assert from_text(json.loads(json.dumps(to_text(case)))) == case


def test_every_target_has_its_share():
    given = shares({"cheap": 1.0, "dear": 100.0, "dearest": 1_000.0}, 10_000, least=200)
    assert sum(given.values()) == 10_000
    assert given["dearest"] >= 200
    assert given["cheap"] > 10 * given["dear"]


def test_every_command_is_among_the_targets():
    """A new command is fuzzed with wrong options from its first day; those that serve or train never with right ones."""
    from fuzz.commands import RESTRAINED, all_commands

    names = {" ".join(command.words) for command in all_commands()}
    assert {"synthesize", "verify", "site join", "collector serve", "poll fit"} <= names
    assert set(RESTRAINED) <= names
