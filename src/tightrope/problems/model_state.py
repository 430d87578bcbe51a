"""Model state: numbers that the user's functions update but that are not trained, such as running means of a batch norm."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import PyTree

from .calls import note_call
from .tracing import arguments_of


class WithState(NamedTuple):
    """Parameters and the state of a model, as `x0` of `solve`; `result.x` is one again.

    The state is given to functions that have an argument `state` after the batch, without a default. The objective returns the
    next state, `objective(params, batch, state, key=None) -> (value, new_state)`: after each step, x has the state that the
    objective returned in this step. Where answers are evaluated, `key` is None, the state is that of x, and a returned
    state is ignored. Constraints may take it too; what they return beside their value is ignored. Functions
    without the argument get the parameters alone. The state is not trained, and the domain does not apply to it.

    Attributes:
        params: a pytree of parameters.
        state: a pytree of arrays of floats.

    Example:
        >>> import jax.numpy as jnp, numpy as np, tightrope as tr
        >>> data = tr.Dataset(np.random.default_rng(0).normal(3.0, 2.0, 1000).astype("float32"), batch_size=50)
        >>> def loss(
        ...     params, batch, state, key=None
        ... ):  # centers by the batch in a step, by the running mean in evaluation
        ...     mean = state if key is None else jnp.mean(batch)
        ...     return jnp.mean((batch - mean - params) ** 2), 0.9 * state + 0.1 * jnp.mean(batch)
        >>> result = tr.solve(tr.Problem(loss, data=data), tr.WithState(jnp.ones(()), jnp.zeros(())), steps=300)
        >>> result.method, round(float(result.x.state))
        ('AdaptiveLagrangian', 3)
    """

    params: PyTree[Any]
    state: PyTree[Any]


def takes_state(fn: Callable[..., Any], given: int) -> bool:
    """Whether a function has an argument `state` without a default, after the `given` first: the parameters and the batch."""
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    later = list(arguments_of(fn).values())[given:]
    return any(a.name == "state" and a.default is a.empty and a.kind in named for a in later)


def call(fn: Callable[..., Any], x: PyTree[Any], *batch: Any, **random: Any) -> tuple[Any, PyTree[Any] | None]:
    """The value of a user's function at x, and the model state that it returns; None if it returns none."""
    note_call(fn, batch, "key" in random)
    if not isinstance(x, WithState):
        return fn(x, *batch, **random), None
    if not takes_state(fn, 1 + len(batch)):
        return fn(x.params, *batch, **random), None
    state = jax.tree.map(lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_array(leaf) else leaf, x.state)
    returned = fn(x.params, *batch, state=state, **random)
    return returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
