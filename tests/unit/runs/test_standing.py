"""Which earlier runs used the same rows: the same file again, appended, split, columns dropped, written otherwise; persons."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pytest

from populace.privacy import events
from populace.privacy.run_ledger import RunLedger, make_ledger
from populace.privacy.run_totals import Cost
from populace.runs.ledger.accounts import Accounts
from populace.runs.ledger.standing import find_standing
from populace.runs.sources import PrivateData
from populace.tables.images import Images
from populace.tables.partition import split, split_by_column
from populace.tables.schema import schema_from_dict
from populace.tables.table import make_table

ROWS = 40
SCHEMA = {"column": [{"name": "colour", "kind": "categorical", "categories": ["0", "1", "2", "3"]}]}


def frame(first=0, last=ROWS, **more):
    numbers = np.arange(first, last)
    columns = {"colour": [str(n % 4) for n in numbers], "size": numbers * 0.5, "place": [f"p{n}" for n in numbers]}
    return pa.table({**columns, **more})


def private(table, *, schema=SCHEMA, by=None, each=1):
    made = make_table(table, schema_from_dict(schema))
    clients = split_by_column(table.column(by), made, name=by) if by else split(made, records_per_client=each)
    return PrivateData(clients=clients, frame=table)


def pure(epsilon=1.0, **more):
    cost = Cost(epsilon=epsilon, event=events.Pure(epsilon), unit="client", neighbours="replace", trust="local")
    return dataclasses.replace(cost, **more)


RECORD = {"unit": "record", "neighbours": "zero-out", "trust": "silo"}


class Books:
    """A ledger in a folder, and what is asked of it."""

    def __init__(self, folder):
        make_ledger(folder / "l.sqlite")
        self.ledger = RunLedger(folder / "l.sqlite")
        self.count = 0

    def stand(self, data, cost=None, *, by=None, each=1, others=False):
        accounts = Accounts(data, self.ledger.secret)
        return find_standing(
            self.ledger, accounts, cost or pure(), client_column=by, records_per_client=each, other_people=others
        )

    def book(self, data, cost=None, *, by=None, each=1):
        cost = cost or pure()
        standing = self.stand(data, cost, by=by, each=each)
        self.count += 1
        with self.ledger.transaction():
            self.ledger.book(
                booking=str(self.count), folder="", data="", rows=len(data.clients.data), method="", cost=cost,
                history={}, used=standing.used,
            )  # fmt: skip
        return standing


@pytest.fixture
def books(tmp_path):
    return Books(tmp_path)


def spent(standing):
    return standing.before.epsilon, standing.after.epsilon


def test_the_same_rows_add_and_other_rows_do_not(books):
    assert spent(books.book(private(frame()))) == (0, 1)
    assert spent(books.book(private(frame()), pure(2.0))) == (1, 3)
    assert spent(books.stand(private(frame(ROWS, 2 * ROWS)))) == (0, 1)
    assert books.stand(private(frame(ROWS, 2 * ROWS))).shared == ()


@pytest.mark.parametrize(
    ("name", "again"),
    {
        "appended": frame(0, 2 * ROWS),
        "removed": frame(0, 7),
        "one row left": frame(ROWS - 1, 2 * ROWS),
        "shuffled": frame().take(pa.array(np.random.default_rng(0).permutation(ROWS))),
        "columns in another order": frame().select(["size", "place", "colour"]),
        "a column more": frame().append_column("new", pa.array(np.arange(ROWS))),
        "written otherwise": frame(size=[f"{n * 0.5:.2f} " for n in range(ROWS)], place=[f"P{n}" for n in range(ROWS)]),
        "a column dropped": frame().select(["colour", "size"]),
        "one dropped, one derived": frame().select(["colour", "size"]).append_column("wide", pa.array([True] * ROWS)),
    }.items(),
)
def test_a_file_that_was_changed_is_recognised(books, name, again):
    books.book(private(frame()))
    assert spent(books.stand(private(again))) == (1, 2)


def test_the_worst_row_counts_and_not_the_sum_of_all(books):
    """Two halves and the whole: no row is in more than two of the three."""
    books.book(private(frame(0, 20)), pure(1.0))
    books.book(private(frame(20, 40)), pure(2.0))
    standing = books.book(private(frame()), pure(0.5))
    assert spent(standing) == (2, 2.5)
    assert len(standing.shared) == 2
    assert spent(books.stand(private(frame(0, 3)), pure(0.25))) == (1.5, 1.75)


def test_rows_that_are_alike_are_never_counted_too_little(books):
    twins = frame(0, 10).take(pa.array([0, 0, 0, 1]))
    books.book(private(twins))
    assert spent(books.book(private(frame(0, 1)))) == (1, 2)
    assert spent(books.stand(private(twins))) == (2, 3)


def test_another_table_beside_it_is_another_table(books):
    books.book(private(frame()))
    other = pa.table(
        {"colour": ["1"] * 5, "shop": list("abcde"), "sales": range(5), "city": list("vwxyz"), "x": range(5)}
    )
    assert books.stand(private(other)).shared == ()
    assert books.stand(private(other)).doubtful == ()


def test_names_that_differ_in_case_alone_are_two_columns_of_one_name(books):
    both = frame().append_column("Place", pa.array([f"q{n}" for n in range(ROWS)]))
    books.book(private(both))
    assert spent(books.stand(private(both))) == (1, 2)
    other = frame(ROWS, 2 * ROWS).append_column("Place", pa.array([f"q{n}" for n in range(ROWS)]))
    assert books.stand(private(other)).shared == ()


def test_an_id_tells_rows_apart_where_contents_changed(books):
    schema = {"column": [*SCHEMA["column"], {"name": "number", "kind": "id"}]}
    numbers = pa.array(np.arange(ROWS) + 1000)
    books.book(private(frame().append_column("number", numbers), schema=schema))
    edited = frame(place=["moved"] * ROWS).append_column("number", numbers)
    assert spent(books.stand(private(edited, schema=schema))) == (1, 2)
    fewer = frame().drop_columns(["size"]).append_column("number", pa.array(np.arange(ROWS) + 2000))
    assert books.stand(private(fewer, schema=schema)).shared == ()
    without = frame(place=["moved"] * ROWS)  # the id is gone: rows cannot be told, so all count
    assert spent(books.stand(private(without))) == (1, 2)


def persons(first=0, last=ROWS, each=4, **more):
    return frame(first, last, person=[f"w{n // each}" for n in range(first, last)], **more)


def test_a_client_column_is_the_account_of_the_person(books):
    one = books.book(private(persons(), by="person"), pure(records=4), by="person")
    assert (one.per, one.after.unit, spent(one)) == ("person", "client", (0, 1))
    later = persons(place=["new"] * ROWS, size=np.arange(ROWS) + 0.25)  # other visits of the same persons
    again = books.book(private(later, by="person"), pure(records=4), by="person")
    assert spent(again) == (1, 2)
    renamed = later.rename_columns([name.upper() for name in later.column_names])
    schema = {"column": [{**SCHEMA["column"][0], "name": "COLOUR"}]}
    loud = books.stand(private(renamed, schema=schema, by="PERSON"), pure(records=4), by="PERSON")
    assert (loud.per, spent(loud), loud.doubtful) == ("person", (2, 3), ())
    others = persons(100, 140)
    assert books.stand(private(others, by="person"), pure(records=4), by="person").shared == ()


def test_units_are_not_mixed(books):
    """A client pays for all of its rows, and no bound per row says how much that is."""
    row = pure(**RECORD)
    books.book(private(persons()), row)
    client = books.stand(private(persons(), by="person"), pure(records=4), by="person")
    assert len(client.strangers) == 1
    assert client.after.unit == "record"
    assert client.after.epsilon == 3  # replacement: zero-out counts twice
    books.book(private(persons(), by="person"), pure(records=4), by="person")
    assert books.stand(private(persons()), row).strangers
    assert books.stand(private(persons(200, 240)), row).strangers == ()
    later = persons(
        place=["new"] * ROWS, size=np.arange(ROWS) + 0.25
    )  # other rows of persons that were promised something
    assert books.stand(private(later), row).strangers


def test_one_row_each_makes_rows_and_clients_the_same(books):
    single = persons(each=1)
    books.book(private(single), pure(**RECORD, epsilon=0.5, event=events.Pure(0.5)))
    client = books.book(private(single, by="person"), pure(neighbours="zero-out"), by="person")
    assert (client.strangers, client.per, spent(client)) == ((), "person", (0.5, 1.5))
    rows = books.book(private(single), pure(**RECORD))
    assert (rows.strangers, spent(rows)) == ((), (1.5, 2.5))
    repeated = pa.concat_tables([single, single.slice(0, 1)])  # somebody has two rows now
    assert books.stand(private(repeated), pure(**RECORD)).strangers


def test_simulated_clients_that_stay_the_same_add_as_clients(books):
    cost = pure(neighbours="zero-out", trust="central", records=4)
    books.book(private(frame(), each=4), cost, each=4)
    same = books.stand(private(frame(), each=4), cost, each=4)
    assert (same.after.unit, spent(same)) == ("client", (1, 2))
    shifted = books.stand(private(frame(1), each=4), cost, each=4)
    assert (shifted.after.unit, spent(shifted)) == ("record", (2, 4))  # one of several rows: taken out and put back


def test_images(books):
    rng = np.random.default_rng(0)
    images = Images(x=rng.integers(0, 255, (30, 4, 4), np.uint8), y=np.arange(30) % 3, classes=3)

    def data(rows):
        return PrivateData(clients=split(images.take(np.array(rows))), frame=None)

    books.book(data(range(20)), pure(**RECORD))
    assert spent(books.stand(data(range(15, 30)), pure(**RECORD))) == (1, 2)
    others = books.stand(data(range(20, 30)), pure(**RECORD))
    assert (spent(others), len(others.doubtful)) == ((0, 1), 1)
    assert books.stand(data(range(20, 30)), pure(**RECORD), others=True).doubtful == ()
    relabelled = Images(x=images.x, y=(images.y + 1) % 3, classes=3)
    again = PrivateData(clients=split(relabelled.take(np.arange(20))), frame=None)
    assert spent(books.stand(again, pure(**RECORD))) == (1, 2)


def test_digests_are_keyed_and_hold_nothing_that_can_be_guessed(books, tmp_path):
    data = private(frame())
    first, second = (Accounts(data, bytes([key]) * 32) for key in (1, 2))
    assert not set(first.rows(first.columns).tolist()) & set(second.rows(second.columns).tolist())
    books.book(data)
    books.ledger.close()
    stored = (tmp_path / "l.sqlite").read_bytes()
    assert b"p17" not in stored
    assert json.dumps(["colour", "place", "size"]).encode() in stored  # the names of columns are
