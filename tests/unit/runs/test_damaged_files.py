"""Files of our own that were damaged: whatever stands in them, a sentence that names the file, and never a traceback."""

import copy
import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from damage import mutated
from populace.engines.checkpoint import Checkpoint
from populace.engines.runtime import Traffic
from populace.errors import PopulaceError, RunError
from populace.methods.registry import load_generator
from populace.privacy import events
from populace.privacy.ledger import Budget, Charge, MemoryLedger
from populace.report.statement import write_statement
from populace.runs.folder import RunFolder
from populace.runs.ledger.view import find_ledger
from populace.runs.run import load_run
from populace.runs.spec import spec_from_file
from populace.runs.verify.documents import read_papers
from populace.tables.files import read_arrays, write_json

RUN = Path(__file__).parent / "runs_of_0_2_0" / "moments"
WRONG = (None, [], {}, -1, "x", True, float("nan"), [[1]], 10**300, "gone")


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(RUN, tmp_path / "run"))


def variants(document, depth=2):
    """The document with one value of it replaced by something else, or left out."""
    for name in document:
        for value in WRONG:
            other = copy.deepcopy(document)
            other[name] = value
            if value == "gone":
                del other[name]
            yield other
        if depth > 1 and isinstance(document[name], dict):
            for inner in variants(document[name], depth - 1):
                yield {**document, name: inner}


def refused(read):
    """The sentence with which reading ends, or nothing."""
    sentence = ""
    try:
        read()
    except PopulaceError as error:
        sentence = str(error)
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("name", ["run.json", "privacy.json", "generator.json"])
def test_documents_with_a_wrong_field(folder, name):
    document, said = json.loads((folder / name).read_text()), 0
    for wrong in ([], None, 5, *variants(document, 1 if name == "privacy.json" else 2)):
        write_json(folder / name, wrong)
        said += bool(refused(lambda: load_generator(folder) if name == "generator.json" else load_run(folder)))
        if name != "generator.json":
            refused(lambda: read_papers(folder))
            refused(lambda: find_ledger(folder))
            refused(lambda: write_statement(folder))
    assert said > 20


@pytest.mark.parametrize("name", ["run.json", "privacy.json", "generator.json", "generator.npz"])
def test_files_with_other_bytes(folder, name):
    content = (folder / name).read_bytes()
    for seed in range(40):
        (folder / name).write_bytes(mutated(content, seed))
        refused(lambda: load_run(folder))
    (folder / name).write_bytes(b"[" * 100_000)
    assert str(folder / name) in refused(lambda: load_run(folder))
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert refused(lambda: load_run(folder))


def test_a_model_that_is_not_the_runs_own_is_refused(folder):
    document = json.loads((folder / "generator.json").read_text())
    write_json(folder / "generator.json", {**document, "note": "changed"})
    with pytest.raises(RunError, match=r"generator.json is not the file that this run wrote"):
        load_run(folder)


def test_models_whose_arrays_do_not_fit(tmp_path):
    for name in ("runs_of_0_1_0/poll", "runs_of_0_2_0/moments", "runs_of_0_2_0/flgan"):
        folder = Path(shutil.copytree(RUN.parents[1] / name, tmp_path / name))
        arrays = read_arrays(folder / "generator.npz")
        for changed, value in arrays.items():
            for other in (None, np.zeros(0), np.array(["x"]), np.zeros((3, *value.shape))):
                left = {each: array for each, array in arrays.items() if each != changed}
                np.savez(folder / "generator.npz", **left, **({} if other is None else {changed: other}))
                refused(lambda folder=folder: load_generator(folder).sample(3, jax.random.key(0)))


def test_resume_json(tmp_path):
    folder = RunFolder(tmp_path)
    folder.check_same_data(b"rows")
    folder.check_same_data(b"rows")
    with pytest.raises(RunError, match="the data changed"):
        folder.check_same_data(b"other rows")
    document = json.loads((folder / "resume.json").read_text())
    for wrong in ({}, [], None, *variants(document)):
        write_json(folder / "resume.json", wrong)
        if wrong == document:
            continue
        assert "resume.json is damaged" in refused(lambda: folder.check_same_data(b"rows")) or refused(
            lambda: folder.check_same_data(b"rows")
        ).startswith("the data changed")
        if isinstance(wrong, dict) and "salt" in wrong:
            assert str(document["salt"]) not in refused(lambda: folder.bound("x"))
    write_json(folder / "resume.json", {**document, "bound": ["lists.json"]})
    with pytest.raises(RunError, match=r"resume.json is damaged: 'bound'"):
        folder.bound("lists.json")


def test_a_lock_that_is_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(RunError, match="cannot write"), RunFolder(tmp_path).claim({}, "digest"):
        pass


def test_checkpoints(tmp_path):
    state, memory = {"a": np.zeros((2, 3), np.float32)}, {"b": np.zeros(4, np.int32)}
    checkpoint, key = Checkpoint(tmp_path / "checkpoint.npz"), jax.random.key(7)

    def ledger():
        return MemoryLedger(Budget(epsilon=9.0, delta=0.0, unit="client"), clients=4)

    begun = ledger()
    begun.book(np.arange(4), Charge(event=events.Pure(0.5), unit="client"), round_id=0)
    checkpoint.save(root=key, rounds=1, state=state, memory=memory, ledger=begun, traffic=Traffic())

    def load():
        checkpoint.root()
        return checkpoint.load(state=state, memory=memory, ledger=ledger())

    assert load()[2] == 1
    content, arrays = checkpoint.path.read_bytes(), read_arrays(checkpoint.path)
    for seed in range(60):
        checkpoint.path.write_bytes(mutated(content, seed))
        refused(load)
    document = json.loads(arrays["document"].tobytes())
    said = 0
    for wrong in ([], None, *variants(document, 3)):
        text = np.frombuffer(json.dumps(wrong).encode(), np.uint8)
        np.savez(checkpoint.path, **{**arrays, "document": text})
        sentence = refused(load)
        said += sentence.startswith("cannot resume") and "start again" in sentence
    assert said > 10
    for name in arrays:
        for other in (np.zeros(0), np.array(["x"]), np.zeros((5, 5))):
            np.savez(checkpoint.path, **{**arrays, name: other})
            assert refused(load), name
        np.savez(checkpoint.path, **{each: array for each, array in arrays.items() if each != name})
        assert refused(load), name


def test_specifications():
    document = json.loads((RUN / "run.json").read_text())["spec"]
    assert spec_from_file(document).method == "moments"
    said = [refused(lambda wrong=wrong: spec_from_file(wrong)) for wrong in variants(document)]
    assert sum(map(bool, said)) > 30
