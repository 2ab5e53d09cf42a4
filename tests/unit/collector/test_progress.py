"""What the organiser sees: unbiased estimates, intervals that hold as often as they say, and figures that add up."""

import numpy as np
import pytest

from collector_for_tests import client_of, make_study, opened, seeded_answer, tokens, turn
from populace.collector.progress import NORMAL, Tally, column_estimates, progress_document, share_variances, tally_of
from populace.collector.study import survey_of
from populace.collector.words import belief_after, epsilon_in_words
from populace.methods.base import Population
from populace.methods.registry import make_protocol
from populace.privacy.randomizers.subset import SubsetSelection
from populace.runs.poll.collect import cells_of
from populace.tables.embedded import harbour


@pytest.mark.parametrize(("size", "chosen", "cells"), [(12, 0, 3), (12, 4, 1), (40, 9, 8), (2, 0, 1), (6, 3, 6)])
def test_the_variance_of_a_share_is_that_of_simulated_reports(size, chosen, cells):
    member = SubsetSelection(size=size, epsilon=1.0, chosen=chosen)
    share, reports = 0.3, 60_000
    draw = np.random.default_rng(2)
    inside = draw.random(reports) < (share if cells < size else 1.0)
    values = np.where(inside, draw.integers(0, cells, reports), draw.integers(min(cells, size - 1), size, reports))
    told = member.simulate_batch(values, 3)[:, :cells].sum(axis=1)
    found = (told - cells * member.q) / (member.p - member.q)
    expected = share_variances(member, cells, np.array([share if cells < size else 1.0]))[0]
    assert np.isclose(found.mean(), share if cells < size else 1.0, atol=5 * found.std() / np.sqrt(reports) + 1e-12)
    assert np.isclose(found.var(), expected, rtol=0.05, atol=1e-9)
    wrong = share_variances(SubsetSelection(size=size, epsilon=1.5, chosen=chosen), cells, np.array([share]))[0]
    if 1 < cells < size:
        assert not np.isclose(found.var(), wrong, rtol=0.05)


def tallies(asked, codes, questions, seed):
    """A tally of simulated answers."""
    supports = np.zeros((len(asked.groups), asked.panel.width), np.int64)
    cells = cells_of(asked, codes, questions)
    for question in np.unique(questions):
        member = asked.panel.members[question]
        own = cells[questions == question]
        supports[question, : member.size] += member.simulate_batch(own, seed + int(question)).sum(axis=0)
    return Tally(supports=supports, answers=np.bincount(questions, minlength=len(asked.groups)))


@pytest.mark.parametrize("method", ["poll", "samprivsyn"])
def test_intervals_hold_the_truth_as_often_as_they_say(method):
    table = harbour()
    population = Population(schema=table.schema, clients=3_000)
    asked = survey_of(make_protocol(method, {"epsilon": 3.0}), population)
    draw = np.random.default_rng(4)
    hits = []
    for seed in range(16):
        rows = draw.integers(0, len(table), 1_500)
        questions = draw.integers(0, min(len(asked.groups), 10), 1_500)
        tally = tallies(asked, table.codes[rows], questions, 1_000 * seed)
        for column, estimate in enumerate(column_estimates(asked, tally)):
            if estimate is not None and len(estimate.shares) == table.schema.sizes[column]:
                truth = np.bincount(table.codes[:, column], minlength=table.schema.sizes[column]) / len(table)
                hits += (np.abs(estimate.shares - truth) <= NORMAL * estimate.deviations).tolist()
    assert len(hits) > 100
    assert 0.91 < np.mean(hits) < 0.985


def test_a_tally_counts_what_the_method_counts(tmp_path):
    """The organiser's counts are those the model is fitted to."""
    from populace.collector.fit import gather

    place = make_study(tmp_path, "samprivsyn", clients=90, settings={"clients_per_batch": 30})
    table, study = harbour().take(np.arange(90)), place.read()
    turn(place)
    with client_of(place) as client:
        for token in tokens(place)[:70]:
            while seeded_answer(client, place, token, table).json().get("state") == "wait":
                turn(place)
    with opened(place) as store:
        tally = tally_of(study, study.survey, store)
        counts = gather(study, store).state.learner.counts
        document = progress_document(study, store, 0.1)
    np.testing.assert_array_equal(tally.answers, np.asarray(counts.answers))
    np.testing.assert_array_equal(tally.supports, np.asarray(counts.supports))
    assert document["answers"] == 70
    assert [at["answered"] for at in document["rounds"]] == [30, 30, 10]
    assert sum(column["answers"] > 0 for column in document["columns"]) >= 8
    for column in document["columns"]:
        assert len(column["labels"]) == len(column["shares"]) == len(column["half_widths"])
        assert not column["shares"] or np.isclose(sum(column["shares"]), 1.0, atol=1e-4)


def test_four_times_the_precision_needs_sixteen_times_the_answers(tmp_path):
    place = make_study(tmp_path, "independent", clients=60)
    table, study = harbour().take(np.arange(60)), place.read()
    turn(place)
    with client_of(place) as client:
        for token in tokens(place):
            seeded_answer(client, place, token, table)
    with opened(place) as store:
        needed = [progress_document(study, store, error)["answers_needed"] for error in (0.2, 0.05)]
    assert needed[1] / needed[0] == pytest.approx(16, rel=0.01)


def test_nothing_is_known_before_anybody_answered_and_never_of_an_autoencoder(tmp_path):
    for method in ("independent", "dp-fed-wae"):
        place = make_study(tmp_path / method, method, clients=20)
        turn(place)
        with opened(place) as store:
            found = progress_document(place.read(), store, 0.05)
        assert (found["answers"], found["answers_needed"], found["enough"]) == (0, None, None)
        assert all(column["shares"] == [] for column in found["columns"])


def test_words_follow_from_the_bound():
    assert belief_after(0.5, 0.0) == 0.5
    assert belief_after(0.1, np.log(9)) == pytest.approx(0.5)
    assert any("73.2 %" in sentence for sentence in epsilon_in_words(1.0, open_to_all=False))  # e / (1 + e), rounded up
    assert "k times epsilon" in epsilon_in_words(1.0, open_to_all=True)[-1]
