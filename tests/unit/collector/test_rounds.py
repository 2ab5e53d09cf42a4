"""Rounds over live arrivals: the model of a simulation from the same reports, whatever the order and whoever is missing."""

import dataclasses
import time

import jax
import numpy as np
import pytest

import collector_for_tests as tests
from collector_for_tests import QUICK, bearer, client_of, make_study, opened, seeded_answer, tokens, turn
from populace.collector.fit import fit_study, gather
from populace.collector.rounds import asked_together, close_study, due, read_questions
from populace.collector.store import Round
from populace.engines import simulation
from populace.errors import DataError
from populace.tables.embedded import harbour
from populace.tables.partition import split

SMALL = {"latent_classes": 2, "prior_scale": 1.0, "chains": 1, "langevin_steps": 10}
CASES = [
    ("poll", 240, {"stages": 2, "clients_per_batch": 40, **SMALL}),
    ("independent", 100, {"clients_per_batch": 30}),
    ("samprivsyn", 90, {"clients_per_batch": 30}),
    ("dp-fed-wae", 30, {"cohort_size": 10, "latent_classes": 2}),
]  # fmt: skip


def collect(place, table, *, shuffled=0):
    """Everybody answers, in some order, as rounds come."""
    waiting = np.random.default_rng(shuffled).permutation(tokens(place)).tolist()
    asked = 0
    turn(place)
    with client_of(place) as client:
        while waiting:
            token = waiting.pop(0)
            reply = seeded_answer(client, place, token, table)
            if reply.status_code == 410:
                break
            assert reply.status_code == 200, reply.content
            if reply.json().get("state") == "wait":
                waiting.append(token)
                turn(place)
                continue
            asked += 1
    turn(place)
    return asked


def same(one, other):
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    for mine, theirs in leaves:
        if jax.dtypes.issubdtype(mine.dtype, jax.dtypes.prng_key):
            mine, theirs = jax.random.key_data(mine), jax.random.key_data(theirs)
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


LONG = ("poll", "dp-fed-wae")  # twenty thousand devices answer `poll` in tests/deployment


@pytest.mark.parametrize(
    ("method", "clients", "settings"),
    [pytest.param(*case, id=case[0], marks=[pytest.mark.slow] * (case[0] in LONG)) for case in CASES],
)
def test_a_study_is_the_simulation_of_its_reports_bit_for_bit(tmp_path, method, clients, settings):
    table = harbour().take(np.arange(clients))
    place = make_study(tmp_path, method, clients=clients, settings=settings, timing=QUICK)
    study = place.read()
    assert collect(place, table, shuffled=3) == clients
    with opened(place) as store:
        gathered = gather(study, store)
        assert gathered.answers == clients
        run = fit_study(place, study, store, tmp_path / "run", rows=20, seed=1)
    people = split(table, records_per_client=1)
    outcome = simulation.run(study.protocol, people, root=study.keys.root, compiled=False)
    same(gathered.state, outcome.state)
    outcome.generator.save(tmp_path)
    for name in ("generator.json", "generator.npz"):
        if (tmp_path / name).exists():
            assert (tmp_path / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    assert (run.guarantee.trust, run.guarantee.unit, run.guarantee.epsilon) == ("local", "client", 2.0)


def test_blocks_of_one_stage_are_asked_together_and_stages_are_not(tmp_path):
    method, clients, settings = CASES[0]
    study = make_study(tmp_path, method, clients=clients, settings=settings).read()
    assert (asked_together(study, 0), asked_together(study, 2)) == (2, 4)  # 80 in blocks of 40, then 160
    adaptive = make_study(tmp_path / "a", "samprivsyn", clients=90, settings={"clients_per_batch": 30}).read()
    assert [asked_together(adaptive, number) for number in range(3)] == [1, 1, 1]


def test_a_round_with_missing_answers_closes_by_time_and_late_ones_are_told_so(tmp_path):
    table = harbour().take(np.arange(90))
    place = make_study(tmp_path, "samprivsyn", clients=90, settings={"clients_per_batch": 30}, timing=QUICK)
    study = place.read()
    turn(place)
    with client_of(place) as client:
        early, late = tokens(place)[:2]
        held = client.get("/v1/question", headers=bearer(late)).json()
        assert (held["state"], held["round"]) == ("ask", 0)
        assert seeded_answer(client, place, early, table).status_code == 200
        with opened(place) as store:
            at = store.rounds()[0]
            assert not due(study, at, time.time())
            assert due(study, at, time.time() + 61)
            with store.transaction(lock="alone"):
                store.run("UPDATE round SET closes = ?", time.time() - 1)
        turn(place)
        with opened(place) as store:
            assert [(each.number, each.state) for each in store.rounds()] == [(1, "open"), (0, "absorbed")]
        answer = {"round": 0, "place": held["place"], "report": report_for(held), "nonce": "A" * 43 + "="}
        refused = client.post("/v1/answer", json=answer, headers=bearer(late))
        assert refused.status_code == 410
        assert "round" in refused.json()["error"]
        again = client.get("/v1/question", headers=bearer(late)).json()  # and may ask again, in the next round
        assert (again["state"], again["round"]) == ("ask", 1)
        with opened(place) as store:
            assert store.counts()["answers"] == 1
            assert gather(study, store).answers == 1


def report_for(question):
    import base64

    import collector_twin as twin

    return base64.b64encode(twin.make_report(question, [0] * 11)).decode()


def test_an_answer_after_the_round_s_time_is_taken_while_it_is_not_counted(tmp_path):
    place = make_study(tmp_path, "samprivsyn", clients=60, settings={"clients_per_batch": 30}, timing=tests.QUICK)
    turn(place)
    with client_of(place) as client:
        first, second = tokens(place)[:2]
        held = client.get("/v1/question", headers=bearer(first)).json()
        with opened(place) as store, store.transaction(lock="alone"):
            store.run("UPDATE round SET closes = ?", time.time() - 1)
        assert client.get("/v1/question", headers=bearer(second)).json()["state"] == "wait"  # no new places
        answer = {"round": 0, "place": held["place"], "report": report_for(held), "nonce": "A" * 43 + "="}
        assert client.post("/v1/answer", json=answer, headers=bearer(first)).status_code == 200


def test_a_round_without_any_answer_stays_open(tmp_path):
    study = make_study(tmp_path, "samprivsyn", clients=60, settings={"clients_per_batch": 30}).read()
    at = Round(number=0, state="open", size=30, taken=4, answered=0, opened=0.0, closes=1.0, last=False)
    assert not due(study, at, 1e12)
    assert due(study, dataclasses.replace(at, answered=1), 1e12)
    assert not due(study, dataclasses.replace(at, answered=29, closes=None), 1e12)
    assert due(study, dataclasses.replace(at, answered=30, closes=None), 0.0)


def test_missing_answers_are_the_absent_replies_of_a_simulation(tmp_path):
    """Some never answer: the counts are those of the others, and the fit takes what there is."""
    clients = 100
    table = harbour().take(np.arange(clients))
    place = make_study(tmp_path, "independent", clients=clients, settings={"clients_per_batch": 30})
    study = place.read()
    turn(place)
    with client_of(place) as client:
        for number, token in enumerate(tokens(place)):
            if number % 4:
                assert seeded_answer(client, place, token, table).status_code == 200
            else:
                client.get("/v1/question", headers=bearer(token))
    with opened(place) as store:
        gathered = gather(study, store)
        places = {p for p, _ in store.replies(0)}
        questions = read_questions(study, store.ask(0))
    assert gathered.answers == 75
    asked = questions.numbers[questions.places[sorted(places)]]
    counted = np.asarray(gathered.state.learner.counts.answers)
    np.testing.assert_array_equal(counted, np.bincount(asked, minlength=len(counted)))
    assert int(np.asarray(gathered.state.round)) == 4


def test_a_step_twice_is_a_step(tmp_path):
    """Two coordinators that think they hold the lease: the second one's work is in vain, and changes nothing."""
    table = harbour().take(np.arange(60))
    place = make_study(tmp_path, "samprivsyn", clients=60, settings={"clients_per_batch": 30})
    study = place.read()
    turn(place)
    with client_of(place) as client:
        for token in tokens(place)[:30]:
            assert seeded_answer(client, place, token, table).status_code == 200
    from populace.collector import rounds

    with opened(place) as one, opened(place) as other:
        assert rounds.step(study, one)  # sealed
        state, questions = rounds.read_position(study, other, other.rounds()[0])
        assert rounds.step(study, one)  # absorbed, next round open
        with other.transaction(lock="alone"):
            assert not other.absorbed(0)
        assert [at.number for at in other.rounds()] == [1, 0]
        assert int(state.round) == 0
        assert questions.count == 1


def test_nothing_is_fitted_before_anybody_answered(tmp_path):
    place = make_study(tmp_path, "independent", clients=10)
    turn(place)
    with opened(place) as store, pytest.raises(DataError, match="nobody has answered"):
        gather(place.read(), store)


def test_a_closed_study_is_fitted_as_it_is(tmp_path):
    table = harbour().take(np.arange(30))
    place = make_study(tmp_path, "samprivsyn", clients=30, settings={"clients_per_batch": 10})
    turn(place)
    with client_of(place) as client:
        for token in tokens(place)[:5]:
            assert seeded_answer(client, place, token, table).status_code == 200
        with opened(place) as store:
            close_study(store)
            assert gather(place.read(), store).answers == 5
        assert client.get("/v1/question", headers=bearer(tokens(place)[9])).status_code == 410
        turn(place)
        with opened(place) as store:
            assert gather(place.read(), store).answers == 5
