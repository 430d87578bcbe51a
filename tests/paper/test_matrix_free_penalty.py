"""The default method for very many constraints against a NumPy transcription of its docstring, on the same samples.

Matrices and subproblems by hand are dense and exact, so conjugate gradients are run to the end here.
"""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from penalty_by_hand import (
    Face,
    Measured,
    Model,
    Problem,
    Trial,
    accept,
    add_pair,
    corrected,
    find_face,
    first_curvature,
    least_damping,
    least_weight,
    next_pass,
    norm,
    positive_or_one,
    relax,
    running_mean,
    steer,
    trial_on,
    violation,
)
from penalty_problems import BY_HAND, DATA, OWN, batches, check_path, close, problem, regular_costs, same_tuning
from sample_paths import Path, drive

import tightrope as tr
from tightrope.methods.adaptive_penalty import matrix_free, products
from tightrope.numerics import products as numerics

STEPS = 25


@pytest.fixture(autouse=True)
def _products_to_the_end(monkeypatch):
    exact = functools.partial(numerics.range_multipliers_by_products, tolerance=1e-13, products=5000)
    on_set = functools.partial(numerics.range_multipliers_on_set_by_products, rounds=50)
    for module in (numerics, products, matrix_free):
        monkeypatch.setattr(module, "range_multipliers_by_products", exact)
    monkeypatch.setattr(products, "range_multipliers_on_set_by_products", on_set)


# ---- the method, in NumPy ----------------------------------------------------------------------------------------------


class Now(NamedTuple):
    """Everything the method knows between steps, and the events of the last one."""

    x: np.ndarray
    u: np.ndarray
    h: np.ndarray
    noise: tuple[Measured, Measured]
    pairs: list[tuple[np.ndarray, np.ndarray]]
    delta: float
    sigma: float
    rho: np.ndarray
    y: np.ndarray
    row_sq: np.ndarray
    stalled: float
    rejected: int
    last: tuple[float, np.ndarray] | None
    kappa: float
    events: list[str]


class Sampled(NamedTuple):
    """Gradient of f, rows and Jacobian at a point: means over the halves of a sample, and half their differences."""

    g: np.ndarray
    h: np.ndarray
    J: np.ndarray
    odd_g: np.ndarray
    odd_h: np.ndarray
    odd_J: np.ndarray


def evaluate(p: Problem, x: np.ndarray, halves: list) -> Sampled:
    first, second = ([fn(x, half) for fn in (p.gradient, p.rows, p.jacobian)] for half in halves)
    both = list(zip(first, second, strict=True))
    return Sampled(*((a + b) / 2 for a, b in both), *((a - b) / 2 for a, b in both))


def signs(key: Any) -> np.ndarray:
    return np.asarray(jax.random.rademacher(key, (4,), float))


def square(a: np.ndarray) -> float:
    return float(np.sum(a * a))


def start(p: Problem, x: np.ndarray, halves: list, first: Any, y: np.ndarray, key: Any) -> Now:
    """`first` is the sample whose halves are `halves`."""
    v, h, J = p.gradient(x, first), p.rows(x, first), p.jacobian(x, first)
    row_sq = sum((J @ signs(jax.random.fold_in(key, i))) ** 2 / 16 for i in range(16))
    size = positive_or_one(np.sqrt(row_sq))
    guess = -np.linalg.solve(J @ J.T + 1e-3 * np.diag(row_sq), J @ v)
    delta = first_curvature(p, x, first, v, guess, norm(violation(p, h) / size))
    here = evaluate(p, x, halves)
    noise = tuple(Measured(s, s, 0 * s) for s in (square(here.odd_g + y @ here.odd_J), here.odd_h**2))
    rho = np.maximum(2 * abs(guess), 0.1 * positive_or_one(norm(v)) / size)
    return Now(x, v + y @ J, h, noise, [], delta, delta, rho, y, row_sq, 0.0, 0, None, 1.0, [])


class Step(NamedTuple):
    """What a step is given: `halves` of its sample (the same twice where there is no data), all data, and settings."""

    halves: list
    everything: Any
    k: int
    share: float
    w: float
    key: Any
    faces: int


def step(p: Problem, now: Now, given: Step) -> Now:
    events: list[str] = []
    here = evaluate(p, now.x, given.halves)
    now = now._replace(row_sq=running_mean(now.row_sq, (here.J @ signs(given.key)) ** 2, given.k))
    now = pass_over(p, now, here, given, events)
    now = now._replace(sigma=least_damping(p, now, now.noise[0].remembered(), given.w, events))
    row_norm, v = np.sqrt(now.row_sq), now.u - now.y @ here.J
    units = 1 / positive_or_one(row_norm)
    model = Model(p, now.x, v, now.h, here.J, now.pairs, now.delta, now.sigma, row_norm, units)
    trial = solve(model, now, here, given, events)
    there = evaluate(p, trial.x, given.halves)
    after = compare_and_learn(model, now, trial, here, there, given.k, events)
    if given.halves[0] is None:
        return after
    accepted, noise = "accepted" in events, with_multipliers(now, here, trial.y)
    gains = [part.gain(square(after.x - now.x) if accepted else 0.0) for part in noise]
    return correct(after, there if accepted else here, gains, least_weight(p, given.k))


def pass_over(p: Problem, now: Now, here: Sampled, given: Step, events: list) -> Now:
    """The estimates u and ĥ, exact after a full pass and without data."""
    if given.halves[0] is None:
        return now._replace(u=here.g + now.y @ here.J, h=here.h)
    x, y, everything = now.x, now.y, given.everything
    if p.period and (given.k - 1) % p.period == 0:
        u, h = p.gradient(x, everything) + y @ p.jacobian(x, everything), p.rows(x, everything)
        noise = tuple(part._replace(e=0 * part.e) for part in now.noise)
        now = now._replace(u=u, h=h, noise=noise, **next_pass(p, now, everything, events))
    return now


def correct(now: Now, at: Sampled, gains: list, least: float) -> Now:
    """The estimates at the new x with a share of what the sample says there."""
    samples, variances = [at.g + now.y @ at.J, at.h], [square(at.odd_g + now.y @ at.odd_J), at.odd_h**2]
    (u, h), noise = corrected([now.u, now.h], samples, gains, now.noise, variances, least, now.events)
    return now._replace(u=u, h=h, noise=noise)


def with_multipliers(now: Now, here: Sampled, y: np.ndarray) -> tuple[Measured, Measured]:
    """s, e, q of the estimates once u is that of other multipliers, through one sample's Jacobian."""
    of_u, of_h = now.noise
    return of_u._replace(e=of_u.e + square((y - now.y) @ here.odd_J)), of_h


def solve(model: Model, now: Now, here: Sampled, given: Step, events: list) -> Trial:
    """Steering, and the step in the whole space or on a face of the box."""
    p, x, n = model.p, model.x, len(model.x)

    def rows_after(d: np.ndarray) -> np.ndarray:
        found = sum(p.rows(x + d, half) for half in given.halves) / 2
        return now.h + found - here.h if p.noisy_rows else found

    rho, y, stalled = steer(model, now.rho, rows_after, given.share, events)
    face = Face(y, model.H, np.ones(n), np.zeros(n))
    if p.box:
        end = np.clip(x - (model.v + y @ model.J) / model.curvature, *p.box)
        at_end = Face(y, np.zeros((n, n)), np.ones(n), end - x)
        face = find_face(model, rho, y, given.faces, events) or at_end
    return trial_on(model, face, rho, stalled, events)


def compare_and_learn(model: Model, now: Now, trial: Trial, here: Sampled, there: Sampled, k: int, events: list) -> Now:
    """The actual reduction, whether it is enough, and all that is known after that."""
    p, v, move, y = model.p, model.v, trial.x - now.x, trial.y
    change, lagrangian_change = there.g - here.g, there.g - here.g + y @ (there.J - here.J)
    h_there = now.h + there.h - here.h if p.noisy_rows else there.h
    actual = trial.rho @ (violation(p, now.h) - violation(p, h_there)) - v @ move - max(0.5 * move @ change, 0.0)
    finite = bool(np.isfinite(actual + lagrangian_change @ lagrangian_change))
    accepted, sigma = accept(model, trial, actual, finite, events)

    pairs, delta = add_pair(now.pairs, now.delta, move, lagrangian_change, accepted and not trial.stalled)
    beyond_noise = square(violation(p, now.h)) > 9 * np.sum(now.noise[1].e)
    known = finite and square(move) > 0
    u = now.u + (y - now.y) @ here.J
    learned = now._replace(
        u=u, noise=noise_after(p, now, here, there, y, square(move), known, accepted, k), pairs=pairs, delta=delta,
        sigma=max(sigma, 1e-6 * delta), rho=trial.rho, y=y, rejected=now.rejected + (not accepted), events=events,
        stalled=running_mean(now.stalled, float(trial.stalled and beyond_noise), k),
    )  # fmt: skip
    if not accepted:
        return learned
    rho = relax(trial.rho, y, model.row_norm, v, events)
    return learned._replace(x=trial.x, u=u + lagrangian_change, h=h_there, rho=rho)


def noise_after(p: Problem, now: Now, here: Sampled, there: Sampled, y, far: float, known, accepted, k: int) -> tuple:
    """s, e, q after a step of the square `far`, and before its sample corrects the estimates.

    Errors of u come from noise in what the step and the change of multipliers add to it, those of ĥ from noise in its change.
    """
    odd = there.odd_g - here.odd_g + y @ (there.odd_J - here.odd_J)
    variances = square(odd), (there.odd_h - here.odd_h) ** 2
    changed = list(zip(with_multipliers(now, here, y), variances, strict=True))
    noise = [n.with_change(c, far, known, least_weight(p, k)) for n, c in changed]
    return tuple(n._replace(e=n.e + c) if accepted else n for n, c in zip(noise, variances, strict=True))


# ---- runs --------------------------------------------------------------------------------------------------------------


def run(
    name: str, x: Any, *, seed: int = 0, share: float = 0.3, w: float = 0.25, steps: int = STEPS, faces: int = 4
) -> tuple[Path, list[Now]]:
    p, x = BY_HAND[name], np.array(x, float)
    y = 0.3 * np.arange(len(p.low)) - 0.2
    method = tr.methods.MatrixFreePenalty(min_feasibility_share=share, noise_tolerance=w)
    path = drive(problem(name), np.zeros(4), method, steps=steps, seed=seed, start=x, multipliers=y)
    drawn = [batches(name, path.samples["step"][k]) for k in range(steps + 1)]
    everything = (DATA, OWN) if p.period else None
    found = [start(p, x, drawn[0][1], drawn[0][0], y, path.keys[0])]
    for k in range(1, steps + 1):
        found.append(step(p, found[-1], Step(drawn[k][1], everything, k, share, w, path.keys[k], faces)))
    return path, found


RUNS = {
    "equalities": [
        {"x": [0.7, -0.4, 0.3, 0.25]},
        {"x": [0.001, 0.001, 0.0, 0.001], "seed": 7, "share": 0.9},
        {"x": [0.8, -0.19, -0.28, 0.71], "share": 0.9},
        {"x": [0.66, 0.91, 0.78, -0.7]},
        {"x": [1e-7, 2e-7, -1e-7, 1e-7]},
    ],
    "noisy objective": [
        {"x": [-1.22, -1.45, -0.62, 0.68], "seed": 5},
        {"x": [1.19, -1.42, 0.92, -0.93], "seed": 5, "share": 0.9, "w": 40.0},
        {"x": [1e-7, 2e-7, -1e-7, 1e-7], "seed": 5},
    ],
    "endless data": [
        {"x": [-0.001, 0.0, 0.001, -0.001], "seed": 6},
        {"x": [0.63, 0.07, -0.52, -0.65], "seed": 6, "w": 40.0},
    ],
    "finite data": [
        {"x": [0.001, 0.001, 0.0, 0.001], "seed": 7, "share": 0.9},
        {"x": [-0.001, 0.0, 0.0, -0.001], "seed": 7, "w": 40.0},
        {"x": [-1.17, 1.739, -0.496, 0.329], "seed": 8, "w": 40.0},
    ],
    "box": [
        {"x": [0.55, 0.78, 0.66, 0.75], "seed": 2},
        {"x": [0.04, 0.44, 0.53, -0.06], "seed": 5, "share": 0.9},
        {"x": [-0.22, -0.59, 0.3, 0.41], "share": 0.9},
    ],
}
COSTS = {
    "equalities": {(2, 3, 2, 0)},
    "noisy objective": {(2, 3, 2, 6)},
    "endless data": {(2, 2, 2, 12)},
    "finite data": {(2, 2, 2, 14), (3, 3, 3, 334)},
    "box": {(2, 3, 2, 0)},
}
RATIOS = {"accepted", "good", "fair", "poor", "rejected"}
CORRECTIONS = {"second-order correction", "correction too long", "nothing to correct"}
STEERED = {"violated", "raised", "feasible descent", "restoration helps"}
EVALUATED = {"no feasible descent", "evaluated: no part helps", "evaluated: a part helps"}
LIMITS = {"noise limits", "curvature limits"}
COVERED = {
    "equalities": RATIOS | CORRECTIONS | STEERED | EVALUATED | {"feasible", "raised to the end"},
    "noisy objective": RATIOS | CORRECTIONS | STEERED | EVALUATED | LIMITS | {"corrected", "replaced"},
    "endless data": STEERED | EVALUATED | LIMITS | {"accepted", "rejected", "corrected"},
    "finite data": STEERED
    | EVALUATED
    | {"accepted", "rejected", "full pass", "corrected", "not corrected", "noise limits"}
    | {"rose", "fell", "fell, κ above 1"},
    "box": RATIOS | CORRECTIONS | {"violated", "feasible", "raised", "face 0", "face 1"},
}


def same(state: Any, expected: Now, rtol: float) -> None:
    """All that the method knows; u tends to 0 and is what is left of terms of size 1."""
    close(state.x, expected.x, rtol)
    close(state.estimates.value, expected.h, rtol)
    close(state.row_sq, expected.row_sq, rtol)
    np.testing.assert_allclose(state.estimates.gradient, expected.u, rtol=0, atol=rtol * (1 + norm(expected.u)))
    for found, by_hand in zip(jax.tree.leaves(state.noise), jax.tree.leaves(expected.noise), strict=True):
        close(found, by_hand, rtol)
    same_tuning(state.tuning, expected, rtol)


@pytest.mark.by_default("equalities", "endless data", "finite data", "box")
@pytest.mark.parametrize("name", list(RUNS))
def test_every_step_is_that_of_the_equations_on_the_same_samples(name):
    """Iterates over all steps; everything else until steps are so short that rounding decides."""
    events = set()
    for settings in RUNS[name]:
        path, expected = run(name, **settings)
        events |= check_path(path, expected, same)
        assert regular_costs(BY_HAND[name], path, expected) == COSTS[name]
    assert COVERED[name] <= events, COVERED[name] - events


@pytest.mark.full
def test_without_a_face_the_proximal_step_is_taken(monkeypatch):
    """With one face to try, its step often leaves the box."""
    monkeypatch.setattr(products, "MAX_FACES", 1)
    path, expected = run("box", [0.55, 0.78, 0.66, 0.75], seed=2, steps=12, faces=1)
    for state, now in zip(path.states, expected, strict=True):
        same(state, now, 1e-9)
    assert {"proximal step", "face 0"} <= {event for now in expected for event in now.events}
