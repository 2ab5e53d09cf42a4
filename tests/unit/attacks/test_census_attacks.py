"""Attacks on `census`: they win where epsilon is as large as can be and rows are few, and not at epsilon 1; files are silos."""

import dataclasses

import numpy as np
import pyarrow.parquet as pq
import pytest

import populace as pop
from populace.attacks.request import AttackRequest, _read, perform, run_attack
from populace.attacks.shadows import Setting
from populace.errors import SpecError
from populace.methods.census.protocol import Census
from populace.privacy.guarantee import MOST_EPSILON
from populace.tables.columns import Column
from populace.tables.schema import Schema
from populace.tables.table import from_codes

SMALL = {"components": 24, "members": 1, "fit_steps": 300, "prior_precision": 1e-6}
QUICK = {"components": 3, "members": 1, "fit_steps": 5}
FEW_RUNS = {"targets": 4, "shadows": 24, "attacked": 16, "rows": 10, "records_per_client": 10, "drawn": 400}


@pytest.fixture(scope="module")
def table():
    """Rows drawn evenly from 72 cells: with ten of them in a run, hardly anybody stands in another's cell."""
    columns = [("ward", 6), ("street", 6), ("ill", 2)]
    schema = Schema(
        columns=tuple(
            Column(name=name, kind="categorical", categories=tuple(f"{name}-{i}" for i in range(size)), source="invented")
            for name, size in columns
        ),
        target="ill",
    )  # fmt: skip
    rng = np.random.default_rng(4)
    return from_codes(rng.integers(0, schema.sizes, (400, 3)), schema, rng)


def attacked(table, folder, epsilon, **more):
    setting = Setting(protocol=Census(epsilon=epsilon, delta=1e-6, **SMALL), table=table, **{**FEW_RUNS, **more})
    return run_attack(setting, folder)[0]


@pytest.mark.slow
def test_a_few_rows_at_the_largest_epsilon_are_found_out(table, tmp_path):
    document = attacked(table, tmp_path, MOST_EPSILON)
    assert document["membership"]["low"] > 0.6
    assert document["membership"]["accuracy"] >= 0.75


@pytest.mark.slow
def test_epsilon_1_keeps_the_same_attack_below_its_bound(table, tmp_path):
    membership = attacked(table, tmp_path, 1.0)["membership"]
    assert membership["low"] <= membership["allowed_accuracy"] < 0.9
    assert membership["low"] <= 0.5
    assert membership["accuracy"] < 0.7


def test_an_attack_on_a_run_of_a_silo_deals_its_shadow_runs_to_one_silo(table, tmp_path):
    """Few runs of few rows, so that it is quick: the whole way from a run's folder to attacks.json."""
    table.schema.save(tmp_path / "people.toml")
    pq.write_table(table.frame, tmp_path / "people.parquet")
    run = pop.synthesize(
        tmp_path / "people.parquet", epsilon=1, method="census", schema=tmp_path / "people.toml", seed=1, out=tmp_path / "run",
        ledger=False, settings=QUICK,
    )  # fmt: skip
    request = AttackRequest(
        what=str(run.folder), data=str(tmp_path / "people.parquet"), targets=2, shadows=6, attacked=6, rows=12, jobs=1
    )
    document, path = perform(request)
    assert path == run.folder / "attacks.json"
    assert document["settings"]["records_per_client"] == 12
    assert document["claimed"]["epsilon"] == pytest.approx(run.guarantee.epsilon, rel=1e-3)
    assert document["membership"]["low"] <= document["membership"]["allowed_accuracy"]


@pytest.mark.parametrize(
    ("what", "options", "records"),
    [
        ("census", {}, 90),
        ("census", {"silos": 3}, 30),
        ("census", {"silos": 4}, 23),
        ("census", {"records_per_client": 5}, 5),
        ("moments", {}, 90),
        ("poll", {}, 1),
        ("poll", {"silos": 3}, 1),
        ("memorise", {}, 1),
        ("memorise", {"silos": 3}, 1),
    ],
)
def test_a_file_is_a_silo_where_a_method_protects_records(table, what, options, records):
    request = AttackRequest(what=what, data=table.frame, rows=90, **options)
    assert _read(request)[3] == records


def test_several_silos_and_rows_per_client_contradict_each_other(table):
    with pytest.raises(SpecError, match="list of silos"):
        _read(AttackRequest(what="census", data=table.frame, silos=2, records_per_client=5))


def test_settings_chosen_for_a_run_hold_in_its_shadow_runs(table, tmp_path):
    """Categories found under privacy take a share of the budget, in the run as in the attack on it."""
    run = pop.synthesize(
        table.frame.drop_columns(["street"]), epsilon=4, method="census", seed=1, out=tmp_path / "run",
        settings=QUICK,
    )  # fmt: skip
    assert run.parameters["lists_share"] > 0
    protocol, rows, _, _ = _read(AttackRequest(what=str(run.folder), data=table.frame))
    assert protocol.lists_share == run.parameters["lists_share"]
    assert dataclasses.asdict(protocol)["epsilon"] == 4
    assert rows.schema == run.generator.schema
