"""Runs on disk: killed and resumed, refused on other data, protected from each other."""

import fcntl
import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from populace.cli.main import call
from populace.engines import simulation
from populace.errors import BudgetError, RunError, SpecError
from populace.methods.baselines.independent import Independent
from populace.privacy.ledger import Budget
from populace.runs.folder import RunFolder
from populace.runs.given import read_private
from populace.runs.run import load_run, make_key, simulate, synthesize
from populace.runs.spec import make_spec
from populace.tables.embedded import harbour
from populace.tables.partition import split
from populace.tables.table import read_frame, write_frame

SETTINGS = ["--method", "independent", "--epsilon", "2", "--set", "clients_per_batch=5", "--rows", "300", "--seed", "9"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    harbour().save(folder / "people.parquet")
    return folder


def command(folder, out):
    return [
        sys.executable,
        "-m",
        "populace",
        "synthesize",
        str(folder / "people.parquet"),
        *SETTINGS,
        "--out",
        str(out),
    ]


@pytest.mark.slow
def test_killed_in_the_middle_and_resumed_gives_the_undisturbed_result(folder):
    """kill -9 while rounds are running, twice; the third start finishes with the same rows and the same ledger."""
    undisturbed = folder / "undisturbed"
    subprocess.run(command(folder, undisturbed), check=True, capture_output=True)
    killed = folder / "killed"
    seen = 0
    for _ in range(2):
        process = subprocess.Popen(command(folder, killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        checkpoint = killed / "checkpoint.npz"
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if checkpoint.exists() and rounds_done(checkpoint) > seen:
                break
            time.sleep(0.002)
        assert process.poll() is None, "the run ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
        seen = rounds_done(checkpoint)
        assert 0 < seen < 800
        assert json.loads((killed / "run.json").read_text())["status"] == "unfinished"
    with pytest.raises(RunError, match="not finished"):
        load_run(killed)
    done = subprocess.run(command(folder, killed), check=True, capture_output=True, text=True)
    assert "resuming" in done.stdout
    assert read_frame(killed / "synthetic.parquet").equals(read_frame(undisturbed / "synthetic.parquet"))
    first, second = (json.loads((path / "run.json").read_text()) for path in (undisturbed, killed))
    for key in ("ledger", "traffic", "rounds", "digest"):
        assert first[key] == second[key]
    assert {path.name for path in killed.iterdir()} == {path.name for path in undisturbed.iterdir()}


def rounds_done(checkpoint):
    try:
        with np.load(checkpoint, allow_pickle=False) as file:
            return json.loads(file["document"].tobytes())["rounds"]
    except (OSError, ValueError, EOFError, KeyError):
        return 0


def spec_for(folder, **more):
    return make_spec(data=str(folder / "people.parquet"), epsilon=1.0, method="independent", rows=20, **more)


class StopError(Exception):
    pass


def interrupt(_):
    raise StopError


def test_interrupted_run_is_refused_on_other_data_and_resumes_on_the_same(folder, tmp_path):
    out = tmp_path / "run"
    spec = spec_for(folder, seed=1)
    with pytest.raises(StopError):
        synthesize(spec, out, progress=interrupt)
    assert (out / "checkpoint.npz").stat().st_mode & 0o077 == 0
    assert (out / "resume.json").stat().st_mode & 0o077 == 0
    original = (folder / "people.parquet").read_bytes()
    harbour().take(np.arange(3999, -1, -1)).save(folder / "people.parquet")
    try:
        with pytest.raises(RunError, match="the data changed"):
            synthesize(spec, out)
    finally:
        (folder / "people.parquet").write_bytes(original)
    run = synthesize(spec, out)
    assert run.details["status"] == "finished"
    assert not (out / "resume.json").exists()
    assert not (out / "checkpoint.npz").exists()


def test_unseeded_interrupted_run_goes_on_with_the_key_it_started_from(folder, tmp_path):
    spec = spec_for(folder, settings={"clients_per_batch": 1000})
    out = tmp_path / "run"
    with pytest.raises(StopError):
        synthesize(spec, out, progress=interrupt)
    first = RunFolder(out).checkpoint.root()
    with pytest.raises(StopError):
        synthesize(spec, out, progress=interrupt)
    assert (np.asarray(RunFolder(out).checkpoint._read()["root"]) == np.asarray(first._base_array)).all()


def test_damaged_checkpoint_is_one_sentence(folder, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(StopError):
        synthesize(spec_for(folder, seed=1), out, progress=interrupt)
    whole = (out / "checkpoint.npz").read_bytes()
    for damaged in (b"rubbish", whole[: len(whole) // 2]):
        (out / "checkpoint.npz").write_bytes(damaged)
        with pytest.raises(RunError, match="cannot resume"):
            synthesize(spec_for(folder, seed=1), out)


def test_damaged_run_files_are_one_sentence(folder, tmp_path):
    out = tmp_path / "run"
    synthesize(spec_for(folder, seed=1), out)
    originals = {name: (out / name).read_bytes() for name in ("generator.npz", "run.json", "privacy.json")}
    for name, damaged in (
        ("generator.npz", originals["generator.npz"][:200]),
        ("run.json", b"[]"),
        ("privacy.json", b"{}"),
    ):
        (out / name).write_bytes(damaged)
        with pytest.raises(RunError):
            load_run(out)
        (out / name).write_bytes(originals[name])
    assert load_run(out).guarantee.epsilon == 1.0


def test_no_key_stays_in_a_finished_run(folder, tmp_path):
    """What a killed process leaves half-written holds the key; it goes when the run is resumed, and after it is finished."""
    out = tmp_path / "run"
    with pytest.raises(StopError):
        synthesize(spec_for(folder, seed=1), out, progress=interrupt)
    (out / ".checkpoint.npz.77.tmp").write_bytes(b"key")
    synthesize(spec_for(folder, seed=1), out)
    assert not list(out.glob(".*"))
    (out / "checkpoint.npz").write_bytes(b"killed just before it was removed")
    load_run(out)
    assert not (out / "checkpoint.npz").exists()


def test_finished_meanwhile_is_never_randomised_again(folder, tmp_path, monkeypatch):
    """A process that waited while another finished the run must refuse, not draw a fresh key."""
    out = tmp_path / "run"
    spec = spec_for(folder)
    with pytest.raises(StopError):
        synthesize(spec, out, progress=interrupt)
    refuse = RunFolder._refuse_others
    seen = []

    def other_finishes_first(self, digest):
        refuse(self, digest)
        if not seen:
            seen.append(1)
            synthesize(spec, out)

    monkeypatch.setattr(RunFolder, "_refuse_others", other_finishes_first)
    with pytest.raises(RunError, match="finished run"):
        synthesize(spec, out)


def test_a_schema_edited_between_start_and_resume_is_noticed(folder, tmp_path):
    schema = tmp_path / "s.toml"
    harbour().schema.save(schema)
    schema.write_text(schema.read_text().replace('domain = "declared"', 'domain = "read-from-data"', 1))
    spec = spec_for(folder, seed=1, schema_file=str(schema))
    with pytest.raises(StopError):
        synthesize(spec, tmp_path / "run", progress=interrupt)
    schema.write_text(schema.read_text().replace('domain = "read-from-data"', 'domain = "declared"', 1))
    with pytest.raises(RunError, match="data changed"):
        synthesize(spec, tmp_path / "run")


def test_ctrl_c_says_how_to_go_on_and_resumes(folder):
    out = folder / "interrupted"
    process = subprocess.Popen(command(folder, out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (out / "checkpoint.npz").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "give the same command again" in error
    assert "Traceback" not in error
    assert call(command(folder, out)[3:]) == 0


def test_a_method_that_claims_more_than_was_asked_is_refused(folder):
    clients = split(harbour().take(np.arange(50)), records_per_client=1)
    with pytest.raises(BudgetError, match="more than the epsilon"):
        simulation.run(Independent(epsilon=2.0), clients, root=make_key(0), asked=Budget(epsilon=1.0))


def test_two_processes_never_share_a_folder(folder, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(StopError):
        synthesize(spec_for(folder, seed=1), out, progress=interrupt)
    with (out / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="another process"):
            synthesize(spec_for(folder, seed=1), out)


def test_no_trace_of_the_private_data_in_what_is_published(folder, tmp_path):
    """No hash of the data: it would confirm a guess."""
    out = tmp_path / "run"
    synthesize(spec_for(folder, seed=1), out)
    assert "fingerprint" not in (out / "run.json").read_text()
    assert sorted(path.name for path in out.iterdir()) == [
        "generator.json", "generator.npz", "privacy.json", "run.json", "synthetic.parquet",
    ]  # fmt: skip


def test_python_door(tmp_path):
    import populace as pop

    table = harbour().take(np.arange(300))
    run = pop.simulate(pop.methods.Independent(epsilon=4), pop.split(table, records_per_client=1), seed=0)
    assert run.guarantee.bound == "4-LDP"
    assert run.guarantee.seeded
    synthetic = run.sample(500, seed=2)
    assert len(synthetic) == 500
    pop.evaluate(synthetic, real=table).save(tmp_path / "report.html")
    assert "one-way distance" in (tmp_path / "report.html").read_text()


def test_seed_zero_and_large_seeds_differ():
    clients = split(harbour().take(np.arange(60)), records_per_client=1)
    found = {
        tuple(np.concatenate(simulate(Independent(epsilon=1.0), clients, seed=seed).generator.tables))
        for seed in (0, 2**32, 2**40 + 1)
    }
    assert len(found) == 3


@pytest.mark.parametrize(("field", "value", "sentence"), [
    ("epsilon", "x", "epsilon"), ("rows", 0, "rows"), ("seed", -1, "seed"), ("delta", 2.0, "delta"), ("colour", 1, "colour"),
])  # fmt: skip
def test_bad_specs(field, value, sentence):
    with pytest.raises(SpecError, match=sentence):
        make_spec(**{"data": "x.csv", "epsilon": 1.0, field: value})


def test_a_folder_of_parquet_files_is_one_silo(folder, tmp_path, capsys):
    """On the command line and in Python; its ledger lies beside the folder, not in it."""
    frame = read_frame(folder / "people.parquet")
    rows = tmp_path / "data" / "rows"
    rows.mkdir(parents=True)
    write_frame(frame.slice(200), rows / "b.parquet")
    write_frame(frame.slice(0, 200), rows / "a.parquet")
    fast = ["--set", "components=2", "--set", "members=1", "--set", "fit_steps=3"]
    out = ["--epsilon", "1", "--rows", "50", "--out", str(tmp_path / "run")]
    assert call(["synthesize", str(rows), "--method", "census", *fast, *out]) == 0
    assert f"one silo, which holds all {len(frame):,} records" in capsys.readouterr().out
    assert (tmp_path / "data" / "populace-ledger.sqlite").is_file()
    assert sorted(file.name for file in rows.iterdir()) == ["a.parquet", "b.parquet"]
    private = read_private(str(rows), silos=1, schema=None)
    assert private.frame.equals(frame)
    with pytest.raises(SpecError, match="is given twice"):
        make_spec(data=(str(rows), str(rows / "a.parquet")), epsilon=1.0, method="census")
