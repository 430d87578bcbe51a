"""Networks against PyTorch and Cooper: the time of a step, and answers over a grid of rates, on the problems of networks.py.

Weights at the start, data, bounds and the number of examples per step are those of networks.py. Data are on the device, and
batches are gathered from indices drawn before the clock starts; no data loader is timed. On a GPU, PyTorch may use TF32, as
JAX does, and Adam is fused. On a CPU, PyTorch uses one thread. The problems in PyTorch are compared with ours at the start.

- steps: microseconds per step at two batch sizes, in alternating rounds; of the convolutional network unless told otherwise.
  PyTorch's Adam on the objective alone (eager; with torch.compile; as one CUDA graph), Adam with multipliers by hand (eager; as
  one CUDA graph), Cooper (simultaneous, and dual first), and AdaptiveLagrangian: `result.seconds` over the steps, with its
  restoration at the end. What cannot be run is skipped with a line.
- answers: Cooper (a Lagrangian, SimultaneousOptimizer, Adam and SGD) over 3×3 rates, with its last weights certified by
  `tr.certify`, and AdaptiveLagrangian, with nothing to tune. Seconds are those of the steps: no compilation, evaluation or
  certificate. The rates of Cooper are constant, so that a long run passes through the answers of shorter ones.
- point: for a problem, the least seconds to an answer that is certified feasible for every seed, with an objective within
  1% of the best such answer of both. Cooper's are those of one setting; finding it is not counted.

Needs PyTorch, and cooper-optim for what is Cooper's (pip install cooper-optim==1.0.1; on CPUs torch==2.13.0), and the data sets
(TIGHTROPE_DATA).

Run: python benchmarks/networks_torch.py [steps] [answers] [--problems NAME ...] [--seeds 3] [--quick] [--out FILE]
Other rows of the file are kept. The convolutional network is for GPUs: on CPUs, XLA takes minutes to evaluate its Jacobian.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional

import network_problems
import networks
import tightrope as tr

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
METHOD = tr.methods.AdaptiveLagrangian()
CONVOLUTION = "convolution, ten digits"
TABULAR = ("bank-full, recall 0.65, alarms 0.15", "adult, recall 0.6, alarms 0.1", "adult, fifty groups")
Tensors = dict[str, torch.Tensor]
Step = Callable[[torch.Tensor], None]


# ---- the problems in PyTorch ---------------------------------------------------------------------------------------------


class TorchCase(NamedTuple):
    """A problem with its start, and the same in PyTorch."""

    problem: tr.Problem
    start: Any
    data: Tensors
    values: Callable[[Tensors, Tensors], tuple[torch.Tensor, list[torch.Tensor]]]
    """The objective, and the value of each constraint function."""
    to_torch: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = dict
    to_jax: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = dict

    @property
    def examples(self) -> int:
        return len(self.data["y"])

    def parameters(self) -> Tensors:
        """The weights at the start."""
        arrays = self.to_torch({name: np.asarray(leaf) for name, leaf in self.start.items()})
        return {name: torch.nn.Parameter(torch.tensor(a, device=DEVICE)) for name, a in arrays.items()}

    def weights(self, parameters: Tensors) -> Any:
        """The pytree of these parameters."""
        arrays = self.to_jax({name: p.detach().cpu().numpy() for name, p in parameters.items()})
        return jax.tree.map(jnp.asarray, arrays)

    def batch(self, index: torch.Tensor) -> Tensors:
        return {name: array[index] for name, array in self.data.items()}

    def lagrangian_terms(self, parameters: Tensors, batch: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        """The objective, and values that must not be positive: those of upper bounds, then those of lower ones."""
        objective, values = self.values(parameters, batch)
        rows = []
        for value, constraint in zip(values, self.problem.constraints, strict=True):
            low, high = float(np.max(constraint.low)), float(np.min(constraint.high))  # the same for all entries
            rows += [value.reshape(-1) - high] if math.isfinite(high) else []
            rows += [low - value.reshape(-1)] if math.isfinite(low) else []
        return objective, torch.cat(rows)

    def check(self) -> None:
        """Stop if objective or constraints at the start, on the first examples, differ from ours."""
        assert isinstance(self.problem.data, tr.Dataset)
        first = {name: array[:500] for name, array in self.problem.data.arrays.items()}
        ours = [self.problem.objective(self.start, first), *(c.fn(self.start, first) for c in self.problem.constraints)]
        with torch.no_grad():
            objective, values = self.values(self.parameters(), self.batch(torch.arange(500, device=DEVICE)))
        for one, other in zip([objective, *values], ours, strict=True):
            assert np.allclose(one.cpu().numpy(), other, rtol=1e-2, atol=1e-3), (one, other)

    def shortened(self, examples: int) -> TorchCase:
        """The same on the first examples alone."""
        assert isinstance(self.problem.data, tr.Dataset)
        arrays = {name: array[:examples] for name, array in self.problem.data.arrays.items()}
        problem = with_data(self.problem, tr.Dataset(arrays, network_problems.BATCH))
        return self._replace(problem=problem, data={name: array[:examples] for name, array in self.data.items()})


def with_data(problem: tr.Problem, data: tr.Dataset) -> tr.Problem:
    """The same functions of other data."""
    return tr.Problem(problem.objective, [replace(c, data=data) for c in problem.constraints], data=data)


def on_device(arrays: dict[str, Any]) -> Tensors:
    found = {name: torch.tensor(np.asarray(array), device=DEVICE) for name, array in arrays.items()}
    return {name: array if array.is_floating_point() else array.long() for name, array in found.items()}


def digits() -> TorchCase:
    """The convolutional network of networks.py; PyTorch puts channels first."""
    problem, start = network_problems.convolution()
    assert isinstance(problem.data, tr.Dataset)
    data = on_device(dict(problem.data.arrays))
    data["x"] = data["x"].permute(0, 3, 1, 2).contiguous()
    weights = torch.eye(10, device=DEVICE) / (torch.bincount(data["y"], minlength=10) / len(data["y"]))

    def values(p: Tensors, batch: Tensors) -> tuple[torch.Tensor, list[torch.Tensor]]:
        hidden = functional.relu(functional.conv2d(batch["x"], p["first"], stride=2))
        hidden = functional.relu(functional.conv2d(hidden, p["second"], stride=2))
        losses = functional.cross_entropy(hidden.flatten(1) @ p["w0"] + p["b0"], batch["y"], reduction="none")
        return losses.mean(), [(weights[batch["y"]] * losses[:, None]).mean(dim=0)]

    def to_torch(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        kernels = {name: arrays[name].transpose(3, 2, 0, 1).copy() for name in ("first", "second")}
        dense = arrays["w0"].reshape(4, 4, 16, 10).transpose(2, 0, 1, 3).reshape(256, 10)
        return {**kernels, "w0": dense, "b0": arrays["b0"]}

    def to_jax(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        kernels = {name: arrays[name].transpose(2, 3, 1, 0) for name in ("first", "second")}
        dense = arrays["w0"].reshape(16, 4, 4, 10).transpose(1, 2, 0, 3).reshape(256, 10)
        return {**kernels, "w0": dense, "b0": arrays["b0"]}

    return TorchCase(problem, start, data, values, to_torch, to_jax)


def tabular(name: str) -> TorchCase:
    """Tabular networks of networks.py: recall and false alarms, or fifty groups."""
    problem, start = network_problems.PROBLEMS[name][0]()
    assert isinstance(problem.data, tr.Dataset)
    data = on_device(dict(problem.data.arrays))
    members = ["groups"] if "groups" in data else ["positive", "negative"]

    def values(p: Tensors, batch: Tensors) -> tuple[torch.Tensor, list[torch.Tensor]]:
        score = (torch.tanh(batch["x"] @ p["w0"] + p["b0"]) @ p["w1"] + p["b1"])[:, 0]
        squares = sum((leaf**2).sum() for leaf in p.values())
        objective = functional.softplus(-batch["y"] * score).mean() + 1e-3 * squares
        rate = torch.sigmoid(score)
        return objective, [rate @ batch[name] / len(rate) for name in members]

    return TorchCase(problem, start, data, values)


def case_of(name: str, examples: int | None = None) -> TorchCase:
    case = digits() if name == CONVOLUTION else tabular(name)
    case.check()
    return case if examples is None else case.shortened(examples)


# ---- steps ---------------------------------------------------------------------------------------------------------------


def adam(parameters: Tensors, rate: float, capturable: bool = False) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters.values(), lr=rate, fused=ON_GPU, capturable=capturable)


def plain_step(case: TorchCase, mode: str | None = None, capturable: bool = False) -> Step:
    """Adam on the objective alone."""
    parameters = case.parameters()
    optimizer = adam(parameters, 1e-3, capturable)

    def objective(parameters: Tensors, batch: Tensors) -> torch.Tensor:
        return case.values(parameters, batch)[0]

    run = objective if mode is None else torch.compile(objective, mode=mode, dynamic=False)

    def step(index: torch.Tensor) -> None:
        optimizer.zero_grad()
        run(parameters, case.batch(index)).backward()
        optimizer.step()

    return step


def lagrangian_step(case: TorchCase, capturable: bool = False) -> Step:
    """Adam on the Lagrangian and projected ascent in the multipliers, by hand."""
    parameters = case.parameters()
    optimizer = adam(parameters, 1e-3, capturable)
    rows = case.lagrangian_terms(parameters, case.batch(torch.arange(2, device=DEVICE)))[1]
    multipliers = torch.zeros_like(rows).detach()

    def step(index: torch.Tensor) -> None:
        optimizer.zero_grad()
        objective, rows = case.lagrangian_terms(parameters, case.batch(index))
        (objective + multipliers @ rows).backward()
        optimizer.step()
        multipliers.add_(rows.detach(), alpha=3e-2).clamp_(min=0.0)

    return step


def cooper_step(
    case: TorchCase, rate: float = 1e-3, dual_rate: float = 3e-2, scheme: str = "SimultaneousOptimizer"
) -> tuple[Step, Tensors]:
    """A step of Cooper, and the parameters that it moves."""
    import cooper

    class Constrained(cooper.ConstrainedMinimizationProblem):
        def __init__(self, count: int) -> None:
            super().__init__()
            multiplier = cooper.multipliers.DenseMultiplier(num_constraints=count, device=torch.device(DEVICE))
            self.rows = cooper.Constraint(multiplier=multiplier, constraint_type=cooper.ConstraintType.INEQUALITY)

        def compute_cmp_state(self, parameters: Tensors, batch: Tensors) -> Any:
            objective, rows = case.lagrangian_terms(parameters, batch)
            return cooper.CMPState(
                loss=objective, observed_constraints={self.rows: cooper.ConstraintState(violation=rows)}
            )

    parameters = case.parameters()
    rows = case.lagrangian_terms(parameters, case.batch(torch.arange(2, device=DEVICE)))[1]
    problem = Constrained(len(rows))
    optimizer = getattr(cooper.optim, scheme)(
        cmp=problem,
        primal_optimizers=adam(parameters, rate),
        dual_optimizers=torch.optim.SGD(problem.dual_parameters(), lr=dual_rate, maximize=True),
    )

    def step(index: torch.Tensor) -> None:
        optimizer.roll(compute_cmp_state_kwargs={"parameters": parameters, "batch": case.batch(index)})

    return step, parameters


def each(step: Step) -> Step:
    """Steps for all rows of indices."""

    def run(indices: torch.Tensor) -> None:
        for index in indices:
            step(index)

    return run


def captured(step: Step, batch: int) -> Step:
    """The same steps as replays of one CUDA graph."""
    static = torch.zeros(batch, dtype=torch.long, device=DEVICE)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(static)

    def run(indices: torch.Tensor) -> None:
        for index in indices:
            static.copy_(index)
            graph.replay()

    return run


def runs_of_steps(case: TorchCase, batch: int) -> dict[str, Callable[[], Step]]:
    """How to make each run of steps."""
    makers: dict[str, Callable[[], Step]] = {
        "PyTorch, Adam on the objective": lambda: each(plain_step(case)),
        "the same, torch.compile": lambda: each(plain_step(case, "reduce-overhead")),
        "PyTorch, multipliers by hand": lambda: each(lagrangian_step(case)),
        "Cooper, simultaneous": lambda: each(cooper_step(case)[0]),
        "Cooper, dual first": lambda: each(cooper_step(case, scheme="AlternatingDualPrimalOptimizer")[0]),
    }
    if ON_GPU:
        makers |= {
            "PyTorch, Adam on the objective, one CUDA graph": lambda: captured(
                plain_step(case, capturable=True), batch
            ),
            "PyTorch, multipliers by hand, one CUDA graph": lambda: captured(lagrangian_step(case, True), batch),
        }
    return makers


def timed(run: Step, indices: torch.Tensor) -> float:
    """Seconds of steps."""
    synchronize()
    began = time.perf_counter()
    run(indices)
    synchronize()
    return time.perf_counter() - began


def synchronize() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def drawn(case: TorchCase, steps: int, batch: int, seed: int) -> torch.Tensor:
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    return torch.randint(case.examples, (steps, batch), generator=generator, device=DEVICE)


def step_times(name: str, case: TorchCase, batch: int, steps: int, rounds: int) -> dict[str, Any]:
    """Microseconds per step: medians, and ratios to ours with their spread."""
    assert isinstance(case.problem.data, tr.Dataset)
    problem, ready = with_data(case.problem, tr.Dataset(case.problem.data.arrays, batch)), {}
    for peer, make in runs_of_steps(case, batch).items():
        try:
            ready[peer] = make()
            timed(ready[peer], drawn(case, 5, batch, 0))
        except Exception as error:  # a peer that is missing or does not work here must not end the others
            ready.pop(peer, None)
            print(f"{peer} is skipped: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
    times: dict[str, list[float]] = {name: [] for name in [*ready, "ours"]}
    for turn in range(rounds + 1):
        for peer, run in ready.items():
            times[peer].append(1e6 * timed(run, drawn(case, steps, batch, turn)) / steps)
        result = tr.solve(problem, case.start, METHOD, steps=steps, seed=turn, record=steps, progress=False)
        times["ours"].append(1e6 * result.seconds / steps)
    warm = {peer: np.array(measured[1:]) for peer, measured in times.items()}
    row: dict[str, Any] = {"section": "steps", "case": f"{name}, batch {batch}, {DEVICE}", "steps": steps}
    row["microseconds"] = {peer: float(np.median(measured)) for peer, measured in warm.items()}
    row["ratios to ours"] = {
        peer: {
            "median": float(np.median(measured / warm["ours"])),
            "least": float(np.min(measured / warm["ours"])),
            "largest": float(np.max(measured / warm["ours"])),
        }
        for peer, measured in warm.items()
    }
    for peer, measured in row["microseconds"].items():
        print(
            f"{row['case']}: {peer} {measured:.1f} µs, {row['ratios to ours'][peer]['median']:.2f} of ours", flush=True
        )
    return row


# ---- answers -------------------------------------------------------------------------------------------------------------


def judged(case: TorchCase, x: Any, seconds: float) -> dict[str, Any]:
    """The certificate of an answer, in numbers."""
    if not all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(x)):
        return {"objective": math.nan, "violation": math.nan, "verdict": "not finite", "seconds": seconds}
    found = tr.certify(case.problem, x)
    return {
        "objective": found.objective.value,
        "violation": found.largest_violation.value,
        "verdict": found.verdict,
        "seconds": seconds,
    }


def summary(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the seeds, the largest violation, and whether all are certified feasible; None for what is not finite."""
    objectives = [answer["objective"] for answer in answers]
    finite = all(math.isfinite(objective) for objective in objectives)
    return {
        "objective": float(np.mean(objectives)) if finite else None,
        "objectives": objectives if finite else None,
        "violation": float(max(answer["violation"] for answer in answers)) if finite else None,
        "feasible": all(answer["verdict"] == "feasible" for answer in answers),
        "seconds": float(np.mean([answer["seconds"] for answer in answers])),
    }


def cooper_answers(
    case: TorchCase, rates: tuple[float, float], steps: list[int], seed: int
) -> dict[int, dict[str, Any]]:
    """The answers of one run after each of these numbers of steps."""
    step, parameters = cooper_step(case, *rates)
    indices, taken, found, done = drawn(case, max(steps), network_problems.BATCH, seed), 0.0, {}, 0
    for count in sorted(steps):
        taken += timed(each(step), indices[done:count])
        found[count], done = judged(case, case.weights(parameters), taken), count
    return found


def our_answer(case: TorchCase, steps: int, seed: int) -> dict[str, Any]:
    record = max(steps // 5, 1)
    result = tr.solve(case.problem, case.start, METHOD, steps=steps, seed=seed, record=record, progress=False)
    return judged(case, result.x, result.seconds)


def answers(
    name: str, case: TorchCase, epochs: list[float], seeds: int, grid: list[tuple[float, float]]
) -> list[dict[str, Any]]:
    """A row for each number of epochs, and the times to the same point."""
    steps = {e: int(e * case.examples / network_problems.BATCH) for e in epochs}
    our_answer(case, min(steps.values()), 0)  # warm
    ours = {e: summary([our_answer(case, steps[e], seed) for seed in range(seeds)]) for e in epochs}
    print(f"{name}: ours {ours}", flush=True)
    settings: dict[float, list[dict[str, Any]]] = {e: [] for e in epochs}
    for rate, dual_rate in grid:
        runs = [cooper_answers(case, (rate, dual_rate), list(steps.values()), seed) for seed in range(seeds)]
        for e in epochs:
            row = summary([run[steps[e]] for run in runs])
            settings[e].append({"rate": rate, "dual rate": dual_rate, **row})
            print(f"{name}, {e:g} epochs, Cooper: {settings[e][-1]}", flush=True)
    rows = []
    for e in epochs:
        feasible = [row for row in settings[e] if row["feasible"]]
        best = min(feasible, key=lambda row: row["objective"]) if feasible else None
        rows.append({"section": "answers", "case": name, "epochs": e, "steps": steps[e], "seeds": seeds,
                     "device": DEVICE, "ours": ours[e], "cooper": settings[e], "best of cooper": best})  # fmt: skip
    return [*rows, same_point(name, rows)]


def same_point(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The least seconds to a feasible answer within 1% of the best one."""
    candidates = {
        "ours": [row["ours"] for row in rows],
        "cooper": [setting for row in rows for setting in row["cooper"]],
    }
    feasible = {who: [row for row in found if row["feasible"]] for who, found in candidates.items()}
    best = min((row["objective"] for found in feasible.values() for row in found), default=None)
    point: dict[str, Any] = {"section": "point", "case": name, "best objective": best, "device": DEVICE}
    for who, found in feasible.items():
        close = [row for row in found if best is not None and row["objective"] <= best + 0.01 * abs(best)]
        point[who] = min(close, key=lambda row: row["seconds"]) if close else None
    print(f"{name}: {point}", flush=True)
    return point


def versions() -> dict[str, Any]:
    try:
        return {"torch": torch.__version__, "cooper": version("cooper-optim")}
    except PackageNotFoundError:
        return {"torch": torch.__version__, "cooper": None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=["steps", "answers"])
    parser.add_argument("--problems", nargs="+", choices=[CONVOLUTION, *TABULAR], default=[CONVOLUTION])
    parser.add_argument("--epochs", type=float, nargs="+", default=[2.0, 6.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=list(networks.RATES))
    parser.add_argument("--dual-rates", type=float, nargs="+", default=list(networks.DUAL_RATES))
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256], help="batch sizes of the steps")
    parser.add_argument("--quick", action="store_true", help="few steps, settings and examples, as a smoke test")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "networks_torch.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    count, rounds, examples = (20, 2, 128) if options.quick else (1000, 7, None)
    grid = list(product(options.rates, options.dual_rates))
    if options.quick:
        options.seeds, grid = 1, grid[:2]
    began = time.perf_counter()
    print(f"{DEVICE}, {versions()}, jax {jax.__version__} on {jax.devices()[0].device_kind}", flush=True)
    for name in options.problems:
        case = case_of(name, examples)
        if "steps" in options.sections:
            for batch in options.batches:
                networks.write(step_times(name, case, batch, count, rounds) | versions(), options.out)
                print(f"{time.perf_counter() - began:.0f} s", flush=True)
        if "answers" in options.sections:
            for row in answers(name, case, options.epochs, options.seeds, grid):
                networks.write(row | versions(), options.out)
            print(f"{time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
