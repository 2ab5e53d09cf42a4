"""Three sites on loopback with mutual TLS, as the tests need them: seeded, and agreed to several methods."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import psutil
import pyarrow.parquet as pq

from populace.engines.agreement import Agreement
from populace.engines.flare import policy, processes
from populace.engines.flare.session import write_job
from populace.engines.link import InProcess
from populace.engines.segment import Plan, coordinator_of, read_status
from populace.engines.site_file import read_site_file
from populace.federation.coordinator import Federation, read_proposal
from populace.federation.site import Hosting, SiteFolder
from populace.federation.sum_keys import public_sum_key, roster_of
from populace.federation.supervisor import Options, Supervisor
from populace.methods.base import ImageShape
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.files import read_json, write_json
from populace.tables.images import Images

HERE = Path(__file__).parent
SITES = ("site-1", "site-2", "site-3")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def environment():
    """What the processes of the sites inherit: the tests' own methods, one compilation cache."""
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    wanted = {
        "PYTHONPATH": os.pathsep.join(paths),
        "JAX_PLATFORMS": "cpu",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class TestFederation:
    """Three sites over one table, or images, so many to a client, or each a client; `protocols` are what all agreed to."""

    __test__ = False

    def __init__(
        self,
        folder: Path,
        table,
        protocols,
        *,
        name: str = "study",
        seed: int | None = 5,
        records: int = 1,
        by: str = "rows",
        names: tuple[str, ...] = SITES,
    ) -> None:
        self.folder, self.table, self.protocols, self.seed, self.records = folder, table, list(protocols), seed, records
        self.by, self.names = by, names
        self.schema = (
            ImageShape(shape=tuple(table.shape), classes=table.classes) if isinstance(table, Images) else table.schema
        )
        self.federation = Federation(folder / "federation")
        self.sites = {site: SiteFolder(folder / site) for site in names}
        requests = {}

        def request(number: int) -> None:
            site = names[number]
            requests[site] = self.sites[site].request(name=site, org=f"org{number}", federation=name)

        with ThreadPoolExecutor(len(SITES)) as pool:
            list(pool.map(request, range(len(names))))
        agreements = [self.agreement(protocol) for protocol in self.protocols]
        self.fingerprint = self.federation.create(agreements[0], name=name, host="localhost", port=free_port())
        self._make_hostile()
        edges = self._edges()

        def set_up(number: int) -> None:
            site = names[number]
            place = self.sites[site]
            _, signed = self.federation.approve(requests[site])
            part = table.take(np.arange(edges[number], edges[number + 1]))
            data = folder / f"{site}.{'npz' if isinstance(part, Images) else 'parquet'}"
            if isinstance(part, Images):
                np.savez(data, x=part.x, y=part.y)
            else:
                pq.write_table(part.frame, data)
            hosting = Hosting(
                data=data, by=by, records_per_client=records, epsilon=99.0, delta=1e-3, trust_coordinator=True, seed=seed
            )  # fmt: skip
            place.set_up(signed, read_proposal(self.federation.proposal_path), hosting, fingerprint=self.fingerprint)
            own = read_json(place.file_path)  # a site's owner may agree to more than one method, also to one of its own
            write_json(
                place.file_path, {**own, "agreed": [agreement.to_json() for agreement in agreements]}, mode=0o600
            )

        with ThreadPoolExecutor(len(SITES)) as pool:
            list(pool.map(set_up, range(len(names))))

    def _edges(self) -> tuple[int, ...]:
        """Where each site's rows begin: a half and two quarters of the table; of more sites, even parts."""
        rows = len(self.table)
        if len(self.names) == len(SITES):
            return (0, rows // 2, 3 * rows // 4, rows)
        return tuple(int(edge) for edge in np.linspace(0, rows, len(self.names) + 1))

    def agreement(self, protocol) -> Agreement:
        """What is agreed on a method; with the sites' keys, where its sums are secure."""
        keys = [f"{site}={public_sum_key(place.sum_key)}" for site, place in self.sites.items()]
        secure = getattr(protocol, "trust", "") == "secure-sum"
        return Agreement(protocol=protocol, schema=self.schema, roster=roster_of(protocol, keys if secure else ()))

    def _make_hostile(self) -> None:
        """A coordinator that lets itself do everything: what is refused then, the sites refuse."""
        local = self.federation.server_kit / "local"
        write_json(
            local / "authorization.json", {"format_version": "1.0", "permissions": dict.fromkeys(policy.ROLES, "any")}
        )
        write_json(local / "resources.json", {**read_json(local / "resources.json"), "class_allow_list": ["*"]})

    def start(self) -> None:
        self.federation.start()
        for site in self.sites.values():
            site.start()
        self.wait_for(self.names)

    def wait_for(self, sites, seconds: float = 60.0) -> None:
        link = self.federation.connect()
        until = time.monotonic() + seconds
        while not set(sites) <= set(link.sites()):
            assert time.monotonic() < until, f"only {link.sites()} are connected"
            time.sleep(0.2)
        link.close()

    def stop(self) -> None:
        for site in self.sites.values():
            site.stop()
        self.federation.stop()
        gc.collect()  # sockets to a server that was killed: nvflare leaves them open, and a test's own filter expects them

    def plan(self, protocol, run: str, *, timeout: float = 30.0, least: int = 3) -> Path:
        place = self.federation.run_folder(run)
        agreement = self.agreement(protocol)
        Plan(run=run, agreement=agreement, seed=self.seed, least=least, timeout=timeout, patience=900.0).save(place)
        return place

    def supervise(self, place: Path, *, patience: float = 120.0, watch=lambda _: None, say=lambda _: None) -> None:
        Supervisor(self.federation, place, Options(least=1, patience=patience), watch, say).go()

    def state(self, place: Path):
        """The protocol's state at the end of a run."""
        return coordinator_of(place, InProcess({})).start()[1]

    def run_all(self, protocols, seconds: float = 240.0) -> dict[str, Path]:
        """One job that works through a run of each method, so that processes start once."""
        places = {name: self.plan(protocol, f"run-{name}") for name, protocol in protocols.items()}
        link = self.federation.connect()
        try:
            job_id = link.submit(write_job(self.folder / f"job-{'-'.join(places)}", *places.values()))
            until = time.monotonic() + seconds
            while any(read_status(place)["state"] != "finished" for place in places.values()):
                stands = {name: read_status(place) for name, place in places.items()}
                assert time.monotonic() < until, stands
                assert not any(status["state"] == "stopped" for status in stands.values()), stands
                time.sleep(0.2)
            while not link.over(job_id) and time.monotonic() < until:
                time.sleep(0.2)
        finally:
            link.close()
        return places

    def ran(self, name: str, protocol):
        """One run from start to stop: the protocol's state at its end, and how often each client was charged."""
        try:
            self.start()
            place = self.run_all({name: protocol})[name]
            return self.state(place), self.charges(f"run-{name}")
        finally:
            self.stop()

    def charges(self, run: str) -> dict[str, list[int]]:
        """For each site, how often each hosted client was charged in a run."""
        found = {}
        for name, site in self.sites.items():
            file = read_site_file(site.file_path)
            with SqliteLedger(file.ledger, file.budget) as ledger:
                found[name] = [ledger.entries(account, run=run) for account in ledger.accounts()]
        return found

    def hosted(self) -> dict[str, int]:
        if self.by == "site":
            return dict.fromkeys(self.sites, 1)
        edges = self._edges()
        return {site: -(-(edges[i + 1] - edges[i]) // self.records) for i, site in enumerate(self.sites)}

    def kill(self, kit: Path) -> None:
        """As a power cut does it: the process and all it started, at once."""
        members = processes.family(kit)
        assert members, f"nothing runs from {kit}"
        for member in members:
            with contextlib.suppress(psutil.Error):
                member.send_signal(signal.SIGKILL)
        psutil.wait_procs(members, timeout=10)

    def restart(self, site: str) -> None:
        """Start a site that was killed, and wait until the server knows the new process."""
        folder = self.sites[site]
        mark = self.mark_logs(folder.kit)
        folder.start()
        wait_until(lambda: "Successfully registered client" in self.log_since(folder.kit, mark), folder.path)

    def mark_logs(self, kit: Path) -> dict[Path, int]:
        """How long each log is now, those of jobs too."""
        return {path: path.stat().st_size for path in [*kit.rglob("*log*.txt"), kit / "process.log"] if path.is_file()}

    def log_since(self, kit: Path, mark: dict[Path, int]) -> str:
        """What was written into the logs since, file by file."""
        return "\n".join(
            path.read_bytes()[mark.get(path, 0) :].decode(errors="replace") for path in sorted(self.mark_logs(kit))
        )


@contextlib.contextmanager
def started(*args, **options):
    """A federation that runs, and is stopped whatever happens."""
    with environment():
        made = TestFederation(*args, **options)
        try:
            made.start()
            yield made
        finally:
            made.stop()


def wait_until(holds, place: Path, seconds: float = 90.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, read_status(place)
        time.sleep(0.01)


def assert_alike(found, wanted) -> None:
    """Two states, but for their keys."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        if not jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(a, b, atol=1e-4)


def client_job(folder: Path, marker: Path, *, executor=None, custom: str = "", **parts) -> Path:
    """A job as an attacker writes it: another executor, shipped code, more parts in the sites' configuration."""
    write_job(folder, marker)
    config = folder / "app" / "config" / "config_fed_client.json"
    document = read_json(config)
    if executor is not None:
        document["executors"] = [{"tasks": ["*"], "executor": executor}]
    write_json(config, {**document, **parts})
    if custom:
        (folder / "app" / "custom").mkdir()
        (folder / "app" / "custom" / "shipped.py").write_text(custom)
    return folder


def files_with(folder: Path, words: bytes) -> list[str]:
    """Every file below a folder that holds these words, also inside archives."""
    found = []
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        parts = {"": path.read_bytes()}
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                parts |= {name: archive.read(name) for name in archive.namelist()}
        found += [f"{path} {name}" for name, content in parts.items() if words in content]
    return found
