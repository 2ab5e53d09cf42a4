"""The roster of secure sums in a proposal: from words of the command line, and checked by the site it names."""

import pytest

from populace.engines.agreement import Agreement
from populace.errors import InputError, SpecError
from populace.federation.sum_keys import (
    check_own_seat,
    make_sum_key,
    public_sum_key,
    roster_in_words,
    roster_of,
    seats_of,
)
from populace.methods.census.protocol import Census

PROTOCOL = Census(epsilon=1.0, trust="secure-sum", colluders=1, dropouts=1)
NAMES = ("ward", "clinic", "lab", "home")


@pytest.fixture
def keys(tmp_path):
    for name in NAMES:
        make_sum_key(tmp_path / name)
    return {name: public_sum_key(tmp_path / name) for name in NAMES}


def test_threshold_and_colluders_of_the_roster_are_those_of_the_method(keys, tmp_path, small_table):
    roster = roster_of(PROTOCOL, [f"{name}={key}" for name, key in keys.items()])
    assert (roster.threshold, roster.colluders, len(roster.members)) == (3, 1, 4)
    check_own_seat(roster, "ward", tmp_path / "ward")
    for name, file in (("ward", "lab"), ("elsewhere", "ward")):
        with pytest.raises(InputError, match="do not join"):
            check_own_seat(roster, name, tmp_path / file)
    words = roster_in_words(roster)
    assert "4 sites, of which 1 may be missing and 1 may collude" in words
    assert keys["lab"] in words
    assert seats_of(Agreement(protocol=PROTOCOL, schema=small_table.schema, roster=roster), 1) == 4
    assert seats_of(Agreement(protocol=PROTOCOL, schema=small_table.schema), 7) == 7


def test_rosters_that_make_no_sum_are_refused_in_a_sentence(keys):
    words = [f"{name}={key}" for name, key in keys.items()]
    for given, error in (([], InputError), (words[:3], SpecError), (["ward"], SpecError), (["Ward 1=00"], InputError)):
        with pytest.raises(error):
            roster_of(PROTOCOL, given)
    with pytest.raises(InputError, match="leave --sum-key out"):
        roster_of(Census(epsilon=1.0), words)
    assert roster_of(Census(epsilon=1.0), []) is None


def test_a_key_is_made_once_and_stays_readable_by_its_owner_alone(tmp_path):
    make_sum_key(tmp_path / "sum.key")
    assert (tmp_path / "sum.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        make_sum_key(tmp_path / "sum.key")
    with pytest.raises(InputError, match="populace site request"):
        public_sum_key(tmp_path / "other")
