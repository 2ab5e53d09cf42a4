"""`populace plan`: what to expect, before any data is touched."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from populace.cli import completion

if TYPE_CHECKING:
    from populace.methods.base import Costs

EXAMPLE = "Example:  populace plan --schema adult.toml --clients 3 --records-per-client 10000 --epsilon 1"


def command(
    schema: Path = typer.Option(..., "--schema", help="A schema (TOML)."),
    clients: int = typer.Option(..., "--clients", help="How many clients, or silos, will take part."),
    epsilon: float = typer.Option(
        ..., "--epsilon", help="Privacy budget of one client (or record; see `populace methods`)."
    ),
    method: str | None = typer.Option(
        None,
        "--method",
        help="A method; see `populace methods`. Default: census, for silos.",
        autocompletion=completion.methods,
    ),
    records: int | None = typer.Option(
        None, "--records-per-client", help="The most records one client holds: 1 by default; needed for silos."
    ),
    person: bool = typer.Option(False, "--person", help="Protect a person with all their rows at a silo (census)."),
    pairs: list[str] = typer.Option([], "--set", help="A parameter of the method, name=value.", metavar="NAME=VALUE"),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Predict error, bytes, time and guarantee from public facts alone."""
    from populace.cli import show
    from populace.errors import SpecError
    from populace.methods.base import Population
    from populace.methods.registry import protocol_class
    from populace.runs.plan import plan
    from populace.runs.spec import ANY_COLUMN as ANY
    from populace.runs.spec import default_in_words, make_method, make_spec
    from populace.tables.schema import load_schema

    spec = make_spec(
        data="none.parquet", epsilon=epsilon, method=method, settings=show.settings(pairs), person=ANY if person else None,
    )  # fmt: skip
    population = Population(schema=load_schema(schema), clients=clients, records=1 if records is None else records)
    if records is None and protocol_class(spec.method_name).facts.unit == "record":
        raise SpecError(
            f"{spec.method_name} is for silos: say how many rows a silo holds at most, with --records-per-client; --method "
            "poll asks every row as a client of its own"
        )
    if method is None and not as_json:
        show.say(default_in_words(spec.data))
    with show.progress("plan") as report:
        report.doing("computing the guarantee and the costs")
        predicted, seconds = plan(make_method(spec), population)
    costs = predicted.costs
    if as_json:
        show.say_json({
            "method": spec.method_name, "guarantee": predicted.guarantee.to_json(), "rounds": predicted.rounds,
            "bytes_from_one_client": predicted.bytes_up, "bytes_to_one_client": predicted.bytes_down,
            "predicted_errors": predicted.errors, "notes": list(predicted.notes),
            **({"seconds_simulated": seconds} if costs is None else {"costs": dataclasses.asdict(costs)}),
        })  # fmt: skip
        return
    lines = [
        ("method", f"{spec.method_name}, {_who(clients, spec.method_name)}, {predicted.rounds} round(s)"),
        *predicted.guarantee.lines,
    ]
    lines += [("error", f"{value:.4f} predicted {name}") for name, value in predicted.errors.items()]
    lines.append(("traffic", f"{predicted.bytes_up:.1f} bytes from and {predicted.bytes_down:.1f} bytes to one client"))
    lines += _seconds(seconds) if costs is None else _costs(costs)
    lines += [("note", note) for note in predicted.notes]
    show.say_lines(lines)


def _seconds(seconds: float | None) -> list[tuple[str, str]]:
    """How long a simulation takes, by the stored cost model."""
    if seconds is None:
        return [("time", "not known: nobody has measured this method; a run of few clients tells")]
    text = f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.1f}"
    words = (
        "to simulate on two cores, compilation included; by a stored cost model, right within a factor of about three"
    )
    return [("time", f"about {text} s {words}")]


def _costs(costs: Costs) -> list[tuple[str, str]]:
    """What a run takes, in words."""
    site, coordinator = (f"{size / 1e6:,.0f} MB" for size in (costs.site_bytes, costs.coordinator_bytes))
    return [
        ("memory", f"about {site} at a site and {coordinator} at the coordinator, beside 400 MB for the libraries"),
        (
            "time",
            f"about {costs.site_seconds:,.1f} s at a site and {costs.coordinator_seconds:,.0f} s at the coordinator, on two "
            "cores; estimated from sizes, without a trial",
        ),
    ]


def _who(clients: int, method: str) -> str:
    """How many take part, in words."""
    from populace.methods.registry import protocol_class

    one = "silo" if protocol_class(method).facts.unit == "record" else "client"
    return f"{clients:,} {one}{'s' * (clients != 1)}"
