"""Frequency oracles of pure-ldp and multi-freq-ldpy: perturb, count and estimate, one user after the other, as they do."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def multi_freq_ldpy(name: str, epsilon: float, size: int, values: list[int]) -> Callable[[], Any] | None:
    modules = {"grr": "GRR", "oue": "UE", "sue": "UE", "olh": "LH", "subset": "SS"}
    if name not in modules:
        return None
    prefix = modules[name]
    module = importlib.import_module(f"multi_freq_ldpy.pure_frequency_oracles.{prefix}")
    client, server = getattr(module, f"{prefix}_Client"), getattr(module, f"{prefix}_Aggregator_MI")
    if prefix == "UE":
        optimal = name == "oue"
        return lambda: server([client(value, size, epsilon, optimal) for value in values], epsilon, optimal)
    return lambda: server([client(value, size, epsilon) for value in values], size, epsilon)


def pure_ldp(name: str, epsilon: float, size: int, values: list[int]) -> Callable[[], Any] | None:
    kinds: dict[str, tuple[str, dict[str, bool]]] = {
        "grr": ("DE", {}),
        "oue": ("UE", {"use_oue": True}),
        "sue": ("UE", {"use_oue": False}),
        "olh": ("LH", {"use_olh": True}),
    }
    if name not in kinds:
        return None
    module = importlib.import_module("pure_ldp.frequency_oracles")
    prefix, options = kinds[name]

    def work() -> Any:
        client = getattr(module, f"{prefix}Client")(epsilon, size, **options)
        server = getattr(module, f"{prefix}Server")(epsilon, size, **options)
        for value in values:
            server.aggregate(client.privatise(value + 1))
        return server.estimate_all(range(1, size + 1), suppress_warnings=True)

    return work
