"""`poll`: one question per person about a few columns, one randomised answer, one model fitted to all answers.

Each client is asked about one group of columns, by a public coin, and answers by subset selection with its whole epsilon. The
server fits latent classes to all answers by maximum likelihood: the likelihood of an answer S about a group g is proportional
to 1 + (e^eps - 1) P_model(x_g in S). Everything after the answers is post-processing.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import SpecError, out_of_range
from populace.models.latent_class import LatentClass, mixture_of
from populace.models.latent_fit import Answers, Layout, Settings, fit, log_likelihood, log_tables
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.randomizers.subset import SubsetSelection
from populace.privacy.source import Source
from populace.protocols import survey
from populace.protocols.base import Ask, Facts, Plan, Population, Replies, Shard

Array = Any

MOST_CELLS = 4_096  # of one question
MOST_QUESTIONS = 2_048
HELD_OUT = 0.1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """All answers: the question each client was asked (-1: none yet) and its report, eight bits to a byte."""

    round: Array
    coin: Array
    questions: Array
    reports: Array


def information(cells: int, epsilon: float) -> float:
    """What one report about a table of so many cells says about a dependence in it, relative to seeing the cell: in [0, 1].

    A perturbation of relative size phi of the table's cells has Fisher information phi^2 / (K (v + 1/K)) per report, v being
    the variance of a cell; it falls once K passes e^epsilon.
    """
    if cells < 2:
        return 0.0
    oracle = SubsetSelection(size=cells, epsilon=epsilon)
    return 1 / (cells * (float(oracle.variance(1 / cells, 1)) + 1 / cells))


@functools.lru_cache(maxsize=64)
def questions_for(sizes: tuple[int, ...], epsilon: float, target: int | None) -> survey.Groups:
    """The groups of columns that are asked, equally often: from public facts alone.

    Columns are dealt into groups whose joint domain stays below a bound, the target added to each; the bound is the one
    that maximises the mean over groups of (pairs in the group) x (information of a report about it). Where no group of
    three columns fits, all pairs are asked.
    """
    others = [column for column in range(len(sizes)) if column != target]
    fixed = () if target is None else (target,)
    if not others:
        return (fixed,)
    bounds = [2**power for power in range(2, MOST_CELLS.bit_length())]
    deals = {bound: deal(sizes, others, fixed, bound, seed=0) for bound in bounds}
    best = max(bounds, key=lambda bound: (round(_worth(deals[bound], sizes, epsilon), 9), -bound))
    if target is None and max(len(group) for group in deals[best]) <= 2:
        return tuple(itertools.combinations(others, 2)) or ((others[0],),)
    if target is not None and max(len(group) for group in deals[best]) <= 2:
        return tuple(tuple(sorted((column, target))) for column in others)
    groups: dict[tuple[int, ...], None] = {}
    wanted = min(MOST_QUESTIONS, 4 * len(others) ** 2)
    for seed in range(wanted):
        groups |= dict.fromkeys(deal(sizes, others, fixed, best, seed=seed))
        if len(groups) >= wanted:
            break
    return tuple(groups)[:MOST_QUESTIONS]


def deal(
    sizes: tuple[int, ...], others: list[int], fixed: tuple[int, ...], bound: int, *, seed: int
) -> list[tuple[int, ...]]:
    """The columns, shuffled by a public seed, cut into groups whose joint domain stays within the bound where it can.

    A group has at least two columns, the fixed ones included.
    """
    order = np.random.default_rng(seed).permutation(others)
    groups: list[tuple[int, ...]] = []
    held: list[int] = []
    room = math.prod(sizes[column] for column in fixed)
    for column in order.tolist():
        full = math.prod(sizes[c] for c in held) * room * sizes[column] > bound
        if held and full and len(held) + len(fixed) >= 2:
            groups.append(tuple(sorted((*held, *fixed))))
            held = []
        held.append(column)
    if len(held) + len(fixed) < 2 and groups:
        held.append(groups[0][0] if groups[0][0] not in fixed else groups[0][1])
    groups.append(tuple(sorted({*held, *fixed})))
    return groups


def _worth(groups: list[tuple[int, ...]], sizes: tuple[int, ...], epsilon: float) -> float:
    return float(np.mean([math.comb(len(g), 2) * information(math.prod(sizes[c] for c in g), epsilon) for g in groups]))


@functools.lru_cache(maxsize=32)
def survey_for(population: Population, epsilon: float, target: str | None) -> survey.Survey:
    schema = population.table_schema
    place = None if target is None else schema.index(target)
    return survey.Survey(schema, questions_for(schema.sizes, epsilon, place), epsilon)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poll(survey.OneShot):
    """Guarantee: epsilon-LDP, pure, for everything a client holds: it sends one report, about one of its records.

    Edge cases: a client without records answers as if its cell were drawn evenly; the estimate weighs clients, not records;
    `target` defaults to the schema's; `classes` and `pull` 0 are chosen by the likelihood of held-out answers.
    """

    epsilon: float
    target: str | None = None
    classes: int = 0
    pull: float = 0.0
    members: int = 3
    batch: int = 16_384

    facts: ClassVar[Facts] = Facts(
        name="poll",
        title="one question about a few columns per person, latent classes by likelihood",
        paper="our own",
        trust=("local",),
        unit="client",
        kinds=("table",),
        traffic="one report of a few bytes per client, one round",
    )
    compiles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.members < 1:
            raise out_of_range("members", "at least 1", self.members)
        if self.classes < 0 or self.pull < 0:
            raise SpecError(f"expected classes and pull of at least 0, got {self.classes} and {self.pull}")

    def survey(self, population: Population) -> survey.Survey:
        return survey_for(population, self.epsilon, self.target or population.table_schema.target)

    def begin(self, population: Population, key: Array, warm: Any = None) -> State:
        width = self.survey(population).panel.width
        return State(
            round=jnp.int32(0),
            coin=key,
            questions=jnp.full(population.clients, -1, jnp.int32),
            reports=jnp.zeros((population.clients, -(-width // 8)), jnp.uint8),
        )

    def own_questions(self, state: Any, population: Population, slots: Array) -> Array:
        return survey.balanced_questions(state.coin, slots, len(self.survey(population).groups))

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=self.survey(population).panel.event, unit="client")

    def answer(self, common: Any, own: Array, shard: Shard, memory: Any, source: Source) -> tuple[Array, Any]:
        return self.survey(shard.population).answer(own, shard, source), memory

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        place = jnp.where(replies.present, replies.clients, len(state.questions))
        packed = jnp.packbits(replies.values.astype(jnp.uint8), axis=-1)
        return dataclasses.replace(
            state,
            round=state.round + 1,
            questions=state.questions.at[place].set(ask.own, mode="drop"),
            reports=state.reports.at[place].set(packed, mode="drop"),
        )

    def finish(self, state: State, population: Population, key: Array) -> LatentClass:
        schema = population.table_schema
        answers = answers_of(self.survey(population), state)
        target = self.target or schema.target
        domains: dict[tuple[str, ...], int] = {}
        twins = tuple(domains.setdefault(column.labels(), len(domains)) for column in schema.columns)
        layout = Layout(sizes=schema.sizes, twins=twins, target=None if target is None else schema.index(target))
        settings = self.settings(answers, layout, key)
        models = []
        for member in range(self.members):
            found = fit(answers, layout, settings, jax.random.fold_in(key, member))
            tables = np.exp(np.asarray(log_tables(found, layout), np.float64))
            weights = np.asarray(jax.nn.softmax(found["weights"]), np.float64)
            models.append(LatentClass(schema=schema, weights=weights / weights.sum(), tables=tables))
        return mixture_of(models)

    def settings(self, answers: Answers, layout: Layout, key: Array) -> Settings:
        """Number of classes and pull by the likelihood of held-out answers; needs no budget."""
        if self.classes and self.pull:
            return Settings(classes=self.classes, pull=self.pull)
        values = 2 if layout.target is None else layout.sizes[layout.target]
        classes = [self.classes] if self.classes else sorted({values, 8, 24, 60 if self.epsilon > 5 else 24})
        pulls = [self.pull] if self.pull else [0.1, 0.3, 1.0]
        flats = [0.0, 0.3] if self.epsilon < 3 else [0.0]
        grid = [Settings(classes=c, pull=p, flat=f) for c in classes for p in pulls for f in flats]
        rest, judge = answers.hold_out(HELD_OUT, np.random.default_rng(np.asarray(jax.random.key_data(key))))
        scores = [log_likelihood(fit(rest, layout, trial, key), judge, layout) for trial in grid]
        return grid[int(np.argmax(scores))]

    def guarantee(self, population: Population) -> Guarantee:
        return survey.one_report_guarantee(
            self.epsilon,
            population,
            mechanism="one subset-selection report about one group of columns of one record, each client once",
            derivation=(
                f"each client sends one report: {self.survey(population).panel.event}",
                "the group is drawn by a public coin independent of the data",
                "classes, shrinkage and stopping are chosen by the likelihood of held-out answers: post-processing",
            ),
        )

    def plan(self, population: Population) -> Plan:
        asked = self.survey(population)
        down, up = asked.wire_bytes()
        width = max(len(group) for group in asked.groups)
        reports = population.clients / len(asked.groups)
        distances = [
            survey.expected_distance(variance, size, reports)
            for variance, size in zip(asked.cell_variances(), asked.panel.sizes, strict=True)
        ]
        return Plan(
            guarantee=self.guarantee(population),
            rounds=1,
            bytes_up=up,
            bytes_down=down,
            errors={
                "total variation distance of one question's own table, mean over questions": float(np.mean(distances))
            },
            notes=(
                f"{len(asked.groups)} questions about at most {width} columns",
                "the model pools all questions and does far better than each question's own table",
            ),
        )

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return self.survey(population).wire_bytes()


def answers_of(asked: survey.Survey, state: State) -> Answers:
    """Collected reports as the model reads them: single cells as counts, longer reports as lists."""
    questions = np.asarray(state.questions)
    sizes = asked.schema.sizes
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    widest = max(len(group) for group in asked.groups)
    cells, counts, lists, single = [], [], [], []
    first = 0
    for question, (group, shape, member) in enumerate(
        zip(asked.groups, asked.shapes, asked.panel.members, strict=True)
    ):
        packed = np.asarray(state.reports)[questions == question]
        told = np.unpackbits(packed, axis=1)[:, : member.size].astype(bool)
        rows = np.full((member.size, widest), sum(sizes), np.int32)
        rows[:, : len(group)] = np.stack(np.unravel_index(np.arange(member.size), shape), axis=1) + offsets[list(group)]
        alone = member.chosen == 1
        seen = told.sum(axis=0) if alone else np.zeros(member.size, np.int64)
        kept = np.flatnonzero(seen) if alone else np.arange(member.size)
        cells.append(rows[kept])
        counts.append(seen[kept])
        single.append(np.full(len(kept), alone))
        if not alone and len(told):
            lists.append(first + np.nonzero(told)[1].reshape(-1, member.chosen))
        first += len(kept)
    width = max((part.shape[1] for part in lists), default=1)
    padded = [np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=first) for part in lists]
    listed = np.concatenate(padded).astype(np.int32) if padded else np.zeros((0, 1), np.int32)
    return Answers(
        sizes=sizes, epsilon=asked.epsilon, cells=np.concatenate(cells), counts=np.concatenate(counts), lists=listed,
        listed=np.ones(len(listed), np.int64), single=np.concatenate(single),
    )  # fmt: skip
