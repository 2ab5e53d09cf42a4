"""One question per client about a group of columns, one subset-selection report: shared by several methods.

A question is a group of columns, its values the cells of their joint table. Who is asked what is decided by a public coin;
the client's record among several is drawn by a private one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from populace.methods.base import Ask, Population, Replies, Shard, choose_record
from populace.methods.blocks.composed import Learner, LocalRelease, Wording
from populace.methods.blocks.schedules import Cohort
from populace.privacy.events import Event
from populace.privacy.randomizers.hashing import hash_values
from populace.privacy.randomizers.subset import SubsetPanel, SubsetSelection
from populace.privacy.source import Source
from populace.tables.schema import Column, Schema
from populace.types import Array, ArrayTree, NumpyArray

Groups = tuple[tuple[int, ...], ...]
BUCKETS = 256  # a report about them takes at most 32 bytes
View = tuple[int, int]  # number of groups (0: every value by itself), and which way of cutting
WHOLE: View = (0, 0)
VARIANTS = 6
JITTER = 0.8  # of a group's width, by which cuts of other variants lie elsewhere
SPIKE_WEIGHT = 3.0  # a value with a cell of its own is expected to be as frequent as three intervals
LEAST_SCALE = 4  # levels from which on an order is used
LONG = 64  # categories from which on a list is asked about in groups, together with other columns


@functools.lru_cache(maxsize=4_096)
def too_long(cells: int, epsilon: float) -> bool:
    """Whether a report about so many cells takes more bytes than one about the buckets they can be folded to."""
    return cells > BUCKETS and SubsetSelection(size=cells, epsilon=epsilon).wire_bytes > BUCKETS // 8


@dataclasses.dataclass(frozen=True)
class Survey:
    """The questions both sides derive from public facts, and the mechanism that answers them.

    `views` says for each question in which groups of values each of its columns is asked about (every value by itself where
    it is empty). Where `folds`, a question whose report would take more than 32 bytes is folded: its cells are hashed to
    256 buckets with the question's number as a public seed, and the report is about the bucket.
    """

    schema: Schema
    groups: Groups
    epsilon: float
    folds: bool = False
    views: tuple[tuple[View, ...], ...] = ()

    @functools.cached_property
    def panel(self) -> SubsetPanel:
        sizes = (BUCKETS if self.is_folded[i] else math.prod(shape) for i, shape in enumerate(self.shapes))
        return SubsetPanel(sizes=tuple(sizes), epsilon=self.epsilon)

    @functools.cached_property
    def is_folded(self) -> tuple[bool, ...]:
        return tuple(self.folds and too_long(math.prod(shape), self.epsilon) for shape in self.shapes)

    def buckets(self, question: int) -> NumpyArray:
        """The value that is reported for every cell of a question."""
        cells = np.arange(math.prod(self.shapes[question]), dtype=np.uint32)
        if not self.is_folded[question]:
            return cells.astype(np.int64)
        return np.asarray(hash_values(np.uint32(question), cells, BUCKETS)).astype(np.int64)

    @functools.cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        columns = self.schema.columns
        return tuple(
            tuple(asked_size(columns[column], view) for column, view in zip(group, views, strict=True))
            for group, views in zip(self.groups, self.all_views, strict=True)
        )

    @functools.cached_property
    def all_views(self) -> tuple[tuple[View, ...], ...]:
        return self.views or tuple((WHOLE,) * len(group) for group in self.groups)

    @functools.cached_property
    def used_views(self) -> tuple[tuple[int, View], ...]:
        """The columns that are asked about in groups, and which."""
        pairs = (
            (column, view)
            for group, views in zip(self.groups, self.all_views, strict=True)
            for column, view in zip(group, views, strict=True)
        )
        columns = self.schema.columns
        return tuple(
            dict.fromkeys(pair for pair in pairs if asked_size(columns[pair[0]], pair[1]) < columns[pair[0]].size)
        )

    @functools.cached_property
    def readers(self) -> tuple[NumpyArray, NumpyArray]:
        """[views, codes]: the group of each code, the first row being the codes themselves; and [questions, columns]: which
        row a question reads a column by."""
        rows = [np.arange(max(self.schema.sizes))]
        numbers = {}
        for column, view in self.used_views:
            numbers[column, view] = len(rows)
            groups = groups_of(self.schema.columns[column], view)
            rows.append(np.pad(groups, (0, len(rows[0]) - len(groups))))
        which = np.zeros((len(self.groups), len(self.schema.columns)), np.int32)
        for row, group, views in zip(which, self.groups, self.all_views, strict=True):
            for column, view in zip(group, views, strict=True):
                row[column] = numbers.get((column, view), 0)
        return np.stack(rows).astype(np.int32), which

    @functools.cached_property
    def strides(self) -> NumpyArray:
        """[questions, columns]: the cell of a record is the sum of its (grouped) codes times these."""
        table = np.zeros((len(self.groups), len(self.schema.columns)), np.int32)
        for row, group, shape in zip(table, self.groups, self.shapes, strict=True):
            step = 1
            for column, size in zip(reversed(group), reversed(shape), strict=True):
                row[column] = step
                step *= size
        return table

    def cell(self, record: Array, question: Array) -> Array:
        codes = jnp.asarray(record)
        if self.used_views:
            rows, which = self.readers
            codes = jnp.asarray(rows)[jnp.asarray(which)[question], codes]
        cell = jnp.sum(codes * jnp.asarray(self.strides)[question])
        if not any(self.is_folded):
            return cell
        bucket = hash_values(jnp.asarray(question, jnp.uint32), jnp.asarray(cell, jnp.uint32), BUCKETS)
        return jnp.where(jnp.asarray(self.is_folded)[question], bucket.astype(cell.dtype), cell)

    def answer(self, question: Array, shard: Shard, source: Source) -> Array:
        """One report about the asked group of one of the client's records."""
        which, empty, noise = source.split(3)
        record, any_record = choose_record(shard, which)
        uniform = empty.below(jnp.asarray(self.panel.sizes)[question])
        return self.panel.apply(jnp.where(any_record, self.cell(record, question), uniform), question, noise)

    def estimates(self, counts: SupportCounts) -> list[NumpyArray]:
        """Unbiased joint tables, one per question; uniform where nobody was asked."""
        supports, answers = np.asarray(counts.supports), np.asarray(counts.answers)
        return [
            member.estimate(supports[i, : member.size], answers[i]).reshape(shape)
            for i, (member, shape) in enumerate(zip(self.panel.members, self.shapes, strict=True))
        ]

    def cell_variances(self) -> NumpyArray:
        """Variance of a cell of each question's table, of one report and a cell of average weight."""
        return np.array([float(m.variance(1 / m.size, 1)) if m.size > 1 else 0.0 for m in self.panel.members])

    def deviations(self, counts: SupportCounts) -> NumpyArray:
        """Standard deviation of a cell of each estimate, sampling of clients included; inf where nobody was asked."""
        answers = np.asarray(counts.answers, np.float64)
        sizes = np.asarray(self.panel.sizes, np.float64)
        with np.errstate(divide="ignore"):
            return np.sqrt((self.cell_variances() + 1 / sizes) / answers)

    def wire_bytes(self) -> tuple[float, float]:
        """Mean bytes to and from one client: a question number, and a report."""
        index = -(-max(1, (len(self.groups) - 1).bit_length()) // 8)
        return float(index), float(np.mean([member.wire_bytes for member in self.panel.members]))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class SupportCounts:
    """How often each cell of each question was supported, and how many clients answered each question."""

    supports: Array
    answers: Array


def no_counts(survey: Survey) -> SupportCounts:
    """The counts before anybody has answered."""
    return SupportCounts(
        supports=jnp.zeros((len(survey.groups), survey.panel.width), jnp.int32),
        answers=jnp.zeros(len(survey.groups), jnp.int32),
    )


@jax.jit
def add_replies(counts: SupportCounts, questions: Array, replies: Replies) -> SupportCounts:
    """Counts with these replies added; absent ones do not count."""
    number = len(counts.answers)
    question = jnp.where(replies.present, questions, number)  # absent replies fall off the end
    supports = jax.ops.segment_sum(replies.values.astype(jnp.int32), question, num_segments=number + 1)[:-1]
    answers = jax.ops.segment_sum(jnp.ones_like(question), question, num_segments=number + 1)[:-1]
    return SupportCounts(supports=counts.supports + supports, answers=counts.answers + answers)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class SurveyState:
    """The public coin that questions are drawn by, and the counts so far."""

    coin: Array
    counts: SupportCounts


@dataclasses.dataclass(frozen=True)
class SurveyLearner(Learner):
    """One question per client by the public coin, one report, counted; what becomes of the counts is a method's own."""

    survey: Survey
    population: Population

    def split(self, key: Array) -> tuple[Array, Array]:
        """One public coin for the order of clients and for their questions."""
        return key, key

    def begin(self, key: Array, warm: Any = None) -> SurveyState:
        del warm
        return SurveyState(coin=key, counts=no_counts(self.survey))

    def own_questions(self, state: ArrayTree, number: Array, cohort: Cohort) -> Array:
        questions: Array = balanced_questions(state.coin, cohort.slots, len(self.survey.groups))
        return questions

    def answer(self, question: ArrayTree, own: Array, shard: Shard, source: Source) -> Array:
        return self.survey.answer(own, shard, source)

    def absorb(self, state: ArrayTree, ask: Ask, replies: Replies, source: Source) -> ArrayTree:
        return dataclasses.replace(state, counts=add_replies(state.counts, ask.own, replies))

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        return self.survey.wire_bytes()


@functools.partial(jax.jit, static_argnums=2)
def balanced_questions(coin: Array, slots: Array, questions: int) -> Array:
    """A question per client, all equally often: each block of as many clients as there are questions is asked all of them,
    in an order of its own drawn from the public coin. Slots follow one another, so few blocks are drawn."""
    block, position = slots // questions, slots % questions
    blocks = block[0] + jnp.arange(slots.shape[0] // questions + 2)
    orders = jax.vmap(lambda b: jax.random.permutation(jax.random.fold_in(coin, b), questions))(blocks)
    return orders[block - block[0], position]


def one_report_release(epsilon: float, report: Event, *, mechanism: str, derivation: tuple[str, ...]) -> LocalRelease:
    """The release of every method in which each client answers once, epsilon-LDP."""
    return LocalRelease(
        epsilon=epsilon,
        report=report,
        wording=Wording(
            mechanism=mechanism,
            derivation=(
                *derivation,
                "a record among several is drawn by the client's private coin",
                "the server's estimates and all sampling are post-processing",
            ),
            assumptions=(
                "the number of clients and who takes part are public",
                "all of a person's records are held by one client; who is in several has the bound of the group line",
            ),
        ),
    )


@functools.lru_cache(maxsize=1024)
def subset_variance(cells: int, epsilon: float) -> float:
    """The variance of an average cell of a subset-selection table from one report."""
    return float(SubsetSelection(size=cells, epsilon=epsilon).variance(1 / cells, 1)) if cells > 1 else 0.0


def expected_distance(variance: float, cells: int, reports: float) -> float:
    """Predicted total variation distance of a table whose cells have this variance per report, at most 1."""
    if cells == 1:
        return 0.0
    deviation = math.sqrt((max(variance, 0.0) + 1 / cells) / max(reports, 1e-9))
    return min(1.0, 0.5 * cells * deviation * math.sqrt(2 / math.pi))


def mutual_information(table: Array) -> float:
    """The mutual information of a joint distribution of two columns, in nats."""
    table = np.asarray(table, np.float64)
    if table.ndim < 2:
        return 0.0
    independent = np.outer(table.sum(axis=1), table.sum(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(table > 0, table * np.log(table / independent), 0)
    return float(max(0.0, terms.sum()))


def is_scale(column: Column) -> bool:
    """Whether the order of its levels is used at all."""
    return column.is_ordered and column.levels >= LEAST_SCALE


def spikes_of(column: Column) -> tuple[bool, ...]:
    """For each level, whether it is a single value among intervals."""
    return tuple(cell.spike for cell in column.cells) if column.is_scale else (False,) * column.levels


@functools.lru_cache(maxsize=4_096)
def groups_of(column: Column, view: View) -> tuple[int, ...]:
    """The group of every code of a column; "no value" is a group of its own, the last. Labels do not matter."""
    groups, variant = view
    if groups == 0 or groups >= column.levels:
        return tuple(range(column.size))
    if is_scale(column):
        inner = _neighbouring(spikes_of(column), groups, variant)
    else:
        draw = np.random.default_rng([column.levels, groups, variant])
        inner = tuple(draw.permutation(np.arange(column.levels) % groups).tolist())
    return (*inner, max(inner) + 1) if column.nullable else inner


def _neighbouring(spikes: tuple[bool, ...], groups: int, variant: int) -> tuple[int, ...]:
    """Levels in runs of about equal weight; a single value at an end of the scale (zero, above all) stays by itself."""
    weights = np.where(spikes, SPIKE_WEIGHT, 1.0)
    if spikes[0]:
        return (0, *(1 + group for group in _runs(weights[1:], groups - 1, variant)))
    if spikes[-1]:
        inner = _runs(weights[:-1], groups - 1, variant)
        return (*inner, max(inner) + 1)
    return _runs(weights, groups, variant)


def _runs(weights: NumpyArray, groups: int, variant: int) -> tuple[int, ...]:
    middles = (np.cumsum(weights) - weights / 2) / weights.sum()
    draw = np.random.default_rng([variant, len(weights), groups])
    moved = JITTER * draw.uniform(-0.5, 0.5, groups - 1) if variant else np.zeros(groups - 1)
    cuts = (np.arange(1, groups) + moved) / groups
    groups_of_levels = np.unique(np.searchsorted(cuts, middles, side="right"), return_inverse=True)[1]
    return tuple(int(group) for group in groups_of_levels)


def asked_size(column: Column, view: View) -> int:
    """The number of values that a column has through a view."""
    return max(groups_of(column, view)) + 1


def kept(column: Column, view: View) -> float:
    """The share of a column's information that a view keeps: 1 is all of it.

    Of a trend along a scale, m even groups of s levels keep (1 - 1/m^2) / (1 - 1/s^2); of a list, (1 - 1/m) / (1 - 1/s).
    """
    levels, groups = column.levels, view[0]
    if groups == 0 or groups >= levels:
        return 1.0
    power = 2 if is_scale(column) else 1
    return float((1 - groups**-power) / (1 - levels**-power))


def has_views(schema: Schema) -> bool:
    """Whether some column is a scale, or a list too long to be asked about as it is together with others."""
    return any(is_scale(column) or column.levels > LONG for column in schema.columns)


def target_view(column: Column) -> View:
    """How a target is asked about together with other columns: in four groups if it is a scale."""
    return (4, 0) if is_scale(column) else WHOLE
