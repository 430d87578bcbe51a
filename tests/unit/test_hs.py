"""The classical programs and those without a solution: stated facts hold, and noise has the stated variance."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import tightrope as tr
from tightrope import zoo
from tightrope.domains import Box, Reals

NAMES = tuple(zoo.hs.available())
INFEASIBLE = tuple(zoo.infeasible.available())
UNBOUNDED = tuple(zoo.infeasible.unbounded())


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


# ---- the classical programs -----------------------------------------------------------------------------------------


def test_there_are_programs_of_every_kind():
    problems = {name: make()[0] for name, make in zoo.hs.available().items()}
    kinds = {name: {c.kind for c in problem.constraints} for name, problem in problems.items()}
    assert {type(problem.domain) for problem in problems.values()} == {Reals, Box}
    assert set().union(*kinds.values()) == {"equals", "at_least", "between"}
    free = [name for name in NAMES if kinds[name] == {"equals"} and isinstance(problems[name].domain, Reals)]
    assert len(free) >= 25
    assert len(NAMES) - len(free) >= 20
    assert list(NAMES[: len(free)]) == free


def test_problems_carry_their_names():
    assert all(make()[0].objective.__name__ == name for name, make in zoo.hs.available().items())


class Point(NamedTuple):
    """Values and derivatives of a deterministic problem at a point, as NumPy arrays; constraints are stacked."""

    objective: float
    gradient: np.ndarray
    values: np.ndarray
    jacobian: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def scales(self, x: np.ndarray) -> np.ndarray:
        """The magnitude of the terms of each value."""
        return 1 + np.abs(self.jacobian) @ np.abs(x)


def evaluate(problem: tr.Problem, x: jax.Array) -> Point:
    """Evaluate without jit: the scalar operations share a few small programs."""
    objective, gradient = jax.value_and_grad(problem.objective)(x)
    values, rows, ends = [], [], []
    for c in problem.constraints:
        value, pullback = jax.vjp(c.fn, x)
        values.append(value)
        rows += [pullback(row)[0] for row in np.eye(value.size)]
        ends.append([np.broadcast_to(end, value.shape) for end in (c.low, c.high)])
    low, high = (np.concatenate([np.zeros(0), *(end[side] for end in ends)]) for side in (0, 1))
    values = np.concatenate([np.zeros(0), *values])
    return Point(float(objective), np.asarray(gradient), values, np.reshape(rows, (-1, x.size)), low, high)


def sides(domain: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the entries of x."""
    low, high = (domain.low, domain.high) if isinstance(domain, Box) else (-np.inf, np.inf)
    return np.broadcast_to(low, x.shape), np.broadcast_to(high, x.shape)


def kkt_residual(problem: tr.Problem, x: np.ndarray, at: Point, near: float = 1e-8) -> float:
    """The largest entry of ∇f + Jᵀλ + (normal of the box), with the best multipliers of the correct signs."""
    bottom, top = sides(problem.domain, x)
    tolerance = near * np.concatenate([at.scales(x), 1 + np.abs(x)])
    values, rows = np.append(at.values, x), np.vstack([at.jacobian, np.eye(x.size)])
    at_low, at_high = values <= np.append(at.low, bottom) + tolerance, values >= np.append(at.high, top) - tolerance
    rows, at_low, at_high = (part[at_low | at_high] for part in (rows, at_low, at_high))
    if not len(rows):
        return float(np.max(np.abs(at.gradient)))
    lengths = np.maximum(np.linalg.norm(rows, axis=1), 1e-300)
    signs = np.where(at_low, -np.inf, 0.0), np.where(at_high, np.inf, 0.0)
    fit = scipy.optimize.lsq_linear(rows.T / lengths, -at.gradient, signs, method="bvls", tol=1e-14)
    return float(np.max(np.abs(fit.fun)))


@pytest.mark.by_default("hs6", "hs56", "hs64", "hs71", "hs74", "maratos", "s335")
@pytest.mark.parametrize("name", NAMES)
def test_stated_solution_is_feasible_stationary_and_has_the_stated_value(name):
    problem, x0, solution = zoo.hs.available()[name]()
    x, at = np.asarray(solution.x), evaluate(problem, solution.x)
    assert (solution.feasible, solution.violation, solution.multipliers) == (True, 0.0, None)
    assert x.shape == x0.shape
    assert problem.domain.contains(solution.x)
    assert (np.maximum(at.low - at.values, at.values - at.high) <= 1e-11 * at.scales(x)).all()
    assert at.objective == pytest.approx(solution.objective, rel=1e-10, abs=1e-12)
    assert kkt_residual(problem, x, at) <= 1e-9 * max(1.0, np.max(np.abs(at.gradient)))


AT_THE_START = {
    "hs1": 909, "hs2": 909, "hs3": 1.00081, "hs4": 3.323568, "hs5": 1, "hs6": 4.84, "hs7": -0.3905621, "hs8": -1,
    "hs9": 0, "hs10": -20, "hs11": -24.98, "hs12": 0, "hs14": 1, "hs15": 909, "hs16": 909, "hs17": 909, "hs18": 4.04,
    "hs19": -1808.858, "hs20": 909, "hs21": -98.99, "hs22": 1, "hs23": 10, "hs24": -0.01336459, "hs26": 21.16,
    "hs27": 4.01, "hs28": 13, "hs29": -1, "hs30": 3, "hs31": 19, "hs32": 7.2, "hs33": -3, "hs34": 0, "hs35": 2.25,
    "hs36": -1000, "hs37": -1000, "hs38": 19192, "hs39": -2, "hs40": -0.4096, "hs41": -6, "hs42": 14, "hs43": 0,
    "hs44": 0, "hs45": 26 / 15, "hs46": 3.337626, "hs48": 84, "hs49": 266, "hs50": 7516, "hs51": 8.5, "hs52": 42,
    "hs53": 6, "hs55": 6, "hs56": -1, "hs60": 1, "hs61": 0, "hs62": -25698.3, "hs63": 976, "hs65": 136.1111,
    "hs66": 0.58, "hs71": 16, "hs72": 5, "hs73": 130.8, "hs74": 0, "hs76": -1.25, "hs77": 4, "hs78": -6, "hs79": 1,
    "hs80": 3.354626e-4, "hs83": -32217.43, "hs84": -2351244, "hs86": 20, "hs93": 137.0664, "hs95": 0, "hs100": 714,
    "hs100lnp": 714, "hs104": 3.657366, "hs106": 15000, "hs110": -43.13434, "hs111lnp": -21.0145, "hs113": 753,
    "hs64": 266035, "hs81": 3.354626e-4 - 0.5, "hs108": 0, "hs114": -872.3872, "hs117": 2400.105, "hs118": 942.7162,
    "bt1": -99.08, "bt2": 81, "bt3": 2166, "bt4": -18.60893, "bt6": 4, "bt7": 909, "bt8": 3, "bt10": -2, "bt11": 1,
    "bt12": 4.999754, "byrdsphr": -5, "genhs28": 41, "maratos": -1.0999998, "s233": 19.4, "s248": 1, "s316": 800,
    "s321": 800, "s335": -1.001, "s336": 0, "s338": 0, "s394": 4200, "alsotame": 1, "cb2": 1, "madsen": 1,
}  # fmt: skip
"""The objective at the starting point, a second statement of that point."""


@pytest.mark.by_default("hs6", "hs56", "hs64", "hs71", "hs74", "maratos", "s335")
@pytest.mark.parametrize("name", NAMES)
def test_the_start_is_the_published_one(name):
    problem, x0, solution = zoo.hs.available()[name]()
    assert float(problem.objective(x0)) == pytest.approx(AT_THE_START[name], rel=1e-5, abs=1e-12)
    assert not np.allclose(x0, solution.x, rtol=1e-3, atol=1e-3)


# ---- their noise ----------------------------------------------------------------------------------------------------

NOISE, CONSTRAINT_NOISE, DRAWS = 0.3, 0.2, 4000


def check_noise(errors: np.ndarray, variance: float) -> None:
    """Check for independent entries with mean 0 and this variance, up to five standard errors."""
    count = len(errors)
    assert (np.abs(errors.mean(0)) <= 5 * math.sqrt(variance / count)).all()
    assert np.allclose(errors.var(0), variance, rtol=5 * math.sqrt(2 / count))
    apart = np.corrcoef(errors.T) - np.eye(errors.shape[1])
    assert (np.abs(apart) <= 5 / math.sqrt(count)).all()


def test_noise_has_mean_zero_and_the_stated_variance():
    exact, x, _ = zoo.hs.available()["hs71"]()
    problem, _, _ = zoo.hs.available()["hs71"](noise=NOISE, constraint_noise=CONSTRAINT_NOISE)
    assert [c.name for c in problem.constraints] == ["equalities", "inequalities"]
    source = problem.constraints[0].data
    assert problem.sources == (problem.data, source)
    assert {s.batch_size for s in problem.sources} == {1}
    keys = jax.random.split(jax.random.key(0), (2, DRAWS))  # batches of two examples: half the variance
    batches = [jax.vmap(lambda key, s=s: s.draw(key, 2))(key) for s, key in zip(problem.sources, keys, strict=True)]

    def functions(problem: tr.Problem) -> Callable[..., Any]:
        """Values and derivatives of the objective and of both constraints together."""

        def both(x, *batches):
            first, second = [batches[:1], batches[1:]] if batches else [(), ()]
            constraints = lambda x: jnp.concatenate([c.fn(x, *second) for c in problem.constraints])
            objective = jax.value_and_grad(problem.objective)(x, *first)
            return *objective, constraints(x), jax.jacrev(constraints)(x)

        return both

    sampled = jax.jit(jax.vmap(functions(problem), (None, 0, 0)))(x, *batches)
    value, slope, constraints, jacobian = (
        np.asarray(noisy - true).reshape(DRAWS, -1) for noisy, true in zip(sampled, functions(exact)(x), strict=True)
    )
    assert np.allclose(value, 0.0, atol=1e-12)
    assert (slope.shape[1], constraints.shape[1], jacobian.shape[1]) == (4, 2, 8)
    check_noise(slope, NOISE / 4 / 2)
    check_noise(constraints, CONSTRAINT_NOISE / 2 / 2)
    check_noise(jacobian, CONSTRAINT_NOISE / 8 / 2)
    scaled = [errors / errors.std(0) for errors in (slope, constraints, jacobian)]
    check_noise(np.hstack(scaled), 1.0)


def test_without_noise_everything_is_deterministic():
    for arguments in ({}, {"noise": 0, "constraint_noise": 0.0}):
        assert zoo.hs.available()["hs71"](**arguments)[0].sources == ()
    assert len(zoo.hs.available()["hs71"](noise=1e-8)[0].sources) == 1
    assert len(zoo.hs.available()["hs71"](constraint_noise=1e-8)[0].sources) == 1
    assert zoo.hs.available()["hs1"](constraint_noise=1.0)[0].sources == (), "bounds have no noise"


@pytest.mark.parametrize("argument", ["noise", "constraint_noise"])
@pytest.mark.parametrize(("value", "error"), [(-1e-3, ValueError), (math.nan, ValueError), ("much", TypeError)])
def test_an_invalid_variance_is_refused(argument, value, error):
    with pytest.raises(error, match=f"hs71: {argument} must be"):
        zoo.hs.available()["hs71"](**{argument: value})


@pytest.mark.full
def test_functions_keep_single_precision():
    with jax.enable_x64(False):
        for make in zoo.hs.available().values():
            problem, x0, solution = make(noise=1e-4, constraint_noise=1e-4)
            keys = [jax.random.key(0)] * len(problem.sources)
            batch = {
                id(s): jax.eval_shape(lambda k, s=s: s.draw(k, 1), key)
                for s, key in zip(problem.sources, keys, strict=True)
            }
            made = [
                jax.eval_shape(fn, x0, batch[id(data)])
                for fn, data in [(problem.objective, problem.data), *((c.fn, c.data) for c in problem.constraints)]
            ]
            assert {leaf.dtype for leaf in (x0, solution.x, *made)} == {np.dtype(np.float32)}


# ---- without a solution ---------------------------------------------------------------------------------------------

LAWS = {
    "return_outside_simplex": np.array([[1.0, 0.6, 0.3, 0.1]]),
    "noisy_disc": 0.8 * math.sqrt(3) * np.vstack([np.eye(3), -np.eye(3)]),
}
"""Examples over which the mean of a sampled constraint is its expectation."""


def expectations(name: str, problem: tr.Problem) -> Callable[[jax.Array], jax.Array]:
    """The largest violation at a point."""

    def violation(x):
        worst = []
        for c in problem.constraints:
            batch = () if c.data is None else (c.data.arrays if isinstance(c.data, tr.Dataset) else LAWS[name],)
            value = c.fn(x, *batch)
            worst.append(jnp.max(jnp.maximum(jnp.maximum(c.low - value, value - c.high), 0.0)))
        return jnp.max(jnp.stack(worst))

    return violation


LEAST_VIOLATED = {
    "parallel_planes": [2 / 3, 2 / 3, 2 / 3],
    "three_lines": [1 / 3, 1 / 3],
    "no_real_root": [0, 0],
    "two_circles": [2, 0],
    "wave_too_high": [math.pi / 2, 0],
    "exponential_and_wall": [scipy.optimize.brentq(lambda t: t + math.exp(t) - 0.5, -1, 0, xtol=1e-15), 0],
    "hyperbola_and_sum": [math.sqrt(3) - 1, math.sqrt(3) - 1],
    "sum_outside_box": [1, 1, 1],
    "return_outside_simplex": [1, 0, 0, 0],
    "line_outside_ball": [math.sqrt(0.5), math.sqrt(0.5)],
    "noisy_disc": [0, 0, 0],
    "ellipse_and_wall": [0, (math.sqrt(17) - 1) / 2],
    "recall_in_ball": [1, 0, 0],
    "scales_apart": [1e-3 * (1e4 - 1) / (1e4 + 1), 0],
}


def test_there_are_enough_problems_without_a_solution():
    assert len(INFEASIBLE) >= 10
    assert len(UNBOUNDED) >= 4
    assert not set(zoo.available()) & {*INFEASIBLE, *UNBOUNDED}


@pytest.mark.parametrize("name", [*INFEASIBLE, *UNBOUNDED])
def test_problems_without_a_solution_are_documented(name):
    first, *rest = inspect.cleandoc(
        (zoo.infeasible.available() | zoo.infeasible.unbounded())[name].__doc__
    ).splitlines()
    assert first.endswith(".")
    assert "Minimize" in " ".join(rest)


@pytest.mark.by_default("no_real_root", "recall_in_ball")
@pytest.mark.parametrize("name", INFEASIBLE)
def test_the_stated_violation_is_attained_and_minimal(name):
    problem, x0, solution = zoo.infeasible.available()[name]()
    assert (solution.feasible, solution.x, solution.objective, solution.multipliers) == (False, None, math.inf, None)
    assert solution.violation > 0.1
    best, violation = jnp.asarray(LEAST_VIOLATED[name], float), expectations(name, problem)
    assert best.shape == x0.shape
    assert problem.domain.contains(best)
    assert float(violation(best)) == pytest.approx(solution.violation, rel=1e-9)
    steps = (
        np.random.default_rng(0).normal(size=(4, 2000, best.size)) * np.array([1e-4, 1e-2, 1.0, 10.0])[:, None, None]
    )
    points = jax.vmap(problem.domain.project)((best + steps).reshape(-1, best.size))
    least = float(jnp.min(jax.jit(jax.vmap(violation))(points)))
    assert least >= solution.violation * (1 - 1e-9)


@pytest.mark.parametrize("name", LAWS)
def test_sampled_violations_have_the_stated_mean(name):
    problem, x0, _ = zoo.infeasible.available()[name]()
    (constraint,) = problem.constraints
    examples = constraint.data.draw(jax.random.key(0), 20_000)
    sampled = np.asarray(jax.vmap(lambda example: constraint.fn(x0, example[None]))(examples))
    error = sampled.std() / math.sqrt(len(sampled))
    assert abs(sampled.mean() - float(constraint.fn(x0, LAWS[name]))) <= 5 * error


DESCENT_PATHS: dict[str, Callable[[float], list[float]]] = {
    "falling_line": lambda t: [1 + t, t],
    "falling_quartic": lambda t: [1 + t, -t],
    "noisy_fall": lambda t: [t, t, t],
    "open_parabola": lambda t: [t, math.sqrt(t)],
    "fall_in_orthant": lambda t: [t, 0],
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_the_objective_is_unbounded_along_feasible_points(name):
    problem, x0, solution = zoo.infeasible.unbounded()[name]()
    assert (solution.feasible, solution.x, solution.objective, solution.violation) == (True, None, -math.inf, 0.0)
    mean = () if problem.data is None else (-np.ones((1, 3)),)
    objectives = []
    for t in (10.0, 1e3, 1e6):
        x = jnp.asarray(DESCENT_PATHS[name](t), float)
        assert x.shape == x0.shape
        assert problem.domain.contains(x)
        for c in problem.constraints:
            assert (c.low - 1e-9 * t <= c.fn(x)).all()
            assert (c.fn(x) <= c.high + 1e-9 * t).all()
        objectives.append(float(problem.objective(x, *mean)) / t)
    assert max(objectives) <= -0.9
