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
from populace.methods.base import Ask, Facts, Population, Replies, check_counts, check_not_negative
from populace.methods.blocks.composed import ComposedMethod, Composition
from populace.methods.blocks.latent_class import LatentClass
from populace.methods.blocks.one_report import (
    BUCKETS,
    Groups,
    SupportCounts,
    Survey,
    SurveyLearner,
    SurveyState,
    add_replies,
    balanced_questions,
    expected_distance,
    has_views,
    no_counts,
    one_report_release,
)
from populace.methods.blocks.schedules import Cohort, OneShot
from populace.methods.poll.answer_counts import count_answers, layout_of, mean_gains, merge_counts, question_gains
from populace.methods.poll.fit import Prior, Settings, choose_settings, fit_posterior
from populace.methods.poll.questions import (
    MOST_CELLS,
    Design,
    design_for,
    later_schedule,
    second_schedule,
    second_stage_groups,
    viewed_design,
)
from populace.privacy.guarantee import check_epsilon
from populace.privacy.source import Source
from populace.tables.schema import Schema
from populace.types import Array

HELD_OUT = 10  # every tenth client's answer is kept for choosing settings
TIED_ONE_IN = 2  # chains take the target's effect on other columns as direct, the others as one through classes
MOST_TIED = 8  # values of a target up to which a class belongs to one of them
STRIDE = 3  # one client in so many is asked in the first of two stages
STAGE = 2**31  # sets the second stage's draws apart
UNSURE = Settings(classes=16, prior_scale=1.0)  # the model that says where a second stage should ask


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class PollState(SurveyState):
    """How often each value was reported: rows of `counts` are the questions, then again the questions of held-out clients.

    `first` has the counts of the first of two stages, from which the second one's questions follow.
    """

    first: SupportCounts | None


def workload_groups(workload: Sequence[Sequence[str]], schema: Schema) -> Groups:
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
    schema: Schema, epsilon: float, target: int | None, workload: Groups, stages: int, clients: int = 0
) -> tuple[Survey, Design]:
    """All that may be asked, and the design of the first stage (whose questions come first)."""
    if has_views(schema):
        design = viewed_design(schema, epsilon, target, workload, clients)
        return Survey(schema, design.groups, epsilon, folds=True, views=design.views), design
    design = design_for(schema.sizes, epsilon, target, workload)
    groups = design.groups if stages == 1 else second_stage_groups(schema.sizes, epsilon, design.groups)
    return Survey(schema, groups, epsilon, folds=True), design


@dataclasses.dataclass(frozen=True)
class PollLearner(SurveyLearner):
    """Questions by a design, in a second stage by what the first left unsure; latent classes fitted to all answers."""

    design: Design
    poll: Poll

    @property
    def first_clients(self) -> int:
        """How many are asked in the first stage."""
        return self.population.clients if self.poll.stages == 1 else -(-self.population.clients // STRIDE)

    @property
    def first_rounds(self) -> int:
        return -(-self.first_clients // min(self.poll.clients_per_batch, self.population.clients))

    def begin(self, key: Array, warm: object = None) -> PollState:
        del warm
        none = no_counts(self.survey)
        counts: SupportCounts = jax.tree.map(lambda rows: jnp.concatenate([rows, rows]), none)
        return PollState(coin=key, counts=counts, first=None if self.poll.stages == 1 else counts)

    def own_questions(self, state: PollState, number: Array, cohort: Cohort) -> Array:
        if self.poll.stages == 1 or int(number) < self.first_rounds:
            return self.first_questions(state.coin, cohort.slots)
        schedule = self.later_questions(state)
        return jnp.asarray(schedule[np.minimum(np.asarray(cohort.slots) - self.first_clients, len(schedule) - 1)])

    def first_questions(self, coin: Array, slots: Array) -> Array:
        """The questions of the first stage."""
        schedule = jnp.asarray(self.design.schedule, jnp.int32)
        return schedule[balanced_questions(coin, slots, len(schedule))]

    def later_questions(self, state: PollState) -> Array:
        """The questions of the second stage, one per client: the more an answer would add, the more often."""
        return _later_questions(self, _Frozen(state))

    def absorb(self, state: PollState, ask: Ask, replies: Replies, source: Source) -> PollState:
        rows = ask.own + jnp.where(replies.clients % HELD_OUT == HELD_OUT - 1, len(self.survey.groups), 0)
        counts, first = add_replies(state.counts, rows, replies), state.first
        if first is not None:
            early = dataclasses.replace(replies, present=replies.present & (ask.round < self.first_rounds))
            first = add_replies(first, rows, early)
        return dataclasses.replace(state, counts=counts, first=first)

    def finish(self, state: PollState, key: Array) -> LatentClass:
        schema = self.survey.schema
        if max(schema.sizes) == 1:  # nothing can be learnt, and nothing is unknown
            return LatentClass(schema=schema, weights=np.ones(1), tables=np.ones((1, len(schema.sizes))))
        layout = layout_of(self.survey, self.poll.goal(schema))
        kept, held_out = count_answers(self.survey, state.counts, robust=self.poll.robust)
        answers = kept if held_out is None else merge_counts(kept, held_out)
        direct = layout.target is not None and layout.outcomes <= MOST_TIED
        tied = [direct and chain % TIED_ONE_IN == TIED_ONE_IN - 1 for chain in range(self.poll.chains)]
        prior = Prior(
            epsilon=self.poll.epsilon,
            classes=self.poll.latent_classes,
            scale=self.poll.prior_scale,
            langevin_steps=self.poll.langevin_steps,
        )
        readings = {
            reading: choose_settings(prior, kept, held_out, layout, key, tied=reading) for reading in sorted(set(tied))
        }
        chosen = [readings[reading] for reading in tied]
        return fit_posterior(answers, layout, chosen, key, schema)

    def message_bytes(self, ask: Ask | None = None) -> tuple[float, float]:
        shares, sizes = self.design.shares(), np.array([member.wire_bytes for member in self.survey.panel.members])
        down, _ = self.survey.wire_bytes()
        if ask is not None and isinstance(ask.own, jax.Array) and len(present := np.asarray(ask.cohort) >= 0):
            sent = sizes[np.asarray(ask.own)[present]]
            return down, float(sent.mean()) if len(sent) else 0.0
        return down, float(np.dot(shares, sizes[: len(shares)]))

    def predicted_errors(self) -> dict[str, float]:
        asked, first = self.survey, len(self.design.groups)
        distances = [
            expected_distance(variance, size, self.population.clients * share)
            for variance, size, share in zip(
                asked.cell_variances()[:first], asked.panel.sizes[:first], self.design.shares(), strict=True
            )
        ]
        return {"total variation distance of one question's own table, mean over questions": float(np.mean(distances))}

    def notes(self) -> tuple[str, ...]:
        once, folded = self.poll.stages == 1, sum(self.survey.is_folded)
        width = max(len(group) for group in self.design.groups)
        return (
            f"{len(self.design.groups if once else self.survey.groups)} questions about at most {width} columns"
            + ("" if once else ", in two stages: a third of the clients, then the others"),
            *([f"{folded} of them are hashed to {BUCKETS} buckets, to stay within 32 bytes"] if folded else []),
            "the model pools all questions and does far better than each question's own table",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poll(ComposedMethod):
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
        check_epsilon(self.epsilon)
        object.__setattr__(self, "workload", tuple(tuple(group) for group in self.workload))
        if self.stages not in (1, 2):
            raise out_of_range("stages", "1 or 2", self.stages)
        check_counts(chains=self.chains, langevin_steps=self.langevin_steps, clients_per_batch=self.clients_per_batch)
        check_not_negative(latent_classes=self.latent_classes, prior_scale=self.prior_scale)

    def goal(self, schema: Schema) -> str | None:
        """The target's name, or None."""
        return None if self.target is None else self.target or schema.target

    def survey(self, population: Population) -> Survey:
        return self._survey_and_design(population)[0]

    def design(self, population: Population) -> Design:
        return self._survey_and_design(population)[1]

    def _survey_and_design(self, population: Population) -> tuple[Survey, Design]:
        schema = population.table_schema
        goal = self.goal(schema)
        target = None if goal is None else schema.index(goal)
        groups = workload_groups(self.workload, schema)
        return survey_for(schema, self.epsilon, target, groups, self.stages, population.clients)

    def learner(self, population: Population) -> PollLearner:
        return PollLearner(self.survey(population), population, self.design(population), self)

    def compose(self, population: Population) -> Composition:
        learner = self.learner(population)
        event = learner.survey.panel.event
        release = one_report_release(
            self.epsilon,
            event,
            mechanism="one subset-selection report about one group of columns of one record, each client once",
            derivation=(
                f"each client sends one report: {event}",
                "the group (and the hash of a long question) is drawn by a public coin, and in a second stage by other "
                "clients' answers: never by the data of the client asked",
                "classes and shrinkage are chosen by the likelihood of held-out answers: post-processing",
            ),
        )
        clients, first = population.clients, learner.first_clients
        stages = () if self.stages == 1 else (first, clients - first)
        schedule = OneShot(clients=clients, block=self.clients_per_batch, stages=stages, shuffled=self.stages > 1)
        return Composition(schedule, release, learner)


@dataclasses.dataclass(frozen=True)
class _Frozen:
    """A state that can be looked up: equal where the first stage's counts and the coin are."""

    state: PollState = dataclasses.field(compare=False)
    digest: bytes = b""

    def __post_init__(self) -> None:
        first = self.state.first
        parts = (jax.random.key_data(self.state.coin), *(() if first is None else (first.supports, first.answers)))
        digest = hashlib.sha256(b"".join(np.asarray(part).tobytes() for part in parts)).digest()
        object.__setattr__(self, "digest", digest)


@functools.lru_cache(maxsize=1)
def _later_questions(learner: PollLearner, frozen: _Frozen) -> Array:
    """Once per run, not once per round."""
    state, poll, asked, design = frozen.state, learner.poll, learner.survey, learner.design
    schema = asked.schema
    rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(state.coin, STAGE))))
    clients, goal = learner.population.clients - learner.first_clients, poll.goal(schema)
    gains = of_means = np.ones(len(asked.groups))
    if max(schema.sizes) > 1 and int(np.asarray(state.first.answers).sum()):  # type: ignore[union-attr]
        kept, held_out = count_answers(asked, state.first, robust=poll.robust)  # type: ignore[arg-type]
        answers = kept if held_out is None else merge_counts(kept, held_out)
        settings = dataclasses.replace(UNSURE, langevin_steps=poll.langevin_steps)
        layout = layout_of(asked, goal)
        model = fit_posterior(answers, layout, [settings] * 2, jax.random.fold_in(state.coin, STAGE + 1), schema)
        gains = question_gains(asked, layout, *model.draws)  # type: ignore[misc]
        of_means = mean_gains(asked, layout, *model.draws) if design.families else gains  # type: ignore[misc]
    if design.families:
        return later_schedule(design, gains, of_means, clients, rng)
    target = None if goal is None else schema.index(goal)
    return second_schedule(gains, asked.groups, target, workload_groups(poll.workload, schema), clients, rng)
