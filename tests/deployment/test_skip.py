"""Passing over a site: rounds go by without it, also while one waits for it; nothing else changes."""

import json
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from builders import CentralMean, Relay, entries, leaves
from populace.cli.main import app
from populace.engines.agreement import Agreement
from populace.engines.flare.controller import waits
from populace.engines.link import InProcess
from populace.engines.roster import Roster, Seat
from populace.engines.runtime import Keyed
from populace.engines.secure_sum.primitives import signing_public
from populace.engines.secure_sum.roster import Member, SumRoster
from populace.engines.segment import Plan, advance, coordinator_of, read_plan, read_status
from populace.errors import InputError, RunError
from populace.federation.coordinator import Federation, Proposal
from populace.federation.skipping import skip
from populace.federation.supervisor import Options, _operate, run_federation
from populace.methods.base import Population, Replies
from populace.methods.gan.fl_gan import FlGan, UflGan
from populace.methods.moments.protocol import Moments
from populace.methods.registry import make_protocol
from populace.tables.files import write_json

pytest.importorskip("nvflare")


class Waiting(InProcess):
    """A link on which some sites never answer, but for `first` exchanges, and which waits for them as long as it should."""

    def __init__(self, sites, silent, seconds=20.0, first=0):
        super().__init__({name: site.reply for name, site in sites.items()})
        self.silent, self.seconds, self.first, self.still = set(silent), seconds, first, lambda silent: silent

    def while_waiting(self, still):
        self.still = still

    def exchange(self, asks, timeout):
        self.first -= 1
        away = self.silent if self.first < 0 else set()
        found = super().exchange({site: ask for site, ask in asks.items() if site not in away}, timeout)
        until = time.monotonic() + min(timeout, self.seconds)
        while self.still(frozenset(asks) - set(found)) and time.monotonic() < until:
            time.sleep(0.01)
        return found


@pytest.fixture
def federation(rows, tmp_path):
    """A coordinator's folder, as far as skipping looks at it."""
    made = Federation(tmp_path / "study")
    made.path.mkdir()
    facts = {"format": 1, "name": "study", "host": "localhost", "port": 1, "fingerprint": ""}
    write_json(made.path / "federation.json", facts)
    agreement = Agreement(protocol=make_protocol("independent", {"epsilon": 2.0}), schema=rows.schema)
    Proposal(federation="study", server="", fingerprint="", agreement=agreement).save(made.proposal_path)
    return made


def planned(federation, rows, protocol, name="run-1", *, patience=30.0, agreement=None, seats=None):
    place = federation.run_folder(name)
    agreement = agreement or Agreement(protocol=protocol, schema=rows.schema)
    Plan(run=name, agreement=agreement, seed=5, least=3, timeout=20.0, patience=patience).save(place)
    if seats:
        write_json(place / "roster.json", Roster(seats=seats, records=1, seeded=True).to_json())
    return place


SEATS = tuple(Seat(site=f"site-{i + 1}", first=i, clients=1) for i in range(3))


@pytest.mark.parametrize("when", ["in its first round", "at the start of a segment"])
def test_a_silo_that_never_answers_is_passed_over_in_the_middle_of_a_wait(federation, rows, make_sites, when):
    """One client a round: without the skip, the run would wait for the second site until it pauses."""
    protocol = Relay(epsilon=2.0)
    place, sites = planned(federation, rows, protocol), make_sites(rows, protocol)
    resumed = when == "at the start of a segment"
    if resumed:
        coordinator_of(place, InProcess({name: site.reply for name, site in sites.items()}))  # seats them
    worker = threading.Thread(target=advance, args=(place, Waiting(sites, {"site-2"}, first=0 if resumed else 1)))
    worker.start()
    until = time.monotonic() + 20
    while not (read_status(place).get("waiting") or {}).get("sites"):
        assert time.monotonic() < until
        time.sleep(0.02)
    stuck = read_status(place)
    assert stuck["waiting"]["sites"] == ["site-2"]
    assert stuck["waiting"]["round"] == stuck["round"] + 1 == (1 if resumed else 7)
    said = CliRunner().invoke(app, ["federation", "skip", str(federation.path), "site-2"])
    assert said.exit_code == 0, said.output
    assert "site-2 is passed over for the rest of run-1" in said.output
    worker.join(timeout=20)
    status = read_status(place)
    assert (status["state"], status["round"], status["waiting"]) == ("finished", len(rows), None)
    assert status["sites"]["site-2"] == {**status["sites"]["site-2"], "last": "passed over", "replies_in_all": 0}
    assert [status["sites"][site]["replies_in_all"] for site in sites] == [6, 0, 3]
    assert [entries(site) for site in sites.values()] == [6, 0, 3]
    missing = [json.loads(line)["missing"] for line in (place / "rounds.jsonl").read_text().splitlines()]
    assert missing == [[]] * len(rows)
    state = coordinator_of(place, InProcess({})).start()[1]
    assert int(state.heard) == 9  # what the other two told, each once


def test_without_the_skip_the_same_run_waits(federation, rows, make_sites):
    protocol = Relay(epsilon=2.0)
    place, sites = planned(federation, rows, protocol, patience=0.5), make_sites(rows, protocol)
    coordinator_of(place, InProcess({name: site.reply for name, site in sites.items()}))
    assert advance(place, Waiting(sites, {"site-2"}, seconds=0.2)) == "waiting"
    assert read_status(place)["round"] == 6
    skip(federation, "site-2")
    skip(federation, "site-2", undo=True)
    assert advance(place, Waiting(sites, {"site-2"}, seconds=0.2)) == "waiting"
    skip(federation, "site-2")  # of a run that is paused
    assert advance(place, Waiting(sites, {"site-2"}, seconds=0.2)) == "finished"


def test_a_wait_for_a_quorum_ends_when_a_stop_is_requested(federation, rows, make_sites):
    """A segment left by a killed supervisor would else keep the next one out for as long as it is patient."""
    protocol = Relay(epsilon=2.0)
    place, sites = planned(federation, rows, protocol, patience=900.0), make_sites(rows, protocol)
    coordinator_of(place, InProcess({name: site.reply for name, site in sites.items()}))
    stop = threading.Timer(2.0, (place / "stop").touch)
    stop.start()
    assert advance(place, Waiting(sites, {"site-2"}, seconds=0.2)) == "interrupted"
    assert read_status(place)["round"] == 6


def test_a_quorum_of_more_than_one_is_not_lowered(federation, rows, make_sites):
    protocol = CentralMean(epsilon=3.0, quorum_share=0.9)
    sites = make_sites(rows, protocol, epsilon=3.0, delta=1e-5)
    place = planned(federation, rows, protocol, patience=0.0)
    link = InProcess({name: site.reply for name, site in sites.items()})
    coordinator_of(place, link)
    skip(federation, "site-2")
    assert advance(place, link) == "waiting"
    assert "its quorum is 11" in read_status(place)["why"]
    skip(federation, "site-2", undo=True)
    assert advance(place, link) == "finished"


@pytest.mark.parametrize("method", [FlGan, UflGan])
def test_a_visit_that_nobody_answers_leaves_the_model_as_it_was(method, rows):
    """The next silo gets what the last one left, and is the first where nobody was visited before it."""
    tiny = {"hidden_size": 3, "critic_hidden_size": 3, "latent_size": 2, "batch_size": 1}
    protocol = method(epsilon=4.0, generator_steps=1, critic_steps=2, **tiny)
    population = Population(clients=3, records=2, schema=rows.schema)
    source = Keyed(jax.random.key(1))
    before = protocol.begin(population, jax.random.key(0))
    ask = protocol.ask(before, population, source)
    values = jax.eval_shape(
        lambda: {name: getattr(before.learner, name) for name in ("omega", "theta", "average", "counts", "fisher")}
    )
    nobody = Replies(
        clients=jnp.asarray(ask.cohort), present=jnp.zeros(1, bool),
        values=jax.tree.map(lambda leaf: jnp.full((1, *leaf.shape), jnp.nan), values),
    )  # fmt: skip
    after = protocol.absorb(before, ask, nobody, source)
    assert int(after.round) == int(before.round) + 1
    for a, b in zip(leaves(after.learner), leaves(before.learner), strict=True):
        np.testing.assert_array_equal(a, b)
    following = protocol.ask(after, population, source)
    assert int(following.cohort[0]) != int(ask.cohort[0])
    for a, b in zip(leaves(following.common), leaves(ask.common), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_cannot_be_passed_over_is_refused_in_words(federation, rows):
    with pytest.raises(InputError, match="expected one unfinished run, got none"):
        skip(federation, "site-1")
    protocol = Relay(epsilon=2.0)
    place = planned(federation, rows, protocol)
    with pytest.raises(InputError, match="whose sites are seated"):
        skip(federation, "site-1")
    write_json(place / "roster.json", Roster(seats=SEATS, records=1, seeded=True).to_json())
    with pytest.raises(InputError, match=r"expected a site of the run .*, got 'site-9'"):
        skip(federation, "site-9")
    skip(federation, "site-1")
    skip(federation, "site-2")
    with pytest.raises(InputError, match="at least 1 site to be left for a run, got 0"):
        skip(federation, "site-3")
    planned(federation, rows, protocol, "run-2", seats=SEATS)
    with pytest.raises(InputError, match="got run-1, run-2; say which with --run"):
        skip(federation, "site-1")
    assert "run-2" in skip(federation, "site-1", run="run-2")
    write_json(place / "status.json", {"state": "finished", "round": 3, "why": "", "sites": {}})
    with pytest.raises(InputError, match="all rounds of run-1 are done"):
        skip(federation, "site-1", run="run-1")


def test_a_secure_sum_keeps_as_many_sites_as_it_needs(federation, rows):
    """Passed over is as dropped out: two of three open the sum, one does not, and that is said."""
    members = tuple(
        Member(site=seat.site, key=signing_public(bytes([i + 1]) * 32).hex()) for i, seat in enumerate(SEATS)
    )
    protocol = Moments(epsilon=2.0, delta=1e-6, trust="secure-sum")
    agreement = Agreement(protocol=protocol, schema=rows.schema, roster=SumRoster(members=members, threshold=2))
    planned(federation, rows, protocol, agreement=agreement, seats=SEATS)
    skip(federation, "site-1")
    with pytest.raises(InputError, match="expected at least 2 sites to be left for a secure sum of 3 sites, got 1"):
        skip(federation, "site-2")


def test_a_dead_site_holds_up_few_exchanges_and_a_slow_one_gets_in_again():
    sites, slowest = ["a", "b"], {"a": 0.5, "b": 3.0}
    seconds = [waits(sites, 60.0, missed={"b": count}, slowest=slowest)["b"] for count in range(10)]
    assert seconds == [60.0, 6.0, 6.0, 0.0, 6.0, 0.0, 0.0, 0.0, 6.0, 0.0]
    assert waits(sites, 60.0, missed={"b": 1}, slowest={"a": 0.5})["b"] == 1.0  # it never answered: as the others take
    assert waits(["b"], 60.0, missed={"b": 5}, slowest=slowest) == {"b": 60.0}  # nobody else is asked
    assert waits(sites, 4.0, missed={"b": 1}, slowest=slowest)["b"] == 4.0


def test_options_given_on_resuming_are_taken_and_said(federation, rows):
    place, said = planned(federation, rows, Relay(epsilon=2.0), patience=900.0, seats=SEATS), []
    before = read_plan(place)
    assert _operate(place, Options(), said.append) == Options(least=3, timeout=20.0, patience=900.0)
    assert said == []
    assert _operate(place, Options(timeout=60.0), said.append).timeout == 60.0
    assert _operate(place, Options(patience=5.0, least=2), said.append).timeout == 60.0
    assert said[0] == "from now on: --timeout 60 (was 20)"
    assert said[1].startswith("from now on: --sites 2 (was 3), --patience 5 (was 900) (its sites are seated already")
    after = read_plan(place)
    assert (after.least, after.timeout, after.patience) == (2, 60.0, 5.0)
    assert (after.root, after.seed, after.agreement) == (before.root, before.seed, before.agreement)
    assert (place / "plan.json").stat().st_mode & 0o077 == 0


def test_another_seed_or_number_of_rows_is_refused_on_resuming(federation, tmp_path):
    options, out = Options(), tmp_path / "out"
    with pytest.raises(RunError, match="is not running"):
        run_federation(federation, out, rows=50, seed=5, options=options)
    for other in ({"rows": 51, "seed": 5}, {"rows": 50, "seed": 6}):
        with pytest.raises(RunError, match="unfinished run with another specification"):
            run_federation(federation, out, options=options, **other)
    with pytest.raises(RunError, match="is not running"):
        run_federation(federation, out, rows=50, seed=5, options=Options(timeout=9.0))
    [place] = (federation.path / "runs").iterdir()
    assert read_plan(place).timeout == 9.0
