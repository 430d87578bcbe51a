"""Problems for the tests of the default method, for the library and by hand: least squares with a wave, between surfaces.

With the comparisons of a run of the library with one by hand.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from penalty_by_hand import Problem, violation
from sample_paths import Path

import tightrope as tr

N = 160
RNG = np.random.default_rng(21)
DATA = {name: RNG.normal(size=shape) for name, shape in {"a": (N, 4), "b": N, "w": (N, 4)}.items()}
OWN = {name: RNG.normal(size=shape) for name, shape in {"c": (N, 4), "e": (N, 4)}.items()}
MIDDLE = {"a": [0.5, 0.0, -0.3, 0.4], "b": 0.5, "w": [1.0, -0.5, 0.2, 0.3], "c": 0.0, "e": [0.2, -0.6, 0.3, 0.1]}
DATA, OWN = ({name: array + np.array(MIDDLE[name]) for name, array in part.items()} for part in (DATA, OWN))


def fresh(names: str, key, n: int):
    keys = jax.random.split(key, len(names))
    shapes = [(n,) if name == "b" else (n, 4) for name in names]
    return {
        name: jnp.array(MIDDLE[name]) + jax.random.normal(k, s) for name, k, s in zip(names, keys, shapes, strict=True)
    }


def f(x, batch):
    return jnp.mean(0.5 * (batch["a"] @ x - batch["b"]) ** 2 + jnp.sin(batch["w"] @ x))


def f_value(x: np.ndarray, batch: Any) -> float:
    a, b, w = (batch[0][name] for name in "abw")
    return np.mean((a @ x - b) ** 2 / 2 + np.sin(w @ x))


def f_gradient(x: np.ndarray, batch: Any) -> np.ndarray:
    a, b, w = (batch[0][name] for name in "abw")
    return ((a @ x - b) @ a + np.cos(w @ x) @ w) / len(b)


def valley(x):
    """Least at (1, 1, 1, 0); it has no gradient where x3 < −1."""
    return 20 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2 - jnp.cos(x[2] - x[0]) + 2 * (x[3] + 1) ** 1.5 - 3 * x[3]


def valley_gradient(x: np.ndarray, _: Any) -> np.ndarray:
    bend, sine = x[1] - x[0] ** 2, np.sin(x[2] - x[0])
    with np.errstate(invalid="ignore"):
        return np.array([-80 * x[0] * bend - 2 * (1 - x[0]) - sine, 40 * bend, sine, 3 * np.sqrt(x[3] + 1) - 3])


def surfaces(x):
    return jnp.stack([x @ x, x[0] * x[1] - x[2] + 0.1 * x[3] ** 3])


def surface_rows(x: np.ndarray, _: Any) -> np.ndarray:
    return np.array([x @ x, x[0] * x[1] - x[2] + 0.1 * x[3] ** 3, x[0] + 2 * x[1] ** 2, np.sin(x[0] + x[2])])


def surface_jacobian(x: np.ndarray, _: Any) -> np.ndarray:
    slope = np.cos(x[0] + x[2])
    return np.array([
        2 * x, [x[1], x[0], -1, 0.3 * x[3] ** 2], [1, 4 * x[1], 0, 0], [slope, 0, slope, 0],
    ])  # fmt: skip


def noisy_rows(x: np.ndarray, batch: Any) -> np.ndarray:
    c, e = (batch[1][name] for name in "ce")
    return np.array([np.mean((c @ x) ** 2), np.mean(np.sin(e @ x)), x[0] * x[1] - x[2]])


def noisy_jacobian(x: np.ndarray, batch: Any) -> np.ndarray:
    c, e = (batch[1][name] for name in "ce")
    return np.array([2 * (c @ x) @ c / len(c), np.cos(e @ x) @ e / len(e), [x[1], x[0], -1, 0]])


def first_rows(p: Problem, rows: list[int]) -> Problem:
    """The problem with only these rows."""
    return p._replace(
        rows=lambda x, batch: p.rows(x, batch)[rows],
        jacobian=lambda x, batch: p.jacobian(x, batch)[rows],
        low=p.low[rows],
        high=p.high[rows],
    )


INF = np.inf
SURFACES = Problem(
    f_gradient, surface_rows, surface_jacobian, np.array([1.5, 0.2, -INF, -0.1]), np.array([1.5, 0.2, 0.5, 0.3])
)
NOISY = Problem(
    f_gradient, noisy_rows, noisy_jacobian, np.array([0.8, -0.1, -0.1]), np.array([0.8, 0.05, INF]), noisy_rows=True
)
BOX, SLOPE = (-0.6, 0.8), np.array([0.3, -0.1, 0.02, 0.0])
BY_HAND = {
    "equalities": first_rows(SURFACES, [0, 1])._replace(gradient=valley_gradient),
    "noisy objective": first_rows(SURFACES, [0, 2, 3]),
    "endless data": NOISY,
    "finite data": NOISY._replace(period=7, objective=f_value),
    "box": first_rows(SURFACES, [1, 3])._replace(gradient=valley_gradient, box=BOX),
    "box alone": first_rows(SURFACES, [])._replace(box=BOX, period=5, objective=f_value),
    "slope": first_rows(SURFACES, [])._replace(gradient=lambda x, _: SLOPE + 0 * x, box=BOX),
}


@functools.cache
def problem(name: str) -> tr.Problem:
    sphere = tr.equals(surfaces, np.array([1.5, 0.2]), name="surfaces")
    noise = tr.Sampler(functools.partial(fresh, "abw"), batch_size=6)
    band = tr.between(lambda x: jnp.sin(x[0] + x[2]), -0.1, 0.3, name="band")
    if name == "equalities":
        return tr.Problem(valley, sphere)
    if name == "noisy objective":
        below = tr.at_most(lambda x: x[0] + 2 * x[1] ** 2, 0.5, name="below")
        return tr.Problem(f, [tr.equals(lambda x: x @ x, 1.5, name="sphere"), below, band], data=noise)
    if name == "box":
        wave = tr.equals(lambda x: surfaces(x)[1], 0.2, name="wave")
        return tr.Problem(valley, [wave, band], domain=tr.domains.Box(*BOX))
    if name == "slope":
        return tr.Problem(lambda x: jnp.array(SLOPE) @ x, domain=tr.domains.Box(*BOX))
    if name == "box alone":
        return tr.Problem(f, domain=tr.domains.Box(*BOX), data=tr.Dataset(DATA, batch_size=8))
    if name == "endless data":
        data, own = (
            tr.Sampler(functools.partial(fresh, names), batch_size=size) for names, size in (("abw", 5), ("ce", 3))
        )
    else:
        data, own = tr.Dataset(DATA, batch_size=8), tr.Dataset(OWN, batch_size=6)
    return tr.Problem(
        f,
        [
            tr.equals(lambda x, batch: jnp.mean((batch["c"] @ x) ** 2), 0.8, data=own, name="energy"),
            tr.between(lambda x, batch: jnp.mean(jnp.sin(batch["e"] @ x)), -0.1, 0.05, data=own, name="wave"),
            tr.at_least(lambda x: x[0] * x[1] - x[2], -0.1, name="floor"),
        ],
        data=data,
    )


def batches(name: str, sample: tuple) -> tuple[Any, list]:
    """What a sample holds, whole and in halves."""
    if not sample:
        return None, [None, None]
    if BY_HAND[name].period:
        sample = tuple(
            {key: array[indices] for key, array in part.items()}
            for part, indices in zip((DATA, OWN), sample, strict=False)
        )
    half = lambda part, i: {key: a[len(a) // 2 * i : len(a) // 2 * (i + 1)] for key, a in part.items()}
    return sample, [tuple(half(part, i) for part in sample) for i in (0, 1)]


# ---- comparisons -------------------------------------------------------------------------------------------------------


def close(found: Any, expected: Any, rtol: float) -> None:
    """Within rtol of the largest entry."""
    expected = np.asarray(expected, float)
    np.testing.assert_allclose(found, expected, rtol=0, atol=rtol * np.max(np.abs(expected), initial=1e-300))


def same_tuning(tuning: Any, expected: Any, rtol: float) -> None:
    """All that both methods have learned; δ and σ, quotients of small differences, are known less well."""
    close(tuning.penalty, expected.rho, rtol)
    close(tuning.multipliers, expected.y, rtol)
    np.testing.assert_allclose(tuning.damping, expected.sigma, rtol=1e3 * rtol)
    np.testing.assert_allclose(tuning.memory.curvature, expected.delta, rtol=1e3 * rtol)
    np.testing.assert_allclose(tuning.stalled, expected.stalled, atol=1e-12)
    np.testing.assert_allclose(tuning.last_pass.damping_factor, expected.kappa, rtol=1e-12)
    assert int(tuning.rejected) == expected.rejected


def check_path(path: Path, expected: list[Any], same: Callable) -> set[str]:
    """Iterates over all steps; everything else until steps are so short that rounding decides. Returns the events."""
    np.testing.assert_allclose(path.x, [now.x for now in expected], rtol=1e-9, atol=1e-10)
    steps = len(expected) - 1
    lengths = np.linalg.norm(np.diff(path.x, axis=0), axis=1)
    short = [k for k in range(steps) if 0 < lengths[k] < 1e-6]
    for k in range(min([steps, *short]) + 1):
        same(path.states[k], expected[k], 1e-9)
    for state, now in zip(path.states, expected, strict=True):
        np.testing.assert_array_equal(path.method.multipliers(state), state.tuning.multipliers)
        assert path.method.termination(state) == ("infeasible" if now.stalled > 0.5 else None)
    return {event for now in expected for event in now.events}


def regular_costs(p: Problem, path: Path, expected: list[Any]) -> set[tuple[int, ...]]:
    """What steps cost, less four or ten values of the rows where these were evaluated after parts of the restoration step.

    Whether they were is rounding's decision once there is next to no violation.
    """
    parts = 4 if p.noisy_rows else 10
    evaluated = [parts * any(event.startswith("evaluated") for event in now.events) for now in expected[1:]]
    least = min(info.constraint_values - info.constraint_jacobians for info in path.infos)
    extra = [info.constraint_values - info.constraint_jacobians - least for info in path.infos]
    hardly = [k for k, now in enumerate(expected[:-1]) if np.max(violation(p, now.h), initial=0.0) < 1e-8]
    certain = min([len(extra), *hardly])
    assert extra[:certain] == evaluated[:certain]
    assert set(extra) <= {0, parts}
    return {tuple(np.subtract(info, (0, more, 0, 0))) for info, more in zip(path.infos, extra, strict=True)}
