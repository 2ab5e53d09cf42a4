"""What a store promises: each answer exactly once, places held by one device at a time, nothing that links the two tables."""

import concurrent.futures
import os
import secrets
import stat
import time

import pytest

from collector_for_tests import make_study, opened, turn
from populace.collector.rounds import close_study
from populace.collector.store import LATE, OTHER, OVER, UNKNOWN, USED, Answer, Kept, Mint, Place, Refusal, Take, Wait
from populace.collector.stores import open_store, study_store
from populace.collector.study import StudyFolder, invitation_hash
from populace.errors import PopulaceError, RunError

SIZE = 6


@pytest.fixture
def study(folder, store_url):
    place = make_study(folder, "independent", clients=SIZE, invited=12, store=store_url)
    turn(place)
    return place


@pytest.fixture
def store(study):
    with opened(study) as kept:
        yield kept


def hashes(place):
    from collector_for_tests import tokens
    from populace.collector.device import _token

    return [invitation_hash(_token(token)) for token in tokens(place)]


def ask(store, *invitations, now=None, hold=60.0):
    return store.work([Take(invitation=each) for each in invitations], now=now or time.time(), hold=hold)


def tell(store, invitation, place, *, receipt=b"r" * 32, report=b"x", now=None):
    item = Answer(invitation=invitation, round=place.round, place=place.place, report=report, receipt=receipt)
    return store.work([item], now=now or time.time(), hold=60.0)[0]


def test_an_answer_is_kept_once_and_the_same_one_gets_the_same_receipt(study, store):
    first = hashes(study)[0]
    (place,) = ask(store, first)
    assert tell(store, first, place) == Kept(receipt=b"r" * 32, fresh=True)
    assert tell(store, first, place) == Kept(receipt=b"r" * 32, fresh=False)
    assert tell(store, first, place, receipt=b"q" * 32) == Refusal(status=409, sentence=OTHER)
    assert ask(store, first) == [Refusal(status=409, sentence=USED)]
    assert store.counts() == {"invitations": 12, "used": 1, "answers": 1}
    assert store.replies(0) == [(place.place, b"x")]


def test_both_copies_in_one_batch_are_one_answer(study, store):
    first = hashes(study)[0]
    (place,) = ask(store, first)
    item = Answer(invitation=first, round=0, place=place.place, report=b"x", receipt=b"r" * 32)
    other = Answer(invitation=first, round=0, place=place.place, report=b"y", receipt=b"q" * 32)
    found = store.work([item, item, other], now=time.time(), hold=60.0)
    assert [getattr(each, "fresh", each) for each in found] == [True, False, Refusal(status=409, sentence=OTHER)]
    assert store.counts()["answers"] == 1


def test_unknown_invitations_and_places_of_others_are_refused(study, store):
    first, second = hashes(study)[:2]
    mine, theirs = ask(store, first, second)
    assert mine.place != theirs.place
    stranger = secrets.token_bytes(32)
    assert ask(store, stranger) == [Refusal(status=403, sentence=UNKNOWN)]
    assert tell(store, stranger, mine).status == 403
    assert tell(store, first, theirs).status == 410  # a place that it does not hold
    assert tell(store, hashes(study)[2], mine).status == 410  # nor one that it never asked for
    assert store.counts()["answers"] == 0


def test_asking_again_gives_the_same_place_and_all_places_are_different(study, store):
    invitations = hashes(study)
    places = ask(store, *invitations[:SIZE])
    assert sorted(place.place for place in places) == list(range(SIZE))
    assert [each.place for each in ask(store, *invitations[:SIZE])] == [each.place for each in places]
    (late,) = ask(store, invitations[SIZE])
    assert isinstance(late, Wait)


def test_a_place_held_too_long_goes_to_another_and_the_late_answer_is_refused(study, store):
    invitations, now = hashes(study), time.time()
    places = ask(store, *invitations[:SIZE], now=now, hold=10.0)
    (still,) = ask(store, invitations[SIZE], now=now + 9)
    assert isinstance(still, Wait)
    tell(store, invitations[1], places[1], now=now + 11, receipt=b"b" * 32)  # late, but nobody else has it: taken
    assert store.counts()["answers"] == 1
    takers = ask(store, *invitations[SIZE:12], now=now + 11)
    given = [taker.place for taker in takers if isinstance(taker, Place)]
    assert sorted(given) == sorted(place.place for place in places if place != places[1])
    assert tell(store, invitations[0], places[0], now=now + 12).status == 410
    assert isinstance(tell(store, invitations[SIZE], takers[0], receipt=b"c" * 32, now=now + 12), Kept)
    assert store.counts()["answers"] == 2


def test_who_asks_twice_at_once_gets_one_place_and_none_is_lost(study, store):
    first, second = hashes(study)[:2]
    places = ask(store, first, first, second, first)
    assert len({place.place for place in places}) == 2
    assert places[0] == places[1] == places[3]
    assert store.rounds()[0].taken == 2


def test_who_comes_back_late_keeps_the_place_that_another_asks_for_at_the_same_moment(study, store):
    invitations, now = hashes(study), time.time()
    before = ask(store, *invitations[:SIZE], now=now, hold=10.0)
    late, new = ask(store, invitations[0], invitations[SIZE], now=now + 20)
    assert late.place == before[0].place
    assert not isinstance(new, Place) or new.place != late.place
    assert isinstance(tell(store, invitations[0], late, now=now + 21), Kept)


def test_a_sealed_round_takes_no_answers_and_a_closed_study_nobody(study, store):
    first, second = hashes(study)[:2]
    mine, theirs = ask(store, first, second)
    assert isinstance(tell(store, first, mine), Kept)
    assert store.seal(0)
    assert not store.seal(0)
    assert tell(store, second, theirs) == Refusal(status=410, sentence=LATE)
    assert isinstance(tell(store, first, mine), Kept)  # a receipt stays a receipt
    assert isinstance(ask(store, second)[0], Wait)
    close_study(store)
    assert ask(store, second) == [Refusal(status=410, sentence=OVER)]


def test_open_studies_mint_invitations(folder, store_url):
    place = make_study(folder, "independent", clients=SIZE, store=store_url, open_to_all=True)
    turn(place)
    with opened(place) as store:
        new = secrets.token_bytes(32)
        store.work([Mint(invitation=new)], now=time.time(), hold=60.0)
        assert isinstance(ask(store, new)[0], Place)


def test_threads_of_many_processes_lose_and_double_nothing(study):
    """Eight writers with connections of their own, each sending everybody's answer: every invitation answers once."""
    invitations = hashes(study)

    def work(number):
        with opened(study) as store:
            seen = []
            for invitation in invitations[number % 3 :] + invitations[: number % 3]:
                (place,) = ask(store, invitation)
                if isinstance(place, Place):
                    seen.append((invitation, tell(store, invitation, place, receipt=bytes([number]) * 32)))
            return seen

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = [each for seen in pool.map(work, range(8)) for each in seen]
    fresh = [invitation for invitation, result in found if isinstance(result, Kept) and result.fresh]
    with opened(study) as store:
        counts = store.counts()
        assert counts["answers"] == counts["used"] == len(fresh) == len(set(fresh)) == SIZE
        assert store.rounds()[0].answered == SIZE
        assert [place for place, _ in store.replies(0)] == list(range(SIZE))


def test_an_error_inside_a_transaction_leaves_nothing(study, store):
    def broken():
        with store.transaction(lock="shared"):
            store.keep_fact("half", b"written")
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert store.fact("half") is None


def test_the_tables_have_nothing_that_links_an_answer_to_an_invitation(study, store):
    invitations = hashes(study)[:SIZE]
    for number, invitation in enumerate(invitations):
        (place,) = ask(store, invitation)
        tell(store, invitation, place, receipt=bytes([number]) * 32, report=bytes([number]))
    held = store.rows("SELECT hash, round, place, until, receipt FROM invitation WHERE receipt IS NOT NULL")
    assert all(row[1:4] == (None, None, None) for row in held)
    keys = [bytes(key) for (key,) in store.rows("SELECT key FROM answer")]
    assert len(set(keys)) == SIZE
    assert all(len(key) == 16 for key in keys)
    if hasattr(store, "path"):
        for table in ("answer", "invitation"):
            with pytest.raises(Exception, match="no such column"):
                store.rows(f"SELECT rowid FROM {table}")  # noqa: S608
    else:
        before = store.rows("SELECT xmin::text FROM answer")
        assert len(set(before)) == SIZE
        store.forget_order(0)
        assert len(set(store.rows("SELECT xmin::text FROM answer"))) == 1


def test_one_coordinator_has_the_lease(study, store):
    now = time.time()
    assert store.claim_lease("a", now=now, seconds=30)
    assert not store.claim_lease("b", now=now + 29, seconds=30)
    assert store.claim_lease("a", now=now + 29, seconds=30)
    assert store.claim_lease("b", now=now + 60, seconds=30)
    store.release_lease("b")
    assert store.claim_lease("a", now=now + 61, seconds=30)


def test_a_store_belongs_to_one_study(study, folder, tmp_path):
    url = study.store_url()
    other = make_study(tmp_path / "other", "independent", clients=3)
    (other.path / "collector.db").unlink()
    with pytest.raises(RunError, match="another study"):
        study_store(other, other.read(), url)


def test_files_with_secrets_are_their_owners_alone(tmp_path):
    place = make_study(tmp_path, "independent", clients=3)
    for name in ("organiser.token", "collector.db"):
        assert stat.S_IMODE(os.stat(place.path / name).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "links.txt").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(place.path).st_mode) == 0o700


@pytest.mark.parametrize("url", ["mysql://x", "/nowhere/at/all.db", "postgresql://nobody@/none?host=/nowhere"])
def test_a_store_that_is_not_there_is_one_sentence(url):
    with pytest.raises(PopulaceError) as caught:
        open_store(url)
    assert "\n" not in str(caught.value)


def test_the_store_is_said_once(tmp_path):
    place = make_study(tmp_path, "independent", clients=3)
    with pytest.raises(PopulaceError, match="divided between the two"):
        place.store_url("postgresql://elsewhere/x")
    fresh = StudyFolder(tmp_path / "new")
    fresh.path.mkdir()
    assert fresh.store_url("postgresql://a/b") == fresh.store_url() == "postgresql://a/b"
    assert stat.S_IMODE(os.stat(fresh.path / "store.url").st_mode) == 0o600
