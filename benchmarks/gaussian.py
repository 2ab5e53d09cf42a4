"""`python -m benchmarks.gaussian`: Gaussian noise of all faces, and clipping, on one core, as ratios in one run.

    python -m benchmarks.gaussian [--json FILE]

Draws a second of whole noise, beside the plainest way to the same law: NumPy's generator, rounded, which protects nobody.
`float` is JAX's float32 normal, rounded, compiled: what keyed noise must not be, since it cannot take most values far out.
`host` is exact noise drawn by the operating system for compiled code, `system` the same without JAX.
Clipping of 64 vectors beside the plain formula, which may exceed its bound by float errors. Seconds are processor time of one
core, medians of five after compilation.
"""

from __future__ import annotations

from benchmarks.one_core import median_seconds  # isort: skip (before JAX starts its threads)

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from populace.privacy.gaussian import GaussianSum, clip
from populace.privacy.keyed_normal import levels_of
from populace.privacy.source import Keyed, System

SIZES = (10_000, 500_000)
NOISES = ((1, 1.0), (10_000, 1.0), (500_000, 1.0), (500_000, 4.0))  # coordinates, noise multiplier
DRAWS = 2_000_000
VECTORS = 64
SAID = ("size", "deviation", "tables")


def noise_row(size: int, multiplier: float) -> dict[str, Any]:
    """Millions of draws a second, in steps of `size` coordinates. The deviation decides how many tables a keyed draw takes."""
    mechanism = GaussianSum(bound=1.0, noise_multiplier=multiplier, size=size)
    shape = (DRAWS // size, size)
    keyed, host = (
        jax.jit(lambda key, exact=exact: mechanism.noise(Keyed(key, exact), shape)) for exact in (False, True)
    )
    floats = jax.jit(lambda key: jnp.round(jax.random.normal(key, shape) * mechanism.deviation).astype(jnp.int32))
    generator = np.random.default_rng(0)
    faces: dict[str, Callable[[], Any]] = {
        "plain": lambda: np.rint(generator.standard_normal(shape) * mechanism.deviation).astype(np.int32),
        "float": lambda: jax.block_until_ready(floats(jax.random.key(0))),
        "keyed": lambda: jax.block_until_ready(keyed(jax.random.key(0))),
        "host": lambda: jax.block_until_ready(host(jax.random.key(0))),
        "system": lambda: mechanism.noise(System(), shape),
    }
    said = {"size": size, "deviation": mechanism.deviation, "tables": len(levels_of(mechanism.deviation))}
    return said | {name: DRAWS / median_seconds(work) / 1e6 for name, work in faces.items()}


def clip_row(size: int) -> dict[str, Any]:
    """Millions of coordinates a second."""
    vectors = jax.random.normal(jax.random.key(1), (VECTORS, size))

    def plain(vector: Any) -> Any:
        return vector * jnp.minimum(1.0, 1.0 / jnp.sqrt(jnp.sum(jnp.square(vector))))

    row: dict[str, Any] = {"size": size}
    for name, clipping in (("plain", plain), ("clip", lambda vector: clip(vector, 1.0))):
        many = jax.jit(jax.vmap(clipping))
        row[name] = VECTORS * size / median_seconds(lambda many=many: jax.block_until_ready(many(vectors))) / 1e6  # type: ignore[misc]
    return row


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(title)
    for row in rows:
        rates = (f"{name} {rate:.1f} ({rate / row['plain']:.2f})" for name, rate in row.items() if name not in SAID)
        tables = f", {row['tables']} table{'s' * (row['tables'] > 1)}" if "tables" in row else ""
        print(f"  {row['size']:>7,} coordinates{tables}: " + ", ".join(rates))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    noise, clipping = [noise_row(*of) for of in NOISES], [clip_row(size) for size in SIZES]
    show("noise, million draws a second (and as a share of the plain way)", noise)
    show("clipping, million coordinates a second (and as a share of the plain way)", clipping)
    if chosen.json:
        chosen.json.write_text(json.dumps({"noise": noise, "clipping": clipping}, indent=2) + "\n")


if __name__ == "__main__":
    main()
