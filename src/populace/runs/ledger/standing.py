"""Where a new run would stand in a ledger: which earlier runs used the same rows or persons, and what all cost together.

Every row of the data in hand is looked for in what each earlier run used. Rows that the same earlier runs used form a group,
and the total is that of the group that pays most. Totals are for one record unless every run involved protects the same
clients, or persons: their cost bounds what each of their records pays, never the other way round. The clients of a column
and the persons of one are the same accounts, a value each.

Rows are *known* by all their values, by an id or by a person; they are *likely* the same by the values that stay when ids are
drawn anew. A table with an earlier one's columns and next to none of its rows leaves a doubt: other people, or the same written
otherwise. The owner's word settles it; it does not stand against rows that are known, nor against likely ones that are most.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from populace.border.documents import parse_json
from populace.border.models import interpreting
from populace.privacy.guarantee import Neighbours, Unit
from populace.privacy.run_ledger import Booked, Kind, RunLedger, distinct, set_name
from populace.privacy.run_totals import Cost, Total, plain_sum, shared_relation, total_of
from populace.runs.ledger.accounts import Accounts
from populace.tables.value_text import fold_name
from populace.types import NumpyArray

Used = dict[tuple[Kind, str], NumpyArray]
Groups = list[tuple[NumpyArray, list[Booked]]]  # which rows, or clients, some earlier runs used
FEW = 0.1  # of the rows of the smaller table: fewer that are recognised leave a doubt
MOST = 0.5  # of the rows in hand: more that are likely the same are so, whatever is said
#: Different rows per row, from which on the core tells people apart: by Good and Turing's estimate (Good 1953) less than half
#: of the rows of others drawn alike then match by chance, so that `MOST` are no chance.
APART = 0.75


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """A new run among the earlier ones that used some of the same rows or clients (`shared`).

    `per` is the client column the totals are for, "" where they are for one record, or for the simulated clients that all of
    them share. `strangers` are runs on the same rows that cannot be added per client of a column, though this run, or one of
    them, protects such clients. `plain_before` and `plain_after` are the sums, which a limit is held against: they also hold
    where runs are chosen after looking at earlier ones. `used` is what the new run will leave in the ledger. `doubtful` are
    runs on tables with these columns and next to none of these rows.
    """

    shared: tuple[Booked, ...]
    strangers: tuple[Booked, ...]
    before: Total
    after: Total
    plain_before: Total
    plain_after: Total
    per: str
    used: Used
    doubtful: tuple[Booked, ...] = ()


def find_standing(
    ledger: RunLedger,
    mine: Accounts,
    cost: Cost,
    *,
    client_column: str | None,
    records_per_client: int = 1,
    other_people: bool = False,
) -> Standing:
    """Compare the data in hand with all that the ledger holds, as of now; `other_people`: the owner says that these are others.

    Guarantee: `after` bounds what any row in hand (any client, where `per` or the unit says so) pays over all runs that are
    recognised, this one included; if there are strangers, that of any row. An earlier run on a table with at least half of
    the columns is recognised, or doubtful, or the owner's word is given.
    """
    earlier = ledger.runs()
    column = None if client_column is None else fold_name(client_column)
    used = _what_is_used(mine, earlier, cost, column, records_per_client)
    groups, doubtful = _groups(ledger, mine, earlier, other_people=other_people)
    found = _found(ledger, mine, cost, earlier, used, groups, column)
    return dataclasses.replace(found, doubtful=tuple(doubtful))


def _found(
    ledger: RunLedger,
    mine: Accounts,
    cost: Cost,
    earlier: list[Booked],
    used: Used,
    row_groups: Groups,
    column: str | None,
) -> Standing:
    """The totals, for the unit that all runs involved can be added for."""
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
        units: set[Unit] = {cost.unit, *(run.cost.unit for run in added)}
        unit: Unit = "person" if "person" in units else "client"
        per_client = whole(groups, size=len(used["client", name]), unit=unit, per=name)
        if name == column:
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


def _patterns(masks: list[NumpyArray], size: int) -> list[frozenset[int]]:
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
    than the row. The core is kept where it tells people apart.
    """
    used: Used = {("rows", json.dumps(mine.columns)): mine.rows(mine.columns)}
    core = mine.core(client_column)
    if core and core != mine.columns and len(distinct(mine.rows(core))) >= APART * len(mine):
        used["core", json.dumps(core)] = mine.rows(core)
    used |= {("id", name): mine.values(name) for name in mine.ids}
    if cost.unit in ("client", "person") and client_column:
        used["client", client_column] = distinct(mine.values(client_column))
    elif cost.unit == "client" and records_per_client > 1:
        return {**used, ("block", str(records_per_client)): distinct(mine.blocks)}
    for name in sorted({name for run in earlier for name in _client_columns(run)} & set(mine.columns)):
        values = distinct(mine.values(name))
        if ("client", name) not in used and len(values) == len(mine):
            used["client", name] = values
    return used


def _client_columns(run: Booked) -> set[str]:
    return {name for kind, name in run.used if kind == "client"}


def _groups(
    ledger: RunLedger, mine: Accounts, earlier: list[Booked], *, other_people: bool
) -> tuple[Groups, list[Booked]]:
    """For each sort of data that earlier runs used: which rows in hand are among them, and the runs; and the doubtful ones."""
    sorts: dict[str, list[Booked]] = {}
    for run in earlier:
        sorts.setdefault(json.dumps(sorted([*at, name] for at, name in run.used.items())), []).append(run)
    groups, doubtful = [], []
    for runs in sorts.values():
        if not _same_sort(mine, runs[0]):
            continue
        mask = _seen(ledger, mine, runs[0], other_people=other_people)
        if mask.any():
            groups.append((mask, runs))
        if not other_people and mask.sum() < FEW * min(len(mine), runs[0].rows):
            doubtful += runs
    return groups, doubtful


def _columns(run: Booked, of: Kind) -> list[tuple[str, ...]]:
    return [_names(name) for kind, name in run.used if kind == of]


def _names(text: str) -> tuple[str, ...]:
    with interpreting("the ledger of runs"):
        return tuple(parse_json(text, where="the ledger of runs"))


def _same_sort(mine: Accounts, run: Booked) -> bool:
    """Whether both tables share at least half of the columns of the smaller one; else they are different ones."""
    (columns,) = _columns(run, "rows")
    return 2 * len(set(columns) & set(mine.columns)) >= min(len(columns), len(mine.columns))


def _seen(ledger: RunLedger, mine: Accounts, run: Booked, *, other_people: bool) -> NumpyArray:
    """Which rows in hand an earlier run used.

    By content over that run's columns, whole or core, by an id both have, or by a person it protected. Where some of its
    columns are gone and there is no such id, rows cannot be compared, and all count as used.
    """
    held = set(mine.columns)
    known, likely = np.zeros(len(mine), bool), np.zeros(len(mine), bool)
    for kind, name in run.used:
        if kind == "block":
            continue
        columns = (name,) if kind in ("id", "client") else _names(name)
        if set(columns) <= held:
            (likely if kind == "core" else known)[:] |= _among(mine.rows(columns), ledger.members(run.used[kind, name]))
    if other_people:
        return known | likely if likely.mean() > MOST else known
    gone = not all(set(columns) <= held for columns in _columns(run, "rows"))
    if gone and not any(kind == "id" and name in held for kind, name in run.used):
        return ~np.zeros(len(mine), bool)
    return known | likely


def _client_groups(
    ledger: RunLedger, mine: Accounts, earlier: list[Booked], clients: NumpyArray, column: str
) -> Groups:
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


def _one_row_each(mine: Accounts, run: Booked, clients: NumpyArray) -> bool:
    """Whether an earlier run read these very rows, each client's only one: what it cost a row it cost the client."""
    rows = run.used.get(("rows", json.dumps(mine.columns)))
    return len(clients) == len(mine) == run.rows and run.cost.records == 1 and rows == set_name(mine.rows(mine.columns))


def _among(digests: NumpyArray, members: NumpyArray) -> NumpyArray:
    """Which digests are among sorted members."""
    at = np.minimum(np.searchsorted(members, digests), len(members) - 1)
    found: NumpyArray = members[at] == digests
    return found
