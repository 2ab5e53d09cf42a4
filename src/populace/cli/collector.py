"""`populace collector`: one answer per person, from phones and browsers."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import typer

EXAMPLE = (
    "Example:  populace collector init study --schema s.toml --epsilon 2 --clients 20000 && populace collector invite study "
    "--count 20000 -o links.txt && populace collector serve study; later populace collector fit study --out run"
)
STUDY = typer.Argument(help="The study's folder; private.")
STORE = typer.Option(
    None, "--store", help="postgresql://... instead of the file in STUDY; said once, it is remembered there."
)

app = typer.Typer(
    help="Collect one randomised answer per person over HTTP, exactly once, and fit a model to them.",
    no_args_is_help=True,
)


LOOPBACK = ("127.0.0.1", "localhost", "::1")
STATES = {"open": "takes answers", "closed": "is closed"}
FAIR_ERROR = 0.05  # half-width of an interval below which nothing is said about too few answers


@app.command()
def init(
    study: Path = STUDY,
    schema: str = typer.Option(..., "--schema", help="The declared schema (TOML) of a person's record."),
    epsilon: float = typer.Option(..., "--epsilon", help="Privacy budget of one person, for the whole record."),
    method: str = typer.Option("poll", "--method", help="poll, independent, samprivsyn, or dp-fed-wae (no page)."),
    clients: int = typer.Option(10_000, "--clients", help="How many answers are planned; no more are taken."),
    target: str | None = typer.Option(None, "--target", help="The column that matters most."),
    pairs: list[str] = typer.Option([], "--set", help="A parameter of the method, name=value.", metavar="NAME=VALUE"),
    title: str = typer.Option("", "--title", help="What people see as the name of the study."),
    open_to_all: bool = typer.Option(
        False, "--open", help="Anybody may answer, without an invitation, and often; estimates are made robust."
    ),
    round_hours: float = typer.Option(24.0, "--round-hours", help="When a round closes that another one follows."),
    hold_minutes: float = typer.Option(60.0, "--hold-minutes", help="How long a device has its place for itself."),
    grace_minutes: float = typer.Option(10.0, "--grace-minutes", help="How long late answers are taken after a round."),
    store: str | None = STORE,
    seed: int | None = typer.Option(None, "--seed", help="The seed of the public coin; it protects nobody."),
) -> None:
    """Fix what is asked of whom on which terms, in a new folder."""
    from populace.cli import show
    from populace.collector.stores import check_address
    from populace.collector.study import StudyFolder, Timing, plan_study
    from populace.collector.words import epsilon_in_words, weak_in_words

    if store is not None:
        check_address(store)
    timing = Timing(round=3_600 * round_hours, hold=60 * hold_minutes, grace=60 * grace_minutes)
    made = plan_study(
        schema=schema, epsilon=epsilon, method=method, clients=clients, target=target, settings=show.settings(pairs),
        title=title, open_to_all=open_to_all, timing=timing, seed=seed,
    )  # fmt: skip
    folder = StudyFolder(study)
    folder.create(made, schema)
    folder.store_url(store)
    show.say_lines(made.protocol.guarantee(made.population).lines)
    show.say("")
    for sentence in [*weak_in_words(made.epsilon), *epsilon_in_words(made.epsilon, open_to_all=open_to_all)]:
        show.say(sentence)
    show.say("")
    for what, error in made.protocol.plan(made.population).errors.items():
        show.say(f"predicted with {clients:,} answers: {what} {error:.3g}")
    if open_to_all:
        show.say("open: anybody may answer, and often; nobody is counted, and a few can lie much")
        show.say(f"next: populace collector serve {study}")
    else:
        show.say(
            f"next: populace collector invite {study} --count N -o links.txt; then populace collector serve {study}"
        )


@app.command()
def serve(
    study: Path = STUDY,
    host: str = typer.Option("127.0.0.1", "--host", help="Where to listen; loopback unless told otherwise."),
    port: int = typer.Option(8765, "--port", help="The port."),
    workers: int = typer.Option(1, "--workers", help="Processes that answer requests."),
    store: str | None = STORE,
    tls_cert: str | None = typer.Option(None, "--tls-cert", help="The certificate chain, PEM."),
    tls_key: str | None = typer.Option(None, "--tls-key", help="Its key, PEM."),
    rate: float = typer.Option(10_000.0, "--rate", help="Requests a second that are taken, over all workers."),
) -> None:
    """Serve the study's page and interface until interrupted; stop and start it as you like, nothing is lost."""
    from populace.cli import show
    from populace.collector.serve import Listening, serve
    from populace.collector.study import StudyFolder

    listening = Listening(host=host, port=port, workers=workers, tls_cert=tls_cert, tls_key=tls_key, per_second=rate)
    serve(StudyFolder(study), listening, store=store, say=show.say)


@app.command()
def invite(
    study: Path = STUDY,
    count: int = typer.Option(..., "--count", help="How many invitations."),
    out: Path = typer.Option(
        ..., "-o", "--out", help="File of links to write, one a line; whoever has one may answer."
    ),
    url: str = typer.Option("http://127.0.0.1:8765/", "--url", help="The address under which people reach the study."),
    store: str | None = STORE,
) -> None:
    """Make links, each of which answers once. They are nowhere else: the study keeps only their hashes."""
    from populace.cli import show
    from populace.collector.invite import invite
    from populace.collector.stores import study_store
    from populace.collector.study import StudyFolder

    folder = StudyFolder(study)
    made = folder.read()
    kept = study_store(folder, made, store)
    try:
        invite(made, kept, count, out, url=url)
    finally:
        kept.close()
    show.say(f"{out}  {count:,} links, one for each person; keep them to yourself and send each to one person")
    if urlsplit(url).hostname in LOOPBACK:
        show.say(f"they lead to {url}, which is this machine alone; say --url https://... for people elsewhere")


@app.command()
def status(
    study: Path = STUDY,
    error: float = typer.Option(0.05, "--error", help="The half-width of a 95 % interval that would be enough."),
    store: str | None = STORE,
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Show how many answered, what the answers say about single columns, and how many would be enough."""
    from populace.cli import show
    from populace.collector.progress import LEAST_ERROR, progress_document
    from populace.collector.stores import study_store
    from populace.collector.study import StudyFolder
    from populace.errors import InputError

    if not LEAST_ERROR <= error < 1:
        raise InputError(f"expected --error from {LEAST_ERROR:g} to below 1, got {error}")
    folder = StudyFolder(study)
    made = folder.read()
    kept = study_store(folder, made, store)
    try:
        found = progress_document(made, kept, error)
    finally:
        kept.close()
    if as_json:
        show.say_json(found)
        return
    show.say(f"{found['title'] or made.id}: {found['method']}, epsilon {found['epsilon']:g}, {STATES[found['state']]}")
    show.say(
        f"{found['answers']:,} answers of {found['planned_answers']:,} planned; {found['invitations']:,} invitations"
    )
    for at in found["rounds"]:
        show.say(
            f"round {at['round']}: {at['state']}, {at['answered']:,} answered, {at['taken']:,} taken, {at['places']:,} places"
        )
    for column in found["columns"]:
        if column["shares"]:
            parts = zip(column["labels"], column["shares"], column["half_widths"], strict=True)
            said = ", ".join(f"{label} {min(1.0, max(0.0, share)):.1%} ± {width:.1%}" for label, share, width in parts)
            show.say(f"{column['name']}: {said}")
    if found["answers_needed"] is not None:
        enough = "are enough" if found["enough"] else f"are not enough, {found['answers_needed']:,} would be"
        show.say(f"for intervals of ± {error:.0%} these answers {enough}")


@app.command()
def fit(
    study: Path = STUDY,
    out: Path = typer.Option(..., "--out", help="A new folder for the run."),
    rows: int = typer.Option(10_000, "--rows", help="How many synthetic rows to write."),
    seed: int | None = typer.Option(None, "--seed", help="The same rows every time; costs no privacy."),
    store: str | None = STORE,
    close: bool = typer.Option(False, "--close", help="Take no more answers from now on."),
) -> None:
    """Fit the model to all answers so far and write a run folder; costs no privacy, and can be done again."""
    from populace.cli import show
    from populace.collector.fit import fit_study
    from populace.collector.progress import progress_document
    from populace.collector.rounds import close_study
    from populace.collector.stores import study_store
    from populace.collector.study import StudyFolder
    from populace.report.statement import write_statement

    folder = StudyFolder(study)
    made = folder.read()
    kept = study_store(folder, made, store)
    try:
        if close:
            close_study(kept)
        found = progress_document(made, kept, FAIR_ERROR)
        with show.progress("collector fit", each="answer") as report:
            run = fit_study(folder, made, kept, out, rows=rows, seed=seed, say=show.say, doing=report.doing)
            write_statement(out)
    finally:
        kept.close()
    show.say("")
    show.say_lines(run.guarantee.lines)
    show.say("")
    show.say(f"{out / 'synthetic.parquet'}  {rows:,} synthetic rows from {run.details['clients']:,} answers")
    show.say(f"{out / 'privacy.html'}  the privacy statement, to read or publish; `populace verify {out}` checks it")
    if found["answers_needed"] is not None and not found["enough"]:
        needed = found["answers_needed"]
        show.say(f"few answers: single columns are not known to ± {FAIR_ERROR:.0%}; with {needed:,} they would be")
    show.say(f"next: populace sample {out} --rows 1000 -o FILE")
