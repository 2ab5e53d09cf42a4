"""Targets with faults in them: the harness must find each."""

from __future__ import annotations

import ctypes
import os
import random
import time

from fuzz.target import Input, Target
from populace.errors import InputError


def _nothing(_: object) -> None:
    return None


def _draw(_: None, rng: random.Random) -> Input:
    return {"number": rng.randrange(100)}


def _target(name: str, act) -> Target:
    """A reader that is right for nine numbers of ten."""

    def run(_: None, case: Input) -> None:
        if case["number"] % 10 == 3:
            act()
        elif case["number"] % 2:
            raise InputError("expected an even number, got an odd one")

    return Target(name=f"planted-{name}", prepare=_nothing, draw=_draw, run=run, cost=1.0)


def _key_error() -> None:
    {}["nothing"]


def _busy() -> None:
    while True:
        pass


def _blocked() -> None:
    time.sleep(10_000)


def _crash() -> None:
    ctypes.string_at(0)


def _exit() -> None:
    os._exit(0)


def _memory() -> None:
    bytearray(700 * 2**20)[::4096]


class SaladError(InputError):
    """An error that makes its own text, and does it badly."""

    def __str__(self) -> str:
        return "first\nsecond\nthird"


def _salad() -> None:
    raise SaladError


def _silent() -> None:
    raise InputError("")


def _recursion() -> None:
    _recursion()


FAULTS = {
    "key-error": _key_error, "busy": _busy, "blocked": _blocked, "crash": _crash, "exit": _exit, "memory": _memory,
    "salad": _salad,
    "silent": _silent, "recursion": _recursion, "nothing": lambda: None,
}  # fmt: skip
TARGETS: tuple[Target, ...] = tuple(_target(name, act) for name, act in FAULTS.items())
