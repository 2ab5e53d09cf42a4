"""What epsilon means, for the person who answers and for the organiser: sentences whose figures follow from the bound."""

from __future__ import annotations

import math

from populace.privacy.consequences import share_in_words
from populace.privacy.guarantee import best_guess, upwards

PRIORS = (0.1, 0.5)
WEAK = 6.0  # above it little is promised


def epsilon_in_words(epsilon: float, *, open_to_all: bool) -> list[str]:
    """Sentences about one answer; every figure is rounded against the statement."""
    guess = share_in_words(best_guess(epsilon, 0.0))
    low, even = (share_in_words(belief_after(prior, epsilon)) for prior in PRIORS)
    sentences = [
        "Your device changes your answer by chance before it is sent. Nobody ever receives what you typed.",
        f"Whoever sees what was sent, and would have to choose between two records you might have, is right at most {guess} of "
        "the time; tossing a coin is right 50 %.",
        f"Somebody who believes something about you with 10 % certainty believes it with at most {low} after your answer; with "
        f"50 %, at most {even}.",
        f"In the language of the field: {upwards(epsilon)}-local differential privacy for everything in your record. It holds "
        "whatever anybody knows, or learns later.",
        "That you take part is not hidden, nor when, nor from which network.",
    ]
    if open_to_all:
        sentences.append(
            "This study is open: one person may send several answers, from several browsers or devices, and k answers have k "
            "times epsilon. All figures here are for one answer; answer once."
        )
    return sentences


def weak_in_words(epsilon: float) -> list[str]:
    """A warning to the organiser, where an answer may tell almost everything."""
    if epsilon <= WEAK:
        return []
    even = share_in_words(belief_after(0.5, epsilon))
    return [
        f"careful: epsilon {upwards(epsilon)} is weak: one answer may turn an even guess about a person into one of {even}; "
        "2 to 4 is usual for such questions"
    ]


def belief_after(prior: float, epsilon: float) -> float:
    """The most that a belief can become by one answer: the odds grow by at most e^epsilon."""
    weight = prior * math.exp(min(epsilon, 700.0))
    return weight / (weight + 1 - prior)
