"""Arbitrary schemas and codes, for property tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from decimal import Decimal

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from populace.tables.cells import Grid
from populace.tables.columns import SPANS
from populace.tables.constraints import NULL, RELATIONS, Comparison, Forbidden
from populace.tables.schema import Column, Schema, category_text

FAST = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SCALES = {
    "integer": (1.0, 5.0), "decimal": (0.0, 0.01, 0.05, 0.1, 1.0), "date": (1.0,), "datetime": (1.0, 60.0, 86_400.0, 0.001),
    "time": (1.0, 60.0, 0.001),
}  # fmt: skip


@st.composite
def categories(draw: st.DrawFn, dtype: str) -> tuple[str, ...]:
    if dtype == "boolean":
        return tuple(draw(st.lists(st.sampled_from(["true", "false"]), min_size=1, unique=True)))
    values = {"string": st.text(max_size=8).filter(lambda t: t != NULL), "integer": INT64, "float": FLOATS}[dtype]
    return tuple(draw(st.lists(values.map(category_text), min_size=1, max_size=5, unique=True)))


@st.composite
def columns(draw: st.DrawFn, name: str) -> Column:
    kind = draw(st.sampled_from(["categorical", "ordinal", *SCALES]))
    nullable, domain = draw(st.booleans()), draw(st.sampled_from(["declared", "read-from-data", "public-data"]))
    source = draw(st.sampled_from(["", "ward protocol", "ICD-10 2025"]))
    if kind in SCALES:
        fields = draw(scales(kind))
        return Column(name=name, kind=kind, nullable=nullable, domain=domain, source=source, **fields)
    dtype = draw(st.sampled_from(["string", "integer", "float", "boolean"]))
    listed = draw(categories(dtype))
    other = draw(st.sampled_from(["", *listed]))
    return Column(
        name=name,
        kind=kind,
        categories=listed,
        dtype=dtype,
        nullable=nullable,
        domain=domain,
        source=source,
        other=other,
    )


@st.composite
def scales(draw: st.DrawFn, kind: str) -> dict[str, object]:
    """Edges, spikes, laws and a step that make at least one cell."""
    step = draw(st.sampled_from(SCALES[kind]))
    if kind == "decimal" and not step:
        numbers = FLOATS
    else:
        least, most = SPANS.get(kind, (-Grid(step).most, Grid(step).most))
        near = st.integers(max(-20, int(least / step)), 20)
        numbers = (near | st.integers(int(least / step) + 1, int(most / step) - 1)).map(on_grid(step))
    edges = tuple(sorted(draw(st.lists(numbers, min_size=2, max_size=6, unique=True))))
    inside = st.sampled_from(edges) | numbers
    spikes = tuple(sorted(draw(st.lists(inside, max_size=4, unique=True))))
    if spikes and draw(st.booleans()):
        edges = draw(st.sampled_from([(), edges]))
    laws = tuple(draw(st.sampled_from(["linear", "log"])) for _ in edges[1:])
    return {"edges": edges, "spikes": spikes, "laws": laws, "step": step, "clip": draw(st.booleans())}


def on_grid(step: float) -> Callable[[int], float]:
    return lambda tick: float(Decimal(tick) * Decimal(str(step)))


@st.composite
def forbidden(draw: st.DrawFn, named: list[Column]) -> Forbidden:
    chosen = draw(st.lists(st.sampled_from(named), min_size=1, max_size=3, unique_by=lambda c: c.name))
    values = []
    for column in chosen:
        labels = column.labels()
        some = draw(st.lists(st.sampled_from(labels), min_size=1, max_size=max(1, len(labels) - 1), unique=True))
        values.append((column.name, tuple(some)))
    return Forbidden(values=tuple(values))


@st.composite
def schemas(draw: st.DrawFn, *, least: int = 1, rules: bool = False) -> Schema:
    names = draw(st.lists(st.text(min_size=1, max_size=8), min_size=least, max_size=5, unique=True))
    made = [draw(columns(name)) for name in names]
    target = draw(st.none() | st.sampled_from(names))
    zeros: tuple[Forbidden, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    wide = [column for column in made if column.size > 1]
    if rules and wide:
        zeros = tuple(draw(st.lists(forbidden(wide), max_size=2)))
    numeric = [column.name for column in made if column.kind in ("integer", "decimal")]
    if rules and len(numeric) > 1:
        left, right = draw(st.sampled_from(list(itertools.permutations(numeric, 2))))
        comparisons = (Comparison(left=left, relation=draw(st.sampled_from(sorted(RELATIONS))), right=right),)
    return Schema(columns=tuple(made), target=target, forbidden=zeros, comparisons=comparisons)


@st.composite
def schemas_with_codes(draw: st.DrawFn, *, least: int = 1) -> tuple[Schema, np.ndarray, np.random.Generator]:
    schema = draw(schemas(least=least))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = draw(st.integers(1, 12))
    return schema, rng.integers(0, schema.sizes, size=(rows, len(schema.sizes)), dtype=np.int32), rng
