from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from populace.errors import DataError, InputError, SpecError
from populace.tables.images import Images
from populace.tables.partition import (
    Clients,
    split,
    split_by_column,
    split_dirichlet,
    split_even,
    split_labels,
    split_quantity,
)
from populace.tables.schema import Column, Schema
from populace.tables.table import Table

from .strategies import FAST


def table(rows: int, columns: int = 3) -> Table:
    """Codes that tell the row: 1 + row number, plus the column."""
    schema = Schema(columns=tuple(Column(name=f"c{i}", kind="categorical", categories=("a",)) for i in range(columns)))
    codes = (1 + np.arange(rows)[:, None] + np.arange(columns)).astype(np.int32)
    return Table(schema=schema, codes=codes, frame=pa.table({f"c{i}": ["a"] * rows for i in range(columns)}))


def images(rows: int) -> Images:
    x = np.arange(1, rows + 1, dtype=np.uint8)[:, None, None].repeat(2, 1).repeat(2, 2)
    return Images(x=x, y=np.arange(rows) % 10, classes=10)


def rows_of(clients: Clients, client: int) -> list[int]:
    return clients.order[clients.starts[client] : clients.starts[client + 1]].tolist()


def slowly(clients: Clients, cohort: list[int], width: int) -> tuple[np.ndarray, np.ndarray]:
    """What `gather` does, one client at a time."""
    codes = clients.data.codes
    records = np.zeros((len(cohort), width, codes.shape[1]), np.int32)
    mask = np.zeros((len(cohort), width), bool)
    for slot, client in enumerate(cohort):
        for place, row in enumerate(rows_of(clients, client) if client >= 0 else ()):
            records[slot, place], mask[slot, place] = codes[row], True
    return records, mask


@FAST
@given(st.data())
def test_gather_agrees_with_one_client_at_a_time(data: st.DataObject) -> None:
    rows, many = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 12))
    clients = split_quantity(table(rows), clients=many, alpha=0.5, seed=data.draw(st.integers(0, 99)))
    cohort = data.draw(st.lists(st.integers(-1, many - 1), max_size=10))
    width = clients.widest + data.draw(st.integers(0, 3))
    records, mask = clients.gather(np.array(cohort, int), width)
    slow_records, slow_mask = slowly(clients, cohort, width)
    assert records.dtype == np.int32
    assert np.array_equal(records, slow_records)
    assert np.array_equal(mask, slow_mask)


def test_gather_pads_images_with_zeros() -> None:
    clients = split(images(5), records_per_client=2)
    records, mask = clients.gather(np.array([2, -1, 0]))
    assert records["x"].shape == (3, 2, 2, 2)
    assert records["x"].dtype == np.uint8
    assert records["x"][:, :, 0, 0].tolist() == [[5, 0], [0, 0], [1, 2]]
    assert records["y"].tolist() == [[4, 0], [0, 0], [0, 1]]
    assert mask.tolist() == [[True, False], [False, False], [True, True]]


def test_gather_of_nobody_is_empty() -> None:
    records, mask = split(table(3)).gather(np.array([], int))
    assert records.shape == (0, 1, 3)
    assert mask.shape == (0, 1)


def test_a_million_clients_are_gathered_at_once() -> None:
    data = table(1)
    big = Table(schema=data.schema, codes=np.ones((1_000_000, 10), np.int32), frame=data.frame)
    clients = split(big)
    began = time.perf_counter()
    records, mask = clients.gather(np.arange(1_000_000))
    assert time.perf_counter() - began < 1.0
    assert records.shape == (1_000_000, 1, 10)
    assert mask.all()


@pytest.mark.parametrize("wrong", [-2, 3])
def test_unknown_clients_are_refused(wrong: int) -> None:
    with pytest.raises(SpecError, match=f"expected client numbers in -1 to 2, got {wrong}"):
        split(table(3)).gather(np.array([0, wrong]))


def test_a_client_wider_than_the_width_is_refused() -> None:
    clients = split(table(7), records_per_client=3)
    assert clients.gather(np.array([2]), 1)[1].tolist() == [[True]]
    with pytest.raises(SpecError, match="expected width of at least 3, the records of client 1, got 2"):
        clients.gather(np.array([2, 1]), 2)


def test_split_keeps_the_order_and_the_last_client_may_hold_fewer() -> None:
    clients = split(table(7), records_per_client=3)
    assert len(clients) == 3
    assert clients.widths.tolist() == [3, 3, 1]
    assert clients.widest == 3
    assert [rows_of(clients, i) for i in range(3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert clients.how == "3 records per client"
    assert split(table(2)).how == "1 record per client"
    assert len(split(table(2), records_per_client=9)) == 1
    with pytest.raises(SpecError, match="expected records_per_client of at least 1, got 0"):
        split(table(2), records_per_client=0)


IDS = ["b", "a", "b", "c", "a"]


@pytest.mark.parametrize(
    "ids",
    [
        pa.array(IDS),
        pa.chunked_array([IDS[:2], IDS[2:]]),
        pa.array(IDS).dictionary_encode(),
        pa.DictionaryArray.from_arrays([1, 0, 1, 2, 0], ["a", "b", "c", "unused"]),
        np.array(IDS),
        np.array(IDS, object),
        np.array([7, 3, 7, 9, 3]),
        np.array([0.5, 0.25, 0.5, 1.0, 0.25]),
    ],
    ids=lambda ids: f"{type(ids).__name__}-{getattr(ids, 'dtype', '')}",
)
def test_clients_named_by_a_column_come_in_order_of_appearance(ids: object) -> None:
    clients = split_by_column(ids, table(5), name="site")
    assert [rows_of(clients, i) for i in range(len(clients))] == [[0, 2], [1, 4], [3]]
    assert clients.how == "one client per value of column 'site'"


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (pa.array(["a", None, "b"]), "the client column 'c' has no value in row 2"),
        (np.array([1.0, 2.0, np.nan]), "the client column 'c' has no value in row 3"),
        (np.array(["a", "b", None], object), "the client column 'c' has no value in row 3"),
        (pa.array(["a"] * 3), "expected at least two clients, the client column 'c' names one"),
        (pa.array(["a", "b"]), "expected 3 values in the client column 'c', one per row, got 2"),
        (np.array([1, "x", 2.5], object), "cannot tell clients apart by column 'c'"),
    ],
)
def test_a_client_column_that_cannot_be_used(ids: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        split_by_column(ids, table(3), name="c")


LABELS = np.repeat(np.arange(10), 60)


def counts(clients: Clients, labels: np.ndarray = LABELS) -> np.ndarray:
    """Rows by client and label."""
    found = np.zeros((len(clients), int(labels.max()) + 1), int)
    for client in range(len(clients)):
        np.add.at(found[client], labels[rows_of(clients, client)], 1)
    return found


def is_partition(clients: Clients) -> bool:
    return sorted(clients.order.tolist()) == list(range(len(clients.data))) and clients.widths.sum() == len(
        clients.data
    )


def test_even_clients_differ_by_one_record_at_most() -> None:
    clients = split_even(table(100), clients=7, seed=3)
    assert is_partition(clients)
    assert set(clients.widths) == {14, 15}
    assert rows_of(clients, 0) != list(range(15))
    with pytest.raises(SpecError, match="expected clients in 1 to 100, the number of rows, got 101"):
        split_even(table(100), clients=101, seed=3)


def test_quantity_skew_grows_as_alpha_falls() -> None:
    skewed = split_quantity(table(2_000), clients=10, alpha=0.2, seed=0)
    even = split_quantity(table(2_000), clients=10, alpha=1_000, seed=0)
    assert is_partition(skewed)
    assert is_partition(even)
    assert skewed.widths.std() > 5 * even.widths.std()
    assert (split_quantity(table(5), clients=50, alpha=0.01, seed=0).widths == 0).any()


def test_label_skew_grows_as_alpha_falls() -> None:
    def largest_share(alpha: float) -> float:
        clients = split_dirichlet(table(600), labels=LABELS, clients=5, alpha=alpha, seed=1)
        assert is_partition(clients)
        return float((counts(clients).max(axis=0) / 60).mean())

    assert largest_share(0.05) > 0.7
    assert largest_share(1_000) < 0.35


@pytest.mark.parametrize("per_client", [2, 3, 10, [7, 3, 8, 4, 8, 6], np.int64(4), np.array([10, 1, 1, 1, 1, 1])])
def test_each_client_sees_so_many_labels_and_each_label_has_a_client(per_client: object) -> None:
    clients = split_labels(table(600), labels=LABELS, clients=6, labels_per_client=per_client, seed=0)
    assert is_partition(clients)
    found = counts(clients)
    assert (found > 0).sum(axis=1).tolist() == np.broadcast_to(per_client, 6).tolist()
    assert (found.sum(axis=0) == 60).all()
    held = np.where(found > 0, found, 60)
    assert (found.max(axis=0) - held.min(axis=0) <= 1).all()


def test_labels_need_not_be_numbered_from_zero() -> None:
    clients = split_labels(table(4), labels=np.array([-5, 8, -5, 8]), clients=2, labels_per_client=1, seed=0)
    assert sorted(rows_of(clients, i) for i in range(2)) == [[0, 2], [1, 3]]
    assert clients.how == "2 clients with 1 labels each, seed 0"


@pytest.mark.parametrize(
    ("clients", "per_client", "message"),
    [
        (3, 3, "expected labels_per_client to add up to at least 10"),
        (3, 11, "expected labels_per_client in 1 to 10, the labels in the data, got 11"),
        (3, [5, 5, 0], "expected labels_per_client in 1 to 10"),
        (3, [5, 5], "expected labels_per_client as one number, or 3 numbers, one per client"),
        (0, 3, "expected clients of at least 1, got 0"),
        (500, 10, "expected at least 500 rows with label 0, one for each client that sees it, got 60"),
    ],
)
def test_impossible_label_splits_are_explained(clients: int, per_client: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        split_labels(table(600), labels=LABELS, clients=clients, labels_per_client=per_client, seed=0)


def test_arguments_are_checked() -> None:
    for alpha in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(SpecError, match="expected alpha above 0"):
            split_quantity(table(4), clients=2, alpha=alpha, seed=0)
        with pytest.raises(SpecError, match="expected alpha above 0"):
            split_dirichlet(table(4), labels=np.zeros(4, int), clients=2, alpha=alpha, seed=0)
    for labels in (np.zeros(3, int), np.zeros(4), np.zeros((4, 1), int)):
        with pytest.raises(DataError, match="expected labels as 4 whole numbers, one per row"):
            split_dirichlet(table(4), labels=labels, clients=2, alpha=1, seed=0)


@pytest.mark.parametrize("kind", ["even", "quantity", "dirichlet", "labels"])
def test_the_same_seed_gives_the_same_clients(kind: str) -> None:
    def made(seed: int) -> Clients:
        data = table(600)
        if kind == "even":
            return split_even(data, clients=4, seed=seed)
        if kind == "quantity":
            return split_quantity(data, clients=4, alpha=1, seed=seed)
        if kind == "dirichlet":
            return split_dirichlet(data, labels=LABELS, clients=4, alpha=1, seed=seed)
        return split_labels(data, labels=LABELS, clients=4, labels_per_client=3, seed=seed)

    first, again, other = made(5), made(5), made(6)
    assert np.array_equal(first.order, again.order)
    assert np.array_equal(first.starts, again.starts)
    assert not np.array_equal(first.order, other.order)
    assert f"seed {5}" in first.how


@pytest.mark.parametrize(
    ("order", "starts"),
    [([0, 1, 1], [0, 3]), ([0, 1], [0, 2]), ([0, 1, 3], [0, 3]), ([0, 1, 2], [0, 2]), ([0, 1, 2], [0, 4, 3]),
     ([0, 1, 2], [1, 3]), ([0, 1, 2], [0])],
)  # fmt: skip
def test_what_is_not_a_partition_is_refused(order: list[int], starts: list[int]) -> None:
    with pytest.raises(DataError, match="expected"):
        Clients(data=table(3), order=np.array(order), starts=np.array(starts), how="")
