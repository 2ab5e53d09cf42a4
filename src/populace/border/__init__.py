"""The border: every file and every table of a database that is read comes in here, by one reader each.

regular.py     what may be opened at all: files, never pipes, devices or folders; bytes and text of bounded length
documents.py   JSON and TOML, with limits on length, depth, digits
models.py      our own JSON files, checked by a model; a wrong field is named
arrays.py      npz, with every declared shape checked before memory is taken for it
columnar.py    Arrow and Parquet, validated in full before a value is looked at
delimited.py   CSV
databases/     tables in DuckDB and SQLite files and in PostgreSQL

What is wrong with a file is told in one sentence. It is a `RunError` for the files that populace itself wrote and a `DataError`
for tables; `error` says otherwise.
"""
