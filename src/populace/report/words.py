"""The privacy statement in plain words, for somebody who answers for the data and not for the mathematics."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from populace.privacy.guarantee import best_guess

PRIORS = (0.01, 0.1, 0.5)
UNITS = {"client": "everything that one participant holds", "record": "each single record"}
QUESTIONS = {
    "replace": "which of two contents somebody's data have (ill or well, this salary or that one)",
    "add-remove": "whether somebody's data were used at all",
}
SEERS = {
    "local": "everything that ever left the participants, not only the synthetic data",
    "secure-sum": "the noisy sums the server saw, and the synthetic data",
    "central": "the synthetic data and the model behind them",
}
TRUST = {
    "local": "Nobody. Each participant adds the noise before anything leaves; a server that is curious, hacked or compelled "
    "learns no more than the bound allows.",
    "secure-sum": "The secure sum: that the participants' shares are added up as agreed, so that the server sees sums only.",
    "central": "The server. It sees what participants send before noise is added, and is trusted to add the noise and to keep "
    "the rest to itself.",
    "not-private": "Everybody who touches the data: there is no protection.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plain:
    """Answers to the questions a data-protection officer asks."""

    private: bool
    short: str
    alarm: str
    answers: tuple[tuple[str, str], ...]
    beliefs: tuple[tuple[str, str], ...]


def in_plain_words(privacy: Mapping[str, Any]) -> Plain:
    """Plain words for a privacy.json. Bounds are exact; the words for how strong they are, are ours."""
    epsilon, delta = float(privacy["epsilon"]), float(privacy["delta"])
    claimed = math.isfinite(epsilon) and privacy["trust"] != "not-private"
    seeded = not str(privacy.get("randomness", "")).startswith("keyed from")
    if not claimed:
        short = "NOT PRIVATE. " + _sentence(privacy.get("reason") or "This run makes no promise about anybody")
        answers = [("What is protected?", "Nothing."), ("Who has to be trusted?", TRUST["not-private"])]
        return Plain(
            private=False, short=short, alarm="NOT PRIVATE: a baseline without protection.",
            answers=(*answers, *_limits(privacy, seeded)), beliefs=(),
        )  # fmt: skip
    right = best_guess(epsilon, delta)
    seen = SEERS.get(privacy["trust"], "what was released")
    unit = UNITS[privacy["unit"]]
    how_well = (
        f"Suppose somebody sees {seen}, knows all other data in full, and has to tell {QUESTIONS[privacy['neighbours']]}. "
        f"A coin is right half the time; they are right at most {certain(right)} of the time, however clever they are. "
        + _strength(epsilon)
    )
    guess = f"a yes-or-no guess about it is right at most {certain(right)} of the time (a coin: 50 %)"
    short = f"The method protects {unit}: {guess}."
    if seeded:
        short = (
            "NOT PRIVATE AS IT STANDS: this run was made from a known seed, so that it can be repeated, and whoever knows the "
            "seed can take the noise off again. Without a seed: " + short[0].lower() + short[1:]
        )
    answers = [
        ("What is protected?", _sentence(unit)),
        ("How well?", how_well),
        ("Who has to be trusted?", TRUST[privacy["trust"]]),
        *_limits(privacy, seeded),
    ]
    alarm = "NOT PRIVATE AS IT STANDS: made from a known seed, to be repeatable." if seeded else ""
    beliefs = _beliefs(epsilon, delta)
    return Plain(private=not seeded, short=short, alarm=alarm, answers=tuple(answers), beliefs=beliefs)


def _beliefs(epsilon: float, delta: float) -> tuple[tuple[str, str], ...]:
    """Belief before -> at most after; stated for a pure bound only, where it is exact."""
    if delta:
        return ()
    return tuple((certain(p), certain(1 / (1 + (1 - p) / p * math.exp(-epsilon)))) for p in PRIORS)


def certain(share: float) -> str:
    """A probability, rounded up, so that the words never promise more than the bound."""
    if share > 0.9999:
        return "practically 100 %" if share < 1 else "100 %"
    digits = 1 if share < 0.99 else 2
    scale = 10 ** (digits + 2)
    value = math.ceil(share * scale - 1e-9) / scale * 100
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") + " %"


def _strength(epsilon: float) -> str:
    if epsilon <= 1:
        return "That is a strong promise."
    if epsilon <= 4:
        return "That is a middling promise, and it holds in the worst case."
    return "In the worst case that is a weak promise; how much leaks in practice is what audits and attacks look at."


def _limits(privacy: Mapping[str, Any], seeded: bool) -> list[tuple[str, str]]:
    limits = []
    if privacy.get("domains"):
        names = ", ".join(privacy["domains"])
        limits.append(
            f"The lists of possible values of {names} were read from the data themselves; a rare value in such a list can give "
            "somebody away. Declare them in a schema to cover them."
        )
    if privacy.get("delta"):
        limits.append(f"The bound has a slack of {privacy['delta']:g}: roughly, with that probability it may fail.")
    if any("simulated" in line for line in privacy.get("assumptions", ())):
        limits.append(
            "This run was simulated on one machine that held all records; the trust named is that of a deployment."
        )
    if seeded:
        limits.append("The noise was drawn from a seed: keep the seed secret, or run without one.")
    if privacy.get("neighbours") != "add-remove":
        limits.append("Who took part, and how many did, is public.")
    limits.append("Statements about groups or the whole population are what the data are for; they are not protected.")
    return [
        ("What is not covered?", " ".join(limits)),
        (
            "May this page be published?",
            "No. Its figures are computed on real rows without noise. Keep it with the data; publish the synthetic rows and "
            "the privacy statement.",
        ),
    ]  # fmt: skip


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
