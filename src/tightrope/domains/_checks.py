"""Checks of what users pass to sets, made in plain Python before anything is compiled."""

from typing import Any

import jax
import numpy as np
from jax.core import Tracer


def is_concrete(value: Any) -> bool:
    """Whether the numbers in `value` are known now, not traced by jit or vmap."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))


def check_real(name: str, value: Any) -> None:
    """TypeError unless every leaf of the argument `name` is a real number or an array of them."""
    if value is None:
        raise TypeError(f"{name} must be a number or a pytree of arrays; got None")
    for leaf in jax.tree.leaves(value):
        dtype = leaf.dtype if isinstance(leaf, Tracer) else np.asarray(leaf).dtype
        if not (np.issubdtype(dtype, np.integer) or jax.numpy.issubdtype(dtype, np.floating)):
            raise TypeError(f"{name} must hold real numbers; got {leaf!r} of type {type(leaf).__name__}")


def check_positive(name: str, value: Any) -> None:
    """TypeError or ValueError unless the argument `name` is a positive, finite number, or an array of them to vmap."""
    if not (isinstance(value, (int, float, np.number, np.ndarray, jax.Array)) and not isinstance(value, bool)):
        raise TypeError(f"{name} must be a positive number; got {value!r} of type {type(value).__name__}")
    check_real(name, value)
    if is_concrete(value) and not np.all((np.asarray(value) > 0) & np.isfinite(np.asarray(value))):
        raise ValueError(f"{name} must be positive and finite; got {value!r}")


def check_scalar(name: str, value: Any) -> None:
    """ValueError unless the argument `name` is one number: an array of them is for vmap alone."""
    if np.ndim(value) != 0:
        raise ValueError(f"{name} must be one number; got an array of shape {np.shape(value)} (vmap over the set)")


def check_broadcast(name: str, prefix: Any, x: Any) -> None:
    """ValueError unless `prefix` is a pytree prefix of `x` and its leaves broadcast to those of `x`."""
    try:
        spread = jax.tree.leaves(jax.tree.broadcast(prefix, x))
    except ValueError:
        raise ValueError(
            f"{name} must be a number or a pytree like x; got {jax.tree.structure(prefix)}, "
            f"and x is {jax.tree.structure(x)}"
        ) from None
    for value, (path, leaf) in zip(spread, jax.tree_util.tree_leaves_with_path(x), strict=True):
        if not _broadcasts(np.shape(value), np.shape(leaf)):
            where = f"x{jax.tree_util.keystr(path)}"
            raise ValueError(
                f"{name} must broadcast to the shape of {where}, {np.shape(leaf)}; got shape {np.shape(value)}"
            )


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False
