"""Runs add up: every run is booked in a ledger that lies beside the data, before it begins.

A run reserves all that its guarantee costs; one that is interrupted stays booked, one that is resumed pays once. What would
pass the owner's limit is refused before any record is used. `booking.json` in the run's folder names the ledger while the run
is unfinished, run.json afterwards.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

from populace.border.databases.address import file_of, short_name
from populace.border.models import read_document
from populace.errors import BudgetError, InputError, RunError, SpecError, without_secrets
from populace.methods.base import Population, Protocol
from populace.privacy.consequences import round_up
from populace.privacy.guarantee import Guarantee
from populace.privacy.run_ledger import Booked, RunLedger, make_ledger, new_booking
from populace.privacy.run_totals import Cost, cost_of
from populace.runs.folder import LISTS, RunFolder, digest_of
from populace.runs.forms import TokenForm
from populace.runs.ledger import wording
from populace.runs.ledger.accounts import Accounts
from populace.runs.ledger.standing import Standing, find_standing
from populace.runs.ledger.wording import EMBEDDED_DATA, doubt, json_number, pair, public_history, said, said_alone
from populace.runs.ledger.wording import NOT_BOOKED as NOT_BOOKED
from populace.runs.named import Files, files_of
from populace.runs.sources import EMBEDDED, PrivateData
from populace.runs.spec import RunSpec
from populace.tables.files import write_json
from populace.tables.value_text import fold_name
from populace.types import JsonObject

LEDGER = "populace-ledger.sqlite"  # beside the data
TOKEN = "booking.json"  # noqa: S105 -- a file's name
NO_FOLDER = (
    "a database on a server has no folder to keep a ledger in: name one with --ledger FILE, the same file for every run on "
    "this database, so that what they spend adds up; or give --no-ledger, which the statement will say"
)
NO_FILE = "a ledger is a file on this machine: name one with --ledger FILE, such as ward-ledger.sqlite, not a database"
TOLERANCE = 1 + 1e-12  # of sums


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bookkeeping:
    """Where a run is booked: `ledger`, or the file beside the data; nowhere if not `kept`. `limit` is the owner's, over all.

    `other_people` are the owner's words that a table with the columns of an earlier one is about others; empty if not said.
    """

    ledger: Path | None = None
    limit: float | None = None
    kept: bool = True
    other_people: str = ""

    def path(self, data: Files) -> Path | None:
        """The ledger for these data files, or None."""
        embedded = any(file.startswith(EMBEDDED) for file in files_of(data))
        if not self.kept or (embedded and self.ledger is None):
            return None
        if self.ledger is not None and (":/" in (named := str(self.ledger)) or without_secrets(named) != named):
            raise InputError(NO_FILE)
        return (self.ledger or beside(data)).absolute()


BESIDE = Bookkeeping()
NOWHERE = Bookkeeping(kept=False)


def beside(data: Files | Path) -> Path:
    """Where the ledger of data files is by default: one for all files of the folder they lie in, whatever links lead there."""
    files = (data,) if isinstance(data, str | Path) else data
    places = [file_of(file) for file in files]
    if None in places:
        raise InputError(NO_FOLDER)
    folders = {place.resolve().parent for place in places if place is not None}
    if len(folders) != 1:
        raise InputError("the files lie in several folders, each with a ledger of its own: name one with --ledger FILE")
    return folders.pop() / LEDGER


class History:
    """One run's place in a ledger, from before its folder is made until it is finished.

    Guarantee: `reserve` returns only once the run's whole cost is on disk, checked against the limit in the same
    transaction; `confirm` raises if the ledger has lost it since, or gave its release to another folder, and nothing is
    released.
    Edge cases: without a ledger nothing is checked, and `document` says so. A folder whose run is booked goes on in the ledger
    that booked it, whatever is asked for.
    """

    def __init__(
        self, spec: RunSpec, data: PrivateData, protocol: Protocol, population: Population, keeping: Bookkeeping
    ) -> None:
        self.spec, self.data, self.method = spec, data, protocol.facts.name
        self.cost = booked_cost(protocol, population, seeded=spec.seed is not None, person=spec.person or "")
        self.limit, self.path, self.other_people = keeping.limit, keeping.path(spec.data), keeping.other_people.strip()
        self.asked = keeping.ledger
        self.booking = ""
        self._accounts: Accounts | None = None
        self.document: JsonObject = said_alone(EMBEDDED_DATA if keeping.kept and self.path is None else NOT_BOOKED)
        if self.limit is not None and not self.limit > 0:
            raise SpecError(f"expected a limit above 0, got {self.limit:g}")
        if self.path is None and self.limit is not None:
            raise SpecError("a --limit is kept in a ledger; leave out --no-ledger, or the limit")

    def check(self, folder: RunFolder) -> None:
        """Refuse what cannot be booked, before there is a folder; books nothing."""
        if self.path is None or (folder / TOKEN).is_file() or folder.finished:  # that folder is refused by itself
            return
        _make(self.path, beside_data=self.asked is None)
        with RunLedger(self.path) as ledger:
            self._standing(ledger, kept=self._kept(ledger))

    def reserve(self, folder: RunFolder, say: Callable[[str], None]) -> None:
        """Book the run, or find it booked; inside the folder's lock."""
        token = _token(folder)
        if token is not None:
            self._same_ledger(folder, Path(token["ledger"]))
        if self.path is None:
            return
        self.booking = new_booking() if token is None else token["booking"]
        if token is None:
            self._write_token(folder, booked=False)
        with RunLedger(self.path) as ledger:
            booked = ledger.run(self.booking)
            if booked is not None and (booked.finished or booked.released_in not in ("", _place(folder))):
                raise RunError(_twice(booked))
            if booked is not None:
                self.document = dict(booked.history)
            elif token is not None and token["booked"]:
                raise RunError(_lost(self.path, folder.path))
            else:
                self._book(ledger, folder)
        self._write_token(folder, booked=True)
        say(f"booked in {self.path}")

    def confirm(self, folder: RunFolder) -> None:
        """Claim the release that was paid for, for this folder and what its checkpoint, and its lists of categories, hold:
        what follows is the release.

        Raises if the booking is gone, or the release was claimed by a copy of the folder, or for another result.
        """
        if not self.booking or self.path is None:
            return
        if not self.path.is_file():
            raise RunError(f"{_gone(self.path)}; nothing was released: put it back, and give the same command again")
        with RunLedger(self.path) as ledger:
            booked = ledger.run(self.booking)
            if booked is None:
                raise RunError(f"the ledger {self.path} does not know this run any more; {PUT_BACK}")
            ledger.release(self.booking, folder=_place(folder), content=_content(folder))

    def finish(self, folder: RunFolder) -> None:
        """Note in the ledger that the run ended; its cost was booked all along."""
        if self.booking and self.path is not None:
            with RunLedger(self.path) as ledger:
                ledger.finish(self.booking, folder=_place(folder))
        (folder / TOKEN).unlink(missing_ok=True)

    def for_run(self) -> JsonObject:
        """What run.json keeps, which is not published: where the run is booked, and which runs share its records."""
        shared = {name: value for name, value in self.document.items() if name != "public"}
        return {
            "ledger": None if self.path is None else str(self.path), "booking": self.booking or None, "standing": shared,
            "public": dict(self.public),
        }  # fmt: skip

    @property
    def public(self) -> JsonObject:
        """What the statement says of other runs: computed without looking at a record."""
        found: JsonObject = self.document.get("public", self.document)
        return found

    def _same_ledger(self, folder: RunFolder, named: Path) -> None:
        """Go on in the ledger that the folder names; in the one asked for if that was moved, which must know the run."""
        if self.path is None:
            self.path = named
        same = self.path == named or (self.path.is_file() and named.is_file() and self.path.samefile(named))
        if named.is_file() and not same:
            raise RunError(
                f"the unfinished run in {folder.path} is booked in {named}, not in {self.path}; give --ledger {named}"
            )
        if not self.path.is_file():
            raise RunError(f"{_gone(self.path)}, and with it what was spent; {PUT_BACK}")

    def _write_token(self, folder: RunFolder, *, booked: bool) -> None:
        write_json(folder / TOKEN, {"ledger": str(self.path), "booking": self.booking, "booked": booked}, mode=0o600)

    def _book(self, ledger: RunLedger, folder: RunFolder) -> None:
        with ledger.transaction():
            kept = self._kept(ledger)
            if self.limit is not None:
                ledger.allow(self.limit)
            standing = self._standing(ledger, kept=kept)
            self.document = self._document(ledger, standing)
            ledger.book(
                booking=self.booking, folder=str(folder.path.absolute()),
                data=", ".join(map(short_name, self.spec.files)), rows=len(self.data.clients.data),
                method=self.method, cost=self.cost, history=self.document, used=standing.used,
            )  # fmt: skip

    def _kept(self, ledger: RunLedger) -> float:
        """The limit that the ledger keeps so far; refuses one that would raise it."""
        kept = ledger.limit
        if self.limit is not None and self.limit > kept:
            ledger.allow(self.limit)  # says in words that it is not raised so
        return kept

    def _standing(self, ledger: RunLedger, *, kept: float) -> Standing:
        """What the run would add up to; refuses what passes the ledger's limit, or a lower one given now."""
        if self._accounts is None:
            self._accounts = Accounts(self.data, ledger.secret)
        standing = find_standing(
            ledger, self._accounts, self.cost, client_column=self.spec.person or self.spec.client_column,
            records_per_client=self.spec.records_per_client, other_people=bool(self.other_people),
        )  # fmt: skip
        refuse_beyond(standing, self.cost, kept, self.limit, ledger=ledger.path, method=self.method)
        return standing

    def _document(self, ledger: RunLedger, standing: Standing) -> JsonObject:
        before, after = standing.before, standing.after
        return {
            "ledger": ledger.path.name,
            "runs_before": len(standing.shared),
            "epsilon_before": json_number(before.epsilon),
            "epsilon_after": json_number(after.epsilon),
            "delta_after": after.delta,
            "epsilon_added": json_number(standing.plain_after.epsilon),
            "delta_added": standing.plain_after.delta,
            "unit": after.unit,
            "neighbours": after.neighbours,
            "per": standing.per,
            "limit": None if math.isinf(ledger.limit) else ledger.limit,
            "other_people": self.other_people,
            "said": said(standing, self.cost, ledger=ledger.path.name, images=self.data.frame is None),
            "public": public_history(
                [run.cost for run in ledger.runs()], self.cost, ledger=ledger.path.name, limit=ledger.limit,
                images=self.data.frame is None,
            ),
        }  # fmt: skip


PUT_BACK = "put back the file it was booked in, or choose another --out to begin (and pay for) a new run"


def booked_cost(protocol: Protocol, population: Population, *, seeded: bool, person: str = "") -> Cost:
    """What a whole run of this method costs one unit, known before it begins."""
    guarantee: Guarantee = dataclasses.replace(protocol.guarantee(population), seeded=seeded)
    try:
        event = protocol.spends(population)
    except SpecError:  # the method tells only epsilon and delta
        event = None
    return cost_of(guarantee, event, records=population.records, silos=population.clients, person=fold_name(person))


def refuse_beyond(
    standing: Standing, cost: Cost, kept: float, given: float | None, *, ledger: Path, method: str
) -> None:
    """Raise BudgetError if the run would pass the limit that is kept, or a lower one given now, or nobody could say whether.

    Epsilons are added plainly: that holds also for runs chosen after looking at earlier ones (Rogers et al. 2016). A limit that
    is given with a run which is refused is not kept, and the sentence does not say that it is.
    """
    limit = kept if given is None else min(given, kept)
    if math.isinf(limit):
        return
    whose, more = (
        f"the ledger {ledger} keeps a limit of",
        f"let the owner raise it: populace ledger limit {ledger} E --because WORDS",
    )
    if limit < kept:
        whose, more = "--limit allows", "give a higher --limit"
    keeps = f"{whose} epsilon {limit:g} over all runs on the same data"
    if math.isinf(cost.epsilon):
        raise BudgetError(f"{keeps}, and {method} guarantees nothing (epsilon inf); nothing was released")
    if standing.strangers:
        one = standing.strangers[-1]
        raise BudgetError(
            f"{keeps}, and the run in {one.folder} ({one.method}, per {one.cost.unit}) used some of the same rows for another "
            "unit: what both cost one client with several rows cannot be told; protect the same --client-column or --person, "
            "or use other data and another --ledger; nothing was released"
        )
    if standing.plain_after.epsilon <= limit * TOLERANCE:
        if standing.doubtful:
            raise BudgetError(f"{keeps}, {doubt(standing.doubtful[-1])}; nothing was released")
        return
    fits = "" if cost.delta or standing.plain_after.delta else _what_fits(standing, cost, limit)
    alone = _at_each(standing, cost)
    spent = pair(standing.plain_before) if standing.shared else "nothing"
    raise BudgetError(
        f"{keeps}; {len(standing.shared)} earlier {'run' if len(standing.shared) == 1 else 'runs'} spent {spent}, and with "
        f"this one it would be {pair(standing.plain_after)}{alone}; {fits}use other rows, or {more}; nothing was released"
    )


def _at_each(standing: Standing, cost: Cost) -> str:
    """Why a run over several silos that protects persons costs more than its epsilon."""
    if standing.plain_after.unit != "person" or cost.silos <= 1:
        return ""
    own = f"this run's epsilon {round_up(cost.epsilon)} is for their rows at one of its {cost.silos} silos"
    return f" for {wording.ONE_PERSON}: {own}, and they pay at each"


def _what_fits(standing: Standing, cost: Cost, limit: float) -> str:
    """The epsilon that is left under the limit, for pure runs."""
    factor = (standing.plain_after.epsilon - standing.plain_before.epsilon) / cost.epsilon
    left = (limit - standing.plain_before.epsilon) / factor if factor > 0 else 0.0
    return f"choose --epsilon {math.floor(left * 1e6) / 1e6:g} or less, " if left > 1e-6 else ""


def _token(folder: RunFolder) -> JsonObject | None:
    """What an unfinished run's folder says of its booking, or None."""
    if not (folder / TOKEN).is_file():
        return None
    return read_document(folder / TOKEN, TokenForm, advice="restore it, or choose another --out")


def _make(path: Path, *, beside_data: bool) -> None:
    """Begin the ledger where there is none; where it cannot be written, say what to do."""
    try:
        make_ledger(path)
    except RunError as error:
        where = "beside the data" if beside_data else "there"
        raise RunError(
            f"{error}; no ledger can be kept {where}: name another file with --ledger FILE, or give --no-ledger, which the "
            "statement will say; nothing was read into a run"
        ) from error


def _gone(path: Path) -> str:
    return f"the ledger {path}, in which this run is booked, is gone"


def _lost(ledger: Path, folder: Path) -> str:
    return f"the ledger {ledger} does not know the run in {folder}, which was booked there; {PUT_BACK}"


def _content(folder: RunFolder) -> bytes:
    """By what a release is told from another one of the same booking."""
    paths = (folder.checkpoint.path, folder / LISTS)
    return " ".join(digest_of(path) for path in paths if path.is_file()).encode()


def _place(folder: RunFolder) -> str:
    """One name for a folder, whatever links lead there."""
    return str(folder.path.resolve())


def _twice(booked: Booked) -> str:
    done = "finished" if booked.finished else "begun to be written"
    return (
        f"this run was {done} in {booked.released_in or booked.folder}; going on with a copy of its folder would be a second "
        "release: choose another --out"
    )
