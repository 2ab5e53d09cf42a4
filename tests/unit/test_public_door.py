"""What a Python user calls: frames in and out, silos, methods by class and by name, and one sentence for what is wrong."""

import dataclasses
import json
import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import populace as pop
from populace.errors import DataError, InputError, PopulaceError, RunError, SpecError
from populace.methods.registry import BUILT_IN
from populace.runs.run import asked_of
from populace.runs.spec import make_method, make_spec, spec_from_file
from populace.runs.verify.checks import verify_papers
from populace.runs.verify.documents import read_papers

ROWS = 90


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame({
        "person": [f"p-{row:03d}" for row in range(ROWS)],
        "age": rng.integers(20, 60, ROWS), "sex": rng.choice(["f", "m"], ROWS),
        "income": rng.choice(["low", "high"], ROWS),
    })  # fmt: skip


@pytest.fixture(scope="module")
def run(frame):
    return pop.synthesize(frame, epsilon=2, target="income", method="independent", seed=1, rows=40)


@pytest.fixture(scope="module")
def silos(frame):
    return pop.synthesize([frame[:20], frame[20:50], frame[50:]], method="moments", epsilon=4, seed=2, rows=12)


@pytest.fixture(scope="module")
def digits():
    rng = np.random.default_rng(1)
    x = rng.integers(0, 255, (60, 8, 8)).astype(np.uint8)
    return pop.Images(x=x, y=np.arange(60) % 3, classes=3)


def test_every_method_is_a_class_and_has_a_name():
    assert set(dir(pop.methods)) == {target.rpartition(":")[2] for target in BUILT_IN.values()}
    for name in dir(pop.methods):
        cls = getattr(pop.methods, name)
        assert issubclass(cls, pop.Protocol)
        assert cls.facts.name in BUILT_IN
        made = pop.method(cls.facts.name, epsilon=4)
        assert made == cls(epsilon=4)
    with pytest.raises(AttributeError, match="has no 'Magic'"):
        pop.methods.Magic  # noqa: B018


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_method_that_was_made_is_the_same_after_a_file(name):
    made = pop.method(name, epsilon=4)
    if name == "chain":
        made = pop.methods.Chain(epsilon=4, first=pop.methods.Moments(epsilon=4, side=5), then="l-dpd-vae:net=small")
    if name == "poll":
        made = pop.methods.Poll(epsilon=4, workload=[("age", "income")])
    if made.makes_data:
        spec = json.loads(json.dumps(make_spec(data="memory:table", **asked_of(made)).model_dump()))
        assert make_method(spec_from_file(spec)) == made


def test_frames_go_in_and_come_out(frame, run):
    assert run.method == "independent"
    drawn = run.sample(7, seed=0)
    assert list(drawn.to_pandas().columns) == list(frame.columns)
    assert list(drawn.to_pandas()["person"])[:2] == ["syn-000001", "syn-000002"]
    assert drawn.to_polars().shape == (7, 4)
    assert drawn.to_arrow().num_rows == 7
    assert set(drawn.to_pandas()["sex"]) <= {"f", "m"}
    assert set(run.sample(5, conditions={"sex": "f"}).to_pandas()["sex"]) == {"f"}
    assert any("made afresh" in remark for remark in run.remarks)


@pytest.mark.parametrize(
    "convert", [pl.from_pandas, pa.Table.from_pandas, lambda frame: frame], ids=["polars", "arrow", "pandas"]
)
def test_the_same_rows_in_any_frame_give_the_same_run(convert, frame, run):
    other = pop.synthesize(convert(frame), epsilon=2.0, target="income", method="independent", seed=1, rows=40)
    assert other.guarantee == run.guarantee
    assert other.sample(20, seed=3).to_arrow() == run.sample(20, seed=3).to_arrow()


def test_a_table_and_a_file_give_the_same_run_too(frame, run, tmp_path):
    path = tmp_path / "people.parquet"
    frame.to_parquet(path)
    of_file = pop.synthesize(path, epsilon=2.0, target="income", method="independent", seed=1, rows=40)
    table = pop.read_table(path)
    of_table = pop.synthesize(table, epsilon=2.0, target="income", method="independent", seed=1, rows=40)
    wanted = run.sample(20, seed=3).to_arrow()
    assert of_file.sample(20, seed=3).to_arrow() == wanted == of_table.sample(20, seed=3).to_arrow()


def test_rows_in_memory_are_booked_nowhere_and_the_statement_says_so(run):
    assert "not booked in a ledger" in run.statement
    assert run.details["booked"]["ledger"] is None
    assert "read from the data" in str(run.guarantee)


def test_files_are_booked_beside_the_data_and_frames_where_it_is_asked_for(frame, tmp_path):
    path = tmp_path / "people.csv"
    frame.to_csv(path, index=False)
    booked = pop.synthesize(path, epsilon=1, method="independent", rows=5)
    ledger = tmp_path / "populace-ledger.sqlite"
    assert booked.details["booked"]["ledger"] == str(ledger)
    again = pop.synthesize(frame, epsilon=1, method="independent", rows=5, ledger=ledger)
    assert "with 1 earlier run" in again.statement
    with pytest.raises(pop.BudgetError, match="nothing was released"):
        pop.synthesize(frame, epsilon=4, method="independent", rows=5, ledger=ledger, limit=3)
    assert (
        pop.synthesize(path, epsilon=1, method="independent", rows=5, ledger=False).details["booked"]["ledger"] is None
    )


def test_a_list_of_tables_is_a_list_of_silos(frame, silos):
    assert silos.details["clients"] == 3
    assert silos.details["split"] == "3 silos, one client each"
    assert silos.guarantee.unit == "record"
    assert silos.guarantee.units == ROWS
    assert not silos.guarantee.counts_read  # how many records a silo has is public, by the relation between neighbours
    assert any("how many records each of them holds, is public" in line for line in silos.guarantee.assumptions)
    with pytest.raises(DataError, match="at most 40 records"):
        pop.synthesize([frame[:45], frame[45:]], method="moments", epsilon=4, seed=2, rows=5, most_records=40)


def test_local_methods_answer_once_per_row_whichever_table_it_stands_in(frame):
    run = pop.synthesize([frame[:40], frame[40:]], method="independent", epsilon=2, seed=1, rows=5)
    assert run.details["clients"] == ROWS
    assert run.guarantee.unit == "client"


def test_one_table_is_one_silo_where_records_are_protected(frame):
    run = pop.synthesize(frame, method=pop.methods.Moments(epsilon=4), seed=1, rows=5)
    assert run.details["split"] == "1 silo, one client each"
    assert run.guarantee.sole_holder
    assert not run.guarantee.simulated
    assert pop.synthesize(
        frame, method=pop.methods.Moments(epsilon=4), seed=1, rows=5, records_per_client=30
    ).details["clients"] == 3  # fmt: skip


def test_a_run_is_saved_loaded_and_verified(run, silos, tmp_path):
    for name, one in (("run", run), ("silos", silos)):
        one.save(tmp_path / name)
        again = pop.load_run(tmp_path / name)
        assert again.guarantee == one.guarantee
        assert again.method == one.method
        assert again.sample(6, seed=1).to_arrow() == one.sample(6, seed=1).to_arrow()
        assert not [check for check in verify_papers(read_papers(tmp_path / name)) if check.result == "fails"]
    with pytest.raises(RunError, match="exists; choose another name"):
        run.save(tmp_path / "run")


def test_a_simulation_is_saved_too_unless_its_split_cannot_be_stated_again(frame, tmp_path):
    clients = pop.split([frame[:40], frame[40:]])
    run = pop.simulate(pop.methods.Moments(epsilon=4), clients, seed=3)
    assert run.method == "moments"
    run.save(tmp_path / "run", rows=9)
    assert len(pop.read_table(tmp_path / "run" / "synthetic.parquet")) == 9
    assert not [check for check in verify_papers(read_papers(tmp_path / "run")) if check.result == "fails"]
    odd = pop.simulate(pop.methods.Independent(epsilon=4), dataclasses.replace(pop.split(frame), asked=None), seed=3)
    with pytest.raises(RunError, match="cannot be stated again"):
        odd.save(tmp_path / "odd")


def test_images_in_silos_by_the_default_for_images(digits):
    parts = [digits.take(np.arange(30)), digits.take(np.arange(30, 60))]
    run = pop.synthesize(parts, epsilon=4, seed=0, rows=6)
    assert run.method == "moments"
    assert run.details["clients"] == 2
    assert run.sample(4).x.shape == (4, 8, 8)


def test_a_run_is_evaluated(run, frame, tmp_path):
    found = pop.evaluate(run, real=frame, target="income")
    found.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "2-LDP" in page
    assert found.metrics["method"] == "independent"


def test_plan_needs_no_data(frame):
    table = pop.split(frame).data
    predicted = pop.plan("independent", epsilon=2, schema=table.schema, clients=1000)
    assert predicted.guarantee.epsilon == 2
    assert pop.plan(pop.methods.Independent(epsilon=2), clients=pop.split(frame)).rounds == 1


def test_a_method_is_audited_and_a_run_attacked(run, frame):
    document = pop.audit(pop.methods.Krr(epsilon=2), samples=400, seed=0)
    assert not document["flagged"]
    found = pop.attack(run, real=frame, targets=4, shadows=6, attacked=6, rows=20, jobs=1)
    assert 0 <= found["membership"]["accuracy"] <= 1
    assert (run.folder / "attacks.json").is_file()


FRAME = pd.DataFrame({"a": ["x", "y"] * 6, "b": [1, 2] * 6})
WRONG = {
    "no epsilon": (lambda: pop.synthesize(FRAME), "needs epsilon"),
    "epsilon is text": (lambda: pop.synthesize(FRAME, epsilon="4"), "expected epsilon as a number, got '4'"),
    "epsilon is true": (lambda: pop.synthesize(FRAME, epsilon=True), "expected epsilon as a number, got True"),
    "epsilon is 0": (lambda: pop.synthesize(FRAME, epsilon=0), "epsilon"),
    "epsilon is negative": (lambda: pop.synthesize(FRAME, epsilon=-1.0), "epsilon"),
    "delta is text": (lambda: pop.synthesize(FRAME, epsilon=1, method="moments", delta="x"), "expected delta as a number"),
    "delta of a pure method": (lambda: pop.synthesize(FRAME, epsilon=1, method="independent", delta=0.1), "pure guarantee"),
    "data is a number": (lambda: pop.synthesize(5, epsilon=1), "expected data as a pandas, polars or Arrow table"),
    "data is None": (lambda: pop.synthesize(None, epsilon=1), "got NoneType"),
    "data is an array": (lambda: pop.synthesize(np.ones((3, 2)), epsilon=1), "got ndarray"),
    "data is a dict": (lambda: pop.synthesize({"a": [1]}, epsilon=1), "got dict"),
    "data is a column": (lambda: pop.synthesize(FRAME["a"], epsilon=1), "got Series"),
    "data is lazy": (lambda: pop.synthesize(pl.from_pandas(FRAME).lazy(), epsilon=1), "collect it first"),
    "data is empty": (lambda: pop.synthesize(FRAME[:0], epsilon=1), "row"),
    "no silo": (lambda: pop.synthesize([], epsilon=1), "empty list"),
    "silos of rows": (lambda: pop.synthesize([{"a": 1}], epsilon=1), "got dict"),
    "other columns": (lambda: pop.synthesize([FRAME, FRAME[["a"]]], epsilon=1), "table 2 differs in b"),
    "silos and clients": (
        lambda: pop.synthesize([FRAME, FRAME], epsilon=1, method="moments", records_per_client=2), "list of silos",
    ),
    "no such file": (lambda: pop.synthesize("nothing.csv", epsilon=1), "nothing.csv"),
    "unknown method": (lambda: pop.synthesize(FRAME, epsilon=1, method="magic"), "unknown method 'magic'"),
    "method is a class": (lambda: pop.synthesize(FRAME, epsilon=1, method=pop.methods.Krr), "expected a method"),
    "method is a number": (lambda: pop.synthesize(FRAME, epsilon=1, method=3), "expected a method"),
    "epsilon twice": (lambda: pop.synthesize(FRAME, epsilon=1, method=pop.methods.Krr(epsilon=2)), "has its own epsilon"),
    "images only": (lambda: pop.synthesize(FRAME, epsilon=1, method="genfl"), "images"),
    "no such target": (lambda: pop.synthesize(FRAME, epsilon=1, target="c"), "'c'"),
    "target is a number": (lambda: pop.synthesize(FRAME, epsilon=1, target=1), "expected target as text"),
    "schema is a dict": (lambda: pop.synthesize(FRAME, epsilon=1, schema={}), "expected schema as a Schema"),
    "no such schema": (lambda: pop.synthesize(FRAME, epsilon=1, schema="nothing.toml"), "nothing.toml"),
    "no rows": (lambda: pop.synthesize(FRAME, epsilon=1, rows=0), "expected rows of at least 1"),
    "rows is text": (lambda: pop.synthesize(FRAME, epsilon=1, rows="many"), "expected rows as a whole number"),
    "seed is a fraction": (lambda: pop.synthesize(FRAME, epsilon=1, seed=0.5), "seed"),
    "no such column": (lambda: pop.synthesize(FRAME, epsilon=1, client_column="c"), "no client column 'c'"),
    "settings are a list": (lambda: pop.synthesize(FRAME, epsilon=1, settings=[1]), "expected settings as a mapping"),
    "unknown setting": (lambda: pop.synthesize(FRAME, epsilon=1, settings={"colour": 1}), "no setting 'colour'"),
    "ledger is a number": (lambda: pop.synthesize(FRAME, epsilon=1, ledger=3), "expected ledger as a file"),
    "limit without ledger": (lambda: pop.synthesize(FRAME, epsilon=1, limit=3), "name one with ledger=FILE"),
    "out is a number": (lambda: pop.synthesize(FRAME, epsilon=1, out=3), "expected out as a path"),
    "trust": (lambda: pop.synthesize(FRAME, epsilon=1, method="krr", trust="central"), "works with trust local"),
    "method without epsilon": (lambda: pop.method("krr"), "needs 'epsilon'"),
    "method's text": (lambda: pop.method("krr", epsilon="4"), "expected krr.epsilon as a number, got '4'"),
    "method's name": (lambda: pop.method(4), "expected a method's name"),
    "unnamed setting": (lambda: pop.methods.Krr(4), "expected settings by name"),
    "old name": (lambda: pop.methods.Moments(epsilon=4, moves="all"), "it is called 'deformations'"),
    "a choice": (lambda: pop.methods.Moments(epsilon=4, trust="local"), "expected moments.trust as one of silo"),
    "simulate a name": (lambda: pop.simulate("krr", pop.split(FRAME)), "expected a method"),
    "simulate a frame": (lambda: pop.simulate(pop.methods.Krr(epsilon=1), FRAME), "expected clients"),
    "simulate a seed": (lambda: pop.simulate(pop.methods.Krr(epsilon=1), pop.split(FRAME), seed="x"), "seed"),
    "split by nothing": (lambda: pop.split(FRAME, records_per_client=0), "records_per_client"),
    "split by text": (lambda: pop.split(FRAME, records_per_client="2"), "records_per_client"),
    "split twice": (lambda: pop.split(FRAME, records_per_client=2, client_column="a"), "not both"),
    "load nothing": (lambda: pop.load_run("nothing"), "is not a run"),
    "load a number": (lambda: pop.load_run(3), "expected the path"),
    "plan without schema": (lambda: pop.plan("krr", epsilon=1, clients=10), "expected schema"),
    "plan without epsilon": (lambda: pop.plan("krr", clients=10), "needs epsilon"),
    "audit a number": (lambda: pop.audit(3), "expected a run, a method"),
    "audit nothing": (lambda: pop.audit("magic"), "neither a method"),
    "audit with nonsense": (lambda: pop.audit("krr", colour=1), "no option 'colour'"),
    "attack without rows": (lambda: pop.attack("krr", real=3), "expected data as"),
    "evaluate a number": (lambda: pop.evaluate(3, real=FRAME), "expected data as"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_sentence(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, words = WRONG[case]
    with pytest.raises(PopulaceError, match=re.escape(words)) as caught:
        call()
    assert isinstance(caught.value, InputError | RunError | SpecError | DataError)
    assert "\n" not in str(caught.value)
