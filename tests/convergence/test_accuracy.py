"""`ExactPenalty(accuracy=ε)` gets there, on average over the last tenth of its iterates."""

import jax.numpy as jnp
import pytest

import tightrope as tr


@pytest.mark.full
@pytest.mark.parametrize("accuracy", [0.03, 0.01])
def test_exact_penalty_reaches_the_accuracy_that_was_asked_for(accuracy):
    problem, x0, solution = tr.zoo.noisy_sphere()
    found = []
    method = tr.methods.ExactPenalty(accuracy=accuracy)
    tr.solve(problem, x0, method, steps=2_000, record=20, callback=lambda row: found.append(row["x"]), progress=False)
    late = jnp.stack(found[-10:])
    gradient = late - jnp.array([2.0, -1.0, 2.0]) + 2.0 * solution.multipliers["sphere"] * late
    assert jnp.sqrt(jnp.mean((jnp.sum(late**2, 1) - 1.0) ** 2)) < accuracy
    assert jnp.sqrt(jnp.mean(jnp.sum(gradient**2, 1))) < 3.0 * accuracy
