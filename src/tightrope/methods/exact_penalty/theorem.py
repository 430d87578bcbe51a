"""What the theorems of `ExactPenalty` ask for, with their own constants: an upper bound on what it needs, far above it.

Lemma 3.4 and Theorem 3.1 (stochastic, semi), Propositions 5.1 and 5.2 (finite_sum) and Section 5.3 (deterministic) give the
steps and samples of an inner loop for E‖𝒢‖² ≤ ε². Theorem 4.1 needs ε/max{1, M₂ + Q₂^½} in its place and at most K_1 inner
loops. L_J counts as at least L_f/ρ, which halves γ at most: with L_J = 0 the lemma's S would be infinite.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class TheoremConstants(NamedTuple):
    """The constants of the theorems.

    Attributes:
        penalty: ρ of the last inner loop.
        growths: K_1, the number of inner loops.
        gap: Φ_ρ(x0) − C*.
        smoothness: L_f.
        jacobian_smoothness: L_J.
        gradient_norm: G.
        jacobian_norm: L_c.
        noise: σ_f, σ_c and σ_J of single examples.
        fractions: αζ.
        examples: N, for finite sums.
    """

    penalty: float
    growths: int
    gap: float
    smoothness: float
    jacobian_smoothness: float
    gradient_norm: float
    jacobian_norm: float
    noise: tuple[float, float, float]
    fractions: float
    examples: int


def theorem_sizes(setting: str, accuracy: float, constants: TheoremConstants) -> dict[str, float]:
    """The steps, the samples and the sizes that the theorems ask for."""
    rho, gap = constants.penalty, max(constants.gap, 0.0)
    lipschitz = max(constants.smoothness, 1e-12)
    bend = max(constants.jacobian_smoothness, lipschitz / rho)
    gamma = 1.0 / (8.0 * (rho * bend + lipschitz))
    c1 = 24.0 * (gap / rho + 4.0)
    steepness = (constants.gradient_norm / rho + constants.jacobian_norm) / constants.fractions
    inner = accuracy / max(1.0, steepness + gamma / (rho * c1) * math.sqrt((8.0 + c1) / 288.0))
    if setting == "deterministic":
        steps = math.ceil(4.0 * gap / (gamma * inner**2))
        return _total(constants, steps, 0.0, {"inner steps": steps})
    if setting == "finite_sum":
        return _finite_sum(constants, gap / (gamma * inner**2))
    tau = math.ceil(math.sqrt(c1 * rho / gamma) / inner)
    square = gamma * inner**2 / c1  # ε̃²
    f, c, jac = (sigma**2 for sigma in constants.noise)
    restart = [2.5 * f / (lipschitz * square), 36.0 * rho**2 * c / square**2, 2.5 * rho * jac / (bend * square)]
    update = [60.0 * tau * gamma * lipschitz, 288.0 * gamma * rho**2 * tau * constants.jacobian_norm**2 / square]
    update.append(60.0 * tau * gamma * rho * bend)
    if setting == "semi":
        restart, update = restart[:1], update[:1]
    samples = tau * sum(map(math.ceil, restart)) + tau * (tau - 1) * sum(map(math.ceil, update))
    names = ("gradient", "values", "Jacobian")
    sizes = {"inner steps": float(tau**2), "restart period": float(tau)}
    sizes |= {f"{name} at a restart": float(math.ceil(n)) for name, n in zip(names, restart, strict=False)}
    sizes |= {f"{name} between": float(math.ceil(n)) for name, n in zip(names, update, strict=False)}
    return _total(constants, tau**2, float(samples), sizes)


def _finite_sum(constants: TheoremConstants, ratio: float) -> dict[str, float]:
    """Proposition 5.2; `ratio` is (Φ_ρ(x0) − C*)/(γε²)."""
    n = constants.examples
    tau = max(1, math.floor(n**0.2 / 2 - 1))
    periods = max(1, math.ceil(82.0 * ratio / tau))
    few, many = min(n, math.ceil(2 * n**0.4)), min(n, math.ceil(4 * n**0.8))
    sizes = {"restart period": float(tau), "gradient between": few, "values between": many, "Jacobian between": few}
    return _total(constants, periods * tau, float(periods) * (n + (tau - 1) * (2 * few + many)), sizes)


def _total(constants: TheoremConstants, steps: float, samples: float, sizes: dict[str, float]) -> dict[str, float]:
    loops = constants.growths
    return {"steps": float(loops * steps), "samples": loops * samples, "inner loops": float(loops)} | sizes
