"""The same people exported again: recognised, or at least doubted; and other people, who need the owner's word."""

import csv
import datetime
import unicodedata

import numpy as np
import pytest

from populace.privacy import events
from populace.privacy.run_ledger import RunLedger, make_ledger
from populace.privacy.run_totals import Cost
from populace.runs.given import read_private
from populace.runs.ledger.accounts import Accounts
from populace.runs.ledger.standing import find_standing

ROWS = 120
COLUMNS = ["patient", "age", "weight", "ward", "admitted", "smoker", "zip"]
COST = Cost(epsilon=1.0, event=events.Pure(1.0), unit="record", neighbours="zero-out", trust="silo")


def people(seed=0, rows=ROWS):
    rng = np.random.default_rng(seed)
    first = datetime.date(2024, 1, 1)
    return [
        [
            f"P{seed}{i:04d}", str(rng.integers(20, 90)), f"{rng.uniform(50, 110):.2f}",
            str(rng.choice(["Köln", "Süd", "Nord"])),
            str(first + datetime.timedelta(days=int(rng.integers(0, 300)))), str(rng.choice(["yes", "no"])),
            f"0{rng.integers(1000, 1003)}",
        ]
        for i in range(rows)
    ]  # fmt: skip


def written(path, columns, rows, sep=","):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=sep).writerows([columns, *rows])
    return read_private(str(path))


def each(column, change):
    """The people, with one column written otherwise."""
    at = COLUMNS.index(column)
    return [[*row[:at], change(row[at], i), *row[at + 1 :]] for i, row in enumerate(people())]


def german(text, _):
    return datetime.date.fromisoformat(text).strftime("%d.%m.%Y")


def american(text, _):
    day = datetime.date.fromisoformat(text)
    return f"{day.month}/{day.day}/{day.year}"


class Books:
    def __init__(self, folder):
        make_ledger(folder / "l.sqlite")
        self.folder, self.ledger, self.count = folder, RunLedger(folder / "l.sqlite"), 0

    def stand(self, columns, rows, *, others=False, **more):
        data = written(self.folder / "again.csv", columns, rows, **more)
        accounts = Accounts(data, self.ledger.secret)
        return find_standing(self.ledger, accounts, COST, client_column=None, other_people=others)

    def book(self, columns, rows, **more):
        standing = self.stand(columns, rows, **more)
        self.count += 1
        with self.ledger.transaction():
            self.ledger.book(
                booking=str(self.count), folder="", data="", rows=len(rows), method="", cost=COST, history={},
                used=standing.used,
            )  # fmt: skip
        return standing


@pytest.fixture
def books(tmp_path):
    return Books(tmp_path)


def without_id(columns, rows):
    return [name for name in columns if name != "patient"], [row[1:] for row in rows]


AGAIN = {
    "as it was": (COLUMNS, people(), {}),
    "decimals with comma": (COLUMNS, each("weight", lambda text, _: text.replace(".", ",")), {"sep": ";"}),
    "scientific numbers": (COLUMNS, each("weight", lambda text, _: f"{float(text):.5e}"), {}),
    "leading zeros gone": (COLUMNS, each("zip", lambda text, _: str(int(text))), {}),
    "dates of Germany": (COLUMNS, each("admitted", german), {}),
    "dates of America": (COLUMNS, each("admitted", american), {}),
    "true and false": (COLUMNS, each("smoker", lambda text, _: {"yes": "true", "no": "false"}[text]), {}),
    "accents apart": (COLUMNS, each("ward", lambda text, _: unicodedata.normalize("NFD", text)), {}),
    "names in capitals": ([name.upper() for name in COLUMNS], people(), {}),
    "names with spaces": ([f" {name} " for name in COLUMNS], people(), {}),
    "stamped": ([*COLUMNS, "exported"], [[*row, "2026-11-18"] for row in people()], {}),
    "numbered": (["row", *COLUMNS], [[i, *row] for i, row in enumerate(people())], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", AGAIN)
@pytest.mark.parametrize("ids", [True, False])
def test_an_export_in_another_dress_is_recognised(books, name, ids):
    columns, rows, more = AGAIN[name]
    first = (COLUMNS, people())
    if not ids:
        at = 1 if name == "numbered" else 0
        first, columns = without_id(*first), [column for column in columns if "patient" not in column.lower()]
        rows = [[*row[:at], *row[at + 1 :]] for row in rows]
    books.book(*first)
    found = books.stand(columns, rows, **more)
    assert (found.after.epsilon, found.doubtful) == (2, ())
    again = books.stand(columns, rows, others=True, **more)
    assert again.after.epsilon == 2  # saying that they are others does not make them so


def test_ids_drawn_anew_are_recognised_by_the_rest(books):
    books.book(COLUMNS, people())
    drawn = each("patient", lambda _, i: f"Q{i * 7919 % 10007:05d}")
    for others in (False, True):
        found = books.stand(COLUMNS, drawn, others=others)
        assert (found.after.epsilon, found.doubtful) == (2, ())


def stamped(day, shift):
    """An export with its day in every row, another clock time in each, and rows numbered from another place on."""
    rows = [
        [f"2026-11-{day} 03:00:{i % 60:02d}.{i:03d}", day, (i + shift) % ROWS, *row[1:]]
        for i, row in enumerate(people())
    ]
    return ["read at", "exported", "row", *COLUMNS[1:]], rows


def test_what_is_new_in_every_export_hides_nothing(books):
    books.book(*stamped("17", 0))
    found = books.stand(*stamped("18", 41))
    assert (found.after.epsilon, found.doubtful) == (2, ())


def test_other_people_under_the_same_columns_are_a_doubt_until_the_owner_speaks(books):
    books.book(COLUMNS, people())
    doubted = books.stand(COLUMNS, people(1))
    assert (doubted.shared, doubted.after.epsilon, len(doubted.doubtful)) == ((), 1, 1)
    said = books.book(COLUMNS, people(1), others=True)
    assert (said.shared, said.doubtful) == ((), ())
    assert len(books.stand(COLUMNS, people(2)).doubtful) == 2
    half = people()[:60] + people(2)[:60]  # what is known counts, whatever is said of the rest
    assert books.stand(COLUMNS, half, others=True).after.epsilon == 2


def test_the_same_people_a_year_older_are_a_doubt(books):
    first = without_id(COLUMNS, people())
    books.book(*first)
    older = without_id(COLUMNS, each("age", lambda text, _: str(int(text) + 1)))
    found = books.stand(*older)
    assert (found.shared, len(found.doubtful)) == ((), 1)
    few = older[1][: ROWS - 5] + first[1][:5]  # a few that were not touched do not settle it
    found = books.stand(older[0], few)
    assert (found.after.epsilon, len(found.doubtful)) == (2, 1)


def test_a_table_that_grows_is_no_doubt_and_one_with_other_columns_neither(books):
    books.book(COLUMNS, people()[:10])
    grown = books.stand(COLUMNS, people() + people(1, rows=100))
    assert (grown.after.epsilon, grown.doubtful) == (2, ())
    other = books.stand([f"x {name}" for name in COLUMNS[:5]] + COLUMNS[5:], people())
    assert (other.shared, other.doubtful) == ((), ())


def test_columns_that_went_count_all_rows_until_the_owner_speaks(books):
    books.book(*without_id(COLUMNS, people()))
    fewer = COLUMNS[2:], [row[2:] for row in people(1)]
    assert books.stand(*fewer).after.epsilon == 2
    assert books.stand(*fewer, others=True).shared == ()


def test_a_core_that_tells_nobody_apart_is_not_kept(books):
    """Few columns with few values: others would match by chance, so only the doubt is left."""
    columns = ["patient", "ward", "smoker"]
    few = [[row[0], row[3], row[5]] for row in people()]
    assert [kind for kind, _ in books.book(columns, few).used if kind == "core"] == []
    found = books.stand(columns, [[f"Q{i}", *row[1:]] for i, row in enumerate(few)])
    assert (found.shared, len(found.doubtful)) == ((), 1)
    assert [kind for kind, _ in books.stand(COLUMNS, people()).used if kind == "core"] == ["core"]
