"""The exact penalty method against a NumPy transcription of Cui, Shi, Wang, Xiao 2025, Algorithms 2.1 and 3.1.

The subproblem (3.1) is solved here by bisection where x is free, else by many projected steps on its dual.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sample_paths import Path, drive, quick_jit

import tightrope as tr
from tightrope.methods.exact_penalty.sizes import Sizes
from tightrope.oracles.build import oracle_for
from tightrope.problems.parameters import Parameters

# ---- the paper, in NumPy ---------------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """A problem by hand: gradient of f, rows c and their Jacobian, each at a point on a sample; projection, None: no set."""

    gradient: Callable
    c: Callable
    jacobian: Callable
    project: Callable | None = None


class Constants(NamedTuple):
    """ρ0, β, α, ζ, γ (None: from L_f and L_J), the radii G, M, L_c, inner steps and the period of restarts."""

    setting: str
    rho: float = 1.0
    beta: float = 1.2
    alpha: float = 0.8
    zeta: float = 0.8
    gamma: float | None = None
    L_f: float = 1.0
    L_J: float = 1.0
    G: float = 1e6
    M: float = 1e6
    L_c: float = 1e6
    T: int = 6
    tau: int = 3
    accuracy: float | None = None

    def gamma_of(self, rho: float) -> float:
        return min(1 / self.alpha, 1 / (8 * (rho * self.L_J + self.L_f))) if self.gamma is None else self.gamma


class Draw(NamedTuple):
    """One step's randomness: small samples A, B, S, large ones (for restarts), a uniform number."""

    small: tuple[Any, Any, Any]
    large: tuple[Any, Any, Any]
    uniform: float


class Estimate(NamedTuple):
    v: np.ndarray
    c: np.ndarray
    J: np.ndarray


class Transcribed(NamedTuple):
    """After each step: x (also before the first), the inner iterate picked so far, its y, ρ, the status; and all events."""

    x: list[np.ndarray]
    picked: list[np.ndarray]
    y: list[np.ndarray]
    rho: list[float]
    status: list[str | None]
    events: list[str]


def ball(v: np.ndarray, radius: float) -> np.ndarray:
    norm = np.sqrt(np.sum(v * v))
    return v if norm <= radius else v * (radius / norm)


def restart(p: Problem, s: Constants, x: np.ndarray, samples: tuple[Any, Any, Any]) -> Estimate:
    """(3.2); (5.3) on all data; exact values are not truncated."""
    v, c, J = p.gradient(x, samples[0]), p.c(x, samples[1]), p.jacobian(x, samples[2])
    if s.setting == "stochastic":
        return Estimate(ball(v, s.G), ball(c, s.M), ball(J, s.L_c))
    return Estimate(ball(v, s.G) if s.setting == "semi" else v, c, J)


def advance(
    p: Problem,
    s: Constants,
    x: np.ndarray,
    last: np.ndarray,
    anchor: np.ndarray,
    full: Estimate,
    old: Estimate,
    draw: Draw,
) -> tuple[Estimate, Estimate]:
    """(3.3) and (5.2), before and after truncation."""
    a, b, r = draw.small
    if s.setting == "finite_sum":
        move = x - anchor
        v = p.gradient(x, a) - p.gradient(anchor, a) + full.v
        c = p.c(x, b) - p.c(anchor, b) - p.jacobian(anchor, b) @ move + full.c + full.J @ move
        J = p.jacobian(x, r) - p.jacobian(anchor, r) + full.J
    else:
        v = old.v + p.gradient(x, a) - p.gradient(last, a)
        if s.setting == "semi":
            c, J = p.c(x, b), p.jacobian(x, r)
            return Estimate(v, c, J), Estimate(ball(v, s.G), c, J)
        c = old.c + p.c(x, b) - p.c(last, b)
        J = old.J + p.jacobian(x, r) - p.jacobian(last, r)
    return Estimate(v, c, J), Estimate(ball(v, s.G), ball(c, s.M), ball(J, s.L_c))


def step_free(e: Estimate, rho: float, gamma: float) -> tuple[np.ndarray, np.ndarray, str]:
    """(3.1) by its dual: either c + Jd = 0 can be reached with ‖y‖ ≤ ρ, or ‖y‖ = ρ and c + Jd = μy with μ > 0."""
    m = len(e.c)
    K, b = gamma * e.J @ e.J.T, e.c - gamma * e.J @ e.v
    y, kind = np.linalg.pinv(K, rcond=1e-12) @ b, "reached"
    if np.linalg.norm(y) > rho or np.linalg.norm(K @ y - b) > 1e-10 * (1 + np.linalg.norm(b)):
        low, high, kind = 0.0, np.linalg.norm(b) / rho, "approached"
        for _ in range(200):
            mu = 0.5 * (low + high)
            y = np.linalg.solve(K + mu * np.eye(m), b)
            low, high = (mu, high) if np.linalg.norm(y) > rho else (low, mu)
    return -gamma * (e.v + e.J.T @ y), y, kind


def step_within(
    e: Estimate, rho: float, gamma: float, x: np.ndarray, project: Callable
) -> tuple[np.ndarray, np.ndarray, str]:
    """(3.1) with x + d in a set: accelerated ascent on max over ‖y‖ ≤ ρ of min over d, until it stalls."""
    go = lambda y: project(x - gamma * (e.v + e.J.T @ y)) - x
    length = 1 / (gamma * np.linalg.norm(e.J, 2) ** 2)
    y = old = np.zeros(len(e.c))
    t, still = 1.0, 0
    for _ in range(200_000):
        new = ball(y + length * (e.c + e.J @ go(y)), rho)
        still = still + 1 if np.linalg.norm(new - y) < 1e-15 * max(1.0, np.linalg.norm(y)) else 0
        if still >= 3:
            break
        if (y - new) @ (new - old) > 0:
            t = 1.0
        following = 0.5 * (1 + np.sqrt(1 + 4 * t * t))
        y, old, t = new + (t - 1) / following * (new - old), new, following
    d = go(new)
    residual = e.c + e.J @ d
    assert abs(rho * np.linalg.norm(residual) - new @ residual) < 1e-12 * max(1.0, rho)
    return d, new, "within"


def trial(p: Problem, x: np.ndarray, e: Estimate, alpha: float, gamma: float) -> np.ndarray:
    """γd of (2.3); in a set the least vᵀs + ‖s‖²/(2γ) with Js = −γαc, which is always feasible here."""
    if p.project is None:
        inverse = np.linalg.pinv(e.J, rcond=1e-10)
        return -gamma * (e.v - inverse @ (e.J @ e.v)) - gamma * alpha * inverse @ e.c
    s, _, _ = step_within(e._replace(c=gamma * alpha * e.c), 1e7, gamma, x, p.project)
    assert np.linalg.norm(gamma * alpha * e.c + e.J @ s) < 1e-12
    return s


def steer(p: Problem, x: np.ndarray, e: Estimate, s: Constants, rho: float, gamma: float) -> tuple[bool, bool, float]:
    """(2.4)-(2.6): whether the test holds, whether c ≠ 0 cannot be reduced, and the ρ that is enough."""
    step = trial(p, x, e, s.alpha, gamma)
    theta = np.linalg.norm(e.c) - np.linalg.norm(e.c + e.J @ step)
    rise = e.v @ step + step @ step / (2 * gamma)
    stuck = theta <= 1e-12 * np.linalg.norm(e.c)
    enough = -np.inf if stuck else rise / ((1 - s.zeta) * theta)
    return rho * theta - rise >= rho * s.zeta * theta, bool(stuck and np.linalg.norm(e.c) > 1e-12), enough


def settled(s: Constants, x: np.ndarray, e: Estimate, first: Estimate, measure: float) -> bool:
    """Section 4: a small E‖𝒢‖² and a small ‖c‖; samples of 9 examples are too noisy for the limits without an accuracy."""
    violation, slope = np.linalg.norm(e.c), np.linalg.norm(e.J)
    if s.accuracy is not None:
        return np.sqrt(measure) <= s.accuracy and violation <= s.accuracy
    size = max(np.linalg.norm(first.v), np.linalg.norm(e.v))
    near = violation <= 1e-3 * slope * max(1.0, np.linalg.norm(x))
    return bool(s.setting != "stochastic" and np.sqrt(measure) <= 1e-2 * size and near)


def algorithm(p: Problem, s: Constants, x: np.ndarray, first: Estimate, draws: list[Draw]) -> Transcribed:
    """Algorithm 2.1 around Algorithm 3.1; where it would stop, it starts anew from the last iterate, with a lower ρ."""
    out = Transcribed([x], [], [], [], [], [])
    rho, gamma, outer, status = s.rho, s.gamma_of(s.rho), (x, first), None
    floor, squares, least = s.rho, [], 0
    last, anchor, full, e, picked_y, queue = x, x, first, first, None, list(draws)
    for k in range(1, -(-len(draws) // s.T) + 1):
        holds, stuck, enough = steer(p, *outer, s, rho, gamma)
        if k > 1 and holds:
            measure = squares[least] if s.setting == "deterministic" else np.mean(squares)
            small = settled(s, *outer, first, measure)
            status = "infeasible" if stuck else "converged" if small else None
            lower = min(rho, max(floor, enough, np.linalg.norm(picked_y) / (1 - s.zeta)))
            out.events.extend(["held", str(status), "fell" if lower < rho else "kept"])
            rho = lower
        else:
            status = None
            out.events.append("enough" if enough > s.beta * rho else "beta")
            floor, rho, x = max(floor, s.beta * rho), max(s.beta * rho, enough), outer[0]
        gamma, squares, least = s.gamma_of(rho), [], 0
        for i in range(s.T):
            if not queue:
                break
            draw = queue.pop(0)
            if i % s.tau == 0 or s.setting == "deterministic":
                e = full = restart(p, s, x, draw.large)
                anchor = x
            else:
                raw, e = advance(p, s, x, last, anchor, full, e, draw)
                out.events.extend(f"cut {name}" for name in "vcJ" if np.any(getattr(raw, name) != getattr(e, name)))
            d, y, kind = step_free(e, rho, gamma) if p.project is None else step_within(e, rho, gamma, x, p.project)
            out.events.append(kind)
            squares.append(d @ d / gamma**2)
            if i == 0 or squares[i] < squares[least] if s.setting == "deterministic" else draw.uniform * (i + 1) < 1:
                outer, picked_y, least = (x, e), y, i
            last, x = x, x + d
            out.x.append(x)
            out.picked.append(outer[0])
            out.y.append(picked_y)
            out.rho.append(rho)
            out.status.append(status)
    return out


# ---- problems: all random; random but for the constraints; nothing random; all random with inequalities in a box ----------

N, DIM, BATCH, CBATCH, LARGE = 8000, 4, 3, 2, (7, 9, 8)
"""LARGE: A, B and S at a restart."""
RNG = np.random.default_rng(17)
A, B, C, E = (RNG.normal(size=shape) for shape in ((N, DIM), N, (N, DIM), (N, DIM)))
A, E = A + np.array([0.5, 0.0, -0.3, 0.4]), E + np.array([0.2, -0.6, 0.3, 0.1])
X1 = np.array([0.7, -0.4, 0.3, 0.2])
BOX, BAND, FLOOR = (-0.6, 0.85), (-0.3, 0.1), -0.15


def f_gradient(x: np.ndarray, sample: tuple) -> np.ndarray:
    a, b = A[sample[0]], B[sample[0]]
    return (a @ x - b + np.cos(a @ x)) @ a / len(a)


def noisy_c(x: np.ndarray, sample: tuple) -> np.ndarray:
    c, e = C[sample[1]], E[sample[1]]
    return np.array([np.mean((c @ x) ** 2) - 0.8, np.mean(e @ x) + x[0] * x[1] - x[2] - 0.1])


def noisy_jacobian(x: np.ndarray, sample: tuple) -> np.ndarray:
    c, e = C[sample[1]], E[sample[1]]
    return np.array([2 * (c @ x) @ c / len(c), np.mean(e, axis=0) + np.array([x[1], x[0], -1.0, 0.0])])


def exact_c(x: np.ndarray, _: Any) -> np.ndarray:
    """Not 0 at x0 = x1 = 0, where its Jacobian is 0."""
    return np.array([x[0] ** 2 + 2 * x[1] ** 2 - 1.0, x[0] * x[1] - 0.2])


def exact_jacobian(x: np.ndarray, _: Any) -> np.ndarray:
    return np.array([[2 * x[0], 4 * x[1], 0, 0], [x[1], x[0], 0, 0]])


def exact_gradient(x: np.ndarray, _: Any) -> np.ndarray:
    """Of ½x0² + 0.3x0x1 + x1⁴ + (x2 − 1)² + x2 sin x3."""
    slopes = [x[0] + 0.3 * x[1], 0.3 * x[0] + 4 * x[1] ** 3, 2 * (x[2] - 1) + np.sin(x[3]), x[2] * np.cos(x[3])]
    return np.array(slopes)


def slack_c(v: np.ndarray, _: Any) -> np.ndarray:
    x, s = v[:DIM], v[DIM:]
    return np.array([x[0] ** 2 + 2 * x[1] ** 2 + x[2] - 1.0, x[2] + x[3] ** 2 - s[0], x[0] * x[1] - s[1]])


def slack_jacobian(v: np.ndarray, _: Any) -> np.ndarray:
    x = v[:DIM]
    return np.array([[2 * x[0], 4 * x[1], 1, 0, 0, 0], [0, 0, 1, 2 * x[3], -1, 0], [x[1], x[0], 0, 0, 0, -1]])


def within(v: np.ndarray) -> np.ndarray:
    return np.concatenate([np.clip(v[:DIM], *BOX), [np.clip(v[DIM], *BAND), max(v[DIM + 1], FLOOR)]])


BY_HAND = {
    "noisy": Problem(f_gradient, noisy_c, noisy_jacobian),
    "exact": Problem(exact_gradient, exact_c, exact_jacobian),
    "slacks": Problem(
        lambda v, sample: np.append(f_gradient(v[:DIM], sample), [0.0, 0.0]), slack_c, slack_jacobian, within
    ),
}


def f(x, batch):
    return jnp.mean(0.5 * (batch["a"] @ x - batch["b"]) ** 2 + jnp.sin(batch["a"] @ x))


def surfaces(x, batch):
    plane = jnp.mean(batch["e"] @ x) + x[0] * x[1] - x[2]
    return jnp.stack([jnp.mean((batch["c"] @ x) ** 2), plane])


@functools.cache
def problem(name: str) -> tr.Problem:
    data = tr.Dataset({"a": A, "b": B}, batch_size=BATCH)
    if name == "noisy":
        other = tr.Dataset({"c": C, "e": E}, batch_size=CBATCH)
        return tr.Problem(f, tr.equals(surfaces, np.array([0.8, 0.1]), data=other, name="surfaces"), data=data)
    if name == "exact":
        smooth = lambda x: 0.5 * x[0] ** 2 + 0.3 * x[0] * x[1] + x[1] ** 4 + (x[2] - 1) ** 2 + x[2] * jnp.sin(x[3])
        curves = lambda x: jnp.stack([x[0] ** 2 + 2 * x[1] ** 2, x[0] * x[1]])
        return tr.Problem(smooth, tr.equals(curves, np.array([1.0, 0.2]), name="curves"))
    constraints = [
        tr.equals(lambda x: x[0] ** 2 + 2 * x[1] ** 2 + x[2], 1.0, name="bowl"),
        tr.between(lambda x: x[2] + x[3] ** 2, *BAND, name="band"),
        tr.at_least(lambda x: x[0] * x[1], FLOOR, name="floor"),
    ]
    return tr.Problem(f, constraints, domain=tr.domains.Box(*BOX), data=data)


def method_of(s: Constants) -> tr.methods.Method:
    """'auto' finds 'semi' and 'deterministic'; the other two are a matter of cost."""
    finite = s.setting == "finite_sum"
    return tr.methods.ExactPenalty(
        penalty=s.rho, penalty_growth=s.beta, normal_fraction=s.alpha, decrease_fraction=s.zeta, step_size=s.gamma,
        smoothness=s.L_f,
        jacobian_smoothness=s.L_J, gradient_radius=s.G, value_radius=s.M, jacobian_radius=s.L_c,
        setting=s.setting if s.setting in ("stochastic", "finite_sum") else "auto", inner_steps=s.T, accuracy=s.accuracy,
        restart_period=None if finite else s.tau, restart_batch_size=None if finite else LARGE,
    )  # fmt: skip


ALL = (np.arange(N), np.arange(N))
ROLES = ("gradient", "value", "jacobian")


@functools.cache
def _large(name: str) -> Callable:
    """Compiled: keys of steps ↦ samples of a restart."""
    oracle = oracle_for(problem(name), Parameters(jnp.zeros(DIM)), form="slacks")
    draw = lambda part, size: oracle.draw(jax.random.fold_in(part, 0), size)
    return quick_jit(jax.vmap(lambda key: tuple(map(draw, jax.random.split(key, 3), LARGE))))


def draws_of(path: Path, name: str, s: Constants, steps: int) -> list[Draw]:
    """Entry 0 belongs to `init`."""
    large = None
    if s.setting in ("stochastic", "semi"):
        large = jax.tree.map(np.asarray, _large(name)(path.keys))
    at = lambda k: (ALL,) * 3 if large is None else jax.tree.map(lambda a: a[k], large)
    small = lambda k: tuple(path.samples[role][k] if role in path.samples else None for role in ROLES)
    return [Draw(small(k), at(k), float(path.uniforms[k])) for k in range(steps + 1)]


def run(name: str, s: Constants, steps: int = 30, seed: int = 0, start: np.ndarray = X1) -> tuple[Path, Transcribed]:
    path = drive(problem(name), X1, method_of(s), steps=steps, seed=seed, start=start)
    draws = draws_of(path, name, s, steps)
    first = restart(BY_HAND[name], s, start, draws[0].large)
    return path, algorithm(BY_HAND[name], s, start, first, draws[1:])


def agree(path: Path, expected: Transcribed, s: Constants, costs: dict[bool, tuple[int, int, int, int]]) -> None:
    """Compare everything observable; `costs` of a step with a restart (True) and without."""
    np.testing.assert_allclose(path.x, np.stack(expected.x), rtol=1e-9, atol=1e-12)
    states = path.states[1:]
    output = np.stack([np.asarray(path.method.output(state)) for state in states])
    np.testing.assert_allclose(output, np.stack(expected.picked), rtol=1e-9, atol=1e-12)
    raw = np.stack([np.asarray(path.oracle.rows.to_raw(path.method.multipliers(state))) for state in states])
    np.testing.assert_allclose(raw, np.stack(expected.y), rtol=1e-9, atol=1e-12)
    assert [path.method.termination(state) for state in states] == expected.status
    assert path.infos == [costs[k % s.T % s.tau == 0] for k in range(len(states))]


def events(*runs: Transcribed) -> set[str]:
    """The events of these runs, except the first outer test."""
    return set().union(*(run.events[1:] for run in runs))


# ---- tests ---------------------------------------------------------------------------------------------------------


def test_3a_fully_stochastic_with_restarts_and_a_step_size_that_depends_on_the_penalty():
    wide = Constants("stochastic", L_f=0.5, L_J=0.3, rho=0.5, beta=1.5, zeta=0.9)
    seen = []
    narrow = wide._replace(G=1.2, M=0.5, L_c=1.8)
    flat = narrow._replace(L_f=0.02, L_J=0.01)
    loose = wide._replace(alpha=0.3, zeta=0.5, accuracy=1.5)
    for seed, s in enumerate((wide, narrow, loose, flat)):
        path, expected = run("noisy", s, seed=seed)
        agree(path, expected, s, {True: (1, 2, 1, sum(LARGE)), False: (2, 4, 2, BATCH + 2 * CBATCH)})
        seen.append(expected)
    assert {"enough", "converged", "None", "fell", "reached", "approached", "cut v", "cut c", "cut J"} <= events(*seen)
    assert not {"cut v", "cut c", "cut J"} & events(seen[0])
    assert len({wide.gamma_of(rho) for rho in seen[0].rho + seen[1].rho}) > 1
    assert flat.gamma_of(seen[3].rho[0]) == 1 / flat.alpha


@pytest.mark.full
def test_3c_finite_sums_with_full_passes_anchors_and_the_sizes_of_the_paper():
    wide = Constants("finite_sum", gamma=0.1, rho=0.1, beta=1.1, zeta=0.5, T=7, tau=2)
    seen = []
    for s in (wide, wide._replace(G=1.0, L_c=1.5), wide._replace(M=0.05, accuracy=2.0)):
        path, expected = run("noisy", s, seed=1)
        agree(path, expected, s, {True: (1, 1, 1, 2 * N), False: (2, 4, 3, 73 + 5304 + 73)})
        seen.append(expected)
    assert [path.samples[role][0][0].shape for role in ROLES] == [(73,), (5304,), (73,)]
    assert {"enough", "converged", "reached", "approached", "cut v", "cut c", "cut J"} <= events(*seen)


def test_3b_exact_constraints_with_slacks_in_a_box():
    plain = Constants("semi", gamma=0.1, rho=0.2, beta=1.3, zeta=0.2, G=1.5, T=7)
    seen = []
    for seed, s in enumerate((plain, plain._replace(accuracy=2.0))):
        path, expected = run("slacks", s, seed=seed, start=within(np.array([*X1, 0.34, X1[0] * X1[1]])))
        agree(path, expected, s, {True: (1, 1, 1, LARGE[0]), False: (2, 1, 1, BATCH)})
        seen.append(expected)
    assert {"enough", "beta", "converged", "cut v"} <= events(*seen)
    x = np.concatenate([run.x for run in seen])
    assert np.any(x[:, :DIM] == BOX[0]) or np.any(x[:, :DIM] == BOX[1])
    assert np.any(x[:, DIM] == BAND[1])
    assert np.any(x[:, DIM + 1] == FLOOR)
    assert np.any(x[:, DIM + 1] > FLOOR)


EXACT = Constants("deterministic", gamma=0.1, rho=0.2, beta=1.1, zeta=0.5, tau=1)
STARTS = {
    "far": (EXACT, X1),
    "settled": (EXACT._replace(gamma=0.02, beta=1.5), np.array([1.1, 0.209, 1.5, -np.pi / 2])),
    "stuck": (EXACT, np.array([0.0, 0.0, 0.3, 0.2])),
}


@pytest.mark.parametrize("name", list(STARTS))
def test_3d_deterministic(name):
    s, start = STARTS[name]
    path, expected = run("exact", s, start=start)
    agree(path, expected, s, {True: (1, 1, 1, 0)})
    happened = {"far": {"held", "None"}, "settled": {"beta", "enough", "converged"}, "stuck": {"infeasible"}}
    assert happened[name] <= events(expected)


def test_restarts_grow_from_one_outer_loop_to_the_next():
    """By hand: loops of 5τ steps; four times the samples and 2τ after step 2,000, 8,000, …"""
    places, k, samples, tau = [], 1, 1, 20
    while k <= 9_000:
        if k > 2_000 * samples:
            samples, tau = 4 * samples, 2 * tau
        places += [(i, i % tau == 0, samples) for i in range(5 * tau)]
        k += 5 * tau
    sizes = Sizes((7, 7, 7), (None, None, None), None, None, grows=True)
    found = jax.vmap(sizes.at)(jnp.arange(1, 9_001))
    expected = np.array(places[:9_000])
    np.testing.assert_array_equal(np.stack([found.i, found.restarts, found.draws[:, 1]], 1), expected)
