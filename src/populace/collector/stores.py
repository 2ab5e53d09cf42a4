"""Finding a study's store: which database it is, and that it is this study's."""

from __future__ import annotations

import time

from populace.collector.store import Store, StoreError
from populace.collector.study import Study, StudyFolder
from populace.errors import RunError

SECONDS_TO_COME_BACK = 30.0
POSTGRES = ("postgresql://", "postgres://")


def check_address(url: str) -> None:
    """Raise StoreError for an address of another kind of store."""
    if "://" in url and not url.startswith(POSTGRES):
        raise StoreError(
            f"expected a store as postgresql://... or the path of a file, got {url.partition('://')[0]}://..."
        )


def open_store(url: str, *, create: bool = True) -> Store:
    """The store at this address: postgresql://..., or the path of an SQLite file."""
    check_address(url)
    if url.startswith(POSTGRES):
        from populace.collector.postgres_store import PostgresStore

        return PostgresStore(url, create=create)
    from populace.collector.sqlite_store import SqliteStore

    return SqliteStore(url, create=create)


def study_store(folder: StudyFolder, study: Study, given: str | None = None) -> Store:
    """The store of this study; refuses one that holds another study's answers."""
    store = open_store(folder.store_url(given))
    try:
        with store.transaction(lock="alone"):
            kept = store.fact("study")
            if kept is None:
                store.keep_fact("study", study.digest.encode())
    except BaseException:
        store.close()
        raise
    if kept is not None and kept.decode() != study.digest:
        store.close()
        raise RunError(
            "the store holds the answers of another study, or of this one under other terms; name another --store"
        )
    return store


def patient_store(folder: StudyFolder, study: Study) -> Store:
    """The same, while the database may be away for a moment."""
    until = time.monotonic() + SECONDS_TO_COME_BACK
    while True:
        try:
            return study_store(folder, study)
        except StoreError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.5)
