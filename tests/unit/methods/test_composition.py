"""What engines ask of a method follows from its parts, derived once: no built-in method writes such a hook anew."""

from populace.methods.base import Protocol
from populace.methods.blocks.composed import ComposedMethod
from populace.methods.registry import BUILT_IN, protocol_class

#: Operators on whole methods: they have no parts of their own.
OPERATORS = {"chain"}
#: What `ComposedMethod` derives. Hints to engines, such as `together` and `vectorises`, are not among it.
HOOKS = {name for name, value in vars(ComposedMethod).items() if callable(value) and name[0] != "_"} - {"compose"}


def written_anew(cls):
    """The derived hooks that a method has from elsewhere, each with the class it is written in."""
    if not issubclass(cls, ComposedMethod):
        return [f"{cls.__name__} is not composed"]
    homes = {hook: next(base for base in cls.__mro__ if hook in vars(base)) for hook in sorted(HOOKS)}
    return [f"{home.__name__}.{hook}" for hook, home in homes.items() if home is not ComposedMethod]


def test_everything_that_a_method_must_have_is_derived():
    assert Protocol.__abstractmethods__ <= HOOKS


def test_no_method_but_an_operator_writes_a_derived_hook_anew():
    found = {name: written_anew(protocol_class(name)) for name in BUILT_IN if name not in OPERATORS}
    assert {name: hooks for name, hooks in found.items() if hooks} == {}


def test_a_method_that_undoes_a_derived_hook_is_named():
    class Undone(protocol_class("moments")):
        def spends(self, population):
            raise AssertionError

    assert written_anew(Undone) == ["Undone.spends"]
    assert written_anew(protocol_class("chain")) == ["Chain is not composed"]
