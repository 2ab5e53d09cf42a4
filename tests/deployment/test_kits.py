"""Only sites are let in by `populace federation approve`, each name once."""

import json
import zipfile

import pytest

from populace.engines.flare import kits
from populace.errors import InputError
from populace.federation.coordinator import Federation

SITE = {"kind": "site", "cert_type": "client", "name": "ward"}


def request_of(path, document):
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("request.json", document if isinstance(document, str) else json.dumps(document))
    return path


def test_a_sites_request_names_it(tmp_path):
    assert kits.requested_name(request_of(tmp_path / "r.zip", SITE)) == "ward"


@pytest.mark.parametrize(
    "document",
    [
        {**SITE, "kind": "user", "cert_type": "lead"},
        {**SITE, "kind": "server", "cert_type": "server", "name": "localhost"},
        {**SITE, "cert_type": "server"},
        {**SITE, "name": "../ward"},
        {"name": "ward"},
        ["site"],
        "not json",
        " " * (kits.MOST_BYTES + 1),
    ],
)
def test_a_request_for_anything_else_is_refused_before_signing(tmp_path, document, monkeypatch):
    monkeypatch.setattr(kits, "_flare", lambda *given, **more: pytest.fail("the signing tool was called"))
    with pytest.raises(InputError):
        kits.approve(tmp_path, request_of(tmp_path / "r.zip", document), tmp_path / "signed.zip")
    with pytest.raises(InputError, match="no request"):
        kits.approve(tmp_path, tmp_path / "nothing.zip", tmp_path / "signed.zip")


def test_what_was_signed_must_be_what_was_asked(tmp_path, monkeypatch):
    """A request whose description and certificate differ."""
    signed = tmp_path / "signed.zip"

    def sign(*steps, home):
        signed.write_bytes(b"x")
        return [{"name": "localhost", "cert_type": "server"}]

    monkeypatch.setattr(kits, "_flare", sign)
    with pytest.raises(InputError, match="nothing was signed"):
        kits.approve(tmp_path, request_of(tmp_path / "r.zip", SITE), signed)
    assert not signed.exists()


def test_a_name_is_signed_once_and_never_the_servers(tmp_path, monkeypatch):
    monkeypatch.setattr(Federation, "document", {"host": "ward-server", "name": "study"})
    calls = []

    def approve(folder, request, signed):
        calls.append(request)
        signed.write_bytes(b"signed")
        return kits.requested_name(request)

    monkeypatch.setattr(kits, "approve", approve)
    federation, request = Federation(tmp_path), request_of(tmp_path / "r.zip", SITE)
    name, signed = federation.approve(request)
    assert (name, signed.read_bytes()) == ("ward", b"signed")
    with pytest.raises(InputError, match="--again"):
        federation.approve(request)
    assert len(calls) == 1
    federation.approve(request, again=True)
    assert len(calls) == 2
    with pytest.raises(InputError, match="server's own name"):
        federation.approve(request_of(tmp_path / "s.zip", {**SITE, "name": "ward-server"}))
