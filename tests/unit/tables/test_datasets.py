from __future__ import annotations

import bz2
import gzip
import math
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from populace.errors import DataError, InputError
from populace.tables import datasets
from populace.tables.datasets import domains, registry
from populace.tables.images import Images
from populace.tables.table import Table

BESIDE = Path(__file__).parents[4] / "shared" / "data"
FOLDER = Path(os.environ.get(datasets.VARIABLE) or BESIDE)

ADULT = [
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
    "United-States, <=50K",
    "50, ?, 83311, HS-grad, 9, Married-civ-spouse, ?, Husband, Black, Male, 0, 0, 13, ?, >50K",
    "28, Private, 338409, Bachelors, 13, Married-civ-spouse, Prof-specialty, Wife, Black, Female, 0, 0, 40, Cuba, >50K",
]
BANK = """"age";"job";"marital";"education";"default";"balance";"housing";"loan";"contact";"day";"month";"duration";\
"campaign";"pdays";"previous";"poutcome";"y"
58;"management";"married";"tertiary";"no";2143;"yes";"no";"unknown";5;"may";261;1;-1;0;"unknown";"no"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(datasets.VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    if not FOLDER.is_dir():
        pytest.skip(f"set {datasets.VARIABLE} to the folder of public data sets to run this")
    monkeypatch.setenv(datasets.VARIABLE, str(FOLDER))


def load(name: str, split: str = "train") -> Table | Images:
    """A published set, or a skip where its files are not there."""
    try:
        return datasets.load(name, split)
    except InputError as error:
        if isinstance(error, DataError):
            raise
        pytest.skip(str(error))


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("adult", {"train": 32_561, "test": 16_281}, 15),
        ("adult9", {"train": 30_162, "test": 15_060}, 9),
        ("a9a", {"train": 32_561, "test": 16_281}, 124),
        ("bank", {"train": 36_168, "test": 9_043}, 17),
        ("diabetes130", {"train": 81_403, "test": 20_363}, 48),
    ],
)
def test_published_tables_have_their_rows_and_columns(name: str, rows: dict[str, int], columns: int) -> None:
    for split, count in {**rows, "all": sum(rows.values())}.items():
        table = load(name, split)
        assert len(table) == count
        assert len(table.schema.columns) == columns
        assert table.schema.target == table.schema.names[-1]
        assert table.schema.read_from_data == (domains.DIABETES_READ if name == "diabetes130" else ())
        assert all(column.source for column in table.schema.columns if column.domain == "declared")


@pytest.mark.usefixtures("published")
def test_a_patient_is_in_one_part_and_ids_are_not_modelled() -> None:
    train, test = load("diabetes130"), load("diabetes130", "test")
    assert [other.name for other in train.schema.others] == ["encounter_id", "patient_nbr"]
    assert train.schema == test.schema
    assert train.schema.column("admission_source_id").kind == "categorical"
    persons = pa.chunked_array([["a", "b", "a", "c", "d", "e", "f", "b"]])
    parts = [set(registry.split_persons(persons, part).tolist()) for part in ("train", "test")]
    assert parts[0] | parts[1] == set(range(8))
    assert not parts[0] & parts[1]
    assert (0 in parts[0]) == (2 in parts[0])
    assert (1 in parts[0]) == (7 in parts[0])


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_published_images_have_their_shape(name: str) -> None:
    test = load(name, "test")
    assert (len(test), test.shape, test.classes, test.domain) == (10_000, (28, 28), 10, "declared")
    assert np.bincount(test.y).min() > 800


@pytest.mark.usefixtures("published")
def test_published_counts() -> None:
    adult = load("adult", "all")
    assert np.bincount(adult.codes[:, -1]).tolist() == [37_155, 11_687]
    a9a = load("a9a", "all")
    assert np.array_equal(a9a.codes[:, -1], adult.codes[:, -1])
    complete = load("adult9")
    used = [len(np.unique(column)) for column in complete.codes.T]
    assert used == list(complete.schema.sizes)


def test_domains_have_the_sizes_of_the_papers() -> None:
    adult9 = domains.adult9().sizes
    assert adult9 == (7, 16, 7, 14, 6, 5, 2, 41, 2)
    assert round(math.log2(math.prod(adult9)), 1) == 25.7
    census = domains.census1990()
    assert (len(census.sizes), sum(census.sizes), round(math.log2(math.prod(census.sizes)))) == (68, 396, 150)
    assert census.target == "dYrsserv"
    twitter = domains.twitter()
    assert twitter.sizes == (5,) * 78
    assert domains.vehicle().sizes == (2,) * 101
    assert domains.a9a().sizes == (2,) * 124
    assert domains.a9a().column("label").categories == ("-1", "1")


@pytest.mark.usefixtures("folder")
def test_names_and_descriptions() -> None:
    assert datasets.names() == (
        "adult", "adult9", "a9a", "bank", "diabetes130", "mnist", "fashion_mnist", "census1990", "twitter", "vehicle",
    )  # fmt: skip
    for name in datasets.names():
        assert "Files: " in datasets.describe(name)
        assert "Published at http" in datasets.describe(name)
    with pytest.raises(InputError, match=r"expected a data set in adult, adult9, .*, got 'iris'"):
        datasets.describe("iris")
    with pytest.raises(InputError, match="expected split in train, test, all, got 'dev'"):
        datasets.load("adult", "dev")


def test_missing_files_and_an_unset_folder_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(datasets.VARIABLE, raising=False)
    with pytest.raises(InputError, match=r"'adult' needs adult.parquet, or adult.data with adult.test \(published at"):
        datasets.load("adult")
    with pytest.raises(InputError, match="set the environment variable POPULACE_DATA to it"):
        datasets.load("mnist")
    monkeypatch.setenv(datasets.VARIABLE, str(tmp_path))
    (tmp_path / "adult.data").write_text("\n".join(ADULT))
    with pytest.raises(InputError, match=rf"but {tmp_path}/adult and {tmp_path} lack them; put them there"):
        datasets.load("adult", "test")


def test_adult_as_published(folder: Path) -> None:
    (folder / "adult").mkdir()
    (folder / "adult" / "adult.data").write_text("\n".join(ADULT) + "\n\n")
    (folder / "adult" / "adult.test").write_text(
        "|1x3 Cross validator\n" + "\n".join(f"{a}." for a in ADULT[:2]) + "\n"
    )
    train = datasets.load("adult", verify=False)
    assert train.frame.column("age").to_pylist() == [39, 50, 28]
    assert train.frame.column("workclass").to_pylist() == ["State-gov", "?", "Private"]
    assert train.frame.column("income").to_pylist() == ["<=50K", ">50K", ">50K"]
    assert datasets.load("adult", "test", verify=False).codes.tolist() == train.codes[:2].tolist()
    assert len(datasets.load("adult", "all", verify=False)) == 5
    nine = datasets.load("adult9", verify=False)
    assert nine.frame.column("native-country").to_pylist() == ["United-States", "Cuba"]
    with pytest.raises(
        DataError, match=r"the checksum of .*adult.data is not the published one: expected sha256 5b002"
    ):
        datasets.load("adult")


def test_adult_converted_comes_first_and_by_split(folder: Path) -> None:
    rows = [dict(zip(domains.ADULT_COLUMNS, line.split(", "), strict=True)) for line in ADULT]
    frame = pa.Table.from_pylist(
        [{**row, "split": split} for row, split in zip(rows, ("train", "test", "train"), strict=True)]
    )
    pyarrow.parquet.write_table(frame, folder / "adult.parquet")
    (folder / "adult.data").write_text("not read")
    assert datasets.load("adult", verify=False).frame.column("age").to_pylist() == [39, 28]
    assert datasets.load("adult", "test", verify=False).frame.column("age").to_pylist() == [50]


def test_bank_as_published(folder: Path) -> None:
    (folder / "bank-full.csv").write_text(BANK)
    table = datasets.load("bank", "all", verify=False)
    assert table.frame.to_pylist()[0]["balance"] == 2143
    assert table.frame.column("job").to_pylist() == ["management"]


def test_a9a_as_published(folder: Path) -> None:
    (folder / "a9a").mkdir()
    (folder / "a9a" / "a9a").write_text("-1 3:1 123:1 \n+1 1:1 2:1\n")
    (folder / "a9a" / "a9a.t").write_text("+1 5:1\n")
    train = datasets.load("a9a", verify=False)
    assert train.frame.column("label").to_pylist() == [-1, 1]
    assert [np.flatnonzero(row[:-1]).tolist() for row in train.codes] == [[2, 122], [0, 1]]
    assert len(datasets.load("a9a", "all", verify=False)) == 3
    (folder / "a9a" / "a9a").write_text("-1 3:1\n+1 124:1\n")
    with pytest.raises(DataError, match=r"cannot read .*a9a: line 2 is not a label and index:value pairs .* 1 to 123"):
        datasets.load("a9a", verify=False)
    (folder / "a9a" / "a9a").write_text("one 3:1\n")
    with pytest.raises(DataError, match="cannot read"):
        datasets.load("a9a", verify=False)


def idx(magic: int, array: np.ndarray) -> bytes:
    return np.array([magic, *array.shape], ">u4").tobytes() + array.tobytes()


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_mnist_as_published(pack: object, folder: Path) -> None:
    ending = ".gz" if pack is gzip.compress else ""
    x = np.arange(3 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(3, 28, 28)
    y = np.array([4, 9, 0], np.uint8)
    (folder / f"t10k-images-idx3-ubyte{ending}").write_bytes(pack(idx(2051, x)))
    (folder / f"t10k-labels-idx1-ubyte{ending}").write_bytes(pack(idx(2049, y)))
    for name in ("mnist", "fashion_mnist"):
        images = datasets.load(name, "test", verify=False)
        assert np.array_equal(images.x, x)
        assert images.y.tolist() == [4, 9, 0]
        assert images.classes == 10
        with pytest.raises(DataError, match="is not the published one"):
            datasets.load(name, "test")
    (folder / f"t10k-images-idx3-ubyte{ending}").write_bytes(pack(idx(2051, x)[:-1]))
    with pytest.raises(DataError, match="expected 2352 bytes after the header, got 2351; the file may be truncated"):
        datasets.load("mnist", "test", verify=False)
    (folder / f"t10k-images-idx3-ubyte{ending}").write_bytes(pack(idx(2049, x)))
    with pytest.raises(DataError, match="it does not begin with the magic number 2051"):
        datasets.load("mnist", "test", verify=False)
    (folder / f"t10k-images-idx3-ubyte{ending}").write_bytes(b"")
    with pytest.raises(DataError, match="cannot read"):
        datasets.load("mnist", "test", verify=False)


def test_mnist_converted(folder: Path) -> None:
    x = np.zeros((2, 28, 28), np.uint8)
    np.savez(folder / "mnist.npz", x_train=x, y_train=np.array([1, 2], np.uint8), x_test=x[:1], y_test=np.array([3]))
    assert datasets.load("mnist", verify=False).y.tolist() == [1, 2]
    assert datasets.load("mnist", "all", verify=False).y.tolist() == [1, 2, 3]
    np.savez(folder / "mnist.npz", x_train=x)
    with pytest.raises(DataError, match=r"cannot read .*mnist.npz: .*y_train"):
        datasets.load("mnist", verify=False)


def test_census_as_published(folder: Path) -> None:
    schema = domains.census1990()
    first = [column.categories[0] for column in schema.columns]
    last = [column.categories[-1] for column in schema.columns]
    lines = [",".join(["caseid", *schema.names])] + [
        ",".join([str(10_000 + i), *row]) for i, row in enumerate([first, last])
    ]
    (folder / "census1990").mkdir()
    (folder / "census1990" / "USCensus1990.data.txt").write_text("\n".join(lines) + "\n")
    table = datasets.load("census1990", "all")
    assert table.codes[0].tolist() == [0] * 68
    assert table.codes[1].tolist() == [size - 1 for size in schema.sizes]


def test_twitter_in_five_bins(folder: Path) -> None:
    low, high, beyond = ["0"] * 78, ["1"] * 78, ["1e9"] * 78
    (folder / "Twitter.data").write_text("\n".join(",".join(row) for row in (low, high, beyond)) + "\n")
    table = datasets.load("twitter", "all")
    assert table.schema.names[:8] == ("NCD_0", "NCD_1", "NCD_2", "NCD_3", "NCD_4", "NCD_5", "NCD_6", "AI_0")
    assert table.codes[0].tolist() == [0] * 78
    assert table.codes[2].tolist() == [4] * 78
    assert table.codes[1, [0, 14, 21, 49, 77]].tolist() == [1, 4, 4, 1, 1]


def test_vehicle_is_binary(folder: Path) -> None:
    (folder / "combined").write_text("1 1:0.5 2:-0.5\n2 100:1e-3\n3 1:-1\n")
    (folder / "combined.t.bz2").write_bytes(bz2.compress(b"3 1:1\n"))
    train = datasets.load("vehicle")
    assert train.frame.column("label").to_pylist() == [1, 1, 0]
    assert [np.flatnonzero(row[:-1]).tolist() for row in train.codes] == [[0], [99], []]
    assert datasets.load("vehicle", "test").codes[0, [0, -1]].tolist() == [1, 0]
    (folder / "combined_scale").write_text("1 2:1\n")
    assert datasets.load("vehicle").codes[0, :2].tolist() == [0, 1]
    (folder / "combined_scale").write_text("4 2:1\n")
    with pytest.raises(DataError, match="expected the classes 1, 2 and 3"):
        datasets.load("vehicle")


def test_a_set_in_one_piece_is_always_divided_in_the_same_way() -> None:
    train, test = registry.split_rows(1_000, "train"), registry.split_rows(1_000, "test")
    assert len(train) == 800
    assert sorted([*train, *test]) == list(range(1_000))
    assert (np.diff(train) > 0).all()
    assert test[:5].tolist() == [0, 3, 9, 19, 20]
    assert abs(np.mean(test) - 500) < 60
