"""Stays at three hospitals that never were. Every patient is invented.

Columns are drawn one after the other, each given those before it:

    hospital, age -> ward -> diagnosis -> emergency, days, crp -> readmitted
    ward, age -> sex (only women lie in maternity);  season -> infections;  insurance -> costs, of which most are zero
    age, smoker -> systolic;  hospital -> what was not measured or not asked

The hospitals differ: the harbour's is large and has most emergencies, the hill's is small and old people's. Only uniform draws
of one seeded generator are used, so that the files are the same with every version of numpy.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import pyarrow as pa

from populace.tables.reading import write_frame
from populace.types import NumpyArray

SEED = 1854
SIZES = {"harbour": 9_000, "north": 6_000, "hill": 4_000}
FIRST_DAY, DAYS = np.datetime64("2023-01-01"), 731
WARDS = ("surgery", "medicine", "cardiology", "orthopaedics", "maternity", "paediatrics", "geriatrics")
DIAGNOSES = (
    "injury", "appendicitis", "hernia", "pneumonia", "diabetes", "infection", "heart failure", "infarction", "arrhythmia",
    "arthrosis", "fracture", "birth", "asthma", "stroke", "other",
)  # fmt: skip
INSURANCE = ("public", "private", "none")

# how likely each ward is for children, adults and the old, before the hospital's own focus
WARD_BY_AGE = np.array(
    [
        [0.14, 0.06, 0.01, 0.08, 0.00, 0.71, 0.00],
        [0.24, 0.24, 0.10, 0.16, 0.26, 0.00, 0.00],
        [0.16, 0.27, 0.22, 0.16, 0.00, 0.00, 0.19],
    ]
)
FOCUS = {
    "harbour": (1.4, 1.2, 0.9, 1.0, 0.8, 1.1, 0.7), "north": (1.0, 0.9, 1.1, 1.0, 1.6, 1.2, 0.6),
    "hill": (0.5, 1.0, 1.3, 1.5, 0.2, 0.3, 2.6),
}  # fmt: skip
# rows: wards; columns: diagnoses
DIAGNOSIS_BY_WARD = np.array(
    [
        [30, 24, 26, 0, 1, 6, 0, 0, 0, 1, 6, 0, 0, 0, 6],
        [1, 1, 1, 24, 18, 22, 5, 1, 3, 1, 0, 0, 6, 6, 11],
        [0, 0, 0, 1, 3, 1, 30, 32, 28, 0, 0, 0, 0, 2, 3],
        [16, 0, 0, 0, 1, 2, 0, 0, 0, 38, 38, 0, 0, 0, 5],
        [0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 90, 0, 0, 4],
        [18, 10, 4, 16, 5, 20, 0, 0, 0, 0, 8, 0, 14, 0, 5],
        [3, 0, 1, 15, 10, 10, 16, 2, 6, 6, 12, 0, 1, 12, 6],
    ],
    float,
)
EMERGENCY = np.array([0.85, 0.95, 0.08, 0.72, 0.30, 0.62, 0.45, 0.97, 0.40, 0.03, 0.88, 0.35, 0.55, 0.98, 0.30])
USUAL_DAYS = np.array([3.0, 4.0, 2.0, 8.0, 6.0, 7.0, 10.0, 8.0, 4.0, 8.0, 9.0, 3.0, 3.0, 14.0, 4.0])
USUAL_CRP = np.array([12.0, 70.0, 4.0, 95.0, 6.0, 80.0, 14.0, 20.0, 4.0, 4.0, 18.0, 9.0, 10.0, 12.0, 8.0])
RETURNING = np.array([-0.6, -0.7, -1.0, 0.5, 0.7, 0.3, 1.5, 0.6, 0.5, -0.9, -0.1, -1.7, 0.5, 0.9, -0.2])
AGES = {"harbour": (0.13, 0.55, 0.32), "north": (0.18, 0.54, 0.28), "hill": (0.05, 0.35, 0.60)}
SPANS = ((0, 18), (18, 65), (65, 98))
NOT_MEASURED = {"harbour": 0.22, "north": 0.35, "hill": 0.15}
NOT_ASKED = {"harbour": 0.18, "north": 0.06, "hill": 0.09}


def frames() -> dict[str, pa.Table]:
    """The stays of each hospital, by its name."""
    rng = np.random.default_rng(SEED)
    return {name: _stays(rng, name, rows) for name, rows in SIZES.items()}


def dictionary() -> str:
    """The data dictionary that the hospitals share, a schema in TOML."""
    return (resources.files("populace.tables.hospitals") / "hospitals.toml").read_text(encoding="utf-8")


def write_files(folder: Path) -> tuple[list[Path], Path]:
    """Write a CSV for each hospital and the dictionary beside them; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, frame in frames().items():
        files.append(folder / f"{name}.csv")
        write_frame(frame, files[-1])
    schema = folder / "hospitals.toml"
    schema.write_text(dictionary(), encoding="utf-8")
    return files, schema


def _stays(rng: np.random.Generator, name: str, rows: int) -> pa.Table:
    """The stays of one hospital."""
    admitted = _admissions(rng, rows)
    group = _choose(np.tile(AGES[name], (rows, 1)), rng.random(rows))
    low, high = np.array(SPANS).T
    age = low[group] + rng.random(rows) * (high - low)[group]
    ward = _choose(WARD_BY_AGE[group] * np.array(FOCUS[name]), rng.random(rows))
    mothers = ward == WARDS.index("maternity")
    age = np.where(mothers, 18 + 26 * (rng.random(rows) + rng.random(rows)) / 2, age)
    born = admitted - np.round(age * 365.25).astype(int)
    female = mothers | (rng.random(rows) < np.where(ward == WARDS.index("geriatrics"), 0.6, 0.48))
    winter = np.cos(2 * np.pi * (admitted - FIRST_DAY).astype(int) / 365.25)
    diagnosis = _diagnoses(rng, ward, winter)
    emergency = rng.random(rows) < EMERGENCY[diagnosis] * np.where(name == "harbour", 1.0, 0.85)
    smoker = rng.random(rows) < np.where(age < 16, 0.0, np.where(female, 0.18, 0.27))
    frailty = np.clip(age - 50, 0, None) / 40
    stay = USUAL_DAYS[diagnosis] * np.exp(0.45 * _normal(rng, rows) + 0.35 * frailty) * np.where(emergency, 1.15, 0.9)
    days = np.minimum(np.where(rng.random(rows) < np.where(emergency, 0.03, 0.14), 0, np.round(stay)), 60).astype(int)
    crp = np.round(np.clip(USUAL_CRP[diagnosis] * np.exp(0.7 * _normal(rng, rows)), 0.3, 400), 1)
    systolic = np.round(np.clip(112 + 0.20 * age + 6 * smoker + 14 * _normal(rng, rows), 70, 220)).astype(int)
    insurance = _choose(np.where(age[:, None] >= 65, (0.86, 0.13, 0.01), (0.76, 0.17, 0.07)), rng.random(rows))
    returning = -2.35 + RETURNING[diagnosis] + 0.9 * frailty + 0.35 * smoker + 0.03 * days + 0.004 * crp
    returning += np.where(days == 0, -0.7, 0.0) + np.where(emergency, 0.25, 0.0)
    readmitted = rng.random(rows) < 1 / (1 + np.exp(-1.5 * returning - 0.6))
    measured = rng.random(rows) >= NOT_MEASURED[name] * np.where(crp > 40, 0.25, 1.2)
    asked = rng.random(rows) >= NOT_ASKED[name] * np.where(emergency, 1.5, 0.5)
    return pa.table({
        "stay": [f"{name[:2].upper()}{number:06d}" for number in range(1, rows + 1)],
        "born": pa.array(born.astype("datetime64[D]")), "admitted": pa.array(admitted.astype("datetime64[D]")),
        "sex": pa.array(np.where(female, "female", "male")), "ward": _names(WARDS, ward),
        "diagnosis": _names(DIAGNOSES, diagnosis), "emergency": pa.array(emergency),
        "days": pa.array(days), "systolic": pa.array(systolic, mask=rng.random(rows) < 0.04),
        "crp": pa.array(crp, mask=~measured), "smoker": pa.array(np.where(smoker, "yes", "no"), mask=~asked),
        "insurance": _names(INSURANCE, insurance), "costs": pa.array(_costs(rng, insurance, days)),
        "readmitted": pa.array(readmitted),
    })  # fmt: skip


def _admissions(rng: np.random.Generator, rows: int) -> NumpyArray:
    """Days of two years, more of them in winter."""
    weights = 1 + 0.3 * np.cos(2 * np.pi * np.arange(DAYS) / 365.25)
    cumulative = np.cumsum(weights / weights.sum())
    day = np.sort(np.searchsorted(cumulative, rng.random(rows), side="right"))  # in the order in which they came
    admitted: NumpyArray = FIRST_DAY + np.minimum(day, DAYS - 1)
    return admitted


def _diagnoses(rng: np.random.Generator, ward: NumpyArray, winter: NumpyArray) -> NumpyArray:
    """Lungs fall ill in winter, and bones break on ice."""
    weights = DIAGNOSIS_BY_WARD[ward]
    for name, amplitude in (("pneumonia", 0.6), ("infection", 0.3), ("asthma", 0.3), ("fracture", 0.3)):
        weights[:, DIAGNOSES.index(name)] *= 1 + amplitude * winter
    return _choose(weights, rng.random(len(ward)))


def _costs(rng: np.random.Generator, insurance: NumpyArray, days: NumpyArray) -> NumpyArray:
    """What a patient pays: nothing for most, much for those without an insurance."""
    rows = len(days)
    pays = rng.random(rows) < np.array([0.22, 0.55, 0.90])[insurance]
    usual = np.array([140.0, 420.0, 1_900.0])[insurance] * (0.5 + days / 8)
    amount = np.clip(usual * np.exp(0.6 * _normal(rng, rows)), 5, 40_000)
    return np.where(pays, np.round(amount, 2), 0.0)


def _choose(weights: NumpyArray, draw: NumpyArray) -> NumpyArray:
    """For each row of weights, the index in which the uniform `draw` falls."""
    cumulative = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    found: NumpyArray = np.minimum((draw[:, None] >= cumulative).sum(axis=1), weights.shape[1] - 1)
    return found


def _normal(rng: np.random.Generator, rows: int) -> NumpyArray:
    """Box and Muller's normal draws, from uniform ones."""
    return np.asarray(np.sqrt(-2.0 * np.log(1.0 - rng.random(rows))) * np.cos(2.0 * np.pi * rng.random(rows)))


def _names(names: tuple[str, ...], index: NumpyArray) -> pa.Array:
    return pa.array(np.array(names)[index])
