"""Where a new run would stand in a ledger: which earlier runs used the same rows or persons, and what all cost together.

Every row of the data in hand is looked for in what each earlier run used. Rows that the same earlier runs used form a group,
and the total is that of the group that pays most. Totals are for one record unless every run involved protects the same
clients: a client's cost bounds what each of its records pays, never the other way round.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from populace.experiments.accounts import Accounts
from populace.privacy.guarantee import Neighbours, Unit
from populace.privacy.run_ledger import Booked, Kind, RunLedger, set_name
from populace.privacy.run_totals import Cost, Total, plain_sum, shared_relation, total_of

Array = np.ndarray[Any, Any]
Used = dict[tuple[Kind, str], Array]
Groups = list[tuple[Array, list[Booked]]]  # which rows, or clients, some earlier runs used


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """A new run among the earlier ones that used some of the same rows or clients (`shared`).

    `per` is the client column the totals are for, "" where they are for one record, or for the simulated clients that all of
    them share. `strangers` are runs on the same rows that cannot be added per client of a column, though this run, or one of
    them, protects such clients. `plain_before` and `plain_after` are the sums, which a limit is held against: they also hold
    where runs are chosen after looking at earlier ones. `used` is what the new run will leave in the ledger.
    """

    shared: tuple[Booked, ...]
    strangers: tuple[Booked, ...]
    before: Total
    after: Total
    plain_before: Total
    plain_after: Total
    per: str
    used: Used


def find_standing(
    ledger: RunLedger, mine: Accounts, cost: Cost, *, client_column: str | None, records_per_client: int = 1
) -> Standing:
    """Compare the data in hand with all that the ledger holds, as of now.

    Guarantee: `after` bounds what any row in hand (any client, where `per` or the unit says so) pays over all runs that are
    recognised, this one included; if there are strangers, that of any row.
    """
    earlier = ledger.runs()
    used = _what_is_used(mine, earlier, cost, client_column, records_per_client)
    row_groups = _groups(ledger, mine, earlier)
    by_rows = [run for _, runs in row_groups for run in runs]
    whole = partial(_standing, cost=cost, used=used)
    if block := next((name for kind, name in used if kind == "block"), ""):
        same = [run for run in by_rows if run.used.get(("block", block)) == set_name(used["block", block])]
        if len(same) == len(by_rows):
            return whole([(np.ones(len(mine), bool), same)] if same else [], size=len(mine), unit="client", per="")
    own = [name for kind, name in used if kind == "client"]
    found = whole(row_groups, size=len(mine), unit="record", per="")
    strangers = [run for run in by_rows if _client_columns(run) - set(own)]
    for name in own:
        groups = _client_groups(ledger, mine, earlier, used["client", name], name)
        added = [run for _, runs in groups for run in runs]
        if left := [run for run in by_rows if run not in added]:
            strangers += left
            continue
        per_client = whole(groups, size=len(used["client", name]), unit="client", per=name)
        if name == client_column:
            return per_client
        found = max(found, per_client, key=lambda standing: standing.after.epsilon)
    return dataclasses.replace(found, strangers=tuple(dict.fromkeys(strangers)))


def _standing(groups: Groups, *, cost: Cost, used: Used, size: int, unit: Unit, per: str) -> Standing:
    shared = sorted((run for _, runs in groups for run in runs), key=lambda run: run.number)
    relation = shared_relation([cost, *(run.cost for run in shared)])
    patterns = _patterns([mask for mask, _ in groups], size)
    spent = [[run.cost for i in sorted(pattern) for run in groups[i][1]] for pattern in patterns]
    with_this = [[*costs, cost] for costs in spent]
    return Standing(
        shared=tuple(shared), strangers=(), before=_worst(total_of, spent, unit, relation),
        after=_worst(total_of, with_this, unit, relation), plain_before=_worst(plain_sum, spent, unit, relation),
        plain_after=_worst(plain_sum, with_this, unit, relation), per=per, used=used,
    )  # fmt: skip


def _worst(add: Callable[..., Total], spent: Sequence[list[Cost]], unit: Unit, neighbours: Neighbours) -> Total:
    """The greatest epsilon of these groups of rows, with the greatest delta."""
    totals = [add(costs, unit=unit, neighbours=neighbours) for costs in spent]
    return Total(
        epsilon=max(total.epsilon for total in totals), delta=max(total.delta for total in totals), unit=unit,
        neighbours=neighbours,
    )  # fmt: skip


def _patterns(masks: list[Array], size: int) -> list[frozenset[int]]:
    """Which masks hold together somewhere, without what is a part of another."""
    code = np.zeros(size, np.int64)
    seen: list[frozenset[int]] = [frozenset()]
    for number, mask in enumerate(masks):
        values, code = np.unique(2 * code + mask, return_inverse=True)
        seen = [seen[value >> 1] | ({number} if value & 1 else frozenset()) for value in values.tolist()]
    return [pattern for pattern in seen if not any(pattern < other for other in seen)]


def _what_is_used(
    mine: Accounts, earlier: list[Booked], cost: Cost, client_column: str | None, records_per_client: int
) -> Used:
    """Digests that a later run can recognise these data by.

    Clients of a column that earlier runs protect are kept of any run in which each of them has one row: it costs them no more
    than the row.
    """
    used: Used = {("rows", json.dumps(mine.columns)): mine.rows(mine.columns)}
    used |= {("id", name): mine.values(name) for name in mine.ids}
    if cost.unit == "client" and client_column:
        used["client", client_column] = np.unique(mine.values(client_column))
    elif cost.unit == "client" and records_per_client > 1:
        return {**used, ("block", str(records_per_client)): np.unique(mine.blocks)}
    for name in sorted({name for run in earlier for name in _client_columns(run)} & set(mine.columns)):
        values = np.unique(mine.values(name))
        if ("client", name) not in used and len(values) == len(mine):
            used["client", name] = values
    return used


def _client_columns(run: Booked) -> set[str]:
    return {name for kind, name in run.used if kind == "client"}


def _groups(ledger: RunLedger, mine: Accounts, earlier: list[Booked]) -> Groups:
    """For each sort of data that earlier runs used: which rows in hand are among them, and the runs."""
    sorts: dict[str, list[Booked]] = {}
    for run in earlier:
        key = json.dumps(sorted([*at, name] for at, name in run.used.items() if at[0] in ("rows", "id")))
        sorts.setdefault(key, []).append(run)
    found = [(_seen(ledger, mine, runs[0]), runs) for runs in sorts.values()]
    return [(mask, runs) for mask, runs in found if mask.any()]


def _seen(ledger: RunLedger, mine: Accounts, run: Booked) -> Array:
    """Which rows in hand an earlier run used.

    By content over that run's columns, or by an id both have. Where some of its columns are gone and there is no such id,
    rows cannot be compared: all count as used if at least half of the columns are shared, else the tables are different ones.
    """
    (columns,) = (tuple(json.loads(name)) for kind, name in run.used if kind == "rows")
    common = set(columns) & set(mine.columns)
    mask = np.zeros(len(mine), bool)
    comparable = common == set(columns)
    if not comparable and 2 * len(common) < min(len(columns), len(mine.columns)):
        return mask
    ids = [name for kind, name in run.used if kind == "id" and name in mine.columns]
    if comparable:
        mask |= _among(mine.rows(columns), ledger.members(run.used["rows", json.dumps(columns)]))
    elif not ids:
        return ~mask
    for name in ids:
        mask |= _among(mine.values(name), ledger.members(run.used["id", name]))
    return mask


def _client_groups(ledger: RunLedger, mine: Accounts, earlier: list[Booked], clients: Array, column: str) -> Groups:
    """The same for clients, by the column's values."""
    sorts: dict[str, list[Booked]] = {}
    for run in earlier:
        if ("client", column) in run.used:
            sorts.setdefault(run.used["client", column], []).append(run)
        elif _one_row_each(mine, run, clients):
            sorts.setdefault("", []).append(run)
    found = [
        (_among(clients, ledger.members(members)) if members else np.ones(len(clients), bool), runs)
        for members, runs in sorts.items()
    ]
    return [(mask, runs) for mask, runs in found if mask.any()]


def _one_row_each(mine: Accounts, run: Booked, clients: Array) -> bool:
    """Whether an earlier run read these very rows, each client's only one: what it cost a row it cost the client."""
    rows = run.used.get(("rows", json.dumps(mine.columns)))
    return len(clients) == len(mine) == run.rows and run.cost.records == 1 and rows == set_name(mine.rows(mine.columns))


def _among(digests: Array, members: Array) -> Array:
    """Which digests are among sorted members."""
    at = np.minimum(np.searchsorted(members, digests), len(members) - 1)
    found: Array = members[at] == digests
    return found
