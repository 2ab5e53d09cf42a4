"""What a run cost: bits per client and direction, and wall time, as counted by the engine."""

from __future__ import annotations

import math
from collections.abc import Sequence

from populace.types import JsonObject

PHASES = ("reading", "training", "sampling")
COUNTED = "counted, not estimated: no interval"
MEASURED_ONCE = "measured once, on one machine: no interval; evaluate runs with other seeds together for one"


def cost(details: JsonObject, sizes: Sequence[int]) -> JsonObject:
    """Traffic and time of a run (its run.json), beside what sending the record itself would take."""
    traffic, clients = details.get("traffic"), details.get("clients")
    document: JsonObject = {"traffic": {"left_out": "run.json holds no traffic"}, "time": _time(details)}
    if traffic and clients:
        document["traffic"] = {
            "bits_from_one_client": 8 * traffic["bytes_from_clients"] / clients,
            "bits_to_one_client": 8 * traffic["bytes_to_clients"] / clients,
            "messages": traffic["messages"],
            "messages_per_client": traffic["messages"] / clients,
            "clients": clients,
            "rounds": details.get("rounds"),
            "interval": COUNTED,
        }
        if sizes:
            document["traffic"]["baseline: one record itself, packed"] = sum(math.ceil(math.log2(k)) for k in sizes)
    return document


def _time(details: JsonObject) -> JsonObject:
    seconds = details.get("seconds") or {}
    if "total" not in seconds:
        return {"left_out": "run.json holds no times"}
    if not set(PHASES) <= set(seconds):
        seconds = {"total": seconds["total"]}
    return {**{f"seconds_{name}": value for name, value in seconds.items()}, "interval": MEASURED_ONCE}
