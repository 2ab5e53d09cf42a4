"""Small valid inputs of every kind, built in code: what is damaged later. A part is built when a target first needs it."""

from __future__ import annotations

import datetime
import functools
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

import builders
from populace.engines.agreement import Agreement
from populace.engines.link import InProcess
from populace.engines.segment import Plan, advance
from populace.engines.site_file import SiteFile, begin_accounts, open_site, read_hosted
from populace.federation.coordinator import Proposal
from populace.federation.sum_keys import make_sum_key
from populace.methods.registry import make_protocol
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.report.page import evaluate_runs
from populace.report.statement import write_statement
from populace.runs.poll.collect import Collection, collect
from populace.runs.run import synthesize
from populace.runs.spec import make_spec
from populace.tables.files import write_json
from populace.tables.images import write_images
from populace.tables.proposal import propose
from populace.tables.sdv import to_sdv
from populace.tables.table import Table, from_codes

ROWS = 40
#: Methods of the runs: what data they take, with which settings.
SETTINGS = {
    "census": ("table", dict(builders.small_settings("census"))),
    "poll": ("table", dict(builders.small_settings("poll"))),
    "independent": ("table", {}),
    "l-dpd-vae": ("table", dict(builders.small_settings("l-dpd-vae"))),
    "moments": ("images", dict(builders.small_settings("moments"))),
    "krr": ("table", dict(builders.small_settings("krr"))),
}
RUNS = tuple(name for name in SETTINGS if name != "krr")


class Corpus:
    """A folder of valid inputs; `part` names what is needed and returns where it lies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def part(self, name: str) -> Path:
        place = self.folder / name
        if not place.is_dir():
            building = self.folder / f".{name}"
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir()
            PARTS[name](self, building)
            shutil.copytree(building, self.folder / f"{name}.pristine", dirs_exist_ok=True)
            building.rename(place)
        return place

    def files(self, name: str, *suffixes: str) -> dict[str, bytes]:
        """The files of a part as they were built, by name; a case may change those in its folder."""
        self.part(name)
        kept = self.folder / f"{name}.pristine"
        paths = sorted(path for path in kept.rglob("*") if path.is_file() and path.name != ".lock")
        return {
            str(path.relative_to(kept)): path.read_bytes() for path in paths if not suffixes or path.suffix in suffixes
        }


@functools.cache
def small_table() -> Table:
    schema = builders.small_schema()
    return from_codes(builders.dependent_codes(schema, ROWS), schema, np.random.default_rng(0))


def mixed_frame() -> pa.Table:
    """A column of every type that files hold, with gaps."""
    rng, days = np.random.default_rng(1), datetime.date(2024, 1, 1)
    words = ["ash", "birch", None, "elm é", ""]
    columns = {
        "word": pa.array([words[i % 5] for i in range(ROWS)]),
        "count": pa.array([None if i % 7 == 0 else int(i) for i in range(ROWS)], pa.int64()),
        "small": pa.array(rng.integers(0, 3, ROWS), pa.uint8()),
        "amount": pa.array(rng.normal(size=ROWS).round(3), pa.float64()),
        "flag": pa.array([bool(i % 3) for i in range(ROWS)]),
        "day": pa.array([days + datetime.timedelta(int(i)) for i in range(ROWS)], pa.date32()),
        "moment": pa.array([datetime.datetime(2024, 1, 1 + i % 28, i % 24) for i in range(ROWS)], pa.timestamp("ms")),
        "kind": pa.array([words[i % 2] for i in range(ROWS)]).dictionary_encode(),
        "price": pa.array([str(i) + ".50" for i in range(ROWS)]).cast(pa.decimal128(8, 2)),
    }
    return pa.table(columns)


def _tables(_: Corpus, folder: Path) -> None:
    mixed, plain = mixed_frame(), small_table().frame
    for name, frame in (("mixed", mixed), ("plain", plain), ("tiny", plain.slice(0, 2))):
        pyarrow.csv.write_csv(frame, folder / f"{name}.csv")
        pyarrow.parquet.write_table(frame, folder / f"{name}.parquet", compression="zstd")
        pyarrow.feather.write_feather(frame, str(folder / f"{name}.feather"), compression="lz4")
        pyarrow.feather.write_feather(frame, str(folder / f"{name}.arrow"), compression="uncompressed")
    pyarrow.feather.write_feather(mixed, str(folder / "zstd.arrow"), compression="zstd")
    pyarrow.parquet.write_table(mixed, folder / "snappy.parquet", compression="snappy", use_dictionary=False)
    pyarrow.parquet.write_table(plain, folder / "bare.parquet", compression="none", row_group_size=10)
    (folder / "quoted.csv").write_text('a;"b ""x""";c\n"1";"two\nlines";3,5\n2;"";\n')


def _schemas(_: Corpus, folder: Path) -> None:
    schema = builders.small_schema()
    schema.save(folder / "small.toml")
    proposed = propose(mixed_frame(), ids=["count"], drop=["word"], target="flag").schema
    proposed.save(folder / "mixed.toml")
    write_json(folder / "small.json", to_sdv(schema))
    write_json(folder / "mixed.json", to_sdv(proposed))


def _images(_: Corpus, folder: Path) -> None:
    images = builders.noise_images(24, (6, 6), 3)
    write_images(images, folder / "grey.npz")
    np.savez(folder / "train.npz", x_train=images.x, y_train=images.y, x_test=images.x[:2], y_test=images.y[:2])
    write_images(builders.noise_images(6, (4, 4, 3), 2), folder / "colour.npz")


def _data(corpus: Corpus, folder: Path) -> None:
    """Where runs lie beside their data and their ledger."""
    small_table().save(folder / "rows.parquet")
    builders.small_schema().save(folder / "rows.toml")
    write_images(builders.noise_images(48, (6, 6), 2), folder / "pictures.npz")


def run_spec(folder: Path, name: str, **more: object):
    kind, settings = SETTINGS[name]
    data = {"table": folder / "rows.parquet", "images": folder / "pictures.npz"}[kind]
    schema = {"schema_file": str(folder / "rows.toml")} if kind == "table" else {}
    given = {"epsilon": 2.0, "method": name, "rows": 12, "seed": 3, "settings": settings, **schema, **more}
    return make_spec(data=(str(data),), **given)


def _runs(corpus: Corpus, folder: Path) -> None:
    """Whole runs of several methods, with statement; those of tables evaluated."""
    _data(corpus, folder)
    final = corpus.folder / "runs"
    for name in RUNS:
        synthesize(run_spec(folder, name), folder / name)
        write_statement(folder / name)
    evaluate_runs([folder / "census"], str(folder / "rows.parquet"), target="sold")
    for path in folder.rglob("*.json"):  # paths in the files are those where they lie in the end
        path.write_text(path.read_text().replace(str(folder), str(final)))


class StoppedError(Exception):
    """What interrupts a run in its middle."""


def _unfinished(corpus: Corpus, folder: Path) -> None:
    """Runs that were interrupted, to be resumed; their specifications name the data where they lie in the end."""
    final = corpus.folder / "unfinished"
    shutil.rmtree(final, ignore_errors=True)
    _data(corpus, folder)
    folder.rename(final)

    def stop(at) -> None:
        if at.done >= 1:
            raise StoppedError

    try:
        for name in ("independent", "krr"):
            try:
                synthesize(run_spec(final, name, settings={"clients_per_batch": 8}), final / name, progress=stop)
            except StoppedError:
                continue
    finally:
        final.rename(folder)


def _poll(_: Corpus, folder: Path) -> None:
    """Files of answers of one poll."""
    for number in range(2):
        small_table().save(folder / f"people{number}.parquet")
    builders.small_schema().save(folder / "people.toml")
    for number in range(2):
        wanted = Collection(
            data=str(folder / f"people{number}.parquet"), schema_file=str(folder / "people.toml"), epsilon=2.0, target=None,
            settings={"latent_classes": "2", "chains": "1", "langevin_steps": "4"}, records_per_client=1, client_column=None,
            clients=2 * ROWS, first_client=ROWS * number, coin="coin", ledger=None, seed=1,
        )  # fmt: skip
        collect(wanted, folder / f"answers{number}.parquet")


def agreement() -> Agreement:
    return Agreement(protocol=make_protocol("independent", {"epsilon": 2.0}), schema=builders.small_schema())


def _federation(corpus: Corpus, folder: Path) -> None:
    """A coordinator's folder with a run, and a site's folder with its ledger; no certificates, which FLARE's tool makes."""
    final, place = corpus.folder / "federation", folder / "coordinator"
    place.mkdir()
    facts = {"format": 1, "name": "study", "host": "localhost", "port": 8002, "fingerprint": "SHA256:00"}
    write_json(place / "federation.json", facts)
    proposal = Proposal(federation="study", server="localhost:8002", fingerprint="SHA256:00", agreement=agreement())
    proposal.save(place / "study.proposal.json")
    _site(folder, final)
    runs = place / "runs"
    for name, seconds in (("run-1", 30.0), ("run-2", 30.0)):
        Plan(run=name, agreement=agreement(), seed=4, least=1, timeout=seconds).save(runs / name)
    site = open_site(folder / "site" / "kit" / "local" / "populace.json")
    advance(runs / "run-1", InProcess({"ward": site.reply}))
    for path in folder.rglob("*.json"):
        path.write_text(path.read_text().replace(str(folder), str(final)))
    with zipfile.ZipFile(folder / "ward.request.zip", "w") as packed:
        document = {"kind": "site", "cert_type": "client", "name": "ward", "org": "clinic", "project": "study"}
        packed.writestr("request.json", json.dumps(document))
        packed.writestr("ward.csr", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n")


def _site(folder: Path, final: Path) -> None:
    place = folder / "site"
    (place / "kit" / "local").mkdir(parents=True)
    small_table().save(place / "rows.parquet")
    write_json(place / "site.json", {"name": "ward", "org": "clinic", "federation": "study"})
    make_sum_key(place / "sum.key")
    file = SiteFile(
        name="ward", federation="study", data=str(place / "rows.parquet"), ledger=str(place / "ledger.sqlite"),
        log=str(place / "site.log"), by="rows", records_per_client=1, client_column=None, records=1, epsilon=9.0, delta=0.0,
        unit="client", seed=3, agreed=(agreement().to_json(),), sum_key=str(place / "sum.key"),
    )  # fmt: skip
    hosted = read_hosted(file, builders.small_schema())
    with SqliteLedger(file.ledger, file.budget):
        begin_accounts(file, hosted)
    write_json(place / "kit" / "local" / "populace.json", file.to_json())
    del final


def _study(_: Corpus, folder: Path) -> None:
    """A study of the collector with some answers."""
    import base64

    from collector_for_tests import bearer, client_of, make_study, tokens, turn
    from collector_twin import make_report

    place = make_study(folder, "poll", clients=20, settings={"stages": 1}, schema=builders.small_schema())
    turn(place)
    with client_of(place) as client:
        for number, token in enumerate(tokens(place)[:6]):
            question = client.get("/v1/question", headers=bearer(token)).json()
            report = base64.b64encode(make_report(question, [0, 0, 0, number % 2])).decode()
            body = {"round": question["round"], "place": question["place"], "report": report,
                    "nonce": base64.b64encode(bytes([number]) * 32).decode()}  # fmt: skip
            if client.post("/v1/answer", json=body, headers=bearer(token)).status_code != 200:
                raise RuntimeError("a valid answer was not taken")


PARTS: dict[str, Callable[[Corpus, Path], None]] = {
    "tables": _tables, "schemas": _schemas, "images": _images, "runs": _runs, "unfinished": _unfinished, "poll": _poll,
    "federation": _federation, "study": _study,
}  # fmt: skip
jax.config.update("jax_platforms", "cpu")
