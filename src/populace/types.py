"""Types that the whole package names. Nothing heavy is imported for them when the program runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import jax
    import numpy as np

    #: An array of NumPy's, where one of JAX's would not do: on the host, and often written to in place.
    NumpyArray: TypeAlias = np.ndarray[Any, Any]
    #: An array of NumPy's or of JAX's.
    Array: TypeAlias = jax.Array | NumpyArray
    #: One number: an array without axes, a scalar of NumPy's, or one of Python's.
    Number: TypeAlias = Array | np.integer[Any] | np.floating[Any] | float
else:
    NumpyArray = object
    Array = object
    Number = object

#: A nest of tuples, dictionaries and dataclasses whose leaves are arrays: states, questions, replies, parameters.
ArrayTree: TypeAlias = Any
#: Told, when a step of long work begins, what is being done: "reading", "fitting".
Doing: TypeAlias = Callable[[str], None]
#: A JSON object that was read or is to be written.
JsonObject: TypeAlias = dict[str, Any]
