"""One loop for every protocol: over sites, in seeded runs, it ends where the debug engine ends; faults leave it right."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from builders import (
    CentralMean,
    Relay,
    assert_same,
    debug_state,
    mark_slow,
    small_protocol,
    small_settings,
    table_methods,
)
from populace.engines.agreement import Agreement, agreement_from_json
from populace.engines.checkpoint import Checkpoint
from populace.engines.coordinator import Coordinator
from populace.engines.link import InProcess, Link
from populace.engines.messages import make_reply
from populace.engines.roster import enrol, roster_from_json
from populace.engines.runtime import Keys, population_of
from populace.engines.site import Site
from populace.engines.site_file import SiteFile, read_hosted
from populace.engines.wire import HEAD, MAGIC, VERSION
from populace.errors import DataError, RunError, SpecError
from populace.methods.base import ImageShape
from populace.methods.registry import make_protocol
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.partition import split

#: Networks: test_vae.py, test_gan.py; a chain is two methods.
TRAINED = ("l-dpd-vae", "c-dpd-vae", "fed-vae", "central-vae", "chain", "fl-gan", "ufl-gan", "fedavg-gan")
SLOW = ("poll", "dp-fed-wae", "fedsel-wae")  # compiled for long
TABLES = table_methods()


def small(name):
    """Small settings, of which so small a population needs smaller cohorts still."""
    return small_protocol(name, **({"cohort_size": 2} if "cohort_size" in small_settings(name) else {}))


def charges(site):
    with SqliteLedger(site.ledger_path, site.budget) as ledger:
        return {account: ledger.entries(account) for account in ledger.accounts()}


@pytest.mark.parametrize("name", [*mark_slow([name for name in TABLES if name not in TRAINED], SLOW), "relay"])
def test_every_protocol_ends_where_the_debug_engine_ends(name, rows, make_sites, make_coordinator):
    """Over three sites of unequal size, seeded: the same replies, hence the same state; one charge per participation."""
    protocol = Relay(epsilon=2.0, passes=2) if name == "relay" else small(name)
    rows = rows.take(np.arange(4)) if "wae" in protocol.facts.name else rows  # slow where nothing is compiled
    claim = protocol.guarantee(population_of(split(rows, records_per_client=1)))
    sites = make_sites(rows, protocol, epsilon=claim.epsilon, delta=claim.delta, unit=claim.unit)
    coordinator = make_coordinator(rows, protocol, sites)
    found = coordinator.go()
    state, booked = debug_state(protocol, split(rows, records_per_client=1), jax.random.key(5))
    assert found.over
    assert found.rounds > 1 or name == "census"  # one message, where no column is long
    assert_same(found.state, state)
    assert found.ledger.spent()["charges"] == booked
    participations = booked // len(rows)
    for site in sites.values():
        assert charges(site) == dict.fromkeys(site.hosted.accounts, participations)


class Stopping(Link):
    """A link that fails as told: which sites are away, and what comes instead of a reply, by round of exchange."""

    def __init__(self, sites):
        self.inner = InProcess({name: site.reply for name, site in sites.items()})
        self.away, self.instead, self.lost, self.calls = {}, {}, {}, 0

    def sites(self):
        return self.inner.sites()

    def exchange(self, asks, timeout):
        self.calls += 1
        away = self.away.get(self.calls, ())
        found = self.inner.exchange({site: ask for site, ask in asks.items() if site not in away}, timeout)
        for site in self.lost.get(self.calls, ()):
            found.pop(site)
        return found | self.instead.get(self.calls, {})


def test_a_lost_reply_is_charged_and_asked_again_it_is_the_stored_one(rows, make_sites, make_coordinator):
    protocol = Relay(epsilon=2.0)
    sites = make_sites(rows, protocol, seed=None)
    link = Stopping(sites)
    coordinator = make_coordinator(rows, protocol, link, patience=5.0)
    link.lost = {3: ("site-1",)}  # exchange 1 was the facts, 2 the first round
    found = coordinator.go()
    assert found.over
    assert int(found.state.heard) == len(rows)  # every client was asked once in its life, also by its own memory
    assert all(charges(site) == dict.fromkeys(site.hosted.accounts, 1) for site in sites.values())


def test_rounds_go_on_without_a_site_and_the_rest_counts(rows, make_sites, make_coordinator):
    protocol = make_protocol("independent", {"epsilon": 2.0, "clients_per_batch": 100})
    sites = make_sites(rows, protocol)
    link = Stopping(sites)
    coordinator = make_coordinator(rows, protocol, link)
    link.away = {2: ("site-1",)}
    seen = []
    found = coordinator.go(lambda at: seen.append(at) or True)
    assert int(found.state.learner.counts.answers.sum()) == len(rows) - len(sites["site-1"].hosted.accounts)
    assert seen[0].missing == ("site-1",)
    assert seen[0].replies == {"site-1": 0, "site-2": 3, "site-3": 3}
    assert charges(sites["site-1"]) == {}


def test_central_noise_and_denominator_stay_right_with_a_site_away(rows, make_sites, make_coordinator):
    """The sum is divided by the public size of the cohort and gets the noise of the whole, whoever answered."""
    protocol = CentralMean(epsilon=3.0, total_rounds=1)
    sites = make_sites(rows, protocol, epsilon=3.0, delta=1e-5)
    truth = np.clip(rows.codes[:, 0], 0, 1)
    present = np.arange(len(rows)) >= len(sites["site-1"].hosted.accounts)
    noise = []
    for number in range(40):
        link = Stopping(sites)
        roster = enrol(Agreement(protocol=protocol, schema=rows.schema), link, run="r", least=3, timeout=1.0)
        link.away = {2: ("site-1",)}
        fresh = {
            name: dataclasses.replace(site, ledger_path=site.ledger_path.with_suffix(f".{number}"))
            for name, site in sites.items()
        }
        for site in fresh.values():
            SqliteLedger(site.ledger_path, site.budget).close()
        link.inner = InProcess({name: site.reply for name, site in fresh.items()})
        one = make_coordinator(rows, protocol, link, run=f"r-{number}", roster=roster, seeded=False).go()
        assert int(one.state.heard) == present.sum()
        noise.append(float(one.state.total) * len(rows) - truth[present].sum())
    assert abs(np.std(noise) / protocol.noise_multiplier - 1) < 0.4
    assert abs(np.mean(noise)) < 4 * protocol.noise_multiplier / np.sqrt(len(noise))


def test_below_the_quorum_the_run_pauses_and_goes_on_later(rows, make_sites, make_coordinator):
    protocol = CentralMean(epsilon=3.0, quorum_share=0.9)
    sites = make_sites(rows, protocol, epsilon=3.0, delta=1e-5)
    link = Stopping(sites)
    coordinator = make_coordinator(rows, protocol, link)
    link.away = dict.fromkeys(range(2, 9), ("site-1",))
    with pytest.raises(RunError, match="its quorum is 11"):
        coordinator.go()
    link.away = {}
    assert coordinator.go().over
    assert all(charges(site) == dict.fromkeys(site.hosted.accounts, 1) for site in sites.values())


def headed(*array):
    """A message with one array so described, and nothing in it."""
    text = json.dumps({"kind": "reply", "fields": {}, "arrays": [array]}).encode()
    return HEAD.pack(MAGIC, VERSION, len(text), 0) + text


GARBAGE = [
    b"", b"garbage" * 100, "other-round", "other-clients", "not-finite", None, 5, [b"x"], headed("x", [], [1]),
    headed("x", "int8", [0, 2**30, 2**30, 2**30]),
]  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda one: repr(one)[:24])
def test_garbage_counts_as_absent(rows, make_sites, make_coordinator, garbage):
    protocol = CentralMean(epsilon=3.0, total_rounds=2, noise_multiplier=12.0)
    sites = make_sites(rows, protocol, epsilon=3.0, delta=1e-5)
    link = Stopping(sites)
    coordinator = make_coordinator(rows, protocol, link)
    population = coordinator.population
    if isinstance(garbage, str):
        clients = np.arange(6, 9, dtype=np.int32) if garbage == "other-clients" else np.arange(3, dtype=np.int32)
        values = np.full(len(clients), np.nan if garbage == "not-finite" else 1e6, np.float32)
        garbage = make_reply(
            coordinator.agreement, population, run="run-1", round_id=7 if garbage == "other-round" else 0,
            clients=clients, values=values,
        )  # fmt: skip
    link.instead = {2: {"site-1": garbage}}
    seen = []
    found = coordinator.go(lambda at: seen.append(at) or True)
    assert seen[0].refusals == {"site-1": "garbage"}
    assert int(found.state.heard) == 2 * len(rows) - len(sites["site-1"].hosted.accounts)
    assert abs(float(found.state.total)) < 1e3


def test_killed_after_any_round_it_goes_on_and_nothing_is_spent_twice(rows, make_sites, make_coordinator):
    """Stopped before and after each checkpoint: the same end as undisturbed, one charge per participation."""
    protocol = Relay(epsilon=2.0)
    sites = make_sites(rows, protocol)
    coordinator = make_coordinator(rows, protocol, sites)

    class KilledError(Exception):
        pass

    real = type(coordinator.checkpoint).save
    for when in ("before", "after"):

        def killed(self, when=when, **content):
            if when == "after" or content["rounds"] == 0:
                real(self, **content)
            if content["rounds"] > 0:
                raise KilledError

        for _ in range(3):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(type(coordinator.checkpoint), "save", killed)
                with pytest.raises(KilledError):
                    coordinator.go()
    found = coordinator.go()
    assert_same(found.state, debug_state(protocol, split(rows, records_per_client=1), jax.random.key(5))[0])
    assert all(charges(site) == dict.fromkeys(site.hosted.accounts, 1) for site in sites.values())


def test_enrolment_takes_who_agrees_and_says_who_does_not(rows, make_sites, make_site):
    protocol = small("independent")
    sites = make_sites(rows, protocol)
    sites["site-2"] = make_site(rows, small("krr"), name="other")
    link = InProcess({name: site.reply for name, site in sites.items()})
    agreement = Agreement(protocol=protocol, schema=rows.schema)
    roster = enrol(agreement, link, run="r", least=2, timeout=1.0)
    assert [seat.site for seat in roster.seats] == ["site-1", "site-3"]
    assert roster.clients == 9
    assert roster_from_json(roster.to_json()) == roster
    with pytest.raises(RunError, match="site-2: the site has not agreed to this method"):
        enrol(agreement, link, run="r", least=3, timeout=1.0)


def test_an_agreement_survives_its_file(rows):
    for protocol in [*map(small, TABLES), Relay(epsilon=1.0)]:
        agreement = Agreement(protocol=protocol, schema=rows.schema)
        again = agreement_from_json(agreement.to_json(), where="a file")
        assert again.digest == agreement.digest
        assert again.protocol == protocol
    with pytest.raises(SpecError, match="not a method"):
        agreement_from_json({**agreement.to_json(), "class": "builtins:dict"}, where="a file")
    with pytest.raises(RunError, match="damaged"):
        agreement_from_json({**agreement.to_json(), "class": "nowhere:Nothing"}, where="a file")


def test_a_method_whose_questions_change_shape_is_told_so(rows, make_sites, make_coordinator):
    class Shifty(Relay):
        def ask(self, state, population, source):
            ask = super().ask(state, population, source)
            if int(state.round) < 2:
                return ask
            return dataclasses.replace(ask, common={"tally": jax.numpy.zeros(99, jax.numpy.int32)})

    protocol = Shifty(epsilon=2.0)
    with pytest.raises(SpecError, match="round 2 for other shapes"):
        make_coordinator(rows, protocol, make_sites(rows, protocol)).go()


def test_images_travel_too(tmp_path):
    """A site over an image file of its own, opened as a deployed one is; clipped brightness instead of codes."""

    class Brightness(CentralMean):
        facts = dataclasses.replace(CentralMean.facts, name="brightness", kinds=("images",))

        def answer(self, common, own, shard, memory, source):
            lit = jax.numpy.where(jax.numpy.asarray(shard.mask)[:, None, None], shard.records["x"], 0)
            return jax.numpy.clip(lit.sum() / 4, 0, 1).astype(jax.numpy.float32), memory

    shape = ImageShape(shape=(2, 2), classes=3)
    protocol = Brightness(epsilon=3.0, noise_multiplier=9.0)
    agreement = Agreement(protocol=protocol, schema=shape)
    pixels = np.repeat(np.array([0, 1, 1, 1], np.uint8), 4).reshape(4, 2, 2)
    np.savez(tmp_path / "images.npz", x=pixels, y=np.array([0, 1, 1, 0]))
    file = SiteFile(
        name="site", federation="f", data=str(tmp_path / "images.npz"), ledger=str(tmp_path / "l.sqlite"),
        log=str(tmp_path / "l.log"), by="rows", records_per_client=1, client_column=None, records=1, epsilon=3.0, delta=1e-5,
        unit="client", seed=None, agreed=(),
    )  # fmt: skip
    hosted = read_hosted(file, shape)
    SqliteLedger(file.ledger, file.budget).close()
    site = Site(
        hosted=hosted, agreements={agreement.digest: agreement}, ledger_path=tmp_path / "l.sqlite", budget=file.budget
    )
    link = InProcess({"site": site.reply})
    coordinator = Coordinator(
        agreement=agreement, roster=enrol(agreement, link, run="r", least=1, timeout=1.0), link=link, run="r",
        root=jax.random.key(0), checkpoint=Checkpoint(tmp_path / "c.npz"), patience=0.0, seeded=True,
    )  # fmt: skip
    state = coordinator.go().state
    noise = protocol.noise_multiplier * float(jax.random.normal(Keys(jax.random.key(0)).absorb(0)))
    assert float(state.total) * 4 - noise == pytest.approx(3.0, abs=1e-3)
    with pytest.raises(DataError, match="the agreement is about"):
        read_hosted(file, dataclasses.replace(shape, shape=(3, 3)))
