"""What may stand in a privacy.json and in the folder it lies in: closed lists, so that nothing is added or taken out unseen."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from populace.privacy.guarantee import FORMAT
from populace.runs.folder import ASKED, MAY_BE_ASKED, PUBLIC, VERSIONS, claim_json, digest_of
from populace.runs.ledger.wording import said_alone
from populace.runs.restated import COMMON, MORE
from populace.runs.verify.documents import DAMAGED, Check, Papers, Result
from populace.types import JsonObject

#: What 0.1.0 wrote.
OLD = (
    "assumptions", "bound", "delta", "derivation", "domain_sources", "domains", "epsilon", "headline", "kind", "ledger",
    "mechanism", "neighbours", "neighbours_in_words", "randomness", "reason", "statement", "trust", "trust_in_words", "unit",
    "unit_in_words",
)  # fmt: skip
BESIDE_THE_CLAIM = ("written", "ledger", "event", "history", "run", "files")
NEVER_EMPTY = ("ledger", "event", "run", "files")
LEDGER = ("epsilon", "delta", "accounts_charged", "charges")
HISTORY = (
    "ledger", "runs_before", "epsilon_if_all_share_records", "delta_if_all_share_records", "epsilon_added", "delta_added",
    "unit", "neighbours", "local", "seeded", "limit", "said",
)  # fmt: skip
SEAT = ("site", "clients", "hosts")
IMAGES = ("shape", "classes", "read_from_data", "domain_sources")
VERSION = re.compile(r"[0-9A-Za-z.+!_-]+|not installed")
STATEMENT = ("privacy.json", "privacy.html", "audit.json")
PRIVATE = (
    "metrics.json", "report.html", "comparison.json", "comparison.html", "attacks.json", "checkpoint.npz", "resume.json",
    "booking.json", "lists.json", "run.json",
)  # fmt: skip
RELEASE = ("generator.json", "generator.npz")


def check_form(papers: Papers) -> Check:
    """Whether privacy.json has the keys of its format, all of them and no others."""
    what, privacy = "form of privacy.json", papers.privacy
    if papers.old:
        wrong = sorted(set(privacy) - set(OLD) - {"format"})
        if wrong:
            return Check(
                what, "fails", f"it says that 0.1.0 wrote it, which knew nothing of {', '.join(map(repr, wrong))}"
            )
        by = _populace(papers.run)
        if by not in ("", "0.1.0"):
            return Check(what, "fails", f"it is of format 1, and run.json says that populace {by} made the run")
        return Check(what, "holds", "format 1, of version 0.1.0")
    if privacy["format"] != FORMAT:
        return Check(what, "fails", f"format {privacy['format']} is not known to this populace")
    try:
        wrong = [*_keys(papers), *_texts(privacy)]
    except DAMAGED as error:
        wrong = [f"what stands in it cannot be read ({error!r})"]
    if wrong:
        return Check(what, "fails", "; ".join(wrong))
    return Check(what, "holds", f"format {FORMAT}: everything it must say, and nothing else")


def _populace(run: JsonObject | None) -> str:
    return str(((run or {}).get("versions") or {}).get("populace", ""))


def _keys(papers: Papers) -> Iterator[str]:
    privacy, history = papers.privacy, papers.privacy.get("history")
    yield from _exactly("", privacy, (*claim_json(papers.guarantee, history), *BESIDE_THE_CLAIM))
    empty = [name for name in NEVER_EMPTY if name in privacy and not privacy[name]]
    if empty:
        yield f"{', '.join(map(repr, empty))} is empty"
    other = [name for name in NEVER_EMPTY if privacy.get(name) and not isinstance(privacy[name], Mapping)]
    if other:
        yield f"{', '.join(map(repr, other))} is of another form"
    if other or not all(privacy.get(name) for name in NEVER_EMPTY):
        return
    run, where = privacy["run"], privacy["run"]["where"]
    yield from _exactly("run", run, ("where", "asked", *PUBLIC))
    yield from _exactly("run.asked", run["asked"], (*ASKED, *(name for name in MAY_BE_ASKED if name in run["asked"])))
    yield from _exactly("run.versions", run["versions"], ("python", *VERSIONS))
    people = run["population"]
    yield from _exactly(
        "run.population", people, (*COMMON, *MORE[where], *(("images",) if people["kind"] == "images" else ()))
    )
    for seat in people.get("sites", ()):
        yield from _exactly("run.population.sites", seat, SEAT)
    if "images" in people:
        yield from _exactly("run.population.images", people["images"], IMAGES)
    yield from _exactly("ledger", privacy["ledger"], LEDGER)
    if (history is None) == (where == "simulation"):
        yield "it says nothing of other runs" if history is None else "sites and collectors keep ledgers of their own"
    elif history is not None:
        yield from _exactly("history", history, HISTORY if history["ledger"] is not None else tuple(said_alone("")))


def _exactly(where: str, found: JsonObject, expected: tuple[str, ...]) -> Iterator[str]:
    more, less = sorted(set(found) - set(expected)), sorted(set(expected) - set(found))
    inside = f" in {where!r}" if where else ""
    if more:
        yield f"{', '.join(map(repr, more))}{inside} is nothing that a run writes"
    if less:
        yield f"{', '.join(map(repr, less))} is missing{inside}"


def _texts(privacy: JsonObject) -> Iterator[str]:
    """Text that no number makes again, where it may be anything: only in the form it has."""
    datetime.date.fromisoformat(privacy["written"])
    for name, version in privacy["run"]["versions"].items():
        if not VERSION.fullmatch(version):
            yield f"{version!r} is no version of {name}"


def check_files(papers: Papers) -> Iterator[Check]:
    """Every file that privacy.json lists, against its SHA-256; every file in the folder, against what may be there."""
    listed = papers.privacy.get("files")
    if papers.old:
        yield Check("files", "not checked", "written by 0.1.0, which kept no digests")
    elif not isinstance(listed, Mapping):
        yield Check("files", "fails", "privacy.json lists no files")
    else:
        yield from _missing(papers, listed)
        for name, digest in listed.items():
            yield _compared(papers, str(name), str(digest))
    yield from _unlisted(papers, listed if isinstance(listed, Mapping) else {})


def _missing(papers: Papers, listed: Mapping[str, str]) -> Iterator[Check]:
    images = (papers.privacy.get("run") or {}).get("population", {}).get("kind") == "images"
    for name in (*RELEASE, "synthetic.npz" if images else "synthetic.parquet"):
        if name not in listed:
            yield Check(f"file {name}", "fails", "every run writes it, and privacy.json does not list it")


def _compared(papers: Papers, name: str, digest: str) -> Check:
    path, what = papers.folder / name, f"file {name}"
    if Path(name).name != name:
        return Check(what, "fails", "privacy.json lists a file outside the folder")
    if not path.is_file():
        # whoever publishes may leave files out; a whole run has them all
        result: Result = "not checked" if papers.run is None else "fails"
        return Check(what, result, "is not in the folder")
    if digest_of(path) != digest:
        return Check(what, "fails", "is not the file that the run wrote: its SHA-256 differs")
    return Check(what, "holds", f"SHA-256 {digest[:16]}... as listed")


def _unlisted(papers: Papers, listed: Mapping[str, str]) -> Iterator[Check]:
    """In a run's own folder only what could be taken for its release is looked at: the owner keeps there what they like."""
    for path in sorted(papers.folder.path.iterdir()):
        name = path.name
        if name in listed or name in STATEMENT:
            continue
        if papers.run is not None:
            if name.startswith(("synthetic", "generator")) and not papers.old:
                yield Check(f"file {name}", "fails", "is in the folder, and privacy.json does not list it")
        elif name in PRIVATE:
            yield Check(f"file {name}", "fails", "may not be published, and is in a folder of what was")
        elif not (papers.old and name.startswith(("synthetic.", "generator."))):
            yield Check(f"file {name}", "fails", "is in the folder, and privacy.json does not list it")
