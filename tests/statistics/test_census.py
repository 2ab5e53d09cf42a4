"""Audits of `census`: right noise passes at every stage, and what is planted wrong is refuted.

Planted: a tenth of the noise, in either stage; weights of tables, or groups of codes, that the noise does not cover; a second
message for the price of one; a bare first number. A right method is refuted once in a million audits; the seeds are fixed.
"""

import dataclasses
import math
from typing import ClassVar

import jax
import numpy as np
import pytest
from scipy import stats

from census_cases import wide_schema
from populace.audits import shapes
from populace.audits.grey_box import audit_grey_box
from populace.audits.messages import Effort, audit_as_gaussian
from populace.audits.methods import Subject, audit_subject
from populace.audits.release_canaries import audit_canaries
from populace.engines import simulation
from populace.engines.runtime import population_of
from populace.methods.base import Population
from populace.methods.census.protocol import Census
from populace.methods.census.tables import PairTables
from populace.privacy.gaussian import GaussianSum
from populace.tables.embedded import harbour_schema
from populace.tables.schema import Column, Schema

EPSILON = 2.0
EFFORT = Effort(samples=1_500, seed=1)
SMALL = {"components": 2, "members": 2, "fit_steps": 2}


def long_schema(codes=90, *, nullable=True):
    """A column with more codes than cells: two stages."""
    edges = tuple(float(edge) for edge in range(codes + 1))
    return Schema(
        columns=(
            Column(name="cost", kind="integer", edges=edges, nullable=nullable),
            Column(name="ward", kind="categorical", categories=("north", "south", "east")),
            Column(name="ill", kind="categorical", categories=("no", "yes")),
        ),
        target="ill",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Smaller(GaussianSum):
    """A tenth of the noise that was drawn and booked."""

    def noise(self, source, shape=None):
        return np.asarray(super().noise(source, shape)) // 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tenth(GaussianSum):
    """Noise of a tenth of the scale, drawn by itself."""

    def noise(self, source, shape=None):
        right = GaussianSum(
            bound=self.bound, noise_multiplier=self.noise_multiplier / 10, size=self.size, whole=self.whole
        )
        return right.noise(source, shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bare(GaussianSum):
    """Adds no noise to its first number."""

    def noise(self, source, shape=None):
        drawn = np.array(super().noise(source, shape))
        drawn[..., 0] = 0
        return drawn


def with_release(parts, **changes):
    release = dataclasses.replace(parts.release, **changes)
    return dataclasses.replace(parts, release=release, learner=dataclasses.replace(parts.learner, release=release))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Together(Census):
    """Many silos of few records answer at once."""

    vectorises: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weak(Together):
    """The mechanism of one stage is of another class."""

    stage: int = -1
    flaw: str = "tenth"

    def compose(self, population):
        parts = super().compose(population)
        mechanisms = list(parts.release.mechanisms)
        right = mechanisms[self.stage]
        kind = {"tenth": Tenth, "smaller": Smaller, "bare": Bare}[self.flaw]
        mechanisms[self.stage] = kind(
            **{field.name: getattr(right, field.name) for field in dataclasses.fields(GaussianSum)}
        )
        return with_release(parts, mechanisms=tuple(mechanisms))


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightsForgotten(Together):
    """Tables weigh more than one unit, and the noise is that of tables which do not."""

    def compose(self, population):
        parts = super().compose(population)
        *before, last = parts.release.mechanisms
        unweighted = math.sqrt(len(parts.learner.tables.pairs))
        return with_release(parts, mechanisms=(*before, dataclasses.replace(last, bound=unweighted)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupsForgotten(Together):
    """A code of a scale is counted by itself and in groups, and the noise is that of one count for each column."""

    def compose(self, population):
        parts = super().compose(population)
        first, last = parts.release.mechanisms
        single = parts.learner.first.weight * math.sqrt(len(parts.learner.first.long))
        return with_release(parts, mechanisms=(dataclasses.replace(first, bound=single), last))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Again(Together):
    """Sends the mean of four noisy messages, and books one."""

    def answer(self, common, own, shard, memory, source):
        told = [super(Again, self).answer(common, own, shard, memory, part)[0] for part in source.split(4)]
        return sum(told[1:], told[0]) // 4, memory


def census(kind=Census, **settings):
    return kind(**{"epsilon": EPSILON, **SMALL, **settings})


# The law of the noise


@pytest.mark.parametrize("trust", ["silo", "central"])
@pytest.mark.parametrize("exact", [False, True], ids=["keyed", "exact"])
def test_noise_of_both_stages_has_the_scale_that_is_booked(trust, exact):
    """Silos without records: what is summed is noise, normal, of the scale of each stage."""
    shape, silos = long_schema(2_000), 3
    held = [shapes.some_records(shape, 0, seed=number) for number in range(silos)]
    clients = shapes.clients_of(shape, [*held[:-1], shapes.some_records(shape, 1, seed=1)], most=4)
    protocol = census(trust=trust, delta=1e-5)
    learner = simulation.run(protocol, clients, root=jax.random.key(1), exact_noise=exact).state.learner
    release = protocol.parts(population_of(clients)).release
    for stage, total in enumerate((learner.one_way, learner.pairs)):
        numbers = np.asarray(total, np.float64).reshape(-1)
        numbers = numbers + np.random.default_rng(stage).uniform(-0.5, 0.5, numbers.size)  # whole numbers have ties
        numbers = numbers[np.abs(stats.zscore(numbers)) < 6] / release.deviation(stage, silos)
        deviation = release.mechanisms[stage].scale * math.sqrt(silos if trust == "silo" else 1)
        assert release.deviation(stage, silos) == pytest.approx(deviation)
        low, high = (math.sqrt(stats.chi2(numbers.size).ppf(p) / numbers.size) for p in (1e-6, 1 - 1e-6))
        assert low < numbers.std() < high
        assert high < 1.3  # and a third more or less would be seen
        assert stats.kstest(numbers, "norm").pvalue > 1e-4


# Canaries and messages


def one_run(protocol, shape):
    held = [shapes.some_records(shape, 4, seed=0)]
    population = Population(schema=shape, clients=1, records=4)
    return audit_canaries(protocol, shapes.clients_of(shape, held), population, key=jax.random.key(2), confidence=0.95)


@pytest.mark.parametrize("trust", ["silo", "central"])
def test_canaries_in_one_run_and_a_tenth_of_the_noise(trust):
    shape = harbour_schema()
    guessed, scale = one_run(census(trust=trust), shape)
    assert not guessed.flagged
    assert not scale.flagged
    assert guessed.measured.epsilon > 0.2
    assert 0.9 * EPSILON < scale.certain.epsilon < EPSILON
    guessed, _ = one_run(census(Weak, trust=trust), shape)
    assert guessed.flagged


def test_a_record_in_or_out_of_one_message():
    """The right message comes near its curve and stays below; little noise is refuted, forgotten weights too."""
    silo = Population(schema=shapes.small_schema(), clients=2, records=4)
    right = audit_as_gaussian(census(Together), silo, effort=EFFORT)
    assert not right.flagged
    assert right.measured.epsilon > 0.5 * EPSILON
    assert PairTables((3, 5, 3, 2), 3).weights.min() > 2  # so that forgetting them is seen
    for wrong in (Weak, WeightsForgotten):
        assert audit_as_gaussian(census(wrong), silo, effort=EFFORT).flagged


# The recorder


def recorded(protocol, shape=None, *, pairs=1):
    shape = shapes.small_schema() if shape is None else shape
    found, population = shapes.neighbouring_clients(shape, unit="record", neighbours="zero-out")
    return audit_grey_box(protocol, found[:pairs], population, key=jax.random.key(3))


@pytest.mark.parametrize("trust", ["silo", "central"])
@pytest.mark.parametrize("stages", [1, 2])
def test_a_record_changes_what_is_noised_by_exactly_the_bound(trust, stages):
    found = recorded(census(trust=trust), long_schema() if stages == 2 else None, pairs=2)
    assert found.problems == ()
    assert found.sums == 2 * stages * (2 if trust == "silo" else 1)
    assert found.largest == 1.0


@pytest.mark.parametrize("trust", ["silo", "central"])
def test_a_record_of_a_wide_table_reaches_the_bound_and_stays_below_it(trust):
    """Weights follow from noisy counts there; whatever they are, a record changes no message by more."""
    found = recorded(census(trust=trust), wide_schema(26, nullable=False), pairs=2)
    assert found.problems == ()
    assert found.sums == 2 * 2 * (2 if trust == "silo" else 1)
    assert found.largest == 1.0


@pytest.mark.parametrize(
    "schema", [long_schema(nullable=False), wide_schema(26, nullable=False)], ids=["narrow", "wide"]
)
def test_groups_that_the_noise_does_not_cover(schema):
    found = recorded(census(GroupsForgotten), schema)
    assert any("the noise covers" in problem for problem in found.problems)
    assert found.largest > 1.4


@pytest.mark.parametrize("trust", ["silo", "central"])
@pytest.mark.parametrize(("flaw", "sentence"), [("bare", "coordinate 0"), ("smaller", "times as large")])
@pytest.mark.parametrize("stage", [0, 1])
def test_noise_that_is_missing_or_too_small_in_one_stage(trust, flaw, sentence, stage):
    found = recorded(census(Weak, trust=trust, flaw=flaw, stage=stage), long_schema())
    assert found.flagged
    assert any(sentence in problem for problem in found.problems)


@pytest.mark.parametrize("trust", ["silo", "central"])
def test_weights_that_the_noise_does_not_cover(trust):
    found = recorded(census(WeightsForgotten, trust=trust))
    assert any("the noise covers" in problem for problem in found.problems)
    assert found.largest > 2


def test_several_messages_booked_as_one():
    assert any("1/z^2" in problem for problem in recorded(census(Again)).problems)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellsFromRecords(Census):
    """Counts in cells that a silo chooses by its own records: their places tell of them beside the noise."""

    def answer(self, common, own, shard, memory, source):
        reply, memory = super().answer(common, own, shard, memory, source)
        seen = int(np.sum(np.asarray(shard.mask)))
        return np.roll(np.asarray(reply), seen, axis=-1), memory


def test_places_that_depend_on_the_records():
    assert recorded(census(CellsFromRecords)).flagged


# All of it, as asked for by name


def test_the_audit_of_the_method_by_name():
    found = audit_subject(
        Subject(name="census", epsilon=EPSILON, kind="table", settings={"trust": "central"}, seed=1), quick=True
    )
    assert not any(finding.flagged for finding in found.findings)
    assert [one.problems for one in found.recorded] == [()]
