"""Fair classifiers: accuracy against violation, and time, compared with Fairlearn's reductions.

Adult, COMPAS and bank marketing (`tightrope.datasets`), the published or fixed split; demographic parity and equalized odds at
bounds of 0.02, 0.05 and 0.1; linear models throughout. Violations are Fairlearn's `demographic_parity_difference` and
`equalized_odds_difference`.

- `ConstrainedClassifier` with the logistic loss and with the smooth error, at its defaults.
- `ExponentiatedGradient` with scikit-learn's LogisticRegression. Fairlearn bounds the distance of each group from all, so its
  bound is scaled by the larger group's share: then the largest difference that it allows is the same bound. Its answer is a
  random mixture of classifiers; accuracy and violation are means over `DRAWS` draws of its predictions.
- `GridSearch` with LogisticRegression and 15 multipliers; for each bound the most accurate of its classifiers that meets it on
  the training set, or the least violated one. Its time is that of the grid, for all bounds together.

Times are CPU seconds of the process, all threads together, which other work on the machine disturbs least, and wall seconds.
`cold` is the first fit of a problem, with compilation; `warm` are fits that compile nothing. Fits of the two libraries
alternate. Only Fairlearn's times are independent of what was fitted before.

Run: TIGHTROPE_DATA=folder python benchmarks/fairness.py [--data adult compas bank-full] [--out fairness.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from fairlearn.metrics import (  # pyright: ignore[reportMissingImports]
    demographic_parity_difference,
    equalized_odds_difference,
)
from fairlearn.reductions import (  # pyright: ignore[reportMissingImports]
    DemographicParity,
    EqualizedOdds,
    ExponentiatedGradient,
    GridSearch,
)
from sklearn.linear_model import LogisticRegression

import tightrope as tr
from tightrope.sklearn import ConstrainedClassifier

BOUNDS, DRAWS, GRID = (0.05, 0.02, 0.1), 5, 15
METRICS = {"demographic_parity": demographic_parity_difference, "equalized_odds": equalized_odds_difference}
MOMENTS = {"demographic_parity": DemographicParity, "equalized_odds": EqualizedOdds}
Row = dict[str, Any]


class Comparison:
    """One data set and one constraint."""

    def __init__(self, name: str, constraint: str):
        data = tr.datasets.load(name)
        self.parts = {"train": data.train, "test": data.test}
        self.metric, self.labels = METRICS[constraint], {k: (p["y"] > 0).astype(int) for k, p in self.parts.items()}
        self.about = {"data": name, "constraint": constraint}
        train = data.train
        self.given = train["x"], self.labels["train"], train["group"]
        by_label = (
            [train["group"]]
            if constraint == "demographic_parity"
            else [train["group"][self.labels["train"] == label] for label in (0, 1)]
        )
        self.share = min(max(np.mean(group), 1.0 - np.mean(group)) for group in by_label)

    def row(self, method: str, bound: float | None, predict: Callable[[Any, int], Any], draws: int = 1) -> Row:
        row: Row = self.about | {"method": method, "bound": bound}
        for part, data in self.parts.items():
            drawn = [predict(data["x"], seed) for seed in range(draws)]
            row[f"{part} accuracy"] = float(np.mean([np.mean(yes == self.labels[part]) for yes in drawn]))
            row[f"{part} violation"] = float(
                np.mean([self.metric(self.labels[part], yes, sensitive_features=data["group"]) for yes in drawn])
            )
        return row

    def fair(self, loss: str, bound: float) -> tuple[Row, Any]:
        model = ConstrainedClassifier({self.about["constraint"]: bound}, loss=loss, random_state=0)
        x, y, group = self.given
        times = timed(lambda: model.fit(x, y, sensitive_features=group))
        row = self.row(f"ConstrainedClassifier, {loss}", bound, lambda x, _: model.predict(x))
        return row | {"certified": model.certificate_.verdict}, times

    def reduction(self, bound: float) -> Row:
        moment = MOMENTS[self.about["constraint"]](difference_bound=bound * self.share)
        model = ExponentiatedGradient(LogisticRegression(max_iter=1000), moment)
        x, y, group = self.given
        times = timed(lambda: model.fit(x, y, sensitive_features=group))
        row = self.row("ExponentiatedGradient", bound, lambda x, seed: model.predict(x, random_state=seed), DRAWS)
        return row | {"warm": times}

    def grid(self) -> list[Row]:
        model = GridSearch(LogisticRegression(max_iter=1000), MOMENTS[self.about["constraint"]](), grid_size=GRID)
        x, y, group = self.given
        times = timed(lambda: model.fit(x, y, sensitive_features=group))
        rows = [self.row("GridSearch", None, lambda x, _, p=p: p.predict(x)) for p in model.predictors_]

        def best(bound: float) -> Row:
            met = [row for row in rows if row["train violation"] <= bound]
            if met:
                return max(met, key=lambda row: row["train accuracy"])
            return min(rows, key=lambda row: row["train violation"])

        return [best(bound) | {"bound": bound, "warm": times} for bound in BOUNDS]

    def unconstrained(self) -> Row:
        x, y, _ = self.given
        model = LogisticRegression(max_iter=1000)
        return {"warm": timed(lambda: model.fit(x, y))} | self.row(
            "LogisticRegression", None, lambda x, _: model.predict(x)
        )

    def rows(self) -> list[Row]:
        found = [self.unconstrained()]
        for loss in ("log", "error"):
            cold = self.fair(loss, BOUNDS[0])[1]
            for bound in BOUNDS:
                row, warm = self.fair(loss, bound)
                found.append(row | {"warm": warm, "cold": cold})
                if loss == "log":
                    found.append(self.reduction(bound))
        return found + self.grid()


def timed(call: Callable[[], Any]) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call()
    return {"cpu": round(time.process_time() - cpu, 3), "wall": round(time.perf_counter() - wall, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", nargs="+", default=["adult", "compas", "bank-full"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "fairness.json")
    options = parser.parse_args()
    about = {name: version(name) for name in ("jax", "fairlearn", "scikit-learn")} | {"machine": platform.machine()}
    rows: list[Row] = []
    for constraint in METRICS:
        for name in options.data:
            for row in Comparison(name, constraint).rows():
                rows.append(row)
                print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
            options.out.write_text(json.dumps({"versions": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
