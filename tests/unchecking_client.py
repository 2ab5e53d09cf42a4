"""FLARE's own client with every check of the server taken out: what a stranger would run. Started as a process by the tests.

With POPULACE_TLS_PAIR=FOLDER the connection is made with that folder's certificate, and the name is still asserted with the
kit's own.
"""

import os
import ssl
import sys

from nvflare.fuel.f3.drivers import tcp_driver
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.private.fed.app.client import client_train
from nvflare.private.fed.utils.identity_utils import IdentityVerifier, TokenVerifier

checked_context = tcp_driver.get_ssl_context


def unchecked_context(params, ssl_server):
    context = checked_context(params, ssl_server)
    if context is None or ssl_server:
        return context
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    pair = params[DriverParams.CLIENT_CERT.value], params[DriverParams.CLIENT_KEY.value]
    if folder := os.environ.get("POPULACE_TLS_PAIR"):
        pair = f"{folder}/client.crt", f"{folder}/client.key"
    context.load_cert_chain(*pair)
    return context


def main() -> int:
    tcp_driver.get_ssl_context = unchecked_context
    IdentityVerifier.verify_common_name = lambda *given, **named: True
    TokenVerifier.verify = lambda *given, **named: True
    arguments = client_train.parse_arguments()
    return int(MainProcessMonitor.run(main_func=client_train.main, run_dir=arguments.workspace, args=arguments) or 0)


if __name__ == "__main__":
    sys.exit(main())
