"""`populace`: finds the command, and turns every error into one sentence and an exit code."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from populace import __version__
from populace.cli import demo, evaluate, methods, plan, sample, schema, synthesize
from populace.errors import PopulaceError

#: What typer raises for a wrong option; typer may carry click inside itself, so it is found through a public name.
UsageProblem: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="populace",
    help="Synthetic data from records that never leave their owners, with a privacy statement an expert would sign.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (demo, methods, schema, plan, synthesize, sample, evaluate):
    app.command(name=module.__name__.rpartition(".")[2], epilog=module.EXAMPLE)(module.command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"populace {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True, callback=_version),
) -> None:
    """Synthetic data from records that never leave their owners, with a privacy statement an expert would sign."""


def run() -> NoReturn:
    """The entry point: 0 on success, 2 on bad input with one sentence, 130 when interrupted."""
    sys.exit(call(sys.argv[1:]))


def call(arguments: list[str]) -> int:
    try:
        result = app(arguments or ["--help"], standalone_mode=False)
    except UsageProblem as error:
        return _fail(error.format_message())  # type: ignore[attr-defined]
    except typer.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("populace: interrupted; give the same command again to go on", err=True)
        return 130
    except PopulaceError as error:
        return _fail(str(error))
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except MemoryError:
        return _fail("out of memory; use fewer clients or rows at a time")
    return result if isinstance(result, int) else 0


def _fail(sentence: str) -> int:
    typer.echo("populace: " + " ".join(sentence.split()), err=True)
    return 2
