"""What a run of `census` takes, from the sizes of its arrays and constants measured once: for plans, without a trial.

Seconds are those of two cores of an ordinary computer and right within a factor of about three; bytes count the largest arrays
that are held together, beside the 400 MB or so of the libraries.
"""

from __future__ import annotations

import math

from populace.methods.base import Costs
from populace.methods.census.counting import MOST_JOINT, column_groups
from populace.methods.census.fit import Settings, affordable, draw_members, multiplications
from populace.methods.census.scale_pairs import ScalePairs
from populace.methods.census.tables import PairTables

MULTIPLICATIONS_PER_SECOND = 1e10  # of a fit (docs/methods/census.md, Time)
COMPILING = 5.0  # seconds
RECORD_SECONDS = 1e-8  # to count a record in a group of columns (docs/results/census-counting.json)
NUMBER_SECONDS = 1e-7  # to draw the noise of a number
CODE, COUNT, FLOAT = 4, 8, 4  # bytes
MESSAGE_COPIES = 4  # of a message's counts at a site: tables, those laid end to end, the noise, and what is sent
SQUARES = (
    4  # arrays of all two cells of a fit beside what was observed: predicted, the difference, and two of its gradient
)
SUM_COPIES = 6  # of all cells at the coordinator: sums, shares, noise and what is made of them
PARAMETER_COPIES = 8  # parameters, moments, gradient, and tables of components


def predicted_costs(
    tables: PairTables, pairs: ScalePairs, settings: Settings, *, records: int, clients: int, at_once: int
) -> Costs:
    """Of a run: `records` are the most of one silo, `at_once` the silos whose messages are held together."""
    numbers = tables.numbers + pairs.numbers
    sizes = tuple((column, tables.sizes[column]) for column in tables.columns)
    groups = column_groups(tables.pairs, sizes, MOST_JOINT // tables.outcomes)
    joint = tables.outcomes * sum(math.prod(tables.sizes[column] for column in group) for group, _ in groups)
    site = records * len(tables.sizes) * CODE + COUNT * (joint + MESSAGE_COPIES * numbers)
    cut = affordable(settings, tables)
    together = draw_members(cut)  # fits at once
    squares = (max(cut.members, together) + SQUARES * together) * tables.outcomes * tables.positions**2
    parameters = PARAMETER_COPIES * together * cut.components * (1 + tables.outcomes) * tables.positions
    cells = tables.outcomes * tables.entries
    coordinator = FLOAT * (squares + parameters) + COUNT * cells * (SUM_COPIES + together) + CODE * numbers * at_once
    counting = RECORD_SECONDS * records * len(groups) + NUMBER_SECONDS * numbers
    fitting = COMPILING + multiplications(cut, tables) / MULTIPLICATIONS_PER_SECOND
    return Costs(
        site_bytes=float(site), coordinator_bytes=float(coordinator), site_seconds=counting,
        coordinator_seconds=fitting, seconds=clients * counting + fitting,
    )  # fmt: skip
