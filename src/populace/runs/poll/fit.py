"""From files of answers to a run folder: the same folder `synthesize` leaves, but no record was ever here."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from populace.border.regular import open_regular
from populace.engines.runtime import Keys, Progress, Report, Traffic
from populace.errors import DataError, SpecError
from populace.methods.base import Population
from populace.methods.poll.protocol import Poll
from populace.runs.folder import RunFolder
from populace.runs.poll.assignment import Assignment, check_one_stage
from populace.runs.poll.count import Counted, count_files, load_counted, nothing_counted
from populace.runs.poll.files import Files, Terms, check_agreement, questions_hash, read_terms
from populace.runs.poll.statement import FROM_FILES, stated_collection
from populace.runs.restated import collected_population
from populace.runs.run import Run, make_key, versions
from populace.runs.spec import RunSpec, make_spec
from populace.tables.schema import load_schema
from populace.types import Array, Doing, JsonObject

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """What is to be fitted: which files, under which schema, and how many rows to draw."""

    answers: tuple[str, ...]
    schema_file: str
    rows: int
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)
    seed: int | None = None

    @property
    def command(self) -> str:
        words = ["populace", "poll", "fit", *self.answers, "--schema", self.schema_file, "--rows", str(self.rows)]
        words += [] if self.seed is None else ["--seed", str(self.seed)]
        for name, value in self.settings.items():
            words += ["--set", f"{name}={value}"]
        return shlex.join([*words, "--out", "RUN"])


def fit_answers(
    wanted: Fit,
    out: str | Path,
    *,
    progress: Report | None = None,
    say: Say = lambda _: None,
    doing: Doing = lambda _: None,
) -> Run:
    """Check, count, fit, sample, write. An unfinished folder of the same command goes on where it was."""
    began = time.monotonic()
    doing("counting answers")
    files = {Path(name): read_terms(Path(name)) for name in wanted.answers}
    if len(files) < len(wanted.answers):
        raise DataError("a file of answers is named twice; name each once")
    check_agreement(files)
    assignment = _assignment(wanted, [terms for terms, _ in files.values()])
    spec = _spec(wanted, assignment)
    folder = RunFolder(out)
    try:
        with folder.claim(spec.model_dump(), spec.digest()) as resuming:
            folder.check_same_data(*(_content(path) for path in files))
            counted, root = _counted(folder, files, assignment, make_key(wanted.seed), resuming, progress, say)
            document = {
                **_document(wanted, spec, assignment, counted, files),
                "seconds": {"reading": time.monotonic() - began},
            }
            return _finished(folder, assignment, counted, Keys(root), document, doing)
    except DataError:
        with contextlib.suppress(OSError):
            folder.path.rmdir()  # nothing stands in it, unless it was there before
        raise


def _finished(
    folder: RunFolder, assignment: Assignment, counted: Counted, keys: Keys, document: JsonObject, doing: Doing
) -> Run:
    """The model, rows drawn from it, and the papers of the run."""
    began, seconds = time.monotonic(), document["seconds"]
    doing("fitting")
    generator = assignment.protocol.finish(counted.state, assignment.population, keys.finish())
    trained = time.monotonic()
    doing("sampling")
    table = generator.sample(document["rows"], keys.sample())
    sampled = time.monotonic()
    seeded = any(file["seeded"] for file in document["answers"]["files"])
    claim, records = assignment.protocol.guarantee(assignment.population), assignment.population.records
    guarantee = stated_collection(claim, records=records, seeded=seeded, answered=counted.answers)
    doing("writing")
    generator.save(folder.path)
    table.save(folder / "synthetic.parquet")
    seconds |= {"training": trained - began, "sampling": sampled - trained}
    seconds["total"] = seconds["reading"] + time.monotonic() - began
    folder.save_privacy(guarantee, document, event=assignment.protocol.survey(assignment.population).panel.event)
    folder.finish(document)
    return Run(generator=generator, guarantee=guarantee, details=document)


def _counted(
    folder: RunFolder,
    files: Files,
    assignment: Assignment,
    root: Array,
    resuming: bool,
    progress: Report | None,
    say: Say,
) -> tuple[Counted, Array]:
    """All answers counted, from the checkpoint on if there is one, and the key the fit starts from."""
    counted, total, saved = (
        nothing_counted(assignment),
        sum(answers for _, answers in files.values()),
        folder.checkpoint,
    )
    if resuming and saved.exists():
        counted, root = load_counted(saved.path, assignment)
        say(f"resuming the unfinished run in {folder.path}: {counted.read:,} answers were counted")
    say(f"poll: {total:,} answers in {len(files)} file{'s' if len(files) > 1 else ''}")

    def after(now: Counted, due: bool) -> None:
        if due:
            now.save(saved.path, root)
        if progress:
            progress(Progress(done=now.read, total=total, clients=now.answers))

    try:
        counted = count_files(list(files), assignment, counted, after=after)
    except DataError:
        _abandon(folder)
        raise
    counted.save(saved.path, root)
    if lost := {reason: number for reason, number in counted.dropped.items() if number}:
        say("dropped " + "; ".join(f"{number:,}: {reason}" for reason, number in lost.items()))
    return counted, root


def _document(wanted: Fit, spec: RunSpec, assignment: Assignment, counted: Counted, files_read: Files) -> JsonObject:
    """run.json: what `synthesize` writes, and where the answers came from."""
    down, _ = assignment.protocol.learner(assignment.population).message_bytes()
    traffic = Traffic(down=down * counted.answers, up=float(counted.content), messages=counted.answers)
    files = [
        {"file": str(path), "answers": answers, "first_client": terms.first_client, "seeded": terms.seeded,
         "populace": terms.version}
        for path, (terms, answers) in files_read.items()
    ]  # fmt: skip
    return {
        "status": "finished",
        "digest": spec.digest(),
        "spec": spec.model_dump(),
        "command": wanted.command,
        "method": assignment.protocol.facts.name,
        "parameters": dataclasses.asdict(assignment.protocol),
        "clients": counted.answers,
        "split": FROM_FILES,
        "population": collected_population(assignment.population, answered=counted.answers),
        "answers": {"counted": counted.answers, "dropped": counted.dropped, "files": files},
        "rows": wanted.rows,
        "versions": versions(),
        "rounds": 1,
        "traffic": traffic.to_json(),
        "ledger": {
            "epsilon": spec.epsilon, "delta": 0.0, "accounts_charged": counted.read, "charges": counted.read,
        },
    }  # fmt: skip


def _assignment(wanted: Fit, terms: list[Terms]) -> Assignment:
    """The poll the answers were given to, with the fit's own settings.

    Refuses a schema, a version or a setting under which other questions would have been asked.
    """
    first, path = terms[0], wanted.answers[0]
    schema = load_schema(wanted.schema_file)
    if schema.digest != first.schema:
        raise DataError(
            f"{path} was collected under another schema than {wanted.schema_file}; give the schema the clients agreed to"
        )
    population = Population(
        schema=schema.with_target(first.target), clients=max(each.clients for each in terms),
        records=max(each.records for each in terms),
    )  # fmt: skip
    asked = first.protocol()
    check_one_stage(asked)
    if questions_hash(asked, population) != first.questions:
        raise DataError(
            f"{path} was collected by populace {first.version}, which asks other questions than this version; fit it with "
            "that version"
        )
    protocol = first.protocol(**wanted.settings)
    if questions_hash(protocol, population) != first.questions:
        raise SpecError(
            f"--set {', '.join(wanted.settings)} changes the questions, which have been answered; only settings of the fit "
            "can change here"
        )
    return Assignment(protocol, population, first.key)


def _spec(wanted: Fit, assignment: Assignment) -> RunSpec:
    """The specification `synthesize` would have, for the commands that read runs."""
    defaults = {field.name: field.default for field in dataclasses.fields(Poll)}
    parameters = dataclasses.asdict(assignment.protocol)
    settings = {name: value for name, value in parameters.items() if name != "epsilon" and value != defaults[name]}
    return make_spec(
        data=" ".join(wanted.answers), method="poll", epsilon=parameters["epsilon"], schema_file=wanted.schema_file,
        target=assignment.population.table_schema.target, records_per_client=assignment.population.records, settings=settings,
        rows=wanted.rows, seed=wanted.seed,
    )  # fmt: skip


def _content(path: Path) -> bytes:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").digest()


def _abandon(folder: RunFolder) -> None:
    """Leave no unfinished run behind that never can be finished."""
    for path in (folder.checkpoint.path, folder / "resume.json", folder / "run.json"):
        path.unlink(missing_ok=True)
