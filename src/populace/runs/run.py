"""Running a specification: read, split, simulate, sample, write; resumable at every step."""

from __future__ import annotations

import dataclasses
import math
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from populace.engines import simulation
from populace.engines.runtime import Keys, Outcome, Report, check_kind, check_persons, population_of
from populace.engines.runtime import make_key as make_key
from populace.engines.statement import stated_simulation
from populace.errors import InputError, RunError, SpecError
from populace.methods.base import Population, Protocol
from populace.methods.blocks.generator import Synthesizer
from populace.methods.registry import is_registered, load_generator, protocol_class, registered_name
from populace.privacy.events import Event
from populace.privacy.guarantee import Guarantee, aligned
from populace.privacy.ledger import Budget
from populace.runs.domains import (
    check_room,
    find_lists,
    has_lists,
    listed_values,
    open_domains,
    refuse_lists,
    save_schema,
    without_gaps,
)
from populace.runs.folder import RunFolder
from populace.runs.folder import versions as versions
from populace.runs.given import read_private, who_takes_part
from populace.runs.ledger.history import BESIDE, NOT_BOOKED, Bookkeeping, History
from populace.runs.ledger.wording import said_alone
from populace.runs.named import IMAGES_IN_MEMORY, TABLE_IN_MEMORY, check_count, check_seed
from populace.runs.restated import simulated_population
from populace.runs.sampling import Where, condition_texts, draw
from populace.runs.sources import PrivateData
from populace.runs.spec import DEFAULT_ROWS, RunSpec, make_method, make_spec
from populace.runs.unlisted import unlisted_in_words
from populace.tables.images import Images
from populace.tables.partition import Clients
from populace.tables.table import Table
from populace.types import Doing, JsonObject

Say = Callable[[str], None]


class TemporaryFolder:
    """A folder that is removed with the object that names it, or when the program ends."""

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


ONE_RECORD_EACH = (
    "careful: this method is for silos of many records, and here every client holds one and is a silo of its own; leave out "
    "--records-per-client, and each file is a silo, or say which column names it (--client-column)"
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Run:
    """A finished run: the generator, what it guarantees, and what it cost.

    `folder` is where its files are; None after `simulate`, until it is saved. `remarks` are sentences about what reading and
    splitting the rows changed, and warnings about what was made. `event` is all that was released about the unit charged most.
    """

    generator: Synthesizer
    guarantee: Guarantee
    details: JsonObject
    folder: Path | None = None
    remarks: tuple[str, ...] = ()
    event: Event | None = None
    temporary: TemporaryFolder | None = dataclasses.field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        where = "in memory" if self.folder is None else str(self.folder)
        return f"<populace run of {self.details.get('method')}: {self.guarantee.bound}, {where}>"

    @property
    def method(self) -> str:
        """The name of the method, also where it was chosen for the data."""
        return str(self.details["method"])

    @property
    def parameters(self) -> JsonObject:
        """The settings of the method."""
        return dict(self.details.get("parameters", {}))

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """The guarantee, a label and words each, and what other runs on the same data add to it."""
        booked = self.details.get("booked") or {}
        said = (booked.get("standing") or self.details.get("history") or {}).get("said")
        return self.guarantee.lines if said is None else (*self.guarantee.lines, ("other runs", said))

    @property
    def statement(self) -> str:
        """The same as text."""
        return aligned(self.lines)

    def sample(
        self,
        rows: int,
        *,
        seed: int | None = None,
        where: Where = (),
        balance: str | Sequence[str] = (),
        conditions: Mapping[str, object] | None = None,
    ) -> Any:
        """A Table or Images, whichever the run was about; costs no privacy.

        Args:
            rows: how many.
            seed: gives the same rows again.
            where: conditions that all hold: `"age>=40"`, a list of them, or columns and their values; of images `"label=3"`.
                A number or date is that value itself, a cell is meant by its label; no value does not meet `!=`.
            balance: a column whose values are to be equally frequent, or shares: `"died=yes:0.3"`.
            conditions: the former name of `where`.
        """
        check_count("rows", rows)
        check_seed(seed)
        every = [*condition_texts(where), *condition_texts({} if conditions is None else conditions)]
        return draw(self.generator, rows, Keys(make_key(seed)).sample(), where=every, balance=balance)

    def save(self, path: str | Path, *, rows: int = DEFAULT_ROWS) -> None:
        """Keep the run in a new folder, as `populace synthesize` writes one; after `simulate` with so many synthetic rows."""
        if not isinstance(path, str | Path):
            raise RunError(f"expected the path of a new folder for the run, got {path!r}")
        new = Path(path)
        if new.exists() and (not new.is_dir() or any(new.iterdir())):
            raise RunError(f"{new} exists; choose another name for the run's folder, or remove it")
        if self.folder is None:
            _save_simulated(self, new, rows)
            return
        try:
            shutil.copytree(self.folder, new, dirs_exist_ok=True)
        except (OSError, shutil.Error) as error:
            raise RunError(f"cannot copy the run in {self.folder} to {new}: {error}") from error


def simulate(protocol: Protocol, clients: Clients, *, seed: int | None = None, progress: Report | None = None) -> Run:
    """Run a method on simulated clients, in memory. Nothing is booked in a ledger, which `details["history"]` says.

    `protocol` is a method, `methods.Moments(epsilon=4)`; `split` makes `clients`. A `seed` makes the run reproducible, and
    therefore not private.
    """
    if not isinstance(protocol, Protocol):
        raise SpecError(f"expected a method, as populace.methods has them, got {protocol!r}")
    if not isinstance(clients, Clients):
        raise InputError(f"expected clients, as populace.split makes them, got {type(clients).__name__}")
    check_seed(seed)
    refuse_lists(protocol)
    outcome = simulation.run(protocol, clients, root=make_key(seed), progress=progress, exact_noise=seed is None)
    guarantee = _stated(outcome, clients, seeded=seed is not None)
    alone = said_alone(NOT_BOOKED)
    booked = {"ledger": None, "booking": None, "standing": alone, "public": alone}
    details = {**_described(protocol, clients), **_details(outcome, clients), "history": alone, "booked": booked}
    if clients.asked is not None and is_registered(protocol):
        data = IMAGES_IN_MEMORY if isinstance(clients.data, Images) else TABLE_IN_MEMORY
        target = None if isinstance(clients.data, Images) else clients.data.schema.target
        details["spec"] = {
            **asked_of(protocol),
            **clients.asked,
            "data": data,
            "target": target,
            "seed": None if seed is None else int(seed),
        }
    return Run(generator=outcome.generator, guarantee=guarantee, details=details, event=outcome.ledger.worst_event())


def asked_of(protocol: Protocol) -> JsonObject:
    """What of a specification this method is: its name, epsilon, delta, trust and settings."""
    settings = dict(_parameters(protocol))
    asked = {"method": registered_name(protocol), "epsilon": float(settings.pop("epsilon", math.inf))}
    if settings.get("delta") == 0:
        settings.pop("delta")
    own: JsonObject = {name: settings.pop(name) for name in ("delta", "trust") if name in settings}
    return {**asked, **own, "settings": settings}


def _parameters(protocol: Protocol) -> JsonObject:
    return protocol.settings_to_file()


def _save_simulated(run: Run, path: Path, rows: int) -> None:
    """The folder of a run that was simulated in memory."""
    if "spec" not in run.details:
        raise RunError(
            f"this run cannot be stated again from its folder: {run.method} is no registered method, or its rows were "
            f"dealt out otherwise than by split ({run.details['split']}); save what it samples"
        )
    spec = make_spec(**{**run.details["spec"], "rows": rows})
    folder = RunFolder(path)
    document = {**run.details, "digest": spec.digest(), "spec": spec.model_dump(), "rows": rows}
    with folder.claim(document["spec"], document["digest"]):
        run.generator.save(folder.path)
        folder.save_synthetic(run.sample(rows, seed=spec.seed))
        folder.save_privacy(run.guarantee, document, event=run.event, history=document["history"])
        folder.finish(document)


def load_run(path: str | Path) -> Run:
    """Open a finished run; a folder whose generator is not the one that its privacy.json lists is refused."""
    if not isinstance(path, str | Path):
        raise RunError(f"expected the path of a run's folder, got {path!r}")
    folder = RunFolder(path)
    document = folder.document()
    guarantee = folder.guarantee()
    folder.check_released()
    return Run(generator=load_generator(folder.path), guarantee=guarantee, details=document, folder=folder.path)


def synthesize(
    spec: RunSpec,
    out: str | Path,
    *,
    progress: Report | None = None,
    say: Say = lambda _: None,
    keeping: Bookkeeping = BESIDE,
    private: PrivateData | None = None,
    doing: Doing = lambda _: None,
) -> Run:
    """Everything from data file to run folder. An unfinished folder with the same specification is resumed.

    The run is booked where `keeping` says, by default in the ledger beside the data, before any record is used. `private` are
    the rows where they were read already; else they are read as the specification says.
    """
    began = time.monotonic()
    keeping.path(spec.data)  # where nothing can be booked, no row is read
    doing("reading rows")
    protocol, private = open_domains(make_method(spec), private or _read(spec), spec)
    clients = private.clients
    population = population_of(clients)
    check_kind(protocol, population)
    check_persons(protocol, clients)
    protocol.guarantee(population)  # settings that do not fit the data are refused before there is a folder
    check_room(protocol, private)
    folder = RunFolder(out)
    history = History(spec, private, protocol, population, keeping)
    history.check(folder)
    with folder.claim(spec.model_dump(), spec.digest()) as resuming:
        folder.check_same_data(*_contents(clients), *listed_values(protocol, private))
        if resuming:
            say(f"resuming the unfinished run in {folder.path}")
        if not has_lists(protocol, private):
            _say_remarks(clients, say)
        for remark in _repeats(private, spec):
            say(remark)
        say(f"{protocol.facts.name}: {who_takes_part(clients, spec.silos)}")
        if protocol.facts.unit == "record" and population.records == 1 and len(clients) > 1:
            say(ONE_RECORD_EACH)
        history.reserve(folder, say)
        if has_lists(protocol, private):
            doing("finding the values of columns")
            clients = find_lists(protocol, private, folder, spec.seed)
            population = population_of(clients)
            _say_remarks(clients, say)
        read = time.monotonic()
        outcome = simulation.run(
            protocol, clients, root=make_key(spec.seed), checkpoint=folder.checkpoint, progress=progress,
            asked=asked_budget(spec, protocol, population), exact_noise=spec.seed is None, doing=doing,
        )  # fmt: skip
        trained = time.monotonic()
        guarantee = _stated(outcome, clients, seeded=spec.seed is not None)
        doing("sampling")
        drawn = outcome.generator.sample(spec.rows, Keys(folder.checkpoint.root()).sample())
        sampled = time.monotonic()
        doing("writing")
        history.confirm(folder)
        _write(folder, outcome.generator, drawn, population, say)
        seconds = _seconds(began, read, trained, sampled)
        document = {
            **_described(protocol, clients), "digest": spec.digest(), "spec": spec.model_dump(), "rows": spec.rows,
            "seconds": seconds, "booked": history.for_run(), **_details(outcome, clients),
        }  # fmt: skip
        folder.save_privacy(guarantee, document, event=outcome.ledger.worst_event(), history=history.public)
        folder.finish(document)
        history.finish(folder)
    event = outcome.ledger.worst_event()
    return Run(
        generator=outcome.generator, guarantee=guarantee, details=document, folder=folder.path, event=event,
        remarks=unlisted_in_words(population.schema, drawn),
    )  # fmt: skip


def _write(folder: RunFolder, generator: Synthesizer, drawn: Table | Images, population: Population, say: Say) -> None:
    """Model, schema and synthetic rows, and what is to be said of them."""
    generator.save(folder.path)
    save_schema(folder, generator, population.schema)
    for remark in without_gaps(generator, population.schema):
        say(remark)
    folder.save_synthetic(drawn)


def _say_remarks(clients: Clients, say: Say) -> None:
    """What reading the rows changed."""
    for remark in clients.data.remarks if isinstance(clients.data, Table) else ():
        say(remark)


def _read(spec: RunSpec) -> PrivateData:
    return read_private(
        spec.data, silos=spec.silos, schema=spec.schema_file, target=spec.target, most_records=spec.most_records,
        records_per_client=spec.records_per_client, client_column=spec.client_column, person=spec.person,
    )  # fmt: skip


def _seconds(began: float, read: float, trained: float, sampled: float) -> dict[str, float]:
    """How long each step took, from the clock at its end; writing is in the total."""
    steps = {"reading": read - began, "training": trained - read, "sampling": sampled - trained}
    return {**steps, "total": time.monotonic() - began}


def _described(protocol: Protocol, clients: Clients) -> JsonObject:
    """What run.json says of what was run."""
    return {
        "status": "finished",
        "method": protocol.facts.name,
        "parameters": _parameters(protocol),
        "clients": len(clients),
        "split": clients.how,
        **({"classes": clients.data.classes} if isinstance(clients.data, Images) else {}),
        "versions": versions(),
    }


def _repeats(private: PrivateData, spec: RunSpec) -> list[str]:
    """For the owner's eyes: id columns whose values repeat, where the bound will not be for all rows of one value."""
    data = private.clients.data
    if private.frame is None or spec.client_column is not None or not isinstance(data, Table):
        return []
    ids = [
        other.name for other in data.schema.others if other.kind == "id" and other.name in private.frame.column_names
    ]
    facts = protocol_class(spec.method_name).facts
    how = "a method that protects clients, with --client-column" if facts.unit == "record" else "--client-column"
    how = "--person" if facts.persons else how
    return [
        f"values of {name} repeat, and the bound is not for all rows of one of them: for that use {how} {name}"
        for name in ids
        if name != spec.person and len(private.frame.column(name).unique()) < len(private.frame)
    ]


def _stated(outcome: Outcome, clients: Clients, *, seeded: bool) -> Guarantee:
    """The guarantee as it may be stated about a simulation."""
    return stated_simulation(
        outcome.guarantee, clients, seeded=seeded, noise=outcome.noise,
        answered=_answered(outcome),
    )  # fmt: skip


def _answered(outcome: Outcome) -> int:
    return int(outcome.ledger.spent()["accounts_charged"])


def _details(outcome: Outcome, clients: Clients) -> JsonObject:
    """What run.json says of what came of it."""
    return {
        "rounds": outcome.rounds, "traffic": outcome.traffic.to_json(), "ledger": outcome.ledger.spent(),
        "population": simulated_population(population_of(clients), clients, answered=_answered(outcome)),
    }  # fmt: skip


def asked_budget(spec: RunSpec, protocol: Protocol, population: Population) -> Budget | None:
    """What the user allows; a run that claims nothing (a baseline, a proof that fails) has no budget to keep.

    Without `--delta` the method's own rule holds, which it states in its guarantee.
    """
    claim = protocol.guarantee(population)
    if math.isinf(claim.epsilon):
        return None
    delta = claim.delta if spec.delta is None else spec.delta
    return Budget(epsilon=spec.epsilon, delta=delta, unit=claim.unit)


def _contents(clients: Clients) -> tuple[bytes | memoryview, ...]:
    data = clients.data
    arrays = (data.x, data.y) if isinstance(data, Images) else (data.codes,)
    persons = () if clients.persons is None else (clients.persons,)
    shape = f"{data.x.shape} {data.classes} {data.domain}" if isinstance(data, Images) else data.schema.digest
    return (
        shape.encode(),
        *(np.ascontiguousarray(array).data for array in (*arrays, clients.order, clients.starts, *persons)),
    )
