"""Targets: every command, through the entry that `populace` has, with damaged files and with options that are not meant."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import random
from collections.abc import Iterator
from typing import Any

import typer

from fuzz.corpus import Corpus
from fuzz.mutate import DIGITS, PLACES
from fuzz.target import Files, FindingError, Input, Target, _place, check_sentence, damaged_file, restore
from populace.cli.main import app, call

CODES = (0, 1, 2, 3)
#: What is never called with options that could be right: it would serve, train, wait for sites, or start processes.
RESTRAINED = (
    "demo", "rehearse", "benchmark", "collector serve", "federation start", "federation run", "federation stop",
    "federation init", "federation demo",
    "federation approve", "site request", "site join", "site stop", "device answer", "attack", "audit", "collector fit",
)  # fmt: skip
WRONG = (
    "", " ", "-", "--", "nan", "inf", "-inf", "-1", "0", "1e999", "1e-320", "99999999999999999999", "2147483648", "0.5",
    "x", "é",
    "a=b", "=", "a=", "=1", "a\nb", "\x1b[31m", "x" * 5_000, DIGITS, "../..", "/", "/dev/zero", "/dev/null",
    "no-such-file.csv", "run",
    "epsilon=1", "rounds=0", "rounds=-1", "rounds=x", "1/0", "0/1", "1/1", "poll", "census", "none", "None", "true", "{}",
    "[]", "%s",
    "\udcff", "http://[", "https://127.0.0.1:1/#x", "postgresql://", "file:///etc/passwd",
)  # fmt: skip
PATHS = (
    "rows.parquet", "rows.toml", "census", "census/run.json", "pictures.npz", "populace-ledger.sqlite", "nothing", "out", ".",
    "census/generator.npz", "moments", "rows.csv", "bad.csv", "bad.toml", "fifo.csv", "folder.parquet",
)  # fmt: skip
#: Commands that read files, with what they are given; {} is the folder, the file named first is damaged.
READING = {
    "schema": ("rows.parquet", ["schema", "{}/rows.parquet", "-o", "{}/new.toml"]),
    "advise": ("rows.parquet", ["advise", "--data", "{}/rows.parquet", "--schema", "{}/rows.toml"]),
    "advise under": ("rows.toml", ["advise", "--clients", "3", "--records", "900", "--schema", "{}/rows.toml", "--json"]),
    "rehearse": ("rows.toml", ["rehearse", "--schema", "{}/rows.toml", "--clients", "300", "--epsilon", "1", "--methods",
    "independent", "--draws", "1", "--rows", "50", "--out", "{}/rehearsed"]),
    "advise pictures": ("pictures.npz", ["advise", "--data", "{}/pictures.npz"]),
    "plan": ("rows.toml", ["plan", "--schema", "{}/rows.toml", "--clients", "9", "--epsilon", "1", "--method", "independent"]),
    "synthesize": ("rows.parquet", ["synthesize", "{}/rows.parquet", "--schema", "{}/rows.toml", "--method",
    "independent", "--epsilon", "1",
                                    "--out", "{}/new", "--rows", "5"]),
    "synthesize under": ("rows.toml", ["synthesize", "{}/rows.parquet", "--schema", "{}/rows.toml", "--method", "independent",
                                       "--epsilon", "1", "--out", "{}/new", "--rows", "5"]),
    "synthesize beside": ("populace-ledger.sqlite", ["synthesize", "{}/rows.parquet", "--schema", "{}/rows.toml",
    "--method", "independent",
                                                     "--epsilon", "1", "--out", "{}/new", "--rows", "5"]),
    "sample": ("independent/generator.json", ["sample", "{}/independent", "--rows", "5", "-o", "{}/more.csv"]),
    "sample where": ("census/generator.npz", ["sample", "{}/census", "--rows", "5", "-o", "{}/more.csv", "--where",
    "colour=red"]),
    "evaluate": ("independent/run.json", ["evaluate", "{}/independent", "--real", "{}/rows.parquet"]),
    "verify": ("census/privacy.json", ["verify", "{}/census"]),
    "verify json": ("poll/run.json", ["verify", "{}/poll", "--json"]),
    "ledger show": ("populace-ledger.sqlite", ["ledger", "show", "{}"]),
    "ledger of run": ("census/run.json", ["ledger", "show", "{}/census", "--json"]),
    "ledger limit": ("populace-ledger.sqlite", ["ledger", "limit", "{}/populace-ledger.sqlite", "3", "--because", "x"]),
}  # fmt: skip
FEDERATED = {
    "federation status": ("coordinator/federation.json", ["federation", "status", "{}/coordinator"]),
    "federation status of run": ("coordinator/runs/run-1/status.json", ["federation", "status", "{}/coordinator"]),
    "federation status json": ("coordinator/runs/run-1/status.json", ["federation", "status", "{}/coordinator", "--json"]),
    "federation run": ("coordinator/federation.json", ["federation", "run", "{}/coordinator", "--out", "{}/out"]),
    "federation stop": ("coordinator/federation.json", ["federation", "stop", "{}/coordinator"]),
    "site status": ("site/site.json", ["site", "status", "{}/site"]),
    "site status of file": ("site/kit/local/populace.json", ["site", "status", "{}/site", "--json"]),
    "site status of ledger": ("site/ledger.sqlite", ["site", "status", "{}/site"]),
    "site status of log": ("site/site.log", ["site", "status", "{}/site"]),
    "site backup": ("site/data.json", ["site", "backup", "{}/site", "-o", "{}/backup.zip"]),
    "site stop": ("site/site.json", ["site", "stop", "{}/site"]),
    "site join": ("coordinator/study.proposal.json", [
        "site", "join", "{}/site", "{}/none.zip", "--fingerprint", "SHA256:00", "--proposal",
        "{}/coordinator/study.proposal.json", "--data",
        "{}/site/rows.parquet", "--epsilon", "9"]),
    "site join of data": ("site/rows.parquet", [
        "site", "join", "{}/site", "{}/none.zip", "--fingerprint", "SHA256:00", "--proposal",
        "{}/coordinator/study.proposal.json", "--data",
        "{}/site/rows.parquet", "--epsilon", "9"]),
    "site restart": ("site/kit/local/populace.json", ["site", "join", "{}/site"]),
}  # fmt: skip
COLLECTED = {
    "collector status": ("study/study.json", ["collector", "status", "{}/study"]),
    "collector status of store": ("study/collector.db", ["collector", "status", "{}/study", "--json"]),
    "collector invite": ("study/study.json", ["collector", "invite", "{}/study", "--count", "1", "-o", "{}/more.txt"]),
    "collector init": ("schema.toml", ["collector", "init", "{}/new", "--schema", "{}/schema.toml", "--epsilon", "2",
    "--clients", "9"]),
    "device answer": ("me.json", ["device", "answer", "http://127.0.0.1:1/#" + "A" * 22, "--record", "{}/me.json",
    "--ledger", "{}/ledger"]),
}  # fmt: skip
POLLED = {
    "poll collect": ("people0.parquet", ["poll", "collect", "{}/people0.parquet", "--schema", "{}/people.toml",
    "--epsilon", "2", "--out",
                                         "{}/new.parquet", "--seed", "1"]),
    "poll collect under": ("people.toml", ["poll", "collect", "{}/people0.parquet", "--schema", "{}/people.toml",
    "--epsilon", "2", "--out",
                                           "{}/new.parquet", "--seed", "1"]),
    "poll fit": ("answers0.parquet", ["poll", "fit", "{}/answers0.parquet", "{}/answers1.parquet", "--schema",
    "{}/people.toml", "--rows",
                                      "5", "--out", "{}/run"]),
}  # fmt: skip
PARTS = {"runs": READING, "poll": POLLED, "federation": FEDERATED, "study": COLLECTED}


def run_command(words: list[str]) -> tuple[int, str]:
    """The exit code, and what was said as an error."""
    errors, out = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(out):
        code = call(words)
    return code, errors.getvalue()


def check_command(words: list[str]) -> None:
    """One of the codes that are documented, and with 2 one sentence, the last thing said."""
    code, said = run_command(words)
    if code not in CODES:
        raise FindingError(f"exit code {code}: {said[-300:]!r}")
    if "Traceback (most recent" in said:
        raise FindingError(f"a traceback: {said[-300:]!r}")
    if code == 2:
        *_, last = said.strip().split("\n")
        if not last.startswith("populace: "):
            raise FindingError(f"exit 2 without a sentence: {said[-300:]!r}")
        check_sentence(last)
        if "out of memory" in last:
            raise FindingError("memory was asked for before sizes were checked")


def _files_prepare(part: str):
    def prepare(corpus: Corpus) -> Files:
        valid = corpus.files(part)
        if part == "study":
            valid["me.json"] = b'{"colour": "red", "size": 2, "weight": 1.5, "sold": true}'
        return Files(valid=valid, scratch=corpus.part(part), root=str(corpus.folder).encode())

    return prepare


def _files_draw(commands: dict[str, tuple[str, list[str]]]):
    def draw(files: Files, rng: random.Random) -> Input:
        name = rng.choice(sorted(commands))
        chosen, _ = commands[name]
        return {"command": name, "file": chosen, **damaged_file(rng, files, chosen)}

    return draw


def _files_run(commands: dict[str, tuple[str, list[str]]]):
    def run(files: Files, case: Input) -> None:
        restore(files)
        _place(files.scratch / case["file"], case, files.root)
        words = [word.replace("{}", str(files.scratch)) for word in commands[case["command"]][1]]
        check_command(words)

    return run


@dataclasses.dataclass(frozen=True)
class Command:
    """A command as the command line knows it: its words, arguments and options."""

    words: tuple[str, ...]
    arguments: int
    options: tuple[tuple[str, bool], ...]  # name, and whether it is a flag


@functools.cache
def all_commands() -> tuple[Command, ...]:
    return tuple(sorted(_walk(typer.main.get_command(app), ()), key=lambda one: one.words))


def _walk(command: Any, words: tuple[str, ...]) -> Iterator[Command]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from _walk(inner, (*words, name))
        return
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    named = tuple((max(option.opts, key=len), bool(option.is_flag)) for option in options)
    yield Command(words, sum(parameter.param_type_name == "argument" for parameter in command.params), named)


def _options_prepare(corpus: Corpus) -> Files:
    valid = corpus.files("runs")
    valid |= {"rows.csv": b"a,b\n1,2\n", "bad.csv": b'a,"b\n1', "bad.toml": b"[[[["}
    return Files(valid=valid, scratch=corpus.part("runs"), root=str(corpus.folder).encode())


def _options_draw(files: Files, rng: random.Random) -> Input:
    """A command with options of which at least one is not meant."""
    command = rng.choice(all_commands())
    words = [*command.words]
    for _ in range(rng.choice((0, command.arguments, command.arguments, command.arguments + 1))):
        words.append(_value(rng))
    count = min(len(command.options), rng.choice((0, 1, 2, 4, 8)))
    for name, is_flag in rng.sample(command.options, count):
        if name == "--help":
            continue
        words += [name] if is_flag or rng.random() < 0.03 else [name, _value(rng)]
    if " ".join(command.words) in RESTRAINED:
        words.append(
            "--no-such-option"
            if rng.random() < 0.5
            else rng.choice(("--sites=x", "--port=x", "--rows=x", "--json=x", "extra words"))
        )
    if rng.random() < 0.05:
        rng.shuffle(words)
        words = ["schema", *words]
    return {"words": [word.replace("\x00", "") for word in words], "place": rng.choice(PLACES)}


def _value(rng: random.Random) -> str:
    return "{}/" + rng.choice(PATHS) if rng.random() < 0.4 else rng.choice(WRONG)


def _options_run(files: Files, case: Input) -> None:
    restore(files)
    with contextlib.suppress(OSError):
        from fuzz.target import put

        put(files.scratch / "fifo.csv", "fifo")
        put(files.scratch / "folder.parquet", "folder")
        put(files.scratch / "nothing", case["place"])
    check_command([word.replace("{}", str(files.scratch)) for word in case["words"]])


TARGETS: tuple[Target, ...] = (
    *(
        Target(
            name=f"commands-{part}",
            prepare=_files_prepare(part),
            draw=_files_draw(known),
            run=_files_run(known),
            cost=cost,
        )
        for (part, known), cost in zip(PARTS.items(), (150.0, 150.0, 40.0, 40.0), strict=True)
    ),
    Target(name="options", prepare=_options_prepare, draw=_options_draw, run=_options_run, cost=20.0),
)
