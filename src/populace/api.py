"""What Python calls: the same runs, plans, audits and attacks that the command line has, on data in memory or in files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from populace.engines.runtime import population_of
from populace.errors import InputError, SpecError
from populace.methods.base import Plan, Population, Protocol
from populace.methods.blocks.settings import check_settings
from populace.methods.registry import make_protocol, protocol_class
from populace.report.statement import write_statement
from populace.runs.advise.advice import Advice, read_advice
from populace.runs.given import bookkeeping, columns_named, deal_given, expanded, is_path, label_of, read_given
from populace.runs.named import TABLE_IN_MEMORY
from populace.runs.run import Run, TemporaryFolder, asked_of
from populace.runs.run import synthesize as run_synthesize
from populace.runs.spec import DEFAULT_ROWS, default_in_words, default_method, make_spec, silos_of
from populace.tables.partition import Clients
from populace.tables.schema import Schema, load_schema
from populace.types import JsonObject

Method = str | Protocol


def method(name: str, **settings: object) -> Protocol:
    """A method by the name it has on the command line: `method("fl-gan", epsilon=4)`.

    Args:
        name: one of those that `populace methods` lists.
        settings: its parameters, by name; `populace methods NAME` lists them with their meaning.
    """
    check_settings(protocol_class(name), settings)
    return make_protocol(name, settings)


def split(
    data: object,
    *,
    records_per_client: int | None = None,
    client_column: str | None = None,
    most_records: int | None = None,
    person: str | None = None,
    schema: Schema | str | Path | None = None,
) -> Clients:
    """Deal rows or images out to simulated clients: so many records each, or one client per value of a column.

    A list of tables is a list of silos, a client each. Of one table every row is a client where nothing else is said.

    Args:
        data: a pandas, polars or Arrow table, a file, a Table or Images, or a list of them.
        records_per_client: deal so many consecutive records to each client.
        client_column: one client for every value of this column.
        most_records: the declared most records of one client, a public number; one with more is refused.
        person: the column that says whose each row is, for methods that protect persons: `methods.Census(unit="person")`.
        schema: a declared schema; without it one is read from the data.
    """
    given = read_given(data, schema=schema, without=columns_named(client_column, person))
    if given.listed and (records_per_client is not None or client_column is not None):
        raise InputError(
            "a list of tables is a list of silos, a client each; leave records_per_client and client_column out"
        )
    if records_per_client is not None and client_column is not None:
        raise InputError("give records_per_client or client_column, not both")
    if records_per_client is not None and not isinstance(records_per_client, int | np.integer):
        raise InputError(f"expected records_per_client as a whole number, got {records_per_client!r}")
    return deal_given(
        given, silos=len(given.sizes) if given.listed else None, records_per_client=records_per_client,
        client_column=client_column, most_records=most_records, person=person,
    ).clients  # fmt: skip


def synthesize(
    data: object,
    *,
    epsilon: float | None = None,
    target: str | None = None,
    method: Method | None = None,
    schema: Schema | str | Path | None = None,
    delta: float | None = None,
    trust: str | None = None,
    settings: Mapping[str, object] | None = None,
    records_per_client: int | None = None,
    client_column: str | None = None,
    most_records: int | None = None,
    person: str | None = None,
    rows: int = DEFAULT_ROWS,
    seed: int | None = None,
    out: str | Path | None = None,
    ledger: str | Path | bool | None = None,
    limit: float | None = None,
    other_people: str = "",
    say: Callable[[str], None] | None = None,
) -> Run:
    """Simulate clients that hold these rows or images, and make synthetic ones with their privacy statement.

    A list of tables is a list of silos: one client each; under local methods, which protect persons, every row is a client of
    its own. One table is one silo where the method protects records and nothing else is said. A run on files is booked in the
    ledger beside them, as on the command line; rows in memory lie beside none, and the statement then says that the run was
    not booked.

    Args:
        data: a pandas, polars or Arrow table, a file, a Table or Images, or a list of them.
        epsilon: the privacy budget of one unit. A method that was made already brings its own.
        target: the column that matters most.
        method: a method, or its name. Without it the default for the data is used (`census` for tables), which `run.method`
            names and `run.remarks` explain.
        schema: a declared schema. Without it one is proposed, whose domains the statement marks as read from the data.
        delta: for methods with an approximate guarantee; chosen below one divided by the records where it is left out.
        trust: "silo", "secure-sum" or "central", where the method offers it.
        settings: parameters of the method, by name.
        records_per_client: simulate clients of so many records each.
        client_column: simulate one client for every value of this column.
        most_records: the declared most records of one client or silo, a public number.
        person: the column that says whose each row is: `census` then protects a person with all their rows at a silo, and the
            column is not synthesised.
        rows: how many synthetic rows, or images, to write; 10,000.
        seed: makes the run reproducible, and therefore not private.
        out: a new folder for the run. Without it a temporary one lives as long as the run does; `run.save(path)` keeps it.
        ledger: a file to book the run in; False books nowhere.
        limit: the most epsilon that all runs on the same rows may cost; kept in the ledger.
        other_people: why a table with the columns of an earlier one is about other people; kept in the ledger.
        say: called with every remark, a sentence each.
    """
    named = _method_options(method, epsilon=epsilon, delta=delta, trust=trust, settings=settings)
    data = expanded(data)
    given = read_given(data, schema=schema, without=columns_named(client_column, person), codes_only=True)
    label = label_of(data, given)
    facts = protocol_class(named["method"] or default_method(label, trust=trust)).facts
    silos = silos_of(
        len(given.sizes), facts, listed=given.listed, records_per_client=records_per_client, client_column=client_column
    )
    spec = make_spec(
        **named, data=label, schema_file=str(schema) if isinstance(schema, str | Path) else None, target=target,
        records_per_client=_plain(records_per_client), client_column=client_column,
        most_records=_plain(most_records), person=person, silos=silos, rows=_plain(rows), seed=_plain(seed),
    )  # fmt: skip
    private = deal_given(
        given, silos=silos, target=target, records_per_client=records_per_client, client_column=client_column,
        most_records=most_records, person=person,
    )  # fmt: skip
    remarks = [default_in_words(label, trust=trust)] if method is None else []
    if say is not None:
        for remark in remarks:
            say(remark)
    temporary = TemporaryFolder("populace-run-") if out is None else None
    folder = _path(out, "out") if temporary is None else temporary.path
    run = run_synthesize(
        spec, folder, say=_both(remarks.append, say), private=private,
        keeping=bookkeeping(data, ledger, limit=limit, other_people=other_people),
    )  # fmt: skip
    write_statement(folder)
    if say is not None:
        for remark in run.remarks:
            say(remark)
    return dataclasses.replace(run, remarks=(*remarks, *run.remarks), temporary=temporary)


def _both(keep: Callable[[str], None], say: Callable[[str], None] | None) -> Callable[[str], None]:
    def tell(line: str) -> None:
        keep(line)
        if say is not None:
            say(line)

    return tell


def _plain(value: Any) -> Any:
    """A number of NumPy's as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _path(value: object, name: str) -> Path:
    if not isinstance(value, str | Path):
        raise InputError(f"expected {name} as a path, got {value!r}")
    return Path(value)


def _method_options(
    method: object, *, epsilon: object, delta: object, trust: object, settings: Mapping[str, object] | None
) -> JsonObject:
    """What of a run's specification the method is."""
    if isinstance(method, Protocol):
        asked = asked_of(method)
        if settings is not None or any(
            given is not None and _plain(given) != asked.get(name)
            for name, given in (("epsilon", epsilon), ("delta", delta), ("trust", trust))
        ):
            raise SpecError("the method has its own epsilon, delta, trust and settings; leave them out")
        return asked
    if method is not None and not isinstance(method, str):
        raise SpecError(f"expected a method, or a method's name, got {method!r}")
    if epsilon is None:
        raise SpecError("a run needs epsilon: give epsilon=NUMBER, or a method that has one")
    if settings is not None and not isinstance(settings, Mapping):
        raise SpecError(f"expected settings as a mapping of names to values, got {settings!r}")
    return {
        "method": method, "epsilon": _plain(epsilon), "delta": _plain(delta), "trust": trust,
        "settings": dict(settings or {}),
    }  # fmt: skip


def plan(
    method: Method | None = None,
    *,
    clients: int | Clients,
    schema: Schema | str | Path | None = None,
    epsilon: float | None = None,
    records_per_client: int = 1,
    settings: Mapping[str, object] | None = None,
) -> Plan:
    """What can be said before any data is touched: guarantee, rounds, bytes and predicted error.

    Args:
        method: a method, or its name; without it the default for tables.
        clients: how many clients or silos there will be, or clients as `split` makes them.
        schema: the declared schema of their records.
        epsilon: the privacy budget of one unit.
        records_per_client: the most records of one client.
        settings: parameters of the method, by name.
    """
    method = default_method(TABLE_IN_MEMORY) if method is None else method
    options = _method_options(method, epsilon=epsilon, delta=None, trust=None, settings=settings)
    named = {name: options[name] for name in ("epsilon", "delta", "trust") if options.get(name) is not None}
    protocol = method if isinstance(method, Protocol) else make_protocol(str(method), {**options["settings"], **named})
    if isinstance(clients, Clients):
        return protocol.plan(population_of(clients))
    if isinstance(clients, bool) or not isinstance(clients, int | np.integer):
        raise InputError(f"expected clients as a whole number, or as split makes them, got {clients!r}")
    if not isinstance(schema, Schema | str | Path):
        raise InputError(f"expected schema as a Schema or the path of a TOML file, got {schema!r}")
    shape = schema if isinstance(schema, Schema) else load_schema(schema)
    return protocol.plan(Population(schema=shape, clients=int(clients), records=records_per_client))


def advise(
    data: object = None,
    *,
    clients: int | None = None,
    records: int | None = None,
    columns: int | Sequence[str] | None = None,
    schema: Schema | str | Path | None = None,
    epsilon: float = 1.0,
    trust: str | None = None,
    images: bool = False,
    person: bool = False,
) -> Advice:
    """Which method and which trust to use, why, what to expect and what would do better; `print` it, or read its fields.

    `data` is a file or database, or a list of them, a silo each; or give `clients` with `records` each and `columns`.
    Public facts alone are used: names, columns, numbers of rows, and the declared schema; no value is looked at. `synthesize`
    chooses by the same rule.
    """
    files = () if data is None else tuple(data) if isinstance(data, list | tuple) else (data,)
    if not all(is_path(file) for file in files):
        raise InputError(
            f"expected data as a file, or a list of files, got {type(data).__name__}; of rows in memory say clients, records "
            "and columns"
        )
    return read_advice(
        data=tuple(map(str, files)), clients=_plain(clients), records=_plain(records), columns=_plain(columns), schema=schema,
        epsilon=_plain(epsilon), trust=trust, images=images, person=person,
    )  # fmt: skip


def rehearse(
    schema: Schema | str | Path,
    *,
    clients: int,
    epsilon: float,
    records_per_client: int = 1,
    methods: Sequence[str] = (),
    trust: str | None = None,
    public: str | Path | None = None,
    rows: int = DEFAULT_ROWS,
    draws: int = 5,
    seed: int = 0,
    out: str | Path | None = None,
) -> JsonObject:
    """Compare candidates before a private row is touched, in simulation; `document["candidates"]` has figures with intervals.

    Invented rows are not your data: compare the candidates by them, and do not read the figures as what your data will give.

    Args:
        schema: The declared schema, or the path of its TOML file.
        clients: How many silos, or people, will take part.
        epsilon: The privacy budget of one client or record.
        records_per_client: How many records each of them holds.
        methods: Names of candidates; otherwise what `advise` recommends and the next two, without those that take minutes.
        trust: `local`, `silo`, `secure-sum` or `central`; otherwise as `advise` recommends.
        public: A table of public rows under the schema; without one, rows of its shape are invented.
        rows: How many synthetic rows each candidate makes.
        draws: How many draws of rows each candidate is tried on; the intervals are over them.
        seed: Of the draws and of the noise; nothing private is protected by it.
        out: A folder that keeps every finished cell, so that an interrupted rehearsal goes on, and gets `rehearsal.json` and
            `rehearsal.html`.
    """
    from populace.papers.rehearsal import make_rehearsal
    from populace.papers.rehearsal import rehearse as run_rehearsal
    from populace.report.rehearsal import write_page

    if not isinstance(schema, Schema | str | Path):
        raise InputError(f"expected schema as a Schema or the path of a TOML file, got {type(schema).__name__}")
    if isinstance(methods, str) or not all(isinstance(name, str) for name in methods):
        raise InputError(f"expected methods as a list of names, got {methods!r}")
    rehearsal = make_rehearsal(
        schema if isinstance(schema, Schema) else load_schema(schema), clients=_plain(clients), epsilon=_plain(epsilon),
        records=_plain(records_per_client), methods=tuple(methods), trust=trust, public=None if public is None else str(public),
        rows=_plain(rows), draws=_plain(draws), seed=_plain(seed),
    )  # fmt: skip
    temporary = TemporaryFolder("populace-rehearsal-") if out is None else None
    folder = _path(out, "out") if temporary is None else temporary.path
    document = run_rehearsal(rehearsal, folder)
    write_page(document, folder)
    return document


def audit(what: Method | Run, *, epsilon: float | None = None, **options: Any) -> JsonObject:
    """A lower bound on epsilon, measured over worst-case inputs, beside the claim; `document["flagged"]` if it is refuted.

    Reads no records. The result of a run is also written into its folder.

    Args:
        what: a run, a method or its name, or a mechanism's name.
        epsilon: the claim; a run has its own.
        options: those of `populace audit`: samples, confidence, settings and others.
    """
    from populace.audits.request import AuditRequest, perform, write

    request = _request(AuditRequest, what, epsilon, options)
    document = perform(request)
    write(document, request, None)
    return document


def attack(
    what: Method | Run, *, real: object, epsilon: float | None = None, out: str | Path | None = None, **options: Any
) -> JsonObject:
    """Try to tell from synthetic rows who is behind them: membership, attributes, nearest records.

    The result of a run is also written into its folder; keep it with the data.

    Args:
        what: a run, a method or its name.
        real: real rows, those the run was made from; several tables are several silos.
        epsilon: the budget of a method; a run has its own.
        out: a folder for the shadow runs of a method.
        options: those of `populace attack`: targets, shadows, holdout and others.
    """
    from populace.attacks.request import AttackRequest, perform

    options["data"] = _rows_of(real, "real", several=True)
    if isinstance(real, list | tuple):
        options.setdefault("silos", len(real))
    if options.get("holdout") is not None:
        options["holdout"] = _rows_of(options["holdout"], "holdout")
    request = _request(AttackRequest, what, epsilon, options)
    if out is not None or request.is_run:
        return perform(request, out=None if out is None else _path(out, "out"))[0]
    temporary = TemporaryFolder("populace-attack-")
    return perform(request, out=temporary.path)[0]


def _rows_of(data: object, name: str, *, several: bool = False) -> object:
    """A path as text, a frame as Arrow, `several` tables as one; images cannot be attacked yet."""
    if is_path(data):
        return str(data)
    given = read_given(data)
    if given.frame is None or (given.listed and not several):
        raise InputError(f"expected {name} as one table, got {'images' if given.frame is None else 'a list'}")
    return given.frame


def _request(kind: Any, what: object, epsilon: float | None, options: JsonObject) -> Any:
    """A request as the command line makes it."""
    known = [field.name for field in dataclasses.fields(kind) if field.name not in ("what", "epsilon", "data")]
    unknown = [name for name in options if name not in (*known, "data")]
    if unknown:
        raise InputError(f"there is no option {unknown[0]!r}; options are {', '.join(known)}")
    if isinstance(what, Run):
        if what.folder is None:
            raise InputError("this run was simulated in memory: save it first, and load it from its folder")
        if epsilon is not None:
            raise InputError("a run has its own epsilon; leave it out")
        return kind(what=str(what.folder), **options)
    if isinstance(what, Protocol):
        asked = asked_of(what)
        own = {name: asked[name] for name in ("delta", "trust") if asked.get(name) is not None}
        options["settings"] = {**asked["settings"], **own, **options.get("settings", {})}
        return kind(what=asked["method"], epsilon=asked["epsilon"] if epsilon is None else epsilon, **options)
    if not isinstance(what, str | Path):
        raise InputError(f"expected a run, a method or a method's name, got {what!r}")
    return kind(what=str(what), epsilon=_plain(epsilon), **options)
