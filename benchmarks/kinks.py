"""Does the default method satisfy sampled constraints with kinks, at small batches?

- kinks: four constraints whose expectation has a closed form, with endless samples, at batches of 32, 256 and 4,096 examples.
  All runs draw the same number of examples, so there are fewer steps with larger batches. The number is the signed excess,
  h(x) − bound, at the answer of each run, with the exact h in float64, divided by the constraint's scale in the certificate.
  Over the seeds, its mean is to be at most two standard errors, and the standard error at most 5e-4. The seeds of a cell are
  lanes of one `tightrope.sweep`.
- competing: a network of 32 tanh units on the bank data (from the folder in TIGHTROPE_DATA), with recall and false alarms
  bounded: once as in `zoo.learning`, and once by bounds that are harder to meet together. The numbers are the largest
  multiplier and the largest penalty of all steps, and the certificate of the answer.

Run: python benchmarks/kinks.py [SECTION ...] [--seeds 50] [--quick] [--out kinks.json]
Sections that are not run are kept. With --quick there are 10 seeds, batches of 32 and a quarter of the examples, and nothing is
written unless --out is given.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from scipy.stats import norm

import tightrope as tr

EXAMPLES = 2**19
"""Examples that each run draws."""
BATCHES = (32, 256, 4096)
MOST_ERRORS, MOST_ERROR = 2.0, 5e-4
"""The mean excess is to be at most this many standard errors, and the standard error at most this share of the scale."""
QUICK_SHARE = 4


class Case(NamedTuple):
    """A problem with one sampled constraint, its start, and the exact h − bound."""

    problem: tr.Problem
    x0: Any
    excess: Callable[[Any], float]


def mean_of_positive_part(mean: float, deviation: float) -> float:
    """Of a normal variable."""
    return float(mean * norm.cdf(mean / deviation) + deviation * norm.pdf(mean / deviation))


def absolute_error(batch_size: int) -> Case:
    """Small coefficients of a regression, with a mean absolute error of at most 1.1."""
    truth = np.array([0.7, -1.2, 0.5, 0.9, -0.3, 0.4])

    def sample(key: Any, n: int) -> Any:
        normal = jax.random.normal(key, (n, 7))
        return normal[:, :6], normal[:, :6] @ jnp.asarray(truth, jnp.float32) + normal[:, 6]

    def error(x: Any, batch: Any) -> Any:
        return jnp.mean(jnp.abs(batch[0] @ x - batch[1]))

    def excess(x: Any) -> float:
        return float(np.sqrt((np.sum((x - truth) ** 2) + 1.0) * 2.0 / np.pi)) - 1.1

    data = tr.Sampler(sample, batch_size=batch_size)
    return Case(tr.Problem(lambda x: x @ x, tr.at_most(error, 1.1, data=data)), jnp.zeros(6), excess)


def pinball(batch_size: int) -> Case:
    """Small coefficients, with a pinball loss of the 0.8-quantile of at most 0.4."""
    truth = np.array([-0.5, 0.8, 1.0])

    def sample(key: Any, n: int) -> Any:
        normal = jax.random.normal(key, (n, 4))
        return normal[:, :3], normal[:, :3] @ jnp.asarray(truth, jnp.float32) + normal[:, 3]

    def loss(x: Any, batch: Any) -> Any:
        residual = batch[1] - batch[0] @ x["slopes"] - x["offset"]
        return jnp.mean(jnp.maximum(0.8 * residual, -0.2 * residual))

    def size(x: Any) -> Any:
        return x["slopes"] @ x["slopes"] + x["offset"] ** 2

    def excess(x: Any) -> float:
        deviation = float(np.sqrt(np.sum((x["slopes"] - truth) ** 2) + 1.0))
        above, below = (mean_of_positive_part(sign * x["offset"], deviation) for sign in (-1.0, 1.0))
        return 0.8 * above + 0.2 * below - 0.4

    data = tr.Sampler(sample, batch_size=batch_size)
    x0 = {"slopes": jnp.zeros(3), "offset": jnp.zeros(())}
    return Case(tr.Problem(size, tr.at_most(loss, 0.4, data=data)), x0, excess)


def hinge_rate(batch_size: int) -> Case:
    """The logistic loss of two classes, with a mean hinge loss of at most 0.3 in the second."""
    center = np.array([0.6, -0.2, 0.9, 0.1, -0.4])

    def sample(key: Any, n: int) -> Any:
        normal = jax.random.normal(key, (2, n, 5))
        return normal[0] + jnp.asarray(center, jnp.float32), normal[1]

    def score(x: Any, features: Any) -> Any:
        return features @ x["weights"] + x["offset"]

    def loss(x: Any, batch: Any) -> Any:
        return jnp.mean(jax.nn.softplus(-score(x, batch[0])) + jax.nn.softplus(score(x, batch[1])))

    def hinge(x: Any, batch: Any) -> Any:
        return jnp.mean(jnp.maximum(0.0, 1.0 + score(x, batch[1])))

    def excess(x: Any) -> float:
        return mean_of_positive_part(1.0 + float(x["offset"]), float(np.linalg.norm(x["weights"]))) - 0.3

    data = tr.Sampler(sample, batch_size=batch_size)
    x0 = {"weights": jnp.zeros(5), "offset": jnp.zeros(())}
    return Case(tr.Problem(loss, tr.at_most(hinge, 0.3, data=data), data=data), x0, excess)


def value_at_risk(batch_size: int) -> Case:
    """The mean return of a portfolio, with a CVaR of its losses at 95% of at most 0.15; returns are normal."""
    mean = np.array([0.02, 0.03, 0.05, 0.07, 0.08, 0.1])
    rng = np.random.default_rng(0)
    factors = np.diag(2.0 * mean) + 0.03 * rng.normal(size=(6, 6))

    def sample(key: Any, n: int) -> Any:
        return jnp.asarray(mean, jnp.float32) + jax.random.normal(key, (n, 6)) @ jnp.asarray(factors.T, jnp.float32)

    def loss(x: Any, returns: Any) -> Any:
        return -jnp.mean(returns @ x["weights"])

    def cvar(x: Any, returns: Any) -> Any:
        return x["threshold"] + jnp.mean(jnp.maximum(-returns @ x["weights"] - x["threshold"], 0.0)) / 0.05

    def excess(x: Any) -> float:
        threshold, deviation = float(x["threshold"]), float(np.linalg.norm(factors.T @ x["weights"]))
        beyond = mean_of_positive_part(-float(mean @ x["weights"]) - threshold, deviation)
        return threshold + beyond / 0.05 - 0.15

    data = tr.Sampler(sample, batch_size=batch_size)
    domain = tr.domains.Product({"weights": tr.domains.Simplex(), "threshold": tr.domains.Reals()})
    problem = tr.Problem(loss, tr.at_most(cvar, 0.15, data=data), domain=domain, data=data)
    return Case(problem, {"weights": jnp.full(6, 1.0 / 6.0), "threshold": jnp.zeros(())}, excess)


CASES = {
    "CVaR": value_at_risk,
    "pinball loss": pinball,
    "hinge loss": hinge_rate,
    "mean absolute error": absolute_error,
}


def measure(name: str, batch_size: int, examples: int, seeds: int) -> dict[str, Any]:
    """The signed excess of the answers, over the seeds."""
    problem, x0, excess = CASES[name](batch_size)
    began, steps = time.perf_counter(), examples // batch_size
    results = tr.sweep(problem, x0, "AdaptivePenalty", steps=steps, seeds=seeds).results
    answers = [jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), result.x) for result in results]
    scales = [max(result.certificate.scale.values()) for result in results]
    excesses = np.array([excess(x) for x in answers]) / scales
    mean, error = float(np.mean(excesses)), float(np.std(excesses, ddof=1) / np.sqrt(seeds))
    return {
        "constraint": name,
        "batch": batch_size,
        "steps": steps,
        "examples": results[0].samples,
        "seeds": seeds,
        "mean excess / scale": mean,
        "standard error / scale": error,
        "within": mean <= MOST_ERRORS * error and error <= MOST_ERROR,
        "scale": float(np.mean(scales)),
        "median objective": float(np.median([result.objective for result in results])),
        "excesses / scale": excesses.tolist(),
        "seconds": time.perf_counter() - began,
    }


# ---- competing rows ----------------------------------------------------------------------------------------------------


def network(recall: float, alarms: float) -> tuple[tr.Problem, Any]:
    """`zoo.learning.bank_network_recall` with other bounds."""
    problem, x0, _ = tr.zoo.learning.bank_network_recall()
    first, second = problem.constraints
    constraints = [
        tr.at_least(first.fn, recall, data=problem.data, name="recall"),
        tr.at_most(second.fn, alarms, data=problem.data, name="false alarms"),
    ]
    return tr.Problem(problem.objective, constraints, data=problem.data), x0


def compete(recall: float, alarms: float, epochs: float, seeds: int) -> list[dict[str, Any]]:
    """The largest multiplier and penalty of all steps, for each seed."""
    problem, x0 = network(recall, alarms)
    assert isinstance(problem.data, tr.Dataset)
    steps = int(epochs * problem.data.size / problem.data.batch_size)
    stepper = tr.Stepper(problem, x0, "AdaptivePenalty", steps=steps)

    def step(state: Any, _: None) -> tuple[Any, Any]:
        state = stepper.step(state)[0]
        tuning = state.state.tuning
        return state, (jnp.max(jnp.abs(tuning.multipliers)), jnp.max(tuning.penalty))

    run = jax.jit(lambda seed: jax.lax.scan(step, stepper.init(seed=seed), length=steps))
    rows = []
    for seed in range(seeds):
        state, (multipliers, penalties) = run(jnp.int32(seed))
        result = stepper.answer(state)
        rows.append(
            {
                "recall": recall,
                "false alarms": alarms,
                "seed": seed,
                "steps": steps,
                "largest multiplier": float(np.max(multipliers)),
                "largest penalty": float(np.max(penalties)),
                "last multiplier": float(multipliers[-1]),
                "last penalty": float(penalties[-1]),
                "verdict": result.certificate.verdict,
                "relative violation": max(e.value for e in result.certificate.relative_violation.values()),
                "objective": result.objective,
            }
        )
    return rows


# ---- the run -----------------------------------------------------------------------------------------------------------


def show(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in row.items() if not isinstance(value, list)}
    print("  ".join(f"{k}: {v:.3g}" if isinstance(v, float) else f"{k}: {v}" for k, v in shown.items()), flush=True)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Mean ± standard error in thousandths of the scale, by constraint and batch, in Markdown."""
    batches = sorted({row["batch"] for row in rows})
    lines = [
        "| constraint | " + " | ".join(f"batch {batch:,}" for batch in batches) + " |",
        "|---" * (1 + len(batches)) + "|",
    ]
    for name in CASES:
        cells = [
            f"{1e3 * row['mean excess / scale']:.2f} ± {1e3 * row['standard error / scale']:.2f}"
            for row in rows
            if row["constraint"] == name
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def kinks(seeds: int, quick: bool) -> list[dict[str, Any]]:
    batches, examples = (BATCHES[:1], EXAMPLES // QUICK_SHARE) if quick else (BATCHES, EXAMPLES)
    rows = [show(measure(name, batch, examples, seeds)) for name in CASES for batch in batches]
    print(table(rows))
    print(f"{sum(row['within'] for row in rows)} of {len(rows)} cells are within the limits")
    return rows


def competing(seeds: int, quick: bool) -> list[dict[str, Any]]:
    runs, epochs = (2, 1) if quick else (6, 10)
    return [show(row) for bounds in ((0.6, 0.15), (0.9, 0.1)) for row in compete(*bounds, epochs, runs)]


SECTIONS = {"kinks": kinks, "competing": competing}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help="kinks or competing; default: both")
    parser.add_argument("--seeds", type=int, help="of a cell of kinks; default: 50")
    parser.add_argument("--quick", action="store_true", help="fewer examples and seeds, as a smoke test")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"sections are {', '.join(SECTIONS)}; got {', '.join(sorted(unknown))}")
    out = options.out or (None if options.quick else Path(__file__).parent / "results" / "kinks.json")
    report = json.loads(out.read_text()) if out is not None and out.exists() else {}
    machine = {"python": platform.python_version(), "processor": platform.machine(), "cores": os.cpu_count()}
    machine |= {"jax": jax.__version__, "numpy": np.__version__, "scipy": scipy.__version__}
    report["machine"] = machine
    for section in options.sections or SECTIONS:
        report[section] = SECTIONS[section](options.seeds or (10 if options.quick else 50), options.quick)
        if out is not None:
            out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
