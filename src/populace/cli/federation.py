"""`populace federation`: the coordinator of real sites, on NVIDIA FLARE."""

from __future__ import annotations

from pathlib import Path

import typer

from populace.cli import completion
from populace.types import JsonObject

EXAMPLE = (
    "Example:  populace federation init study --name study --schema s.toml --epsilon 4 && populace federation approve study "
    "ward.request.zip && populace federation start study && populace federation run study --sites 3 --out run"
)
FOLDER = typer.Argument(help="The federation's folder, at the coordinator; private.")

app = typer.Typer(
    help="Coordinate real sites: certificates, a server, runs that survive crashes. Sites decide for themselves.",
    no_args_is_help=True,
)


@app.command()
def init(
    folder: Path = FOLDER,
    name: str = typer.Option(..., "--name", help="The federation's name: small letters, digits, dashes."),
    schema: str = typer.Option(..., "--schema", help="The declared schema (TOML) proposed to the sites."),
    epsilon: float = typer.Option(..., "--epsilon", help="Privacy budget of one client (or record) for one run."),
    method: str | None = typer.Option(
        None, "--method", help="A method; see `populace methods`.", autocompletion=completion.methods
    ),
    delta: float | None = typer.Option(None, "--delta", help="Only for methods with an approximate guarantee."),
    target: str | None = typer.Option(None, "--target", help="The column that matters most."),
    trust: str | None = typer.Option(
        None,
        "--trust",
        help="silo, secure-sum or central, where the method offers it.",
        autocompletion=completion.trust,
    ),
    sum_keys: list[str] = typer.Option(
        [], "--sum-key", help="For secure-sum: a site and its key, as its request showed it.", metavar="NAME=KEY"
    ),
    person: bool = typer.Option(
        False,
        "--person",
        help="Protect a person with all their rows at a site (census); each site names its own column.",
    ),
    pairs: list[str] = typer.Option([], "--set", help="A parameter of the method, name=value.", metavar="NAME=VALUE"),
    host: str = typer.Option(
        "localhost", "--host", help="Name under which sites reach the server; it listens where that name points."
    ),
    port: int = typer.Option(8002, "--port", help="The server's one port, for sites and coordinator."),
) -> None:
    """Create a federation: a root certificate, the server's kit, and a proposal for the sites."""
    from populace.cli import show
    from populace.federation.coordinator import Federation
    from populace.federation.propose import propose
    from populace.federation.sum_keys import roster_in_words

    agreement = propose(
        schema=schema,
        epsilon=epsilon,
        method=method,
        delta=delta,
        target=target,
        trust=trust,
        person=person,
        settings=show.settings(pairs),
        sum_keys=sum_keys,
    )
    federation = Federation(folder)
    fingerprint = federation.create(agreement, name=name, host=host, port=port)
    show.say(f"{federation.proposal_path}  the proposal; send it to every site")
    if agreement.roster is not None:
        show.say(roster_in_words(agreement.roster))
    show.say(
        f"fingerprint of the root certificate; send it to every site over another channel, such as a call:\n{fingerprint}"
    )
    show.say(
        f"next: populace federation approve {folder} REQUEST.zip, for each site; then populace federation start {folder}"
    )


@app.command()
def approve(
    folder: Path = FOLDER,
    request: Path = typer.Argument(help="What the site's `populace site request` made."),
    again: bool = typer.Option(
        False,
        "--again",
        help="Sign a name that was signed before: the site has a new key, and its old one is revoked.",
    ),
) -> None:
    """Approve a site: sign its request. First verify over another channel that the request is its own."""
    from populace.cli import show
    from populace.federation.coordinator import Federation

    name, signed = Federation(folder).approve(request, again=again)
    show.say(f"{signed}  send it back to {name}, with the proposal")


@app.command()
def revoke(folder: Path = FOLDER, site: str = typer.Argument(help="The site's name.")) -> None:
    """Revoke a site: the server refuses it from now on and cuts its connections; the other sites are told."""
    from populace.cli import show
    from populace.federation.coordinator import Federation

    federation = Federation(folder)
    made = federation.revoke(site)
    show.say(
        f"{site} is revoked by list {made.number}; a running server takes it within seconds, sites with the next request"
    )
    show.say(
        f"{federation.path / 'revoked.crl'}  the list, for a site that is not asked any more: populace site join FOLDER "
        "--revoked FILE"
    )


@app.command()
def renew(
    folder: Path = FOLDER,
    site: str | None = typer.Argument(
        None, help="A site, for the key it has; without, the server's and the lead's own."
    ),
    new_keys: bool = typer.Option(
        False,
        "--new-keys",
        help="New keys for server and lead; the old ones are revoked, and sites must be started anew.",
    ),
) -> None:
    """Make new certificates from the same root; the fingerprint stays. A running server is started anew."""
    from populace.cli import show
    from populace.errors import InputError
    from populace.federation.coordinator import Federation

    federation = Federation(folder)
    if site is not None and new_keys:
        raise InputError(
            "a site makes its own keys: `populace site request --again` there, then `populace federation approve --again`"
        )
    signed = federation.renew(site, new_keys=new_keys)
    if signed is not None:
        show.say(f"{signed}  send it to {site}, which joins with it: populace site join FOLDER {signed.name}")
        return
    ends = federation.status()["certificates"]["ends"]
    show.say(f"server and lead have new certificates, until {ends['server']} and {ends['lead']}")
    if new_keys:
        show.say(
            "the earlier ones are revoked; every site stops and joins again (`populace site stop`, `populace site join`)"
        )


@app.command()
def start(folder: Path = FOLDER) -> None:
    """Start the server in the background."""
    from populace.cli import show
    from populace.federation.coordinator import Federation

    federation = Federation(folder)
    process = federation.start()
    federation.connect().close()
    document = federation.document
    show.say(f"the server of {federation.name} listens on {document['host']}:{document['port']} (process {process})")


@app.command()
def run(
    folder: Path = FOLDER,
    out: Path = typer.Option(..., "--out", help="Folder of the run; an unfinished one is resumed."),
    sites: int | None = typer.Option(
        None, "--sites", help="Wait for at least this many sites before the run begins; 1 where not given."
    ),
    rows: int = typer.Option(10_000, "--rows", help="How many synthetic rows to write."),
    timeout: float | None = typer.Option(
        None, "--timeout", help="Seconds a site has to answer a round; 300, or as the run was begun, where not given."
    ),
    patience: float | None = typer.Option(
        None,
        "--patience",
        help="Seconds without progress before the run pauses, or three times its slowest round; 900, or as it was begun.",
    ),
    seed: int | None = typer.Option(
        None, "--seed", help="Seed of the coordinator's randomness: reproducible, not private."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document per round, per state and at the end."),
) -> None:
    """Run the proposed method over the connected sites, and write synthetic rows with their privacy statement."""
    from populace.cli import live, show
    from populace.federation.coordinator import Federation
    from populace.federation.supervisor import Options, run_federation
    from populace.report.statement import write_statement

    options = Options(least=sites, timeout=timeout, patience=patience)
    with live.rounds(as_json=as_json) as (watch, say):
        made = run_federation(Federation(folder), out, rows=rows, seed=seed, options=options, watch=watch, say=say)
    write_statement(out)
    if as_json:
        show.say_json(
            {"run": made.details["spec"]["run"], "privacy": made.guarantee.to_json(), "sites": made.details["sites"]}
        )
        return
    show.say(live.answered(made.details))
    show.say("")
    show.say_lines(made.guarantee.lines)
    show.say("")
    show.say(f"{out / 'synthetic.parquet'}  {rows:,} synthetic rows")
    show.say(f"{out / 'privacy.html'}  the privacy statement, to read or publish; `populace verify {out}` checks it")


@app.command()
def status(
    folder: Path = FOLDER, as_json: bool = typer.Option(False, "--json", help="Print one JSON document.")
) -> None:
    """Show server, sites and runs: rounds, bytes, seconds, and the largest epsilon asked of each site."""
    from populace.cli import live, show
    from populace.federation.coordinator import Federation

    found = Federation(folder).status()
    if as_json:
        show.say_json(found)
        return
    running = f"running (process {found['process']})" if found["process"] else "not running"
    show.say(f"{found['federation']} on {found['server']}: {running}")
    show.say(
        f"approved: {', '.join(found['approved']) or 'nobody'}; connected: {', '.join(found['connected']) or 'nobody'}"
    )
    held = found["certificates"]
    show.say(f"certificates end: {', '.join(f'{whose} {end}' for whose, end in _ends(held))}")
    if held["revoked"]:
        show.say(f"revoked: {', '.join(held['revoked'])} (list {held['list']})")
    for sentence in held["warnings"]:
        show.say(f"WARNING: {sentence}")
    for name, at in found["runs"].items():
        show.say(f"\n{name}: {live.sentence(at)}")
        show.table(live.HEADER, live.lines(at))


def _ends(held: JsonObject) -> list[tuple[str, str]]:
    own = [(whose, held["ends"][whose]) for whose in ("root", "server", "lead") if held["ends"][whose]]
    return [*own, *held["ends"]["sites"].items()]


@app.command()
def skip(
    folder: Path = FOLDER,
    site: str = typer.Argument(help="The site to pass over."),
    run: str | None = typer.Option(
        None, "--run", help="The run's name in `federation status`; default: the unfinished one."
    ),
    undo: bool = typer.Option(False, "--undo", help="Ask the site again, from the next round on."),
) -> None:
    """Pass over a site that does not answer, for the rest of a run; the guarantee stays as it is."""
    from populace.cli import show
    from populace.federation.coordinator import Federation
    from populace.federation.skipping import skip as pass_over

    federation = Federation(folder)
    _ = federation.document
    show.say(pass_over(federation, site, run=run, undo=undo))


@app.command()
def stop(folder: Path = FOLDER) -> None:
    """Stop the server. A run under way can be resumed later."""
    from populace.cli import show
    from populace.federation.coordinator import Federation

    federation = Federation(folder)
    show.say(f"the server of {federation.name} {'was stopped' if federation.stop() else 'was not running'}")


@app.command()
def demo(
    out: Path = typer.Option(Path("demo-federation"), "--out", help="A new folder for everything."),
    epsilon: float = typer.Option(4.0, "--epsilon", help="Privacy budget of one person."),
) -> None:
    """Three sites on this machine, from certificates to synthetic rows, report and ledgers, in one command."""
    from populace.cli import evaluate, live, show, site
    from populace.federation import demo as steps
    from populace.report.statement import write_statement

    with live.rounds(as_json=False) as (watch, say):
        made = steps.play(out, epsilon=epsilon, watch=watch, say=say)
    write_statement(made.folder)
    show.say("")
    show.say_lines(made.run.guarantee.lines)
    show.say("")
    evaluate.command(runs=[made.folder], real=[str(made.all_rows)], target=None, table=None, query=None, as_json=False)
    for place in made.sites:
        show.say("")
        site.print_status(place.status())
    show.say(f"\n{made.folder / 'synthetic.parquet'}  synthetic rows; {made.folder / 'report.html'}  the report")
