"""The privacy statement in plain words, for somebody who answers for the data and not for the mathematics."""

from __future__ import annotations

import dataclasses
import math

from populace.border.models import interpreting
from populace.privacy import events
from populace.privacy.consequences import Consequences, consequences, share_in_words, silos_of
from populace.privacy.guarantee import Guarantee, guarantee_from_json
from populace.types import JsonObject

PRIORS = (0.01, 0.1, 0.5)
READ = (
    "These figures are about what was released with noise. The lists of possible values were copied from the records without "
    "noise: whoever holds a rare or extreme value can be recognised by them with certainty."
)
SEERS = {
    "local": "every message of this run that left the devices, not only the synthetic data",
    "silo": "every message of this run that left the silos, not only the synthetic data",
    "secure-sum": "the noisy sums the server saw, and the synthetic data",
    "central": "the synthetic data and the model behind them",
}
TRUST = {
    "local": "Nobody but one's own device. Each device randomises its answer before anything leaves; a server that is curious, "
    "hacked or compelled learns no more from the messages of this run than the bound allows; further runs add.",
    "silo": "Whoever already holds the records: the silo adds the noise before anything leaves. Nobody else: the server and "
    "the other silos learn no more from the messages of this run than the bound allows, even if they are curious, hacked or "
    "compelled; further runs add.",
    "secure-sum": "The silo with its own records, and that no more silos than stated work together with the server, which "
    "sees noisy sums only.",
    "central": "The server. It sees what is sent before noise is added, and is trusted to add the noise and to keep the rest "
    "to itself.",
    "not-private": "Everybody who touches the data: there is no protection.",
}


ONE_HOLDER = (
    "Whoever holds the records: they ran the method and added the noise themselves, before anything was released. Nobody else: "
    "whoever gets what was released learns no more from it than the bound allows; further runs add."
)


#: Of a run on one machine, with noise that nobody can draw again.
PUBLISHED = (
    "Towards everybody else, who gets only what is published from there, the bound holds as stated; what differs from a "
    "deployment is that somebody had all records in one place."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plain:
    """Answers to the questions a data-protection officer asks."""

    private: bool
    short: str
    alarm: str
    answers: tuple[tuple[str, str], ...]
    beliefs: tuple[tuple[str, str], ...]


def in_plain_language(privacy: JsonObject) -> Plain:
    """Plain words for a privacy.json. Bounds follow from the relation between neighbours; the words for how strong they are,
    are ours."""
    claim = guarantee_from_json(dict(privacy))
    with interpreting("the event in the run's privacy.json"):
        event = events.from_json(privacy["event"]) if privacy.get("event") else None
    meaning = consequences(claim, event, silos=silos_of(privacy.get("run")))
    if meaning is None or claim.trust == "not-private":
        short = "NOT PRIVATE. " + _sentence(claim.reason or "This run makes no promise about anybody")
        answers = [("What is protected?", "Nothing."), ("Who has to be trusted?", TRUST["not-private"])]
        return Plain(
            private=False, short=short, alarm="NOT PRIVATE: a baseline without protection.",
            answers=(*answers, *_limits(claim)), beliefs=(),
        )  # fmt: skip
    unit = claim.unit_in_words
    guess = (
        f"a guess between two contents of it that were equally likely before is right at most "
        f"{share_in_words(meaning.content)} of the time (a coin: 50 %)"
    )
    short = f"The method protects {unit}: {guess}."
    if claim.seeded:
        short = (
            "NOT PRIVATE AS IT STANDS: this run was made from a known seed, so that it can be repeated, and whoever knows the "
            "seed can take the noise off again. Without a seed: " + short[0].lower() + short[1:]
        )
    answers = [
        ("What is protected?", _sentence(unit)),
        ("How well?", _how_well(claim, meaning)),
        ("Is somebody in the data more than once?", _repeated(claim, meaning)),
        ("Who has to be trusted?", trust_of(claim)),
        *_limits(claim, meaning),
    ]
    alarm = "NOT PRIVATE AS IT STANDS: made from a known seed, to be repeatable." if claim.seeded else ""
    return Plain(private=not claim.seeded, short=short, alarm=alarm, answers=tuple(answers), beliefs=_beliefs(meaning))


def trust_of(claim: Guarantee) -> str:
    """Who has to be trusted in this run, and, where it was simulated, in a deployment of the same method."""
    if claim.sole_holder:
        return ONE_HOLDER
    if not claim.one_machine or claim.trust == "not-private":
        return TRUST[claim.trust]
    who = (
        "whoever ran it, and the machine, which held all records"
        if claim.simulated
        else "whoever has the machine, which held all sites and all records"
    )
    towards = "The bound is about what was published from there." if claim.seeded else PUBLISHED
    return (
        f"In this run: {who}. {towards} In a deployment of the same method, which this run was not: "
        f"{TRUST[claim.trust][:1].lower()}{TRUST[claim.trust][1:]}"
    )


def _seen(claim: Guarantee) -> str:
    seen = SEERS["central" if claim.sole_holder else claim.trust]
    return seen.replace("left the", "left the simulated") if claim.simulated else seen


def _how_well(claim: Guarantee, meaning: Consequences) -> str:
    """What the best attacker can do, about contents and, where it is not public, about presence."""
    said = [f"Suppose somebody sees {_seen(claim)}, and knows all other data in full."]
    if meaning.presence is not None:
        said.append(
            f"Whether {claim.unit_in_words} was used at all, or its place left empty, both held for equally likely "
            f"before, they tell correctly at most {share_in_words(meaning.presence)} of the time."
        )
    said.append(
        f"Which of two contents {claim.unit_in_words} has (ill or well, this salary or that one), both held for equally likely "
        "before, they tell "
        f"correctly at most {share_in_words(meaning.content)} of the time; a coin is right half the time."
    )
    if beliefs := _beliefs(meaning):
        (first, after), (second, later) = beliefs[:2]
        said.append(
            f"Who held one of them for {first} likely before comes to hold it for at most {after} likely, who held it for "
            f"{second} likely for at most {later}."
        )
    if claim.read_from_data:
        said.append(READ)
    return " ".join(said)


def _repeated(claim: Guarantee, meaning: Consequences) -> str:
    if claim.unit == "person" and not meaning.groups:
        return f"That makes no difference: the bound is for {claim.unit_in_words}."
    losses = "; ".join(f"with {k}: {meaning.pair(epsilon, delta)}" for k, epsilon, delta in meaning.groups)
    several = "rows are at several silos" if claim.unit == "person" else "data are in several of them"
    return (
        f"The bound is for {claim.unit_in_words}. A person whose {several} has a weaker one ({losses}, where "
        f"one has {meaning.pair(claim.epsilon, claim.delta)})."
    )


def _beliefs(meaning: Consequences) -> tuple[tuple[str, str], ...]:
    """Belief in one of two contents before -> at most after; stated for a pure bound only, where it is exact."""
    if meaning.content_delta:
        return ()
    factor = math.exp(-meaning.content_epsilon)
    return tuple((share_in_words(p), share_in_words(1 / (1 + (1 - p) / p * factor))) for p in PRIORS)


def _limits(claim: Guarantee, meaning: Consequences | None = None) -> list[tuple[str, str]]:
    limits = []
    if claim.read_from_data:
        limits.append(
            f"The lists of possible values of {', '.join(claim.read_from_data)} were read from the data themselves; a rare "
            "value in such a list can give somebody away. Declare them in a schema to cover them."
        )
    limits += [f"{_sentence(name)[:-1]} was read from the data themselves." for name in claim.counts_read]
    if claim.delta:
        limits.append(f"The bound has a slack, delta {claim.delta:.3g}: roughly, with that probability it may fail.")
    if meaning is not None and meaning.expected_failures is not None:
        limits.append(f"Over {claim.units:,} units that is at most {meaning.expected_failures:.2g} on average.")
    if claim.one_machine:
        how = "simulated" if claim.simulated else "a rehearsal"
        limits.append(
            f"This run was {how}: nothing protects from the machine that held all records, or from who ran it."
        )
    if claim.seeded:
        limits.append("The noise was drawn from a seed: keep the seed secret, or run without one.")
    if claim.neighbours == "zero-out":
        limits.append(
            "How many rows there are is public; how many persons they belong to is covered by the bound."
            if claim.unit == "person"
            else "How many there are is public."
        )
    if claim.neighbours == "replace":
        limits.append("Who took part, and how many did, is public.")
    limits.append(
        "Other runs on the same data add up, and choosing the best of several by looking at real rows is not covered."
    )
    limits.append("Statements about groups or the whole population are what the data are for; they are not protected.")
    return [
        ("What is not covered?", " ".join(limits)),
        (
            "May this page be published?",
            "No. Its figures are computed on real rows without noise. Keep it with the data; publish the synthetic rows and "
            "the privacy statement (privacy.html).",
        ),
    ]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
