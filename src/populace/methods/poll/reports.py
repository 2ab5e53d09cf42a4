"""What answers told, as the model of `poll` reads it, and how far forged answers reach."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from populace.methods.blocks import one_report as survey
from populace.methods.blocks.views import WHOLE, View, asked_size, groups_of, is_scale, spikes_of
from populace.methods.poll.answer_counts import Answers, Layout
from populace.privacy.randomizers.subset import SubsetSelection
from populace.tables.schema import Schema
from populace.types import Array

CLIPPED_AT = 4.0  # standard deviations beyond what honest answers can be


def layout_of(asked: survey.Survey, target: str | None) -> Layout:
    """What the model needs to know of the schema and of the questions; what values are called does not matter."""
    schema, columns = asked.schema, asked.schema.columns
    shapes: dict[tuple[bool, int, bool], int] = {}
    scales = tuple(i for i, column in enumerate(columns) if is_scale(column) and column.name != target)
    return Layout(
        sizes=schema.sizes,
        twins=tuple(shapes.setdefault((is_scale(c), c.levels, c.nullable), len(shapes)) for c in columns),
        neighbours=_neighbours(schema),
        scales=tuple((i, _scores(columns[i].levels)) for i in scales),
        target=None if target is None else schema.index(target),
        views=tuple((column, groups_of(columns[column], view)) for column, view in asked.used_views),
    )


def _scores(levels: int) -> tuple[float, ...]:
    ranks = np.arange(levels, dtype=np.float64)
    return tuple(((ranks - ranks.mean()) / ranks.std()).tolist())


def _neighbours(schema: Schema) -> tuple[tuple[int, int], ...]:
    """Places of adjacent cells of scales; a single value among intervals, and a null, is nobody's neighbour."""
    pairs: list[tuple[int, int]] = []
    first = 0
    for column in schema.columns:
        if is_scale(column):
            apart = spikes_of(column)
            pairs += [(first + v, first + v + 1) for v in range(column.levels - 1) if not (apart[v] or apart[v + 1])]
        first += column.size
    return tuple(pairs)


def answers_of(
    asked: survey.Survey, counts: survey.SupportCounts, *, robust: bool = False
) -> tuple[Answers, Answers | None]:
    """Counts as the model reads them: those to fit to, and the held-out ones (None where there are none)."""
    questions = len(asked.groups)
    supports, answers = np.asarray(counts.supports, np.int64), np.asarray(counts.answers, np.int64)
    firsts, places = first_places(asked)
    widest = max(len(group) for group in asked.groups)
    found: dict[str, list[Array]] = {name: [] for name in ("cells", "told", "p", "q", "alone")}
    both: list[dict[str, list[Array]]] = [{"counts": [], "reports": []} for _ in range(2)]
    first = 0
    for question, (group, views, shape, member) in enumerate(
        zip(asked.groups, asked.all_views, asked.shapes, asked.panel.members, strict=True)
    ):
        rows = (question, question + questions)
        if not answers[list(rows)].sum() or member.size == 1:
            continue
        told = supports[list(rows), : member.size]
        alone = member.chosen == 1
        kept = np.flatnonzero(told.sum(axis=0)) if alone else np.arange(member.size)
        place = np.full(member.size, -1)
        place[kept] = np.arange(len(kept))
        buckets = place[asked.buckets(question)]
        cells = np.flatnonzero(buckets >= 0)
        where = np.full((len(cells), widest), places, np.int32)
        starts = [firsts.get((c, view), firsts[c, WHOLE]) for c, view in zip(group, views, strict=True)]
        where[:, : len(group)] = np.stack(np.unravel_index(cells, shape), axis=1) + starts
        found["cells"].append(where)
        found["told"].append(first + buckets[cells])
        for name, value in (("p", member.p), ("q", member.q), ("alone", alone)):
            found[name].append(np.full(len(kept), value))
        for part, row in enumerate(rows):
            number = told[part, kept]
            if robust:
                number = clipped(number, answers[row], member)
            both[part]["counts"].append(number)
            both[part]["reports"].append(np.full(len(kept), answers[row]))
        first += len(kept)
    shared = {name: np.concatenate(parts) if parts else np.zeros(0) for name, parts in found.items()}
    shared["told"] = shared["told"].astype(np.int32)

    def made(part: int, total: int) -> Answers:
        rest = {name: np.concatenate(parts) if parts else np.zeros(0) for name, parts in both[part].items()}
        return Answers(places=places, epsilon=asked.epsilon, total=total, **shared, **rest)

    early, late = int(answers[:questions].sum()), int(answers[questions:].sum())
    if not early and late:
        return made(1, late), None
    return made(0, early), made(1, late) if late else None


def first_places(asked: survey.Survey) -> tuple[dict[tuple[int, View], int], int]:
    """Where the values of each column, and the groups of each view, begin in the layout; and the number of all places."""
    columns = asked.schema.columns
    parts = [(column, WHOLE) for column in range(len(columns))] + list(asked.used_views)
    firsts, place = {}, 0
    for column, view in parts:
        firsts[column, view] = place
        place += asked_size(columns[column], view)
    return firsts, place


def clipped(counts: Array, reports: int, member: SubsetSelection) -> Array:
    """Counts no further than chance beyond what honest answers give: support between q and p."""
    low, high = (
        reports * edge + sign * CLIPPED_AT * math.sqrt(reports * edge * (1 - edge))
        for edge, sign in ((member.q, -1), (member.p, 1))
    )
    return np.clip(counts, max(0, math.floor(low)) if member.chosen > 1 else 0, math.ceil(high))


def forged_shift(forged: int, reports: int, member: SubsetSelection) -> float:
    """How far `forged` answers among `reports` (forged ones included) can move one cell of a question's own estimate, at most.

    A report supports a cell or not; a true one does so in expectation between q and p of the time, so each forged report moves
    the mean support by at most max(p, 1 - q) / reports, and the estimate by that over p - q.
    """
    return forged / reports * max(member.p, 1 - member.q) / (member.p - member.q)


def together(first: Answers, second: Answers) -> Answers:
    """Answers to the same questions as one."""
    return dataclasses.replace(
        first, counts=first.counts + second.counts, reports=first.reports + second.reports,
        total=first.total + second.total,
    )  # fmt: skip
