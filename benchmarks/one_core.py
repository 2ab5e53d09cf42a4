"""One core: importing this first keeps the process on a single core; `median_seconds` times work there."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

# Before JAX starts its threads.
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", NUMBA_NUM_THREADS="1", JAX_PLATFORMS="cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"


def median_seconds(work: Callable[[], object]) -> float:
    """The median processor time of five calls after a first one, which compiles."""
    work()
    seconds = []
    for _ in range(5):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)
