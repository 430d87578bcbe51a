"""The user's pytree of parameters and the flat vector that methods work on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..arguments import leaves_of
from .canonical import without_addresses
from .model_state import WithState
from .structure import UnknownStructure


class Parameters:
    """The structure of a pytree of parameters: `ravel` to a flat vector and `unravel` back.

    Model state (see `WithState`) is the end of the vector.

    Args:
        x0: the pytree of parameters.
        owner: the function that was given `x0`, for error messages.
        argument: the name of its argument.

    Attributes:
        trained: the structure of the parameters without model state; this one if there is none.
        has_state: whether there is model state.
    """

    def __init__(self, x0: PyTree[Any], owner: str = "solve", argument: str = "x0"):
        if any(
            isinstance(leaf, Tracer) for leaf in [*leaves_of(owner, argument, x0), jnp.zeros(())]
        ):  # zeros: under jit, traced
            raise TypeError(
                f"{owner} runs its own compiled programs and cannot be called inside jit, vmap or grad; "
                "use tightrope.sweep to run many seeds or settings in one program"
            )
        self.argument = argument
        arrays = jax.tree_util.tree_map_with_path(
            lambda path, leaf: _as_parameter(f"{owner}: {argument}{jax.tree_util.keystr(path)}", leaf),
            x0,
            is_leaf=_is_module,
        )
        self._rest = jax.tree.map(
            lambda leaf: eqx.filter(leaf, eqx.is_inexact_array, inverse=True) if _is_module(leaf) else None,
            x0,
            is_leaf=_is_module,
        )
        vector, self._unravel = ravel_pytree(arrays)
        if vector.size == 0:
            raise ValueError(f"{owner}: {argument} has no parameters; expected a pytree with an array of floats")
        if not np.isfinite(np.asarray(vector)).all():
            raise ValueError(f"{owner}: {argument} contains NaN or infinity; expected finite numbers")
        self.start: Float[Array, " n"] = jnp.asarray(np.asarray(vector))  # through NumPy: no weak type
        self.size: int = vector.size
        self.matrices = sum(leaf.ndim >= 2 for leaf in jax.tree.leaves(arrays))
        self.dtype = vector.dtype
        self.has_state = isinstance(x0, WithState)
        self.trained: Parameters = Parameters(x0.params, owner, argument) if isinstance(x0, WithState) else self
        if self.trained.dtype != self.dtype:
            raise TypeError(
                f"{owner}: {argument}.params has dtype {self.trained.dtype} and {argument}.state has {self.dtype}; "
                "expected one dtype"
            )
        leaves, structure = jax.tree.flatten(arrays)
        rest, rest_structure = jax.tree.flatten(self._rest)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        self._structure, self._shapes = structure, shapes
        self.key = (structure, shapes, rest_structure, tuple(_identity(leaf) for leaf in rest))

    def unravel(self, vector: Float[Array, " n"]) -> PyTree[Any]:
        """The user's pytree with the numbers of `vector`."""
        return eqx.combine(self._unravel(vector), self._rest, is_leaf=lambda node: node is None)

    def unravel_arrays(self, vector: Float[Array, " n"]) -> PyTree[Array]:
        """Only the arrays of the user's pytree, for optimizers and domains."""
        return self._unravel(vector)

    def ravel(self, params: PyTree[Any]) -> Float[Array, " n"]:
        """The flat vector of a pytree that has this structure."""
        return ravel_pytree(eqx.filter(params, eqx.is_inexact_array))[0].astype(self.dtype)

    def _static_parts(self) -> list[Any]:
        """What the library's programs depend on; see `structure`. Names in a model's settings may hold addresses."""
        _check_nodes(self._structure)
        return [without_addresses(str(self._structure)), str(self._shapes), self.has_state, self.trained.size]

    def split(self, vector: Any) -> tuple[Any, Any]:
        """The part of a vector of JAX or NumPy that is trained, and its model state; None if there is none."""
        n = self.trained.size
        return (vector[:n], vector[n:]) if self.has_state else (vector, None)

    def join(self, trained: Float[Array, " trained"], state: Float[Array, " state"] | None) -> Float[Array, " n"]:
        """The vector of parameters and their model state."""
        return trained if state is None else jnp.concatenate([trained, state])


def _is_module(node: Any) -> bool:
    return isinstance(node, eqx.Module)


def _as_parameter(where: str, leaf: Any) -> Any:
    """A float leaf as an array, or the float arrays of an Equinox model; the rest of a model is no parameter."""
    if _is_module(leaf):
        arrays = eqx.filter(leaf, eqx.is_inexact_array)
        for path, array in jax.tree_util.tree_leaves_with_path(arrays):
            _check_precision(where + jax.tree_util.keystr(path), array.dtype)
        return arrays
    if not eqx.is_array_like(leaf) and not isinstance(leaf, np.ndarray):
        raise TypeError(f"{where} is a {type(leaf).__name__}; expected an array of floats")
    try:
        dtype = jnp.result_type(leaf)
    except TypeError:  # such as a structured array
        dtype = np.asarray(leaf).dtype
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"{where} has dtype {dtype}; expected floats: parameters are differentiated")
    _check_precision(where, dtype)
    return jnp.asarray(leaf)


def _check_nodes(structure: Any) -> None:
    """An error if the pytree has nodes of classes that the user registered, with code of the user's."""
    node, _ = structure.node_data() or (None, None)
    if node is not None and not issubclass(node, dict | list | tuple | eqx.Module | type(None)):
        raise UnknownStructure(node.__name__)
    for child in structure.children():
        _check_nodes(child)


def _check_precision(where: str, dtype: Any) -> None:
    if dtype.itemsize < 4:
        raise TypeError(
            f"{where} has dtype {dtype}; expected float32 or float64: steps would be rounded away. Convert it, "
            "jax.tree.map(lambda a: a.astype(jnp.float32), x0); your functions may compute in half precision themselves"
        )


def _identity(leaf: Any) -> Any:
    """The key of a leaf that is not a parameter: its value if that can be hashed, else the object's id."""
    return leaf if isinstance(leaf, Callable | str | int | float | bool) else id(leaf)
