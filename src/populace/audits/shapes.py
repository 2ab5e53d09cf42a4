"""What audits run methods on: a small invented table and tiny invented images, and settings with few steps.

Clipping, noise, sampling and booking are the same code at every size; small shapes make it run thousands of times.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from populace.audits.grey_box import Neighbours
from populace.engines.runtime import population_of
from populace.methods.base import ImageShape, Kind, Population
from populace.tables.columns import Column
from populace.tables.images import Images
from populace.tables.partition import Clients
from populace.tables.schema import Schema
from populace.tables.table import Table
from populace.types import ArrayTree

Records = ArrayTree

SIDE, CLASSES = 8, 3  # of invented images
GAN = {"hidden_size": "8", "critic_hidden_size": "16", "latent_size": "4", "basis_size": "4"}
BEGUN = "l-dpd-vae:participations=1,hidden_size=4,latent_size=2,sleep_steps=1,fitting_steps=2,batch_size=3,basis_size=4"
#: Few steps, small networks, and batches of three of four records.
FEW_STEPS: dict[str, dict[str, str]] = {
    "poll": {"latent_classes": "4", "chains": "1", "langevin_steps": "8"},
    "dp-fed-wae": {"latent_classes": "2"},
    "fedsel-wae": {"hidden_size": "6", "latent_size": "2", "local_epochs": "2"},
    "moments": {"side": "4"},
    "census": {"components": "3", "members": "2", "fit_steps": "5"},
    "flaim": {"rounds": "2", "workload": "pairs", "fit_steps": "5"},
    "l-dpd-vae": {
        "participations": "2", "batch_size": "3", "sleep_steps": "1", "hidden_size": "4", "latent_size": "2", "basis_size": "4",
    },
    "c-dpd-vae": {
        "rounds": "3", "sampling_rate": "0.7", "local_epochs": "1", "batch_size": "4", "clip_norm": "0.001",
        "hidden_size": "4", "latent_size": "2",
    },
    "chain": {"then": BEGUN, "first": "moments:side=4"},
    "fl-gan": {"generator_steps": "1", "critic_steps": "2", "batch_size": "3", **GAN},
    "ufl-gan": {"generator_steps": "1", "critic_steps": "2", "batch_size": "3", **GAN},
    "fedavg-gan": {
        "rounds": "3", "sampling_rate": "0.7", "local_steps": "1", "clip_norm": "0.001", "batch_size": "2", **GAN,
    },
    "genfl": {
        "rounds": "1", "batch_size": "3", "generator_steps": "1", "critic_steps": "1", "gan_batch_size": "3", "features": "2",
        **GAN,
    },
    "dp-fl": {"rounds": "2", "batch_size": "3", "features": "2"},
}  # fmt: skip

#: Networks wide enough for thousands of canaries, each along a coordinate of its own.
WIDE: dict[str, dict[str, str]] = {
    "fl-gan": {"critic_hidden_size": "128"}, "ufl-gan": {"critic_hidden_size": "128"},
    "fedavg-gan": {"critic_hidden_size": "128"},
    "l-dpd-vae": {"hidden_size": "128", "latent_size": "16"}, "c-dpd-vae": {"hidden_size": "32", "latent_size": "8"},
    "genfl": {"critic_hidden_size": "64"}, "moments": {"side": "8"},
    "chain": {"then": BEGUN.replace("size=4,latent_size=2", "size=128,latent_size=16"), "first": "moments:side=8"},
}  # fmt: skip


def small_schema() -> Schema:
    """Four columns of few values, of every kind, and a target."""
    return Schema(
        columns=(
            Column(name="ward", kind="categorical", categories=("north", "south", "east")),
            Column(name="stage", kind="ordinal", categories=("1", "2", "3", "4"), dtype="integer", nullable=True),
            Column(name="dose", kind="decimal", edges=(0.0, 1.0, 2.5, 10.0)),
            Column(name="outcome", kind="categorical", categories=("false", "true"), dtype="boolean"),
        ),
        target="outcome",
    )


def shape_for(kind: Kind) -> Schema | ImageShape:
    return small_schema() if kind == "table" else ImageShape(shape=(SIDE, SIDE), classes=CLASSES)


def some_records(shape: Schema | ImageShape, count: int, *, seed: int = 0) -> Records:
    """Records drawn evenly from the domain."""
    rng = np.random.default_rng(seed)
    if isinstance(shape, ImageShape):
        return {
            "x": rng.integers(0, 256, (count, *shape.shape), dtype=np.uint8),
            "y": rng.integers(0, shape.classes, count),
        }
    return rng.integers(0, np.asarray(shape.sizes), (count, len(shape.sizes)))


def extreme_records(shape: Schema | ImageShape) -> list[tuple[str, Records]]:
    """Single records, as unlike each other as can be, each as a data set of one."""
    if isinstance(shape, ImageShape):
        rows, columns = np.indices(shape.shape[:2])
        board = np.where((rows + columns) % 2, 255, 0)
        board = board.reshape(board.shape + (1,) * (len(shape.shape) - 2))
        pictures = {
            "a white image": np.full(shape.shape, 255), "a chequered image": np.broadcast_to(board, shape.shape),
        }  # fmt: skip
        return [
            (name, {"x": picture[None].astype(np.uint8), "y": np.array([shape.classes - 1])})
            for name, picture in pictures.items()
        ]
    sizes = np.asarray(shape.sizes)
    mixed = np.where(np.arange(len(sizes)) % 2, sizes - 1, 0)
    return [("last categories", (sizes - 1)[None]), ("first and last categories", mixed[None])]


def joined(*parts: Records) -> Records:
    if isinstance(parts[0], dict):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return np.concatenate(parts)


def clients_of(
    shape: Schema | ImageShape, held: list[Records], *, most: int | None = None, persons: bool = False
) -> Clients:
    """Clients that hold these records, one each; possibly none. `most` is the public number that none of them exceeds.

    With `persons`, all records of a client are one person's.
    """
    widths = [len(part["y"] if isinstance(part, dict) else part) for part in held]
    together = joined(*held)
    if isinstance(shape, ImageShape):
        data: Images | Table = Images(x=together["x"], y=together["y"].astype(np.int32), classes=shape.classes)
    else:
        data = Table(schema=shape, codes=together.astype(np.int32), frame=pa.table({}))
    starts = np.concatenate([[0], np.cumsum(widths)])
    return Clients(
        data=data,
        order=np.arange(starts[-1]),
        starts=starts,
        how="invented records of an audit",
        most=most or max([1, *widths]),
        persons=np.repeat(np.arange(len(widths)), widths) if persons else None,
    )


def neighbouring_clients(
    shape: Schema | ImageShape, *, unit: str, neighbours: str, clients: int = 2, records: int = 4
) -> tuple[list[Neighbours], Population]:
    """Pairs of data sets that differ in one unit, and their public shape, which is the same for all of them.

    A record is the last one of the first client, there or not; a client is the first, with all its records or with none, and so
    is a person; where contents may be replaced, also with others.
    """
    held = [some_records(shape, records, seed=number) for number in range(clients)]
    persons = unit == "person"
    none = first_of(held[0], 0)
    found = []
    for name, record in extreme_records(shape):
        if unit == "record":
            rest = first_of(held[0], records - 1)
            first, second = joined(rest, record), rest
        else:
            first, second = joined(*[record] * records), none
        if neighbours == "replace":
            other = joined(*[some_records(shape, 1, seed=99)] * records)
            found.append(_pair(f"{name}, and others", shape, first, other, held[1:], records, persons))
        found.append(_pair(f"{name}, and nothing", shape, first, second, held[1:], records, persons))
    population = dataclasses.replace(population_of(found[0].first), schema=shape)
    return found, population


def _pair(
    name: str,
    shape: Schema | ImageShape,
    first: Records,
    second: Records,
    others: list[Records],
    most: int,
    persons: bool,
) -> Neighbours:
    first_clients, second_clients = (
        clients_of(shape, [part, *others], most=most, persons=persons) for part in (first, second)
    )
    return Neighbours(name=name, first=first_clients, second=second_clients)


def first_of(records: Records, count: int) -> Records:
    """The first `count` records."""
    return {name: rows[:count] for name, rows in records.items()} if isinstance(records, dict) else records[:count]
