# ruff: noqa: S608 -- names are written below
"""One table of patients as a CSV, a DuckDB file, a SQLite file and a table of PostgreSQL: every type that people use."""

from __future__ import annotations

import csv
import datetime as dt
import sqlite3
import uuid
from pathlib import Path
from typing import Any

import numpy as np

#: Column, what PostgreSQL and DuckDB call its type, and what SQLite's users declare.
COLUMNS = (
    ("patient", "UUID", "TEXT"),
    ("ward", "ward_name", "TEXT"),
    ("age", "INTEGER", "INTEGER"),
    ("weight", "NUMERIC(6, 2)", "NUMERIC"),
    ("dose", "DOUBLE PRECISION", "REAL"),
    ("alive", "BOOLEAN", "BOOLEAN"),
    ("admitted", "DATE", "DATE"),
    ("seen", "TIMESTAMP", "TEXT"),
    ("checked", "TIMESTAMPTZ", "TEXT"),
    ("round", "TIME", "TEXT"),
    ("smokes", "VARCHAR(3)", "TEXT"),
)
NAMES = tuple(name for name, *_ in COLUMNS)
WARDS = ("east", "north", "south")


def patient_rows(rows: int = 400, seed: int = 3) -> list[dict[str, str | None]]:
    """Rows as the text a CSV holds; None where there is no value."""
    rng = np.random.default_rng(seed)
    return [_row(rng) for _ in range(rows)]


def _row(rng: np.random.Generator) -> dict[str, str | None]:
    day = dt.date(2024, 1, 1) + dt.timedelta(days=int(rng.integers(300)))
    moment = dt.datetime.combine(day, dt.time(int(rng.integers(24)), int(rng.integers(60))))
    gap = rng.random(4) < 0.1
    return {
        "patient": str(uuid.UUID(bytes=rng.bytes(16))),
        "ward": str(rng.choice(WARDS)),
        "age": None if gap[0] else str(int(rng.integers(18, 95))),
        "weight": None if gap[1] else f"{rng.normal(75, 12):.2f}",
        "dose": repr(float(rng.integers(1, 40)) / 8),
        "alive": str(bool(rng.random() < 0.9)).lower(),
        "admitted": day.isoformat(),
        "seen": moment.isoformat(" "),
        "checked": f"{(moment + dt.timedelta(minutes=7)).isoformat(' ')}+00:00",
        "round": f"{int(rng.integers(6, 20)):02d}:30:00",
        "smokes": None if gap[3] else str(rng.choice(["yes", "no"])),
    }


def write_csv(rows: list[dict[str, str | None]], path: Path) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(NAMES)
        writer.writerows([["" if row[name] is None else row[name] for name in NAMES] for row in rows])
    return path


def _values(rows: list[dict[str, str | None]]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in NAMES) for row in rows]


def write_duckdb(rows: list[dict[str, str | None]], path: Path) -> Path:
    import duckdb  # here: what is imported before the tests begin stays for ever, and the library complains of it at the end

    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE TYPE ward_name AS ENUM {WARDS}")
        connection.execute(f"CREATE TABLE patients ({', '.join(f'{name} {kind}' for name, kind, _ in COLUMNS)})")
        marks = ", ".join(f"CAST(? AS {kind})" for _, kind, _ in COLUMNS)
        connection.executemany(f"INSERT INTO patients VALUES ({marks})", _values(rows))
    return path


def write_sqlite(rows: list[dict[str, str | None]], path: Path) -> Path:
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE patients ({', '.join(f'{name} {kind}' for name, _, kind in COLUMNS)})")
        truths = [{**row, "alive": {"true": 1, "false": 0}[str(row["alive"])]} for row in rows]
        connection.executemany(f"INSERT INTO patients VALUES ({', '.join('?' * len(NAMES))})", _values(truths))
    connection.close()
    return path


def write_postgresql(rows: list[dict[str, str | None]], url: str) -> str:
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute(f"CREATE TYPE ward_name AS ENUM {WARDS}")
        connection.execute(f"CREATE TABLE patients ({', '.join(f'{name} {kind}' for name, kind, _ in COLUMNS)})")
        with connection.cursor().copy("COPY patients FROM STDIN") as copy:
            for values in _values(rows):
                copy.write_row(values)
    return url


def new_database(running: Any, name: str) -> str:
    """An empty database of that name in a running PostgreSQL."""
    import psycopg

    plain = "t_" + "".join(letter if letter.isalnum() else "_" for letter in name.lower())[:50]
    with psycopg.connect(running.url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {plain} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {plain}")
    return str(running.url).replace("/postgres?", f"/{plain}?")
