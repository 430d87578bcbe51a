"""One step of a method: pure functions that `solve` loops over, and `Stepper`, which gives them to the user."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ..arguments import seed_number
from ..methods.base import Draw, Info, Method, as_arrays
from ..oracles.oracle import Oracle, Sample
from ..problems.data import Source
from ..problems.lifting import unlifted
from ..problems.parameters import Parameters
from ..problems.problem import Problem
from .batches import BatchPlan, Roles, on_first_batches, streamed_parts, streams_of
from .fitting import fit
from .options import Stop
from .result import Result

AVERAGE_POWER = 3
"""The running average weighs iterate k like k³: about as much noise as averaging the last half, with no horizon."""


class StepperState(eqx.Module):
    """A run between two steps; a pytree of arrays.

    Attributes:
        method: the method with its hyperparameters, those that were estimated included.
        state: the method's own state.
        average: the running average of the iterates, a flat vector.
        k: the number of steps taken. It stays unbatched under vmap, and so does the horizon.
        horizon: the number of steps that the run is to take.
        key: the random key of the run.

    Example:
        >>> import jax, jax.numpy as jnp, tightrope as tr
        >>> stepper = tr.Stepper(tr.Problem(lambda x: jnp.sum(x**2)), jnp.ones(2), "GradientDescentAscent", steps=10)
        >>> state, _ = stepper.step(stepper.init(seed=0))
        >>> int(state.k), state.x.shape
        (1, (2,))
    """

    method: Method
    state: Any
    average: Float[Array, " n"]
    k: Int[Array, ""]
    horizon: Int[Array, ""]
    key: Array
    parameters: Parameters = eqx.field(static=True)

    @property
    def x(self) -> PyTree[Any]:
        """The current iterate, a pytree like x0."""
        return unlifted(self.parameters.unravel(self.state.x[: self.parameters.size]))


AXES = {"method": 0, "state": 0, "average": 0, "k": None, "horizon": None, "key": 0}
"""The axes of a StepperState under vmap."""


def draw_samples(
    oracle: Oracle, roles: Roles, key: Array, k: Int[Array, ""], streamed: tuple[PyTree[Array], ...] = ()
) -> tuple[dict[str, Sample], Float[Array, ""]]:
    """The samples of every role and the uniform number of step k, from (key, k) and its batch of every stream alone."""
    keys, parts = _step_keys(roles, key, k), streamed_parts(oracle.sources, roles, streamed)
    drawn = enumerate(sorted(roles.items()))
    return {name: oracle.draw(keys[i], examples, parts[name]) for i, (name, examples) in drawn}, _uniform(keys)


def _step_keys(roles: Roles, key: Array, k: Int[Array, ""]) -> Array:
    return jax.random.split(jax.random.fold_in(key, k), len(roles) + 1)


def _uniform(keys: Array) -> Float[Array, ""]:
    return jax.random.uniform(keys[-1], dtype=jnp.float32)  # the same number in every precision


def start(
    oracle: Oracle, method: Method, x: Float[Array, " n"], key: Array, steps: Int[Array, ""], samples: Any = None
) -> StepperState:
    """The state before step 1, with the method's constants estimated; `samples` of every role are drawn if None."""
    k, roles = jnp.int32(0), method.roles(oracle)
    drawn, uniform = (
        draw_samples(oracle, roles, key, k) if samples is None else (samples, _uniform(_step_keys(roles, key, k)))
    )
    draw = Draw(drawn, uniform, jax.random.fold_in(key, 0), k, steps)
    x = oracle.with_slacks(x, next(iter(drawn.values())))
    if any(leaf is None for leaf in jax.tree.leaves(method, is_leaf=lambda leaf: leaf is None)):
        method = method.estimate_constants(oracle, x, draw)
    return StepperState(method, method.init(oracle, x, draw, steps), x, k, steps, key, oracle.parameters)


def start_on_streams(
    oracle: Oracle,
    first: tuple[PyTree[Array], ...],
    method: Method,
    x: Float[Array, " n"],
    key: Array,
    steps: Int[Array, ""],
) -> StepperState:
    """`start` with the first batch of every stream, on which the method's constants are estimated."""
    if not first:
        return start(oracle, method, x, key, steps)
    samples, _ = draw_samples(oracle, method.roles(oracle), key, jnp.int32(0), first)
    batches = dict(zip(streams_of(oracle.sources), first, strict=True))
    drawing, given = on_first_batches(oracle, batches, samples)
    return start(drawing, method, x, key, steps, given)


def take_step(
    oracle: Oracle,
    current: StepperState,
    samples: dict[str, Sample],
    uniform: Float[Array, ""],
) -> tuple[StepperState, Info]:
    """One step of the method, and the running average after it."""
    k = current.k + 1
    draw = Draw(samples, uniform, jax.random.fold_in(current.key, k), k, current.horizon)
    state, info = current.method.step(oracle, current.state, draw)
    weight = (AVERAGE_POWER + 1.0) / (k + AVERAGE_POWER)
    average = current.average + weight.astype(state.x.dtype) * (state.x - current.average)
    return replace(current, state=state, average=average, k=k), info


class Stepper:
    """A method's step as pure functions, for a loop of your own with batches of your own.

    `init`, `step` and `draw` can be jitted, vmapped and scanned; a state is a pytree of arrays that any tool can save.
    Constructing a Stepper chooses the method and checks the arguments; it compiles and runs nothing.

    Args:
        problem: what is solved. `tightrope.Batches(like=batch)` as its data says what a batch looks like, if there is
            nothing else to draw from.
        x0: the start, as in `solve`.
        method: as in `solve`.
        steps: the horizon: how many steps you plan to take. Some methods choose their step sizes by it.
        warm_start: as in `solve`.

    Attributes:
        batch_size: the number of examples that a step takes, over all samples of the method; a dict by source if the
            problem has several.
        sources: the names of the sources: 'objective' for the objective's data, else the first constraint that uses it.
        axes: a StepperState for vmap's `in_axes` and `out_axes`: everything is batched but the step number k and the horizon.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, tightrope as tr
        >>> rng = np.random.default_rng(0)
        >>> loader = (rng.normal(1.0, 1.0, size=(32, 2)).astype("float32") for _ in range(300))
        >>> batches = tr.Batches(like=next(loader))
        >>> near = lambda x, batch: jnp.mean(jnp.sum((x - batch) ** 2, axis=1))
        >>> problem = tr.Problem(near, tr.at_most(jnp.sum, 1.0, name="budget"), data=batches)
        >>> stepper = tr.Stepper(problem, jnp.zeros(2), steps=299)
        >>> state, step = stepper.init(next(loader), seed=0), jax.jit(stepper.step)
        >>> for batch in loader:
        ...     state, info = step(state, batch)
        >>> bool(jnp.allclose(state.x, 0.5, atol=0.05))
        True
    """

    def __init__(
        self, problem: Problem, x0: PyTree[Any], method: Any = None, *, steps: int, warm_start: Result | None = None
    ):
        self._fitted = fit("Stepper", problem, x0, method, steps, warm_start)
        self.problem, self.method, self.steps = problem, self._fitted.method, self._fitted.steps
        self._batches = BatchPlan(problem, self._fitted.oracle, self.method)
        self.sources = self._batches.names

    @property
    def batch_size(self) -> int | dict[str, int]:
        """The number of examples that a step takes."""
        sizes = self._batches.batch_sizes
        return sizes[0] if len(sizes) == 1 else dict(zip(self.sources, sizes, strict=True))

    @property
    def axes(self) -> StepperState:
        """The axes of a state under vmap."""
        return StepperState(**AXES, parameters=self._fitted.parameters)  # pyright: ignore[reportArgumentType]

    def init(self, batch: PyTree[Any] = None, *, seed: int | Int[Array, ""] = 0) -> StepperState:
        """The state before the first step; the method's constants are estimated on this batch.

        Args:
            batch: `batch_size` examples; None: drawn from the problem's data, as `solve` draws them.
            seed: the random seed.
        """
        if isinstance(seed, int | np.integer | float | str | None):
            seed = seed_number("Stepper.init", "seed", seed)
        oracle, samples = self._oracle(), None
        if batch is not None:
            oracle, samples = self._batches.first(oracle, batch)
        elif self.problem.needs_batches:
            raise ValueError(
                "Stepper.init: batch is missing; the problem's data are tightrope.Batches, so pass the first one"
            )
        method = as_arrays(self.method, oracle.parameters.dtype)
        x = _inside(oracle, oracle.parameters.start)
        arguments = _opaque((method, x, jax.random.key(seed), jnp.int32(self.steps)))
        return _opaque(start(oracle, *arguments, samples=samples))

    def step(self, state: StepperState, batch: PyTree[Any] | Draw = None) -> tuple[StepperState, Info]:
        """One step.

        Args:
            state: from `init` or from the step before.
            batch: `batch_size` examples (several sources: a dict by source), or what `draw` returned; None: drawn from
                the problem's data, as `solve` draws them.

        Returns:
            The next state, and what the step cost.
        """
        oracle, k = self._oracle(), state.k + 1
        roles = state.method.roles(oracle)
        if isinstance(batch, Draw):
            samples, uniform = batch.samples, batch.uniform
        elif batch is not None:
            samples, uniform = self._batches.samples(batch), _uniform(_step_keys(roles, state.key, k))
        elif self.problem.needs_batches:
            raise ValueError("Stepper.step: batch is missing; the problem's data are tightrope.Batches, so pass one")
        else:
            samples, uniform = draw_samples(oracle, roles, state.key, k)
        return take_step(oracle, state, samples, uniform)

    def draw(self, k: int | Int[Array, ""], *, seed: int | Int[Array, ""] = 0) -> Draw:
        """The randomness that `solve` uses at step k with this seed; `step` takes it in place of a batch."""
        if self.problem.needs_batches:
            raise ValueError("Stepper.draw: the problem's data are tightrope.Batches, which have nothing to draw from")
        oracle, key, number = self._fitted.oracle, jax.random.key(seed), jnp.asarray(k, jnp.int32)
        samples, uniform = draw_samples(oracle, self.method.roles(oracle), key, number)
        return Draw(samples, uniform, jax.random.fold_in(key, number), number, jnp.int32(self.steps))

    def answer(self, state: StepperState, data: Source | None = None, *, stop: Stop | None = None) -> Result:
        """The best of the method's output, the last iterate and the running average, with its certificate.

        Args:
            state: from `step`.
            data: a `Dataset` or `Sampler` to choose and certify the answer on; None: the problem's own data.
            stop: the tolerances of `success`, as in `solve`.
        """
        from .answer import stepper_answer

        return stepper_answer(self._fitted, state, data, stop or Stop())

    def _oracle(self) -> Oracle:
        """The oracle, with numbers that the compiler does not fold into the steps: `solve` passes them as arguments."""
        oracle = self._fitted.oracle
        return jax.tree.unflatten(jax.tree.structure(oracle), _opaque(oracle.leaves()))


def _opaque(tree: Any) -> Any:
    """The same numbers, as unknown to the compiler as arguments are, so that no constant is folded and rounded anew."""
    return jax.lax.optimization_barrier(tree)


def _inside(oracle: Oracle, x: Float[Array, " n"]) -> Float[Array, " n"]:
    """The point, or its projection if it lies outside the domain."""
    if not oracle.domain.can_project:
        return x
    join, (_, state), (oracle, x) = oracle.parameters.join, oracle.parameters.split(x), oracle.hold_state(x)
    params = oracle.parameters.unravel_arrays(x)
    nearest = jnp.where(oracle.domain.contains(params), x, oracle.parameters.ravel(oracle.domain.project(params)))
    return join(nearest, state)
