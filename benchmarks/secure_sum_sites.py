"""`python -m benchmarks.secure_sum_sites`: seconds of a round of `census` on NVIDIA FLARE, with and without masks.

    python -m benchmarks.secure_sum_sites [--sites K ...] [--columns N] [--repeat N] [--json FILE]

Sites on loopback with mutual TLS, each its own process; 60 columns of 24 categories make a message of about a million numbers.
One job runs both trusts in turn; the first round of each, in which sites read their data, is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from populace.engines.agreement import Agreement
from populace.engines.flare.session import write_job
from populace.engines.segment import Plan, read_status
from populace.federation.coordinator import Federation, Proposal
from populace.federation.demo import free_port
from populace.federation.site import Hosting, SiteFolder
from populace.federation.sum_keys import public_sum_key, roster_of
from populace.methods.census.protocol import Census
from populace.tables.columns import Column
from populace.tables.files import read_json, write_json
from populace.tables.schema import Schema
from populace.tables.table import from_codes

CATEGORIES, ROWS = 24, 60
SECONDS = 400.0
TRUSTS = ("silo", "secure-sum")


def schema_of(columns: int) -> Schema:
    categories = tuple(f"v{number}" for number in range(CATEGORIES))
    return Schema(
        columns=tuple(
            Column(name=f"c{number}", kind="categorical", categories=categories, source="invented")
            for number in range(columns)
        )
    )


class Bench:
    """A federation of so many sites, all of which agreed to both trusts."""

    def __init__(self, folder: Path, count: int, schema: Schema) -> None:
        self.folder, self.names = folder, [f"site-{number}" for number in range(count)]
        self.sites = {name: SiteFolder(folder / name) for name in self.names}
        self.federation = Federation(folder / "coordinator")
        with ThreadPoolExecutor(3) as pool:
            asked = pool.map(
                lambda name: self.sites[name].request(name=name, org="bench", federation="bench"), self.names
            )
            requests = dict(zip(self.names, asked, strict=True))
        keys = [f"{name}={public_sum_key(site.sum_key)}" for name, site in self.sites.items()]
        self.agreements = {}
        for trust in TRUSTS:
            method = Census(epsilon=1.0, delta=1e-6, trust=trust)  # type: ignore[arg-type]
            roster = roster_of(method, keys if trust == "secure-sum" else ())
            self.agreements[trust] = Agreement(protocol=method, schema=schema, roster=roster)
        first, port = self.agreements["secure-sum"], free_port()
        fingerprint = self.federation.create(first, name="bench", host="localhost", port=port)
        proposal = Proposal(
            federation="bench", server=f"localhost:{port}", fingerprint=fingerprint, agreement=first
        )  # fmt: skip

        def join(name: str) -> None:
            site, rng = self.sites[name], np.random.default_rng(len(name))
            _, signed = self.federation.approve(requests[name])
            data = folder / f"{name}.parquet"
            pq.write_table(
                from_codes(rng.integers(0, schema.sizes, (ROWS, len(schema.sizes))), schema, rng).frame, data
            )
            hosting = Hosting(data=data, by="site", epsilon=99.0, delta=1e-3)
            site.set_up(signed, proposal, hosting, fingerprint=fingerprint)
            agreed = [agreement.to_json() for agreement in self.agreements.values()]
            write_json(site.file_path, {**read_json(site.file_path), "agreed": agreed}, mode=0o600)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(join, self.names))

    def run(self, repeat: int) -> dict[str, Any]:
        places: dict[tuple[str, int], Path] = {}
        for number in range(repeat + 1):
            for trust, agreement in self.agreements.items():
                place = self.federation.run_folder(f"{trust}-{number}")
                Plan(run=place.name, agreement=agreement, least=len(self.names), timeout=120.0).save(place)
                places[trust, number] = place
        link = self.federation.connect()
        link.submit(write_job(self.folder / "job", *places.values()))
        until = time.monotonic() + SECONDS
        while any(read_status(place)["state"] != "finished" for place in places.values()):
            if time.monotonic() > until:
                raise TimeoutError({place.name: read_status(place)["state"] for place in places.values()})
            time.sleep(0.3)
        link.close()
        return {trust: self._figures([places[trust, number] for number in range(1, repeat + 1)]) for trust in TRUSTS}

    def _figures(self, places: list[Path]) -> dict[str, Any]:
        rounds = [json.loads((place / "rounds.jsonl").read_text().splitlines()[0]) for place in places]
        status = read_status(places[0])
        return {
            "seconds": [each["seconds"] for each in rounds],
            "median": statistics.median(each["seconds"] for each in rounds),
            "bytes_from_a_site": status["bytes_from_sites"] / len(self.names),
            "bytes_to_a_site": status["bytes_to_sites"] / len(self.names),
        }

    def start(self) -> None:
        self.federation.start()
        for site in self.sites.values():
            site.start()
        link = self.federation.connect()
        until = time.monotonic() + SECONDS
        while len(link.sites()) < len(self.names) and time.monotonic() < until:
            time.sleep(0.2)
        link.close()

    def stop(self) -> None:
        for site in self.sites.values():
            site.stop()
        self.federation.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--columns", type=int, default=60)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    schema, rows = schema_of(options.columns), []
    for count in options.sites:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder), count, schema)
            try:
                bench.start()
                found = bench.run(options.repeat)
            finally:
                bench.stop()
        ratio = found["secure-sum"]["median"] / found["silo"]["median"]
        rows.append({"sites": count, "columns": options.columns, **found, "ratio": ratio})
        print(
            f"{count} sites: {found['secure-sum']['median']:.2f} s a round under masks, {found['silo']['median']:.2f} s with "
            f"noise at each silo, {ratio:.2f} times; {found['secure-sum']['bytes_from_a_site'] / 1e6:.1f} MB from a site "
            f"({found['silo']['bytes_from_a_site'] / 1e6:.1f})"
        )
    if options.json is not None:
        command = "python -m benchmarks.secure_sum_sites --json docs/results/secure-sum-sites.json"
        options.json.write_text(json.dumps({"command": command, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
