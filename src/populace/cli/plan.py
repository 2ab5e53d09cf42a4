"""`populace plan`: what to expect, before any data is touched."""

from __future__ import annotations

from pathlib import Path

import typer

EXAMPLE = "Example:  populace plan --schema adult.toml --clients 30000 --epsilon 4"


def command(
    schema: Path = typer.Option(..., "--schema", help="A schema (TOML)."),
    clients: int = typer.Option(..., "--clients", help="How many clients will take part."),
    epsilon: float = typer.Option(..., "--epsilon", help="Privacy budget of one client."),
    method: str | None = typer.Option(None, "--method", help="A method; see `populace methods`."),
    records: int = typer.Option(1, "--records-per-client", help="The most records one client holds."),
    pairs: list[str] = typer.Option([], "--set", help="A parameter of the method, name=value.", metavar="NAME=VALUE"),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Predict error, bytes, time and guarantee from public facts alone."""
    from populace.cli import show
    from populace.methods.base import Population
    from populace.runs.plan import plan
    from populace.runs.spec import make_method, make_spec
    from populace.tables.schema import load_schema

    spec = make_spec(data="none.parquet", epsilon=epsilon, method=method, settings=show.settings(pairs))
    population = Population(schema=load_schema(schema), clients=clients, records=records)
    predicted, seconds = plan(make_method(spec), population)
    if as_json:
        show.say_json({
            "method": spec.method_name, "guarantee": predicted.guarantee.to_json(), "rounds": predicted.rounds,
            "bytes_from_one_client": predicted.bytes_up, "bytes_to_one_client": predicted.bytes_down,
            "predicted_errors": predicted.errors, "seconds_simulated_here": seconds, "notes": list(predicted.notes),
        })  # fmt: skip
        return
    lines = [
        ("method", f"{spec.method_name}, {clients:,} clients, {predicted.rounds} round(s)"),
        *predicted.guarantee.lines,
    ]
    lines += [("error", f"{value:.4f} predicted {name}") for name, value in predicted.errors.items()]
    lines.append(("traffic", f"{predicted.bytes_up:.1f} bytes from and {predicted.bytes_down:.1f} bytes to one client"))
    lines.append(("time", f"about {seconds:.1f} s to simulate here, compilation included"))
    lines += [("note", note) for note in predicted.notes]
    show.say_lines(lines)
