"""A table as people have them: dates, moments, times of day, an id, free text, gaps written in several ways, codes, a tail."""

from __future__ import annotations

import csv
import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 600
FIRST_DAY, DAYS = dt.date(2023, 1, 1), 540
DIAGNOSES = 300
HEADER = (
    "visit_id", "admitted", "discharged", "seen_at", "round", "ward", "diagnosis", "insurance_code", "smoker", "alive",
    "temperature", "pulse", "dose", "costs", "remarks",
)  # fmt: skip
SENTENCES = ("slept well, no pain", 'said "better today"', "asked for water;\nvisited by family", "señora Núñez called")


def messy_rows(rows: int = ROWS, seed: int = 0) -> list[dict[str, str]]:
    """Rows as text, as a CSV holds them. Smokers cost more, ward C is hotter, a fifth of the pulses is missing.

    Every diagnosis occurs where there are twice as many rows; some occur often.
    """
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, DIAGNOSES + 1)
    codes = [f"{chr(65 + i // 30)}{i % 30:02d}.{i % 7}" for i in range(DIAGNOSES)]
    some = [*codes, *rng.choice(codes, max(0, rows - DIAGNOSES), p=weights / weights.sum())]
    dealt = rng.permutation(some)[:rows]
    numbers = rng.permutation(10 * rows)[:rows]
    return [_row(rng, int(number), str(code)) for number, code in zip(numbers, dealt, strict=True)]


def _row(rng: np.random.Generator, number: int, diagnosis: str) -> dict[str, str]:
    day = FIRST_DAY + dt.timedelta(days=int(rng.integers(DAYS)))
    moment = dt.datetime.combine(day, dt.time(int(rng.integers(7, 19)), int(rng.integers(60))))
    smoker = rng.random() < 0.3
    ward = str(rng.choice(["A", "B", "C", "?"], p=[0.4, 0.3, 0.2, 0.1]))
    costs = 0.0 if rng.random() < (0.3 if smoker else 0.7) else float(np.exp(rng.normal(6 + smoker, 1.5)))
    values: dict[str, Any] = {
        "visit_id": f"V-{number:06d}",
        "admitted": day.isoformat(),
        "discharged": "" if rng.random() < 0.05 else (day + dt.timedelta(int(rng.geometric(0.2)))).strftime("%d.%m.%Y"),
        "seen_at": moment.strftime("%Y-%m-%d %H:%M"),
        "round": f"{int(np.clip(rng.normal(9, 2), 6, 14)):02d}:{int(rng.choice([0, 15, 30, 45])):02d}",
        "ward": ward,
        "diagnosis": diagnosis,
        "insurance_code": rng.choice([1, 2, 3, 7, 11, 12, 109], p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.05, 0.05]),
        "smoker": "yes" if smoker else "no",
        "alive": int(rng.random() < 0.9),
        "temperature": "NA" if rng.random() < 0.1 else f"{rng.normal(37.0 + (ward == 'C'), 0.6):.1f}",
        "pulse": str(rng.choice(["?", ""])) if rng.random() < 0.2 else int(rng.normal(75, 12)),
        "dose": f"{rng.gamma(3.0, 0.8):.2f}",
        "costs": f"{costs:.2f}",
        "remarks": f"{rng.choice(SENTENCES)} ({rng.integers(10**9)})",
    }
    return {name: str(values[name]) for name in HEADER}


def write_messy_table(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, HEADER)
        writer.writeheader()
        writer.writerows(rows)
    return path
