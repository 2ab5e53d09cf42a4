"""Connections of a federation: both ends show a certificate of its root, and none that is on its list.

FLARE's own contexts take the operating system's authorities too at a site, do without the client's certificate where a file
says so, and know no list. Its server shakes hands with one client after the other, so that one who connects and says nothing
keeps all others out; this one does so in the connection's own thread, and not for long.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import ssl
import tempfile
import threading
from pathlib import Path
from socketserver import TCPServer, ThreadingTCPServer
from typing import Any

from nvflare.fuel.f3.drivers import tcp_driver
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.socket_conn import ConnectionHandler
from nvflare.private.fed.utils.identity_utils import IdentityVerifier

from populace.engines.flare.certificates import NOBODY, Certificate, RevocationList, described, from_der, read_list
from populace.engines.flare.policy import LIST_FILE
from populace.errors import PopulaceError

SECONDS_TO_SHAKE_HANDS = 10.0
SECONDS_BETWEEN_LOOKS = 1.0
AS_SERVER = (DriverParams.SERVER_CERT.value, DriverParams.SERVER_KEY.value)
AS_CLIENT = (DriverParams.CLIENT_CERT.value, DriverParams.CLIENT_KEY.value)

log = logging.getLogger(__name__)
flares_context = tcp_driver.get_ssl_context


class RefusedCertificate(Exception):  # noqa: N818 - FLARE reports it in its own words
    """A certificate of the root that is on the list, or out of its time."""


class Listed:
    """The list of revoked certificates in a file, read again when the file changes. A damaged one changes nothing."""

    def __init__(self, path: Path, root: Path) -> None:
        self._path, self._root = path, root
        self._lock = threading.Lock()
        self._stands: tuple[int, ...] = ()
        self._found = NOBODY

    def now(self) -> RevocationList:
        with self._lock:
            try:
                stat = self._path.stat()
            except OSError:
                return self._found  # a list that is gone revokes as before
            stands = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if stands == self._stands:
                return self._found
            self._stands = stands
            try:
                found = read_list(self._path, self._root)
            except (PopulaceError, OSError) as error:
                log.error("the list of revoked certificates is not taken: %s", error)
                return self._found
            if found.number > self._found.number:
                log.info("list %d of revoked certificates: %d entries", found.number, len(found.entries))
                self._found = found
            return self._found

    def check(self, certificate: Certificate) -> None:
        """Raise RefusedCertificate for one that is on the list or out of its time."""
        if self.now().holds(certificate.name, certificate.serial):
            raise RefusedCertificate(f"the certificate of {certificate.name} is revoked")
        if not certificate.begins <= datetime.datetime.now(datetime.UTC) <= certificate.ends:
            raise RefusedCertificate(
                f"the certificate of {certificate.name} is valid from {certificate.begins} to {certificate.ends}"
            )


def federation_context(params: dict[str, Any], listed: RevocationList, *, ssl_server: bool) -> ssl.SSLContext | None:
    """A context that takes certificates of the federation's root alone, at both ends; None where FLARE would use none."""
    if flares_context(params, ssl_server) is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if ssl_server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # FLARE has the server sign its name
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(params[DriverParams.CA_CERT.value])
    for certificate, key in (AS_SERVER, AS_CLIENT) if ssl_server else (AS_CLIENT, AS_SERVER):
        if params.get(certificate) and params.get(key):
            context.load_cert_chain(params[certificate], params[key])
            break
    if listed.number:
        with tempfile.NamedTemporaryFile() as file:  # the bytes that were checked, not what the file may hold by now
            file.write(listed.content)
            file.flush()
            context.load_verify_locations(file.name)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


class GuardedServer(ThreadingTCPServer):
    """FLARE's stream server, with handshakes apart and a context that is made anew when the list changes."""

    allow_reuse_address = True
    listed: Listed

    def __init__(self, driver: tcp_driver.TcpDriver, connector: Any) -> None:
        self.driver, self.connector = driver, connector
        self._context_lock = threading.Lock()
        self._context_of = self.listed.now()
        self._context = federation_context(connector.params, self._context_of, ssl_server=True)
        host, port = (connector.params.get(name.value) for name in (DriverParams.HOST, DriverParams.PORT))
        TCPServer.__init__(self, (host, int(port)), ConnectionHandler, bind_and_activate=False)
        try:
            self.server_bind()
            self.server_activate()
        except BaseException:
            self.server_close()
            raise

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """The context under the list as it is now. A new one knows no earlier session, so that none is taken up again."""
        with self._context_lock:
            listed = self.listed.now()
            if self._context is not None and listed is not self._context_of:
                self._context = federation_context(self.connector.params, listed, ssl_server=True)
                self._context_of = listed
            return self._context

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands in the connection's own thread, then hand it to FLARE."""
        context = self.ssl_context
        if context is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(SECONDS_TO_SHAKE_HANDS)
        try:
            secured = context.wrap_socket(request, server_side=True)
        except OSError as error:
            log.warning("refused a connection from %s: %s", client_address[0], error)
            return
        with contextlib.closing(secured):
            if _is_refused(secured, self.listed):
                return
            secured.settimeout(None)
            super().finish_request(secured, client_address)


def _is_refused(secured: ssl.SSLSocket, listed: Listed) -> bool:
    """Whether the other end is on the list, out of its time, or cannot be told; a connection that is closed is."""
    try:
        content = secured.getpeercert(binary_form=True)
    except (AttributeError, OSError, ValueError):  # FLARE has closed it meanwhile
        return True
    try:
        listed.check(from_der(content or b""))
    except (RefusedCertificate, PopulaceError) as error:
        log.warning("refused a connection: %s", error)
        return True
    return False


def cut_refused(driver: tcp_driver.TcpDriver, listed: Listed) -> None:
    """Close the connections of those whose certificate has been revoked, or has run out, since they connected."""
    with driver.conn_lock:
        connections = list(driver.connections.values())
    for connection in connections:
        if isinstance(connection.sock, ssl.SSLSocket) and _is_refused(connection.sock, listed):
            with contextlib.suppress(OSError):
                connection.close()


def check_identities(listed: Listed) -> None:
    """Have FLARE's check of a name, at registration and login, refuse what is on the list or out of its time."""
    verify = IdentityVerifier.verify_common_name

    def checked(self: IdentityVerifier, *given: Any, **named: Any) -> bool:
        verified = verify(self, *given, **named)
        asserted = named["asserter_cert"] if "asserter_cert" in named else given[2]
        listed.check(described(asserted))
        return bool(verified)

    IdentityVerifier.verify_common_name = checked


def guard_connections(kit: Path) -> None:
    """Connect to a server of the federation's own root alone, and to none that is on the site's copy of its list."""
    listed = Listed(kit.parent / LIST_FILE, kit / "startup" / "rootCA.pem")

    def context(params: dict[str, Any], ssl_server: bool) -> ssl.SSLContext | None:
        return federation_context(params, listed.now(), ssl_server=ssl_server)

    tcp_driver.get_ssl_context = context
    check_identities(listed)
