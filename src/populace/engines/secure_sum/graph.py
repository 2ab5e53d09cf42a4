"""A sparse graph of masks: each client has masks, and shares its secrets, with few neighbours instead of all others.

Bell, Bonawitz, Gascon, Lepoint and Raykova 2020 ("Secure single-server aggregation with (poly)logarithmic overhead"), the form
for a coordinator that follows the protocol. Clients stand in a circle in a uniformly random order; each has the k/2 next ones
on either side for its neighbours (a Harary graph with shuffled vertices). Of n clients up to c collude with the coordinator and
up to d are missing. Three things must not happen, and how probable they are is computed, not guessed:

(a) *The honest clients who are left fall apart*: then the coordinator would learn the sum of each part. Of a circle in which
    r = c + d clients are out, those left are in one piece if and only if at most one gap is k/2 or longer (`falls_apart`).
(b) *A client's neighbours hold t shares for the coordinator*: colluders among the k neighbours are hypergeometric, and the
    tails of all honest clients are added.
(c) *Fewer than t neighbours are left to give a client's secret back*: the same tail, of those missing. That loses the sum,
    and tells nobody anything.

Guarantee: with (a) and (b) at most `secrecy` in all, a coordinator that follows the protocol learns with up to c clients, in
one sum, the sum of the honest survivors' numbers and nothing else, but for that probability (it belongs into delta, once for
every sum) and for what the cryptography is worth. The draw has to be independent of who colludes and of who is missing.
Edge cases: a client also keeps one share of its own secrets; the computation does without it. A coordinator that *lies* is
outside of it. Who chooses the order, or tells clients different things about who is missing, can take all masks off one client.
Masks between all sites (`SumRoster`) are for that.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import secrets
from collections.abc import Sequence
from fractions import Fraction

from populace.errors import out_of_range

SECRECY = 2.0**-40  # at most, in one sum: that more than the sum is learnt
CORRECTNESS = 2.0**-20  # at most, in one sum: that it is lost, with no more missing than allowed for
LEAST_SHARE = 0.1  # of all clients that a graph allows for, as colluders and as missing, where a claim says fewer


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskGraph:
    """The public numbers of a graph: `clients` in a circle, `degree` neighbours each, `threshold` of whom open a secret."""

    clients: int
    degree: int
    threshold: int

    def __post_init__(self) -> None:
        if self.degree % 2 or not 2 <= self.degree < self.clients - 1:
            raise out_of_range("the degree of a graph of masks", f"even and in 2 to {self.clients - 2}", self.degree)
        if not 1 <= self.threshold <= self.degree:
            raise out_of_range("threshold", f"in 1 to the number of neighbours, {self.degree}", self.threshold)

    def leaks(self, *, colluders: int, dropouts: int) -> float:
        """The probability, at most, that more than the sum can be learnt: (a) and (b)."""
        told = tails(others=self.clients - 1, marked=colluders, drawn=self.degree)[self.threshold]
        apart = falls_apart(clients=self.clients, out=colluders + dropouts, degree=self.degree)
        return min(1.0, (self.clients - colluders) * told + apart)

    def fails(self, *, dropouts: int) -> float:
        """The probability, at most, that some client's secret cannot be given back: (c)."""
        gone = tails(others=self.clients - 1, marked=dropouts, drawn=self.degree)
        return min(1.0, self.clients * gone[self.degree - self.threshold + 1])

    def neighbours(self, order: Sequence[int]) -> dict[int, frozenset[int]]:
        """The neighbours of every client, where they stand in this order."""
        reach = range(1, self.degree // 2 + 1)
        return {
            client: frozenset(order[(place + side * far) % self.clients] for far in reach for side in (1, -1))
            for place, client in enumerate(order)
        }


def drawn_order(clients: int) -> tuple[int, ...]:
    """A uniformly random order of so many clients, from the operating system's generator."""
    order = list(range(clients))
    secrets.SystemRandom().shuffle(order)
    return tuple(order)


def falls_apart(*, clients: int, out: int, degree: int) -> float:
    """The probability, at most, that those left of a circle are not in one piece, where up to `out` clients are out.

    Let h = degree / 2. With two gaps of h or more, there are two windows of h places that are all out and do not overlap. That
    event can only become more probable the more are out, so the most that can be out are counted. It means two long gaps, or
    one of 2 h. The m gaps are a uniform draw among the ways of writing r as a sum of m numbers; two given ones are both long,
    or a given one doubly so, with the probability that 2 h given others of all clients are out: the product below. There are
    m (m - 1) / 2 such pairs and m single gaps.
    """
    left = max(clients - out, 0)
    every = math.prod(Fraction(out - i, clients - 1 - i) for i in range(min(degree, clients - 1)))
    return float(min(1, every * left * (left + 1) / 2))


def tails(*, others: int, marked: int, drawn: int) -> list[float]:
    """The hypergeometric tails: the probability of at least 0, 1, .. `drawn` marked ones among so many drawn of `others`."""
    terms = [math.comb(marked, hits) * math.comb(others - marked, drawn - hits) for hits in range(drawn + 1)]
    whole, total = math.comb(others, drawn), 0
    found = []
    for term in reversed(terms):
        total += term
        found.append(float(Fraction(total, whole)))
    return found[::-1]


@functools.lru_cache(maxsize=64)
def graph_for(
    *, clients: int, colluders: int, dropouts: int, secrecy: float = SECRECY, correctness: float = CORRECTNESS
) -> MaskGraph | None:
    """The graph with the fewest neighbours whose failures are at most as probable as told; None where it would have to have
    masks between all."""
    if min(colluders, dropouts) < 0 or colluders + dropouts >= clients:
        raise out_of_range("colluders and dropouts", f"at least 0 and together below {clients}", (colluders, dropouts))
    for degree in range(2, clients - 1, 2):
        apart = falls_apart(clients=clients, out=colluders + dropouts, degree=degree)
        told = tails(others=clients - 1, marked=colluders, drawn=degree)
        allowed = (secrecy - apart) / (clients - colluders)
        threshold = next((least for least in range(1, degree + 1) if told[least] <= allowed), None)
        if apart > secrecy or threshold is None:
            continue
        graph = MaskGraph(clients=clients, degree=degree, threshold=threshold)
        if graph.fails(dropouts=dropouts) <= correctness:
            return graph
    return None


def graph_of_claim(*, clients: int, colluders: int, dropouts: int) -> MaskGraph | None:
    """The graph for a claim, with room: at least `LEAST_SHARE` of all may collude and as many be missing.

    A claim without colluders would allow for a ring, in which the two neighbours of a client hold all that hides it.
    """
    least = math.ceil(LEAST_SHARE * clients)
    return graph_for(clients=clients, colluders=max(colluders, least), dropouts=max(dropouts, least))
