"""The contract of a method: what it declares, what a step is given and what it returns."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..arguments import numbers
from ..oracles.oracle import Oracle, Sample


class Draw(NamedTuple):
    """The randomness of one step, a function of (seed, step) alone.

    Attributes:
        samples: an independent sample for each role of the method, with one entry per data source.
        uniform: a random number in [0, 1).
        key: a random key for rare needs; what every step needs comes from `samples` and `uniform`.
        k: the step number, from 1; 0 in `init`. It comes from the loop and is never kept in a State.
        steps: the horizon: the number of steps that the run will take.
    """

    samples: dict[str, Sample]
    uniform: Float[Array, ""]
    key: Array
    k: Int[Array, ""]
    steps: Int[Array, ""]


class Info(NamedTuple):
    """The cost of a step. A count that never varies is a Python int and costs nothing to add up.

    Attributes:
        objective_gradients: gradients of the objective.
        constraint_values: evaluations of the constraint rows, including those behind a derivative.
        constraint_jacobians: linearizations of the rows: whole Jacobians, or products with one at a point.
        samples: examples drawn and used.
    """

    objective_gradients: int | Int[Array, ""] = 0
    constraint_values: int | Int[Array, ""] = 0
    constraint_jacobians: int | Int[Array, ""] = 0
    samples: int | Int[Array, ""] = 0


class Accepts(NamedTuple):
    """The problems that a method accepts, and the form in which it takes their constraints.

    Attributes:
        equalities: 'any', 'affine' (linear and deterministic only) or 'none'.
        inequalities: whether it accepts g(x) ≤ 0.
        stochastic: whether constraints may have data.
        form: 'native' (rows c = 0 and g ≤ 0), 'slacks' (equalities only), 'pairs' (inequalities only) or 'ranges' (low ≤ h ≤
            high).
        needs: what it requires of the set X: 'projection', 'lmo' (linear minimization), or 'everywhere' (X is the whole
            space).
        model_state: whether its steps carry model state: they evaluate by `Oracle.hold_state`.
    """

    equalities: Literal["any", "affine", "none"]
    inequalities: bool
    stochastic: bool
    form: Literal["native", "slacks", "pairs", "ranges"]
    needs: Literal["projection", "lmo", "everywhere"]
    model_state: bool = False


Hyper = Any
"""The value of a hyperparameter: the user's number, an array once a run has begun, or None if it is to be estimated."""


def hyper(default: float | None, *, low: float = 0.0, high: float = np.inf, closed: str = "") -> Any:
    """A hyperparameter: a number between `low` and `high`, or None; `closed` has '[' or ']' for an end that is allowed."""
    return eqx.field(default=default, metadata={"low": low, "high": high, "closed": closed})


def choice(default: str, *options: str) -> Any:
    """A choice among names. It is static: another choice compiles another program."""
    return eqx.field(default=default, static=True, metadata={"options": options})


class Method(eqx.Module):
    """An algorithm: an immutable pytree of hyperparameters with `init`, `step` and `output`.

    A subclass declares `accepts`, `reference`, `guarantee` and `cost`; its State has a field `x`, the current iterate.
    """

    accepts: ClassVar[Accepts]
    reference: ClassVar[str]
    """Paper and equation."""
    guarantee: ClassVar[str]
    """What is proved, and the rate."""
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
        """This method with the hyperparameters that are None estimated from samples at the start.

        What is estimated and not used is not computed: the compiler drops it.
        """
        return self

    def with_defaults(self, **guesses: Any) -> Self:
        """This method with these values for the hyperparameters that are None; the user's own stay."""
        return replace(self, **{name: guess for name, guess in guesses.items() if getattr(self, name) is None})

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> Any:
        """The State before step 1; `draw.k` is 0."""
        raise NotImplementedError

    def step(self, oracle: Oracle, state: Any, draw: Draw) -> tuple[Any, Info]:
        """One step."""
        raise NotImplementedError

    def output(self, state: Any) -> Float[Array, " n"]:
        """The point that the method's theorem covers."""
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
            options = spec.metadata.get("options")
            if options is not None and not (isinstance(value, str) and value in options):
                raise ValueError(f"{owner}: {spec.name} must be one of {spec.metadata['options']}, got {value!r}")
            if "low" in spec.metadata and value is not None:
                numbers(owner, spec.name, value, **spec.metadata)


def as_arrays(method: Method, dtype: Any) -> Method:
    """The method with its numbers as arrays of x's dtype: new values then never recompile."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), method)


def constants(given: Method, used: Method) -> dict[str, float]:
    """The hyperparameters that were estimated, including those of an inner method: None in `given`, a number in `used`."""
    found: dict[str, float] = {}
    for spec in fields(given):  # pyright: ignore[reportArgumentType]
        before, after = getattr(given, spec.name), getattr(used, spec.name)
        if isinstance(before, Method):
            found |= {f"{spec.name}.{name}": value for name, value in constants(before, after).items()}
        elif before is None and eqx.is_inexact_array_like(after):
            found[spec.name] = float(after)
    return found
