"""Only sites are let in by `populace federation approve`, each name once."""

import json
import zipfile

import pytest

from populace.engines.agreement import Agreement
from populace.engines.flare import kits
from populace.errors import InputError
from populace.federation.coordinator import Federation
from populace.federation.site import SiteFolder
from populace.methods.registry import make_protocol

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


def test_a_name_is_signed_once_and_never_the_servers(tmp_path, small_schema):
    agreement = Agreement(protocol=make_protocol("independent", {"epsilon": 2.0}), schema=small_schema)
    federation, site = Federation(tmp_path / "federation"), SiteFolder(tmp_path / "ward")
    federation.create(agreement, name="study", host="ward-server", port=18999)
    request = site.request(name="ward", org="clinic", federation="study")
    name, signed = federation.approve(request)
    first = kits.signed_certificate(signed)
    assert (name, first.name) == ("ward", "ward")
    with pytest.raises(InputError, match="--again"):
        federation.approve(request)
    assert kits.signed_certificate(signed) == first
    federation.approve(request, again=True)
    assert kits.signed_certificate(signed).serial != first.serial
    with pytest.raises(InputError, match="server's own name"):
        federation.approve(request_of(tmp_path / "s.zip", {**SITE, "name": "ward-server"}))
