# ruff: noqa: S608 -- queries are what is tried
"""Targets: damaged DuckDB and SQLite files, and odd addresses and queries."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

from fuzz.corpus import Corpus, small_table
from fuzz.target import Files, FindingError, Input, Target, file_target
from populace.border.databases.address import locate, resolved, short_name
from populace.border.databases.writing import write_database
from populace.tables.coded import read_coded
from populace.tables.reading import read_frame

SCHEMA = small_table().schema
SECRET = "canary"  # noqa: S105
ADDRESSES = (
    "postgresql://127.0.0.1:1/db?connect_timeout=1#table=t", "postgresql://u@127.0.0.1:1/db#query=SELECT 1",
    "postgres://h,i:5/db?host=/nowhere#table=a.b", f"postgresql://u:{SECRET}@h/db", "{}/plain.sqlite#table=plain",
    "{}/plain.duckdb#query=SELECT * FROM plain", "{}/plain.sqlite#query=WITH x AS (SELECT 1 AS a) SELECT * FROM x",
)  # fmt: skip
PIECES = (
    "'", '"', ";", "--", "/*", ")", "(", "#", "#table=", "#query=", "@", ":", "%", "%00", "\0", "\n", "é", "\ud800", "?", "&",
    "=", "DROP TABLE plain", "SELECT", " UNION ", "ATTACH 'x' AS y", "COPY plain TO 'x'", "PRAGMA x", "*", ".",
    "load_extension('x')",
)  # fmt: skip


def _files(ending: str):
    def made(corpus: Corpus) -> dict[str, bytes]:
        folder = corpus.folder / "databases"
        folder.mkdir(exist_ok=True)
        path = folder / f"plain.{ending}"
        if not path.exists():
            write_database(small_table().frame, f"{path}#table=plain")
        return {path.name: path.read_bytes()}

    return made


def _read(path: Path) -> None:
    read_frame(f"{path}#table=plain").to_pylist()
    read_coded(f"{path}#query=SELECT * FROM plain", SCHEMA)


def _prepare(corpus: Corpus) -> Files:
    scratch = corpus.folder / "scratch" / "addresses"
    scratch.mkdir(parents=True, exist_ok=True)
    valid = {**_files("sqlite")(corpus), **_files("duckdb")(corpus)}
    for name, content in valid.items():
        (scratch / name).write_bytes(content)
    return Files(valid=valid, scratch=scratch, root=str(corpus.folder).encode())


def _draw(_: Files, rng: random.Random) -> Input:
    text = rng.choice(ADDRESSES)
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(text) + 1)
        text = text[:place] + rng.choice(PIECES) + text[place + rng.randrange(3) :]
    return {"address": text}


def _run(files: Files, case: Input) -> None:
    address = str(case["address"]).replace("{}", str(files.scratch))
    try:
        for each in locate([address]):
            resolved(each)
            if f":{SECRET}@" in short_name(each):
                raise FindingError("a password came through an address")
            read_frame(each).to_pylist()
    finally:
        for name, content in files.valid.items():
            if (files.scratch / name).read_bytes() != content:
                raise FindingError(f"{name} was changed by reading it")
        with sqlite3.connect(files.scratch / "plain.sqlite") as connection:
            connection.execute("SELECT count(*) FROM plain")
        connection.close()


TARGETS = (
    file_target("read-sqlite", _files("sqlite"), _read, cost=3.0),
    file_target("read-duckdb", _files("duckdb"), _read, cost=20.0),
    Target(name="database-addresses", prepare=_prepare, draw=_draw, run=_run, cost=10.0),
)
