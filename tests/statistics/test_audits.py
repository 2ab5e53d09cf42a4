"""Audits with power: right mechanisms stay below their claim, tight ones come near it, planted broken ones are flagged.

A right mechanism is flagged once in a million audits. Bounds at 95 % lie far above half the claim where a test asks for half.
"""

import dataclasses
import functools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from populace.attacks.memorise import Memorise
from populace.audits.auditor import Auditor, scripts_of, worst_shards
from populace.audits.messages import (
    FACES,
    MECHANISMS,
    Effort,
    audit_mechanism,
    audit_method,
    audit_part,
    make_mechanism,
)
from populace.audits.methods import audited_methods
from populace.audits.shapes import FEW_STEPS
from populace.errors import BudgetError, SpecError
from populace.evaluation.audit import audit
from populace.methods.base import Population
from populace.methods.baselines.independent import Independent
from populace.methods.registry import make_protocol, protocol_class
from populace.privacy import secure_random
from populace.privacy.events import Pure, Repeated
from populace.privacy.ledger import Charge
from populace.privacy.randomizers.grr import Grr

EPSILON = 2.0
EFFORT = Effort(samples=20_000, seed=1)
SMALL = Effort(samples=6_000, seed=1)
#: Reports about few values with the whole epsilon at once: an audit must see most of it.
TIGHT_MECHANISMS = ("grr", "subset", "oue", "sue", "olh", "hadamard")
TIGHT_METHODS = ("poll", "independent", "samprivsyn", "calm")
#: Methods whose messages are audited here: clients or silos add the noise, on tables.
METHODS = list(
    dict.fromkeys(name for name, trust, kind in audited_methods() if trust in ("local", "silo") and kind == "table")
)
SLOW_METHODS = (
    "dp-fed-wae",
    "fedsel-wae",
    "poll",
    "calm",
    "locop",
    "l-dpd-vae",
    "chain",
    "fl-gan",
    "ufl-gan",
)  # code others exercise, or trainings
#: Trainings take long, and an audit of few says little.
FEW = {"fl-gan": 1_000, "ufl-gan": 1_000, "chain": 1_000, "l-dpd-vae": 2_000}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism(name, face):
    found = audit_mechanism(make_mechanism(name, epsilon=EPSILON, size=16), effort=EFFORT, face=face)
    assert not found.flagged
    assert found.certain.epsilon <= EPSILON
    if name in TIGHT_MECHANISMS:
        assert found.measured.epsilon > EPSILON / 2


def test_index_reports_in_the_manner_of_signds():
    """One index, from the own top k of d with probability p, otherwise from the rest; two clients with disjoint tops."""
    d, k = 100, 10
    p = k * math.exp(EPSILON) / (k * math.exp(EPSILON) + d - k)
    rng = np.random.default_rng(0)

    def draw(pair, count, part):
        own = rng.random((2, count)) < p
        inside, outside = rng.integers(0, k, (2, count)), rng.integers(k, d, (2, count))
        rows = np.where(own, inside, outside)
        rows[1] = (rows[1] + k) % d
        return rows[0][:, None], rows[1][:, None]

    found = audit(draw, ["disjoint tops"], what="index", claimed=EPSILON, samples=20_000)
    assert not found.flagged
    assert found.measured.epsilon > 0.9 * EPSILON


@pytest.mark.parametrize("face", FACES)
def test_a_wrong_probability_is_flagged(face):
    """The code of randomised response with the probability of epsilon 2.5 under the claim of epsilon 2."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Careless(Grr):
        @functools.cached_property
        def exact_p(self):
            weight = Fraction(math.exp(1.25 * self.epsilon))
            return secure_random.rounded_down(weight / (weight + self.size - 1))

    found = audit_mechanism(Careless(size=4, epsilon=EPSILON), effort=EFFORT, face=face)
    assert found.flagged
    assert EPSILON < found.certain.epsilon < 2.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Twice(Independent):
    """Answers twice with the whole epsilon, and books it once: each report alone is as it should be."""

    def answer(self, common, own, shard, memory, source):
        first, second = source.split(2)
        reports = [super(Twice, self).answer(common, own, shard, memory, part)[0] for part in (first, second)]
        return jnp.stack(reports), memory


def test_a_budget_spent_twice_is_flagged(small_schema):
    found = audit_method(Twice(epsilon=EPSILON), Population(schema=small_schema, clients=100), effort=SMALL)
    assert found.flagged
    assert found.certain.epsilon > 1.5 * EPSILON


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW_METHODS else name for name in METHODS]
)
def test_every_method_on_the_whole_message(name, small_schema):
    silo = protocol_class(name).facts.unit == "record"
    protocol = make_protocol(name, {"epsilon": EPSILON, **(FEW_STEPS[name] if silo else {})})
    population = Population(schema=small_schema, clients=2 if silo else 200, records=2)
    found = audit_method(protocol, population, effort=dataclasses.replace(SMALL, samples=FEW.get(name, SMALL.samples)))
    assert not found.flagged
    assert 0.99 * EPSILON < found.claimed <= EPSILON  # calibrated noise claims a little less
    if name in TIGHT_METHODS:
        assert found.measured.epsilon > EPSILON / 2


def test_a_part_of_a_message_is_held_against_its_share(small_schema):
    """What is spread over four answers is hard to see in all of them together, and easy in one."""
    population = Population(schema=small_schema, clients=200)
    found = audit_part(make_protocol("krr", {"epsilon": EPSILON}), population, effort=EFFORT)
    assert found.claimed == EPSILON / 4
    assert found.measured.epsilon > EPSILON / 8
    assert not found.flagged
    assert audit_part(Independent(epsilon=EPSILON), population, effort=EFFORT) is None


def test_a_method_with_the_noise_of_deployed_clients(small_schema):
    effort = Effort(samples=120, confidence=0.9)
    population = Population(schema=small_schema, clients=20)
    found = audit_method(Independent(epsilon=4.0), population, effort=effort, exact=True)
    assert not found.flagged
    assert found.measured.epsilon > 0.3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rounds(Independent):
    """The same client, asked in every one of three rounds with a third of epsilon each."""

    dishonest: bool = False

    def round_count(self, population):
        return 3

    def cohorts(self, population, state, first, count):
        return np.tile(np.arange(population.clients), (count, 1))

    def ask(self, state, population, source):
        if int(state.round) >= 3:
            return None
        asked = super().ask(dataclasses.replace(state, round=jnp.int32(0)), population, source)
        return dataclasses.replace(asked, round=state.round)

    def _each(self):
        return Independent(epsilon=self.epsilon if self.dishonest else self.epsilon / 3)

    def charge(self, ask, population):
        return Charge(event=Pure(self.epsilon / 3), unit="client")

    def answer(self, common, own, shard, memory, source):
        return self._each().answer(common, own, shard, memory, source)


def test_all_rounds_of_a_client_are_one_message(small_schema):
    population = Population(schema=small_schema, clients=40)
    scripts = scripts_of(Rounds(epsilon=EPSILON), population, key=jax.random.key(0))
    assert all(len(script.steps) == 3 for script in scripts)
    assert audit_method(Rounds(epsilon=EPSILON, dishonest=True), population, effort=SMALL).flagged


def test_a_question_keeps_the_methods_own_round(small_schema):
    """What it costs may depend on it: the questions of a chain do."""
    population = Population(schema=small_schema, clients=40)
    method = Rounds(epsilon=EPSILON)
    script = scripts_of(method, population, key=jax.random.key(0))[0]
    assert [int(round_id) for round_id, *_ in script.steps] == [0, 1, 2]
    later = dataclasses.replace(script, steps=tuple((round_id + 5, *rest) for round_id, *rest in script.steps))
    auditor = Auditor(method, population, later)
    assert [int(auditor.ask(state, population, None).round) for state in range(3)] == [5, 6, 7]


def test_the_ledger_refuses_an_auditor_too(small_schema):
    """What a method charges beyond its guarantee is refused before any client answers."""

    class Greedy(Rounds):
        def charge(self, ask, population):
            return Charge(event=Repeated(Pure(self.epsilon), 2), unit="client")

    with pytest.raises(BudgetError):
        audit_method(Greedy(epsilon=EPSILON), Population(schema=small_schema, clients=40), effort=SMALL)


def test_worst_case_clients_differ_in_what_the_unit_covers(small_schema):
    population = Population(schema=small_schema, clients=10, records=3)
    for shards in worst_shards(population, unit="client")[:-1]:
        assert shards.first.shape == shards.second.shape == (3, 4)
        assert (shards.first != shards.second).all()
    assert len(worst_shards(population, unit="client")[-1].second) == 0
    for shards in worst_shards(population, unit="record"):  # one record, there or not
        assert len(shards.first) == 3
        assert (shards.first[:2] == shards.second).all()


def test_what_cannot_be_audited_says_why(small_schema):
    population = Population(schema=small_schema, clients=10)
    with pytest.raises(SpecError, match="canaries"):
        audit_method(Memorise(), population, effort=EFFORT)
    with pytest.raises(SpecError, match="unknown mechanism"):
        make_mechanism("magic", epsilon=1.0, size=4)
    with pytest.raises(SpecError, match="size"):
        make_mechanism("grr", epsilon=1.0, size=1)
    with pytest.raises(SpecError, match="samples"):
        Effort(samples=3)
    with pytest.raises(SpecError, match="confidence"):
        Effort(confidence=2.0)
    with pytest.raises(SpecError, match="face"):
        audit_mechanism(Grr(size=3, epsilon=1.0), effort=EFFORT, face="other")
