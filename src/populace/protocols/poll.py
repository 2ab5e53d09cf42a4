"""`poll`: one question per person about a few columns, one randomised answer, one model fitted to all answers.

Each client is asked about one group of columns, by a public coin, and answers by subset selection with its whole epsilon. The
server counts what was told, fits latent classes to the counts, and keeps the mean of their posterior. Everything after the
answers is post-processing; the counts are small and add up, so answers may come from files or from a network.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import SpecError, out_of_range
from populace.models.answers import Answers, Layout
from populace.models.latent_class import LatentClass
from populace.models.latent_fit import Settings, fit, log_likelihood, log_tables, posterior_draws, rake
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.randomizers.subset import SubsetSelection
from populace.privacy.source import Source
from populace.protocols import survey
from populace.protocols.base import Ask, Facts, Plan, Population, Replies, Shard
from populace.protocols.questions import Design, design_for, read_workload
from populace.tables.schema import Schema

Array = Any

HELD_OUT = 10  # every tenth client's answer is kept for choosing settings
CHOICE_STEPS = 80
CLIPPED_AT = 4.0  # standard deviations beyond what honest answers can be


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """How often each value was told: rows of `counts` are the questions, then again the questions of held-out clients."""

    round: Array
    coin: Array
    counts: survey.SupportCounts


@functools.lru_cache(maxsize=32)
def survey_for(schema: Schema, epsilon: float, target: str | None, workload: str) -> tuple[survey.Survey, Design]:
    place = None if target is None else schema.index(target)
    design = design_for(schema.sizes, epsilon, place, read_workload(workload, schema))
    return survey.Survey(schema, design.groups, epsilon, folds=True), design


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poll(survey.OneShot):
    """Guarantee: epsilon-LDP, pure, for everything a client holds: it sends one report, about one of its records.

    Edge cases: a client without records answers as if its told value were drawn evenly; the estimate weighs clients, not
    records; `target` defaults to the schema's, `none` ignores it; `workload` names groups of columns that matter
    (`age+income, sex+race`); `classes` and `spread` 0 are chosen by the likelihood of held-out answers; `robust` clips counts
    that honest answers could not give.
    """

    epsilon: float
    target: str = ""
    workload: str = ""
    classes: int = 0
    spread: float = 0.0
    chains: int = 2
    moves: int = 300
    robust: bool = False
    batch: int = 16_384

    facts: ClassVar[Facts] = Facts(
        name="poll",
        title="one question about a few columns per person, latent classes by likelihood",
        paper="our own",
        trust=("local",),
        unit="client",
        kinds=("table",),
        traffic="one report of at most 32 bytes per client, one round",
    )
    compiles: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("chains", "moves"):
            if getattr(self, name) < 1:
                raise out_of_range(name, "at least 1", getattr(self, name))
        if self.classes < 0 or self.spread < 0:
            raise SpecError(f"expected classes and spread of at least 0, got {self.classes} and {self.spread}")

    def goal(self, schema: Schema) -> str | None:
        """The target's name, or None."""
        return None if self.target == "none" else self.target or schema.target

    def survey(self, population: Population) -> survey.Survey:
        schema = population.table_schema
        return survey_for(schema, self.epsilon, self.goal(schema), self.workload)[0]

    def design(self, population: Population) -> Design:
        schema = population.table_schema
        return survey_for(schema, self.epsilon, self.goal(schema), self.workload)[1]

    def begin(self, population: Population, key: Array, warm: Any = None) -> State:
        asked = self.survey(population)
        rows = 2 * len(asked.groups)
        counts = survey.SupportCounts(
            supports=jnp.zeros((rows, asked.panel.width), jnp.int32), answers=jnp.zeros(rows, jnp.int32)
        )
        return State(round=jnp.int32(0), coin=key, counts=counts)

    def own_questions(self, state: Any, population: Population, slots: Array) -> Array:
        schedule = jnp.asarray(self.design(population).schedule, jnp.int32)
        return schedule[survey.balanced_questions(state.coin, slots, len(schedule))]

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=self.survey(population).panel.event, unit="client")

    def answer(self, common: Any, own: Array, shard: Shard, memory: Any, source: Source) -> tuple[Array, Any]:
        return self.survey(shard.population).answer(own, shard, source), memory

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        questions = len(state.counts.answers) // 2
        rows = ask.own + jnp.where(replies.clients % HELD_OUT == HELD_OUT - 1, questions, 0)
        return dataclasses.replace(state, round=state.round + 1, counts=survey.add_replies(state.counts, rows, replies))

    def finish(self, state: State, population: Population, key: Array) -> LatentClass:
        schema = population.table_schema
        layout = layout_of(schema, self.goal(schema))
        kept, held = answers_of(self.survey(population), state.counts, robust=self.robust)
        answers = kept if held is None else dataclasses.replace(
            kept, counts=kept.counts + held.counts, reports=kept.reports + held.reports, total=kept.total + held.total
        )  # fmt: skip
        settings = self.settings(kept, held, layout, key)
        return fit_posterior(answers, layout, settings, self.chains, key, schema)

    def settings(self, kept: Answers, held: Answers | None, layout: Layout, key: Array) -> Settings:
        """Number of classes and their spread by the likelihood of held-out answers; needs no budget."""
        rich = layout.outcomes * max(2, round((16 if self.epsilon < 6 else 32) / layout.outcomes))
        few = layout.outcomes * max(2, round(6 / layout.outcomes))
        grid = [
            Settings(classes=self.classes or classes, spread=self.spread or spread, moves=self.moves)
            for classes, spread in ((layout.outcomes, 0.3), (few, 0.6), (rich, 0.6), (rich, 1.3))
        ]
        grid = list(dict.fromkeys(grid))
        if held is None or len(grid) == 1:
            return grid[-1]
        short = [dataclasses.replace(trial, steps=CHOICE_STEPS) for trial in grid]
        scores = [log_likelihood(fit(kept, layout, trial, key), held, layout) for trial in short]
        return grid[int(np.argmax(scores))]

    def guarantee(self, population: Population) -> Guarantee:
        return survey.one_report_guarantee(
            self.epsilon,
            population,
            mechanism="one subset-selection report about one group of columns of one record, each client once",
            derivation=(
                f"each client sends one report: {self.survey(population).panel.event}",
                "the group (and the hash of a long question) is drawn by a public coin independent of the data",
                "classes and shrinkage are chosen by the likelihood of held-out answers: post-processing",
            ),
        )

    def plan(self, population: Population) -> Plan:
        asked, design = self.survey(population), self.design(population)
        down, up = self.reply_bytes(None, population)
        width = max(len(group) for group in asked.groups)
        distances = [
            survey.expected_distance(variance, size, population.clients * share)
            for variance, size, share in zip(asked.cell_variances(), asked.panel.sizes, design.shares(), strict=True)
        ]
        folded = sum(asked.is_folded)
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
                *(
                    [f"{folded} of them are hashed to {survey.BUCKETS} buckets, to stay within 32 bytes"]
                    if folded
                    else []
                ),
                "the model pools all questions and does far better than each question's own table",
            ),
        )

    def reply_bytes(self, ask: Ask | None, population: Population) -> tuple[float, float]:
        asked, shares = self.survey(population), self.design(population).shares()
        down, _ = asked.wire_bytes()
        return down, float(np.dot(shares, [member.wire_bytes for member in asked.panel.members]))


def layout_of(schema: Schema, target: str | None) -> Layout:
    domains: dict[tuple[str, ...], int] = {}
    columns = schema.columns
    return Layout(
        sizes=schema.sizes,
        twins=tuple(domains.setdefault(column.labels(), len(domains)) for column in columns),
        ordered=tuple(i for i, column in enumerate(columns) if column.kind == "numeric"),
        nullable=tuple(i for i, column in enumerate(columns) if column.nullable),
        target=None if target is None else schema.index(target),
    )


def answers_of(
    asked: survey.Survey, counts: survey.SupportCounts, *, robust: bool = False
) -> tuple[Answers, Answers | None]:
    """Counts as the model reads them: those to fit to, and the held-out ones (None where there are none)."""
    sizes, questions = asked.schema.sizes, len(asked.groups)
    supports, answers = np.asarray(counts.supports, np.int64), np.asarray(counts.answers, np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    widest = max(len(group) for group in asked.groups)
    found: dict[str, list[Array]] = {name: [] for name in ("cells", "told", "p", "q", "alone")}
    both: list[dict[str, list[Array]]] = [{"counts": [], "reports": []} for _ in range(2)]
    first = 0
    for question, (group, shape, member) in enumerate(
        zip(asked.groups, asked.shapes, asked.panel.members, strict=True)
    ):
        rows = (question, question + questions)
        if not answers[list(rows)].sum():
            continue
        told = supports[list(rows), : member.size]
        alone = member.chosen == 1
        kept = np.flatnonzero(told.sum(axis=0)) if alone else np.arange(member.size)
        place = np.full(member.size, -1)
        place[kept] = np.arange(len(kept))
        buckets = place[asked.buckets(question)]
        cells = np.flatnonzero(buckets >= 0)
        where = np.full((len(cells), widest), sum(sizes), np.int32)
        where[:, : len(group)] = np.stack(np.unravel_index(cells, shape), axis=1) + offsets[list(group)]
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
        return Answers(sizes=sizes, epsilon=asked.epsilon, total=total, **shared, **rest)

    held = int(answers[questions:].sum())
    return made(0, int(answers[:questions].sum())), made(1, held) if held else None


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


def fit_posterior(
    answers: Answers, layout: Layout, settings: Settings, chains: int, key: Array, schema: Schema
) -> LatentClass:
    """The posterior's mean as latent classes, with the draws it was made of.

    Without a target: draws side by side, an average of models. With one, averages blur who has which value of it: the mode's
    dependence, with the draws' mean one-way tables.
    """
    weights, tables, mode = [], [], None
    for chain in range(chains):
        chain_key = jax.random.fold_in(key, chain)
        found = fit(answers, layout, settings, chain_key)
        mode = found if mode is None else mode
        drawn = posterior_draws(answers, layout, settings, found, chain_key)
        weights.append(drawn[0])
        tables.append(drawn[1])
    draws = (np.concatenate(weights), np.concatenate(tables))
    if layout.target is None:
        joined = (draws[0].ravel() / len(draws[0]), draws[1].reshape(-1, draws[1].shape[-1]))
        return LatentClass(schema=schema, weights=joined[0], tables=joined[1], draws=draws)
    own = np.asarray(jax.nn.softmax(mode["weights"]), np.float64)  # type: ignore[index]
    own = own / own.sum()
    singles = np.einsum("dz,dzv->v", draws[0], draws[1]) / len(draws[0])
    raked = rake(own, np.exp(np.asarray(log_tables(mode, layout), np.float64)), singles, layout)  # type: ignore[arg-type]
    return LatentClass(schema=schema, weights=own, tables=raked, draws=draws)
