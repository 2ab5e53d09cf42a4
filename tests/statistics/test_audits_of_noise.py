"""Audits of Gaussian releases: right noise passes at both faces, planted wrong noise is refuted.

A right mechanism is refuted once in a million audits; the seeds are fixed, so a test that passes goes on passing.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from populace.audits import shapes
from populace.audits.gaussian_noise import (
    DELTA,
    FACES,
    NUMBERS,
    audit_gaussian,
    audit_noise,
    check_noise,
    repeats,
    scale_finding,
    with_noise_times,
)
from populace.audits.messages import Effort, audit_as_gaussian, audit_method
from populace.audits.methods import Subject, audit_subject, canaries
from populace.audits.release_canaries import audit_canaries
from populace.errors import SpecError
from populace.evaluation.audit import gaussian_bound
from populace.methods.base import Population
from populace.methods.gan.fedavg_gan import FedAvgGan
from populace.methods.moments.protocol import Moments
from populace.methods.vae.l_dpd_vae import LDpdVae
from populace.privacy.events import Composed, Gaussian, PoissonSampled, Pure, Repeated
from populace.privacy.gaussian import GaussianSum, calibrated

EPSILON = 2.0
EFFORT = Effort(samples=20_000, seed=1)
LITTLE = Effort(samples=5_000, seed=1)  # enough for what is planted
SILO = Population(schema=shapes.small_schema(), clients=2, records=4)


@pytest.fixture(scope="module")
def mechanism():
    return calibrated(epsilon=EPSILON, delta=DELTA, bound=1.0, size=NUMBERS)


@pytest.mark.parametrize("face", FACES)
def test_both_faces_pass_and_their_scale_is_measured_within_a_hundredth(face):
    finding, check = audit_gaussian(epsilon=EPSILON, face=face, confidence=0.95, key=jax.random.key(1))
    assert check.problems == ()
    assert not finding.flagged
    assert 0.99 * EPSILON < finding.certain.epsilon < EPSILON


def float_noise(mechanism):
    """The noise that was: a 32-bit float normal, rounded. It has 2^23 values and gaps beyond three deviations."""
    drawn = jax.random.normal(jax.random.key(1), (mechanism.size,), jnp.float32)
    return jnp.round(drawn * mechanism.deviation).astype(jnp.int32)


def test_noise_from_floats_is_caught_by_its_gaps(mechanism):
    finding, check = audit_noise(mechanism, functools.partial(float_noise, mechanism), what="floats", confidence=0.95)
    assert not finding.flagged  # its scale is right
    assert check.flagged
    assert any("values seen twice beyond 3" in problem for problem in check.problems)
    assert check.figures["values seen twice beyond 3 deviations, over expected"] > 10


@pytest.mark.parametrize("factor", [0.1, 0.97, 1.03])
def test_a_wrong_scale_is_caught(mechanism, factor):
    whole = np.rint(factor * mechanism.deviation * np.random.default_rng(0).standard_normal(mechanism.size))
    finding, check = audit_noise(mechanism, lambda: whole, what="other", confidence=0.95)
    assert any("scale" in problem for problem in check.problems)
    assert finding.flagged == (factor < 1)


def test_other_laws_are_caught(mechanism):
    """Laplace noise of the right variance; noise cut off at three deviations; noise that repeats its neighbour."""
    rng = np.random.default_rng(0)
    right = np.rint(mechanism.deviation * rng.standard_normal(mechanism.size))
    assert check_noise(right, mechanism.deviation, what="").problems == ()
    laplace = np.rint(rng.laplace(scale=mechanism.deviation / np.sqrt(2), size=mechanism.size))
    cut = np.clip(right, -3 * mechanism.deviation, 3 * mechanism.deviation)
    kept = right + np.roll(right, 1)
    for wrong in (laplace, cut, np.rint(kept / np.sqrt(2))):
        assert check_noise(wrong, mechanism.deviation, what="").flagged


def test_expected_repeats_agree_with_counting():
    """Against the exact sum over the grid."""
    deviation, count = 50.0, 10_000
    grid = np.arange(-600, 601)
    law = stats.norm(scale=deviation)
    p = law.cdf(grid + 0.5) - law.cdf(grid - 0.5)
    for least in (0.0, 2.0):
        far = p[np.abs(grid) > least * deviation] if least else p
        mean, spread = repeats(count, deviation, least)
        assert mean == pytest.approx(count * (count - 1) / 2 * (far**2).sum(), rel=0.05)
        assert spread > np.sqrt(mean) * 0.99


def test_the_bound_on_mu_is_that_of_the_curve():
    trials, mu = 1_000_000, 0.5
    hits = [int(trials * stats.norm.sf(0.2 - shift)) for shift in (mu, 0.0)]
    found = float(gaussian_bound(*hits, trials, alpha=1e-6))
    assert 0.97 * mu < found < mu
    assert gaussian_bound(hits[1], hits[0], trials, alpha=1e-6) == 0


def test_events_with_other_noise():
    event = Composed((Repeated(PoissonSampled(0.5, Gaussian(2.0)), 3), Gaussian(4.0)))
    assert with_noise_times(event, 2.0) == Composed((Repeated(PoissonSampled(0.5, Gaussian(4.0)), 3), Gaussian(8.0)))
    with pytest.raises(SpecError, match="no Gaussian noise"):
        with_noise_times(Pure(1.0), 2.0)
    with pytest.raises(SpecError, match="face"):
        audit_gaussian(epsilon=1.0, face="other", confidence=0.95, key=jax.random.key(0))


def test_a_larger_sample_says_more():
    rng = np.random.default_rng(0)
    few, many = (
        scale_finding(rng.standard_normal(n), Gaussian(2.0), what="", claimed=2.0, delta=DELTA, confidence=0.95)
        for n in (1_000, 100_000)
    )
    assert few.certain.epsilon < many.certain.epsilon < 2.5
    assert few.certain.epsilon < few.measured.epsilon


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tenth(GaussianSum):
    """A tenth of the noise, drawn by itself."""

    def noise(self, source, shape=None):
        return dataclasses.replace(self._right(), noise_multiplier=self.noise_multiplier / 10).noise(source, shape)

    def _right(self):
        return GaussianSum(bound=self.bound, noise_multiplier=self.noise_multiplier, size=self.size)


def weak(parts):
    """The parts of a method whose noise is drawn by `Tenth`."""
    steps = getattr(parts.release, "steps", None)
    right = (steps or parts.release).mechanism
    made = Tenth(**{field.name: getattr(right, field.name) for field in dataclasses.fields(GaussianSum)})
    changed = {"steps": dataclasses.replace(steps, mechanism=made)} if steps else {"mechanism": made}
    release = dataclasses.replace(parts.release, **changed)
    return dataclasses.replace(parts, release=release, learner=dataclasses.replace(parts.learner, release=release))


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeakMoments(Moments):
    def compose(self, population):
        return weak(super().compose(population))


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeakFedAvg(FedAvgGan):
    def compose(self, population):
        return weak(super().compose(population))


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeakVae(LDpdVae):
    def compose(self, population):
        return weak(super().compose(population))


def test_a_record_in_or_out_of_one_message():
    """The best test of a Gaussian release comes near its curve, and a tenth of its noise is far beyond it."""
    right = audit_as_gaussian(Moments(epsilon=EPSILON), SILO, effort=EFFORT)
    assert not right.flagged
    assert right.measured.epsilon > 0.5 * EPSILON
    assert audit_as_gaussian(WeakMoments(epsilon=EPSILON), SILO, effort=LITTLE).flagged
    assert audit_method(WeakMoments(epsilon=EPSILON), SILO, effort=LITTLE).flagged


@dataclasses.dataclass(frozen=True, kw_only=True)
class Again(Moments):
    """Answers twice and books it once: the second message halves the noise."""

    def answer(self, common, own, shard, memory, source):
        parts = source.split(8)
        told = [super(Again, self).answer(common, own, shard, memory, part)[0] for part in parts]
        return jnp.stack(told), memory


def test_a_second_answer_booked_once():
    """Eight answers, to be seen in few samples."""
    found = audit_as_gaussian(Again(epsilon=EPSILON), SILO, effort=LITTLE)
    assert found.flagged


def one_run(protocol, clients=2, *, shape=None):
    shape = shapes.small_schema() if shape is None else shape
    held = [shapes.some_records(shape, 4, seed=number) for number in range(clients)]
    population = Population(schema=shape, clients=clients, records=4)
    return audit_canaries(protocol, shapes.clients_of(shape, held), population, key=jax.random.key(2), confidence=0.95)


GAN = {
    "rounds": 2, "sampling_rate": 0.5, "local_steps": 1, "batch_size": 2, "hidden_size": 4, "critic_hidden_size": 64,
    "latent_size": 2,
}  # fmt: skip
VAE = {"participations": 2, "batch_size": 2, "sleep_steps": 1, "hidden_size": 160, "latent_size": 16}


@pytest.mark.parametrize(("right", "wrong", "settings", "clients"), [
    (FedAvgGan, WeakFedAvg, GAN, 2), pytest.param(LDpdVae, WeakVae, VAE, 1, marks=pytest.mark.slow),
])  # fmt: skip
def test_canaries_in_one_run_and_a_tenth_of_the_noise(right, wrong, settings, clients):
    guessed, scale = one_run(right(epsilon=EPSILON, **settings), clients)
    assert not guessed.flagged
    assert not scale.flagged
    assert guessed.measured.epsilon > 0.2
    assert 0.9 * EPSILON < scale.certain.epsilon < EPSILON
    guessed, scale = one_run(wrong(epsilon=EPSILON, **settings), clients)
    assert guessed.flagged  # one run, at 1 - 1e-6
    assert scale.flagged


def test_canaries_go_along_with_noise_that_a_method_adds_itself():
    for trust in ("silo", "central"):
        shape = shapes.shape_for("images")
        guessed, scale = one_run(Moments(epsilon=8.0, trust=trust, side=8), 1, shape=shape)
        assert not guessed.flagged
        assert not scale.flagged
        assert guessed.measured.epsilon > 1.0
        assert guessed.samples > 1_000


def test_canaries_need_a_place():
    with pytest.raises(SpecError, match="nowhere to put canaries"):
        one_run(Moments(epsilon=EPSILON), 1)


def test_a_finding_says_whom_it_is_about():
    subject = Subject(name="moments", epsilon=EPSILON, kind="images", settings={"trust": "central"}, seed=1)
    found = audit_subject(subject)
    for finding in found.findings:
        assert finding.row().items() >= {"unit": "record", "neighbours": "zero-out", "trust": "central"}.items()
        assert finding.row()["confidence"] == 0.95
        assert finding.row()["delta"] in (1e-12, subject.claim.delta)
        assert not finding.flagged
    assert [record.problems for record in found.recorded] == [()]
    assert canaries(subject)[0].what.startswith("moments, central, images")


def test_what_claims_nothing_is_not_audited():
    with pytest.raises(SpecError, match="claims nothing"):
        audit_subject(Subject(name="fed-vae", epsilon=EPSILON, kind="table"))
    with pytest.raises(SpecError, match="claims nothing"):
        audit_subject(Subject(name="fl-gan", epsilon=EPSILON, kind="table", settings={"recipe": "paper"}))
    with pytest.raises(SpecError, match="--exact"):
        audit_subject(Subject(name="moments", epsilon=EPSILON, kind="table"), exact=True)
