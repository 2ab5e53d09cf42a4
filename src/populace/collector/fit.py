"""From the answers of a study to a run folder: the same folder `synthesize` leaves, but no record was ever here.

Fitting only reads: answers that come later are in the next fit. It costs no privacy, however often it is done.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
import time
from collections.abc import Callable
from pathlib import Path

from populace.collector.rounds import absorb_round, read_questions, read_state
from populace.collector.store import Store
from populace.collector.study import Study, StudyFolder
from populace.engines.runtime import Keys, Traffic, make_key
from populace.errors import DataError
from populace.methods.blocks.composed import RunState
from populace.runs.device_statement import FROM_DEVICES, stated_study
from populace.runs.folder import RunFolder
from populace.runs.restated import study_population
from populace.runs.run import Run, versions
from populace.runs.spec import RunSpec, make_spec
from populace.types import Doing, JsonObject

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gathered:
    """The state after all answers so far, and how many there are of how many bytes."""

    state: RunState
    answers: int
    content: int
    rounds: int
    digest: bytes


def gather(study: Study, store: Store) -> Gathered:
    """All answers absorbed, those of the round under way too; nothing in the store is changed."""
    with store.snapshot():
        kept, rounds = store.fact("state"), list(reversed(store.rounds()))
        contents = {at.number: (at.state, store.ask(at.number), store.replies(at.number)) for at in rounds}
    answers = sum(len(replies) for _, _, replies in contents.values())
    if kept is None or not answers:
        raise DataError("nobody has answered yet; there is nothing to fit")
    digest = hashlib.sha256(kept)
    state, used = read_state(study, kept), 0
    for number, (standing, ask, replies) in contents.items():
        used += bool(replies)
        for place, report in replies:
            digest.update(f"{number} {place} ".encode() + report)
        if standing != "absorbed" and replies and ask is not None:
            state = absorb_round(study, state, read_questions(study, ask), replies)
    content = sum(len(report) for _, _, replies in contents.values() for _, report in replies)
    return Gathered(state=state, answers=answers, content=content, rounds=used, digest=digest.digest())


def fit_study(
    folder: StudyFolder, study: Study, store: Store, out: str | Path, *, rows: int, seed: int | None = None,
    say: Say = lambda _: None, doing: Doing = lambda _: None,
) -> Run:  # fmt: skip
    """Absorb, fit, sample, write."""
    began = time.monotonic()
    doing("counting answers")
    spec = _spec(folder, study, rows, seed)
    run_folder = RunFolder(out)
    gathered = gather(study, store)
    say(f"{study.method}: {gathered.answers:,} answers of {study.clients:,} planned, in {gathered.rounds} round(s)")
    with run_folder.claim(spec.model_dump(), spec.digest()):
        run_folder.check_same_data(gathered.digest)
        read = time.monotonic()
        keys = study.keys
        doing("fitting")
        generator = study.protocol.finish(gathered.state, study.population, keys.finish())
        trained = time.monotonic()
        doing("sampling")
        table = generator.sample(rows, Keys(make_key(seed)).sample())
        sampled = time.monotonic()
        claim = study.protocol.guarantee(study.population)
        guarantee = stated_study(claim, answered=gathered.answers, open_to_all=study.open)
        doing("writing")
        generator.save(run_folder.path)
        run_folder.save_synthetic(table)
        seconds = {"reading": read - began, "training": trained - read, "sampling": sampled - trained}
        seconds["total"] = time.monotonic() - began
        document = {**_document(folder, spec, study, gathered), "seconds": seconds}
        run_folder.save_privacy(guarantee, document, event=study.protocol.spends(study.population))
        run_folder.finish(document)
    return Run(generator=generator, guarantee=guarantee, details=document, folder=run_folder.path)


def _spec(folder: StudyFolder, study: Study, rows: int, seed: int | None) -> RunSpec:
    settings = dict(study.protocol.settings_to_file())
    epsilon = float(settings.pop("epsilon"))
    return make_spec(
        data=str(folder.path), method=study.method, epsilon=epsilon, schema_file=str(folder.path / "schema.toml"),
        target=study.schema.target, records_per_client=1, settings=settings, rows=rows, seed=seed,
    )  # fmt: skip


def _document(folder: StudyFolder, spec: RunSpec, study: Study, gathered: Gathered) -> JsonObject:
    """run.json: what `synthesize` writes, and which study the answers came from."""
    down = study.protocol.plan(study.population).bytes_down
    traffic = Traffic(down=down * gathered.answers, up=float(gathered.content), messages=gathered.answers)
    claim = study.protocol.guarantee(study.population)
    words = ["populace", "collector", "fit", str(folder.path), "--rows", str(spec.rows)]
    words += [] if spec.seed is None else ["--seed", str(spec.seed)]
    return {
        "status": "finished",
        "digest": spec.digest(),
        "spec": spec.model_dump(),
        "command": shlex.join([*words, "--out", "RUN"]),
        "method": study.method,
        "parameters": study.protocol.settings_to_file(),
        "clients": gathered.answers,
        "split": FROM_DEVICES,
        "population": study_population(study.population, answered=gathered.answers, open_to_all=study.open),
        "study": {
            "id": study.id, "title": study.title, "digest": study.digest, "open": study.open, "answers": gathered.answers,
            "planned": study.clients, "rounds": gathered.rounds,
        },
        "rows": spec.rows,
        "versions": versions(),
        "rounds": gathered.rounds,
        "traffic": traffic.to_json(),
        "ledger": {
            "epsilon": claim.epsilon, "delta": 0.0, "accounts_charged": gathered.answers, "charges": gathered.answers,
        },
    }  # fmt: skip
