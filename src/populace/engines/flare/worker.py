"""A site's job process: FLARE's own worker, which carries requests and replies, under its parent's checks of connections."""

from __future__ import annotations

import sys
from pathlib import Path

from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.private.fed.app.client import worker_process

from populace.engines.flare.connecting import bound_connecting
from populace.engines.flare.tls import guard_connections


def guard(kit: Path) -> None:
    """Put the checks in place; called before FLARE's worker is started."""
    guard_connections(kit)
    bound_connecting()


def main() -> int:
    arguments = worker_process.parse_arguments()
    guard(Path(arguments.workspace))
    run_dir = str(Path(arguments.workspace) / arguments.job_id)
    return int(MainProcessMonitor.run(main_func=worker_process.main, run_dir=run_dir, args=arguments) or 0)


if __name__ == "__main__":
    sys.exit(main())
