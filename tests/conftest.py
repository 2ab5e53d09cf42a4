"""Shared by all tests: JAX's compilation cache, strict dtypes, small tables."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # small ones too: other processes need them
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile much and compute little: code that is made quickly, not code that runs fast.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false",
)

import jax  # noqa: E402
import numpy as np  # noqa: E402

from populace.tables.schema import Column, Schema  # noqa: E402
from populace.tables.table import Table, from_codes  # noqa: E402

MOST_MEMORY = 3 * 2**29

#: Takes long and has a quicker neighbour that would fail too: run by `make test-slow`.
HEAVY = (
    "test_every_method_on_the_whole_message[fedsel-wae]",
    "test_every_method_on_the_whole_message[dp-fed-wae]",
    "test_wae_images_benchmark.py::test_cells_are_measured_shown_and_drawn",
    "test_demo_runs_twice",
    "test_poll.py::test_it_does_as_well_as_independent[0.1]",
    "test_poll.py::test_it_does_as_well_as_independent[10.0]",
    "test_poll.py::test_columns_of_one_value_do_no_harm[sizes0]",
    "test_same_key_same_result_on_every_engine[fedsel-wae-debug]",
    "test_operating_system_randomness_gives_a_run_too[fedsel-wae]",
    "test_every_protocol_ends_where_the_debug_engine_ends[fedsel-wae]",
    "test_same_key_same_result_on_every_engine[l-dpd-vae-debug]",
    "test_same_key_same_result_on_every_engine[fed-vae-debug]",
    "test_same_key_same_result_on_every_engine[c-dpd-vae-debug]",
    "test_sample_respects_the_schema[l-dpd-vae]",
    "test_same_key_same_result_on_every_engine[l-dpd-vae-round by round]",
    "test_same_key_same_result_on_every_engine[fed-vae-round by round]",
    "test_operating_system_randomness_gives_a_run_too[fed-vae]",
    "test_operating_system_randomness_gives_a_run_too[c-dpd-vae]",
    "test_vae_methods.py::test_only_who_is_asked_remembers[joint]",
    "test_where_nothing_depends_it_does_as_well_as_the_independent_method[4.0]",
    "test_wae_images.py::test_a_client_without_images_and_one_class_answer_too",
    "test_wae_images.py::test_published_recipe_gives_images_without_labels",
    "test_wae_images.py::test_local_training_of_the_convolutional_autoencoder_lowers_its_loss",
    "test_dp_fed_wae.py::test_learns_the_dependence_there_is[c0]",
    "statistics/test_signds.py::test_mean_report_points_along_the_vector_with_the_predicted_length[2.0]",
    "statistics/test_signds.py::test_mean_report_points_along_the_vector_with_the_predicted_length[8.0]",
    "test_same_key_same_replies[fedsel-wae]",
    "test_order_of_replies_does_not_matter_and_absent_ones_do_not_count[fedsel-wae]",
    "test_same_key_same_result_on_every_engine[dp-fed-wae-debug]",
    "test_same_key_same_replies[l-dpd-vae]",
    "test_same_key_same_result_on_every_engine[moments-debug]",
    "test_poll.py::test_it_does_as_well_as_independent[1.0]",
    "test_poll.py::test_settings_come_from_held_out_answers_and_the_target_is_read_in_two_ways",
    "test_where_nothing_depends_it_does_as_well_as_the_independent_method[1.0]",
    "test_local_methods.py::test_noise_is_not_followed",
    "test_benchmarks.py::test_a_cell_of_the_local_benchmark_is_measured",
    "test_wae_benchmark.py::test_without_noise_the_model_learns_and_is_shown",
    "test_chain.py::test_one_client_at_a_time_gives_the_same",
    "test_chain.py::test_a_larger_share_gives_the_first_method_less_noise",
    "test_images_metrics.py::test_too_few_images_leave_the_distance_out_in_words",
    "test_wae.py::test_published_network_has_the_printed_structures_parameters",
    "test_vae_methods.py::test_it_learns_bars_and_blobs_where_noise_is_small[l-dpd-vae]",
    "test_moments_benchmark.py::test_a_small_cell_is_synthesised",
    "test_federation.py::test_no_words_of_a_site_reach_the_coordinator",
    "test_same_key_same_result_on_every_engine[fl-gan-debug]",
    "test_operating_system_randomness_gives_a_run_too[fl-gan]",
    "test_gan.py::test_a_step_of_the_generator_raises_its_score[conv]",
    "test_gan.py::test_a_step_of_the_generator_raises_its_score[colour]",
    "test_gan.py::test_a_row_s_slope_depends_on_no_other_row[conv]",
    "test_gan.py::test_a_row_s_slope_depends_on_no_other_row[colour]",
    "test_flgan_benchmark.py::test_a_skewed_cell_is_measured",
    "test_gan_methods.py::test_a_keyed_and_a_system_source_take_the_same_path",
    "test_genfl.py::test_simulation_and_debug_engine_end_alike[mixed]",
    "test_genfl.py::test_records_alone_teach_bars_where_noise_is_small",
    "test_images_metrics.py::test_a_class_that_is_missing_shows_and_every_figure_has_its_baselines",
    "test_poll.py::test_it_does_as_well_as_independent[3.0]",
    "test_attacks.py::test_independent_stays_within_its_interval_of_a_coin",
    "test_federation.py::test_a_foreign_certificate_does_not_connect",
    "test_same_key_same_replies[dp-fed-wae]",
    "test_same_key_same_replies[fl-gan]",
    "test_link.py::test_every_protocol_ends_where_the_debug_engine_ends[poll]",
    "test_dp_fed_wae.py::test_a_part_of_the_model_still_learns",
    "test_dp_fed_wae.py::test_learns_the_dependence_there_is[None]",
    "test_wae_images.py::test_learns_the_labels_and_their_images",
    "test_poll.py::test_every_value_of_the_target_has_a_class",
    "test_flgan_benchmark.py::test_an_attack_is_measured",
    "test_vae_training.py::test_asleep_the_encoder_learns_the_codes_of_the_decoders_samples",
    "test_gan_methods.py::test_generator_steps_follow_from_the_budget_and_the_noise",
    "test_vae_methods.py::test_noise_that_does_not_allow_one_round_is_refused",
    "test_local_methods.py::test_the_order_of_the_file_does_not_matter",
    "test_genfl.py::test_simulation_and_debug_engine_end_alike[alone]",
    "test_same_key_same_replies[c-dpd-vae]",
    "test_same_key_same_replies[moments]",
    "test_order_of_replies_does_not_matter_and_absent_ones_do_not_count[l-dpd-vae]",
    "test_order_of_replies_does_not_matter_and_absent_ones_do_not_count[dp-fed-wae]",
    "test_operating_system_randomness_gives_a_run_too[dp-fed-wae]",
    "test_link.py::test_every_protocol_ends_where_the_debug_engine_ends[dp-fed-wae]",
    "test_signds.py::test_of_a_vector_with_few_coordinates_one_turn_tells_less_and_two_tell_all",
    "test_same_key_same_result_on_every_engine[ufl-gan-debug]",
    "test_same_key_same_result_on_every_engine[dp-fed-wae-round by round]",
    "test_same_key_same_result_on_every_engine[lopub-debug]",
    "test_same_key_same_result_on_every_engine[calm-debug]",
    "test_same_key_same_result_on_every_engine[locop-debug]",
    "test_order_of_replies_does_not_matter_and_absent_ones_do_not_count[fl-gan]",
    "test_order_of_replies_does_not_matter_and_absent_ones_do_not_count[c-dpd-vae]",
    "test_operating_system_randomness_gives_a_run_too[ufl-gan]",
    "test_dpd_benchmark.py::test_a_small_cell_is_measured",
    "test_wae_images.py::test_with_next_to_no_epsilon_next_to_nothing_is_learned",
    "test_gan.py::test_a_step_of_the_generator_raises_its_score[rows]",
    "test_attacks.py::test_another_holdout_is_another_attack",
    "test_same_key_same_replies[ufl-gan]",
    "test_same_key_same_result_on_every_engine[fedavg-gan-debug]",
    "test_same_key_same_result_on_every_engine[poll-debug]",
    "test_order_of_replies_does_not_matter_and_absent_ones_do_not_count[ufl-gan]",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.endswith(HEAVY) or any(f"{name}[" in item.nodeid for name in HEAVY):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="module")
def _small_memory() -> Iterator[None]:
    """What one file compiled is dropped where it has grown large: gigabytes of it slow everything after."""
    yield
    if resident_bytes() > MOST_MEMORY:
        jax.clear_caches()
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int:
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


@pytest.fixture(scope="session")
def small_schema() -> Schema:
    return Schema(
        columns=(
            Column(name="colour", kind="categorical", categories=("red", "green", "blue")),
            Column(name="size", kind="ordinal", categories=("1", "2", "3", "4", "5"), dtype="integer", nullable=True),
            Column(name="weight", kind="decimal", edges=(0.0, 1.0, 2.5, 10.0)),
            Column(name="sold", kind="categorical", categories=("false", "true"), dtype="boolean"),
        ),
        target="sold",
    )


def dependent_codes(schema: Schema, rows: int, seed: int = 0) -> np.ndarray:
    """Codes in which every column leans towards the first."""
    rng = np.random.default_rng(seed)
    first = rng.choice(schema.sizes[0], rows, p=np.arange(1, schema.sizes[0] + 1) / sum(range(1, schema.sizes[0] + 1)))
    columns = [first]
    for size in schema.sizes[1:]:
        columns.append(np.where(rng.random(rows) < 0.6, first % size, rng.integers(0, size, rows)))
    return np.stack(columns, axis=1).astype(np.int32)


@pytest.fixture(scope="session")
def small_table(small_schema: Schema) -> Table:
    return from_codes(dependent_codes(small_schema, 600), small_schema, np.random.default_rng(0))
