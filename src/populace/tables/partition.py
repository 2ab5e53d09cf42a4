"""Who holds which rows: simulated clients, or the clients a column of the data names.

Every function here makes a partition: each row belongs to exactly one client. The skewed splits follow the usual
benchmarks of federated learning: Dirichlet label skew, k labels per client, and Dirichlet quantity skew.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from populace.errors import DataError, out_of_range
from populace.tables.cell_text import cell_text
from populace.tables.codec import plain
from populace.tables.conversion import MISSING
from populace.tables.images import Images
from populace.tables.table import Table
from populace.types import NumpyArray

Records = NumpyArray | dict[str, NumpyArray]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Clients:
    """Who holds which rows: `order[starts[i]:starts[i + 1]]` are the row numbers of client i.

    `how` says in one line, for the record of a run, how the rows were dealt out; `holds` what one client holds, in words.
    `most` is the public number of records that no client exceeds, None where nobody declared one. `asked` are the options of
    the split, by the names they have in a run's specification; None for splits that only simulations have. `persons` says
    whose every row of `data` is, a number each; None where nobody said (`with_persons`).
    """

    data: Table | Images
    order: NumpyArray
    starts: NumpyArray
    how: str
    most: int | None = None
    holds: str = ""
    asked: Mapping[str, int | str | None] | None = None
    persons: NumpyArray | None = None

    def __post_init__(self) -> None:
        rows = len(self.data)
        if self.persons is not None and (self.persons.shape != (rows,) or (rows and self.persons.min() < 0)):
            raise DataError(f"expected the person of each of {rows} rows, a number of at least 0 each")
        if len(self.starts) < 2 or self.starts[0] != 0 or self.starts[-1] != len(self.order) or self.widths.min() < 0:
            raise DataError("expected starts that rise from 0 to the number of rows, one more than there are clients")
        inside = len(self.order) == rows and self.order.min() >= 0 and self.order.max() < rows
        if not inside or np.bincount(self.order, minlength=rows).max() != 1:
            raise DataError(f"expected each of {rows} rows with exactly one client; every row number once in `order`")
        if self.most is not None and self.widest > self.most:
            raise DataError(
                f"expected at most {self.most} records of one client, as declared, and one holds {self.widest}; declare "
                "more, or leave records out"
            )

    def __len__(self) -> int:
        """Number of clients."""
        return len(self.starts) - 1

    @functools.cached_property
    def widths(self) -> NumpyArray:
        """Number of records of each client."""
        return np.diff(self.starts)

    @property
    def widest(self) -> int:
        """Number of records of the client that holds most."""
        return int(self.widths.max())

    def gather(self, cohort: NumpyArray, width: int | None = None) -> tuple[Records, NumpyArray]:
        """The records of a cohort, padded with zeros to `width` records a client, and the mask of what is real.

        `cohort` lists client numbers; -1 is an empty slot. Records of a table are codes, int32 [c, width, columns]; of
        images {"x": uint8 [c, width, ...], "y": int32 [c, width]}. `width` is the widest client's unless given.
        """
        rows, mask = self._slots(cohort, width)
        if isinstance(self.data, Table):
            return _padded(self.data.codes, rows, mask).astype(np.int32, copy=False), mask
        return {"x": _padded(self.data.x, rows, mask), "y": _padded(self.data.y, rows, mask)}, mask

    def gather_persons(self, cohort: NumpyArray, width: int | None = None) -> NumpyArray | None:
        """Whose the records of a cohort are, int32 [c, width], 0 where there is none; None where nobody said."""
        return None if self.persons is None else _padded(self.persons.astype(np.int32), *self._slots(cohort, width))

    def _slots(self, cohort: NumpyArray, width: int | None) -> tuple[NumpyArray, NumpyArray]:
        """The row of every slot of a cohort, and which slots have one."""
        cohort = np.asarray(cohort, np.int64)
        if cohort.size and (cohort.min() < -1 or cohort.max() >= len(self)):
            raise out_of_range("client numbers", f"in -1 to {len(self) - 1}", int(cohort[_furthest(cohort)]))
        width = self.widest if width is None else width
        client = np.maximum(cohort, 0)
        count = np.where(cohort >= 0, self.widths[client], 0)
        if (count > width).any():
            wide = int(np.argmax(count))
            needed = f"of at least {int(count[wide])}, the records of client {int(cohort[wide])}"
            raise out_of_range("width", needed, width, advice="widen it, or split the rows among more clients")
        slot = np.arange(width)
        mask = slot < count[:, None]
        return self.order[np.where(mask, self.starts[client][:, None] + slot, 0)], mask

    def records_of(self, client: int) -> Records:
        """All records of one client, without padding, in the type that keeps them; a view where its rows lie together."""
        rows = self._rows_of(client)
        if isinstance(self.data, Table):
            found: NumpyArray = self.data.codes[rows]
            return found
        return {"x": self.data.x[rows], "y": self.data.y[rows]}

    def persons_of(self, client: int) -> NumpyArray | None:
        """Whose each record of one client is, in the order of `records_of`; None where nobody said."""
        return None if self.persons is None else self.persons[self._rows_of(client)]

    def _rows_of(self, client: int) -> slice | NumpyArray:
        numbers = self.order[self.starts[client] : self.starts[client + 1]]
        together = len(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1 and (numbers[1:] > numbers[:-1]).all()
        return slice(int(numbers[0]), int(numbers[-1]) + 1) if together else numbers


def _furthest(cohort: NumpyArray) -> int:
    return int(np.argmin(cohort) if cohort.min() < -1 else np.argmax(cohort))


def _padded(values: NumpyArray, rows: NumpyArray, mask: NumpyArray) -> NumpyArray:
    records = values[rows]
    if not mask.all():
        records[~mask] = 0
    return records


def split(data: Table | Images, *, records_per_client: int = 1) -> Clients:
    """Rows in their order, `records_per_client` to each client; the last client may hold fewer."""
    _at_least("records_per_client", records_per_client, 1)
    rows = len(data)
    starts = np.append(np.arange(0, rows, records_per_client), rows)
    how, holds = dealt_in_words(records_per_client=records_per_client)
    most = min(records_per_client, max(rows, 1))
    asked = {"records_per_client": records_per_client}
    return Clients(data=data, order=np.arange(rows), starts=starts, how=how, most=most, holds=holds, asked=asked)


def split_silos(data: Table | Images, sizes: Sequence[int], *, most: int | None = None) -> Clients:
    """One client per silo: `sizes` are their numbers of rows, in the order in which the rows stand in `data`.

    `most` is the declared number of records that no silo exceeds.
    """
    how, holds = dealt_in_words(silos=len(sizes))
    starts = np.append(0, np.cumsum(sizes))
    asked = {"silos": len(sizes), "most_records": most}
    return Clients(data=data, order=np.arange(len(data)), starts=starts, how=how, most=most, holds=holds, asked=asked)


def dealt_in_words(
    *, records_per_client: int = 1, column: str | None = None, silos: int | None = None
) -> tuple[str, str]:
    """How rows are dealt out, and what one client then holds: one client per silo, one per value of `column`, or so many
    rows each."""
    if silos is not None:
        return f"{silos} {'silo' if silos == 1 else 'silos'}, one client each", "everything one silo holds"
    if column is not None:
        return f"one client per value of column {column!r}", f"everything under one value of column {column!r}"
    noun = "record" if records_per_client == 1 else "records"
    return (
        f"{records_per_client} {noun} per client",
        f"{records_per_client} {noun} that follow one another in the file",
    )


def split_by_column(
    frame_values: pa.ChunkedArray | pa.Array | NumpyArray,
    data: Table | Images,
    *,
    name: str,
    most: int | None = None,
) -> Clients:
    """One client per distinct value, in the order of first appearance; `name` is the column's, for messages.

    `most` is the declared number of records that no client exceeds.
    """
    values = plain(_as_arrow(frame_values, name))
    if len(values) != len(data):
        raise DataError(f"expected {len(data)} values in the client column {name!r}, one per row, got {len(values)}")
    if values.null_count:
        row = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(f"the client column {name!r} has no value in row {row + 1}; say whose row it is, or drop it")
    owner = pc.dictionary_encode(values).indices.to_numpy(zero_copy_only=False)
    if owner.max() == 0:
        raise DataError(
            f"expected at least two clients, the client column {name!r} names one; choose one that tells them apart"
        )
    how, holds = dealt_in_words(column=name)
    asked = {"client_column": name, "most_records": most}
    return dataclasses.replace(_dealt(data, owner, int(owner.max()) + 1, how=how), most=most, holds=holds, asked=asked)


def with_persons(clients: Clients, values: pa.ChunkedArray | pa.Array | NumpyArray, *, name: str) -> Clients:
    """The same clients, whose rows belong to persons: one for each value, in whatever spelling; `name` is the column's.

    Values that differ in case, in spaces around them or in how a number is written are one person, which never protects less.
    """
    texts = cell_text(_as_arrow(values, name))
    if len(texts) != len(clients.data):
        raise DataError(f"expected {len(clients.data)} values in the person column {name!r}, got {len(texts)}")
    gone = pc.is_in(texts, value_set=pa.array([text.lower() for text in MISSING], pa.string()))
    if (row := gone.index(True).as_py()) >= 0:
        raise DataError(f"the person column {name!r} has no value in row {row + 1}; say whose row it is, or drop it")
    persons = texts.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    asked = None if clients.asked is None else {**clients.asked, "person": name}
    return dataclasses.replace(clients, persons=persons, asked=asked)


def _as_arrow(values: pa.ChunkedArray | pa.Array | NumpyArray, name: str) -> pa.ChunkedArray | pa.Array:
    if isinstance(values, pa.ChunkedArray | pa.Array):
        return values
    try:
        return pa.array(np.asarray(values), from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise DataError(f"cannot tell clients apart by column {name!r}: {error}; write its values as text") from error


def split_even(data: Table | Images, *, clients: int, seed: int) -> Clients:
    """Shuffled rows, the same number to each client, give or take one."""
    _enough_rows(data, clients)
    owner = np.random.default_rng(seed).permutation(np.arange(len(data)) % clients)
    return _dealt(data, owner, clients, how=f"{clients} clients, rows shuffled and dealt evenly, seed {seed}")


def split_quantity(data: Table | Images, *, clients: int, alpha: float, seed: int) -> Clients:
    """Quantity skew: shares of the rows are drawn from Dirichlet(alpha); with a small alpha some clients hold none."""
    _at_least("clients", clients, 1)
    _positive("alpha", alpha)
    rng = np.random.default_rng(seed)
    owner = rng.permutation(_shared_out(rng, len(data), clients, alpha))
    how = f"{clients} clients, quantity skew Dirichlet({alpha:g}), seed {seed}"
    return _dealt(data, owner, clients, how=how)


def split_dirichlet(data: Table | Images, *, labels: NumpyArray, clients: int, alpha: float, seed: int) -> Clients:
    """Label skew: the rows of each label are shared out by Dirichlet(alpha); small alpha, few labels per client."""
    _at_least("clients", clients, 1)
    _positive("alpha", alpha)
    labels = _aligned(labels, data)
    rng = np.random.default_rng(seed)
    owner = np.empty(len(data), np.int64)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        owner[rows] = _shared_out(rng, len(rows), clients, alpha)
    return _dealt(data, owner, clients, how=f"{clients} clients, label skew Dirichlet({alpha:g}), seed {seed}")


def split_labels(
    data: Table | Images, *, labels: NumpyArray, clients: int, labels_per_client: int | Sequence[int], seed: int
) -> Clients:
    """Each client sees only so many labels; the rows of a label are dealt evenly among the clients that see it.

    `labels_per_client` is one number, or one per client (FL-GAN on MNIST: 7, 3, 8, 4, 8, 6).
    """
    _enough_rows(data, clients)
    labels = _aligned(labels, data)
    names, code = np.unique(labels, return_inverse=True)
    counts = _label_counts(labels_per_client, clients, len(names))
    rng = np.random.default_rng(seed)
    sees = _dealt_labels(counts, len(names), rng)
    owner = np.empty(len(data), np.int64)
    for label in range(len(names)):
        rows = rng.permutation(np.flatnonzero(code == label))
        holders = rng.permutation(np.flatnonzero(sees[:, label]))
        if len(rows) < len(holders):
            raise DataError(
                f"expected at least {len(holders)} rows with label {names[label]}, one for each client that sees it, "
                f"got {len(rows)}; ask for fewer clients or labels per client"
            )
        owner[rows] = holders[np.arange(len(rows)) % len(holders)]
    how = f"{clients} clients with {', '.join(map(str, _distinct(counts)))} labels each, seed {seed}"
    return _dealt(data, owner, clients, how=how)


def _distinct(counts: list[int]) -> list[int]:
    return counts[:1] if len(set(counts)) == 1 else counts


def _label_counts(labels_per_client: int | Sequence[int], clients: int, labels: int) -> list[int]:
    given = np.asarray(labels_per_client)
    counts = [int(given)] * clients if given.ndim == 0 else [int(count) for count in given]
    if len(counts) != clients:
        raise out_of_range("labels_per_client", f"as one number, or {clients} numbers, one per client", counts)
    if min(counts) < 1 or max(counts) > labels:
        raise out_of_range("labels_per_client", f"in 1 to {labels}, the labels in the data", labels_per_client)
    if sum(counts) < labels:
        raise out_of_range(
            "labels_per_client", f"to add up to at least {labels}, so that every label has a client", labels_per_client
        )
    return counts


def _dealt_labels(counts: list[int], labels: int, rng: np.random.Generator) -> NumpyArray:
    """Which client sees which label: each takes those held least so far, so that none is left without a client."""
    sees = np.zeros((len(counts), labels), bool)
    for client, count in enumerate(counts):
        held = sees.sum(axis=0) + rng.random(labels)  # the fraction breaks ties
        sees[client, np.argsort(held)[:count]] = True
    return sees


def _shared_out(rng: np.random.Generator, rows: int, clients: int, alpha: float) -> NumpyArray:
    """An owner for each of `rows` rows, in numbers drawn with Dirichlet shares."""
    shares = rng.dirichlet(np.full(clients, alpha))
    return np.repeat(np.arange(clients), rng.multinomial(rows, shares))


def _dealt(data: Table | Images, owner: NumpyArray, clients: int, *, how: str) -> Clients:
    """Clients from the owner of each row; a client's rows stay in their order."""
    starts = np.append(0, np.cumsum(np.bincount(owner, minlength=clients)))
    return Clients(data=data, order=np.argsort(owner, kind="stable"), starts=starts, how=how)


def _aligned(labels: NumpyArray, data: Table | Images) -> NumpyArray:
    labels = np.asarray(labels)
    if labels.shape != (len(data),) or labels.dtype.kind not in "iu":
        raise DataError(
            f"expected labels as {len(data)} whole numbers, one per row, got {labels.dtype} of shape {labels.shape}"
        )
    return labels


def _enough_rows(data: Table | Images, clients: int) -> None:
    _at_least("clients", clients, 1)
    if clients > len(data):
        raise out_of_range(
            "clients", f"in 1 to {len(data)}, the number of rows", clients, advice="ask for fewer clients"
        )


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise out_of_range(name, f"of at least {least}", value)


def _positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise out_of_range(name, "above 0", value)
