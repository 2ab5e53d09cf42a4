"""Every benchmark by name. A new one is one file and one line here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from populace.errors import SpecError

if TYPE_CHECKING:  # the command line lists the names and must not wait for JAX
    from populace.experiments.benchmarks.grid import Benchmark

BENCHMARKS: dict[str, str] = {
    "dpd-fashion": "populace.experiments.benchmarks.dpd:FASHION",
    "dpd-mnist": "populace.experiments.benchmarks.dpd:MNIST",
    "flgan-adult9": "populace.experiments.benchmarks.flgan_adult:ADULT9",
    "flgan-fashion": "populace.experiments.benchmarks.flgan:FASHION",
    "flgan-mnist": "populace.experiments.benchmarks.flgan:MNIST",
    "genfl-fashion": "populace.experiments.benchmarks.genfl:FASHION",
    "genfl-mnist": "populace.experiments.benchmarks.genfl:MNIST",
    "local-adult9": "populace.experiments.benchmarks.local:ADULT9",
    "local-bank": "populace.experiments.benchmarks.local:BANK",
    "moments-fashion": "populace.experiments.benchmarks.moments:FASHION",
    "moments-mnist": "populace.experiments.benchmarks.moments:MNIST",
    "representation-a9a": "populace.experiments.benchmarks.representation:A9A",
    "tables-adult": "populace.experiments.benchmarks.tables:ADULT",
    "tables-bank": "populace.experiments.benchmarks.tables:BANK",
    "tables-diabetes": "populace.experiments.benchmarks.tables:DIABETES",
    "wae-a9a": "populace.experiments.benchmarks.wae:A9A",
    "wae-images": "populace.experiments.benchmarks.wae_images:IMAGES",
    "poll-a9a": "populace.experiments.benchmarks.poll:A9A",
    "poll-ablation": "populace.experiments.benchmarks.poll:ABLATION",
    "poll-adult9": "populace.experiments.benchmarks.poll:ADULT9",
}


def find_benchmark(name: str) -> Benchmark:
    """A benchmark by name, imported when it is asked for."""
    if name not in BENCHMARKS:
        raise SpecError(f"unknown benchmark {name!r}; benchmarks are {', '.join(BENCHMARKS)}")
    module, _, attribute = BENCHMARKS[name].partition(":")
    found: Benchmark = getattr(importlib.import_module(module), attribute)
    return found
