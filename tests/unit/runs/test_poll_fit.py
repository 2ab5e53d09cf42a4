"""Answers from files: agreed terms, well-formed reports, each client once; the run `synthesize` would have left."""

import dataclasses
import json

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from populace.errors import DataError, RunError, SpecError
from populace.runs.poll import count, files
from populace.runs.poll.assignment import ONE_STAGE
from populace.runs.poll.collect import Collection, collect
from populace.runs.poll.count import REASONS, Seen
from populace.runs.poll.fit import Fit, fit_answers
from populace.runs.run import load_run, synthesize
from populace.runs.spec import make_spec
from populace.tables.table import read_frame

FAST = {"latent_classes": 2, "prior_scale": 0.6, "chains": 1, "langevin_steps": 10, **ONE_STAGE}


@pytest.fixture(scope="module")
def base(small_table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    small_table.save(folder / "small.parquet")
    small_table.schema.save(folder / "small.toml")
    give(folder, "a")
    return folder


def give(folder, name, **changes):
    settings = {"epsilon": 2.0, "settings": dict(FAST), "seed": 5} | changes
    wanted = Collection(data=str(folder / "small.parquet"), schema_file=str(folder / "small.toml"), **settings)
    collect(wanted, folder / f"{name}.parquet")
    return folder / f"{name}.parquet"


def order(folder, *paths, **changes):
    settings = {"rows": 50, "seed": 5} | changes
    return Fit(answers=tuple(str(folder / path) for path in paths), schema_file=str(folder / "small.toml"), **settings)


def changed(base, path, change, terms=None):
    """A copy of the answers with some of its rows, or its terms, changed."""
    table = pq.read_table(base / "a.parquet")
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    change(columns)
    metadata = dict(table.schema.metadata)
    if terms:
        metadata[files.KEY] = json.dumps({**json.loads(metadata[files.KEY]), **terms}).encode()
    pq.write_table(pa.table(columns, schema=table.schema.with_metadata(metadata)), path)
    return path


def counts(state):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state.learner.counts)]


def test_the_run_is_the_one_synthesize_leaves(base, tmp_path):
    run = fit_answers(order(base, "a.parquet"), tmp_path / "fit")
    spec = make_spec(
        data=str(base / "small.parquet"), schema_file=str(base / "small.toml"), epsilon=2.0, method="poll",
        settings=dict(FAST), rows=50, seed=5,
    )  # fmt: skip
    simulated = synthesize(spec, tmp_path / "simulated")
    one, other = (read_frame(tmp_path / name / "synthetic.parquet") for name in ("fit", "simulated"))
    assert one.equals(other)
    assert {path.name for path in (tmp_path / "fit").iterdir()} == {
        path.name for path in (tmp_path / "simulated").iterdir()
    }
    assert set(simulated.details) - {"booked"} <= set(run.details)  # clients keep their own ledgers
    assert run.details["traffic"]["messages"] == simulated.details["traffic"]["messages"] == 600
    assert run.details["ledger"] == simulated.details["ledger"]
    loaded = load_run(tmp_path / "fit")
    assert loaded.guarantee.seeded
    assert "answers came in files" in str(loaded.guarantee)
    assert loaded.sample(7, seed=1).codes.shape == (7, 4)


def test_answers_of_0_2_0_are_counted_as_they_were(base, tmp_path):
    """Its files name settings otherwise, a workload is text, and no target is the word `none`."""
    old = {"epsilon": 2.0, "target": "", "workload": "", "stages": 1, "classes": 2, "spread": 0.6, "chains": 1, "moves": 10,
           "robust": False, "batch": 16_384}  # fmt: skip
    present, _ = files.read_terms(base / "a.parquet")
    written, _ = files.read_terms(changed(base, tmp_path / "old.parquet", lambda _: None, terms={"parameters": old}))
    assert written == present
    assert written.protocol() == present.protocol()
    without = changed(base, tmp_path / "none.parquet", lambda _: None, terms={"parameters": old | {"target": "none"}})
    assert files.read_terms(without)[0].protocol().target is None


def test_traffic_is_what_the_files_hold(base, tmp_path):
    run = fit_answers(order(base, "a.parquet"), tmp_path / "fit")
    sent = sum(len(report) for report in pq.read_table(base / "a.parquet").column("report").to_pylist())
    assert run.details["traffic"]["bytes_from_clients"] == sent


def test_settings_of_the_fit_can_change_and_questions_cannot(base, tmp_path):
    run = fit_answers(order(base, "a.parquet", settings={"latent_classes": "4", "robust": "true"}), tmp_path / "fit")
    assert run.details["parameters"]["latent_classes"] == 4
    assert run.details["parameters"]["robust"] is True
    for name, value in (("epsilon", "3"), ("workload", "colour+size"), ("target", "none")):
        with pytest.raises(SpecError, match=f"--set {name} changes the questions"):
            fit_answers(order(base, "a.parquet", settings={name: value}), tmp_path / "other")
    assert not (tmp_path / "other").exists()


DISAGREE = {
    "epsilon": ({"epsilon": 1.0}, "with other settings than .*epsilon 1.0, not 2.0"),
    "coin": ({"coin": "another"}, "with another public coin"),
    "target": ({"target": "colour"}, "for another target than .*'colour', not None"),
}


@pytest.mark.parametrize("name", DISAGREE)
def test_files_on_other_terms_are_refused(name, base, tmp_path, monkeypatch):
    change, sentence = DISAGREE[name]
    other = base / f"other-{name}.parquet"
    if not other.exists():
        give(base, f"other-{name}", first_client=600, **change)
    with pytest.raises(DataError, match=sentence):
        fit_answers(order(base, "a.parquet", other.name), tmp_path / "fit")
    assert not (tmp_path / "fit").exists()


def test_another_schema_or_version_is_refused(base, small_schema, tmp_path):
    dataclasses.replace(small_schema, target=None).save(tmp_path / "other.toml")
    wanted = dataclasses.replace(order(base, "a.parquet"), schema_file=str(tmp_path / "other.toml"))
    with pytest.raises(DataError, match="under another schema than"):
        fit_answers(wanted, tmp_path / "fit")
    path = changed(base, tmp_path / "v.parquet", lambda columns: None, {"questions": "0" * 64, "version": "9.9"})
    with pytest.raises(DataError, match=r"populace 9\.9, which asks other questions"):
        fit_answers(order(base, path), tmp_path / "fit")


BROKEN = {
    "format": ({"format": 7}, "format 7, expected 1; update"),
    "a field more": ({"colour": 1}, "damaged"),
    "a number as text": ({"clients": "many"}, "damaged: clients is 'many'"),
    "a coin": ({"coin": "abc"}, "damaged"),
    "parameters": ({"parameters": {"epsilon": [1]}}, r"damaged: epsilon is \[1\]"),
    "no client": ({"clients": 0}, "damaged: numbers of clients"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_damaged_terms_are_one_sentence(name, base, tmp_path):
    terms, sentence = BROKEN[name]
    path = changed(base, tmp_path / "x.parquet", lambda columns: None, terms)
    with pytest.raises(DataError, match=sentence):
        fit_answers(order(base, path), tmp_path / "fit")


def test_malformed_answers_are_dropped_and_said(base, tmp_path, monkeypatch):
    monkeypatch.setattr(count, "MOST_DROPPED", 0.1)
    clean = fit_answers(order(base, "a.parquet"), tmp_path / "clean")

    def spoil(columns):
        columns["client"][0] = 600  # nobody: the poll has 600 clients
        columns["client"][1] = None
        columns["question"][2] = 10_000
        columns["question"][3] = (columns["question"][3] + 1) % 6
        columns["question"][4] = None
        columns["report"][5] = b""
        columns["report"][6] = columns["report"][6] + b"\0"
        columns["report"][7] = b"\xff" * len(columns["report"][7])
        columns["report"][8] = None

    path = changed(base, tmp_path / "spoilt.parquet", spoil)
    heard = []
    run = fit_answers(order(base, path), tmp_path / "fit", say=heard.append)
    assert list(run.details["answers"]["dropped"].values()) == [2, 3, 4]
    assert run.details["clients"] == 591
    assert clean.details["clients"] == 600
    assert all(reason in heard[-1] for reason in REASONS)


def test_many_malformed_answers_are_refused_and_leave_nothing(base, tmp_path):
    def spoil(columns):
        columns["report"][:7] = [b"no"] * 7

    path = changed(base, tmp_path / "spoilt.parquet", spoil)
    with pytest.raises(
        DataError, match=r"7 of 600 answers are malformed \(7 not a report about its question\), more than 1%"
    ):
        fit_answers(order(base, path), tmp_path / "fit")
    assert not (tmp_path / "fit").exists()
    run = fit_answers(order(base, "a.parquet"), tmp_path / "fit")
    assert run.details["status"] == "finished"


def test_a_client_that_comes_twice_is_refused(base, tmp_path):
    with pytest.raises(DataError, match="named twice"):
        fit_answers(order(base, "a.parquet", "a.parquet"), tmp_path / "fit")
    copy = changed(base, tmp_path / "copy.parquet", lambda columns: None)
    with pytest.raises(DataError, match=r"client 0 comes a second time in .*copy\.parquet"):
        fit_answers(order(base, "a.parquet", copy), tmp_path / "fit")

    def repeat(columns):
        columns["client"][300] = 17

    within = changed(base, tmp_path / "within.parquet", repeat)
    with pytest.raises(DataError, match=r"client 17 comes a second time"):
        fit_answers(order(base, within), tmp_path / "fit")


def test_an_interrupted_fit_goes_on_where_it_was(base, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "ROWS", 100)
    monkeypatch.setattr(count, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    whole = fit_answers(order(base, "a.parquet", seed=None), tmp_path / "whole")
    assert whole.details["clients"] == 600

    def interrupt(at):
        if at.done == 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_answers(order(base, "a.parquet"), tmp_path / "fit", progress=interrupt)
    with pytest.raises(RunError, match="not finished"):
        load_run(tmp_path / "fit")
    heard, seen = [], []
    run = fit_answers(
        order(base, "a.parquet"), tmp_path / "fit", say=heard.append, progress=lambda at: seen.append(at.done)
    )
    assert "300 answers were counted" in heard[0]
    assert seen == [400, 500, 600]
    straight = fit_answers(order(base, "a.parquet"), tmp_path / "straight")
    assert read_frame(tmp_path / "fit/synthetic.parquet").equals(read_frame(tmp_path / "straight/synthetic.parquet"))
    assert run.details["answers"] == straight.details["answers"]
    assert not (tmp_path / "fit/checkpoint.npz").exists()


def test_a_resumed_fit_reads_the_same_files_or_none(base, tmp_path, monkeypatch):
    monkeypatch.setattr(count, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    path = changed(base, tmp_path / "x.parquet", lambda columns: None)

    def interrupt(at):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_answers(order(base, path), tmp_path / "fit", progress=interrupt)
    changed(base, path, lambda columns: columns["report"].reverse())
    with pytest.raises(RunError, match="the data changed"):
        fit_answers(order(base, path), tmp_path / "fit")
    changed(base, path, lambda columns: None)
    (tmp_path / "fit/checkpoint.npz").write_bytes(b"PK")
    with pytest.raises(RunError, match="cannot resume"):
        fit_answers(order(base, path), tmp_path / "fit")


def test_no_answers_at_all(base, tmp_path):
    def empty(columns):
        for name in columns:
            columns[name] = []

    path = changed(base, tmp_path / "none.parquet", empty)
    with pytest.raises(DataError, match="no answers; expected at least one"):
        fit_answers(order(base, path), tmp_path / "fit")


def test_seen_is_a_set():
    rng = np.random.default_rng(0)
    seen, known = Seen(), set()
    for _ in range(200):
        clients = rng.integers(0, 4_000, rng.integers(0, 6))
        listed = clients.tolist()
        twice = {client for client in listed if client in known or listed.count(client) > 1}
        found = seen.add(clients)
        if len(set(listed)) == len(listed):
            assert found == (min(twice) if twice else None)
            known |= set(listed)
        else:
            assert found in twice
    assert np.flatnonzero(np.unpackbits(seen.bits, bitorder="little")).tolist() == sorted(known)


def test_missing_reports_clients_and_questions_are_malformed_answers(base, tmp_path):
    """Damaged or forged files have holes: a few are dropped and said, all of them are refused."""

    def holes(columns, rows):
        for place, name in zip(rows, ("report", "client", "question"), strict=False):
            columns[name][place] = None

    few = changed(base, tmp_path / "few.parquet", lambda columns: holes(columns, range(3)))
    run = fit_answers(order(base, few), tmp_path / "fit")
    assert sum(run.details["answers"]["dropped"].values()) == 3
    for name in ("report", "client", "question"):
        gone = changed(base, tmp_path / "gone.parquet", lambda columns, name=name: columns.update({name: [None] * 600}))
        with pytest.raises(DataError, match="600 of 600 answers are malformed"):
            fit_answers(order(base, gone), tmp_path / "none")
