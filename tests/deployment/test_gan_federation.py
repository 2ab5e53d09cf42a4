"""`ufl-gan` on NVIDIA FLARE: the model travels over three sites in processes of their own, each ledger charged once.

A federation of its own: its sites' limits are per record, and a ledger per client refuses charges per record.
"""

import pytest

from federation_for_tests import TestFederation, assert_alike, environment
from populace.engines import simulation
from populace.engines.runtime import make_key
from populace.methods.gan.fl_gan import UflGan
from populace.tables.partition import split

pytest.importorskip("nvflare")
# As in the other federations: sockets that nvflare leaves open are collected while a later test runs.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

TRAVELS = UflGan(
    epsilon=2.0, delta=1e-4, generator_steps=1, critic_steps=2, batch_size=1, hidden_size=3, critic_hidden_size=3, latent_size=2
)  # fmt: skip


@pytest.mark.slow
def test_the_model_travels_over_three_sites(rows, tmp_path):
    with environment():
        made = TestFederation(tmp_path, rows, [TRAVELS])
        found, charges = made.ran("ufl-gan", TRAVELS)
    wanted = simulation.run(TRAVELS, split(rows, records_per_client=1), root=make_key(5))
    assert_alike(found, wanted.state)
    assert wanted.rounds == len(rows)
    assert charges == {site: [1] * count for site, count in made.hosted().items()}
