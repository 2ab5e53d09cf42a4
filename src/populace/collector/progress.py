"""What the organiser sees while answers come in: counts, and estimates of single columns with their intervals.

Estimates are unbiased: each question that asks about a column tells its table, and the tables are pooled with weights by
their variances. Everything is post-processing of randomised reports; no row is there to be shown.
"""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np

from populace.collector.questions import group_labels
from populace.collector.rounds import read_questions, study_reports
from populace.collector.store import Store
from populace.collector.study import Study
from populace.collector.words import epsilon_in_words
from populace.methods.blocks.one_report import Survey, View, groups_of
from populace.privacy.randomizers.subset import SubsetSelection
from populace.types import JsonObject, NumpyArray

NORMAL = 1.959963984540054  # of a 95 % interval
COUNTED = 2**22  # values at a time
LEAST_ERROR = 1e-4  # the smallest half-width that may be wanted
FRESH = 5.0  # seconds that a tally is shown before it is made again


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tally:
    """How often each value of each question was reported, and how many answered it."""

    supports: NumpyArray
    answers: NumpyArray

    @property
    def total(self) -> int:
        return int(self.answers.sum())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """A column's table through one view: shares, their standard deviations, and how many answers told it."""

    view: View
    shares: NumpyArray
    deviations: NumpyArray
    answers: int


def tally_of(study: Study, survey: Survey, store: Store) -> Tally:
    """All answers, counted."""
    panel = survey.panel
    supports = np.zeros((len(panel.members), panel.width), np.int64)
    answers = np.zeros(len(panel.members), np.int64)
    reports = study_reports(study)
    for at in store.rounds():
        content = store.ask(at.number)
        found = store.replies(at.number)
        if content is None or not found:
            continue
        questions = read_questions(study, content)
        asked = questions.numbers[questions.places[np.array([place for place, _ in found], np.int64)]]
        like = np.zeros(panel.width, bool)
        order = np.argsort(asked, kind="stable")
        step = max(1, COUNTED // panel.width)
        for start in range(0, len(found), step):
            part = order[start : start + step]
            values = reports.read([found[i][1] for i in part], np.arange(len(part)), asked[part], like)
            which, first = np.unique(asked[part], return_index=True)
            supports[which] += np.add.reduceat(values, first, axis=0, dtype=np.int64)
        answers += np.bincount(asked, minlength=len(answers))
    return Tally(supports=supports, answers=answers)


def column_estimates(survey: Survey, tally: Tally) -> list[Estimate | None]:
    """The best estimate of every column: at its full resolution if it is asked about so, else through the finest view."""
    return [_column_estimate(survey, tally, column) for column in range(len(survey.schema.columns))]


def _column_estimate(survey: Survey, tally: Tally, column: int) -> Estimate | None:
    by_view: dict[View, list[tuple[NumpyArray, NumpyArray, int]]] = {}
    for question, (group, views) in enumerate(zip(survey.groups, survey.all_views, strict=True)):
        number = int(tally.answers[question])
        if column in group and number and not survey.is_folded[question]:
            place = group.index(column)
            view = views[place]
            by_view.setdefault(view, []).append(_one_table(survey, tally, question, place))
    if not by_view:
        return None
    declared = survey.schema.columns[column]
    view = max(by_view, key=lambda one: (max(groups_of(declared, one)), sum(number for _, _, number in by_view[one])))
    tables = by_view[view]
    weights = np.array([1 / max(float(variances.mean()), 1e-12) for _, variances, _ in tables])
    weights = weights / weights.sum()
    shares = np.sum([weight * table for weight, (table, _, _) in zip(weights, tables, strict=True)], axis=0)
    variance = np.sum([weight**2 * each for weight, (_, each, _) in zip(weights, tables, strict=True)], axis=0)
    return Estimate(
        view=view, shares=shares, deviations=np.sqrt(variance), answers=sum(number for _, _, number in tables)
    )


def _one_table(survey: Survey, tally: Tally, question: int, place: int) -> tuple[NumpyArray, NumpyArray, int]:
    """A column's table by one question's answers, its variances, and their number."""
    member, shape = survey.panel.members[question], survey.shapes[question]
    number = int(tally.answers[question])
    table = member.estimate(tally.supports[question, : member.size], number).reshape(shape)
    shares = table.sum(axis=tuple(axis for axis in range(len(shape)) if axis != place))
    cells = member.size // shape[place]
    return shares, share_variances(member, cells, np.clip(shares, 0, 1)) / number, number


def share_variances(member: SubsetSelection, cells: int, shares: NumpyArray) -> NumpyArray:
    """The variance, of one answer, of the estimated share of `cells` values taken together, sampling of people included.

    The estimate is (x - cells q) / (p - q), x being how many of the cells the report names: given whether the own value is
    named, the others are drawn without replacement.
    """
    size, chosen, p, gap = member.size, member.chosen, member.p, member.p - member.q
    if size == 1:
        return np.zeros_like(shares)

    def moments(inside: bool) -> tuple[float, float]:
        rest = cells - int(inside)
        kept = [_drawn(size - 1, rest, chosen - 1), _drawn(size - 1, rest, chosen)]
        own = int(inside)
        first = p * (own + kept[0][0]) + (1 - p) * kept[1][0]
        square = p * (kept[0][1] + (own + kept[0][0]) ** 2) + (1 - p) * (kept[1][1] + kept[1][0] ** 2)
        return first, square

    (mean_in, square_in), (mean_out, square_out) = moments(True), moments(False)
    mean = shares * mean_in + (1 - shares) * mean_out
    square = shares * square_in + (1 - shares) * square_out
    return np.asarray((square - mean**2) / gap**2)


def _drawn(size: int, marked: int, drawn: int) -> tuple[float, float]:
    """Mean and variance of how many of the marked are drawn, without replacement."""
    if size <= 0 or drawn <= 0:
        return 0.0, 0.0
    share = marked / size
    spread = (size - drawn) / (size - 1) if size > 1 else 0.0
    return drawn * share, drawn * share * (1 - share) * spread


def progress_document(study: Study, store: Store, wanted: float) -> JsonObject:
    """`GET /v1/progress`: `wanted` is the half-width of an interval that would be enough."""
    with store.snapshot():
        rounds, counts = store.rounds(), store.counts()
        closed = store.fact("closed") is not None
        columns = _columns(study, store, counts["answers"], wanted)
    document: JsonObject = {
        "title": study.title,
        "method": study.method,
        "state": "closed" if closed else "open",
        "open_to_all": study.open,
        "answers": counts["answers"],
        "planned_answers": study.clients,
        "invitations": counts["invitations"],
        "rounds": [
            {
                "round": at.number, "state": at.state, "places": at.size, "taken": at.taken, "answered": at.answered,
                "last": at.last, "closes": at.closes,
            }
            for at in reversed(rounds)
        ],
        "epsilon": study.epsilon,
        "in_words": epsilon_in_words(study.epsilon, open_to_all=study.open),
        "confidence": 0.95,
        "wanted_error": wanted,
        "columns": columns,
        "made": time.time(),
    }  # fmt: skip
    needed = [column["answers_needed"] for column in columns if column["answers_needed"] is not None]
    document["answers_needed"] = max(needed, default=None)
    document["enough"] = None if not needed else counts["answers"] >= max(needed)
    return document


def _columns(study: Study, store: Store, answers: int, wanted: float) -> list[JsonObject]:
    survey = study.survey
    if survey is None or not answers:
        return [_unknown(column.name) for column in study.schema.columns]
    tally = _kept_tally(study, survey, store, answers)
    found = []
    for column, estimate in zip(study.schema.columns, column_estimates(survey, tally), strict=True):
        if estimate is None:
            found.append(_unknown(column.name))
            continue
        widths = NORMAL * estimate.deviations
        widest = float(widths.max())
        found.append(
            {
                "name": column.name,
                "labels": group_labels(column, groups_of(column, estimate.view)),
                "shares": np.round(estimate.shares, 6).tolist(),
                "half_widths": np.round(widths, 6).tolist(),
                "answers": estimate.answers,
                "answers_needed": max(1, math.ceil(tally.total * (widest / wanted) ** 2)),
            }
        )
    return found


def _unknown(name: str) -> JsonObject:
    return {"name": name, "labels": [], "shares": [], "half_widths": [], "answers": 0, "answers_needed": None}


_tallies: dict[str, tuple[float, int, Tally]] = {}


def _kept_tally(study: Study, survey: Survey, store: Store, answers: int) -> Tally:
    """The tally of a moment ago, if nothing came since or it is fresh enough: counting takes time, and pages refresh."""
    made, number, tally = _tallies.get(study.digest, (0.0, -1, None))
    began = time.monotonic()
    if tally is not None and (number == answers or began - made < FRESH):
        return tally
    tally = tally_of(study, survey, store)
    spent = time.monotonic() - began
    _tallies[study.digest] = (began + 10 * spent, answers, tally)
    return tally
