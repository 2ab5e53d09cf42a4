"""`genfl` on NVIDIA FLARE: images at three sites in processes of their own; both stages, one ledger at each client."""

import numpy as np
import pytest

from federation_for_tests import TestFederation, assert_alike, environment
from populace.engines import simulation
from populace.engines.runtime import make_key
from populace.methods.genfl.protocol import GenFl
from populace.tables.images import Images
from populace.tables.partition import split

pytest.importorskip("nvflare")
# As in the other federations: sockets that nvflare leaves open are collected while a later test runs.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

RECORDS = 4
MIXED = GenFl(
    epsilon=2.0, synthetic_share=0.5, generator_steps=1, critic_steps=2, gan_batch_size=2, rounds=2, batch_size=4,
    features=1, hidden_size=3, critic_hidden_size=3, latent_size=2, basis_size=2,
)  # fmt: skip


@pytest.mark.slow
def test_three_sites_end_where_a_simulation_ends(tmp_path):
    rng = np.random.default_rng(0)
    images = Images(x=rng.integers(0, 256, (16, 5, 5)).astype(np.uint8), y=np.arange(16) % 2, classes=2)
    with environment():
        made = TestFederation(tmp_path, images, [MIXED], records=RECORDS)
        found, charges = made.ran("genfl", MIXED)
    wanted = simulation.run(MIXED, split(images, records_per_client=RECORDS), root=make_key(5))
    assert_alike(found, wanted.state)
    assert made.hosted() == {"site-1": 2, "site-2": 1, "site-3": 1}
    assert charges == {site: [wanted.rounds] * count for site, count in made.hosted().items()}
