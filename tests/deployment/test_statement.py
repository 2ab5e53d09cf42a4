"""What is stated about a run over sites: the site adds the noise, one unit in words, and only who answered hides others."""

import dataclasses

import numpy as np
import pytest

from populace.engines import messages, wire
from populace.engines.agreement import Agreement
from populace.engines.link import InProcess
from populace.engines.messages import Facts
from populace.engines.roster import Roster, Seat, enrol, roster_from_json
from populace.errors import WireError
from populace.methods.base import Population
from populace.methods.registry import make_protocol
from populace.privacy.shuffling import shuffled_statement
from populace.runs.federated_statement import stated_federation, stated_site


def claim_of(name, schema, **settings):
    protocol = make_protocol(name, {"epsilon": 2.0, **settings})
    return protocol.guarantee(Population(schema=schema, clients=100, records=1))


def roster(*hosts, records=1, **changes):
    seats = [Seat(site=f"s{i}", first=50 * i, clients=50, hosts=each) for i, each in enumerate(hosts)]
    return Roster(seats=tuple(seats), records=records, seeded=False, **changes)


def stated(claim, who, **changes):
    return stated_federation(claim, who, **{"kind": "table", "answered": 100, "seeded": False} | changes)


@pytest.mark.parametrize(
    ("hosts", "records", "words"),
    [
        (("rows", "rows"), 1, "one row of a site's table"),
        (("rows",), 5, "up to 5 rows of a site that follow one another in its file"),
        (("column", "column"), 9, "everything a site holds under one value of its client column"),
        (("site", "site"), 9, "all records of one site"),
        (("rows", "site"), 1, "one row of a site's table (s0); or all records of one site (s1)"),
        ((None,), 1, "everything a site holds of one client"),
    ],
)
def test_a_site_that_answers_for_its_patients_is_trusted_with_them(small_schema, hosts, records, words):
    """A local method over sites is no longer local: whoever holds the records adds the noise."""
    claim = claim_of("independent", small_schema)
    assert claim.trust == "local"
    found = stated(claim, roster(*hosts, records=records))
    assert (found.trust, found.protects, found.units) == ("silo", words, 50 * len(hosts))
    assert found.bound == "2-DP"
    assert f"2-DP for {words} (client level)" in str(found)
    assert "drawn exactly, from the operating system's generator" in str(found)
    assert found.counts_read == ()


def test_what_was_read_from_the_data_is_said(small_schema):
    found = stated(claim_of("independent", small_schema), roster("column", records=57, records_read=True))
    assert "NOT covered, because read from the data: the most records of one client (57)" in found.statement


def test_a_record_stays_a_record_and_a_server_that_adds_the_noise_stays_trusted(small_schema):
    found = stated(claim_of("moments", small_schema), roster("site", records=9))
    assert (found.trust, found.unit, found.protects, found.units) == (
        "silo",
        "record",
        "one row of a site's table",
        450,
    )
    claim = dataclasses.replace(claim_of("independent", small_schema), trust="central")
    assert stated(claim, roster("rows")).trust == "central"


def test_a_seeded_run_is_marked(small_schema):
    assert (
        "reproducible, not private"
        in stated(claim_of("independent", small_schema), roster("rows"), seeded=True).headline
    )


def test_only_who_answered_hides_others(small_schema):
    claim = claim_of("dp-fed-wae", small_schema, participations=1)
    assert claim.shuffles
    lines = [stated(claim, roster("rows", "rows"), answered=answered).derivation[-1] for answered in (5000, 3000)]
    assert lines == [shuffled_statement(local_epsilon=2.0, answered=answered) for answered in (5000, 3000)]
    assert lines[0] != lines[1]


def test_a_site_names_its_own_column_to_its_own_people(small_schema):
    found = stated_site(
        claim_of("independent", small_schema), hosts="column", clients=7, records=3, column="patient", kind="table",
        seeded=False,
    )  # fmt: skip
    assert (found.trust, found.units) == ("silo", 7)
    assert found.protects == "everything a site holds under one value of column 'patient'"


def test_sites_tell_what_their_clients_are_and_nothing_more(rows, make_site):
    """In one word of a closed list; version 0.1.0, which did not tell, is understood, and a roster keeps it."""
    protocol = make_protocol("independent", {"epsilon": 2.0})
    site = make_site(rows, protocol)
    site = dataclasses.replace(site, hosted=dataclasses.replace(site.hosted, by="column", records_read=True))
    agreement = Agreement(protocol=protocol, schema=rows.schema)
    told = site.reply(messages.make_facts_request(agreement, run="r"))
    assert messages.read_facts(told).hosts == "column"
    assert messages.check_outgoing(told, {}) == told
    old = messages.make_facts(Facts(clients=3, records=1, seeded=False))
    assert set(wire.unpack(old).fields) == {"clients", "records", "seeded"}
    link = InProcess({"new": site.reply, "old": lambda _: old})
    found = enrol(agreement, link, run="r", least=2, timeout=1.0)
    assert [seat.hosts for seat in found.seats] == ["column", None]
    assert found.records_read
    assert roster_from_json(found.to_json()) == found
    document = found.to_json()
    document.pop("records_read")
    document["seats"] = [{key: seat[key] for key in ("site", "first", "clients")} for seat in document["seats"]]
    assert [seat.hosts for seat in roster_from_json(document).seats] == [None, None]
    fields = wire.unpack(told).fields
    for wrong in ({"hosts": "patients with diabetes"}, {"hosts": 3}, {"records_read": 1}, {"column": "patient"}):
        with pytest.raises(WireError):
            messages.read_facts(wire.pack(wire.Message(kind="facts", fields={**fields, **wrong})))
    with pytest.raises(WireError):
        messages.read_facts(wire.pack(wire.Message(kind="facts", fields=fields, arrays={"x": np.zeros(1)})))


def test_a_server_on_loopback_is_a_rehearsal(small_table):
    """All sites stood on one machine then; else that they do not is assumed, not checked."""
    claim = claim_of("poll", small_table.schema)
    for host, rehearsal in (("localhost", True), ("server.example", False)):
        stated = stated_federation(claim, roster("rows"), kind="table", answered=3, seeded=False, host=host)
        assert stated.rehearsal == rehearsal
        assert ("a rehearsal on one machine" in str(stated)) == rehearsal
        assert ("machines of different owners, which the coordinator cannot check" in str(stated)) != rehearsal
        assert (stated.headline == "2-DP (rehearsal)") == rehearsal
