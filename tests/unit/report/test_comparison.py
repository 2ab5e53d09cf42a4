"""Runs side by side: guarantees that differ in kind never share a table; repeated seeds give an interval of their own."""

import numpy as np

from populace.evaluation.baselines import ABOUT, SYNTHETIC
from populace.privacy.guarantee import Guarantee
from populace.report import comparison, sections, tiles
from populace.report.comparison import COLUMNS


def run(name, value, *, trust="local", neighbours="replace", seed=None, method="m"):
    privacy = Guarantee(epsilon=1.0, unit="client", neighbours=neighbours, trust=trust, mechanism="none").to_json()
    metrics = {
        key: {
            "title": title, "better": "higher" if "auc" in key else "lower",
            "values": {other: {"value": value, "low": value - 0.1, "high": value + 0.1} for other in (SYNTHETIC, *ABOUT)},
        }
        for key, title in COLUMNS
    }  # fmt: skip
    spec = {"data": "people and towns.csv", "method": method, "epsilon": 1.0, "seed": seed, "settings": {"a": 1}}
    document = {"metrics": metrics, "one_way": {"tvd": {"x": value}}}
    return {"name": name, "privacy": privacy, "metrics": document, "details": {"spec": spec, "method": method}}


def test_different_trust_never_shares_a_table_and_the_best_is_of_its_table():
    groups = comparison.groups([run("a", 0.2), run("b", 0.3), run("c", 0.1, trust="central")])
    assert [[row["run"]["name"] for row in group["rows"]] for group in groups] == [["a", "b"], ["c"]]
    (first, second), (alone,) = (group["rows"] for group in groups)
    for place, (key, _) in enumerate(COLUMNS):
        assert first["cells"][place]["best"] == ("auc" not in key)
        assert second["cells"][place]["best"] == ("auc" in key)
        assert not alone["cells"][place]["best"]


def test_different_neighbours_never_share_a_table():
    groups = comparison.groups(
        [run("a", 0.2, trust="central"), run("b", 0.3, trust="central", neighbours="add-remove")]
    )
    assert [len(group["rows"]) for group in groups] == [1, 1]
    assert groups[0]["neighbours"] != groups[1]["neighbours"]


def test_seeds_are_taken_together_and_methods_are_not():
    runs = [run("a", 0.2, seed=1), run("b", 0.4, seed=2), run("c", 0.3, seed=3), run("d", 0.9, seed=1, method="other")]
    (line,) = comparison.repeated_seeds(runs)
    assert line["runs"] == ["a", "b", "c"]
    half = 4.303 * np.std([0.2, 0.4, 0.3], ddof=1) / np.sqrt(3)
    assert line["cells"][0]["value"] == "0.300"
    assert line["cells"][0]["interval"] == f"{0.3 - half:.3f} to {0.3 + half:.3f}"
    assert comparison.repeated_seeds(runs[2:]) == []
    assert comparison.repeated_seeds([run("a", 0.2, seed=1), run("copy of a", 0.2, seed=1)]) == []


def test_a_seed_without_a_figure_is_said_and_not_dropped():
    runs = [run("a", 0.2, seed=1), run("b", 0.4, seed=2), run("c", 0.3, seed=3)]
    key = COLUMNS[-1][0]
    runs[2]["metrics"]["metrics"][key]["values"][SYNTHETIC] = {"left_out": "one class"}
    (line,) = comparison.repeated_seeds(runs)
    assert line["cells"][-1]["value"] == "0.300"
    assert "1 of 3 have no figure" in line["cells"][-1]["interval"]


def test_the_command_is_one_that_can_be_typed():
    command = sections.command_of(run("a", 0.2, seed=4)["details"]["spec"])
    assert command == "populace synthesize 'people and towns.csv' --method m --epsilon 1.0 --seed 4 --set a=1 --out RUN"


def test_verdicts_say_on_which_side_of_the_baselines_a_figure_lies():
    def said(own, real=0.02, product=0.1):
        names = ("real", "product of the true one-way tables", "synthetic")
        return tiles.verdict({name: {"value": v} for name, v in zip(names, (real, product, own), strict=True)})

    assert said(0.06).startswith("50 % of the way")
    assert "worse than independent" in said(0.11)
    assert "as close as two halves" in said(0.01)
    assert "little to keep" in said(0.03, real=0.02, product=0.0205)
    assert "too few real rows to tell" in said(0.16, real=0.21, product=0.14)


def test_sizes_in_the_unit_that_reads_best():
    assert tiles.in_bytes(8) == "8 bits"
    assert tiles.in_bytes(8.6) == "8.6 bits"
    assert tiles.in_bytes(8 * 2_000) == "2000 bytes"
    assert tiles.in_bytes(8 * 20_000) == "20 kB"
