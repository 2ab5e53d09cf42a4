"""What a store promises: each answer exactly once, places held by one device at a time, nothing that links the two tables."""

import concurrent.futures
import hashlib
import os
import secrets
import stat
import time

import pytest

from collector_for_tests import make_study, opened, turn
from populace.collector.places import secret_place
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
    from populace.collector.exchange import read_token

    return [invitation_hash(read_token(token)) for token in tokens(place)]


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
        store.forget_order()
        for table in ("answer", "invitation"):
            assert len(set(store.rows(f"SELECT xmin::text FROM {table}"))) == 1  # noqa: S608


MANY = 60


def mark(what, number):
    """32 bytes that stand nowhere else."""
    return hashlib.sha256(f"{what} {number}".encode()).digest()


def file_order(store):
    """Who answered, and which answers came, by their numbers, in the order in which the database has them on disk."""
    numbers = {mark(what, number): number for what in ("receipt", "report") for number in range(MANY)}
    if not hasattr(store, "path"):
        asked = "SELECT receipt FROM invitation ORDER BY ctid", "SELECT report FROM answer ORDER BY ctid"
        return [[numbers[bytes(each)] for (each,) in store.rows(sql)] for sql in asked]
    store.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    content = store.path.read_bytes()
    marks = [[mark(what, number) for number in range(MANY)] for what in ("receipt", "report")]
    return [[numbers[each] for each in sorted(group, key=content.rindex, reverse=True)] for group in marks]


def concordance(order):
    """The share of pairs that stand in the right order: 1 or 0 tells everything, 1/2 nothing."""
    pairs = [(i, j) for i in range(len(order)) for j in range(i)]
    return sum(order[j] < order[i] for i, j in pairs) / len(pairs)


@pytest.fixture
def many(folder, store_url):
    place = make_study(folder, "independent", clients=MANY, invited=MANY, store=store_url)
    turn(place)
    return place


def answer_all(place, store):
    """Everybody answers, one after the other; gives the places in that order."""
    places = []
    for number, invitation in enumerate(hashes(place)):
        (held,) = ask(store, invitation)
        places.append(held.place)
        tell(store, invitation, held, receipt=mark("receipt", number), report=mark("report", number))
    return places


def test_what_the_database_keeps_of_the_order_of_answers_is_forgotten(many):
    """Zipped, the two orders on disk would link everybody. The law of a share is that of Kendall's tau: its standard deviation
    with 60 people is 0.044."""
    with opened(many) as store:
        answer_all(many, store)
        before = file_order(store)
        assert max(concordance(before[1]), 1 - concordance(before[1])) > 0.75  # this is what there is to forget
        close_study(store)  # as `fit --close` does where nobody serves
        if hasattr(store, "path"):
            assert store.path.with_name(store.path.name + "-wal").stat().st_size == 0
        people, answers = file_order(store)
        assert abs(concordance(people) - 0.5) < 0.2
        assert abs(concordance(answers) - 0.5) < 0.2
        assert sum(one == other for one, other in zip(people, answers, strict=True)) < 8
        found = store.rows("SELECT report FROM answer ORDER BY key")
        by_key = [next(n for n in range(MANY) if mark("report", n) == bytes(each)) for (each,) in found]
        assert answers in (by_key, by_key[::-1])


def test_a_place_does_not_say_when_its_answer_came(many):
    with opened(many) as store:
        assert len(store.fact("order")) == 16
        places = answer_all(many, store)
        assert sorted(places) == list(range(MANY))
        assert abs(concordance(places) - 0.5) < 0.2
        assert store.seal(0)  # nobody gets a place any more, and the secret is gone
        assert store.fact("order") is None


@pytest.mark.parametrize("size", [1, 2, 3, 6, 64, 100, 1_000])
def test_places_are_handed_out_by_a_secret_permutation(size):
    orders = [[secret_place(bytes([key]) * 16, size, turn) for turn in range(size)] for key in range(20)]
    assert all(sorted(order) == list(range(size)) for order in orders)
    if size >= 6:
        assert len({tuple(order) for order in orders}) > 15


def test_every_place_is_as_likely_in_the_first_turn():
    """A chi-squared test with 4 degrees of freedom, at 1e-6."""
    draws = [secret_place(number.to_bytes(16, "big"), 5, 0) for number in range(5_000)]
    counts = [draws.count(place) for place in range(5)]
    assert sum((count - 1_000) ** 2 / 1_000 for count in counts) < 33.4


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
