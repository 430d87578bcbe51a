"""The default method for very many constraints against a NumPy transcription of its docstring, on the same samples.

Metric and subproblems are those by hand of the default method's own test: dense, and by going through every combination of
active bounds. So the products are taken to the end here. What the docstring leaves open (the start, the errors
of estimates, limits and thresholds) is written down here as the code has it.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from sample_paths import Path, drive
from test_adaptive_penalty import (
    BY_HAND,
    DATA,
    EPS,
    OWN,
    Measured,
    Problem,
    batches,
    best_in_box,
    best_multipliers,
    close,
    costs_but_looks,
    forget,
    inverse_metric,
    learn_pair,
    next_pass,
    no_part_helps,
    norm,
    outside,
    positive_or_one,
    problem,
    raised,
    relax,
)

import tightrope as tr
from tightrope.methods.adaptive_penalty import matrix_free as matrix_free_penalty
from tightrope.numerics import products as matrix_free

STEPS = 25


@pytest.fixture(autouse=True)
def _products_to_the_end(monkeypatch):
    exact = functools.partial(matrix_free.range_multipliers_by_products, tolerance=1e-13, products=5000)
    on_set = functools.partial(matrix_free.range_multipliers_on_set_by_products, rounds=50)
    for module in (matrix_free, matrix_free_penalty):
        monkeypatch.setattr(module, "range_multipliers_by_products", exact)
    monkeypatch.setattr(matrix_free_penalty, "range_multipliers_on_set_by_products", on_set)


# ---- the method, in NumPy ----------------------------------------------------------------------------------------------


class Now(NamedTuple):
    """Everything the method knows between steps, and what happened in the last one."""

    x: np.ndarray
    u: np.ndarray
    h: np.ndarray
    noise: tuple[Measured, Measured]
    pairs: list[tuple[np.ndarray, np.ndarray]]
    delta: float
    sigma: float
    rho: np.ndarray
    y: np.ndarray
    row_square: np.ndarray
    stuck: float
    refused: int
    last: tuple[float, np.ndarray] | None
    caution: float
    events: list[str]


class Seen(NamedTuple):
    """Gradient of f, rows and Jacobian at a point: means over the halves of a sample, and half their differences."""

    g: np.ndarray
    h: np.ndarray
    J: np.ndarray
    odd_g: np.ndarray
    odd_h: np.ndarray
    odd_J: np.ndarray


def look(p: Problem, x: np.ndarray, halves: list) -> Seen:
    first, second = ([fn(x, half) for fn in (p.gradient, p.rows, p.jacobian)] for half in halves)
    both = list(zip(first, second, strict=True))
    return Seen(*((a + b) / 2 for a, b in both), *((a - b) / 2 for a, b in both))


def signs(key: Any) -> np.ndarray:
    return np.asarray(jax.random.rademacher(key, (4,), float))


def square(a: np.ndarray) -> float:
    return float(np.sum(a * a))


def start(p: Problem, x: np.ndarray, halves: list, first: Any, y: np.ndarray, key: Any) -> Now:
    """`first` is the sample whose halves are `halves`."""
    v, h, J = p.gradient(x, first), p.rows(x, first), p.jacobian(x, first)
    row_square = sum((J @ signs(jax.random.fold_in(key, i))) ** 2 / 16 for i in range(16))
    size = np.sqrt(row_square)
    guess = -np.linalg.solve(J @ J.T + 1e-3 * np.diag(row_square), J @ v)
    tiny = 1e-30
    ahead = x + 1j * tiny * v
    bend = norm((p.gradient(ahead, first) + guess @ p.jacobian(ahead, first)).imag / tiny) / positive_or_one(norm(v))
    restore = norm(outside(p, h) / positive_or_one(size))
    length = restore if restore > 0 else max(1.0, norm(x))
    delta = float(bend if bend > 0 else positive_or_one(norm(v) / length))
    seen = look(p, x, halves)
    spreads = square(seen.odd_g + y @ seen.odd_J), square(seen.odd_h)
    noise = tuple(Measured(s, s, 0.0) for s in spreads)
    rho = np.maximum(2 * abs(guess), 0.1 * positive_or_one(norm(v)) / positive_or_one(size))
    return Now(x, v + y @ J, h, noise, [], delta, delta, rho, y, row_square, 0.0, 0, None, 1.0, [])


def correct(p: Problem, now: Now, here: Seen, everything: Any, k: int, events: list) -> Now:
    """The estimates u and ĥ with a share of what the sample says at x."""
    x, y = now.x, now.y
    estimates, errors = [now.u, now.h], [part.e for part in now.noise]
    if p.period and (k - 1) % p.period == 0:
        estimates = [p.gradient(x, everything) + y @ p.jacobian(x, everything), p.rows(x, everything)]
        errors = [0.0, 0.0]
        events.append("full pass")
        now = now._replace(**next_pass(p, now, everything, events))
    found, odd, noise = [here.g + y @ here.J, here.h], [here.odd_g + y @ here.odd_J, here.odd_h], []
    for i in (0, 1):
        s = forget(now.noise[i].s, square(odd[i]), k)
        a = errors[i] / positive_or_one(errors[i] + s) if s > 0 else 1.0
        estimates[i] = estimates[i] + a * (found[i] - estimates[i])
        noise.append(Measured(s, (1 - a) * errors[i], now.noise[i].q))
        events.append("corrected" if 0 < a < 1 else "taken over" if a == 1 else "kept")
    return now._replace(u=estimates[0], h=estimates[1], noise=tuple(noise))


def steer(
    p: Problem, now: Now, v: np.ndarray, solve: Callable, truth: Callable, curvature: float, share: float, events: list
) -> tuple:
    """The penalties, the multipliers, and whether the violation, in units of the rows' lengths, cannot be made smaller.

    `solve(weight, ρ)` gives for the gradient weight · v the multipliers, where the linearized rows end, dᵀMd and d;
    `truth(d)` where the rows themselves end.
    """
    h, unit = now.h, 1 / positive_or_one(np.sqrt(now.row_square))
    before, noise = outside(p, h), 100 * EPS * abs(h)
    rho, hopeless, used, change, most, way = now.rho.copy(), False, 0, 0.0 * h, 1.0, None
    if np.any(before > noise):
        _, end, most, way = solve(0.0, EPS**-0.5 * curvature * np.max(before * unit) * unit)
        change, used = end - h, 1
        hopeless = bool(unit @ outside(p, end) > 0.99 * unit @ before)
        events.append("no way" if hopeless else "a way")
    while True:
        y, end, long, _ = solve(1.0, rho)
        used += 1
        as_far = np.sqrt(min(1.0, max(long, v @ v / curvature) / positive_or_one(most)))
        possible = unit @ (before - outside(p, h + as_far * change))
        gained = unit @ (before - outside(p, end))
        if used == 2 and way is not None and not hopeless and gained < 0.01 * unit @ before:
            hopeless = no_part_helps(p, way, truth, unit, before, events)
        full = abs(y) >= rho
        enough = gained >= share * possible - unit @ np.where(before > 0, noise, 0.0)
        if enough or hopeless or not full.any():
            return rho, y, hopeless
        rho = raised(rho, full, np.sqrt(now.row_square), events)
        events.append("raised")
        if used == 6:
            events.append("raised to the end")
            return rho, y, hopeless


def step(
    p: Problem, now: Now, halves: list, everything: Any, k: int, share: float, w: float, key: Any, faces: int
) -> Now:
    """Step k: `halves` of its sample (the same twice where there is no data)."""
    n, events = len(now.x), []
    here = look(p, now.x, halves)
    now = now._replace(row_square=forget(now.row_square, (here.J @ signs(key)) ** 2, k))

    # correct; without data all is known
    if halves[0] is None:
        now = now._replace(u=here.g + now.y @ here.J, h=here.h)
    else:
        now = correct(p, now, here, everything, k, events)
    s, e, q = now.noise[0]
    least = now.caution * np.sqrt((p.period or (e + s) / positive_or_one(e)) * q / w)
    events.append("noise limits" if least > now.sigma else "curvature limits")
    sigma, delta, x, u, h, J = max(now.sigma, least), now.delta, now.x, now.u, now.h, here.J
    curvature, v, size = delta + sigma, u - now.y @ J, np.sqrt(now.row_square)

    # step and steer
    H = inverse_metric(now.pairs, delta, sigma, n)

    def solve(weight: float, rho: np.ndarray) -> tuple:
        if p.box:
            y = best_in_box(weight * v, h, J, p.low, p.high, rho, curvature, x, p.box)
            d = np.clip(x - (weight * v + y @ J) / curvature, *p.box) - x
            return y, h + J @ d, curvature * d @ d, d
        y = best_multipliers(J @ H @ J.T, h - weight * J @ H @ v, p.low, p.high, rho)
        d = -H @ (weight * v + y @ J)
        return y, h + J @ d, -d @ (weight * v + y @ J), d

    def truth(d: np.ndarray) -> np.ndarray:
        found = sum(p.rows(x + d, half) for half in halves) / 2
        return h + found - here.h if p.noisy_rows else found

    rho, y, hopeless = steer(p, now, v, solve, truth, curvature, share, events)
    events += ["violated" if outside(p, h).any() else "feasible", "hopeless" if hopeless else "hope"]
    along, fixed = np.ones(n), np.zeros(n)
    if p.box:
        y, H, along, fixed = on_face(p, now, v, J, sigma, rho, y, events, faces)
    Jf, vf = J * along, v * along
    free = -H @ (vf + y @ Jf)
    d, long = fixed + free, -free @ (vf + y @ Jf)
    foreseen = rho @ (outside(p, h) - outside(p, h + J @ d)) - v @ d - 0.5 * (long + curvature * fixed @ fixed)
    new = x + d

    # bend back
    if not p.noisy_rows:
        held = [i for i in range(len(h)) if y[i] != 0 and abs(y[i]) < rho[i]]
        miss = (p.rows(new, None) - np.where(y > 0, p.high, p.low))[held]
        G = (Jf @ H @ Jf.T)[np.ix_(held, held)]
        back = np.linalg.solve(G, miss) if held and G.any() else np.zeros(len(held))
        bends = bool(held) and back @ G @ back <= 0.25 * long
        new = new - H @ (back @ Jf[held]) if bends else new
        events.append("bent back" if bends else "too far to bend back" if held else "nothing to bend back")
    new = np.clip(new, *p.box) if p.box else new

    # judge
    move, there = new - x, look(p, new, halves)
    change, bend = there.g - here.g, there.g - here.g + y @ (there.J - here.J)
    h_there = h + there.h - here.h if p.noisy_rows else there.h
    seen = rho @ (outside(p, h) - outside(p, h_there)) - v @ move - max(0.5 * move @ change, 0.0)
    rounding = 10 * EPS * (norm(v) * (norm(x) + norm(move)) + rho @ (abs(h) + size * norm(x)))
    finite = bool(np.isfinite(seen + bend @ bend))
    ratio = (seen + rounding) / (foreseen + rounding) if finite and foreseen > -rounding else -1.0
    accept = ratio > 0.1
    events.append("accepted" if accept else "refused")

    # learn
    if accept:
        events.append("good" if ratio > 0.75 else "poor" if ratio < 0.4 else "fair")
        following = sigma * (0.3 if ratio > 0.75 else 1.5 if ratio < 0.4 else 1.0)
    else:
        needed = 2 * (foreseen - seen) / positive_or_one(move @ move) if finite else np.inf
        following = min(max(needed, 2 * sigma), 10 * max(sigma, delta), 1e12 * delta)
    pairs, delta = learn_pair(now.pairs, delta, move, bend, accept and not hopeless)

    # errors: of u by noise in what the step and the change of multipliers add to it, of ĥ by that in its change
    far, (of_u, of_h) = square(move), now.noise
    odd = there.odd_g - here.odd_g + y @ (there.odd_J - here.odd_J)
    q = forget(of_u.q, square(odd) / far, k) if finite and far > 0 else of_u.q
    error = of_u.e + q * (far if accept else 0.0) + square((y - now.y) @ here.odd_J)
    shift = square(there.odd_h - here.odd_h) if accept else 0.0
    noise = Measured(of_u.s, error, q), of_h._replace(e=of_h.e + shift)

    # carry over
    u = u + (y - now.y) @ J
    if accept:
        rho = relax(rho, y, size, v, events)
        x, u, h = new, u + bend, h_there
    lost = hopeless and square(outside(p, now.h)) > 9 * of_h.e
    return Now(
        x, u, h, noise, pairs, delta, max(following, 1e-6 * delta), rho, y, now.row_square,
        forget(now.stuck, float(lost), k), now.refused + (not accept), now.last, now.caution, events,
    )  # fmt: skip


def on_face(p: Problem, now: Now, v, J, sigma: float, rho, y, events: list, faces: int) -> tuple:
    """y, M⁻¹, which entries are free and the rest of the step, on the first face whose step stays in the box; or plain."""
    x, h, (low, high), curvature = now.x, now.h, p.box, now.delta + sigma
    plain = towards = x - (v + y @ J) / curvature
    for attempt in range(faces):
        nearest, along = np.clip(towards, low, high), ((towards > low) & (towards < high)).astype(float)
        fixed, Jf = (1 - along) * (nearest - x), J * along
        H = inverse_metric([(along * a, along * b) for a, b in now.pairs], now.delta, sigma, len(x))
        on_it = best_multipliers(Jf @ H @ Jf.T, h + J @ fixed - Jf @ H @ (along * v), p.low, p.high, rho)
        goal = x + fixed - H @ (along * (v + on_it @ J))
        if norm(np.clip(goal, low, high) - goal) <= 1e-6 * norm(goal - x):
            events.append(f"face {attempt}")
            return on_it, H, along, fixed
        towards = goal + towards - nearest
    events.append("plain")
    return y, 0 * H, along, np.clip(plain, low, high) - x


# ---- runs --------------------------------------------------------------------------------------------------------------


def run(
    name: str, x: Any, *, seed: int = 0, share: float = 0.3, w: float = 0.25, steps: int = STEPS, faces: int = 4
) -> tuple[Path, list[Now]]:
    p, x = BY_HAND[name], np.array(x, float)
    y = 0.3 * np.arange(len(p.low)) - 0.2
    method = tr.methods.MatrixFreePenalty(steering=share, wobble=w)
    path = drive(problem(name), np.zeros(4), method, steps=steps, seed=seed, start=x, multipliers=y)
    drawn = [batches(name, path.samples["step"][k]) for k in range(steps + 1)]
    everything = (DATA, OWN) if p.period else None
    found = [start(p, x, drawn[0][1], drawn[0][0], y, path.keys[0])]
    for k in range(1, steps + 1):
        found.append(step(p, found[-1], drawn[k][1], everything, k, share, w, path.keys[k], faces))
    return path, found


RUNS = {
    "equalities": [
        {"x": [0.7, -0.4, 0.3, 0.25]},
        {"x": [0.001, 0.001, 0.0, 0.001], "seed": 7, "share": 0.9},
        {"x": [0.8, -0.19, -0.28, 0.71], "share": 0.9},
        {"x": [0.66, 0.91, 0.78, -0.7]},
    ],
    "noisy objective": [
        {"x": [-1.22, -1.45, -0.62, 0.68], "seed": 5},
        {"x": [1.19, -1.42, 0.92, -0.93], "seed": 5, "share": 0.9, "w": 40.0},
    ],
    "endless data": [
        {"x": [-0.001, 0.0, 0.001, -0.001], "seed": 6},
        {"x": [0.63, 0.07, -0.52, -0.65], "seed": 6, "w": 40.0},
    ],
    "finite data": [
        {"x": [0.001, 0.001, 0.0, 0.001], "seed": 7, "share": 0.9},
        {"x": [-0.001, 0.0, 0.0, -0.001], "seed": 7, "w": 40.0},
        {"x": [-0.38, 1.75, 2.35, 2.16], "seed": 7, "w": 40.0},
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
JUDGED = {"accepted", "good", "fair", "poor", "refused"}
BENT = {"bent back", "too far to bend back", "nothing to bend back"}
STEERED = {"violated", "raised", "hope", "a way"}
LOOKED = {"hopeless", "looked: no part helps", "looked: a part helps"}
SEEN = {
    "equalities": JUDGED | BENT | STEERED | LOOKED | {"feasible", "raised to the end"},
    "noisy objective": JUDGED
    | BENT
    | STEERED
    | LOOKED
    | {"corrected", "taken over", "noise limits", "curvature limits"},
    "endless data": STEERED | LOOKED | {"accepted", "refused", "corrected", "noise limits", "curvature limits"},
    "finite data": STEERED
    | LOOKED
    | {"accepted", "refused", "full pass", "corrected", "kept", "noise limits", "rose", "fell", "fell, careful"},
    "box": JUDGED | BENT | {"violated", "feasible", "raised", "face 0", "face 1"},
}


def same(state: Any, expected: Now, rtol: float) -> None:
    """All that the method knows; u tends to 0 and is what is left of terms of size 1; δ and σ, quotients of small
    differences, are known less well.
    """
    for found, by_hand in [
        (state.x, expected.x),
        (state.value, expected.h),
        (state.penalty, expected.rho),
        (state.multipliers, expected.y),
        (state.row_square, expected.row_square),
    ]:
        close(found, by_hand, rtol)
    np.testing.assert_allclose(state.gradient, expected.u, rtol=0, atol=rtol * (1 + norm(expected.u)))
    for found, by_hand in zip(state.noise, expected.noise, strict=True):
        np.testing.assert_allclose(found, by_hand, rtol=rtol)
    np.testing.assert_allclose(state.damping, expected.sigma, rtol=1e3 * rtol)
    np.testing.assert_allclose(state.pairs.curvature, expected.delta, rtol=1e3 * rtol)
    np.testing.assert_allclose(state.stuck, expected.stuck, atol=1e-12)
    np.testing.assert_allclose(state.last_pass.caution, expected.caution, rtol=1e-12)
    assert int(state.refused) == expected.refused


@pytest.mark.parametrize("name", list(RUNS))
def test_every_step_is_that_of_the_equations_on_the_same_samples(name):
    """Iterates over all steps; everything else until steps are so short that rounding decides."""
    events = set()
    for settings in RUNS[name]:
        path, expected = run(name, **settings)
        np.testing.assert_allclose(path.x, [now.x for now in expected], rtol=1e-9, atol=1e-10)
        lengths = np.linalg.norm(np.diff(path.x, axis=0), axis=1)
        short = [k for k in range(STEPS) if 0 < lengths[k] < 1e-6]
        for k in range(min([STEPS, *short]) + 1):
            same(path.states[k], expected[k], 1e-9)
        events |= {event for now in expected for event in now.events}
        assert costs_but_looks(BY_HAND[name], path, expected) == COSTS[name]
        for state, now in zip(path.states, expected, strict=True):
            np.testing.assert_array_equal(path.method.multipliers(state), state.multipliers)
            assert path.method.termination(state) == ("infeasible" if now.stuck > 0.5 else None)
    assert SEEN[name] <= events, SEEN[name] - events


def test_without_a_face_the_plain_step_is_taken(monkeypatch):
    """With one face to try, its step often leaves the box."""
    monkeypatch.setattr(matrix_free_penalty, "FACES", 1)
    path, expected = run("box", [0.55, 0.78, 0.66, 0.75], seed=2, steps=12, faces=1)
    for state, now in zip(path.states, expected, strict=True):
        same(state, now, 1e-9)
    assert {"plain", "face 0"} <= {event for now in expected for event in now.events}
