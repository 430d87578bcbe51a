"""The default method against a NumPy transcription of its docstring, on the same samples."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
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
    norms,
    positive_or_one,
    relax,
    running_mean,
    steer,
    trial_on,
    violation,
)
from penalty_problems import BY_HAND, DATA, OWN, batches, check_path, close, problem, regular_costs, same_tuning
from sample_paths import Path, drive, prepared, quick_jit

import tightrope as tr
from tightrope.methods.adaptive_penalty import dense
from tightrope.methods.adaptive_penalty.dense import Estimates
from tightrope.methods.adaptive_penalty.full_pass import FullPass
from tightrope.methods.adaptive_penalty.method import State
from tightrope.methods.adaptive_penalty.noise import Noise
from tightrope.methods.adaptive_penalty.quasi_newton import LBFGSMemory
from tightrope.methods.adaptive_penalty.tuning import Tuning
from tightrope.methods.base import Draw

STEPS = 30


# ---- the method, in NumPy ----------------------------------------------------------------------------------------------


class Now(NamedTuple):
    """Everything the method knows between steps, and the events of the last one."""

    x: np.ndarray
    v: np.ndarray
    h: np.ndarray
    J: np.ndarray
    noise: tuple[Measured, ...]
    pairs: list[tuple[np.ndarray, np.ndarray]]
    delta: float
    sigma: float
    rho: np.ndarray
    y: np.ndarray
    largest_row_norm: np.ndarray
    stalled: float
    rejected: int
    last: tuple[float, np.ndarray] | None
    kappa: float
    events: list[str]


class Halves(NamedTuple):
    """Gradient, rows and Jacobian at a point, on the two halves of a sample."""

    first: tuple[np.ndarray, ...]
    second: tuple[np.ndarray, ...]

    @property
    def mean(self) -> list[np.ndarray]:
        return [(a + b) / 2 for a, b in zip(*self, strict=True)]

    @property
    def variances(self) -> list:
        (g, h, J), (other_g, other_h, other_J) = self
        return [variance(g, other_g, "all"), variance(h, other_h), variance(J, other_J)]


def variance(first: np.ndarray, second: np.ndarray, of: str = "rows") -> Any:
    """Two independent halves: a quarter of the square of their difference has the variance of their mean."""
    squares = (first - second) ** 2 / 4
    return np.sum(squares) if of == "all" else np.sum(squares, axis=tuple(range(1, squares.ndim)))


def evaluate(p: Problem, x: np.ndarray, batch: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return p.gradient(x, batch), p.rows(x, batch), p.jacobian(x, batch)


def on_halves(p: Problem, x: np.ndarray, halves: list) -> Halves:
    return Halves(*(evaluate(p, x, half) for half in halves))


def start(p: Problem, x: np.ndarray, halves: list, first: Any, y: np.ndarray) -> Now:
    """`first` is the sample whose halves are `halves`."""
    v, h, J = evaluate(p, x, first)
    size = positive_or_one(norms(J))
    unit = J / size[:, None]
    guess = -np.linalg.inv(unit @ unit.T + 1e-3 * np.eye(len(h))) @ unit @ v / size
    delta = first_curvature(p, x, first, v, guess, norm(violation(p, h) / size))
    noise = tuple(Measured(s, s, 0.0 * s) for s in on_halves(p, x, halves).variances)
    rho = np.maximum(2 * abs(guess), 0.1 * positive_or_one(norm(v)) / size)
    return Now(x, v, h, J, noise, [], delta, delta, rho, y, norms(J), 0.0, 0, None, 1.0, [])


def step(
    p: Problem, now: Now, halves: list, last: list, everything: Any, k: int, share: float, w: float, faces: int = 4
) -> Now:
    """Step k: `halves` of its sample (the same twice where there is no data), and those of the `last` step's."""
    events: list[str] = []
    here = on_halves(p, now.x, halves)
    if p.period and (k - 1) % p.period == 0:
        v, h, J = evaluate(p, now.x, everything)
        noise = tuple(part._replace(e=0 * part.e) for part in now.noise)
        now = now._replace(v=v, h=h, J=J, noise=noise, **next_pass(p, now, everything, events))
    remembered = max(now.noise[0].remembered(), now.noise[2].remembered())
    now = now._replace(sigma=least_damping(p, now, remembered, w, events))
    units = 1 / positive_or_one(now.largest_row_norm)
    model = Model(p, now.x, now.v, now.h, now.J, now.pairs, now.delta, now.sigma, norms(now.J), units, last)
    trial = solve(model, now, here, halves, share, faces, events)
    there = on_halves(p, trial.x, halves)
    after = compare_and_learn(model, now, trial, here, there, k, events)
    if halves[0] is None:
        return after
    accepted = "accepted" in events
    return correct(p, now, after, there if accepted else here, norm(after.x - now.x) ** 2 if accepted else 0.0, k)


def correct(p: Problem, before: Now, after: Now, at: Halves, far: float, k: int) -> Now:
    """The estimates at the new x with a share of what the sample says there."""
    gains = [part.gain(far) for part in before.noise]
    estimates, least = [after.v, after.h, after.J], least_weight(p, k)
    (v, h, J), noise = corrected(estimates, at.mean, gains, after.noise, at.variances, least, after.events)
    return after._replace(v=v, h=h, J=J, noise=noise)


def solve(model: Model, now: Now, here: Halves, halves: list, share: float, faces: int, events: list) -> Trial:
    """Steering, and the step in the whole space or on a face of the box."""
    p, x, n = model.p, model.x, len(model.x)

    def rows_after(d: np.ndarray) -> np.ndarray:
        if not p.noisy_rows:
            return p.rows(x + d, None)
        _, old_h, old_J = here.mean
        return now.h + (now.J - old_J) @ d + sum(p.rows(x + d, half) for half in halves) / 2 - old_h

    rho, y, stalled = now.rho, now.y, False
    if len(now.h):
        rho, y, stalled = steer(model, rho, rows_after, share, events)
    if not p.box:
        return trial_on(model, Face(y, model.H, np.ones(n), np.zeros(n)), rho, stalled, events)
    face = find_face(model, rho, y, faces, events)
    if face is None:
        end = x - (now.v + y @ now.J) / model.curvature
        along = ((end > p.box[0]) & (end < p.box[1])).astype(float)
        face = Face(y, np.eye(n) / model.curvature, along, (1 - along) * (np.clip(end, *p.box) - x))
    events.append("bound" if face.along.sum() < n else "inside")
    return trial_on(model, face, rho, stalled, events)


def compare_and_learn(model: Model, now: Now, trial: Trial, here: Halves, there: Halves, k: int, events: list) -> Now:
    """The actual reduction, whether it is enough, and all that is known after that."""
    p, move, y, old_J, (_, new_h, new_J) = model.p, trial.x - now.x, trial.y, here.mean[2], there.mean
    change, jump, turn = ((there.first[i] - here.first[i] + there.second[i] - here.second[i]) / 2 for i in range(3))
    h_there = now.h + now.J @ move + jump - old_J @ move if p.noisy_rows else new_h
    curve = 0.5 * move @ change
    events.append("curved down" if curve < 0 else "curved up")
    judged, secant = h_there, now.J
    if p.noisy_rows and not p.period:
        jumps = [b[1] - a[1] for a, b in zip(here, there, strict=True)]
        bends = [jump - half[2] @ move for jump, half in zip(jumps, here, strict=True)]
        far = float(move @ move)
        usual = now.noise[1].with_change(variance(*jumps), far, True, least_weight(p, k)).q * far
        directly = usual < variance(*bends)
        judged = np.where(directly, now.h + jump, h_there)
        unknown = now.noise[2].e * far / len(move)
        miss = unknown / positive_or_one(unknown + usual) * (jump - turn @ move / 2 - now.J @ move)
        secant = now.J + np.outer(np.where(directly, miss, 0.0), move) / positive_or_one(far)
        events += ["judged by values" if any(directly) else "judged by the Jacobian"]
    actual = trial.rho @ (violation(p, now.h) - violation(p, judged)) - now.v @ move - max(curve, 0.0)
    finite = bool(np.isfinite(actual + np.sum(change) + np.sum(turn)))
    accepted, sigma = accept(model, trial, actual, finite, events)

    pairs, delta = add_pair(now.pairs, now.delta, move, change + y @ turn, accepted and not trial.stalled)
    events += [
        "straight" if delta == now.delta / 2 else "curved",
        "least damping" if sigma < 1e-6 * delta else "damped",
    ]
    known = finite and float(move @ move) > 0
    secant = secant if finite else now.J
    beyond_noise = np.sum(violation(p, now.h) ** 2) > 9 * np.sum(now.noise[1].e + now.noise[2].e * (now.x @ now.x))
    learned = now._replace(
        noise=noise_after(p, now, here, there, move, y, known, accepted, k), pairs=pairs, delta=delta, J=secant,
        sigma=max(sigma, 1e-6 * delta), rho=trial.rho, y=y, rejected=now.rejected + (not accepted), events=events,
        stalled=running_mean(now.stalled, float(trial.stalled and beyond_noise), k),
    )  # fmt: skip
    if not accepted:
        return learned
    largest = np.maximum(now.largest_row_norm, norms(new_J))
    rho = relax(trial.rho, y, norms(now.J), now.v, events)
    if p.noisy_rows:
        h_there, new_J = h_there if p.period else now.h + jump, secant + turn
    return learned._replace(x=trial.x, v=now.v + change, h=h_there, J=new_J, rho=rho, largest_row_norm=largest)


def noise_after(p: Problem, now: Now, here: Halves, there: Halves, move, y, known, accepted: bool, k: int) -> tuple:
    """s, e, q of the three estimates after a step and before its sample corrects them."""
    far, changes = float(move @ move), [[b[i] - a[i] for a, b in zip(here, there, strict=True)] for i in range(3)]
    lagrangian = [change + y @ turn for change, turn in zip(changes[0], changes[2], strict=True)]
    rows = changes[1]
    if p.period:
        rows = [jump - half[2] @ move for jump, half in zip(rows, here, strict=True)]
    variances = [variance(*lagrangian, "all"), variance(*rows), variance(*changes[2])]
    if p.period:
        variances[1] = variances[1] + now.noise[2].e * far
    noise = [n.with_change(c, far, known, least_weight(p, k)) for n, c in zip(now.noise, variances, strict=True)]
    return tuple(n._replace(e=n.e + c) if accepted else n for n, c in zip(noise, variances, strict=True))


def run(name: str, x: list[float], *, seed: int = 0, share: float = 0.3, w: float = 0.25) -> tuple[Path, list[Now]]:
    p, x = BY_HAND[name], np.array(x, float)
    y = 0.3 * np.arange(len(p.low)) - 0.2
    method = tr.methods.AdaptivePenalty(min_feasibility_share=share, noise_tolerance=w)
    path = drive(problem(name), np.zeros(4), method, steps=STEPS, seed=seed, start=x, multipliers=y)
    drawn = [batches(name, path.samples["step"][k]) for k in range(STEPS + 1)]
    everything = (DATA, OWN) if p.period else None
    found = [start(p, x, drawn[0][1], drawn[0][0], y)]
    for k in range(1, STEPS + 1):
        found.append(step(p, found[-1], drawn[k][1], drawn[k - 1][1], everything, k, share, w))
    return path, found


# ---- tests -------------------------------------------------------------------------------------------------------------

RUNS = {
    "equalities": [
        {"x": [0.7, -0.4, 0.3, 0.25]},
        {"x": [-0.37, 0.25, 0.91, 0.66]},
        {"x": [1, 1, 1, 0.001]},
        {"x": [0.001, 0.002, -0.001, 0.001], "share": 0.9},
        {"x": [1.73, 0.35, -0.94, 0.91], "share": 0.99},
        {"x": [0.15, -1.42, 0.76, 0.11]},
        {"x": [1e-7, 2e-7, -1e-7, 1e-7]},
    ],
    "noisy objective": [
        {"x": [-1.63, -0.15, -0.87, -0.51], "seed": 3},
        {"x": [0.001, 0.002, -0.001, 0.001], "share": 0.9, "w": 2.0},
        {"x": [1e-4, 2e-4, -1e-4, 1e-4], "share": 0.9},
        {"x": [-2.46, 3.1, -0.7, -0.73], "seed": 8},
        {"x": [-0.92, 0.44, -2.02, -0.42], "seed": 7},
    ],
    "endless data": [
        {"x": [-0.49, -0.89, -0.44, 0.03], "seed": 2},
        {"x": [0.63, 0.07, -0.52, -0.65], "seed": 7, "w": 40.0},
    ],
    "finite data": [
        {"x": [-0.09, 0.96, -0.47, 0.25], "seed": 5},
        {"x": [0.11, -0.31, -0.25, -1.46], "seed": 3, "w": 40.0},
        {"x": [0.001, 0.001, 0, 0]},
    ],
    "box": [
        {"x": [0.19, -0.22, 0.8, 0.8]},
        {"x": [0.07, -0.6, 0.63, -0.6], "share": 0.99},
        {"x": [-0.56, -0.6, -0.17, 0.29], "share": 0.99},
    ],
    "box alone": [{"x": [0.09, -0.09, 0.45, 0.07]}, {"x": [-0.38, -0.22, 0.29, 0.73], "seed": 4, "w": 40.0}],
    "slope": [{"x": [0.0, 0.1, 0.2, 0.3]}],
}
RATIOS = {"good", "fair", "poor", "rejected, needed damping"}
COVERED = {
    "equalities": RATIOS | {"rejected, most damping", "rejected, least damping", "raised where violated",
                            "no feasible descent", "evaluated: a part helps", "evaluated: no part helps",
                            "second-order correction", "correction too long", "nothing to correct", "least damping",
                            "relaxed", "kept", "as long as restoration", "shorter than restoration"},
    "noisy objective": RATIOS | {"corrected", "noise limits", "curvature limits", "raised where violated", "lifted", "waits",
                                 "second-order correction", "correction too long"},
    "endless data": {"corrected", "noise limits", "raised where violated", "poor", "curved down", "bends",
                     "bends within noise", "judged by values", "judged by the Jacobian"},
    "finite data": {"full pass", "corrected", "not corrected", "noise limits", "raised where violated",
                    "no feasible descent", "rose", "fell", "fell, κ above 1"},
    "box": {"good", "fair", "rejected, needed damping", "bound", "inside", "raised where violated",
            "too little, none at its limit", "second-order correction", "correction too long"},
    "box alone": {"full pass", "noise limits", "bound", "inside"},
    "slope": {"straight", "bound", "inside"},
}  # fmt: skip
COSTS = {
    "equalities": {(1, 2, 1, 0)},
    "noisy objective": {(2, 3, 2, 6)},
    "endless data": {(2, 4, 3, 12)},
    "finite data": {(2, 4, 3, 14), (3, 5, 4, 334)},
    "box": {(1, 2, 1, 0)},
}


def same(state: Any, expected: Now, rtol: float) -> None:
    """All that the method knows."""
    close(state.x, expected.x, rtol)
    for found, by_hand in zip(state.estimates, (expected.v, expected.h, expected.J), strict=True):
        close(found, by_hand, rtol)
    for found, by_hand in zip(jax.tree.leaves(state.noise), jax.tree.leaves(expected.noise), strict=True):
        close(found, by_hand, rtol)
    close(state.largest_row_norm, expected.largest_row_norm, rtol)
    same_tuning(state.tuning, expected, rtol)


@pytest.mark.by_default("equalities", "endless data", "finite data", "box", "slope")
@pytest.mark.parametrize("name", list(RUNS))
def test_every_step_is_that_of_the_equations_on_the_same_samples(name):
    """Iterates over all steps; everything else until steps are so short that rounding decides."""
    events = set()
    for settings in RUNS[name]:
        path, expected = run(name, **settings)
        events |= check_path(path, expected, same)
        assert name not in COSTS or regular_costs(BY_HAND[name], path, expected) == COSTS[name]
    assert COVERED[name] <= events, COVERED[name] - events


def test_an_odd_batch_is_drawn_one_example_larger():
    """Batches of 5 and 3 examples: all sources draw 6, whose halves are 3 each; even ones are left alone."""
    path, _ = run("endless data", **RUNS["endless data"][0])
    assert [len(part[key]) for part, key in zip(path.samples["step"][0], ("a", "c"), strict=True)] == [6, 6]
    path, _ = run("finite data", **RUNS["finite data"][0])
    assert [len(indices) for indices in path.samples["step"][0]] == [8, 6]


def any_state(p: Problem, number: int) -> Now:
    """A state that no run would come to: feasible for the wave half the time, at bounds, with any pairs and penalties."""
    rng = np.random.default_rng([7, number])
    low, high = p.box or (-1.0, 1.0)
    x = rng.uniform(low, high, size=4)
    if p.box:
        x = np.where(rng.random(4) < 0.25, rng.choice([low, high], size=4), x)
    if rng.random() < 0.5:
        x[2] = np.clip(x[0] * x[1] + 0.1 * x[3] ** 3 - 0.2, low, high)
    v, h, J = evaluate(p, x, None)
    size = norms(J)
    A = rng.normal(size=(4, 4)) * 10 ** rng.uniform(-1, 0.5, size=4)
    A, pairs, delta = A @ A.T * 10 ** rng.uniform(-1, 2), [], 10 ** rng.uniform(-1, 2)
    for _ in range(rng.integers(14)):
        s = rng.normal(size=4)
        pairs, delta = add_pair(pairs, delta, s, A @ s + 0.3 * norm(A @ s) * rng.normal(size=4), True)
    rho = 10 ** rng.uniform(-3, 1.5, size=len(h)) * norm(v) / size
    y = rho * np.clip(rng.normal(size=len(h)), -1, 1)
    sigma, largest = delta * 10 ** rng.uniform(-4, 1), size * rng.choice([1.0, 2.0])
    nothing, of_rows = Measured(0.0, 0.0, 0.0), Measured(0 * h, 0 * h, 0 * h)
    noise = (nothing, of_rows, of_rows)
    return Now(x, v, h, J, noise, pairs, float(delta), float(sigma), rho, y, largest, 0.0, 0, None, 1.0, [])


def as_state(now: Now) -> Any:
    """The library's State; the oldest pair stands where the next one will."""
    count, steps, changes = len(now.pairs), np.zeros((10, 4)), np.zeros((10, 4))
    places = (3 + np.arange(count)) % 10
    for place, pair in zip(places, now.pairs, strict=True):
        steps[place], changes[place] = pair
    memory = LBFGSMemory.empty(10, jnp.array(now.x), jnp.array(now.delta))
    memory = memory._replace(oldest=jnp.int32((3 + count) % 10)).with_vectors(jnp.array([steps, changes]))
    tuning = Tuning(
        memory, jnp.array(now.sigma), jnp.array(now.rho), jnp.array(now.y), jnp.zeros_like(jnp.array(now.rho)),
        FullPass(jnp.zeros(()), jnp.array(now.h), jnp.ones(())), jnp.array(now.stalled), jnp.int32(now.rejected),
    )  # fmt: skip
    noise = tuple(Noise(*(jnp.array(number) for number in part)) for part in now.noise)
    estimates = Estimates(jnp.array(now.v), jnp.array(now.h), jnp.array(now.J))
    return State(jnp.array(now.x), estimates, noise, jnp.array(now.largest_row_norm), (), tuning)


EVENTS = {
    ("equalities", 4): {"raised where violated", "raised to the end", "not finite", "rejected, needed damping",
                        "rejected, most damping", "curved down"},
    ("box", 4): {"raised where feasible", "face 0", "face 1", "face 2", "bound", "rejected, least damping",
                 "rejected, most damping"},
    ("box", 1): {"face 0", "proximal step", "bound", "inside"},
}  # fmt: skip


@pytest.mark.by_default("box-4")
@pytest.mark.parametrize(("name", "faces"), list(EVENTS))
def test_a_step_from_any_state_is_that_of_the_equations(name, faces, monkeypatch):
    """With one face instead of four to try, the proximal step is often what is left."""
    monkeypatch.setattr(dense, "MAX_FACES", faces)
    p, k, events = BY_HAND[name], 5, set()
    oracle, method, *_ = prepared(problem(name), np.zeros(4), tr.methods.AdaptivePenalty(), STEPS)
    draw = Draw({"step": ()}, jnp.float32(0), jax.random.key(0), jnp.int32(k), jnp.int32(STEPS))
    take = quick_jit(lambda state: method.step(oracle, state, draw)[0])
    for number in range(40):
        now = any_state(p, number)
        expected = step(p, now, [None, None], [None, None], None, k, 0.3, 0.25, faces)
        events.update(expected.events)
        same(take(as_state(now)), expected, 1e-9)
    assert EVENTS[name, faces] <= events, EVENTS[name, faces] - events
