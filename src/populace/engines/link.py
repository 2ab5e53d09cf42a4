"""What carries requests to sites and brings replies back: two methods. A link knows sites and bytes, nothing else.

Partial results are the normal case: a site that is away, refuses or sends garbage is absent from the round.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping

from populace.errors import PopulaceError, RunError

#: Given the sites that are silent so far, those that are still worth waiting for.
Still = Callable[[frozenset[str]], frozenset[str]]


class LinkClosedError(PopulaceError):
    """The link closed during an exchange; nothing of the round is absorbed."""


class QuorumError(RunError):
    """Too few replies came for a round to be absorbed; the same round can be asked again later."""


class Link(abc.ABC):
    """A transport that carries requests to sites and brings their replies back."""

    @abc.abstractmethod
    def sites(self) -> list[str]:
        """The sites that can be asked now."""

    @abc.abstractmethod
    def exchange(self, asks: Mapping[str, bytes], timeout: float) -> dict[str, bytes]:
        """Send each site its request, and return what came back within `timeout` seconds. Missing replies are normal."""

    def while_waiting(self, still: Still) -> None:
        """Have `still` called during exchanges with the sites that are silent so far: those it returns are waited for.

        A link that never waits has no use for it.
        """
        del still

    def accepted(self, run: str, replies: Mapping[str, int]) -> None:
        """Note how many replies of each site a run has absorbed so far; called before the next request is sent."""
        del run, replies


class InProcess(Link):
    """A link to sites in this process, asked one after the other."""

    def __init__(self, sites: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self._sites = sites

    def sites(self) -> list[str]:
        return list(self._sites)

    def exchange(self, asks: Mapping[str, bytes], timeout: float) -> dict[str, bytes]:
        del timeout
        return {site: self._sites[site](ask) for site, ask in asks.items() if site in self._sites}
