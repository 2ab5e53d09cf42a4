"""The drill's checks have power: over a lossy run in this process all hold, and each planted fault is named."""

import contextlib
import dataclasses
import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from drill import evidence, leftovers, memory, replay, verify
from drill.liar import LIES, Liar
from drill.lies import lie_to
from drill.plan import KINDS, draw
from populace.engines import wire
from populace.engines.agreement import Agreement
from populace.engines.link import InProcess
from populace.engines.segment import Plan, advance, coordinator_of
from populace.engines.site_file import SiteFile, begin_accounts, open_site, read_hosted
from populace.methods.registry import make_protocol
from populace.privacy.ledger_file import BEGINNING, link
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.files import write_json

SITES, ROWS, RUN = ("site-1", "site-2", "site-3"), 8, "study-1"
PROTOCOL = make_protocol("dp-fed-wae", {"epsilon": 1.5, "participations": 2, "cohort_size": 6, "latent_classes": 2})


def join(folder: Path, table, agreement) -> Path:
    """A seeded site in a folder, as joining leaves it, without a kit; returns its file."""
    folder.mkdir()
    pq.write_table(table.frame, folder / "rows.parquet")
    file = SiteFile(
        name=folder.name, federation="study", data=str(folder / "rows.parquet"), ledger=str(folder / "ledger.sqlite"),
        log=str(folder / "site.log"), by="rows", records_per_client=1, client_column=None, records=1, epsilon=9.0, delta=0.0,
        unit="client", seed=5, agreed=(agreement.to_json(),),
    )  # fmt: skip
    SqliteLedger(file.ledger, file.budget).close()
    begin_accounts(file, read_hosted(file, agreement.schema))
    write_json(folder / "populace.json", file.to_json(), mode=0o600)
    return folder / "populace.json"


class Lossy(InProcess):
    """Loses what it is told to: before the site is asked, or after it has answered."""

    unasked = frozenset({("site-1", 2), ("site-3", 4)})
    unheard = frozenset({("site-2", 1), ("site-2", 5)})

    def exchange(self, asks, timeout):
        numbers = {site: wire.unpack(ask).fields.get("round", -1) for site, ask in asks.items()}
        asked = {site: ask for site, ask in asks.items() if (site, numbers[site]) not in self.unasked}
        found = super().exchange(asked, timeout)
        return {site: reply for site, reply in found.items() if (site, numbers[site]) not in self.unheard}


@dataclasses.dataclass
class Left:
    """A finished run on disk, with copies of its sites from before it."""

    folder: Path

    @property
    def place(self) -> Path:
        return self.folder / "federation" / "runs" / RUN

    def ledger(self, site: str) -> Path:
        return self.folder / site / "ledger.sqlite"

    def verdict(self) -> verify.Verdict:
        shutil.rmtree(self.folder / "replay", ignore_errors=True)
        shutil.rmtree(self.folder / "again", ignore_errors=True)
        shutil.copytree(self.folder / "before", self.folder / "again")
        copies = {}
        for site in SITES:
            copies[site] = self.folder / "again" / site / "populace.json"
            kept = json.loads(copies[site].read_text())
            folder = copies[site].parent
            write_json(copies[site], {**kept, "ledger": str(folder / "ledger.sqlite"), "log": str(folder / "site.log")})
        return verify.verify(
            self.place, {site: self.ledger(site) for site in SITES}, copies, generator=self.folder / "out",
            scratch=self.folder / "replay", guarantees={}, coin=np.random.default_rng(0),
        )  # fmt: skip

    def rewrite(self, site: str, change) -> None:
        """Change the rows of a ledger past all its guards, with a chain and a head that fit."""
        path = self.ledger(site)
        names = [name for name in evidence.FIELDS.split(", ") if name not in ("id", "chain")]
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            rows = [list(row) for row in db.execute(f"SELECT {', '.join(names)} FROM entry ORDER BY id")]  # noqa: S608
            rows = change([dict(zip(names, row, strict=True)) for row in rows])
            db.execute("DROP VIEW charged")
            db.execute("DROP TABLE entry")
            db.execute(f"CREATE TABLE entry (id INTEGER PRIMARY KEY, {', '.join(names)}, chain)")
            chain = BEGINNING
            for number, row in enumerate(rows, 1):
                chain = link(chain, tuple(row.values()))
                places = ", ".join("?" * (len(names) + 2))
                db.execute(f"INSERT INTO entry VALUES ({places})", (number, *row.values(), chain))  # noqa: S608
        path.with_name("ledger.sqlite.head").write_text(json.dumps({"last": len(rows), "chain": chain}))

    def lines(self) -> list[dict]:
        return [json.loads(text) for text in (self.place / "rounds.jsonl").read_text().splitlines()]

    def write_lines(self, lines: list[dict]) -> None:
        (self.place / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def finished(small_table, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("drill")
    agreement = Agreement(protocol=PROTOCOL, schema=small_table.schema)
    files = {
        site: join(folder / site, small_table.take(np.arange(ROWS * number, ROWS * (number + 1))), agreement)
        for number, site in enumerate(SITES)
    }
    for site, file in files.items():
        replay.copy_site(folder / site, file, folder / "before" / site)
    place = folder / "federation" / "runs" / RUN
    Plan(run=RUN, agreement=agreement, seed=5).save(place)
    state = advance(place, Lossy({site: open_site(file).reply for site, file in files.items()}))
    assert state == "finished"
    coordinator = coordinator_of(place, InProcess({}))
    keys, reached, *_ = coordinator.start()
    (folder / "out").mkdir()
    PROTOCOL.finish(reached, coordinator.population, keys.finish()).save(folder / "out")
    return folder


@pytest.fixture
def left(finished, tmp_path) -> Left:
    shutil.copytree(finished, tmp_path / "run", dirs_exist_ok=True)
    return Left(tmp_path / "run")


def test_a_run_that_lost_replies_and_requests_holds(left):
    verdict = left.verdict()
    assert verdict.wrong == ()
    assert verdict.rounds == 8
    assert verdict.lost["site-2"] > 0
    assert verdict.lost["site-1"] == verdict.lost["site-3"] == 0
    assert verdict.charged - verdict.absorbed == sum(verdict.lost.values())
    assert verdict.absorbed < 2 * ROWS * len(SITES)
    assert verdict.lies > 40


def test_a_doubled_charge_is_caught(left):
    left.rewrite("site-1", lambda rows: [*rows, rows[-1]])
    assert any("charged 2 times" in said for said in left.verdict().wrong)


def test_a_missing_charge_is_caught_and_so_is_a_reply_without_one(left):
    left.rewrite("site-1", lambda rows: rows[:-1])
    wrong = " ".join(left.verdict().wrong)
    assert "replies of site-1 were absorbed" in wrong
    assert "less than an undisturbed run" in wrong


def test_a_charge_of_a_round_that_asked_nobody_is_caught(left):
    left.rewrite("site-3", lambda rows: [*rows, {**rows[-1], "round": 4}])
    assert any("that an undisturbed run does not have" in said for said in left.verdict().wrong)


def test_a_charge_that_the_log_does_not_miss_is_caught(left):
    lines = left.lines()
    lines[1]["missing"].remove("site-2")
    left.write_lines(lines)
    assert any("neither has its replies nor misses them" in said for said in left.verdict().wrong)


def test_another_reply_or_question_is_caught(left):
    def change(rows):
        return [{**rows[0], "reply": rows[1]["reply"], "question": "0" * 64}, *rows[1:]]

    left.rewrite("site-2", change)
    assert any("that an undisturbed run does not have" in said for said in left.verdict().wrong)


def test_a_chain_that_breaks_is_caught(left):
    with contextlib.closing(sqlite3.connect(left.ledger("site-1"), isolation_level=None)) as db:
        db.execute("DROP TRIGGER entry_never_changes")
        db.execute("UPDATE entry SET reply = x'00' WHERE id = 3")
    assert "site-1: the chain of the ledger breaks at entry 3" in left.verdict().wrong


def test_a_head_that_the_ledger_does_not_reach_is_caught(left):
    path = left.ledger("site-1").with_name("ledger.sqlite.head")
    path.write_text(json.dumps({**json.loads(path.read_text()), "last": 10**6}))
    assert any("which the ledger does not have so" in said for said in left.verdict().wrong)


def test_a_reply_that_left_before_the_head_was_written_is_caught(left):
    books = evidence.read_books(left.ledger("site-1"))
    before = books.entries[-2]
    path = left.ledger("site-1").with_name("ledger.sqlite.head")
    path.write_text(json.dumps({"last": before.id, "chain": before.chain}))
    assert any("past the ledger's head" in said for said in left.verdict().wrong)


def test_more_than_the_limit_or_the_guarantee_is_caught(left):
    with contextlib.closing(sqlite3.connect(left.ledger("site-3"), isolation_level=None)) as db:
        db.execute("UPDATE budget SET epsilon = 0.7")
    assert any("in all, more than 0.7" in said for said in left.verdict().wrong)


def test_one_more_round_than_the_guarantee_allows_is_caught(left):
    left.rewrite("site-3", lambda rows: [*rows, *({**row, "round": row["round"] + 100} for row in rows)])
    assert any(f"in {RUN}, more than 1.5" in said for said in left.verdict().wrong)


def test_a_changed_generator_and_a_changed_state_are_caught(left):
    path = next((left.folder / "out").glob("generator.npz"))
    with np.load(path) as stored:
        arrays = dict(stored)
    name = max(arrays, key=lambda each: arrays[each].size)
    arrays[name] = np.nextafter(arrays[name], np.inf, dtype=arrays[name].dtype)
    np.savez(path, **arrays)
    checkpoint = left.place / "checkpoint.npz"
    with np.load(checkpoint) as stored:
        arrays = dict(stored)
    arrays["state_1"] = arrays["state_1"] + np.ones((), arrays["state_1"].dtype)
    np.savez(checkpoint, **arrays)
    wrong = " ".join(left.verdict().wrong)
    assert "generator.npz differs" in wrong
    assert "state_1 differs" in wrong


def test_a_line_of_the_log_that_was_lost_is_told_by_the_checkpoint(left):
    lines = left.lines()
    left.write_lines([*lines[:3], *lines[4:]])
    verdict = left.verdict()
    assert verdict.lines_lost == 1
    assert verdict.wrong == ()


def test_a_log_that_counts_a_round_twice_or_more_than_was_heard_is_caught(left):
    lines = left.lines()
    left.write_lines([*lines, lines[3]])
    wrong = " ".join(left.verdict().wrong)
    assert "the log has round 3 2 times" in wrong
    assert "the checkpoint" in wrong


class Credulous:
    """A site that answers whatever it is asked with the same reply."""

    def __init__(self, site, reply):
        self.ledger_path, self.budget, self.hosted, self.reply = (
            site.ledger_path,
            site.budget,
            site.hosted,
            lambda _: reply,
        )


def test_a_site_that_believes_a_lying_coordinator_is_caught(left):
    site = open_site(left.folder / "before" / "site-1" / "populace.json")
    request = wire.pack(wire.Message(kind="ask", fields={"round": 0, "clients": 24, "records": 1, "first": 0, "terms": {
        "parameters": {}}}, arrays={"clients": np.zeros(1, np.int32), "heard": np.zeros(1, np.int32)}))  # fmt: skip
    reply = wire.pack(wire.Message(kind="reply", fields={}, arrays={}))
    said = lie_to(Credulous(site, reply), "site-1", request, reply, rounds=8)
    assert len(said.wrong) == said.requests - 1


def test_the_liar_never_sends_an_honest_reply():
    honest = [
        wire.pack(wire.Message(kind="reply", fields={"round": n}, arrays={"clients": np.arange(3, dtype=np.int32) + 7}))
        for n in range(40)
    ]
    liar = Liar(None, 1)
    sent = [liar.lie(reply) for reply in honest]
    assert not any(lie == reply for lie, reply in zip(sent, honest, strict=True))
    assert len({repr(lie) for lie in sent}) > len(LIES)


def test_a_plan_follows_from_its_seed_and_has_every_kind():
    first, again, other = (draw(np.random.default_rng(seed), SITES, 400) for seed in (1, 1, 2))
    assert first == again != other
    assert {each.kind for each in first} == set(KINDS)
    assert {each.site for each in first} == set(SITES)


def test_what_is_left_on_disk_is_looked_at(tmp_path):
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "plan.json").chmod(0o600)
    before = leftovers.secrets(tmp_path)
    assert leftovers.check_modes(tmp_path, before) == []
    (tmp_path / "plan.json").chmod(0o644)
    assert len(leftovers.check_modes(tmp_path, before)) == 2
    (tmp_path / "status.json").write_text('{"state": ')
    (tmp_path / "rounds.jsonl").write_text('{"round": 1}\n{"rou')
    (tmp_path / ".plan.json.7.tmp").write_text("")
    broken, temporary = leftovers.check_whole(tmp_path)
    assert len(broken) == 2
    assert temporary == 1


def test_a_traceback_that_nobody_named_is_caught(tmp_path):
    (tmp_path / "process.log").write_text(
        'before\nTraceback (most recent call last):\n  File "x.py", line 1, in f\n    f()\nZeroDivisionError: no\nafter\n'
    )
    unknown, known = leftovers.check_logs(tmp_path)
    assert unknown == ["process.log: ZeroDivisionError: no"]
    assert not known


def test_memory_that_grows_is_caught():
    seen = memory.Memory()
    for minute in range(10):
        seen.note("steady", 1, 200 * 2**20, 60.0 * minute)
        seen.note("growing", 2, (200 + 100 * minute) * 2**20, 60.0 * minute)
    assert [said.split()[0] for said in seen.check()] == ["growing"]
