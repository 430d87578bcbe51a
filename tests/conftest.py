"""Shared by all tests: flags of the compiler, which tests run by default and on which worker, and a few small problems."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import os
from contextlib import nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

# LAPACK's threads and those of the other worker get in each other's way.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TIGHTROPE_CACHE", "")  # the command line keeps nothing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import tightrope as tr
from tightrope.cli.reproduce import QUICKLY_COMPILED
from tightrope.problems import compiling
from tightrope.problems.known_programs import KnownPrograms
from tightrope.runs.fitting import fit
from tightrope.runs.run import first_point, start_run
from tightrope.testing.examples import loss, parity, points

# Nearly all of the suite's time is compilation: programs that run for a moment need no optimization.
os.environ.setdefault("XLA_FLAGS", QUICKLY_COMPILED)

# Tracing makes many objects that stay: looking for garbage after every 700 of them takes a tenth of the suite's time.
gc.set_threshold(50_000, 10, 10)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark as full the cases of a parametrized test that its mark by_default does not name; skip what lacks a package."""
    chosen = {}
    for item in items:
        if item.path.parent.name == "torch" and importlib.util.find_spec("torch") is None:
            item.add_marker(pytest.mark.skip(reason="the examples of tightrope.torch need PyTorch"))
        if mark := item.get_closest_marker("by_default"):
            patterns = [case for case in mark.args if fnmatchcase(item.callspec.id, case)]
            chosen.setdefault((item.path, item.originalname, mark.args), set()).update(patterns)
            if not patterns:
                item.add_marker(pytest.mark.full)
    if not config.getoption("lf", False) and not any(
        "::" in argument for argument in config.args
    ):  # all were collected
        for (path, test, cases), matched in chosen.items():
            if unknown := set(cases) - matched:
                raise pytest.UsageError(f"{path.name}::{test}: by_default names no case by {sorted(unknown)}")


SPREAD = ("test_methods.py", "test_known_solutions.py")
"""Files whose tests are spread over the workers: by method, or by problem."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class BySharedPrograms(LoadScopeScheduling):
        """Send tests that share compiled programs to one worker: those of a file, or of a method or problem."""

        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            case = test.partition("[")[2]
            return case.partition("-")[0] if case and file.endswith(SPREAD) else file

    return BySharedPrograms(config, log)


@pytest.fixture(autouse=True)
def _double_precision_for_transcriptions(request):
    with jax.enable_x64(True) if request.path.parent.name == "paper" else nullcontext():
        yield


@pytest.fixture(autouse=True)
def _no_cache_from_before():
    """Tests and examples that call `tr.cache` leave it on; the next test begins without."""
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()


TESTED = itertools.count()


@pytest.fixture(autouse=True)
def _room_for_programs():
    """Each compiled program maps some memory, and Linux kills a process with more than 65,530 maps."""
    yield
    maps = Path("/proc/self/maps")
    if next(TESTED) % 20 == 0 and maps.exists() and maps.read_bytes().count(b"\n") > 45_000:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def _no_known_programs_of_a_patched_library(request):
    """A program is known by what it is made of and the library's code, which monkeypatch changes."""
    known = compiling._known
    if "monkeypatch" in request.fixturenames:
        compiling._known = KnownPrograms()
    yield
    compiling._known = known


@pytest.fixture(autouse=True)
def _new_example_namespace(doctest_namespace):
    """Doctests import what they use."""
    doctest_namespace.clear()


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


def started(problem, x0, method, *, steps, every=None, lanes=False, warm_start=None):
    """A run before its first step: one run, or one lane."""
    fitted = fit("solve", problem, x0, method, steps, warm_start)
    if lanes:
        fitted = replace(fitted, method=jax.tree.map(lambda a: jnp.asarray(a)[None], fitted.method))
    return start_run(fitted, first_point(fitted)[0], [0], every or steps, lanes=lanes)
