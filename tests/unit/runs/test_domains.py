"""Runs of census on a table without a schema: domains are found under privacy, paid for, and drawn once."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from populace.engines import simulation
from populace.errors import RunError, SpecError
from populace.methods.census.protocol import Census
from populace.privacy.events import NoisyLists
from populace.runs import domains
from populace.runs.folder import RunFolder
from populace.runs.ledger.history import NOWHERE, History
from populace.runs.run import load_run, simulate, synthesize
from populace.runs.spec import make_spec
from populace.runs.verify.checks import read_papers, verify_papers
from populace.tables.files import read_json, write_json
from populace.tables.partition import split
from populace.tables.table import make_table
from populace.tables.universal import open_schema

SMALL = {"components": 3, "members": 2, "fit_steps": 10}
ROWS = 1_200


def people(rare: int = 3) -> pa.Table:
    rng = np.random.default_rng(0)
    ward = rng.choice(["north", "south"], ROWS).tolist()
    ward[:rare] = ["attic"] * rare
    return pa.table({
        "age": rng.integers(18, 95, ROWS), "cost": np.round(rng.exponential(300.0, ROWS), 2), "ward": ward,
        "smokes": rng.choice(["no", "yes"], ROWS).tolist(),
    })  # fmt: skip


@pytest.fixture
def data(tmp_path):
    pq.write_table(people(), tmp_path / "people.parquet")
    return tmp_path / "people.parquet"


def spec(data, **more):
    settings = {**SMALL, **more.pop("settings", {})}
    asked = {"epsilon": 4.0, "delta": 1e-6, "records_per_client": 400, "rows": 300, "target": "ward"}
    return make_spec(data=str(data), method="census", settings=settings, **{**asked, **more})


def test_nothing_is_read_without_noise_and_the_statement_holds(data, tmp_path):
    run = synthesize(spec(data), tmp_path / "run")
    assert "NOT covered" not in run.statement
    assert "precision" in run.statement
    assert run.parameters["lists_share"] > 0
    event = read_json(tmp_path / "run" / "privacy.json")["event"]
    assert NoisyLists.__name__ in str(event)
    wrong = [
        check for check in verify_papers(read_papers(tmp_path / "run")) if check.result not in ("holds", "left out")
    ]
    assert wrong == []
    assert not (tmp_path / "run" / domains.LISTS).exists()
    rows = run.sample(500).to_pandas()
    assert "attic" not in set(rows["ward"])
    assert {"north", "south"} <= set(rows["ward"])
    assert rows["age"].dtype.kind in "iuf"
    assert np.allclose(rows["cost"].dropna(), rows["cost"].dropna().round(2))
    assert load_run(tmp_path / "run").guarantee == run.guarantee
    assert sum(run.generator.schema.sizes) < sum(domains.opened(run.generator.schema).sizes) + 2_000


def test_missing_values_that_the_noise_hid_are_said_without_looking_at_records(tmp_path):
    """Few gaps vanish, many stay, and the sentence follows from the model: it is the same whether the few are there or not."""

    def said(name, few):
        frame = people().to_pandas()
        frame["age"] = frame["age"].astype("Int64")
        frame.loc[:few, "age"] = None
        frame.loc[frame.index[::3], "cost"] = None
        frame.to_parquet(tmp_path / f"{name}.parquet")
        lines = []
        run = synthesize(spec(tmp_path / f"{name}.parquet", seed=2), tmp_path / name, say=lines.append, keeping=NOWHERE)
        rows = run.sample(500).to_pandas()
        assert rows["cost"].isna().mean() > 0.2
        assert not rows["age"].isna().any()
        return [line for line in lines if "lacks a value" in line]

    (line,) = said("few", 1)
    assert line.startswith("no synthetic row lacks a value of age, ward, smokes: where records lack one,")
    assert said("none", -1) == [line]


def test_lists_are_drawn_once_and_only_after_the_run_was_booked(data, tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    drawn = []
    draw = domains._drawn

    def watched(*given):
        assert (folder / "booking.json").is_file()
        drawn.append(draw(*given))
        return drawn[-1]

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(domains, "_drawn", watched)
    with monkeypatch.context() as broken:
        broken.setattr(simulation, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            synthesize(spec(data), folder.path)
    assert read_json(folder / domains.LISTS) == drawn[0]
    pq.write_table(people(rare=4), data)
    with pytest.raises(RunError, match="the data changed"):
        synthesize(spec(data), folder.path)
    pq.write_table(people(), data)
    synthesize(spec(data), folder.path)
    assert len(drawn) == 1


def test_a_seed_gives_the_same_run_and_is_marked(data, tmp_path):
    first, second = (synthesize(spec(data, seed=3), tmp_path / name, keeping=NOWHERE) for name in ("a", "b"))
    assert first.sample(50, seed=1).to_arrow().equals(second.sample(50, seed=1).to_arrow())
    assert "reproducible, not private" in first.statement


def test_a_declared_schema_saves_the_share(data, tmp_path):
    from populace.tables.universal import open_schema, with_lists

    declared = with_lists(open_schema(people()), [{"ward": {"north": 9, "south": 9}}])
    declared.save(tmp_path / "people.toml")
    run = synthesize(spec(data, schema_file=str(tmp_path / "people.toml")), tmp_path / "run", keeping=NOWHERE)
    assert run.parameters["lists_share"] == 0
    assert NoisyLists.__name__ not in str(read_json(tmp_path / "run" / "privacy.json")["event"])


def test_no_share_for_lists_reads_domains_from_the_data_and_says_so(data, tmp_path):
    run = synthesize(spec(data, settings={"lists_share": 0.0}), tmp_path / "run", keeping=NOWHERE)
    assert "NOT covered" in run.statement


def test_tables_of_numbers_need_no_lists(tmp_path):
    pq.write_table(people().select(["age", "cost"]), tmp_path / "numbers.parquet")
    run = synthesize(spec(tmp_path / "numbers.parquet", target=None), tmp_path / "run", keeping=NOWHERE)
    assert run.parameters["lists_share"] == 0
    assert "NOT covered" not in run.statement


def test_tables_of_text_pay_for_what_lists_might_need(tmp_path):
    pq.write_table(people().select(["ward", "smokes"]), tmp_path / "texts.parquet")
    run = synthesize(spec(tmp_path / "texts.parquet"), tmp_path / "run")
    assert any("counts as spent" in line for line in run.guarantee.derivation)
    wrong = [check for check in verify_papers(read_papers(tmp_path / "run")) if check.result == "fails"]
    assert wrong == []


def test_a_word_that_a_single_record_may_have_written_is_not_published(tmp_path):
    ages = [str(age) for age in np.random.default_rng(1).integers(18, 95, ROWS)]
    ages[7] = "Mrs Miller"
    pq.write_table(pa.table({"age": ages, "ward": people()["ward"]}), tmp_path / "people.parquet")
    with pytest.raises(SpecError, match="Mrs Miller"):
        synthesize(spec(tmp_path / "people.parquet"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_interrupted_draw_of_lists_is_made_good(data, tmp_path, monkeypatch):
    def interrupted(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(domains, "_drawn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            synthesize(spec(data), tmp_path / "run")
    assert not (tmp_path / "run" / domains.LISTS).exists()
    assert "NOT covered" not in synthesize(spec(data), tmp_path / "run").statement


def test_messages_that_may_grow_too_large_are_refused_before_anything_is_booked(tmp_path):
    rng = np.random.default_rng(2)
    texts = {f"text_{i}": [f"v{code}" for code in rng.integers(0, 300, ROWS)] for i in range(8)}
    pq.write_table(pa.table({**texts, "ward": people()["ward"]}), tmp_path / "wide.parquet")
    with pytest.raises(SpecError, match="message would hold"):
        synthesize(spec(tmp_path / "wide.parquet", settings={"message_megabytes": 0.2}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_many_columns_of_words_are_served_though_their_lists_might_be_long(tmp_path):
    """Two words in each of 150 columns, of which nobody knows before the lists are drawn."""
    rng = np.random.default_rng(3)
    words = {f"c{i}": np.array(["with", "without"])[rng.integers(0, 2, ROWS)] for i in range(150)}
    pq.write_table(pa.table(words), tmp_path / "words.parquet")
    settings = {"components": 2, "members": 2, "fit_steps": 5}
    asked = {"epsilon": 20.0, "target": None, "records_per_client": ROWS, "settings": settings}
    run = synthesize(spec(tmp_path / "words.parquet", **asked), tmp_path / "run")
    assert run.generator.schema.columns[5].categories == ("with", "without")


def test_lists_that_nobody_draws_are_not_paid_for(data):
    with pytest.raises(SpecError, match="drawn by `synthesize`"):
        simulate(Census(epsilon=1.0, lists_share=0.1), split(make_table(people(), open_schema(people()))))


def test_a_changed_list_is_noticed_when_a_run_is_resumed(data, tmp_path, monkeypatch):
    """Killed after the last round: neither other lists nor none are taken for those that the rounds were made with."""
    folder = RunFolder(tmp_path / "run")

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(History, "confirm", killed)
        with pytest.raises(KeyboardInterrupt):
            synthesize(spec(data), folder.path)
    kept = (folder / domains.LISTS).read_text()
    (folder / domains.LISTS).write_text(kept.replace("north", "moors"))
    with pytest.raises(RunError, match="not the file that this run wrote"):
        synthesize(spec(data), folder.path)
    (folder / domains.LISTS).unlink()
    with pytest.raises(RunError, match="is gone, and lists are not drawn twice"):
        synthesize(spec(data), folder.path)
    (folder / domains.LISTS).write_text(kept)
    assert set(synthesize(spec(data), folder.path).sample(200).to_pandas()["ward"]) >= {"north", "south"}


def test_lists_lost_before_the_first_checkpoint_are_not_drawn_again(data, tmp_path, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(simulation, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            synthesize(spec(data), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint.npz").exists()
    (tmp_path / "run" / domains.LISTS).unlink()
    with pytest.raises(RunError, match="not drawn twice"):
        synthesize(spec(data), tmp_path / "run")


def test_the_ledger_gives_a_release_to_one_content_of_the_lists(data, tmp_path, monkeypatch):
    """Killed while the release is written, and the folder's own note changed along with the lists: the ledger knows."""
    folder = RunFolder(tmp_path / "run")

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(RunFolder, "save_synthetic", killed)
        with pytest.raises(KeyboardInterrupt):
            synthesize(spec(data), folder.path)
    lists, resume = folder / domains.LISTS, folder / "resume.json"
    lists.write_text(lists.read_text().replace("north", "moors"))
    noted = read_json(resume)
    write_json(resume, {name: value for name, value in noted.items() if name != "bound"})
    with pytest.raises(RunError, match="a second release"):
        synthesize(spec(data), folder.path)


def test_a_changed_list_is_noticed_by_verify(data, tmp_path):
    synthesize(spec(data), tmp_path / "run")
    path = tmp_path / "run" / domains.SCHEMA
    text = path.read_text()
    assert "north" in text
    path.write_text(text.replace("north", "moors"))
    wrong = {check.what for check in verify_papers(read_papers(tmp_path / "run")) if check.result == "fails"}
    assert f"file {domains.SCHEMA}" in wrong
    path.unlink()
    wrong = {check.what for check in verify_papers(read_papers(tmp_path / "run")) if check.result == "fails"}
    assert f"file {domains.SCHEMA}" in wrong
