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

import numpy as np

import tightrope as tr
from tightrope.runs.planning import first_reached

RESULTS = Path(__file__).parent / "results" / "plan.json"
STEPS, RECORDS = 16_000, 200
ACCURACIES = (0.1, 0.03, 0.01)
CASES = (
    ("lens", (None, "ExactPenalty", "TruncatedMomentum")),
    ("noisy_sphere", (None, "ExactPenalty", "LinearizedPenalty")),
    ("outside_the_ball", (None, "ExactPenalty", "LinearizedPenalty")),
    ("three_bands", (None, "ExactPenalty", "TruncatedMomentum")),
)


def measure(name: str, method: str | None) -> list[dict[str, Any]]:
    """Forecasts and needed steps of one method on one problem."""
    problem, x0, _ = tr.zoo.available()[name]()
    history = tr.solve(problem, x0, method, steps=STEPS, record=STEPS // RECORDS, progress=False).history
    residuals = np.maximum(history["violation"], history["stationarity"])[1:]
    rows = []
    for accuracy in ACCURACIES:
        forecast = tr.plan(problem, x0, accuracy=accuracy, method=method)
        needed = first_reached(np.asarray(history["step"][1:], float), residuals, accuracy)
        rows.append(
            {
                "problem": name,
                "method": forecast.method,
                "accuracy": accuracy,
                "forecast": None if math.isinf(forecast.steps) else round(forecast.steps),
                "in the pilot": math.isnan(forecast.rate),
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
    rows = [row for name, methods in CASES for method in methods for row in measure(name, method)]
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
