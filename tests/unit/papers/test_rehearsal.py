"""Rehearsals: candidates on invented or public rows, with intervals, resumable, and never a private row."""

import json
import re
import sqlite3

import numpy as np
import pytest

import populace as pop
from populace.cli.main import call
from populace.cli.rehearse import _show
from populace.errors import InputError, RunError, SpecError
from populace.evaluation.marginals import association, co_occurrence
from populace.papers.invented import invent
from populace.papers.rehearsal import MOST_ROWS, REAL, SHUFFLED, cells, make_rehearsal, rehearse, rows_of, summary
from populace.report.rehearsal import groups, write_page
from populace.tables.codec import broken_rows
from populace.tables.embedded import harbour, harbour_schema
from populace.tables.schema import Column, Schema

SMALL = Schema(
    columns=(
        Column(name="colour", kind="categorical", categories=("red", "green", "blue")),
        Column(name="size", kind="integer", edges=(0, 5, 10, 20, 40), nullable=True),
        Column(name="sold", kind="boolean", dtype="boolean", categories=("false", "true")),
    ),
    target="sold",
)
FEW = {"clients": 400, "epsilon": 4.0, "methods": ("krr",), "rows": 300, "draws": 2}


def test_invented_rows_have_the_shape_of_the_schema_and_its_rules():
    table = invent(harbour_schema(), 3).draw(2_000, np.random.default_rng(1))
    assert len(table) == 2_000
    assert table.schema == harbour_schema()
    assert not broken_rows(table.frame, table.codes, table.schema)[0].any()
    assert all(len(np.unique(table.codes[:, i])) > 1 for i in range(len(table.schema.columns)))


def test_invented_columns_depend_on_each_other_and_populations_differ():
    """Cramer's V of pairs is far above that of shuffled columns."""
    rng = np.random.default_rng(2)
    first, other = (invent(SMALL, seed).draw(20_000, rng) for seed in (1, 2))
    pairs = association(co_occurrence(first), SMALL.sizes)
    mixed = np.stack([rng.permutation(first.codes[:, i]) for i in range(3)], axis=1)
    alone = association(co_occurrence(type(first)(schema=SMALL, codes=mixed, frame=first.frame)), SMALL.sizes)
    upper = np.triu_indices(3, 1)
    assert pairs[upper].mean() > 5 * alone[upper].mean()
    shares = [np.bincount(table.codes[:, 0], minlength=3) / len(table) for table in (first, other)]
    assert np.abs(shares[0] - shares[1]).sum() > 0.05


def test_the_default_candidates_are_those_of_advise():
    silos = make_rehearsal(SMALL, clients=3, records=800, epsilon=1.0)
    advice = pop.advise(clients=3, records=800, schema=SMALL)
    assert [advice.method, *(one.method for one in advice.others)] == ["census", "moments", "ufl-gan"]
    assert [name for name, _ in silos.candidates] == ["census", "moments"]
    (left_out,) = silos.notes
    assert re.match(r"ufl-gan is left out: .* minutes a draw .* --methods census,moments,ufl-gan$", left_out)
    named = make_rehearsal(SMALL, clients=3, records=800, epsilon=1.0, methods=("census", "moments", "ufl-gan"))
    assert [len(named.candidates), len(named.notes)] == [3, 0]
    assert {trust for _, trust in silos.candidates} == {"silo"}
    people = make_rehearsal(SMALL, clients=5_000, epsilon=1.0)
    assert people.candidates[0] == ("poll", "local")
    mixed = make_rehearsal(SMALL, clients=3, records=800, epsilon=1.0, methods=("census", "poll"))
    assert mixed.candidates == (("census", "silo"), ("poll", "local"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"methods": ("nothing",)}, "nothing"),
        ({"methods": ("krr", "krr")}, "twice"),
        ({"methods": ("genfl",)}, "takes no tables"),
        ({"methods": ("fed-vae",)}, "protects nobody"),
        ({"methods": ("central-vae",), "trust": "central"}, "protects nobody"),
        ({"methods": ("dp-fl",)}, "no tables|no rows"),
        ({"trust": "central", "methods": ("poll",)}, "not 'central'"),
        ({"clients": 3}, "cannot carry"),
        ({"draws": 0}, "draws"),
        ({"epsilon": 0.0}, "epsilon"),
    ],
)
def test_what_cannot_be_rehearsed_is_one_sentence(given, words):
    with pytest.raises(SpecError, match=words):
        make_rehearsal(SMALL, **{"clients": 400, "epsilon": 1.0, **given})


def test_sizes_are_capped_and_it_is_said():
    large = make_rehearsal(SMALL, clients=10**6, epsilon=1.0)
    assert (large.clients, large.records) == (MOST_ROWS, 1)
    assert "capped" in large.notes[0]
    silos = make_rehearsal(SMALL, clients=4, records=10**6, epsilon=1.0)
    assert silos.clients * silos.records == MOST_ROWS
    assert not make_rehearsal(SMALL, clients=4, records=1_000, epsilon=1.0, methods=("census",)).notes


def test_public_rows_are_drawn_from_the_file_and_none_is_tested_on_itself(tmp_path):
    """Rows that clients hold and rows that models are tested on come from different rows of the file."""
    people = harbour().take(np.arange(50))
    numbered = pop.Schema(columns=(Column(name="n", kind="categorical", categories=tuple(map(str, range(50)))),))
    file = tmp_path / "public.csv"
    file.write_text("n\n" + "\n".join(map(str, range(len(people)))) + "\n")
    one = make_rehearsal(numbered, clients=400, epsilon=1.0, methods=("krr",), public=str(file))
    train, test = rows_of(one, 0)
    assert len(train) == 400
    assert not set(train.codes[:, 0]) & set(test.codes[:, 0])
    assert set(rows_of(one, 1)[0].codes[:, 0]) != set(train.codes[:, 0])


def test_a_rehearsal_is_measured_written_and_taken_up_again(tmp_path):
    """An interrupted one goes on with what is missing, and gives what an undisturbed one gives."""
    one = make_rehearsal(SMALL, **FEW)
    whole = rehearse(one, tmp_path / "whole")

    def stop(step):
        if step.done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rehearse(one, tmp_path / "again", progress=stop)
    steps = []
    again = rehearse(one, tmp_path / "again", progress=steps.append)
    assert [step.skipped for step in steps] == [True] * 4 + [False] * 2

    def figures(document):
        return [(row["candidate"], row["metrics"]) for row in document["candidates"]]

    assert figures(again) == figures(whole)
    kept = json.loads((tmp_path / "again" / "rehearsal.json").read_text())
    assert figures(kept) == figures(whole)
    with pytest.raises(RunError, match=r"other settings \(epsilon\)"):
        rehearse(make_rehearsal(SMALL, **{**FEW, "epsilon": 2.0}), tmp_path / "again")
    _check_figures(whole, tmp_path)


def _check_figures(document, folder):
    """Real rows do best, figures have intervals over draws, and the page shows guarantees and what invented rows mean."""
    rows = {row["candidate"]: row for row in document["candidates"]}
    assert list(rows) == [REAL, SHUFFLED, "krr"]
    for row in rows.values():
        two_way = row["metrics"]["two_way"]
        assert two_way["low"] <= two_way["value"] <= two_way["high"]
        assert set(row["metrics"]) == {"two_way", "worst_ks", "boosting_auc"}
    assert rows[REAL]["metrics"]["two_way"]["value"] < rows["krr"]["metrics"]["two_way"]["value"]
    assert rows[REAL]["metrics"]["boosting_auc"]["value"] > rows[SHUFFLED]["metrics"]["boosting_auc"]["value"]
    assert rows["krr"]["guarantee"] == "4-LDP"
    assert rows["krr"]["seconds"] > 0
    assert [(group["trust"], len(group["charts"])) for group in groups(document)] == [("local", 3)]
    page = write_page(document, folder).read_text()
    assert "not your data" in page
    assert "4-LDP" in page
    assert "<svg" in page
    assert "://" not in page.replace("http://www.w3.org", "")


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    SMALL.save(tmp_path / "small.toml")
    words = ["rehearse", "--schema", "small.toml", "--clients", "300", "--epsilon", "2", "--methods", "independent"]
    assert call([*words, "--draws", "1", "--rows", "100"]) == 0
    said = capsys.readouterr().out
    for part in ("independent (trust local)", REAL, SHUFFLED, "2-LDP", "not your data", "rehearsal.html"):
        assert part in said, part
    assert max(map(len, said.splitlines())) <= 80
    assert "one draw: no interval" in said
    assert "95 %" not in said
    assert call([*words, "--draws", "1", "--rows", "200"]) == 2
    assert "other settings (rows)" in capsys.readouterr().err


def test_a_table_of_figures_with_intervals_fits_80_columns(capsys):
    """At the worst: intervals that pass zero and one, long names, guarantees that differ, a reason as long as they come."""
    figure = {"value": -0.12345, "low": -1.23456, "high": 0.98765}
    row = {"unit": "record", "trust": "silo", "seconds": 888.4, "draws": 3}
    metrics = dict.fromkeys(("two_way", "worst_ks", "boosting_r2"), figure)
    candidates = [{"candidate": name, "draws": 3, "metrics": metrics} for name in (REAL, SHUFFLED)]
    candidates += [
        {"candidate": "a-method-of-some-package", "guarantee": "(0.99946, 1e-05)-DP", "metrics": metrics, **row},
        {"candidate": "census", "guarantee": "1-DP", "metrics": metrics, **row, "refused": "it took too long " * 9},
    ]
    document = {
        "candidates": candidates, "on": "invented", "clients": 100_000, "records_per_client": 800, "columns": 11,
        "epsilon": 1.0, "draws": 3, "synthetic_rows": 10_000, "notes": [],
    }  # fmt: skip
    _show(document, [])
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    for part in ("-.123", "(-1.235,", ".988)", "888 s", "a-method-of-some-package (0.99946, 1e-05)-DP, census 1-DP"):
        assert part in " ".join(said.split()), part
    figure |= {"value": 0.1234, "low": 0.0, "high": 0.98765}
    _show({**document, "candidates": candidates[:2] + candidates[3:]}, [])
    assert re.search(
        r"^census  .*\.123 \(\.000, \.988\)  \.123 \(\.000, \.988\)  888 s$", capsys.readouterr().out, re.M
    )


def test_candidates_are_compared_draw_by_draw(tmp_path, capsys):
    """Draws that are easy or hard for both are not in the interval of the difference, and guarantees are not mixed."""
    one = make_rehearsal(SMALL, clients=3, records=800, epsilon=1.0, methods=("census", "moments", "krr"), draws=2)
    about = {"guarantee": "1-DP", "unit": "record", "seconds_run": 1.0}
    results = [
        {"cell": {"candidate": name, "trust": trust, "draw": draw}, **about, "trust": trust, "two_way": level + extra}
        for draw, level in enumerate((0.1, 0.7))
        for name, trust, extra in (("census", "silo", 0.0), ("moments", "silo", 0.01 + 0.001 * draw), ("krr", "local", 0.2))
    ]  # fmt: skip
    rows = {row["candidate"]: row for row in summary(one, results)}
    apart = rows["moments"]["metrics"]["two_way"]
    assert apart["low"] == 0
    assert apart["high"] == 1
    assert rows["moments"]["compared_to"] == "census"
    found = rows["moments"]["differences"]["two_way"]
    assert found["value"] == pytest.approx(0.0105)
    assert found["low"] == pytest.approx(0.0105 - 12.7062 * 0.0005, abs=1e-6)
    assert not {"differences"} & (set(rows["census"]) | set(rows["krr"]))
    document = {
        "candidates": list(rows.values()), "on": "invented", "clients": 3, "records_per_client": 800, "columns": 3,
        "epsilon": 1.0, "draws": 2, "synthetic_rows": 100, "notes": [], "command": "", "target": None,
    }  # fmt: skip
    _show(document, [])
    said = capsys.readouterr().out
    assert "difference to census on the same draw; better is a lower 2-way TVD" in said
    assert "+.011 (+.004, +.017)" in said
    assert max(map(len, said.splitlines())) <= 80
    page = write_page(document, tmp_path).read_text()
    assert "Difference to census on the same draw" in page
    assert "+.011 (+.004, +.017)" in page


def test_public_rows_come_from_patterns_and_databases(tmp_path):
    """The same sources as for synthesize; the same rows are the same rehearsal wherever they stand."""
    values = [f"{colour},{size},{sold}" for colour in ("red", "blue") for size in (1, 7) for sold in ("true", "false")]
    for number, lines in enumerate((values[:5], values[5:] * 2)):
        (tmp_path / f"part{number}.csv").write_text("colour,size,sold\n" + "\n".join(lines) + "\n")
    (tmp_path / "all.csv").write_text("colour,size,sold\n" + "\n".join(values + values[5:]) + "\n")
    with sqlite3.connect(tmp_path / "all.sqlite") as database:
        database.execute("CREATE TABLE sales (colour TEXT, size INTEGER, sold TEXT)")
        rows = [line.split(",") for line in values + values[5:]]
        database.executemany("INSERT INTO sales VALUES (?, ?, ?)", rows)
    database.close()
    made = [
        make_rehearsal(SMALL, **FEW, public=str(tmp_path / name))
        for name in ("part*.csv", "all.csv", "all.sqlite#table=sales")
    ]
    assert [len(one.public) for one in made] == [2, 1, 1]
    first, *others = [one.settings()["public"] for one in made]
    assert others == [first, first]
    assert len(rows_of(made[0], 0)[0]) == 400
    with pytest.raises(InputError, match="no file matches"):
        make_rehearsal(SMALL, **FEW, public=str(tmp_path / "none*.csv"))


def test_cells_of_the_first_draw_come_first():
    grid = cells(make_rehearsal(SMALL, **FEW))
    assert [cell["draw"] for cell in grid] == [0] * 3 + [1] * 3
