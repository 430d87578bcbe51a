"""Denominators of ratios: a constraint on a ratio says nothing where the mean of the denominator is not positive."""

from __future__ import annotations

import warnings
from dataclasses import replace

import jax
import numpy as np
from jaxtyping import Array, Float

from ..oracles.oracle import Oracle, Sample
from ..problems.compiling import Program
from ..problems.problem import Problem, cached_on_problem
from .evaluation import evaluation_data


def warn_of_denominators(problem: Problem, oracle: Oracle, points: Float[np.ndarray, "points n"]) -> None:
    """Warn of ratios whose denominator is not positive at one of the points, on the examples of records."""
    denominators = {c.name: c._denominator for c in problem.constraints if c._denominator is not None}
    if not denominators:
        return
    terms = [replace(t, fn=denominators[t.name], takes_key=False) for t in oracle.constraints if t.name in denominators]
    sampled, sample = evaluation_data(replace(oracle, constraints=tuple(terms)))
    structure = jax.tree.structure(sampled)

    def means(leaves: list[Array], x: Float[Array, " n"], sample: Sample) -> Float[Array, " entries"]:
        held, x = jax.tree.unflatten(structure, leaves).hold_state(x)
        return held.raw(x, sample)

    program = cached_on_problem(problem, ("denominators", oracle.parameters.key), lambda: Program(means, "little"))
    leaves = sampled.leaves()
    found = np.min([jax.device_get(program(leaves, x, sample)) for x in points], axis=0)
    for name, entries in sampled.slices().items():
        if not (found[entries] > 0.0).all():
            warnings.warn(
                f"the denominator of the constraint {name!r} is {found[entries].min():.6g} at the answer, so the ratio is "
                "undefined; keep it positive: tightrope.at_least(denominator, …)",
                UserWarning,
                stacklevel=4,
            )
