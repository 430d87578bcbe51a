"""The default method in NumPy: the parts that its dense and its matrix-free form share, written from their docstrings.

Nothing is shared with the package: quasi-Newton matrices are dense and built pair by pair, and subproblems are solved by going
through every combination of active bounds. Thresholds and limits are written down here as the code has them.

Every function appends to `events` which case it met, so that a test can say which cases its runs have covered.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

EPS = np.finfo(float).eps


class Problem(NamedTuple):
    """A problem by hand: gradient of f, rows h and their Jacobian, each at a point on a batch; the set is a box, or None.

    `noisy_rows`: whether rows have data; `period`: the steps between full passes, None: none; `objective` is f, which only
    these need.
    """

    gradient: Callable
    rows: Callable
    jacobian: Callable
    low: np.ndarray
    high: np.ndarray
    box: tuple[float, float] | None = None
    noisy_rows: bool = False
    period: int | None = None
    objective: Callable | None = None


class Measured(NamedTuple):
    """s, e, q: of the gradient numbers, of the rows and the Jacobian one entry per row."""

    s: Any
    e: Any
    q: Any

    def gain(self, far: float) -> Any:
        """The gain a for a sample after a step of the square `far`."""
        e = self.e + self.q * far
        return np.where(self.s > 0, e / positive_or_one(e + self.s), 1.0)

    def mean(self, old: Any, new: Any, least: float) -> Any:
        """Over the samples that the estimate remembers, at least 20; none has less weight than `least`."""
        weight = np.maximum(np.minimum(1 / 20, self.gain(0.0)), least)
        return (1 - weight) * old + weight * new

    def with_change(self, variance: Any, far: float, known: bool, least: float) -> "Measured":
        """With the variance of a change over a step of the square `far` in q, where that is known."""
        return self._replace(q=self.mean(self.q, variance / far, least)) if known else self

    def remembered(self) -> float:
        """How many samples the estimate remembers, the most of all rows."""
        return float(np.max((self.e + self.s) / positive_or_one(self.e), initial=0.0))


@dataclass(frozen=True)
class Model:
    """The subproblem at x, with the pairs of M, δ and σ, the norms of the rows, and the units in which violations are added."""

    p: Problem
    x: np.ndarray
    v: np.ndarray
    h: np.ndarray
    J: np.ndarray
    pairs: list[tuple[np.ndarray, np.ndarray]]
    delta: float
    sigma: float
    row_norm: np.ndarray
    units: np.ndarray
    last: list | None = None
    """Halves of the last step's sample, by which sampled rows are corrected; None: they are not."""

    @property
    def curvature(self) -> float:
        return self.delta + self.sigma

    @functools.cached_property
    def H(self) -> np.ndarray:
        """M⁻¹."""
        return inverse_hessian(self.pairs, self.delta, self.sigma, len(self.x))


class Trial(NamedTuple):
    """A trial point with its penalties and multipliers, the predicted reduction, and whether there is no feasible descent."""

    x: np.ndarray
    rho: np.ndarray
    y: np.ndarray
    predicted: float
    stalled: bool


# ---- numbers -----------------------------------------------------------------------------------------------------------


def norm(a: np.ndarray) -> float:
    return float(np.sqrt(np.sum(np.real(a * a))))


def norms(J: np.ndarray) -> np.ndarray:
    return np.array([norm(row) for row in J])


def positive_or_one(a: Any) -> Any:
    return np.where(np.asarray(a) > 0, a, 1.0)


def violation(p: Problem, rows: np.ndarray) -> np.ndarray:
    return np.where(rows > p.high, rows - p.high, np.where(rows < p.low, p.low - rows, 0.0))


def running_mean(old: Any, new: Any, k: int) -> Any:
    weight = max(1 / 20, 1 / (k + 1))
    return (1 - weight) * old + weight * new


def first_curvature(p: Problem, x, batch, v, y, distance: float) -> float:
    """δ: the curvature of the Lagrangian along v, by a complex step; or ‖v‖ over a distance."""
    tiny = 1e-30
    ahead = x + 1j * tiny * v
    curvature = norm((p.gradient(ahead, batch) + y @ p.jacobian(ahead, batch)).imag / tiny) / positive_or_one(norm(v))
    length = distance if distance > 0 else max(1.0, norm(x))
    return float(curvature if curvature > 0 else positive_or_one(norm(v) / length))


# ---- BFGS --------------------------------------------------------------------------------------------------------------


def inverse_hessian(pairs: list, delta: float, sigma: float, n: int) -> np.ndarray:
    """M⁻¹: BFGS updates of the pairs (s, y + σs), oldest first, from I/(δ + σ)."""
    H = np.eye(n) / (delta + sigma)
    for s, y in pairs:
        w = y + sigma * s
        if s @ w > 0.05 * norm(s) * norm(w):
            A = np.eye(n) - np.outer(s, w) / (s @ w)
            H = A @ H @ A.T + np.outer(s, s) / (s @ w)
    return H


def add_pair(pairs: list, delta: float, step: np.ndarray, change: np.ndarray, progress: bool) -> tuple[list, float]:
    """The last ten pairs, steps at length one, each change lifted along its step to a cosine of about 0.1.

    Where the gradient did not change along a step that made progress, δ is halved.
    """
    if norm(step) == 0 or norm(change) == 0 or not np.isfinite(norm(change)):
        return pairs, delta / 2 if progress and norm(step) > 0 and norm(change) == 0 else delta
    unit = step / norm(step)
    missing = max(0.1 * norm(change) - unit @ change, 0.0)
    y = (change + missing * unit) / norm(step)
    return [*pairs, (unit, y)][-10:], (y @ y) / (unit @ y)


# ---- subproblems -------------------------------------------------------------------------------------------------------


def combinations(G: np.ndarray, r: np.ndarray, low: np.ndarray, high: np.ndarray, rho: np.ndarray):
    """Every y that is −ρ, 0, ρ or holds its row at an end, with how far r − Gy is from where such a y belongs."""
    m = len(r)
    kinds = [
        ["0", *(["-", "low"] if np.isfinite(low[i]) else []), *(["+", "high"] if np.isfinite(high[i]) else [])]
        for i in range(m)
    ]
    for state in itertools.product(*kinds):
        held = [i for i in range(m) if state[i] in ("low", "high")]
        ends = np.array([{"low": low, "high": high}[state[i]][i] for i in held])
        y = np.array([{"-": -rho[i], "+": rho[i]}.get(state[i], 0.0) for i in range(m)])
        if held:
            block = G[np.ix_(held, held)]
            size = np.sqrt(np.outer(np.diag(block), np.diag(block)))
            if np.any(size <= 0) or np.linalg.cond(block / size) > 1e12:
                continue
            y[held] = np.linalg.solve(block, r[held] - ends - G[held] @ y)
        z, off = r - G @ y, [0.0]
        for i in range(m):
            scale = abs(r[i]) + abs(G[i]) @ abs(y) + 1e-300
            if state[i] in ("low", "high"):
                sign = 1 if state[i] == "high" else -1
                off += [-sign * y[i] / rho[i], sign * y[i] / rho[i] - 1]
            else:
                off.append((high[i] - z[i]) / scale if state[i] == "+" else 0.0)
                off.append((z[i] - low[i]) / scale if state[i] == "-" else 0.0)
                off.append(max(z[i] - high[i], low[i] - z[i]) / scale if state[i] == "0" else 0.0)
        yield y, max(off)


def best_multipliers(G, r, low, high, rho) -> np.ndarray:
    y, off = min(combinations(G, r, low, high, rho), key=lambda found: found[1])
    assert off < 1e-11, off
    return y


def best_in_box(v, h, J, low, high, rho, curvature, x, box) -> np.ndarray:
    """The multipliers of min vᵀd + ½ curvature ‖d‖² + Σ ρ dist(h + Jd) over the box: each entry is free or at a bound."""
    best, least = None, np.inf
    for pattern in itertools.product((0, -1, 1), repeat=len(x)):
        at = np.array(pattern)
        free = at == 0
        d0 = np.where(free, 0.0, np.where(at > 0, box[1], box[0]) - x)
        G, r = (J * free) @ J.T / curvature, h + J @ (d0 - free * v / curvature)
        for y, off in combinations(G, r, low, high, rho):
            push = -(v + y @ J) / curvature
            d = np.where(free, push, d0)
            wrong = np.where(free, np.maximum(x + d - box[1], box[0] - x - d), at * (d0 - push))
            total = max(off, np.max(wrong) / (norm(x) + norm(push)))
            if total < least:
                best, least = y, total
        if least < 1e-13:
            break
    assert least < 1e-11, least
    return best


def minimize(model: Model, weight: float, rho: np.ndarray) -> tuple:
    """For the gradient weight · v the multipliers, where the linearized rows end, dᵀMd and d."""
    p, x, v, h, J, curvature, H = model.p, model.x, model.v, model.h, model.J, model.curvature, model.H
    if p.box:
        y = best_in_box(weight * v, h, J, p.low, p.high, rho, curvature, x, p.box)
        d = np.clip(x - (weight * v + y @ J) / curvature, *p.box) - x
        return y, h + J @ d, curvature * d @ d, d
    y = best_multipliers(J @ H @ J.T, h - weight * J @ H @ v, p.low, p.high, rho)
    d = -H @ (weight * v + y @ J)
    return y, h + J @ d, d @ (weight * -v - y @ J), d


# ---- steering ----------------------------------------------------------------------------------------------------------


def steer(model: Model, rho: np.ndarray, rows_after: Callable, share: float, events: list) -> tuple:
    """The penalties, the multipliers, and whether there is no feasible descent; `rows_after(d)` are the rows themselves."""
    p, v, h, units = model.p, model.v, model.h, model.units
    before, rounding, negligible = violation(p, h), 100 * EPS * abs(h), 0.01 if p.noisy_rows else 1e-6
    stalled, used, change, most, restoration = False, 0, 0.0 * h, 1.0, None
    if np.any(before > rounding):
        norm_or_one = positive_or_one(model.row_norm)
        steep = EPS**-0.5 * model.curvature * np.max(before / norm_or_one) / norm_or_one
        _, end, most, restoration = minimize(model, 0.0, steep)
        change, used = end - h, 1
        stalled = bool(units @ (before - violation(p, end)) < negligible * units @ before)
        events.append("restoration is useless" if stalled else "restoration helps")
    while used < 6:
        y, end, square, _ = minimize(model, 1.0, rho)
        used += 1
        fraction = np.sqrt(min(1.0, max(square, v @ v / model.curvature) / positive_or_one(most)))
        events.append("as long as restoration" if fraction == 1 else "shorter than restoration")
        possible = units @ (before - violation(p, h + fraction * change))
        removed = units @ (before - violation(p, end))
        if used == 2 and restoration is not None and not stalled and removed < negligible * units @ before:
            stalled = no_part_helps(model, restoration, rows_after, events)
        if not removed < share * possible - units @ np.where(before > 0, rounding, 0):
            break
        at_limit = abs(y) >= rho
        if stalled or not at_limit.any():
            events.append("no feasible descent, none raised" if stalled else "too little, none at its limit")
            break
        rho = raised(rho, at_limit, 1 / units, events)
        events += ["raised", "raised where violated" if before.any() else "raised where feasible"]
    else:
        events.append("raised to the end")
    events += ["violated" if before.any() else "feasible", "no feasible descent" if stalled else "feasible descent"]
    return rho, y, stalled


def no_part_helps(model: Model, restoration: np.ndarray, rows_after: Callable, events: list) -> bool:
    """Whether no part of the restoration step removes more than a negligible share of the violation."""
    before, negligible, parts = violation(model.p, model.h), *((0.01, 4) if model.p.noisy_rows else (1e-6, 10))
    removed = [model.units @ (before - violation(model.p, rows_after(restoration / 4**i))) for i in range(parts)]
    none = not any(one >= negligible * model.units @ before for one in removed)
    events.append("evaluated: no part helps" if none else "evaluated: a part helps")
    return none


def raised(rho: np.ndarray, at_limit: np.ndarray, size: np.ndarray, events: list) -> np.ndarray:
    """Of the rows at their limits, those with a scaled penalty below four times the lowest are raised to that."""
    scaled = [rho[i] * size[i] for i in range(len(rho)) if at_limit[i]]
    events += ["waits" if one >= 4 * min(scaled) else "lifted" for one in scaled]
    return np.array([max(rho[i], 4 * min(scaled) / size[i]) if at_limit[i] else rho[i] for i in range(len(rho))])


# ---- the step ----------------------------------------------------------------------------------------------------------


class Face(NamedTuple):
    """A face of the box: multipliers, M⁻¹ along it, which entries are free, and the rest of the step."""

    y: np.ndarray
    H: np.ndarray
    along: np.ndarray
    fixed: np.ndarray


def find_face(model: Model, rho: np.ndarray, y: np.ndarray, faces: int, events: list) -> Face | None:
    """The first face whose step stays in the box; None: no such face among the first ones."""
    p, x, v, h, J = model.p, model.x, model.v, model.h, model.J
    low, high = p.box
    target = x - (v + y @ J) / model.curvature
    for attempt in range(faces):
        nearest, along = np.clip(target, low, high), ((target > low) & (target < high)).astype(float)
        fixed, Jf = (1 - along) * (nearest - x), J * along
        H = inverse_hessian([(along * a, along * b) for a, b in model.pairs], model.delta, model.sigma, len(x))
        if len(h):
            y = best_multipliers(Jf @ H @ Jf.T, h + J @ fixed - Jf @ H @ (along * v), p.low, p.high, rho)
        end = x + fixed - H @ (along * (v + y @ J))
        if norm(np.clip(end, low, high) - end) <= 1e-6 * norm(end - x):
            events.append(f"face {attempt}")
            return Face(y, H, along, fixed)
        target = end + target - nearest
    events.append("proximal step")
    return None


def trial_on(model: Model, face: Face, rho: np.ndarray, stalled: bool, events: list) -> Trial:
    """The step on a face, with its second-order correction, and what it is predicted to gain."""
    p, x, v, h, J = model.p, model.x, model.v, model.h, model.J
    y, H, along, fixed = face
    Jf, vf = J * along, v * along
    free = -H @ (vf + y @ Jf)
    d, square = fixed + free, -free @ (vf + y @ Jf)
    predicted = rho @ (violation(p, h) - violation(p, h + J @ d)) - v @ d
    predicted -= 0.5 * (square + model.curvature * fixed @ fixed)
    new = x + d
    if len(h) and not (p.noisy_rows and model.last is None):
        held = [i for i in range(len(h)) if y[i] != 0 and abs(y[i]) < rho[i]]
        miss = missed(model, new, y, events)[held]
        G = (Jf @ H @ Jf.T)[np.ix_(held, held)]
        q = np.linalg.solve(G, miss) if held and G.any() else np.zeros(len(held))
        short = bool(held) and q @ G @ q <= 0.25 * square
        new = new - H @ (q @ Jf[held]) if short else new
        events.append("second-order correction" if short else "correction too long" if held else "nothing to correct")
    return Trial(np.clip(new, *p.box) if p.box else new, rho, y, predicted, stalled)


def missed(model: Model, new: np.ndarray, y: np.ndarray, events: list) -> np.ndarray:
    """How far the rows are beyond their ends; sampled rows by their bend, where three deviations of it do not reach zero."""
    p, x = model.p, model.x
    if not p.noisy_rows:
        return p.rows(new, None) - np.where(y > 0, p.high, p.low)
    one, other = (p.rows(new, half) - p.rows(x, half) - p.jacobian(x, half) @ (new - x) for half in model.last)
    beyond = ((one + other) / 2) ** 2 > 9 * (one - other) ** 2 / 4
    events += ["bends"] * bool(beyond.any()) + ["bends within noise"] * bool((~beyond).any())
    return np.where(beyond, (one + other) / 2, 0.0)


def accept(model: Model, trial: Trial, actual: float, finite: bool, events: list) -> tuple[bool, float]:
    """Whether the trial is accepted, and σ after it."""
    move, delta, sigma = trial.x - model.x, model.delta, model.sigma
    rows = trial.rho @ (abs(model.h) + model.row_norm * norm(model.x))
    rounding = 10 * EPS * (norm(model.v) * (norm(model.x) + norm(move)) + rows)
    ratio = -1.0
    if finite and trial.predicted > -rounding:
        ratio = (actual + rounding) / (trial.predicted + rounding)
    events.append("finite" if finite else "not finite")
    if ratio > 0.1:
        events += ["accepted", "good" if ratio > 0.75 else "poor" if ratio < 0.4 else "fair"]
        return True, sigma * (0.3 if ratio > 0.75 else 1.5 if ratio < 0.4 else 1.0)
    needed = 2 * (trial.predicted - actual) / positive_or_one(move @ move) if finite else np.inf
    most = 10 * max(sigma, delta)
    between = "rejected, most damping" if needed >= most else "rejected, least damping"
    events += ["rejected", "rejected, needed damping" if 2 * sigma < needed < most else between]
    return False, min(max(needed, 2 * sigma), most, 1e12 * delta)


def relax(rho: np.ndarray, y: np.ndarray, row_norm: np.ndarray, v: np.ndarray, events: list) -> np.ndarray:
    """Where every |y_i| < ρ_i: down to 0.8 ρ, no further than ten times what the hardest row needs, or a tenth of ‖v‖."""
    if np.any(abs(y) >= rho):
        return rho
    ample = 10 * max([0.1 * norm(v), *(abs(y) * row_norm)]) / positive_or_one(row_norm)
    events += ["relaxed" if falls else "kept" for falls in ample < rho]
    return np.where(ample < rho, np.maximum(0.8 * rho, ample), rho)


# ---- noise and full passes ---------------------------------------------------------------------------------------------


def least_weight(p: Problem, k: int) -> float:
    """The least weight of a sample in a mean of noise: with full passes 1/20."""
    return max(1 / 20 if p.period else 0.0, 1 / (k + 1))


def corrected(
    estimates: list, samples: list, gains: list, noise: tuple, variances: list, least: float, events: list
) -> tuple:
    """The estimates with a share a of what the sample says, and s, e, q after that."""
    new, after = [], []
    for old, sample, a, measured, variance in zip(estimates, samples, gains, noise, variances, strict=True):
        s = measured.mean(measured.s, variance, least)
        share = a[:, None] if np.ndim(old) == 2 else a
        new.append(old + share * (sample - old))
        after.append(Measured(s, (1 - a) ** 2 * measured.e + a**2 * s, measured.q))
        events += ["corrected" if 0 < b < 1 else "replaced" if b == 1 else "not corrected" for b in np.atleast_1d(a)]
    return new, tuple(after)


def next_pass(p: Problem, now: Any, everything: Any, events: list) -> dict[str, Any]:
    """Objective and rows on all data, and κ: twice as large where f + Σ ρ_i dist(h_i, …) rose since the last pass."""
    f, h = p.objective(now.x, everything), p.rows(now.x, everything)
    before, after = (value + now.rho @ violation(p, rows) for value, rows in (now.last or (np.inf, h), (f, h)))
    rose = after > before + 10 * EPS * (abs(f) + now.rho @ abs(h))
    events += ["full pass", "rose" if rose else "fell, κ above 1" if now.kappa > 1 else "fell"]
    return {"last": (f, h), "kappa": 2 * now.kappa if rose else max(0.9 * now.kappa, 1.0)}


def least_damping(p: Problem, now: Any, remembered: float, w: float, events: list) -> float:
    """σ, at least κ √(Tq/w)."""
    least = now.kappa * np.sqrt((p.period or remembered) * now.noise[0].q / w)
    events.append("noise limits" if least > now.sigma else "curvature limits")
    return max(now.sigma, least)
