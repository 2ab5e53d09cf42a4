"""Whether a statement is what its method guarantees: the method is made again from the public facts, and asked."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from populace.errors import PopulaceError, SpecError
from populace.methods.registry import METHODS
from populace.privacy import events
from populace.privacy.accounting import contains_non_private, epsilon_of
from populace.privacy.events import Event
from populace.privacy.guarantee import Guarantee
from populace.runs.domains import SCHEMA
from populace.runs.folder import digest_of
from populace.runs.ledger.wording import EMBEDDED_DATA, NOT_BOOKED, said_alone, said_publicly
from populace.runs.restated import Restated, image_shape, restated
from populace.runs.verify.documents import DAMAGED, Check, Papers
from populace.tables.files import read_json
from populace.tables.schema import Column, Schema, schema_from_dict
from populace.types import JsonObject
from populace.version import __version__

NEAR = 1e-4  # relative, of what is calculated again on another machine
LOOSE = 1e-2  # relative, of an epsilon that was calibrated on other columns
ROUNDING = 1e-9
WHAT = "method"
NUMBERS = ("epsilon", "delta", "sampling_delta")
FACTS = (
    "unit", "neighbours", "trust", "protects", "units", "counts_read", "read_from_data", "domain_sources", "simulated",
    "rehearsal", "sole_holder", "noise",
)  # fmt: skip
DOMAINS = ("read_from_data", "domain_sources")
TEXTS = ("mechanism", "derivation", "assumptions", "reason", "claims")
NAMES = {"read_from_data": "domains"}  # as privacy.json calls them
NUMBER = re.compile(r"(\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)")


def check_method(papers: Papers) -> Iterator[Check]:
    """The statement, its facts and its events, against what the method says of itself with these parameters."""
    if papers.old:
        yield Check(WHAT, "not checked", "written by 0.1.0, which did not keep what the method needs to be made again")
        return
    try:
        name = str(papers.privacy["run"]["method"])
        if name not in METHODS:
            yield Check(WHAT, "not checked", f"{name!r} is not a method of this installation")
            return
        schema, why = _schema(papers)
        if why:
            yield _without_schema(papers, name, why)
            return
        again = restated(papers.privacy, schema)
    except PopulaceError as error:
        yield Check(WHAT, "fails", f"cannot be made again from privacy.json: {error}")
        return
    except DAMAGED as error:
        yield Check(WHAT, "fails", f"cannot be made again from privacy.json: {error!r}")
        return
    yield _compare(papers, again)
    yield from _check_facts(papers, again, schema)
    yield from _check_event(papers, again)


def _schema(papers: Papers) -> tuple[Schema | None, str]:
    """The schema of a table from generator.json; None for images; and why there is none where one is needed."""
    if papers.privacy["run"]["population"]["kind"] == "images":
        return None, ""
    made = _generator(papers)
    if made is None:
        return None, "generator.json, which holds the schema, is not in the folder, or not the one that is listed"
    if SCHEMA in papers.privacy["files"]:
        made = {"schema": _generator(papers, SCHEMA)}
        if made["schema"] is None:
            return None, f"{SCHEMA} is not in the folder, or not the one that is listed"
    return schema_from_dict(made["schema"]), ""


def _generator(papers: Papers, name: str = "generator.json") -> Any:
    """generator.json, if it is the one that privacy.json lists; a changed one is found with the files."""
    path = papers.folder / name
    listed = (papers.privacy.get("files") or {}).get(path.name)
    return read_json(path) if path.is_file() and digest_of(path) == listed else None


def _without_schema(papers: Papers, name: str, why: str) -> Check:
    """What a method says of itself whatever the values of columns are: it is made again on columns with two values each."""
    said = papers.guarantee
    try:
        again = restated(papers.privacy, _stand_in(papers))
    except PopulaceError as error:
        return Check(WHAT, "not checked", f"{name} cannot be made again: {why} ({error})")
    found = again.guarantee
    wrong = [each for each in FACTS if each not in DOMAINS and getattr(said, each) != getattr(found, each)]
    wrong += [] if _near(said.epsilon, found.epsilon, LOOSE) else ["epsilon"]
    wrong += [] if _near(said.accounted_delta, found.accounted_delta) else ["delta"]
    if wrong:
        words = ", ".join(_difference(each, said, found) for each in wrong)
        return Check(WHAT, "fails", f"{name}, made again from privacy.json, states otherwise: {words}")
    return Check(
        WHAT, "not checked", f"what {name} states whatever the columns hold is stated; the rest needs more: {why}"
    )


def _stand_in(papers: Papers) -> Schema:
    named = [
        *papers.guarantee.read_from_data,
        *(name for _, names in papers.guarantee.domain_sources for name in names),
    ]
    columns = tuple(Column(name=name, kind="categorical", categories=("a", "b")) for name in named)
    return Schema(columns=columns).with_target(papers.privacy["run"]["asked"]["target"])


def _compare(papers: Papers, again: Restated) -> Check:
    """Numbers, facts and words of the statement with those of the method made again."""
    said, found, name = papers.guarantee, again.guarantee, again.protocol.facts.name
    wrong = [each for each in NUMBERS if not _near(getattr(said, each), getattr(found, each))]
    wrong += [each for each in FACTS if getattr(said, each) != getattr(found, each)]
    texts = [each for each in TEXTS if not same_words(getattr(said, each), getattr(found, each))]
    by = str(papers.privacy["run"]["versions"].get("populace", ""))
    if wrong or (texts and by == __version__):
        words = ", ".join(_difference(each, said, found) for each in (*wrong, *texts))
        return Check(WHAT, "fails", f"{name}, made again from privacy.json, states otherwise: {words}")
    if texts:
        words = f"numbers and facts are those of {name}; populace {by} words {', '.join(texts)} otherwise than {__version__}"
        return Check(WHAT, "not checked", words)
    return Check(WHAT, "holds", f"{name}, made again from privacy.json, states the same: {found.bound}")


def _difference(each: str, said: Guarantee, found: Guarantee) -> str:
    name = NAMES.get(each, each)
    if each in ("domain_sources", *TEXTS):
        return f"{name} (changed, or another build's)"
    one, other = getattr(said, each), getattr(found, each)
    return f"{name} ({one!r} is stated, it says {other!r})"


def same_words(one: Any, other: Any) -> bool:
    """Whether two texts, or two tuples of them, are the same but for the last digits of numbers."""
    if isinstance(one, str) and isinstance(other, str):
        ours, theirs = NUMBER.split(one), NUMBER.split(other)
        return len(ours) == len(theirs) and all(
            a == b or (place % 2 and _near(float(a.replace(",", "")), float(b.replace(",", ""))))
            for place, (a, b) in enumerate(zip(ours, theirs, strict=True))
        )
    return len(one) == len(other) and all(same_words(a, b) for a, b in zip(one, other, strict=True))


def _near(one: float, other: float, relative: float = NEAR) -> bool:
    if not (math.isfinite(one) and math.isfinite(other)):
        return one == other
    return abs(one - other) <= relative * max(abs(one), abs(other))


def _check_facts(papers: Papers, again: Restated, schema: Schema | None) -> Iterator[Check]:
    """What `run` says twice: who took part, what was asked for, and the shape of the data."""
    what, run = "facts of the run", papers.privacy["run"]
    found = json.loads(json.dumps(again.facts))
    wrong = [name for name, value in found.items() if run[name] != value]
    asked, parameters = run["asked"], run["parameters"]
    if asked["epsilon"] is not None and not _near(asked["epsilon"], parameters.get("epsilon", asked["epsilon"])):
        wrong.append("epsilon")
    if asked["delta"] is not None and not _near(asked["delta"], parameters.get("delta", asked["delta"])):
        wrong.append("delta")
    named = asked["target"] is not None and run["where"] != "sites"  # else it is the schema's own
    if named and schema is not None and asked["target"] != schema.target:
        wrong.append("target")
    made = _generator(papers)
    if schema is None and made is not None:
        shape = image_shape(run["population"]["images"])
        if (tuple(made.get("shape", ())), made.get("classes")) != (shape.shape, shape.classes):
            wrong.append("shape of the images")
    if wrong:
        yield Check(what, "fails", f"what privacy.json says of {', '.join(wrong)} does not follow from the rest of it")
    else:
        yield Check(what, "holds", "clients, records, split and what was asked for agree with one another")


def _check_event(papers: Papers, again: Restated) -> Iterator[Check]:
    """The events listed, against what a whole run of the method costs the unit that pays most."""
    what, event, claim = "events of the method", papers.event, again.guarantee
    if event is None or math.isinf(claim.epsilon) or contains_non_private(event):
        return  # `claim and events` says what is to be said
    try:
        planned: Event | None = again.protocol.spends(again.population)
    except SpecError:
        planned = events.Pure(claim.epsilon) if claim.pure else None
    if planned is None:
        yield Check(what, "left out", f"{again.protocol.facts.name} tells its epsilon alone")
        return
    delta = claim.accounted_delta
    deltas = (delta, delta / 10, min(0.1, delta * 100)) if delta else (0.0,)
    costs = [] if event == planned else [(epsilon_of(event, delta=at), epsilon_of(planned, delta=at)) for at in deltas]
    early = papers.privacy["run"]["where"] == "sites" or papers.privacy["run"]["rounds"] < again.protocol.round_count(
        again.population
    )
    if all(_near(*pair, relative=10 * NEAR) for pair in costs):
        yield Check(what, "holds", "are those of a whole run of the method")
    elif early and all(one <= other * (1 + 10 * NEAR) for one, other in costs):
        yield Check(what, "holds", "cost less than a whole run of the method, which ended early")
    else:
        one, other = costs[0]
        words = (
            f"cost epsilon {one:.6g} at delta {delta:g}, and a whole run of the method costs {other:.6g}, or others do"
        )
        yield Check(what, "fails", f"they {words}")


def check_history(papers: Papers) -> Iterator[Check]:
    """What is said of other runs, made again from its numbers; and that the numbers leave room for this run."""
    what, history = "other runs", papers.privacy.get("history")
    if papers.old or history is None:
        return
    try:
        wrong = list(_history(papers, history))
    except DAMAGED as error:
        wrong = [f"it cannot be read ({error!r})"]
    if wrong:
        yield Check(what, "fails", "; ".join(wrong))
    else:
        yield Check(what, "holds", "what is said of them follows from its numbers, which leave room for this run")


def _history(papers: Papers, history: JsonObject) -> Iterator[str]:
    if history["ledger"] is None:
        if history["said"] not in (NOT_BOOKED, EMBEDDED_DATA) or dict(history) != said_alone(history["said"]):
            yield "it names no ledger, and says something that no run without one does"
        return
    claim, count = papers.guarantee, history["runs_before"]
    images = papers.privacy["run"]["population"]["kind"] == "images"
    if said_publicly(history, images=images) != history["said"]:
        yield "the sentence is not what this populace makes of its numbers: changed, or another build's"
    pairs = [
        (float(history[f"epsilon_{name}"]), float(history[f"delta_{name}"])) for name in ("if_all_share_records", "added")
    ]  # fmt: skip
    (total, slack), (added, added_slack) = pairs
    if not isinstance(count, int) or count < 0 or total > added * (1 + ROUNDING) or not 0 <= slack < 1:
        yield "its numbers contradict one another"
    own = (claim.epsilon, 0.0 if math.isinf(claim.epsilon) else claim.delta)
    if count == 0 and not all(_near(a, b, ROUNDING) for pair in pairs for a, b in zip(pair, own, strict=True)):
        yield "a first run costs what it claims, and another total stands there"
    if count and (added < own[0] * (1 - ROUNDING) or (math.isfinite(added) and added_slack < own[1] * (1 - ROUNDING))):
        yield "all runs together cost less than this one alone"
    if history["seeded"] != claim.seeded and (claim.seeded or count == 0):
        yield "it says otherwise than the statement whether this run was seeded"
    if history["local"] and claim.trust != "local":
        yield "it says that all runs were local, and this one was not"
    if count == 0 and (history["unit"], history["neighbours"]) != (claim.unit, claim.neighbours):
        yield "unit and neighbours are not those of this run, the first"
