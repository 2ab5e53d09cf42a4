"""A figure without an interval, or without a value, says why where it stands."""

from populace.evaluation.baselines import ABOUT, SYNTHETIC
from populace.report import sections
from populace.tables.columns import Column
from populace.tables.schema import Schema
from populace.tables.universal import SOURCE

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


def test_domains_found_by_noisy_counts_are_not_called_declared():
    edges = (0.0, 1.0, 2.0)
    schema = Schema(
        columns=(
            Column(name="age", kind="integer", edges=edges, source=SOURCE),
            Column(name="ward", kind="categorical", categories=("a", "b"), domain="released"),
            Column(name="sex", kind="categorical", categories=("f", "m"), source="protocol"),
        )
    )
    age, ward, sex = sections.domain_table(schema)
    assert (age["found"], ward["found"], sex["found"]) == (True, True, False)
    assert age["domain"] == f"found by noisy counts on {SOURCE}"
    assert sex["domain"] == "declared: protocol"
