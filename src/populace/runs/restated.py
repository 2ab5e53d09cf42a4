"""The statement of a run made again from its public facts: the method from its name and parameters, the claim from the method.

`run.population` of privacy.json holds what is needed, all of it public; of tables also the schema, which stands in
generator.json. Whoever has these can make the claim again without any record.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from populace.engines.agreement import frozen
from populace.engines.roster import Roster, roster_from_json
from populace.engines.statement import Simulated, simulated_of, stated_simulation
from populace.errors import RunError
from populace.methods.base import ImageShape, Population, Protocol
from populace.methods.registry import make_protocol, settings_from_file
from populace.privacy.guarantee import Guarantee
from populace.runs.device_statement import FROM_DEVICES, stated_study
from populace.runs.federated_statement import LOOPBACK, seated_in_words, stated_federation
from populace.runs.poll.statement import FROM_FILES, stated_collection
from populace.tables.partition import Clients, dealt_in_words
from populace.tables.schema import Schema
from populace.types import JsonObject

COMMON = ("kind", "clients", "records", "answered")
MORE: dict[str, tuple[str, ...]] = {
    "simulation": ("records_in_all", "records_declared"),
    "sites": ("records_declared", "sites", "rehearsal"),
    "files": (),
    "devices": ("open",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restated:
    """A run as its public facts make it: method, population, claim, and who took part in words.

    `facts` are those of `run` that follow from others, by name.
    """

    protocol: Protocol
    population: Population
    guarantee: Guarantee
    facts: JsonObject


def simulated_population(population: Population, clients: Clients, *, answered: int) -> JsonObject:
    """What privacy.json says of the clients of a simulation."""
    facts = simulated_of(clients)
    more = {"records_in_all": facts.records_in_all, "records_declared": facts.declared}
    return {**_common(population, answered), **more}


def sites_population(population: Population, roster: Roster, *, answered: int, rehearsal: bool) -> JsonObject:
    """What privacy.json says of the sites of a federation and of their clients."""
    sites = [{"site": seat.site, "clients": seat.clients, "hosts": seat.hosts} for seat in roster.seats]
    more = {"records_declared": not roster.records_read, "sites": sites, "rehearsal": rehearsal}
    return {**_common(population, answered), **more}


def collected_population(population: Population, *, answered: int) -> JsonObject:
    """What privacy.json says of the clients whose answers came in files."""
    return _common(population, answered)


def study_population(population: Population, *, answered: int, open_to_all: bool) -> JsonObject:
    """What privacy.json says of the people who answered a study, each on a device of their own."""
    return {**_common(population, answered), "open": open_to_all}


def _common(population: Population, answered: int) -> JsonObject:
    found: JsonObject = {
        "kind": population.kind, "clients": population.clients, "records": population.records, "answered": answered,
    }  # fmt: skip
    if isinstance(population.schema, ImageShape):
        found["images"] = dataclasses.asdict(population.schema)
    return found


def restated(privacy: JsonObject, schema: Schema | None) -> Restated:
    """The run of this privacy.json, made again; `schema` is that of its table, None for images.

    Edge cases: facts that are missing or make no run raise RunError, as do settings that the method refuses.
    """
    try:
        run = privacy["run"]
        shape = schema if schema is not None else image_shape(run["population"]["images"])
        make = {"simulation": _simulated, "sites": _at_sites, "files": _collected, "devices": _on_devices}[run["where"]]
        return make(privacy, shape)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        raise RunError(f"the facts in privacy.json make no run: {error!r}") from error


def image_shape(document: JsonObject) -> ImageShape:
    """The public shape of images, from JSON."""
    return ImageShape(**{name: frozen(value) for name, value in document.items()})


def _method(
    run: JsonObject, shape: Schema | ImageShape, *, clients: int, records: int
) -> tuple[Protocol, Population, Guarantee]:
    parameters = {name: frozen(value) for name, value in run["parameters"].items()}
    protocol = make_protocol(run["method"], settings_from_file(run["method"], parameters))
    population = Population(schema=shape, clients=clients, records=records)
    return protocol, population, protocol.guarantee(population)


def _simulated(privacy: JsonObject, shape: Schema | ImageShape) -> Restated:
    run, said = privacy["run"], privacy["run"]["population"]
    asked, rows = run["asked"], int(said["records_in_all"])
    column, each = asked["client_column"], int(asked["records_per_client"])
    silos, most = asked.get("silos"), asked["most_records"]
    how, holds = dealt_in_words(records_per_client=each, column=column, silos=silos)
    if column is None and silos is None:
        clients, records, declared = -(-rows // each), min(each, max(rows, 1)), True
    else:
        named = said["clients"] if silos is None else silos
        clients, records, declared = int(named), int(most or said["records"]), most is not None
    facts = Simulated(
        clients=clients, records=records, records_in_all=rows, declared=declared, images=isinstance(shape, ImageShape),
        holds=holds, silos=None if silos is None else int(silos), person=asked.get("person"),
    )  # fmt: skip
    protocol, population, claim = _method(run, shape, clients=clients, records=records)
    answered = int(privacy["ledger"]["accounts_charged"])
    stated = stated_simulation(
        claim, facts, seeded=bool(privacy["seeded"]), noise="keyed" if privacy["seeded"] else "exact", answered=answered
    )
    again = {**_common(population, answered), "records_in_all": rows, "records_declared": declared}
    return _restated(protocol, population, stated, split=how, clients=clients, population_said=again)


def _at_sites(privacy: JsonObject, shape: Schema | ImageShape) -> Restated:
    run, said = privacy["run"], privacy["run"]["population"]
    seats = [{**seat, "first": 0} for seat in said["sites"]]
    roster = roster_from_json(
        {"seats": seats, "records": said["records"], "seeded": privacy["seeded"],
         "records_read": not said["records_declared"]}
    )  # fmt: skip
    protocol, population, claim = _method(run, shape, clients=roster.clients, records=roster.records)
    answered = min(int(said["answered"]), roster.clients)
    stated = stated_federation(
        claim, roster, kind=population.kind, answered=answered, seeded=bool(privacy["seeded"]),
        host=LOOPBACK[0] if said["rehearsal"] else "",
    )  # fmt: skip
    again = sites_population(population, roster, answered=answered, rehearsal=bool(said["rehearsal"]))
    split = seated_in_words(roster)
    return _restated(protocol, population, stated, split=split, clients=roster.clients, population_said=again)


def _collected(privacy: JsonObject, shape: Schema | ImageShape) -> Restated:
    run, said = privacy["run"], privacy["run"]["population"]
    clients, records = int(said["clients"]), int(said["records"])
    protocol, population, claim = _method(run, shape, clients=clients, records=records)
    answered = min(int(said["answered"]), int(privacy["ledger"]["accounts_charged"]))
    stated = stated_collection(claim, records=records, seeded=bool(privacy["seeded"]), answered=answered)
    again = collected_population(population, answered=answered)
    return _restated(protocol, population, stated, split=FROM_FILES, clients=answered, population_said=again)


def _on_devices(privacy: JsonObject, shape: Schema | ImageShape) -> Restated:
    run, said = privacy["run"], privacy["run"]["population"]
    protocol, population, claim = _method(run, shape, clients=int(said["clients"]), records=int(said["records"]))
    answered = min(int(said["answered"]), int(privacy["ledger"]["accounts_charged"]))
    stated = stated_study(claim, answered=answered, open_to_all=bool(said["open"]))
    again = study_population(population, answered=answered, open_to_all=bool(said["open"]))
    return _restated(protocol, population, stated, split=FROM_DEVICES, clients=answered, population_said=again)


def _restated(
    protocol: Protocol, population: Population, stated: Guarantee, *, split: str, clients: int, population_said: Any
) -> Restated:
    facts = {"split": split, "clients": clients, "population": population_said}
    return Restated(protocol=protocol, population=population, guarantee=stated, facts=facts)
