"""`python -m tests.drill`: a soak and chaos drill of a federation on loopback, for maintainers.

    python -m tests.drill --seconds 3600 --seed 1 --sites 5 [--out FILE] [--folder FOLDER]

Prints how each run went and a summary; exits with 1 where an invariant does not hold, and keeps the folder then.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[1]
#: As in the tests: code that is made quickly; one thread for each of many processes.
QUICK = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1"
)


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m tests.drill", description=__doc__.splitlines()[0])
    words.add_argument("--seconds", type=float, default=3600.0, help="how long; the last run is finished after that")
    words.add_argument("--seed", type=int, default=1, help="of everything that is drawn")
    words.add_argument(
        "--sites", type=int, default=5, choices=range(3, 11), help="honest sites, 3 to 10; a liar joins them"
    )
    words.add_argument("--out", type=Path, help="where the summary is written as JSON")
    words.add_argument("--folder", type=Path, help="an empty folder for everything; a temporary one if left out")
    words.add_argument("--keep", action="store_true", help="keep the folder also where all is well")
    given = words.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="populace-drill-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    _prepare(folder)
    from .loop import Drill

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    say(f"drill: {given.seconds:g} s, seed {given.seed}, {given.sites} sites and a liar, in {folder}")
    drill = Drill(folder, seconds=given.seconds, seed=given.seed, sites=given.sites, say=say)
    summary = drill.go()
    text = json.dumps(summary, indent=2) + "\n"
    (folder / "summary.json").write_text(text)
    if given.out is not None:
        given.out.write_text(text)
    say(text)
    if summary["wrong"]:
        say(f"{len(summary['wrong'])} invariants do not hold; everything is kept in {folder}")
        return 1
    if not given.keep and given.folder is None:
        shutil.rmtree(folder)
    return 0


def _prepare(folder: Path) -> None:
    """What all processes inherit; set before JAX is loaded."""
    sys.path.insert(0, str(TESTS))
    os.environ.setdefault("XLA_FLAGS", QUICK)
    wanted = {
        "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    }  # fmt: skip
    os.environ.update(wanted)


if __name__ == "__main__":
    sys.exit(main())
