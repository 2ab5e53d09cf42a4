"""The coordinator's process: takes one step after another while it holds the lease in the store. `serve` starts one.

`python -m populace.collector.coordinator STUDY` runs it on its own, on any machine that reaches the store.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
import time
from types import FrameType

from populace.collector.rounds import step
from populace.collector.store import Store, StoreError
from populace.collector.stores import patient_store
from populace.collector.study import StudyFolder
from populace.errors import PopulaceError

LEASE = 30.0  # seconds without a sign of life after which another one may take over
SERVING = "POPULACE_SERVING"  # the number of the process that serves, for those it starts
PAUSE = 0.25  # seconds between looks
log = logging.getLogger("populace.collector")


def coordinate(folder: StudyFolder, stopping: threading.Event, *, parent: int | None = None) -> None:
    """Take steps until told to stop, or until the process that started this one is gone.

    A step may take longer than the lease. Whoever takes over meanwhile does the same, and one of the two in vain: the store
    lets a round be absorbed once.
    """
    study, holder = folder.read(), secrets.token_hex(8)
    store: Store | None = None
    renewed = 0.0
    while not stopping.is_set() and (parent is None or os.getppid() == parent):
        try:
            if store is None:
                store = patient_store(folder, study)
            if time.time() > renewed + LEASE / 3:  # every look would be a transaction
                renewed = time.time() if store.claim_lease(holder, now=time.time(), seconds=LEASE) else 0.0
            busy = renewed > 0 and step(study, store)
        except StoreError as error:
            log.warning("%s", error)
            busy, renewed = False, 0.0
            if store is not None:
                store.close()
                store = None
        except PopulaceError as error:
            log.error("a round could not be absorbed: %s", error)
            busy = False
            stopping.wait(10.0)
        if not busy:
            stopping.wait(PAUSE)
    if store is not None:
        try:
            store.release_lease(holder)
        except StoreError:
            log.warning("the lease was not given back; it ends by itself")
        store.close()


def main(path: str) -> None:
    logging.basicConfig(level=logging.WARNING, format="collector: %(message)s")
    stopping, parent = threading.Event(), int(os.environ[SERVING]) if SERVING in os.environ else None

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        coordinate(StudyFolder(path), stopping, parent=parent)
    except PopulaceError as error:
        log.error("%s", error)
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1])
