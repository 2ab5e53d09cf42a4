"""What can be said before any data is touched: guarantee, predicted error, bytes, and time."""

from __future__ import annotations

import dataclasses
import functools
import json
from importlib import resources

from populace.methods.base import Plan, Population, Protocol
from populace.methods.blocks.settings import fields_of
from populace.types import JsonObject

MODEL = "cost_model.json"
#: Settings that say how long a client trains, or the server, in one answer.
TRAINING = ("local_epochs", "local_steps", "training_steps", "generator_steps", "critic_steps")


def plan(protocol: Protocol, population: Population) -> tuple[Plan, float | None]:
    """The method's own prediction, and the seconds of a simulation on two cores: the method's estimate, where it has one, or
    that of the stored cost model; None where nothing was measured. Nothing is run, and nothing compiled."""
    predicted = protocol.plan(population)
    return predicted, stored_seconds(protocol, population) if predicted.costs is None else predicted.costs.seconds


def stored_seconds(protocol: Protocol, population: Population) -> float | None:
    """Seconds by the stored model: coefficients of the method times the sizes of the run."""
    coefficients = cost_model()["methods"].get(protocol.facts.name)
    if coefficients is None:
        return None
    return sum(float(coefficients[name]) * size for name, size in sizes_of(protocol, population).items())


@functools.cache
def cost_model() -> JsonObject:
    """Coefficients by method, in seconds, as `python -m benchmarks.cost_model` measured them."""
    found: JsonObject = json.loads(resources.files("populace.runs").joinpath(MODEL).read_text(encoding="utf-8"))
    return found


def sizes_of(protocol: Protocol, population: Population) -> dict[str, float]:
    """What a run's time grows with: nothing, the answers, and the values that answers are made from.

    Settings that say how long a client trains make its answers count as so many times those of the default.
    """
    answers = protocol.answer_count(population) * training_length(protocol)
    return {
        "once": 1.0,
        "answer": answers,
        "value": answers * population.records * sum(population.table_schema.sizes),
    }


def training_length(protocol: Protocol) -> float:
    """How much longer than by default a client trains, by the settings that say so."""
    length = 1.0
    for field in fields_of(type(protocol)).values():
        if field.name in TRAINING and field.default not in (dataclasses.MISSING, 0, None):
            length *= float(getattr(protocol, field.name)) / float(str(field.default))
    return length
