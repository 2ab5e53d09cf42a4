"""The scores of every model trained on every table, as metrics beside their baselines, and what has to be said about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np

from populace.evaluation import baselines, boosting, prediction, regression
from populace.evaluation.baselines import MAJORITY, PRODUCT, REAL, SHUFFLED, SYNTHETIC
from populace.evaluation.boosting import BOOSTING
from populace.evaluation.estimate import FROM_SEEDS, Estimate, left_out, over_seeds
from populace.evaluation.prediction import MOST_CLASSES, Score
from populace.evaluation.targets import Target, target_of
from populace.tables.table import Table
from populace.types import JsonObject, NumpyArray

Figures = dict[str, dict[str, Estimate]]  # metric -> table -> figure

SHUFFLES, SHUFFLED_ROWS = 5, 500
ONE_COLUMN = "the table has one column; expected two or more"
NO_TARGET = "no target was named; give --target COLUMN"
CLASSES, NUMBER = "classes", "number"
CLASS_SCORES = {"auc": "AUC", "accuracy": "accuracy"}
NUMBER_SCORES = {"r2": "R²"}


def class_models() -> tuple[str, ...]:
    return (*prediction.LEARNERS, BOOSTING)


def prediction_titles(facts: JsonObject) -> dict[str, tuple[str, str]]:
    """AUC and accuracy, or R^2 where the target is a number."""
    said = NUMBER_SCORES if facts.get("task") == NUMBER else CLASS_SCORES
    models = facts.get("models", class_models())
    return {f"{key}: {model}": (f"{name}, {model}", "higher") for key, name in said.items() for model in models}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """The rows that models are trained and tested on: few, however large the tables are that they were drawn from.

    `targets` has the target of all real rows that were not held out.
    """

    target: Target
    train: Mapping[str, Table]
    shuffles: Mapping[str, Table]
    test: Table
    targets: Table


def draw_rows(
    synthetic: Mapping[str, Table], real: Table, target: str | None, rng: np.random.Generator, seed: int
) -> Drawn | str:
    """The rows for a target, or why nothing can be predicted."""
    why = NO_TARGET if target is None else _why_not(real, target)
    if target is None or why:
        return why
    kind = target_of(real, target)
    test, rest = baselines.hold_out(len(real), rng)
    shuffles = {f"shuffle {i}": baselines.shuffled_rows(real, rest, rng, SHUFFLED_ROWS) for i in range(SHUFFLES)}
    targets = dataclasses.replace(real, frame=real.frame.select([target])).take(rest)
    train = {name: table.take(_training(table, kind, seed)) for name, table in synthetic.items()}
    train[REAL] = real.take(rest[_training(targets, kind, seed)])
    return Drawn(target=kind, train=train, shuffles=shuffles, test=real.take(test), targets=targets)


def _training(table: Table, target: Target, seed: int) -> NumpyArray:
    """The numbers of the rows that models are trained on; a target that is a number has to be there."""
    known = ~np.isnan(target.numbers(table)) if target.is_number else np.ones(len(table), bool)
    rows = np.flatnonzero(known)
    return rows[prediction.training_numbers(len(rows), seed)]


def predict(drawn: Drawn | str, synthetic: Iterable[str], seed: int) -> tuple[Figures, JsonObject]:
    """The figures, and what has to be said about them; `synthetic` names the tables."""
    everyone = [*synthetic, REAL, PRODUCT, SHUFFLED, MAJORITY]
    if isinstance(drawn, str):
        return {key: dict.fromkeys(everyone, left_out(drawn)) for key in prediction_titles({})}, {"left_out": drawn}
    kind = drawn.target
    figures, by_class = (_numbers(drawn, seed), {}) if kind.is_number else _classes(drawn, seed)
    facts = {
        "by_class": by_class,
        "target": kind.column,
        "task": NUMBER if kind.is_number else CLASSES,
        "models": list(regression.MODELS if kind.is_number else class_models()),
        "tested_on": f"{len(drawn.test):,} real rows held out of the file given (not used to train the real baseline)",
        "trained_on": f"at most {prediction.MOST_TRAINING_ROWS:,} rows",
        "caution": "if the file given is the one the run learned from, the method has seen the test rows too",
        "features": f"{BOOSTING}: the values themselves; the other models: the schema's cells",
        SHUFFLED: f"mean of {SHUFFLES} shuffles of at most {SHUFFLED_ROWS:,} rows; {FROM_SEEDS}",
    }
    return {key: {table: found[table] for table in everyone} for key, found in figures.items()}, facts


def _why_not(real: Table, target: str) -> str:
    if len(real.schema.columns) < 2:
        return ONE_COLUMN
    column = real.schema.column(target)
    if not column.is_scale and column.size > MOST_CLASSES:
        return f"{target} has {column.size} values; expected at most {MOST_CLASSES}"
    return ""


def own_facts(facts: JsonObject, name: str) -> JsonObject:
    """What has to be said about the prediction of one synthetic table: the AUC of each class from it and from real rows."""
    found = facts.get("by_class", {})
    if name not in found:
        return {key: value for key, value in facts.items() if key != "by_class"}
    return facts | {"by_class": {SYNTHETIC: found[name], REAL: found[REAL]}}


def worst_class(facts: JsonObject, model: str) -> tuple[str, float, float] | None:
    """The class of which least is learned from synthetic rows, with its AUC from synthetic and from real rows."""
    found = facts.get("by_class", {})
    own, real = (found.get(table, {}).get(model, {}) for table in (SYNTHETIC, REAL))
    both = [label for label in own if label in real]
    if not both:
        return None
    worst = min(both, key=lambda label: own[label])
    return worst, own[worst], real[worst]


def _by_class(drawn: Drawn, scores: Mapping[str, Mapping[str, Score]]) -> JsonObject:
    """The AUC of each class against the rest, by table and model; empty where there are two classes."""
    if drawn.target.border is not None:
        return {}
    column = drawn.test.schema.column(drawn.target.column)
    names = (*column.categories, "no value")
    return {
        table: {model: {names[label]: area for label, area in score.by_class.items()} for model, score in found.items()}
        for table, found in scores.items()
        if table in drawn.train and any(score.by_class for score in found.values())
    }


def _classes(drawn: Drawn, seed: int) -> tuple[Figures, JsonObject]:
    target, test = drawn.target, drawn.test
    scores = _class_scores(drawn.train, test, target, seed, prediction.DRAWS)
    repeated = _class_scores(drawn.shuffles, test, target, seed, 1)  # the interval comes from the shuffles
    majority = prediction.majority_score(drawn.targets, test, target.column, labels=target.labels)
    models = class_models()
    by_class = _by_class(drawn, scores)
    scores[SHUFFLED] = {name: _over_seeds([found[name] for found in repeated.values()]) for name in models}
    scores[MAJORITY] = dict.fromkeys(models, majority)
    scores[PRODUCT] = dict.fromkeys(models, _by_construction(majority))
    figures = {f"auc: {name}": {table: found[name].auc for table, found in scores.items()} for name in models}
    figures |= {
        f"accuracy: {name}": {table: found[name].accuracy for table, found in scores.items()} for name in models
    }
    return figures, by_class


def _class_scores(
    tables: Mapping[str, Table], test: Table, target: Target, seed: int, draws: int
) -> dict[str, dict[str, Score]]:
    found = prediction.scores(
        tables, test, target.column, learners=prediction.LEARNERS, seed=seed, draws=draws, labels=target.labels
    )
    boosted = boosting.boosting_scores(tables, test, target, seed=seed, draws=draws)
    return {name: {**found[name], BOOSTING: boosted[name]} for name in tables}


def _numbers(drawn: Drawn, seed: int) -> Figures:
    target, test = drawn.target, drawn.test
    scores = regression.r_squared(drawn.train, test, target, seed=seed)
    repeated = regression.r_squared(drawn.shuffles, test, target, seed=seed, draws=1)
    guess = regression.mean_score(drawn.targets, test, target, seed=seed)
    scores[MAJORITY] = dict.fromkeys(regression.MODELS, guess)
    scores[PRODUCT] = dict.fromkeys(regression.MODELS, Estimate(value=0.0, why=baselines.PRODUCT_MEAN))
    scores[SHUFFLED] = {
        model: over_seeds([found[model].value for found in repeated.values()]) for model in regression.MODELS
    }
    return {f"r2: {name}": {table: found[name] for table, found in scores.items()} for name in regression.MODELS}


def _over_seeds(found: list[Score]) -> Score:
    auc = over_seeds([score.auc.value for score in found]) if any(score.auc.known for score in found) else found[0].auc
    return Score(accuracy=over_seeds([score.accuracy.value for score in found]), auc=auc)


def _by_construction(majority: Score) -> Score:
    why = baselines.PRODUCT_FOUND
    return Score(
        accuracy=dataclasses.replace(majority.accuracy, why=why), auc=dataclasses.replace(majority.auc, why=why)
    )


def guess_of(facts: JsonObject) -> tuple[str, float]:
    """The headline score of the task, and what a guess has."""
    return ("R²", 0.0) if facts.get("task") == NUMBER else ("AUC", 0.5)


def best_model(metrics: JsonObject, facts: JsonObject) -> tuple[str, JsonObject]:
    """The model with the highest score when trained on synthetic rows; an empty name where none has one."""
    key = "r2" if facts.get("task") == NUMBER else "auc"
    found = {
        name: metrics[f"{key}: {name}"]["values"]
        for name in facts.get("models", ())
        if "value" in metrics[f"{key}: {name}"]["values"][SYNTHETIC]
    }
    if not found:
        return "", {}
    name = max(found, key=lambda model: found[model][SYNTHETIC]["value"])
    return name, found[name]
