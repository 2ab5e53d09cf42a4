"""What protects people in DP-SGD, from both sources: who is in a batch, and the noise."""

import jax
import numpy as np
import pytest

from populace.errors import SpecError
from populace.methods.blocks.composed import Composition, GaussianRelease, Wording
from populace.methods.blocks.dp_sgd import draw_batches
from populace.methods.blocks.schedules import OneShot, Passes, Sampled
from populace.privacy.gaussian import GaussianSum
from populace.privacy.noised_steps import noised_steps
from populace.privacy.source import Keyed, System

RELEASE = noised_steps(epsilon=2.0, delta=1e-5, probability=0.25, wanted=40, size=50, noise=0.0, each=1)
MASK = np.arange(100) < 80


@pytest.mark.parametrize("source", [Keyed(jax.random.key(1)), System()], ids=["keyed", "operating system"])
def test_batches_are_drawn_among_the_records_there_and_noise_has_its_scale(source):
    batches, noises = source.split(2)
    drawn, noise = draw_batches(RELEASE, batches=batches, noises=noises, mask=MASK, steps=(40,))
    drawn, noise = np.asarray(drawn), np.asarray(noise)
    assert drawn.shape == (40, 100)
    assert not drawn[:, 80:].any()
    rate = drawn[:, :80].mean()
    deviation = np.sqrt(0.25 * 0.75 / (40 * 80))
    assert abs(rate - 0.25) < 5 * deviation
    assert abs(0.35 - rate) > 5 * deviation  # another rate would be seen
    assert noise.shape == (40, 50)
    assert noise.std() == pytest.approx(RELEASE.mechanism.deviation, rel=0.1)
    assert not np.array_equal(noise[0], noise[1])


def parts(schedule, trust="silo"):
    release = GaussianRelease(
        unit="record", trust=trust, delta=1e-5, wording=Wording(mechanism="", derivation=(), assumptions=()),
        mechanism=GaussianSum(bound=1.0, noise_multiplier=4.0, size=3),
    )  # fmt: skip
    return Composition(schedule, release, None)


def test_a_release_that_would_add_no_noise_or_be_paid_for_once_is_refused():
    parts(OneShot(clients=5, block=2))
    parts(Passes(clients=5, cohort_size=2))
    with pytest.raises(SpecError, match="silo, secure-sum, central"):
        parts(OneShot(clients=5, block=2), trust="local")
    again = Passes(clients=5, cohort_size=2, passes=3)
    for schedule in (again, Sampled(clients=5, wanted=2), Sampled(clients=5, wanted=1, sampling_rate=0.5)):
        with pytest.raises(SpecError, match=r"covers 1 replies|drawn in secret"):
            parts(schedule)
