"""What an advice may know: public facts alone, declared by the user or read from the outside of files, never a value."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from populace.border.databases.address import is_database, locate, short_name
from populace.errors import InputError, SpecError
from populace.methods.facts import Kind
from populace.privacy.guarantee import Trust, Unit, check_epsilon
from populace.runs.advise.rule import Choice, choose
from populace.runs.named import check_count, check_named_once, kind_of
from populace.tables.facts import image_facts, table_facts
from populace.tables.schema import Schema, load_schema

Holder = Literal["files", "silos", "people"]
TRUSTS: tuple[Trust, ...] = ("local", "silo", "secure-sum", "central")
#: A client with at most so many records that is one of at least so many is a person with a device, no silo.
RECORDS_OF_A_PERSON, LEAST_PEOPLE = 20, 1_000
#: Fewer randomised answers than this say nothing about a table: at epsilon 1 a share is off by tens of per cent.
LEAST_ANSWERS = 200
MOST = 10**12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Situation:
    """Who holds how many records of what, and what is wanted. `columns` and `numbers` are None where nobody said them."""

    kind: Kind
    holder: Holder
    clients: int
    rows: int
    epsilon: float
    trust: Trust | None = None
    person: bool = False
    columns: int | None = None
    numbers: bool | None = None
    files: tuple[str, ...] = ()
    schema: str | None = None
    facts: tuple[str, ...] = ()

    @property
    def choice(self) -> Choice:
        """What the rule says here: the same that `synthesize` does with these data and this trust."""
        return choose(self.kind, trust=self.trust, people=self.holder == "people")

    @property
    def noise_of(self) -> Trust:
        """The trust under which results are looked up: with one silo, noise at the silo is noise drawn once, as if central."""
        trust = self.choice.trust
        return "central" if trust == "silo" and self.clients == 1 else trust

    @property
    def unit(self) -> Unit:
        return "client" if self.choice.trust == "local" else "person" if self.person else "record"


def read_situation(
    *,
    data: Sequence[str] = (),
    clients: int | None = None,
    records: int | None = None,
    columns: int | Sequence[str] | None = None,
    schema: str | Path | Schema | None = None,
    epsilon: float = 1.0,
    trust: str | None = None,
    images: bool = False,
    person: bool = False,
) -> Situation:
    """The situation, from the outside of files or from numbers that are given; what does not go together is one sentence."""
    check_epsilon(epsilon)
    if trust is not None and trust not in TRUSTS:
        raise SpecError(f"expected trust as one of {', '.join(TRUSTS)}, got {trust!r}")
    declared = schema if isinstance(schema, Schema) or schema is None else load_schema(schema)
    if data and (clients is not None or records is not None or columns is not None or images):
        raise SpecError("give --data, or --clients with --records and --columns (or --images), not both")
    if not data and clients is None:
        raise SpecError("say who holds records: --data FILE ..., or --clients N with --records M")
    found = _of_files(data) if data else _of_numbers(clients, records, columns, declared, images=images)
    wanted = next((known for known in TRUSTS if known == trust), None)
    situation = dataclasses.replace(
        found, epsilon=epsilon, trust=wanted, person=person,
        schema=str(schema) if isinstance(schema, str | Path) else None,
    )  # fmt: skip
    if declared is not None:
        situation = _under(situation, declared)
    _check(situation)
    return situation


def _of_files(data: Sequence[str]) -> Situation:
    """Names, sizes and columns of files and databases. Their rows are counted, and no value is looked at."""
    files = locate(data)
    check_named_once(files)
    kind = kind_of(files)
    if kind == "images":
        images = [image_facts(file) for file in files]
        rows, pixels, label = sum(one.rows for one in images), images[0].values, "images"
    else:
        tables = [table_facts(file) for file in files]
        for file, one in zip(files, tables, strict=True):
            if set(one.names) != set(tables[0].names):
                # How many, not which: where a file has no line of names, its first row stands in their place.
                own, first = (len(set(a.names) - set(b.names)) for a, b in ((one, tables[0]), (tables[0], one)))
                raise InputError(
                    f"expected the same columns in every file, under names in the first line; of {short_name(files[0])} {first}"
                    f" and of {short_name(file)} {own} are not in the other"
                )
        rows, pixels, label = sum(one.rows for one in tables), len(tables[0].names), "rows"
    what = "table" if any(map(is_database, files)) else "file"
    several = f"{len(files)} {what}s" if len(files) > 1 else f"one {what}"
    facts = (
        f"{several}, {rows:,} {label}, {pixels:,} {'pixels each' if kind == 'images' else 'columns by name'}",
        f"the number of {label} counts as public, as in `populace synthesize`; no value was looked at",
    )
    return Situation(
        kind=kind, holder="files", clients=len(files), rows=rows, epsilon=1.0, columns=pixels, files=files, facts=facts
    )


def _of_numbers(
    clients: int | None,
    records: int | None,
    columns: int | Sequence[str] | None,
    schema: Schema | None,
    *,
    images: bool,
) -> Situation:
    """A situation in numbers. Clients with a record each, or few of very many clients, are people; others are silos."""
    count, each = clients or 0, 1 if records is None else records
    check_count("clients", clients)
    check_count("records", each)
    if max(count, each) > MOST:
        raise SpecError(f"expected at most {MOST:,} clients and records, got {count:,} and {each:,}"[:200])
    if images and (schema is not None or columns is not None):
        raise SpecError("images have no schema and no columns: leave --schema and --columns out, or --images")
    number = None if columns is None else columns if isinstance(columns, int) else len(columns)
    if number is not None:
        check_count("columns", number)
    people = each == 1 or (each <= RECORDS_OF_A_PERSON and count >= LEAST_PEOPLE)
    said = f"{count:,} client{'s' * (count != 1)} with {each:,} record{'s' * (each != 1)} each, as you say"
    return Situation(
        kind="images" if images else "table", holder="people" if people else "silos", clients=count, rows=count * each,
        epsilon=1.0, columns=number, facts=(said,),
    )  # fmt: skip


def _under(situation: Situation, schema: Schema) -> Situation:
    if situation.kind == "images":
        raise SpecError("images have no schema; leave --schema out")
    numbers = sum(column.is_scale for column in schema.columns)
    said = f"the schema: {len(schema.columns)} columns, {numbers} of them numbers or dates, {sum(schema.sizes):,} cells in all"
    return dataclasses.replace(
        situation, columns=len(schema.columns), numbers=numbers > 0, facts=(*situation.facts, said)
    )


def _check(situation: Situation) -> None:
    """One sentence for what cannot be advised."""
    trust, people = situation.choice.trust, situation.holder == "people"
    answers = situation.rows if situation.holder == "files" else situation.clients
    if situation.person and situation.kind == "images":
        raise SpecError("images have no column that names persons; leave --person out")
    if situation.person and trust == "local":
        raise SpecError(
            "under trust local a person's device answers once for all it holds, so that the person is protected anyway; leave "
            "--person out, or choose trust silo"
        )
    if trust == "local" and answers < LEAST_ANSWERS:
        raise SpecError(
            f"under trust local each client sends one randomised answer, and {_count(answers)} cannot carry a table (at least "
            f"{LEAST_ANSWERS}, better tens of thousands); if the clients are institutions with many rows, give --records and "
            "trust silo or secure-sum; if every row is a person with a device, count persons"
        )
    if people and trust == "silo":
        raise SpecError(
            "trust silo is for holders of many records; who holds one and adds the noise alone is trust local: leave --trust "
            "out, or say with --records how many records each holds"
        )
    if people and trust == "secure-sum":
        raise SpecError(
            "secure sums are between sites that stay for the whole run, and people's devices come and go: use trust local, or "
            "central if one server may hold all records"
        )
    if trust == "secure-sum" and situation.clients < 2:
        raise SpecError("a secure sum of one silo hides nothing; leave --trust out: one silo adds its own noise")


def _count(answers: int) -> str:
    words = {1: "one answer", 2: "two answers", 3: "three answers"}
    return words.get(answers, f"{answers} answers")
