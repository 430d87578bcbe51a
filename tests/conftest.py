"""What all tests share: compiled programs on disk (a compile costs a second), and a few small problems."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr

# One cache for all workers of this run: the same program is compiled once, not once a worker.
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", "alone")
jax.config.update("jax_compilation_cache_dir", str(Path(tempfile.gettempdir()) / f"tightrope-tests-{_RUN}"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@pytest.fixture(autouse=True)
def _new_example_namespace(doctest_namespace):
    """Doctests import what they use."""
    doctest_namespace.clear()


def points(rows: int = 400, columns: int = 4, seed: int = 0) -> dict[str, np.ndarray]:
    """Two classes and a group that leans to one of them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    y = np.sign(x @ rng.normal(size=columns) + 0.5 * rng.normal(size=rows))
    s = (x[:, 0] + 0.5 * rng.normal(size=rows) > 0).astype(float)
    return {"x": x, "y": y, "s": s - s.mean()}


def loss(w, batch):
    return jnp.mean(jax.nn.softplus(-batch["y"] * (batch["x"] @ w)))


def parity(w, batch):
    return jnp.mean(batch["s"] * (batch["x"] @ w))


def unit_norm(w):
    return w @ w


@cache
def fair_problem() -> tr.Problem:
    """Stochastic objective and constraint on one Dataset, in a ball."""
    data = tr.Dataset(points(), batch_size=16)
    return tr.Problem(loss, tr.between(parity, -0.05, 0.05, data=data), domain=tr.domains.L2Ball(5.0), data=data)


@cache
def sphere_problem() -> tr.Problem:
    """Stochastic objective, a deterministic equality and a deterministic inequality."""
    data = tr.Dataset(points(), batch_size=16)
    bound = tr.at_most(lambda w: w[:2], 0.5, name="bound")
    return tr.Problem(loss, [tr.equals(unit_norm, 1.0), bound], data=data)


X0 = jnp.full(4, 0.3)

CASES = {
    "TruncatedMomentum": sphere_problem,
    "SwitchingSubgradient": fair_problem,
    "GradientDescentAscent": fair_problem,
}
"""A problem for each method."""


@pytest.fixture(params=sorted(CASES))
def case(request):
    """(problem, x0, method) for every method."""
    return CASES[request.param](), X0, tr.methods.by_name(request.param)()


def iterates(problem, x0, method, **options):
    """All recorded iterates of a run, and its result."""
    seen = []
    result = tr.solve(
        problem, x0, method, callback=lambda row: seen.append((row["step"], np.asarray(row["x"]))), **options
    )
    return dict(seen), result
