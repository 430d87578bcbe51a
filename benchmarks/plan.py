"""How good is the forecast of `tightrope.plan`? Forecasts and the steps that a long run needed.

    python benchmarks/plan.py

For each problem, method and accuracy: the forecast from the pilot run of 1,000 steps, and the first record of a run of 16,000
steps from which on the root mean square of the residual, the larger of stationarity and violation, is at most the accuracy.
The pilot is the beginning of that run for methods that do not use the horizon. Writes benchmarks/results/plan.json and prints
the table of docs/guide.md.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import tightrope as tr
from tightrope.runs.fitting import fit
from tightrope.runs.planning import PILOT_STEPS, first_reached, forecast, residuals_of

RESULTS = Path(__file__).parent / "results" / "plan.json"
STEPS, RECORDS = 16_000, 200
ACCURACIES = (0.1, 0.03, 0.01)
CASES = (
    ("noisy_sphere", None),
    ("noisy_sphere", "ExactPenalty"),
    ("noisy_sphere", "LinearizedPenalty"),
    ("lens", None),
    ("lens", "ExactPenalty"),
    ("lens", "TruncatedMomentum"),
    ("outside_the_ball", None),
    ("outside_the_ball", "ExactPenalty"),
    ("outside_the_ball", "LinearizedPenalty"),
    ("three_bands", None),
    ("three_bands", "ExactPenalty"),
)


def measure(name: str, method: str | None) -> list[dict[str, Any]]:
    """Forecasts and needed steps of one method on one problem."""
    problem, x0, _ = tr.zoo.available()[name]()
    result = tr.solve(problem, x0, method, steps=STEPS, record=STEPS // RECORDS, progress=False)
    steps, _, residuals = residuals_of(result, STEPS)
    rows = []
    pilot = tr.plan(problem, x0, accuracy=ACCURACIES[0], method=method).pilot
    fitted = fit("plan", problem, x0, method, PILOT_STEPS)
    for accuracy in ACCURACIES:
        expected, _, _, rate = forecast(fitted, pilot, accuracy)
        needed = first_reached(steps, residuals, accuracy)
        rows.append(
            {
                "problem": name,
                "method": pilot.method,
                "accuracy": accuracy,
                "forecast": None if math.isinf(expected) else round(expected),
                "in the pilot": math.isnan(rate),
                "needed": None if needed is None else round(needed),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a table in Markdown: forecast / needed."""
    lines = ["| problem | method | " + " | ".join(f"ε = {a:g}" for a in ACCURACIES) + " |", "|---|---|" + "---|" * 3]
    for first in rows[:: len(ACCURACIES)]:
        same = [r for r in rows if (r["problem"], r["method"]) == (first["problem"], first["method"])]
        cells = [f"{_text(r['forecast'], 'none')} / {_text(r['needed'], f'> {STEPS:,}')}" for r in same]
        lines.append(f"| `{first['problem']}` | {first['method']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _text(value: int | None, otherwise: str) -> str:
    return otherwise if value is None else f"{value:,}" if value < 1e6 else f"{value:.0e}"


def main() -> None:
    """Measure all cases."""
    rows: list[dict[str, Any]] = []
    for name, method in CASES:
        rows += measure(name, method)
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
