"""What travels between a coordinator and its sites: small records and arrays, as bytes, without pickle.

A message is a fixed head (magic, version, sizes), a JSON header, and the arrays' own bytes, little-endian, one after the other.
Nothing is trusted: sizes are checked before anything is allocated, types come from a closed list, and whatever is left over,
doubled or unknown is refused. The format knows no engine; answers of single devices can use it too.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from populace.border.documents import parse_json
from populace.errors import WireError
from populace.types import ArrayTree, JsonObject, NumpyArray

MAGIC = b"PPLC"
VERSION = 1
HEAD = struct.Struct("<4sHIQ")  # magic, version, bytes of the header, bytes of all arrays
MOST_HEADER_BYTES = 2**20
MOST_BYTES = 2**30
MOST_AXES = 8
DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    )
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Message:
    """A kind, a few small fields (text, numbers, booleans, lists and mappings of them), and named arrays."""

    kind: str
    fields: JsonObject = dataclasses.field(default_factory=dict)
    arrays: Mapping[str, NumpyArray] = dataclasses.field(default_factory=dict)


def pack(message: Message) -> bytes:
    arrays = {name: np.asarray(array) for name, array in message.arrays.items()}
    bodies = [np.ascontiguousarray(array, _travelling(name, array)).tobytes() for name, array in arrays.items()]
    shapes = {name: (array.dtype.name, array.shape) for name, array in arrays.items()}
    return b"".join([_head(message.kind, message.fields, shapes, sum(map(len, bodies))), *bodies])


def pack_rows(kind: str, arrays: Mapping[str, NumpyArray], *, rows: int) -> list[bytes]:
    """A message for each row of these arrays: what `pack` makes of one row at a time."""
    bodies: list[NumpyArray] = [np.zeros((rows, 0), np.uint8)]
    for name, array in arrays.items():
        flat = np.ascontiguousarray(array, _travelling(name, array)).reshape(rows, math.prod(array.shape[1:]))
        bodies.append(flat.view(np.uint8))
    body = np.concatenate(bodies, axis=1)
    shapes = {name: (array.dtype.name, array.shape[1:]) for name, array in arrays.items()}
    head = _head(kind, {}, shapes, body.shape[1])
    return [head + row.tobytes() for row in body]


def _travelling(name: str, array: NumpyArray) -> np.dtype[Any]:
    if array.dtype.name not in DTYPES:
        raise WireError(f"array {name!r} is of type {array.dtype}; only {', '.join(DTYPES)} travel")
    return DTYPES[array.dtype.name]


def _head(kind: str, fields: JsonObject, shapes: Mapping[str, tuple[str, tuple[int, ...]]], body_bytes: int) -> bytes:
    """All of a message before its arrays' own bytes."""
    entries = [[name, dtype, list(shape)] for name, (dtype, shape) in shapes.items()]
    document = {"kind": kind, "fields": dict(fields), "arrays": entries}
    try:
        header = json.dumps(document, sort_keys=True, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise WireError(f"the fields of a {kind!r} message cannot be written: {error}") from error
    if len(header) > MOST_HEADER_BYTES:
        raise WireError(f"expected a header of at most {MOST_HEADER_BYTES} bytes, got {len(header)}")
    return HEAD.pack(MAGIC, VERSION, len(header), body_bytes) + header


def unpack(data: bytes, *, most_bytes: int = MOST_BYTES) -> Message:
    """The message in these bytes; raises WireError for anything but exactly one well-formed message."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise WireError(f"expected bytes, got {type(data).__name__}")
    if len(data) > most_bytes:
        raise WireError(f"expected a message of at most {most_bytes} bytes, got {len(data)}")
    if len(data) < HEAD.size:
        raise WireError(f"expected a message of at least {HEAD.size} bytes, got {len(data)}")
    magic, version, header_bytes, body_bytes = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise WireError("not a message of this format")
    if version != VERSION:
        raise WireError(f"expected message format {VERSION}, got {version}; update populace on both sides")
    if header_bytes > MOST_HEADER_BYTES or HEAD.size + header_bytes + body_bytes != len(data):
        raise WireError("the sizes in a message's head do not add up to its length")
    view = memoryview(data)
    kind, fields, entries = _header(bytes(view[HEAD.size : HEAD.size + header_bytes]))
    return Message(kind=kind, fields=fields, arrays=_arrays(entries, view[HEAD.size + header_bytes :]))


def _header(text: bytes) -> tuple[str, JsonObject, list[Any]]:
    try:
        document = parse_json(text, where="a message's header", error=WireError, strict=True)
    except WireError as error:
        raise WireError("a message's header is not the JSON it should be") from error
    if not isinstance(document, dict) or set(document) != {"kind", "fields", "arrays"}:
        raise WireError("a message's header has other parts than kind, fields and arrays")
    kind, fields, entries = document["kind"], document["fields"], document["arrays"]
    if not isinstance(kind, str) or not isinstance(fields, dict) or not isinstance(entries, list):
        raise WireError("a message's kind, fields or arrays are of the wrong type")
    return kind, fields, entries


def _arrays(entries: list[Any], body: memoryview) -> dict[str, NumpyArray]:
    found: dict[str, NumpyArray] = {}
    at = 0
    for entry in entries:
        named = isinstance(entry, list) and len(entry) == 3 and all(isinstance(part, str) for part in entry[:2])
        if not named or entry[1] not in DTYPES:
            raise WireError("an array of a message is not named, typed and shaped as it should be")
        name, dtype, shape = entry[0], DTYPES[entry[1]], entry[2]
        whole = isinstance(shape, list) and all(type(n) is int and 0 <= n <= MOST_BYTES for n in shape)
        if not whole or len(shape) > MOST_AXES or name in found:
            raise WireError(f"array {name!r} of a message has an impossible shape, or occurs twice")
        size = math.prod(shape) * dtype.itemsize
        if size > len(body) - at:
            raise WireError(f"array {name!r} of a message is longer than the message")
        found[name] = _array(name, body[at : at + size], dtype, tuple(shape))
        at += size
    if at != len(body):
        raise WireError("a message holds more bytes than its arrays")
    return found


def _array(name: str, part: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NumpyArray:
    if dtype.kind == "b" and len(part) and np.frombuffer(part, np.uint8).max() > 1:
        raise WireError(f"array {name!r} holds bytes that are neither true nor false")
    try:
        return np.frombuffer(part, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)
    except ValueError as error:  # no bytes, but more elements along its axes than numpy counts
        raise WireError(f"array {name!r} of a message has an impossible shape") from error


def take_fields(message: Message, kinds: Mapping[str, type]) -> list[Any]:
    """The fields of a message, in this order; raises WireError where one is missing, of another type, or too many."""
    if set(message.fields) != set(kinds):
        raise WireError(f"a {message.kind!r} message has fields {sorted(message.fields)}, expected {sorted(kinds)}")
    for name, kind in kinds.items():
        if type(message.fields[name]) is not kind:
            raise WireError(f"field {name!r} of a {message.kind!r} message is not of type {kind.__name__}")
    return [message.fields[name] for name in kinds]


def leaves(tree: ArrayTree, prefix: str) -> dict[str, NumpyArray]:
    """A tree's arrays under numbered names; its structure does not travel, both sides derive it."""
    return {f"{prefix}/{i}": to_numpy(leaf) for i, leaf in enumerate(jax.tree.leaves(tree))}


def shapes(tree: ArrayTree) -> ArrayTree:
    """Shapes and types of a tree, to check what arrives against."""
    return jax.tree.map(lambda leaf: shaped(np.shape(leaf), _dtype(leaf)), tree)


def shaped(shape: tuple[int, ...], dtype: DTypeLike) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def fill(template: ArrayTree, arrays: Mapping[str, NumpyArray], prefix: str, *, rows: int | None = None) -> ArrayTree:
    """The tree whose arrays travelled under `prefix`; raises WireError unless number, types and shapes are the template's
    (each with `rows` rows, where given) and every float is finite."""
    wanted, structure = jax.tree.flatten(template)
    names = [name for name in arrays if name.startswith(f"{prefix}/")]
    if names != [f"{prefix}/{i}" for i in range(len(wanted))]:
        raise WireError(f"expected {len(wanted)} arrays of {prefix}, got {len(names)}")
    found = []
    for i, leaf in enumerate(wanted):
        array, is_key = arrays[f"{prefix}/{i}"], jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        inner = (*leaf.shape, *((2,) if is_key else ()))
        shape = inner if rows is None else (rows, *inner)
        dtype = np.dtype(np.uint32) if is_key else np.dtype(leaf.dtype)
        if array.shape != shape or array.dtype != dtype:
            raise WireError(
                f"array {prefix}/{i} is {array.dtype} of shape {array.shape}, expected {dtype} of shape {shape}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise WireError(f"array {prefix}/{i} holds numbers that are not finite")
        found.append(jax.random.wrap_key_data(jnp.asarray(array)) if is_key else array)
    return jax.tree.unflatten(structure, found)


def fill_rows(template: ArrayTree, messages: Sequence[bytes], prefix: str) -> ArrayTree:
    """What `fill` makes of each of these messages, stacked; those of one round differ in their numbers alone."""
    first = unpack(messages[0])
    head = len(messages[0]) - sum(array.nbytes for array in first.arrays.values())
    alike = all(len(one) == len(messages[0]) and one[:head] == messages[0][:head] for one in messages)
    if not alike:  # other spelling, the same content: or `fill` refuses it
        each = [fill(template, unpack(one).arrays, prefix) for one in messages]
        return jax.tree.map(lambda *rows: np.stack([np.asarray(row) for row in rows]), *each)
    body: NumpyArray = np.frombuffer(b"".join(one[head:] for one in messages), np.uint8)
    body, at, stacked = body.reshape(len(messages), len(messages[0]) - head), 0, {}
    for name, array in first.arrays.items():
        part = memoryview(body[:, at : at + array.nbytes].tobytes())
        stacked[name] = _array(name, part, DTYPES[array.dtype.name], (len(messages), *array.shape))
        at += array.nbytes
    return fill(template, stacked, prefix, rows=len(messages))


def to_numpy(leaf: ArrayTree) -> NumpyArray:
    """An array on the host; of a random key its bits."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _dtype(leaf: ArrayTree) -> np.dtype[Any]:
    return leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
