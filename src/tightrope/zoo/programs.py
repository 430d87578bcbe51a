"""Stochastic programs: inventory under random demand, tail risk, mean and variance of a portfolio."""

import jax
import jax.numpy as jnp

from ..domains import NonNegative, Simplex
from ..problems.constraints import at_least, at_most
from ..problems.data import Sampler
from ..problems.problem import Problem
from .base import Case, Solution


def newsvendor(batch_size: int = 16) -> Case:
    """Stock for three products with bounded expected shortage: sampled constraint, NonNegative.

    Minimize the price x₀ + 2x₁ + x₂ subject to E Σ qᵢ max(Dᵢ − xᵢ, 0) ≤ 0.375 and x ≥ 0, with q = (1, 4, 0.25) and demands Dᵢ
    uniform on [0, 1]. In expectation the constraint is Σ qᵢ(1 − xᵢ)²/2 ≤ 0.375, so pᵢ = μqᵢ(1 − xᵢ) where xᵢ > 0. With
    μ = 2 that gives x = (0.5, 0.75) for the first two; the third costs more than it saves, x₂ = 0; F = 2.
    """

    def price(x):
        return x[0] + 2.0 * x[1] + x[2]

    def shortage(x, batch):
        return jnp.mean(jnp.maximum(batch - x, 0.0) @ jnp.asarray([1.0, 4.0, 0.25]))

    demand = Sampler(lambda key, n: jax.random.uniform(key, (n, 3)), batch_size)
    problem = Problem(price, at_most(shortage, 0.375, data=demand), domain=NonNegative())
    solution = Solution(jnp.asarray([0.5, 0.75, 0.0]), 2.0, {"shortage": 2.0})
    return problem, jnp.asarray([1.0, 1.0, 1.0]), solution


def tail_risk(tail: float = 0.5, batch_size: int = 16) -> Case:
    """Minimal stock whose worst shortages average to zero: CVaR constraint, dict parameters.

    Minimize s + ½s² over a stock s and a threshold t subject to E [t + max(D − s − t, 0)/tail] ≤ 0 with D uniform on [0, 1].
    The minimum of the left side over t is the conditional value at risk of the shortage D − s, that is, its mean over the
    worst `tail` of cases, 1 − tail/2 − s, attained at its quantile t = 1 − tail − s. So s = 1 − tail/2 and t = −tail/2; since
    the constraint falls by one per unit of s, μ = 1 + s.
    """
    stock = 1 - tail / 2

    def cost(params):
        return params["stock"] + 0.5 * params["stock"] ** 2

    def risk(params, batch):
        shortage = batch - params["stock"] - params["threshold"]
        return params["threshold"] + jnp.mean(jnp.maximum(shortage, 0.0)) / tail

    demand = Sampler(lambda key, n: jax.random.uniform(key, (n,)), batch_size)
    x = {"stock": jnp.asarray(stock), "threshold": jnp.asarray(-tail / 2)}
    solution = Solution(x, stock + 0.5 * stock**2, {"risk": 1 + stock})
    return (
        Problem(cost, at_most(risk, data=demand)),
        {"stock": jnp.asarray(0.0), "threshold": jnp.asarray(0.0)},
        solution,
    )


def mean_variance(batch_size: int = 16) -> Case:
    """The portfolio of smallest variance with a required mean return: Simplex, shared samples.

    Minimize E ½((r − m)·w)² = ½Σσᵢ²wᵢ² over the simplex subject to E r·w ≥ 0.395, where the returns r are independent
    Gaussians with means m = (0.35, 0.4, 0.5, 0.05) and variances σ² = (0.5, 1, 2, 1). On the support σᵢ²wᵢ = μmᵢ − 0.1
    with μ = 1: w = (0.5, 0.3, 0.2, 0). The last asset is not held, since its mean return is below 0.1. F = 0.1475.
    """
    mean, variance = jnp.asarray([0.35, 0.4, 0.5, 0.05]), jnp.asarray([0.5, 1.0, 2.0, 1.0])

    def half_variance(weights, batch):
        return 0.5 * jnp.mean(((batch - mean) @ weights) ** 2)

    def mean_return(weights, batch):
        return jnp.mean(batch @ weights)

    returns = Sampler(lambda key, n: mean + jnp.sqrt(variance) * jax.random.normal(key, (n, 4)), batch_size)
    problem = Problem(half_variance, at_least(mean_return, 0.395, data=returns), domain=Simplex(), data=returns)
    solution = Solution(jnp.asarray([0.5, 0.3, 0.2, 0.0]), 0.1475, {"mean_return": 1.0})
    return problem, jnp.asarray([0.25, 0.25, 0.25, 0.25]), solution
