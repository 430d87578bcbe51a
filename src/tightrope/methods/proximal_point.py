r"""Inexact proximal point: strongly convex problems around moving centers, each solved roughly by another method.

For weakly convex f and g, outer iteration j = 0, 1, … with center z_j (z_0 = x_0) takes some steps of the inner method on

    min f(x) + (ρ̂/2)‖x − z_j‖²,   g(x) + (ρ̃/2)‖x − z_j‖² ≤ 0 in every row,   x in X

with ρ̃ = ρ̂ if g is weakly convex and 0 if it is convex (Huang, Lin 2023, (3) and Section 6: IPP-SSG, IPP-ConEx). One step of
this method is one step of the inner method. Every `inner_steps` steps the center moves and the inner method restarts there;
it sees the step numbers 1 … `inner_steps` and that horizon.

| symbol | name | symbol | name |
|---|---|---|---|
| z_j | `center` | ρ̂ | `proximal_weight` |

Reconstructed: the paper does not say which inner iterate is the next center. Here it is the last one, because a sampled inner
iterate would discard a random part of the progress. The output is the last iterate too, so a run may end anywhere within an
inner loop. The sample of the step that restarts is also used by the inner method's `init`, if that uses samples.

Guaranteed if every subproblem is solved well enough and has a strictly feasible point: nearly ε-stationary points in O(ε⁻⁴)
inner steps in total. There are no multipliers: those of a subproblem belong to another problem.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..arguments import positive_int
from ..oracles.oracle import Oracle
from .base import Accepts, Draw, Hyper, Info, Method, choice, hyper
from .shared.constants import local_constants
from .shared.schedules import starts_period


class State(NamedTuple):
    """The center, and the inner method's state, which holds the iterate."""

    center: Float[Array, " n"]
    inner: Any

    @property
    def x(self) -> Float[Array, " n"]:
        """The iterate."""
        return self.inner.x


def _default_inner() -> Method:
    from .registry import by_name  # at call time: the registry imports this module

    return by_name("SwitchingSubgradient")(rule="static")  # pyright: ignore[reportCallIssue]


class ProximalPoint(Method):
    """Solve proximal problems around moving centers with another method.

    Args:
        inner: the method that solves them: any method that takes stochastic inequalities without slacks and projects. Its
            hyperparameters that are None are estimated on the first proximal problem for the horizon of the whole run,
            because all inner steps contribute to the accuracy of the run. Default: SwitchingSubgradient(rule="static").
        proximal_weight: ρ̂; None: 1.5 times the Lipschitz constant of the objective's gradient at the start, or of the
            constraints' if the proximal term enters them and theirs is larger: these bound the weak convexity.
        inner_steps: steps between new centers.
        constraints: 'weakly_convex' (the proximal term enters every row) or 'convex' (it does not).

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum(jnp.cos(x)), tr.at_most(lambda x: x @ x, 4.0))
        >>> inner = tr.methods.SwitchingSubgradient(rule="static")
        >>> result = tr.solve(problem, jnp.array([0.5, 0.1]), tr.methods.ProximalPoint(inner), steps=5000)
        >>> bool(result.violation < 0.05)
        True
    """

    inner: Method = eqx.field(default_factory=_default_inner)
    proximal_weight: Hyper = hyper(None)
    inner_steps: int = eqx.field(default=100, static=True)
    constraints: str = choice("weakly_convex", "weakly_convex", "convex")

    accepts: ClassVar[Accepts] = Accepts("affine", inequalities=True, stochastic=True, form="pairs", needs="projection")
    reference: ClassVar[str] = (
        "Boob, Deng, Lan 2022; Ma, Lin, Yang 2020; as run in Huang, Lin 2023 [centers reconstructed]"
    )
    guarantee: ClassVar[str] = "weakly convex: nearly ε-stationary in O(ε⁻⁴) inner steps if subproblems are solved"
    cost: ClassVar[str] = "that of the inner method"

    def __check_init__(self) -> None:
        positive_int("ProximalPoint", "inner_steps", self.inner_steps)
        if not isinstance(self.inner, Method) or isinstance(self.inner, ProximalPoint):
            raise TypeError(
                "ProximalPoint: inner must be a method other than ProximalPoint, such as "
                f"SwitchingSubgradient(rule='static'), got {type(self.inner).__name__}"
            )
        accepts = self.inner.accepts
        able = accepts.inequalities and accepts.stochastic and accepts.form != "slacks"
        if not able or accepts.needs != "projection":
            raise ValueError(
                "ProximalPoint: inner must take stochastic inequalities without slacks and use projections, got "
                f"{type(self.inner).__name__}; try SwitchingSubgradient or ConstraintExtrapolation"
            )

    @property
    def uses_horizon(self) -> bool:
        return self.inner.uses_horizon

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return self.inner.roles(oracle)

    def needs_beyond_batches(self, oracle: Oracle) -> str | None:
        return self.inner.needs_beyond_batches(oracle)

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        s = local_constants(oracle, x, draw.key)
        rows = s.jacobian_smoothness if self.constraints == "weakly_convex" else 0.0
        method = self.with_defaults(proximal_weight=1.5 * jnp.maximum(s.step_smoothness, rows))
        return replace(method, inner=self.inner.estimate_constants(method._proximal_problem(oracle, x), x, draw))

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        horizon = jnp.int32(self.inner_steps)
        return State(x, self.inner.init(self._proximal_problem(oracle, x), x, draw._replace(steps=horizon), horizon))

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        restarts = starts_period(draw.k, self.inner_steps) & (draw.k > 1)
        inside = draw._replace(k=(draw.k - 1) % self.inner_steps + 1, steps=jnp.int32(self.inner_steps))
        state = jax.lax.cond(
            restarts, lambda: self.init(oracle, state.x, draw._replace(k=jnp.int32(0)), draw.steps), lambda: state
        )
        inner, info = self.inner.step(self._proximal_problem(oracle, state.center), state.inner, inside)
        return State(state.center, inner), info

    def _proximal_problem(self, oracle: Oracle, center: Float[Array, " n"]) -> Oracle:
        """The oracle of the proximal problem around a center."""
        rows = self.proximal_weight if self.constraints == "weakly_convex" else jnp.zeros_like(self.proximal_weight)
        return oracle.shifted(center, self.proximal_weight, rows)
