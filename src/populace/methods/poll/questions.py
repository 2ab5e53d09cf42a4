"""What to ask about: groups of columns to ask about together, from public facts alone (schema, epsilon, target).

Columns with few values are asked about as they are (`design_for`). Tables with scales or long lists have three families of
questions, each with its share of the clients (`viewed_design`):

    fine      every column in all its values (with the target where there is one): the shape of each column
    mixed     a few columns of any kind together, in groups (with the target): what depends on what
    scales    ordered columns together, in groups of neighbouring cells: how they move together

In a second stage answers go also where the model of the first is unsure: each question as often as the root of what an answer
would add, which is the least variance in all. Each family keeps its share.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import numpy as np

from populace.methods.blocks import one_report as survey
from populace.methods.blocks.one_report import LONG, VARIANTS, WHOLE, View, asked_size, is_scale, kept, target_view
from populace.privacy.randomizers.subset import SubsetSelection
from populace.tables.schema import Column, Schema
from populace.types import Array, NumpyArray

Question = tuple[tuple[int, View], ...]
Family = tuple[list[tuple[Question, float]], float]  # questions with their shares of it, and its share of the answers

MOST_CELLS = 4_096  # of one question
MOST_QUESTIONS = 2_048
PAIR_WEIGHT = 0.1  # of the dependence of a pair of columns, against one column
MOST_PAIRS = 8_192  # a second stage may choose among
TARGET_SHARE = 0.7  # of the answers that are about the target too
WORKLOAD_SHARE = 0.5
FOLDS = 4  # hashes of a question too long to be answered as it is
SCALES_SHARE = 0.45  # of the answers, where many scales are there to be related
PAIRS_LEARNED = 5.0  # pairs of scales for which two thirds of that are spent
FINE_SHARE = {True: 0.7, False: 0.5}  # of the other answers, with and without a target
MOST_VIEWED = 400  # questions of a family
GROUPS = (2, 3, 4, 6, 8)  # in which a scale may be asked about
JOINED = (2, 3, 4)  # the same, in questions about scales alone
NEARLY = 0.9  # finer groups are taken where their quality is so much of the best
COARSER = 2.0  # how much more information a coarse question must give than a fine one to be asked too
LIST_GROUPS = 16
ENOUGH = 200.0  # answers per pair, counted by their information, from which on pairs are worth half of their share
FEWEST = 0.1  # of that share, below which no pair is asked


@dataclasses.dataclass(frozen=True)
class Design:
    """What is asked, and how often: every client in turn gets an entry of `schedule`, a number of a group.

    Files of answers hold a hash of its representation (`runs.poll.files.questions_hash`): names and order of fields stay.

    `views` says in which groups of values columns are asked about, `families` which questions share their answers in a second
    stage; both are empty where every column is asked about as it is.
    """

    groups: survey.Groups
    schedule: tuple[int, ...]
    views: tuple[tuple[View, ...], ...] = ()
    families: tuple[int, ...] = ()

    def shares(self) -> NumpyArray:
        """The share of the answers that each question gets."""
        return np.bincount(self.schedule, minlength=len(self.groups)) / len(self.schedule)


@functools.lru_cache(maxsize=65_536)
def relative_variance(cells: int, epsilon: float) -> float:
    """The variance of any contrast of a table of so many cells from one report, over that of the contrast itself.

    Subset selection treats cells alike, so it is the same for a column's contrasts and a pair's, where cells are about equally
    likely: w (K - w) / ((K - 1) (p - q)^2), which is 1 without noise.
    """
    oracle = SubsetSelection(size=cells, epsilon=epsilon)
    chosen = oracle.chosen
    return chosen * (cells - chosen) / ((cells - 1) * (oracle.p - oracle.q) ** 2)


def information(cells: int, epsilon: float) -> float:
    """The information of one report about so many cells on any contrast: 1 / (1 + relative variance), at most a half.

    The 1, and `PAIR_WEIGHT`, are set so that groups come out about as large as trials on a9a found best.
    """
    return 0.0 if cells < 2 else 1 / (1 + relative_variance(cells, epsilon))


def quality(columns: int, cells: int, epsilon: float) -> float:
    """The quality of a question about so many columns at once."""
    return (columns + PAIR_WEIGHT * math.comb(columns, 2)) * information(cells, epsilon)


def column_groups(
    sizes: tuple[int, ...], epsilon: float, others: list[int], fixed: tuple[int, ...], most: int
) -> survey.Groups:
    """Groups of columns to ask about together, `fixed` in each, from public facts alone.

    Columns are partitioned into groups whose joint domain stays below a bound; the bound maximises the mean quality of a group.
    Where pairs are best, all of them are asked.
    """
    bounds = [2**power for power in range(2, MOST_CELLS.bit_length())]
    partitions = {bound: partition_columns(sizes, others, fixed, bound, seed=0) for bound in bounds}

    def value(bound: int) -> tuple[float, int]:
        mean = np.mean(
            [quality(len(g) - len(fixed), math.prod(sizes[c] for c in g), epsilon) for g in partitions[bound]]
        )
        return round(float(mean), 9), -bound

    best = max(bounds, key=value)
    many = len(others) if fixed else math.comb(len(others), 2)
    if max(len(group) for group in partitions[best]) <= 2 and many <= most:
        pairs = itertools.combinations(others, 2) if not fixed else ((column, *fixed) for column in others)
        asked = [tuple(sorted(pair)) for pair in pairs]
        asked = [pair for pair in asked if math.prod(sizes[column] for column in pair) <= MOST_CELLS]
        covered = set(itertools.chain(*asked))
        return (*asked, *((column,) for column in others if column not in covered))
    groups: dict[tuple[int, ...], None] = {}
    for seed in range(most):
        groups |= dict.fromkeys(partition_columns(sizes, others, fixed, best, seed=seed))
        if len(groups) >= most:
            break
    return tuple(groups)[:most]


def partition_columns(
    sizes: tuple[int, ...], others: list[int], fixed: tuple[int, ...], bound: int, *, seed: int
) -> list[tuple[int, ...]]:
    """The columns, shuffled by a public seed, cut into groups whose joint domain stays within the bound where it can.

    A group has at least two columns, the fixed ones included, unless they have too many cells: then one is asked alone.
    """
    alone = [column for column in others if _partner(sizes, column, others, fixed) is None]
    others = [column for column in others if column not in alone]
    if alone:
        rest = partition_columns(sizes, others, fixed, bound, seed=seed) if others else []
        return [*rest, *((column,) for column in alone)]
    order = np.random.default_rng(seed).permutation(others)
    groups: list[tuple[int, ...]] = []
    current: list[int] = []
    room = math.prod(sizes[column] for column in fixed)
    for column in order.tolist():
        cells = math.prod(sizes[c] for c in current) * room * sizes[column]
        if current and ((cells > bound and len(current) + len(fixed) >= 2) or cells > MOST_CELLS):
            groups.append(tuple(sorted((*current, *fixed))))
            current = []
        current.append(column)
    if len(current) + len(fixed) < 2 and groups:
        partner = _partner(sizes, current[0], others, fixed)
        current += [] if partner is None else [partner]
    groups.append(tuple(sorted({*current, *fixed})))
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
        families = [(column_groups(sizes, epsilon, others, fixed, most), 1.0)]
    else:
        with_target = column_groups(sizes, epsilon, others, (target,), math.ceil(most * TARGET_SHARE))
        without = column_groups(sizes, epsilon, others, (), math.ceil(most * (1 - TARGET_SHARE)))
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
    if max(len(copies) for copies in numbers.values()) > 1:
        cycles = {number: itertools.cycle(copies) for copies in numbers.values() for number in copies}
        schedule = [next(cycles[number]) for _ in range(FOLDS) for number in schedule]
    return Design(tuple(groups), tuple(schedule))


@functools.lru_cache(maxsize=64)
def second_stage_groups(sizes: tuple[int, ...], epsilon: float, groups: survey.Groups) -> survey.Groups:
    """What a second stage may ask: the first one's groups, every column alone, and all pairs where the groups are small."""
    others: list[tuple[int, ...]] = [(column,) for column in range(len(sizes))]
    if max(len(group) for group in groups) <= 3 and math.comb(len(sizes), 2) <= MOST_PAIRS:
        others += itertools.combinations(range(len(sizes)), 2)
    known = set(groups)
    return (*groups, *(group for group in others if group not in known and _is_short(sizes, group, epsilon)))


def _is_short(sizes: tuple[int, ...], group: tuple[int, ...], epsilon: float) -> bool:
    cells = math.prod(sizes[column] for column in group)
    return 1 < cells <= MOST_CELLS and not survey.too_long(cells, epsilon)


def second_schedule(
    gains: Array,
    menu: survey.Groups,
    target: int | None,
    workload: survey.Groups,
    clients: int,
    rng: np.random.Generator,
) -> NumpyArray:
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
    drawn = order[np.minimum(np.searchsorted(np.cumsum(weights[order]), points, side="right"), len(menu) - 1)]
    return rng.permutation(drawn).astype(np.int32)


@functools.lru_cache(maxsize=64)
def viewed_design(
    schema: Schema, epsilon: float, target: int | None, workload: survey.Groups = (), clients: int = 0
) -> Design:
    """Questions about a table with scales or long lists, from public facts and groups a user named.

    Without a target, where so few clients answer so noisily that they could not relate columns, columns are asked about
    alone; `clients` 0 is any number.
    """
    columns = schema.columns
    others = [i for i in range(len(columns)) if i != target]
    scales = [i for i in others if is_scale(columns[i])]
    fixed = () if target is None else ((target, target_view(columns[target])),)
    together = SCALES_SHARE * -math.expm1(-math.comb(len(scales), 2) / PAIRS_LEARNED)
    together *= (len(scales) / max(1, len(others))) ** (1 / 3)
    fine = (1 - together) * FINE_SHARE[target is not None]
    shares = (fine, 1 - together - fine, together)
    families: list[Family] = [
        (fine_questions(columns, epsilon, others or [target or 0], fixed if others else ()), shares[0])
    ]
    for members, about, share, cuts in ((others, fixed, shares[1], GROUPS), (scales, (), shares[2], JOINED)):
        if share and len(members) + len(about) > 1:
            pairs_count = PAIR_WEIGHT if members is others else 1.0
            questions = grouped_questions(columns, epsilon, members, about, cuts, pair_weight=pairs_count)
            families.append(([(question, 1 / len(questions)) for question in questions], share))
    if clients and target is None:
        families = _by_worth(columns, epsilon, families, clients)
    if workload:
        families = [(members, share * (1 - WORKLOAD_SHARE)) for members, share in families]
        named = [tuple((column, WHOLE) for column in group) for group in workload]
        families.append(([(question, 1 / len(named)) for question in named], WORKLOAD_SHARE))
    return _scheduled(columns, epsilon, families)


def _by_worth(columns: tuple[Column, ...], epsilon: float, families: list[Family], clients: int) -> list[Family]:
    """Families with fewer answers about several columns, and more about each alone, the less the former could tell."""
    told = sum(
        clients * share * weight * math.comb(len(question), 2) * information(_cells(columns, question), epsilon)
        for members, share in families[1:]
        for question, weight in members
    ) / max(1, math.comb(len(columns), 2))
    worth = told**2 / (told**2 + ENOUGH**2)
    if worth < FEWEST:
        return [(families[0][0], 1.0)]
    others = [(members, share * worth) for members, share in families[1:]]
    return [(families[0][0], 1 - sum(share for _, share in others)), *others]


def _scheduled(columns: tuple[Column, ...], epsilon: float, families: list[Family]) -> Design:
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


def _cells(columns: tuple[Column, ...], question: Question) -> int:
    return math.prod(asked_size(columns[column], view) for column, view in question)


def fine_questions(
    columns: tuple[Column, ...], epsilon: float, others: list[int], fixed: Question
) -> list[tuple[Question, float]]:
    """Each column in all its values, and where that informs little also in groups; a column weighs as the root of its size."""
    questions: list[tuple[Question, float]] = []
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
            gains = {m: kept(column, (m, 0)) * information(m * beside, epsilon) for m in range(2, column.levels)}
            best = max(gains, key=lambda m: gains[m])
            if gains[best] > COARSER * information(_cells(columns, whole), epsilon):
                coarse = [tuple(sorted(((index, (best, v)), *fixed))) for v in range(VARIANTS)]
        share = weights[index] / sum(weights.values())
        questions.append((whole, share / 2 if coarse else share))
        questions += [(question, share / 2 / len(coarse)) for question in coarse]
    return questions


def grouped_questions(
    columns: tuple[Column, ...],
    epsilon: float,
    others: list[int],
    fixed: Question,
    cuts: tuple[int, ...] = GROUPS,
    *,
    pair_weight: float = PAIR_WEIGHT,
) -> list[Question]:
    """Several columns at once, partitioned as by `column_groups`, in as many groups of values as inform most.

    `pair_weight` is the weight of a pair of columns against one column.
    """
    about = tuple(column for column, _ in fixed)

    def value(groups: int, bound: int) -> float:
        views = [_view(column, groups) for column in columns]
        qualities = []
        for group in partition_columns(_sizes(columns, views, fixed), others, about, bound, seed=0):
            shares = [kept(columns[c], views[c]) for c in group if c not in about]
            cells = math.prod(_sizes(columns, views, fixed)[c] for c in group)
            pairs = (sum(shares) ** 2 - sum(share * share for share in shares)) / 2
            alone = sum(shares) if pair_weight < 1 else 0.0
            qualities.append((alone + pair_weight * pairs) * information(cells, epsilon))
        return float(np.mean(qualities))

    bounds = [2**power for power in range(2, MOST_CELLS.bit_length())]
    values = {pair: value(*pair) for pair in itertools.product(cuts, bounds)}
    enough = NEARLY * max(values.values())
    groups = max(g for (g, _), value_of in values.items() if value_of >= enough)
    bound = max((b for g, b in values if g == groups), key=lambda b: (round(values[groups, b], 9), -b))
    questions: dict[Question, None] = {}
    for seed in range(MOST_VIEWED):
        draw = np.random.default_rng([seed, len(columns)])
        views = [_view(column, groups, int(draw.integers(VARIANTS))) for column in columns]
        for group in partition_columns(_sizes(columns, views, fixed), others, about, bound, seed=seed):
            questions[tuple((c, dict(fixed).get(c, views[c])) for c in group)] = None
        if len(questions) >= MOST_VIEWED:
            break
    return list(questions)[:MOST_VIEWED]


def _view(column: Column, groups: int, variant: int = 0) -> View:
    if is_scale(column):
        return (groups, variant) if groups < column.levels else WHOLE
    return (LIST_GROUPS, variant) if column.levels > LONG else WHOLE


def _sizes(columns: tuple[Column, ...], views: list[View], fixed: Question) -> tuple[int, ...]:
    asked = {**dict(enumerate(views)), **dict(fixed)}
    return tuple(asked_size(column, asked[i]) for i, column in enumerate(columns))


def later_schedule(design: Design, gains: Array, of_means: Array, clients: int, rng: np.random.Generator) -> NumpyArray:
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
    drawn = np.minimum(np.searchsorted(np.cumsum(weights), points, side="right"), len(weights) - 1)
    return rng.permutation(drawn).astype(np.int32)
