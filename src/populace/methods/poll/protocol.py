"""`poll`: one question per person about a few columns, one randomised answer, one model fitted to all answers.

Each client is asked about one group of columns, by a public coin, and answers by subset selection with its whole epsilon. The
server counts the reports, fits latent classes to the counts, and keeps the mean of their posterior. Everything after the
answers is post-processing; the counts are small and add up, so answers may come from files or from a network. In two stages, a
third of the clients is asked first, and the others where the answers leave the model unsure.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import SpecError, out_of_range
from populace.methods.base import Ask, Facts, Memory, Plan, Population, Replies, Shard
from populace.methods.blocks import one_report as survey
from populace.methods.blocks.one_report import Survey, has_views
from populace.methods.poll.answer_counts import count_answers, layout_of, mean_gains, merge_counts, question_gains
from populace.methods.poll.fit import Prior, Settings, choose_settings, fit_posterior
from populace.methods.poll.latent_class import LatentClass
from populace.methods.poll.questions import (
    MOST_CELLS,
    Design,
    design_for,
    later_schedule,
    second_schedule,
    second_stage_groups,
    viewed_design,
)
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger import Charge
from populace.privacy.source import Source
from populace.tables.schema import Schema
from populace.types import Array, ArrayTree

HELD_OUT = 10  # every tenth client's answer is kept for choosing settings
TIED_ONE_IN = 2  # chains take the target's effect on other columns as direct, the others as one through classes
MOST_TIED = 8  # values of a target up to which a class belongs to one of them
STRIDE = 3  # one client in so many is asked in the first of two stages
STAGE = 2**31  # sets the second stage's draws apart
UNSURE = Settings(classes=16, prior_scale=1.0)  # the model that says where a second stage should ask


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """How often each value was reported: rows of `counts` are the questions, then again the questions of held-out clients.

    `first` has the counts of the first of two stages, from which the second one's questions follow; it ends before round
    `turn`.
    """

    round: Array
    coin: Array
    counts: survey.SupportCounts
    first: survey.SupportCounts | None
    turn: Array


def workload_groups(workload: Sequence[Sequence[str]], schema: Schema) -> survey.Groups:
    """The groups that a workload names, as numbers of columns."""
    groups = []
    for names in workload:
        group = tuple(sorted({schema.index(name) for name in names}))
        cells = math.prod(schema.sizes[column] for column in group)
        if cells > MOST_CELLS:
            raise SpecError(
                f"the workload's {'+'.join(names)!r} has {cells} cells; name fewer columns (at most {MOST_CELLS} cells)"
            )
        groups.append(group)
    return tuple(dict.fromkeys(groups))


@functools.lru_cache(maxsize=32)
def survey_for(
    schema: Schema, epsilon: float, target: int | None, workload: survey.Groups, stages: int
) -> tuple[Survey, Design]:
    """All that may be asked, and the design of the first stage (whose questions come first)."""
    if has_views(schema):
        design = viewed_design(schema, epsilon, target, workload)
        return survey.Survey(schema, design.groups, epsilon, folds=True, views=design.views), design
    design = design_for(schema.sizes, epsilon, target, workload)
    groups = design.groups if stages == 1 else second_stage_groups(schema.sizes, epsilon, design.groups)
    return survey.Survey(schema, groups, epsilon, folds=True), design


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poll(survey.OneShot):
    """Guarantee: epsilon-LDP, pure, for everything a client holds: it sends one report, about one of its records.

    Edge cases: a client without records answers as if its value were drawn evenly; the estimate weighs clients, not records;
    `target` defaults to the schema's, None ignores it; `workload` names groups of columns that matter (`[("age", "income")]`,
    as text `age+income, sex+race`); `stages` 2 asks a third of the clients first, the others what is still unsure, each client
    once; `latent_classes` and `prior_scale` 0 are chosen by the likelihood of held-out answers; `robust` clips counts that
    honest answers could not give.
    """

    epsilon: float
    target: str | None = ""
    workload: Sequence[Sequence[str]] = ()
    stages: int = 2
    latent_classes: int = 0
    prior_scale: float = 0.0
    chains: int = 4
    langevin_steps: int = 300
    robust: bool = False
    clients_per_batch: int = 16_384

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
    renamed: ClassVar[Mapping[str, str]] = {
        "classes": "latent_classes", "spread": "prior_scale", "moves": "langevin_steps", "batch": "clients_per_batch",
    }  # fmt: skip
    small: ClassVar[Mapping[str, object]] = {
        "clients_per_batch": 8, "latent_classes": 4, "prior_scale": 1.0, "chains": 1, "langevin_steps": 24,
    }  # fmt: skip
    meanings: ClassVar[Mapping[str, str]] = {
        "epsilon": "The privacy loss of one client, by pure local differential privacy.",
        "target": "The column that predictions are made of: by default the schema's target, none for no target.",
        "workload": "Groups of columns that matter most; they get half of the answers (text: age+income, sex+race).",
        "stages": "2 asks a third of the clients first and the others where the model is unsure; 1 asks all at once.",
        "latent_classes": "The number of latent classes; 0 chooses it by the likelihood of held-out answers.",
        "prior_scale": "The prior standard deviation of the classes' logits; 0 chooses it by held-out answers.",
        "chains": "How many Markov chains the posterior is sampled with.",
        "langevin_steps": "The Langevin steps of each chain.",
        "robust": "Whether counts that honest answers could not give are clipped.",
        "clients_per_batch": "How many clients are asked in one round; the guarantee does not depend on it.",
    }

    @property
    def compiles(self) -> bool:  # type: ignore[override]
        """Not where a fit stands between two rounds."""
        return self.stages == 1

    @classmethod
    def settings_from_file(cls, settings: Mapping[str, object]) -> dict[str, object]:
        """Settings under their present names; 0.2.0 and before wrote a workload as text, and no target as `none`."""
        present = super().settings_from_file(settings)
        if isinstance(workload := present.get("workload"), str):
            groups = filter(None, (group.strip() for group in workload.split(",")))
            present["workload"] = [[name.strip() for name in group.split("+")] for group in groups]
        if present.get("target") == "none":
            present["target"] = None
        return present

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "workload", tuple(tuple(group) for group in self.workload))
        if self.stages not in (1, 2):
            raise out_of_range("stages", "1 or 2", self.stages)
        for name in ("chains", "langevin_steps"):
            if getattr(self, name) < 1:
                raise out_of_range(name, "at least 1", getattr(self, name))
        for name in ("latent_classes", "prior_scale"):
            if getattr(self, name) < 0:
                raise out_of_range(name, "at least 0", getattr(self, name))

    def goal(self, schema: Schema) -> str | None:
        """The target's name, or None."""
        return None if self.target is None else self.target or schema.target

    def survey(self, population: Population) -> Survey:
        return self._survey_and_design(population.table_schema)[0]

    def design(self, population: Population) -> Design:
        return self._survey_and_design(population.table_schema)[1]

    def _survey_and_design(self, schema: Schema) -> tuple[Survey, Design]:
        goal = self.goal(schema)
        target = None if goal is None else schema.index(goal)
        return survey_for(schema, self.epsilon, target, workload_groups(self.workload, schema), self.stages)

    def first_clients(self, population: Population) -> int:
        """How many are asked in the first stage."""
        return population.clients if self.stages == 1 else -(-population.clients // STRIDE)

    def first_rounds(self, population: Population) -> int:
        return -(-self.first_clients(population) // self.clients_per_round(population))

    def round_count(self, population: Population) -> int:
        later = population.clients - self.first_clients(population)
        return self.first_rounds(population) - (-later // self.clients_per_round(population))

    def begin(self, population: Population, key: Array, warm: object = None) -> State:
        asked = self.survey(population)
        rows = 2 * len(asked.groups)
        counts = survey.SupportCounts(
            supports=jnp.zeros((rows, asked.panel.width), jnp.int32), answers=jnp.zeros(rows, jnp.int32)
        )
        return State(
            round=jnp.int32(0), coin=key, counts=counts, first=None if self.stages == 1 else counts,
            turn=jnp.int32(self.first_rounds(population)),
        )  # fmt: skip

    def own_questions(self, state: State, population: Population, slots: Array) -> Array:
        """The questions of the first stage."""
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
        """The questions of the second stage, one per client: the more an answer would add, the more often."""
        return _later_questions(self, population, _Frozen(state))

    def charge(self, ask: Ask, population: Population) -> Charge:
        return Charge(event=self.survey(population).panel.event, unit="client")

    def answer(
        self, common: ArrayTree, own: Array, shard: Shard, memory: Memory, source: Source
    ) -> tuple[Array, Memory]:
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
        kept, held_out = count_answers(self.survey(population), state.counts, robust=self.robust)
        answers = kept if held_out is None else merge_counts(kept, held_out)
        direct = layout.target is not None and layout.outcomes <= MOST_TIED
        tied = [direct and chain % TIED_ONE_IN == TIED_ONE_IN - 1 for chain in range(self.chains)]
        prior = Prior(
            epsilon=self.epsilon,
            classes=self.latent_classes,
            scale=self.prior_scale,
            langevin_steps=self.langevin_steps,
        )
        readings = {
            reading: choose_settings(prior, kept, held_out, layout, key, tied=reading) for reading in sorted(set(tied))
        }
        chosen = [readings[reading] for reading in tied]
        return fit_posterior(answers, layout, chosen, key, schema)

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
            sent = np.array([member.wire_bytes for member in asked.panel.members])[np.asarray(ask.own)[present]]
            return down, float(sent.mean()) if len(sent) else 0.0
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
        kept, held_out = count_answers(asked, state.first, robust=protocol.robust)  # type: ignore[arg-type]
        answers = kept if held_out is None else merge_counts(kept, held_out)
        settings = dataclasses.replace(UNSURE, langevin_steps=protocol.langevin_steps)
        layout = layout_of(asked, goal)
        model = fit_posterior(answers, layout, [settings] * 2, jax.random.fold_in(state.coin, STAGE + 1), schema)
        gains = question_gains(asked, layout, *model.draws)  # type: ignore[misc]
        of_means = mean_gains(asked, layout, *model.draws) if design.families else gains  # type: ignore[misc]
    if design.families:
        return later_schedule(design, gains, of_means, clients, rng)
    target = None if goal is None else schema.index(goal)
    return second_schedule(gains, asked.groups, target, workload_groups(protocol.workload, schema), clients, rng)
