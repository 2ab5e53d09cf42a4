"""What `populace attack` was asked to attack, and the document of what came of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from populace.attacks.memorise import Memorise
from populace.attacks.shadows import Report, Setting, play_all
from populace.border.models import Form, read_document
from populace.engines.agreement import frozen
from populace.engines.runtime import check_kind
from populace.errors import RunError, SpecError
from populace.evaluation.attacks.attribute import infer_attribute
from populace.evaluation.attacks.distances import compare_distances
from populace.evaluation.attacks.membership import PROVES_NOTHING, attack
from populace.methods.base import Population, Protocol
from populace.methods.registry import METHODS, load_table_generator, make_protocol, settings_from_file
from populace.privacy.consequences import consequences
from populace.privacy.guarantee import Guarantee, check_epsilon
from populace.runs.folder import RunFolder
from populace.runs.named import TABLE_IN_MEMORY
from populace.runs.run import Run, load_run, versions
from populace.runs.sources import read_rows
from populace.runs.spec import RunSpec, make_method, make_spec, silos_of, spec_from_file
from populace.runs.workers import cores
from populace.tables.files import read_json, write_json
from populace.tables.schema import Schema
from populace.tables.table import Table, make_table, read_table, resolve_schema
from populace.types import Doing, JsonObject
from populace.version import __version__

Say = Callable[[str], None]

CALIBRATION = "memorise"
DEFAULT_EPSILON = 4.0
DEFAULT_ROWS = 1_000
WARNING = "made from real rows without noise: not covered by any guarantee; keep it with the data, do not publish it"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttackRequest:
    """An attack as asked for. `what` is a method, `memorise`, or the folder of a run; `data` are real rows like the run's,
    from so many `silos`: under a method that protects records each of them is a client, and rows are dealt to them evenly.
    """

    what: str
    data: str | pa.Table
    holdout: str | pa.Table | None = None
    epsilon: float | None = None
    schema: str | None = None
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)
    targets: int = 20
    shadows: int = 60
    attacked: int = 40
    rows: int = 0
    drawn: int = 0
    records_per_client: int | None = None
    silos: int = 1
    sensitive: str | None = None
    seed: int = 0
    jobs: int = 0

    @property
    def is_run(self) -> bool:
        return self.what not in (*METHODS, CALIBRATION) and Path(self.what).is_dir()

    @property
    def folder(self) -> Path:
        return Path(self.what) if self.is_run else Path(f"attack-{self.what}")


def perform(
    request: AttackRequest,
    *,
    out: Path | None = None,
    command: str = "",
    progress: Report = lambda _: None,
    say: Say = lambda _: None,
    doing: Doing = lambda _: None,
) -> tuple[JsonObject, Path]:
    """Perform an attack; return attacks.json and its path. Work is resumed from the folder and never done twice."""
    doing("reading rows")
    protocol, table, synthetic, records = _read(request)
    setting = Setting(
        protocol=protocol, table=table, targets=request.targets, shadows=request.shadows, attacked=request.attacked,
        rows=request.rows or _default_rows(len(table), request.targets), drawn=request.drawn, records_per_client=records,
        seed=request.seed,
    )  # fmt: skip
    return run_attack(
        setting, out or request.folder, sensitive=request.sensitive, jobs=request.jobs or cores(), released=synthetic,
        command=command, progress=progress, say=say, doing=doing,
    )  # fmt: skip


def _read(request: AttackRequest) -> tuple[Protocol, Table, tuple[Table, Table] | None, int]:
    """The method, the rows, and for a run with a holdout its synthetic rows and the holdout."""
    if request.is_run:
        given = (request.epsilon, request.schema, request.settings or None, request.records_per_client)
        if any(value is not None for value in given):
            raise SpecError(
                "a run carries its own epsilon, schema, parameters and clients; leave --epsilon, --schema, --set and "
                "--records-per-client out"
            )
        run = load_run(request.what)
        spec = spec_from_file(run.details["spec"])
        if spec.client_column is not None:
            raise SpecError("shadow runs deal rows out evenly; a run with --client-column cannot be attacked yet")
        if spec.person is not None:
            raise SpecError("shadow runs take rows one by one; a run with --person cannot be attacked yet")
        schema = load_table_generator(Path(request.what)).schema
        table = _rows(request.data, schema)
        released = None
        if request.holdout is not None:
            synthetic = read_table(Path(request.what) / "synthetic.parquet", schema)
            released = (synthetic, _rows(request.holdout, schema))
        return (
            _method_of(run, spec),
            table,
            released,
            _records(request, len(table), spec.silos, spec.records_per_client),
        )
    if request.holdout is not None:
        raise SpecError("--holdout belongs to the attack on a run: rows like those of --real that were not used in it")
    table, protocol = _rows(request.data, request.schema), make_attacked(request)
    silos = None
    if request.what in METHODS:
        silos = silos_of(
            request.silos, protocol.facts, listed=request.silos > 1, records_per_client=request.records_per_client,
            client_column=None,
        )  # fmt: skip
    return protocol, table, None, _records(request, len(table), silos, request.records_per_client or 1)


def _records(request: AttackRequest, rows: int, silos: int | None, records_per_client: int) -> int:
    """The records of one client of a shadow run: its share of the rows, where clients are silos."""
    return records_per_client if silos is None else -(-(request.rows or _default_rows(rows, request.targets)) // silos)


def _method_of(run: Run, spec: RunSpec) -> Protocol:
    """The method of a run with the settings it ran with, also those that were chosen for its data."""
    if "parameters" not in run.details:
        return make_method(spec)
    parameters = {name: frozen(value) for name, value in run.parameters.items()}
    return make_protocol(run.method, settings_from_file(run.method, parameters))


def _rows(data: str | pa.Table, schema: Schema | str | None) -> Table:
    return read_rows(data, schema)[1] if isinstance(data, str) else make_table(data, resolve_schema(data, schema))


def make_attacked(request: AttackRequest) -> Protocol:
    """The method to attack; `memorise`, which is no method, shows what the attack can do at all."""
    if request.what == CALIBRATION:
        if request.epsilon is not None or request.settings:
            raise SpecError(f"{CALIBRATION!r} has no epsilon and no parameters; leave --epsilon and --set out")
        return Memorise()
    if request.what not in METHODS:
        raise SpecError(
            f"{request.what!r} is neither a method ({', '.join(METHODS)}) nor {CALIBRATION!r} nor the folder of a run"
        )
    epsilon = DEFAULT_EPSILON if request.epsilon is None else request.epsilon
    check_epsilon(epsilon)
    data = request.data if isinstance(request.data, str) else TABLE_IN_MEMORY
    return make_method(make_spec(data=data, epsilon=epsilon, method=request.what, settings=dict(request.settings)))


def _default_rows(rows: int, targets: int) -> int:
    return max(2, min(DEFAULT_ROWS, (rows - targets) // 4))


def run_attack(
    setting: Setting,
    out: Path,
    *,
    sensitive: str | None = None,
    jobs: int = 1,
    released: tuple[Table, Table] | None = None,
    command: str = "",
    progress: Report = lambda _: None,
    say: Say = lambda _: None,
    doing: Doing = lambda _: None,
) -> tuple[JsonObject, Path]:
    """Attack a method: membership by shadow runs, attributes and distances on one more run, or on what was `released`
    (synthetic rows, with rows that were not used; the table's are those that were)."""
    schema = setting.table.schema
    clients = -(-setting.rows // setting.records_per_client)
    population = Population(schema=schema, clients=clients, records=setting.records_per_client)
    check_kind(setting.protocol, population)
    claim = setting.protocol.guarantee(population)
    column = sensitive or schema.target or schema.names[-1]
    schema.index(column)
    digest = _digest(setting, column, released is not None)
    rows = [setting.table, *(released or ())]
    work = RunFolder(out / "attack-runs")
    if (found := _finished(out, digest, rows)) is not None:
        say(f"{out / 'attacks.json'} was made by the same command; it is not made again")
        return found, out / "attacks.json"
    _claim(work, digest)
    work.check_same_data(np.ascontiguousarray(setting.table.codes).tobytes())
    say(
        f"{setting.protocol.facts.name}: {setting.targets} targets, {setting.shadows} shadow runs and {setting.attacked} "
        f"attacked runs of {setting.rows:,} rows each, {jobs} process(es)"
    )
    doing("making shadow runs")
    shadows, victims = play_all(setting, work.path, jobs=jobs, progress=progress)
    doing("training the attackers")
    membership = {**attack(shadows, victims), **_allowed(claim)}
    rare = (setting.targets + 1) // 2
    membership["rare_targets"] = float(np.mean(membership["by_target"][:rare]))
    membership["other_targets"] = float(np.mean(membership["by_target"][rare:])) if setting.targets > 1 else None
    doing("inferring attributes and comparing distances")
    synthetic, inside, outside, about = _attacked_rows(setting, released)
    document = {
        "digest": digest,
        "data": _fingerprint(rows, secrets.token_hex(16)),
        "warning": WARNING,
        "method": setting.protocol.facts.name,
        "claimed": claim.to_json(),
        "membership": membership,
        "attribute": {**infer_attribute(synthetic, inside, outside, column, seed=setting.seed), "about": about},
        "distances": {**compare_distances(synthetic, inside, outside, seed=setting.seed), "about": about},
        "notes": _notes(membership, setting),
        "settings": {
            "targets": setting.targets, "shadows": setting.shadows, "attacked": setting.attacked, "rows": setting.rows,
            "synthetic_rows": setting.synthetic_rows, "records_per_client": setting.records_per_client, "seed": setting.seed,
        },
        "command": command,
        "versions": versions(),
    }  # fmt: skip
    write_json(out / "attacks.json", document)
    shutil.rmtree(work.path)
    return document, out / "attacks.json"


def _attacked_rows(setting: Setting, released: tuple[Table, Table] | None) -> tuple[Table, Table, Table, str]:
    """Synthetic rows, rows they were made from, rows they were not made from, and what the first are, in words."""
    if released is not None:
        synthetic, outside = released
        return synthetic, setting.table, outside, "the run's own synthetic rows"
    numbers, others = setting.victim_and_others()
    synthetic = setting.generate(numbers, setting.runs)
    inside, outside = setting.table.take(numbers), setting.table.take(others)
    return synthetic, inside, outside, f"one more run on {setting.rows:,} rows"


def _digest(setting: Setting, column: str, released: bool) -> str:
    """A hash of all that decides the result except the rows."""
    public = {
        "version": __version__, "protocol": repr(setting.protocol), "schema": setting.table.schema.digest,
        "rows": len(setting.table), "column": column, "released": released,
        "settings": {
            f.name: getattr(setting, f.name) for f in dataclasses.fields(setting) if f.name not in ("protocol", "table")
        },
    }  # fmt: skip
    return hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()


def _finished(out: Path, digest: str, tables: Sequence[Table]) -> JsonObject | None:
    """The document, if the same attack on the same rows (real, synthetic, held out) was finished here."""
    if not (out / "attacks.json").is_file():
        return None
    found = read_json(out / "attacks.json")
    if not isinstance(found, dict) or found.get("digest") != digest or not isinstance(found.get("data"), str):
        return None
    return found if found["data"] == _fingerprint(tables, found["data"].partition(":")[0]) else None


def _fingerprint(tables: Sequence[Table], salt: str) -> str:
    """A salted hash that recognises the rows; two files cannot be compared by it. It stays with the data."""
    digest = hashlib.sha256(salt.encode())
    for table in tables:
        digest.update(f"{table.codes.shape}".encode() + np.ascontiguousarray(table.codes).tobytes())
    return f"{salt}:{digest.hexdigest()}"


class _Mark(Form):
    digest: str


def _claim(work: RunFolder, digest: str) -> None:
    """Take the folder for this attack; runs of another one are not mixed with it."""
    mark = work / "attack.json"
    if mark.is_file():
        if read_document(mark, _Mark, advice="remove the folder").get("digest") != digest:
            raise RunError(
                f"{work.path} holds an unfinished attack with other options; give the same command to resume it, remove the "
                "folder, or choose another --out"
            )
        return
    try:
        work.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {work.path}: {error.strerror or error}") from error
    if any(work.path.iterdir()):
        raise RunError(f"the folder {work.path} is not empty and holds no attack; choose another --out")
    write_json(mark, {"digest": digest})


def _allowed(claim: Guarantee) -> dict[str, float]:
    """The best accuracy the guarantee allows any attacker at even odds.

    A target takes somebody's place: one content is replaced by another.
    """
    found = consequences(claim)
    return {"allowed_accuracy": 1.0 if found is None else found.content}


def _notes(membership: JsonObject, setting: Setting) -> list[str]:
    verdict = "better than a coin" if membership["low"] > 0.5 else "the interval does not rule out a coin"
    text = f"{membership['accuracy']:.3f} ({membership['low']:.3f} to {membership['high']:.3f})"
    return [
        PROVES_NOTHING,
        f"here: {text}: {verdict}; the guarantee allows any attacker up to {membership['allowed_accuracy']:.3f}",
        f"shadow runs have {setting.rows:,} rows: with more rows a single one weighs less, with fewer more",
        "every run holds each target by a coin of its own, so that one run serves all targets; runs, not guesses, are the "
        "trials of the interval",
    ]
