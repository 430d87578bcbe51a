"""Time to an accurate answer on finite data: the default against SciPy's SLSQP on the full data.

The problem is `zoo.learning.finite_logistic` (d = 100, batches of 64, |covariance with an attribute| ≤ 0.05, active). An answer
is good if f − f* ≤ 1e-4 f* and the violation is at most 1e-4, both on all N examples in float64, with f* from Newton's method.
The default must get there within 10 epochs, that is, 10 N samples, including those of full passes.

Rounds alternate between the two. The default runs for 10 epochs, to judge its answer and to find its first good record, and
then again for the number of steps to that record: `loop` is `result.seconds` of that run, and `call` the time of the whole call
of `tr.solve`, with checks, evaluation and certificate. SLSQP's iterates are timed in a callback, up to the first good one. It
gets the constraint as a vector, value and gradient from one function, and the fastest version of that function: NumPy in
float64 or float32, or jitted JAX in float32. `plain` is the usual use of SLSQP: in float64, until it stops. Compilation is not
timed. Everything runs on one core and then on all cores, in separate processes; on one core times are CPU times, which other
programs on the machine hardly change.

Run: python benchmarks/answer.py [--examples 20000 200000] [--cores 1 2] [--rounds 7] [--quick] [--out answer.json]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from scipy.optimize import minimize

import tightrope as tr

METHOD = tr.methods.AdaptivePenalty()
EPOCHS, ACCURACY, VIOLATION, BOUND = 10, 1e-4, 1e-4, 0.05
RECORDS = 39
"""Records per epoch."""

PLAIN = "NumPy, float64"
ValueAndGradient = Callable[[np.ndarray], tuple[float, np.ndarray]]


class Exact:
    """The problem on all examples in float64, and its optimum."""

    def __init__(self, problem: tr.Problem):
        assert isinstance(problem.data, tr.Dataset)
        data = {name: np.asarray(array, np.float64) for name, array in problem.data.arrays.items()}
        self.signed = data["y"][:, None] * data["x"]
        self.covariance = data["group"] @ data["x"] / len(data["y"])
        self.optimum = self._optimum()

    def objective(self, w: np.ndarray) -> float:
        return float(np.mean(np.logaddexp(0.0, -(self.signed @ w))))

    def errors(self, w: Any) -> tuple[float, float]:
        """(f − f*)/f*, and the violation."""
        w = np.asarray(w, np.float64)
        return self.objective(w) / self.optimum - 1.0, max(abs(float(self.covariance @ w)) - BOUND, 0.0)

    def good(self, w: Any) -> bool:
        accuracy, violation = self.errors(w)
        return accuracy <= ACCURACY and violation <= VIOLATION

    def _optimum(self) -> float:
        """The optimum, by Newton's method with the upper bound active; its multiplier must be positive."""
        count, size = self.signed.shape
        w, step, multiplier = np.zeros(size), np.zeros(size), 0.0
        for _ in range(30):
            p = 1.0 / (1.0 + np.exp(self.signed @ w))
            hessian = (self.signed * (p * (1.0 - p))[:, None]).T @ self.signed / count
            system = np.block([[hessian, self.covariance[:, None]], [self.covariance, np.zeros(1)]])
            *step, multiplier = np.linalg.solve(system, np.append(p @ self.signed / count, BOUND - self.covariance @ w))
            w = w + np.array(step)
        assert np.linalg.norm(step) <= 1e-9 * np.linalg.norm(w)
        assert multiplier > 0
        return self.objective(w)


# ---- SLSQP -------------------------------------------------------------------------------------------------------------


def versions(exact: Exact) -> dict[str, ValueAndGradient]:
    """Implementations of the full objective and its gradient."""

    def with_numpy(signed: np.ndarray) -> ValueAndGradient:
        def value_and_gradient(w: np.ndarray) -> tuple[float, np.ndarray]:
            z = signed @ w.astype(signed.dtype)
            e = np.exp(-np.abs(z))
            p = np.where(z > 0, e, 1.0) / (1.0 + e)
            value = np.mean(np.log1p(e) - np.minimum(z, 0.0))
            return float(value), -(p @ signed).astype(np.float64) / len(z)

        return value_and_gradient

    def with_jax(signed: jax.Array) -> ValueAndGradient:
        run = jax.jit(jax.value_and_grad(lambda w, signed: jnp.mean(jax.nn.softplus(-(signed @ w)))))

        def value_and_gradient(w: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = run(w.astype(np.float32), signed)
            return float(value), np.asarray(gradient, np.float64)

        return value_and_gradient

    single = exact.signed.astype(np.float32)
    return {
        PLAIN: with_numpy(exact.signed),
        "NumPy, float32": with_numpy(single),
        "JAX, float32": with_jax(jnp.asarray(single)),
    }


def timed(candidates: dict[str, ValueAndGradient], exact: Exact) -> dict[str, float]:
    """Median milliseconds of each, over alternating runs."""
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(15):
        for name, run in candidates.items():
            began = time.perf_counter()
            run(np.full(exact.signed.shape[1], 0.1))
            found[name].append(1e3 * (time.perf_counter() - began))
    return {name: float(np.median(times)) for name, times in found.items()}


def slsqp(exact: Exact, value_and_gradient: ValueAndGradient) -> dict[str, float]:
    """Seconds to the first good iterate, and to the end by SciPy's stopping rule."""
    a, iterates = exact.covariance, [(0.0, np.zeros(exact.signed.shape[1]))]
    bounds = [
        {"type": "ineq", "fun": lambda w: BOUND - a @ w, "jac": lambda w: -a},
        {"type": "ineq", "fun": lambda w: BOUND + a @ w, "jac": lambda w: a},
    ]
    began = time.perf_counter()
    minimize(
        value_and_gradient,
        iterates[0][1],
        jac=True,
        method="SLSQP",
        constraints=bounds,
        callback=lambda w: iterates.append((time.perf_counter() - began, w.copy())),
    )
    end = time.perf_counter() - began
    first = next((i for i, (_, w) in enumerate(iterates) if exact.good(w)), None)
    if first is None:
        raise RuntimeError(f"SLSQP stopped at {exact.errors(iterates[-1][1])}, which is not good")
    return {"SLSQP": iterates[first][0], "SLSQP, to its end": end, "iterations": first}


# ---- the default -------------------------------------------------------------------------------------------------------


class Default:
    """Runs of the default; the longest draws EPOCHS samples per example."""

    def __init__(self, problem: tr.Problem, w0: Any, exact: Exact):
        assert isinstance(problem.data, tr.Dataset)
        self.problem, self.w0, self.exact, self.examples = problem, w0, exact, problem.data.size
        epoch = self.examples // problem.data.batch_size
        self.every = max(1, epoch // RECORDS)
        history = self._solve(EPOCHS * epoch, 0, record=self.every).history
        self.steps = int(history["step"][history["samples"] <= EPOCHS * self.examples][-1])

    def _solve(self, steps: int, seed: int, record: Any = None) -> tr.Result:
        return tr.solve(self.problem, self.w0, METHOD, steps=steps, seed=seed, record=record, progress=False)

    def __call__(self, seed: int) -> dict[str, float]:
        """Measure the answer after all epochs, and the epochs and seconds to the first good iterate."""
        record = tr.Record(self.every, metrics={"good": lambda w, batch: self.exact.good(w)})
        whole = self._solve(self.steps, seed, record)
        accuracy, violation = self.exact.errors(whole.x)
        good = whole.history["good"] > 0
        steps = int(whole.history["step"][good][0]) if good.any() else self.steps
        began = time.perf_counter()
        result = self._solve(steps, seed)
        call = time.perf_counter() - began
        return {
            "accuracy": accuracy,
            "violation": violation,
            "epochs": whole.samples / self.examples,
            "epochs to good": result.samples / self.examples if good.any() else np.inf,
            "answer good": self.exact.good(result.x),
            "loop": result.seconds,
            "call": call,
            "loop, all epochs": whole.seconds,
        }


# ---- the run -----------------------------------------------------------------------------------------------------------


def compare(examples: int, rounds: int, cores: int) -> dict[str, Any]:
    """Alternating rounds and their medians."""
    problem, w0, _ = tr.zoo.learning.finite_logistic(examples=examples)
    exact = Exact(problem)
    candidates = versions(exact)
    milliseconds = timed(candidates, exact)
    version = min(milliseconds, key=lambda name: milliseconds[name])
    run = candidates[version]
    default = Default(problem, w0, exact)
    default(0)  # compiles the remaining programs
    found = []
    for seed in range(rounds):
        ours, theirs = default(seed), slsqp(exact, run)
        plain = slsqp(exact, candidates[PLAIN])["SLSQP, to its end"]
        found.append(ours | theirs | {"SLSQP, plain": plain})
    columns = {name: np.array([one[name] for one in found]) for name in found[0]}
    within = (columns["accuracy"] <= ACCURACY) & (columns["violation"] <= VIOLATION)
    times = ("loop", "call", "loop, all epochs", "SLSQP", "SLSQP, to its end", "SLSQP, plain")
    return {
        "examples": examples,
        "cores": cores,
        "clock": "CPU" if cores == 1 else "wall",
        "optimum": exact.optimum,
        "share within the epochs": float(np.mean(within)),
        "largest accuracy": float(np.max(columns["accuracy"])),
        "largest violation": float(np.max(columns["violation"])),
        "median epochs to good": float(np.median(columns["epochs to good"])),
        "median milliseconds": {name: 1e3 * float(np.median(columns[name])) for name in times},
        "median ratios": {
            f"{theirs} / {ours}": float(np.median(columns[theirs] / columns[ours]))
            for theirs in ("SLSQP", "SLSQP, plain")
            for ours in ("loop", "call")
        },
        "SLSQP computes with": version,
        "milliseconds of value and gradient": milliseconds,
        "rounds": found,
    }


def restrict_to(cores: int) -> None:
    """Use this many cores; on one of them, the clock of this process counts CPU time."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    if cores == 1:
        time.perf_counter = time.process_time


def in_new_process(examples: int, rounds: int, cores: int) -> dict[str, Any]:
    """`compare` in a new process with this many cores and threads."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": str(cores), "OPENBLAS_NUM_THREADS": str(cores)}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), restrict_to, (cores,)) as pool:
        return pool.submit(compare, examples, rounds, cores).result()


def show(row: dict[str, Any]) -> None:
    times = row["median milliseconds"]
    print(f"\nN = {row['examples']:,}, cores: {row['cores']}, {len(row['rounds'])} rounds, f* = {row['optimum']:.7f}")
    print(f"  good within {EPOCHS} epochs: {row['share within the epochs']:.0%} of the seeds", end="; ")
    print(f"(f − f*)/f* ≤ {row['largest accuracy']:.1e}, violation ≤ {row['largest violation']:.1e}")
    print(f"  median milliseconds to (f − f*)/f* ≤ {ACCURACY:g} and violation ≤ {VIOLATION:g}:")
    print(f"    default, the loop        {times['loop']:9.1f}  ({row['median epochs to good']:.1f} epochs)")
    print(f"    default, the whole call  {times['call']:9.1f}")
    print(f"    SLSQP                    {times['SLSQP']:9.1f}  ({row['SLSQP computes with']})")
    print(f"    SLSQP, plain             {times['SLSQP, plain']:9.1f}  ({PLAIN}, until it stops)")
    print(
        "  median ratios:", ", ".join(f"{name} {ratio:.2f}" for name, ratio in row["median ratios"].items()), flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--cores", type=int, nargs="+", help="default: one, and all of them")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--quick", action="store_true", help="two rounds on fewer examples and one core, as a smoke test"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = options.out or (None if options.quick else Path(__file__).parent / "results" / "answer.json")
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    sizes, rounds = ([4_000], 2) if options.quick else (options.examples, options.rounds)
    found = []
    for examples in sizes:
        for cores in [1] if options.quick else options.cores or sorted({1, available}):
            found.append(in_new_process(examples, rounds, cores))
            show(found[-1])
    machine = {"python": platform.python_version(), "processor": platform.machine(), "cores": available}
    machine |= {
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }
    if out is not None:
        out.write_text(json.dumps({"machine": machine, "answer": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
