"""Sections `gradients` and `constraints`: the programs of `zoo.hs` with noise."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

import tightrope as tr
from tightrope.certificates.evaluation import complementarity, raw_violations, stationarity
from tightrope.oracles.build import oracle_for
from tightrope.problems.parameters import Parameters

from .tasks import DEFAULT, STEPS, Row, Task, method_of, steps_for

SHARES = ("solved", "last", "complementary", "optimal")


def programs(quick: bool) -> list[str]:
    return list(tr.zoo.hs.available())[:: 50 if quick else 1]


def equations_alone(name: str) -> bool:
    problem = tr.zoo.hs.available()[name]()[0]
    return isinstance(problem.domain, tr.domains.Reals) and all(c.kind == "equals" for c in problem.constraints)


class Judge:
    """A program without noise, and the criteria for an answer at a noise level."""

    def __init__(self, name: str):
        problem, x0, solution = tr.zoo.hs.available()[name]()
        parameters = Parameters(x0)
        oracle = oracle_for(problem, parameters)

        def measure(x: Any) -> Any:
            objective, gradient = oracle.value_and_grad(x, ())
            rows, jacobian = oracle.c(x, ()), oracle.jac(x, ())
            multipliers, residual = stationarity(oracle, x, parameters.start, gradient, rows, jacobian)
            violation = jnp.max(raw_violations(oracle, rows), initial=0.0)
            products = complementarity(oracle, rows, multipliers)
            return jnp.stack([objective, violation, products, jnp.max(jnp.abs(residual)), jnp.max(jnp.abs(gradient))])

        self.measure, self.best = jax.jit(measure), solution.objective
        _, violation, _, _, gradient = self.measure(x0).tolist()
        self.violation, self.gradient = max(1.0, violation), max(1.0, gradient)

    def __call__(self, x: Any, level: float, standard_error: float) -> dict[str, bool]:
        objective, violation, products, residual, _ = self.measure(x).tolist()
        tolerance = max(1e-2, 3.0 * math.sqrt(level)) * self.gradient
        feasible = violation <= 1e-4 * self.violation + 3.0 * standard_error
        solved = feasible and residual <= tolerance
        return {
            "solved": solved,
            "complementary": solved and products <= tolerance,
            "optimal": feasible and objective - self.best <= 0.01 * max(1.0, abs(self.best)),
        }


def noisy_tasks(section: str, options: argparse.Namespace) -> Iterator[Task]:
    others = {"gradients": ["StochasticSQP"], "constraints": ["GradientDescentAscent"]}[section]
    for method in [DEFAULT, *others]:
        steps = (STEPS, 2 * STEPS) if method == "StochasticSQP" else (STEPS,)
        for name in programs(options.quick):
            if method != "StochasticSQP" or equations_alone(name):
                yield Task(section, name, method, tuple(range(options.seeds)), tuple(options.levels), steps)


class Scaled(tr.Sampler):
    """A sampler's examples times a factor that is an argument of compiled programs, so that all levels share them."""

    def __init__(self, sampler: tr.Sampler):
        super().__init__(sampler.fn, sampler.batch_size)
        self.arrays = jnp.ones(())

    def batch(self, arrays: Any, sample: Any) -> Any:
        return jax.tree.map(lambda examples: arrays * examples, sample)


def with_noise(name: str, both: bool) -> tuple[tr.Problem, Any]:
    """A program with noise of variance 1 in the gradient, or also in the constraints, from `Scaled` samplers."""
    problem, x0, _ = tr.zoo.hs.available()[name](noise=1.0, constraint_noise=1.0 if both else 0.0)
    scaled = {id(source): Scaled(source) for source in problem.sources if isinstance(source, tr.Sampler)}
    constraints = [replace(c, data=scaled.get(id(c.data))) for c in problem.constraints]
    return tr.Problem(problem.objective, constraints, domain=problem.domain, data=scaled[id(problem.data)]), x0


def run_noisy(task: Task) -> Row:
    """The number of seeds whose answers meet each criterion, for each level and number of steps."""
    both = task.section == "constraints"
    problem, x0 = with_noise(task.problem, both)
    method, judged = method_of(task.method), Judge(task.problem)

    def run(level: float, steps: int) -> Row:
        judge = partial(judged, level=level, standard_error=math.sqrt(level / STEPS) if both else 0.0)
        for source in problem.sources:
            source.arrays = jnp.sqrt(level)  # pyright: ignore[reportAttributeAccessIssue]
        if both:
            steps = steps_for(problem, x0, method, task.seeds, steps * len(problem.sources), pilot=100)
        record = tr.Record(-(-steps // 100), metrics={"solved": lambda x, batch: judge(x)["solved"]})
        found = tr.sweep(problem, x0, method, steps=steps, seeds=task.seeds, record=record).results
        answers = [judge(result.x) | {"last": bool(result.history["solved"][-1])} for result in found]
        counts = {name: sum(answer[name] for answer in answers) for name in SHARES}
        return counts | {"statuses": [result.status for result in found], "samples": found[0].samples}

    return {"runs": [[run(level, steps) for steps in task.steps] for level in task.levels]}


def report_noisy(found: dict[Task, Row]) -> list[Row]:
    """A row per level and method, and one for the default on the programs that StochasticSQP accepts."""
    section = next(iter(found)).section
    print(f"\n{section}, share of (program, seed)".ljust(78), *(name.rjust(13) for name in SHARES))
    rows = []
    for method in dict.fromkeys(task.method for task in found):
        mine = {task: row for task, row in found.items() if task.method == method}
        *_, seeds, levels, several, _ = next(iter(mine))
        for (i, level), (j, steps) in product(enumerate(levels), enumerate(several)):
            runs = {task.problem: row["runs"][i][j] if "runs" in row else row for task, row in mine.items()}
            label = f"variance {level:.0e}, {method}" + (f", {steps} steps" if len(several) > 1 else "")
            rows.append(noisy_row(section, method, label, runs, len(seeds)))
            if section == "gradients" and method == DEFAULT:
                alone = {name: run for name, run in runs.items() if equations_alone(name)}
                rows += [noisy_row(section, method, f"{label}, equations alone", alone, len(seeds))] if alone else []
    return rows


def noisy_row(section: str, method: str, label: str, runs: dict[str, Row], seeds: int) -> Row:
    """The shares over all programs; a run with an error counts as unsolved."""
    shares = {name: sum(run.get(name, 0) for run in runs.values()) / (seeds * len(runs)) for name in SHARES}
    missed = {name: seeds - run.get("solved", 0) for name, run in runs.items() if run.get("solved", 0) < seeds}
    called = [name for name, run in runs.items() if {"infeasible", "unbounded"} & set(run.get("statuses", ()))]
    print(f"  {label}, {len(runs)} programs".ljust(77), *(f"{share:13.3f}" for share in shares.values()))
    if called:
        print("    reported as infeasible or unbounded:", ", ".join(called))
    about = {"method": method, "programs": len(runs), "seeds": seeds}
    about |= {"most samples": max(run.get("samples", 0) for run in runs.values())}
    errors = {name: run["error"] for name, run in runs.items() if "error" in run}
    return {"section": section, "case": label} | about | shares | {"missed": missed, "called": called, "errors": errors}
