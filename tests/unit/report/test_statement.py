"""The page that may be published: what it must say, and that nothing of the real rows is on it."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pytest

from populace.cli.main import call
from populace.privacy.events import Composed, Gaussian, Pure, to_json
from populace.privacy.guarantee import Guarantee
from populace.report.statement import statement, write_statement
from populace.runs.folder import claim_json
from populace.tables.embedded import harbour
from populace.tables.table import make_table

CLAIM = Guarantee(
    epsilon=1.0, delta=1e-6, unit="record", neighbours="zero-out", trust="silo", mechanism="a Gaussian release",
    protects="one row of the table", units=5_000, sampling_delta=1e-9, noise="exact", derivation=("one <release>",),
    assumptions=("the number of records is public",), domain_sources=(("declared by: ward protocol", ("age", "sex")),),
)  # fmt: skip
NOTHING = {"epsilon": float("inf"), "delta": 0.0, "sampling_delta": 0.0}
VERSIONS = {"python": "3.12.1", "populace": "0.1.0"}


def document(claim=CLAIM, *, event=None, history=None, **changes):
    run = {
        "where": "simulation", "method": "moments", "clients": 3, "split": "three files", "rows": 100, "versions": VERSIONS,
        "asked": {"epsilon": 1.0, "delta": None, "records_per_client": 1, "client_column": None, "target": None},
    }  # fmt: skip
    return {
        **claim_json(claim, history), "written": "2026-01-31", "event": None if event is None else to_json(event),
        "history": history, "run": run, "files": {"synthetic.parquet": "ab" * 32}, "ledger": {"epsilon": 1.0},
    } | changes  # fmt: skip


def words(page):
    """The page's text, without its style sheet."""
    body = page.partition("<body>")[2]
    return " ".join(re.sub("<[^>]*>", " ", body).replace("&#39;", "'").split())


def test_every_question_is_answered():
    page = statement(document(event=Gaussian(4.6)), digest="cd" * 32)
    said = words(page)
    for part in (
        "What was protected", "one row of the table", "5,000", "correctly at most",
        "Does one person appear several times?", "The run assumes that they do not",
        "where one has epsilon 1 (delta 1e-06)",
        "who has to be trusted?", "the silo adds the noise", "Who is trusted, and who sees what", "The server, and other silos",
        "simulated clients on one machine", "What is not covered", "Choosing the best of several runs",
        "age, sex: declared by: ward protocol", "Were the same data used before?", "No ledger of other runs was kept",
        "0.005", "Where did the randomness come from?", "drawn exactly, from the operating system's generator",
        "(1, 1e-06)-DP", "Gaussian(noise_multiplier=4.6)", "one &lt;release&gt;", "python 3.12.1", "populace verify RUN",
        "ab" * 32, "cd" * 32, "metrics.json", "1e-09 is the samplers' distance",
    ):  # fmt: skip
        assert part in said, part
    assert "NOT PRIVATE" not in said
    assert 'class="alarm"' not in page


def test_one_file_without_script_or_anything_from_elsewhere():
    page = statement(document())
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!data:,)', page)
    assert "url(" not in page
    assert "@page { size: A4;" in page


@pytest.mark.parametrize(("changes", "alarm"), [
    ({"seeded": True}, "NOT PRIVATE AS IT STANDS"),
    ({**NOTHING, "reason": "no noise", "trust": "not-private"}, "NOT PRIVATE."),
    ({**NOTHING, "reason": "its proof fails"}, "NOT PRIVATE."),
])  # fmt: skip
def test_what_is_not_private_says_so_at_the_top_in_red(changes, alarm):
    page = statement(document(dataclasses.replace(CLAIM, **changes)))
    header = page.partition("<body>")[2].partition("</header>")[0]
    assert f'<p class="alarm" role="alert">{alarm}' in header
    assert "May not: synthetic.* and generator.*, which nothing protects" in words(page)
    assert "May be published: synthetic.*" in words(statement(document()))
    if changes.get("reason"):
        assert "Nobody else: the server" not in words(page)
        assert "Nothing is guaranteed." in words(page)


def test_repeated_persons_are_answered_by_the_unit():
    client = dataclasses.replace(
        CLAIM,
        unit="client",
        neighbours="replace",
        delta=0.0,
        sampling_delta=0.0,
        trust="local",
        protects="all of a patient",
    )
    asked = {"epsilon": 1.0, "records_per_client": 1, "client_column": "patient"}
    run = document()["run"]
    by_column = words(statement(document(client, event=Pure(1.0), run=run | {"asked": asked})))
    assert "All that stands under one value of the column “patient” is one unit and covered together" in by_column
    by_row = words(statement(document(dataclasses.replace(client, protects="one row of the table"), event=Pure(1.0))))
    assert "The run assumes that they do not" in by_row
    assert "(with 2 epsilon 2, with 5 epsilon 5, where one has epsilon 1)" in by_row
    held = words(statement(document(client, event=Pure(1.0))))
    assert "They may, within one unit (all of a patient): it is covered as a whole." in held
    silos = words(statement(document(run=run | {"asked": asked})))  # a column that tells silos apart protects no person
    assert "The run assumes that they do not" in silos


def test_what_was_read_from_the_records_is_not_covered():
    read = dataclasses.replace(
        CLAIM, read_from_data=("diagnosis",), counts_read=("the most records of one client (57)",)
    )
    said = words(statement(document(read)))
    assert "The possible values of diagnosis were read from the records" in said
    assert "whoever holds a rare or extreme value can be recognised by them with certainty" in said
    assert "May be published: privacy.html and privacy.json; synthetic.* and generator.* only once" in said
    assert "The most records of one client (57): read from the records" in said
    assert "diagnosis: read from the records not covered" in said
    assert "read from the records" not in words(statement(document()))


def test_the_ledgers_words_are_on_it():
    history = {
        "ledger": "l.sqlite", "runs_before": 2, "said": "booked in l.sqlite after 2 earlier runs",
        "epsilon_if_all_share_records": 3.5, "delta_if_all_share_records": 3e-6, "epsilon_added": 4.0, "delta_added": 3e-6,
    }  # fmt: skip
    said = words(statement(document(history=history)))
    assert "Booked in l.sqlite after 2 earlier runs." in said
    assert (
        "Together with 2 earlier runs in the same ledger, if all were about the same records: epsilon 4 (delta" in said
    )
    assert (
        "epsilon 3.5 (delta 3e-06) only if methods and budgets were planned without looking at earlier results" in said
    )
    first = words(statement(document(history={**history, "runs_before": 0})))
    assert "Together with" not in first


@pytest.mark.parametrize(("where", "part"), [
    ("sites", "Each site keeps a ledger of its own"), ("files", "kept a ledger for each client"),
    ("simulation", "No ledger of other runs was kept"),
])  # fmt: skip
def test_where_a_run_took_place_is_said(where, part):
    claim = dataclasses.replace(CLAIM, simulated=where == "simulation")
    said = words(statement(document(claim, run=document()["run"] | {"where": where})))
    assert part in said
    assert ("all records: they stood on one machine" in said) == (where == "simulation")
    assert ("In this run: whoever ran it, and the machine, which held all records." in said) == (where == "simulation")
    for words_of_one_machine in (
        "who gets only what is published from there, the bound holds as stated",
        "In a deployment, which",
    ):
        assert (words_of_one_machine in said) == (where == "simulation")
    seeded = words(statement(document(dataclasses.replace(claim, seeded=True))))
    assert "the bound holds as stated" not in seeded


def test_what_a_page_says_follows_from_the_claim_alone():
    """Another key of privacy.json, whatever it holds, changes nothing."""
    plain = statement(document())
    assert statement(document(metrics={"auc": 0.8731}, accuracy=0.4242)) == plain
    assert statement(document(dataclasses.replace(CLAIM, epsilon=1.1))) != plain


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """Two seeded runs on data that differ in one row, with declared domains, and everything that is computed on real rows."""
    folder = tmp_path_factory.mktemp("statement")
    table = harbour().take(np.arange(80))
    rows = table.frame.to_pylist()
    schema = dataclasses.replace(
        table.schema,
        columns=tuple(dataclasses.replace(c, domain="declared", source="the town") for c in table.schema.columns),
    )
    schema.save(folder / "town.toml")
    for name, own in (("one", rows[:60]), ("other", [*rows[:59], rows[70]])):
        make_table(pa.Table.from_pylist(own, schema=table.frame.schema), table.schema).save(folder / f"{name}.parquet")
        words = [
            "--schema",
            str(folder / "town.toml"),
            "--method",
            "moments",
            "--records-per-client",
            "20",
            "--seed",
            "3",
        ]
        made = ["synthesize", str(folder / f"{name}.parquet"), *words, "--epsilon", "4", "--rows", "50", "--no-ledger"]
        assert call([*made, "--out", str(folder / f"run-{name}")]) == 0
    assert call(["evaluate", str(folder / "run-one"), "--real", str(folder / "one.parquet"), "--target", "boat"]) == 0
    return folder


def figures(value):
    """Every number of a document that is not round."""
    if isinstance(value, dict):
        return {found for inner in value.values() for found in figures(inner)}
    if isinstance(value, list):
        return {found for inner in value for found in figures(inner)}
    return {value} if isinstance(value, float) and abs(value * 100 - round(value * 100)) > 1e-9 else set()


def on_page(page, numbers):
    """Which of the numbers stand on the page, to three digits or more."""
    said = words(page)
    shown = {float(text.replace(",", "")) for text in re.findall(r"(?<![\w.])\d[\d,]*\.\d{3,}", said)}
    return {number for number in numbers for text in shown if number and abs(text - number) <= 6e-4 * abs(number)}


def test_no_figure_from_real_rows_is_on_it(evaluated, tmp_path):
    """None of the metrics; a page on which one was planted is found out."""
    metrics = figures(json.loads((evaluated / "run-one/metrics.json").read_text())["metrics"])
    assert len(metrics) > 20
    page = (evaluated / "run-one/privacy.html").read_text()
    assert on_page(page, metrics) == set()
    planted = page.replace("</main>", f"<p>accuracy {next(iter(metrics)):.4f}</p></main>")
    assert on_page(planted, metrics)
    before = page
    shutil.copytree(evaluated / "run-one", tmp_path / "run")
    (tmp_path / "run/attacks.json").write_text('{"accuracy": 0.98765}')
    write_statement(tmp_path / "run")
    assert (tmp_path / "run/privacy.html").read_text() == before


def test_data_that_differ_in_one_row_have_the_same_page(evaluated):
    """With the same noise, all that differs are the digests of what was released and the file's name."""

    def without_digests(name):
        return re.sub("[0-9a-f]{64}", "", (evaluated / f"run-{name}/privacy.html").read_text())

    files = [(evaluated / f"run-{name}/synthetic.parquet").read_bytes() for name in ("one", "other")]
    assert files[0] != files[1]  # the row counts
    assert without_digests("one") == without_digests("other")


def test_events_of_every_kind_make_a_page():
    mixed = Composed((Gaussian(5.0), Pure(0.1)))
    assert "Composed" in words(statement(document(event=mixed)))
