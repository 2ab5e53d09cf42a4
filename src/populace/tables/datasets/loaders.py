"""From the bytes of published files to tables and images, before any schema is applied.

A reader takes the contents of the files of one split, in the order the registry names them, and the split. It raises
ValueError (Arrow's errors are ValueErrors too) on bytes that are not what it expects; the registry names the file.
"""

from __future__ import annotations

import io
import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from populace.tables.datasets import domains
from populace.tables.images import Images
from populace.types import NumpyArray

Contents = tuple[bytes, ...]

DIGITS = 10
IDX_IMAGES, IDX_LABELS = 2051, 2049


def parquet(contents: Contents, split: str) -> pa.Table:
    """A converted file: one table, in which a column `split`, if there is one, says which rows belong where."""
    frame = pyarrow.parquet.ParquetFile(pa.BufferReader(contents[0])).read()
    if "split" not in frame.column_names:
        return frame
    return frame.filter(pc.equal(frame.column("split"), split)).drop_columns(["split"])


def npz(contents: Contents, split: str) -> Images:
    with np.load(io.BytesIO(contents[0]), allow_pickle=False) as archive:
        return Images(x=archive[f"x_{split}"], y=archive[f"y_{split}"], classes=DIGITS)


def idx(contents: Contents, split: str) -> Images:
    """MNIST's own format: big-endian magic number and dimensions, then one byte per pixel or label."""
    x = _idx_array(contents[0], magic=IDX_IMAGES, dimensions=3)
    y = _idx_array(contents[1], magic=IDX_LABELS, dimensions=1)
    return Images(x=x, y=y, classes=DIGITS)


def _idx_array(content: bytes, *, magic: int, dimensions: int) -> NumpyArray:
    header = np.frombuffer(content[: 4 * (1 + dimensions)], ">u4")
    if len(header) != 1 + dimensions or header[0] != magic:
        raise ValueError(f"it does not begin with the magic number {magic}")
    shape = tuple(int(size) for size in header[1:])
    body = np.frombuffer(content, np.uint8, offset=4 * len(header))
    if body.size != math.prod(shape):
        raise ValueError(f"expected {math.prod(shape)} bytes after the header, got {body.size}")
    return body.reshape(shape)


def adult(contents: Contents, split: str) -> pa.Table:
    """adult.data, adult.test: no header, ", " between fields; the test file has a first line of comment and a full
    stop after each label."""
    names = list(domains.ADULT_COLUMNS)
    text = contents[0]
    if text.startswith(b"|"):
        text = text[text.index(b"\n") + 1 :]
    frame = pyarrow.csv.read_csv(
        pa.BufferReader(text),
        read_options=pyarrow.csv.ReadOptions(column_names=names),
        convert_options=pyarrow.csv.ConvertOptions(column_types={name: pa.string() for name in names}),
    )
    columns = [pc.utf8_trim_whitespace(frame.column(name)) for name in names]
    columns[-1] = pc.utf8_rtrim(columns[-1], ".")
    return pa.table(columns, names=names)


def bank(contents: Contents, split: str) -> pa.Table:
    """bank-full.csv: semicolons between fields, text in quotes."""
    return pyarrow.csv.read_csv(pa.BufferReader(contents[0]), parse_options=pyarrow.csv.ParseOptions(delimiter=";"))


def diabetes130(contents: Contents, split: str) -> pa.Table:
    """diabetic_data.csv: a header and commas; all text, which the schema converts."""
    names = contents[0][: contents[0].index(b"\n")].decode().strip().split(",")
    options = pyarrow.csv.ConvertOptions(column_types={name: pa.string() for name in names})
    return pyarrow.csv.read_csv(pa.BufferReader(contents[0]), convert_options=options)


def census1990(contents: Contents, split: str) -> pa.Table:
    """USCensus1990.data.txt: a header and whole numbers; the case number is left out with the schema."""
    return pyarrow.csv.read_csv(pa.BufferReader(contents[0]))


def twitter(contents: Contents, split: str) -> pa.Table:
    """Twitter.data: no header, 77 attributes and the target; values beyond the public edges are moved to the edge."""
    schema = domains.twitter()
    frame = pyarrow.csv.read_csv(
        pa.BufferReader(contents[0]),
        read_options=pyarrow.csv.ReadOptions(column_names=list(schema.names)),
        convert_options=pyarrow.csv.ConvertOptions(column_types={name: pa.float64() for name in schema.names}),
    )
    columns = []
    for column in schema.columns:
        values = np.clip(frame.column(column.name).to_numpy(), column.edges[0], column.edges[-1])
        columns.append(pa.array(np.rint(values) if column.dtype == "integer" else values))
    return pa.table(columns, names=list(schema.names))


def a9a(contents: Contents, split: str) -> pa.Table:
    labels, features = libsvm(contents[0], features=123)
    return _numbered(features, labels)


def vehicle(contents: Contents, split: str) -> pa.Table:
    """SensIT Vehicle, binary as in DP-Fed-WAE, which does not say how: a feature is 1 where it is above zero, the label
    is 1 for a vehicle (classes 1 and 2) and 0 for noise (class 3)."""
    labels, features = libsvm(contents[0], features=100)
    if not np.isin(labels, (1, 2, 3)).all():
        raise ValueError("expected the classes 1, 2 and 3 as labels")
    return _numbered(features > 0, labels != 3)


def _numbered(features: NumpyArray, labels: NumpyArray) -> pa.Table:
    columns = {f"f{i + 1}": features[:, i].astype(np.int64) for i in range(features.shape[1])}
    return pa.table({**columns, "label": labels.astype(np.int64)})


def libsvm(content: bytes, *, features: int) -> tuple[NumpyArray, NumpyArray]:
    """Labels and dense features from LIBSVM's sparse text: `label index:value index:value ...`, indices from 1."""
    lines = [line for line in content.splitlines() if line.strip()]
    labels = np.empty(len(lines))
    dense = np.zeros((len(lines), features), np.float32)
    for row, line in enumerate(lines):
        numbers = np.array(line.replace(b":", b" ").split(), np.float64)
        index = numbers[1::2].astype(np.int64) - 1
        if len(numbers) % 2 == 0 or (index < 0).any() or (index >= features).any():
            raise ValueError(f"line {row + 1} is not a label and index:value pairs with indices in 1 to {features}")
        labels[row] = numbers[0]
        dense[row, index] = numbers[2::2]
    return labels, dense
