"""What may be stated about a simulation: what one unit is, what was read from the records, and who answered."""

from __future__ import annotations

import math

import numpy as np
import pytest

from populace.engines.runtime import population_of
from populace.engines.statement import stated_simulation
from populace.errors import DataError
from populace.privacy.guarantee import Guarantee
from populace.privacy.shuffling import shuffled_epsilon, usual_delta
from populace.tables import embedded
from populace.tables.partition import Clients, split, split_by_column, split_even

LOCAL = Guarantee(
    epsilon=1.0, unit="client", neighbours="replace", trust="local", mechanism="one report", shuffles=True
)
SILO = Guarantee(epsilon=1.0, delta=1e-6, unit="record", neighbours="zero-out", trust="silo", mechanism="sums")


def stated(claim: Guarantee, clients: Clients, **changes: object) -> Guarantee:
    values = {"seeded": False, "noise": "exact", "answered": len(clients), **changes}
    return stated_simulation(claim, clients, **values)  # type: ignore[arg-type]


def people(most: int | None = None) -> Clients:
    rows = embedded.harbour().take(np.arange(30))
    return split_by_column(np.repeat([f"p{i}" for i in range(10)], 3), rows, name="patient", most=most)


def test_a_unit_is_said_as_what_it_is_in_the_run() -> None:
    rows = embedded.harbour().take(np.arange(30))
    assert stated(LOCAL, split(rows)).unit_in_words == "one row of the table"
    assert "3 records" in stated(LOCAL, split(rows, records_per_client=3)).unit_in_words
    assert stated(LOCAL, people()).unit_in_words == "everything under one value of column 'patient'"
    assert stated(SILO, split(rows, records_per_client=30)).unit_in_words == "one row of the table"
    assert stated(SILO, split(rows, records_per_client=30)).units == 30
    assert stated(LOCAL, people()).units == 10


def test_the_most_records_of_a_client_is_declared_or_marked_as_read() -> None:
    rows = embedded.harbour().take(np.arange(30))
    assert stated(LOCAL, split(rows, records_per_client=3)).counts_read == ()
    assert stated(LOCAL, people(most=5)).counts_read == ()
    read = stated(LOCAL, people())
    assert read.counts_read == ("the most records of one client (3)",)
    assert "NOT covered, because read from the data: the most records of one client (3)" in read.statement
    assert stated(LOCAL, split_even(rows, clients=4, seed=0)).counts_read == ("the most records of one client (8)",)


def test_the_population_takes_the_declared_number_and_refuses_what_exceeds_it() -> None:
    assert population_of(people(most=5)).records == 5
    assert population_of(people()).records == 3
    with pytest.raises(DataError, match="at most 2 records of one client, as declared, and one holds 3"):
        people(most=2)


def test_shuffling_counts_only_who_answered() -> None:
    rows = embedded.harbour().take(np.arange(2_000))
    everybody = stated(LOCAL, split(rows), answered=2_000).derivation[-1]
    half = stated(LOCAL, split(rows), answered=1_000).derivation[-1]
    assert "2,000 clients that answered" in everybody
    assert "1,000 clients that answered" in half
    worse = shuffled_epsilon(local_epsilon=1.0, clients=1_000, delta=usual_delta(1_000))
    assert f"({math.ceil(worse * 1e4) / 1e4:g}, " in half
    assert stated(LOCAL, split(rows), answered=0).derivation == ()
    assert stated(SILO, split(rows), answered=1).derivation == ()


def test_simulated_seeded_and_drawn_is_said() -> None:
    rows = embedded.harbour().take(np.arange(30))
    text = str(stated(LOCAL, split(rows), seeded=True))
    assert "whoever ran it has to be trusted" in text
    assert "Deployed, the method is local" in text
    assert "reproducible, not private" in text
    assert "drawn exactly, from the operating system" in str(stated(SILO, split(rows)))
