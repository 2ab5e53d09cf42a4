"""The VAE methods on tiny images: simulation and debug engine alike; images by label; the same after saving."""

import jax
import numpy as np
import pytest

from populace.engines import debug, simulation
from populace.methods.registry import load_generator, make_protocol
from populace.tables.images import Images
from populace.tables.partition import split

LABELS, SHAPE = 3, (6, 6)
TINY = {"hidden_size": 2, "latent_size": 2}
LOCAL = {"participations": 2, "batch_size": 1, "sleep_steps": 1, **TINY}
FEDERATED = {"rounds": 2, "local_epochs": 1, "batch_size": 2, **TINY}
METHODS = {
    "central-vae": {"training_steps": 2, "net": "basis", **TINY},
    "l-dpd-vae, joint": {"encoder": "joint", **LOCAL},
    "l-dpd-vae, sleep": {"encoder": "sleep", **LOCAL},
    "l-dpd-vae, frozen": {"encoder": "frozen", **LOCAL},
    "l-dpd-vae, paper": {"encoder": "paper", **LOCAL},
    "l-dpd-vae, quantile": {
        "encoder": "frozen",
        "clip_quantile": 0.5,
        "local_steps": 2,
        "local_optimizer": "adam",
        **LOCAL,
    },
    "c-dpd-vae": {"sampling_rate": 0.5, "net": "basis", **FEDERATED},
    "c-dpd-vae, whole": {"sampling_rate": 0.5, "shared": "whole", "clip_quantile": 0.5, **FEDERATED},
    "fed-vae": {"sampling_rate": 1.0, **FEDERATED},
    "fed-vae, whole": {"sampling_rate": 0.5, "shared": "whole", "clip_norm": 0.1, "noise_deviation": 0.01, **FEDERATED},
}
QUICK = ("central-vae",)  # the others have quicker neighbours: their tables in test_protocols


@pytest.fixture(scope="module")
def clients():
    """Of unequal size; the last holds one image of two."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (7, *SHAPE)).astype(np.uint8)
    return split(Images(x=x, y=np.arange(7) % LABELS, classes=LABELS), records_per_client=2)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_images_on_simulation_and_debug_alike_and_by_label(name, clients, tmp_path):
    protocol = make_protocol(name.split(",")[0], {"epsilon": 2.0, **METHODS[name]})
    fast = simulation.run(protocol, clients, root=jax.random.key(5))
    slow = debug.run(protocol, clients, root=jax.random.key(5))
    for a, b in zip(*map(jax.tree.leaves, (fast.state, slow.state)), strict=True):
        if not jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(a, b, atol=1e-4)
    assert fast.traffic == slow.traffic
    assert fast.ledger.spent() == slow.ledger.spent()
    fast.generator.save(tmp_path)
    first, again = (each.sample(6, jax.random.key(1)) for each in (fast.generator, load_generator(tmp_path)))
    assert (first.x.shape, first.classes) == ((6, *SHAPE), LABELS)
    np.testing.assert_array_equal(first.x, again.x)
    np.testing.assert_array_equal(first.y, again.y)
    wanted = fast.generator.sample(6, jax.random.key(2), {"label": "1"})
    assert (wanted.y == 1).all()
    assert (wanted.x != first.x).any()
