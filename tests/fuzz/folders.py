"""Targets: folders of runs, federations, sites and studies in which one file is damaged."""

from __future__ import annotations

import json
from pathlib import Path

from fuzz.corpus import run_spec
from fuzz.target import FindingError, Target, folder_target
from populace.collector.progress import progress_document
from populace.collector.stores import study_store
from populace.collector.study import StudyFolder
from populace.engines.link import InProcess
from populace.engines.segment import coordinator_of
from populace.engines.site_file import open_site
from populace.federation.coordinator import Federation
from populace.federation.site import SiteFolder
from populace.report.page import evaluate_runs
from populace.report.statement import check_page, write_statement
from populace.runs.folder import digest_of
from populace.runs.ledger.view import find_ledger, overview
from populace.runs.poll.fit import Fit, fit_answers
from populace.runs.run import load_run, synthesize
from populace.runs.verify.checks import read_papers, verify_papers
from populace.tables.images import Images

METHODS = ("census", "poll", "independent", "l-dpd-vae", "moments")
OF_RUN = ("*.json", "*.npz", "*.parquet", "*.html")


def _load(folder: Path, _: str) -> None:
    run = load_run(folder)
    _ = (repr(run), run.method, run.parameters, run.lines, run.statement)


def _sample(folder: Path, _: str) -> None:
    drawn = load_run(folder).sample(5, seed=1)
    if len(drawn) != 5:
        raise FindingError(f"asked for 5 rows, got {len(drawn)}")
    drawn.save(folder / f"more{'.npz' if isinstance(drawn, Images) else '.parquet'}")


def _forged(folder: Path, file: str) -> None:
    """A model that was changed together with the list of digests that would give it away."""
    path = folder / Path(file).name
    privacy = json.loads((folder / "privacy.json").read_text())
    privacy["files"][path.name] = digest_of(path)
    (folder / "privacy.json").write_text(json.dumps(privacy))
    _sample(folder, file)


def _verify(folder: Path, _: str) -> None:
    papers = read_papers(folder)
    for check in [*verify_papers(papers), check_page(papers)]:
        check.to_json()


def _evaluate(folder: Path, _: str) -> None:
    evaluate_runs([folder], str(folder.parent / "rows.parquet"))  # of images: minutes, in which classifiers are trained


def _statement(folder: Path, _: str) -> None:
    write_statement(folder)


def _ledger(folder: Path, _: str) -> None:
    overview(find_ledger(folder))


def _resume(folder: Path, _: str) -> None:
    spec = run_spec(folder.parent, folder.name, settings={"clients_per_batch": 8})
    run = synthesize(spec, folder)
    if run.details["status"] != "finished":
        raise FindingError("a resumed run ended without being finished")


def _coordinator(folder: Path, _: str) -> None:
    coordinator_of(folder, InProcess({})).start()


def _federation(folder: Path, _: str) -> None:
    federation = Federation(folder)
    _ = (federation.name, federation.proposal_path)
    federation.status()
    federation.agreement()


def _site(folder: Path, _: str) -> None:
    place = SiteFolder(folder)
    place.status()
    if place.joined:
        place.back_up(folder.parent / "backup.zip")


def _open_site(folder: Path, _: str) -> None:
    open_site(folder / "kit" / "local" / "populace.json")


def _study(folder: Path, _: str) -> None:
    place = StudyFolder(folder)
    study = place.read()
    place.token()
    store = study_store(place, study)
    try:
        progress_document(study, store, 0.1)
    finally:
        store.close()


def _fit(folder: Path, _: str) -> None:
    wanted = Fit(
        answers=tuple(str(folder / f"answers{number}.parquet") for number in range(2)),
        schema_file=str(folder / "people.toml"), rows=5, settings={}, seed=1,
    )  # fmt: skip
    fit_answers(wanted, folder / "run")


TARGETS: tuple[Target, ...] = (
    folder_target("load-run", "runs", _load, damage=("run.json", "privacy.json", "generator.*"), within=METHODS, cost=6.0),
    folder_target("sample-run", "runs", _sample, damage=("generator.*",), within=METHODS, cost=25.0),
    folder_target("sample-forged", "runs", _forged, damage=("generator.*",), within=METHODS, cost=25.0),
    folder_target("verify-run", "runs", _verify, damage=OF_RUN, within=METHODS, cost=40.0),
    folder_target("evaluate-run", "runs", _evaluate, damage=OF_RUN, within=("independent", "census"), cost=900.0),
    folder_target("write-statement", "runs", _statement, damage=("privacy.json",), within=METHODS, cost=15.0),
    folder_target("ledger-of-run", "runs", _ledger, damage=("run.json", "*.sqlite"), within=("", "census"), cost=12.0),
    folder_target("resume-run", "unfinished", _resume, damage=("*/run.json", "*/resume.json", "*/booking.json",
    "*/checkpoint.npz"),
                  within=("independent", "krr"), cost=250.0),
    folder_target("coordinator", "federation", _coordinator, damage=("plan.json", "roster.json", "checkpoint.*"),
                  within=("coordinator/runs/run-1",), cost=12.0),
    folder_target("federation", "federation", _federation, damage=("federation.json", "status.json", "*.proposal.json"),
                  within=("coordinator",), cost=10.0),
    folder_target("site", "federation", _site, damage=("*.json", "*.sqlite", "*.head", "site.log", "sum.key"), within=("site",),
                  cost=15.0),
    folder_target("open-site", "federation", _open_site, damage=("populace.json", "data.json", "*.sqlite", "*.head",
    "*.parquet"),
                  within=("site",), cost=15.0),
    folder_target("study", "study", _study, damage=("study.json", "organiser.token", "collector.db"), within=("study",),
    cost=25.0),
    folder_target("poll-fit", "poll", _fit, damage=("answers*.parquet", "people.toml"), cost=300.0),
)  # fmt: skip
