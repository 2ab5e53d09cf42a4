"""Attacks on whole methods: a memorising generator is found out, `independent` is not, and interrupted work goes on."""

import dataclasses
import json
import math

import numpy as np
import pytest

from populace.attacks.memorise import Memorise
from populace.attacks.request import AttackRequest, _allowed, perform, run_attack
from populace.attacks.shadows import Setting, play_all
from populace.errors import DataError, RunError, SpecError
from populace.methods.base import Population
from populace.methods.baselines.independent import Independent
from populace.methods.registry import METHODS
from populace.privacy.guarantee import Guarantee
from populace.runs.run import simulate
from populace.tables.embedded import harbour
from populace.tables.partition import split
from populace.tables.table import Table


@pytest.fixture(scope="module")
def table():
    """The invented survey, without its rules, which make drawing rows slower than anything measured here."""
    found = harbour()
    schema = dataclasses.replace(found.schema, forbidden=(), comparisons=())
    return Table(schema=schema, codes=found.codes, frame=found.frame)


SMALL = {"targets": 4, "shadows": 18, "attacked": 12, "rows": 200}


def test_a_memorising_generator_is_found_out(table, tmp_path):
    document, path = run_attack(Setting(protocol=Memorise(), table=table, **SMALL), tmp_path)
    assert document["membership"]["accuracy"] >= 0.9
    assert document["membership"]["low"] > 0.5
    assert document["membership"]["allowed_accuracy"] == 1
    assert document["attribute"]["low"] > 0.05
    assert document["distances"]["low"] > 0.9
    assert document["claimed"]["epsilon"] == "inf"
    assert json.loads(path.read_text()) == document
    assert not (tmp_path / "attack-runs").exists()


@pytest.mark.slow
def test_independent_stays_within_its_interval_of_a_coin(table, tmp_path):
    document, _ = run_attack(Setting(protocol=Independent(epsilon=4.0), table=table, **SMALL), tmp_path)
    membership = document["membership"]
    assert membership["low"] <= 0.5 <= membership["high"]
    assert membership["allowed_accuracy"] == pytest.approx(1 / (1 + math.exp(-4)))
    assert membership["targets"] == 4
    assert membership["models"] == 30
    assert document["attribute"]["low"] <= 0 <= document["attribute"]["high"]
    assert document["distances"]["low"] <= 0.5 <= document["distances"]["high"]
    assert any("50 % proves nothing" in note for note in document["notes"])


def test_interrupted_work_goes_on_in_other_processes_with_the_same_result(table, tmp_path):
    setting = Setting(protocol=Memorise(), table=table, targets=2, shadows=6, attacked=6, rows=40)

    def interrupt(step):
        if step.done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_attack(setting, tmp_path / "a", progress=interrupt)
    work = tmp_path / "a/attack-runs"
    assert len(list(work.glob("run-*.npz"))) == 8
    assert not list(work.glob(".*.tmp"))
    other = dataclasses.replace(setting, seed=1)
    with pytest.raises(RunError, match="other options"):
        run_attack(other, tmp_path / "a")
    changed = Table(schema=table.schema, codes=table.codes[::-1], frame=table.frame)
    with pytest.raises(RunError, match="data changed"):
        run_attack(dataclasses.replace(setting, table=changed), tmp_path / "a")
    steps = []
    resumed = play_all(setting, work, jobs=2, progress=steps.append)
    assert steps[0].skipped
    assert steps[0].done == 8
    assert sorted(step.cell["run"] for step in steps[1:]) == [8, 9, 10, 11]
    for found, expected in zip(resumed, play_all(setting, tmp_path / "b"), strict=True):
        np.testing.assert_array_equal(found.included, expected.included)
        for name, values in expected.summaries.items():
            np.testing.assert_array_equal(found.summaries[name], values)


@pytest.mark.slow
def test_another_holdout_is_another_attack(table, tmp_path):
    """A finished attack is not made again, unless any of its rows changed."""
    setting = Setting(protocol=Memorise(), table=table, targets=1, shadows=6, attacked=6, rows=30)
    synthetic, other, third = (table.take(np.arange(a, a + 60)) for a in (0, 60, 120))
    first, _ = run_attack(setting, tmp_path, released=(synthetic, other))
    assert run_attack(setting, tmp_path, released=(synthetic, other))[0] == first
    second, _ = run_attack(setting, tmp_path, released=(synthetic, third))
    assert second["distances"]["others"] != first["distances"]["others"]
    assert second["membership"] == first["membership"]


def test_what_a_guarantee_allows_an_attacker():
    """A target replaces somebody: one step of `replace`, two of `add-remove`."""

    def allowed(neighbours, delta=0.0):
        claim = Guarantee(epsilon=1.0, delta=delta, unit="client", neighbours=neighbours, trust="local", mechanism="m")
        return _allowed(claim)["allowed_accuracy"]

    assert allowed("replace") == pytest.approx(math.e / (1 + math.e))
    assert allowed("add-remove") == pytest.approx(math.e**2 / (1 + math.e**2))
    assert allowed("add-remove", 0.01) == pytest.approx((math.e**2 + 0.01 * (1 + math.e)) / (1 + math.e**2))


def test_who_is_in_a_run(table):
    setting = Setting(protocol=Memorise(), table=table, **SMALL)
    targets, attackers, victims = setting.cast()
    assert len(targets) == 4
    assert len({*targets, *attackers, *victims}) == len(table)
    for run in (0, setting.shadows):
        included, numbers = setting.members(run)
        assert len(set(numbers)) == setting.rows
        assert set(targets[included]) <= set(numbers)
        assert not set(targets[~included]) & set(numbers)
        pool = attackers if run == 0 else victims
        assert set(numbers) - set(targets) <= set(pool)
    inside, outside = setting.victim_and_others()
    assert not set(inside) & (set(outside) | set(targets))
    coins = np.stack([setting.members(run)[0] for run in range(setting.runs)])
    assert 0.3 < coins.mean() < 0.7


def test_the_memorising_generator_repeats_its_rows_and_claims_nothing(table):
    rows = table.take(np.arange(50))
    run = simulate(Memorise(), split(rows), seed=1)
    assert sorted(map(tuple, run.sample(50).codes)) == sorted(map(tuple, rows.codes))
    assert len(run.sample(120)) == 120
    assert set(map(tuple, run.sample(20, conditions={"owns_home": "yes"}).codes)) <= set(map(tuple, rows.codes))
    assert math.isinf(run.guarantee.epsilon)
    assert "No guarantee (epsilon = inf)" in str(run.guarantee)
    assert run.guarantee.trust == "not-private"
    assert "memorise" not in METHODS
    plan = Memorise().plan(Population(schema=table.schema, clients=5))
    assert plan.bytes_up == 44
    with pytest.raises(DataError):
        run.generator.sample_codes(5, None, {0: 10**6})


def test_bad_input_is_refused(table, tmp_path):
    with pytest.raises(DataError, match="lower --rows"):
        Setting(protocol=Memorise(), table=table, rows=2_000)
    with pytest.raises(SpecError, match="rows of a run"):
        Setting(protocol=Memorise(), table=table, rows=5, targets=5)
    with pytest.raises(SpecError, match="targets"):
        Setting(protocol=Memorise(), table=table, targets=0)
    with pytest.raises(SpecError, match="shadows"):
        Setting(protocol=Memorise(), table=table, shadows=2)
    with pytest.raises(SpecError, match="synthetic rows"):
        Setting(protocol=Memorise(), table=table, rows=100, drawn=-1)
    with pytest.raises(SpecError, match="jobs"):
        play_all(Setting(protocol=Memorise(), table=table, **SMALL), tmp_path, jobs=0)
    with pytest.raises(SpecError, match="neither a method"):
        perform(AttackRequest(what="magic", data="embedded:harbour"), out=tmp_path)
    with pytest.raises(SpecError, match="no epsilon"):
        perform(AttackRequest(what="memorise", data="embedded:harbour", epsilon=1.0), out=tmp_path)
    with pytest.raises(SpecError, match="holdout"):
        perform(AttackRequest(what="memorise", data="embedded:harbour", holdout="x.csv"), out=tmp_path)
    (tmp_path / "attack-runs").mkdir()
    (tmp_path / "attack-runs/letter.txt").write_text("dear")
    with pytest.raises(RunError, match="not empty"):
        run_attack(Setting(protocol=Memorise(), table=table, **SMALL), tmp_path)
