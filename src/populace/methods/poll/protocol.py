"""`poll`: one question per person about a few columns, one randomised answer, one model fitted to all answers.

Each client is asked about one group of columns, by a public coin, and answers by subset selection with its whole epsilon. The
server counts what was told, fits latent classes to the counts, and keeps the mean of their posterior. Everything after the
answers is post-processing; the counts are small and add up, so answers may come from files or from a network. In two stages, a
third of the clients is asked first, and the others where the answers leave the model unsure.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import SpecError, out_of_range
from populace.methods.base import Ask, Facts, Plan, Population, Replies, Shard
from populace.methods.blocks import one_report as survey
from populace.methods.poll.answer_counts import Answers, Layout
from populace.methods.poll.fit import Settings, fit, fit_posterior, log_likelihood
from populace.methods.poll.latent_class import LatentClass
from populace.methods.poll.questions import Design, design_for, menu_for, question_gains, read_workload, second_schedule
from populace.methods.poll.reports import answers_of, layout_of, together
from populace.methods.poll.viewed_questions import has_views, later_schedule, mean_gains, viewed_design
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.source import Source
from populace.tables.schema import Schema
from populace.types import Array

HELD_OUT = 10  # every tenth client's answer is kept for choosing settings
CHOICE_STEPS = 80
STEPS = 300  # to the mode
MARGIN = 2.0  # of held-out log likelihood, for leaving the richest setting
TIED_ONE_IN = 2  # chains read the target's effect on other columns as direct, the others as one through classes
MOST_TIED = 8  # values of a target up to which a class belongs to one of them
SMOOTH = (1.0, 9.0)  # precisions of steps along scales that are tried
STRIDE = 3  # one client in so many is asked in the first of two stages
STAGE = 2**31  # sets the second stage's draws apart
UNSURE = Settings(classes=16, spread=1.0)  # the model that tells where a second stage should ask


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """How often each value was told: rows of `counts` are the questions, then again the questions of held-out clients.

    `first` has the counts of the first of two stages, from which the second one's questions follow; it ends before round
    `turn`.
    """

    round: Array
    coin: Array
    counts: survey.SupportCounts
    first: survey.SupportCounts | None
    turn: Array


@functools.lru_cache(maxsize=32)
def survey_for(
    schema: Schema, epsilon: float, target: str | None, workload: str, stages: int
) -> tuple[survey.Survey, Design]:
    """All that may be asked, and the design of the first stage (whose questions come first)."""
    place = None if target is None else schema.index(target)
    named = read_workload(workload, schema)
    if has_views(schema):
        design = viewed_design(schema, epsilon, place, named)
        return survey.Survey(schema, design.groups, epsilon, folds=True, views=design.views), design
    design = design_for(schema.sizes, epsilon, place, named)
    groups = design.groups if stages == 1 else menu_for(schema.sizes, epsilon, design.groups)
    return survey.Survey(schema, groups, epsilon, folds=True), design


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poll(survey.OneShot):
    """Guarantee: epsilon-LDP, pure, for everything a client holds: it sends one report, about one of its records.

    Edge cases: a client without records answers as if its told value were drawn evenly; the estimate weighs clients, not
    records; `target` defaults to the schema's, `none` ignores it; `workload` names groups of columns that matter
    (`age+income, sex+race`); `stages` 2 asks a third of the clients first, the others what is still unsure, each client once;
    `classes` and `spread` 0 are chosen by the likelihood of held-out answers; `robust` clips counts that honest answers could
    not give.
    """

    epsilon: float
    target: str = ""
    workload: str = ""
    stages: int = 2
    classes: int = 0
    spread: float = 0.0
    chains: int = 4
    moves: int = 300
    robust: bool = False
    batch: int = 16_384

    facts: ClassVar[Facts] = Facts(
        name="poll",
        line="one question each, latent classes",
        title="one question about a few columns per person, latent classes by likelihood",
        paper="our own",
        trust=("local",),
        unit="client",
        kinds=("table",),
        traffic="one report of at most 32 bytes per client",
    )

    @property
    def compiles(self) -> bool:  # type: ignore[override]
        """Not where a fit stands between two rounds."""
        return self.stages == 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stages not in (1, 2):
            raise out_of_range("stages", "1 or 2", self.stages)
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
        return survey_for(schema, self.epsilon, self.goal(schema), self.workload, self.stages)[0]

    def design(self, population: Population) -> Design:
        schema = population.table_schema
        return survey_for(schema, self.epsilon, self.goal(schema), self.workload, self.stages)[1]

    def first_clients(self, population: Population) -> int:
        """How many are asked in the first stage."""
        return population.clients if self.stages == 1 else -(-population.clients // STRIDE)

    def first_rounds(self, population: Population) -> int:
        return -(-self.first_clients(population) // self.clients_per_round(population))

    def round_count(self, population: Population) -> int:
        later = population.clients - self.first_clients(population)
        return self.first_rounds(population) - (-later // self.clients_per_round(population))

    def begin(self, population: Population, key: Array, warm: Any = None) -> State:
        asked = self.survey(population)
        rows = 2 * len(asked.groups)
        counts = survey.SupportCounts(
            supports=jnp.zeros((rows, asked.panel.width), jnp.int32), answers=jnp.zeros(rows, jnp.int32)
        )
        return State(
            round=jnp.int32(0), coin=key, counts=counts, first=None if self.stages == 1 else counts,
            turn=jnp.int32(self.first_rounds(population)),
        )  # fmt: skip

    def own_questions(self, state: Any, population: Population, slots: Array) -> Array:
        """Of the first stage."""
        schedule = jnp.asarray(self.design(population).schedule, jnp.int32)
        return schedule[survey.balanced_questions(state.coin, slots, len(schedule))]

    def ask(self, state: State, population: Population, source: Source) -> Ask | None:
        if self.stages == 1:
            return super().ask(state, population, source)
        number, size, before = int(state.round), self.clients_per_round(population), self.first_rounds(population)
        if number >= self.round_count(population):
            return None
        first = self.first_clients(population)
        if number < before:
            slots, end = number * size + np.arange(size), first
            own = self.own_questions(state, population, jnp.asarray(slots, jnp.int32))
        else:
            slots, end = first + (number - before) * size + np.arange(size), population.clients
            schedule = self.later_questions(state, population)
            own = jnp.asarray(schedule[np.minimum(slots - first, len(schedule) - 1)])
        order = survey.arrival(state.coin, population.clients)  # the order of a file may follow time or place
        cohort = np.where(slots < end, order[np.minimum(slots, len(order) - 1)], -1)
        return Ask(round=state.round, cohort=jnp.asarray(cohort, jnp.int32), common=(), own=own)

    def later_questions(self, state: State, population: Population) -> Array:
        """Of the second stage, one per client: the more often, the more its answers would tell the model of the first stage."""
        return _later_questions(self, population, _Frozen(state))

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=self.survey(population).panel.event, unit="client")

    def answer(self, common: Any, own: Array, shard: Shard, memory: Any, source: Source) -> tuple[Array, Any]:
        return self.survey(shard.population).answer(own, shard, source), memory

    def absorb(self, state: State, ask: Ask, replies: Replies, source: Source) -> State:
        questions = len(state.counts.answers) // 2
        rows = ask.own + jnp.where(replies.clients % HELD_OUT == HELD_OUT - 1, questions, 0)
        counts = survey.add_replies(state.counts, rows, replies)
        first = state.first
        if first is not None:
            early = dataclasses.replace(replies, present=replies.present & (state.round < state.turn))
            first = survey.add_replies(first, rows, early)
        return dataclasses.replace(state, round=state.round + 1, counts=counts, first=first)

    def finish(self, state: State, population: Population, key: Array) -> LatentClass:
        schema = population.table_schema
        if max(schema.sizes) == 1:  # nothing can be learnt, and nothing is unknown
            return LatentClass(schema=schema, weights=np.ones(1), tables=np.ones((1, len(schema.sizes))))
        layout = layout_of(self.survey(population), self.goal(schema))
        kept, held = answers_of(self.survey(population), state.counts, robust=self.robust)
        answers = kept if held is None else together(kept, held)
        direct = layout.target is not None and layout.outcomes <= MOST_TIED
        tied = [direct and chain % TIED_ONE_IN == TIED_ONE_IN - 1 for chain in range(self.chains)]
        readings = {reading: self.settings(kept, held, layout, key, tied=reading) for reading in sorted(set(tied))}
        chosen = [readings[reading] for reading in tied]
        return fit_posterior(answers, layout, chosen, key, schema)

    def settings(self, kept: Answers, held: Answers | None, layout: Layout, key: Array, *, tied: bool) -> Settings:
        """Number of classes, their spread, and smoothing along scales: rich, unless held-out answers are likelier otherwise."""
        trial = self._trial(kept, held, layout, key)
        one = layout.outcomes if tied else 1
        rich, few = (one * max(2, round(number / one)) for number in (16 if self.epsilon < 6 else 32, 6))
        wide = 1.2 if tied else 1.3
        pairs = [
            (rich, 1.0 if tied else wide, 1.2, 1.0),
            (rich, 0.6, 1.2, 1.0),
            (few, 0.6, 1.2, 1.0),
            (one, 0.3, 1.2, 1.0),
        ]
        if layout.scales:
            pairs = [
                (rich, 0.5, 0.5, 1.0),
                (rich, 1.0, 1.2, 1.0),
                (rich, 0.3, 0.3, 0.6),
                (rich, 0.15, 0.2, 0.5),
                (one, 0.3, 0.3, 1.0),
            ]
        grid = [
            Settings(
                classes=max(self.classes, one) if self.classes else classes,
                spread=self.spread or spread,
                effect=effect,
                trend=trend,
                steps=STEPS,
                moves=self.moves,
                tied=tied,
            )
            for classes, spread, effect, trend in pairs
        ]
        grid = list(dict.fromkeys(grid))
        best = max(grid, key=trial) if len(grid) > 1 else grid[0]
        best = (
            best
            if len(grid) > 1 and trial(best) > trial(grid[0]) + (MARGIN / 2 if layout.scales else MARGIN)
            else grid[0]
        )
        smoother = [dataclasses.replace(best, smooth=smooth) for smooth in SMOOTH] if layout.neighbours else []
        return max((best, *smoother), key=trial) if smoother and held is not None else best

    def _trial(self, kept: Answers, held: Answers | None, layout: Layout, key: Array) -> Callable[[Settings], float]:
        """The log likelihood of held-out answers after a short fit; nothing where none were held out."""

        @functools.cache
        def score(settings: Settings) -> float:
            if held is None:
                return 0.0
            tried = settings if layout.scales else dataclasses.replace(settings, steps=CHOICE_STEPS)
            return held.total * log_likelihood(fit(kept, layout, tried, key), held, layout)

        return score

    def guarantee(self, population: Population) -> Guarantee:
        return survey.one_report_guarantee(
            self.epsilon,
            population,
            mechanism="one subset-selection report about one group of columns of one record, each client once",
            derivation=(
                f"each client sends one report: {self.survey(population).panel.event}",
                "the group (and the hash of a long question) is drawn by a public coin, and in a second stage by other "
                "clients' answers: never by the data of the client asked",
                "classes and shrinkage are chosen by the likelihood of held-out answers: post-processing",
            ),
        )

    def plan(self, population: Population) -> Plan:
        asked, design = self.survey(population), self.design(population)
        down, up = self.reply_bytes(None, population)
        width = max(len(group) for group in design.groups)
        first = len(design.groups)
        distances = [
            survey.expected_distance(variance, size, population.clients * share)
            for variance, size, share in zip(
                asked.cell_variances()[:first], asked.panel.sizes[:first], design.shares(), strict=True
            )
        ]
        folded = sum(asked.is_folded)
        return Plan(
            guarantee=self.guarantee(population),
            rounds=self.stages,
            bytes_up=up,
            bytes_down=down,
            errors={
                "total variation distance of one question's own table, mean over questions": float(np.mean(distances))
            },
            notes=(
                f"{first if self.stages == 1 else len(asked.groups)} questions about at most {width} columns"
                + ("" if self.stages == 1 else ", in two stages: a third of the clients, then the others"),
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
        if ask is not None and isinstance(ask.own, jax.Array) and len(present := np.asarray(ask.cohort) >= 0):
            told = np.array([member.wire_bytes for member in asked.panel.members])[np.asarray(ask.own)[present]]
            return down, float(told.mean()) if len(told) else 0.0
        members = asked.panel.members[: len(shares)]
        return down, float(np.dot(shares, [member.wire_bytes for member in members]))


@dataclasses.dataclass(frozen=True)
class _Frozen:
    """A state that can be looked up: equal where the first stage's counts and the coin are."""

    state: State = dataclasses.field(compare=False)
    digest: bytes = b""

    def __post_init__(self) -> None:
        first = self.state.first
        parts = (jax.random.key_data(self.state.coin), *(() if first is None else (first.supports, first.answers)))
        digest = hashlib.sha256(b"".join(np.asarray(part).tobytes() for part in parts)).digest()
        object.__setattr__(self, "digest", digest)


@functools.lru_cache(maxsize=1)
def _later_questions(protocol: Poll, population: Population, frozen: _Frozen) -> Array:
    """Once per run, not once per round."""
    state, schema = frozen.state, population.table_schema
    asked = protocol.survey(population)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(state.coin, STAGE))))
    clients = population.clients - protocol.first_clients(population)
    design, goal = protocol.design(population), protocol.goal(schema)
    gains = of_means = np.ones(len(asked.groups))
    if max(schema.sizes) > 1 and int(np.asarray(state.first.answers).sum()):  # type: ignore[union-attr]
        kept, held = answers_of(asked, state.first, robust=protocol.robust)  # type: ignore[arg-type]
        answers = kept if held is None else together(kept, held)
        settings = dataclasses.replace(UNSURE, moves=protocol.moves)
        layout = layout_of(asked, goal)
        model = fit_posterior(answers, layout, [settings] * 2, jax.random.fold_in(state.coin, STAGE + 1), schema)
        gains = question_gains(asked, layout, *model.draws)  # type: ignore[misc]
        of_means = mean_gains(asked, layout, *model.draws) if design.families else gains  # type: ignore[misc]
    if design.families:
        return later_schedule(design, gains, of_means, clients, rng)
    target = None if goal is None else schema.index(goal)
    return second_schedule(gains, asked.groups, target, read_workload(protocol.workload, schema), clients, rng)
