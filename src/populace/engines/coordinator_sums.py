"""The coordinator's side of a secure sum over a link: relays the steps, and hands the opened sum to be absorbed.

What it has decided about a round is in a file beside the checkpoint before it is sent, so that a coordinator that was killed at
any moment goes on with the same lists; sites refuse others. The file holds nothing that the coordinator has not seen.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from populace.border.models import interpreting
from populace.border.regular import read_bytes
from populace.engines import messages
from populace.engines.agreement import shapes_of
from populace.engines.asked import common_digest
from populace.engines.link import QuorumError
from populace.engines.secure_sum.messages import Rows, Step
from populace.engines.secure_sum.opening import Decided, Opened, TooFewSitesError, decided_from_bytes, open_sum
from populace.engines.secure_sum.roster import Opening, SumRoster
from populace.engines.sums import check_everybody, opened_replies
from populace.errors import RunError, WireError
from populace.methods.base import Ask, Replies
from populace.privacy.noise_shares import NoiseShares
from populace.tables.files import replacing
from populace.types import ArrayTree, NumpyArray

if TYPE_CHECKING:
    from populace.engines.coordinator import Coordinator


def decided_path(checkpoint: Path, round_id: int) -> Path:
    """Where the coordinator keeps what it decided about the sum of a round."""
    return checkpoint.with_name(f"{checkpoint.stem}.sum-{round_id}")


def checked_roster(coordinator: Coordinator) -> SumRoster:
    """The agreed roster; raises RunError where the sites of a run are not exactly its own, a client each."""
    roster, seats = coordinator.agreement.roster, coordinator.roster.seats
    if roster is None:
        raise RunError("a method with trust secure-sum needs a roster of sites and their keys in the proposal")
    wanted = {member.site for member in roster.members}
    if {seat.site for seat in seats} != wanted or any(seat.clients != 1 for seat in seats):
        raise RunError(
            f"a secure sum is over exactly the sites of its roster, a client each: expected {', '.join(sorted(wanted))}, got "
            f"{', '.join(f'{seat.site} with {seat.clients}' for seat in seats)}; begin when all are connected"
        )
    return roster


class SumRound:
    """One round of a secure sum: what came of it, as the loop over rounds counts it."""

    def __init__(
        self, coordinator: Coordinator, ask: Ask, round_id: int, heard: NumpyArray, shares: NoiseShares
    ) -> None:
        check_everybody(ask, coordinator.population)
        self._coordinator, self._ask, self._round, self._heard = coordinator, ask, round_id, heard
        self._roster = checked_roster(coordinator)
        self._opening = Opening(
            run=coordinator.run, round=round_id, roster=self._roster, size=shares.mechanism.size, bits=shares.bits,
            question=common_digest(ask.common),
        )  # fmt: skip
        self._like: ArrayTree = shapes_of(coordinator.agreement.protocol, coordinator.population, round_id).reply
        self._seats = {seat.site: seat for seat in coordinator.roster.seats}
        self.cohort = np.asarray(ask.cohort)
        self.present = np.zeros(len(self.cohort), bool)
        self.answered: set[str] = set()
        self.refusals: dict[str, str] = {}
        self.down = self.up = 0.0
        self._opened: Opened | None = None

    def gather(self) -> None:
        """Open the sum; steps that too few sites took are asked again, as long as the coordinator is patient."""
        until = time.monotonic() + self._coordinator.patience
        while True:
            try:
                self._opened = open_sum(
                    self._opening, self._exchange, decided=self._decided(), save=self._save, note=self._note
                )
                break
            except TooFewSitesError as error:
                if time.monotonic() >= until:
                    raise QuorumError(
                        f"round {self._round}: {error}{_reasons(self.refusals)}; give the same command again to go on"
                    ) from error
                self._coordinator.wait(self._round, frozenset(self._seats), until=until)
        survivors = {self._roster.members[place].site for place in self._opened.survivors}
        clients = [self._seats[site].first for site in survivors]
        self.present = np.isin(self.cohort, clients)
        self.answered = survivors
        self.refusals = {site: code for site, code in self.refusals.items() if site not in survivors}

    def replies(self) -> Replies:
        if self._opened is None:
            raise RunError("expected an opened sum, got none")
        return opened_replies(self._opened.total, self._like, clients=self.cohort, present=self.present)

    def _exchange(self, step: Step, requests: Mapping[int, Rows]) -> Iterable[tuple[int, bytes]]:
        """Send one step to the sites that are there, and read what came back."""
        coordinator = self._coordinator
        here = set(coordinator.link.sites()) - coordinator.skipped()
        places = {self._roster.members[place].site: place for place in requests}
        asked = {site: self._request(step, site, requests[place]) for site, place in places.items() if site in here}
        self.down += sum(map(len, asked.values()))
        for site, data in coordinator.link.exchange(asked, coordinator.timeout).items():
            self.up += len(data)
            try:
                reply = messages.read_sum_reply(
                    data, coordinator.agreement, run=coordinator.run, round_id=self._round, step=step
                )
            except messages.RefusedError as no:
                self.refusals[site] = no.code
                continue
            except WireError:
                self.refusals[site] = "garbage"
                continue
            self.refusals.pop(site, None)
            yield places[site], reply

    def _request(self, step: Step, site: str, rows: Rows) -> bytes:
        coordinator, seat = self._coordinator, self._seats[site]
        ask = None
        if step == "mask":
            slot = np.flatnonzero(self.cohort == seat.first)
            ask = messages.make_ask(
                coordinator.agreement, coordinator.population, run=coordinator.run, round_id=self._round, first=seat.first,
                clients=self.cohort[slot], heard=self._heard[self.cohort[slot]], common=self._ask.common,
                own=jax.tree.map(lambda rows: rows[slot], self._ask.own),
            )  # fmt: skip
        return messages.make_sum_request(
            ask, coordinator.agreement, coordinator.population, run=coordinator.run, round_id=self._round, first=seat.first,
            step=step, question=self._opening.question, rows=rows,
        )  # fmt: skip

    def _note(self, step: Step, place: int, why: str) -> None:
        del step, why
        self.refusals[self._roster.members[place].site] = "garbage"

    def _decided(self) -> Decided | None:
        path = decided_path(self._coordinator.checkpoint.path, self._round)
        if not path.exists():
            return None
        with interpreting(str(path)):
            return decided_from_bytes(read_bytes(path))

    def _save(self, decided: Decided) -> None:
        with replacing(decided_path(self._coordinator.checkpoint.path, self._round)) as temporary:
            temporary.touch(mode=0o600)
            temporary.write_bytes(decided.to_bytes())


def _reasons(refusals: Mapping[str, str]) -> str:
    said = [f"{site}: {messages.REASONS.get(code, code)}" for site, code in sorted(refusals.items())]
    return f" ({'; '.join(said)})" if said else ""
