"""What tests of `census` begin with: counts of codes as its first stage estimates them, and tables of many columns."""

import numpy as np

from populace.methods.census.scales import consistent, group_widths, in_groups
from populace.tables.schema import Column, Schema
from populace.tables.table import from_codes


def noisy_parts(counts, deviation, rng):
    """The counts in every width, each with noise of its own, and the widths."""
    widths = group_widths(len(counts))
    parts = [in_groups(np.asarray(counts, np.float64), width) for width in widths]
    return [part + deviation * rng.normal(size=part.shape) for part in parts], widths


def estimates(column, counts, deviation, rng):
    """What the first stage makes of noisy counts of a column's codes."""
    counts = np.asarray(counts, np.float64)
    if not column.is_ordered:
        return counts + deviation * rng.normal(size=len(counts))
    along, widths = noisy_parts(counts[: column.levels], deviation, rng)
    beyond = counts[column.levels :]
    return np.concatenate([consistent(along, widths), beyond + deviation * rng.normal(size=len(beyond))])


def wide_schema(columns=30, *, long=True, nullable=True):
    """More columns than share the budget evenly: a long scale, a long list, others of two to four values, and a target."""
    made = [
        listed(f"c{number}", 2 + number % 3, nullable=nullable and number % 5 == 1) for number in range(columns - 1)
    ]
    if long:
        edges = tuple(float(edge) for edge in range(151))
        made[3] = Column(name="cost", kind="integer", edges=edges, nullable=nullable)
        made[7] = listed("code", 45, nullable=nullable)
    return Schema(columns=(*made, listed("ill", 2)), target="ill")


def listed(name, size, *, nullable=False):
    categories = tuple(f"{name}{number}" for number in range(size))
    return Column(name=name, kind="categorical", categories=categories, nullable=nullable)


def two_kinds(schema, rows, *, constant=(), seed=0):
    """Records of two kinds, so that columns depend on each other; some columns have one value only."""
    rng = np.random.default_rng(seed)
    kind = rng.random(rows) < 0.4
    columns = []
    for number, size in enumerate(schema.sizes):
        low = np.minimum(rng.geometric(0.6, rows) - 1, size - 1)
        columns.append(np.full(rows, 1) if number in constant else np.where(kind, low, size - 1 - low))
    return from_codes(np.stack(columns, axis=1).astype(np.int32), schema, rng)
