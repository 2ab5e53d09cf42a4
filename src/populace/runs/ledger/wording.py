"""What a ledger says about a run, in sentences."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from populace.privacy.consequences import round_up
from populace.privacy.guarantee import UNITS, Unit
from populace.privacy.run_ledger import Booked
from populace.privacy.run_totals import Cost, Total, plain_sum, shared_relation, total_of
from populace.runs.ledger.standing import Standing
from populace.types import JsonObject

CHOOSING = "choosing the best of several runs by looking at real rows is not covered by any single run's epsilon"
SEEDED = "the total holds only while the seeds of seeded runs stay secret: they are reproducible, not private"
NOT_BOOKED = "this run was not booked in a ledger; what other runs on the same data released adds to it"
EMBEDDED_DATA = "invented data that ship with the package: not booked in a ledger"
DOUBT = (
    "the ledger knows a run on a table with the same columns and few or none of these rows: if they are the same people, "
    "written otherwise, costs add up"
)
ONE_PERSON = "one person with all their rows, at all silos"
FIXED = "if budgets, or a limit on their sum, were fixed beforehand"
PLANNED = "only if methods and budgets were planned without looking at earlier results"
ELSEWHERE = "what other programs, copies of the data and other ledgers released adds to it"


def pair(total: Total) -> str:
    """Epsilon and delta, rounded up, with the unit left out."""
    if math.isinf(total.epsilon):
        return "no guarantee (epsilon inf)"
    return f"epsilon {round_up(total.epsilon)}" + (f" (delta {round_up(total.delta)})" if total.delta else "")


def bound(total: Total, *, local: bool) -> str:
    """The pair in the form the field writes it."""
    if math.isinf(total.epsilon):
        return "no guarantee (epsilon inf)"
    name = "LDP" if local else "DP"
    return (
        f"({round_up(total.epsilon)}, {round_up(total.delta)})-{name}"
        if total.delta
        else f"{round_up(total.epsilon)}-{name}"
    )


def unit_words(unit: str, per: str, *, images: bool) -> str:
    """What the total is for; of a person it is for all silos of a run together, where the run's own bound is for one."""
    if unit == "person":
        return f"{ONE_PERSON} (one value of column {per!r})" if per else ONE_PERSON
    if per:
        return f"everything held by one value of column {per!r}"
    if unit == "client":
        return UNITS["client"]
    return "one image" if images else "one row of the table"


def doubt(run: Booked) -> str:
    """Why a table that looks like an earlier one is refused under a limit, and what to do."""
    return (
        f"and knows a run on a table with the same columns ({run.data}, in {run.folder}) and few or none of these rows: the "
        "same people, written otherwise, would pay without being counted; if they are other people, say so: --other-people "
        "WORDS, which the ledger keeps"
    )


def said_alone(sentence: str) -> JsonObject:
    """The history of a run that no ledger knows."""
    return {
        "ledger": None, "runs_before": None, "epsilon_before": None, "epsilon_after": None, "limit": None, "said": sentence,
    }  # fmt: skip


def said(standing: Standing, cost: Cost, *, ledger: str, images: bool) -> str:
    """The sentence for the owner."""
    doubts = [DOUBT] if standing.doubtful else []
    if not standing.shared:
        unknown = f"booked in {ledger}, where no earlier run on rows that it recognises is booked"
        return "; ".join([unknown, *doubts, ELSEWHERE])
    costs = [cost, *(run.cost for run in standing.shared)]
    total = standing.after
    count = len(standing.shared)
    runs = f"with {count} earlier {'run' if count == 1 else 'runs'} booked in {ledger} on (some of) the same records"
    if math.isinf(total.epsilon):
        parts = [f"{runs} there is no guarantee in total (epsilon inf): one of them guarantees nothing"]
    else:
        trusts = sorted({cost.trust for cost in costs})
        parts = [
            f"{runs} the total is {bound(standing.plain_after, local=trusts == ['local'])} for "
            f"{unit_words(total.unit, standing.per, images=images)} (trust {' and '.join(trusts)}, neighbours "
            f"{total.neighbours})"
        ]
        if total != standing.plain_after:
            parts.append(f"{bound(total, local=trusts == ['local'])} {PLANNED}")
    if standing.strangers:
        one = "person" if any(cost.unit == "person" for cost in costs) else "client"
        parts.append(
            f"runs per record and per {one} do not add up for a {one} with several rows: no total is stated for one"
        )
    if any(cost.seeded for cost in costs):
        parts.append(SEEDED)
    return "; ".join([*parts, *doubts, CHOOSING, ELSEWHERE])


def public_history(earlier: Sequence[Cost], cost: Cost, *, ledger: str, limit: float, images: bool) -> JsonObject:
    """What may be published about the other runs in a ledger: their number, and the total if all were about the same records.

    Where all runs protect the persons of one column, the total is for one of them with rows at all silos of every run, as it is
    on the console and under a limit. A first run is told with its own bound.

    Guarantee: nothing of it depends on the records, only on which runs their owner made. Whether runs share records, which
    does, stays with the owner (`said`, `populace ledger show`).
    """
    costs = [*earlier, cost]
    unit: Unit = (
        "client" if all(one.unit == "client" and one.records == cost.records == 1 for one in costs) else "record"
    )
    if all((one.unit, one.person) == ("person", cost.person) for one in costs):
        unit = "person"
    if not earlier:
        unit, costs = cost.unit, [dataclasses.replace(cost, silos=1)]
    relation = shared_relation(costs)
    total, plain = (make(costs, unit=unit, neighbours=relation) for make in (total_of, plain_sum))
    history = {
        "ledger": ledger,
        "runs_before": len(earlier),
        "epsilon_if_all_share_records": json_number(total.epsilon),
        "delta_if_all_share_records": total.delta,
        "epsilon_added": json_number(plain.epsilon),
        "delta_added": plain.delta,
        "unit": unit,
        "neighbours": relation,
        "local": all(one.trust == "local" for one in costs),
        "seeded": any(one.seeded for one in costs),
        "limit": None if math.isinf(limit) else limit,
    }
    return {**history, "said": said_publicly(history, images=images)}


def said_publicly(history: JsonObject, *, images: bool) -> str:
    """The sentence that `public_history` publishes, from its numbers alone, so that it can be made again from them."""
    ledger, count, local = history["ledger"], int(history["runs_before"]), bool(history["local"])
    if not count:
        return f"booked in {ledger} as its first run; {ELSEWHERE}"
    total, plain = (
        Total(
            epsilon=float(history[f"epsilon_{name}"]), delta=float(history[f"delta_{name}"]), unit=history["unit"],
            neighbours=history["neighbours"],
        )
        for name in ("if_all_share_records", "added")
    )  # fmt: skip
    runs = f"booked in {ledger} after {count} earlier {'run' if count == 1 else 'runs'}"
    if math.isinf(total.epsilon):
        parts = [
            f"{runs}, one of which guarantees nothing: if all were about the same records there is no guarantee in total"
        ]
    else:
        one = unit_words("person" if total.unit == "person" else "record", "", images=images)
        parts = [
            f"{runs}; if all were about the same records, the total for {one} is the sum, {bound(plain, local=local)}, "
            f"{FIXED}"
        ]
        if total != plain:
            parts.append(f"{bound(total, local=local)} {PLANNED}")
    if history["seeded"]:
        parts.append(SEEDED)
    return "; ".join([*parts, CHOOSING, ELSEWHERE])


def json_number(epsilon: float) -> float | str:
    """Epsilon as JSON can hold it: an infinite one is a word."""
    return "inf" if math.isinf(epsilon) else epsilon
