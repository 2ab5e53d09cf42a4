"""Every setting that 0.2.0 wrote is read under its present name, with the value it had."""

import json
from pathlib import Path

import pytest

from populace.errors import SpecError
from populace.methods.registry import BUILT_IN, make_protocol, protocol_class, registered_name, settings_from_file

#: All settings of all methods as 0.2.0 had them, at their defaults, epsilon 2.
OLD = json.loads((Path(__file__).parent / "settings_of_0_2_0.json").read_text())


def test_all_methods_of_then_are_there():
    assert set(OLD) <= set(BUILT_IN)


@pytest.mark.parametrize("name", OLD)
def test_old_defaults_are_todays(name):
    epsilon = OLD[name]["epsilon"]
    assert make_protocol(name, settings_from_file(name, OLD[name])) == make_protocol(name, {"epsilon": epsilon})


@pytest.mark.parametrize("name", OLD)
def test_an_old_name_is_no_new_one_and_is_answered_with_it(name):
    cls = protocol_class(name)
    for old, new in cls.renamed.items():
        assert old in OLD[name]
        assert new not in OLD[name] or name == "chain"  # first_set and then_set went into first and then
        with pytest.raises(SpecError, match=f"it is called '{new}'"):
            make_protocol(name, {"epsilon": 2.0, old: OLD[name][old]})


def test_a_class_that_only_calls_itself_a_registered_method_is_refused():
    class Silent(protocol_class("moments")):
        """Would run without its noise and be stated as moments."""

    assert registered_name(make_protocol("moments", {"epsilon": 2.0})) == "moments"
    with pytest.raises(SpecError, match="Silent is not the registered method 'moments'"):
        registered_name(Silent(epsilon=2.0))
