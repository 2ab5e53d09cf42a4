"""Makes the embedded table: a survey of an invented harbour town. Every person in it is invented.

    python tools/make_harbour.py [FOLDER]      (default: src/populace/tables/harbour)

Columns are drawn one after the other, each given those before it, so that the table has dependencies one can name:

    age -> education -> occupation -> hours -> income -> owns_home
    district -> occupation;  education -> income;  age, household, district -> owns_home
    age -> years_in_town, household, health;  occupation -> health
    district x occupation x income -> boat: fishers have one, except in Netherfield, far from the water; of the others
    only the well-off by the water do (which no table of two columns shows)

Two rules hold by construction and are declared in the schema: nobody under 55 is retired (a structural zero), and
nobody has lived in town longer than they have lived (years_in_town <= age). Some did not tell their income, fishers
most of all.

Only uniform draws of one seeded generator are used, so that the file is the same with every version of numpy.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ROWS = 4_000
SEED = 1871

AGE_STARTS = (16, 25, 35, 45, 55, 65, 75, 96)
AGE_WEIGHTS = (0.14, 0.16, 0.17, 0.18, 0.16, 0.12, 0.07)
DISTRICTS = ("quayside", "old town", "hillside", "netherfield", "lighthouse")
DISTRICT_WEIGHTS = (0.24, 0.20, 0.18, 0.27, 0.11)
EDUCATION = ("none", "school", "apprenticeship", "college", "university")
OCCUPATIONS = ("fishing", "port", "trade", "public service", "office", "student", "not working", "retired")
HEALTH = ("poor", "fair", "good", "very good")

# rows: education; columns: the first five occupations
WORK = np.array(
    [
        [0.34, 0.30, 0.30, 0.04, 0.02],
        [0.24, 0.28, 0.34, 0.09, 0.05],
        [0.14, 0.34, 0.28, 0.14, 0.10],
        [0.04, 0.14, 0.24, 0.32, 0.26],
        [0.01, 0.05, 0.12, 0.38, 0.44],
    ]
)
BY_THE_WATER = np.array([2.2, 1.0, 0.5, 0.3, 2.6])  # how much likelier fishing is, by district
BASE_INCOME = np.array([21.0, 25.0, 20.0, 29.0, 33.0, 5.0, 8.0, 17.0])  # thousand crowns a year, by occupation
SCHOOLING = np.array([0.80, 0.92, 1.05, 1.22, 1.50])
FULL_WEEK = np.array([47.0, 42.0, 39.0, 37.0, 38.0])
NOT_TOLD = np.array([0.16, 0.06, 0.08, 0.02, 0.03, 0.04, 0.05, 0.04])


def choose(weights: Array, draw: Array) -> Array:
    """For each row of weights, the index in which the uniform `draw` falls."""
    cumulative = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    return np.minimum((draw[:, None] >= cumulative).sum(axis=1), weights.shape[1] - 1)


def normal(rng: np.random.Generator, rows: int) -> Array:
    """Box and Muller's normal draws, from uniform ones."""
    return np.sqrt(-2.0 * np.log(1.0 - rng.random(rows))) * np.cos(2.0 * np.pi * rng.random(rows))


def logistic(score: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-score))


def people(rng: np.random.Generator, rows: int) -> tuple[Array, Array, Array, Array]:
    """Age, district, years in town and education."""
    band = choose(np.tile(AGE_WEIGHTS, (rows, 1)), rng.random(rows))
    starts = np.array(AGE_STARTS)
    age = starts[band] + (rng.random(rows) * (starts[band + 1] - starts[band])).astype(int)
    district = choose(np.tile(DISTRICT_WEIGHTS, (rows, 1)), rng.random(rows))
    native = rng.random(rows) < np.array([0.45, 0.35, 0.25, 0.20, 0.55])[district]
    moved = np.floor(age * rng.random(rows) ** 1.8).astype(int)
    years = np.where(native, age, moved)
    rank = 2.2 - 0.03 * (age - 45) + 1.15 * normal(rng, rows) + np.where(district == 2, 0.7, 0.0)
    rank = np.where(age < 20, np.minimum(rank, 1.4), rank)
    education = np.clip(np.floor(rank), 0, 4).astype(int)
    return age, district, years, education


def occupations(rng: np.random.Generator, age: Array, district: Array, education: Array) -> Array:
    weights = WORK[education].copy()
    weights[:, 0] *= BY_THE_WATER[district]
    job = choose(weights, rng.random(len(age)))
    draw = rng.random(len(age))
    job = np.where(draw < 0.10, 6, job)
    job = np.where((age < 30) & (draw > np.where(age < 20, 0.25, 0.70)), 5, job)
    quitting = np.select([age >= 70, age >= 65, age >= 60, age >= 55], [0.97, 0.85, 0.40, 0.12], 0.0)
    return np.where(rng.random(len(age)) < quitting, 7, job)


def work(rng: np.random.Generator, age: Array, education: Array, job: Array) -> tuple[Array, Array, Array]:
    """Weekly hours, yearly income in thousand crowns, and whether it was told."""
    rows = len(age)
    part_time = rng.random(rows) < 0.18
    week = FULL_WEEK[np.minimum(job, 4)] + 4.0 * normal(rng, rows)
    week = np.where(part_time, week * 0.5, week)
    week = np.where(job == 5, np.where(rng.random(rows) < 0.4, 12.0, 0.0), week)
    hours = np.clip(np.where(job >= 6, 0.0, week), 0, 80).round().astype(int)
    experience = 1.0 + 0.010 * np.clip(age - 20, 0, 35)
    effort = np.where(job < 5, 0.4 + 0.6 * hours / 40.0, 1.0)
    income = BASE_INCOME[job] * SCHOOLING[education] * experience * effort * np.exp(0.28 * normal(rng, rows))
    told = rng.random(rows) >= NOT_TOLD[job]
    return hours, np.clip(income, 0.5, 240.0).round(1), told


def homes(rng: np.random.Generator, age: Array, district: Array, job: Array, income: Array) -> tuple[Array, ...]:
    """Household size, health, boat, and the target: whether the home is owned."""
    rows = len(age)
    size = 2.6 - 0.0016 * (age - 42) ** 2 + 1.2 * normal(rng, rows)
    household = np.clip(np.round(size + 0.6), 1, 6).astype(int)
    fitness = 2.6 - 0.022 * (age - 30) - np.where(job == 0, 0.35, 0.0) - np.where(job == 6, 0.6, 0.0)
    health = np.clip(np.floor(fitness + 0.75 * normal(rng, rows)), 0, 3).astype(int)
    fisher = job == 0
    seaside = np.isin(district, (0, 4))
    chance = np.where(fisher, np.where(district == 3, 0.15, 0.85), np.where(seaside & (income > 34.0), 0.55, 0.04))
    boat = rng.random(rows) < chance
    score = (
        -4.6
        + 0.075 * np.minimum(income, 90.0)
        + 0.055 * np.minimum(age, 70)
        + 0.35 * (household >= 3)
        + np.array([-0.6, -0.2, 0.9, 0.3, 0.0])[district]
        - 1.6 * (age < 28)
    )
    return household, health, boat, rng.random(rows) < logistic(1.25 * score)


def survey(rows: int = ROWS, seed: int = SEED) -> tuple[list[str], list[tuple[object, ...]]]:
    rng = np.random.default_rng(seed)
    age, district, years, education = people(rng, rows)
    job = occupations(rng, age, district, education)
    hours, income, told = work(rng, age, education, job)
    household, health, boat, owns = homes(rng, age, district, job, income)
    names = ["age", "district", "years_in_town", "education", "occupation", "hours", "income", "household", "health"]
    rows_out: list[tuple[object, ...]] = [
        (
            int(age[i]), DISTRICTS[district[i]], int(years[i]), EDUCATION[education[i]], OCCUPATIONS[job[i]],
            int(hours[i]), f"{income[i]:.1f}" if told[i] else "", int(household[i]), HEALTH[health[i]],
            "true" if boat[i] else "false", "yes" if owns[i] else "no",
        )
        for i in range(rows)
    ]  # fmt: skip
    return [*names, "boat", "owns_home"], rows_out


SCHEMA = """\
# The public shape of the harbour survey. Every person in the survey is invented (tools/make_harbour.py).
format = 2
source = "the people who invented the survey"
target = "owns_home"

[[column]]
name = "age"
kind = "integer"
edges = [16, 25, 35, 45, 55, 65, 75, 100]

[[column]]
name = "district"
categories = ["quayside", "old town", "hillside", "netherfield", "lighthouse"]

[[column]]
name = "years_in_town"
kind = "integer"
edges = [0, 2, 5, 10, 20, 40, 100]

[[column]]
name = "education"
kind = "ordinal"
categories = ["none", "school", "apprenticeship", "college", "university"]

[[column]]
name = "occupation"
categories = ["fishing", "port", "trade", "public service", "office", "student", "not working", "retired"]

[[column]]
name = "hours"  # worked in a week
kind = "integer"
edges = [0, 1, 20, 35, 40, 45, 80]

[[column]]
name = "income"  # thousand crowns a year; not everybody told
kind = "decimal"
edges = [0, 5, 10, 15, 20, 25, 30, 40, 50, 75, 250]
step = 0.1
nullable = true

[[column]]
name = "household"  # persons; 6 stands for six or more
kind = "ordinal"
dtype = "integer"
categories = ["1", "2", "3", "4", "5", "6"]

[[column]]
name = "health"
kind = "ordinal"
categories = ["poor", "fair", "good", "very good"]

[[column]]
name = "boat"
kind = "boolean"
dtype = "boolean"
categories = ["false", "true"]

[[column]]
name = "owns_home"
kind = "boolean"
categories = ["no", "yes"]

# Nobody retires before 55.
[[forbid]]
age = ["[16, 25)", "[25, 35)", "[35, 45)", "[45, 55)"]
occupation = ["retired"]

# Nobody has lived in town longer than they have lived.
[[constraint]]
left = "years_in_town"
relation = "<="
right = "age"
"""


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names, rows = survey()
    with (folder / "harbour.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
    (folder / "harbour.toml").write_text(SCHEMA, encoding="utf-8")


if __name__ == "__main__":
    default = Path(__file__).parents[1] / "src" / "populace" / "tables" / "harbour"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
