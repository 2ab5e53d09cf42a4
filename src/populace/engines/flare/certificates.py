"""Certificates, the list of revoked ones, and signatures with their keys: thin names over the package `cryptography`.

The list is an X.509 revocation list (RFC 5280) signed by the federation's root. Its number only grows. An entry holds the
certificate's serial number, the name it was for, and whether the name itself is revoked or only that certificate was replaced.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from populace.border.regular import read_bytes
from populace.errors import InputError, RunError
from populace.tables.files import replacing

DAYS_TO_WARN = 30
MOST_BYTES = 2**20  # of a list or a certificate
NAME_OF_ENTRY = x509.ObjectIdentifier("2.25.213640271925512877218373921830113580837")  # the name, as text
REVOKED, REPLACED = x509.ReasonFlags.privilege_withdrawn, x509.ReasonFlags.superseded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Certificate:
    """What is used of a certificate: whose it is, its serial number, a digest of its public key, when it is valid."""

    name: str
    serial: int
    key: str
    begins: datetime.datetime
    ends: datetime.datetime
    content: bytes

    def days_left(self, now: datetime.datetime | None = None) -> float:
        return (self.ends - (now or datetime.datetime.now(datetime.UTC))).total_seconds() / 86400


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A certificate on the list; `whole_name` where the name is revoked, not only this certificate replaced."""

    name: str
    serial: int
    whole_name: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class RevocationList:
    """The list, checked against the root; number 0 and no entries where there is none."""

    number: int = 0
    entries: tuple[Entry, ...] = ()
    content: bytes = b""

    @property
    def names(self) -> frozenset[str]:
        """The names that are revoked, whatever certificate they show."""
        return frozenset(entry.name for entry in self.entries if entry.whole_name)

    def holds(self, name: str, serial: int) -> bool:
        """Whether somebody with this certificate is refused."""
        return name in self.names or any(entry.serial == serial for entry in self.entries)


NOBODY = RevocationList()


def read_certificate(path: Path) -> Certificate:
    """The certificate in a PEM file; the first, where there are several."""
    try:
        return from_pem(_bounded(path))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the certificate {path}: {error}") from error


def from_pem(content: bytes) -> Certificate:
    """The first certificate in these bytes; raises ValueError where there is none."""
    try:
        return described(x509.load_pem_x509_certificate(content))
    except IndexError as error:
        raise ValueError("the certificate names nobody") from error


def key_of(private: Path) -> str:
    """The digest of the public key that belongs to a private one: as in its certificate."""
    return _digest(_private(private).public_key())


def from_der(content: bytes) -> Certificate:
    """A certificate as it comes over a connection."""
    try:
        return described(x509.load_der_x509_certificate(content))
    except (ValueError, IndexError) as error:
        raise InputError(f"expected a certificate, got {len(content)} bytes that are none") from error


def described(found: x509.Certificate) -> Certificate:
    """What is used of a certificate that FLARE has read."""
    common = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    return Certificate(
        name=str(common), serial=found.serial_number, key=_digest(found.public_key()),
        begins=found.not_valid_before_utc, ends=found.not_valid_after_utc, content=found.public_bytes(Encoding.DER),
    )  # fmt: skip


def _digest(public: CertificatePublicKeyTypes) -> str:
    return hashlib.sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def is_issued_by(certificate: Certificate, root: Path) -> bool:
    """Whether a certificate was signed with the key of a root, whenever that was."""
    try:
        x509.load_der_x509_certificate(certificate.content).verify_directly_issued_by(_root(root))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def sign(key: Path, content: bytes) -> bytes:
    """Sign with the private key of a kit: RSA-PSS over SHA-256."""
    return _private(key).sign(content, _pss(), SHA256())


def is_signed(certificate: Certificate, signature: bytes, content: bytes) -> bool:
    """Whether the owner of a certificate signed these bytes."""
    public = x509.load_der_x509_certificate(certificate.content).public_key()
    if not isinstance(public, rsa.RSAPublicKey):
        return False
    try:
        public.verify(signature, content, _pss(), SHA256())
    except InvalidSignature:
        return False
    return True


def _pss() -> padding.PSS:
    return padding.PSS(mgf=padding.MGF1(SHA256()), salt_length=padding.PSS.DIGEST_LENGTH)


def make_list(ca: Path, number: int, entries: Iterable[Entry]) -> RevocationList:
    """A list of this number, signed by the root in the folder `ca`; valid as long as the root itself."""
    root, now = _root(ca / "rootCA.pem"), datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(root.subject)
        .last_update(
            root.not_valid_before_utc
        )  # a site whose clock is behind would not take it otherwise; numbers order lists
        .next_update(root.not_valid_after_utc)
        .add_extension(x509.CRLNumber(number), critical=False)
    )
    for entry in entries:
        builder = builder.add_revoked_certificate(
            x509.RevokedCertificateBuilder()
            .serial_number(entry.serial)
            .revocation_date(now)
            .add_extension(x509.CRLReason(REVOKED if entry.whole_name else REPLACED), critical=False)
            .add_extension(x509.UnrecognizedExtension(NAME_OF_ENTRY, _as_text(entry.name)), critical=False)
            .build()
        )
    content = builder.sign(_private(ca / "rootCA.key"), SHA256()).public_bytes(Encoding.PEM)
    return check_list(content, ca / "rootCA.pem", where=ca)


def check_list(content: bytes, root: Path, *, where: object) -> RevocationList:
    """A list as it stands in a file or came with a request; raises InputError unless the root signed it."""
    try:
        found = x509.load_pem_x509_crl(content)
        signed = found.is_signature_valid(_root(root).public_key())  # type: ignore[arg-type]
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        entries = tuple(_entry(each) for each in found)
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        raise InputError(f"{where} holds no list of revoked certificates: {error}") from error
    if not signed or number < 1:
        raise InputError(f"the list of revoked certificates in {where} is not signed by this federation's root")
    alone = found.public_bytes(Encoding.PEM)  # what else stands there, a certificate for one, would be trusted with it
    if content.split() != alone.split():
        raise InputError(f"{where} holds more than a list of revoked certificates; nothing of it is taken")
    return RevocationList(number=number, entries=entries, content=alone)


def read_list(path: Path, root: Path) -> RevocationList:
    """The list in a file, or an empty one where there is no file."""
    if not path.exists():
        return NOBODY
    try:
        return check_list(_bounded(path), root, where=path)
    except OSError as error:
        raise RunError(f"cannot read {path}: {error}; put it back") from error


def keep_list(path: Path, revoked: RevocationList) -> None:
    with replacing(path) as temporary:
        temporary.touch(mode=0o644)
        temporary.write_bytes(revoked.content)


def _entry(found: x509.RevokedCertificate) -> Entry:
    reason = found.extensions.get_extension_for_class(x509.CRLReason).value.reason
    named = found.extensions.get_extension_for_oid(NAME_OF_ENTRY).value
    if not isinstance(named, x509.UnrecognizedExtension) or named.value[:1] != b"\x0c":
        raise ValueError("an entry names nobody")
    return Entry(name=named.value[2:].decode(), serial=found.serial_number, whole_name=reason is REVOKED)


def _as_text(name: str) -> bytes:
    """A name as a UTF8String in DER; names of sites are short."""
    content = name.encode()
    if len(content) > 127:
        raise InputError(f"expected a name of at most 127 bytes, got {len(content)}")
    return b"\x0c" + bytes([len(content)]) + content


def _root(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(_bounded(path))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the root certificate {path}: {error}") from error


def _private(path: Path) -> rsa.RSAPrivateKey:
    try:
        # Made by FLARE's tool on this machine; checking its primes again takes longer than signing.
        found = load_pem_private_key(_bounded(path), None, unsafe_skip_rsa_key_validation=True)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"cannot read the private key {path}: {type(error).__name__}; put it back") from error
    if not isinstance(found, rsa.RSAPrivateKey):
        raise InputError(f"the private key {path} is not an RSA key, as FLARE makes them")
    return found


def _bounded(path: Path) -> bytes:
    return read_bytes(path, most=MOST_BYTES, error=InputError)
