"""`populace ledger`: what all runs on the same data cost together, and the limit their owner keeps."""

from __future__ import annotations

from pathlib import Path

import typer

from populace.types import JsonObject

EXAMPLE = (
    "Example:  populace ledger show adult.csv, and to allow more:  populace ledger limit adult.csv 8 --because WORDS"
)
WIDTH = 80
AT_EACH = (
    "A run over several files with --person: epsilon is for one person's rows at one",
    "file; so far, and the total, are for one with rows at all files, who pays at each.",
)
MEANT = "The ledger, a data file beside which it lies, their folder, or a run that is booked in it."
PLACE = typer.Argument(Path("."), help=MEANT)

app = typer.Typer(
    help="What all runs on the same data cost together; `populace synthesize` books every run. See docs/ledger.md.",
    no_args_is_help=True,
)


@app.command()
def show(place: Path = PLACE, as_json: bool = typer.Option(False, "--json", help="Print one JSON document.")) -> None:
    """Show every booked run, the total per record and per client, and the limit."""
    from populace.cli import show
    from populace.runs.ledger.view import find_ledger, overview

    found = overview(find_ledger(place))
    if as_json:
        show.say_json(found)
        return
    for line in lines(found):
        show.say(line)


@app.command()
def limit(
    place: Path = typer.Argument(help=MEANT),
    epsilon: float = typer.Argument(help="The most epsilon over all runs on the same rows; inf for no limit."),
    because: str = typer.Option(
        "", "--because", help="Why it may be raised; kept in the ledger. Lowering needs no reason."
    ),
) -> None:
    """Lower the limit, or raise it with a reason: for the owner of the data, nobody else."""
    from populace.cli import show
    from populace.privacy.run_ledger import RunLedger
    from populace.runs.ledger.view import find_ledger

    path = find_ledger(place)
    with RunLedger(path) as ledger:
        with ledger.transaction():
            ledger.allow(epsilon, because=because)
        show.say(f"{path}: the limit is epsilon {ledger.limit:g} over all runs on the same rows")


def lines(found: JsonObject) -> list[str]:
    """The ledger in 80 columns."""
    limit = "no limit is set" if found["limit"] in (None, "inf") else f"limit: epsilon {found['limit']:g} over all runs"
    count = len(found["runs"])
    shown = [found["ledger"], f"{count} {'run' if count == 1 else 'runs'}; {limit}"]
    because = [one for one in found["limits"] if one["because"]]
    shown += [f"  {_raised(one['epsilon'])} on {one['at'][:10]}: {one['because']}" for one in because]
    others = [run for run in found["runs"] if run["other_people"]]
    shown += [
        f"  other people in {Path(run['folder']).name} on {run['at'][:10]}: {run['other_people']}" for run in others
    ]
    if found["runs"]:
        shown += ["", *_table(found["runs"]), ""]
    shown += [line for total in found["totals"] for line in _total(total)]
    if any(run["silos"] > 1 for run in found["runs"]):
        shown += AT_EACH
    marks = {
        "*": ("seeded", "reproducible, not private: whoever knows the seed can remove the noise"),
        "+": ("begun", "begun and not finished: it stays booked, and pays once when it is resumed"),
    }
    for mark, (what, words) in marks.items():
        if any(_marks(run)[what] for run in found["runs"]):
            shown.append(f"{mark}  {words}")
    return shown


def _raised(epsilon: float | str) -> str:
    return "lifted" if epsilon == "inf" else f"raised to {float(epsilon):g}"


def _table(runs: list[JsonObject]) -> list[str]:
    header = ["date", "run", "method", "epsilon", "delta", "unit", "trust", "so far"]
    rows = [
        [
            run["at"][:10], Path(run["folder"]).name, run["method"], _mark(run), f"{run['delta']:.1g}", run["unit"],
            run["trust"], _up(run["epsilon_so_far"] if (sum_ := run["epsilon_added_so_far"]) is None else sum_),
        ]
        for run in runs
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    widths[1] = max(4, min(widths[1], WIDTH - sum(widths) + widths[1] - 2 * (len(header) - 1)))
    cut = [[*row[:1], row[1][: widths[1] - 1] + "…" if len(row[1]) > widths[1] else row[1], *row[2:]] for row in rows]
    rule = ["-" * width for width in widths]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in [header, rule, *cut]]  # fmt: skip


def _marks(run: JsonObject) -> dict[str, bool]:
    return {"seeded": bool(run["seeded"]), "begun": not run["finished"]}


def _mark(run: JsonObject) -> str:
    return _up(run["epsilon"]) + "*" * bool(run["seeded"]) + "+" * (not run["finished"])


def _total(total: JsonObject) -> list[str]:
    """The sum, which a limit counts; and the smaller total with its condition, where there is one."""
    from populace.runs.ledger.wording import FIXED, PLANNED

    if total["epsilon"] == "inf":
        return [f"total per {total['per']}: no guarantee (epsilon inf): one of the runs guarantees nothing"]
    begin = f"total per {total['per']}: "
    relation = f"(neighbours {total['neighbours']})"
    seeds = "; it holds only while the seeds stay secret" if total["seeded"] else ""
    smaller, added = _pair(total["epsilon"], total["delta"]), total["epsilon_added"]
    if added is None:
        return [
            f"{begin}{smaller} {relation}, {PLANNED}{seeds}",
            "  (a limit counts the sum of epsilons, which the version that booked these runs did not keep)",
        ]
    whole = _pair(added, total["delta_added"])
    if whole == smaller:
        return [f"{begin}{whole} {relation}{seeds}"]
    return [
        f"{begin}{whole} {relation}{seeds}",
        f"  this is the sum, which a limit counts: it holds {FIXED}",
        f"  {smaller} {PLANNED}: no limit counts it",
    ]


def _pair(epsilon: float | str, delta: float) -> str:
    return f"epsilon {_up(epsilon)}" + (f", delta {_up(delta)}" if delta else "")


def _up(number: float | str) -> str:
    from populace.privacy.consequences import round_up

    return str(number) if isinstance(number, str) else round_up(number)
