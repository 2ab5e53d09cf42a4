"""A method inside an audit: it runs as it is, for the population that the audit has agreed on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Self

from populace.methods.base import Ask, Facts, Plan, Population, Protocol, Shard
from populace.methods.blocks.generator import Synthesizer
from populace.privacy.guarantee import Guarantee, Unit
from populace.privacy.ledger import Charge
from populace.types import Array, ArrayTree, JsonObject


class Wrapped(Protocol):
    """Hands every question about a method on to that method, with the agreed population; audits override what they watch."""

    method: Protocol
    population: Population

    def __new__(cls, *_: object, **__: object) -> Self:
        """An audit is no method of its own: it has no settings to check."""
        return object.__new__(cls)

    @property
    def facts(self) -> Facts:  # type: ignore[override]
        return self.method.facts

    def round_count(self, population: Population) -> int:
        return self.method.round_count(self.population)

    def begin(self, population: Population, key: Array, warm: ArrayTree = None) -> ArrayTree:
        return self.method.begin(self.population, key, warm)

    def charge(self, ask: Ask, population: Population) -> Charge:
        return self.method.charge(ask, self.population)

    def agreed(self, shard: Shard) -> Shard:
        """A client's records as the agreed population describes them."""
        return dataclasses.replace(shard, population=self.population)

    @property
    def protected_unit(self) -> Unit:
        return self.method.protected_unit

    def guarantee(self, population: Population) -> Guarantee:
        return self.method.guarantee(self.population)

    def plan(self, population: Population) -> Plan:
        return self.method.plan(self.population)

    def reply_bytes(self, ask: Ask, population: Population) -> tuple[float, float]:
        return self.method.reply_bytes(ask, self.population)

    def remember(self, population: Population, key: Array) -> ArrayTree:
        return self.method.remember(self.population, key)


class Nothing(Synthesizer):
    """No generator: an audit listens to messages and makes nothing of them."""

    kind = "nothing"

    def sample(self, count: int, key: Array, conditions: Mapping[str, str] | None = None) -> ArrayTree:
        raise NotImplementedError

    def arrays(self) -> dict[str, Array]:
        return {}

    def header(self) -> JsonObject:
        return {}

    @classmethod
    def from_saved(cls, header: Mapping[str, object], arrays: Mapping[str, Array]) -> Synthesizer:
        raise NotImplementedError
