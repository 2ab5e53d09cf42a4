"""Connections to a federation's server that are made in bounded time, or not at all.

FLARE's driver shakes hands without a limit, and forgets a connection that is only made after it was told to shut down: whoever
closes it then waits for that connection for ever, as a coordinator's command did whose server was stopped and continued.
"""

from __future__ import annotations

import socket
from typing import Any

from nvflare.fuel.f3.drivers import tcp_driver
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.socket_conn import SocketConnection

SECONDS_TO_CONNECT = 10.0


def connect(driver: tcp_driver.TcpDriver, connector: Any) -> None:
    """Connect and read until the connection ends; raises OSError where the server does not shake hands in time."""
    driver.connector = connector
    context = tcp_driver.get_ssl_context(connector.params, ssl_server=False)
    plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock = plain if context is None else context.wrap_socket(plain)
    try:
        sock.settimeout(SECONDS_TO_CONNECT)
        sock.connect((connector.params[DriverParams.HOST.value], int(connector.params[DriverParams.PORT.value])))
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    connection = SocketConnection(sock, connector, context is not None)
    driver.add_connection(connection)
    if getattr(driver, "over", False):
        connection.close()
    connection.read_loop()
    driver.close_connection(connection)


def shutdown(driver: tcp_driver.TcpDriver) -> None:
    """Close all connections, and mark the driver first: one that is added later closes itself."""
    driver.over = True
    driver.close_all()
    if driver.server:
        driver.server.shutdown()


def bound_connecting() -> None:
    """Let FLARE connect so in this process, from the next connection on."""
    tcp_driver.TcpDriver.connect = connect
    tcp_driver.TcpDriver.shutdown = shutdown
