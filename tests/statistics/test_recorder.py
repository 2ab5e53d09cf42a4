"""The grey-box recorder: every method passes it, and what is planted around or inside the mechanisms is caught and named."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from populace.audits import shapes
from populace.audits.grey_box import audit_grey_box, parts_of
from populace.audits.methods import Subject, audited_methods, grey_box
from populace.audits.recorder import Recorder, recording
from populace.errors import SpecError
from populace.methods.baselines.independent import Independent
from populace.methods.gan.fl_gan import FlGan
from populace.methods.moments.protocol import Moments
from populace.methods.registry import protocol_class
from populace.methods.vae.c_dpd_vae import CDpdVae
from populace.methods.vae.l_dpd_vae import LDpdVae
from populace.privacy.events import Composed, Gaussian, PoissonSampled, Pure, Repeated
from populace.privacy.gaussian import GaussianSum
from populace.privacy.ledger import Charge
from populace.privacy.source import Keyed

EPSILON = 2.0
QUICK = {("independent", "local", "table"), ("krr", "local", "table"), ("lopub", "local", "table"),
         ("moments", "silo", "table"), ("moments", "central", "images"),
         ("census", "silo", "table"), ("census", "central", "table"),
         ("census", "secure-sum", "table")}  # fmt: skip
SMALL_VAE = {
    "participations": 1,
    "batch_size": 2,
    "sleep_steps": 1,
    "hidden_size": 4,
    "latent_size": 2,
    "basis_size": 4,
}


def everything():
    return [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in audited_methods()]


@pytest.mark.parametrize(("name", "trust", "kind"), everything())
def test_every_method_releases_what_it_says_and_nothing_else(name, trust, kind):
    settings = {"trust": trust} if len(protocol_class(name).facts.trust) > 1 else {}
    found = grey_box(Subject(name=name, epsilon=EPSILON, kind=kind, settings=settings, seed=1), quick=True)
    assert found.problems == ()
    if trust == "local":
        assert found.reports > 0
        assert found.neighbours == "replace"
    else:
        assert found.sums > 0
        assert found.neighbours == "zero-out"
        assert 0.8 < found.largest < 1.01  # the worst record is as long as the bound: the check has something to see


def recorded(protocol, kind="table", *, pairs=1):
    shape = shapes.shape_for(kind)
    claim = protocol.guarantee(shapes.neighbouring_clients(shape, unit="record", neighbours="zero-out")[1])
    found, population = shapes.neighbouring_clients(shape, unit=claim.unit, neighbours=claim.neighbours)
    return audit_grey_box(protocol, found[:pairs], population, key=jax.random.key(3))


def with_mechanism(parts, kind):
    """The same parts of a method with a mechanism of another class."""
    right = parts.release.mechanism
    wrong = kind(**{field.name: getattr(right, field.name) for field in dataclasses.fields(GaussianSum)})
    release = dataclasses.replace(parts.release, mechanism=wrong)
    return dataclasses.replace(parts, release=release, learner=dataclasses.replace(parts.learner, release=release))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstCoordinateBare(GaussianSum):
    """Adds no noise to its first coordinate."""

    def noise(self, source, shape=None):
        return jnp.asarray(super().noise(source, shape)).at[..., 0].set(0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenthOfTheNoise(GaussianSum):
    def noise(self, source, shape=None):
        return jnp.asarray(super().noise(source, shape)) // 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Careless(Moments):
    """`moments` whose mechanism is of another class."""

    flaw: str = "bare"

    def compose(self, population):
        kind = {"bare": FirstCoordinateBare, "tenth": TenthOfTheNoise}[self.flaw]
        return with_mechanism(super().compose(population), kind)


@pytest.mark.parametrize(("flaw", "sentence"), [("bare", "coordinate 0"), ("tenth", "times as large")])
@pytest.mark.parametrize("trust", ["silo", "central"])
def test_noise_that_is_missing_or_too_small(flaw, sentence, trust):
    found = recorded(Careless(epsilon=EPSILON, flaw=flaw, trust=trust))
    assert found.flagged
    assert any(sentence in problem for problem in found.problems)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseForgottenOnce(Moments):
    """Draws noise, books it, and adds it everywhere but to the first number."""

    def answer(self, common, own, shard, memory, source):
        mechanism = self.parts(shard.population).release.mechanism
        reply, memory = super().answer(common, own, shard, memory, source)
        return reply.at[0].add(-jnp.asarray(mechanism.noise(source))[0]), memory


def test_noise_drawn_and_not_added_to_one_number():
    assert recorded(NoiseForgottenOnce(epsilon=EPSILON)).flagged


@dataclasses.dataclass(frozen=True, kw_only=True)
class Longer(Moments):
    """Counts every record three times, and is calibrated to one."""

    def answer(self, common, own, shard, memory, source):
        thrice = dataclasses.replace(
            shard, records=jax.tree.map(lambda rows: jnp.concatenate([jnp.asarray(rows)] * 3), shard.records),
            mask=jnp.concatenate([jnp.asarray(shard.mask)] * 3),
        )  # fmt: skip
        return super().answer(common, own, thrice, memory, source)


def test_a_record_that_counts_more_than_its_bound():
    found = recorded(Longer(epsilon=EPSILON))
    assert any("the noise covers" in problem for problem in found.problems)
    assert found.largest > 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClippingForgotten(CDpdVae):
    """The change of a client goes to the server at ten times the bound."""

    def answer(self, common, own, shard, memory, source):
        reply, memory = super().answer(common, own, shard, memory, source)
        return {**reply, "change": 10 * reply["change"]}, memory


def test_clipping_that_is_forgotten_at_a_client_of_a_central_method():
    settings = {
        "rounds": 2,
        "sampling_rate": 1.0,
        "local_epochs": 1,
        "batch_size": 4,
        "clip_norm": 0.001,
        "hidden_size": 4,
        "latent_size": 2,
    }
    assert recorded(CDpdVae(epsilon=EPSILON, **settings)).problems == ()
    found = recorded(ClippingForgotten(epsilon=EPSILON, **settings))
    assert any("the noise covers" in problem for problem in found.problems)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountBeside(Independent):
    """Tells, beside its report, how many records it holds."""

    def answer(self, common, own, shard, memory, source):
        report, memory = super().answer(common, own, shard, memory, source)
        return jnp.concatenate([report, jnp.asarray([jnp.sum(jnp.asarray(shard.mask)) > 2])]), memory

    def absorb(self, state, ask, replies, source):
        return super().absorb(state, ask, dataclasses.replace(replies, values=replies.values[:, :-1]), source)


def test_an_exact_count_beside_the_report():
    found = recorded(CountBeside(epsilon=EPSILON), pairs=None)
    assert any("the reply differs" in problem for problem in found.problems)
    assert recorded(Independent(epsilon=EPSILON), pairs=None).problems == ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoForOne(Independent):
    """Answers twice, books once."""

    def answer(self, common, own, shard, memory, source):
        first, second = source.split(2)
        reports = [super(TwoForOne, self).answer(common, own, shard, memory, part)[0] for part in (first, second)]
        return reports[0] ^ reports[1], memory


def test_two_reports_booked_as_one():
    found = recorded(TwoForOne(epsilon=EPSILON))
    assert any("epsilon 2 was booked and 4 was spent" in problem for problem in found.problems)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoSumsForOne(Moments):
    """Noises its sum twice and sends the mean: half the variance, one release booked."""

    def answer(self, common, own, shard, memory, source):
        first, second = source.split(2)
        told = [super(TwoSumsForOne, self).answer(common, own, shard, memory, part)[0] for part in (first, second)]
        return (told[0] + told[1]) // 2, memory


def test_two_sums_booked_as_one():
    found = recorded(TwoSumsForOne(epsilon=EPSILON))
    assert any("1/z^2" in problem for problem in found.problems)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChargedLess(LDpdVae):
    """Books a reply of one step for one of two."""

    def charge(self, ask, population):
        return Charge(event=self.parts(population).release.steps.event(1), unit="record")


def test_steps_that_are_not_booked():
    settings = {**SMALL_VAE, "local_steps": 2}
    assert recorded(LDpdVae(epsilon=EPSILON, **settings)).problems == ()
    found = recorded(ChargedLess(epsilon=EPSILON, **settings))
    assert any("1/z^2" in problem for problem in found.problems)
    assert any("sampling was booked" in problem for problem in found.problems)


@dataclasses.dataclass(frozen=True)
class Leaning:
    """A source whose coins land more often where a client holds more records."""

    inner: object
    rate: float

    def split(self, count):
        return tuple(Leaning(part, self.rate) for part in self.inner.split(count))

    def coins(self, probability, shape):
        return self.inner.coins(self.rate, shape)

    def __getattr__(self, name):
        return getattr(self.inner, name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateFromRecords(LDpdVae):
    def answer(self, common, own, shard, memory, source):
        rate = 0.5 if int(jnp.sum(jnp.asarray(shard.mask))) > 3 else 0.6
        batches, *others = source.split(4)
        parts = (Leaning(batches, rate), *others)

        class Dealt:
            def split(self, count):
                return parts

        return super().answer(common, own, shard, memory, Dealt())


def test_a_sampling_rate_that_depends_on_the_records():
    found = recorded(RateFromRecords(epsilon=EPSILON, **SMALL_VAE))
    assert any("records are sampled with" in problem for problem in found.problems)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoundFromRecords(Moments):
    """Calibrates its noise to the records it sees."""

    def answer(self, common, own, shard, memory, source):
        mechanism = self.parts(shard.population).release.mechanism
        seen = int(jnp.sum(jnp.asarray(shard.mask)))
        other = dataclasses.replace(mechanism, noise_multiplier=mechanism.noise_multiplier * (1 + seen))
        bare, _ = Moments(epsilon=self.epsilon, trust="central").answer(common, own, shard, memory, source)
        return bare + jnp.asarray(other.noise(source)), memory


def test_a_mechanism_that_depends_on_the_records():
    found = recorded(BoundFromRecords(epsilon=EPSILON))
    assert any("another mechanism" in problem for problem in found.problems)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordsInTheGenerator(FlGan):
    """The generator that travels has seen the records: their mean is added to it."""

    def answer(self, common, own, shard, memory, source):
        found, memory = super().answer(common, own, shard, memory, source)
        mean = jnp.mean(jnp.asarray(shard.records, jnp.float32) * jnp.asarray(shard.mask)[:, None])
        return {**found, "theta": found["theta"] + 1e-6 * mean}, memory


@pytest.mark.slow
def test_a_trace_of_records_in_what_travels():
    settings = {
        "generator_steps": 1, "critic_steps": 1, "batch_size": 2, "hidden_size": 4, "critic_hidden_size": 4, "latent_size": 2,
    }  # fmt: skip
    found = recorded(RecordsInTheGenerator(epsilon=EPSILON, **settings))
    assert any("the reply differs" in problem and "theta" in problem for problem in found.problems)


def test_primitives_are_put_back_and_compiled_code_passes_through():
    before = {name: GaussianSum.__dict__[name] for name in ("noise", "release", "apply")}
    mechanism = GaussianSum(bound=1.0, noise_multiplier=1.0, size=3)
    recorder = Recorder()

    def use():
        with recording(recorder):
            mechanism.apply(jnp.zeros(3), Keyed(jax.random.key(0)))
            jax.jit(lambda key: mechanism.apply(jnp.zeros(3), Keyed(key)))(jax.random.key(0))
            raise SpecError("whatever happens")

    with pytest.raises(SpecError):
        use()
    assert {name: GaussianSum.__dict__[name] for name in before} == before
    assert [call.kind for call in recorder.calls] == ["noise", "sum"]
    assert recorder.problems == []


def test_noise_used_twice_and_noise_of_another():
    mechanism = GaussianSum(bound=1.0, noise_multiplier=1.0, size=3)
    for noise in (lambda drawn: drawn, lambda drawn: drawn + 1):
        recorder = Recorder()
        with recording(recorder):
            drawn = mechanism.noise(Keyed(jax.random.key(0)))
            mechanism.release(jnp.zeros(3), drawn)
            assert recorder.problems == []
            mechanism.release(jnp.ones(3), noise(drawn))
        assert len(recorder.problems) == 1


def test_an_event_is_taken_apart():
    event = Composed((Repeated(PoissonSampled(0.5, Gaussian(2.0)), 3), Gaussian(4.0), Pure(1.0)))
    found = {(part.value, part.probability, part.count, part.pure) for part in parts_of(event)}
    assert found == {(2.0, 0.5, 3, False), (4.0, 1.0, 1, False), (1.0, 1.0, 1, True)}


def test_neighbours_share_their_public_shape():
    for kind, unit in (("table", "record"), ("images", "record"), ("table", "client")):
        pairs, population = shapes.neighbouring_clients(shapes.shape_for(kind), unit=unit, neighbours="zero-out")
        for pair in pairs:
            gap = pair.first.widths - pair.second.widths
            assert gap.tolist() == [1 if unit == "record" else population.records, 0]
            assert pair.first.widest == pair.second.widest == population.records
