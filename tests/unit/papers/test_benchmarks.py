"""The benchmark grid: resumes, skips what is finished, survives an interruption; and the files of reports it may count."""

import importlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from populace.cli.main import call
from populace.errors import DataError, InputError, RunError, SpecError
from populace.papers import local, poll
from populace.papers.grid import (
    Benchmark,
    Chart,
    Part,
    View,
    mean_over_seeds,
    read_part,
    run_benchmark,
    run_part,
    slug,
)
from populace.papers.plots import write_charts
from populace.papers.registry import BENCHMARKS, find_benchmark
from populace.privacy.randomizers.aggregate import tally
from populace.privacy.randomizers.grr import Grr
from populace.privacy.randomizers.hashing import Olh
from populace.privacy.randomizers.subset import SubsetSelection
from populace.runs.poll.tallies import tally_files
from populace.tables.reports import write_reports


def tiny(measure, revision=1):
    return Benchmark(
        name="tiny", title="t", reference="r", revision=revision, prepare=lambda: None,
        cells=lambda quick, seeds: [{"x": x, "seed": s} for s in range(seeds) for x in ((1,) if quick else (1, 2, 3))],
        measure=measure,
        views=lambda results: [View(title="", header=["x"], rows=[[str(r["cell"]["x"])] for r in results])],
        charts=lambda results: [],
    )  # fmt: skip


class Counting:
    def __init__(self, stop_at=None):
        self.seen, self.stop_at = [], stop_at

    def __call__(self, cell):
        if cell["x"] == self.stop_at:
            raise KeyboardInterrupt
        self.seen.append(cell["x"])
        return {"y": 10 * cell["x"]}


def test_finished_cells_are_not_measured_again(tmp_path):
    work = Counting()
    first = run_benchmark(tiny(work), tmp_path / "b", quick=True, command="populace benchmark tiny")
    assert work.seen == [1]
    steps = []
    second = run_benchmark(tiny(work), tmp_path / "b", seeds=2, progress=steps.append)
    assert work.seen == [1, 2, 3, 1, 2, 3]
    assert [step.skipped for step in steps] == [True] + [False] * 5
    assert steps[-1].done == steps[-1].total == 6
    assert [cell["y"] for cell in second["cells"]] == [10, 20, 30] * 2
    assert first["command"] == "populace benchmark tiny"
    assert json.loads((tmp_path / "b" / "result.json").read_text()) == second
    assert second["versions"]["populace"]


def test_an_interruption_keeps_what_was_done(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(tiny(Counting(stop_at=3)), tmp_path)
    assert not (tmp_path / "result.json").exists()
    work = Counting()
    run_benchmark(tiny(work), tmp_path)
    assert work.seen == [3]


def test_a_new_revision_measures_anew(tmp_path):
    run_benchmark(tiny(Counting()), tmp_path)
    work = Counting()
    run_benchmark(tiny(work, revision=2), tmp_path)
    assert work.seen == [1, 2, 3]


def test_parts_share_a_folder_and_the_last_call_only_collects(tmp_path):
    folder, done = tmp_path / "b", []
    for number in (1, 2, 3, 4):
        work = Counting()
        assert run_part(tiny(work), folder, Part(number=number, parts=4), seeds=2) == len(work.seen)
        done.append(work.seen)
        assert not (folder / "result.json").exists()
    assert done == [[1, 2], [2, 3], [3], [1]]  # of 1 2 3 1 2 3 every fourth
    work = Counting()
    document = run_benchmark(tiny(work), folder, seeds=2)
    assert work.seen == []
    assert [cell["y"] for cell in document["cells"]] == [10, 20, 30] * 2


def test_a_part_goes_on_where_it_was_interrupted(tmp_path):
    part = Part(number=1, parts=2)
    with pytest.raises(KeyboardInterrupt):
        run_part(tiny(Counting(stop_at=3)), tmp_path, part)
    work = Counting()
    assert run_part(tiny(work), tmp_path, part) == 2
    assert work.seen == [3]


def test_a_folder_that_another_process_is_about_to_claim_is_no_strangers(tmp_path):
    (tmp_path / ".benchmark.json.1.tmp").write_text("{")
    assert run_part(tiny(Counting()), tmp_path, Part(number=2, parts=3)) == 1
    assert json.loads((tmp_path / "benchmark.json").read_text()) == {"benchmark": "tiny"}


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "-1/2", "1/2/3", "1.5/2"])
def test_a_part_is_written_as_one_of_so_many(text):
    assert read_part("2/8") == Part(number=2, parts=8)
    with pytest.raises(SpecError, match="K/N"):
        read_part(text)


def test_only_some_cells_are_measured_and_collected(capsys, monkeypatch, tmp_path):
    work = Counting()
    monkeypatch.setattr("populace.cli.benchmark.find_benchmark", lambda name: tiny(work))
    base = ["benchmark", "tiny", "--out", str(tmp_path / "b")]
    assert call([*base, "--only", "x=1,3"]) == 0
    assert work.seen == [1, 3]
    assert json.loads((tmp_path / "b" / "result.json").read_text())["command"].endswith("--only x=1,3")
    for wrong in ("x=9", "x", "x=", "=1"):
        assert call([*base, "--only", wrong]) == 2
        assert "--only" in capsys.readouterr().err


def test_command_line_measures_a_part(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("populace.cli.benchmark.find_benchmark", lambda name: tiny(Counting()))
    base = ["benchmark", "tiny", "--out", str(tmp_path / "b")]
    assert call([*base, "--part", "2/2"]) == 0
    assert "part 2/2: 1 cells" in capsys.readouterr().out
    assert call([*base, "--part", "1/2"]) == 0
    assert f"populace benchmark tiny --out {tmp_path / 'b'}" in capsys.readouterr().out
    assert call(base) == 0
    assert "cell" not in capsys.readouterr().err  # nothing left to measure
    assert call([*base, "--part", "3/2"]) == 2


def test_slugs_are_stable_and_tell_cells_apart():
    assert slug({"method": "a, b", "epsilon": 1}) == slug({"epsilon": 1, "method": "a, b"}).replace("1-a-b", "a-b-1")
    assert slug({"x": 1}) != slug({"x": "1"}) != slug({"x": 1.5})
    assert "/" not in slug({"x": "../etc"})


def test_other_folders_are_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(RunError, match="holds no benchmark"):
        run_benchmark(tiny(Counting()), tmp_path)
    run_benchmark(tiny(Counting()), tmp_path / "b")
    (tmp_path / "b" / "benchmark.json").write_text('{"benchmark": "other"}')
    with pytest.raises(RunError, match="'other', not 'tiny'"):
        run_benchmark(tiny(Counting()), tmp_path / "b")
    with pytest.raises(RunError, match="is a file"):
        run_benchmark(tiny(Counting()), tmp_path / "mine.txt")
    with pytest.raises(SpecError, match="seeds"):
        run_benchmark(tiny(Counting()), tmp_path / "c", seeds=0)


def test_means_leave_out_what_is_missing():
    results = [{"cell": {"m": "a", "seed": s}, "auc": value} for s, value in enumerate((0.5, None, 0.7))]
    assert mean_over_seeds(results, ("auc", "other"), ("m",)) == {("a",): {"auc": pytest.approx(0.6), "other": None}}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_registered_benchmarks_list_cells_and_show_partial_results(name):
    benchmark = find_benchmark(name)
    assert benchmark.name == name
    quick, full = benchmark.cells(True, 1), benchmark.cells(False, 1)
    assert {slug(cell) for cell in quick} <= {slug(cell) for cell in full}
    assert len({slug(cell) for cell in full}) == len(full)
    module = importlib.import_module(BENCHMARKS[name].partition(":")[0])
    values = dict.fromkeys((*module.METRICS, *local.INFORMATION), 0.5)
    results = [{"cell": cell, "seconds": 1.0, **values} for cell in quick]
    assert all(len(row) == len(view.header) for view in benchmark.views(results) for row in view.rows)
    assert benchmark.charts(results)


@pytest.mark.slow
def test_a_cell_of_the_local_benchmark_is_measured(monkeypatch, small_table):
    monkeypatch.setattr(local, "load", lambda name, part: small_table)
    monkeypatch.setattr(local, "ROWS", 500)
    setting = local.BANK_SETTING
    found = local.measure(setting, {"part": "epsilon", "method": "independent", "epsilon": 4, "seed": 0})
    assert 0 < found["two_way"] < found["three_way"] < 1
    assert found["bits"] > 0
    assert 0 < found["accuracy"] <= 1
    swept = local.measure(setting, {"part": "columns", "method": "independent", "epsilon": 4, "columns": 3, "seed": 0})
    assert "auc" not in swept
    shuffled = local.measure(setting, {"part": "baseline", "method": "true columns, shuffled", "seed": 0})
    assert shuffled["one_way"] == 0


@pytest.mark.parametrize("part", ["compared", "proposed"])
def test_a_cell_of_the_poll_benchmark_goes_through_a_csv(monkeypatch, small_table, part):
    monkeypatch.setattr(poll, "load", lambda name, part="train": small_table)
    monkeypatch.setattr(poll, "ROWS", 500)
    cell = {"part": part, "data": "small", "method": "independent", "epsilon": 8.0, "target": "schema", "seed": 0}
    found = poll.measure(poll.ADULT9_SETTING, cell)
    assert 0 < found["two_way"] < 1
    assert 0 < found["avd4"] < 1
    assert found["seconds_run"] > 0
    assert found["bits"] > 0
    assert 0 < found["mlp"] <= 1


def test_charts_are_written(tmp_path):
    chart = Chart(name="c", title="t", across="x", up="y", lines={"a": [(1, 1), (1000, 2)]}, level={"real": 1.5})
    (written,) = write_charts([chart], tmp_path)
    assert "<svg" in written.read_text()
    assert written.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_command_line_answers_in_one_sentence(capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("POPULACE_DATA", raising=False)
    assert call(["benchmark", "nope"]) == 2
    assert "local-adult9, local-bank" in capsys.readouterr().err
    assert call(["benchmark", "local-bank", "--out", str(tmp_path / "b")]) == 2
    sentence = capsys.readouterr().err
    assert "POPULACE_DATA" in sentence
    assert sentence.count("\n") == 1
    assert not (tmp_path / "b").exists()
    assert call(["benchmark", "local-bank", "--seeds", "0"]) == 2


@pytest.mark.parametrize(
    "oracle", [Grr(size=9, epsilon=1.0), SubsetSelection(size=21, epsilon=1.0), Olh(size=9, epsilon=1.0)]
)
def test_reports_in_files_are_counted_as_in_memory(tmp_path, oracle):
    reports = oracle.release(np.arange(500) % oracle.size)
    write_reports(tmp_path / "a.parquet", [reports[:100], reports[100:300]])
    write_reports(tmp_path / "b.parquet", [reports[300:]])
    pa.feather.write_feather(pq.read_table(tmp_path / "b.parquet"), tmp_path / "b.arrow", compression="uncompressed")
    expected = tally(oracle, reports)
    for last in ("b.parquet", "b.arrow"):
        found = tally_files(oracle, [tmp_path / "a.parquet", tmp_path / last], rows=70)
        np.testing.assert_array_equal(found.counts, expected.counts)
        assert found.reports == 500


def test_bad_files_of_reports_are_named(tmp_path):
    oracle = Grr(size=4, epsilon=1.0)
    cases = {
        "outside": (pa.array([1, 9]), "outside the domain"),
        "negative": (pa.array([-1, 1]), "outside the domain"),
        "null": (pa.array([1, None]), "rows without a report"),
        "text": (pa.array(["a"]), "expected whole numbers"),
        "wide": (pa.array([b"abcd"], pa.binary(4)), "expected reports of 1 bytes"),
    }
    for name, (column, message) in cases.items():
        pq.write_table(pa.table({"report": column}), tmp_path / f"{name}.parquet")
        with pytest.raises(DataError, match=message):
            tally_files(oracle, [tmp_path / f"{name}.parquet"])
    pq.write_table(pa.table({"other": [1]}), tmp_path / "column.parquet")
    with pytest.raises(DataError, match="no column 'report'"):
        tally_files(oracle, [tmp_path / "column.parquet"])
    (tmp_path / "broken.parquet").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot read"):
        tally_files(oracle, [tmp_path / "broken.parquet"])
    with pytest.raises(InputError, match="no file"):
        tally_files(oracle, [tmp_path / "none.parquet"])
    with pytest.raises(InputError, match=r"\.csv"):
        tally_files(oracle, [tmp_path / "none.csv"])
    with pytest.raises(DataError, match="no reports"):
        write_reports(tmp_path / "empty.parquet", [])
