"""`populace verify`: whether a run's claim follows from its events, and whether its files are those it wrote."""

from __future__ import annotations

from pathlib import Path

import typer

from populace.cli import completion

EXAMPLE = "Example:  populace verify run"
MARKS = {"holds": "holds", "fails": "FAILS", "not checked": "?    ", "left out": "-    "}
INCOMPLETE = 3


def command(
    run: Path = typer.Argument(
        help="Folder of a finished run, or of what was published of one.", autocompletion=completion.runs
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Recompute a run's claim from its method and from its events, and compare text, numbers, files and page.

    Exit 0 if everything holds, 1 if something does not, 3 if everything holds that could be checked and something could not
    (a run of 0.1.0, a file left out), 2 if there is nothing to check. It finds what was changed, forgotten or computed wrongly;
    it is no signature.
    """
    from populace.cli import show
    from populace.report.statement import check_page
    from populace.runs.verify.checks import read_papers, verify_papers

    papers = read_papers(run)
    checks = [*verify_papers(papers), check_page(papers)]
    wrong = [check for check in checks if check.result == "fails"]
    left = sum(check.result == "not checked" for check in checks)
    if as_json:
        found = {
            "run": str(run),
            "holds": not wrong,
            "complete": not left,
            "checks": [each.to_json() for each in checks],
        }
        show.say_json(found)
    else:
        for check in checks:
            show.say(f"{MARKS[check.result]}  {check.what}: {check.words}")
        show.say(_summary(len(wrong), left))
    if wrong or left:
        raise typer.Exit(1 if wrong else INCOMPLETE)


def _summary(wrong: int, left: int) -> str:
    if wrong:
        said = f"{wrong} check{'s' if wrong > 1 else ''} failed"
    else:
        said = "holds as far as it could be checked" if left else "everything holds"
    return said + (f"; {left} could not be checked" if left else "")
