"""What must stay secret is readable by its owner alone, under any umask, and stands in no log, report or message.

Everything is written by the commands themselves: a federation with its run, a collection of `poll`, a run of `synthesize`, a
study. Planted strings (patients in the records, keys, salts, tokens, a password in an address) are then looked for everywhere.
"""

import fnmatch
import os
import re
import shutil
import stat
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("nvflare")

from federation_for_tests import environment, free_port
from populace.cli.main import call
from populace.engines.flare.tally import Tally
from populace.engines.messages import make_facts_request
from populace.engines.site_file import open_site, read_site_file
from populace.federation.coordinator import Federation
from populace.federation.site import SiteFolder
from populace.tables.files import read_json

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PATIENT, PASSWORD, SEED = "canary-patient-7f3a91", "canary-password-51be", "811234567890123457"
#: What only its owner may read.
SECRET = (
    "*.key", "ledger.sqlite*", "*.ledger", "*.head", "data.json", "populace.json", "plan.json", "checkpoint*", "*.released",
    "issued.json", "replies.json", "links.txt", "token*", "*.token", "*.db", "store.url", "site.log", "process.log", "*.salt",
    "booking*", "populace-ledger.sqlite*", "*.signed.zip", "*.request.zip", "resume.json",
)  # fmt: skip


OUTSIDE = {"links.txt", "poll.ledger", "poll.ledger.head", "populace-ledger.sqlite"}


#: What is open to others under the usual umask is so under none; `make test-slow` looks at both.
USUAL = pytest.param(0o022, marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=[0o000, USUAL], ids=["umask 000", "umask 022"])
def world(request, tmp_path_factory, small_table):
    """Everything that is written, and everything that was said while it was."""
    before = os.umask(request.param)
    folder = tmp_path_factory.mktemp("world")
    folder.chmod(0o755)
    try:
        with environment():
            yield folder, write_everything(folder, small_table.take(np.arange(12)))
    finally:
        os.umask(before)


def write_everything(folder, rows):
    said = []

    def populace(*words, code=0):
        from contextlib import redirect_stderr, redirect_stdout
        from io import StringIO

        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
            found = call([str(word) for word in words])
        said.append(out.getvalue() + err.getvalue())
        assert found == code, said[-1]

    schema, data = folder / "schema.toml", folder / "rows.parquet"
    rows.schema.save(schema)
    patients = pa.array([f"{PATIENT}-{number}" for number in range(len(rows))])
    pq.write_table(rows.frame.append_column("patient", patients), data)
    federate(folder, populace, schema, data)
    pq.write_table(rows.frame, folder / "people.parquet")
    quick = ["--set", "chains=2", "--set", "langevin_steps=5"]
    populace("synthesize", folder / "people.parquet", "--schema", schema, "--epsilon", "2", "--out", folder / "run",
             "--method", "independent", "--rows", "20")  # fmt: skip
    populace("poll", "collect", folder / "people.parquet", "--schema", schema, "--epsilon", "2", "--out",
             folder / "answers.parquet", "--ledger", folder / "poll.ledger")  # fmt: skip
    populace(
        "poll",
        "fit",
        folder / "answers.parquet",
        "--schema",
        schema,
        "--out",
        folder / "poll-run",
        "--rows",
        "20",
        *quick,
    )
    populace(
        "collector",
        "init",
        folder / "study",
        "--schema",
        schema,
        "--epsilon",
        "2",
        "--clients",
        "20",
        "--method",
        "poll",
    )
    populace("collector", "invite", folder / "study", "--count", "3", "-o", folder / "links.txt")
    populace("collector", "status", folder / "study")
    url = f"postgresql://somebody:{PASSWORD}@127.0.0.1:{free_port()}/nowhere"
    populace("collector", "init", folder / "stored", "--schema", schema, "--epsilon", "2", "--clients", "20", "--method",
             "poll", "--store", url)  # fmt: skip
    populace("collector", "invite", folder / "stored", "--count", "3", "-o", folder / "no-links.txt", code=2)
    populace("collector", "status", folder / "stored", code=2)
    return "".join(said)


def federate(folder, populace, schema, data):
    federation, site = folder / "federation", folder / "ward"
    populace("federation", "init", federation, "--name", "study", "--schema", schema, "--epsilon", "2", "--method",
             "independent", "--port", free_port())  # fmt: skip
    populace("site", "request", site, "--name", "ward", "--org", "clinic", "--federation", "study")
    populace("federation", "approve", federation, site / "request" / "key" / "ward.request.zip")
    fingerprint = Federation(federation).document["fingerprint"]
    try:
        populace("federation", "start", federation)
        populace("site", "join", site, federation / "sites" / "ward.signed.zip", "--fingerprint", fingerprint, "--proposal",
                 federation / "study.proposal.json", "--data", data, "--client-column", "patient", "--epsilon", 4)  # fmt: skip
        populace("federation", "run", federation, "--out", folder / "federated", "--rows", "20", "--seed", SEED)
        populace("federation", "status", federation)
        populace("site", "status", site)
    finally:
        SiteFolder(site).stop()
        Federation(federation).stop()
    populace("site", "backup", site, "-o", folder / "ward" / "backup.token.zip")
    refuse_damaged_data(site, federation)
    populace("federation", "revoke", federation, "ward")
    populace("site", "status", site)


def refuse_damaged_data(site, federation):
    """Errors about rows name no row: the data are spoiled, and put back."""
    file = read_site_file(SiteFolder(site).file_path)
    kept, spoiled = folder_copy(file.data)
    table = pq.read_table(kept)
    pq.write_table(table.slice(0, 3), file.data)  # most patients are gone
    try:
        open_site(SiteFolder(site).file_path)
    except Exception as error:
        (site / "said.log").write_text(str(error))
    finally:
        shutil.copy(kept, spoiled)
        kept.unlink()
    answer = open_site(SiteFolder(site).file_path).reply(
        make_facts_request(Federation(federation).agreement(), run="r")
    )
    assert PATIENT.encode() not in answer
    assert Tally(federation).statement("ward")


def folder_copy(path):
    from pathlib import Path

    kept = Path(path).with_name("kept.parquet")
    shutil.copy(path, kept)
    return kept, Path(path)


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def is_closed(path, top):
    """Whether a folder above, below the top, lets nobody else in."""
    return any(
        not parent.stat().st_mode & 0o077 for parent in path.parents if parent.is_relative_to(top) and parent != top
    )


def test_secrets_are_readable_by_their_owner_alone(world):
    folder, _ = world
    secret = [path for path in files(folder) if any(fnmatch.fnmatch(path.name, pattern) for pattern in SECRET)]
    assert len(secret) > 25
    loose = [str(path.relative_to(folder)) for path in secret if path.stat().st_mode & 0o077]
    assert not loose
    outside = {str(path.relative_to(folder)) for path in secret if not is_closed(path, folder)}
    # beside the user's own files, or in a run's folder, which is there to be shown
    assert outside == OUTSIDE


def test_nothing_below_a_private_folder_can_be_reached_and_nothing_else_is_open_to_all(world):
    folder, _ = world
    for name in ("federation", "ward", "study"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o700, name


def pieces(folder):
    """The secrets there are, by the names of those files that may hold them."""
    key = re.compile(rb"PRIVATE KEY-----\s+(\S{40,})")
    found = {}
    for path in files(folder):
        if path.suffix == ".key" and (match := key.search(path.read_bytes())):
            found[match[1][:40]] = ("*.key",)
    salt = read_json(folder / "ward" / "data.json")["salt"].encode()
    root = str(read_json(next((folder / "federation" / "runs").iterdir()) / "plan.json")["root"][0]).encode()
    for line in (folder / "links.txt").read_text().splitlines():
        found[line.rpartition("#")[2].rpartition("/")[2][-20:].encode()] = ("links.txt",)
    return {
        **found,
        PATIENT.encode(): ("rows.parquet",),
        PASSWORD.encode(): ("store.url",),
        salt: ("data.json", "*.token.zip"),
        root: ("plan.json", "*.npz"),
        (folder / "ward" / "sum.key").read_bytes()[:16]: ("sum.key",),
    }


def contents(path):
    yield path.read_bytes()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from (archive.read(name) for name in archive.namelist())


def leaks(folder, said):
    """Where a secret stands that should not."""
    secrets = pieces(folder)
    found = [f"said: {secret[:12]!r}" for secret in secrets if secret in said.encode()]
    for path in files(folder):
        for content in contents(path):
            found += [
                f"{path.relative_to(folder)}: {secret[:12]!r}"
                for secret, homes in secrets.items()
                if secret in content and not any(fnmatch.fnmatch(path.name, home) for home in homes)
            ]
    return found


def test_no_secret_stands_where_it_does_not_belong(world):
    folder, said = world
    assert len(pieces(folder)) >= 9
    assert not leaks(folder, said)


@pytest.mark.parametrize("where", ["ward/site.log", "federation/leak.json", "run/report.html"])
def test_a_planted_leak_is_found(world, where):
    folder, said = world
    for secret in pieces(folder):
        (folder / where).parent.mkdir(exist_ok=True)
        kept = (folder / where).read_bytes() if (folder / where).exists() else None
        (folder / where).write_bytes((kept or b"") + b"an error about " + secret)
        try:
            assert leaks(folder, said)
        finally:
            (folder / where).unlink() if kept is None else (folder / where).write_bytes(kept)
    assert leaks(folder, said + PATIENT)
