"""A figure without an interval, or without a value, says why where it stands."""

from populace.evaluation.baselines import ABOUT, SYNTHETIC
from populace.report import sections

WHYS = {
    "known": ({"value": 0.5, "low": 0.4, "high": 0.6}, "0.400 to 0.600"),
    "by definition": ({"value": 0.5, "why": "a constant guess: 0.5 by definition"}, "by definition"),
    "no draws": ({"value": 0.5, "why": "too few rows"}, "too few rows"),
    "no reason": ({"value": 0.5}, "no interval"),
    "left out": ({"left_out": "one class"}, "one class"),
}


def test_the_prediction_table_says_why():
    for value, said in WHYS.values():
        values = dict.fromkeys((SYNTHETIC, *ABOUT), value)
        metrics = {f"{what}: m": {"values": values, "title": what, "better": "higher"} for what in ("auc", "accuracy")}
        document = {"prediction": {"models": ["m"], "target": "y"}, "metrics": metrics}
        rows = sections.prediction_parts(document)["rows"]
        assert {cell["interval"] for row in rows for cell in row["cells"]} == {said}
        assert {cell["value"] for row in rows for cell in row["cells"]} == {"0.500" if "value" in value else "–"}
        table = sections.metric_table(document)
        assert table["reasons"] == ([said] if "left_out" in value else [])
