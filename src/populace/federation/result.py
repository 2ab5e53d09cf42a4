"""What a federated run ends with: the generator, the rows and the privacy statement, from the last checkpoint."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from populace.border.models import read_document
from populace.engines.link import InProcess
from populace.engines.roster import Roster
from populace.engines.runtime import Keys
from populace.engines.segment import checkpoint_of, coordinator_of, read_skipped, read_status
from populace.federation.forms import FederationForm
from populace.federation.standing import Teller
from populace.runs.domains import save_schema
from populace.runs.federated_statement import LOOPBACK, seated_in_words, stated_federation
from populace.runs.folder import RunFolder
from populace.runs.restated import sites_population
from populace.runs.run import Run, versions
from populace.types import JsonObject, NumpyArray


def _sites(place: Path, roster: Roster, heard: NumpyArray) -> JsonObject:
    """How the run ended for each site, and how many replies came from it over all rounds."""
    last = read_status(place).get("sites", {})
    return {
        seat.site: {
            **last.get(seat.site, {}),
            "replies_in_all": int(heard[seat.first : seat.first + seat.clients].sum()),
        }
        for seat in roster.seats
    }


def finish(
    place: Path,
    folder: RunFolder,
    spec: JsonObject,
    digest: str,
    *,
    rows: int,
    seconds: Callable[[], float],
    tell: Teller,
) -> Run:
    """Generator, rows and documents from the run's last checkpoint; each step is told before it begins."""
    tell.tell("fitting", "fitting the generator")
    coordinator = coordinator_of(place, InProcess({}))
    keys, state, heard, ledger, traffic, done = coordinator.start()
    protocol, population, roster = coordinator.agreement.protocol, coordinator.population, coordinator.roster
    generator = protocol.finish(state, population, keys.finish())
    host = str(read_document(place.parents[1] / "federation.json", FederationForm)["host"])
    answered = int((heard > 0).sum())
    guarantee = stated_federation(
        protocol.guarantee(population), roster, kind=population.kind, answered=answered,
        seeded=roster.seeded or coordinator.seeded, host=host,
    )  # fmt: skip
    tell.tell("sampling", f"sampling {rows:,} rows")
    drawn = generator.sample(rows, Keys(checkpoint_of(place).root()).sample())
    tell.tell("writing", f"writing {rows:,} rows, the generator and the privacy statement")
    generator.save(folder.path)
    save_schema(folder, generator, population.schema)
    folder.save_synthetic(drawn)
    document = {
        "status": "finished",
        "digest": digest,
        "spec": spec,
        "command": shlex.join(["populace", "federation", "run", "FOLDER", "--rows", str(rows), "--out", "RUN"]),
        "method": protocol.facts.name,
        "parameters": coordinator.agreement.parameters,
        "clients": population.clients,
        "split": seated_in_words(roster),
        "population": sites_population(population, roster, answered=answered, rehearsal=host in LOOPBACK),
        "rows": rows,
        "versions": versions(),
        "seconds": {"total": seconds()},
        "rounds": done,
        "replies": int(heard.sum()),
        "traffic": traffic.to_json(),
        "ledger": ledger.spent(),
        "sites": _sites(place, roster, heard),
        "skipped": sorted(read_skipped(place)),
    }
    folder.save_privacy(guarantee, document, event=ledger.worst_event())
    folder.finish(document)
    return Run(generator=generator, guarantee=guarantee, details=document)
