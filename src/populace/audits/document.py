"""audit.json: bounds beside claims, what the recorder saw, and what neither shows."""

from __future__ import annotations

from populace.audits.methods import Audits
from populace.runs.run import versions
from populace.types import JsonObject

NOTES = (
    "each bound holds at its confidence: the pair of inputs and the event were chosen on other samples than those counted",
    "a bound below the claim does not prove the claim: other inputs and events were not counted, and an epsilon that is spread "
    "over many parts of a message shows in few samples only",
    "flagged means refuted: the bound at confidence 1 - 1e-6 exceeds the claim; a bound at a lower confidence may exceed a "
    "tight claim by chance",
)
CANARIES = (
    "canaries: one run, each in or out by a fair coin of its own; the claim is what the same releases promise at the smaller "
    "delta named, where one run can be sure to 1 - 1e-6",
    "scale and `as Gaussian`: bounds on noise that is Gaussian, of unknown scale; whether it is Gaussian is tested apart",
)
SHARES = (
    "secure sums: the noise in what is opened is judged to the world, which knows nobody's share, and to a coalition, which "
    "knows its own, among the fewest survivors; the masks themselves are tested elsewhere",
)
RECORDED = (
    "recorded: run on neighbouring data sets with the same randomness and every release held fixed; flagged if un-noised sums "
    "differ by more than the noise covers, if anything else that leaves differs, or if noise or sampling are not as booked",
)


def document(found: Audits, claimed: JsonObject, *, command: str = "") -> JsonObject:
    """The content of audit.json."""
    rows = [finding.row() for finding in found.findings]
    recorded = [each.row() for each in found.recorded]
    special = any("canaries" in row["what"] or "Gaussian" in row["event"] for row in rows)
    shared = any(row.get("trust") == "secure-sum" for row in recorded)
    return {
        "claimed": claimed,
        "rows": rows,
        "recorded": recorded,
        "flagged": any(row["flagged"] for row in (*rows, *recorded)),
        "notes": [*NOTES, *(CANARIES if special else ()), *(SHARES if shared else ()), *(RECORDED if recorded else ())],
        "command": command,
        "versions": versions(),
    }
