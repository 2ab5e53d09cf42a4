"""Secure sums over sites in this process: the sums of a simulation, one charge per opening, and nothing opened twice."""

import dataclasses

import jax
import numpy as np
import pytest

from builders import SEED, assert_same, code_of, entries
from populace.engines import messages, simulation, wire
from populace.engines.agreement import Agreement, agreement_from_json
from populace.engines.checkpoint import Checkpoint
from populace.engines.coordinator import Coordinator, QuorumError
from populace.engines.link import InProcess, LinkClosedError
from populace.engines.roster import enrol
from populace.engines.runtime import population_of
from populace.engines.secure_sum.messages import STEPS
from populace.engines.secure_sum.primitives import signing_public
from populace.engines.secure_sum.roster import Member, SumRoster
from populace.engines.site import Hosted, Site
from populace.errors import RunError, WireError
from populace.methods.census.protocol import Census
from populace.methods.moments.protocol import Moments
from populace.privacy.ledger import Budget
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.partition import split_silos
from two_stages import two_stage_table

SIZES = (30, 20, 10)
CENSUS = Census(epsilon=2.0, delta=1e-6, trust="secure-sum", components=3, members=2, fit_steps=10)
MOMENTS = Moments(epsilon=2.0, delta=1e-6, trust="secure-sum")
KEYS = tuple(bytes([number + 1]) * 32 for number in range(3))


TABLE = two_stage_table(sum(SIZES))


def roster_for(protocol, keys=KEYS):
    members = tuple(Member(site=f"site-{i + 1}", key=signing_public(key).hex()) for i, key in enumerate(keys))
    return SumRoster(members=members, threshold=len(keys) - protocol.dropouts, colluders=protocol.colluders)


def agreement_for(protocol, **other):
    return Agreement(protocol=protocol, schema=TABLE.schema, **({"roster": roster_for(protocol)} | other))


def make_sites(folder, protocol, *, seed=SEED, epsilon=2.0, **changes):
    """Three sites, each one client, of which each request may meet a new process."""
    agreement = agreement_for(protocol, **changes)
    budget, edges = Budget(epsilon=epsilon, delta=1e-5, unit="record"), np.cumsum([0, *SIZES])
    sites = {}
    for number, key in enumerate(KEYS):
        clients = split_silos(TABLE.take(np.arange(edges[number], edges[number + 1])), (SIZES[number],))
        name = f"site-{number + 1}"
        SqliteLedger(folder / f"{name}.sqlite", budget).close()
        sites[name] = Site(
            hosted=Hosted(clients=clients, accounts=("site",), records=SIZES[0], by="site"),
            agreements={agreement.digest: agreement}, ledger_path=folder / f"{name}.sqlite", budget=budget,
            root=None if seed is None else jax.random.key(seed), signing_key=key,
        )  # fmt: skip
    return sites


class Flaky(InProcess):
    """A link on which sites miss steps, the coordinator dies after some, and all that leaves a site passes its gate."""

    def __init__(self, sites, agreement, *, away=lambda site, step: False, dies=None):
        super().__init__({name: site.reply for name, site in sites.items()})
        self.agreements, self.away, self.dies = {agreement.digest: agreement}, away, dies
        self.sent, self.exchanges = [], 0

    def exchange(self, asks, timeout):
        self.exchanges += 1
        if self.exchanges == self.dies:
            raise LinkClosedError("killed")
        steps = {site: wire.unpack(ask).fields.get("step") for site, ask in asks.items()}
        there = {site: ask for site, ask in asks.items() if not self.away(site, steps[site])}
        replies = super().exchange(there, timeout)
        self.sent += [(site, steps[site], there[site], reply) for site, reply in replies.items()]
        return {site: messages.check_outgoing(reply, self.agreements) for site, reply in replies.items()}


def make_coordinator(folder, protocol, link, **other):
    agreement = agreement_for(protocol)
    roster = enrol(agreement, InProcess(link._sites), run="run-1", least=3, timeout=1.0)
    return Coordinator(
        agreement=agreement, roster=roster, link=link, run="run-1", root=jax.random.key(SEED),
        checkpoint=Checkpoint(folder / "run-1.npz"), timeout=1.0, patience=0.0, **({"seeded": True} | other),
    )  # fmt: skip


def simulated(protocol):
    return simulation.run(protocol, split_silos(TABLE, SIZES), root=jax.random.key(SEED))


@pytest.mark.parametrize("protocol", [CENSUS, MOMENTS, dataclasses.replace(CENSUS, colluders=1)], ids=str)
def test_sites_open_the_sums_of_a_simulation_bit_for_bit_and_charge_each_once(tmp_path, protocol):
    sites = make_sites(tmp_path, protocol)
    link = Flaky(sites, agreement_for(protocol))
    done = make_coordinator(tmp_path, protocol, link).go()
    assert done.over
    assert_same(done.state, simulated(protocol).state)
    rounds = protocol.round_count(population_of(split_silos(TABLE, SIZES)))
    assert done.rounds == rounds
    assert [entries(site) for site in sites.values()] == [rounds] * 3
    assert link.exchanges == 5 * rounds
    assert not list(tmp_path.glob("*.sum-*"))


def test_a_coordinator_killed_between_any_two_exchanges_goes_on_with_the_same(tmp_path):
    """The noise is the operating system's: anything drawn or masked again would be something else."""
    wanted = None
    for dies in range(1, 11):
        folder = tmp_path / str(dies)
        folder.mkdir()
        sites = make_sites(folder, CENSUS, seed=None)
        link = Flaky(sites, agreement_for(CENSUS), dies=dies)
        with pytest.raises(LinkClosedError):
            make_coordinator(folder, CENSUS, link, seeded=False).go()
        sent = {(site, step): reply for site, step, _, reply in link.sent if step}
        again = Flaky(make_sites(folder, CENSUS, seed=None), agreement_for(CENSUS))
        done = make_coordinator(folder, CENSUS, again, seeded=False).go()
        assert done.over
        assert [entries(site) for site in sites.values()] == [2, 2, 2]
        later = {(site, step): reply for site, step, _, reply in again.sent if step}
        if dies <= 5:  # still in the first round: what is sent again is what was sent
            wanted = [place for place in sent if place in later and wire.unpack(later[place]).fields["round"] == 0]
            assert all(sent[place] == later[place] for place in wanted)


@pytest.mark.parametrize("step", STEPS)
def test_a_site_that_is_away_from_a_step_on_is_missing_from_the_sum_or_not(tmp_path, step):
    """With one dropout allowed: before or at masking its numbers are missing, afterwards they are in the sum."""
    protocol = dataclasses.replace(MOMENTS, dropouts=1)
    sites = make_sites(tmp_path, protocol)
    link = Flaky(
        sites, agreement_for(protocol),
        away=lambda site, now: site == "site-3" and now is not None and STEPS.index(now) >= STEPS.index(step),
    )  # fmt: skip
    done = make_coordinator(tmp_path, protocol, link).go()
    counted = 3 if step in ("confirm", "reveal") else 2
    assert int(done.state.learner.messages) == counted
    assert [entries(site) for site in sites.values()] == [1, 1, counted - 2]


def test_without_allowed_dropouts_the_round_waits_for_every_site(tmp_path):
    sites = make_sites(tmp_path, MOMENTS, seed=None)
    away = Flaky(sites, agreement_for(MOMENTS), away=lambda site, step: (site, step) == ("site-2", "confirm"))
    with pytest.raises(QuorumError, match="at least 3 sites to take step 'confirm'"):
        make_coordinator(tmp_path, MOMENTS, away, seeded=False).go()
    back = Flaky(sites, agreement_for(MOMENTS))
    assert make_coordinator(tmp_path, MOMENTS, back, seeded=False).go().over
    assert [entries(site) for site in sites.values()] == [1, 1, 1]


def opened(tmp_path, protocol=MOMENTS, **other):
    sites = make_sites(tmp_path, protocol, **other)
    link = Flaky(sites, agreement_for(protocol))
    make_coordinator(tmp_path, protocol, link).go()
    return sites, link


def asked(link, site, step):
    return next(ask for name, now, ask, _ in link.sent if (name, now) == (site, step))


def changed(ask, *, fields=None, rows=None):
    """A request with other fields, or another set of rows."""
    message = wire.unpack(ask)
    arrays = dict(message.arrays)
    if rows is not None:
        arrays |= {"members": arrays["members"][rows], "rows": arrays["rows"][rows]}
    return wire.pack(wire.Message(kind=message.kind, fields={**message.fields, **(fields or {})}, arrays=arrays))


def test_every_step_asked_again_gets_the_same_bytes_also_in_a_new_process(tmp_path):
    _, link = opened(tmp_path, seed=None)
    again = make_sites(tmp_path, MOMENTS, seed=None)
    for site, step, ask, reply in link.sent:
        if step:
            assert again[site].reply(ask) == reply
    assert [entries(site) for site in again.values()] == [1, 1, 1]


def test_a_second_opening_of_a_round_is_refused(tmp_path):
    """Another list of survivors, another set of peers, another question: one word, and no new charge."""
    protocol = dataclasses.replace(MOMENTS, dropouts=1)
    sites, link = opened(tmp_path, protocol)
    site = sites["site-1"]
    for step in ("share", "mask", "confirm"):
        rows = [0, 1] if step != "mask" else [0]
        assert code_of(site.reply(changed(asked(link, "site-1", step), rows=rows))) == "sum"
    assert code_of(site.reply(changed(asked(link, "site-1", "confirm"), fields={"question": "0" * 64}))) == "sum"
    assert code_of(site.reply(changed(asked(link, "site-1", "advertise"), fields={"question": "0" * 64}))) == "sum"
    assert entries(site) == 1


def test_numbers_of_a_secure_sum_never_leave_without_masks(tmp_path):
    """The plain question of the same method, as a coordinator that knows no sums would send it."""
    sites = make_sites(tmp_path, MOMENTS)
    agreement = agreement_for(MOMENTS)
    population = agreement.population(clients=3, records=SIZES[0])
    common, own = MOMENTS.question(population, 0)
    ask = messages.make_ask(
        agreement, population, run="run-1", round_id=0, first=0, clients=np.array([0]), heard=np.zeros(1), common=common,
        own=jax.tree.map(lambda leaf: np.asarray(leaf)[None], own),
    )  # fmt: skip
    assert code_of(sites["site-1"].reply(ask)) == "guarantee"
    assert entries(sites["site-1"]) == 0


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (lambda roster: dataclasses.replace(roster, threshold=2), "roster"),
        (lambda roster: dataclasses.replace(roster, colluders=1), "roster"),
        (
            lambda roster: SumRoster(members=(*roster.members[:2], Member(site="site-3", key="0" * 64)), threshold=3),
            "roster",
        ),
        (lambda roster: None, "roster"),
    ],
)
def test_another_roster_than_was_agreed_is_refused(tmp_path, other, word):
    """A changed threshold, a swapped key, an invented site: the terms name another roster."""
    sites = make_sites(tmp_path, MOMENTS)
    agreement = agreement_for(MOMENTS, roster=other(roster_for(MOMENTS)))
    request = messages.make_sum_request(
        None, agreement, agreement.population(clients=3, records=SIZES[0]), run="run-1", round_id=0, first=0,
        step="advertise", question="0" * 64, rows={},
    )  # fmt: skip
    assert code_of(sites["site-1"].reply(request)) == word


def test_a_roster_whose_threshold_the_noise_is_not_for_is_refused(tmp_path):
    """Agreed or not: with fewer survivors than the noise was calibrated for, nothing is sent."""
    weak = dataclasses.replace(roster_for(MOMENTS), threshold=2)
    sites = make_sites(tmp_path, MOMENTS, roster=weak)
    agreement = agreement_for(MOMENTS, roster=weak)
    request = messages.make_sum_request(
        None, agreement, agreement.population(clients=3, records=SIZES[0]), run="run-1", round_id=0, first=0,
        step="advertise", question="0" * 64, rows={},
    )  # fmt: skip
    assert code_of(sites["site-1"].reply(request)) == "roster"


def test_a_site_without_the_key_of_the_roster_refuses(tmp_path):
    site = make_sites(tmp_path, MOMENTS)["site-1"]
    agreement = agreement_for(MOMENTS)
    for key in (None, b"\x09" * 32):
        other = dataclasses.replace(site, signing_key=key)
        request = messages.make_sum_request(
            None, agreement, agreement.population(clients=3, records=SIZES[0]), run="run-1", round_id=0, first=0,
            step="advertise", question="0" * 64, rows={},
        )  # fmt: skip
        assert code_of(other.reply(request)) == "roster"


def test_a_roster_with_a_revoked_site_is_refused_at_every_step(tmp_path):
    sites, link = opened(tmp_path)
    told = dataclasses.replace(sites["site-1"], revoked=frozenset({"site-3"}))
    for step in STEPS:
        assert code_of(told.reply(asked(link, "site-1", step))) == "roster"
    stranger = dataclasses.replace(sites["site-1"], revoked=frozenset({"site-9"}))
    assert code_of(stranger.reply(asked(link, "site-1", "mask"))) == "sum"


def test_a_site_that_cannot_pay_refuses_the_first_step(tmp_path):
    sites = make_sites(tmp_path, MOMENTS, epsilon=0.5)
    link = Flaky(sites, agreement_for(MOMENTS))
    with pytest.raises(QuorumError, match="limit would be passed"):
        make_coordinator(tmp_path, MOMENTS, link).go()
    assert [entries(site) for site in sites.values()] == [0, 0, 0]


def test_a_second_run_is_a_second_charge_and_is_refused_where_the_limit_is_reached(tmp_path):
    sites, _ = opened(tmp_path)
    link = Flaky(sites, agreement_for(MOMENTS))
    coordinator = dataclasses.replace(
        make_coordinator(tmp_path, MOMENTS, link), run="run-2", checkpoint=Checkpoint(tmp_path / "run-2.npz")
    )
    with pytest.raises(QuorumError, match="limit would be passed"):
        coordinator.go()
    assert [entries(site) for site in sites.values()] == [1, 1, 1]


def test_a_charge_and_its_masked_numbers_are_kept_together_or_not_at_all(tmp_path, monkeypatch):
    """Killed in the middle of the transaction: nothing is booked, nothing is kept, and the step can be taken."""
    sites = make_sites(tmp_path, MOMENTS, seed=None)
    link = Flaky(sites, agreement_for(MOMENTS), away=lambda site, step: step == "mask")
    with pytest.raises(QuorumError):
        make_coordinator(tmp_path, MOMENTS, link, seeded=False).go()
    with monkeypatch.context() as broken:
        from populace.engines.secure_sum.journal import SqliteJournal

        keep = SqliteJournal.keep

        def dies(self, run, round_id, taken):
            keep(self, run, round_id, taken)
            raise KeyboardInterrupt

        broken.setattr(SqliteJournal, "keep", dies)
        with pytest.raises(KeyboardInterrupt):
            make_coordinator(tmp_path, MOMENTS, Flaky(sites, agreement_for(MOMENTS)), seeded=False).go()
    assert [entries(site) for site in sites.values()] == [0, 0, 0]
    assert make_coordinator(tmp_path, MOMENTS, Flaky(sites, agreement_for(MOMENTS)), seeded=False).go().over
    assert [entries(site) for site in sites.values()] == [1, 1, 1]


def test_malformed_steps_are_refused(tmp_path):
    sites, link = opened(tmp_path)
    ask = asked(link, "site-1", "share")
    for fields in ({"step": "open"}, {"question": "short"}, {"step": "mask"}):
        assert code_of(sites["site-1"].reply(changed(ask, fields=fields))) in ("malformed", "sum")
    message = wire.unpack(ask)
    for arrays in (
        {},
        {**message.arrays, "more": np.zeros(1)},
        {**message.arrays, "rows": message.arrays["rows"][:, :5]},
    ):
        data = wire.pack(wire.Message(kind="sum?", fields=message.fields, arrays=arrays))
        assert code_of(sites["site-1"].reply(data)) == "malformed"


def test_the_gate_lets_only_steps_of_agreed_sums_out(tmp_path):
    _, link = opened(tmp_path)
    agreements = {agreement_for(MOMENTS).digest: agreement_for(MOMENTS)}
    for _, step, _, reply in link.sent:
        if step:
            assert messages.check_outgoing(reply, agreements) == reply
            with pytest.raises(WireError, match="not agreed"):
                messages.check_outgoing(reply, {})
            message = wire.unpack(reply)
            more = wire.Message(kind="sum", fields=message.fields, arrays={**message.arrays, "more": np.zeros(3)})
            rebuilt = None
            try:
                rebuilt = messages.check_outgoing(wire.pack(more), agreements)
            except WireError:
                continue
            assert rebuilt == reply


def test_a_run_begins_with_exactly_the_sites_of_the_roster(tmp_path):
    sites = make_sites(tmp_path, MOMENTS)
    link = Flaky(sites, agreement_for(MOMENTS))
    coordinator = make_coordinator(tmp_path, MOMENTS, link)
    fewer = dataclasses.replace(coordinator.roster, seats=coordinator.roster.seats[:2])
    with pytest.raises(RunError, match="exactly the sites of its roster"):
        dataclasses.replace(coordinator, roster=fewer).go()
    without = dataclasses.replace(coordinator, agreement=agreement_for(MOMENTS, roster=None))
    with pytest.raises(RunError, match="needs a roster"):
        without.go()


def test_an_agreement_keeps_its_roster_in_its_file():
    agreement = agreement_for(CENSUS)
    again = agreement_from_json(agreement.to_json(), where="here")
    assert again.roster == agreement.roster
    assert again.digest == agreement.digest
    assert again.digest != agreement_for(CENSUS, roster=None).digest
