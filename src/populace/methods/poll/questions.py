"""What to ask about: groups of columns worth asking together, from public facts alone (schema, epsilon, target)."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np

from populace.errors import SpecError
from populace.methods.blocks import one_report as survey
from populace.methods.blocks.views import WHOLE, View
from populace.methods.poll.answer_counts import Layout
from populace.methods.poll.reports import first_places
from populace.privacy.randomizers.subset import SubsetSelection
from populace.tables.schema import Schema
from populace.types import Array

MOST_CELLS = 4_096  # of one question
MOST_QUESTIONS = 2_048
PAIR_WORTH = 0.1  # of learning a pair of columns together, against one column
MOST_PAIRS = 8_192  # a second stage may choose among
TARGET_SHARE = 0.7  # of the answers that are about the target too
WORKLOAD_SHARE = 0.5
FOLDS = 4  # hashes of a question too long to be answered as it is


@dataclasses.dataclass(frozen=True)
class Design:
    """What is asked, and how often: every client in turn gets an entry of `schedule`, a number of a group.

    `views` says in which groups of values columns are asked about, `families` which questions share their answers in a second
    stage; both are empty where every column is asked about as it is.
    """

    groups: survey.Groups
    schedule: tuple[int, ...]
    views: tuple[tuple[View, ...], ...] = ()
    families: tuple[int, ...] = ()

    def shares(self) -> Array:
        return np.bincount(self.schedule, minlength=len(self.groups)) / len(self.schedule)


@functools.lru_cache(maxsize=65_536)
def relative_variance(cells: int, epsilon: float) -> float:
    """Variance of any contrast of a table of so many cells, as one report tells it, over that of the contrast itself.

    Subset selection treats cells alike, so it is the same for a column's contrasts and a pair's, where cells are about equally
    likely: w (K - w) / ((K - 1) (p - q)^2), which is 1 without noise.
    """
    oracle = SubsetSelection(size=cells, epsilon=epsilon)
    chosen = oracle.chosen
    return chosen * (cells - chosen) / ((cells - 1) * (oracle.p - oracle.q) ** 2)


def information(cells: int, epsilon: float) -> float:
    """What one report about so many cells is worth for any contrast: 1 / (1 + relative variance), at most a half.

    The 1, and `PAIR_WORTH`, are set so that groups come out about as large as trials on a9a found best.
    """
    return 0.0 if cells < 2 else 1 / (1 + relative_variance(cells, epsilon))


def worth(columns: int, cells: int, epsilon: float) -> float:
    """Of asking about so many columns at once."""
    return (columns + PAIR_WORTH * math.comb(columns, 2)) * information(cells, epsilon)


def family(
    sizes: tuple[int, ...], epsilon: float, others: list[int], fixed: tuple[int, ...], most: int
) -> survey.Groups:
    """Groups of columns worth asking about together, `fixed` in each, from public facts alone.

    Columns are dealt into groups whose joint domain stays below a bound; the bound maximises the mean worth of a group. Where
    pairs are best, all of them are asked.
    """
    bounds = [2**power for power in range(2, MOST_CELLS.bit_length())]
    deals = {bound: deal(sizes, others, fixed, bound, seed=0) for bound in bounds}

    def value(bound: int) -> tuple[float, int]:
        mean = np.mean([worth(len(g) - len(fixed), math.prod(sizes[c] for c in g), epsilon) for g in deals[bound]])
        return round(float(mean), 9), -bound

    best = max(bounds, key=value)
    many = len(others) if fixed else math.comb(len(others), 2)
    if max(len(group) for group in deals[best]) <= 2 and many <= most:
        pairs = itertools.combinations(others, 2) if not fixed else ((column, *fixed) for column in others)
        found = [tuple(sorted(pair)) for pair in pairs]
        found = [pair for pair in found if math.prod(sizes[column] for column in pair) <= MOST_CELLS]
        covered = set(itertools.chain(*found))
        return (*found, *((column,) for column in others if column not in covered))
    groups: dict[tuple[int, ...], None] = {}
    for seed in range(most):
        groups |= dict.fromkeys(deal(sizes, others, fixed, best, seed=seed))
        if len(groups) >= most:
            break
    return tuple(groups)[:most]


def deal(
    sizes: tuple[int, ...], others: list[int], fixed: tuple[int, ...], bound: int, *, seed: int
) -> list[tuple[int, ...]]:
    """The columns, shuffled by a public seed, cut into groups whose joint domain stays within the bound where it can.

    A group has at least two columns, the fixed ones included, unless they have too many cells: then one is asked alone.
    """
    alone = [column for column in others if _partner(sizes, column, others, fixed) is None]
    others = [column for column in others if column not in alone]
    if alone:
        rest = deal(sizes, others, fixed, bound, seed=seed) if others else []
        return [*rest, *((column,) for column in alone)]
    order = np.random.default_rng(seed).permutation(others)
    groups: list[tuple[int, ...]] = []
    held: list[int] = []
    room = math.prod(sizes[column] for column in fixed)
    for column in order.tolist():
        cells = math.prod(sizes[c] for c in held) * room * sizes[column]
        if held and ((cells > bound and len(held) + len(fixed) >= 2) or cells > MOST_CELLS):
            groups.append(tuple(sorted((*held, *fixed))))
            held = []
        held.append(column)
    if len(held) + len(fixed) < 2 and groups:
        partner = _partner(sizes, held[0], others, fixed)
        held += [] if partner is None else [partner]
    groups.append(tuple(sorted({*held, *fixed})))
    return groups


def _partner(sizes: tuple[int, ...], column: int, others: list[int], fixed: tuple[int, ...]) -> int | None:
    """A column (or a fixed one) that can be asked together with this one within the bound on cells; None if there is none."""
    if fixed:
        return fixed[0] if sizes[column] * math.prod(sizes[c] for c in fixed) <= MOST_CELLS else None
    small = [other for other in others if other != column and sizes[other] * sizes[column] <= MOST_CELLS]
    return min(small, key=lambda other: sizes[other], default=None) if len(others) > 1 else column


@functools.lru_cache(maxsize=64)
def design_for(sizes: tuple[int, ...], epsilon: float, target: int | None, workload: survey.Groups = ()) -> Design:
    """Questions from public facts: sizes, epsilon, the target, and groups a user named."""
    others = [column for column in range(len(sizes)) if column != target]
    most = min(MOST_QUESTIONS, max(1, 4 * len(others) ** 2))
    families: list[tuple[survey.Groups, float]]
    if not others:
        families = [(((target or 0,),), 1.0)]
    elif target is None or len(others) == 1:
        fixed = () if target is None else (target,)
        families = [(family(sizes, epsilon, others, fixed, most), 1.0)]
    else:
        with_target = family(sizes, epsilon, others, (target,), math.ceil(most * TARGET_SHARE))
        without = family(sizes, epsilon, others, (), math.ceil(most * (1 - TARGET_SHARE)))
        families = [(with_target, TARGET_SHARE), (without, 1 - TARGET_SHARE)]
    asked = set(itertools.chain(*itertools.chain(*(members for members, _ in families))))
    unasked = tuple((column,) for column in range(len(sizes)) if column not in asked)  # too large for any pair
    families[0] = ((*families[0][0], *unasked), families[0][1])
    if workload:
        families = [(groups, share * (1 - WORKLOAD_SHARE)) for groups, share in families]
        families.append((workload, WORKLOAD_SHARE))
    numbers: dict[tuple[int, ...], list[int]] = {}
    groups: list[tuple[int, ...]] = []
    for group in itertools.chain(*(members for members, _ in families)):
        if group not in numbers:
            copies = FOLDS if survey.too_long(math.prod(sizes[c] for c in group), epsilon) else 1
            numbers[group] = list(range(len(groups), len(groups) + copies))
            groups += [group] * copies
    # Families differ in how many groups they have; each group is entered as often as makes up its family's share.
    each = [share / len(members) for members, share in families]
    finer = max(1, 64 // len(groups))
    schedule: list[int] = []
    for (members, _), weight in zip(families, each, strict=True):
        for repeat in range(max(1, round(finer * weight / min(each)))):
            schedule += [numbers[group][repeat % len(numbers[group])] for group in members]
    if max(len(places) for places in numbers.values()) > 1:
        cycles = {number: itertools.cycle(places) for places in numbers.values() for number in places}
        schedule = [next(cycles[number]) for _ in range(FOLDS) for number in schedule]
    return Design(tuple(groups), tuple(schedule))


@functools.lru_cache(maxsize=64)
def menu_for(sizes: tuple[int, ...], epsilon: float, groups: survey.Groups) -> survey.Groups:
    """What a second stage may ask: the first one's groups, every column alone, and all pairs where the groups are small."""
    others = [(column,) for column in range(len(sizes))]
    if max(len(group) for group in groups) <= 3 and math.comb(len(sizes), 2) <= MOST_PAIRS:
        others += itertools.combinations(range(len(sizes)), 2)  # type: ignore[arg-type]
    known = set(groups)
    return (*groups, *(group for group in others if group not in known and _is_short(sizes, group, epsilon)))


def _is_short(sizes: tuple[int, ...], group: tuple[int, ...], epsilon: float) -> bool:
    cells = math.prod(sizes[column] for column in group)
    return 1 < cells <= MOST_CELLS and not survey.too_long(cells, epsilon)


def joint_chances(
    asked: survey.Survey, layout: Layout, weights: Array, tables: Array
) -> Iterator[tuple[Array, SubsetSelection]]:
    """Of every question: the chance of each told value under each draw of a model, [draws, values], and its mechanism."""
    weights = np.asarray(weights, np.float32)
    tables = np.asarray(layout.with_views(np.asarray(tables, np.float32)), np.float32)
    firsts, _ = first_places(asked)
    for question, (group, views, shape) in enumerate(zip(asked.groups, asked.all_views, asked.shapes, strict=True)):
        joint = weights[:, :, None]
        for column, view, size in zip(group, views, shape, strict=True):
            start = firsts.get((column, view), firsts[column, WHOLE])
            values = tables[:, :, None, start : start + size]
            joint = (joint[..., None] * values).reshape(*joint.shape[:2], -1)
        chance = joint.sum(axis=1)
        member = asked.panel.members[question]
        if asked.is_folded[question]:
            buckets = np.zeros((len(chance), member.size), np.float32)
            np.add.at(buckets.T, asked.buckets(question), chance.T)
            chance = buckets
        yield chance, member


def question_gains(asked: survey.Survey, layout: Layout, weights: Array, tables: Array) -> Array:
    """What one answer to each question would tell: how much draws of the model differ in the chance that each value is told,
    over the variance of telling it."""
    gains = np.zeros(len(asked.groups))
    for question, (chance, member) in enumerate(joint_chances(asked, layout, weights, tables)):
        if member.size > 1:
            support = member.q + (member.p - member.q) * chance.mean(axis=0)
            spread = chance.var(axis=0) * (member.p - member.q) ** 2
            gains[question] = np.sum(spread / np.maximum(support * (1 - support), 1e-12))
    return gains


def second_schedule(
    gains: Array,
    menu: survey.Groups,
    target: int | None,
    workload: survey.Groups,
    clients: int,
    rng: np.random.Generator,
) -> Array:
    """A question for each of so many clients, in a drawn order: each as often as its gain says, within the same shares of
    the target and of the workload as in the first stage."""
    weights = np.maximum(np.asarray(gains, np.float64), 0)
    weights = weights if weights.sum() > 0 else np.ones(len(menu))
    named, about = (
        np.array([test(group) for group in menu]) for test in (set(workload).__contains__, lambda g: target in g)
    )
    few = len(set(itertools.chain(*menu))) <= 2  # then all is about the target in the first stage too
    apart = (1.0 if few else TARGET_SHARE) if about.any() else 0.0
    for rows, share in ((named, WORKLOAD_SHARE), (~named & about, apart), (~named & ~about, 1 - apart)):
        if weights[rows].sum() > 0:
            weights[rows] *= (
                share * (1 if rows is named or not named.any() else 1 - WORKLOAD_SHARE) / weights[rows].sum()
            )
    points = (np.arange(clients) + rng.random()) / clients * weights.sum()
    order = rng.permutation(len(menu))
    found = order[np.minimum(np.searchsorted(np.cumsum(weights[order]), points, side="right"), len(menu) - 1)]
    return rng.permutation(found).astype(np.int32)


def read_workload(text: str, schema: Schema) -> survey.Groups:
    """`age+income, sex+race+income` as groups of columns."""
    groups = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        group = tuple(sorted({schema.index(name.strip()) for name in part.split("+")}))
        cells = math.prod(schema.sizes[column] for column in group)
        if cells > MOST_CELLS:
            raise SpecError(
                f"the workload's {part!r} has {cells} cells; name fewer columns (at most {MOST_CELLS} cells)"
            )
        groups.append(group)
    return tuple(dict.fromkeys(groups))
