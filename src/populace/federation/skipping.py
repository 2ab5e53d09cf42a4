"""Passing over a site for the rest of a run: it is neither asked nor waited for, and a round that asks nobody else goes by.

The guarantee stays as it is: what a client gives is bounded whether it is asked or not, noise is drawn in full whoever
answers, and the statement counts those who answered.
"""

from __future__ import annotations

from populace.engines.segment import read_plan, read_roster, read_skipped, read_status
from populace.errors import InputError
from populace.federation.coordinator import Federation
from populace.federation.standing import standing
from populace.tables.files import write_json


def skip(federation: Federation, site: str, *, run: str | None = None, undo: bool = False) -> str:
    """Pass over a site, or ask it again (`undo`), from the next look of the run's loop on; returns what follows, in words."""
    name = run or _unfinished(federation)
    place = federation.run_folder(name)
    roster = read_roster(place) if (place / "plan.json").is_file() else None
    if roster is None:
        raise InputError(
            f"expected a run whose sites are seated, got {name}; `populace federation status` lists the runs"
        )
    seated = [seat.site for seat in roster.seats]
    if site not in seated:
        raise InputError(f"expected a site of the run ({', '.join(seated)}), got {site!r}")
    if read_status(place)["state"] == "finished":
        raise InputError(f"all rounds of {name} are done; nothing is left to pass over")
    skipped = read_skipped(place) - {site} if undo else read_skipped(place) | {site}
    sums = read_plan(place).agreement.roster
    left, needed = len(seated) - len(skipped), 1 if sums is None else sums.threshold
    if left < needed and not undo:
        what = "a run" if sums is None else f"a secure sum of {len(seated)} sites"
        raise InputError(
            f"expected at least {needed} site{'s' * (needed > 1)} to be left for {what}, got {left} without {site}: no round "
            "could be finished; wait for the site, or begin another run without it"
        )
    write_json(place / "skipped.json", sorted(skipped))
    if undo:
        return f"{site} is asked again in {name} from the next round on"
    at_work = (standing(place).get("doing") or {}).get("state") not in (None, "nobody", "paused")
    when = "at once" if at_work else "when the run goes on (give the same `populace federation run` again)"
    return f"{site} is passed over for the rest of {name}, {when}; --undo asks it again"


def _unfinished(federation: Federation) -> str:
    """The one run that has rounds left."""
    runs = federation.path / "runs"
    places = sorted(runs.iterdir()) if runs.is_dir() else []
    names = [place.name for place in places if read_status(place)["state"] != "finished"]
    if len(names) != 1:
        raise InputError(f"expected one unfinished run, got {', '.join(names) or 'none'}; say which with --run")
    return names[0]
