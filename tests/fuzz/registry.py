"""All targets, by name."""

from __future__ import annotations

from fuzz import collector, commands, databases, exchanges, folders, planted, readers, structures, wires
from fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (readers, databases, folders, wires, exchanges, collector, commands, structures, planted)
    for target in module.TARGETS
}
