"""Whether a run's papers hold together: the claim computed again from its method and from its events, files against digests,
words against numbers.

It finds what was changed, forgotten or computed wrongly. It is no signature: whoever can rewrite all files can make them agree.
A folder that holds only what may be published (no run.json) is checked as far as it goes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

from populace.privacy import events
from populace.privacy.accounting import contains_non_private, epsilon_of
from populace.privacy.bracket import TOLERANCE, Bracket, bracket
from populace.privacy.guarantee import Guarantee, upwards
from populace.runs.folder import ASKED, PUBLIC, claim_json, where_of
from populace.runs.verify.documents import DAMAGED, Check, Papers
from populace.runs.verify.documents import read_papers as read_papers
from populace.runs.verify.form import check_files, check_form
from populace.runs.verify.method import check_history, check_method
from populace.types import JsonObject

ROUNDING = 1e-9  # relative, of sums and of numbers written and read again
SAME = 1e-6  # relative, of an epsilon computed twice, on two machines
Look = Callable[[Papers], Check | Iterator[Check]]


def verify_papers(papers: Papers) -> list[Check]:
    """Every check that needs no page: form, wording, claim, ledger, method, other runs, run.json, seed, files."""
    looks: dict[str, Look] = {
        "form of privacy.json": check_form,
        "statement and numbers": _check_wording,
        "claim and events": _check_claim,
        "ledger and events": _check_ledger,
        "method": check_method,
        "other runs": check_history,
        "run.json and privacy.json": _check_run,
        "files": check_files,
    }
    return [check for what, look in looks.items() for check in _looked(what, look, papers)]


def _looked(what: str, look: Look, papers: Papers) -> Iterator[Check]:
    """What one look says; that it fails, where the papers hold something of another kind than they must."""
    try:
        found = look(papers)
        yield from [found] if isinstance(found, Check) else found
    except DAMAGED as error:
        yield Check(what, "fails", f"cannot be read: {error!r}")


def _check_wording(papers: Papers) -> Check:
    """Whether words and numbers of privacy.json say the same: made again from its numbers, it is what it was."""
    what = "statement and numbers"
    if papers.old:
        bound = str(papers.privacy.get("bound", ""))
        said = _old_bound(papers)
        if bound != said or not str(papers.privacy.get("statement", "")).startswith((bound, "No guarantee")):
            return Check(what, "fails", f"privacy.json says {bound!r}, its numbers say {said!r}")
        words = "bound and numbers agree; written by 0.1.0, so its other words cannot be made again"
        if papers.guarantee.trust != papers.privacy["trust"]:
            words += f"; what it calls trust {papers.privacy['trust']!r} is {papers.guarantee.trust!r} in today's words"
        return Check(what, "holds", words)
    again = claim_json(papers.guarantee, papers.privacy.get("history"))
    wrong = [name for name, value in again.items() if papers.privacy.get(name) != value]
    if wrong:
        words = "is not what this populace makes of its numbers: changed, or another build's"
        return Check(what, "fails", f"in privacy.json {', '.join(wrong)} {words}")
    return Check(what, "holds", f"the words of privacy.json follow from its numbers: {papers.guarantee.headline}")


def _old_bound(papers: Papers) -> str:
    """The bound as 0.1.0 wrote it: all digits of every number."""
    claim = dataclasses.replace(papers.guarantee, trust=papers.privacy["trust"])
    epsilon, delta = (repr(float(number)).removesuffix(".0") for number in (claim.epsilon, claim.delta))
    if math.isinf(claim.epsilon):
        return claim.bound
    name = "LDP" if claim.trust == "local" else "DP"
    return f"{epsilon}-{name}" if claim.pure else f"({epsilon}, {delta})-{name}"


def _check_claim(papers: Papers) -> Iterator[Check]:
    """The claim against the event list: below it nothing is refuted, above it nothing is missing."""
    what, guarantee, event = "claim and events", papers.guarantee, papers.event
    if event is None:
        if papers.old:
            why = "written by 0.1.0, which kept no event list; the claim cannot be computed again"
            yield Check(what, "not checked", why)
        else:
            yield Check(what, "fails", "there is no event list in privacy.json, and every run has one")
        return
    if contains_non_private(event) or math.isinf(guarantee.epsilon):
        agree = contains_non_private(event) and math.isinf(guarantee.epsilon)
        words = "something was released without protection, and " + (
            "no bound is claimed" if agree else "a bound is claimed"
        )
        if not contains_non_private(event):
            words = "no bound is claimed, although every event listed has one"
        yield Check(what, "holds" if agree else "fails", words)
        return
    delta = guarantee.accounted_delta
    yield from _compare(bracket(event, delta=delta), guarantee, delta, papers)


def _compare(found: Bracket, guarantee: Guarantee, delta: float, papers: Papers) -> Iterator[Check]:
    claim, at = guarantee.epsilon, f"delta {delta:g}" if delta else "delta 0"
    what = "claim and events, from below"
    if found.at_least > claim * (1 + ROUNDING):
        words = f"the events cost at least epsilon {found.at_least:.6g} at {at}; {upwards(claim)} is claimed"
        yield Check(what, "fails", words)
    elif found.proved > claim * (1 + ROUNDING):
        words = f"the accountant proves epsilon {found.proved:.6g} at {at} and no less; {upwards(claim)} is claimed"
        yield Check(what, "fails", words)
    else:
        words = (
            f"the events cost between {found.at_least:.6g} and {found.proved:.6g} at {at}; {upwards(claim)} is claimed"
        )
        yield Check(what, "holds", words)
    what = "claim and events, from above"
    if found.renyi is None:
        words = "the Renyi accountant does not know these events; privacy loss distributions alone"
        less = "" if claim <= found.proved * (1 + SAME) + TOLERANCE else ": less was released than was planned"
        yield Check(what, "holds", f"{words} give {found.proved:.6g}, {upwards(claim)} is claimed{less}")
    elif claim <= found.renyi * (1 + ROUNDING) + TOLERANCE:
        name = "their sum is" if events.is_pure(papers.event or events.Composed(())) else "by Renyi divergences it is"
        yield Check(what, "holds", f"{name} {found.renyi:.6g}, not less than what is claimed")
    else:
        words = (
            f"{upwards(claim)} is claimed, and {found.renyi:.6g} would do for what was released: less than was planned"
        )
        yield Check(what, "holds", words)


def _check_ledger(papers: Papers) -> Check:
    """What the ledger says was spent, against the same computed from the event list."""
    what, spent = "ledger and events", papers.privacy.get("ledger")
    if papers.old:
        return Check(what, "not checked", "written by 0.1.0: no event list to compare the ledger with")
    if not isinstance(spent, Mapping) or papers.event is None:
        return Check(what, "fails", "privacy.json holds no events, or does not say what was spent")
    if not spent.get("charges"):
        return Check(what, "fails", "events are listed, and the ledger says that nothing was charged")
    found, said = epsilon_of(papers.event, delta=float(spent["delta"])), float(spent["epsilon"])
    if not (found == said or abs(found - said) <= SAME * said + 1e-12):
        words = f"the ledger says that the account charged most spent epsilon {said:.6g}; the events listed cost {found:.6g}"
        return Check(what, "fails", words)
    return Check(what, "holds", f"the account charged most spent epsilon {said:.6g}, as the ledger says")


def _check_run(papers: Papers) -> Iterator[Check]:
    """run.json and privacy.json about the same run."""
    what = "run.json and privacy.json"
    if papers.run is None:
        yield Check(what, "left out", "there is no run.json here: only what may be published")
        return
    wrong = [*_disagreements(papers, papers.run)]
    asked = papers.run["spec"].get("epsilon")
    if wrong:
        yield Check(what, "fails", f"they disagree about {', '.join(wrong)}")
    elif asked is not None and asked * (1 + ROUNDING) < papers.guarantee.epsilon < math.inf:
        words = f"epsilon {asked:g} was asked for and {upwards(papers.guarantee.epsilon)} is claimed, which is more"
        yield Check(what, "fails", words)
    else:
        words = (
            f"method {papers.run['method']}, epsilon {asked:g} asked for" if asked else f"method {papers.run['method']}"
        )
        yield Check(what, "holds", f"{words}; they agree")
    # A fit of answers from files or devices draws no noise: its seed protects nobody and costs nothing.
    drawn = "answers" not in papers.run and "study" not in papers.run
    if papers.run["spec"].get("seed") is not None and drawn and not papers.guarantee.seeded:
        yield Check("seed", "fails", "run.json names a seed, and privacy.json does not say that the run is not private")


def _disagreements(papers: Papers, run: JsonObject) -> Iterator[str]:
    """Names of what the two files say otherwise."""
    if run.get("ledger") != papers.privacy.get("ledger"):
        yield "the ledger"
    if papers.old:
        return
    said = papers.privacy.get("run") or {}
    yield from (name for name in PUBLIC if run.get(name) != said.get(name))
    asked, spec = said.get("asked") or {}, run["spec"]
    yield from (f"{name} asked for" for name in (*ASKED, "silos") if spec.get(name) != asked.get(name))
    if where_of(run) != said.get("where"):
        yield "where it ran"
    if (run.get("booked") or {}).get("public") != papers.privacy.get("history"):
        yield "other runs"
