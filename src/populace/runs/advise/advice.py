"""The advice for a situation: the rule's choice, what to expect of it, the next two, and what would do better."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from collections.abc import Iterator

from populace.border.databases.address import file_of
from populace.methods.facts import Facts, Kind
from populace.methods.registry import built_in_facts
from populace.privacy.guarantee import ONE_HOLDER, TRUSTS, Trust, Unit
from populace.runs.advise.expectations import (
    SCORES,
    WORST,
    Curve,
    Measured,
    Predicted,
    curve_of,
    far_in,
    level_of,
    nearest,
    noise_level,
    other_guarantees,
    side_by_side,
    stored,
    times_worse,
)
from populace.runs.advise.situation import Situation
from populace.types import JsonObject

SHOWN = 3  # stored results, nearest first
#: Methods that learn a classifier and make no data.
NO_DATA = ("dp-fl",)
MORE_EPSILON, MORE_ROWS = 4, 10
REASONS_OF_SILOS: dict[Kind, str] = {
    "table": "each client is a silo, which sends noisy tables of all pairs of columns; one model is fitted to their sum",
    "images": "each client is a silo, which sends one noisy sum",
}
#: What guessing reaches: scores are never expected below it.
CHANCE = {"auc_boosting": 0.5, "auc_logistic": 0.5, "cnn": 0.1, "mlp": 0.1}
#: An improvement smaller than this is not worth a sentence.
WORTH = 0.9
#: The metric whose change is said, the first that a result has.
SAID = ("worst_ks", "two_way", "cnn", "mlp")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Expected:
    """What a metric would be in the user's situation, between two values, and on which data set's curve."""

    metric: str
    low: float
    high: float
    measured: bool
    data: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alternative:
    """Another method. `times_worse` is its main error over the recommended one's, in the mean over what was stored of both;
    None where the two were never measured on the same data. `beside` is the nearest result of it where both were measured on
    the same data at the same epsilon, and `ours` the recommended method's there."""

    method: str
    trust: Trust
    unit: Unit
    times_worse: float | None
    beside: Measured | None = None
    ours: Measured | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Improvement:
    """What would have to change, and from what to what a metric would go; both in the middle of their range."""

    change: str
    metric: str
    now: float
    then: float
    measured: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advice:
    """A recommendation with all it rests on. `str(advice)` is what the command prints."""

    situation: Situation
    method: str
    trust: Trust
    unit: Unit
    reason: str
    trusted: str
    elsewhere: tuple[tuple[Unit, Trust], ...]
    measured: tuple[Measured, ...]
    far: tuple[str, ...]
    expected: tuple[Expected, ...]
    others: tuple[Alternative, ...]
    improvements: tuple[Improvement, ...]
    commands: tuple[str, ...]
    rehearsal: str

    def __str__(self) -> str:
        from populace.runs.advise.words import in_words

        return in_words(self)

    def to_json(self) -> JsonObject:
        """The same as one document."""
        return {
            **dataclasses.asdict(self),
            "expected_is": "an extrapolation where measured is false, else interpolated",
        }


def advise(situation: Situation) -> Advice:
    """The advice. Nothing is run, and no value is read."""
    choice, unit = situation.choice, situation.unit
    near = nearest(situation)[:SHOWN]
    sole = situation.clients == 1 and situation.holder == "files" and choice.trust != "local"
    return Advice(
        situation=situation,
        method=choice.method,
        trust=choice.trust,
        unit=unit,
        reason=REASONS_OF_SILOS[situation.kind] if situation.holder == "silos" else choice.reason,
        elsewhere=other_guarantees(situation),
        trusted=ONE_HOLDER if sole else TRUSTS[choice.trust],
        measured=near,
        far=far_in(situation, near[0]) if near else (),
        expected=tuple(_expected(situation, near[0])) if near else (),
        others=_others(situation, near[0].main if near else ""),
        improvements=tuple(_improvements(situation, near[0])) if near else (),
        commands=_commands(situation),
        rehearsal=_rehearsal(situation),
    )


def reached(one: Measured, metric: str, error: float) -> float:
    """An error as the metric says it: a score falls short of the real rows' by it."""
    return max(CHANCE[metric], one.real[metric] - error) if metric in SCORES else error


def _expected(situation: Situation, near: Measured) -> Iterator[Expected]:
    """Every metric of the nearest result, read off its curve at the noise of the user's situation."""
    for metric in near.metrics:
        found = curve_of(near, metric).at(level_of(situation))
        measured = found.measured and not far_in(situation, near)
        # An extrapolation is no surer than what it starts from: the deviation over runs goes on top, on either side.
        spread = 0.0 if measured else near.metrics[metric].deviation or 0.0
        errors = (max(0.0, found.low - spread), min(WORST, found.high + spread))
        low, high = sorted(reached(near, metric, error) for error in errors)
        yield Expected(metric=metric, low=low, high=high, measured=measured, data=near.about)


def _others(situation: Situation, main: str) -> tuple[Alternative, ...]:
    """The next two under the same trust: those that protect the same unit first, by their measured errors, then the others."""
    choice = situation.choice

    def candidate(facts: Facts) -> Alternative:
        unit: Unit = "person" if situation.person and facts.persons else facts.unit
        beside, ours = side_by_side(situation, facts.name) or (None, None)
        return Alternative(
            method=facts.name, trust=choice.trust, unit=unit, times_worse=_ratio(situation, facts.name, main), beside=beside,
            ours=ours,
        )  # fmt: skip

    found = [
        candidate(facts) for facts in built_in_facts()
        if situation.kind in facts.kinds and choice.trust in facts.trust and facts.name not in (choice.method, *NO_DATA)
    ]  # fmt: skip
    order = sorted(found, key=lambda one: (one.unit != situation.unit, one.times_worse is None, one.times_worse or 0.0))
    return tuple(order[:2])


def _ratio(situation: Situation, method: str, main: str) -> float | None:
    """Under the same trust and by the same metric where both were measured so, else by another metric, or under another trust
    of silos: the noise is what differs."""
    choice = situation.choice
    asked: tuple[Trust, ...] = (
        ("local",) if choice.trust == "local" else (choice.trust, "silo", "central", "secure-sum")
    )
    ratios = (
        times_worse(method, choice.method, situation.kind, trust, by)
        for trust, by in itertools.product(asked, dict.fromkeys((main, "")))
    )
    return next((ratio for ratio in ratios if ratio is not None), None)


def _improvements(situation: Situation, near: Measured) -> Iterator[Improvement]:
    """Less noise by other trust, more epsilon, more rows, as far as it changes anything."""
    metric = next((name for name in SAID if name in near.metrics), near.main)
    curve, trust = curve_of(near, metric), situation.noise_of
    sizes = {"clients": situation.clients, "rows": situation.rows, "epsilon": situation.epsilon}

    def changed(change: str, **other: str | float) -> Improvement | None:
        level = noise_level(**{"trust": trust, **sizes, **other})  # type: ignore[arg-type]
        now, then = curve.at(level_of(situation)), curve.at(level)
        if _middle(then) > WORTH * _middle(now):
            return None
        values = (reached(near, metric, _middle(one)) for one in (now, then))
        return Improvement(
            change=change, metric=metric, **dict(zip(("now", "then"), values, strict=True)),
            measured=now.measured and then.measured and not far_in(situation, near),
        )  # fmt: skip

    if trust == "silo" and situation.clients > 1:
        yield from _some(changed("with secure sums, in which no server is trusted either", trust="secure-sum"))
    if trust == "local":
        yield from _some(_held(situation, near, metric, curve))
    yield from _some(
        changed(f"at epsilon {MORE_EPSILON * situation.epsilon:g}", epsilon=MORE_EPSILON * situation.epsilon)
    )
    who = "people" if trust == "local" else "images" if situation.kind == "images" else "rows"
    more = MORE_ROWS * situation.rows
    yield from _some(changed(f"with {more:,} {who}, ten times as many", rows=more))


def _some(found: Improvement | None) -> Iterator[Improvement]:
    if found is not None:
        yield found


def _held(situation: Situation, near: Measured, metric: str, curve: Curve) -> Improvement | None:
    """The same rows at one holder that is trusted with them: another trust, and another unit."""
    beside = next(
        (one for one in stored() if one.data == near.data and one.trust == "silo" and one.unit == "record"
         and metric in one.metrics and one.method == "census"), None,
    )  # fmt: skip
    if beside is None:
        return None
    level = noise_level(trust="central", clients=1, rows=situation.rows, epsilon=situation.epsilon)
    now, then = curve.at(level_of(situation)), curve_of(beside, metric).at(level)
    change = "if one holder may keep all rows and add the noise (census, protects one row)"
    return Improvement(
        change=change, metric=metric, now=reached(near, metric, _middle(now)), then=reached(beside, metric, _middle(then)),
        measured=now.measured and then.measured and not far_in(situation, near),
    )  # fmt: skip


def _middle(found: Predicted) -> float:
    return float((found.low * found.high) ** 0.5)


def _commands(situation: Situation) -> tuple[str, ...]:
    """What to type next, word for word where all is known."""
    choice, epsilon = situation.choice, f"{situation.epsilon:g}"
    schema = ["--schema", situation.schema or "SCHEMA.toml"]
    trust = ["--trust", choice.trust] if choice.trust in ("secure-sum", "central") else []
    method = ["--method", choice.method] if choice.trust == "local" else []
    if situation.holder == "files":
        given = [*situation.files, *(schema if situation.schema else []), "--epsilon", epsilon, *method, *trust]
        given += ["--person", "COLUMN"] if situation.person else []
        given += ["--ledger", "LEDGER.sqlite"] if any(file_of(file) is None for file in situation.files) else []
        here = _line("synthesize", *given, "--out", "run")
        if situation.clients == 1 or situation.kind == "images" or choice.trust == "local":
            return (here,)
        there = _line("federation", "init", "study", "--name", "study", *schema, "--epsilon", epsilon, *trust)
        return (here, there + " --person" * situation.person)
    if situation.kind == "images":
        files = ["images.npz"] if situation.holder == "people" else ["SITE1.npz", "SITE2.npz"][: situation.clients]
        return (_line("synthesize", *files, "--epsilon", epsilon, *method, *trust, "--out", "run"),)
    if choice.trust == "local":
        clients = ["--clients", str(situation.clients)]
        return (_line("collector", "init", "study", *schema, "--epsilon", epsilon, *clients),)
    person = ["--person"] if situation.person else []
    if situation.holder == "people" or situation.clients == 1:
        column = ["--person", "COLUMN"] if situation.person else []
        return (_line("synthesize", "ALL-ROWS.csv", *schema, "--epsilon", epsilon, *trust, *column, "--out", "run"),)
    return (_line("federation", "init", "study", "--name", "study", *schema, "--epsilon", epsilon, *trust, *person),)


def _rehearsal(situation: Situation) -> str:
    """The command that tries the candidates on invented rows; none for images."""
    if situation.kind == "images":
        return ""
    each = max(1, round(situation.rows / situation.clients))
    people = situation.choice.trust == "local"
    sizes = ["--clients", str(situation.rows if people and situation.holder == "files" else situation.clients)]
    sizes += [] if each == 1 or people else ["--records-per-client", str(each)]
    trust = [] if situation.trust is None else ["--trust", situation.trust]
    schema = situation.schema or "SCHEMA.toml"
    return _line("rehearse", "--schema", schema, *sizes, "--epsilon", f"{situation.epsilon:g}", *trust)


def _line(*words: str) -> str:
    return shlex.join(("populace", *words))


def read_advice(**given: object) -> Advice:
    """An advice from the options of the command."""
    from populace.runs.advise.situation import read_situation

    return advise(read_situation(**given))  # type: ignore[arg-type]
