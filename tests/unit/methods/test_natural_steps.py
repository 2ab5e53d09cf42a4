"""Steps as long as what is known deserves, and parts of the model."""

import jax
import numpy as np
import pytest

from populace.methods.blocks.networks import Blocks, count_parameters
from populace.methods.wae.autoencoders import (
    ClassAutoencoder,
    choose_places,
    extend_submodel,
    gradient_mask,
    mask_of_places,
    submodel_places,
    submodel_size,
    take_submodel,
)
from populace.methods.wae.training import FIRST_PRIOR, first_step, later_step

BINARY = ClassAutoencoder(Blocks((2,) * 8), classes=2)
MIXED = ClassAutoencoder(Blocks((3, 2, 5, 2, 4)), classes=2, target=2)
ALL = np.ones(8, np.float32)


def told_of(net, value):
    return np.full(count_parameters(net.shapes) - net.blocks.width, value, np.float32)


def test_first_step_is_the_mean_of_what_was_told():
    """As many reports as the start is worth count as much as it."""
    theta = np.zeros(count_parameters(BINARY.shapes), np.float32)
    length, gain = (8 / 4 / 2) ** 0.5, 2.5  # eight fair columns, two records
    worth = (length / (gain * FIRST_PRIOR)) ** 2
    known = {"gain": gain, "records": 2, "before": 0, "kept": ALL}
    moved = first_step(BINARY, theta, np.full(8, 0.5), told_of(BINARY, 0.2), heard=worth, **known)
    np.testing.assert_allclose(moved, 0.5 + 0.1 * length, rtol=1e-5)
    still = first_step(BINARY, theta, np.full(8, 0.5), told_of(BINARY, 0.2), heard=0, **known)
    np.testing.assert_array_equal(still, np.full(8, 0.5))


def test_steps_shrink_as_reports_come_in_or_epsilon_falls_and_without_reports_nothing_moves():
    theta = np.asarray(BINARY.start(jax.random.key(0)))

    step = jax.jit(later_step, static_argnums=0)

    def longest(told=0.1, before=0, heard=40, gain=2.5):
        known = {"gain": gain, "records": 2, "before": before, "heard": heard, "kept": ALL}
        return float(np.abs(step(BINARY, theta, told_of(BINARY, told), **known) - theta).max())

    assert longest() > longest(before=1_000) > 50 * longest(before=100_000) > 0
    assert longest(gain=0.05) < 0.01 * longest()
    assert longest(told=0.0) == longest(heard=0) == 0
    assert longest(told=100.0) == pytest.approx(1.0, rel=1e-5)


def test_rare_values_move_less():
    net = ClassAutoencoder(Blocks((2, 2)), classes=1)
    theta = np.array([0.0, -4.0, 0, 0, 0], np.float32)
    known = {"gain": 1.0, "records": 1, "before": 0, "heard": 1, "kept": np.ones(2)}
    moved = np.asarray(later_step(net, theta, np.array([0.1, 0.1, 0.0], np.float32), **known) - theta)
    assert moved[2] > 3 * moved[3] > 0


def test_parts_hold_whole_columns_and_the_target_and_come_back():
    assert submodel_places(MIXED, 0.8) == 11
    assert submodel_places(MIXED, 0.01) == 10
    theta = np.random.default_rng(0).normal(size=count_parameters(MIXED.shapes)).astype(np.float32)
    choose, mask = jax.jit(choose_places, static_argnums=(0, 1)), jax.jit(mask_of_places, static_argnums=0)
    take, extend = jax.jit(take_submodel, static_argnums=0), jax.jit(extend_submodel, static_argnums=0)
    seen = np.zeros(MIXED.blocks.width)
    for number in range(20):
        places = choose(MIXED, 10, jax.random.key(number))
        kept = np.asarray(mask(MIXED, places)) > 0
        seen += kept
        assert len(places) == 10
        assert kept[MIXED.blocks.owner == 2].all()
        for column in range(5):
            assert len(set(kept[MIXED.blocks.owner == column].tolist())) == 1
        part = take(MIXED, theta, places)
        assert part.shape == (submodel_size(MIXED, 10),)
        again = np.asarray(extend(MIXED, part, places))
        same = np.concatenate([kept, np.asarray(gradient_mask(MIXED, kept)) > 0])
        np.testing.assert_array_equal(again[same], theta[same])
        assert not again[~same].any()
    assert (seen > 0).all()
    assert seen.min() < 20


def test_gradient_of_a_part_is_that_of_a_model_without_the_other_columns():
    small = ClassAutoencoder(Blocks((3, 5, 2)), classes=2, target=1)
    keep = np.array([0, 2, 3])
    kept = np.isin(MIXED.blocks.owner, keep).astype(np.float32)
    theta = np.random.default_rng(1).normal(size=count_parameters(MIXED.shapes)).astype(np.float32)
    inside = np.concatenate([kept > 0, np.asarray(gradient_mask(MIXED, kept)) > 0])
    codes = np.array([[2, 1, 4, 0, 3], [0, 0, 1, 1, 2]], np.int32)
    gradient = jax.jit(
        lambda net, theta, codes, *kept: net.gradient(theta, *net.read(codes), np.ones(2), *kept), static_argnums=0
    )
    whole = np.asarray(gradient(MIXED, theta * inside, codes, kept))
    part = np.asarray(gradient(small, theta[inside], codes[:, keep]))
    np.testing.assert_allclose(whole[inside[MIXED.blocks.width :]], part, atol=1e-5)
    assert not whole[~inside[MIXED.blocks.width :]].any()
