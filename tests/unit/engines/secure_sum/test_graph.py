"""Sparse graphs of masks: their numbers are right, sums are plain sums, and too few neighbours are seen through."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import chi2, hypergeom

from populace.engines.secure_sum import primitives, steps
from populace.engines.secure_sum.graph import (
    CORRECTNESS,
    LEAST_SHARE,
    SECRECY,
    MaskGraph,
    drawn_order,
    falls_apart,
    graph_for,
    graph_of_claim,
    tails,
)
from populace.engines.secure_sum.messages import SecureSumError, unpack_numbers
from populace.engines.secure_sum.opening import Decided, TooFewSitesError, decided_from_bytes, open_sum
from populace.engines.secure_sum.roster import Opening, sum_roster_from_json
from populace.engines.secure_sum.steps import kept_from_bytes
from populace.errors import SpecError
from secure_sums_for_tests import Sites, make_roster, plain_sum, signing_key, vectors_of

GRAPH_STEPS = ("advertise", "share", "mask", "reveal")


def pieces(neighbours, left) -> list[set[int]]:
    """The connected pieces of what is left of a graph."""
    found, todo = [], set(left)
    while todo:
        piece, edge = set(), [todo.pop()]
        while edge:
            piece.add(client := edge.pop())
            edge += (near := neighbours[client] & todo)
            todo -= near
        found.append(piece)
    return found


def sparse_opening(clients, *, colluders, dropouts, graph=None, **other) -> Opening:
    graph = graph or graph_for(clients=clients, colluders=colluders, dropouts=dropouts)
    roster = make_roster(clients, clients - dropouts, colluders)
    return Opening(**{"run": "r", "round": 0, "roster": roster, "size": 5, "graph": graph, **other})


def test_tails_are_those_of_the_hypergeometric_law():
    for others, marked, drawn in ((9, 3, 4), (199, 20, 32), (999, 100, 46)):
        found = tails(others=others, marked=marked, drawn=drawn)
        expected = hypergeom(others, marked, drawn).sf(np.arange(drawn + 1) - 1)
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-300)
    every = [sum(one in (0, 1, 2) for one in drawn) for drawn in itertools.combinations(range(9), 4)]
    counted = [np.mean([hits >= least for hits in every]) for least in range(5)]
    np.testing.assert_allclose(tails(others=9, marked=3, drawn=4), counted, rtol=1e-12)


@pytest.mark.parametrize(("clients", "degree"), [(10, 2), (10, 4), (12, 4), (12, 6), (13, 6)])
def test_falling_apart_is_bounded_by_counting_every_set_that_can_be_out(clients, degree):
    """Against every single set of clients: of any size up to the most, at most as many cut the circle as the bound says; where
    the bound is small, nearly as many do."""
    neighbours = MaskGraph(clients=clients, degree=degree, threshold=1).neighbours(range(clients))
    most_seen = 0.0
    for out in range(clients - 1):
        sets = list(itertools.combinations(range(clients), out))
        cut = np.mean([len(pieces(neighbours, set(range(clients)) - set(gone))) > 1 for gone in sets])
        most_seen = max(most_seen, cut)
        bound = falls_apart(clients=clients, out=out, degree=degree)
        assert most_seen <= bound * (1 + 1e-12)
        if out == degree:  # the fewest that can cut it
            assert cut > 0.3 * bound > 0
    assert falls_apart(clients=clients, out=degree - 1, degree=degree) == 0


def test_drawn_graphs_fall_apart_and_neighbours_collude_as_often_as_computed():
    """Monte Carlo where failures are frequent enough to count; twice or half of what is computed would be noticed."""
    graph, trials = MaskGraph(clients=80, degree=8, threshold=3), 4_000
    out, colluders = 26, 13
    apart = told = 0
    for _ in range(trials):
        neighbours = graph.neighbours(drawn_order(80))
        apart += len(pieces(neighbours, range(out, 80))) > 1
        told += len(neighbours[79] & set(range(colluders))) >= graph.threshold
    bound = falls_apart(clients=80, out=out, degree=8)
    tail = tails(others=79, marked=colluders, drawn=8)[graph.threshold]
    assert 0.02 < bound < 0.4
    spread = [5 * math.sqrt(p * (1 - p) / trials) for p in (bound, tail)]
    assert 0.6 * bound - spread[0] < apart / trials < bound + spread[0]
    assert abs(told / trials - tail) < spread[1] < tail / 2


def test_a_graph_is_regular_symmetric_and_even():
    graph = MaskGraph(clients=31, degree=6, threshold=4)
    neighbours = graph.neighbours(drawn_order(31))
    for client, near in neighbours.items():
        assert len(near) == 6
        assert client not in near
        assert all(client in neighbours[other] for other in near)
    first = [graph.neighbours(drawn_order(31))[0] for _ in range(3_000)]
    counts = np.bincount([other for near in first for other in near], minlength=31)[1:]
    assert chi2.sf(((counts - counts.mean()) ** 2 / counts.mean()).sum(), 29) > 1e-6
    assert drawn_order(40) != drawn_order(40)


@pytest.mark.parametrize("clients", [200, 1_000, 5_000])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.2])
def test_no_smaller_graph_would_do(clients, share):
    many = math.ceil(share * clients)
    graph = graph_for(clients=clients, colluders=many, dropouts=many)
    assert graph.leaks(colluders=many, dropouts=many) <= SECRECY
    assert graph.fails(dropouts=many) <= CORRECTNESS
    assert graph.leaks(colluders=many // 2, dropouts=many // 3) <= SECRECY
    for threshold in range(1, graph.degree - 1):
        less = MaskGraph(clients=clients, degree=graph.degree - 2, threshold=threshold)
        assert less.leaks(colluders=many, dropouts=many) > SECRECY or less.fails(dropouts=many) > CORRECTNESS


@pytest.mark.parametrize(
    ("share", "degrees"),
    [
        (0.01, ((6, 3), (14, 9), (16, 10), (18, 11))),
        (0.05, ((20, 11), (30, 17), (32, 19), (36, 21))),
        (0.1, ((32, 18), (46, 26), (52, 29), (58, 33))),
        (0.2, ((62, 34), (98, 54), (114, 62), (132, 71))),
    ],
)
def test_the_table_of_the_documentation(share, degrees):
    for clients, expected in zip((200, 1_000, 5_000, 100_000), degrees, strict=True):
        many = round(share * clients)
        graph = graph_for(clients=clients, colluders=many, dropouts=many)
        assert (graph.degree, graph.threshold) == expected


def test_neighbours_grow_with_the_logarithm_of_the_clients():
    degrees = [graph_of_claim(clients=n, colluders=0, dropouts=0).degree for n in (10**3, 10**4, 10**5)]
    assert degrees == sorted(degrees)
    assert degrees[-1] - degrees[0] < 20
    assert degrees[-1] < 64


def test_a_claim_without_colluders_does_not_make_a_ring():
    assert graph_for(clients=500, colluders=0, dropouts=0).degree == 2
    room = graph_of_claim(clients=500, colluders=0, dropouts=0)
    assert room == graph_for(clients=500, colluders=50, dropouts=50)
    assert (
        room.degree > 2 * LEAST_SHARE * room.degree + room.threshold
    )  # a tenth of its neighbours missing leaves enough
    assert graph_of_claim(clients=500, colluders=150, dropouts=0).degree > room.degree


def test_impossible_graphs_are_refused_or_none():
    assert graph_for(clients=20, colluders=9, dropouts=9) is None
    for wrong in ({"degree": 3}, {"degree": 0}, {"degree": 30}, {"threshold": 0}, {"threshold": 9}):
        with pytest.raises(SpecError, match="expected"):
            MaskGraph(**{"clients": 30, "degree": 8, "threshold": 4, **wrong})
    with pytest.raises(SpecError, match="together below 10"):
        graph_for(clients=10, colluders=5, dropouts=5)
    with pytest.raises(SpecError, match="the 5 sites"):
        Opening(run="r", round=0, roster=make_roster(5, 4), size=1, graph=MaskGraph(clients=9, degree=4, threshold=2))


def gone_from(clients, dropouts, seed) -> dict[int, str]:
    """Some clients that are missing from some step on, every step among them."""
    rng = np.random.default_rng(seed)
    missing = rng.choice(clients, dropouts, replace=False)
    return {int(client): GRAPH_STEPS[number % 4] for number, client in enumerate(missing)}


@pytest.mark.parametrize(
    ("clients", "few", "bits"),
    [(200, 4, 64), (200, 10, 32), pytest.param(500, 25, 64, marks=pytest.mark.slow),
     pytest.param(1_000, 10, 32, marks=pytest.mark.slow)],
)  # fmt: skip
def test_an_opened_sum_is_the_plain_sum_of_the_survivors(clients, few, bits):
    opening = sparse_opening(clients, colluders=few, dropouts=few, size=17, bits=bits)
    assert opening.graph.degree < clients / 5
    vectors, gone = vectors_of(opening), gone_from(clients, few, clients)
    sites = Sites(opening, vectors, gone)
    opened = sites.open()
    survivors = [client for client in range(clients) if gone.get(client, "reveal") == "reveal"]
    assert opened.survivors == tuple(survivors)
    np.testing.assert_array_equal(opened.total, plain_sum(vectors, survivors))
    most = opening.graph.degree + 1
    assert max(len(request) for (step, _), request in sites.asked.items() if step != "advertise") <= most


def test_more_missing_than_allowed_for_opens_nothing():
    opening = sparse_opening(60, colluders=2, dropouts=3)
    with pytest.raises(TooFewSitesError, match="at least 57 sites"):
        Sites(opening, vectors_of(opening), dict.fromkeys(range(4), "mask")).open()


def test_too_few_neighbours_left_opens_nothing():
    """Planted: everybody around one client is missing when secrets are to be given back."""
    graph = MaskGraph(clients=30, degree=4, threshold=3)
    opening = sparse_opening(30, colluders=0, dropouts=4, graph=graph)
    sites = Sites(opening, vectors_of(opening), dict.fromkeys((1, 2, 28, 29), "reveal"))
    with pytest.raises(TooFewSitesError, match="too many of its neighbours are missing"):
        sites.open(decided=Decided(order=tuple(range(30))))


def test_a_coordinator_that_was_killed_goes_on_with_its_graph():
    opening = sparse_opening(40, colluders=2, dropouts=2, size=9)
    vectors, saved = vectors_of(opening), []
    sites = Sites(opening, vectors)

    def save(decided):
        saved.append(decided.to_bytes())
        if len(saved) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sites.open(save=save)
    opened = sites.open(decided=decided_from_bytes(saved[-1]))
    np.testing.assert_array_equal(opened.total, plain_sum(vectors, range(40)))


def until_reveal(opening, vectors, order) -> Sites:
    """Sites that have sent their masked numbers; their secrets are still in their journals."""
    sites = Sites(opening, vectors)

    def exchange(step, requests):
        sites.asked.update({(step, place): request for place, request in requests.items()})
        if step == "reveal":
            raise KeyboardInterrupt
        yield from sites.exchange(step, requests)

    with pytest.raises(KeyboardInterrupt):
        open_sum(opening, exchange, decided=Decided(order=tuple(order)))
    return sites


def seen_of(sites, part, colluders, neighbours):
    """What a coordinator with colluders makes of the numbers of some survivors: their sum, without their self masks, which are
    opened, and without the masks they have with colluders."""
    opening = sites.opening
    kept = {client: kept_from_bytes(sites.journals[client].kept("r", 0, "mask")) for client in (*part, *colluders)}
    total = np.add.reduce([unpack_numbers(sites.sent["mask", client], opening) for client in part], axis=0)
    masks = [(steps.self_mask_key(opening, kept[client].self_mask), True) for client in part]
    for one in colluders:
        private = primitives.private_key(kept[one].mask_key)
        for client in neighbours[one] & set(part):
            public = steps.mask_public(kept[client].keys[client])
            masks.append((steps.pair_mask_key(opening, private, public, (one, client)), client < one))
    primitives.add_masks(total, masks)
    return total


def evenness(numbers) -> float:
    """The p-value of the bytes of a vector being even."""
    counts = np.bincount(np.ascontiguousarray(numbers).view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), 255))


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_with_too_few_neighbours_a_part_is_opened_by_itself_and_the_computation_says_so(degree):
    """Two pairs of colluders stand together in the circle. With two or four neighbours the others fall into two parts, whose
    sums the coordinator reads off, bit for bit; with eight it sees nothing but even numbers."""
    graph = MaskGraph(clients=20, degree=degree, threshold=1 + degree // 2)
    opening = sparse_opening(20, colluders=4, dropouts=0, graph=graph, size=20_000)
    vectors = np.random.default_rng(1).poisson(40, (20, opening.size)).astype(np.uint64)
    colluders, part = (0, 1, 10, 11), tuple(range(2, 10))
    neighbours = graph.neighbours(range(20))
    sites = until_reveal(opening, vectors, range(20))
    seen = seen_of(sites, part, colluders, neighbours)
    broken = len(pieces(neighbours, set(range(20)) - set(colluders))) > 1
    assert broken == (degree < 8)
    assert np.array_equal(seen, plain_sum(vectors, part)) == broken
    assert (evenness(seen) > 1e-4) == (not broken)
    assert (falls_apart(clients=20, out=4, degree=degree) > SECRECY) == broken


@pytest.mark.parametrize("planted", [False, True])
def test_masked_numbers_look_even_to_the_coordinator_with_colluders(planted, monkeypatch):
    """Planted: clients leave out the masks with their neighbours. Taking off the self mask, which is opened, shows them."""
    add_masks = primitives.add_masks
    if planted:
        monkeypatch.setattr(primitives, "add_masks", lambda numbers, masks: add_masks(numbers, list(masks)[:1]))
    opening = sparse_opening(40, colluders=3, dropouts=3, size=20_000)
    vectors = np.random.default_rng(1).poisson(40, (40, opening.size)).astype(np.uint64)
    order = drawn_order(40)
    sites = until_reveal(opening, vectors, order)
    monkeypatch.setattr(primitives, "add_masks", add_masks)
    neighbours = opening.graph.neighbours(order)
    for client in (5, 17):
        colluders = () if planted else tuple(neighbours[client])[:3]
        assert (evenness(seen_of(sites, (client,), colluders, neighbours)) > 1e-4) == (not planted)


def test_a_site_takes_no_step_with_too_few_or_too_many_neighbours_nor_for_two_lists():
    opening = sparse_opening(40, colluders=3, dropouts=3)
    graph = opening.graph
    sites = until_reveal(opening, vectors_of(opening), range(40))
    listed = dict(sites.asked["reveal", 0])
    few = dict.fromkeys((0, *[other for other in listed if other][: graph.threshold - 1]), b"")
    for survivors, sentence in (
        (few, f"{graph.threshold} to {graph.degree} neighbours"),
        ({place: b"" for place in listed if place}, "this site among"),
        ({**listed, 20: b""}, "shared their secrets"),
    ):
        with pytest.raises(SecureSumError, match=sentence):
            sites.sites[0].answer("reveal", survivors)
    with pytest.raises(SecureSumError, match="no step 'confirm'"):
        sites.sites[0].answer("confirm", listed)
    sites.sites[0].answer("reveal", listed)
    with pytest.raises(SecureSumError, match="takes it once"):
        sites.sites[0].answer("reveal", dict.fromkeys(list(listed)[:-1], b""))
    everybody = {place: steps.advertise(opening, place=place, signing_key=signing_key(place))[1] for place in range(40)}
    with pytest.raises(SecureSumError, match="got 39"):
        steps.check_keys(opening, everybody, place=0)


def test_sums_with_and_without_a_graph_never_fit_each_other():
    """Real sites make their openings without a graph: nothing that is signed for one with a graph counts there."""
    sparse = sparse_opening(40, colluders=3, dropouts=3)
    whole = Opening(run="r", round=0, roster=sparse.roster, size=5)
    other = sparse_opening(40, colluders=3, dropouts=3, graph=MaskGraph(clients=40, degree=36, threshold=20))
    assert len({sparse.context, whole.context, other.context}) == 3
    _, row = steps.advertise(sparse, place=0, signing_key=signing_key(0))
    assert steps.is_advertised(sparse, 0, row)
    assert not steps.is_advertised(whole, 0, row)


def test_a_thousand_real_sites_and_no_more_in_words():
    roster = make_roster(1_001, 1_001)
    with pytest.raises(SpecError, match=r"at most 1,000, got 1001.*follows the protocol"):
        Opening(run="r", round=0, roster=roster, size=5)
    with pytest.raises(SpecError, match="at most 1,000"):
        sum_roster_from_json(roster.to_json())
    graph = graph_of_claim(clients=1_001, colluders=0, dropouts=0)
    assert Opening(run="r", round=0, roster=roster, size=5, graph=graph).shares_needed == graph.threshold
