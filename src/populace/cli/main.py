"""`populace`: finds the command, and turns every error into one sentence and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import NoReturn, TextIO

import typer

from populace.cli import (
    advise,
    attack,
    audit,
    benchmark,
    collector,
    compilation_cache,
    demo,
    device,
    evaluate,
    federation,
    interrupts,
    ledger,
    methods,
    plan,
    poll,
    rehearse,
    sample,
    schema,
    site,
    synthesize,
    verify,
    versions,
)
from populace.errors import PopulaceError, readable

#: What typer raises for a wrong option; typer may carry click inside itself, so it is found through a public name.
UsageProblem: type[Exception] = typer.BadParameter.__mro__[2]

INTERRUPTED = 130

app = typer.Typer(
    name="populace",
    help="Synthetic data from records that never leave their owners, with a privacy statement an expert would sign.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    demo,
    advise,
    rehearse,
    methods,
    schema,
    plan,
    synthesize,
    sample,
    evaluate,
    verify,
    audit,
    attack,
    benchmark,
):
    app.command(name=module.__name__.rpartition(".")[2], epilog=module.EXAMPLE)(module.command)
for group in (ledger, poll, collector, device, federation, site):
    app.add_typer(group.app, name=group.__name__.rpartition(".")[2], epilog=group.EXAMPLE)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo("\n".join(versions.version_lines()))
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False,
        "--version",
        help="Print the versions that matter for a report of a bug.",
        is_eager=True,
        callback=_version,
    ),
    cache: bool = typer.Option(
        True,
        "--cache/--no-cache",
        help="Keep compiled programs: in the user's cache folder, in the one that POPULACE_CACHE names, or nowhere (off).",
    ),
) -> None:
    """Synthetic data from records that never leave their owners, with a privacy statement an expert would sign."""
    if cache:
        compilation_cache.enable()


def run() -> NoReturn:
    """The entry point: 0 on success, 2 on bad input with one sentence, 130 when interrupted."""
    interrupts.remember()
    code = _written(call(sys.argv[1:]))
    others = [one for one in threading.enumerate() if one is not threading.current_thread() and not one.daemon]
    if (
        code == INTERRUPTED or others
    ):  # work may still be under way: leaving the usual way would wait for it, or break it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def call(arguments: list[str]) -> int:
    try:
        result = app(arguments or ["--help"], standalone_mode=False)
    except UsageProblem as error:
        return _fail(_with_advice(error.format_message()))  # type: ignore[attr-defined]
    except typer.Exit as error:
        result = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except PopulaceError as error:
        return _fail(str(error))
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        return _fail(f"{error.filename or 'a file'}: {error.strerror or error}")
    except MemoryError:
        return _fail("out of memory; use fewer clients or rows at a time")
    if result == INTERRUPTED:  # typer has turned the interrupt into an exit code
        return _interrupted()
    return result if isinstance(result, int) else 0


def _with_advice(message: str) -> str:
    """The message, and where an option of another command was given to this one, the command that has it."""
    named = [option for option in ("--drop", "--id", "--kind") if f"No such option: {option} " in f"{message} "]
    return (
        f"{message}; `populace schema FILE {named[0]} ... -o NAME.toml` has it, then --schema NAME.toml"
        if named
        else message
    )


def _written(code: int) -> int:
    """The exit code once all that was said is written; where it cannot be, that is an error, and never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            _silence(stream)
        except (OSError, ValueError) as error:
            _silence(stream)
            code = code or _fail(f"cannot write what the command says: {error}")
    return code


def _silence(stream: TextIO) -> None:
    """Have nothing more written to a stream: Python would try again when it ends."""
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), stream.fileno())


def _interrupted() -> int:
    typer.echo("populace: interrupted; give the same command again to go on", err=True)
    return INTERRUPTED


def _fail(sentence: str) -> int:
    with contextlib.suppress(OSError, ValueError):  # nowhere to write: the exit code says it alone
        typer.echo("populace: " + readable(" ".join(sentence.split())), err=True)
    return 2
