"""A guarantee says everything at once, and refuses to say half."""

import math

import pytest

from populace.errors import SpecError
from populace.privacy.guarantee import REPRODUCIBLE, Guarantee, guarantee_from_json

LOCAL = {"unit": "client", "neighbours": "replace", "trust": "local", "mechanism": "one report"}


def test_pure_local():
    guarantee = Guarantee(epsilon=4, **LOCAL)
    assert guarantee.bound == "4-LDP"
    assert guarantee.pure
    text = str(guarantee)
    for part in ("4-LDP", "everything one client holds", "nobody else need be trusted", "one report"):
        assert part in text
    assert "read from the data" not in text
    assert "seed" not in text


def test_no_number_is_rounded_in_the_statements_favour():
    assert Guarantee(epsilon=4.0000004, **LOCAL).bound == "4.0001-LDP"
    assert Guarantee(epsilon=7.996603420998491, delta=1.00000001e-5, **LOCAL).bound == "(7.9967, 1.0001e-05)-LDP"
    assert Guarantee(epsilon=0.25, delta=1e-5, **LOCAL).bound == "(0.25, 1e-05)-LDP"
    assert Guarantee(epsilon=4.0000004, **LOCAL).to_json()["epsilon"] == 4.0000004
    assert Guarantee(epsilon=4, seeded=True, read_from_data=("a",), **LOCAL).headline == (
        "4-LDP (reproducible, not private; domains read from the data, not covered)"
    )


def test_approximate_central():
    guarantee = Guarantee(
        epsilon=8, delta=1e-5, unit="record", neighbours="add-remove", trust="central", mechanism="Gaussian sums"
    )
    assert guarantee.bound == "(8, 1e-05)-DP"
    assert not guarantee.pure
    assert "one record" in str(guarantee)


def test_infinite_needs_a_reason_and_never_shows_a_number():
    with pytest.raises(SpecError, match="reason"):
        Guarantee(epsilon=math.inf, **LOCAL)
    guarantee = Guarantee(epsilon=math.inf, reason="the encoder carries records without noise", **LOCAL)
    assert "No guarantee (epsilon = inf): the encoder" in str(guarantee)
    assert guarantee.to_json()["epsilon"] == "inf"
    assert guarantee.to_json()["kind"] == "none"


def test_what_was_read_from_the_data_is_named():
    guarantee = Guarantee(epsilon=1, read_from_data=("age",), **LOCAL)
    assert "NOT covered" in str(guarantee)
    assert "age" in str(guarantee)
    assert guarantee.to_json()["domains"] == {"age": "read-from-data"}
    assert "read-from-data" not in str(Guarantee(epsilon=1, **LOCAL).to_json())


def test_seeded_runs_are_marked():
    assert REPRODUCIBLE in str(Guarantee(epsilon=1, seeded=True, **LOCAL))


@pytest.mark.parametrize("guarantee", [
    Guarantee(epsilon=4, seeded=True, read_from_data=("a", "b"), assumptions=("x",), derivation=("y",), **LOCAL),
    Guarantee(epsilon=math.inf, reason="none", **LOCAL),
])  # fmt: skip
def test_json_round_trip(guarantee):
    assert guarantee_from_json(guarantee.to_json()) == guarantee


@pytest.mark.parametrize(("field", "value"), [
    ("epsilon", 0), ("epsilon", math.nan), ("delta", 1.0), ("delta", -0.1), ("unit", "household"), ("trust", "some"),
])  # fmt: skip
def test_nonsense_is_refused(field, value):
    with pytest.raises(SpecError):
        Guarantee(**{"epsilon": 1.0, **LOCAL, field: value})


def test_who_declared_a_domain_is_stated_and_survives_json() -> None:
    sources = (
        ("declared by: adult.names", ("age", "sex")),
        ("declared, not said by whom", tuple(f"c{i}" for i in range(12))),
    )
    guarantee = Guarantee(epsilon=1, domain_sources=sources, **LOCAL)
    assert "domains      age, sex: declared by: adult.names" in str(guarantee)
    assert "domains of age, sex declared by: adult.names" in guarantee.statement
    assert "c7 and 4 more: declared, not said by whom" in str(guarantee)
    document = guarantee.to_json()
    assert document["domain_sources"]["declared by: adult.names"] == ["age", "sex"]
    assert guarantee_from_json(document) == guarantee
    del document["domain_sources"]
    assert guarantee_from_json(document).domain_sources == ()


def test_a_silo_is_not_a_device_and_gives_no_local_privacy() -> None:
    silo = Guarantee(epsilon=4, delta=1e-6, unit="record", neighbours="zero-out", trust="silo", mechanism="sums")
    assert silo.bound == "(4, 1e-06)-DP"
    assert "whoever already holds the records adds the noise" in str(silo)
    assert "slot" in str(silo)


def test_what_one_unit_is_in_the_run_is_said() -> None:
    assert "4-LDP for one phone (client level)" in str(Guarantee(epsilon=4, protects="one phone", **LOCAL))


def test_counts_read_from_the_records_are_marked() -> None:
    guarantee = Guarantee(epsilon=1, counts_read=("the most records of one client (57)",), **LOCAL)
    assert "NOT covered  read from the data: the most records of one client (57)" in str(guarantee)
    assert "NOT covered, because read from the data: the most records of one client (57)" in guarantee.statement
    assert guarantee.headline == "1-LDP (counts read from the data, not covered)"
    assert guarantee_from_json(guarantee.to_json()) == guarantee


def test_the_part_of_delta_owed_to_samplers_is_kept_apart() -> None:
    values = {
        "epsilon": 1.0,
        "delta": 1.5e-6,
        "unit": "record",
        "neighbours": "zero-out",
        "trust": "silo",
        "mechanism": "m",
    }
    guarantee = Guarantee(sampling_delta=5e-7, **values)
    assert guarantee.accounted_delta == pytest.approx(1e-6)
    assert guarantee_from_json(guarantee.to_json()) == guarantee
    with pytest.raises(SpecError, match="sampling_delta"):
        Guarantee(sampling_delta=2e-6, **values)


@pytest.mark.parametrize("noise", ["system", "exact", "keyed"])
def test_where_noise_came_from_is_said(noise: str) -> None:
    text = str(Guarantee(epsilon=1, noise=noise, **LOCAL))
    assert ("by that key" in text) == (noise == "keyed")
    assert "not private" not in text


def test_files_of_the_first_version_are_read_in_todays_words() -> None:
    """Version 0.1.0 said "local" where a silo adds the noise to its records, and knew neither formats nor counts."""
    old = {
        "epsilon": 4.0, "delta": 1e-6, "unit": "record", "neighbours": "add-remove", "trust": "local", "mechanism": "sums",
        "derivation": ["d"], "assumptions": ["a"], "randomness": "keyed from the operating system",
    }  # fmt: skip
    guarantee = guarantee_from_json(old)
    assert (guarantee.trust, guarantee.neighbours, guarantee.seeded) == ("silo", "add-remove", False)
    assert guarantee_from_json({**old, "unit": "client"}).trust == "local"
    assert guarantee_from_json({**old, "randomness": REPRODUCIBLE}).seeded
