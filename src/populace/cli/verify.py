"""`populace verify`: whether a run's claim follows from its events, and whether its files are those it wrote."""

from __future__ import annotations

from pathlib import Path

import typer

EXAMPLE = "Example:  populace verify run"
MARKS = {"holds": "holds", "fails": "FAILS", "not checked": "-    "}


def command(
    run: Path = typer.Argument(help="Folder of a finished run, or of what was published of one."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Compute a run's claim again from its events, and compare words, numbers, files and page with one another.

    Exit 0 if everything holds that can be checked, 1 if something does not, 2 if there is nothing to check. It finds what was
    changed, forgotten or computed wrongly; it is no signature.
    """
    from populace.cli import show
    from populace.experiments.verify import read_papers, verify_papers
    from populace.report.statement import check_page

    papers = read_papers(run)
    checks = [*verify_papers(papers), check_page(papers)]
    wrong = [check for check in checks if check.result == "fails"]
    if as_json:
        show.say_json({"run": str(run), "holds": not wrong, "checks": [check.to_json() for check in checks]})
    else:
        for check in checks:
            show.say(f"{MARKS[check.result]}  {check.what}: {check.words}")
        left = sum(check.result == "not checked" for check in checks)
        show.say(_summary(len(wrong), left))
    if wrong:
        raise typer.Exit(1)


def _summary(wrong: int, left: int) -> str:
    said = "everything that was checked holds" if not wrong else f"{wrong} check{'s' if wrong > 1 else ''} failed"
    return said + (f"; {left} could not be checked" if left else "")
