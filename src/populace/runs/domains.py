"""Domains found under privacy: what a run does where nobody declared a schema and its method pays for lists of categories.

Kinds and precision of columns are taken as public. Numbers, dates and times stand on a universal grid; the categories of every
other column are what each silo lists with noise (`privacy.partition`), after the run was booked and before the first message.
The lists are kept in the folder at once, and the folder notes what they hold, so that a run that is resumed never draws them
again, nor goes on with others.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pyarrow as pa

from populace.engines.runtime import make_key, population_of
from populace.errors import RunError, SpecError
from populace.methods.base import ImageShape, Protocol
from populace.methods.blocks.generator import Generator, Synthesizer
from populace.methods.blocks.latent_class import LatentClass
from populace.methods.census.cells import LIST_CELLS
from populace.methods.census.protocol import Census
from populace.methods.census.release import LISTS_SHARE
from populace.privacy.partition import ValueLists
from populace.privacy.source import Keyed, Source, System
from populace.runs.folder import LISTS, RunFolder
from populace.runs.forms import ListsForm
from populace.runs.sources import PrivateData
from populace.runs.spec import RunSpec
from populace.tables import conversion
from populace.tables.columns import Column, category_text
from populace.tables.files import read_json, write_json
from populace.tables.partition import Clients
from populace.tables.schema import Schema
from populace.tables.table import Table, make_table
from populace.tables.universal import TWO_VALUES, is_open, opened, released, with_lists
from populace.types import NumpyArray

SCHEMA = "generator.schema.json"  # the schema that a run was made under, where its generator has a smaller one
MOST_NAMED = 6  # columns in a sentence
LISTS_KEY = 0x6C697374  # what the key of seeded lists is folded with

Lists = list[dict[str, dict[str, int]]]


def open_domains(protocol: Protocol, private: PrivateData, spec: RunSpec) -> tuple[Protocol, PrivateData]:
    """Method and rows, where the domains of a table were read from it and the method can find them itself.

    The rows then stand under a schema that no record decided, whose lists are empty, and the method pays for lists. Both stay
    as they are under a declared schema, for other methods, and where a `lists_share` of 0 was asked for.
    """
    data = private.clients.data
    if not isinstance(protocol, Census) or not isinstance(data, Table) or private.frame is None:
        return protocol, private
    asked = spec.settings.get("lists_share")
    if spec.schema_file is not None or not data.schema.read_from_data or asked == 0:
        return protocol, private
    schema = opened(data.schema)
    _refuse_words(schema)
    if released(schema) and not protocol.lists_share:
        protocol = dataclasses.replace(protocol, lists_share=LISTS_SHARE)
    table = dataclasses.replace(make_table(private.frame, schema), clipped={})
    return protocol, dataclasses.replace(private, clients=dataclasses.replace(private.clients, data=table))


def _refuse_words(schema: Schema) -> None:
    """Refuse words that only the data show to mean "no value": a single record may have written one."""
    for column in schema.columns:
        words = [word for word in column.missing if word not in conversion.MISSING]
        if words and (is_open(column) or column.source == TWO_VALUES):
            raise SpecError(
                f"column {column.name!r}: {words[0]!r} stands among its values and is no usual mark of a missing one; what a "
                "single record may have written is not published unseen: look at it in a schema (`populace schema`), and give "
                "that with --schema"
            )


def refuse_lists(protocol: Protocol) -> None:
    """Refuse a method that pays for lists where nobody draws any: its statement would speak of what did not happen."""
    if isinstance(protocol, Census) and protocol.lists_share > 0:
        raise SpecError("lists of categories are drawn by `synthesize` from a file or a frame; leave lists_share at 0")


def check_room(protocol: Protocol, private: PrivateData) -> None:
    """Refuse, before anything is booked, a run whose messages would be too large if every list were as long as it may be."""
    data = private.clients.data
    if not has_lists(protocol, private) or not isinstance(data, Table):
        return
    longest = [{column.name: dict.fromkeys(map(str, range(LIST_CELLS + 2)), 1) for column in _released(private)}]
    table = dataclasses.replace(data, schema=with_lists(data.schema, longest))
    protocol.guarantee(population_of(dataclasses.replace(private.clients, data=table)))


def has_lists(protocol: Protocol, private: PrivateData) -> bool:
    """Whether categories are to be found in lists that silos release, which the method pays for."""
    pays = isinstance(protocol, Census) and protocol.lists_share > 0
    return pays and private.frame is not None and bool(_released(private))


def listed_values(protocol: Protocol, private: PrivateData) -> tuple[bytes, ...]:
    """The values that lists are made of, by which a run on other data is told apart; their codes do not say them yet."""
    if not has_lists(protocol, private) or private.frame is None:
        return ()
    columns = [_texts(private.frame, column).fill_null("\x00").to_pylist() for column in _released(private)]
    return tuple("\x1f".join(texts).encode() for texts in columns)


def find_lists(protocol: Protocol, private: PrivateData, folder: RunFolder, seed: int | None) -> Clients:
    """The clients under the schema whose lists their silos released: drawn once and kept in the folder, or found there."""
    clients = private.clients
    if not has_lists(protocol, private) or private.frame is None or not isinstance(clients.data, Table):
        return clients
    if not (folder / LISTS).is_file():
        release = protocol.parts(population_of(clients)).release if isinstance(protocol, Census) else None
        mechanism = getattr(release, "lists", None)
        if not isinstance(mechanism, ValueLists):
            raise RunError("the method has no lists of categories to release; declare a schema")
        if folder.checkpoint.exists() or folder.bound(LISTS):
            raise RunError(
                f"{folder / LISTS} is gone, and lists are not drawn twice for one booking; restore it, or choose another --out "
                "to begin (and pay for) a new run"
            )
        write_json(folder / LISTS, _drawn(mechanism, private, seed), mode=0o600)
    folder.bind(LISTS)
    schema = with_lists(clients.data.schema, _kept(folder))
    return dataclasses.replace(clients, data=make_table(private.frame, schema))


def _kept(folder: RunFolder) -> Lists:
    try:
        return ListsForm.model_validate(read_json(folder / LISTS), strict=True).root
    except ValueError:
        raise RunError(
            f"{folder / LISTS} is damaged; restore it, or choose another --out to begin (and pay for) a new run"
        ) from None


def _released(private: PrivateData) -> tuple[Column, ...]:
    data = private.clients.data
    return released(data.schema) if isinstance(data, Table) else ()


def _drawn(mechanism: ValueLists, private: PrivateData, seed: int | None) -> Lists:
    """What each silo lists, with its own noise: from the operating system, or from the seed of a run that has one."""
    clients, columns, frame = private.clients, _released(private), private.frame
    coded = [] if frame is None else [_texts(frame, column).dictionary_encode() for column in columns]
    places = [np.asarray(one.indices.fill_null(-1)) for one in coded]
    names = [one.dictionary.to_pylist() for one in coded]
    source: Source = System() if seed is None else Keyed(jax.random.fold_in(make_key(seed), LISTS_KEY))
    lists = []
    for number, own in enumerate(source.split(len(clients))):
        rows = clients.order[clients.starts[number] : clients.starts[number + 1]]
        if clients.persons is None:
            held = [place[rows] for place in places]
        else:
            coin, own = own.split(2)
            held = one_value_each([place[rows] for place in places], clients.persons[rows], coin)
        counts = [_counts(place, listed) for place, listed in zip(held, names, strict=True)]
        shown = mechanism.release(counts, own)
        lists.append({column.name: values for column, values in zip(columns, shown, strict=True)})
    return lists


def one_value_each(places: list[NumpyArray], persons: NumpyArray, coin: Source) -> list[NumpyArray]:
    """Of each column one value of every person, that of a row drawn evenly from their rows that have one; -1 is no value.

    A person then adds to one count of a column at most, as a record does, and the proof in `privacy.partition` holds for them.
    """
    order = np.argsort(np.asarray(coin.order(len(persons))))
    found = []
    for place in places:
        rows = order[place[order] >= 0]
        found.append(place[rows[np.unique(persons[rows], return_index=True)[1]]])
    return found


def _counts(places: NumpyArray, names: list[str]) -> dict[str, int]:
    counts = np.bincount(places[places >= 0], minlength=len(names))
    return {names[place]: int(counts[place]) for place in np.flatnonzero(counts)}


def _texts(frame: pa.Table, column: Column) -> pa.Array:
    """A column's values as the text of categories, null where there is none."""
    made, _ = conversion.to_categories(frame.column(column.name), column)
    if column.dtype == "string":
        return made
    coded = made.dictionary_encode()
    return pa.array([category_text(value) for value in coded.dictionary.to_pylist()], pa.string()).take(coded.indices)


def without_gaps(generator: Synthesizer, schema: Schema | ImageShape) -> tuple[str, ...]:
    """One sentence about columns whose "no value" the noise hid, so that no synthetic row lacks one there; or none.

    It follows from the model alone, which is released: whether any record lacks a value is not looked at.
    """
    if not isinstance(generator, LatentClass) or not isinstance(schema, Schema):
        return ()
    last = np.cumsum(generator.schema.sizes) - 1
    names = [
        column.name
        for column, made, code in zip(schema.columns, generator.schema.columns, last, strict=True)
        if column.nullable
        and (is_open(column) or column.source == TWO_VALUES)
        and not (made.nullable and np.asarray(generator.tables)[:, code].any())
    ]
    if not names:
        return ()
    more = len(names) - MOST_NAMED
    shown = ", ".join(names[:MOST_NAMED]) + (f" and {more} more columns" if more > 0 else "")
    return (
        f"no synthetic row lacks a value of {shown}: where records lack one, they are too few to be told from the noise; a "
        "schema that says nullable = true keeps a place for them",
    )


def save_schema(folder: RunFolder, generator: Synthesizer, schema: Schema | ImageShape) -> None:
    """Keep the schema of the run beside its generator's, where that is smaller: the statement follows from it."""
    if isinstance(generator, Generator) and isinstance(schema, Schema) and generator.schema != schema:
        write_json(folder / SCHEMA, schema.to_dict())
