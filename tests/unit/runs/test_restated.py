"""A statement is made again from the public facts in privacy.json, wherever the run took place."""

import dataclasses
import json

import numpy as np
import pytest

from populace.engines.roster import Roster, Seat
from populace.engines.runtime import population_of
from populace.engines.statement import stated_simulation
from populace.errors import PopulaceError, RunError
from populace.methods.base import Population
from populace.methods.registry import make_protocol
from populace.runs.federated_statement import seated_in_words, stated_federation
from populace.runs.poll.statement import stated_collection
from populace.runs.restated import collected_population, restated, simulated_population, sites_population
from populace.tables.embedded import harbour
from populace.tables.images import Images
from populace.tables.partition import split, split_by_column

METHOD = make_protocol("independent", {"epsilon": 2.0})
SCHEMA = harbour().schema


def paper(stated, where, population, *, protocol=METHOD, charged=30, **asked):
    """What restating needs of a privacy.json, as it is read from its file."""
    empty = dict.fromkeys(("client_column", "most_records"))
    run = {
        "where": where, "method": protocol.facts.name, "parameters": dataclasses.asdict(protocol), "population": population,
        "asked": {"records_per_client": 1, **empty, **asked},
    }  # fmt: skip
    return json.loads(json.dumps({**stated.to_json(), "run": run, "ledger": {"accounts_charged": charged}}))


def same(found, stated):
    return dataclasses.replace(found.guarantee, shuffles=False) == dataclasses.replace(stated, shuffles=False)


@pytest.mark.parametrize("asked", [
    {"records_per_client": 1}, {"records_per_client": 4}, {"client_column": "person"},
    {"client_column": "person", "most_records": 5},
])  # fmt: skip
@pytest.mark.parametrize("seeded", [False, True])
def test_a_simulation(asked, seeded):
    rows = harbour().take(np.arange(30))
    if "client_column" in asked:
        clients = split_by_column(np.arange(30) // 3, rows, name="person", most=asked.get("most_records"))
    else:
        clients = split(rows, **asked)
    noise = "keyed" if seeded else "exact"
    claim = METHOD.guarantee(population_of(clients))
    stated = stated_simulation(claim, clients, seeded=seeded, noise=noise, answered=len(clients))
    facts = simulated_population(population_of(clients), clients, answered=len(clients))
    privacy = paper(stated, "simulation", facts, charged=len(clients), **asked)
    found = restated(privacy, SCHEMA)
    assert same(found, stated)
    assert found.facts == {"split": clients.how, "clients": len(clients), "population": facts}
    privacy["run"]["asked"]["records_per_client"] = 2  # another split has other clients, or others hold them
    if "client_column" not in asked:
        assert restated(privacy, SCHEMA).facts != found.facts


def test_a_simulation_of_images():
    images = Images(x=np.zeros((12, 8, 8), np.uint8), y=np.arange(12) % 2, classes=2, domain="read-from-data")
    clients, protocol = split(images, records_per_client=3), make_protocol("moments", {"epsilon": 2.0})
    claim = protocol.guarantee(population_of(clients))
    stated = stated_simulation(claim, clients, seeded=False, noise="exact", answered=4)
    facts = simulated_population(population_of(clients), clients, answered=4)
    found = restated(paper(stated, "simulation", facts, protocol=protocol, charged=4, records_per_client=3), None)
    assert same(found, stated)
    assert found.guarantee.read_from_data == ("classes",)
    assert found.guarantee.protects == "one image"


@pytest.mark.parametrize("rehearsal", [False, True])
@pytest.mark.parametrize("read", [False, True])
def test_sites(rehearsal, read):
    seats = (Seat(site="a", first=0, clients=10, hosts="rows"), Seat(site="b", first=10, clients=20, hosts="column"))
    roster = Roster(seats=seats, records=3, seeded=False, records_read=read)
    population = Population(schema=SCHEMA, clients=30, records=3)
    stated = stated_federation(
        METHOD.guarantee(population), roster, kind="table", answered=28, seeded=False,
        host="localhost" if rehearsal else "example.org",
    )  # fmt: skip
    facts = sites_population(population, roster, answered=28, rehearsal=rehearsal)
    privacy = paper(stated, "sites", facts)
    found = restated(privacy, SCHEMA)
    assert same(found, stated)
    assert found.guarantee.trust == "silo"  # a site adds the noise, whatever the method would be on devices
    assert found.facts == {"split": seated_in_words(roster), "clients": 30, "population": facts}
    for change in (
        {"rehearsal": not rehearsal},
        {"records_declared": read},
        {"sites": facts["sites"][:1]},
    ):
        other = privacy | {"run": privacy["run"] | {"population": facts | change}}
        assert not same(restated(other, SCHEMA), stated)


@pytest.mark.parametrize("records", [1, 3])
def test_collected_answers(records):
    population = Population(schema=SCHEMA, clients=40, records=records)
    stated = stated_collection(METHOD.guarantee(population), records=records, seeded=False, answered=30)
    found = restated(paper(stated, "files", collected_population(population, answered=30)), SCHEMA)
    assert same(found, stated)
    assert (found.guarantee.counts_read == ()) == (records == 1)
    assert found.guarantee.trust == "silo"


@pytest.mark.parametrize("run", [
    {}, {"where": "elsewhere"}, {"population": {}}, {"population": None}, {"parameters": {"epsilon": "much"}},
    {"parameters": {"unknown": 1}}, {"method": "unknown"}, {"asked": {}}, {"parameters": [1]},
])  # fmt: skip
def test_facts_that_make_no_run_are_refused(run):
    clients = split(harbour().take(np.arange(30)))
    stated = stated_simulation(
        METHOD.guarantee(population_of(clients)), clients, seeded=False, noise="exact", answered=30
    )
    privacy = paper(stated, "simulation", simulated_population(population_of(clients), clients, answered=30))
    assert restated(privacy, SCHEMA).guarantee.units == 30
    with pytest.raises(PopulaceError):
        restated(privacy | {"run": privacy["run"] | run if run else {}}, SCHEMA)
    with pytest.raises(RunError, match="make no run"):
        restated(privacy, None)  # no schema, and no shape of images
