"""The promise of `solve(holdout=…)` on populations that are known, and Seldonian algorithms at equal data.

People have four features x ~ N(s m, I), where s is their group, each with probability ½, and y = ±1 with log-odds β·(x, 1). A
logistic classifier w minimizes its loss E log(1 + exp(−y w·(x, 1))) under

- rate: E 1{y = −1} sigmoid(w·(x, 1)) ≤ 0.1, with its range (0, 1): guaranteed bounds.
- rate and gap: the same without its range, and −0.5 ≤ E[w·(x, 1) | s = 1] − E[w·(x, 1) | s = 0] ≤ 0.5, unbounded: asymptotic.

Every repeat draws n examples, keeps 30% of them aside, and solves. True values are Gauss-Hermite sums over the population. A
promise is broken if the true violation is above the bound that was stated. Seldonian algorithms [1] get the same examples in
the same two parts. Their candidate minimizes the loss on the training part, subject to the bound predicted for the safety
test with twice its half-width (SLSQP with exact gradients, so that nothing is lost by an inexact search). The safety test of
each constraint has the risk δ/m. It is Hoeffding's inequality, which needs a range, or Student's t (quasi-Seldonian).

[1] Thomas, Castro da Silva, Barto, Giguere, Brun, Brunskill: Preventing undesirable behavior of intelligent machines (2019).

Run: python benchmarks/holdout.py [CASE ...] [--repeats 1000] [--sizes 500 2000 10000] [--out holdout.json]
Cells that are not run are kept, so that a run can be split.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, roots_hermitenorm, stdtrit

import tightrope as tr
from tightrope.runs.holdout import split_rows

RISK, SHARE, STEPS = 0.05, 0.3, 500
MEAN = np.array([0.6, 0.0, 0.3, 0.0, 0.0])
"""How the features of the second group differ; the last entry is the intercept's."""
WEIGHTS = np.array([1.5, -1.0, 0.5, 0.0, 0.3])
"""β."""
MOST_WRONG, WIDEST_GAP = 0.1, 0.5


def people(seed: int, n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng((seed, n))
    s = rng.integers(0, 2, n).astype(float)
    x = np.hstack([rng.normal(size=(n, 4)), np.ones((n, 1))]) + s[:, None] * MEAN
    y = np.where(rng.random(n) < expit(x @ WEIGHTS), 1.0, -1.0)
    return {name: a.astype(np.float32) for name, a in {"x": x, "y": y, "s": s}.items()}


class Truth(NamedTuple):
    """The true loss, rate and gap of classifiers."""

    loss: np.ndarray
    rate: np.ndarray
    gap: np.ndarray


def truth(w: np.ndarray, nodes: int = 60) -> Truth:
    """Sums over both groups and over the two normal numbers β·(x, 1) and w·(x, 1); `w` has one classifier per row."""
    points, weights = roots_hermitenorm(nodes)
    weights = weights / weights.sum()
    first, second = np.meshgrid(points, points, indexing="ij")
    joint = np.outer(weights, weights)
    size = np.linalg.norm(WEIGHTS[:4])
    along = w[:, :4] @ WEIGHTS[:4] / size
    across = np.sqrt(np.maximum(np.sum(w[:, :4] ** 2, axis=1) - along**2, 0.0))
    loss, rate = np.zeros(len(w)), np.zeros(len(w))
    for group in (0.0, 1.0):
        center = group * MEAN + np.eye(5)[4]
        odds = center @ WEIGHTS + size * first
        for i, own in enumerate(w):
            score = center @ own + along[i] * first + across[i] * second
            positive = expit(odds)
            per_label = positive * np.logaddexp(0.0, -score) + (1.0 - positive) * np.logaddexp(0.0, score)
            loss[i] += 0.5 * np.sum(joint * per_label)
            rate[i] += 0.5 * np.sum(joint * (1.0 - positive) * expit(score))
    return Truth(loss, rate, w @ MEAN)


# ---- tightrope ---------------------------------------------------------------------------------------------------------


def loss(w: Any, batch: Any) -> Any:
    return jnp.mean(jax.nn.softplus(-batch["y"] * (batch["x"] @ w)))


def rate(w: Any, batch: Any) -> Any:
    return jnp.mean(jax.nn.sigmoid(batch["x"] @ w) * (batch["y"] < 0))


def gap(w: Any, batch: Any) -> Any:
    return jnp.mean(2.0 * (2.0 * batch["s"] - 1.0) * (batch["x"] @ w))


def problem_of(case: str, data: tr.Dataset) -> tr.Problem:
    if case == "rate":
        return tr.Problem(loss, tr.at_most(rate, MOST_WRONG, data=data, sample_range=(0.0, 1.0)), data=data)
    rows = [tr.at_most(rate, MOST_WRONG, data=data), tr.between(gap, -WIDEST_GAP, WIDEST_GAP, data=data)]
    return tr.Problem(loss, rows, data=data)


class Outcome(NamedTuple):
    """What a method answers with, whether it says that this is a solution, and what it promises of each violation."""

    w: np.ndarray
    passed: bool
    promised: list[float]
    needed: int | None = None
    interval: np.ndarray | None = None
    """The ends that are stated for each true value."""


def ours(problem: tr.Problem, data: tr.Dataset, arrays: dict[str, np.ndarray], seed: int) -> Outcome:
    data.arrays = jax.tree.map(jnp.asarray, arrays)  # the same problem on other people: nothing is traced again
    result = tr.solve(problem, jnp.zeros(5), steps=STEPS, record=100, seed=seed, holdout=SHARE)
    promise = result.holdout
    assert promise is not None
    interval = np.array([[promise.low[name][0], promise.high[name][0]] for name in promise.violation])
    promised, needed = list(promise.violation.values()), promise.examples_needed
    return Outcome(np.asarray(result.x, float), promise.passed, promised, needed, interval)


# ---- Seldonian algorithms ----------------------------------------------------------------------------------------------


class Part:
    """The loss and the constraints g ≤ 0 on a part of the examples, with their gradients."""

    def __init__(self, case: str, test: str, arrays: dict[str, np.ndarray], rows: np.ndarray):
        self.case, self.test = case, test
        self.x, self.y, self.s = (arrays[name][rows].astype(float) for name in ("x", "y", "s"))

    def loss(self, w: np.ndarray) -> tuple[float, np.ndarray]:
        margin = self.y * (self.x @ w)
        return float(np.mean(np.logaddexp(0.0, -margin))), -self.x.T @ (self.y * expit(-margin)) / len(self.y)

    def values(self, w: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """The values of each g on every example, and their derivatives by w·x."""
        chance = expit(self.x @ w) * (self.y < 0)
        found = [(chance - MOST_WRONG, chance * (1.0 - expit(self.x @ w)))]
        if self.case != "rate":
            sign = 2.0 * (2.0 * self.s - 1.0)
            found += [(side * sign * (self.x @ w) - WIDEST_GAP, side * sign) for side in (1.0, -1.0)]
        return found

    def bounds(self, w: np.ndarray, examples: int, times: float) -> tuple[np.ndarray, np.ndarray]:
        """Upper bounds of each g for this many examples, `times` their half-width above the mean, and gradients."""
        ends, slopes = [], []
        all_values = self.values(w)
        for value, derivative in all_values:
            by_example = derivative[:, None] * self.x
            end, slope = value.mean(), by_example.mean(axis=0)
            if self.test == "Hoeffding":
                end = end + times * np.sqrt(np.log(len(all_values) / RISK) / (2.0 * examples))
            else:
                width = times * -stdtrit(examples - 1, RISK / len(all_values)) / np.sqrt(examples)
                spread = max(float(value.std(ddof=1)), 1e-12)
                end = end + width * spread
                slope = slope + width * (value - value.mean()) @ by_example / ((len(value) - 1) * spread)
            ends.append(end)
            slopes.append(slope)
        return np.array(ends), np.array(slopes)


def seldonian(case: str, test: str, arrays: dict[str, np.ndarray], seed: int) -> Outcome:
    training, aside = split_rows(len(arrays["y"]), SHARE, seed)
    candidates, safety = Part(case, test, arrays, training), Part(case, test, arrays, aside)
    predicted = {
        "type": "ineq",
        "fun": lambda w: -candidates.bounds(w, len(aside), 2.0)[0],
        "jac": lambda w: -candidates.bounds(w, len(aside), 2.0)[1],
    }
    w = minimize(candidates.loss, np.full(5, 0.01), jac=True, constraints=predicted, method="SLSQP").x
    ends, _ = safety.bounds(w, len(aside), 1.0)
    return Outcome(w, bool((ends <= 0.0).all()), [0.0] * (1 if case == "rate" else 2))


# ---- the run -----------------------------------------------------------------------------------------------------------


def summary(case: str, outcomes: list[Outcome]) -> dict[str, Any]:
    """Shares over all runs; medians are over those that return a solution."""
    true = truth(np.array([outcome.w for outcome in outcomes]))
    values = true.rate[:, None] if case == "rate" else np.stack([true.rate, true.gap], axis=1)
    limits = np.array([MOST_WRONG, WIDEST_GAP])[: values.shape[1]]
    violations = np.maximum(np.abs(values) - limits, 0.0)
    passed = np.array([outcome.passed for outcome in outcomes])
    above = (violations > np.array([outcome.promised for outcome in outcomes]) + 1e-7).any(axis=1)
    intervals = [outcome.interval for outcome in outcomes if outcome.interval is not None]
    missed = None
    if intervals:
        low, high = np.moveaxis(np.array(intervals), 2, 0)
        missed = float(((values < low) | (values > high)).any(axis=1).mean())
    needed = [outcome.needed for outcome in outcomes if outcome.needed is not None]
    return {
        "solutions": float(passed.mean()),
        "broken": float(np.mean(passed & above)),
        "median true loss": float(np.median(true.loss[passed])) if passed.any() else None,
        "median true rate": float(np.median(true.rate[passed])) if passed.any() else None,
        "median examples needed": float(np.median(needed)) if needed else None,
        "above the stated bound, of all runs": float(above.mean()),
        "a true value outside its stated ends, of all runs": missed,
    }


def measure(case: str, n: int, repeats: int) -> list[dict[str, Any]]:
    data = tr.Dataset(people(0, n), batch_size=64)
    problem = problem_of(case, data)
    tests = {"quasi-Seldonian": "t"} | ({"Seldonian": "Hoeffding"} if case == "rate" else {})
    kept: dict[str, list[Outcome]] = {name: [] for name in ("tightrope", *tests)}
    began = time.perf_counter()
    for seed in range(repeats):
        arrays = people(seed, n)
        kept["tightrope"].append(ours(problem, data, arrays, seed))
        for name, test in tests.items():
            kept[name].append(seldonian(case, test, arrays, seed))
    minutes = (time.perf_counter() - began) / 60
    rows = []
    for method, outcomes in kept.items():
        row = {"case": case, "examples": n, "method": method, "repeats": repeats}
        rows.append(row | summary(case, outcomes) | {"minutes of all methods": minutes})
        print(
            "  ".join(f"{k}: {v:.4g}" if isinstance(v, float) else f"{k}: {v}" for k, v in rows[-1].items()), flush=True
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="of 'rate', 'rate and gap'; default: both")
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--sizes", type=int, nargs="*", default=[500, 2000, 10_000])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "holdout.json")
    options = parser.parse_args()
    report: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {"rows": []}
    report |= {"confidence": 1.0 - RISK, "share kept aside": SHARE, "steps": STEPS}
    report |= {"jax": jax.__version__, "processor": platform.machine()}
    for n in options.sizes:
        for case in options.cases or ("rate", "rate and gap"):
            kept = [row for row in report["rows"] if (row["case"], row["examples"]) != (case, n)]
            rows = kept + measure(case, n, options.repeats)
            report["rows"] = sorted(rows, key=lambda row: (row["case"], row["examples"]))
            options.out.write_text(json.dumps(report, indent=1) + "\n")
    worst = max(row["broken"] for row in report["rows"] if row["method"] == "tightrope")
    print(f"most promises broken: {worst:.3f} (wanted: at most {RISK} + 2 standard errors)")


if __name__ == "__main__":
    main()
