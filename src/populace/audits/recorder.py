"""A grey-box recorder: what each privacy primitive is given and returns, while a method runs.

The idea is that of Re:cord-play (Cebere, Erb, Desfontaines, Bellet and Fitzsimons 2026, "Privacy in theory, bugs in practice",
arXiv 2602.17454). A run on a data set D is recorded. A run on a neighbour D' is then replayed with the same randomness, every
primitive returning what it returned on D. Whatever differs in the second run is either the input of a primitive, which must
lie within the sensitivity the primitive was told, or a leak around the primitives.

Primitives: `GaussianSum.noise` and `.release`, `NoiseShares.draw` and what an engine opens with it, `apply` of every local
randomiser and of a choice by scores, and `coins` of a source (Poisson sampling). They are replaced on their classes while
`recording` is open. Inside compiled code they pass through unseen, so what is to be recorded must run uncompiled, as the debug
engine runs it; a release that was not seen shows as a leak and as an unbooked one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from populace.privacy.exponential import ExponentialMechanism
from populace.privacy.gaussian import GaussianSum
from populace.privacy.noise_shares import NoiseShares
from populace.privacy.randomizers.base import Randomizer
from populace.privacy.randomizers.fedsel import FedSel
from populace.privacy.randomizers.grr import GrrPanel
from populace.privacy.randomizers.several_signds import SeveralSignDS
from populace.privacy.randomizers.signds import SignDS
from populace.privacy.randomizers.subset import SubsetPanel
from populace.privacy.source import Keyed, Source, System
from populace.types import Array, ArrayTree, NumpyArray

if TYPE_CHECKING:
    from populace.audits.release_canaries import Canaries

Kind = Literal["noise", "sum", "report", "coins", "share"]

RANDOMIZERS: tuple[type, ...] = (Randomizer, SubsetPanel, GrrPanel, SignDS, SeveralSignDS, FedSel, ExponentialMechanism)
WRAP = 2**32  # sums and noise are whole numbers modulo this


@dataclasses.dataclass(kw_only=True)
class Call:
    """One use of a primitive.

    `given` is the un-noised sum in whole units of the grid (`sum`; of one opened under masks with its `shares`, and with every
    site's share in `parts`), the value or vector (`report`), or probability and shape
    (`coins`); `returned` is its result. `released` says of noise whether it went into a `sum`: noise that did not was added
    by the method itself.
    """

    place: str
    kind: Kind
    mechanism: Any
    given: ArrayTree
    returned: ArrayTree
    noise: ArrayTree = None
    released: bool = False
    shares: NoiseShares | None = None
    parts: NumpyArray | None = None


class Recorder:
    """Records calls; with `before`, replays those of another run.

    `place` says where in the run a call is made: calls are compared within a place, in their order. `canaries`, where given,
    are added to what is released (`release_canaries`).
    """

    def __init__(self, before: Recorder | None = None, canaries: Canaries | None = None) -> None:
        self.before, self.canaries = before, canaries
        self.calls: list[Call] = []
        self.problems: list[str] = []
        self.distances: list[tuple[float, GaussianSum]] = []
        #: Of noise the method adds itself: what was added to it in the replay, by the number of the call.
        self.shifts: dict[int, NumpyArray] = {}
        self.place = "before the first question"
        self._seen: Counter[tuple[str, Kind]] = Counter()
        self._inside = False

    def complain(self, problem: str) -> None:
        line = f"{self.place}: {problem}"
        if line not in self.problems:
            self.problems.append(line)

    def at(self, place: str, kind: Kind | None = None) -> list[Call]:
        return [call for call in self.calls if call.place == place and kind in (None, call.kind)]

    def recorded(self, kind: Kind, mechanism: object) -> Call | None:
        """The call of the first run that this one stands for; a complaint if there is none."""
        number = self._seen[self.place, kind]
        self._seen[self.place, kind] += 1
        if self.before is None:
            return None
        known = self.before.at(self.place, kind)
        if number >= len(known):
            self.complain(f"one more {kind} than on the neighbour: what is released depends on the records")
            return None
        if known[number].mechanism != mechanism:
            self.complain(
                f"a {kind} by another mechanism than on the neighbour: {mechanism} and {known[number].mechanism}"
            )
            return None
        return known[number]

    def close(self) -> None:
        """Complain about what the first run did and this one did not."""
        if self.before is not None:
            counts = [Counter((call.place, call.kind) for call in run.calls) for run in (self.before, self)]
            for place, kind in counts[0] - counts[1]:
                self.problems.append(
                    f"{place}: one {kind} fewer than on the neighbour: what is released depends on the records"
                )

    def open_noise(self, place: str) -> list[tuple[int, Call]]:
        """Noise drawn here that went into no `release`, with the number of its call: the method adds it itself."""
        return [
            (number, call)
            for number, call in enumerate(self.calls)
            if call.place == place and call.kind == "noise" and not call.released
        ]

    # What the hooks do.

    def noise(self, original: Callable[..., Array], mechanism: GaussianSum, *given: object, **named: object) -> Array:
        returned = original(mechanism, *given, **named)
        if self._inside or _traced(returned):
            return returned
        known = self.recorded("noise", mechanism)
        rows = _rows(returned, mechanism)
        if known is not None and not np.array_equal(known.returned, rows):
            self.complain("the same key gave other noise than on the neighbour")
        if known is not None and not known.released:  # another noise, by a known difference: was it added everywhere?
            shift = np.rint(mechanism.deviation * np.random.default_rng(len(self.calls)).standard_normal(rows.shape))
            self.shifts[len(self.calls)] = shift.astype(np.int64)
            returned = returned + self.shifts[len(self.calls)].reshape(np.shape(returned)).astype(np.int32)
        if self.canaries is not None and self.canaries.by_noise(mechanism):
            returned = returned + self.canaries.add(mechanism, rows).reshape(np.shape(returned)).astype(np.int32)
        self.calls.append(Call(place=self.place, kind="noise", mechanism=mechanism, given=None, returned=rows))
        return returned

    def release(self, original: Callable[..., Array], mechanism: GaussianSum, total: Array, noise: Array) -> Array:
        if _traced(total, noise):
            return original(mechanism, total, noise)
        whole = np.issubdtype(np.asarray(total).dtype, np.integer)
        units = np.asarray(total if whole else mechanism.on_grid(total)).astype(np.int64)
        given, added = _rows(units, mechanism), _rows(noise, mechanism)
        self._take_noise(mechanism, added)
        if self.canaries is not None and not self.canaries.by_noise(mechanism):
            units = units + self.canaries.add(mechanism, added).reshape(units.shape)
        returned = original(mechanism, jax.numpy.asarray(units.astype(np.int32)), noise)
        if not _is_sum(returned, given if self.canaries is None else _rows(units, mechanism), added, mechanism):
            self.complain("what a release returns is not its sum plus its noise")
        call = Call(place=self.place, kind="sum", mechanism=mechanism, given=given, returned=returned, noise=added)
        known = self.recorded("sum", mechanism)
        self.calls.append(call)
        if known is None:
            return returned
        self.apart(mechanism, known.given, given)
        result: Array = known.returned
        return result

    def _take_noise(self, mechanism: GaussianSum, added: Array) -> None:
        """Every row of noise must have been drawn here by the same mechanism, and is used once."""
        drawn = [call for call in self.at(self.place, "noise") if call.mechanism == mechanism]
        left = Counter(row.tobytes() for call in drawn for row in call.returned)
        left -= Counter(
            row.tobytes() for call in self.at(self.place, "sum") if call.mechanism == mechanism for row in call.noise
        )
        for row in added:
            if left[row.tobytes()] < 1:
                self.complain(
                    "a sum is released with noise that its mechanism did not draw for it, or that was used before"
                )
                return
            left[row.tobytes()] -= 1
            for call in drawn:
                call.released |= any(np.array_equal(row, other) for other in call.returned)

    def apart(self, mechanism: GaussianSum, first: Array, second: Array) -> None:
        """Compare the distance of two un-noised sums, in units of the grid, with the sensitivity."""
        gap = (first - second + WRAP // 2) % WRAP - WRAP // 2
        for row in gap.reshape(-1, mechanism.size):
            distance = float(np.sqrt((row.astype(np.float64) ** 2).sum())) * mechanism.grid
            self.distances.append((distance, mechanism))
            if distance > mechanism.sensitivity * (1 + 1e-9):
                self.complain(
                    f"neighbours differ by {distance:.6g} in what is released, and the noise covers {mechanism.sensitivity:.6g}"
                )

    def share(self, original: Callable[..., Array], shares: NoiseShares, source: Source) -> Array:
        """One site's share of the noise of a sum that is opened under masks."""
        self._inside = True
        try:
            returned = original(shares, source)
        finally:
            self._inside = False
        if _traced(returned):
            return returned
        known, rows = self.recorded("share", shares), _rows(returned, shares.mechanism)
        if known is not None and not np.array_equal(known.returned, rows):
            self.complain("the same key gave another share of the noise than on the neighbour")
        self.calls.append(Call(place=self.place, kind="share", mechanism=shares, given=None, returned=rows))
        return returned

    def opened(self, shares: NoiseShares, replied: NumpyArray, total: NumpyArray, *, drawn_at: str) -> NumpyArray:
        """What the server goes on with of a sum that an engine opened; `replied` is what the sites' replies add up to."""
        drawn = [call.returned for call in self.at(drawn_at, "share")]
        parts = np.concatenate(drawn) if drawn else np.zeros((0, shares.mechanism.size), np.int64)
        if len(parts) != shares.clients:
            self.complain(f"{len(parts)} shares of noise were drawn, by {shares.clients} sites")
        noise = parts.sum(axis=0, dtype=np.int64)
        if np.any((replied + noise - total).view(np.uint64).astype(f"uint{shares.bits}")):
            self.complain("what was opened is not the sum of the replies with one share of noise each")
        known = self.recorded("sum", shares.mechanism)
        self.calls.append(
            Call(
                place=self.place, kind="sum", mechanism=shares.mechanism, given=replied[None], returned=total[None],
                noise=noise[None], released=True, shares=shares, parts=parts,
            )
        )  # fmt: skip
        if self.canaries is not None:
            total = total + self.canaries.add_opened(shares, parts)
        if known is None:
            return total
        self.apart(shares.mechanism, known.given, replied[None])
        result: NumpyArray = known.returned[0]
        return result

    def scores_apart(self, mechanism: ExponentialMechanism, first: list[NumpyArray], second: list[NumpyArray]) -> None:
        """Compare the scores of a choice with what its mechanism allows for; what may be chosen must be the same."""
        gap = int(np.abs(first[0].astype(np.int64) - second[0].astype(np.int64)).max(initial=0))
        if gap > mechanism.sensitivity:
            self.complain(f"neighbours differ by {gap} in a score, and the choice covers {mechanism.sensitivity}")
        if not np.array_equal(first[1], second[1]):
            self.complain("what may be chosen depends on the records")

    def report(self, original: Callable[..., Array], mechanism: object, *given: object, **named: object) -> Array:
        values = [*given, *named.values()]
        if self._inside or _traced(*(value for value in values if not isinstance(value, Keyed | System))):
            return original(mechanism, *given, **named)
        self._inside = True
        try:
            returned = original(mechanism, *given, **named)
        finally:
            self._inside = False
        inputs = [np.asarray(value) for value in values if not isinstance(value, Keyed | System)]
        known = self.recorded("report", mechanism)
        if known is not None and isinstance(mechanism, ExponentialMechanism):
            self.scores_apart(mechanism, known.given, inputs)
        self.calls.append(Call(place=self.place, kind="report", mechanism=mechanism, given=inputs, returned=returned))
        return returned if known is None else known.returned

    def coins(
        self, original: Callable[..., Array], source: Source, probability: float, shape: tuple[int, ...]
    ) -> Array:
        if _traced(probability, *((source.key,) if isinstance(source, Keyed) else ())):
            return original(source, probability, shape)
        axes = (shape,) if isinstance(shape, int) else tuple(shape)
        more = self.canaries.sampled(probability) if self.canaries is not None else 0
        returned = original(source, probability, (*axes[:-1], axes[-1] + more))
        if self.canaries is not None and more:
            self.canaries.draw(np.asarray(returned)[..., axes[-1] :])
            returned = returned[..., : axes[-1]]
        given = (float(probability), axes)
        known = self.recorded("coins", None)
        if known is not None and known.given != given:
            self.complain(f"records are sampled with {given}, on the neighbour with {known.given}")
        self.calls.append(Call(place=self.place, kind="coins", mechanism=None, given=given, returned=returned))
        return returned


@contextlib.contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
    """Make the primitives report to the recorder, and restore them afterwards."""
    hooks: list[tuple[type, str, Callable[..., Array]]] = [
        (GaussianSum, "noise", recorder.noise), (GaussianSum, "release", recorder.release),
        (NoiseShares, "draw", recorder.share),
        (Keyed, "coins", recorder.coins), (System, "coins", recorder.coins),
        *((kind, "apply", recorder.report) for kind in RANDOMIZERS),
    ]  # fmt: skip
    originals = [(kind, name, kind.__dict__[name]) for kind, name, _ in hooks]
    try:
        for (kind, name, hook), (_, _, original) in zip(hooks, originals, strict=True):
            setattr(kind, name, _method(original, hook))
        yield recorder
    finally:
        for kind, name, original in originals:
            setattr(kind, name, original)


def _method(original: Callable[..., Array], hook: Callable[..., Array]) -> Callable[..., Array]:
    @functools.wraps(original)
    def call(self: object, *given: object, **named: object) -> Array:
        return hook(original, self, *given, **named)

    return call


def _traced(*values: object) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for value in values for leaf in jax.tree.leaves(value))


def _rows(numbers: Array, mechanism: GaussianSum) -> NumpyArray:
    return np.asarray(numbers).astype(np.int64).reshape(-1, mechanism.size)


def _is_sum(returned: Array, given: Array, noise: Array, mechanism: GaussianSum) -> bool:
    """Whether a release is the sum plus the noise, modulo 2^32, up to the digits of a 32-bit float."""
    whole = (given + noise + WRAP // 2) % WRAP - WRAP // 2
    return np.allclose(
        np.asarray(returned, np.float64).reshape(whole.shape), whole * mechanism.grid, rtol=2**-22, atol=0
    )
