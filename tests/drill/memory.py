"""How much memory the long-lived processes of a drill take, and whether that stays bounded."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable

import psutil

SECONDS_BETWEEN_LOOKS = 5.0
SECONDS_TO_SETTLE = 120.0
MOST = 1_500 * 2**20
GROWTH, MORE = 1.5, 150 * 2**20  # what a process may take beyond what it took once it had settled


@dataclasses.dataclass
class Track:
    """One process: when it was first seen, what it took once settled, last and at most."""

    began: float
    settled: int = 0
    last: int = 0
    most: int = 0


class Memory:
    """Resident bytes of processes by name and number, sampled now and then."""

    def __init__(self) -> None:
        self.tracks: dict[tuple[str, int], Track] = {}
        self._due = 0.0

    def look(self, members: Iterable[tuple[str, psutil.Process]]) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + SECONDS_BETWEEN_LOOKS
        for name, process in members:
            with contextlib.suppress(psutil.Error):
                self.note(name, process.pid, process.memory_info().rss, now)

    def note(self, name: str, pid: int, resident: int, now: float) -> None:
        track = self.tracks.setdefault((name, pid), Track(began=now))
        track.last, track.most = resident, max(track.most, resident)
        if not track.settled and now - track.began >= SECONDS_TO_SETTLE:
            track.settled = resident

    def check(self) -> list[str]:
        found = []
        for (name, _), track in self.tracks.items():
            if track.most > MOST:
                found.append(f"{name} took {track.most / 2**20:.0f} MB")
            if track.settled and track.last > GROWTH * track.settled + MORE:
                found.append(f"{name} grew from {track.settled / 2**20:.0f} to {track.last / 2**20:.0f} MB")
        return found

    def most(self) -> dict[str, float]:
        """Megabytes at most, by name."""
        found: dict[str, float] = {}
        for (name, _), track in self.tracks.items():
            found[name] = max(found.get(name, 0.0), round(track.most / 2**20, 1))
        return found
