"""Targets: a site that is asked what it should not answer, and a coordinator that is told what it should not believe."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import jax
import numpy as np

from builders import (
    INDEPENDENT,
    SEED,
    CentralMean,
    Relay,
    code_of,
    entries,
    make_coordinator,
    make_site,
    make_sites,
    request_of,
)
from fuzz.corpus import Corpus, small_table
from fuzz.target import FindingError, Input, Target
from fuzz.wires import damaged_message
from populace.engines import messages, wire
from populace.engines.agreement import Agreement
from populace.engines.checkpoint import Checkpoint
from populace.engines.coordinator import Coordinator
from populace.engines.link import InProcess
from populace.engines.roster import enrol
from populace.engines.secure_sum.primitives import signing_public
from populace.engines.secure_sum.roster import Member, SumRoster
from populace.engines.site import Hosted, Site
from populace.methods.moments.protocol import Moments
from populace.privacy.ledger import Budget
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.partition import split_silos
from secure_sums_for_tests import Sites, make_opening, plain_sum, vectors_of

METHODS = {
    "independent": INDEPENDENT,
    "relay": Relay(epsilon=2.0, passes=2),
    "mean": CentralMean(epsilon=9.0, total_rounds=2),
}


@dataclasses.dataclass
class Asked:
    """A site with a fresh ledger, and requests an honest coordinator would make, in their order."""

    site: Site
    requests: list[bytes]
    fresh: dict[Path, bytes]
    log: list[str]

    def begin(self) -> None:
        """The ledger as it was before anything was asked."""
        folder = self.site.ledger_path.parent
        for path in folder.glob(f"{self.site.ledger_path.name}*"):
            path.unlink()
        for path, content in self.fresh.items():
            path.write_bytes(content)
        self.log.clear()


def _files(site: Site) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in site.ledger_path.parent.glob(f"{site.ledger_path.name}*")}


def _prepare_sites(corpus: Corpus) -> dict[str, Asked]:
    folder = corpus.folder / "scratch" / "asked"
    folder.mkdir(parents=True, exist_ok=True)
    rows, found = small_table().take(np.arange(6)), {}
    for name, protocol in METHODS.items():
        log: list[str] = []
        for old in folder.glob(f"{name}.sqlite*"):
            old.unlink()
        delta = 1e-3 if name == "mean" else 0.0
        site = make_site(folder, rows, protocol, name=name, epsilon=99.0, delta=delta, log=log.append)
        fresh = _files(site)
        requests = [request_of(protocol, rows.schema), _facts_request(protocol, rows.schema)]
        if name != "independent":
            requests += [request_of(protocol, rows.schema, run="run-2")]
        asked = Asked(site=site, requests=requests, fresh=fresh, log=log)
        for request in requests:  # compiled before the cases are timed
            asked.site.reply(request)
        found[name] = asked
    found["sums"] = _sum_requests(folder)
    return found


def _facts_request(protocol: Any, schema: Any) -> bytes:
    return messages.make_facts_request(Agreement(protocol=protocol, schema=schema), run="run-1")


def _draw_site(asked: dict[str, Asked], rng: random.Random) -> Input:
    name = rng.choice(sorted(asked))
    requests = asked[name].requests
    before = rng.randrange(len(requests)) if rng.random() < 0.6 else 0
    if rng.random() < 0.15:  # honest requests in another order, or of another method
        request = rng.choice(asked[rng.choice(sorted(asked))].requests)
    else:
        request = damaged_message(rng, rng.choice(requests), requests)
    return {"site": name, "before": before, "request": request}


def _run_site(asked: dict[str, Asked], case: Input) -> None:
    """Whatever is asked: one of the closed list of messages, one charge per client that is answered, none with a refusal."""
    one = asked[case["site"]]
    one.begin()
    for request in one.requests[: case["before"]]:
        one.site.reply(request)
    before = entries(one.site)
    reply = one.site.reply(case["request"])
    check_reply(one, reply)
    charged = entries(one.site) - before
    message = wire.unpack(reply)
    if message.kind in ("refusal", "facts") and charged:
        raise FindingError(f"a {message.kind} after which {charged} charges are booked")
    most = len(message.arrays["clients"]) if message.kind == "reply" else 1
    if charged > most:
        raise FindingError(f"{charged} charges for a reply of {most} clients")
    again = one.site.reply(case["request"])
    if entries(one.site) - before != charged:
        raise FindingError("charged twice for one question")
    if message.kind != "refusal" and again != reply:
        raise FindingError("another reply to the same request")


def check_reply(one: Asked, reply: bytes) -> None:
    """A message of a kind that sites send, let through by their gate; never one that failed for a reason nobody foresaw."""
    if code_of(reply) == "failed":
        raise FindingError(f"the site failed: {[line for line in one.log if 'failed' in line][-1:]}")
    if messages.check_outgoing(reply, one.site.agreements) != reply:
        raise FindingError("the gate would have changed the reply")


# Coordinators


@dataclasses.dataclass
class Told:
    """Honest replies that a coordinator had, by exchange and site, and a coordinator to tell others."""

    folder: Path
    replies: list[dict[str, bytes]]


class Telling(InProcess):
    """Sites whose replies were written down; one of them is another."""

    def __init__(self, replies: list[dict[str, bytes]], case: Input | None = None) -> None:
        super().__init__({})
        self.replies, self.case, self.calls = replies, case, 0

    def sites(self) -> list[str]:
        return sorted(self.replies[0])

    def exchange(self, asks: Any, timeout: float) -> dict[str, bytes]:
        at = min(self.calls, len(self.replies) - 1)
        self.calls += 1
        given = {site: self.replies[at][site] for site in asks if site in self.replies[at]}
        if self.case is not None and at == self.case["exchange"]:
            given[self.case["site"]] = self.case["reply"]
        return given


class Listening(InProcess):
    """Sites in this process, of which every reply is kept."""

    def __init__(self, sites: dict[str, Site]) -> None:
        super().__init__({name: site.reply for name, site in sites.items()})
        self.kept: list[dict[str, bytes]] = []

    def exchange(self, asks: Any, timeout: float) -> dict[str, bytes]:
        self.kept.append(super().exchange(asks, timeout))
        return self.kept[-1]


def _prepare_told(corpus: Corpus) -> Told:
    folder = corpus.folder / "scratch" / "told"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    rows = small_table().take(np.arange(8))
    link = Listening(make_sites(folder, rows, INDEPENDENT))
    make_coordinator(folder, rows.schema, INDEPENDENT, link).go()
    return Told(folder=folder, replies=link.kept)


def _draw_told(told: Told, rng: random.Random) -> Input:
    exchange = rng.randrange(len(told.replies))
    site = rng.choice(sorted(told.replies[exchange]))
    everything = [reply for replies in told.replies for reply in replies.values()]
    own = told.replies[exchange][site]
    return {"exchange": exchange, "site": site, "reply": damaged_message(rng, own, everything)}


def _run_told(told: Told, case: Input) -> None:
    (told.folder / "run-1.npz").unlink(missing_ok=True)
    for left in told.folder.glob("run-1*"):
        left.unlink()
    link = Telling(told.replies, case)
    coordinator = make_coordinator(told.folder, small_table().schema, INDEPENDENT, link)
    done = coordinator.go()
    if done.ledger.spent()["charges"] > coordinator.population.clients:
        raise FindingError("a client counted twice")
    for leaf in map(wire.to_numpy, jax.tree.leaves(done.state)):
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            raise FindingError("a state that is not finite")


# Secure sums


MOMENTS = Moments(epsilon=2.0, delta=1e-6, trust="secure-sum")
KEYS = tuple(bytes([number + 1]) * 32 for number in range(3))
SIZES = (5, 4, 3)


def _sum_agreement() -> Agreement:
    members = tuple(Member(site=f"site-{i + 1}", key=signing_public(key).hex()) for i, key in enumerate(KEYS))
    roster = SumRoster(members=members, threshold=3 - MOMENTS.dropouts, colluders=MOMENTS.colluders)
    return Agreement(protocol=MOMENTS, schema=small_table().schema, roster=roster)


def _sum_requests(folder: Path) -> Asked:
    """The first of three sites of a secure sum, and every step it is asked for in one."""
    agreement, budget = _sum_agreement(), Budget(epsilon=2.0, delta=1e-5, unit="record")
    edges, sites, log = np.cumsum([0, *SIZES]), {}, []
    for number, key in enumerate(KEYS):
        name = f"site-{number + 1}"
        for old in folder.glob(f"{name}.sqlite*"):
            old.unlink()
        SqliteLedger(folder / f"{name}.sqlite", budget).close()
        clients = split_silos(small_table().take(np.arange(edges[number], edges[number + 1])), (SIZES[number],))
        sites[name] = Site(
            hosted=Hosted(clients=clients, accounts=("site",), records=SIZES[0], by="site"),
            agreements={agreement.digest: agreement}, ledger_path=folder / f"{name}.sqlite", budget=budget,
            root=jax.random.key(SEED), signing_key=key, log=log.append,
        )  # fmt: skip
    fresh, asked = _files(sites["site-1"]), []

    class Noting(InProcess):
        def exchange(self, asks: Any, timeout: float) -> dict[str, bytes]:
            asked.extend(ask for site, ask in asks.items() if site == "site-1")
            return super().exchange(asks, timeout)

    link = Noting({name: site.reply for name, site in sites.items()})
    roster = enrol(agreement, link, run="run-1", least=3, timeout=1.0)
    (folder / "sums.npz").unlink(missing_ok=True)
    Coordinator(
        agreement=agreement, roster=roster, link=link, run="run-1", root=jax.random.key(SEED), seeded=True,
        checkpoint=Checkpoint(folder / "sums.npz"), timeout=1.0, patience=0.0,
    ).go()  # fmt: skip
    return Asked(site=sites["site-1"], requests=asked, fresh=fresh, log=log)


def _prepare_opening(_: Corpus) -> Any:
    opening = make_opening(count=3, threshold=2)
    return opening, vectors_of(opening)


def _draw_opening(state: Any, rng: random.Random) -> Input:
    """Which replies of which site in which steps are changed, and how: from a seed, as the keys of each sum are new."""
    steps = [rng.choice(("advertise", "share", "mask", "confirm", "reveal")) for _ in range(rng.choice((1, 1, 2)))]
    return {"steps": steps, "place": rng.randrange(3), "seed": rng.randrange(2**32)}


def _run_opening(state: Any, case: Input) -> None:
    """A sum with a site that lies is not opened, or is opened right: over numbers that the survivors sent."""
    opening, vectors = state
    sites, rng = Sites(opening, vectors), random.Random(case["seed"])
    honest = sites.exchange

    def exchange(step: Any, requests: Any):
        for place, reply in honest(step, requests):
            if step in case["steps"] and place == case["place"]:
                reply = damaged_message(rng, reply, list(sites.sent.values()))
            yield place, reply

    sites.exchange = exchange
    opened = sites.open()
    lied_about = case["place"] in opened.survivors and "mask" in case["steps"]
    if not lied_about and not np.array_equal(opened.total, plain_sum(vectors, opened.survivors)):
        raise FindingError("an opened sum that is not the sum of its survivors")


TARGETS: tuple[Target, ...] = (
    Target(name="site-reply", prepare=_prepare_sites, draw=_draw_site, run=_run_site, cost=25.0),
    Target(name="coordinator-told", prepare=_prepare_told, draw=_draw_told, run=_run_told, cost=40.0),
    Target(name="open-sum", prepare=_prepare_opening, draw=_draw_opening, run=_run_opening, cost=8.0),
)
