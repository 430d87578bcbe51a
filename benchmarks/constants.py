"""Default constants against true ones: every paper method on every problem of the zoo that it takes.

Each method runs twice, for 20,000 steps on a few seeds: with the constants that it estimates at the start, and with the same
formulas applied to the problem's true constants. The error of a run is max(‖x − x*‖, violation)/max(1, ‖x0 − x*‖), with x the
answer of `sweep` and x* the nearest of the known solutions; a case has the mean over seeds. It passes if the error with
estimated constants is at most twice the one with true constants, or below 1e-3.

True constants: x* is known, so are the travel ‖x0 − x*‖ and the multipliers. Everything else is measured by automatic
differentiation at 60 points: 20 on the segment from x0 to x*, and 40 around it at a tenth of its length. L_f is the largest
√λ_max(E H_B²), H_B the Hessian of a batch, over 64 batches; L_c the largest eigenvalue of the Hessian of ½‖c‖²; L_J the largest
√λ_max(ΣH_i²), H_i the rows' Hessians; gradient norms are the largest on the segment; σ² is λ_max(JJᵀ) at x* (at x0 where J
vanishes at x*); noise is the standard deviation over 64 batches at x0; Slater's margin the best of 2,000 rounds. Kinks are in
no Hessian: for non-smooth problems L_f and L_c are those of the smooth parts.

The constants in the methods were chosen by looking at CHOSEN_ON alone; the other problems are for judging them.

Rows that are in the file and not run again are kept; the table of docs/constants.md is written from all of them.

Run: python benchmarks/constants.py [--methods ...] [--problems ...] [--seeds 3] [--out benchmarks/results/constants.json]
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import time
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

import tightrope as tr
from tightrope.certificates.evaluation import evaluation_data
from tightrope.methods.base import as_arrays
from tightrope.methods.registry import PAPERS
from tightrope.methods.selection import refusal
from tightrope.methods.shared.constants import LocalConstants, slater_margin
from tightrope.oracles.build import oracle_for
from tightrope.oracles.oracle import Oracle
from tightrope.problems.parameters import Parameters
from tightrope.runs.stepper import start

STEPS, RECORD = 20_000, 4_000
NEGLIGIBLE = 1e-3
"""An error below this passes whatever the other one is."""
CHOSEN_ON = (
    "projection_on_plane",
    "noisy_sphere",
    "lens",
    "outside_the_ball",
    "sparse_mean",
    "weighted_medians",
    "tail_risk",
    "line_in_l1_ball",
    "fair_logistic_regression",
    "repeated_row",
    "flat_power",
)
"""The problems on which the constants of the methods were chosen."""
MODULES = {
    "LinearizedALM": "linearized_alm",
    "LinearizedPenalty": "linearized_penalty",
    "TruncatedMomentum": "truncated_momentum",
    "ExactPenalty": "exact_penalty.method",
    "SwitchingSubgradient": "switching_subgradient",
    "ConservativeSaddle": "conservative_saddle",
}
"""The methods whose defaults are formulas in LocalConstants, and their modules."""
TABLE = "| method | problem | estimated | true | at most twice |\n|---|---|---|---|---|\n"
"""The head of the table in docs/constants.md, which is the end of that page."""


class Truth(NamedTuple):
    """The true constants of a problem in a method's form, its Slater margin and the norm of its multipliers."""

    constants: LocalConstants
    margin: jax.Array
    multiplier: float


def truth(problem: tr.Problem, x0: Any, solution: Any, form: Any) -> Truth:
    parameters = Parameters(x0)
    oracle, sample = evaluation_data(oracle_for(problem, parameters, form))
    first, end = (oracle.with_slacks(Parameters(x).start, sample) for x in (x0, solution.x))
    travel, dtype = jnp.linalg.norm(end - first), first.dtype
    noise = jax.random.normal(jax.random.key(1), (40, first.size), dtype) / jnp.sqrt(first.size)
    segment = first + jnp.linspace(0.0, 1.0, 20, dtype=dtype)[:, None] * (end - first)
    points = jnp.concatenate([segment, jnp.tile(segment, (2, 1)) + 0.1 * travel * noise])
    points = jax.vmap(oracle.nearby)(points)
    drawn = oracle_for(problem, parameters, form)
    keys = jax.random.split(jax.random.key(2), 64)
    draws = jax.vmap(lambda k: _at(drawn, first, drawn.draw(k)))(keys)
    gradient_noise, row_noise, jacobian_noise = (_deviation(values) for values in draws)
    curvature = jax.jit(functools.partial(_curvatures, oracle, sample, drawn, keys))
    objective, penalty, bend = (float(jnp.max(found)) for found in jax.lax.map(curvature, points))
    (gradient, rows, jacobian), (_, _, last) = (_at(oracle, x, sample) for x in (first, end))
    steep = last if float(jnp.linalg.norm(last)) > 1e-6 else jacobian
    numbers = {
        "length": travel,
        "travel": travel,
        "gradient_norm": jnp.max(jax.vmap(lambda x: jnp.linalg.norm(oracle.grad(x, sample)))(segment)),
        "tangential_norm": jnp.linalg.norm(gradient - jnp.linalg.pinv(jacobian) @ (jacobian @ gradient)),
        "smoothness": objective,
        "jacobian_norm": jnp.linalg.norm(steep),
        "normal_curvature": jnp.linalg.norm(steep, 2) ** 2 if steep.size else 0.0,
        "penalty_smoothness": penalty,
        "path_penalty_smoothness": penalty + row_noise * bend,
        "constraint_norm": jnp.linalg.norm(rows),
        "jacobian_smoothness": bend,
        "gradient_noise": gradient_noise,
        "constraint_noise": row_noise,
        "jacobian_noise": jacobian_noise,
    }
    constants = LocalConstants(**{name: jnp.asarray(value, dtype) for name, value in numbers.items()})
    multipliers = [np.ravel(m) for m in (solution.multipliers or {}).values()]
    size = float(np.linalg.norm(np.concatenate(multipliers))) if multipliers else float(constants.multiplier_size)
    return Truth(constants, _margin(oracle, first, travel), size)


def _at(oracle: Oracle, x: jax.Array, sample: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    return oracle.grad(x, sample), oracle.c(x, sample), oracle.jac(x, sample)


def _curvatures(oracle: Oracle, sample: Any, drawn: Oracle, keys: Any, x: jax.Array) -> tuple[Any, Any, Any]:
    """√λ_max(E H_B²) of the objective, λ_max of the Hessian of ½‖c‖², √λ_max(ΣH_i²) of the rows."""
    hessians = jax.vmap(lambda k: jax.hessian(drawn.f)(x, drawn.draw(k)))(keys)
    penalty = jax.hessian(lambda y: 0.5 * jnp.sum(oracle.c(y, sample) ** 2))(x)
    rows = jax.hessian(lambda y: oracle.c(y, sample))(x)

    def top(matrix: jax.Array) -> jax.Array:
        return jnp.max(jnp.abs(jnp.linalg.eigvalsh(matrix)))

    square = jnp.einsum("kij,kjl->il", hessians, hessians) / len(keys)
    return jnp.sqrt(top(square)), top(penalty), jnp.sqrt(top(jnp.einsum("mij,mjl->il", rows, rows)))


def _deviation(values: jax.Array) -> float:
    return float(jnp.sqrt(jnp.sum(jnp.var(values, axis=0, ddof=1))))


def _margin(oracle: Oracle, x: jax.Array, travel: jax.Array) -> jax.Array:
    """Slater's margin within twice the travel."""

    def descend(y: jax.Array, direction: jax.Array, k: jax.Array) -> jax.Array:
        step = oracle.nearby(y - travel / jnp.sqrt(k) * direction / (1e-12 + jnp.linalg.norm(direction))) - x
        return x + step * jnp.minimum(1.0, 2.0 * travel / jnp.maximum(jnp.linalg.norm(step), 2.0 * travel))

    if not oracle.multipliers.size:
        return jnp.asarray(0.0, x.dtype)
    return jax.jit(lambda: slater_margin(oracle, x, jax.random.key(3), descend, rounds=2_000))()


def frank_wolfe(problem: tr.Problem, x0: Any, known: Truth) -> tr.methods.Method:
    """ConservativeFrankWolfe with the formulas of its docstring."""
    s, steps = known.constants, float(STEPS)
    oracle, sample = evaluation_data(oracle_for(problem, Parameters(x0)))
    gradient = oracle.grad(Parameters(x0).start, sample)
    width = float(jnp.linalg.norm(oracle.lmo(-gradient) - oracle.lmo(gradient)))
    height = max(float(s.constraint_norm), 0.1 * float(s.jacobian_norm) * width)
    step_size = max(1.0, min(known.multiplier / height, 0.1 * steps**0.75))
    regularization = 0.1 * float(s.jacobian_norm) ** 2
    enough = 2.0 * known.multiplier * (steps**-0.25 / step_size + step_size * regularization * steps**-0.75)
    tightening = min(enough, 0.5 * float(known.margin)) / steps**-0.25
    return tr.methods.ConservativeFrankWolfe(step_size, tightening=tightening, regularization=regularization)


def estimated(problem: tr.Problem, x0: Any, method: tr.methods.Method, seed: int) -> tr.methods.Method:
    """The method with its constants as a run with this seed estimates them."""
    parameters = Parameters(x0)
    oracle = oracle_for(problem, parameters, method.accepts.form)
    begun = jax.jit(
        lambda key: start(oracle, as_arrays(method, parameters.dtype), parameters.start, key, jnp.int32(STEPS))
    )
    return begun(jax.random.key(seed)).method


def true_method(problem: tr.Problem, x0: Any, solution: Any, name: str) -> tr.methods.Method:
    """The method with its formulas applied to the true constants."""
    method = tr.methods.by_name(name)
    known = truth(problem, x0, solution, method.accepts.form)
    if name == "ConservativeFrankWolfe":
        return frank_wolfe(problem, x0, known)
    module = f"tightrope.methods.{MODULES[name]}"
    with patch(f"{module}.local_constants", lambda *_: known.constants):
        if name != "ConservativeSaddle":
            return estimated(problem, x0, method(), 0)
        with patch(f"{module}.slater_margin", lambda *_: known.margin):
            return estimated(problem, x0, method(), 0)


def hyperparameters(method: tr.methods.Method) -> dict[str, float]:
    values = {spec.name: getattr(method, spec.name) for spec in fields(method)}  # pyright: ignore[reportArgumentType]
    return {name: float(value) for name, value in values.items() if isinstance(value, jax.Array | float)}


def error(x0: Any, solution: Any, results: list[Any]) -> tuple[float, float]:
    """The mean error and the mean violation."""
    start, best = (np.asarray(Parameters(x).start, float) for x in (x0, solution.x))
    ends = [np.asarray(Parameters(r.x).start, float) for r in results]
    near = [best] if solution.unique else [best, -best]
    distance = [min(np.linalg.norm(end - other) for other in near) for end in ends]
    violation = [r.violation for r in results]
    scale = max(1.0, float(np.linalg.norm(start - best)))
    return float(np.mean(np.maximum(distance, violation))) / scale, float(np.mean(violation))


def case(name: str, problem_name: str, seeds: int) -> dict[str, Any]:
    """Both variants, as lanes of one sweep."""
    problem, x0, solution = tr.zoo.available()[problem_name]()
    begun, row = time.perf_counter(), {"method": name, "problem": problem_name, "chosen_on": problem_name in CHOSEN_ON}
    both = [
        tr.methods.by_name(name)(**hyperparameters(method))
        for method in (
            estimated(problem, x0, tr.methods.by_name(name)(), 0),
            true_method(problem, x0, solution, name),
        )
    ]
    results = tr.sweep(problem, x0, both, steps=STEPS, seeds=seeds, record=RECORD).results
    for kind, method, found in zip(("estimated", "true"), both, (results[:seeds], results[seeds:]), strict=True):
        size, violation = error(x0, solution, found)
        row |= {kind: size, f"{kind}_violation": violation, f"{kind}_constants": hyperparameters(method)}
    row["passes"] = row["estimated"] <= max(2.0 * row["true"], NEGLIGIBLE)
    print(f"{name:24s}{problem_name:26s}{row['estimated']:.4f}  {row['true']:.4f}  {row['passes']}", flush=True)
    return row | {"seconds": round(time.perf_counter() - begun, 1)}


def cases(methods: list[str], problems: list[str]) -> list[tuple[str, str]]:
    """Every pair of a method and a problem with a known solution that it takes."""
    pairs = []
    for problem_name in problems:
        problem, _, solution = tr.zoo.available()[problem_name]()
        able = [name for name in methods if refusal(problem, tr.methods.by_name(name)) is None]
        pairs += [(name, problem_name) for name in able if solution.feasible]
    return sorted(pairs, key=lambda pair: methods.index(pair[0]))


def write_table(page: Path, rows: list[dict[str, Any]]) -> None:
    """Replace the table at the end of the page."""
    star = {True: "", False: " \\*"}
    lines = [
        f"| {row['method']} | {row['problem']}{star[row['chosen_on']]} | {row['estimated']:.4f} | {row['true']:.4f} | "
        f"{'yes' if row['passes'] else '**no**'} |\n"
        for row in rows
    ]
    text = page.read_text(encoding="utf-8")
    page.write_text(text[: text.index(TABLE)] + TABLE + "".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measured = [cls.__name__ for cls in PAPERS if cls.__name__ in {*MODULES, "ConservativeFrankWolfe"}]
    parser.add_argument("--methods", nargs="+", default=measured)
    parser.add_argument("--problems", nargs="+", default=list(tr.zoo.available()))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/constants.json"))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    for name, problem_name in cases(options.methods, options.problems):
        rows = [row for row in rows if (row["method"], row["problem"]) != (name, problem_name)]
        rows.append(case(name, problem_name, options.seeds))
        rows.sort(key=lambda row: (measured.index(row["method"]), list(tr.zoo.available()).index(row["problem"])))
        about = {"steps": STEPS, "seeds": options.seeds, "python": platform.python_version(), "jax": jax.__version__}
        options.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
        jax.clear_caches()
    write_table(Path(__file__).parents[1] / "docs" / "constants.md", rows)


if __name__ == "__main__":
    main()
