"""Quadratic problems over two simplices, on the host in double precision.

`quadratic.bounded_quadratic` has bounds alone, a fixed number of rounds and the precision of its arrays, because it runs inside
compiled programs. This one has two equations, stops at a residual of 1e-11 and needs float64 whatever the precision of the
problem. So the two share the name of their method, Mehrotra's, and no arithmetic.
"""

from __future__ import annotations

from functools import partial

import numpy as np


def simplex_quadratic(matrix: np.ndarray, linear: np.ndarray, second: np.ndarray, rounds: int = 60) -> np.ndarray:
    """Return argmin ½ wᵀKw − bᵀw over w ≥ 0 whose entries in `second` sum to 1, and whose other entries sum to 1.

    Mehrotra's predictor-corrector method on Kw − b + Gᵀy = z, Gw = 1, w z = 0; the iterate with the least residual.
    """
    groups = np.stack([~second, second]).astype(float)
    size = max(np.abs(matrix).max(), np.ptp(linear[second]), np.ptp(linear[~second])) or 1.0
    K, b = matrix / size, (linear - groups.T @ [linear[~second].max(), linear[second].max()]) / size
    w, z, y = groups.T @ (1.0 / groups.sum(axis=1)), np.ones(linear.size), np.zeros(2)
    best, least = w, np.inf
    for _ in range(rounds):
        dual, primal, mean = K @ w - b + groups.T @ y - z, groups @ w - 1.0, w @ z / w.size
        residual = max(mean, np.abs(dual).max(), np.abs(primal).max())
        if residual < least:
            best, least = w, residual
        if not residual > 1e-11:
            break
        inverse = np.linalg.inv(K + np.diag(z / w + 1e-13))
        newton = partial(_newton, w, z, dual, primal, groups, inverse, np.linalg.inv(groups @ inverse @ groups.T))
        dw, dz, _ = newton(np.zeros_like(w))
        reached = (w + _longest(w, dw) * dw) @ (z + _longest(z, dz) * dz) / w.size
        dw, dz, dy = newton((reached / mean) ** 3 * mean - dw * dz)
        step = min(_longest(w, dw), _longest(z, dz))
        w, z, y = w + step * dw, z + step * dz, y + step * dy
    return best / (groups.T @ (groups @ best))


def _newton(
    w: np.ndarray,
    z: np.ndarray,
    dual: np.ndarray,
    primal: np.ndarray,
    groups: np.ndarray,
    inverse: np.ndarray,
    outer: np.ndarray,
    target: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The Newton step of w, z and y toward w z = target."""
    push = target / w - z - dual
    dy = outer @ (groups @ inverse @ push + primal)
    dw = inverse @ (push - groups.T @ dy)
    return dw, target / w - z - z / w * dw, dy


def _longest(value: np.ndarray, change: np.ndarray) -> float:
    """The longest step, at most 1, that keeps a vector positive."""
    return min(1.0, 0.995 * float(np.min(-value[change < 0] / change[change < 0], initial=np.inf)))
