"""The methods, one folder per family: open it and you have all of it.

Every method's class is a name of this package, imported when it is first used: `populace.methods.Moments(epsilon=4)`. Methods
that other packages offer (`populace.methods.registry`) are here too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from populace.methods.base import Protocol


def _names() -> dict[str, str]:
    """The method of each class, by the class's name."""
    registry = importlib.import_module("populace.methods.registry")
    listed = reversed(list(registry.METHODS.items()))  # the built-in ones come first, and win
    return {target.rpartition(":")[2].rpartition(".")[2]: name for name, target in listed}


def __getattr__(name: str) -> type[Protocol]:
    if not name.startswith("_") and name in _names():
        registry = importlib.import_module("populace.methods.registry")
        cls: type[Protocol] = registry.protocol_class(_names()[name])
        return cls
    raise AttributeError(f"populace.methods has no {name!r}; dir(populace.methods) lists the methods")


def __dir__() -> list[str]:
    return sorted(_names())
