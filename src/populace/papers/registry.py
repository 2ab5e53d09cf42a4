"""Every benchmark by name. A new one is one file and one line here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from populace.errors import SpecError

if TYPE_CHECKING:  # the command line lists the names and must not wait for JAX
    from populace.papers.grid import Benchmark

BENCHMARKS: dict[str, str] = {
    "census-a9a": "populace.papers.census:A9A",
    "census-adult": "populace.papers.census:ADULT",
    "census-adult9": "populace.papers.census:ADULT9",
    "census-bank": "populace.papers.census:BANK",
    "census-diabetes": "populace.papers.census:DIABETES",
    "dpd-fashion": "populace.papers.dpd:FASHION",
    "dpd-mnist": "populace.papers.dpd:MNIST",
    "flgan-adult9": "populace.papers.flgan_adult:ADULT9",
    "flgan-claims": "populace.papers.flgan_claims:CLAIMS",
    "flgan-fashion": "populace.papers.flgan:FASHION",
    "flgan-mnist": "populace.papers.flgan:MNIST",
    "genfl-fashion": "populace.papers.genfl:FASHION",
    "genfl-mnist": "populace.papers.genfl:MNIST",
    "local-adult9": "populace.papers.local:ADULT9",
    "local-bank": "populace.papers.local:BANK",
    "moments-fashion": "populace.papers.moments:FASHION",
    "moments-mnist": "populace.papers.moments:MNIST",
    "representation-a9a": "populace.papers.representation:A9A",
    "tables-adult": "populace.papers.tables:ADULT",
    "tables-bank": "populace.papers.tables:BANK",
    "tables-diabetes": "populace.papers.tables:DIABETES",
    "wae-a9a": "populace.papers.wae:A9A",
    "wae-images": "populace.papers.wae_images:IMAGES",
    "poll-a9a": "populace.papers.poll:A9A",
    "poll-ablation": "populace.papers.poll:ABLATION",
    "poll-adult9": "populace.papers.poll:ADULT9",
}


def find_benchmark(name: str) -> Benchmark:
    """A benchmark by name, imported when it is asked for."""
    if name not in BENCHMARKS:
        raise SpecError(f"unknown benchmark {name!r}; benchmarks are {', '.join(BENCHMARKS)}")
    module, _, attribute = BENCHMARKS[name].partition(":")
    found: Benchmark = getattr(importlib.import_module(module), attribute)
    return found
