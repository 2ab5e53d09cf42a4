"""Methods that train, over sites in this process that open sums: what clients keep stays at home, plain rounds stay plain."""

import dataclasses

import jax
import numpy as np
import pytest

from builders import SEED, assert_same, code_of, dependent_codes, entries, noise_images, small_schema
from populace.engines import messages, simulation, wire
from populace.engines.agreement import Agreement
from populace.engines.checkpoint import Checkpoint
from populace.engines.coordinator import Coordinator
from populace.engines.link import InProcess
from populace.engines.roster import enrol
from populace.engines.runtime import population_of
from populace.engines.secure_sum.primitives import signing_public
from populace.engines.secure_sum.roster import Member, SumRoster
from populace.engines.site import Hosted, Site
from populace.methods.registry import make_protocol, protocol_class
from populace.privacy.ledger import Budget
from populace.privacy.sqlite_ledger import SqliteLedger
from populace.tables.partition import split_silos
from populace.tables.table import from_codes

SIZES = (4, 3, 2)
KEYS = tuple(bytes([number + 1]) * 32 for number in range(len(SIZES)))
SUMS = {"epsilon": 2.0, "trust": "secure-sum"}


def method_of(name, **settings):
    return make_protocol(name, {**SUMS, **protocol_class(name).small, **settings})


METHODS = {
    "c-dpd-vae": method_of("c-dpd-vae", clip_quantile=0.5, colluders=1),
    "fedavg-gan": method_of("fedavg-gan"),
    "dp-fl": method_of("dp-fl", colluders=1),
    "genfl": method_of("genfl"),
    "chain": method_of("chain"),
}
PLAIN = {"genfl": 1}  # rounds of which no sum is opened; all but the first of a chain
SLOW = ("genfl", "chain", "fedavg-gan")


def data_of(protocol):
    if protocol.facts.kinds == ("images",):
        return noise_images(sum(SIZES), (5, 5), 2)
    schema = small_schema()
    return from_codes(dependent_codes(schema, sum(SIZES)), schema, np.random.default_rng(0))


class Federation:
    """Three sites, a client each, whose ledgers allow what the method claims, and a coordinator that hears all they send."""

    def __init__(self, protocol, folder, *, seed=SEED):
        self.protocol, self.folder, self.seed = protocol, folder, seed
        self.data = data_of(protocol)
        self.clients = split_silos(self.data, SIZES)
        self.population = population_of(self.clients)
        members = tuple(Member(site=f"site-{i + 1}", key=signing_public(key).hex()) for i, key in enumerate(KEYS))
        roster = SumRoster(members=members, threshold=len(KEYS) - protocol.dropouts, colluders=protocol.colluders)
        self.agreement = Agreement(protocol=protocol, schema=self.population.schema, roster=roster)
        claim = protocol.guarantee(self.population)
        self.budget = Budget(epsilon=claim.epsilon, delta=claim.delta, unit=claim.unit)
        self.sites = {f"site-{number + 1}": self._site(number) for number in range(len(SIZES))}
        self.sent = []

    def _site(self, number):
        path, ends = self.folder / f"site-{number + 1}.sqlite", np.cumsum([0, *SIZES])
        SqliteLedger(path, self.budget).close()
        clients = split_silos(self.data.take(np.arange(ends[number], ends[number + 1])), (SIZES[number],))
        return Site(
            hosted=Hosted(clients=clients, accounts=("site",), records=SIZES[0], by="site"), ledger_path=path,
            agreements={self.agreement.digest: self.agreement}, budget=self.budget, signing_key=KEYS[number],
            root=None if self.seed is None else jax.random.key(self.seed),
        )  # fmt: skip

    def heard(self, name):
        def reply(data):
            answer = self.sites[name].reply(data)
            self.sent.append((wire.unpack(data), wire.unpack(answer)))
            return answer

        return reply

    def coordinator(self):
        link = InProcess({name: self.heard(name) for name in self.sites})
        return Coordinator(
            agreement=self.agreement, roster=enrol(self.agreement, link, run="run-1", least=3, timeout=1.0), link=link,
            run="run-1", root=jax.random.key(SEED), checkpoint=Checkpoint(self.folder / "run-1.npz"), timeout=1.0,
            patience=0.0, seeded=self.seed is not None,
        )  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in METHODS]
)
def test_sites_open_the_sums_of_a_simulation_and_charge_each_round_once(name, tmp_path):
    """Also with coins of the clients' own, with encoders and generators that stay at home, and with rounds that open no sum."""
    federation = Federation(METHODS[name], tmp_path)
    done = federation.coordinator().go()
    simulated = simulation.run(METHODS[name], federation.clients, root=jax.random.key(SEED))
    assert done.over
    assert_same(done.state, simulated.state)
    rounds = simulated.rounds
    assert [entries(site) for site in federation.sites.values()] == [rounds] * 3
    plain = [ask for ask, reply in federation.sent if reply.kind == "reply"]
    opened = {ask.fields["round"] for ask, reply in federation.sent if reply.kind == "sum"}
    assert len(opened) == rounds - len(plain) / 3
    assert len(plain) / 3 == (rounds - 1 if name == "chain" else PLAIN.get(name, 0))


def test_over_sites_clients_draw_from_the_operating_system_and_the_run_goes_on_after_a_restart(tmp_path):
    """A secret cohort that the server draws is refused there; coins of the clients' own need nobody's secrecy but theirs."""
    protocol = METHODS["c-dpd-vae"]
    federation = Federation(protocol, tmp_path, seed=None)
    assert not protocol.secret_cohorts(federation.population)
    assert make_protocol(
        "c-dpd-vae", {"epsilon": 2.0, **protocol_class("c-dpd-vae").small}
    ).secret_cohorts(federation.population)  # fmt: skip
    half = federation.coordinator().go(lambda _: False)
    assert (half.over, half.rounds) == (False, 1)
    again = Federation(protocol, tmp_path, seed=None)
    assert again.coordinator().go().over
    assert [entries(site) for site in again.sites.values()] == [2, 2, 2]


def test_plain_questions_of_rounds_that_open_sums_are_refused(tmp_path):
    """As a coordinator that knows no sums would send them; and masks where a round has none."""
    federation = Federation(METHODS["genfl"], tmp_path)
    agreement, population = federation.agreement, federation.population

    def plain(round_id):
        common, own = METHODS["genfl"].question(population, round_id)
        return messages.make_ask(
            agreement, population, run="run-1", round_id=round_id, first=0, clients=np.array([0]), heard=np.zeros(1),
            common=common, own=jax.tree.map(lambda leaf: np.asarray(leaf)[None], own),
        )  # fmt: skip

    site = federation.sites["site-1"]
    assert code_of(site.reply(plain(1))) == "guarantee"
    step = messages.make_sum_request(
        None, agreement, population, run="run-1", round_id=0, first=0, step="advertise", question="0" * 64, rows={}
    )
    assert code_of(site.reply(step)) == "guarantee"
    assert entries(site) == 0


def test_a_site_whose_coin_or_noise_would_be_another_does_not_agree(tmp_path):
    """Terms are exact: another sampling rate is another agreement."""
    federation = Federation(METHODS["fedavg-gan"], tmp_path)
    other = dataclasses.replace(METHODS["fedavg-gan"], sampling_rate=1.0)
    agreement = dataclasses.replace(federation.agreement, protocol=other)
    step = messages.make_sum_request(
        None, agreement, federation.population, run="run-1", round_id=0, first=0, step="advertise", question="0" * 64, rows={}
    )  # fmt: skip
    assert code_of(federation.sites["site-1"].reply(step)) == "parameters"
