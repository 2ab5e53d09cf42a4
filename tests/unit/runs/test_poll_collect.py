"""Answers to files: the simulation's with a seed, exact ones without, and a ledger that is charged first."""

import dataclasses

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from populace.engines import debug, simulation
from populace.engines.runtime import Keys
from populace.errors import BudgetError, DataError, RunError, SpecError
from populace.methods.base import Population, Shard
from populace.methods.poll.protocol import Poll
from populace.privacy.ledger import Budget
from populace.privacy.source import System
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.runs.poll import client_stream, sorting
from populace.runs.poll import collect as collecting
from populace.runs.poll.assignment import ONE_STAGE, Assignment, check_one_stage
from populace.runs.poll.collect import Collection, collect, release
from populace.runs.poll.count import count_files, nothing_counted
from populace.runs.poll.files import coin_from, read_terms
from populace.runs.poll.numbers import NUMBERS
from populace.runs.run import make_key
from populace.tables.partition import split, split_by_column
from populace.tables.schema import Column, Schema
from populace.tables.table import Table, from_codes, write_frame

SURE = {"epsilon": 50.0, "settings": dict(ONE_STAGE)}  # nobody lies: an answer is the record
FAST = {"latent_classes": 2, "prior_scale": 0.6, "chains": 1, "langevin_steps": 10, **ONE_STAGE}


@pytest.fixture
def files(small_table, tmp_path):
    small_table.save(tmp_path / "small.parquet")
    small_table.schema.save(tmp_path / "small.toml")
    return tmp_path


def wanted(files, data="small.parquet", **changes):
    settings = {"epsilon": 2.0, "settings": dict(FAST)} | changes
    return Collection(data=str(files / data), schema_file=str(files / "small.toml"), **settings)


def counts_of(paths, schema):
    """What the server would count from these files."""
    terms, _ = read_terms(paths[0])
    population = Population(schema=schema, clients=max(read_terms(path)[0].clients for path in paths))
    assignment = Assignment(terms.protocol(), population, terms.key)
    counted = count_files(paths, assignment, nothing_counted(assignment))
    assert sum(counted.dropped.values()) == 0
    return jax.tree.map(np.asarray, counted.state.learner.counts)


def assert_same(found, expected):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.array_equal(one, other)


class TestSeeded:
    @pytest.fixture(autouse=True)
    def quick_engines(self, monkeypatch):
        monkeypatch.setattr(Poll, "finish", lambda *_: None)  # counts are compared, not models

    def test_the_same_counts_as_the_simulation(self, files, small_table):
        collect(wanted(files, seed=5), files / "a.parquet")
        engine = simulation.run(Poll(epsilon=2.0, **FAST), split(small_table), root=make_key(5))
        assert_same(counts_of([files / "a.parquet"], small_table.schema), engine.state.learner.counts)
        other = simulation.run(Poll(epsilon=2.0, **FAST), split(small_table), root=make_key(6))
        assert not np.array_equal(other.state.learner.counts.supports, engine.state.learner.counts.supports)

    def test_the_same_counts_as_one_client_at_a_time(self, files, small_table):
        few = small_table.take(np.arange(40))
        few.save(files / "few.parquet")
        collect(wanted(files, data="few.parquet", seed=5), files / "a.parquet")
        engine = debug.run(Poll(epsilon=2.0, **FAST), split(few), root=make_key(5))
        assert_same(counts_of([files / "a.parquet"], small_table.schema), engine.state.learner.counts)

    def test_files_of_two_sites_are_the_simulation_of_all(self, files, small_table):
        for name, rows in (("north", np.arange(250)), ("south", np.arange(250, 600))):
            small_table.take(rows).save(files / f"{name}.csv")
        small = {"settings": FAST | {"clients_per_batch": 128}, "seed": 5, "clients": 600}
        collect(wanted(files, data="north.csv", **small), files / "n.parquet")
        collect(wanted(files, data="south.csv", first_client=250, **small), files / "s.parquet")
        engine = simulation.run(Poll(epsilon=2.0, clients_per_batch=128, **FAST), split(small_table), root=make_key(5))
        both = [files / "s.parquet", files / "n.parquet"]
        assert_same(counts_of(both, small_table.schema), engine.state.learner.counts)

    def test_clients_with_several_records(self, files, small_table, monkeypatch):
        monkeypatch.setattr(client_stream, "CLIENTS", 64)
        collect(wanted(files, seed=5, records_per_client=7), files / "a.parquet")
        engine = simulation.run(Poll(epsilon=2.0, **FAST), split(small_table, records_per_client=7), root=make_key(5))
        assert_same(counts_of([files / "a.parquet"], small_table.schema), engine.state.learner.counts)

    def test_clients_named_by_a_column(self, files, small_table, monkeypatch):
        monkeypatch.setattr(client_stream, "CLIENTS", 50)
        who = pa.array([f"person {i}" for i in np.sort(np.random.default_rng(0).integers(0, 200, 600))])
        write_frame(small_table.frame.append_column("who", who), files / "named.csv")
        collect(wanted(files, data="named.csv", seed=5, client_column="who"), files / "a.parquet")
        clients = split_by_column(who, small_table, name="who")
        engine = simulation.run(Poll(epsilon=2.0, **FAST), clients, root=make_key(5))
        assert_same(counts_of([files / "a.parquet"], small_table.schema), engine.state.learner.counts)

    def test_the_file_says_that_it_is_seeded(self, files):
        found = collect(wanted(files, seed=5), files / "a.parquet")
        assert "reproducible, not private" in str(found.guarantee)
        assert read_terms(files / "a.parquet")[0].seeded
        assert not (files / "small.parquet.ledger").exists()


class TestExact:
    def test_reports_have_the_mechanisms_law(self, small_table):
        """The own cell is told with probability p: a test that also rejects q, and p at half the epsilon."""
        schema = small_table.schema
        population = Population(schema=schema, clients=6000)
        asked = Poll(epsilon=1.5, **ONE_STAGE).survey(population)
        records = np.tile(small_table.codes, (10, 1))[:, None, :]
        questions = np.arange(6000) % len(asked.groups)
        told = release(asked, questions, records, np.ones((6000, 1), bool))
        own = np.array([told[i, int(asked.cell(records[i, 0], questions[i]))] for i in range(0, 6000, 4)])
        p = np.array([asked.panel.members[q].p for q in questions[::4]])
        members = [dataclasses.replace(member, epsilon=0.75) for member in asked.panel.members]
        half = np.array([members[q].p for q in questions[::4]])
        spread = np.sqrt((p * (1 - p)).sum())
        assert abs(own.sum() - p.sum()) < 4 * spread
        assert abs(own.sum() - half.sum()) > 6 * spread

    def test_without_noise_many_say_what_each_says(self, small_table):
        """`release` is the method's own answer for many clients: at an epsilon where nobody lies, the very same."""
        schema = small_table.schema
        protocol, population = Poll(epsilon=50.0, **ONE_STAGE), Population(schema=schema, clients=40)
        asked = protocol.survey(population)
        questions = np.arange(40) % len(asked.groups)
        records, mask = small_table.codes[:40, None, :], np.ones((40, 1), bool)
        for row, told in enumerate(release(asked, questions, records, mask)):
            shard = Shard(records=records[row], mask=mask[row], population=population)
            own, _ = protocol.answer((), questions[row], shard, (), System())
            assert np.array_equal(told, own)

    def test_a_clients_record_is_chosen_evenly(self, small_table):
        schema = small_table.schema
        asked = Poll(epsilon=40.0, **ONE_STAGE).survey(Population(schema=schema, clients=900, records=4))
        two = np.zeros((900, 4, len(schema.columns)), np.int32)
        two[:, 1] = 1
        two[:, 2:] = 2  # padding, never to be told
        mask = np.tile([True, True, False, False], (900, 1))
        questions = np.zeros(900, np.int64)
        told = release(asked, questions, two, mask).argmax(axis=1)
        cells = [int(asked.cell(two[0, place], 0)) for place in (0, 1)]
        assert set(told) == set(cells)
        assert 350 < (told == cells[0]).sum() < 550

    def test_a_client_without_records_is_refused(self, small_table):
        asked = Poll(epsilon=1.0, **ONE_STAGE).survey(Population(schema=small_table.schema, clients=2))
        with pytest.raises(SpecError, match="at least 1"):
            release(asked, np.zeros(2, int), np.zeros((2, 1, 4), np.int32), np.array([[True], [False]]))

    def test_what_is_written_stands_in_the_ledgers(self, files):
        collect(wanted(files), files / "a.parquet")
        rows = pq.read_table(files / "a.parquet").to_pylist()
        terms, answers = read_terms(files / "a.parquet")
        assert answers == len(rows) == 600
        assert [row["client"] for row in rows] == list(range(600))
        run = f"poll {terms.questions[:16]} {terms.coin}"
        with SqliteLedger(files / "small.parquet.ledger", Budget(epsilon=2.0)) as ledger:
            order = np.frombuffer(ledger.begun(f"{run} of small.parquet").numbers, NUMBERS)
            for row in rows[::50]:
                account = f"small.parquet {order[row['client']]}"
                kept = ledger.stored(account, run=run, round_id=0, question=str(row["question"]))
                assert kept == row["report"]
                assert ledger.spent(account) == 2.0

    def test_given_again_it_writes_the_same_and_spends_nothing(self, files):
        heard = []
        for name in ("a", "b"):
            collect(wanted(files), files / f"{name}.parquet", say=heard.append)
        assert pq.read_table(files / "a.parquet").equals(pq.read_table(files / "b.parquet"))
        assert "600 clients had answered before" in heard[-1]
        with SqliteLedger(files / "small.parquet.ledger", Budget(epsilon=2.0)) as ledger:
            assert ledger.entries("small.parquet 7") == 1

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            ({"coin": "another"}, "would have spent epsilon 4 of 2"),
            ({"first_client": 1}, "answered another question|would have spent"),
            ({"epsilon": 1.0}, "keeps a budget of epsilon 2"),
            ({"records_per_client": 2}, "were other ones when they answered"),
        ],
    )
    def test_a_second_answer_is_refused_and_nothing_is_left(self, files, change, sentence):
        collect(wanted(files), files / "a.parquet")
        before = {path.name for path in files.iterdir()}
        with pytest.raises(BudgetError, match=sentence):
            collect(wanted(files, **change), files / "b.parquet")
        assert {path.name for path in files.iterdir()} - before <= {
            "small.parquet.ledger-wal",
            "small.parquet.ledger-shm",
        }

    def test_an_interrupted_collection_goes_on_with_the_answers_given(self, files, monkeypatch):
        monkeypatch.setattr(client_stream, "CLIENTS", 100)

        def interrupt(at):
            if at.done == 300:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            collect(wanted(files), files / "a.parquet", progress=interrupt)
        assert not (files / "a.parquet").exists()
        with SqliteLedger(files / "small.parquet.ledger", Budget(epsilon=2.0)) as ledger:
            assert len(ledger.accounts()) == 300
        heard = []
        collect(wanted(files), files / "a.parquet", say=heard.append)
        assert "300 clients had answered before" in heard[-1]
        with SqliteLedger(files / "small.parquet.ledger", Budget(epsilon=2.0)) as ledger:
            assert {ledger.entries(account) for account in ledger.accounts()} == {1}
            assert len(ledger.accounts()) == 600

    def test_no_answer_is_written_before_its_charge(self, files, monkeypatch):
        def fail(*_, **__):
            raise RunError("the disk is full")

        monkeypatch.setattr(SqliteLedger, "commit_many", fail)
        with pytest.raises(RunError, match="disk is full"):
            collect(wanted(files), files / "a.parquet")
        assert not (files / "a.parquet").exists()


class TestOrder:
    """A file of answers tells nothing about the order of the data: not by its rows, not by the clients' numbers."""

    @pytest.fixture
    def sick(self, tmp_path):
        """Two hundred people, the ill ones last."""
        schema = Schema(columns=(Column(name="diagnosis", kind="categorical", categories=("healthy", "ill")),))
        schema.save(tmp_path / "small.toml")
        codes = (np.arange(200) >= 100).astype(np.int32)[:, None]
        from_codes(codes, schema, np.random.default_rng(0)).save(tmp_path / "sick.csv")
        return tmp_path

    @staticmethod
    def told(path):
        """The records, in the order of the file of answers; people's numbers rise in it."""
        rows = pq.read_table(path)
        assert np.all(np.diff(rows["client"].to_numpy()) > 0)
        reports = [report[0] for report in rows["report"].to_pylist()]
        assert len(set(reports)) == 2
        return np.array([report == reports[-1] for report in reports])

    def test_sorted_data_give_nothing_away(self, sick):
        collect(wanted(sick, data="sick.csv", **SURE), sick / "a.parquet")
        found = self.told(sick / "a.parquet")
        assert abs(found[:100].mean() - found[100:].mean()) < 0.5  # seven standard deviations
        collect(wanted(sick, data="sick.csv", seed=5, **SURE), sick / "b.parquet")  # reproducible, not private
        found = self.told(sick / "b.parquet")
        assert abs(found[:100].mean() - found[100:].mean()) == 1.0

    def test_whatever_fits_into_memory(self, sick, monkeypatch):
        """Sorted in one piece or in many, in blocks of any size: the same file; and nothing else is left."""
        collect(wanted(sick, data="sick.csv"), sick / "a.parquet")
        before = {path.name for path in sick.iterdir()}
        monkeypatch.setattr(sorting, "ANSWERS", 7)
        monkeypatch.setattr(client_stream, "CLIENTS", 31)
        collect(wanted(sick, data="sick.csv"), sick / "b.parquet")
        assert pq.read_table(sick / "a.parquet").equals(pq.read_table(sick / "b.parquet"))
        assert {path.name for path in sick.iterdir()} - before == {"b.parquet"}

    def test_an_interrupted_collection_keeps_its_numbers(self, sick, monkeypatch):
        monkeypatch.setattr(client_stream, "CLIENTS", 50)

        def interrupt(at):
            if at.done == 100:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            collect(wanted(sick, data="sick.csv"), sick / "a.parquet", progress=interrupt)
        assert not list(sick.glob(".*"))
        collect(wanted(sick, data="sick.csv"), sick / "a.parquet")
        assert sorted(pq.read_table(sick / "a.parquet")["client"].to_pylist()) == list(range(200))

    @pytest.mark.parametrize("change", [lambda rows: rows[:-1], lambda rows: rows[::-1], lambda rows: [*rows, "new"]])
    def test_other_clients_or_another_order_are_refused_in_words(self, sick, change):
        def people(names):
            text = "diagnosis,who\n" + "".join(f"ill,{name}\n" for name in names)
            (sick / "people.csv").write_text(text)

        names = [f"person {i}" for i in range(20)]
        order = wanted(sick, data="people.csv", client_column="who", clients=30)
        people(names)
        collect(order, sick / "a.parquet")
        people(change(names))
        with pytest.raises(BudgetError, match=r"others than when they were first asked, or stand in another order"):
            collect(order, sick / "b.parquet")


class TestClientStream:
    def test_blocks_hold_every_row_once(self, files, small_table, monkeypatch):
        monkeypatch.setattr(client_stream, "CLIENTS", 33)
        held = client_stream.ClientStream(
            data=str(files / "small.parquet"), schema=small_table.schema, records_per_client=4
        )
        census = held.census()
        assert (census.clients, census.widest, census.rows) == (150, 4, 600)
        blocks = list(held.blocks(census.widest))
        assert [block.first for block in blocks] == [0, 33, 66, 99, 132]
        assert np.array_equal(np.concatenate([b.records[b.mask] for b in blocks]), small_table.codes)
        assert [name for block in blocks for name in block.names] == [f"small.parquet {i}" for i in range(150)]

    def test_a_bad_row_is_found_before_anybody_is_asked(self, files, small_table):
        frame = small_table.frame.to_pandas()
        frame.loc[599, "colour"] = "mauve"
        frame.to_csv(files / "bad.csv", index=False)
        with pytest.raises(DataError, match="'mauve' in row 600"):
            collect(wanted(files, data="bad.csv"), files / "a.parquet")
        assert not (files / "bad.csv.ledger").exists()

    def test_a_clients_rows_must_stand_together(self, files, small_table):
        who = ["x", "y", "z", "y"] * 150
        write_frame(small_table.frame.append_column("who", pa.array(who)), files / "mixed.parquet")
        with pytest.raises(DataError, match=r"client 'y' stand in several places.*sort it by 'who'"):
            collect(wanted(files, data="mixed.parquet", client_column="who"), files / "a.parquet")


def test_a_client_is_dealt_the_same_question_whoever_asks(small_schema):
    protocol = Poll(epsilon=2.0, **ONE_STAGE)
    assignment = Assignment(protocol, Population(schema=small_schema, clients=100_000), coin_from("town hall"))
    clients = np.random.default_rng(0).permutation(100_000)[:3000]
    slots = np.arange(40_000, 40_500)
    straight = protocol.learner(assignment.population).first_questions(
        assignment.state.learner.coin, slots.astype(np.int32)
    )
    assert np.array_equal(assignment.questions(slots), straight)
    assert np.array_equal(assignment.questions(clients)[np.argsort(clients)], assignment.questions(np.sort(clients)))
    other = Assignment(protocol, assignment.population, coin_from("church"))
    assert not np.array_equal(other.questions(slots), assignment.questions(slots))


def test_two_stages_cannot_be_collected_in_one_go(files):
    class Adaptive:
        def __init__(self):
            self.stages = 2

    with pytest.raises(SpecError, match="stages=2 asks some clients only after others"):
        check_one_stage(Adaptive())
    check_one_stage(wanted(files, settings={}).protocol())


def test_seed_and_coin_of_a_simulation(files):
    """With a seed and no coin the coin is the simulation's; a coin of one's own deals other questions."""
    collect(wanted(files, seed=5), files / "a.parquet")
    collect(wanted(files, seed=5, coin="town hall"), files / "b.parquet")
    first, second = (read_terms(files / f"{name}.parquet")[0] for name in "ab")
    assert np.array_equal(jax.random.key_data(first.key), jax.random.key_data(Keys(make_key(5)).begin()))
    assert np.array_equal(jax.random.key_data(second.key), jax.random.key_data(coin_from("town hall")))
    assert collecting.COIN
    assert isinstance(first.parameters["epsilon"], float)


def test_the_target_travels_with_the_file(files, small_table):
    Table(schema=small_table.schema, codes=small_table.codes, frame=small_table.frame).save(files / "x.parquet")
    collect(wanted(files, data="x.parquet", target="colour", seed=1), files / "a.parquet")
    assert read_terms(files / "a.parquet")[0].target == "colour"
