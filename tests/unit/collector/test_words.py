"""What is said about a study: to the person who answers, and in its privacy statement."""

import pytest

from populace.collector.study import plan_study
from populace.collector.words import epsilon_in_words
from populace.report.statement import NO_LEDGER, _devices
from populace.runs.device_statement import stated_study
from populace.tables.embedded import FOLDER

METHODS = ("poll", "independent", "dp-fed-wae")
OFTEN = "one person may have sent several"


def stated(method, *, open_to_all):
    study = plan_study(
        schema=str(FOLDER / "harbour.toml"), epsilon=2.0, method=method, clients=50_000, open_to_all=open_to_all
    )
    claim = study.protocol.guarantee(study.population)
    return claim, stated_study(claim, answered=40_000, open_to_all=open_to_all)


def words_of(guarantee):
    return " ".join([guarantee.protects, *guarantee.derivation, *guarantee.assumptions])


@pytest.mark.parametrize("open_to_all", [False, True])
def test_no_study_claims_anything_from_shuffling(open_to_all):
    """People come in an order that is not random and that others see."""
    found = [stated(method, open_to_all=open_to_all) for method in METHODS]
    assert any(claim.shuffles for claim, _ in found)  # some methods would
    for _, guarantee in found:
        assert not guarantee.shuffles
        assert "shuffl" not in words_of(guarantee)
        assert (guarantee.trust, guarantee.delta, guarantee.epsilon) == ("local", 0.0, 2.0)


def test_an_open_study_says_that_one_person_may_have_sent_several_answers():
    said = words_of(stated("independent", open_to_all=True)[1])
    assert OFTEN in said
    assert "k answers have k times epsilon" in said
    assert OFTEN not in words_of(stated("independent", open_to_all=False)[1])
    page = _devices({"clients": 40_000, "population": {"open": True}})
    assert page == "40,000 answers; one person may have sent several, and k answers have k times epsilon"
    assert "several" not in _devices({"clients": 40_000, "population": {"open": False}})
    assert any("k answers have k times epsilon" in sentence for sentence in epsilon_in_words(2.0, open_to_all=True))
    assert not any("several" in sentence for sentence in epsilon_in_words(2.0, open_to_all=False))


def test_only_the_program_is_said_to_keep_a_limit():
    """The page's ledger has none."""
    said = NO_LEDGER["devices"]
    assert "Each device" not in said
    assert "the page" in said.lower()
    assert said.index("it knows no limit") < said.index("`populace device` keeps a ledger that refuses")
