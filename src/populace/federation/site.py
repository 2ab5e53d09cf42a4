"""A site's folder: its key, its kit with the policy files, its ledger and its log. Nobody else writes into it.

request/    the private key and the request made with it
kit/        FLARE's startup kit; kit/local/populace.json is the site's own file
sum.key     the private key that signs the site's steps of secure sums
ledger.sqlite, ledger.sqlite.head, data.json, site.log
revoked.crl    the newest list of revoked certificates that reached the site
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

from populace.border.databases.address import file_of, is_database, resolved
from populace.border.models import read_document
from populace.border.regular import read_bytes
from populace.engines.agreement import Agreement
from populace.engines.flare import kits, policy, processes
from populace.engines.flare.certificates import Certificate, RevocationList, keep_list, key_of, read_list
from populace.engines.messages import Hosts
from populace.engines.site import MOST_CLIENTS, MOST_RECORDS
from populace.engines.site_file import (
    SiteFile,
    allow_other_clients,
    begin_accounts,
    check_data,
    own_accounts,
    read_hosted,
    read_site_file,
)
from populace.errors import InputError, RunError
from populace.federation import members
from populace.federation.affordable import check_affordable, check_one_relation, check_trust
from populace.federation.coordinator import Proposal
from populace.federation.forms import SiteForm
from populace.federation.sum_keys import check_own_seat, make_sum_key, seats_of
from populace.methods.base import ImageShape
from populace.privacy.guarantee import Guarantee
from populace.privacy.ledger_file import back_up
from populace.privacy.relation import Relation, relation_of
from populace.privacy.sqlite_ledger import SqliteLedger, check_same_unit, kept_budget
from populace.runs.federated_statement import stated_site
from populace.tables.files import replacing, write_json
from populace.types import JsonObject

Say = Callable[[str], None]
NEW_REQUEST = "request.new"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hosting:
    """The clients a site answers for, and the limit of their budget."""

    data: str | Path
    by: Hosts
    records_per_client: int = 1
    client_column: str | None = None
    records: int | None = None
    epsilon: float
    delta: float = 0.0
    change_limit: bool = False
    trust_coordinator: bool = False
    other_clients: bool = False
    restored: bool = False
    seed: int | None = None
    person: str | None = None


class SiteFolder:
    """Paths and steps of one site."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()

    @property
    def kit(self) -> Path:
        return self.path / "kit"

    @property
    def file_path(self) -> Path:
        return self.kit / "local" / policy.SITE_FILE

    @property
    def sum_key(self) -> Path:
        return self.path / "sum.key"

    def request(self, *, name: str, org: str, federation: str, again: bool = False) -> Path:
        """A private key that stays here, and a request to send to the coordinator; `again` for a new key of the same site."""
        kits.check_name(name, "a site's name")
        kits.check_name(federation, "a federation's name")
        if (self.path / "site.json").exists():
            if not again:
                raise RunError(
                    f"{self.path} holds a site already; choose another folder, or give --again for a new key of this site"
                )
            return self._request_again({"name": name, "org": org, "federation": federation})
        if again:
            raise InputError(f"{self.path} is not a site's folder yet; leave --again out for its first request")
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)
        request = kits.request_site(self.path, federation=federation, name=name, org=org)
        make_sum_key(self.sum_key)
        write_json(self.path / "site.json", {"name": name, "org": org, "federation": federation})
        return request

    def _request_again(self, said: dict[str, str]) -> Path:
        """A new key beside the old one, which is used until the site joins with what is signed for the new one."""
        who = self.document
        if said != {name: who[name] for name in said}:
            raise InputError(f"{self.path} is the folder of {who['name']} of {who['org']} in {who['federation']}")
        shutil.rmtree(self.path / NEW_REQUEST, ignore_errors=True)
        return kits.request_site(self.path, **said, place=NEW_REQUEST)

    def _key_folder(self, signed: Path) -> Path:
        """The folder with the key that a certificate was signed for: the newest or the one in use."""
        name, key = self.document["name"], kits.signed_certificate(signed).key
        for place in (NEW_REQUEST, "request"):
            folder = self.path / place / "key"
            if (folder / f"{name}.key").is_file() and key_of(folder / f"{name}.key") == key:
                return folder
        raise InputError(
            f"{signed} was not signed for a key of this folder; send the coordinator the request made last"
        )

    def _keep_key(self, folder: Path) -> None:
        """Make the key of a new request the one in use."""
        if folder.parent.name == NEW_REQUEST:
            shutil.rmtree(self.path / "request", ignore_errors=True)
            folder.parent.replace(self.path / "request")

    def renew(self, signed: Path) -> None:
        """Put a new certificate into the kit; what was agreed stays."""
        who = self.document
        if not self.joined:
            raise InputError(f"site {who['name']} has not joined; give the proposal, the data and the limit as well")
        if processes.alive(self.kit) is not None:
            raise RunError(f"site {who['name']} is running; stop it before it gets another certificate")
        folder = self._key_folder(signed)
        kits.renew_site(self.path, signed, folder)
        self._keep_key(folder)

    def find_data(self, data: str | Path) -> None:
        """Say where the site's data are now; refuses others than those whose accounts the ledger keeps."""
        who = self.document
        if not self.joined:
            raise InputError(f"site {who['name']} has not joined; give the signed request and the proposal as well")
        if processes.alive(self.kit) is not None:
            raise RunError(f"site {who['name']} is running; stop it before its data move")
        file = dataclasses.replace(read_site_file(self.file_path), data=resolved(data))
        hosted = read_hosted(file, next(iter(file.agreements().values())).schema)
        check_data(file, hosted)
        own_accounts(file, hosted)
        policy.write_site_policy(self.kit, file.to_json(self.path))

    def take_list(self, path: Path) -> RevocationList:
        """Take a list of revoked certificates that came as a file; refuses one older than the list that is here."""
        if not path.is_file():
            raise InputError(f"no list {path}; expected the revoked.crl that `populace federation revoke` wrote")
        given, kept = read_list(path, self._root), self.revoked
        if given.number < kept.number:
            raise InputError(f"{path} is list {given.number}, and this site has list {kept.number}: it was not taken")
        keep_list(self.path / policy.LIST_FILE, given)
        return given

    @property
    def _root(self) -> Path:
        return self.kit / "startup" / "rootCA.pem"

    @property
    def revoked(self) -> RevocationList:
        """The newest list of revoked certificates that reached this site."""
        return read_list(self.path / policy.LIST_FILE, self._root)

    @property
    def certificate(self) -> Certificate | None:
        return members.read_if_there(self.kit / "startup" / "client.crt")

    @property
    def document(self) -> dict[str, str]:
        if not (self.path / "site.json").is_file():
            raise InputError(f"{self.path} is not a site's folder; `populace site request` makes one")
        return read_document(self.path / "site.json", SiteForm)

    @property
    def joined(self) -> bool:
        return self.file_path.is_file()

    def set_up(
        self, signed: Path, proposal: Proposal, hosting: Hosting, *, fingerprint: str, say: Say = lambda _: None
    ) -> Guarantee:
        """Set up the kit, the policy files and the ledger; refuses a coordinator whose root has another fingerprint.

        Says what reading the rows changed. Returns what one whole run would guarantee to the clients hosted here.
        """
        who = self.document
        if not (0 < hosting.epsilon < math.inf and 0 <= hosting.delta < 1):
            raise InputError(
                f"expected a limit of epsilon above 0 and finite, and delta in [0, 1), got epsilon {hosting.epsilon:g} and "
                f"delta {hosting.delta:g}"
            )
        if proposal.federation != who["federation"]:
            raise InputError(
                f"the proposal is of {proposal.federation!r}, this site asked to join {who['federation']!r}"
            )
        if proposal.agreement.roster is not None:
            check_own_seat(proposal.agreement.roster, who["name"], self.sum_key)
        file = self._file(proposal.agreement, hosting)
        hosted = read_hosted(file, proposal.agreement.schema)
        for remark in getattr(hosted.clients.data, "remarks", ()):
            say(remark)
        if hosting.records is None:
            file = dataclasses.replace(file, records=hosted.clients.widest)
            hosted = dataclasses.replace(hosted, records=hosted.clients.widest)
        file = dataclasses.replace(
            file, most_records=max(file.most_records, 10 * file.records), records_declared=hosting.records is not None
        )
        if proposal.agreement.roster is not None and len(hosted.accounts) != 1:
            raise InputError("a site is one client in a secure sum: join with --whole")
        clients = seats_of(proposal.agreement, len(hosted.accounts))
        claim = check_affordable(proposal.agreement, file.budget, clients=clients, records=file.records)
        check_trust(claim, trusted=hosting.trust_coordinator)
        if processes.alive(self.kit) is not None:
            raise RunError(f"site {who['name']} is running; stop it before joining again")
        charged = self._charged(file, hosting, relation_of(claim))
        check_one_relation(file, clients=len(hosted.accounts))
        if charged:
            check_data(file, hosted)
            own_accounts(file, hosted, other_clients=hosting.other_clients)
        folder = self._key_folder(signed)
        kits.assemble(self.path, signed, folder, fingerprint)
        self._keep_key(folder)
        with SqliteLedger(file.ledger, file.budget, raise_budget=hosting.change_limit):
            if not charged:
                begin_accounts(file, hosted)
            elif hosting.other_clients:
                allow_other_clients(file)
            policy.write_site_policy(self.kit, file.to_json(self.path))
        return stated_site(
            claim, hosts=file.by, clients=len(hosted.accounts), records=file.records, column=file.client_column,
            kind="images" if isinstance(proposal.agreement.schema, ImageShape) else "table", seeded=hosting.seed is not None,
        )  # fmt: skip

    def _charged(self, file: SiteFile, hosting: Hosting, relation: Relation) -> bool:
        """Whether the ledger holds charges; refuses another limit than it keeps, other charges, and one that is gone."""
        kept = kept_budget(file.ledger)
        if kept is None and not (self.path / "data.json").exists():
            return False
        budget = kept if kept and hosting.change_limit else file.budget
        with SqliteLedger(file.ledger, budget, create=False, restored=hosting.restored) as ledger:
            charged = bool(ledger.accounts())
            if charged and kept is not None:
                check_same_unit(kept, file.budget, path=file.ledger)
            ledger.check_relation(relation)
        return charged

    def back_up(self, out: Path) -> None:
        """Copy the ledger and the list of its accounts into one archive, also while the site answers."""
        file = read_site_file(self.file_path) if self.joined else None
        if file is None or kept_budget(file.ledger) is None:
            raise InputError(f"{self.path} has no ledger yet: its site has not joined")
        copy = out.with_name(f".{out.name}.ledger")
        try:
            back_up(Path(file.ledger), copy)
            with replacing(out) as temporary:
                temporary.touch(mode=0o600)
                with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
                    archive.write(copy, "ledger.sqlite")
                    archive.writestr("data.json", read_bytes(self.path / "data.json"))
        finally:
            copy.unlink(missing_ok=True)

    def _file(self, agreement: Agreement, hosting: Hosting) -> SiteFile:
        who = self.document
        unit = agreement.protocol.protected_unit
        if unit == "person" and hosting.person is None:
            raise InputError(
                "the proposal protects persons with all their rows: say which column of your table names them, with --person "
                "COLUMN; without one there is nobody to protect, do not join"
            )
        if unit != "person" and hosting.person is not None:
            raise InputError(
                f"the proposal protects one {unit}, not persons with several rows; leave --person out, or ask the coordinator "
                "for another proposal"
            )
        if hosting.by == "rows" and is_database(hosting.data):
            raise InputError(
                "every row is a client here, and rows of a database have no numbers that stay, by which their accounts could "
                "be kept: say which column names the client of each row, with --client-column"
            )
        earlier = read_site_file(self.file_path) if self.joined else None
        new = agreement.to_json()
        return SiteFile(
            name=who["name"], federation=who["federation"], data=resolved(hosting.data),
            ledger=str(self.path / "ledger.sqlite"), log=str(self.path / "site.log"), by=hosting.by,
            records_per_client=hosting.records_per_client, client_column=hosting.client_column,
            records=hosting.records if hosting.records is not None else 2**31 - 1, epsilon=hosting.epsilon,
            delta=hosting.delta, unit=unit, seed=hosting.seed, person=hosting.person, sum_key=str(self.sum_key),
            agreed=(*(one for one in (earlier.agreed if earlier else ()) if one != new), new),
            most_clients=earlier.most_clients if earlier else MOST_CLIENTS,
            most_records=earlier.most_records if earlier else MOST_RECORDS,
        )  # fmt: skip

    def start(self) -> int:
        """Start the site's client, after a look at its policy files."""
        who = self.document
        if not self.joined:
            raise InputError(f"site {who['name']} has not joined; give the signed request, the proposal and the data")
        policy.check_site_policy(self.kit)
        data = read_site_file(self.file_path).data
        if (place := file_of(data)) is not None and not place.exists():
            raise RunError(f"the data {place} are not there; put them back, or say with --data where they are now")
        certificate = self.certificate
        members.check_not_over(certificate, what=f"site {who['name']}", cure=self._cure())
        if certificate is not None and self.revoked.holds(certificate.name, certificate.serial):
            raise RunError(
                f"the certificate of site {who['name']} is revoked; ask the coordinator why, and {self._cure()}"
            )
        return processes.start(self.kit, "client", name=who["name"], org=who["org"])

    def stop(self) -> bool:
        _ = self.document
        return processes.stop(self.kit)

    def _cure(self) -> str:
        return (
            f"make a new request (`populace site request {self.path} --again` with the other options as before) "
            f"and join with what the coordinator signs: `populace site join {self.path} SIGNED.zip`"
        )

    def _standing(self) -> JsonObject:
        """When the site's certificate ends, and the list it knows."""
        certificate = self.certificate
        revoked = self.revoked if self._root.is_file() else None
        return {
            "ends": None if certificate is None else members.day(certificate.ends),
            "list": 0 if revoked is None else revoked.number,
            "revoked": [] if revoked is None else sorted(revoked.names),
            "warnings": members.warning(certificate, what="this site", cure=self._cure()),
        }

    def status(self) -> JsonObject:
        """What was sent, spent and agreed, from the site's own files."""
        who = self.document
        found: JsonObject = {
            "site": who["name"],
            "org": who["org"],
            "federation": who["federation"],
            "joined": self.joined,
        }
        if not self.joined:
            return {**found, "process": None}
        file = read_site_file(self.file_path)
        agreements = file.agreements().values()
        with SqliteLedger(file.ledger, file.budget, create=False) as ledger:
            spent = ledger.summary()
        log = Path(file.log)
        lines = read_bytes(log).decode("utf-8", errors="replace").splitlines() if log.is_file() else []
        refused = [line for line in lines if any(f" {word}" in line for word in ("refused (", "failed: "))]
        return {
            **found,
            "process": processes.alive(self.kit),
            "certificate": self._standing(),
            "data": file.data,
            "clients": {
                "by": file.by,
                "rows": file.records_per_client,
                "column": file.client_column,
                "most_records": file.records,
                "person": file.person,
            },
            "limit": {"epsilon": file.epsilon, "delta": file.delta, "unit": file.unit},
            "randomness": "seeded: reproducible, not private" if file.seed is not None else "the operating system's",
            "agreed": [
                {"method": one.method, "parameters": one.parameters, "schema": one.terms["schema"]}
                for one in agreements
            ],
            "ledger": {"file": file.ledger, **spent},
            "refusals": {"file": file.log, "lines": len(refused), "last": refused[-1] if refused else ""},
        }
