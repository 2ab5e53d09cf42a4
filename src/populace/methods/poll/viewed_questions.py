"""What to ask about a table with scales or long lists: columns one by one in all their values, and several at once in groups.

Three families of questions, each with its share of the clients:

    fine      every column in all its values (with the target where there is one): the shape of each column
    mixed     a few columns of any kind together, in groups (with the target): what depends on what
    scales    ordered columns together, in groups of neighbouring cells: how they move together

All of it follows from public facts. In a second stage each family keeps its share. Within it, answers go also where the model
of the first stage is unsure, and half of those to the fine questions where a column's mean is: each question as often as the
root of what an answer would tell, which is the least variance in all.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np

from populace.methods.blocks import one_report as survey
from populace.methods.blocks.views import LONG, VARIANTS, WHOLE, View, asked_size, is_scale, kept
from populace.methods.poll.answer_counts import Layout
from populace.methods.poll.questions import (
    FOLDS,
    MOST_CELLS,
    PAIR_WORTH,
    WORKLOAD_SHARE,
    Design,
    deal,
    information,
    joint_chances,
)
from populace.tables.schema import Column, Schema
from populace.types import Array

Question = tuple[tuple[int, View], ...]

SCALES_SHARE = 0.45  # of the answers, where many scales are there to be related
PAIRS_LEARNED = 5.0  # pairs of scales for which two thirds of that are spent
FINE_SHARE = {True: 0.7, False: 0.5}  # of the other answers, with and without a target
MOST_VIEWED = 400  # questions of a family
GROUPS = (2, 3, 4, 6, 8)  # in which a scale may be asked about
JOINED = (2, 3, 4)  # the same, in questions about scales alone
NEARLY = 0.9  # finer groups are taken where they are worth so much of the best
COARSER = 2.0  # how much more a coarse question must tell than a fine one to be asked too
LIST_GROUPS = 16
LEAST_LEVERAGE = 0.1  # of a standard deviation, below which a mean counts as zero


def has_views(schema: Schema) -> bool:
    """Whether some column is a scale, or a list too long to be asked about as it is together with others."""
    return any(is_scale(column) or column.levels > LONG for column in schema.columns)


@functools.lru_cache(maxsize=64)
def viewed_design(schema: Schema, epsilon: float, target: int | None, workload: survey.Groups = ()) -> Design:
    columns = schema.columns
    others = [i for i in range(len(columns)) if i != target]
    scales = [i for i in others if is_scale(columns[i])]
    fixed = () if target is None else ((target, target_view(columns[target])),)
    together = SCALES_SHARE * -math.expm1(-math.comb(len(scales), 2) / PAIRS_LEARNED)
    together *= (len(scales) / max(1, len(others))) ** (1 / 3)
    fine = (1 - together) * FINE_SHARE[target is not None]
    shares = (fine, 1 - together - fine, together)
    families: list[tuple[list[tuple[Question, float]], float]] = [
        (fine_questions(columns, epsilon, others or [target or 0], fixed if others else ()), shares[0])
    ]
    for members, about, share, cuts in ((others, fixed, shares[1], GROUPS), (scales, (), shares[2], JOINED)):
        if share and len(members) + len(about) > 1:
            pairs_count = PAIR_WORTH if members is others else 1.0
            found = grouped_questions(columns, epsilon, members, about, cuts, pair_worth=pairs_count)
            families.append(([(question, 1 / len(found)) for question in found], share))
    if workload:
        families = [(members, share * (1 - WORKLOAD_SHARE)) for members, share in families]
        named = [tuple((column, WHOLE) for column in group) for group in workload]
        families.append(([(question, 1 / len(named)) for question in named], WORKLOAD_SHARE))
    return _scheduled(columns, epsilon, families)


def _scheduled(
    columns: tuple[Column, ...], epsilon: float, families: list[tuple[list[tuple[Question, float]], float]]
) -> Design:
    questions: list[Question] = []
    family: list[int] = []
    weights: list[float] = []
    total = sum(share for _, share in families)
    for number, (members, share) in enumerate(families):
        for question, weight in members:
            copies = FOLDS if survey.too_long(_cells(columns, question), epsilon) else 1
            questions += [question] * copies
            family += [number] * copies
            weights += [weight * share / total / copies] * copies
    shares = np.array(weights)
    times = np.maximum(1, np.round(shares / shares.min())).astype(int)
    return Design(
        groups=tuple(tuple(column for column, _ in question) for question in questions),
        schedule=tuple(np.repeat(np.arange(len(questions)), times).tolist()),
        views=tuple(tuple(view for _, view in question) for question in questions),
        families=tuple(family),
    )


def target_view(column: Column) -> View:
    """How a target is asked about together with other columns: in four groups if it is a scale."""
    return (4, 0) if is_scale(column) else WHOLE


def _cells(columns: tuple[Column, ...], question: Question) -> int:
    return math.prod(asked_size(columns[column], view) for column, view in question)


def fine_questions(
    columns: tuple[Column, ...], epsilon: float, others: list[int], fixed: Question
) -> list[tuple[Question, float]]:
    """Each column in all its values, and where that says little also in groups; a column weighs as the root of its size."""
    found: list[tuple[Question, float]] = []
    weights = {index: math.sqrt(min(columns[index].levels, LIST_GROUPS) - 1 or 1e-3) for index in others}
    for index in others:
        column = columns[index]
        beside = _cells(columns, fixed)
        whole: Question = tuple(sorted(((index, WHOLE), *fixed)))
        coarse: list[Question] = []
        if not is_scale(column) and column.levels > LONG:
            whole = ((index, WHOLE),)
            groups = int(np.clip(round((math.exp(min(epsilon, 20.0)) + 1) / beside), 4, column.levels - 1))
            coarse = [tuple(sorted(((index, (groups, v)), *fixed))) for v in range(VARIANTS)]
        elif is_scale(column):
            told = {m: kept(column, (m, 0)) * information(m * beside, epsilon) for m in range(2, column.levels)}
            best = max(told, key=lambda m: told[m])
            if told[best] > COARSER * information(_cells(columns, whole), epsilon):
                coarse = [tuple(sorted(((index, (best, v)), *fixed))) for v in range(VARIANTS)]
        share = weights[index] / sum(weights.values())
        found.append((whole, share / 2 if coarse else share))
        found += [(question, share / 2 / len(coarse)) for question in coarse]
    return found


def grouped_questions(
    columns: tuple[Column, ...],
    epsilon: float,
    others: list[int],
    fixed: Question,
    cuts: tuple[int, ...] = GROUPS,
    *,
    pair_worth: float = PAIR_WORTH,
) -> list[Question]:
    """Several columns at once, dealt into groups as `questions.family` does, in as many groups of values as tell most.

    `pair_worth` is that of learning a pair of columns together, against one column.
    """
    about = tuple(column for column, _ in fixed)

    def value(groups: int, bound: int) -> float:
        views = [_view(column, groups) for column in columns]
        worths = []
        for group in deal(_sizes(columns, views, fixed), others, about, bound, seed=0):
            told = [kept(columns[c], views[c]) for c in group if c not in about]
            cells = math.prod(_sizes(columns, views, fixed)[c] for c in group)
            pairs = (sum(told) ** 2 - sum(t * t for t in told)) / 2
            alone = sum(told) if pair_worth < 1 else 0.0
            worths.append((alone + pair_worth * pairs) * information(cells, epsilon))
        return float(np.mean(worths))

    bounds = [2**power for power in range(2, MOST_CELLS.bit_length())]
    values = {pair: value(*pair) for pair in itertools.product(cuts, bounds)}
    enough = NEARLY * max(values.values())
    groups = max(g for (g, _), worth in values.items() if worth >= enough)
    bound = max((b for g, b in values if g == groups), key=lambda b: (round(values[groups, b], 9), -b))
    found: dict[Question, None] = {}
    for seed in range(MOST_VIEWED):
        draw = np.random.default_rng([seed, len(columns)])
        views = [_view(column, groups, int(draw.integers(VARIANTS))) for column in columns]
        for group in deal(_sizes(columns, views, fixed), others, about, bound, seed=seed):
            found[tuple((c, dict(fixed).get(c, views[c])) for c in group)] = None
        if len(found) >= MOST_VIEWED:
            break
    return list(found)[:MOST_VIEWED]


def _view(column: Column, groups: int, variant: int = 0) -> View:
    if is_scale(column):
        return (groups, variant) if groups < column.levels else WHOLE
    return (LIST_GROUPS, variant) if column.levels > LONG else WHOLE


def _sizes(columns: tuple[Column, ...], views: list[View], fixed: Question) -> tuple[int, ...]:
    asked = {**dict(enumerate(views)), **dict(fixed)}
    return tuple(asked_size(column, asked[i]) for i, column in enumerate(columns))


def mean_gains(asked: survey.Survey, layout: Layout, weights: Array, tables: Array) -> Array:
    """What one answer to each question would tell about the means of columns of numbers, each on the scale of the mean itself.

    Draws of the model differ in a mean and in the chance that each value is told; what they have in common, over the variance
    of telling it, is how much of the mean's variance an answer takes away.
    """
    means = []
    for index, column in enumerate(asked.schema.columns):
        if column.is_scale and column.levels > 1:
            first = int(layout.offsets[index])
            shares = np.einsum("dz,dzv->dv", weights, tables[:, :, first : first + column.levels])
            centres = column.centres()
            drawn = shares @ centres
            middle = shares.mean(axis=0)
            deviation = math.sqrt(max(float(middle @ (centres - drawn.mean()) ** 2), 1e-300))
            means.append((drawn - drawn.mean()) / max(abs(float(drawn.mean())), LEAST_LEVERAGE * deviation))
    gains = np.zeros(len(asked.groups))
    if not means:
        return gains
    drawn = np.stack(means, axis=1)
    for question, (chance, member) in enumerate(joint_chances(asked, layout, weights, tables)):
        if member.size > 1:
            support = member.q + (member.p - member.q) * chance.mean(axis=0)
            common = (chance - chance.mean(axis=0)).T @ drawn / len(drawn)
            told = (member.p - member.q) ** 2 / np.maximum(support * (1 - support), 1e-12)
            gains[question] = float((common**2).sum(axis=1) @ told)
    return gains


def later_schedule(design: Design, gains: Array, of_means: Array, clients: int, rng: np.random.Generator) -> Array:
    """A question for each of so many clients of a second stage, in a drawn order; each family keeps its share.

    Within it what was planned and what the model is unsure of count alike, and among the fine questions what means need counts
    as much as both.
    """
    planned = design.shares()
    weights = np.zeros(len(planned))
    family = np.asarray(design.families)
    for number in np.unique(family):
        rows = family == number
        parts = [planned[rows], np.sqrt(gains[rows])] + [np.sqrt(of_means[rows])] * (2 if number == 0 else 0)
        even = [part / part.sum() for part in parts if part.sum() > 0]
        weights[rows] = planned[rows].sum() * np.mean(even, axis=0)
    points = (np.arange(clients) + rng.random()) / clients * weights.sum()
    found = np.minimum(np.searchsorted(np.cumsum(weights), points, side="right"), len(weights) - 1)
    return rng.permutation(found).astype(np.int32)
