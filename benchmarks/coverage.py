"""Coverage and width of the intervals of a certificate.

Every case computes many 95% certificates with `tightrope.certify`, on fresh samples, and compares them with exact values.
Widths are those of the first constraint, divided by the width of a single interval by the central limit theorem with the true
variance, the same confidence and the same number of samples, without a correction for several intervals.

- values: one, three or ten constraints with bounded samples (with a `sample_range`: guaranteed intervals) or Gaussian samples
  (asymptotic intervals).
- heavy tails: the same without a range; no coverage is guaranteed there, only measured.
- points: objective, violation, stationarity and complementarity of a problem with samples in objective, constraint and
  Jacobian, at several points; the exact values are those of the certificate of the problem with its expectations.
- answers: the same for the answers of whole runs, and how often an infeasible one is called feasible.

Run: python benchmarks/coverage.py [SECTION ...] [--repeats 1000] [--samples 16384] [--out coverage.json]
Sections that are not run are kept, so that a run can be split.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

import tightrope as tr

OFFSET = 0.05
"""Distance of targets from the mean, in standard deviations: violations are not zero, so both ends of intervals matter."""


class Law(NamedTuple):
    """A distribution: its sampler, mean, standard deviation, and range if it is bounded."""

    draw: Callable[[Any, tuple[int, ...]], Any]
    mean: float
    deviation: float
    range: tuple[float, float] | None = None


def bernoulli(p: float, known: bool = True) -> Law:
    return Law(lambda k, s: jax.random.bernoulli(k, p, s) * 1.0, p, (p * (1 - p)) ** 0.5, (0, 1) if known else None)


def arcsine() -> Law:
    """Beta(½, ½), by its quantiles."""
    return Law(lambda k, s: jnp.sin(0.5 * jnp.pi * jax.random.uniform(k, s)) ** 2, 0.5, 0.125**0.5, (0, 1))


def small_beta(b: float) -> Law:
    """Beta(1, b), by its quantiles."""
    deviation = (b / ((1 + b) ** 2 * (2 + b))) ** 0.5
    return Law(lambda k, s: 1.0 - jax.random.uniform(k, s) ** (1.0 / b), 1.0 / (1.0 + b), deviation, (0, 1))


def student(freedom: float) -> Law:
    return Law(lambda k, s: jax.random.t(k, freedom, s), 0.0, (freedom / (freedom - 2)) ** 0.5)


def lognormal(sigma: float) -> Law:
    mean = float(np.exp(sigma**2 / 2))
    return Law(lambda k, s: jnp.exp(sigma * jax.random.normal(k, s)), mean, mean * float(np.expm1(sigma**2)) ** 0.5)


def pareto(a: float) -> Law:
    """Mean a / (a − 1); without a variance, 1 replaces the standard deviation."""
    deviation = (a / (a - 2)) ** 0.5 / (a - 1) if a > 2 else 1.0
    return Law(lambda k, s: jax.random.pareto(k, a, s), a / (a - 1), deviation)


BOUNDED = {
    "Bernoulli(0.01)": bernoulli(0.01),
    "Bernoulli(0.1)": bernoulli(0.1),
    "Bernoulli(0.5)": bernoulli(0.5),
    "uniform on [-1, 3]": Law(
        lambda k, s: jax.random.uniform(k, s, minval=-1.0, maxval=3.0), 1.0, 4 / 12**0.5, (-1, 3)
    ),
    "Beta(0.5, 0.5)": arcsine(),
    "Beta(1, 20)": small_beta(20.0),
}
GAUSSIAN = {"Gaussian": Law(lambda k, s: 5.0 + 2.0 * jax.random.normal(k, s), 5.0, 2.0)}
HEAVY = {
    "Student t(3)": student(3.0),
    "Student t(2.1)": student(2.1),
    "log-normal(1)": lognormal(1.0),
    "log-normal(2)": lognormal(2.0),
    "log-normal(3)": lognormal(3.0),
    "Pareto(3)": pareto(3.0),
    "Pareto(2.1)": pareto(2.1),
    "Pareto(1.5), no variance": pareto(1.5),
    "Bernoulli(1e-3), no range": bernoulli(1e-3, known=False),
    "Bernoulli(1e-4), no range": bernoulli(1e-4, known=False),
    "Bernoulli(1e-4)": bernoulli(1e-4),
}


def values_problem(law: Law, count: int) -> tr.Problem:
    """`count` equations E ξ_i = target, each violated by OFFSET standard deviations."""
    data = tr.Sampler(lambda key, n: law.draw(key, (n, count)), batch_size=16)
    target = law.mean - OFFSET * law.deviation

    def made(i: int) -> tr.Constraint:
        def column(x: Any, batch: Any) -> Any:
            return jnp.mean(batch[:, i]) + 0.0 * x[0]

        return tr.equals(column, target, data=data, name=f"column {i}", sample_range=law.range)

    return tr.Problem(lambda x: jnp.sum(x**2), [made(i) for i in range(count)])


def measure_values(name: str, law: Law, count: int, repeats: int, samples: int) -> dict[str, Any]:
    problem, x, truth = values_problem(law, count), jnp.zeros(1), OFFSET * law.deviation
    joint, single, widths, kind = 0, 0, [], ""
    for seed in range(repeats):
        found = tr.certify(problem, x, seed=seed, samples=samples).violation
        held = [e.low <= truth <= e.high for e in found.values()]
        joint, single = joint + all(held), single + held[0]
        first = found["column 0"]
        widths.append(first.high - first.low)
        kind = first.kind
    limit = 2.0 * float(ndtri(0.975)) * law.deviation / samples**0.5
    return {
        "law": name,
        "constraints": count,
        "kind": kind,
        "joint coverage": joint / repeats,
        "coverage of one": single / repeats,
        "median width / CLT": float(np.median(widths)) / limit,
    }


# ---- points ------------------------------------------------------------------------------------------------------------

SPREAD = 0.5
LANES = 250
"""Runs of one sweep."""


def points_problem(size: int, noisy: bool, domain: tr.domains.Domain | None) -> tr.Problem:
    """Min E ½‖x − ξ‖² with E⟨a + ζ, x⟩ ≤ 1, E⟨b + ζ, x⟩ = ½ and deterministic x₀ ≤ 2; with samples, or their expectations."""
    goal, first = jnp.full(size, 1.5), jnp.ones(size)
    second = jnp.arange(size) % 2 - 0.25
    data = tr.Sampler(lambda key, n: SPREAD * jax.random.normal(key, (n, size)), batch_size=16)

    def distance(x: Any, batch: Any = None) -> Any:
        if batch is None:
            return 0.5 * jnp.sum((x - goal) ** 2) + 0.5 * size * SPREAD**2
        return 0.5 * jnp.mean(jnp.sum((x - goal - batch) ** 2, axis=1))

    def along(direction: Any) -> Callable[..., Any]:
        return lambda x, batch=None: direction @ x if batch is None else jnp.mean((direction + batch) @ x)

    source = data if noisy else None
    constraints = [
        tr.at_most(along(first), 1.0, data=source, name="budget"),
        tr.equals(along(second), 0.5, data=source, name="balance"),
        tr.at_most(lambda x: x[0], 2.0, name="cap"),
    ]
    return tr.Problem(distance, constraints, domain=domain, data=source)


def points(plain: tr.Problem, size: int) -> dict[str, Any]:
    """The solution of the problem and other points in its set."""
    solution = tr.solve(plain, jnp.zeros(size), tr.methods.GradientDescentAscent(), steps=20_000).x
    step = jnp.asarray(np.random.default_rng(0).normal(size=size) / size**0.5, jnp.float32)
    return {
        "solution": solution,
        "near it": plain.domain.project(solution + 0.02 * step),
        "inside": plain.domain.project(0.2 * solution),
        "outside": plain.domain.project(2.0 * solution + step),
        "origin": jnp.zeros(size),
    }


def measure_points(size: int, domain: tr.domains.Domain | None, repeats: int, samples: int) -> Iterator[dict[str, Any]]:
    noisy, plain = points_problem(size, True, domain), points_problem(size, False, domain)
    for where, x in points(plain, size).items():
        truth = tr.certify(plain, x)
        expected = [truth.objective, truth.stationarity, truth.complementarity, *truth.violation.values()]
        held, widths = [], []
        for seed in range(repeats):
            c = tr.certify(noisy, x, seed=seed, samples=samples)
            found = [c.objective, c.stationarity, c.complementarity, *c.violation.values()]
            held.append([e.low <= t.value <= e.high for e, t in zip(found, expected, strict=True)])
            widths.append([e.high - e.low for e in found[1:3]])
        shares = np.mean(held, axis=0)
        yield {
            "variables": size,
            "set": "none" if domain is None else type(domain).__name__,
            "point": where,
            "joint coverage": float(np.mean(np.all(held, axis=1))),
            "objective": shares[0],
            "stationarity": shares[1],
            "complementarity": shares[2],
            "true stationarity": truth.stationarity.value,
            "width of stationarity": float(np.median(widths, axis=0)[0]),
            "true complementarity": truth.complementarity.value,
            "width of complementarity": float(np.median(widths, axis=0)[1]),
        }


# ---- answers -----------------------------------------------------------------------------------------------------------


def measure_answers(size: int, method: str, repeats: int, steps: int = 300) -> dict[str, Any]:
    """Certificates of the answers of whole runs: each was chosen among candidates, all by samples.

    'said feasible' is the share of runs called feasible among those whose true violation is above the tolerance.
    """
    noisy, plain = points_problem(size, True, None), points_problem(size, False, None)
    held, infeasible, said = [], [], []
    for first in range(0, repeats, LANES):
        seeds = range(first, min(first + LANES, repeats))
        for result in tr.sweep(noisy, jnp.zeros(size), method, steps=steps, seeds=seeds).results:
            c, truth = result.certificate, tr.certify(plain, result.x)
            expected = [truth.objective, truth.stationarity, truth.complementarity, *truth.violation.values()]
            found = [c.objective, c.stationarity, c.complementarity, *c.violation.values()]
            held.append([e.low <= t.value <= e.high for e, t in zip(found, expected, strict=True)])
            violations = [truth.violation[name].value / np.max(c.scale[name]) for name in truth.violation]
            infeasible.append(max(violations) > c.tolerance)
            said.append(c.verdict == "feasible")
    wrong = np.array(infeasible)
    return {
        "variables": size,
        "method": method,
        "runs": len(held),
        "joint coverage": float(np.mean(np.all(held, axis=1))),
        "violations": float(np.mean(np.all(np.array(held)[:, 3:], axis=1))),
        "truly infeasible": int(wrong.sum()),
        "said feasible": float(np.sum(np.array(said) & wrong) / max(wrong.sum(), 1)),
    }


# ---- the run -----------------------------------------------------------------------------------------------------------


def all_values(repeats: int, samples: int) -> Iterator[dict[str, Any]]:
    for name, law in (BOUNDED | GAUSSIAN).items():
        for count in (1, 3, 10):
            yield measure_values(name, law, count, repeats, samples)


def all_points(repeats: int, samples: int) -> Iterator[dict[str, Any]]:
    for dimension, domain in ((2, None), (50, None), (4, tr.domains.Box(0.0, 1.0))):
        yield from measure_points(dimension, domain, repeats, samples)


def all_answers(repeats: int, samples: int) -> Iterator[dict[str, Any]]:
    """These have the number of samples that `solve` certifies on."""
    for dimension, method in ((2, "AdaptivePenalty"), (2, "GradientDescentAscent"), (20, "AdaptivePenalty")):
        yield measure_answers(dimension, method, repeats)


def all_heavy_tails(repeats: int, samples: int) -> Iterator[dict[str, Any]]:
    for name, law in HEAVY.items():
        yield measure_values(name, law, 1, repeats, samples)


WANTED = {"least joint coverage": "at least 0.93", "largest median width / CLT": "at most 3"}
SECTIONS = {"values": all_values, "points": all_points, "answers": all_answers, "heavy tails": all_heavy_tails}


def show(row: dict[str, Any]) -> dict[str, Any]:
    print("  ".join(f"{k}: {v:.3g}" if isinstance(v, float) else f"{k}: {v}" for k, v in row.items()), flush=True)
    return row


def summary(report: dict[str, Any]) -> dict[str, float]:
    """The least coverage where one is promised, and the widest intervals, of the sections that were run."""
    promised = [row["joint coverage"] for part in ("values", "points", "answers") for row in report.get(part, [])]
    widths = [row["median width / CLT"] for row in report.get("values", [])]
    least = {"least joint coverage": min(promised)} if promised else {}
    return least | ({"largest median width / CLT": max(widths)} if widths else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=16_384)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "coverage.json")
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"sections are {', '.join(SECTIONS)}; got {', '.join(sorted(unknown))}")
    size = {"repeats": options.repeats, "samples": options.samples}
    report = json.loads(options.out.read_text()) if options.out.exists() else {}
    report |= {"confidence": 0.95, **size, "jax": jax.__version__, "processor": platform.machine()}
    for section in options.sections or SECTIONS:
        began = time.perf_counter()
        report[section] = [show(row) for row in SECTIONS[section](**size)]
        report[f"minutes of {section}"] = (time.perf_counter() - began) / 60
        report |= summary(report)
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    for name, value in summary(report).items():
        print(f"{name}: {value:.3f} (wanted: {WANTED[name]})")


if __name__ == "__main__":
    main()
