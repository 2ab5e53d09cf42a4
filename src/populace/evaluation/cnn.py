"""The convolutional classifier images are judged by: that of DPD-fVAE's appendix C.2 (and of the papers it compares with).

Two blocks of a 3 x 3 convolution (32, 64 kernels), max pooling by two, half of the values dropped, ReLU; a third convolution
(128 kernels) with ReLU alone; a dense layer of 128 with ReLU, half of it dropped; the output. Cross-entropy, Adam at .001,
weight decay .0001. The appendix is silent about padding (here: zeros, size kept) and length of training.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from populace.types import Array, ArrayTree, NumpyArray

Parameters = dict[str, jax.Array]

KERNELS = (32, 64, 128)
POOLED = 2  # the first so many convolutions are followed by pooling
DENSE = 128
DROPPED = 0.5
RATE = 1e-3
DECAY = 1e-4
BATCH = 64
STEPS = 400
AT_ONCE = 512  # images predicted together


class Cnn:
    """A classifier with scikit-learn's interface; images are [rows, height, width, channels] in [0, 1].

    Batches are of one size, so that one shape is compiled: of few images some come twice.
    """

    def __init__(self, *, steps: int = STEPS, batch: int = BATCH, seed: int = 0) -> None:
        self.steps = steps
        self.batch = batch
        self.seed = seed

    def fit(self, x: Array, y: Array) -> Cnn:
        self.classes_ = np.unique(y)
        places: Array = np.searchsorted(self.classes_, y)
        rng = np.random.default_rng(self.seed)
        parameters = _initial(x.shape[1:], len(self.classes_), rng)
        state = _OPTIMISER.init(parameters)
        passes = -(-self.steps * self.batch // len(x))
        order = np.concatenate([rng.permutation(len(x)) for _ in range(passes)])
        rows = order[: self.steps * self.batch].reshape(self.steps, self.batch)
        key = jax.random.key(int(rng.integers(2**31)))
        if jax.default_backend() == "cpu":  # no compiled loop: convolutions inside one are slow on processors
            for step, some in enumerate(rows):
                one = jax.random.fold_in(key, step)
                parameters, state = _step(parameters, state, jnp.asarray(x[some]), jnp.asarray(places[some]), one)
        else:
            parameters = _steps(parameters, state, jnp.asarray(x), jnp.asarray(places), jnp.asarray(rows), key)
        self.parameters = parameters
        return self

    def predict_proba(self, x: Array) -> NumpyArray:
        """[rows, classes], in the order of `classes_`."""
        return np.asarray(jax.nn.softmax(self._mapped(_logits, x)), np.float64)

    def features(self, x: Array) -> NumpyArray:
        """What the last convolution gives, averaged over places: [rows, 128]."""
        return np.asarray(self._mapped(_features, x).mean(axis=(1, 2)), np.float64)

    def _mapped(self, function: Callable[[Parameters, Array], Array], x: Array) -> NumpyArray:
        """Apply a function to pieces of one size, so that one shape is compiled."""
        padded = np.concatenate([x, np.zeros((-len(x) % AT_ONCE, *x.shape[1:]), x.dtype)])
        pieces = (padded[at : at + AT_ONCE] for at in range(0, len(padded), AT_ONCE))
        return np.concatenate([np.asarray(function(self.parameters, jnp.asarray(piece))) for piece in pieces])[: len(x)]


_OPTIMISER = optax.chain(optax.add_decayed_weights(DECAY), optax.adam(RATE))


def _initial(shape: tuple[int, ...], classes: int, rng: np.random.Generator) -> Parameters:
    height, width, channels = shape
    found: Parameters = {}
    for number, kernels in enumerate(KERNELS):
        scale = np.sqrt(2 / (9 * channels))
        found[f"kernel{number}"] = jnp.asarray(rng.normal(0, scale, (3, 3, channels, kernels)), jnp.float32)
        found[f"bias{number}"] = jnp.zeros(kernels)
        channels = kernels
        if number < POOLED:
            height, width = -(-height // 2), -(-width // 2)
    inputs = height * width * channels
    for name, rows, columns in (("dense", inputs, DENSE), ("out", DENSE, classes)):
        found[name] = jnp.asarray(rng.normal(0, np.sqrt(2 / rows), (rows, columns)), jnp.float32)
        found[f"{name}_bias"] = jnp.zeros(columns)
    return found


def _dropped(x: jax.Array, key: Array | None, number: int) -> jax.Array:
    if key is None:
        return x
    kept = jax.random.bernoulli(jax.random.fold_in(key, number), 1 - DROPPED, x.shape)
    return jnp.where(kept, x / (1 - DROPPED), 0)


def _blocks(parameters: Parameters, x: jax.Array, key: Array | None) -> jax.Array:
    for number in range(len(KERNELS)):
        kernel = parameters[f"kernel{number}"]
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = x + parameters[f"bias{number}"]
        if number < POOLED:
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
            x = _dropped(x, key, number)
        x = jax.nn.relu(x)
    return x


_features = jax.jit(functools.partial(_blocks, key=None))


@jax.jit
def _logits(parameters: Parameters, x: jax.Array, key: Array | None = None) -> jax.Array:
    seen = _blocks(parameters, x, key)
    dense = jax.nn.relu(seen.reshape(len(seen), -1) @ parameters["dense"] + parameters["dense_bias"])
    return _dropped(dense, key, len(KERNELS)) @ parameters["out"] + parameters["out_bias"]


@jax.jit
def _step(parameters: Parameters, state: ArrayTree, x: jax.Array, y: Array, key: Array) -> tuple[Parameters, ArrayTree]:
    def loss(parameters: Parameters) -> Array:
        logits = _logits(parameters, x, key)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, y))

    updates, state = _OPTIMISER.update(jax.grad(loss)(parameters), state, parameters)
    updated: Parameters = jax.tree.map(jnp.add, parameters, updates)
    return updated, state


@jax.jit
def _steps(parameters: Parameters, state: ArrayTree, x: jax.Array, y: Array, rows: Array, key: Array) -> Parameters:
    """All steps as one compiled loop, the images on the device."""

    def one(
        carry: tuple[Parameters, ArrayTree], item: tuple[Array, Array]
    ) -> tuple[tuple[Parameters, ArrayTree], None]:
        step, some = item
        return _step(*carry, x[some], y[some], jax.random.fold_in(key, step)), None

    (parameters, _), _ = jax.lax.scan(one, (parameters, state), (jnp.arange(len(rows)), rows))
    return parameters
