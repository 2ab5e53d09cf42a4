"""Runs that protect persons: what is read, listed, booked, stated and verified, and what is refused in one sentence."""

import dataclasses
import json

import jax
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

import populace as pop
from populace.cli.main import call
from populace.engines.runtime import population_of
from populace.errors import BudgetError, DataError, InputError, SpecError
from populace.methods.census.protocol import Census
from populace.privacy.accounting import epsilon_of
from populace.privacy.consequences import consequences, round_up, share_in_words
from populace.privacy.events import Repeated, from_json
from populace.privacy.guarantee import best_guess, guarantee_from_json, upwards
from populace.privacy.run_totals import plain_sum, total_of
from populace.privacy.source import Keyed, System
from populace.report.plain_language import in_plain_language
from populace.report.sections import command_of
from populace.report.statement import write_statement
from populace.runs.domains import one_value_each
from populace.runs.ledger.history import NOWHERE, Bookkeeping, booked_cost
from populace.runs.run import load_run, synthesize
from populace.runs.spec import make_method, make_spec, spec_from_file
from populace.runs.verify.checks import read_papers, verify_papers
from populace.tables.files import read_json
from populace.tables.schema import Column, Schema

SMALL = {"components": 3, "members": 2, "fit_steps": 10}
LIGHT = [part for name, value in SMALL.items() for part in ("--set", f"{name}={value}")]
ROWS, PERSONS = 900, 300
HOARDED = 250  # rows of one person, all at a place where nobody else is


def people(seed=0, hoard=HOARDED):
    rng = np.random.default_rng(seed)
    patient = rng.integers(0, PERSONS, ROWS)
    ward = rng.choice(["north", "south", "east"], ROWS).astype(object)
    patient[:hoard], ward[:hoard] = PERSONS, "attic"
    return pa.table({
        "patient": [f"p{number}" for number in patient], "age": rng.integers(18, 95, ROWS), "ward": ward.tolist(),
        "smokes": rng.choice(["no", "yes"], ROWS).tolist(),
    })  # fmt: skip


@pytest.fixture
def data(tmp_path):
    pa.csv.write_csv(people(), tmp_path / "people.csv")
    return tmp_path / "people.csv"


def spec(data, **more):
    settings = {**SMALL, **more.pop("settings", {})}
    asked = {"epsilon": 4.0, "delta": 1e-6, "rows": 200, "target": "smokes", "person": "patient", "method": "census"}
    return make_spec(data=data if isinstance(data, tuple) else str(data), settings=settings, **{**asked, **more})


def failing(folder):
    return [check for check in verify_papers(read_papers(folder)) if check.result not in ("holds", "left out")]


# Lists of values


def listed_change(choose, place, persons, person):
    """By how much zeroing out one person changes the counts of a column, in all values together."""
    without = np.where(persons == person, -1, place)
    size = int(place.max()) + 1
    with_, rest = (np.bincount(one[one >= 0], minlength=size) for one in (choose(place), choose(without)))
    return int(np.abs(with_ - rest).sum())


@pytest.mark.parametrize("source", [Keyed(jax.random.key(3)), System()], ids=["keyed", "system"])
def test_a_person_adds_one_value_of_a_column_to_the_lists(source):
    """Somebody with many values of a column, or one value many times; counting every row, or every value, is caught."""
    rng = np.random.default_rng(0)
    persons, place = rng.integers(0, 20, 200), rng.integers(-1, 6, 200)
    persons[:60], place[:40], place[40:60] = 20, np.arange(40), 5  # forty values of their own, and one twenty times
    kept = np.asarray(source.order(200))
    fixed = type("Fixed", (), {"order": lambda self, size: kept})()  # the same draw for both, as the proof holds it

    def right(place):
        return one_value_each([place], persons, fixed)[0]

    assert [listed_change(right, place, persons, person) for person in range(21)] == [1] * 21
    assert listed_change(lambda place: place, place, persons, 20) == 60
    assert len(right(place)) == 21
    drawn = {int(one_value_each([place], persons, source)[0][20]) for _ in range(1 if isinstance(source, Keyed) else 9)}
    assert drawn <= set(range(40))


def test_a_value_of_one_person_alone_is_not_listed_however_many_rows_have_it(data, tmp_path):
    """The lists of records show it, because many records have it; those of persons do not."""
    for person, shown in ((None, True), ("patient", False)):
        out = tmp_path / f"run-{person}"
        run = synthesize(spec(data, person=person, seed=1), out, keeping=NOWHERE)
        ward = run.generator.schema.columns[run.generator.schema.index("ward")]
        assert ("attic" in ward.categories) is shown
        assert ("patient" in run.generator.schema.names) is (person is None)
        assert failing(out) == []


# Statements


def test_the_statement_of_one_silo_is_for_all_rows_of_a_person(data, tmp_path):
    run = synthesize(spec(data), tmp_path / "run", keeping=NOWHERE)
    privacy = read_json(tmp_path / "run" / "privacy.json")
    assert privacy["unit"] == "person"
    assert privacy["unit_in_words"] == "one person (all rows with one value of column 'patient')"
    assert privacy["run"]["asked"]["person"] == "patient"
    assert privacy["run"]["parameters"]["unit"] == "person"
    assert "a single person has with probability" in " ".join(privacy["derivation"])
    meaning = consequences(guarantee_from_json(privacy), from_json(privacy["event"]))
    assert meaning.groups == ()
    assert not any("Repeated persons" in line for line in meaning.sentences())
    plain = dict(in_plain_language(privacy).answers)
    assert plain["Is somebody in the data more than once?"].startswith("That makes no difference")
    assert failing(tmp_path / "run") == []
    again = load_run(tmp_path / "run")
    assert again.guarantee.unit == "person"
    assert spec_from_file(run.details["spec"]).person == "patient"
    assert "--person patient" in command_of(run.details["spec"])
    write_statement(tmp_path / "run")
    assert "They may, however often" in (tmp_path / "run" / "privacy.html").read_text()
    for lie in ({"unit": "record"}, {"protects": "one row of the table"}):
        (tmp_path / "run" / "privacy.json").write_text(json.dumps({**privacy, **lie}))
        assert failing(tmp_path / "run")


def test_several_silos_say_that_a_person_pays_at_each(tmp_path):
    clients = pop.split([people(1), people(2)], person="patient")
    run = pop.simulate(Census(epsilon=2.0, delta=1e-6, unit="person", **SMALL), clients, seed=1)
    assert run.guarantee.unit_in_words == "one person (all rows at a silo with one value of column 'patient')"
    assert "a person with rows at several silos pays at each of them" in run.statement
    meaning = consequences(run.guarantee, run.event)
    (line,) = [line for line in meaning.sentences() if line.startswith("Repeated persons")]
    assert "For a person with rows at k silos it is, by k, 2: epsilon" in line
    assert "k times" not in line
    run.save(tmp_path / "saved")
    assert failing(tmp_path / "saved") == []


def test_python_takes_a_person_column():
    run = pop.synthesize(people(), epsilon=2.0, person="patient", settings=SMALL, seed=1, rows=50)
    assert (run.method, run.guarantee.unit, run.parameters["unit"]) == ("census", "person", "person")
    assert "patient" not in run.sample(5).to_pandas().columns
    assert "method: census, the default for tables" in run.remarks[0]
    made = pop.synthesize(people(), method=Census(epsilon=2.0, **SMALL), person="patient", seed=1, rows=50)
    assert made.guarantee.unit == "person"
    two = pop.synthesize(
        people(), epsilon=2.0, person="patient", settings={**SMALL, "rows_per_person": 2}, seed=1, rows=50
    )
    assert "at most 2 rows of a person at a silo count" in " ".join(two.guarantee.derivation)


def test_a_run_goes_on_with_the_persons_it_began_with(data, tmp_path, monkeypatch):
    class StopError(Exception):
        pass

    def stop(_):
        raise StopError

    with pytest.raises(StopError):
        synthesize(spec(data, seed=1), tmp_path / "run", keeping=NOWHERE, progress=stop)
    frame = people()
    swapped = frame.set_column(0, "patient", frame.column("patient").take(pa.array(np.roll(np.arange(ROWS), 1))))
    pa.csv.write_csv(swapped, data)
    with pytest.raises(pop.errors.RunError):
        synthesize(spec(data, seed=1), tmp_path / "run", keeping=NOWHERE)
    pa.csv.write_csv(frame, data)
    assert synthesize(spec(data, seed=1), tmp_path / "run", keeping=NOWHERE).guarantee.unit == "person"


# The ledger


def test_runs_of_persons_add_up_per_person_under_a_limit(data, tmp_path):
    keeping = Bookkeeping(limit=9.0)
    first = synthesize(spec(data), tmp_path / "1", keeping=keeping)
    second = synthesize(spec(data), tmp_path / "2", keeping=keeping)
    assert "for one person with all their rows, at all silos (one value of column 'patient')" in second.statement
    standing = second.details["booked"]["standing"]
    assert (standing["unit"], standing["per"]) == ("person", "patient")
    public = read_json(tmp_path / "2" / "privacy.json")["history"]
    assert public["unit"] == "person"
    assert public["epsilon_added"] == pytest.approx(2 * first.guarantee.epsilon)
    assert "the total for one person with all their rows, at all silos is the sum" in public["said"]
    assert failing(tmp_path / "1") == failing(tmp_path / "2") == []
    with pytest.raises(BudgetError, match="keeps a limit of epsilon 9"):
        synthesize(spec(data), tmp_path / "3", keeping=keeping)
    with pytest.raises(BudgetError, match="for another unit"):
        synthesize(spec(data, person=None, epsilon=0.5), tmp_path / "4", keeping=keeping)


def test_what_a_person_pays_at_silos_is_told_from_what_a_record_pays():
    clients = pop.split([people(1), people(2), people(3)], person="patient")
    protocol = Census(epsilon=1.0, delta=1e-6, unit="person", **SMALL)
    cost = booked_cost(protocol, population_of(clients), seeded=False, person="Patient ")
    assert (cost.unit, cost.silos, cost.person) == ("person", 3, "patient")
    whole = plain_sum([cost], unit="person", neighbours="zero-out")
    assert whole.epsilon == pytest.approx(
        epsilon_of(Repeated(cost.event, 3), delta=3 * cost.delta)
    )  # noise of each silo
    assert 1.5 * cost.epsilon < whole.epsilon < 2 * cost.epsilon
    assert whole.delta == pytest.approx(3 * cost.delta)
    summed = plain_sum([dataclasses.replace(cost, trust="secure-sum")], unit="person", neighbours="zero-out")
    assert (
        summed.epsilon > 3 * cost.epsilon * 0.99
    )  # one noise, which a person at three silos moves against three times
    unknown = plain_sum([dataclasses.replace(cost, event=None)], unit="person", neighbours="zero-out")
    assert (unknown.epsilon, unknown.delta) == (pytest.approx(3 * cost.epsilon), pytest.approx(3 * cost.delta))
    record = total_of([cost], unit="record", neighbours="zero-out")
    assert record.epsilon == pytest.approx(2 * cost.epsilon)  # the person's other rows stay
    alone = dataclasses.replace(cost, silos=1)
    assert plain_sum([alone], unit="person", neighbours="zero-out").epsilon == cost.epsilon


def test_console_statement_ledger_and_limit_tell_one_number_for_a_person_at_several_silos(tmp_path, capsys):
    files = []
    for seed in (1, 2, 3):
        pa.csv.write_csv(people(seed), tmp_path / f"{seed}.csv")
        files.append(str(tmp_path / f"{seed}.csv"))
    both = spec(tuple(files), epsilon=1.0)
    refused = (
        "for one person with all their rows, at all silos: this run's epsilon .* of its 3 silos, and they pay at each"
    )
    with pytest.raises(BudgetError, match=refused):
        synthesize(both, tmp_path / "0", keeping=Bookkeeping(limit=1.0))
    first = synthesize(both, tmp_path / "1", keeping=Bookkeeping(limit=9.0))
    second = synthesize(both, tmp_path / "2", keeping=Bookkeeping())
    page = write_statement(tmp_path / "1").read_text()
    meaning = consequences(first.guarantee, first.event, silos=3)
    (two, three) = meaning.groups
    assert (two[0], three[0]) == (2, 3)
    assert first.guarantee.epsilon < two[1] < three[1] < 2 * first.guarantee.epsilon
    assert f"with 3 {meaning.pair(*three[1:])}" in page
    assert "with 5 " not in page
    at_two, at_three = (right for _, right in meaning.groups_presence)
    assert 0.5 < meaning.presence < at_two < at_three < best_guess(*three[1:])
    assert f"{share_in_words(at_three)} with 3, where it is {share_in_words(meaning.presence)} with one." in page
    assert "How many units there are" not in page
    assert "How many persons they belong to is covered by the bound" in page
    public = read_json(tmp_path / "2" / "privacy.json")["history"]
    assert public["unit"] == "person"
    assert public["epsilon_added"] == pytest.approx(2 * three[1])
    capsys.readouterr()
    assert call(["ledger", "show", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [run["silos"] for run in shown["runs"]] == [3, 3]
    assert shown["runs"][0]["epsilon_so_far"] == pytest.approx(three[1])
    assert shown["runs"][1]["epsilon_so_far"] == public["epsilon_if_all_share_records"]
    assert shown["runs"][1]["epsilon_added_so_far"] == shown["totals"][0]["epsilon_added"] == public["epsilon_added"]
    sums = f"({round_up(public['epsilon_added'])}, {round_up(public['delta_added'])})-DP"
    for words in (second.statement, public["said"]):
        assert sums in words
        assert "for one row" not in words
    assert call(["ledger", "show", str(tmp_path)]) == 0
    assert "one with rows at all files, who pays at each" in capsys.readouterr().out
    checked = " ".join(check.words for check in verify_papers(read_papers(tmp_path / "1")))
    assert f"{upwards(first.guarantee.epsilon)} is claimed" in checked  # the number of the page, rounded as there
    assert failing(tmp_path / "1") == failing(tmp_path / "2") == []


# Bad input


def said(arguments, capsys):
    code = call([str(argument) for argument in arguments])
    return code, capsys.readouterr().err.strip()


WRONG = {
    "no such column": (["--person", "nobody"], "no person column 'nobody'"),
    "another method": (["--person", "patient", "--method", "poll"], "method 'poll' protects one client"),
    "another method of silos": (["--person", "patient", "--method", "flaim"], "method 'flaim' protects one record"),
    "the target": (["--person", "patient", "--target", "patient"], "patient"),
    "no column": (["--set", "unit=person"], "name the column that does (--person COLUMN"),
    "rows of records": (["--set", "rows_per_person=2"], "rows_per_person is for persons"),
    "too many rows": (["--person", "patient", "--set", "rows_per_person=100000"], "expected rows_per_person in 0 to 1000"),
    "another unit": (["--person", "patient", "--set", "rows_per_person=half"], "rows_per_person"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_one_sentence(name, data, tmp_path, capsys):
    options, expected = WRONG[name]
    code, words = said(["synthesize", data, "--epsilon", 1, "--out", tmp_path / "run", *LIGHT, *options], capsys)
    assert code == 2
    assert expected in words
    assert "\n" not in words.replace("\nmethod:", "")
    assert not (tmp_path / "run").exists()


def test_gaps_and_schemas_with_the_person_are_one_sentence(data, tmp_path, capsys):
    gaps = people().to_pandas()
    gaps.loc[4, "patient"] = None
    gaps.to_csv(tmp_path / "gaps.csv", index=False)
    usual = ["--epsilon", 1, "--out", tmp_path / "run", *LIGHT, "--person", "patient"]
    code, words = said(["synthesize", tmp_path / "gaps.csv", *usual], capsys)
    assert (code, "no value in row 5" in words) == (2, True)
    column = Column(name="patient", kind="categorical", categories=tuple(f"p{n}" for n in range(PERSONS + 1)))
    Schema(columns=(column,)).save(tmp_path / "s.toml")
    code, words = said(["synthesize", data, *usual, "--schema", tmp_path / "s.toml"], capsys)
    assert (code, "take it out of the schema" in words) == (2, True)
    np.savez(tmp_path / "i.npz", x=np.zeros((4, 2, 2), np.uint8), y=np.zeros(4, np.int64))
    code, words = said(["synthesize", tmp_path / "i.npz", *usual], capsys)
    assert code == 2


def test_a_plan_of_persons(tmp_path, capsys):
    columns = (Column(name=name, kind="categorical", categories=("x", "y")) for name in "ab")
    Schema(columns=tuple(columns)).save(tmp_path / "s.toml")
    plan = ["plan", "--schema", tmp_path / "s.toml", "--clients", 2, "--records-per-client", 50, "--epsilon", 1, *LIGHT]
    assert call([str(word) for word in [*plan, "--person", "--json"]]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["guarantee"]["unit"] == "person"
    code, words = said([*plan, "--person", "--method", "poll"], capsys)
    assert (code, "leave --person out" in words) == (2, True)


def test_specifications_without_persons_are_what_they_were(data):
    usual = spec(data, person=None)
    assert "person" not in json.dumps(usual.settings)
    assert make_method(usual).protected_unit == "record"
    assert make_method(spec(data)).protected_unit == "person"
    assert usual.digest() != spec(data).digest()
    with pytest.raises(SpecError, match="expected person as"):
        spec(data, person=3)
    for wrong, error in ((["a"], InputError), ("nobody", DataError)):
        with pytest.raises((error, SpecError)):
            pop.split(people(), person=wrong)
