"""The contract of a method: what it declares, what a step is given and what it returns."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from ..oracles.oracle import Oracle, Sample


class Draw(NamedTuple):
    """One step's randomness, a function of (seed, step) alone.

    Attributes:
        samples: for each role of the method an independent sample (one entry a data source).
        uniform: a number in [0, 1).
        key: for what is rare; never split for what every step needs.
        k: the step's number, from 1; 0 in `init`. It comes from the loop and is never kept in a State.
        steps: the horizon: how many steps the run will take.
    """

    samples: dict[str, Sample]
    uniform: Float[Array, ""]
    key: Array
    k: Int[Array, ""]
    steps: Int[Array, ""]


class Info(NamedTuple):
    """What a step cost. A count that never varies is a Python int and costs nothing to add up.

    Attributes:
        objective_gradients: gradients of the objective.
        constraint_values: evaluations of the constraint rows, those behind a derivative included.
        constraint_jacobians: linearizations of the rows: whole Jacobians, or products with one at a point.
        samples: rows drawn and used.
    """

    objective_gradients: int | Int[Array, ""] = 0
    constraint_values: int | Int[Array, ""] = 0
    constraint_jacobians: int | Int[Array, ""] = 0
    samples: int | Int[Array, ""] = 0


class Accepts(NamedTuple):
    """Which problems a method takes, and the form it wants them in.

    Attributes:
        equalities: 'any', 'affine' (linear and deterministic only) or 'none'.
        inequalities: whether it takes g(x) ≤ 0.
        stochastic: whether constraints may have data.
        form: 'native' (rows c = 0 and g ≤ 0), 'slacks' (equalities only), 'pairs' (inequalities only) or 'ranges' (low ≤ h ≤
            high).
        needs: what it asks of the set: 'projection', 'lmo', or 'everywhere': that X is the whole space.
    """

    equalities: Literal["any", "affine", "none"]
    inequalities: bool
    stochastic: bool
    form: Literal["native", "slacks", "pairs", "ranges"]
    needs: Literal["projection", "lmo", "everywhere"]


Hyper = Any
"""A hyper-parameter's value: a number as the user gives it, an array once `solve` has it, None: to be estimated."""


def hyper(
    default: float | None, *, low: float = 0.0, high: float = np.inf, strict: bool = True, closed: bool = False
) -> Any:
    """A hyper-parameter: a number above `low` (from it, unless strict) and below `high` (up to it, if closed), or None."""
    return eqx.field(default=default, metadata={"low": low, "high": high, "strict": strict, "closed": closed})


def choice(default: str, *options: str) -> Any:
    """A choice among names; it is static, another one compiles another program."""
    return eqx.field(default=default, static=True, metadata={"options": options})


class Method(eqx.Module):
    """An algorithm: an immutable pytree of hyper-parameters with `init`, `step` and `output`.

    A subclass declares `accepts`, `reference`, `guarantee` and `cost`; its State has a field `x`, the current iterate.
    """

    accepts: ClassVar[Accepts]
    reference: ClassVar[str]
    """Paper and equation."""
    guarantee: ClassVar[str]
    """What is proved, at which rate."""
    cost: ClassVar[str]
    """Oracle calls of one step."""

    @property
    def uses_horizon(self) -> bool:
        """Whether the iterates depend on how many steps the run will take."""
        return False

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        """The independent samples a step needs: {name: batch size}; None: each source's own. At least one."""
        raise NotImplementedError

    def needs_beyond_batches(self, oracle: Oracle) -> str | None:
        """What a step needs beside its samples, such as restarts on large samples; None: nothing.

        A method that needs more cannot be stepped on batches of the user's alone.
        """
        return None

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        """This method with each hyper-parameter that is None estimated from samples at the start.

        What is estimated and not used is not computed: the compiler drops it.
        """
        return self

    def with_defaults(self, **guesses: Any) -> Self:
        """This method with these values for those of the hyper-parameters that are None; what was given stays."""
        return replace(self, **{name: guess for name, guess in guesses.items() if getattr(self, name) is None})

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> Any:
        """The State before step 1; `draw.k` is 0."""
        raise NotImplementedError

    def step(self, oracle: Oracle, state: Any, draw: Draw) -> tuple[Any, Info]:
        """One step."""
        raise NotImplementedError

    def output(self, state: Any) -> Float[Array, " n"]:
        """The point that the method's theorem speaks of."""
        return state.x

    def multipliers(self, state: Any) -> Float[Array, " rows"] | None:
        """The method's own multipliers of the rows at `output`; None: it has none."""
        return None

    def note(self, state: Any) -> str | None:
        """What the person who reads the result should know about this run; None: nothing."""
        return None

    def termination(self, state: Any) -> Literal["converged", "infeasible"] | None:
        """What the method's own termination test says of the run so far; None: nothing, or it has no such test.

        The run goes on all the same until its steps are taken or `stop` is met; this is then its status.
        """
        return None

    def __check_init__(self) -> None:
        for spec in fields(self):  # pyright: ignore[reportArgumentType]
            value, owner = getattr(self, spec.name), type(self).__name__
            if "options" in spec.metadata and value not in spec.metadata["options"]:
                raise ValueError(f"{owner}: {spec.name} must be one of {spec.metadata['options']}, got {value!r}")
            if "low" in spec.metadata:
                _check_number(owner, spec.name, value, **spec.metadata)


def _check_number(owner: str, name: str, value: Any, low: float, high: float, strict: bool, closed: bool) -> None:
    if value is None or isinstance(value, Tracer):
        return
    if isinstance(value, bool) or not eqx.is_array_like(value) or not np.issubdtype(np.asarray(value).dtype, np.number):
        raise TypeError(f"{owner}: {name} must be a number, got {value!r} ({type(value).__name__})")
    number = np.asarray(value)
    above, below = number > low if strict else number >= low, number <= high if closed else number < high
    if not (above & below).all():
        limit = "a finite number" if high == np.inf else f"a number {'up to' if closed else 'below'} {high:g}"
        raise ValueError(f"{owner}: {name} must be {limit} {'above' if strict else 'from'} {low:g}, got {value}")


def as_arrays(method: Method, dtype: Any) -> Method:
    """The method with its numbers as arrays of x's dtype: new values then never recompile."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), method)


def constants(asked: Method, filled: Method) -> dict[str, float]:
    """The hyper-parameters that were estimated: None in `asked`, a number in `filled`; those of a method inside too."""
    found: dict[str, float] = {}
    for spec in fields(asked):  # pyright: ignore[reportArgumentType]
        before, after = getattr(asked, spec.name), getattr(filled, spec.name)
        if isinstance(before, Method):
            found |= {f"{spec.name}.{name}": value for name, value in constants(before, after).items()}
        elif before is None and eqx.is_array(after):
            found[spec.name] = float(after)
    return found
