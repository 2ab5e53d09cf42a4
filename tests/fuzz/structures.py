"""Targets whose inputs hypothesis makes: values of any shape where a document, a table or settings are expected."""

from __future__ import annotations

import functools
import json
import random
from typing import Any

import hypothesis
import pyarrow as pa
import pyarrow.ipc
from hypothesis import strategies as st

from builders import INDEPENDENT, small_schema, table_methods
from fuzz.corpus import agreement, small_table
from fuzz.target import Target
from populace.border.models import check_document, interpreting
from populace.engines.agreement import agreement_from_json
from populace.engines.roster import roster_from_json
from populace.methods.registry import METHODS, make_protocol, parameters
from populace.privacy import events
from populace.privacy.guarantee import guarantee_from_json
from populace.runs.forms import PrivacyForm
from populace.runs.spec import make_spec
from populace.tables.proposal import propose
from populace.tables.schema import schema_from_dict
from populace.tables.table import make_table

AT_ONCE = 50
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from((2**31, 2**63, -(2**63), 10**30, 1e308, float("inf"), float("nan"), 1e-320)),
    st.floats(),
)
LEAVES = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8))
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def strings(*texts: str) -> Any:
    return st.one_of(st.sampled_from(texts), JSON)


def documents(**fields: Any) -> Any:
    """Documents with some of these fields and any others."""
    return st.fixed_dictionaries({}, optional={**fields, "other": JSON})


def near(valid: dict[str, Any], fields: Any) -> Any:
    """A valid document in which one field or two are other ones, or missing."""
    few = fields.map(lambda made: dict(sorted(made.items())[:2]))
    gone = st.one_of(st.none(), st.none(), st.sampled_from(sorted(valid)))
    return st.tuples(few, gone).map(
        lambda pair: {name: value for name, value in {**valid, **pair[0]}.items() if name != pair[1]}
    )


COLUMNS = documents(
    name=strings("a", "b", ""), kind=strings("categorical", "ordinal", "integer", "decimal", "date", "id", "drop"),
    categories=st.one_of(st.lists(st.text(max_size=4), max_size=5), JSON), edges=st.one_of(st.lists(NUMBERS, max_size=5), JSON),
    dtype=strings("text", "integer", "boolean", "float"), nullable=st.one_of(st.booleans(), JSON),
    domain=strings("declared", "read-from-data"),
    spikes=st.lists(NUMBERS, max_size=3), step=NUMBERS, source=JSON, clip=JSON, missing=JSON,
)  # fmt: skip
SCHEMAS = documents(
    format=st.one_of(st.integers(0, 4), JSON), column=st.one_of(st.lists(COLUMNS, max_size=3), JSON),
    target=strings("colour", "sold"),
    constraint=st.one_of(st.lists(documents(left=strings("size"), right=strings("weight"), relation=strings("<", "<=")),
    max_size=2), JSON),
    forbid=st.one_of(st.lists(documents(colour=strings("red"), size=strings("1")), max_size=2), JSON), source=JSON,
)  # fmt: skip
EVENTS = st.recursive(
    st.one_of(
        documents(kind=st.just("Pure"), epsilon=st.one_of(NUMBERS, JSON)),
        documents(kind=st.just("Gaussian"), noise_multiplier=st.one_of(NUMBERS, JSON)),
        documents(kind=strings("NonPrivate", "NoisyLists"), reason=JSON, noise_multiplier=NUMBERS, delta=NUMBERS,
        threshold=NUMBERS),
    ),
    lambda inner: st.one_of(
        documents(kind=st.just("Composed"), events=st.lists(inner, max_size=3)),
        documents(kind=st.just("Repeated"), event=inner, count=st.one_of(NUMBERS, JSON)),
        documents(kind=st.just("PoissonSampled"), event=inner, sampling_rate=NUMBERS, rate=NUMBERS, probability=NUMBERS),
    ),
    max_leaves=5,
)  # fmt: skip
ROSTERS = documents(
    seats=st.one_of(st.lists(documents(site=JSON, first=NUMBERS, clients=NUMBERS, hosts=JSON), max_size=3), JSON),
    records=NUMBERS,
    seeded=JSON, records_read=JSON,
)  # fmt: skip
AGREEMENTS = documents(
    format=st.sampled_from((1, 1, 1, 2)), method=strings("independent", "poll"),
    parameters=st.one_of(documents(epsilon=NUMBERS), JSON),
    schema=SCHEMAS, roster=JSON, images=documents(shape=JSON, classes=NUMBERS),
    **{"class": strings("populace.methods.baselines.independent:Independent", "os:system",
    "populace.methods.base:Protocol", "x:", "")},
)  # fmt: skip
GUARANTEES = documents(
    format=st.one_of(st.integers(0, 4), JSON), epsilon=NUMBERS, delta=st.one_of(NUMBERS, JSON), unit=strings("record",
    "client", "person"),
    neighbours=strings("replace", "add-remove", "zero-out"), trust=strings("local", "silo", "central", "secure-sum"),
    mechanism=JSON,
    assumptions=st.one_of(st.lists(st.text(max_size=4), max_size=2), JSON), derivation=st.lists(st.text(max_size=4),
    max_size=2),
    randomness=JSON, domains=JSON, domain_sources=JSON, units=NUMBERS, counts_read=JSON, noise=JSON,
    sampling_delta=NUMBERS, claims=JSON, reason=JSON,
)  # fmt: skip
CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=6), st.dates(), st.times(),
    st.datetimes(), st.binary(max_size=4), st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-9,
    max_value=9),
)  # fmt: skip


SCHEMA = small_schema().to_dict()
COLUMNS_OF_A_SCHEMA = st.tuples(
    st.sampled_from(SCHEMA["column"]).flatmap(lambda column: near(column, COLUMNS)), st.integers(0, 3)
).map(
    lambda pair: {
        **SCHEMA,
        "column": [pair[0] if place == pair[1] else column for place, column in enumerate(SCHEMA["column"])],
    }
)
GUARANTEE = INDEPENDENT.guarantee(agreement().population(clients=6, records=1)).to_json()
ROSTER = {
    "seats": [{"site": "a", "first": 0, "clients": 3, "hosts": "rows"}],
    "records": 1,
    "seeded": False,
    "records_read": False,
}


@functools.lru_cache(maxsize=4)
def examples(strategy: Any, seed: int) -> list[Any]:
    """Some examples of a strategy, the same for the same seed."""
    found: list[Any] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=AT_ONCE, database=None, deadline=None, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(strategy)
    def keep(value: Any) -> None:
        found.append(value)

    keep()
    return found


def _settings() -> Any:
    """A method and settings of it, of wrong kinds and out of range."""

    def of(name: str) -> Any:
        fields = {field: st.one_of(NUMBERS, JSON) for field in parameters(name)}
        return st.tuples(st.just(name), st.fixed_dictionaries({}, optional=fields))

    return st.sampled_from(sorted(METHODS)).flatmap(of)


SPECS = st.fixed_dictionaries({}, optional={
    "data": strings("a.csv", "b.parquet"), "epsilon": NUMBERS, "method": strings(*table_methods()),
    "delta": st.one_of(NUMBERS, JSON),
    "records_per_client": st.one_of(NUMBERS, JSON), "client_column": JSON, "most_records": NUMBERS, "settings": JSON,
    "rows": st.one_of(NUMBERS, JSON),
    "seed": st.one_of(NUMBERS, JSON), "target": JSON, "trust": strings("silo", "central"), "person": JSON,
    "silos": NUMBERS, "schema_file": JSON,
})  # fmt: skip


TABLES = st.dictionaries(st.text(max_size=4), st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=4)


def _stored(columns: dict[str, list[Any]]) -> bytes:
    """A table of these columns as bytes; of what no table holds, an empty one."""
    try:
        frame = pa.table(columns)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        frame = pa.table({"a": pa.array([], pa.null())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, frame.schema) as writer:
        writer.write_table(frame)
    return sink.getvalue().to_pybytes()


def _table(frame: pa.Table) -> None:
    make_table(frame, propose(frame).schema)


def _under_schema(frame: pa.Table) -> None:
    names = small_table().schema.names
    columns = [frame.column(number % frame.num_columns) for number in range(len(names))]
    make_table(pa.table(columns, names=names), small_table().schema)


def _event(document: Any) -> None:
    with interpreting("an event"):  # as its readers do, which say which file it was in
        events.to_json(events.from_json(document))


def _guarantee(document: Any) -> None:
    """What is a guarantee can be written and said; what is none is refused as its readers expect."""
    check_document(document, PrivacyForm, where="a privacy.json")
    with interpreting("a privacy.json"):
        claim = guarantee_from_json(document)
    _ = (claim.to_json(), claim.statement, claim.headline, claim.lines)


def _protocol(pair: Any) -> None:
    name, settings = pair
    make_protocol(name, settings)


def _example(strategy: Any, rng: random.Random) -> Any:
    """The example of a case: hypothesis makes some at once, and a case takes its own of them."""
    seed, number = getattr(rng, "case", (0, rng.randrange(1_000)))
    some = examples(strategy, 1_000_003 * seed + number // AT_ONCE)
    return some[number % len(some)]


def _target(name: str, strategy: Any, use: Any, cost: float) -> Target:
    return Target(
        name=f"values-{name}", prepare=lambda _: None, cost=cost,
        draw=lambda _, rng: {"value": json.dumps(_example(strategy, rng))},
        run=lambda _, case: use(json.loads(case["value"])),
    )  # fmt: skip


def _table_target(name: str, use: Any, cost: float) -> Target:
    return Target(
        name=f"values-{name}", prepare=lambda _: None, cost=cost,
        draw=lambda _, rng: {"frame": _stored(_example(TABLES, rng))},
        run=lambda _, case: use(pa.ipc.open_stream(case["frame"]).read_all()),
    )  # fmt: skip


TARGETS: tuple[Target, ...] = (
    _target("schema", near(SCHEMA, SCHEMAS) | SCHEMAS, schema_from_dict, 3.0),
    _target("column", COLUMNS_OF_A_SCHEMA, schema_from_dict, 3.0),
    _target("event", near({"kind": "Gaussian", "noise_multiplier": 1.0}, EVENTS) | EVENTS, _event, 3.0),
    _target("guarantee", near(GUARANTEE, GUARANTEES), _guarantee, 3.0),
    _target("roster", near(ROSTER, ROSTERS) | ROSTERS, roster_from_json, 3.0),
    _target(
        "agreement",
        near(agreement().to_json(), AGREEMENTS),
        lambda value: agreement_from_json(value, where="a file"),
        4.0,
    ),
    _target("settings", _settings(), _protocol, 4.0),
    _target(
        "spec",
        near({"data": "a.csv", "epsilon": 1.0, "method": "independent"}, SPECS),
        lambda value: make_spec(**value),
        4.0,
    ),
    _table_target("table", _table, 15.0),
    _table_target("table-under-schema", _under_schema, 8.0),
)
