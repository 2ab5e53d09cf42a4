"""Which data sets there are, which files hold them, and loading one.

A data set may lie in more than one form: as published, or converted to Parquet or npz. The first form whose files are
all there is read, from `<folder>/<name>/` or else from `<folder>/`. Where the published checksum is known, the contents
must match it.
"""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from populace.border.regular import read_bytes
from populace.errors import DataError, InputError, out_of_range
from populace.tables.datasets import domains, loaders
from populace.tables.images import Images
from populace.tables.proposal import propose_column
from populace.tables.schema import Column, Schema
from populace.tables.table import Table, make_table
from populace.types import NumpyArray

Split = Literal["train", "test", "all"]

VARIABLE = "POPULACE_DATA"
COMPRESSED: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.decompress, ".bz2": bz2.decompress}
READ_ERRORS = (pa.ArrowException, ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """One way a data set lies on disk: the files of each split ("all" where it is published in one piece)."""

    files: Mapping[str, tuple[str, ...]]
    read: Callable[[loaders.Contents, str], pa.Table | Images]

    def parts(self, split: Split) -> tuple[str, ...]:
        """The published parts that make up a split."""
        if "all" in self.files:
            return ("all",)
        return ("train", "test") if split == "all" else (split,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """A public data set: its forms, in order of preference, and for a table its declared schema."""

    name: str
    title: str
    published: str
    forms: tuple[Form, ...]
    folder: str
    schema: Callable[[], Schema] | None = None
    prepare: Callable[[pa.Table], pa.Table] | None = None
    read: tuple[str, ...] = ()  # columns whose domain nobody published: read from all rows, and marked
    person: str | None = None  # the column that names whose row it is: a person's rows stay in one part
    sha256: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def wanted(self) -> str:
        """The files it may be read from, in words."""
        groups = [dict.fromkeys(name for names in form.files.values() for name in names) for form in self.forms]
        return ", or ".join(" with ".join(group) for group in groups)


def names() -> tuple[str, ...]:
    return tuple(DATASETS)


def describe(name: str) -> str:
    """What it is, its files, and where it is published, in one paragraph."""
    entry = _entry(name)
    return f"{entry.title}. Files: {entry.wanted}. Published at {entry.published}."


def load(name: str, split: Split = "train", *, verify: bool = True) -> Table | Images:
    """A data set from the folder POPULACE_DATA: its published training or test part, or "all".

    A set published in one piece is divided here: 80 % "train", 20 % "test", by a fixed hash of the row number. With
    `verify=False` checksums are not compared, for a file known to differ from the published one.
    """
    entry = _entry(name)
    data, schema = _part(entry, split, verify=verify)
    if schema is None or isinstance(data, Images):
        return cast(Images, data)
    return make_table(entry.prepare(data) if entry.prepare else data, schema)


def load_persons(name: str, split: Split = "train") -> pa.ChunkedArray:
    """Whose each row of a part is, by the id that the file has; it is no column of the table."""
    entry = _entry(name)
    if entry.person is None:
        raise InputError(f"the rows of {name} do not say whose they are")
    return cast(pa.Table, _part(entry, split, verify=True)[0]).column(entry.person)


def _part(entry: Dataset, split: Split, *, verify: bool) -> tuple[pa.Table | Images, Schema | None]:
    """The rows of a part as their file has them, and the schema of a table."""
    if split not in get_args(Split):
        raise out_of_range("split", f"in {', '.join(get_args(Split))}", split)
    form, paths = _find(entry, split)
    data = _joined([_read(entry, form, part, paths[part], verify=verify) for part in form.parts(split)])
    schema = None if isinstance(data, Images) or entry.schema is None else _schema(entry, data)
    if "all" in form.files and split != "all":
        rows = split_rows(len(data), split)
        if not isinstance(data, Images) and entry.person is not None:
            rows = split_persons(data.column(entry.person), split)
        data = data.take(rows) if isinstance(data, Images) else data.take(pa.array(rows))
    return data, schema


def load_table(name: str, split: Split = "train") -> Table:
    """A data set that is a table; raises TypeError for images."""
    data = load(name, split)
    if not isinstance(data, Table):
        raise TypeError(f"{name} is not a table")
    return data


def load_images(name: str, split: Split = "train") -> Images:
    """A data set of images; raises TypeError for a table."""
    data = load(name, split)
    if not isinstance(data, Images):
        raise TypeError(f"{name} holds no images")
    return data


def _schema(entry: Dataset, frame: pa.Table) -> Schema:
    """The declared schema, with the columns that are read, in the order of the file."""
    declared = entry.schema() if entry.schema else None
    if declared is None or not entry.read:
        return cast(Schema, declared)
    made = [propose_column(frame.column(name), name, kind="categorical").column for name in entry.read]
    columns = {column.name: column for column in (*declared.columns, *made) if isinstance(column, Column)}
    return dataclasses.replace(declared, columns=tuple(columns[n] for n in frame.column_names if n in columns))


def split_persons(persons: pa.ChunkedArray, split: Split) -> NumpyArray:
    """Row numbers of a part, in order, where persons and not rows are divided, numbered as they first occur."""
    numbers = persons.combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    return np.flatnonzero(np.isin(numbers, split_rows(int(numbers.max()) + 1, split)))


def split_rows(rows: int, split: Split) -> NumpyArray:
    """Row numbers of a part, in order: the 80 % with the lowest hash (splitmix64 of the row number) are for training.

    A hash rather than a random generator, so that the division is the same with every version of every library.
    """
    value = np.arange(rows, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    ranked = np.argsort(value ^ (value >> np.uint64(31)), kind="stable")
    training = rows * 4 // 5
    return np.sort(ranked[:training] if split == "train" else ranked[training:])


def _entry(name: str) -> Dataset:
    if name not in DATASETS:
        raise InputError(f"expected a data set in {', '.join(DATASETS)}, got {name!r}")
    return DATASETS[name]


def _find(entry: Dataset, split: Split) -> tuple[Form, dict[str, tuple[Path, ...]]]:
    """The first form whose files are all there, with their paths by part."""
    needs = f"data set {entry.name!r} needs {entry.wanted} (published at {entry.published})"
    root = os.environ.get(VARIABLE, "")
    if not root:
        raise InputError(f"{needs}; put the files into a folder and set the environment variable {VARIABLE} to it")
    folders = (Path(root) / entry.folder, Path(root))
    for form in entry.forms:
        for folder in folders:
            found = {part: tuple(_existing(folder, name) for name in form.files[part]) for part in form.parts(split)}
            paths = {part: tuple(p for p in group if p is not None) for part, group in found.items()}
            if all(len(paths[part]) == len(found[part]) for part in found):
                return form, paths
    raise InputError(f"{needs}, but {folders[0]} and {folders[1]} lack them; put them there")


def _existing(folder: Path, name: str) -> Path | None:
    return next((path for suffix in COMPRESSED if (path := folder / f"{name}{suffix}").is_file()), None)


def _read(entry: Dataset, form: Form, part: str, paths: tuple[Path, ...], *, verify: bool) -> pa.Table | Images:
    try:
        contents = tuple(_content(path) for path in paths)
        if verify:
            for path, content in zip(paths, contents, strict=True):
                _verify(entry, path, content)
        return form.read(contents, part)
    except DataError:
        raise
    except READ_ERRORS as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        named = " and ".join(str(path) for path in paths)
        raise DataError(f"cannot read {named}: {reason}; the file may be truncated or of another format") from error


def _content(path: Path) -> bytes:
    content = read_bytes(path, most=2**32, error=DataError)
    return COMPRESSED[path.suffix](content) if path.suffix in COMPRESSED else content


def _verify(entry: Dataset, path: Path, content: bytes) -> None:
    name = path.stem if path.suffix in COMPRESSED else path.name
    expected = entry.sha256.get(name)
    if expected is None:
        return
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataError(
            f"the checksum of {path} is not the published one: expected sha256 {expected}, got {found}; "
            f"get the file again from {entry.published}, or load with verify=False"
        )


def _joined(parts: list[pa.Table | Images]) -> pa.Table | Images:
    first = parts[0]
    if len(parts) == 1:
        return first
    images = [part for part in parts if isinstance(part, Images)]
    if not images:
        return pa.concat_tables(parts)
    x, y = np.concatenate([part.x for part in images]), np.concatenate([part.y for part in images])
    return dataclasses.replace(images[0], x=x, y=y)


def _complete_rows(frame: pa.Table) -> pa.Table:
    """Rows of Adult in which no column is unknown."""
    keep = np.ones(frame.num_rows, bool)
    for column in frame.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            keep &= pc.not_equal(column, domains.UNKNOWN).to_numpy()
    return frame.filter(pa.array(keep))


def _same(*files: str) -> dict[str, tuple[str, ...]]:
    """Training and test part in the same files."""
    return {"train": files, "test": files}


ADULT_FORMS = (
    Form(files=_same("adult.parquet"), read=loaders.parquet),
    Form(files={"train": ("adult.data",), "test": ("adult.test",)}, read=loaders.adult),
)
ADULT_SHA256 = {
    "adult.parquet": "28aa35b812a76e6c26700a83bd0582dd629c3e437280124c818ebaa5b596bd13",
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
IDX_FORM = Form(
    files={
        "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
    },
    read=loaders.idx,
)
UCI = "https://archive.ics.uci.edu/dataset"
LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets"

DATASETS: dict[str, Dataset] = {
    entry.name: entry
    for entry in (
        Dataset(
            name="adult",
            title="UCI Adult (census income): 32,561 + 16,281 rows, 15 columns; '?' is kept as a category",
            published=f"{UCI}/2/adult",
            forms=ADULT_FORMS,
            folder="adult",
            schema=domains.adult,
            sha256=ADULT_SHA256,
        ),
        Dataset(
            name="adult9",
            title="The nine categorical columns of UCI Adult on the 30,162 + 15,060 rows in which nothing is unknown",
            published=f"{UCI}/2/adult",
            forms=ADULT_FORMS,
            folder="adult",
            schema=domains.adult9,
            prepare=_complete_rows,
            sha256=ADULT_SHA256,
        ),
        Dataset(
            name="a9a",
            title="LIBSVM a9a: Adult as 123 binary columns and the label, 32,561 + 16,281 rows",
            published=f"{LIBSVM}/binary.html#a9a",
            forms=(
                Form(files=_same("a9a.parquet"), read=loaders.parquet),
                Form(files={"train": ("a9a",), "test": ("a9a.t",)}, read=loaders.a9a),
            ),
            folder="a9a",
            schema=domains.a9a,
            sha256={
                "a9a.parquet": "307a1e6cdb102b26cab0df898b2b606285389a9d20bc3b07b5f6f4264d463a6b",
                "a9a": "7ba53cccb27e2e525f0fb173e1f446d49856e3fb007eb43be4ec6d0f5b3335ca",
                "a9a.t": "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
            },
        ),
        Dataset(
            name="bank",
            title="UCI Bank Marketing: 45,211 rows, 17 columns, in one piece (80 % train, 20 % test by a fixed hash)",
            published=f"{UCI}/222/bank+marketing",
            forms=(
                Form(files={"all": ("bank-full.parquet",)}, read=loaders.parquet),
                Form(files={"all": ("bank-full.csv",)}, read=loaders.bank),
            ),
            folder="bank",
            schema=domains.bank,
            sha256={
                "bank-full.parquet": "ecd14dc131680ca1742de04227e91f23b4c4c57e78ca68d7715134d3d89fe516",
                "bank-full.csv": "d1513ec63b385506f7cfce9f2c5caa9fe99e7ba4e8c3fa264b3aaf0f849ed32d",
            },
        ),
        Dataset(
            name="diabetes130",
            title="UCI Diabetes 130-US hospitals: 101,766 encounters of 71,518 patients, 48 columns and two ids, in one piece "
            "(80 % of the patients train, 20 % test by a fixed hash)",
            published=f"{UCI}/296/diabetes+130-us+hospitals+for+years+1999-2008",
            forms=(
                Form(files={"all": ("diabetic_data.parquet",)}, read=loaders.parquet),
                Form(files={"all": ("diabetic_data.csv",)}, read=loaders.diabetes130),
            ),
            folder="diabetes130",
            schema=domains.diabetes130,
            read=domains.DIABETES_READ,
            person="patient_nbr",
            sha256={
                "diabetic_data.parquet": "0135da936664f4ce71c6924aadc37d80d4366fa74570659e5787b668d988ccf3",
                "diabetic_data.csv": "0689e7ec031237dc63031b938805c48377748761a3b26acab621567afa24df97",
            },
        ),
        Dataset(
            name="mnist",
            title="MNIST digits: 60,000 + 10,000 grey images of 28 x 28 pixels, ten classes",
            published="http://yann.lecun.com/exdb/mnist/",
            forms=(Form(files=_same("mnist.npz"), read=loaders.npz), IDX_FORM),
            folder="mnist",
            sha256={
                "mnist.npz": "06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64",
                "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            },
        ),
        Dataset(
            name="fashion_mnist",
            title="Fashion-MNIST: 60,000 + 10,000 grey images of 28 x 28 pixels, ten classes of clothing",
            published="https://github.com/zalandoresearch/fashion-mnist",
            forms=(Form(files=_same("fashion_mnist.npz"), read=loaders.npz), IDX_FORM),
            folder="fashion_mnist",
            sha256={
                "fashion_mnist.npz": "5b6d2c4c694a91887af8ab7d039c04f80af3c29378d731c93a538d2e831aa469",
                "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            },
        ),
        Dataset(
            name="census1990",
            title="UCI US Census 1990: 2,458,285 rows, 68 columns, in one piece (80 % train, 20 % test by a hash)",
            published=f"{UCI}/116/us+census+data+1990",
            forms=(Form(files={"all": ("USCensus1990.data.txt",)}, read=loaders.census1990),),
            folder="census1990",
            schema=domains.census1990,
        ),
        Dataset(
            name="twitter",
            title="UCI Buzz in social media, Twitter: 77 columns and the target in five public bins each, in one piece "
            "(80 % train, 20 % test by a fixed hash)",
            published=f"{UCI}/248/buzz+in+social+media",
            forms=(Form(files={"all": ("Twitter.data",)}, read=loaders.twitter),),
            folder="twitter",
            schema=domains.twitter,
        ),
        Dataset(
            name="vehicle",
            title="SensIT Vehicle, combined: 78,823 + 19,705 rows, 100 features and the label, all binary (above zero; "
            "vehicle or noise)",
            published=f"{LIBSVM}/multiclass.html#SensIT%20Vehicle%20(combined)",
            forms=(
                Form(files={"train": ("combined_scale",), "test": ("combined_scale.t",)}, read=loaders.vehicle),
                Form(files={"train": ("combined",), "test": ("combined.t",)}, read=loaders.vehicle),
            ),
            folder="vehicle",
            schema=domains.vehicle,
        ),
    )
}
