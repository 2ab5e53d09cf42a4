"""The rule that chooses a method, and `populace advise`, which explains it."""

import importlib.util
import itertools
import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

import populace as pop
from populace.cli.main import call
from populace.errors import DataError, InputError, PopulaceError, SpecError
from populace.methods.registry import built_in_facts
from populace.runs.advise.advice import advise, read_advice
from populace.runs.advise.expectations import (
    SCORES,
    Curve,
    curve_of,
    far_in,
    level_of,
    nearest,
    noise_level,
    stored,
    times_worse,
)
from populace.runs.advise.rule import METHODS, choose
from populace.runs.advise.situation import LEAST_ANSWERS, read_situation
from populace.runs.advise.words import _times, rough
from populace.runs.spec import default_in_words, default_method, make_spec
from populace.tables.facts import image_facts, table_facts

ROOT = Path(__file__).parents[3]
CANARY = "sesame"


@pytest.fixture
def silos(tmp_path):
    """Three CSV files whose values would be recognised wherever they came out."""
    files = []
    for number in range(3):
        path = tmp_path / f"ward{number}.csv"
        path.write_text("age,note,died\n" + f'{40 + number},"{CANARY}\nline",no\n' * 120)
        files.append(str(path))
    return files


def test_the_stored_expectations_are_what_the_results_give():
    spec = importlib.util.spec_from_file_location("expectations", ROOT / "tools" / "expectations.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.TARGET.read_text() == json.dumps(tool.collect(tool.RESULTS), indent=1) + "\n", (
        "run python tools/expectations.py"
    )


def test_stored_figures_are_those_of_the_readme():
    """Means over seeds as a reader finds them, with real rows beside."""
    one = next(
        s for s in stored() if (s.method, s.data, s.trust, s.epsilon) == ("census", "adult", "silo", 1.0)
    )  # fmt: skip
    assert (one.rows, one.columns, one.clients, one.unit) == (32_561, 15, 6, "record")
    assert round(one.metrics["auc_boosting"].mean, 3) == 0.906
    assert round(one.real["auc_boosting"], 3) == 0.927
    assert round(one.metrics["worst_ks"].mean, 3) == 0.020
    assert one.metrics["worst_ks"].seeds == 5
    assert 0 < one.metrics["worst_ks"].deviation < 0.01


def test_every_stored_result_has_a_guarantee_of_its_method():
    known = {facts.name: facts for facts in built_in_facts()}
    for one in stored():
        facts = known[one.method]
        assert one.trust in facts.trust, one
        assert one.unit == facts.unit or (one.unit == "person" and facts.persons), one
        assert one.kind in facts.kinds


@pytest.mark.parametrize(("kind", "trust"), METHODS)
def test_the_chosen_method_is_best_of_what_was_stored(kind, trust):
    """No method with the same guarantee does better, in the mean over the data on which both were measured."""
    chosen = METHODS[kind, trust]
    for method in {one.method for one in stored() if one.trust == trust} - {chosen}:
        ratio = times_worse(method, chosen, kind, trust)
        assert ratio is None or ratio > 0.97, (method, ratio)


@pytest.mark.parametrize(("kind", "trust"), METHODS)
def test_the_chosen_method_works_with_the_data_and_the_trust(kind, trust):
    facts = next(facts for facts in built_in_facts() if facts.name == METHODS[kind, trust])
    assert kind in facts.kinds
    assert trust in facts.trust


def test_defaults_are_as_they_were_benchmarked():
    assert default_method("a.csv") == default_method(("a.csv", "b.parquet")) == "census"
    assert default_method("a.npz") == "moments"
    assert choose("table").trust == choose("images").trust == "silo"


@pytest.mark.parametrize("trust", [None, "silo", "secure-sum", "central", "local"])
@pytest.mark.parametrize("count", [1, 3])
def test_synthesize_does_what_is_advised(silos, trust, count):
    """The same files and the same trust; and the command that is advised, word for word."""
    files = silos[:count]
    if trust == "secure-sum" and count == 1:
        with pytest.raises(SpecError, match="one silo hides nothing"):
            read_advice(data=files, trust=trust)
        return
    if trust == "local":
        files = silos
    advice = read_advice(data=files, trust=trust, epsilon=2)
    spec = make_spec(data=tuple(files), epsilon=2.0, trust=trust)
    assert spec.method_name == advice.method
    assert trust in (None, advice.trust)
    words = shlex.split(advice.commands[0])
    assert words[:2] == ["populace", "synthesize"]
    given = {name: words[words.index(name) + 1] for name in ("--method", "--trust", "--epsilon") if name in words}
    again = make_spec(
        data=tuple(files), epsilon=float(given["--epsilon"]), method=given.get("--method"), trust=given.get("--trust")
    )
    assert again.method_name == advice.method
    assert advice.method in default_in_words(spec.data, trust=trust)
    assert "populace advise" in default_in_words(spec.data, trust=trust)


def test_python_chooses_by_the_same_rule(silos):
    advice = pop.advise(silos, epsilon=1)
    assert (advice.method, advice.trust, advice.unit) == ("census", "silo", "record")
    assert "Recommendation  census" in str(advice)
    with pytest.raises(InputError, match="got dict") as refused:
        pop.advise({"age": [41]})
    assert "41" not in str(refused.value)


def test_values_are_never_looked_at(silos, capsys):
    """Files with other values and the same outside give the same advice, and no value is in it."""
    words = [word for file in silos for word in ("--data", file)]
    assert call(["advise", *words]) == 0
    first = capsys.readouterr().out
    for file in silos:
        Path(file).write_text(Path(file).read_text().replace(CANARY, "another").replace("no", "yes"))
    assert call(["advise", *words]) == 0
    assert capsys.readouterr().out.replace("another", "") == first
    assert CANARY not in first
    assert "360 rows" in first
    assert "counts as public" in first


def test_the_outside_of_every_kind_of_file(tmp_path):
    frame = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    pyarrow.parquet.write_table(frame, tmp_path / "t.parquet")
    pyarrow.feather.write_feather(frame, str(tmp_path / "t.arrow"))
    (tmp_path / "t.csv").write_text('a;b\n1;"two\nlines"\n2;y\n3;z\n')
    (tmp_path / "folder").mkdir()
    for number in range(2):
        pyarrow.parquet.write_table(frame, tmp_path / "folder" / f"{number}.parquet")
    for name, rows in (("t.parquet", 3), ("t.arrow", 3), ("t.csv", 3), ("folder", 6)):
        facts = table_facts(tmp_path / name)
        assert (facts.names, facts.rows) == (("a", "b"), rows), name
    np.savez(tmp_path / "i.npz", x=np.zeros((7, 4, 5), np.uint8), y=np.zeros(7, int))
    facts = image_facts(tmp_path / "i.npz")
    assert (facts.rows, facts.values) == (7, 20)
    np.savez(tmp_path / "none.npz", y=np.zeros(7, int))
    with pytest.raises(DataError, match="expected images"):
        image_facts(tmp_path / "none.npz")


REFUSED = [
    ({"clients": 3, "trust": "local"}, "three answers cannot carry a table"),
    ({"clients": 3, "records": 5_000, "trust": "local"}, "three answers"),
    ({"clients": 50_000, "trust": "silo"}, "trust silo is for holders of many records"),
    ({"clients": 50_000, "trust": "secure-sum"}, "devices come and go"),
    ({"clients": 1, "records": 900, "trust": "secure-sum"}, "one silo hides nothing"),
    ({"clients": 3, "records": 900, "trust": "nobody"}, "expected trust as one of"),
    ({"clients": 3, "records": 900, "epsilon": 0.0}, "epsilon"),
    ({"clients": 3, "records": 900, "images": True, "person": True}, "no column that names persons"),
    ({"clients": 3, "records": 900, "images": True, "columns": 4}, "no columns"),
    ({"clients": 0, "records": 900}, "at least 1"),
    ({"clients": 10**30}, "at most"),
    ({}, "who holds records"),
    ({"data": ["a.csv"], "clients": 3}, "not both"),
    ({"clients": 50_000, "person": True}, "protected anyway"),
]


@pytest.mark.parametrize(("given", "words"), REFUSED)
def test_what_does_not_go_together_is_one_sentence(given, words):
    with pytest.raises(PopulaceError, match=words) as refused:
        read_situation(**given)
    assert "\n" not in str(refused.value)


def test_bad_combinations_exit_with_2(capsys):
    assert call(["advise", "--clients", "3", "--trust", "local"]) == 2
    assert capsys.readouterr().err.startswith("populace: under trust local")
    assert call(["advise", "--clients", "3", "--records", "9", "--columns", "a,,b"]) == 2


def test_holders_are_silos_or_people():
    def holder(clients, records):
        return read_situation(clients=clients, records=records).holder

    assert holder(3, 800) == "silos"
    assert holder(1_000_000, 1) == holder(1_000_000, 12) == "people"
    assert holder(2_000, 500) == "silos"
    with pytest.raises(SpecError, match="cannot carry"):
        holder(LEAST_ANSWERS - 1, 1)


def test_noise_at_each_silo_grows_as_the_root_of_their_number():
    once = noise_level(trust="central", clients=25, rows=1_000, epsilon=2.0)
    assert noise_level(trust="silo", clients=25, rows=1_000, epsilon=2.0) == pytest.approx(5 * once)
    assert noise_level(trust="secure-sum", clients=25, rows=1_000, epsilon=2.0) == once == 1 / 2_000
    few = noise_level(trust="local", clients=100, rows=100, epsilon=1.0)
    assert noise_level(trust="local", clients=10_000, rows=10_000, epsilon=1.0) == pytest.approx(few / 10)


def test_the_rule_predicts_results_that_it_does_not_use():
    """Leave one out: silos, central and secure sums lie on one curve of the noise, within a sixth on Adult's categories."""
    results = [s for s in stored() if s.method == "census" and s.data == "adult9"]
    whole = curve_of(results[0], "two_way").points
    inner = [s for s in results if whole[0][0] * 1.001 < level_of(s) < whole[-1][0] * 0.999]
    assert len(inner) > 10
    for one in inner:
        others = Curve(tuple(point for point in whole if not math.isclose(point[0], level_of(one), rel_tol=1e-6)))
        found = others.at(level_of(one))
        assert found.low == pytest.approx(one.error("two_way"), rel=0.17), one


def test_a_curve_is_read_between_points_and_spread_beyond_them():
    curve = Curve(((1.0, 0.01), (4.0, 0.02)))
    assert curve.at(2.0).low == curve.at(2.0).high == pytest.approx(0.01 * math.sqrt(2))
    assert curve.at(2.0).measured
    beyond = curve.at(16.0)
    assert (beyond.low, beyond.high, beyond.measured) == (pytest.approx(0.04), pytest.approx(0.08), False)
    before = curve.at(0.25)
    assert (before.low, before.high, before.measured) == (pytest.approx(0.005), pytest.approx(0.01), False)
    assert curve.at(1e12).high == 1.0


@pytest.mark.parametrize("trust", ["silo", "secure-sum", "central"])
def test_guarantees_are_not_mixed(trust):
    advice = advise(read_situation(clients=6, records=5_000, columns=15, trust=trust))
    assert {(one.trust, one.unit, one.method) for one in advice.measured} == {(trust, "record", "census")}
    assert {one.main for one in advice.measured} == {advice.measured[0].main}


def test_far_situations_are_called_so():
    near = read_situation(clients=6, records=5_400, columns=15)
    assert far_in(near, nearest(near)[0]) == ()
    assert all(one.measured for one in advise(near).expected)
    far = advise(read_situation(clients=3, records=80, columns=15))
    assert far.far == ("rows",)
    assert not any(one.measured for one in far.expected)
    assert "nothing near was measured" in str(far)
    assert "an extrapolation, not a measurement" in str(far)
    assert "interpolated" not in str(far)
    unknown = advise(read_situation(clients=3, records=800, columns=15, person=True))
    assert not unknown.measured
    assert "What to expect: not known" in str(unknown)


def test_less_noise_is_expected_to_do_better():
    advice = advise(read_situation(clients=6, records=5_427, columns=15))
    changes = [one.change.split(" ")[0:3] for one in advice.improvements]
    assert changes == [["with", "secure", "sums,"], ["at", "epsilon", "4"], ["with", "325,620", "rows,"]]
    assert all(one.then < 0.6 * one.now for one in advice.improvements)
    for one in advice.improvements:
        assert one.metric == "worst_ks"
    local = advise(read_situation(clients=30_000, columns=9))
    assert "one holder" in local.improvements[0].change
    scores = advise(read_situation(clients=100, records=600, images=True)).improvements
    assert scores
    assert all(one.then > one.now for one in scores if one.metric in SCORES)


def test_one_silo_is_central():
    """Noise of one silo is drawn once: figures are those of one noise draw."""
    assert {one.trust for one in advise(read_situation(clients=1, records=30_000, columns=9)).measured} == {"central"}


CASES = [
    {"clients": 6, "records": 5_427, "columns": 15}, {"clients": 30_000, "columns": 9, "epsilon": 2.0},
    {"clients": 1_000_000, "columns": 20}, {"clients": 3, "records": 800, "columns": 12, "person": True},
    {"clients": 10, "records": 6_000, "images": True}, {"clients": 5_000, "images": True},
    {"clients": 10, "records": 6_000, "images": True, "trust": "secure-sum"},
    {"clients": 10, "records": 600, "trust": "central", "columns": ["a", "b"], "epsilon": 0.01},
    {"clients": 10**12, "records": 10**12, "epsilon": 50.0},
]  # fmt: skip


@pytest.mark.parametrize("given", CASES)
def test_words_fit_80_columns_and_the_document_says_the_same(given):
    advice = advise(read_situation(**given))
    text = str(advice)
    assert max(map(len, text.splitlines())) <= 80
    for part in (
        "Recommendation",
        "Why",
        "Who is trusted",
        "What to expect",
        "The next two",
        "What would do better",
        "Next",
    ):
        assert re.search(rf"^{part}", text, re.M), part
    document = json.loads(json.dumps(advice.to_json()))
    assert document["method"] == advice.method
    assert len(document["others"]) == (0 if advice.method == "dp-fed-wae" else 2)
    assert advice.method not in [one["method"] for one in document["others"]]
    assert document["situation"]["rows"] == given["clients"] * given.get("records", 1)
    for one, other in itertools.pairwise(advice.others):
        assert one.unit == advice.unit or other.unit != advice.unit


def test_patterns_are_files_and_none_counts_twice(silos, tmp_path, monkeypatch):
    """As in synthesize."""
    assert read_situation(data=[str(tmp_path / "ward*.csv")]).files == tuple(silos)
    with pytest.raises(InputError, match="no file matches"):
        read_situation(data=[str(tmp_path / "nothing*.csv")])
    monkeypatch.chdir(tmp_path)
    for again in (silos[0], "ward0.csv", "ward*.csv"):
        with pytest.raises(SpecError, match="given twice"):
            read_situation(data=[silos[0], again])


def test_names_that_differ_are_counted_and_not_shown(tmp_path):
    """Without a line of names the first row stands in their place."""
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for file, person in zip(files, ("Alice", "Bob"), strict=True):
        file.write_text(f"{person},{CANARY} {person},1\nCarol,x,1\n")
    with pytest.raises(InputError, match=r"a\.csv 2 and of .*b\.csv 2 are not in the other") as refused:
        read_situation(data=list(map(str, files)))
    assert not [word for word in ("Alice", "Bob", CANARY) if word in str(refused.value)]


def test_an_extrapolation_is_rough_and_as_wide_as_what_it_starts_from():
    far = advise(read_situation(clients=3, records=80, columns=15))
    for one in far.expected:
        assert one.high - one.low > (far.measured[0].metrics[one.metric].deviation or 0)
    lines = re.findall(r"^  - .*an extrapolation", str(far), re.M)
    assert len(lines) == len(far.expected) > 0
    assert not any(re.search(r"\.\d{3}", line) for line in lines)
    assert rough(0.8641, 0.8649) == (".86", ".87")
    assert rough(0.0, 1.0) == ("0", "1.00")
    near = advise(read_situation(clients=6, records=5_400, columns=15))
    assert re.search(r"^  - .*\.\d{3}.*interpolated", str(near), re.M)


def test_ratios_of_errors_in_words():
    assert [_times(ratio) for ratio in (0.5, 0.97, 1.04, 1.06, 12.3)] == [
        "less than (0.5 times)", "about", "about", "1.1 times", "12 times"
    ]  # fmt: skip


def test_advise_loads_no_jax(silos):
    code = "import sys; from populace.cli.main import call; call(sys.argv[1:]); print('jax' in sys.modules)"
    words = ["advise", "--data", *silos[:1], "--epsilon", "1"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert "Recommendation  census" in done.stdout
    assert done.stdout.split()[-1] == "False"
