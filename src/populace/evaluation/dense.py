"""The other two classifiers of DPD-fVAE's appendix C.2, for many images: logistic regression and an MLP of 100.

The first is fitted by L-BFGS with an l2 penalty, the second by Adam at .001 with weight decay .0001. The same models as
scikit-learn's, compiled, so that 60,000 images take seconds.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from populace.types import Array, ArrayTree, NumpyArray

Parameters = dict[str, jax.Array]

ITERATIONS = 100  # of L-BFGS
PENALTY = 1.0  # half of it times the squared weights, beside the sum of the losses: scikit-learn's C = 1
HIDDEN, RATE, DECAY, BATCH = 100, 1e-3, 1e-4, 128


class Logistic:
    """Multinomial logistic regression; images are [rows, pixels] in [0, 1]."""

    def __init__(self, *, iterations: int = ITERATIONS) -> None:
        self.iterations = iterations

    def fit(self, x: Array, y: Array) -> Logistic:
        self.classes_ = np.unique(y)
        start = {
            "out": jnp.zeros((x.shape[1], len(self.classes_))),
            "out_bias": jnp.zeros(len(self.classes_)),
        }
        places = np.searchsorted(self.classes_, y)
        self.parameters = _newton(start, jnp.asarray(x, jnp.float32), jnp.asarray(places), self.iterations)
        return self

    def predict_proba(self, x: Array) -> NumpyArray:
        return np.asarray(jax.nn.softmax(_logits(self.parameters, jnp.asarray(x, jnp.float32))), np.float64)


class Mlp(Logistic):
    """One hidden layer of 100 ReLUs."""

    def __init__(self, *, steps: int, seed: int = 0) -> None:
        self.steps = steps
        self.seed = seed

    def fit(self, x: Array, y: Array) -> Mlp:
        self.classes_ = np.unique(y)
        places = np.searchsorted(self.classes_, y)
        rng = np.random.default_rng(self.seed)
        shapes = {"in": (x.shape[1], HIDDEN), "out": (HIDDEN, len(self.classes_))}
        start: Parameters = {
            name: jnp.asarray(rng.normal(0, np.sqrt(2 / shape[0]), shape), jnp.float32)
            for name, shape in shapes.items()
        }
        start |= {f"{name}_bias": jnp.zeros(shape[1]) for name, shape in shapes.items()}
        passes = -(-self.steps * BATCH // len(x))
        order = np.concatenate([rng.permutation(len(x)) for _ in range(passes)])[: self.steps * BATCH]
        rows = jnp.asarray(order.reshape(self.steps, BATCH))
        self.parameters = _adam(start, jnp.asarray(x, jnp.float32), jnp.asarray(places), rows)
        return self


def _logits(parameters: Parameters, x: Array) -> Array:
    if "in" in parameters:
        x = jax.nn.relu(x @ parameters["in"] + parameters["in_bias"])
    return x @ parameters["out"] + parameters["out_bias"]


def _loss(parameters: Parameters, x: Array, y: Array) -> Array:
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(_logits(parameters, x), y))


@functools.partial(jax.jit, static_argnames="iterations")
def _newton(parameters: Parameters, x: Array, y: Array, iterations: int) -> Parameters:
    def loss(parameters: Parameters) -> Array:
        return _loss(parameters, x, y) + 0.5 * PENALTY / len(x) * jnp.sum(parameters["out"] ** 2)

    optimizer = optax.lbfgs()
    both = optax.value_and_grad_from_state(loss)

    def step(_: Array, carry: tuple[Parameters, ArrayTree]) -> tuple[Parameters, ArrayTree]:
        parameters, state = carry
        value, gradient = both(parameters, state=state)
        change, state = optimizer.update(gradient, state, parameters, value=value, grad=gradient, value_fn=loss)
        return optax.apply_updates(parameters, change), state  # type: ignore[return-value]

    found: Parameters = jax.lax.fori_loop(0, iterations, step, (parameters, optimizer.init(parameters)))[0]
    return found


@jax.jit
def _adam(parameters: Parameters, x: Array, y: Array, rows: Array) -> Parameters:
    optimizer = optax.chain(optax.add_decayed_weights(DECAY), optax.adam(RATE))

    def step(carry: tuple[Parameters, ArrayTree], some: ArrayTree) -> tuple[tuple[Parameters, ArrayTree], None]:
        parameters, state = carry
        gradient = jax.grad(_loss)(parameters, x[some], y[some])
        change, state = optimizer.update(gradient, state, parameters)
        return (optax.apply_updates(parameters, change), state), None  # type: ignore[return-value]

    found: Parameters = jax.lax.scan(step, (parameters, optimizer.init(parameters)), rows)[0][0]
    return found
