"""Four devices give the replies of one."""

import json
import os
import subprocess
import sys
import textwrap

SCRIPT = textwrap.dedent("""
    import json, sys
    import jax, numpy as np
    sys.path.insert(0, "tests")
    from builders import Diary
    from populace.engines import simulation
    from populace.methods.baselines.independent import Independent
    from populace.methods.moments.protocol import Moments
    from populace.tables.embedded import harbour
    from populace.tables.partition import split
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
    print(json.dumps(found))
""")


def run(devices):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=env, check=True)
    return json.loads(done.stdout)


def test_replies_do_not_depend_on_the_number_of_devices():
    one, four = run(1), run(4)
    assert (one.pop("devices"), four.pop("devices")) == (1, 4)
    for found in (one, four):
        assert found.pop("keyed noise again")
        apart = found.pop("exact noise apart, in deviations")  # two runs of eight silos, whose noise is independent
        assert 0.85 * 4 < apart < 1.15 * 4
    assert one == four
    assert one["independent True"] == one["independent False"]
