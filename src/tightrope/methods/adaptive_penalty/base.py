r"""The loop of the default method, shared by its dense and its matrix-free form (ours).

min F(x), low ≤ h(x) ≤ high, x in X, through the exact penalty function F(x) + Σ ρ_i dist(h_i(x), [low_i, high_i]), which for ρ
large enough has the same local solutions. With estimates v, ĥ, Ĵ of ∇F, h and the Jacobian at x, a step is

    damp        σ ← max(σ, κ √(T q/w))
    steer       ρ_i ← max(ρ_i, 4 min_j ρ_j‖Ĵ_j‖/‖Ĵ_i‖), i and j among the rows with |y_i| = ρ_i, while d removes less than a
                share of the violation that a step of its length can; not where no step leads nearer to the constraints
    solve       d = argmin vᵀd + ½ dᵀMd + Σ ρ_i dist(ĥ_i + Ĵ_i d, [low_i, high_i]) over x + d in X          multipliers y
    second-order correction
                x⁺ = x + d − M⁻¹Ĵᵀq, with q such that the rows that d holds at an end of their range stay there; sampled
                rows by what the sample of the last step says of their curvature
    accept      r = (actual reduction) / (predicted reduction), on the samples ξ and ζ at both points; no estimate has seen
                these samples before; x⁺ is rejected where r ≤ 0.1. Sampled rows change by Ĵd + h(x⁺, ζ) − h(x, ζ) − J(x, ζ)d,
                or by h(x⁺, ζ) − h(x, ζ) alone where that usually has less noise than the rest without Ĵd
    secant      there Ĵ ← Ĵ + g (h(x⁺, ζ) − h(x, ζ) − ½(J(x⁺, ζ) − J(x, ζ))d − Ĵd)dᵀ/‖d‖²          g: from e of Ĵ and q of ĥ
    relax       ρ_i ← 0.8ρ_i after an accepted step with all |y_i| < ρ_i, where ρ_i is over 10 times what the hardest row needs
    learn       σ, larger where r is small and smaller where it is large; M from the change of the Lagrangian's gradient
    carry over  v ← v + ∇f(x⁺, ξ) − ∇f(x, ξ), ĥ and Ĵ likewise; between full passes ĥ ← ĥ + Ĵd + h(x⁺, ζ) − h(x, ζ) − J(x, ζ)d
    correct     v ← v + a (∇f(x, ξ) − v) at the new x, ĥ and Ĵ likewise          a: from errors e and noise s, see `noise`

M is the limited-memory BFGS matrix of the Lagrangian, damped by σ (see `quasi_newton`). With q the variance of the change of
the gradient over a step of length one and T the steps that an estimate remembers, the least damping κ √(T q/w) keeps the
errors that T steps leave behind below a share w of the square of the gradient. So steps shrink where noise, and not
curvature, limits them. s and q come from the two halves of each sample; κ is 1 unless full passes raise it.

Carrying over and correcting is recursive momentum. Steps and shares a are chosen before the samples that judge them: given the
past these have errors of mean zero, and so have the estimates, however skewed or kinked the rows are. Exceptions, and their
size: docs/adaptive-penalty.md.

Finite data are passed over in full every N/4b steps, which sets the errors to zero (see `full_pass`).

On a set X the step is found twice: with (δ + σ)I for M, exactly; then with M itself on the face of X where that one ends, if
the result stays in X (see `faces`).

| symbol | name | symbol | name |
|---|---|---|---|
| v, ĥ, Ĵ | `estimates` | σ, δ | `damping`, `memory.curvature` |
| s, e, q | `noise`: `sample`, `error`, `change` | ρ, y | `penalty`, `multipliers` |
| share, w | `min_feasibility_share`, `noise_tolerance` | T, κ | `remembered_steps`, `damping_factor` |

Every other number is in `constants`, with its reason. What is proved and what is not: docs/adaptive-penalty.md.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ...oracles.oracle import Oracle, Sample
from ..base import Accepts, Draw, Hyper, Info, Method, hyper
from ..shared.halves import even_batch_size
from .acceptance import Acceptance, End, Outcome, accept_or_reject
from .constants import INFEASIBLE_SHARE, MIN_DAMPING
from .correction import second_order_correction
from .full_pass import full_pass_period
from .model import PenaltyModel, Steering, Trial
from .noise import Noise, correct_estimates, least_weight, running_mean
from .penalty import decrease_penalties
from .steering import steer
from .tuning import Tuning


class SelfTunedPenalty(Method):
    """The step, the hyperparameters and the meaning of the state; a subclass has the estimates and the model.

    A state has `x`, `estimates`, their `noise` and the `tuning`.
    """

    min_feasibility_share: Hyper = hyper(0.3, high=1.0)
    noise_tolerance: Hyper = hyper(0.25)

    accepts: ClassVar[Accepts] = Accepts("any", inequalities=True, stochastic=True, form="ranges", needs="projection")
    reference: ClassVar[str] = "ours, after Cui et al. 2025 and Lu et al. 2024"
    guarantee: ClassVar[str] = (
        "descent on the exact penalty function where nothing is noisy; see docs/adaptive-penalty.md"
    )

    def step(self, oracle: Oracle, state: Any, draw: Draw) -> tuple[Any, Info]:
        state, here, info = self._begin(oracle, state, draw)
        state = self._damp(oracle, state)
        model = self._model(oracle, state, here, draw.samples["step"])
        steering = steer(model, state.tuning, self.min_feasibility_share)
        trial = model.solve(steering)
        trial = second_order_correction(model, trial)
        outcome = self._compare(oracle, state, trial, here, draw)
        acceptance = accept_or_reject(model, trial, outcome, state.tuning)
        penalty = relax(trial, outcome, acceptance.accepted)
        tuning = learn(state.tuning._replace(penalty=penalty), steering, trial, outcome, acceptance, draw.k)
        state = correct(oracle, chosen_end(outcome, acceptance.accepted), draw.k)._replace(tuning=tuning)
        state = state._replace(x=jnp.where(is_known(model, outcome, state.noise), state.x, jnp.nan))
        return state, info._replace(constraint_values=info.constraint_values + steering.extra_evaluations)

    # ------------------------------------------------------------------ what the two methods differ in

    def _begin(self, oracle: Oracle, state: Any, draw: Draw) -> tuple[Any, Any, Info]:
        """Return the state, exact where a full pass is due, the sample's measurements at x, and the cost of the step."""
        raise NotImplementedError

    def _model(self, oracle: Oracle, state: Any, here: Any, sample: Sample) -> PenaltyModel:
        """Return the model around x; `here` are the sample's measurements at x."""
        raise NotImplementedError

    def _compare(self, oracle: Oracle, state: Any, trial: Trial, here: Any, draw: Draw) -> Outcome:
        """Return the measurements of the trial, on the sample with the measurements `here` at x."""
        raise NotImplementedError

    def _remembered(self, state: Any) -> Float[Array, ""]:
        """Return how many samples the gradient of the Lagrangian remembers."""
        raise NotImplementedError

    # ------------------------------------------------------------------ what they share

    def roles(self, oracle: Oracle) -> dict[str, int | None]:
        """One sample with an even number of examples: its halves show the noise."""
        return {"step": even_batch_size(oracle)}

    def _damp(self, oracle: Oracle, state: Any) -> Any:
        """Return the state with σ ≥ κ √(T q/w), T the steps until a full pass or until an estimate forgets a sample."""
        tuning, remembered_steps = state.tuning, full_pass_period(oracle)
        if remembered_steps is None:
            remembered_steps = self._remembered(state)
        least = tuning.last_pass.damping_factor * jnp.sqrt(
            remembered_steps * state.noise[0].change / self.noise_tolerance
        )
        return state._replace(tuning=tuning._replace(damping=jnp.maximum(tuning.damping, least)))

    def multipliers(self, state: Any) -> Float[Array, " rows"]:
        return state.tuning.multipliers

    def termination(self, state: Any) -> Literal["converged", "infeasible"] | None:
        return "infeasible" if float(state.tuning.stalled) > INFEASIBLE_SHARE else None

    def note(self, state: Any) -> str | None:
        rejected = int(state.tuning.rejected)
        return f"{rejected:,} step{'s were' if rejected > 1 else ' was'} rejected" if rejected else None


def relax(trial: Trial, outcome: Outcome, accepted: Bool[Array, ""]) -> Float[Array, " rows"]:
    """Return the penalties after the trial: lower where they are ample, if it was accepted."""
    lower = decrease_penalties(trial.penalty, trial.multipliers, outcome.row_norm, outcome.gradient_sq)
    return jnp.where(accepted, lower, trial.penalty)


def learn(
    tuning: Tuning, steering: Steering, trial: Trial, outcome: Outcome, acceptance: Acceptance, k: Int[Array, ""]
) -> Tuning:
    """Return the tuning after the trial, accepted or rejected."""
    accepted, no_descent = acceptance.accepted, steering.no_feasible_descent
    memory = tuning.memory.add(outcome.step, outcome.lagrangian_change, accepted & ~no_descent)
    return tuning._replace(
        memory=memory,
        damping=jnp.maximum(acceptance.damping, MIN_DAMPING * memory.curvature),
        multipliers=trial.multipliers,
        restoration=steering.restoration,
        stalled=running_mean(tuning.stalled, (no_descent & outcome.violated).astype(tuning.stalled.dtype), k),
        rejected=tuning.rejected + ~accepted,
    )


def chosen_end(outcome: Outcome, accepted: Bool[Array, ""]) -> End:
    """Return the end of the trial at which the run goes on."""

    def choose(moved: Array, stayed: Array) -> Array:
        return moved if moved is stayed else jnp.where(accepted, moved, stayed)

    return jax.tree.map(choose, outcome.moved, outcome.stayed)


def correct(oracle: Oracle, end: End, k: Int[Array, ""]) -> Any:
    """Return the state at this end of a trial, with shares of the sample in its estimates."""
    if not oracle.sources:
        return end.state
    weight = least_weight(k, full_pass_period(oracle) is not None)
    estimates, noise = correct_estimates(end, weight)
    return end.state._replace(estimates=type(end.state.estimates)(*estimates), noise=noise)


def is_known(model: PenaltyModel, outcome: Outcome, noise: tuple[Noise, ...]) -> Bool[Array, ""]:
    """Return whether the functions were finite at x, on the sample and in the estimates; no later step could recover."""
    errors = sum(jnp.sum(estimate.error) for estimate in noise)
    return jnp.isfinite(outcome.gradient_sq + jnp.sum(model.value) + jnp.sum(outcome.row_norm) + errors)
