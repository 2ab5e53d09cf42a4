"""Moments read through known noise, deformations, and Gaussians whose images have the moments wanted."""

import jax
import numpy as np
import pytest

from populace.errors import DataError
from populace.methods.moments.features import (
    MOVES,
    TRIED,
    Estimates,
    ImageFeatures,
    Sums,
    deformed,
    estimate,
    shrunk,
    spikes,
)
from populace.methods.moments.generator import Gaussians, ImageGaussians, fit, move_sizes

SIZE = 40


def symmetric_noise(rng, size, deviation):
    """As a release gives it: `deviation` on the diagonal, 1/sqrt(2) of it beside."""
    half = rng.normal(0, deviation / np.sqrt(2), (size, size))
    noise = np.triu(half, 1)
    return noise + noise.T + np.diag(rng.normal(0, deviation, size))


def test_noise_alone_has_no_spikes():
    rng = np.random.default_rng(0)
    kept = [len(spikes(symmetric_noise(rng, SIZE, 0.3), 0.3)[0]) for _ in range(40)]
    assert np.mean(kept) < 0.5


def test_spikes_are_found_and_freed_of_the_push_of_noise():
    rng = np.random.default_rng(1)
    truth = np.zeros((SIZE, SIZE))
    truth[0, 0], truth[1, 1] = 3.0, 2.0
    found = [spikes(truth + symmetric_noise(rng, SIZE, 0.15), 0.15) for _ in range(60)]
    values = np.array([np.sort(f[0])[-2:] for f in found])
    np.testing.assert_allclose(values.mean(axis=0), [2.0, 3.0], rtol=0.03)
    raw = np.array([np.linalg.eigvalsh(truth + symmetric_noise(rng, SIZE, 0.15))[-1] for _ in range(60)])
    assert abs(values[:, 1].mean() - 3.0) < abs(raw.mean() - 3.0)


def test_shrinking_lies_between_the_rows_and_their_mean():
    rows = np.array([[0.0, 1.0], [2.0, 5.0], [4.0, 0.0]])
    np.testing.assert_allclose(shrunk(rows, np.full(3, 1e-9)), rows)
    np.testing.assert_allclose(shrunk(rows, np.full(3, 1e3)), np.tile(rows.mean(axis=0), (3, 1)), atol=1e-3)
    np.testing.assert_array_equal(shrunk(rows[:1], np.ones(1)), rows[:1])


def sums_of(phi, labels, classes, *, shared):
    seconds = [phi[labels == c].T @ phi[labels == c] for c in range(classes)]
    return Sums(
        counts=np.bincount(labels, minlength=classes).astype(float),
        means=np.stack([phi[labels == c].sum(axis=0) for c in range(classes)]),
        seconds=np.sum(seconds, axis=0)[None] if shared else np.stack(seconds),
        lengths=np.tile([0.5, 0.26], (classes, 1)) * np.bincount(labels, minlength=classes)[:, None],
        noise_counts=1e-6, noise_means=1e-6, noise_seconds=1e-6, noise_lengths=1e-6,
    )  # fmt: skip


@pytest.mark.parametrize("shared", [False, True])
def test_without_noise_estimates_are_the_moments(shared):
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 3, 3_000)
    phi = rng.normal(0, 0.1, (3_000, 6)) + np.eye(6)[labels]
    found = estimate(sums_of(phi, labels, 3, shared=shared), np.zeros(6, int))
    np.testing.assert_allclose(found.shares, np.bincount(labels) / 3_000)
    np.testing.assert_allclose(found.lengths, [[0.5, 0.1]] * 3, atol=1e-6)
    for c in range(3):
        np.testing.assert_allclose(found.means[c], phi[labels == c].mean(axis=0), atol=1e-6)
        got = (found.directions[c] * found.variances[c]) @ found.directions[c].T
        np.testing.assert_allclose(got, 0.01 * np.eye(6), atol=2e-3)


def test_a_class_nobody_has_is_left_a_small_share():
    labels = np.zeros(100, int)
    phi = np.full((100, 4), 0.5)
    found = estimate(sums_of(phi, labels, 2, shared=True), np.zeros(4, int))
    assert 0 < found.shares[1] < 0.1
    assert all(np.isfinite(leaf).all() for leaf in (found.means, found.lengths))


def test_no_move_changes_nothing_and_a_shift_shifts():
    rng = np.random.default_rng(3)
    x = rng.random((2, 9, 8, 3)).astype(np.float32)
    np.testing.assert_allclose(deformed(x, np.zeros((2, len(MOVES)), np.float32)), x, atol=1e-6)
    moves = np.zeros((2, len(MOVES)), np.float32)
    moves[:, MOVES.index("across")] = 1 / 8
    np.testing.assert_allclose(deformed(x, moves)[:, :, :-1], x[:, :, 1:], atol=1e-5)
    turned = np.zeros((2, len(MOVES)), np.float32)
    turned[:, MOVES.index("turned")] = np.pi
    np.testing.assert_allclose(deformed(x, turned), x[:, ::-1, ::-1], atol=1e-4)


def blob(features, slant):
    """An image of a slanted stroke."""
    rows, columns = np.mgrid[: features.shape[0], : features.shape[1]]
    middle = features.shape[1] / 2 + slant * (rows - features.shape[0] / 2)
    return np.exp(-((columns - middle) ** 2) / 4).astype(np.float32)


def test_moves_are_as_large_as_the_variance_measured_along_them():
    """Strokes whose slope varies by .2: shear is found, and explains about half of it when asked to."""
    features = ImageFeatures((20, 20), 1, 10)
    rng = np.random.default_rng(4)
    x = np.stack([blob(features, slant) for slant in rng.normal(0, 0.2, 400)])
    h = np.asarray(features.measured(x))
    phi = h / np.linalg.norm(h, axis=1, keepdims=True)
    found = Estimates(
        shares=np.ones(1), means=phi.mean(axis=0)[None], covariances=(np.cov(phi.T),), variances=(np.zeros(0),),
        directions=(np.zeros((features.size, 0)),), lengths=np.array([[0.3, 0.01]]),
    )  # fmt: skip
    whole, half = (move_sizes(features, found, share) for share in (1.0, 0.5))
    assert whole[MOVES.index("sheared")] > 0.1
    np.testing.assert_allclose(half, whole / np.sqrt(2), rtol=1e-6)
    assert whole[MOVES.index("down")] < TRIED[MOVES.index("down")] * 2


def test_what_is_made_has_the_moments_asked_for():
    """Pixels are clipped at 0, which moves the moments of plain Gaussian draws; matched ones are nearer."""
    features = ImageFeatures((14, 14), 1, 6)
    rng = np.random.default_rng(5)
    x = np.stack([blob(features, slant) for slant in rng.normal(0, 0.3, 800)])
    h = np.asarray(features.measured(x))
    length = np.linalg.norm(h, axis=1)
    phi = h / np.maximum(length, features.floor)[:, None]
    sums = Sums(
        counts=np.array([800.0]), means=phi.sum(axis=0)[None], seconds=(phi.T @ phi)[None],
        lengths=np.array([[(length / features.ceiling).sum(), ((length / features.ceiling) ** 2).sum()]]),
        noise_counts=1e-3, noise_means=1e-3, noise_seconds=1.0, noise_lengths=1e-3,
    )  # fmt: skip
    found = estimate(sums, features.groups)
    model = fit(features, found, np.random.default_rng(6))
    made = ImageGaussians(shape=(14, 14), classes=1, side=6, tilt=0.5, model=model).sample(2_000, jax.random.key(0))
    again = np.asarray(features.measured(made.x / 255))
    unit = again / np.maximum(np.linalg.norm(again, axis=1), features.floor)[:, None]
    assert np.linalg.norm(unit.mean(axis=0) - phi.mean(axis=0)) < 0.08
    assert np.linalg.norm(again, axis=1).mean() == pytest.approx(length.mean(), rel=0.1)


def test_variance_that_nothing_made_can_have_is_not_run_after():
    """Noise told of an image so dark that every pixel is black: all that is made is the same."""
    features = ImageFeatures((8, 8), 2, 4, 0.5)
    directions = np.eye(features.size)[:, :2]
    found = Estimates(
        shares=np.full(2, 0.5), means=np.zeros((2, features.size)), covariances=(np.eye(features.size),) * 2,
        variances=(np.array([0.3, 0.2]),) * 2, directions=(directions,) * 2, lengths=np.array([[1e-6, 0.0], [0.5, 0.1]]),
    )  # fmt: skip
    model = fit(features, found, np.random.default_rng(6))
    assert np.isfinite(model.factors).all()
    assert np.abs(model.factors).max() < 1e9


def test_a_model_that_is_none_is_refused():
    good = {
        "shares": np.ones(2), "centres": np.zeros((2, 4)), "factors": np.zeros((2, 4, 1)), "grain": np.zeros((2, 4)),
        "lengths": np.ones((2, 2)), "moves": np.zeros(6),
    }  # fmt: skip
    Gaussians(**good)
    with pytest.raises(DataError, match="finite"):
        Gaussians(**{**good, "centres": np.full((2, 4), np.nan)})
    with pytest.raises(DataError, match="shapes"):
        Gaussians(**{**good, "grain": np.zeros((2, 3))})
    with pytest.raises(DataError, match="centres"):
        ImageGaussians(shape=(4, 4), classes=2, side=3, tilt=0.5, model=Gaussians(**good))
