r"""Inexact proximal point: a strongly convex problem around a center, solved roughly by another method, again and again.

For weakly convex f and g and any outer j = 0, 1, … with center z_j (z_0 = x_0), a number of steps of the inner method on

    min f(x) + (ρ̂/2)‖x − z_j‖²,   g(x) + (ρ̃/2)‖x − z_j‖² ≤ 0 in every row,   x in X

with ρ̃ = ρ̂ where g is weakly convex and 0 where it is convex (Huang, Lin 2023, (3) and Section 6: IPP-SSG, IPP-ConEx). A step
of this method is one step of the inner one; every `inner_steps` of them there is a new center and the inner method starts
anew there. It sees step numbers 1 … `inner_steps` and this horizon.

| symbol | name | symbol | name |
|---|---|---|---|
| z_j | `center` | ρ̂ | `proximal_weight` |

What is reconstructed: the paper leaves open which inner iterate is the next center. Here it is the last one, the point that
the run has reached: an iterate sampled from the inner loop would throw away a random part of it. The output is the last
iterate too, so a run may end anywhere within an inner loop. The sample of the step that starts anew serves the inner
method's `init` as well; only methods that use samples there notice.

Guaranteed, where every subproblem is solved well enough and has a strictly feasible point: nearly ε-stationary points in
O(ε⁻⁴) inner steps in total. Multipliers are the inner method's own business: those of a subproblem belong to another point.
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
from .shared.constants import scales
from .shared.schedules import begins


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
        inner: the method that solves them: any that takes stochastic inequalities without slacks and projects.
            Its constants that are None are estimated on the first proximal problem for the horizon of the whole run: it is
            the run's accuracy that they have to serve, and its steps all count towards it.
        proximal_weight: ρ̂; None: estimated at the start as 1.5 times the Lipschitz constant of the objective's gradient, or of the
            constraints' where the prox term enters them and it is larger: these bound how far from convex they are.
        inner_steps: steps between new centers.
        constraints: 'weakly_convex' (the prox term enters every row) or 'convex' (it does not).

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
    guarantee: ClassVar[str] = "weakly convex: nearly ε-stationary in O(ε⁻⁴) inner steps where subproblems are solved"
    cost: ClassVar[str] = "that of the inner method"

    def __check_init__(self) -> None:
        positive_int("ProximalPoint", "inner_steps", self.inner_steps)
        if not isinstance(self.inner, Method) or isinstance(self.inner, ProximalPoint):
            raise TypeError(
                "ProximalPoint: inner must be a method such as SwitchingSubgradient(rule='static') and no ProximalPoint, "
                f"got {type(self.inner).__name__}"
            )
        accepts = self.inner.accepts
        able = accepts.inequalities and accepts.stochastic and accepts.form != "slacks"
        if not able or accepts.needs != "projection":
            raise ValueError(
                "ProximalPoint: inner must take stochastic inequalities without slacks, and project; "
                f"{type(self.inner).__name__} does not: try SwitchingSubgradient or ConstraintExtrapolation"
            )

    @property
    def uses_horizon(self) -> bool:
        return self.inner.uses_horizon

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        return self.inner.roles(oracle)

    def estimate_constants(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw) -> Self:
        s = scales(oracle, x, next(iter(draw.samples.values())), draw.key)
        bends = s.jacobian_smoothness if self.constraints == "weakly_convex" else 0.0
        method = self.with_defaults(proximal_weight=1.5 * jnp.maximum(s.smoothness, bends))
        return replace(method, inner=self.inner.estimate_constants(method._around(oracle, x), x, draw))

    def init(self, oracle: Oracle, x: Float[Array, " n"], draw: Draw, steps: Int[Array, ""]) -> State:
        horizon = jnp.int32(self.inner_steps)
        return State(x, self.inner.init(self._around(oracle, x), x, draw._replace(steps=horizon), horizon))

    def step(self, oracle: Oracle, state: State, draw: Draw) -> tuple[State, Info]:
        anew = begins(draw.k, self.inner_steps) & (draw.k > 1)
        inside = draw._replace(k=(draw.k - 1) % self.inner_steps + 1, steps=jnp.int32(self.inner_steps))
        state = jax.lax.cond(
            anew, lambda: self.init(oracle, state.x, draw._replace(k=jnp.int32(0)), draw.steps), lambda: state
        )
        inner, info = self.inner.step(self._around(oracle, state.center), state.inner, inside)
        return State(state.center, inner), info

    def _around(self, oracle: Oracle, center: Float[Array, " n"]) -> Oracle:
        """The proximal problem around a center."""
        rows = self.proximal_weight if self.constraints == "weakly_convex" else jnp.zeros_like(self.proximal_weight)
        return oracle.shifted(center, self.proximal_weight, rows)
