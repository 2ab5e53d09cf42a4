"""Certificates as strangers and forgetful owners have them, and what a server says to them."""

from __future__ import annotations

import datetime
import socket
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)


def make_pair(folder: Path, name: str, *, ca: Path | None = None, days: tuple[float, float] = (-1, 30)) -> Path:
    """`client.crt` and `client.key` for a name: of a root in the folder `ca`, else signed by itself; valid from day to day."""
    folder.mkdir(parents=True, exist_ok=True)
    key = rsa.generate_private_key(65537, 2048)
    subject = issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer = key
    if ca is not None:
        issuer = x509.load_pem_x509_certificate((ca / "rootCA.pem").read_bytes()).subject
        signer = load_pem_private_key((ca / "rootCA.key").read_bytes(), None)
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + days[0] * DAY)
        .not_valid_after(now + days[1] * DAY)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(signer, SHA256())
    )
    (folder / "client.crt").write_bytes(made.public_bytes(Encoding.PEM))
    (folder / "client.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    return folder


def knock(
    port: int, pair: Path | None, *, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3, seconds: float = 1.5
) -> str:
    """What a server does to a client that checks nothing: `kept`, or the reason for which the connection ended."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    if pair is not None:
        context.load_cert_chain(pair / "client.crt", pair / "client.key")
    shaken = False
    try:
        with (
            socket.create_connection(("localhost", port), timeout=5) as plain,
            context.wrap_socket(plain) as secured,
        ):
            shaken = True
            secured.settimeout(seconds)
            return "kept" if secured.recv(1) else "closed"
    except TimeoutError:
        return "kept" if shaken else "no answer"
    except ssl.SSLError as error:
        return str(error.reason)
    except OSError as error:
        return type(error).__name__
