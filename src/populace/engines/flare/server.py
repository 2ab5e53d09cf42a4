"""The coordinator's long-lived process: FLARE's server, which lets in the sites of this federation alone.

Certificates of another root, expired ones and those on the federation's list are refused in the handshake; a revoked name is
refused at registration too, whatever certificate it shows. The list is looked at all the time: a new one needs no restart, and
cuts the connections of those it names.
"""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.drivers import tcp_driver
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.private.fed.app.server import server_train

from populace.engines.flare.policy import LIST_FILE
from populace.engines.flare.tls import (
    SECONDS_BETWEEN_LOOKS,
    GuardedServer,
    Listed,
    check_identities,
    cut_refused,
)

log = logging.getLogger(__name__)


def list_of(kit: Path) -> Path:
    """Where the server of a kit finds the federation's list: in the federation's folder."""
    return kit.parents[1] / LIST_FILE


def guard(kit: Path) -> None:
    """Put the checks in place; called before FLARE's server is started."""
    listed = Listed(list_of(kit), kit / "startup" / "rootCA.pem")

    class Server(GuardedServer):
        """The server of this list."""

        def __init__(self, driver: tcp_driver.TcpDriver, connector: Any) -> None:
            self.listed = listed
            super().__init__(driver, connector)
            threading.Thread(target=_keep_cutting, args=(driver, listed), daemon=True).start()

    tcp_driver.TcpStreamServer = Server
    check_identities(listed)


def _keep_cutting(driver: tcp_driver.TcpDriver, listed: Listed) -> None:
    pause = threading.Event()
    while not pause.wait(SECONDS_BETWEEN_LOOKS):
        try:
            cut_refused(driver, listed)
        except Exception:  # the next look must come, whatever this one met
            log.exception("a look at the connections failed")


def main() -> int:
    arguments = server_train.parse_arguments()
    guard(Path(arguments.workspace))
    return int(MainProcessMonitor.run(main_func=server_train.main, run_dir=arguments.workspace, args=arguments) or 0)


if __name__ == "__main__":
    sys.exit(main())
