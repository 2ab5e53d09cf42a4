"""What a run gives: something that makes as much as one likes, can be saved, and never needs the records again.

`Generator` makes rows of a table; `ImageGenerator` makes labelled images.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pyarrow as pa

from populace.errors import DataError, SpecError
from populace.methods.blocks.conditions import Wanted, with_values
from populace.tables import codec
from populace.tables.files import replacing, write_json
from populace.tables.images import Images
from populace.tables.schema import Schema, schema_from_dict
from populace.tables.table import Table
from populace.types import Array, JsonObject, NumpyArray

CHUNK = 131_072  # rows drawn at once
IMAGES_AT_ONCE = 4_096
LABEL = "label"  # what a condition on images is called
HOPELESS = 1e-4  # give up when fewer than this share of draws obeys the declared rules
PIECE = 2**14  # rows drawn at once where those that meet conditions are kept


#: Generators by the kind that their files name: of all methods imported so far (`registry.generator_class` imports more).
KINDS: dict[str, type[Synthesizer]] = {}


class Synthesizer(abc.ABC):
    """A model of the population, of whatever kind its data are. A subclass that can be saved names a kind of its own."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls):
            other = KINDS.setdefault(cls.kind, cls)
            if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise TypeError(
                    f"{cls.__qualname__} and {other.__qualname__} both make generators of kind {cls.kind!r}"
                )

    @abc.abstractmethod
    def sample(self, count: int, key: Array, conditions: Mapping[str, str] | None = None) -> Any:
        """`count` rows (a Table) or images (Images) that meet the conditions."""

    @abc.abstractmethod
    def arrays(self) -> dict[str, Array]:
        """All parameters, for saving."""

    @abc.abstractmethod
    def header(self) -> JsonObject:
        """The public shape of what is made, as JSON."""

    @classmethod
    @abc.abstractmethod
    def from_saved(cls, header: JsonObject, arrays: Mapping[str, Array]) -> Synthesizer:
        """What `header` and `arrays` were taken from."""

    def save(self, folder: Path) -> None:
        """npz for the parameters, JSON for the rest; never pickle."""
        with replacing(folder / "generator.npz") as temporary, temporary.open("wb") as file:
            arrays: JsonObject = {name: np.asarray(value) for name, value in self.arrays().items()}
            np.savez_compressed(file, allow_pickle=False, **arrays)
        write_json(folder / "generator.json", {"format": 1, "kind": self.kind, **self.header()})


class Generator(Synthesizer):
    """A model that makes rows. `sample_codes` draws; the rest is shared."""

    schema: Schema

    @abc.abstractmethod
    def sample_codes(self, count: int, key: Array, conditions: Mapping[int, int]) -> Array:
        """`count` rows of codes, given that column j has code c for every (j, c) in `conditions`.

        It is asked for conditions that `exact_conditions` names alone, and draws from the model's own conditional law.
        """

    def exact_conditions(self, conditions: Mapping[int, int]) -> Mapping[int, int]:
        """Those of these conditions under which `sample_codes` draws exactly; here none.

        For the others rows are drawn and those that meet them kept: what is left out costs time, and the law stays the same.
        """
        return {}

    @classmethod
    @abc.abstractmethod
    def from_arrays(cls, schema: Schema, arrays: Mapping[str, Array]) -> Generator: ...

    def deviations(self, columns: Sequence[int]) -> Array | None:
        """Standard error of each cell of the joint table of some columns, or None where the method has none."""
        return None

    def sample(self, count: int, key: Array, conditions: Mapping[str, str] | Wanted | None = None) -> Table:
        """`count` rows that obey the schema and its declared rules.

        Rows that break a rule are drawn again, so what comes out is the model conditioned on the rules; and so are those that
        do not meet conditions which `exact_conditions` does not name.
        """
        if count < 1:
            raise SpecError(f"expected rows of at least 1, got {count}")
        wanted = conditions if isinstance(conditions, Wanted) else self._wanted(conditions or {})
        given = dict(self.exact_conditions(wanted.given))
        accept = None if wanted.is_exact and given == wanted.given else wanted.meets
        rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key, 0))))
        kept: list[tuple[Array, pa.Table]] = []
        have = drawn = 0
        while have < count:
            draw_key = jax.random.fold_in(key, 1 + drawn)
            size = CHUNK if self._has_rules else min(CHUNK, count - have) if accept is None else PIECE
            codes, frame = self._draw(size, draw_key, given, rng)
            if accept is not None:
                good = np.flatnonzero(accept(np.asarray(codes), frame))
                codes, frame = codes[good], frame.take(pa.array(good))
            kept.append((codes[: count - have], frame.slice(0, count - have)))
            have += len(kept[-1][0])
            drawn += size
            if drawn >= 8 * CHUNK and have < HOPELESS * drawn:
                raise DataError(_too_rare(have, drawn, conditions=accept is not None, all_given=given == wanted.given))
        codes = np.concatenate([codes for codes, _ in kept])
        return Table(schema=self.schema, codes=codes, frame=pa.concat_tables([frame for _, frame in kept]))

    def _wanted(self, conditions: Mapping[str, str]) -> Wanted:
        wanted = Wanted(schema=self.schema)
        for name, value in conditions.items():
            wanted = with_values(wanted, name, (value,))
        return wanted

    @property
    def _has_rules(self) -> bool:
        return bool(self.schema.forbidden or self.schema.comparisons)

    def _draw(
        self, size: int, key: Array, given: Mapping[int, int], rng: np.random.Generator
    ) -> tuple[Array, pa.Table]:
        codes = np.asarray(self.sample_codes(size, key, given), np.int32)
        frame = codec.decode(codes, self.schema, rng)
        if not self._has_rules:
            return codes, frame
        broken, _ = codec.broken_rows(frame, codes, self.schema)
        good = np.flatnonzero(~broken)
        return codes[good], frame.take(pa.array(good))

    def header(self) -> JsonObject:
        return {"schema": self.schema.to_dict()}

    @classmethod
    def from_saved(cls, header: JsonObject, arrays: Mapping[str, Array]) -> Generator:
        return cls.from_arrays(schema_from_dict(header["schema"]), arrays)


class ImageGenerator(Synthesizer):
    """A model that makes images. `draw_pixels` draws; the rest is shared.

    Edge cases: a model without labels (`label_shares` None) gives every image the label 0 of one class, and refuses
    conditions.
    """

    shape: tuple[int, ...]
    classes: int

    @abc.abstractmethod
    def label_shares(self) -> Array | None:
        """How likely each label is, or None for a model without labels."""

    @abc.abstractmethod
    def draw_pixels(self, labels: Array, key: Array) -> Array:
        """One image for each label, [n, *shape], intensities in [0, 1]."""

    @classmethod
    @abc.abstractmethod
    def from_arrays(cls, shape: tuple[int, ...], classes: int, arrays: Mapping[str, Array]) -> ImageGenerator: ...

    def sample(self, count: int, key: Array, conditions: Mapping[str, str] | None = None) -> Images:
        """`count` images, with labels drawn by their shares, or all with the label that is asked for."""
        if count < 1:
            raise SpecError(f"expected rows of at least 1, got {count}")
        which, pixels = jax.random.split(key)
        labels = self._labels(count, which, dict(conditions or {}))
        x = np.empty((count, *self.shape), np.uint8)
        for start in range(0, count, IMAGES_AT_ONCE):
            some = labels[start : start + IMAGES_AT_ONCE]
            block = np.pad(
                some, (0, min(count, IMAGES_AT_ONCE) - len(some))
            )  # one shape, so that one program is compiled
            drawn = np.asarray(self.draw_pixels(block, jax.random.fold_in(pixels, start)))[: len(some)]
            x[start : start + IMAGES_AT_ONCE] = np.round(255 * np.clip(drawn, 0, 1)).astype(np.uint8)
        return Images(x=x, y=labels, classes=self.classes)

    def _labels(self, count: int, key: Array, conditions: dict[str, str]) -> NumpyArray:
        shares = self.label_shares()
        asked = conditions.pop(LABEL, None)
        if conditions:
            raise DataError(f"images have no column {next(iter(conditions))!r}; a condition on them is label=NUMBER")
        if asked is not None:
            if shares is None:
                raise DataError("this model makes images without labels, so none can be asked for; leave --where out")
            if not asked.isascii() or not asked.isdigit() or int(asked) >= self.classes:
                raise DataError(f"expected a label in 0 to {self.classes - 1}, got {asked!r}")
            return np.full(count, int(asked), np.int32)
        if shares is None:
            return np.zeros(count, np.int32)
        p = np.asarray(shares, np.float64)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        return rng.choice(len(p), count, p=p / p.sum()).astype(np.int32)

    def header(self) -> JsonObject:
        return {"shape": list(self.shape), "classes": self.classes}

    @classmethod
    def from_saved(cls, header: JsonObject, arrays: Mapping[str, Array]) -> ImageGenerator:
        return cls.from_arrays(tuple(header["shape"]), header["classes"], arrays)


def _too_rare(have: int, drawn: int, *, conditions: bool, all_given: bool) -> str:
    """Why no more rows are drawn."""
    if not conditions:
        return f"only {have} of {drawn} drawn rows obey the declared rules and conditions; check the schema's rules"
    return (
        f"the conditions are too rare: {have:,} of {drawn:,} drawn rows meet them, fewer than one in {round(1 / HOPELESS):,}; "
        "widen a range, or leave one out"
        + (
            ""
            if all_given
            else " (this model cannot be drawn given every single value: rows that have it are looked for)"
        )
    )


def check_possible(schema: Schema, tables: Sequence[Array], conditions: Mapping[int, int]) -> None:
    """Refuse a condition on a value to which its column's own table gives no probability."""
    for column, code in conditions.items():
        if not tables[column][code] > 0:
            name, label = schema.columns[column].name, schema.columns[column].labels()[code]
            raise DataError(f"the model gives {name}={label} no probability, so no row has it; ask for another value")


def power_of(matrix: NumpyArray, exponent: float, floor: float = 0.0) -> NumpyArray:
    """The power of a symmetric matrix; eigenvalues below `floor` times the largest, or below 0, count as that much."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    values = np.maximum(values, floor * max(values[-1], 1e-12))
    power: NumpyArray = (vectors * values**exponent) @ vectors.T
    return power
