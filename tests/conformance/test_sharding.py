"""Four devices give the replies of one."""

import json
import os
import subprocess
import sys

import jax

import replies_on_devices


def run(devices):
    """In a process that has so many devices: this one, if it does."""
    if len(jax.devices()) == devices:
        return replies_on_devices.replies()
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, replies_on_devices.__file__]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    return json.loads(done.stdout)


def test_replies_do_not_depend_on_the_number_of_devices():
    one, four = json.loads(json.dumps(run(1))), run(4)
    assert (one.pop("devices"), four.pop("devices")) == (1, 4)
    for found in (one, four):
        assert found.pop("keyed noise again")
        apart = found.pop("exact noise apart, in deviations")  # two runs of eight silos, whose noise is independent
        assert 0.85 * 4 < apart < 1.15 * 4
    assert one == four
    assert one["independent True"] == one["independent False"]
