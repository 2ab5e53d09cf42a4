"""Whose rows are whose is said once for a file or database, and kept in the clients' ledger: divided otherwise, people would
answer again under other names.
"""

from __future__ import annotations

from populace.border.databases.address import file_of, is_database, resolved, short_name
from populace.errors import BudgetError
from populace.privacy.sqlite_ledger import SqliteLedger

CLIENTS_OF = "clients of "
SERVER = "the databases of servers"
BY_COLUMN = "rows by "


def keep_client_terms(ledger: SqliteLedger, data: str, records_per_client: int, client_column: str | None) -> None:
    """Keep how the clients of these data are told apart; refuse another way than the one that is kept.

    Guarantee: of a database one client column is kept, whatever table, view or query is read and however it is spelled. A
    server's database has many addresses: all that are collected into one ledger have one client column.
    Edge cases: in a ledger that kept a column for each table, a table goes on with its own; another is refused.
    """
    whose = f"{records_per_client} rows each" if client_column is None else f"{BY_COLUMN}{client_column}"
    if not is_database(data):
        try:
            ledger.keep_terms(f"{CLIENTS_OF}{short_name(data)}", whose)
        except BudgetError:
            raise BudgetError(
                f"the clients of {short_name(data)} were other ones when they answered, by the ledger {ledger.path}; give "
                "--records-per-client or --client-column as then"
            ) from None
        return
    file = file_of(resolved(data))
    name = f"{CLIENTS_OF}{SERVER if file is None else file.name}"
    former = f"{CLIENTS_OF}postgres" if file is None else f"{name}#"
    kept = {key: said for key, said in ledger.kept_terms().items() if key == name or key.startswith(former)}
    if kept.get(f"{CLIENTS_OF}{short_name(data)}") == whose:
        return
    other = next((said for said in kept.values() if said != whose), None)
    if other is not None:
        raise _another_column(ledger, other)
    try:
        ledger.keep_terms(name, whose)
    except BudgetError:  # another process was first
        raise _another_column(ledger, ledger.kept_terms()[name]) from None


def _another_column(ledger: SqliteLedger, kept: str) -> BudgetError:
    return BudgetError(
        f"by the ledger {ledger.path} the clients of this database were told apart by the column "
        f"{kept.removeprefix(BY_COLUMN)!r} when they answered, and the same people would answer again under another; give "
        "--client-column as then. Only where none of these people is in what was collected, name another --ledger"
    )
