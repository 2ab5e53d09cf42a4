"""`populace collector` and `populace device`: good input from end to end, and one sentence with exit code 2 for the rest."""

import contextlib
import json
import socket
import stat
import types

import numpy as np
import pytest

from collector_for_tests import client_of, make_study, opened, seeded_answer, tokens, turn
from populace.cli.device import default_ledger
from populace.cli.main import call
from populace.collector.serve import Listening
from populace.collector.study import StudyFolder
from populace.errors import InputError
from populace.runs.run import load_run
from populace.tables.embedded import harbour, harbour_schema
from populace.tables.files import read_json, write_json


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    harbour_schema().save(folder / "s.toml")
    read = harbour_schema().to_toml().replace('domain = "declared"', 'domain = "read-from-data"')
    (folder / "read.toml").write_text(read)
    harbour().take(np.arange(50)).save(folder / "real.parquet")
    (folder / "old.txt").write_text("links")
    (folder / "me.json").write_text(json.dumps(harbour().frame.slice(0, 1).to_pylist()[0]))
    init = ["collector", "init", str(folder / "made"), "--schema", str(folder / "s.toml"), "--epsilon", "2"]
    assert call([*init, "--clients", "12", "--set", "stages=1", "--title", "Harbour"]) == 0
    assert call(["collector", "init", str(folder / "open"), *init[3:], "--open", "--method", "independent"]) == 0
    assert call(["collector", "init", str(folder / "odd"), *init[3:]]) == 0
    (folder / "odd" / "store.url").write_bytes(b"postgresql://\xff\xfe")
    return folder


def test_a_study_is_made_and_its_facts_are_fixed(here):
    study = StudyFolder(here / "made").read()
    assert (study.method, study.clients, study.title, study.open) == ("poll", 12, "Harbour", False)
    path = here / "made" / "study.json"
    document = read_json(path)
    for name, value in {
        "title": "Another", "root": [1, 2], "timing": {**document["timing"], "hold": 1.0}, "clients": 13, "open": True,
    }.items():  # fmt: skip
        write_json(path, {**document, name: value})
        assert call(["collector", "status", str(here / "made")]) == 2, name
    changed = json.loads(json.dumps(document))
    changed["agreement"]["parameters"]["epsilon"] = 9.0
    write_json(path, changed)
    assert call(["collector", "status", str(here / "made")]) == 2
    write_json(path, document)
    assert call(["collector", "status", str(here / "made")]) == 0


BAD = {
    "a method for silos": (["init", "x", "--schema", "s.toml", "--epsilon", "1", "--method", "census"], "for single people"),
    "no such schema": (["init", "x", "--schema", "none.toml", "--epsilon", "1"], "no schema file"),
    "domains that were read": (["init", "x", "--schema", "read.toml", "--epsilon", "1"], "declared schema"),
    "epsilon 0": (["init", "x", "--schema", "s.toml", "--epsilon", "0"], "epsilon"),
    "nobody": (["init", "x", "--schema", "s.toml", "--epsilon", "1", "--clients", "0"], "clients"),
    "an unknown setting": (["init", "x", "--schema", "s.toml", "--epsilon", "1", "--set", "colour=red"], "colour"),
    "no time at all": (["init", "x", "--schema", "s.toml", "--epsilon", "1", "--round-hours", "0"], "seconds"),
    "two reports": (
        ["init", "x", "--schema", "s.toml", "--epsilon", "1", "--method", "samprivsyn", "--set", "oracle=split-krr"], "oracle",
    ),
    "several rounds each": (
        ["init", "x", "--schema", "s.toml", "--epsilon", "1", "--method", "dp-fed-wae", "--set", "participations=2"],
        "participations",
    ),
    "a folder in the way": (["init", "made", "--schema", "s.toml", "--epsilon", "1"], "exists"),
    "no study": (["status", "nowhere"], "not a study"),
    "no study to serve": (["serve", "nowhere"], "not a study"),
    "half of TLS": (["serve", "made", "--tls-cert", "s.toml"], "together"),
    "no such certificate": (["serve", "made", "--tls-cert", "a.pem", "--tls-key", "b.pem"], "no file"),
    "no such port": (["serve", "made", "--port", "70000"], "port"),
    "no workers": (["serve", "made", "--workers", "0"], "workers"),
    "another store": (["serve", "made", "--store", "postgresql://x/y"], "divided"),
    "no links": (["invite", "made", "--count", "0", "-o", "l.txt"], "count"),
    "links in the way": (["invite", "made", "--count", "1", "-o", "old.txt"], "exists"),
    "links to nowhere": (["invite", "made", "--count", "1", "-o", "l.txt", "--url", "study.example"], "address"),
    "invited to an open study": (["invite", "open", "--count", "1", "-o", "l.txt"], "open"),
    "an error above 1": (["status", "made", "--error", "3"], "--error"),
    "an error of nothing": (["status", "made", "--error", "1e-200"], "--error"),
    "a seed below 0": (["init", "x", "--schema", "s.toml", "--epsilon", "1", "--seed", "-1"], "seed"),
    "a store of another kind": (["init", "x", "--schema", "s.toml", "--epsilon", "1", "--store", "mysql://a/b"], "postgresql"),
    "a store that cannot be read": (["status", "odd"], "store.url"),
    "an unknown host": (["serve", "made", "--host", "no.such.host.invalid"], "cannot listen"),
    "nothing to fit": (["fit", "made", "--out", "run"], "nobody has answered"),
    "no rows": (["fit", "made", "--out", "run", "--rows", "0"], "rows"),
}  # fmt: skip
BAD_DEVICE = {
    "half an address": (["answer", "http://[::1/#x", "--record", "me.json"], "link"),
    "no link": (["answer", "study.example", "--record", "me.json"], "link"),
    "no invitation": (["answer", "https://x.example/#abc", "--record", "me.json"], "invitation"),
    "nobody there": (
        ["answer", "http://127.0.0.1:9/#" + "A" * 22, "--record", "me.json", "--patience", "0"],
        "reached",
    ),
}


@pytest.mark.parametrize("name", [*BAD, *BAD_DEVICE])
def test_bad_input_is_one_sentence_and_leaves_nothing(here, name, monkeypatch, capsys):
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_DATA_HOME", str(here.parent / "data"))
    before = {path.name for path in here.iterdir()}
    words, sentence = BAD.get(name) or BAD_DEVICE[name]
    assert call(["collector" if name in BAD else "device", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("populace: ")
    assert error.count("\n") == 1
    assert {path.name for path in here.iterdir()} == before


def test_a_taken_port_is_one_sentence_before_anything_is_said(here, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert call(["collector", "serve", str(here / "made"), "--port", str(taken.getsockname()[1])]) == 2
    written = capsys.readouterr()
    assert "cannot listen" in written.err
    assert written.err.count("\n") == 1
    assert "listening" not in written.out


@pytest.mark.parametrize("seen", [False, True])
def test_the_token_is_printed_for_a_person_and_not_into_a_log(here, monkeypatch, seen):
    from populace.collector import serve as module

    said = []
    stopped = types.SimpleNamespace(run=lambda *_, **__: None)
    monkeypatch.setattr(module, "_uvicorn", lambda: stopped)
    monkeypatch.setattr(module, "_coordinating", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)
    monkeypatch.setattr(module.sys, "stdout", types.SimpleNamespace(isatty=lambda: seen))
    for name in ("SERVING", "STUDY", "RATE", "WORKERS"):
        monkeypatch.setenv(f"POPULACE_{name}", "")
    folder = StudyFolder(here / "made")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    module.serve(folder, Listening(port=port), store=None, say=said.append)
    assert (folder.token() in " ".join(said)) == seen
    assert (str(folder.token_path) in " ".join(said)) == (not seen)


def test_init_says_what_epsilon_means_and_warns_of_a_weak_one(here, tmp_path, capsys):
    words = [
        "collector",
        "init",
        str(tmp_path / "x"),
        "--schema",
        str(here / "s.toml"),
        "--clients",
        "500",
        "--epsilon",
    ]
    assert call([*words, "2"]) == 0
    said = capsys.readouterr().out
    assert "is right at most 88.1 %" in said
    assert "careful" not in said
    words[2] = str(tmp_path / "y")
    assert call([*words, "8"]) == 0
    said = capsys.readouterr().out
    assert "careful: epsilon 8 is weak" in said
    assert "99.97 %" in said


def test_one_ledger_for_each_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_ledger() == tmp_path / "data" / "populace" / "device.ledger"
    assert stat.S_IMODE(default_ledger().parent.stat().st_mode) == 0o700
    for odd in ("", "not/absolute"):
        monkeypatch.setenv("XDG_DATA_HOME", odd)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert default_ledger() == tmp_path / "home" / ".local" / "share" / "populace" / "device.ledger"


def test_fit_leaves_an_ordinary_run(tmp_path, capsys):
    settings = {"stages": 1, "latent_classes": 2, "prior_scale": 1.0, "chains": 1, "langevin_steps": 10}
    place = make_study(tmp_path, "poll", clients=40, settings=settings, title="Harbour")
    table = harbour().take(np.arange(40))
    turn(place)
    with client_of(place) as client:
        for token in tokens(place)[:30]:
            assert seeded_answer(client, place, token, table).status_code == 200
    out = tmp_path / "run"
    assert call(["collector", "fit", str(place.path), "--out", str(out), "--rows", "60", "--seed", "1", "--close"]) == 0
    assert "few answers: single columns are not known to" in capsys.readouterr().out
    assert call(["collector", "fit", str(place.path), "--out", str(out)]) == 2  # a finished run stays
    assert call(["collector", "invite", str(place.path), "--count", "2", "-o", str(tmp_path / "more.txt")]) == 2
    assert "closed" in capsys.readouterr().err
    assert call(["verify", str(out)]) == 0
    assert "everything holds" in capsys.readouterr().out
    run = load_run(out)
    claim = run.guarantee
    assert (claim.trust, claim.unit, claim.units, claim.simulated) == ("local", "client", 30, False)
    assert len(run.sample(15).codes) == 15
    table.save(tmp_path / "real.parquet")
    assert call(["evaluate", str(out), "--real", str(tmp_path / "real.parquet")]) == 0
    page = (out / "privacy.html").read_text()
    assert "from 30 answers, one for each invitation" in page
    assert "shuffl" not in (out / "privacy.json").read_text()
    with opened(place) as store:
        assert store.fact("closed") is not None
        assert store.fact("order") is None  # closed without a server: places are forgotten here
    privacy = read_json(out / "privacy.json")
    for change in ({"units": 29}, {"trust": "silo"}):
        write_json(out / "privacy.json", {**privacy, **change})
        assert call(["verify", str(out)]) != 0
    other = json.loads(json.dumps(privacy))
    other["run"]["population"]["open"] = True
    write_json(out / "privacy.json", other)
    assert call(["verify", str(out)]) != 0  # an open study says so


def test_listening_names_its_address():
    assert Listening().address == "http://127.0.0.1:8765/"
    assert Listening(host="::1", port=9000).address == "http://[::1]:9000/"
    with pytest.raises(InputError):
        Listening(per_second=0)
