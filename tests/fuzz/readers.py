"""Targets: readers of single files, one per format, and what is done first with what they read."""

from __future__ import annotations

from pathlib import Path

from fuzz.corpus import Corpus, mixed_frame, small_table
from fuzz.target import FindingError, Target, file_target
from populace.border.models import interpreting
from populace.border.regular import read_bytes
from populace.engines.coordinator_sums import decided_from_bytes
from populace.engines.flare.kits import fingerprint, requested_name
from populace.engines.segment import read_plan, read_roster, read_status
from populace.engines.site_file import read_agreements
from populace.federation.coordinator import read_proposal
from populace.federation.sum_keys import public_sum_key
from populace.privacy.ledger_file import read_head
from populace.privacy.run_ledger import RunLedger
from populace.privacy.sqlite_ledger import SqliteLedger, kept_budget
from populace.report.attack_results import read_attacks, read_audit
from populace.runs.ledger.view import overview
from populace.runs.poll import files as answer_files
from populace.tables.coded import read_coded
from populace.tables.files import read_arrays, read_json
from populace.tables.images import read_images
from populace.tables.proposal import propose
from populace.tables.reading import read_frame
from populace.tables.reports import report_batches, write_reports
from populace.tables.schema import load_schema
from populace.tables.sdv import propose_from_sdv
from populace.tables.stream import rows_of, stream_frames
from populace.tables.table import make_table, read_table

SCHEMA = small_table().schema
MIXED = mixed_frame()


def _tables(*suffixes: str):
    return lambda corpus: corpus.files("tables", *suffixes)


def _frame(path: Path) -> None:
    """Read, and look at every value: what was read must be whole."""
    frame = read_frame(path)
    frame.validate(full=True)
    frame.to_pylist()


def _proposed(path: Path) -> None:
    proposed = propose(read_frame(path))
    make_table(read_frame(path), proposed.schema)


def _under_schema(path: Path) -> None:
    read_table(path, SCHEMA)
    read_coded(path, SCHEMA)


def _stream(path: Path) -> None:
    rows_of(path)
    for frame in stream_frames(path, SCHEMA):
        frame.to_pylist()


def _schema(path: Path) -> None:
    """A schema that was read is one that can be written and read again."""
    schema = load_schema(path)
    again = path.with_name("again.toml")
    schema.save(again)
    if load_schema(again).digest != schema.digest:
        raise FindingError("a schema is another one after it was written and read")


def _sdv(path: Path) -> None:
    propose_from_sdv(path, MIXED)


def _reports(path: Path) -> None:
    for _ in report_batches([path], width=6):
        pass


def _report_files(corpus: Corpus) -> dict[str, bytes]:
    import numpy as np

    folder = corpus.folder / "reports"
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for suffix in (".parquet", ".arrow"):
        path = folder / f"reports{suffix}"
        if not path.exists():
            write_reports(path, [rng.integers(0, 2, (20, 6)).astype(np.uint8)])
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _answers(path: Path) -> None:
    terms, _ = answer_files.read_terms(path)
    terms.protocol()
    _ = terms.key
    for batch in answer_files.answer_batches(path):
        len(batch)


def _answer_files(corpus: Corpus) -> dict[str, bytes]:
    return {name: data for name, data in corpus.files("poll", ".parquet").items() if name.startswith("answers")}


def _run_ledger(path: Path) -> None:
    overview(path)
    with RunLedger(path) as ledger, ledger.transaction():
        ledger.allow(0.5)


def _of(part: str, name: str):
    """The files of a part that have this name, wherever they lie."""
    return lambda corpus: {key: data for key, data in corpus.files(part).items() if Path(key).name == name}


def _site_ledger(path: Path) -> None:
    budget = kept_budget(path)
    if budget is None:
        return
    with SqliteLedger(path, budget, create=False) as ledger:
        ledger.summary()
        for account in ledger.accounts()[:3]:
            ledger.spent(account)
            ledger.memory(account, run="run-1")
        ledger.begun("run-1")


def _named(path: Path, name: str) -> Path:
    if path.name != name:
        raise FindingError(f"{path.name} is not {name}")
    return path.parent


def _attack_files(corpus: Corpus) -> dict[str, bytes]:
    return {
        "audit.json": b'{"rows": [{"epsilon": 1.0, "name": "a"}], "claimed": {"epsilon": 2.0}, "notes": []}',
        "attacks.json": b'{"membership": {"accuracy": 0.5, "low": 0.4, "high": 0.6}, "attribute": {}, "distances": {}}',
    }


def _attacks(path: Path) -> None:
    read_audit(path)
    read_attacks(path)


def _decided(corpus: Corpus) -> dict[str, bytes]:
    from secure_sums_for_tests import Sites, make_opening, vectors_of

    opening, kept = make_opening(), []
    Sites(opening, vectors_of(opening)).open(save=lambda decided: kept.append(decided.to_bytes()))
    return {f"sum-{number}": data for number, data in enumerate(kept)}


def _read_decided(path: Path) -> None:
    with interpreting(str(path)):  # as the coordinator does
        decided_from_bytes(read_bytes(path))


TARGETS: tuple[Target, ...] = (
    file_target("read-csv", _tables(".csv"), _frame, cost=1.5),
    file_target("read-parquet", _tables(".parquet"), _frame, cost=2.0),
    file_target("read-arrow", _tables(".arrow", ".feather"), _frame, cost=1.5),
    file_target("propose", _tables(".csv", ".parquet", ".arrow", ".feather"), _proposed, cost=12.0),
    file_target("read-under-schema", lambda c: {n: d for n, d in c.files("tables").items() if n[:5] in ("plain", "tiny.")},
                _under_schema, cost=6.0),
    file_target("stream", lambda c: {n: d for n, d in c.files("tables").items() if n[:5] in ("plain", "tiny.", "bare.")},
                _stream, cost=3.0),
    file_target("read-images", lambda c: c.files("images"), read_images, cost=1.0),
    file_target("read-arrays", lambda c: {n: d for n, d in c.files("runs", ".npz").items() if "generator" in n}, read_arrays,
                cost=1.5),
    file_target("read-json", lambda c: c.files("federation", ".json"), read_json, cost=1.0),
    file_target("read-schema", lambda c: c.files("schemas", ".toml"), _schema, cost=4.0),
    file_target("read-sdv", lambda c: c.files("schemas", ".json"), _sdv, cost=12.0),
    file_target("read-reports", _report_files, _reports, cost=1.5),
    file_target("read-answers", _answer_files, _answers, cost=2.5),
    file_target("read-proposal", _of("federation", "study.proposal.json"), read_proposal, cost=1.0),
    file_target("read-site-file", _of("federation", "populace.json"), read_agreements, cost=1.0),
    file_target("read-plan", _of("federation", "plan.json"), lambda path: read_plan(_named(path, "plan.json")), cost=1.0),
    file_target("read-roster", _of("federation", "roster.json"), lambda path: read_roster(_named(path, "roster.json")),
    cost=0.5),
    file_target("read-status", _of("federation", "status.json"), lambda path: read_status(_named(path, "status.json")),
    cost=0.5),
    file_target("read-request", _of("federation", "ward.request.zip"), requested_name, cost=0.5),
    file_target("read-certificate", lambda _: {"rootCA.pem": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
                fingerprint, cost=0.5),
    file_target("read-sum-key", _of("federation", "sum.key"), public_sum_key, cost=0.5),
    file_target("read-head", _of("federation", "ledger.sqlite.head"),
                lambda path: read_head(path.with_name("ledger.sqlite")), cost=0.5),
    file_target("read-run-ledger", _of("runs", "populace-ledger.sqlite"), _run_ledger, cost=8.0),
    file_target("read-site-ledger", _of("federation", "ledger.sqlite"), _site_ledger, cost=8.0),
    file_target("read-attacks", _attack_files, _attacks, cost=0.5),
    file_target("read-decided-sum", _decided, _read_decided, cost=0.5),
)  # fmt: skip
