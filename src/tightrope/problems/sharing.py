"""Common subexpressions of the user's functions, merged before they are differentiated.

An objective and constraints that run the same network are separate functions. The compiler merges their forward passes, which
are the same, but not their backward passes, which start from different values. Merged before differentiation, they have one
forward and one backward pass together.

Two equations of a trace are merged if they have the same primitive, parameters and inputs, and no effects. Functions under
`jit` are read equation by equation; loops and branches are compared as a whole. Calls of a `custom_jvp` are the same if their
rules are one Python function. Calls of a `custom_vjp` are never merged: its backward pass may be nonlinear (clipped gradients),
and one of a sum is not the sum of two.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from inspect import getclosurevars
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, DebugInfo, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun

from .tracing import trace

MAX_COMPARED = 1024
"""The largest constant array that is compared by its numbers; larger ones are the same only if they are one object."""

NAME = DebugInfo("share_subexpressions", "share_subexpressions", None, None)

JIT_SETTINGS = ("in_shardings", "out_shardings", "in_layouts", "out_layouts", "compiler_options_kvs")

Known = dict[Hashable, tuple[Sequence[Any], Sequence[Any]]]
"""The inputs and outputs of the equations evaluated so far; inputs are kept because keys contain their ids."""


def share_subexpressions(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of pytrees of arrays, with what it computes several times computed once."""

    def shared(*args: Any) -> Any:
        closed, shapes = trace(fn, *args)
        return jax.tree.unflatten(jax.tree.structure(shapes), evaluate_once(closed, jax.tree.leaves(args)))

    return shared


def evaluate_once(closed: ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a trace, with what it computes several times computed once."""
    return [jnp.asarray(output) for output in _evaluate(closed, inputs, {})]


def _evaluate(closed: ClosedJaxpr, inputs: Sequence[Any], known: Known) -> list[Any]:
    """The outputs of a jaxpr; equations with a key in `known` are not evaluated again."""
    jaxpr = closed.jaxpr
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *inputs], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        given = [read(atom) for atom in equation.invars]
        values.update(zip(equation.outvars, _outputs(equation, given, known), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _outputs(equation: JaxprEqn, inputs: Sequence[Any], known: Known) -> Sequence[Any]:
    """The outputs of an equation, from `known` if they are there."""
    if _is_plain_jit(equation):
        return _evaluate(equation.params["jaxpr"], inputs, known)
    if equation.effects:
        return _bind(equation, inputs)
    key = (_equation(equation), *map(_value, inputs))
    if key not in known:
        known[key] = inputs, _bind(equation, inputs)
    return known[key][1]


def _bind(equation: JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
    """The outputs of an equation at these inputs."""
    read = [(atom, value) for atom, value in zip(equation.invars, inputs, strict=True) if not isinstance(atom, Literal)]
    variables: Any = [atom for atom, _ in read]
    jaxpr = Jaxpr([], variables, equation.outvars, [equation], equation.effects, NAME)
    return jaxpr_as_fun(ClosedJaxpr(jaxpr, []))(*[value for _, value in read])


def _is_plain_jit(equation: JaxprEqn) -> bool:
    """Whether an equation is a call of a function under `jit`, without settings for devices or the compiler."""
    if equation.primitive.name not in ("jit", "pjit"):
        return False
    settings = [setting for name in JIT_SETTINGS for setting in equation.params.get(name, ())]
    return all(setting is None or type(setting).__name__ == "UnspecifiedValue" for setting in settings)


# ------------------------------------------------------------------ descriptions: equal only for what is the same


def _value(value: Any) -> Hashable:
    """A value that an equation reads: an array that is being traced is itself; a small constant is its numbers."""
    if isinstance(value, Tracer) or np.size(value) > MAX_COMPARED or _is_key(value):
        return id(value)
    return jax.typeof(value), np.asarray(value).tobytes()


def _is_key(value: Any) -> bool:
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jax.dtypes.extended)


def _equation(equation: JaxprEqn) -> Hashable:
    """What an equation computes from its inputs."""
    if equation.primitive.name.startswith("custom_vjp"):  # its backward pass need not be linear, and may not be shared
        return object()
    parameters = ((name, _rule(v) if name == "jvp_jaxpr_fun" else _setting(v)) for name, v in equation.params.items())
    return equation.primitive, equation.ctx, tuple(parameters)


def _rule(traced: Any) -> Hashable:
    """The rule of a `custom_jvp`: the user's function, and the settings with which JAX calls it, such as the inputs' structure.

    JAX keeps them in a function that traces the rule; where they are not found, every rule is another one.
    """
    try:
        rule = getclosurevars(getclosurevars(traced.f).nonlocals["fn"]).nonlocals["jvp"]
        settings = [setting for _, given in rule.transforms for setting in given if not callable(setting)]
        return rule.f, _setting(settings)
    except (AttributeError, KeyError, TypeError, ValueError):
        return object()


def _setting(value: Any) -> Hashable:
    """A number, name, container, function or jaxpr; objects that cannot be compared are the same only if they are one."""
    if isinstance(value, ClosedJaxpr):
        return _jaxpr(value.jaxpr), tuple(map(_value, value.consts))
    if isinstance(value, Jaxpr):
        return _jaxpr(value)
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_setting, value))
    if isinstance(value, float | complex):
        return type(value), repr(value)  # 0.0 == -0.0
    if type(value).__name__ == "Unhashable":  # an argument of a custom derivative that is not differentiated
        return _setting(value.val)
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value


def _jaxpr(jaxpr: Jaxpr) -> Hashable:
    """The equations, with variables numbered as they appear."""
    numbers: dict[Any, int] = {}

    def atoms(group: Sequence[Any]) -> Hashable:
        return tuple(
            _value(atom.val) if isinstance(atom, Literal) else numbers.setdefault(atom, len(numbers)) for atom in group
        )

    inputs = [*jaxpr.constvars, *jaxpr.invars]
    start = tuple(variable.aval for variable in inputs), atoms(inputs)
    equations = tuple((_equation(e), atoms(e.invars), atoms(e.outvars)) for e in jaxpr.eqns)
    return start, equations, atoms(jaxpr.outvars)
