"""Persons with several rows: how much each row counts, so that all rows of a person together change a message by a bound.

A row that counts u units adds u times the weight of a table to one cell of every table; it changes a message by exactly u b in
L2, b the bound of one record. The rows of a person that count u_1, .., u_k units therefore change it by at most
(u_1 + .. + u_k) b, by the triangle inequality, whatever the rows are and whatever cells a server asks for; by exactly that
where all rows are equal. Both rules bound the sum of a person's units by `most`:

- shares (the default): k rows count most // k units each, and most % k of them one more: whole numbers that add up to `most`.
  Of more than `most` rows, `most` count one unit and the others none.
- `rows`: at most so many rows of a person count, one unit each, and `most` is that number.

Which rows get more is drawn by the silo, evenly, from its own source: no file order, and nothing that a server knows. Units of
a person depend on that draw and on which rows are theirs. So with the draw held fixed, and one person's rows zeroed out in
their slots, all others count what they counted before, and what is left is the Gaussian mechanism with sensitivity most b. A
mixture over the draw of pairs that one pair dominates is dominated by it too (hockey-stick divergences are jointly convex), so
the cost of a stage is that of its `events.Gaussian`, and it does not matter whether stages draw anew.

`UNITS` begins with 60: rows of a person with 1 to 6, 10, 12, 15, 20, 30 or 60 rows then count exactly alike. A silo with so
many records that 60 units of each do not fit into 32 bits takes the next smaller number, by public facts alone.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from populace.errors import SpecError
from populace.methods.base import Shard
from populace.privacy.source import Source
from populace.types import Array

MOST_ROWS = 1_000  # of a person that may count: noise grows with their number
UNITS = (60, 12, 6, 2, 1)  # that the rows of a person share, the most that fit


@dataclasses.dataclass(frozen=True)
class Contribution:
    """What one protected unit adds to a table of weight 1: at most `most` units, in all rows together."""

    unit: Literal["record", "person"] = "record"
    rows: int = 0  # of a person that count, one unit each; 0: all rows, which share `most`
    most: int = 1

    @property
    def whole(self) -> int:
        """The units of one that counts in full: a record, a person whose rows share them, or one of a person's rows."""
        return 1 if self.rows else self.most

    def units(self, shard: Shard, source: Source) -> tuple[Array, Source]:
        """The units of every row, 0 of padding, and the source for what else is drawn: as it is where records are protected."""
        if self.unit == "record":
            return shard.mask, source
        if shard.persons is None:
            raise SpecError("persons are protected, and these rows name none: say which column names them (--person)")
        coin, rest = source.split(2)
        order = coin.order(len(shard.mask))
        return row_units(shard.persons, shard.mask, order, most=self.most, rows=self.rows), rest

    def of_persons(self, bound: float) -> str:
        """What follows for a person from the bound of one record, empty for records."""
        if self.unit == "record":
            return ""
        return f"; a person at most {self.most} times that, {self.most * bound:.6g}, by the triangle inequality"

    @property
    def counted(self) -> str:
        """How persons count, for the mechanism's line."""
        if self.unit == "record":
            return ""
        return f", of at most {self.rows:,} rows of each person" if self.rows else ", in which every person counts once"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must be true outside the program, about records or persons."""
        if self.unit == "record":
            return ("a person with records at several silos, or with several records, has the bound of the group line",)
        return (
            "each silo's person column names the same person by the same value in all of their rows: rows under two values are "
            "two persons",
            "a person with rows at several silos pays at each of them",
            "how many rows each silo holds is public, how many persons they belong to is not: that is told with noise alone, "
            "within the bound; delta goes by the public number of rows, of which there are at least as many as persons",
            "the model is of persons, not of rows: the rows of a person share the weight of one"
            if not self.rows
            else f"the model is of at most {self.rows:,} rows of each person: those with more weigh less than by their rows",
        )

    @property
    def rule(self) -> str:
        """The rule in words, empty for records."""
        if self.unit == "record":
            return ""
        if self.rows:
            number = "one row" if self.rows == 1 else f"{self.rows:,} rows"
            return f"at most {number} of a person at a silo count, one unit each, chosen by the silo's private coin"
        return (
            f"the k rows of a person at a silo share {self.most} units in whole numbers, {self.most} // k each and the rest "
            f"one more by the silo's private coin; of more than {self.most} rows the coin chooses {self.most}"
        )


def contribution_of(unit: Literal["record", "person"], *, rows: int, room: int) -> Contribution:
    """The rule for these settings; `room` is how many units of every record fit into a count."""
    if unit == "record":
        return Contribution()
    if rows:
        return Contribution("person", rows=rows, most=rows)
    return Contribution("person", most=next(units for units in UNITS if units <= max(room, 1)))


def row_units(persons: Array, mask: Array, order: Array, *, most: int, rows: int = 0) -> Array:
    """How many units every row counts, int32: those of one person add up to `most` (to at most `rows`, where that is above 0).

    `order` is a random order of the rows, by which a person's rows are served. Traceable.
    """
    numpy = jnp if any(isinstance(one, jax.core.Tracer) for one in (persons, mask, order)) else np
    persons, mask, order = (numpy.asarray(one) for one in (persons, mask, order))
    who = numpy.where(mask, persons, -1)
    by_person = numpy.lexsort((order, who))
    first, after = (numpy.searchsorted(who[by_person], who, side=side) for side in ("left", "right"))
    place, held = numpy.argsort(by_person) - first, after - first
    units = place < rows if rows else most // held + (place < most % held)
    found: Array = numpy.where(mask, units, 0).astype(np.int32)
    return found
