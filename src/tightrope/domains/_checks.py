"""Checks of pytrees and shapes that sets are given; `tightrope.arguments` checks single numbers.

Plain Python: everything here runs before anything is compiled.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from ..arguments import described, leaves_of


def is_concrete(value: Any) -> bool:
    """Whether the numbers in `value` are known now, not traced by jit or vmap."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))


def check_real(owner: str, argument: str, value: Any) -> None:
    """A TypeError unless every leaf of the argument is a real number or an array of them."""
    if value is None:
        raise TypeError(f"{owner}: {argument} must be a number or a pytree of arrays, got None")
    for leaf in leaves_of(owner, argument, value):
        dtype = leaf.dtype if isinstance(leaf, Tracer) else np.asarray(leaf).dtype
        if not (np.issubdtype(dtype, np.integer) or jax.numpy.issubdtype(dtype, np.floating)):
            raise TypeError(f"{owner}: {argument} must hold real numbers, got {described(leaf)}")


def check_scalar(owner: str, argument: str, value: Any) -> None:
    """A ValueError unless the argument is one number; only vmap takes an array of them."""
    if np.ndim(value) != 0:
        raise ValueError(
            f"{owner}: {argument} must be one number, got an array of shape {np.shape(value)} (vmap over the set)"
        )


def check_broadcast(owner: str, argument: str, prefix: Any, x: Any) -> None:
    """A ValueError unless `prefix` is a pytree prefix of `x` and its leaves broadcast to those of `x`."""
    try:
        spread = jax.tree.leaves(jax.tree.broadcast(prefix, x))
    except ValueError:
        raise ValueError(
            f"{owner}: {argument} must be a number or a pytree like x, got {jax.tree.structure(prefix)} "
            f"for x = {jax.tree.structure(x)}"
        ) from None
    for value, (path, leaf) in zip(spread, jax.tree_util.tree_leaves_with_path(x), strict=True):
        if not _broadcasts(np.shape(value), np.shape(leaf)):
            where = f"x{jax.tree_util.keystr(path)}"
            raise ValueError(
                f"{owner}: {argument} must broadcast to the shape of {where}, {np.shape(leaf)}, "
                f"got shape {np.shape(value)}"
            )


def check_matrix(owner: str, x: Any) -> None:
    """A ValueError unless `x` is one array of two dimensions with entries."""
    leaves = jax.tree.leaves(x)
    shapes = [np.shape(leaf) for leaf in leaves]
    if len(leaves) != 1 or len(shapes[0]) != 2 or 0 in shapes[0]:
        raise ValueError(f"{owner}: x must be one array of two dimensions, a matrix, got shapes {shapes}")


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False
