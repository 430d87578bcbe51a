"""Against other libraries and loops written by hand: the time of a step, and the time to a certified answer, on a CPU.

The problem is `zoo.learning.finite_logistic`: logistic loss, 20,000 examples, 100 features, batches of 64, |covariance with an
attribute| ≤ 0.05 (two inequalities for libraries without ranges). Everybody makes the same update, simultaneous gradient
descent-ascent with constant rates, on data that are in memory, and gets the indices of its batches ready made; no data
loader is timed. Tightrope draws its own batches, in the timed loop, and its default, which makes other steps, is a row of
its own.

- steps: microseconds per step, warm. Rounds alternate between all. Given the same indices, the weights of all peers agree:
  `difference` is the largest from those of NumPy (humancompatible-train updates its multipliers first).
- answers: seconds to weights with a violation of at most 1e-3 and an objective within 1% of the optimum, on all examples in
  float64. Everybody is looked at every 25 steps until it is good, and then run again, twice, for that number of steps; the
  faster run counts. Each peer gets a grid of 4×4 rates, tried on one seed. Only its best setting is timed, on other seeds;
  the time of trying is not counted. Tightrope's default has nothing to tune; its GradientDescentAscent gets the peers' grid.
  `call` is the whole of `tr.solve` with checks, evaluation and certificate; peers have none of these. Compilation is not
  timed for anybody.

Everything runs on one core, and times are CPU times, which other programs on the machine hardly change. With `--cores 2`, times
are those of the clock, and each PyTorch peer gets one thread or two, whichever is faster.

Peers are no dependencies of Tightrope; those that are not installed are skipped. To install them, in an environment of
their own: pip install torch==2.13.0 cooper-optim==1.0.1 humancompatible-train==0.4.2

Run: python benchmarks/peers.py [steps] [answers] [--rounds 7] [--cores 1] [--quick] [--out peers.json]
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np
import optax

import tightrope as tr
from answer import BOUND, Exact, restrict_to

BATCH, STEPS, LOOK, EPOCHS = 64, 2_000, 25, 20
ACCURACY, VIOLATION = 1e-2, 1e-3
RATES, DUAL_RATES = (0.01, 0.03, 0.1, 0.3), (0.03, 0.1, 0.3, 1.0)
SGD = optax.identity()
Arrays = dict[str, np.ndarray]
Loop = tuple[Callable[[np.ndarray], None], Callable[[], np.ndarray]]
"""Take one step for each row of indices, from where the last call ended; and the present weights."""


# ---- peers: each makes a loop from the data and two rates ----------------------------------------------------------------


def with_numpy(arrays: Arrays, rate: float, dual_rate: float) -> Loop:
    """NumPy, with gradients derived by hand."""
    x, y, s = arrays["x"], arrays["y"], arrays["group"]
    w, multipliers = np.zeros(x.shape[1], np.float32), np.zeros(2, np.float32)

    def advance(indices: np.ndarray) -> None:
        nonlocal w, multipliers
        for index in indices:
            examples, label, group = x[index], y[index], s[index]
            score = examples @ w
            weight = (multipliers[0] - multipliers[1]) * group - label / (1.0 + np.exp(label * score))
            covariance = group @ score / BATCH
            w = w - rate / BATCH * (weight @ examples)
            violations = np.array([covariance - BOUND, -covariance - BOUND], np.float32)
            multipliers = np.maximum(multipliers + dual_rate * violations, 0.0)

    return advance, lambda: w


def values(w: Any, multipliers: Any, batch: Any) -> Any:
    """The Lagrangian, and the values of the constraints."""
    score = batch["x"] @ w
    covariance = jnp.mean(batch["group"] * score)
    violations = jnp.stack([covariance - BOUND, -covariance - BOUND])
    return jnp.mean(jax.nn.softplus(-batch["y"] * score)) + multipliers @ violations, violations


@jax.jit
def optax_step(carry: Any, index: Any, data: Any, rates: Any) -> Any:
    w, multipliers, state = carry
    gradient, violations = jax.grad(values, has_aux=True)(w, multipliers, jax.tree.map(lambda a: a[index], data))
    updates, state = optax.sgd(rates[0]).update(gradient, state)
    return optax.apply_updates(w, updates), jnp.maximum(multipliers + rates[1] * violations, 0.0), state


def with_optax(arrays: Arrays, rate: float, dual_rate: float) -> Loop:
    """JAX and Optax; Python calls a compiled step."""
    data, rates = jax.tree.map(jnp.asarray, arrays), jnp.array([rate, dual_rate])
    w0 = jnp.zeros(arrays["x"].shape[1])
    carry: Any = w0, jnp.zeros(2), optax.sgd(rate).init(w0)

    def advance(indices: np.ndarray) -> None:
        nonlocal carry
        for index in indices:
            carry = optax_step(carry, index, data, rates)
        jax.block_until_ready(carry)

    return advance, lambda: np.asarray(carry[0])


@jax.jit
def scanned(carry: Any, indices: Any, data: Any, rates: Any) -> Any:
    def step(carry: Any, index: Any) -> tuple[Any, None]:
        w, multipliers = carry
        gradient, violations = jax.grad(values, has_aux=True)(w, multipliers, jax.tree.map(lambda a: a[index], data))
        return (w - rates[0] * gradient, jnp.maximum(multipliers + rates[1] * violations, 0.0)), None

    return jax.lax.scan(step, carry, indices)[0]


def with_scan(arrays: Arrays, rate: float, dual_rate: float) -> Loop:
    """A hand-written scan in JAX."""
    data = jax.tree.map(jnp.asarray, arrays)
    carry = jnp.zeros(arrays["x"].shape[1]), jnp.zeros(2)

    def advance(indices: np.ndarray) -> None:
        nonlocal carry
        carry = jax.block_until_ready(scanned(carry, indices, data, (rate, dual_rate)))

    return advance, lambda: np.asarray(carry[0])


def torch_values(w: Any, batch: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    """The objective, and the values of the constraints."""
    import torch

    x, y, s = batch
    score = x @ w
    covariance = (s * score).mean()
    violations = torch.stack([covariance - BOUND, -covariance - BOUND])
    return torch.nn.functional.softplus(-y * score).mean(), violations


def tensors(arrays: Arrays) -> tuple[Any, Any, Any]:
    import torch

    x, y, s = (torch.from_numpy(arrays[name]) for name in ("x", "y", "group"))
    return x, y, s


def with_torch(arrays: Arrays, rate: float, dual_rate: float) -> Loop:
    """PyTorch by hand, eager."""
    import torch

    data = tensors(arrays)
    w = torch.zeros(arrays["x"].shape[1], requires_grad=True)
    multipliers = torch.zeros(2)

    def advance(indices: np.ndarray) -> None:
        for index in torch.from_numpy(indices):
            loss, violations = torch_values(w, tuple(array[index] for array in data))
            (gradient,) = torch.autograd.grad(loss + multipliers @ violations, w)
            with torch.no_grad():
                w.sub_(gradient, alpha=rate)
                multipliers.add_(violations, alpha=dual_rate).clamp_(min=0.0)

    return advance, lambda: w.detach().numpy()


COMPILED: list[Any] = []
"""The compiled step, shared by all settings."""


def with_compiled_torch(arrays: Arrays, rate: float, dual_rate: float) -> Loop:
    """PyTorch by hand, with torch.compile of the whole step."""
    import torch

    def lagrangian(w: Any, multipliers: Any, batch: Any) -> Any:
        loss, violations = torch_values(w, batch)
        return loss + multipliers @ violations, violations

    def step(w: Any, multipliers: Any, data: Any, index: Any, rates: Any) -> Any:
        batch = tuple(array[index] for array in data)
        gradient, violations = torch.func.grad(lagrangian, has_aux=True)(w, multipliers, batch)
        return w - rates[0] * gradient, (multipliers + rates[1] * violations).clamp(min=0.0)

    if not COMPILED:
        COMPILED.append(torch.compile(step, fullgraph=True))
    data, rates = tensors(arrays), torch.tensor([rate, dual_rate])
    w, multipliers = torch.zeros(arrays["x"].shape[1]), torch.zeros(2)

    def advance(indices: np.ndarray) -> None:
        nonlocal w, multipliers
        with torch.no_grad():
            for index in torch.from_numpy(indices):
                w, multipliers = COMPILED[0](w, multipliers, data, index, rates)

    return advance, lambda: w.numpy()


def with_cooper(arrays: Arrays, rate: float, dual_rate: float) -> Loop:
    """Cooper: a Lagrangian with SimultaneousOptimizer, SGD for both."""
    import cooper
    import torch

    class Parity(cooper.ConstrainedMinimizationProblem):
        def __init__(self) -> None:
            super().__init__()
            multiplier = cooper.multipliers.DenseMultiplier(num_constraints=2)
            self.parity = cooper.Constraint(multiplier=multiplier, constraint_type=cooper.ConstraintType.INEQUALITY)

        def compute_cmp_state(self, w: Any, batch: Any) -> Any:
            loss, violations = torch_values(w, batch)
            state = cooper.ConstraintState(violation=violations)
            return cooper.CMPState(loss=loss, observed_constraints={self.parity: state})

    data, w, problem = tensors(arrays), torch.nn.Parameter(torch.zeros(arrays["x"].shape[1])), Parity()
    optimizer = cooper.optim.SimultaneousOptimizer(
        cmp=problem,
        primal_optimizers=torch.optim.SGD([w], lr=rate),
        dual_optimizers=torch.optim.SGD(problem.dual_parameters(), lr=dual_rate, maximize=True),
    )

    def advance(indices: np.ndarray) -> None:
        for index in torch.from_numpy(indices):
            optimizer.roll(compute_cmp_state_kwargs={"w": w, "batch": tuple(array[index] for array in data)})

    return advance, lambda: w.detach().numpy()


def with_humancompatible(arrays: Arrays, rate: float, dual_rate: float) -> Loop:
    """humancompatible-train: ALM without a penalty, its `forward_update`, and SGD."""
    import torch

    alm = importlib.import_module("humancompatible.train.dual_optim").ALM
    data, w = tensors(arrays), torch.nn.Parameter(torch.zeros(arrays["x"].shape[1]))
    optimizer, dual = torch.optim.SGD([w], lr=rate), alm(m=2, lr=dual_rate, is_ineq=True)

    def advance(indices: np.ndarray) -> None:
        for index in torch.from_numpy(indices):
            loss, violations = torch_values(w, tuple(array[index] for array in data))
            dual.forward_update(loss, violations).backward()
            optimizer.step()
            optimizer.zero_grad()

    return advance, lambda: w.detach().numpy()


PEERS: dict[str, tuple[Callable[[Arrays, float, float], Loop], str | None]] = {
    "Cooper": (with_cooper, "cooper"),
    "humancompatible-train": (with_humancompatible, "humancompatible.train"),
    "PyTorch, eager": (with_torch, "torch"),
    "PyTorch, compiled": (with_compiled_torch, "torch"),
    "JAX and Optax, Python stepping": (with_optax, None),
    "NumPy": (with_numpy, None),
    "JAX, scan": (with_scan, None),
}
"""Each peer, and the module that it needs."""


def installed() -> list[str]:
    """The peers that can be run; the others are named."""
    found = []
    for name, (_, module) in PEERS.items():
        try:
            importlib.import_module(module or "numpy")
            found.append(name)
        except ImportError as error:
            print(f"{name} is skipped: {error}", flush=True)
    return found


# ---- the comparison ------------------------------------------------------------------------------------------------------


class Comparison:
    """The problem, its optimum, and the peers with their threads."""

    def __init__(self, examples: int):
        self.problem, self.w0, _ = tr.zoo.learning.finite_logistic(examples=examples, batch_size=BATCH)
        assert isinstance(self.problem.data, tr.Dataset)
        arrays = self.problem.data.arrays
        self.arrays = {name: np.array(array, np.float32) for name, array in arrays.items()}
        self.exact, self.examples = Exact(self.problem), examples
        self.peers = installed()
        self.threads = dict.fromkeys(self.peers, 1)

    def good(self, w: Any) -> bool:
        accuracy, violation = self.exact.errors(w)
        return accuracy <= ACCURACY and violation <= VIOLATION

    def indices(self, steps: int, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, self.examples, (steps, BATCH))

    def loop(self, name: str, rate: float = 0.1, dual_rate: float = 0.1) -> Loop:
        """A loop of a peer; PyTorch's threads are set to those of the peer."""
        make, module = PEERS[name]
        if module is not None:
            importlib.import_module("torch").set_num_threads(self.threads[name])
        return make(self.arrays, rate, dual_rate)

    def seconds(
        self, name: str, indices: np.ndarray, rates: tuple[float, float] = (0.1, 0.1)
    ) -> tuple[float, np.ndarray]:
        """Time of steps from the start, and the weights after them."""
        advance, weights = self.loop(name, *rates)
        began = time.perf_counter()
        advance(indices)
        return time.perf_counter() - began, weights()

    def choose_threads(self, candidates: list[int], steps: int) -> None:
        """Give each PyTorch peer the number of threads with which its fastest of three runs is fastest."""
        for name in self.peers:
            if PEERS[name][1] is not None:
                times = dict.fromkeys(candidates, math.inf)
                for threads in [candidates[0], *candidates * 3]:
                    self.threads[name] = threads
                    times[threads] = min(times[threads], self.seconds(name, self.indices(steps, 0))[0])
                self.threads[name] = min(times, key=lambda threads: times[threads])

    def steps(self, rounds: int, steps: int) -> dict[str, Any]:
        """Microseconds per step of everybody, in alternation."""
        ours = {"tr.solve, GradientDescentAscent": ascent(0.1, 0.1), "tr.solve, default": None}
        times: dict[str, list[float]] = {name: [] for name in [*self.peers, *ours]}
        reached: dict[str, np.ndarray] = {}
        for turn in range(rounds + 1):
            indices = self.indices(steps, turn)
            for name in self.peers:
                taken, reached[name] = self.seconds(name, indices)
                times[name].append(1e6 * taken / steps)
            for name, method in ours.items():
                result = tr.solve(self.problem, self.w0, method, steps=steps, seed=turn, record=steps, progress=False)
                times[name].append(1e6 * result.seconds / result.steps)
            print(f"round {turn}: " + ", ".join(f"{name} {t[-1]:.1f}" for name, t in times.items()), flush=True)
        warm = {name: np.array(measured[1:]) for name, measured in times.items()}
        difference = {name: float(np.max(np.abs(w - reached["NumPy"]))) for name, w in reached.items()}
        return {
            "steps": steps,
            "threads": self.threads,
            "microseconds": {name: spread(values) for name, values in warm.items()},
            "ratios to GradientDescentAscent": {
                name: spread(values / warm["tr.solve, GradientDescentAscent"]) for name, values in warm.items()
            },
            "ratios of the fastest to GradientDescentAscent": {
                name: float(np.min(values) / np.min(warm["tr.solve, GradientDescentAscent"]))
                for name, values in warm.items()
            },
            "ratios to the default": {
                name: spread(values / warm["tr.solve, default"]) for name, values in warm.items()
            },
            "difference": difference,
        }

    def reach(self, name: str, rates: tuple[float, float], seed: int, limit: int | None = None) -> int | None:
        """Steps to the first good look; None if there is none within the limit."""
        indices = self.indices(EPOCHS * self.examples // BATCH, seed)
        advance, weights = self.loop(name, *rates)
        for first in range(0, limit or len(indices), LOOK):
            advance(indices[first : first + LOOK])
            if self.good(weights()):
                return first + LOOK
        return None

    def best_rates(self, name: str) -> tuple[float, float]:
        """The setting that is good soonest on seed 0; a setting is given up when it takes longer than the best."""
        limit, chosen = None, (RATES[0], DUAL_RATES[0])
        for rates in product(RATES, DUAL_RATES):
            steps = self.reach(name, rates, 0, limit)
            if steps is not None and (limit is None or steps < limit):
                limit, chosen = steps, rates
        return chosen

    def peer(self, name: str, rates: tuple[float, float], seed: int) -> tuple[float, float]:
        """Seconds and steps to good; infinite if that is not reached."""
        steps = self.reach(name, rates, seed)
        if steps is None:
            return math.inf, math.inf
        indices = self.indices(EPOCHS * self.examples // BATCH, seed)[:steps]
        return min(self.seconds(name, indices, rates)[0] for _ in range(2)), steps

    def steps_to_good(self, method: Any, seed: int) -> int:
        """Steps to the first good record of tr.solve, or all if there is none."""
        record = tr.Record(LOOK, metrics={"good": lambda w, batch: self.good(w)})
        steps = EPOCHS * self.examples // BATCH
        history = tr.solve(self.problem, self.w0, method, steps=steps, seed=seed, record=record, progress=False).history
        good = history["good"] > 0
        return int(history["step"][good][0]) if good.any() else steps

    def ours(self, method: Any, seed: int) -> dict[str, float]:
        """A run of tr.solve for the number of steps to its first good record."""
        steps = self.steps_to_good(method, seed)
        options: dict[str, Any] = {"steps": steps, "seed": seed, "record": steps, "progress": False}
        times = []
        for _ in range(2):
            began = time.perf_counter()
            result = tr.solve(self.problem, self.w0, method, **options)
            times.append((result.seconds, time.perf_counter() - began, result))
        loop, call = (min(one[i] for one in times) for i in range(2))
        result = times[-1][2]
        certified = self.good(result.x) and result.certificate.verdict == "feasible"
        return {"loop": loop, "call": call, "steps": result.steps, "certified": float(certified)}

    def answers(self, rounds: int) -> dict[str, Any]:
        """Seconds to a certified answer of everybody, in alternation."""
        settings = {name: self.best_rates(name) for name in self.peers}
        own = min(product(RATES, DUAL_RATES), key=lambda rates: self.steps_to_good(ascent(*rates), 0))
        print(f"best rates: {settings}, GradientDescentAscent {own}", flush=True)
        methods = {"default": None, "GradientDescentAscent": ascent(*own)}
        peers: dict[str, list[tuple[float, float]]] = {name: [] for name in self.peers}
        ours: dict[str, list[dict[str, float]]] = {name: [] for name in methods}
        for seed in range(rounds + 1):
            for name in self.peers:
                peers[name].append(self.peer(name, settings[name], seed))
            for name, method in methods.items():
                ours[name].append(self.ours(method, seed))
            print(f"seed {seed}: " + ", ".join(f"{name} {1e3 * found[-1][0]:.1f} ms" for name, found in peers.items()),
                  {name: found[-1] for name, found in ours.items()}, flush=True)  # fmt: skip
        columns = {
            name: {key: np.array([one[key] for one in found[1:]]) for key in found[0]} for name, found in ours.items()
        }
        rows = {}
        for name, found in peers.items():
            seconds, steps = np.array(found[1:]).T
            rows[name] = {
                "rates": settings[name],
                "milliseconds": spread(1e3 * seconds),
                "steps": float(np.median(steps)),
                "ratios": {
                    f"{ours}, {part}": spread(seconds / columns[ours][part])
                    for ours in methods
                    for part in ("loop", "call")
                },
            }
        for name, column in columns.items():
            rows[f"tr.solve, {name}"] = {
                "milliseconds": spread(1e3 * column["loop"]),
                "milliseconds of the call": spread(1e3 * column["call"]),
                "steps": float(np.median(column["steps"])),
                "share certified": float(np.mean(column["certified"])),
            }
        rows["tr.solve, GradientDescentAscent"]["rates"] = own
        return {"grid": {"rates": RATES, "dual rates": DUAL_RATES}, "epochs at most": EPOCHS, "rows": rows}


def ascent(rate: float, dual_rate: float) -> tr.methods.Method:
    """The peers' update."""
    return tr.methods.GradientDescentAscent(step_size=rate, dual_step_size=dual_rate, decay=0.0, primal=SGD)


def spread(values: np.ndarray) -> dict[str, float]:
    """Median, least and largest."""
    return {"median": float(np.median(values)), "least": float(np.min(values)), "largest": float(np.max(values))}


def show(found: dict[str, Any]) -> None:
    """Print the tables."""
    if steps := found.get("steps"):
        print(f"\n{'':32}{'µs a step':>12}{'/ ours':>10}{'/ default':>11}   threads")
        for name, row in steps["microseconds"].items():
            ascent, default = (
                steps[f"ratios to {to}"][name]["median"] for to in ("GradientDescentAscent", "the default")
            )
            print(f"{name:32}{row['median']:12.1f}{ascent:10.1f}{default:11.1f}   {steps['threads'].get(name, '')}")
    if answers := found.get("answers"):
        print(
            f"\n{'':32}{'ms to good':>12}{'steps':>8}   over the loop and the call of default; of GradientDescentAscent"
        )
        for name, row in answers["rows"].items():
            ratios = ", ".join(f"{ratio['median']:.1f}" for ratio in row.get("ratios", {}).values())
            print(f"{name:32}{row['milliseconds']['median']:12.1f}{row['steps']:8.0f}   {ratios}")


def machine() -> dict[str, Any]:
    """The machine, versions and commit."""
    versions = {}
    for name in ("jax", "numpy", "optax", "torch", "cooper-optim", "humancompatible-train"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    git = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": git.stdout.strip(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=["steps", "answers"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="two rounds of few steps, as a smoke test; writes no file")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "peers.json")
    options = parser.parse_args()
    restrict_to(options.cores)
    comparison = Comparison(examples=20_000)
    rounds, steps = (2, 500) if options.quick else (options.rounds, STEPS)
    comparison.choose_threads(sorted({1, options.cores}), steps // 10)
    found: dict[str, Any] = {"machine": machine() | {"cores used": options.cores}}
    if "steps" in options.sections:
        found["steps"] = comparison.steps(rounds, steps)
    if "answers" in options.sections:
        found["answers"] = comparison.answers(rounds)
    show(found)
    if not options.quick:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
