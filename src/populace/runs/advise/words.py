"""An advice in words that fit 80 columns, for somebody who answers for the data."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Iterator

from populace.runs.advise.advice import Advice, Alternative, Expected, Improvement
from populace.runs.advise.expectations import Figure, Measured

WIDTH, LABEL = 80, 16
#: Short names for the heads of columns, and what they mean.
HEADS = {
    "two_way": "2-way TVD", "auc_boosting": "AUC boosting", "auc_logistic": "AUC logistic", "worst_ks": "worst KS",
    "correlation_error": "corr. error", "cnn": "CNN", "mlp": "MLP",
}  # fmt: skip
MEANINGS = {
    "two_way": "2-way TVD: mean total variation distance of all pairs of columns (0 is perfect)",
    "auc_boosting": "AUC: of gradient boosting trained on synthetic rows, tested on real ones",
    "auc_logistic": "AUC: of logistic regression trained on synthetic rows, tested on real ones",
    "worst_ks": "worst KS: greatest distance of distribution functions over columns of numbers",
    "correlation_error": "corr. error: mean absolute error of correlations of numbers",
    "cnn": "CNN, MLP: share of real test images classified correctly after training on synthetic ones",
    "mlp": "CNN, MLP: share of real test images classified correctly after training on synthetic ones",
}
UNITS = {"record": "one record", "person": "one person with all their rows at a silo", "client": "one client"}
FAR = {"rows": "number of rows", "columns": "number of columns", "epsilon": "epsilon", "clients": "number of silos"}


def in_words(advice: Advice) -> str:
    """The whole advice, paragraph by paragraph."""
    lines = [
        *_labelled("Recommendation", _headline(advice)),
        *_labelled("Why", _why(advice)),
        *_labelled("Who is trusted", _trusted(advice)),
        *(line for fact in advice.situation.facts for line in _labelled("Known", fact)),
        "",
        *_expectation(advice),
        "",
        "The next two" + ("" if advice.others else ": no other method works here"),
        *(line for other in advice.others for line in _bullet(_other(advice, other))),
        "",
        "What would do better",
        *_better(advice),
        "",
        "Next",
        *(line for number, command in enumerate(advice.commands) for line in _command(command, first=number == 0)),
        *_first_try(advice),
    ]
    return "\n".join(lines)


def _first_try(advice: Advice) -> Iterator[str]:
    if advice.rehearsal:
        yield "  to try the candidates first, on invented or public rows:"
        yield from _command(advice.rehearsal)


def _command(command: str, *, first: bool = True) -> Iterator[str]:
    """A command, broken so that it can still be pasted; a second one is that of real sites."""
    if not first:
        yield "  or, with every silo at its own place:"
    whole = re.sub(r"(--\S+) (?!--)", "\\1\0", command)  # an option and its value stay on one line
    lines = textwrap.wrap(whole, WIDTH - 8, break_long_words=False, break_on_hyphens=False)
    for number, line in enumerate(lines):
        yield ("  " if number == 0 else "      ") + line.replace("\0", " ") + " \\" * (number + 1 < len(lines))


def _headline(advice: Advice) -> str:
    return f"{advice.method}, trust {advice.trust}, epsilon {advice.situation.epsilon:g}: protects {_unit(advice.unit, advice)}"


def _unit(unit: str, advice: Advice) -> str:
    if unit == "record" and advice.situation.kind == "images":
        return "one image"
    if unit == "client" and advice.trust == "local":
        return "one person with all that their device holds"
    return UNITS[unit]


def _why(advice: Advice) -> str:
    first = next((one for one in advice.others if one.beside is not None and one.ours is not None), None)
    if first is None or first.beside is None or first.ours is None:
        return advice.reason
    figures = ", ".join(
        f"{HEADS[metric]} {short(first.ours.metrics[metric].mean)} ({first.method} {short(figure.mean)})"
        for metric, figure in first.beside.metrics.items() if metric in first.ours.metrics
    )  # fmt: skip
    return f"{advice.reason}. Measured on {first.ours.about}, epsilon {first.ours.epsilon:g}: {figures}"


def _trusted(advice: Advice) -> str:
    several = advice.situation.holder == "files" and advice.situation.clients > 1
    apart = "; files on one machine are a simulation of silos, and whoever runs it sees all rows" * several
    return advice.trusted + (
        apart if advice.trust != "local" else "; with all rows in files, a simulation of people" * several
    )


def _expectation(advice: Advice) -> Iterator[str]:
    trust = advice.situation.noise_of
    alike = " (with one silo the same as trust silo)" * (trust != advice.trust)
    guarantee = f"{advice.method}, trust {trust}{alike}, protects {_unit(advice.unit, advice)}"
    if not advice.measured:
        yield "What to expect: not known"
        others = " or ".join(f"trust {trust} for {_unit(unit, advice)}" for unit, trust in advice.elsewhere)
        yield from _bullet(
            f"there is no stored result of {guarantee}" + f", but of {others}; ask for that to see them" * bool(others)
        )
        if advice.trust == "secure-sum":
            yield from _bullet(
                "while no silo is expected to collude, the noise of a secure sum is that of trust central"
            )
        return
    yield "What to expect: measured elsewhere"
    yield from textwrap.wrap(
        f"{guarantee}; mean ± deviation over runs", WIDTH, initial_indent="  ", subsequent_indent="  "
    )
    yield from _table(advice.measured)
    yield ""
    yield f"At your sizes, by the curve of {advice.measured[0].about}"
    yield from (line for one in advice.expected for line in _bullet(_expected(one)))
    yield from (line for words in _no_better(advice) for line in _bullet(words))
    if advice.far:
        far = ", ".join(FAR[name] for name in advice.far)
        yield from _bullet(f"nothing near was measured: the nearest differs from yours by a large factor in {far}")
    yield from _bullet(
        "your columns are not those of the benchmarks: error also grows with the number of cells in a table, and this rule "
        "looks at noise alone"
        if advice.situation.kind == "table"
        else "your images are not those of the benchmarks, and this rule looks at noise alone"
    )


def _table(measured: tuple[Measured, ...]) -> Iterator[str]:
    """The stored results with real rows below each, one guarantee in the whole table."""
    metrics = tuple(metric for metric in HEADS if metric in measured[0].metrics)
    people = measured[0].trust == "local"
    heads = "".join(f"{HEADS[metric]:>13}" for metric in metrics)
    yield f"  {'data':<20}{'people' if people else 'rows':>8}{'' if people else 'silos':>6}{'eps':>5}{heads}"
    for one in measured:
        cells = "".join(f"{_figure(one.metrics.get(metric)):>13}" for metric in metrics)
        clients = "" if people else f"{one.clients:,}"
        yield f"  {one.about:<20}{one.rows:>8,}{clients:>6}{one.epsilon:>5g}{cells}".rstrip()
        for name, figures in (("real", one.real), ("columns shuffled", one.shuffled)):
            if any(metric in figures and metric in one.metrics for metric in metrics):
                values = "".join(f"{short(figures.get(m)) + ' ' * 7 if m in one.metrics else '':>13}" for m in metrics)
                yield f"    {name:<37}{values}".rstrip()
    for meaning in dict.fromkeys(MEANINGS[metric] for metric in metrics):
        yield from textwrap.wrap(meaning, WIDTH, initial_indent="  ", subsequent_indent="    ")
    commands = dict.fromkeys(f"`{one.command}`" for one in measured)
    yield from textwrap.wrap(
        f"measured by {', '.join(commands)}",
        WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        break_on_hyphens=False,
    )


def short(value: float | None) -> str:
    """A figure with three decimals, as benchmarks are written here: .906."""
    if value is None:
        return "-"
    text = f"{value:.3f}"
    return "0" if value == 0 else text[1:] if text.startswith("0") else text


def rough(low: float, high: float) -> tuple[str, str]:
    """The ends of an extrapolation with two decimals, rounded outwards."""
    ends = math.floor(100 * low + 1e-9) / 100, math.ceil(100 * high - 1e-9) / 100
    return tuple("0" if end == 0 else f"{end:.2f}".removeprefix("0") for end in ends)  # type: ignore[return-value]


def _figure(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return short(figure.mean) + (" " * 7 if figure.deviation is None else f" ± {short(figure.deviation):<4}")


def _no_better(advice: Advice) -> Iterator[str]:
    """A warning where pairs of columns are expected no nearer than those of columns that were shuffled."""
    bound = advice.measured[0].shuffled.get("two_way")
    for one in advice.expected:
        if one.metric == "two_way" and bound is not None and one.high >= bound:
            yield (
                "pairs of columns may come out no nearer than if every true column had been shuffled by itself "
                f"({short(bound)}): look at what would do better"
            )


def _expected(one: Expected) -> str:
    low, high = (short(one.low), short(one.high)) if one.measured else rough(one.low, one.high)
    between = low if low == high else f"{low} to {high}"
    how = (
        "interpolated: the noise lies between measured levels"
        if one.measured
        else "an extrapolation, not a measurement"
    )
    return f"{HEADS[one.metric]} {between} ({how})"


def _other(advice: Advice, other: Alternative) -> str:
    words = f"{other.method}, protects {_unit(other.unit, advice)}"
    if other.unit != advice.unit:
        words += ": another guarantee, not to be compared figure by figure"
    elif other.times_worse is None:
        words += f": never measured beside {advice.method}"
    else:
        words += f": {_times(other.times_worse)} the error of {advice.method} where both were measured"
    return words


def _times(ratio: float) -> str:
    if ratio < 0.95:
        return f"less than ({ratio:.1f} times)"
    if ratio < 1.05:
        return "about"
    return f"{ratio:.1f} times" if ratio < 9.95 else f"{ratio:.0f} times"


def _better(advice: Advice) -> Iterator[str]:
    if not advice.measured:
        yield from _bullet("not known: nothing was measured")
    for one in advice.improvements:
        yield from _bullet(_improvement(one))
    if advice.measured and not advice.improvements:
        yield from _bullet("nothing that was measured: less noise would change little; the method's own error remains")


def _improvement(one: Improvement) -> str:
    how = "" if one.measured else "; extrapolated"
    return f"{one.change}: {HEADS[one.metric]} from about {short(one.now)} to about {short(one.then)}{how}"


def _labelled(label: str, words: str) -> list[str]:
    return textwrap.wrap(words, WIDTH, initial_indent=f"{label:<{LABEL}}", subsequent_indent=" " * LABEL)


def _bullet(words: str) -> Iterable[str]:
    return textwrap.wrap(words, WIDTH, initial_indent="  - ", subsequent_indent="    ")
