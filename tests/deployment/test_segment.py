"""A run as a folder: any segment goes on from the last whole round, and says where it stands."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from builders import CentralMean, Relay
from populace.engines.agreement import Agreement
from populace.engines.link import InProcess, LinkClosedError
from populace.engines.segment import Plan, advance, coordinator_of, is_over, read_plan, read_status
from populace.errors import RunError, SpecError
from populace.methods.registry import make_protocol


@pytest.fixture
def plan(rows, tmp_path):
    def make(protocol, least=3, seed=5):
        place = tmp_path / "run"
        Plan(run="run-1", agreement=Agreement(protocol=protocol, schema=rows.schema), seed=seed, least=least).save(
            place
        )
        return place

    return make


class Closing(InProcess):
    """A link that is closed in the middle of an exchange, once the sites have answered."""

    def __init__(self, sites, after):
        super().__init__({name: site.reply for name, site in sites.items()})
        self.left = after

    def exchange(self, asks, timeout):
        found = super().exchange(asks, timeout)
        self.left -= 1
        if self.left < 0:
            raise LinkClosedError("closed")
        return found


def test_segments_add_up_to_a_run(plan, rows, make_sites):
    """Closed again and again, each time with replies on their way: the rounds add up, and each is charged once."""
    protocol = Relay(epsilon=2.0)
    place, sites = plan(protocol), make_sites(rows, protocol)
    states = []
    while not states or states[-1] != "finished":
        states.append(advance(place, Closing(sites, after=5)))
        assert read_status(place)["state"] == states[-1]
    assert states[:-1] == ["interrupted"] * (len(states) - 1)
    assert len(states) > 2
    rounds = [json.loads(line)["round"] for line in (place / "rounds.jsonl").read_text().splitlines()]
    assert rounds == list(range(1, len(rows) + 1))
    status = read_status(place)
    assert status["round"] == status["rounds"] == len(rows)
    assert {name: site["epsilon"] for name, site in status["sites"].items()} == dict.fromkeys(sites, 2.0)
    assert status["seeded"] is True
    assert int(coordinator_of(place, InProcess({})).start()[1].heard) == len(rows)


def test_a_segment_stops_when_asked_to(plan, rows, make_sites):
    protocol = Relay(epsilon=2.0)
    place, sites = plan(protocol), make_sites(rows, protocol)

    class Asking(Closing):
        def exchange(self, asks, timeout):
            (place / "stop").touch()
            return super().exchange(asks, timeout)

    assert advance(place, Asking(sites, after=99)) == "interrupted"
    assert read_status(place)["round"] == 1
    assert advance(place, Closing(sites, after=99)) == "finished"


def test_a_segment_waits_for_its_quorum_and_stops_without_sites(plan, rows, make_sites):
    protocol = CentralMean(epsilon=3.0, quorum_share=0.9)
    sites = make_sites(rows, protocol, epsilon=3.0, delta=1e-5)
    place = plan(protocol)
    assert advance(place, InProcess({})) == "stopped"
    assert "expected at least 3 sites" in read_status(place)["why"]
    assert not (place / "roster.json").exists()
    link = Closing(sites, after=99)
    coordinator_of(place, link)
    few = {name: site for name, site in sites.items() if name != "site-1"}
    assert advance(place, Closing(few, after=99)) == "waiting"
    assert "its quorum is 11" in read_status(place)["why"]
    assert advance(place, link) == "finished"


class Watched(Closing):
    """A link without one of its sites, which keeps what the status said while a site was asked."""

    def __init__(self, place, sites, *, without=(), after=99):
        super().__init__({name: site for name, site in sites.items() if name not in without}, after)
        self.place, self.seen = place, []

    def exchange(self, asks, timeout):
        self.seen.append(read_status(self.place))
        return super().exchange(asks, timeout)


def test_what_the_segment_before_missed_is_not_missing_in_the_next(plan, rows, make_sites):
    """A supervisor that reads the status while the next segment's sites still compile must not take them for missing."""
    protocol = CentralMean(epsilon=3.0, total_rounds=3, noise_multiplier=50.0, quorum_share=0.3)
    sites = make_sites(rows, protocol, epsilon=3.0, delta=1e-5)
    place = plan(protocol)
    coordinator_of(place, Closing(sites, after=99))
    assert advance(place, Watched(place, sites, without=["site-1"], after=2)) == "interrupted"
    before = read_status(place)
    assert (before["segment"], before["segment_rounds"]) == (1, 1)
    assert before["sites"]["site-1"]["last"] == "missing"
    link = Watched(place, sites)
    assert advance(place, link) == "finished"
    assert [one["segment"] for one in link.seen] == [2] * len(link.seen)
    first = link.seen[0]["sites"]
    assert {name: one["last"] for name, one in first.items()} == dict.fromkeys(sites, "not asked yet")
    assert first["site-1"]["replies_in_all"] == 0
    after = read_status(place)["sites"]
    assert (after["site-1"]["replies_in_last_round"], after["site-1"]["replies_in_all"]) == (6, 12)
    assert (after["site-2"]["replies_in_last_round"], after["site-2"]["replies_in_all"]) == (3, 9)


def test_a_segment_that_was_replaced_does_nothing(plan, rows, make_sites):
    protocol = Relay(epsilon=2.0)
    place, sites = plan(protocol), make_sites(rows, protocol)
    assert advance(place, Closing(sites, after=3), segment=7) == "interrupted"
    stands = read_status(place)
    assert stands["segment"] == 7
    assert advance(place, Closing(sites, after=99), segment=6) == "interrupted"
    assert read_status(place) == stands
    assert advance(place, Closing(sites, after=99)) == "finished"
    assert read_status(place)["segment"] == 8


def test_what_is_private_is_readable_by_its_owner_alone(plan, rows, make_sites):
    protocol = Relay(epsilon=2.0)
    place = plan(protocol)
    advance(place, Closing(make_sites(rows, protocol), after=99))
    assert place.stat().st_mode & 0o077 == 0
    assert (place / "checkpoint.npz").stat().st_mode & 0o077 == 0
    assert read_plan(place).agreement.protocol == protocol


def test_a_lost_checkpoint_is_made_up_from_stored_replies_also_without_a_seed(plan, rows, make_sites):
    """Cohorts are drawn from the plan's own root: the same questions again, so nothing is spent twice."""
    protocol = make_protocol("independent", {"epsilon": 2.0, "clients_per_batch": 5})
    place, sites = plan(protocol, seed=None), make_sites(rows, protocol, seed=None)
    states = []
    for _ in range(2):
        assert advance(place, Closing(sites, after=99)) == "finished"
        status = read_status(place)
        assert all(site["last"] in ("answered", "not asked") for site in status["sites"].values())
        states.append(jax.tree.map(np.asarray, coordinator_of(place, InProcess({})).start()[1].learner.counts))
        (place / "checkpoint.npz").unlink()
    assert all(map(np.array_equal, *map(jax.tree.leaves, states)))
    assert (place / "plan.json").stat().st_mode & 0o077 == 0
    other = read_plan(place)
    dataclasses.replace(other, root=()).save(place)
    assert read_plan(place).root != other.root


def test_a_finished_run_is_over_while_its_result_is_there(plan, rows, make_sites):
    protocol = make_protocol("independent", {"epsilon": 2.0, "clients_per_batch": 5})
    place, sites = plan(protocol, seed=None), make_sites(rows, protocol, seed=None)
    assert advance(place, Closing(sites, after=1), 1) == "interrupted"
    early = (place / "checkpoint.npz").read_bytes()
    assert not is_over(place)
    assert advance(place, Closing(sites, after=99), 2) == "finished"
    assert is_over(place)
    assert advance(place, Closing(sites, after=0), 3) == "finished"  # nobody is asked
    assert read_status(place)["segment"] == 3
    (place / "checkpoint.npz").write_bytes(early)
    assert not is_over(place)
    (place / "checkpoint.npz").unlink()
    assert not is_over(place)


def test_a_lost_or_older_checkpoint_of_a_run_with_noise_at_the_server_is_refused(plan, rows, make_sites):
    """Stored replies with other noise would be a second release that nobody paid for; averaged, the noise would go."""
    protocol = make_protocol("moments", {"epsilon": 2.0, "trust": "central", "clients_per_batch": 5})
    place = plan(protocol, seed=None)
    sites = make_sites(rows, protocol, seed=None, delta=1e-5, unit="record")
    assert advance(place, Closing(sites, after=2)) == "interrupted"
    older = (place / "checkpoint.npz").read_bytes()
    assert advance(place, Closing(sites, after=99)) == "finished"
    for before in (None, older):
        (place / "checkpoint.npz").unlink(missing_ok=True)
        if before is not None:
            (place / "checkpoint.npz").write_bytes(before)
        with pytest.raises(RunError, match="release them again with other noise"):
            coordinator_of(place, Closing(sites, after=99)).go()


def test_secret_cohorts_are_not_drawn_from_coins_that_sites_could_learn(plan, rows, make_sites):
    protocol = make_protocol("c-dpd-vae", {"epsilon": 2.0, "sampling_rate": 0.5, "rounds": 2})
    place, sites = plan(protocol, seed=None), make_sites(rows, protocol, seed=None)
    with pytest.raises(SpecError, match="must stay secret"):
        coordinator_of(place, Closing(sites, after=99)).go()
