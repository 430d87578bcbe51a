"""AdaptiveLagrangian against a NumPy transcription of its equations, on the same samples and random signs."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sample_paths import Path, drive

import tightrope as tr
from tightrope.methods import AdaptiveLagrangian
from tightrope.methods.base import Draw
from tightrope.numerics.random_signs import random_signs
from tightrope.oracles.build import oracle_for
from tightrope.problems.parameters import Parameters

STEPS, ALPHA, SGD_RATE = 400, 0.04, 0.02


# ---- a problem with a ceiling and a band, both random, and an equation -------------------------------------------------------

N, DIM, LEAVES, BATCH, BOX, RADIUS = 60, 5, (3, 2), 5, (-0.25, 0.5), 0.5
RNG = np.random.default_rng(4)
A, B, C, D = RNG.normal(size=(N, DIM)), RNG.normal(size=N), RNG.normal(size=(N, DIM)), RNG.normal(size=(N, DIM))
A[:, 0] *= 3.0
D += 0.5
LOW, HIGH = np.array([-np.inf, -0.3, 0.05]), np.array([0.25, -0.1, 0.05])
X0 = np.array([0.5, -0.2, 0.3, 0.04, -0.07])


@functools.cache
def problem(kind: str) -> tr.Problem:
    data = tr.Dataset({"a": A, "b": B, "c": C, "d": D}, batch_size=BATCH)
    flat = jnp.concatenate
    constraints = [
        tr.at_most(lambda x, batch: jnp.mean((batch["c"] @ flat(x)) ** 2), 0.25, data=data, name="energy"),
        tr.between(lambda x, batch: jnp.mean(jnp.sin(batch["d"] @ flat(x))), -0.3, -0.1, data=data, name="band"),
        tr.equals(lambda x: x[0][0] * x[1][0] + x[0][1] ** 2, 0.05, name="equation"),
    ]
    objective = lambda x, batch: jnp.mean(0.5 * (batch["a"] @ flat(x) - batch["b"]) ** 2)
    domain = {"space": None, "box": tr.domains.Box(*BOX), "ball": tr.domains.L2Ball(RADIUS)}[kind]
    return tr.Problem(objective, constraints, domain=domain, data=data)


def f_gradient(x: np.ndarray, examples: np.ndarray) -> np.ndarray:
    return sum(A[i] * (A[i] @ x - B[i]) for i in examples) / len(examples)


def rows_and_jacobian(x: np.ndarray, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    count = len(examples)
    energy = sum((C[i] @ x) ** 2 for i in examples) / count
    energy_slope = sum(2 * C[i] * (C[i] @ x) for i in examples) / count
    band = sum(np.sin(D[i] @ x) for i in examples) / count
    band_slope = sum(D[i] * np.cos(D[i] @ x) for i in examples) / count
    h = np.array([energy, band, x[0] * x[3] + x[1] ** 2])
    return h, np.array([energy_slope, band_slope, [x[3], 2 * x[1], 0.0, x[0], 0.0]])


SAMPLED = np.array([True, True, False])


# ---- the rule, in NumPy ----------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """All that the rule carries from step to step; y and λ per row."""

    x: np.ndarray
    first: np.ndarray
    second: np.ndarray
    filtered: np.ndarray
    integral: np.ndarray
    y: np.ndarray
    error: np.ndarray
    variance: np.ndarray
    response: np.ndarray
    whole: np.ndarray
    coupling: np.ndarray
    probes: tuple[int, int]
    epsilon: float
    S: float
    peak: float


def start(x: np.ndarray, y: np.ndarray) -> Rule:
    zero = np.zeros(3)
    return Rule(x, 0 * x, 0 * x, zero, y, y, zero, zero, zero, zero, np.zeros((3, 3)), (0, 0), 0.0, 0.0, 0.0)


def project(kind: str, x: np.ndarray) -> np.ndarray:
    if kind == "box":
        return np.clip(x, *BOX)
    return x * min(1.0, RADIUS / np.sqrt(x @ x)) if kind == "ball" else x


def leaf_sizes(x0: np.ndarray) -> np.ndarray:
    """s: the root mean square of each leaf, in all its entries; of a leaf of zeros, that of all entries."""
    everything = np.sqrt(np.mean(x0**2))
    parts = np.split(x0, np.cumsum(LEAVES)[:-1])
    return np.concatenate([np.full(len(part), np.sqrt(np.mean(part**2)) or everything) for part in parts])


def metric_of(kind: str, nu: np.ndarray, s: np.ndarray, epsilon: float) -> np.ndarray:
    """P = diag(s/(√ν + ε)); on a ball a multiple of the identity."""
    if kind == "ball":
        s, nu = np.full(DIM, np.sqrt(np.mean(s**2))), np.full(DIM, np.mean(nu))
    return s / (np.sqrt(nu) + epsilon)


def with_a_share_of_the_leaf(nu: np.ndarray) -> np.ndarray:
    """ν, and 1e-4 of its mean over each leaf."""
    means = np.concatenate([np.full(len(part), np.mean(part)) for part in np.split(nu, np.cumsum(LEAVES)[:-1])])
    return nu + 1e-4 * means


def averaged(mean: Any, new: Any, count: int, least: float) -> Any:
    """A mean of all terms that turns into one with weight `least` for the newest."""
    weight = max(1 / count, least)
    return (1 - weight) * mean + weight * new


def step(now: Rule, kind: str, k: int, examples: np.ndarray, signs: np.ndarray, s: np.ndarray, events: set) -> Rule:
    """Step k of STEPS; `examples` of its sample, the first half of which comes first."""
    x, halves = now.x, np.split(examples, 2)
    h, J = rows_and_jacobian(x, examples)
    on_half = [rows_and_jacobian(x, half) for half in halves]

    response, whole, coupling, epsilon, S = now.response, now.whole, now.coupling, now.epsilon, now.S
    probes, on = list(now.probes), kind.removesuffix(" sgd")
    measured = {0: "G", 8: "C"}.get(k % 16) if k > 64 else "GC"[k % 2] if k > 1 else None
    if measured:
        v, nu = now.first / (1 - 0.9 ** (k - 1)), now.second / (1 - 0.999 ** (k - 1))
        epsilon = 1e-6 * np.sqrt(np.mean(nu))
        P = metric_of(on, with_a_share_of_the_leaf(nu), s, epsilon)
        S = v @ (P * v)
        probes["GC".index(measured)] += 1
    if measured == "G":
        along = [half_J @ (np.sqrt(P) * signs) for _, half_J in on_half]
        response = averaged(response, along[0] * along[1], probes[0], 0.1)
        whole = averaged(whole, (along[0] ** 2 + along[1] ** 2) / 2, probes[0], 0.1)
    if measured == "C":
        size, sign = np.sqrt(least_response(response, whole, now.variance)), np.sign(now.y)
        (_, first_J), (_, second_J) = on_half
        moves = lambda gradient: sign * (second_J @ (P * gradient))
        others, push = moves(first_J.T @ (sign / size)) / size, moves(first_J.T @ now.y)
        progress = moves(f_gradient(x, halves[0]) + first_J.T @ now.y)
        coupling = averaged(coupling, np.stack([others, push, progress]), probes[1], 0.1)

    g = f_gradient(x, examples) + J.T @ now.y
    first, second = 0.9 * now.first + 0.1 * g, 0.999 * now.second + 0.001 * g**2
    v, nu = first / (1 - 0.9**k), second / (1 - 0.999**k)
    P = metric_of(on, nu, s, epsilon)
    if kind.endswith("sgd"):
        move = -SGD_RATE * g
        rate = np.sqrt(np.sum(move**2 / P) / (v @ (P * v)))
        alpha = max(now.peak, rate)
    else:
        alpha = ALPHA
        rate = alpha * min(k / (0.02 * STEPS), 1.0, 1.25 * (1 - (k - 1) / STEPS))
        move = -rate * P * v
    moved = x + move
    new = project(on, moved)
    events |= {"projected"} if np.any(new != moved) else {"inside X"}

    variance = averaged(now.variance, (on_half[0][0] - on_half[1][0]) ** 2 / 4, k, 0.02) * SAMPLED
    G = least_response(response, whole, variance)
    events |= {"least response"} if np.any(response < 0.05 * whole) else set()
    events |= {"response of the other row"} if np.any(np.maximum(response, 0.05 * whole) < G) else set()
    events |= {"rows move each other"} if np.any(coupling[0] > 1) else set()

    tuned = np.stack([G, variance, *coupling], axis=1)
    ruled = [control(now, i, h[i], tuned[i], S, alpha, rate / alpha, k, events) for i in range(3)]
    filtered, integral, y, error = map(np.array, zip(*ruled, strict=True))
    tuned_by = variance, response, whole, coupling, tuple(probes), epsilon, S, alpha
    return Rule(new, first, second, filtered, integral, y, error, *tuned_by)


def least_response(response: np.ndarray, whole: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """G: at least 5% of what the batch shows, and of what it shows of other random rows in units of their variances."""
    random = variance > 0
    typical = np.mean(whole[random] / variance[random]) if np.any(random) else 0.0
    return np.maximum(response, 0.05 * np.maximum(whole, variance * typical))


def control(
    now: Rule,
    i: int,
    h: float,
    tuned: np.ndarray,
    S: float,
    alpha: float,
    share: float,
    k: int,
    events: set,
) -> tuple[float, float, float, float]:
    """The filtered value, λ, y and the error of row i."""
    G, variance, others, push, progress = tuned
    least = max(10.0, 0.4 * np.sqrt(STEPS))
    reach = alpha * np.sqrt(G * S)
    by_noise = (8 * np.sqrt(variance) / reach) ** (2 / 3) if reach else np.inf if variance else 0.0
    tau = min(max(by_noise, least), max(STEPS / 20, least))
    events |= {"τ least" if by_noise < least else "τ most" if by_noise > tau else "τ by noise"}

    filtered = h if variance == 0 else averaged(now.filtered[i], h, k, min(5 / tau, 1.0))
    old, equality = now.integral[i], LOW[i] == HIGH[i]
    if filtered > HIGH[i]:
        e = filtered - HIGH[i]
    elif filtered < LOW[i]:
        e = filtered - LOW[i]
    else:
        e = filtered - HIGH[i] if old > 0 else filtered - LOW[i] if old < 0 else 0.0
        events |= {"inside, λ > 0" if old > 0 else "inside, λ < 0" if old < 0 else "inside, λ = 0"}

    most = 0.2 * tau * alpha * np.sqrt(G * S)
    limited = min(max(e, -most), most)
    before = now.error[i] - min(max(now.error[i], -most), most)
    cut = e - limited
    events |= {"cut"} if cut else {"whole error"}
    kappa, q = (0.3, 2.0) if variance else (1.0, 1.0)
    gain = 1 / max(others, 1.0) / (tau * alpha * G) if G else 0.0
    proportional, growth = kappa * gain, q * gain / tau * share * limited
    if growth * old > 0 and push and not equality:
        allowed = min(1.0, 2 * max(0.0, 1 - progress / abs(push)))
        events |= {"unopposed"} if allowed == 0 else {"opposed"} if allowed == 1 else {"opposed in part"}
        growth *= allowed
    integral = old + growth
    if k > 1:
        integral += proportional * (cut - before)
    side = np.sign(old) if old else np.sign(e)
    if not equality and integral * side <= 0:
        events |= {"λ would change sign"} if integral else set()
        integral = 0.0
    y = integral + proportional * limited
    if not equality and y * side <= 0:
        events |= {"y would change sign"} if y else set()
        y = 0.0
    return filtered, integral, y, e


# ---- tests ---------------------------------------------------------------------------------------------------------

SGD = optax.sgd(SGD_RATE)
Y0 = np.array([0.0, 0.7, -0.4])
BELOW = np.array([0.0, -0.7, 0.2])
RUNS = {
    "space": (X0, np.array([0.0, -1.4, 0.2])),
    "box": (np.append(X0[:3], [0.0, 0.0]), Y0),
    "ball": (X0, 0 * Y0),
    "space sgd": (X0, BELOW),
}
EVERYWHERE = {"cut", "whole error", "rows move each other", "inside, λ > 0", "inside, λ = 0", "λ would change sign",
              "y would change sign", "τ by noise", "inside X", "response of the other row", "opposed", "opposed in part",
              "unopposed"}  # fmt: skip
COVERED = {
    "space": EVERYWHERE | {"inside, λ < 0", "τ least"},
    "box": EVERYWHERE | {"projected", "least response"},
    "ball": EVERYWHERE | {"projected", "least response"},
    "space sgd": EVERYWHERE | {"least response"},
}
SEEDS = {"space": 2, "box": 1, "ball": 1, "space sgd": 0}


@functools.cache
def run(kind: str, seed: int) -> tuple[Path, list[Rule], set]:
    """The path of the method and of the transcription, up to the restoration."""
    x, y = RUNS[kind]
    sgd = kind.endswith("sgd")
    method = AdaptiveLagrangian(optimizer=SGD, step_size=None) if sgd else AdaptiveLagrangian(step_size=ALPHA)
    at = problem(kind.removesuffix(" sgd"))
    path = drive(at, np.zeros(DIM), method, steps=STEPS, seed=seed, start=x, multipliers=y, leaves=LEAVES)
    signs = np.asarray(jax.vmap(lambda key: random_signs(key, DIM, x.dtype))(path.keys))
    found, events = [start(x, y)], set()
    for k in range(1, STEPS + 1):
        found.append(step(found[-1], kind, k, path.samples["step"][k][0], signs[k], leaf_sizes(x), events))
    return path, found, events


@pytest.mark.parametrize("kind", list(RUNS))
def test_every_step_is_that_of_the_equations_on_the_same_samples(kind):
    """Iterates up to the last step, which also restores the rows; multipliers and all that they are tuned by to the end."""
    path, found, events = run(kind, SEEDS[kind])
    same = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11)
    same(path.x[:-1], np.stack([now.x for now in found[:-1]]))
    for name in ("multipliers", "integral", "filtered", "error"):
        expected = np.stack([now.y if name == "multipliers" else getattr(now, name) for now in found])
        same(np.stack([getattr(state.controller, name) for state in path.states]), expected, err_msg=name)
    for name, expected in (("variance", [now.variance for now in found]), ("second", [now.second for now in found])):
        same(np.stack([getattr(state, name) for state in path.states]), np.stack(expected), err_msg=name)
    same(np.stack([state.coupling for state in path.states]), np.stack([now.coupling for now in found]))
    same(np.stack([state.response for state in path.states]), np.stack([[now.response, now.whole] for now in found]))
    assert COVERED[kind] <= events, COVERED[kind] - events


def test_the_last_step_restores_the_rows_on_all_data_and_the_others_count_their_probes():
    path, _, _ = run("space", SEEDS["space"])
    h = [rows_and_jacobian(path.x[k], np.arange(N))[0] for k in (-2, -1)]
    violations = [np.max(np.maximum(LOW - values, values - HIGH)) for values in h]
    assert violations[0] > 1e-3
    assert violations[1] < 1e-6
    for k, info in enumerate(path.infos[:-1], start=1):
        late = {0: 2, 8: 3}.get(k % 16, 1)  # one linearization for G, two for C, U and W
        evaluations = 1 if k == 1 else late if k > 64 else 2 + k % 2
        gradients = 1 + (evaluations == 3)  # W needs one more
        examples = BATCH + 1  # an odd batch is drawn one example larger
        assert tuple(info) == (gradients, evaluations, evaluations, examples), k


def halvings_of(gradient: Any, x: np.ndarray, steps: int, samples: tuple[np.ndarray, np.ndarray]) -> int:
    """How often α is halved, at most six times; `gradient(x, examples)`, and the examples of the two samples."""
    s, (one, other) = leaf_sizes(x), samples
    way = -s * np.sign(gradient(x, one))
    slope = lambda distance: gradient(x + distance * way, other) @ way
    size = lambda distance: np.sum(s * np.abs(gradient(x + distance * way, other)))
    alpha, settled, count = min(0.1, 7 / np.sqrt(steps)), max(10.0, 0.4 * np.sqrt(steps)), 0
    while count < 6 and (slope(alpha) > 0.25 * slope(0.0) or size(settled * alpha) < 0.1 * size(0.0)):
        alpha, count = alpha / 2, count + 1
    return count


KEY = jax.random.key(0)


def check_halvings(objective: Any, gradient: Any, x: np.ndarray, steps: int) -> int:
    """How often α is halved in the method, which is how often it is in the transcription."""
    at = tr.Problem(objective, tr.at_most(lambda x: x[0][0], 1.0), data=tr.Dataset({"a": A}, batch_size=BATCH))
    oracle = oracle_for(at, Parameters((jnp.zeros(3), jnp.zeros(2))), "ranges")
    one, other = (np.asarray(oracle.draw(part, 8 * BATCH)[0]) for part in jax.random.split(KEY))
    draw = Draw({"step": (jnp.arange(6),)}, jnp.float32(0), KEY, jnp.int32(0), jnp.int32(steps))
    found = AdaptiveLagrangian().estimate_constants(oracle, jnp.asarray(x), draw).step_size
    expected = halvings_of(gradient, x, steps, (one, other))
    np.testing.assert_allclose(found, min(0.1, 7 / np.sqrt(steps)) / 2**expected, rtol=1e-9)
    return expected


def test_the_step_size_is_halved_where_the_objective_is_steep():
    """½(a·x − a·x*)² from x = (1 + t)x*: the nearer x is to x*, the less of a step leaves a quarter of the slope."""
    best = np.array([0.5, -0.2, 0.3, 0.04, -0.07])
    objective = lambda x, batch: jnp.mean(0.5 * (batch["a"] @ (jnp.concatenate(x) - best)) ** 2)
    gradient = lambda x, examples: sum(A[i] * (A[i] @ (x - best)) for i in examples) / len(examples)
    starts = [(1 + t) * best for t in (1.0, 0.05, 0.02, 1e-3)]
    counts = {check_halvings(objective, gradient, x, steps) for x in starts for steps in (100, 40_000)}
    assert {0, 6} < counts


def test_the_step_size_is_halved_where_the_objective_saturates():
    """The mean of 1/(1 + exp(−s t·x)) with t = |a|: the larger s, the shorter the way on which the gradient vanishes."""

    def gradient(x: np.ndarray, examples: np.ndarray, s: float) -> np.ndarray:
        values = [1 / (1 + np.exp(-s * (np.abs(A[i]) @ x))) for i in examples]
        return sum(p * (1 - p) * s * np.abs(A[i]) for p, i in zip(values, examples, strict=True)) / len(examples)

    counts = []
    for s in (0.1, 2.0, 10.0, 40.0):
        objective = lambda x, batch, s=s: jnp.mean(jax.nn.sigmoid(s * (jnp.abs(batch["a"]) @ jnp.concatenate(x))))
        counts += [check_halvings(objective, functools.partial(gradient, s=s), -X0, steps) for steps in (100, 40_000)]
    assert counts == sorted(counts)
    assert len(set(counts)) > 3
