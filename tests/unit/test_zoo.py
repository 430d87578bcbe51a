"""The zoo as a collection: documented, complete, in the precision of the session, with samples that match their laws."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_zoo import FEASIBLE, INTEGRALS, LAWS, NAMES, exact
from jax.flatten_util import ravel_pytree

import tightrope as tr
from tightrope import zoo
from tightrope.domains import Box, L1Ball, L2Ball, NonNegative, Product, Reals, Simplex


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def test_names_and_count():
    assert len(NAMES) >= 16
    assert {*NAMES, "available", "Solution"} == set(zoo.__all__)
    assert all(getattr(zoo, name) is make for name, make in zoo.available().items())
    assert tuple(zoo.available()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_problem_is_documented(name):
    first, *rest = inspect.cleandoc(zoo.available()[name].__doc__ or "").splitlines()
    assert first.endswith(".")
    assert len(first) <= 90
    assert "inimize" in " ".join(rest), "the docstring must state the problem"


def test_the_zoo_has_problems_of_every_kind():
    problems = [zoo.available()[name]()[0] for name in NAMES]
    constraints = [c for problem in problems for c in problem.constraints]
    assert {c.kind for c in constraints} == {"equals", "at_most", "at_least", "between"}
    assert any(c.matrix is not None for c in constraints)
    assert {type(c.data) for c in constraints} == {type(None), tr.Dataset, tr.Sampler}
    assert {type(p.data) for p in problems} == {type(None), tr.Dataset, tr.Sampler}
    assert any(p.data is not None and c.data not in (None, p.data) for p in problems for c in p.constraints)
    assert {type(p.domain) for p in problems} >= {Reals, NonNegative, Box, L1Ball, L2Ball, Simplex, Product}


@pytest.mark.by_default("lens-*", "fair_logistic_regression-*")
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_functions_keep_the_precision_of_the_session(name, double):
    with jax.enable_x64(double):
        problem, x0, solution = zoo.available()[name]()
        problem.domain.check(x0)
        terms = [(problem.objective, problem.data), *((c.fn, c.data) for c in problem.constraints)]

        def everything(x, key):
            batches = {id(s): s.batch(s.arrays, s.draw(key, s.batch_size)) for s in problem.sources}
            arguments = [(x,) if data is None else (x, batches[id(data)]) for _, data in terms]
            jacobians = [jax.jacrev(fn)(*args) for (fn, _), args in zip(terms, arguments, strict=True)]
            return batches, [fn(*args) for (fn, _), args in zip(terms, arguments, strict=True)], jacobians

        made = jax.eval_shape(everything, x0, jax.random.key(0))
        assert {leaf.dtype for leaf in jax.tree.leaves((x0, solution.x, made))} == {
            np.dtype(np.float64 if double else np.float32)
        }
        if not double:
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.jit(everything)(x0, jax.random.key(0))))


@pytest.mark.parametrize("name", FEASIBLE)
def test_the_solution_has_the_structure_of_the_start_and_differs_from_it(name):
    _, x0, solution = zoo.available()[name]()
    assert jax.tree.structure(x0) == jax.tree.structure(solution.x)
    assert [leaf.shape for leaf in jax.tree.leaves(x0)] == [leaf.shape for leaf in jax.tree.leaves(solution.x)]
    assert np.linalg.norm(ravel_pytree(x0)[0] - ravel_pytree(solution.x)[0]) > 0.1


# ---- samples --------------------------------------------------------------------------------------------------------

BATCHES, EXAMPLES = 100, 400


def value_and_slope(fn: Callable[..., Any], point: jax.Array, *batch: Any) -> jax.Array:
    """The value and the Jacobian of `fn` at a point, as one vector."""
    return jnp.concatenate([jnp.ravel(fn(point, *batch)), jnp.ravel(jax.jacrev(fn)(point, *batch))])


@pytest.mark.by_default("noisy_sphere", "tail_risk")
@pytest.mark.parametrize("name", [*LAWS, *INTEGRALS])
def test_samples_agree_with_the_exact_expectations(name):
    case = exact(name)
    pairs = [(case.problem.objective, case.problem.data, case.objective)]
    pairs += [(c.fn, c.data, case.constraints[c.name]) for c in case.problem.constraints]
    for fn, data, expectation in pairs:
        if data is None:
            continue
        drawn = data.draw(jax.random.key(0), BATCHES * EXAMPLES)
        batches = jax.tree.map(lambda leaf: leaf.reshape(BATCHES, EXAMPLES, *leaf.shape[1:]), drawn)
        sampled = jax.jit(
            jax.vmap(lambda p, b, fn=fn: value_and_slope(lambda p, b: fn(case.unravel(p), b), p, b), (None, 0))
        )
        exactly = jax.jit(functools.partial(value_and_slope, expectation))
        for point in (case.x, case.start):
            means = sampled(point, batches)
            error = np.std(means, axis=0, ddof=1) / np.sqrt(BATCHES)
            gap = np.abs(np.mean(means, axis=0) - exactly(point))
            assert (gap <= 5 * error + 1e-12).all(), f"{gap} against standard errors {error}"
