"""`populace site`: a hospital, a bank or a school in a federation. It decides what leaves, and keeps its own ledger."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from populace.cli.sources import KINDS, QUERY, TABLE
from populace.types import JsonObject

if TYPE_CHECKING:
    from populace.engines.messages import Hosts
    from populace.federation.site import Hosting, SiteFolder

EXAMPLE = (
    "Example:  populace site request ward --name ward --org clinic --federation study, and once the coordinator has sent back "
    "ward.signed.zip:  populace site join ward ward.signed.zip --fingerprint SHA256:... --proposal study.proposal.json "
    "--data ward.csv --epsilon 4"
)
FOLDER = typer.Argument(help="The site's folder: its key, its kit, its ledger. Nobody else needs to read it.")
WHOLE = (
    "The site as a whole is one client: a silo. Default where the method protects records; else every row is a client."
)

app = typer.Typer(
    help="Take part in a federation with records that stay here: ask to join, join, look at the ledger, stop.",
    no_args_is_help=True,
)


@app.command()
def request(
    folder: Path = FOLDER,
    name: str = typer.Option(..., "--name", help="The site's name: small letters, digits, dashes."),
    org: str = typer.Option(..., "--org", help="The organisation behind it: letters, digits, underscores."),
    federation: str = typer.Option(..., "--federation", help="The federation's name."),
    again: bool = typer.Option(
        False, "--again", help="A new key for a site that has one: its certificate ends, or was lost."
    ),
) -> None:
    """Make a private key, which stays here, and a request to send to the coordinator."""
    from populace.cli import show
    from populace.federation.site import SiteFolder
    from populace.federation.sum_keys import public_sum_key

    made = SiteFolder(folder).request(name=name, org=org, federation=federation, again=again)
    show.say(f"{made}  send it to the coordinator; it holds no private key")
    show.say(f"key for secure sums, to tell the coordinator and the other sites:\n{public_sum_key(folder / 'sum.key')}")


@app.command()
def join(
    folder: Path = FOLDER,
    signed: Path | None = typer.Argument(None, help="The request as the coordinator signed it; leave out to restart."),
    fingerprint: str | None = typer.Option(
        None, "--fingerprint", help="Fingerprint of the federation's root certificate, received over another channel."
    ),
    proposal: Path | None = typer.Option(
        None, "--proposal", help="What is proposed; joining with it means agreeing to it."
    ),
    data: str | None = typer.Option(
        None,
        "--data",
        help=f"The site's own table ({KINDS}) or images, read here only; to restart: where it is now, if it moved.",
    ),
    table: str | None = TABLE,
    query: str | None = QUERY,
    epsilon: float | None = typer.Option(
        None,
        "--epsilon",
        help="Limit on the epsilon of one account over all runs, under the method's neighbouring relation.",
    ),
    delta: float = typer.Option(0.0, "--delta", help="The delta of that limit."),
    records_per_client: int | None = typer.Option(
        None, "--records-per-client", help="Number of consecutive rows that make one client; default: see --whole."
    ),
    client_column: str | None = typer.Option(
        None,
        "--client-column",
        help="One client per value of this column, and an account: it stays theirs when the table grows. Rows of a database "
        "have no other account that stays.",
    ),
    whole: bool = typer.Option(False, "--whole", help=WHOLE),
    person: str | None = typer.Option(
        None, "--person", help="The column that says whose each row is; needed where the proposal protects persons."
    ),
    records: int | None = typer.Option(
        None, "--records", help="Most records of one client, a public figure; default: what the data hold."
    ),
    change_limit: bool = typer.Option(
        False,
        "--change-limit",
        help="Confirm: replace the limit the ledger was begun with; its unit stays once something is booked.",
    ),
    trust_coordinator: bool = typer.Option(
        False, "--trust-coordinator", help="Confirm: let the coordinator see messages without noise (trust `central`)."
    ),
    other_clients: bool = typer.Option(
        False, "--other-clients", help="Confirm: the data hold other people than those who were charged."
    ),
    restored: bool = typer.Option(
        False, "--restored", help="Confirm: the ledger put back from a backup is the newest there is."
    ),
    seed: int | None = typer.Option(None, "--seed", help="Noise from a seed: for rehearsals only, NOT PRIVATE."),
    revoked: Path | None = typer.Option(
        None, "--revoked", help="A list of revoked certificates from the coordinator, where it does not come by itself."
    ),
) -> None:
    """Agree to a proposal and start answering; with the folder alone, restart; with a new certificate alone, renew."""
    from populace.cli import show
    from populace.errors import InputError
    from populace.federation.site import Hosting, SiteFolder

    if records_per_client is not None and records_per_client < 1:
        raise InputError(f"expected records-per-client of at least 1, got {records_per_client}")
    data = _one_table(data, table, query)
    place = SiteFolder(folder)
    if revoked is not None:
        listed = place.take_list(revoked)
        show.say(f"list {listed.number}: {', '.join(sorted(listed.names)) or 'nobody'} revoked")
    if signed is not None and place.joined and all(each is None for each in (fingerprint, proposal, data, epsilon)):
        place.renew(signed)
        show.say(f"the kit has a new certificate, until {place.status()['certificate']['ends']}")
    elif signed is not None:
        given = {"--fingerprint": fingerprint, "--proposal": proposal, "--data": data, "--epsilon": epsilon}
        missing = [name for name, value in given.items() if value is None]
        if fingerprint is None or proposal is None or data is None or epsilon is None:
            raise InputError(f"to join, give {', '.join(missing)} as well")
        if whole + (client_column is not None) + (records_per_client is not None) > 1:
            raise InputError("give one of --records-per-client, --client-column and --whole")
        chosen: Hosts | None = (
            "site" if whole else "column" if client_column else "rows" if records_per_client else None
        )
        hosting = Hosting(
            data=data, by=chosen or _usual(proposal), records_per_client=records_per_client or 1, client_column=client_column,
            records=records, epsilon=epsilon, delta=delta, change_limit=change_limit, trust_coordinator=trust_coordinator,
            other_clients=other_clients, restored=restored, seed=seed, person=person,
        )  # fmt: skip
        _agree(place, signed, proposal, hosting, fingerprint)
    else:
        _only_restarts(
            {"--fingerprint": fingerprint, "--proposal": proposal, "--epsilon": epsilon, "--delta": delta, "--person": person,
             "--records-per-client": records_per_client, "--client-column": client_column, "--whole": whole,
             "--records": records, "--change-limit": change_limit, "--trust-coordinator": trust_coordinator,
             "--other-clients": other_clients, "--restored": restored, "--seed": seed}
        )  # fmt: skip
        if data is not None:
            place.find_data(data)
    process = place.start()
    show.say(f"{place.document['name']} answers requests of {place.document['federation']} (process {process})")
    show.say(f"`populace site status {folder}` shows what left; `populace site stop {folder}` ends it")


def _only_restarts(options: dict[str, object]) -> None:
    """A site that restarts has agreed already: what would change that is refused, and not passed over."""
    from populace.errors import InputError

    given = [name for name, value in options.items() if value is not None and value is not False and value != 0.0]
    if given:
        raise InputError(
            f"a site that restarts takes --data and --revoked alone; {', '.join(given)} changes what was agreed: give the "
            "signed request and all options of a new join, or leave it out"
        )


def _one_table(data: str | None, table: str | None, query: str | None) -> str | None:
    """The site's table as one text; a site has one."""
    from populace.border.databases.address import locate
    from populace.errors import InputError

    files = locate([] if data is None else [data], table=table, query=query)
    if len(files) > 1:
        raise InputError(f"a site has one table, and {len(files)} files match {data!r}; put them into one")
    return files[0] if files else None


def _usual(proposal: Path) -> Hosts:
    """Who is a client where nothing is said: the site where the method protects records, a row where it protects clients."""
    from populace.federation.coordinator import read_proposal
    from populace.methods.registry import METHODS, protocol_class

    method = read_proposal(proposal).agreement.method
    return "site" if method in METHODS and protocol_class(method).facts.unit == "record" else "rows"


def _agree(place: SiteFolder, signed: Path, proposal: Path, hosting: Hosting, fingerprint: str) -> None:
    """Set the site up, and say what was agreed to and what one run gives."""
    from populace.cli import show
    from populace.federation.coordinator import read_proposal
    from populace.federation.sum_keys import roster_in_words
    from populace.privacy.relation import SEEN_WITHOUT_NOISE

    agreed = read_proposal(proposal)
    claim = place.set_up(signed, agreed, hosting, fingerprint=fingerprint, say=show.say)
    if claim.trust in SEEN_WITHOUT_NOISE:
        show.say("the coordinator sees your clients' messages without noise: you said that you trust it with them")
    if agreed.agreement.roster is not None:
        show.say(roster_in_words(agreed.agreement.roster))
    show.say(
        f"agreed to {agreed.agreement.method} with {_settings(agreed.agreement.parameters)}; one run gives:\n{claim}\n"
    )


@app.command()
def status(
    folder: Path = FOLDER, as_json: bool = typer.Option(False, "--json", help="Print one JSON document.")
) -> None:
    """Show what was agreed, what each run spent of the limit, and what was refused."""
    from populace.cli import show
    from populace.federation.site import SiteFolder

    found = SiteFolder(folder).status()
    if as_json:
        show.say_json(found)
    else:
        print_status(found)


@app.command()
def backup(
    folder: Path = FOLDER,
    out: Path = typer.Option(..., "-o", "--out", help="The archive to write; keep it as private."),
) -> None:
    """Back up the ledger and its list of accounts into one archive; the site may keep answering."""
    from populace.cli import show
    from populace.federation.site import SiteFolder

    SiteFolder(folder).back_up(out)
    show.say(f"{out}  ledger.sqlite and data.json; an older copy than the newest is refused when it is put back")


@app.command()
def stop(folder: Path = FOLDER) -> None:
    """Stop answering. The ledger stays; `populace site join FOLDER` starts again."""
    from populace.cli import show
    from populace.federation.site import SiteFolder

    place = SiteFolder(folder)
    show.say(f"{place.document['name']} {'was stopped' if place.stop() else 'was not running'}")


def print_status(found: JsonObject) -> None:
    """A site's status for people."""
    from populace.cli import show

    running = f"answering (process {found['process']})" if found["process"] else "not answering"
    show.say(f"{found['site']} ({found['org']}) in {found['federation']}: {running}")
    if not found["joined"]:
        show.say("not joined yet: send the request to the coordinator, and join with what comes back")
        return
    held = found["certificate"]
    if held["ends"]:
        revoked = ", ".join(held["revoked"]) or "nobody"
        show.say(f"certificate: ends {held['ends']}; list {held['list']} of revoked sites: {revoked}")
    for sentence in held["warnings"]:
        show.say(f"WARNING: {sentence}")
    limit, ledger, clients = found["limit"], found["ledger"], found["clients"]
    show.say(f"data: {found['data']} ({_hosting(clients)})")
    show.say(f"randomness: {found['randomness']}")
    for one in found["agreed"]:
        show.say(f"agreed: {one['method']} with {_settings(one['parameters'])}; schema {one['schema'][:12]}")
    delta = f", delta {limit['delta']:g}" if limit["delta"] else ""
    show.say(
        f"ledger: {ledger['file']}\n  limit: epsilon {limit['epsilon']:g}{delta} per {limit['unit']}; spent by the account "
        f"that spent most: {ledger['epsilon_of_the_account_that_spent_most']:g}; "
        f"{ledger['charges']:,} charges on {ledger['accounts_charged']:,} accounts"
    )
    for unit, other in ledger.get("other_units", {}).items():
        show.say(
            f"  kept separately, because the two do not add up: per {unit} {other['charges']:,} charges on "
            f"{other['accounts_charged']:,} accounts, most {other['epsilon_of_the_account_that_spent_most']:g}; these accounts "
            "answer nothing more"
        )
    rows = [
        [
            run["run"],
            *(f"{run[name]:,}" for name in ("rounds", "accounts", "charges")),
            *map(_clock, (run["first"], run["last"])),
        ]
        for run in ledger["runs"]
    ]
    if rows:
        show.table(["run", "rounds answered", "accounts", "charges", "first", "last"], rows)
    refused = found["refusals"]
    if not Path(refused["file"]).is_file():
        show.say(f"log: no refusals yet; they will be in {refused['file']}")
        return
    show.say(
        f"log: {refused['file']}, {refused['lines']:,} refusals"
        + (f"; last: {refused['last']}" if refused["last"] else "")
    )


def _hosting(clients: JsonObject) -> str:
    most = clients["most_records"]
    held = f", at most {most:,} record{'s' * (most != 1)} each"
    held += f", persons by {clients['person']}" if clients.get("person") else ""
    if clients["by"] == "site":
        return f"the site is one client{held}"
    if clients["by"] == "column":
        return f"one client per value of {clients['column']}{held}"
    rows = clients["rows"]
    return f"one client per {'row' if rows == 1 else f'{rows:,} rows'}{held}"


def _settings(parameters: JsonObject) -> str:
    """A method's parameters; those left to the method (empty) are not shown."""
    texts = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in parameters.items()}
    return ", ".join(f"{name} {value}" for name, value in texts.items() if value not in ("", "0", "None", "False"))


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
