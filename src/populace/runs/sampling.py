"""Rows or images drawn from a run's generator: under conditions, and with classes in the shares that are asked for."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pyarrow as pa

from populace.errors import DataError, SpecError
from populace.methods.blocks.condition_codes import condition_code
from populace.methods.blocks.conditions import Wanted, split_condition, wanted_rows
from populace.methods.blocks.generator import LABEL, Generator, ImageGenerator, Synthesizer
from populace.tables.columns import Column
from populace.tables.images import Images
from populace.tables.table import Table
from populace.types import Array, NumpyArray

Where = str | Sequence[str] | Mapping[str, object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """So many rows, with these codes of the column that is balanced."""

    rows: int
    codes: NumpyArray


def draw(generator: Synthesizer, rows: int, key: Array, *, where: Where = (), balance: str | Sequence[str] = ()) -> Any:
    """A Table or Images of so many rows that meet `where`; the values of a column in the shares that `balance` says."""
    conditions = condition_texts(where)
    shares = [balance] if isinstance(balance, str) else list(balance)
    if isinstance(generator, ImageGenerator):
        return _images(generator, rows, key, conditions, shares)
    if not isinstance(generator, Generator):
        if conditions or shares:
            raise SpecError("this model makes no rows of a table, and takes no conditions")
        return generator.sample(rows, key)
    wanted = wanted_rows(generator.schema, conditions)
    if not shares:
        return generator.sample(rows, key, wanted)
    column, groups = balanced_groups(wanted, shares, rows)
    parts = [
        generator.sample(group.rows, jax.random.fold_in(key, 1 + number), wanted.narrowed(column.name, group.codes))
        for number, group in enumerate(groups)
    ]
    return _mixed(parts, key)


def condition_texts(where: Where) -> list[str]:
    """Conditions as texts: one, several, or from a mapping of columns to a value or a list of values."""
    if isinstance(where, str):
        return [where]
    if isinstance(where, Mapping):
        return [f"{name}={_value_text(value)}" for name, value in where.items()]
    if not isinstance(where, Iterable) or not all(isinstance(each, str) for each in where):
        raise SpecError(f"expected where as a text such as 'age>=40', a list of them, or a mapping, got {where!r}")
    return list(where)


def _value_text(value: object) -> str:
    if isinstance(value, list | tuple | set | frozenset):
        line = io.StringIO()
        csv.writer(line, quoting=csv.QUOTE_ALL, lineterminator="").writerow([_value_text(each) for each in value])
        return line.getvalue()
    return str(value).lower() if isinstance(value, bool | np.bool_) else str(value)


def balanced_groups(wanted: Wanted, shares: Sequence[str], rows: int) -> tuple[Column, list[Group]]:
    """How many rows of which values: equally many of each, or the shares that are said, and others as the model has them."""
    names = wanted.schema.names
    if len(shares) == 1 and shares[0] in names:
        column = _balanced_column(wanted, shares[0])
        left = wanted.allowed.get(wanted.schema.index(column.name), np.ones(column.size, bool))[: column.levels]
        codes = np.flatnonzero(left)
        return column, _groups({int(code): 1 / len(codes) for code in codes}, column, rows)
    whole = [text for text in dict.fromkeys(shares) if text in names]
    if len(whole) > 1 or (whole and len(shares) > 1):
        raise SpecError(
            f"one column can be balanced, and --balance is given {len(shares)} times ({', '.join(shares)}); choose one COLUMN, "
            "or shares of the values of one column: COLUMN=VALUE:SHARE"
        )
    said: dict[int, float] = {}
    named = ""
    for text in shares:
        name, operator, value = split_condition(text, names)
        if operator != "=" or name not in names:
            raise SpecError(f"expected --balance COLUMN, COLUMN=SHARE or COLUMN=VALUE:SHARE, got {text!r}")
        if named not in ("", name):
            raise SpecError(f"--balance names columns {named!r} and {name!r}; one can be balanced")
        named = name
        code, share = _share(wanted, _balanced_column(wanted, name), value, text)
        if code in said:
            raise SpecError(f"--balance says two shares for one value of {name!r}: {text!r}")
        said[code] = share
    if sum(said.values()) > 1 + 1e-9:
        raise SpecError(f"expected shares of {named!r} that add up to at most 1, got {sum(said.values()):g}")
    column = wanted.schema.column(named)
    return column, _groups(said, column, rows)


def _balanced_column(wanted: Wanted, name: str) -> Column:
    column = wanted.schema.column(name)
    if column.is_scale:
        raise DataError(
            f"column {name!r} has a scale and no classes to balance; choose one with categories, or use --where"
        )
    return column


def _share(wanted: Wanted, column: Column, value: str, text: str) -> tuple[int, float]:
    """The code and the share of `VALUE:SHARE`; of a column with two values the share alone is that of the second."""
    name, colon, number = value.rpartition(":")
    if not colon and column.levels != 2:
        raise SpecError(
            f"column {column.name!r} has {column.levels} values: say whose share it is, {column.name}=VALUE:SHARE"
        )
    try:
        share = float(number)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise SpecError(f"expected a share in [0, 1] at the end of --balance {text!r}")
    return (condition_code(wanted.schema, column.name, name) if colon else 1), share


def _groups(shares: Mapping[int, float], column: Column, rows: int) -> list[Group]:
    """Whole numbers of rows that add up, the largest remainders rounded up; what is left has the other values."""
    exact = np.array([*shares.values(), max(0.0, 1 - sum(shares.values()))]) * rows
    counts = np.floor(exact + 1e-9).astype(int)
    for place in np.argsort(counts - exact, kind="stable")[: rows - counts.sum()]:
        counts[place] += 1
    codes = [np.arange(column.size) == code for code in shares]
    codes.append(~np.any(codes, axis=0))
    return [Group(rows=int(count), codes=mask) for count, mask in zip(counts, codes, strict=True) if count]


def _mixed(parts: Sequence[Table], key: Array) -> Table:
    """All rows in a random order, so that none tells its class by its place."""
    codes = np.concatenate([part.codes for part in parts])
    frame = pa.concat_tables([part.frame for part in parts])
    order = _order(key, len(codes))
    return Table(schema=parts[0].schema, codes=codes[order], frame=frame.take(pa.array(order)))


def _order(key: Array, count: int) -> NumpyArray:
    rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key, 0))))
    return rng.permutation(count)


def _images(
    generator: ImageGenerator, rows: int, key: Array, conditions: Sequence[str], balance: Sequence[str]
) -> Images:
    """Images with one label, or equally many of each."""
    given: dict[str, str] = {}
    for text in conditions:
        name, operator, value = split_condition(text, (LABEL,))
        if operator != "=" or name in given:
            raise SpecError(f"a condition on images is label=NUMBER, once; got {text!r}")
        given[name] = value
    if not balance:
        return generator.sample(rows, key, given)
    if list(balance) != [LABEL] or given:
        raise SpecError("images are balanced over all their labels: --balance label, without --where")
    counts = [rows // generator.classes + (label < rows % generator.classes) for label in range(generator.classes)]
    parts = [
        generator.sample(count, jax.random.fold_in(key, 1 + label), {LABEL: str(label)})
        for label, count in enumerate(counts)
        if count
    ]
    order = _order(key, rows)
    x, y = np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts])
    return dataclasses.replace(parts[0], x=x[order], y=y[order])
