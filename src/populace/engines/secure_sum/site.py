"""A site's part in one secure sum: the five steps, each taken once and kept before its reply leaves.

Guarantee: a site masks one vector in a round, confirms one list of survivors, and reveals of each site one kind of share. The
same request again, after a crash of anybody, gets the stored bytes; another request for a step that was taken, another roster,
length or question for a round that was begun, are refused.
Edge cases: a step whose reply was computed but not kept when the process died is taken anew; nothing of it had been sent.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable

from populace.engines.secure_sum import primitives, steps
from populace.engines.secure_sum.journal import Journal, Taken
from populace.engines.secure_sum.messages import (
    Rows,
    SecureSumError,
    Step,
    pack_numbers,
    pack_rows,
    steps_of,
)
from populace.engines.secure_sum.roster import Opening
from populace.engines.secure_sum.steps import Kept, kept_from_bytes
from populace.types import NumpyArray

#: Makes the site's numbers, with its share of the noise, when they are needed; called at most once in a round.
MakeNumbers = Callable[[], NumpyArray]
#: A transaction in which a step is kept together with what is charged for it.
Keep = Callable[[Callable[[], None], bytes], None]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SumSite:
    """One site in one sum, over its journal."""

    opening: Opening
    place: int
    signing_key: bytes
    journal: Journal

    def __post_init__(self) -> None:
        if primitives.signing_public(self.signing_key) != self.opening.roster.key(self.place):
            raise SecureSumError("the roster names another key for this site than its own; nothing is sent")

    def stored(self, step: Step, request: Rows) -> bytes | None:
        """The reply given to this request before, None for a new one; refuses another request for a step that was taken."""
        self._check_opening()
        taken = self.journal.taken(self.opening.run, self.opening.round, step)
        if taken is None:
            return None
        if taken.request != self._digest(step, request):
            raise SecureSumError(
                f"this site has taken step {step!r} of round {self.opening.round} for another request, and takes it once"
            )
        return taken.reply

    def answer(
        self, step: Step, request: Rows, numbers: MakeNumbers | None = None, *, keep: Keep | None = None
    ) -> bytes:
        """The reply to one step, stored or new; `numbers` makes the vector of step `mask`.

        `keep` is called with what keeps the step and with the reply, to do so within a transaction of its own.
        """
        stored = self.stored(step, request)
        if stored is not None:
            return stored
        kept, reply = self._take(step, request, numbers)
        taken = Taken(
            step=step,
            context=self.opening.context.hex(),
            request=self._digest(step, request),
            reply=reply,
            kept=kept.to_bytes(),
        )
        if keep is None:
            self._keep(taken)
        else:
            keep(lambda: self._keep(taken), reply)
        return reply

    def _take(self, step: Step, request: Rows, numbers: MakeNumbers | None) -> tuple[Kept, bytes]:
        opening, place = self.opening, self.place
        if step == "advertise":
            kept, keys = steps.advertise(opening, place=place, signing_key=self.signing_key)
            return kept, pack_rows(step, {place: keys})
        kept = self._before(step)
        if step == "share":
            kept, sealed = steps.share(opening, kept, request, place=place)
            return kept, pack_rows(step, sealed)
        if step == "mask":
            if numbers is None:
                raise SecureSumError("expected the numbers of this site for step 'mask', got none")
            kept, masked = steps.mask(opening, kept, request, numbers(), place=place)
            return kept, pack_numbers(masked)
        if opening.graph is not None:
            return kept, pack_rows(step, steps.reveal_listed(opening, kept, sorted(request), place=place))
        if step == "confirm":
            kept, signature = steps.confirm(opening, kept, sorted(request), place=place, signing_key=self.signing_key)
            return kept, pack_rows(step, {place: signature})
        return kept, pack_rows(step, steps.reveal(opening, kept, request))

    def _before(self, step: Step) -> Kept:
        """What the site kept in the step before this one."""
        order = steps_of(self.opening)
        if step not in order:
            raise SecureSumError(f"a sum with a sparse graph of masks has no step {step!r}")
        earlier = order[order.index(step) - 1]
        kept = self.journal.kept(self.opening.run, self.opening.round, earlier)
        if not kept:
            raise SecureSumError(f"expected step {earlier!r} of this sum before step {step!r}; it was not taken here")
        return kept_from_bytes(kept)

    def _check_opening(self) -> None:
        first = self.journal.taken(self.opening.run, self.opening.round, steps_of(self.opening)[0])
        if first is not None and first.context != self.opening.context.hex():
            raise SecureSumError(
                f"round {self.opening.round} of run {self.opening.run!r} was begun with another roster, length or question"
            )

    def _keep(self, taken: Taken) -> None:
        self.journal.keep(self.opening.run, self.opening.round, taken)

    def _digest(self, step: Step, request: Rows) -> str:
        """A hash of what a step was asked. What is revealed follows from the confirmed list, whoever else confirmed it."""
        found = hashlib.sha256(step.encode())
        for place in sorted(request) if step != "reveal" or self.opening.graph is not None else ():
            found.update(place.to_bytes(4, "big") + len(request[place]).to_bytes(4, "big") + request[place])
        return found.hexdigest()
