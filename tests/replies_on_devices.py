"""Replies of clients on however many devices there are, as JSON: of a process of its own, or of the one that imports this."""

import json

import jax
import numpy as np

from builders import Diary
from populace.engines import simulation
from populace.methods.baselines.independent import Independent
from populace.methods.moments.protocol import Moments
from populace.tables.embedded import harbour
from populace.tables.partition import split


def replies():
    clients = split(harbour().take(np.arange(101)), records_per_client=1)
    found = {"devices": len(jax.devices())}
    for compiled in (False, True):
        method = Independent(epsilon=1.0, clients_per_batch=50)
        outcome = simulation.run(method, clients, root=jax.random.key(0), compiled=compiled)
        found[f"independent {compiled}"] = np.asarray(outcome.state.learner.counts.supports).tolist()
        outcome = simulation.run(Diary(cohort=6, total_rounds=3), clients, root=jax.random.key(0), compiled=compiled)
        found[f"diary {compiled}"] = np.round(np.asarray(outcome.state.total), 3).tolist()
    silos = split(harbour().take(np.arange(120)), records_per_client=15)
    moments = Moments(epsilon=1.0)
    keyed, again, first, second = (
        np.asarray(simulation.run(moments, silos, root=jax.random.key(0), exact_noise=exact).state.learner.total)
        for exact in (False, False, True, True)
    )
    deviation = moments.parts(simulation.population_of(silos)).release.mechanism.deviation
    found["moments"] = keyed.tolist()
    found["keyed noise again"] = np.array_equal(keyed, again)
    found["exact noise apart, in deviations"] = float(np.std(first - second) / deviation)
    return found


if __name__ == "__main__":
    print(json.dumps(replies()))  # noqa: T201
