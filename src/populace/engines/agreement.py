"""What coordinator and site have agreed on before anything is asked: one method, all its parameters, one public schema."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from populace.engines import wire
from populace.engines.secure_sum.roster import SumRoster, sum_roster_from_json
from populace.errors import PopulaceError, RunError, SpecError
from populace.methods.base import ImageShape, Population, Protocol, Shard
from populace.methods.registry import METHODS
from populace.privacy.source import Keyed, uses_key
from populace.tables.schema import Schema, schema_from_dict
from populace.types import Array, ArrayTree, JsonObject
from populace.version import __version__

FORMAT = 1
OLD_HOME = "populace.protocols."  # of all methods, up to version 0.2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agreement:
    """A method with its parameters over a schema. Each side builds its own from its own file; only `terms` travel.

    `roster` are the sites of its secure sums, with their keys; None where a method opens none.
    """

    protocol: Protocol
    schema: Schema | ImageShape
    roster: SumRoster | None = None

    @property
    def method(self) -> str:
        return self.protocol.facts.name

    @property
    def parameters(self) -> JsonObject:
        return json.loads(json.dumps(self.protocol.settings_to_file()))  # type: ignore[no-any-return]

    @functools.cached_property
    def terms(self) -> JsonObject:
        """What a request names, so that a site can tell which part it has not agreed to."""
        roster = {} if self.roster is None else {"roster": self.roster.digest}
        return {
            "version": __version__,
            "method": self.method,
            "parameters": self.parameters,
            "schema": schema_digest(self.schema),
            **roster,
        }

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.terms, sort_keys=True).encode()).hexdigest()

    def population(self, *, clients: int, records: int) -> Population:
        return Population(schema=self.schema, clients=clients, records=records)

    def to_json(self) -> JsonObject:
        cls = type(self.protocol)
        image = isinstance(self.schema, ImageShape)
        return {
            "format": FORMAT,
            "method": self.method,
            "class": f"{cls.__module__}:{cls.__qualname__}",
            "parameters": self.parameters,
            **({} if self.roster is None else {"roster": self.roster.to_json()}),
            "images" if image else "schema": (
                dataclasses.asdict(self.schema) if isinstance(self.schema, ImageShape) else self.schema.to_dict()
            ),
        }


def schema_digest(schema: Schema | ImageShape) -> str:
    if isinstance(schema, Schema):
        return schema.digest
    return hashlib.sha256(json.dumps(dataclasses.asdict(schema), sort_keys=True).encode()).hexdigest()


def agreement_from_json(document: object, *, where: str) -> Agreement:
    """Read an agreement from a file of one's own. Its class is imported: never read one that came with a request."""
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise RunError(f"{where} holds no agreement of format {FORMAT}")
    try:
        module, _, name = _present_home(document).partition(":")
        cls = getattr(importlib.import_module(module), name)
        if not (isinstance(cls, type) and issubclass(cls, Protocol)):
            raise SpecError(f"{where} names {document['class']}, which is not a method")
        parameters = {key: frozen(value) for key, value in document["parameters"].items()}
        if "images" in document:
            shape = {key: frozen(value) for key, value in document["images"].items()}
            schema: Schema | ImageShape = ImageShape(**shape)
        else:
            schema = schema_from_dict(document["schema"])
        protocol = cls(**cls.settings_from_file(parameters))
        roster = sum_roster_from_json(document["roster"]) if "roster" in document else None
    except PopulaceError:
        raise
    except (KeyError, AttributeError, TypeError, ValueError, ImportError) as error:
        raise RunError(f"{where} holds a damaged agreement: {error!r}") from error
    return Agreement(protocol=protocol, schema=schema, roster=roster)


def _present_home(document: Mapping[str, str]) -> str:
    """The present module and name of the method's class; files of 0.2.0 and before name its former module."""
    home: str = document["class"]
    return METHODS.get(document["method"], home) if home.startswith(OLD_HOME) else home


def frozen(value: Any) -> Any:
    """A value read from JSON as settings hold it: tuples in place of lists."""
    return tuple(frozen(part) for part in value) if isinstance(value, list) else value


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Shapes:
    """Shapes and types of everything that is sent in a round; both sides derive them from the method."""

    common: ArrayTree
    own: ArrayTree
    reply: ArrayTree
    memory: ArrayTree


def shapes_of(protocol: Protocol, population: Population, round_id: int) -> Shapes:
    common, own = (wire.shapes(part) for part in protocol.question(population, round_id))
    leaves, tree = jax.tree.flatten((common, own))
    return _shapes(protocol, population, tree, tuple(leaves))


@functools.lru_cache(maxsize=64)
def _shapes(protocol: Protocol, population: Population, tree: ArrayTree, leaves: tuple[object, ...]) -> Shapes:
    common, own = jax.tree.unflatten(tree, leaves)
    memory = jax.eval_shape(lambda key: protocol.remember(population, key), jax.random.key(0))
    answer, arguments = _traceable(protocol, population, common, own, memory, exact=False)
    reply, _ = jax.eval_shape(answer, *arguments)
    return Shapes(common=common, own=own, reply=reply, memory=memory)


def _traceable(
    protocol: Protocol, population: Population, common: ArrayTree, own: ArrayTree, memory: ArrayTree, *, exact: bool
) -> tuple[Callable[..., ArrayTree], tuple[ArrayTree, ...]]:
    """`answer` as a function of arrays alone, and the shapes of its arguments."""

    def answer(
        common: ArrayTree, own: ArrayTree, memory: ArrayTree, records: ArrayTree, mask: Array, key: Array
    ) -> ArrayTree:
        persons = jnp.zeros(mask.shape, jnp.int32) if protocol.protected_unit == "person" else None
        shard = Shard(records=records, mask=mask, population=population, persons=persons)
        return protocol.answer(common, own, shard, memory, Keyed(key, exact=exact))

    return answer, (common, own, memory, *empty_records(population), jax.random.key(0))


def draws_exactly(protocol: Protocol, population: Population, shapes: Shapes) -> bool:
    """Whether a client that answers in compiled code draws nothing but latents from a key: all else is the system's."""
    leaves, tree = jax.tree.flatten(shapes)
    return _draws_exactly(protocol, population, tree, tuple(leaves))


@functools.lru_cache(maxsize=64)
def _draws_exactly(protocol: Protocol, population: Population, tree: ArrayTree, leaves: tuple[object, ...]) -> bool:
    shapes = jax.tree.unflatten(tree, leaves)
    answer, arguments = _traceable(protocol, population, shapes.common, shapes.own, shapes.memory, exact=True)
    return not uses_key(jax.make_jaxpr(answer)(*arguments))


def empty_records(population: Population) -> tuple[ArrayTree, ArrayTree]:
    """Shapes and types of one client's records and of their mask, padded to the most that any may have."""
    width, schema = population.records, population.schema
    mask = wire.shaped((width,), jnp.bool_)
    if isinstance(schema, Schema):
        return wire.shaped((width, len(schema.columns)), jnp.int32), mask
    return {
        "x": wire.shaped((width, *schema.shape), jnp.uint8),
        "y": wire.shaped((width,), jnp.int32),
    }, mask
