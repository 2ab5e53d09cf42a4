"""What a site refuses, and what a coordinator that lies does not get."""

import dataclasses
import sqlite3

import numpy as np
import pytest

from populace.engines.secure_sum import steps
from populace.engines.secure_sum.journal import MemoryJournal, SqliteJournal, Taken
from populace.engines.secure_sum.messages import SecureSumError, pack_rows, unpack_numbers, unpack_rows
from populace.engines.secure_sum.opening import open_sum
from populace.engines.secure_sum.primitives import KEY_BYTES, agreed, private_key, public_key
from populace.engines.secure_sum.roster import Member, SumRoster
from populace.engines.secure_sum.site import SumSite
from populace.errors import WireError
from secure_sums_for_tests import Sites, make_opening, make_roster, plain_sum, signing_key, vectors_of


def opened_sites(count=4, threshold=3, **other) -> Sites:
    opening = make_opening(count, threshold, **other)
    sites = Sites(opening, vectors_of(opening))
    sites.open()
    return sites


def until(step, count=4, threshold=3) -> Sites:
    """Sites that have taken all steps before one; what they are then asked is in `asked`."""
    sites = Sites(make_opening(count, threshold), vectors_of(make_opening(count, threshold)))
    stopped = {}

    def exchange(now, requests):
        if now == step:
            stopped.update(requests)
            raise KeyboardInterrupt
        yield from sites.exchange(now, requests)

    with pytest.raises(KeyboardInterrupt):
        open_sum(sites.opening, exchange)
    sites.asked = {(step, place): request for place, request in stopped.items()}
    return sites


def test_the_same_request_again_gets_the_stored_bytes():
    sites = opened_sites()
    for (step, place), reply in list(sites.sent.items()):
        assert sites.sites[place].answer(step, sites.asked[step, place], lambda: pytest.fail("made anew")) == reply


def test_another_roster_for_a_round_that_was_begun_is_refused():
    sites = opened_sites()
    roster = dataclasses.replace(sites.opening.roster, threshold=4)
    other = dataclasses.replace(sites.opening, roster=roster)
    again = SumSite(opening=other, place=0, signing_key=signing_key(0), journal=sites.journals[0])
    with pytest.raises(SecureSumError, match="another roster, length or question"):
        again.answer("advertise", {})


def test_a_roster_with_another_key_for_this_site_is_refused():
    with pytest.raises(SecureSumError, match="another key for this site"):
        SumSite(opening=make_opening(3, 2), place=0, signing_key=signing_key(1), journal=MemoryJournal())


def test_a_site_that_the_coordinator_invents_is_refused():
    """Its keys are signed, but by nobody of the roster that was agreed."""
    sites = until("share", 4, 3)
    asked = dict(sites.asked["share", 0])
    invented, row = steps.advertise(sites.opening, place=3, signing_key=signing_key(9))
    assert invented
    with pytest.raises(SecureSumError, match="not signed for this sum with the key that was agreed"):
        sites.sites[0].answer("share", {**asked, 3: row})
    with pytest.raises(SecureSumError, match="at place 4"):
        sites.sites[0].answer("share", {**asked, 4: row})


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_swapped_key_is_refused(part):
    sites = until("share")
    asked = dict(sites.asked["share", 0])
    row = bytearray(asked[1])
    row[part * KEY_BYTES : (part + 1) * KEY_BYTES] = public_key(b"\x05" * 32)
    with pytest.raises(SecureSumError, match="not signed"):
        sites.sites[0].answer("share", {**asked, 1: bytes(row)})


def test_keys_of_another_sum_are_refused():
    """A replayed message: signed by the right site, for another round."""
    sites, earlier = until("share"), opened_sites(round=7)
    asked = dict(sites.asked["share", 0])
    asked[1] = earlier.asked["share", 0][1]
    with pytest.raises(SecureSumError, match="not signed for this sum"):
        sites.sites[0].answer("share", asked)


def test_own_keys_must_be_among_those_relayed_and_no_key_twice():
    sites = until("share")
    asked = dict(sites.asked["share", 0])
    with pytest.raises(SecureSumError, match="own keys"):
        sites.sites[0].answer("share", {place: row for place, row in asked.items() if place})
    _, other = steps.advertise(sites.opening, place=0, signing_key=signing_key(0))
    with pytest.raises(SecureSumError, match="own keys"):
        sites.sites[0].answer("share", {**asked, 0: other})
    with pytest.raises(SecureSumError, match="at least 3 sites"):
        sites.sites[0].answer("share", {place: asked[place] for place in (0, 1)})


def test_a_public_key_everybody_can_agree_with_is_refused():
    with pytest.raises(WireError, match="public key"):
        agreed(private_key(b"\x05" * 32), bytes(32))


def test_a_changed_or_replayed_box_is_refused():
    sites, earlier = until("mask"), opened_sites(round=7)
    asked = dict(sites.asked["mask", 0])
    changed = bytearray(asked[1])
    changed[20] ^= 1
    for box in (bytes(changed), asked[2], earlier.asked["mask", 0][1], sites.asked["mask", 2][1]):
        with pytest.raises(WireError, match="was changed, or is of another sum"):
            sites.sites[0].answer("mask", {**asked, 1: box}, lambda: sites.vectors[0])
    with pytest.raises(SecureSumError, match="sealed shares of other sites"):
        sites.sites[0].answer("mask", {**asked, 0: asked[1]}, lambda: sites.vectors[0])
    with pytest.raises(SecureSumError, match="shares of at least 3"):
        sites.sites[0].answer("mask", {1: asked[1]}, lambda: sites.vectors[0])


def test_a_second_vector_in_a_round_is_never_masked():
    """Another set of peers would give other masks on the same numbers, or on others: refused, and nothing is made."""
    sites = opened_sites()
    asked = dict(sites.asked["mask", 0])
    with pytest.raises(SecureSumError, match="takes it once"):
        sites.sites[0].answer("mask", {1: asked[1], 2: asked[2]}, lambda: pytest.fail("made anew"))


def test_vectors_of_another_length_or_width_are_refused():
    sites = until("mask")
    for numbers in (np.zeros(4, np.uint64), np.zeros(5, np.uint32), np.zeros(5, np.int64)):
        with pytest.raises(SecureSumError, match="5 numbers of 64 bits"):
            sites.sites[0].answer("mask", sites.asked["mask", 0], lambda numbers=numbers: numbers)
    with pytest.raises(SecureSumError, match="numbers of this site"):
        sites.sites[0].answer("mask", sites.asked["mask", 0])


def test_a_second_list_of_survivors_is_never_confirmed():
    """The trap: a round opened for {0, 1, 2, 3} and again for {0, 1, 2} would give the numbers of site 3."""
    sites = opened_sites()
    with pytest.raises(SecureSumError, match="takes it once"):
        sites.sites[0].answer("confirm", dict.fromkeys((0, 1, 2), b""))


@pytest.mark.parametrize(
    ("survivors", "sentence"),
    [((0, 1), "at least 3 survivors"), ((1, 2, 3), "this site among"), ((0, 1, 2, 5), "shared their secrets")],
)
def test_lists_of_survivors_that_are_not_what_was_agreed_are_refused(survivors, sentence):
    sites = until("confirm")
    with pytest.raises(SecureSumError, match=sentence):
        sites.sites[0].answer("confirm", dict.fromkeys(survivors, b""))


def test_shares_are_revealed_only_with_signatures_of_the_threshold_on_the_same_list():
    """A coordinator that shows site 0 one list and the others another finds no threshold of signatures on either."""
    sites = until("confirm")
    own = unpack_rows(sites.sites[0].answer("confirm", dict.fromkeys((0, 1, 2), b"")), kind="confirm", width=64)
    others = {
        place: unpack_rows(
            sites.sites[place].answer("confirm", dict.fromkeys(range(4), b"")), kind="confirm", width=64
        )[place]
        for place in (1, 2, 3)
    }
    with pytest.raises(SecureSumError, match="has not confirmed this list"):
        sites.sites[0].answer("reveal", {**own, 1: others[1], 2: others[2]})
    with pytest.raises(SecureSumError, match="of another site"):
        sites.sites[0].answer("reveal", {**own, **others})
    with pytest.raises(SecureSumError, match="at least 3 sites"):
        sites.sites[0].answer("reveal", own)
    with pytest.raises(SecureSumError, match="has not confirmed"):
        sites.sites[1].answer("reveal", {0: own[0], 1: others[1], 2: others[2]})
    sites.sites[1].answer("reveal", others)


def test_only_one_kind_of_share_of_each_site_is_revealed():
    sites = Sites(make_opening(4, 3), vectors_of(make_opening(4, 3)), {3: "mask"})
    sites.open()
    before = {place: sites.sent["reveal", place] for place in range(3)}
    sites.gone = {}
    for place in range(3):
        rows = unpack_rows(before[place], kind="reveal", width=66)
        assert sorted(rows) == [0, 1, 2, 3]
        assert sites.sites[place].answer("reveal", sites.asked["reveal", place]) == before[place]
        with pytest.raises(SecureSumError, match="takes it once"):
            sites.sites[place].answer("confirm", dict.fromkeys(range(4), b""))


def test_a_site_that_was_left_out_confirms_no_list():
    sites = Sites(make_opening(4, 3), vectors_of(make_opening(4, 3)), {3: "mask"})
    opened = sites.open()
    assert opened.survivors == (0, 1, 2)
    with pytest.raises(SecureSumError, match="step 'mask' of this sum before"):
        sites.sites[3].answer("confirm", dict.fromkeys(range(4), b""))


def test_steps_out_of_order_are_refused():
    opening = make_opening(4, 3)
    site = SumSite(opening=opening, place=0, signing_key=signing_key(0), journal=MemoryJournal())
    for step in ("share", "mask", "confirm", "reveal"):
        with pytest.raises(SecureSumError, match="was not taken here"):
            site.answer(step, {}, lambda: vectors_of(opening)[0])


def test_a_changed_share_does_not_open_a_wrong_sum():
    """A site that reveals a changed share is caught by what the others' secrets were committed to."""
    for gone, target in (({}, 1), ({3: "mask"}, 3)):
        opening = make_opening(4, 3)
        sites = Sites(opening, vectors_of(opening), gone)

        def exchange(step, requests, sites=sites, target=target):
            for place, reply in sites.exchange(step, requests):
                if step == "reveal" and place == 0:
                    rows = unpack_rows(reply, kind="reveal", width=66)
                    rows[target] = bytes(rows[target][:-1]) + bytes([rows[target][-1] ^ 1])
                    reply = pack_rows("reveal", rows)
                yield place, reply

        with pytest.raises(SecureSumError, match="a site sent a changed one"):
            open_sum(opening, exchange)


def test_garbage_counts_as_missing():
    opening, noted = make_opening(4, 3), []
    sites = Sites(opening, vectors_of(opening))

    def exchange(step, requests):
        for place, reply in sites.exchange(step, requests):
            yield place, b"garbage" if (step, place) == ("mask", 2) else reply

    opened = open_sum(opening, exchange, note=lambda step, place, why: noted.append((step, place)))
    assert opened.survivors == (0, 1, 3)
    assert noted == [("mask", 2)]
    np.testing.assert_array_equal(opened.total, plain_sum(sites.vectors, (0, 1, 3)))


def test_a_roster_is_what_signatures_are_for():
    """The same sites under a roster with one more, whom nobody agreed to, are another sum altogether."""
    roster = make_roster(3, 3)
    more = SumRoster(members=(*roster.members, Member(site="more", key=signing_key(7).hex())), threshold=3)
    first, second = make_opening(3, 3), dataclasses.replace(make_opening(3, 3), roster=more)
    _, row = steps.advertise(second, place=0, signing_key=signing_key(0))
    assert not steps.is_advertised(first, 0, row)


def sqlite_journal(path) -> SqliteJournal:
    return SqliteJournal(sqlite3.connect(path, isolation_level=None))


def test_a_site_killed_after_any_step_goes_on_with_its_stored_bytes(tmp_path):
    """Every site is opened anew from its file for every single request: all it knows is on disk."""
    opening = make_opening(4, 3, size=11)
    vectors = vectors_of(opening)
    sent = {}

    def exchange(step, requests):
        for place, request in requests.items():
            if place == 2 and step == "reveal":
                continue
            for _ in range(2):
                site = SumSite(
                    opening=opening, place=place, signing_key=signing_key(place),
                    journal=sqlite_journal(tmp_path / f"{place}.sqlite"),
                )  # fmt: skip
                reply = site.answer(step, request, lambda place=place: vectors[place])
                assert sent.setdefault((step, place), reply) == reply
            yield place, reply

    opened = open_sum(opening, exchange)
    np.testing.assert_array_equal(opened.total, plain_sum(vectors, range(4)))
    assert unpack_numbers(sent["mask", 0], opening).any()


def test_nothing_is_sent_of_a_step_that_was_not_kept(tmp_path):
    """Killed between making a reply and keeping it: the transaction leaves nothing, and the step is taken anew."""
    sites = until("mask")
    for table in ("sqlite", "memory"):
        db = sqlite3.connect(tmp_path / f"{table}.sqlite", isolation_level=None)
        journal = SqliteJournal(db)
        for step in ("advertise", "share"):
            journal.keep("r", 0, sites.journals[0].taken("r", 0, step))
        site = SumSite(opening=sites.opening, place=0, signing_key=signing_key(0), journal=journal)

        def keep(write, reply, db=db):
            db.execute("BEGIN IMMEDIATE")
            write()
            db.execute("ROLLBACK")
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            site.answer("mask", sites.asked["mask", 0], lambda: sites.vectors[0], keep=keep)
        assert journal.taken("r", 0, "mask") is None
        assert site.answer("mask", sites.asked["mask", 0], lambda: sites.vectors[0])


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_journal_keeps_a_step_once_and_forgets_only_secrets(tmp_path, kind):
    journal = MemoryJournal() if kind == "memory" else sqlite_journal(tmp_path / "journal.sqlite")
    first = Taken(step="confirm", context="c", request="q", reply=b"signature", kept=b"secret")
    journal.keep("r", 0, first)
    with pytest.raises(SecureSumError, match="was taken before"):
        journal.keep("r", 0, dataclasses.replace(first, request="other"))
    assert journal.taken("r", 0, "confirm") == first
    journal.keep("r", 0, dataclasses.replace(first, step="reveal"))
    assert journal.taken("r", 0, "confirm") == dataclasses.replace(first, kept=b"")
    assert journal.taken("r", 1, "confirm") is None
    assert journal.kept("r", 0, "confirm") == journal.kept("r", 1, "confirm") == b""


def test_steps_on_disk_are_neither_changed_nor_removed(tmp_path):
    journal = sqlite_journal(tmp_path / "journal.sqlite")
    journal.keep("r", 0, Taken(step="confirm", context="c", request="q", reply=b"signature", kept=b"secret"))
    db = sqlite3.connect(tmp_path / "journal.sqlite")
    for statement in (
        "DELETE FROM sum_step",
        "UPDATE sum_step SET reply = x'00'",
        "UPDATE sum_step SET request = 'other'",
        "INSERT OR REPLACE INTO sum_step VALUES ('r', 0, 'confirm', 'c', 'p', x'00')",
        "UPDATE sum_secret SET kept = x'00'",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="taken once"):
            db.execute(statement)
