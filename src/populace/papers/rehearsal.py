"""Candidates compared before a private row is touched: on public rows, or on invented ones of the schema's shape.

A rehearsal is a grid of cells, a candidate on a draw of rows each; what was measured is kept, and the same command goes on
where an interrupted one stopped. Every draw is another population (or another resampling of the public rows), so that the
intervals are over populations and over the noise of the method. Candidates are tried on the same draws: which is better is
said by their differences draw by draw.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from populace.border.databases.address import locate, short_name
from populace.engines import simulation
from populace.errors import PopulaceError, SpecError
from populace.evaluation.baselines import shuffled
from populace.evaluation.estimate import over_seeds
from populace.evaluation.marginals import mean_over_pairs, two_way_distances
from populace.evaluation.value_scores import value_scores
from populace.methods.base import Population, Protocol
from populace.methods.registry import built_in_facts, make_protocol, parameters, protocol_class
from populace.papers.grid import Benchmark, Cell, Result, Step, run_benchmark
from populace.papers.invented import invent
from populace.papers.user_path import time_limit
from populace.privacy.guarantee import Trust, check_epsilon
from populace.runs.advise.advice import NO_DATA, advise
from populace.runs.advise.situation import TRUSTS, read_situation
from populace.runs.given import joined_frames
from populace.runs.named import check_count, check_seed
from populace.runs.plan import plan
from populace.runs.run import make_key
from populace.tables.files import write_json
from populace.tables.partition import Clients, split, split_even
from populace.tables.schema import Schema
from populace.tables.table import Table, make_table, read_frame
from populace.types import JsonObject

MOST_ROWS = 100_000
LIMIT = 900.0  # seconds of one cell
SOON = 60.0  # seconds of one cell, by the cost model, beyond which a candidate is tried only if it is named
DRAWS, ROWS = 5, 10_000
REAL, SHUFFLED = "real rows again", "columns shuffled"
DOCUMENT, PAGE = "rehearsal.json", "rehearsal.html"
#: Metrics in the order in which they are shown: key, title, which way is better.
METRICS: dict[str, tuple[str, str]] = {
    "two_way": ("2-way TVD", "lower"),
    "worst_ks": ("worst KS", "lower"),
    "boosting_auc": ("AUC, boosting", "higher"),
    "boosting_r2": ("R2, boosting", "higher"),
}
INVENTED = (
    "invented rows are not your data: they have your columns, cells and number of rows, and dependence and skew drawn at "
    "random. Compare the candidates by them; do not read the figures as what your data will give"
)
PUBLIC = "public rows, drawn with replacement: as near to your data as those are"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What is rehearsed: candidates as (method, trust), over a schema, at sizes and an epsilon."""

    schema: Schema
    clients: int
    records: int
    epsilon: float
    candidates: tuple[tuple[str, Trust], ...]
    public: tuple[str, ...] = ()
    rows: int = ROWS
    draws: int = DRAWS
    seed: int = 0
    notes: tuple[str, ...] = ()

    def settings(self) -> JsonObject:
        """All that decides the cells, as it is kept in the folder: another rehearsal has other settings."""
        return {
            "schema": hashlib.sha256(json.dumps(self.schema.to_dict(), sort_keys=True).encode()).hexdigest(),
            "clients": self.clients, "records-per-client": self.records, "epsilon": self.epsilon, "seed": self.seed,
            "methods": [f"{method} ({trust})" for method, trust in self.candidates], "rows": self.rows, "draws": self.draws,
            "public": _digest(public_rows(self.public, self.schema)) if self.public else None,
        }  # fmt: skip


def make_rehearsal(
    schema: Schema,
    *,
    clients: int,
    epsilon: float,
    records: int = 1,
    methods: Sequence[str] = (),
    trust: str | None = None,
    public: str | None = None,
    rows: int = ROWS,
    draws: int = DRAWS,
    seed: int = 0,
) -> Rehearsal:
    """A checked rehearsal. `public` is a file, a pattern or a database, as `synthesize` takes them.

    Without methods: what `populace advise` recommends, and the next two where they take no minutes.
    """
    check_epsilon(epsilon)
    counts = {"clients": clients, "records-per-client": records, "rows": rows, "draws": draws}
    for name, count in counts.items():
        check_count(name, count)
    check_seed(seed)
    if len(set(methods)) != len(methods):
        raise SpecError(f"--methods names a method twice: {', '.join(methods)}")
    notes = []
    if clients * records > MOST_ROWS:
        asked, (clients, records) = (
            clients * records,
            (min(clients, MOST_ROWS), max(1, MOST_ROWS // min(clients, MOST_ROWS))),
        )
        notes.append(
            f"capped at {clients:,} clients with {records:,} records each, in place of {asked:,} records, to end in minutes: "
            "with all of them errors of the noise would be smaller"
        )
    situation = read_situation(clients=clients, records=records, schema=schema, epsilon=epsilon, trust=trust)
    advice = advise(situation)
    names = tuple(methods) or (advice.method, *(one.method for one in advice.others))
    found = tuple((name, _trust(name, trust or situation.choice.trust, asked=trust is not None)) for name in names)
    if not methods:
        found, said = _soon(found, Population(schema=schema, clients=clients, records=records), epsilon)
        notes += said
    return Rehearsal(
        schema=schema, clients=clients, records=records, epsilon=epsilon, candidates=found, rows=rows,
        public=() if public is None else locate([public]),
        draws=draws, seed=seed, notes=tuple(notes),
    )  # fmt: skip


def _trust(method: str, wanted: str, *, asked: bool) -> Trust:
    """The wanted trust where the method has it, its own otherwise; refused where the wanted one was asked for."""
    facts = next((facts for facts in built_in_facts() if facts.name == method), None) or protocol_class(method).facts
    if "table" not in facts.kinds:
        raise SpecError(
            f"method {method!r} takes no tables, and a rehearsal is of tables; `populace methods` lists what does"
        )
    if "not-private" in facts.trust:
        raise SpecError(f"method {method!r} protects nobody, and a rehearsal compares methods that do; leave it out")
    if method in NO_DATA:
        raise SpecError(f"method {method!r} learns a classifier and makes no rows to compare; leave it out")
    if wanted in facts.trust:
        return next(known for known in TRUSTS if known == wanted)
    if asked:
        raise SpecError(f"method {method!r} works with trust {' or '.join(facts.trust)}, not {wanted!r}")
    return facts.trust[0]


def _soon(
    candidates: tuple[tuple[str, Trust], ...], population: Population, epsilon: float
) -> tuple[tuple[tuple[str, Trust], ...], list[str]]:
    """The candidates that take about a minute a cell at most, by the cost model, and words on the others; the first stays."""
    slow: dict[str, float] = {}
    for name, trust in candidates:
        with contextlib.suppress(PopulaceError):  # what cannot run is said in its place, with the reason
            seconds = plan(protocol_of(name, trust, epsilon), population)[1]
            if seconds is not None and seconds > SOON:
                slow[name] = math.ceil(seconds / 60)
    kept = tuple(one for number, one in enumerate(candidates) if number == 0 or one[0] not in slow)
    everyone = ",".join(name for name, _ in candidates)
    notes = []
    for number, (name, _) in enumerate(candidates):
        if name in slow:
            what = f"{slow[name]:,} minutes a draw by the stored cost model"
            notes.append(
                f"{name} is left out: it would take about {what}; to try it too: --methods {everyone}"
                if number
                else f"{name}, which is recommended, takes about {what}"
            )
    return kept, notes


def protocol_of(method: str, trust: Trust, epsilon: float) -> Protocol:
    settings: JsonObject = {"epsilon": epsilon, **({"trust": trust} if "trust" in parameters(method) else {})}
    return make_protocol(method, settings)


def cells(rehearsal: Rehearsal) -> list[Cell]:
    """Every draw of rows with each baseline and each candidate; the first draw comes first, so that figures come early."""
    found: list[Cell] = []
    for draw in range(rehearsal.draws):
        found += [{"candidate": name, "trust": None, "draw": draw} for name in (REAL, SHUFFLED)]
        found += [{"candidate": name, "trust": trust, "draw": draw} for name, trust in rehearsal.candidates]
    return found


@functools.lru_cache(maxsize=1)
def public_rows(public: tuple[str, ...], schema: Schema) -> Table:
    """All public rows under the schema."""
    table = make_table(joined_frames([read_frame(one) for one in public]), schema)
    if len(table) < 10:
        raise SpecError(f"expected at least 10 rows in {', '.join(map(short_name, public))}, got {len(table)}")
    return table


def _digest(rows: Table) -> str:
    return hashlib.sha256(np.ascontiguousarray(rows.codes).tobytes()).hexdigest()


@functools.lru_cache(maxsize=1)
def rows_of(rehearsal: Rehearsal, draw: int) -> tuple[Table, Table]:
    """The rows that clients hold in a draw, and as many others of the same population, on which models are tested."""
    count = rehearsal.clients * rehearsal.records
    rng = np.random.default_rng((rehearsal.seed, draw))
    others = min(max(count, 2_000), ROWS)
    if not rehearsal.public:
        population = invent(rehearsal.schema, int(rng.integers(2**62)))
        return population.draw(count, rng), population.draw(others, rng)
    public = public_rows(rehearsal.public, rehearsal.schema)
    order = rng.permutation(len(public))
    fifth = max(1, len(public) // 5)
    return public.take(rng.choice(order[fifth:], size=count)), public.take(rng.choice(order[:fifth], size=others))


def measure(rehearsal: Rehearsal, cell: Cell) -> Result:
    """One candidate on one draw, or in one sentence why it cannot."""
    candidate, draw = str(cell["candidate"]), int(cell["draw"] or 0)
    train, test = rows_of(rehearsal, draw)
    if candidate == REAL:
        return _figures(test, train, test, train)
    if candidate == SHUFFLED:
        rng = np.random.default_rng((rehearsal.seed, draw, 1))
        mixed = shuffled(train, rng, shown=np.arange(len(train)))
        return _figures(mixed, train, test, mixed)
    trust = next(known for known in TRUSTS if known == cell["trust"])
    try:
        protocol = protocol_of(candidate, trust, rehearsal.epsilon)
        clients = _dealt(rehearsal, train, protocol, draw)
        began = time.monotonic()
        with time_limit(LIMIT) if threading.current_thread() is threading.main_thread() else contextlib.nullcontext():
            outcome = simulation.run(protocol, clients, root=make_key(rehearsal.seed + draw))
            made = outcome.generator.sample(rehearsal.rows, make_key(rehearsal.seed + draw + 1_000_000))
        seconds = time.monotonic() - began
    except PopulaceError as error:
        return {"refused": str(error)}
    if not isinstance(made, Table):
        return {"refused": f"{candidate} made no table"}
    claim = outcome.guarantee
    about = {"guarantee": str(claim.bound), "unit": claim.unit, "trust": claim.trust, "seconds_run": seconds}
    return {**about, **_figures(made, train, test, made)}


def _dealt(rehearsal: Rehearsal, rows: Table, protocol: Protocol, draw: int) -> Clients:
    """Clients as they would be: with their rows in order where they are people, dealt evenly where they are silos."""
    if protocol.facts.trust == ("local",):
        return split(rows, records_per_client=rehearsal.records)
    return split_even(rows, clients=rehearsal.clients, seed=draw)


def _figures(synthetic: Table, train: Table, test: Table, learnt_from: Table) -> Result:
    """Distances to the clients' rows, and what is predicted on others after training on the rows `learnt_from`."""
    target = train.schema.target
    alone = learnt_from is synthetic
    found: Result = dict(value_scores(synthetic, train, test if alone else None, target if alone else None))
    if not alone and target is not None:
        learnt = value_scores(learnt_from, train, test, target)
        found |= {name: value for name, value in learnt.items() if name.startswith("boosting")}
    if len(train.schema.columns) > 1:
        found["two_way"] = mean_over_pairs(two_way_distances(train, synthetic))
    found = {name: found[name] for name in METRICS if name in found}
    return {name: value for name, value in found.items() if isinstance(value, float) and math.isfinite(value)}


def summary(rehearsal: Rehearsal, results: Sequence[Result]) -> list[JsonObject]:
    """For every baseline and candidate its guarantee, seconds, and metrics with intervals over draws; and for every candidate
    but the first under its guarantee the differences to that one."""
    found: list[JsonObject] = []
    firsts: dict[tuple[str, str], tuple[str, list[Result]]] = {}
    for name, trust in (*((name, None) for name in (REAL, SHUFFLED)), *rehearsal.candidates):
        own = [one for one in results if (one["cell"]["candidate"], one["cell"]["trust"]) == (name, trust)]
        done = [one for one in own if "refused" not in one]
        row: JsonObject = {"candidate": name, "draws": len(done)}
        if len(done) < len(own):
            row["refused"] = next(one["refused"] for one in own if "refused" in one)
        if done and trust is not None:
            row |= {key: done[0][key] for key in ("guarantee", "unit", "trust")}
            row["seconds"] = sum(one["seconds_run"] for one in done) / len(done)
        measured = [key for key in METRICS if any(key in one for one in done)]
        metrics = {key: over_seeds([one[key] for one in done if key in one]) for key in measured}
        row["metrics"] = {key: _within(key, estimate.to_json()) for key, estimate in metrics.items()}
        if done and trust is not None:
            first, beside = firsts.setdefault((row["trust"], row["unit"]), (name, done))
            if first != name:
                row |= {"compared_to": first, "differences": differences(done, beside)}
        found.append(row)
    return found


def differences(own: Sequence[Result], others: Sequence[Result]) -> JsonObject:
    """Each metric less that of another candidate on the same draw, in the mean over draws of both: what draws have in common,
    an easy population or a hard one, is not in the interval."""
    other = {one["cell"]["draw"]: one for one in others}
    pairs = [(one, other[one["cell"]["draw"]]) for one in own if one["cell"]["draw"] in other]
    found = {
        key: [mine[key] - theirs[key] for mine, theirs in pairs if key in mine and key in theirs] for key in METRICS
    }
    return {key: _within(key, over_seeds(values).to_json(), least=-1.0) for key, values in found.items() if values}


def _within(key: str, figure: JsonObject, least: float = 0.0) -> JsonObject:
    """An interval of Student's t may pass the ends of the scale: distances and AUC lie between 0 and 1."""
    if "low" not in figure or key == "boosting_r2":
        return figure
    return {**figure, "low": max(least, figure["low"]), "high": min(1.0, figure["high"])}


def rehearse(
    rehearsal: Rehearsal, folder: Path, *, command: str = "", progress: Callable[[Step], None] = lambda _: None
) -> JsonObject:
    """Measure what is missing, and write and return the document."""
    settings = rehearsal.settings()
    benchmark = Benchmark(
        name="rehearsal", title="a rehearsal", reference=PUBLIC if rehearsal.public else INVENTED, revision=1,
        prepare=lambda: None, cells=lambda quick, seeds: cells(rehearsal), measure=functools.partial(measure, rehearsal),
        views=lambda results: (), charts=lambda results: (), settings=settings,
    )  # fmt: skip
    found = run_benchmark(benchmark, folder, command=command, progress=progress)
    document = {
        "rehearsal": 1, "settings": settings, "epsilon": rehearsal.epsilon, "clients": rehearsal.clients,
        "records_per_client": rehearsal.records, "columns": len(rehearsal.schema.columns), "target": rehearsal.schema.target,
        "synthetic_rows": rehearsal.rows, "draws": rehearsal.draws, "on": "public" if rehearsal.public else "invented",
        "notes": [benchmark.reference, *rehearsal.notes], "candidates": summary(rehearsal, found["cells"]),
        "command": command, "versions": found["versions"], "cells": found["cells"],
    }  # fmt: skip
    write_json(folder / DOCUMENT, document)
    (folder / "result.json").unlink(missing_ok=True)
    return document
