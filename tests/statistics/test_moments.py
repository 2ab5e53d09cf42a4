"""`moments` as a whole: the noise in its total has the scale claimed and no other, and canaries see no more than is claimed."""

import functools
import math

import jax
import numpy as np
import pytest
from scipy import stats

from populace.engines import debug, simulation
from populace.evaluation.canaries import audit_scores
from populace.methods.moments.protocol import Moments
from populace.methods.moments.sums import summed
from populace.privacy.gaussian import rescaled
from populace.tables.images import Images
from populace.tables.partition import split

SHAPE, CLASSES, SIDE = (16, 16), 4, 8
DELTA = 1e-5
ACCEPT, REJECT = 1e-4, 1e-12


def canaries():
    """Images that differ as much as can be: each a wave of its own, of each class."""
    protocol = Moments(epsilon=1.0, side=SIDE)
    blank = Images(x=np.zeros((2, *SHAPE), np.uint8), y=np.zeros(2, np.int32), classes=CLASSES)
    features = protocol.parts(simulation.population_of(split(blank, records_per_client=1))).learner.features
    waves = features.basis[1 : 1 + 60].reshape(-1, *SHAPE)
    x = np.concatenate([np.where(waves > 0, 255, 0).astype(np.uint8)] * CLASSES)
    return Images(x=x, y=np.repeat(np.arange(CLASSES, dtype=np.int32), len(waves)), classes=CLASSES)


def noise_left(protocol, images, per_client, *, key, exact=False):
    """The noise in the total, in units of the grid, and the design."""
    clients = split(images, records_per_client=per_client)
    run = debug.run if exact else simulation.run
    outcome = run(protocol, clients, root=jax.random.key(key), **({"exact": True} if exact else {}))
    design = protocol.parts(outcome.state.population).learner
    parts = [
        np.asarray(
            protocol_sum(design, jax.tree.map(lambda leaf, c=c: leaf[0], clients.gather(np.array([c]))[0])), np.int64
        )
        for c in range(len(clients))
    ]
    whole = sum(np.asarray(rescaled(part, design.shift)) for part in parts)
    return outcome.state.learner.total - whole, design, len(clients)


@functools.partial(jax.jit, static_argnums=0)
def protocol_sum(design, records):
    return summed(design.features, design.layout, records, np.ones(len(records["y"]), bool))


@pytest.mark.parametrize(("trust", "exact"), [("silo", False), ("silo", True), ("central", False)])
def test_the_scale_of_the_noise_is_accepted_and_nine_tenths_of_it_rejected(trust, exact):
    protocol = Moments(epsilon=2.0, delta=DELTA, trust=trust, side=SIDE, covariance="class", clients_per_batch=4)
    left, design, clients = noise_left(protocol, canaries(), 40, key=3, exact=exact)
    deviation = design.mechanism.deviation * math.sqrt(clients if trust == "silo" else 1)
    square = float((left.astype(float) ** 2).sum())
    for scale, accepted in ((1.0, True), (0.9, False), (1.1, False)):
        tail = stats.chi2(left.size).sf(square / (scale * deviation) ** 2)
        p = 2 * min(tail, 1 - tail)
        assert (p > ACCEPT) if accepted else (p < REJECT)
    assert stats.kstest(left[::7] / deviation, "norm").pvalue > ACCEPT


@pytest.mark.parametrize(("trust", "per_client"), [("central", 20), ("silo", 240)])
@pytest.mark.parametrize("broken", [False, True])
def test_canaries_agree_with_the_claim_and_a_tenth_of_the_noise_is_caught(trust, per_client, broken):
    """One run (Steinke et al. 2023): every canary is in or out by a coin; least squares guesses which."""
    epsilon = 2.0 if broken else 8.0
    some = canaries()
    rng = np.random.default_rng(0)
    included = rng.random(len(some)) < 0.5
    # The number of clients and the most records of one are public and stay: who is left out is replaced by nobody.
    protocol = Moments(epsilon=epsilon, delta=DELTA, trust=trust, side=SIDE, covariance="class")
    clients = split(some, records_per_client=per_client)
    population = simulation.population_of(clients)
    design = protocol.parts(population).learner
    each = np.stack(
        [
            np.asarray(protocol_sum(design, {"x": some.x[i : i + 1], "y": some.y[i : i + 1]}), np.float64)
            for i in range(len(some))
        ]
    )
    scale = design.mechanism.scale * (0.1 if broken else 1.0)
    released = included @ each + scale * rng.standard_normal(each.shape[1])
    scores = np.linalg.lstsq(each.T, released, rcond=None)[0]
    found = audit_scores(scores, included, delta=DELTA, confidence=0.95, guesses=len(some))
    claim = protocol.guarantee(population).epsilon
    if broken:
        assert found.epsilon > claim
    else:
        assert 0.5 < found.epsilon <= claim  # it does see something: the audit has power


def test_the_release_audited_is_the_one_that_is_made():
    """Sum plus noise of the mechanism's scale, as assumed above, is what a run adds up."""
    protocol = Moments(epsilon=2.0, delta=DELTA, trust="central", side=SIDE, covariance="class")
    left, design, _ = noise_left(protocol, canaries(), 20, key=9)
    assert left.std() == pytest.approx(design.mechanism.deviation, rel=0.03)
