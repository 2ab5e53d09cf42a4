"""Tables that live in databases: DuckDB and SQLite files, and PostgreSQL by URL.

address.py     what names a table: a file or URL with `#table=NAME` or `#query=SELECT ...`; never a password
statement.py   the one SELECT that is asked, and what is said when it fails
reading.py     record batches of an address, validated; one snapshot for readers that pass over the rows several times
duckdb_file.py, sqlite_file.py, postgresql.py     one reader each, none of which can write
writing.py     synthetic rows into a new table, in one transaction
"""
