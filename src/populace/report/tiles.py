"""The tiles at the top of a report: the main figures, each placed between its baselines, in words."""

from __future__ import annotations

from populace.evaluation.baselines import MAJORITY, PRODUCT, REAL, SHUFFLED, SYNTHETIC
from populace.evaluation.flags import KS
from populace.evaluation.prediction_figures import best_model, guess_of, worst_class
from populace.evaluation.value_text import figure_text
from populace.privacy import events
from populace.privacy.consequences import consequences, share_in_words
from populace.privacy.guarantee import guarantee_from_json
from populace.report import figures
from populace.report.svg import percent
from populace.types import JsonObject

CLASSES = {
    SYNTHETIC: "synthetic", REAL: "real", PRODUCT: "product", SHUFFLED: "shuffled", MAJORITY: "majority",
}  # fmt: skip
SHOWN = (SYNTHETIC, REAL, PRODUCT)
NO_DEPENDENCE = 0.002  # columns so near to independent that there is no dependence to keep


def make_tiles(run: JsonObject) -> list[JsonObject]:
    """The tiles of a run: privacy, values, single columns, pairs, prediction and cost."""
    metrics = run["metrics"]["metrics"]
    tiles = [_values(run["metrics"]), _columns(metrics), _pairs(run["metrics"]), _prediction(run["metrics"], metrics)]
    if "privacy" in run:
        tiles.insert(0, _privacy(run["privacy"]))
    if "cost" in run["metrics"]:
        tiles.append(_cost(run["metrics"]["cost"]))
    empty = {"alarm": "", "verdict": "", "beside": "", "scale": ""}
    return [empty | tile for tile in tiles]


def _privacy(privacy: JsonObject) -> JsonObject:
    claim = guarantee_from_json(dict(privacy))
    meaning = consequences(claim, events.from_json(privacy["event"]) if privacy.get("event") else None)
    private = meaning is not None and claim.trust != "not-private"
    right = "" if meaning is None else share_in_words(meaning.content)
    words = f"a guess between two contents of {claim.unit_in_words} is right at most {right} of the time"
    marks = privacy["headline"].removeprefix(privacy["bound"]).strip(" ()")
    return {
        "name": "Privacy",
        "figure": privacy["bound"] if private else "none",
        "words": words if private else "this run protects nobody",
        "alarm": marks,
        "link": "#privacy",
    }  # fmt: skip


def _values(document: JsonObject) -> JsonObject:
    """The numeric column with the largest KS distance, in words."""
    columns = document["values"]["columns"]
    if not columns:
        why = document["metrics"]["ks"]["values"][SYNTHETIC]["left_out"]
        return {"name": "Values", "figure": "–", "words": f"Nothing to measure: {why}", "link": "#values"}
    worst = max(columns, key=lambda name: columns[name]["ks"])
    halves = max(half["ks"] for half in document["values"]["halves"].values())
    flags = len(document["red_flags_in_words"])
    but = " in this measure; what is wrong stands in the red flags" if flags else ""
    return {
        "name": "Values",
        "figure": f"KS {figure_text(columns[worst]['ks'])}",
        "words": f"of {worst}, the least accurate numeric column: {_in_words(columns[worst]['ks'])}{but}",
        "alarm": f"{flags} red flag{'s' if flags != 1 else ''}" if flags else "",
        "beside": f"worst column between two random halves of the real rows: {figure_text(halves)}",
        "link": "#values",
    }


def _in_words(ks: float) -> str:
    """A verbal grade of a KS distance; the thresholds are our choice."""
    if ks <= 0.05:
        return "almost indistinguishable from the real one"
    if ks <= 0.1:
        return "close to the real one"
    return "visibly off" if ks <= KS else "a different distribution"


def _columns(metrics: JsonObject) -> JsonObject:
    values = metrics["one_way"]["values"]
    return {
        "name": "Single columns",
        "figure": percent(values[SYNTHETIC]["value"]),
        "words": "of the rows would have to change for a column’s marginal to match the real one, on average",
        "beside": f"between two random halves of the real rows: {percent(values[REAL]['value'])}",
        "link": "#columns",
    }


def _pairs(document: JsonObject) -> JsonObject:
    values = document["metrics"]["two_way"]["values"]
    if "value" not in values[SYNTHETIC]:
        return {"name": "Pairs of columns", "figure": "–", "words": values[SYNTHETIC]["left_out"], "link": "#utility"}
    shown = {name: values[name] for name in SHOWN}
    return {
        "name": "Pairs of columns",
        "figure": percent(values[SYNTHETIC]["value"]),
        "words": "of the rows would have to change for a pair’s marginal to match the real one, on average",
        "verdict": verdict(values, document.get("hides_dependence", "")),
        "beside": f"real: {percent(values[REAL]['value'])}; independent columns: {percent(values[PRODUCT]['value'])}",
        "scale": figures.scale_chart(shown, CLASSES, label="two-way distance between its baselines"),
        "link": "#pairs",
    }


def verdict(values: JsonObject, hiding: str = "") -> str:
    """Where the distance lies between that of real data and that of independent columns; `hiding` may hide dependence."""
    best, worst, own = (values[name]["value"] for name in (REAL, PRODUCT, SYNTHETIC))
    if worst <= best:
        few = "too few real rows to tell: two halves of them differ by as much as independent columns do"
        return f"{few}, because of {hiding} with its many values or bins" if hiding else few
    if worst - best < NO_DEPENDENCE:
        return "the real columns hardly depend on each other, so there is little to keep"
    kept = (worst - own) / (worst - best)
    if kept < 0:
        return "worse than independent columns with the true one-way marginals"
    if kept > 1:
        return "as close as two halves of the real rows"
    return f"{100 * kept:.0f} % of the way from independent columns to real data"


def _prediction(document: JsonObject, metrics: JsonObject) -> JsonObject:
    if "left_out" in document["prediction"]:
        return {
            "name": "Prediction", "figure": "–", "words": f"No prediction: {document['prediction']['left_out']}",
            "link": "#prediction",
        }  # fmt: skip
    facts = document["prediction"]
    model, values = best_model(metrics, facts)
    if not model:
        return {"name": "Prediction", "figure": "–", "words": "no model could be scored", "link": "#prediction"}
    what, guess = guess_of(facts)
    own, real = values[SYNTHETIC]["value"], values[REAL].get("value")
    shown = {SYNTHETIC: values[SYNTHETIC], MAJORITY: values[MAJORITY]} | ({REAL: values[REAL]} if real else {})
    trained = f"the same model trained on real rows: {real:.3f}" if real else ""
    beyond = "guessing" if what == "AUC" else "the mean"
    kept = (
        f"{100 * (own - guess) / (real - guess):.0f} % of what a model learns from real rows beyond {beyond}"
        if real and real > guess + 0.05
        else ""
    )
    return {
        "name": f"Predicting {facts['target']}",
        "figure": f"{own:.3f}",
        "words": f"{what} on real rows of the best model trained on synthetic rows ({model}); 1 is perfect, "
        f"{guess:g} is {beyond}",
        "verdict": kept,
        "beside": "; ".join(part for part in (trained, _worst(facts, model)) if part),
        "scale": figures.scale_chart(shown, CLASSES, label=f"{what} between its baselines"),
        "link": "#prediction",
    }


def _worst(facts: JsonObject, model: str) -> str:
    """Of a target with several classes, of which the AUC is a mean, the one that is told from the rest worst."""
    found = worst_class(facts, model)
    return (
        "" if found is None else f"mean over classes; the worst, {found[0]}: {found[1]:.3f} (real rows: {found[2]:.3f})"
    )


def _cost(cost: JsonObject) -> JsonObject:
    traffic, time = cost["traffic"], cost["time"]
    if "left_out" in traffic:
        return {"name": "Cost", "figure": "–", "words": traffic["left_out"], "link": "#cost"}
    seconds = "" if "left_out" in time else f"; the whole run took {time['seconds_total']:.1f} s"
    return {
        "name": "Cost",
        "figure": in_bytes(traffic["bits_from_one_client"]),
        "words": f"sent by each participant, {in_bytes(traffic['bits_to_one_client'])} received{seconds}",
        "link": "#cost",
    }


def in_bytes(bits: float) -> str:
    """A size in the unit that reads best."""
    size, unit = bits, "bits"
    for factor, larger in ((8, "bytes"), (1000, "kB"), (1000, "MB"), (1000, "GB")):
        if size < 10 * factor:
            break
        size, unit = size / factor, larger
    return f"{size:.0f} {unit}" if size >= 10 or round(size, 1) == round(size) else f"{size:.1f} {unit}"
