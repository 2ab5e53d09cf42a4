"""The coordinator's folder: the root certificate, the server, what is proposed to the sites, and the runs.

federation.json       name, address, fingerprint, number of the last list of revoked certificates
NAME.proposal.json    what sites are asked to agree to: method, all parameters, schema; goes to every site
ca/                   the root certificate and its key; private
server/ lead/         the coordinator's own kits; private
sites/                requests, and signed ones to send back
issued.json, revoked.crl    whom the root has signed, and who is revoked (see `members`)
runs/                 one folder per run: checkpoint, status, rounds
"""

from __future__ import annotations

import dataclasses
import secrets
import shutil
from pathlib import Path
from typing import Literal

from populace.border.models import check_document, read_document
from populace.engines.agreement import OLD_HOME, Agreement, agreement_from_json
from populace.engines.flare import kits, policy, processes, session
from populace.engines.flare.certificates import Certificate, RevocationList, read_certificate
from populace.errors import InputError, PopulaceError, RunError
from populace.federation import members
from populace.federation.forms import FederationForm, ProposalForm
from populace.federation.standing import standing
from populace.tables.files import read_json, replacing, write_json
from populace.types import JsonObject

FORMAT = 1
SECONDS_TO_ANSWER = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proposal:
    """What a coordinator proposes; a site that joins with it agrees to exactly this."""

    federation: str
    server: str
    fingerprint: str
    agreement: Agreement

    def save(self, path: Path) -> None:
        write_json(path, {"format": FORMAT, **self._fields(), "agreement": self.agreement.to_json()})

    def _fields(self) -> dict[str, str]:
        return {"federation": self.federation, "server": self.server, "fingerprint": self.fingerprint}


def read_proposal(path: Path) -> Proposal:
    if not path.is_file():
        raise InputError(f"no proposal {path}; expected the file that `populace federation init` made")
    document = read_json(path, error=InputError)
    if not isinstance(document, dict) or document.get("format") != FORMAT or "agreement" not in document:
        raise InputError(f"{path} is not a proposal of a federation")
    check_document(document, ProposalForm, where=str(path), error=InputError, advice="ask for it again")
    _refuse_foreign_class(document["agreement"], path)
    fields = {name: str(document.get(name, "")) for name in ("federation", "server", "fingerprint")}
    return Proposal(agreement=agreement_from_json(document["agreement"], where=str(path)), **fields)


def _refuse_foreign_class(document: JsonObject, path: Path) -> None:
    """A proposal comes from elsewhere: it may name methods by name only, never code of its choice."""
    from populace.methods.registry import METHODS, protocol_class

    name = document.get("method") if isinstance(document, dict) else None
    known = isinstance(name, str) and name in METHODS
    home = str(document.get("class")) if known else ""
    cls = protocol_class(str(name)) if known else None
    if cls is None or not (home == f"{cls.__module__}:{cls.__qualname__}" or home.startswith(OLD_HOME)):
        raise InputError(
            f"{path} proposes {name!r}, which is not a method of this installation; `populace methods` lists them"
        )


class Federation:
    """Paths and steps of one federation, at the coordinator."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()

    @property
    def document(self) -> JsonObject:
        if not (self.path / "federation.json").is_file():
            raise InputError(f"{self.path} is not a federation's folder; `populace federation init` makes one")
        return read_document(self.path / "federation.json", FederationForm)

    @property
    def name(self) -> str:
        return str(self.document["name"])

    @property
    def server_kit(self) -> Path:
        return self.path / "server" / "kit"

    @property
    def lead_kit(self) -> Path:
        return self.path / "lead" / "kit"

    @property
    def proposal_path(self) -> Path:
        return self.path / f"{self.name}.proposal.json"

    def run_folder(self, run: str) -> Path:
        return self.path / "runs" / run

    def create(self, agreement: Agreement, *, name: str, host: str, port: int) -> str:
        """Make the root certificate, the server and the lead; return the fingerprint that sites need over another channel."""
        kits.check_name(name, "a federation's name")
        if (self.path / "federation.json").exists():
            raise RunError(f"{self.path} holds a federation already; choose another folder")
        if not 1024 <= port <= 65535:
            raise InputError(f"expected a port in 1024 to 65535, got {port}")
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)
        fingerprint = kits.make_root(self.path, federation=name, host=host, port=port)
        for place in ("server", "lead"):
            members.note_issued(self.path, self._certificate(place))
        policy.write_server_policy(self.server_kit, self.path / "store")
        Proposal(federation=name, server=f"{host}:{port}", fingerprint=fingerprint, agreement=agreement).save(
            self.path / f"{name}.proposal.json"
        )
        write_json(
            self.path / "federation.json",
            {"format": FORMAT, "name": name, "host": host, "port": port, "fingerprint": fingerprint},
        )
        return fingerprint

    def agreement(self) -> Agreement:
        """What runs are made of: the coordinator's own proposal."""
        document = read_document(self.proposal_path, ProposalForm)
        return agreement_from_json(document.get("agreement"), where=str(self.proposal_path))

    def approve(self, request: Path, *, again: bool = False) -> tuple[str, Path]:
        """Sign a site's request; returns its name and the file to send back. A name is signed once, unless `again`."""
        _ = self.document
        name = kits.requested_name(request)
        if name == self.document["host"]:
            raise InputError(f"{name} is the server's own name; a site needs another")
        if not again and (self.path / "sites" / f"{name}.signed.zip").exists():
            raise InputError(f"{name} was approved before; if the site itself asks for a new certificate, give --again")
        signed = self._sign(name, request)
        if again:
            members.replace_certificates(self.path, name, keep=kits.signed_certificate(signed))
        return name, signed

    def _sign(self, name: str, request: Path) -> Path:
        """Sign a request, and keep both; the certificate is recorded before it can be handed out."""
        waiting = self.path / "sites" / f".{secrets.token_hex(4)}.signed.zip"
        waiting.parent.mkdir(exist_ok=True, mode=0o700)
        kits.approve(self.path, request, waiting)
        members.note_issued(self.path, kits.signed_certificate(waiting))
        kept = waiting.with_name(f"{name}.request.zip")
        if request.resolve() != kept:
            with replacing(kept) as temporary:
                shutil.copy(request, temporary)
                temporary.chmod(0o600)
        return waiting.replace(waiting.with_name(f"{name}.signed.zip"))

    def revoke(self, site: str) -> RevocationList:
        """Put a site on the federation's list. A running server takes the list within seconds, and cuts its connections."""
        if site in (self.document["host"], kits.LEAD):
            raise InputError(
                f"{site} is the coordinator's own name: every site would refuse it for good; `populace federation renew "
                f"{self.path} --new-keys` replaces its certificates"
            )
        return members.revoke_name(self.path, site)

    def renew(self, site: str | None = None, *, new_keys: bool = False) -> Path | None:
        """New certificates from the same root: of the server and the lead, or of a site for the key it has.

        Returns the file to send to the site. A server that runs is started anew. With `new_keys` the coordinator's earlier
        certificates go on the list, and sites must be started anew: what a server let them do was signed with its old key.
        """
        document = self.document
        members.check_not_over(
            self._certificate("root"),
            what="the federation's root",
            cure="found a new federation; no root outlives its end",
        )
        if site is not None:
            request = self.path / "sites" / f"{site}.request.zip"
            if site in members.current_list(self.path).names:
                raise InputError(f"{site} is revoked; a new request of it, approved with --again, lets it in again")
            if not request.is_file():
                raise InputError(
                    f"no request of {site} is kept here; have it make one (`populace site request`), and approve that --again"
                )
            return self._sign(site, request)
        kits.renew_own(
            self.path, federation=document["name"], host=document["host"], port=document["port"], new_keys=new_keys
        )
        for place in ("server", "lead"):
            found = self._certificate(place)
            members.note_issued(self.path, found)
            if new_keys:
                members.replace_certificates(self.path, found.name, keep=found)
        if processes.alive(self.server_kit) is not None:
            self.stop()
            self.start()
        return None

    def _certificate(self, whose: Literal["root", "server", "lead"]) -> Certificate:
        return read_certificate(
            {
                "root": self.path / "ca" / "rootCA.pem",
                "server": self.server_kit / "startup" / "server.crt",
                "lead": self.lead_kit / "startup" / "client.crt",
            }[whose]
        )

    def _check_certificates(self) -> None:
        """Raise RunError where a connection would only be refused, or where those would be let in who are revoked."""
        cure = f"`populace federation renew {self.path}` makes a new one"
        members.check_not_over(self._certificate("server"), what="the federation's server", cure=cure)
        members.check_not_over(self._certificate("lead"), what="the coordinator's lead", cure=cure)
        members.current_list(self.path)

    def start(self) -> int:
        _ = self.document
        self._check_certificates()
        return processes.start(self.server_kit, "server", name=f"the server of {self.name}", org="coordinator")

    def stop(self) -> bool:
        _ = self.document
        return processes.stop(self.server_kit)

    def connect(self, *, seconds: float = SECONDS_TO_ANSWER) -> session.Session:
        if processes.alive(self.server_kit) is None:
            raise RunError(
                f"the server of {self.name} is not running; `populace federation start {self.path}` starts it"
            )
        self._check_certificates()
        return session.connect(self.lead_kit, seconds=seconds)

    def status(self) -> JsonObject:
        """Server, connected sites and runs, for people and for `--json`."""
        document = self.document
        running, revoked = processes.alive(self.server_kit), members.current_list(self.path)
        sites: list[str] = []
        if running is not None:
            link = self.connect(seconds=5.0)
            sites = link.sites()
            link.close()
        runs = self.path / "runs"
        return {
            "federation": document["name"],
            "server": f"{document['host']}:{document['port']}",
            "process": running,
            "approved": sorted(
                path.name.removesuffix(".signed.zip") for path in (self.path / "sites").glob("*.signed.zip")
            ),
            "connected": [site for site in sites if site not in revoked.names],
            "certificates": members.standing(self.path, server=self.server_kit, lead=self.lead_kit, revoked=revoked),
            "runs": {path.name: _standing(path) for path in sorted(runs.iterdir())} if runs.is_dir() else {},
        }


def _standing(place: Path) -> JsonObject:
    """Where a run stands; one whose files are damaged does not hide the others."""
    try:
        return standing(place)
    except PopulaceError as error:
        return {"state": "stopped", "round": 0, "why": str(error), "sites": {}, "name": place.name}
