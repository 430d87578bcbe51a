"""Fair classifiers: accuracy against violation, and time, compared with Fairlearn's reductions.

Adult, COMPAS and bank marketing (`tightrope.datasets`); demographic parity and equalized odds; linear models throughout. There
are ten splits into a training and a test set: the published or fixed one, number 0, and random ones of the same sizes. A
violation is the largest difference between the groups of selection rates, or of true and of false positive rates: Fairlearn's
`demographic_parity_difference` and `equalized_odds_difference`.

- `ConstrainedClassifier` with the logistic loss and with the smooth error, at its defaults.
- `ExponentiatedGradient` with scikit-learn's LogisticRegression. Fairlearn bounds the distance of each group from all, so its
  bound is scaled by the larger group's share: then the largest difference that it allows is the same bound. Its answer is a
  random mixture of classifiers; accuracy and rates are their expectations over the mixture.
- `GridSearch` with LogisticRegression and 15 multipliers: those of its classifiers that no other one beats on the training set
  in both accuracy and violation. For a bound, the most accurate one that meets it there, or else the least violated one.

`comparisons` compares accuracies on the test set at equal violation on the test set. On each split, the accuracy of a method at
a violation is interpolated linearly between its classifiers (between any two, a random choice reaches what lies between); above
the violation of its least constrained one, it is the accuracy of that one. A split where one of the two methods stays above the
violation is left out. The mean difference over splits has the standard error sqrt(variance · (1/splits + test/train)), which
allows for the overlap of the training sets (Nadeau and Bengio, Machine Learning 52, 2003).

Times are CPU seconds of the process, all threads together, which other work on the machine disturbs least. `cold` is the first
fit of a shape, with compilation; all others compile nothing. GridSearch's time is that of the grid, for all bounds together.

Run: TIGHTROPE_DATA=folder python benchmarks/fairness.py [--data adult compas bank-full] [--methods log error fairlearn]
[--splits 10] [--out fairness.json]. What the file has already is not run again; to do so, name the methods in `--again`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from fairlearn.reductions import (  # pyright: ignore[reportMissingImports]
    DemographicParity,
    EqualizedOdds,
    ExponentiatedGradient,
    GridSearch,
)
from sklearn.linear_model import LogisticRegression

import tightrope as tr
from tightrope.sklearn import ConstrainedClassifier

BOUNDS, LEVELS, GRID = (0.02, 0.05, 0.1), (0.05, 0.1), 15
LOSSES = ("log", "error")
MOMENTS = {"demographic_parity": DemographicParity, "equalized_odds": EqualizedOdds}
Row = dict[str, Any]
Run = tuple[int, str, str, str]
Part = dict[str, np.ndarray]


def parts_of(name: str, number: int) -> tuple[Part, Part]:
    """The training and the test set of a split."""
    data = tr.datasets.load(name)
    everything, size = data.all(), len(data.train["y"])
    order = np.arange(len(everything["y"]))
    if number:
        order = np.random.default_rng(number).permutation(order)
    parts = ({k: everything[k][rows] for k in ("x", "y", "group")} for rows in (order[:size], order[size:]))
    train, test = (part | {"y": (part["y"] > 0).astype(int)} for part in parts)
    return train, test


def violation(constraint: str, part: Part, selected: np.ndarray) -> float:
    """The largest difference of rates; `selected` may be probabilities."""
    every = np.ones(len(selected), bool)
    among = [every] if constraint == "demographic_parity" else [part["y"] == 0, part["y"] == 1]
    means = [[selected[members & (part["group"] == g)].mean() for g in (0, 1)] for members in among]
    return max(abs(one - other) for one, other in means)


class Comparison:
    """One constraint on one split of one data set."""

    def __init__(self, name: str, constraint: str, number: int):
        self.constraint, self.about = constraint, {"data": name, "constraint": constraint, "split": number}
        self.train, self.test = parts_of(name, number)
        group, y = self.train["group"], self.train["y"]
        by_label = [group] if constraint == "demographic_parity" else [group[y == label] for label in (0, 1)]
        self.share = min(max(np.mean(g), 1.0 - np.mean(g)) for g in by_label)

    def fit(self, model: Any) -> float:
        """The CPU seconds of a fit."""
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(self.train["x"], self.train["y"], sensitive_features=self.train["group"])
        return round(time.process_time() - began, 3)

    def row(self, method: str, bound: float | None, seconds: float, select: Callable[[Any], np.ndarray]) -> Row:
        row: Row = self.about | {"method": method, "bound": bound, "seconds": seconds}
        for name, part in (("train", self.train), ("test", self.test)):
            selected = select(part["x"])
            row[f"{name} accuracy"] = round(float(np.mean(1.0 - abs(part["y"] - selected))), 6)
            row[f"{name} violation"] = round(float(violation(self.constraint, part, selected)), 6)
        return row

    def constrained(self, loss: str) -> Iterator[Row]:
        for bound in BOUNDS:
            model = ConstrainedClassifier({self.constraint: bound}, loss=loss, random_state=0)
            seconds = self.fit(model)
            yield self.row(loss, bound, seconds, model.predict) | {"certified": model.certificate_.verdict}

    def fairlearn(self) -> Iterator[Row]:
        yield from self.exponentiated_gradient()
        yield from self.grid()

    def exponentiated_gradient(self) -> Iterator[Row]:
        for bound in BOUNDS:
            moment = MOMENTS[self.constraint](difference_bound=bound * self.share)
            model = ExponentiatedGradient(LogisticRegression(max_iter=1000), moment)
            seconds = self.fit(model)
            mixed = [(w, p) for w, p in zip(model.weights_, model.predictors_, strict=True) if w > 0]

            def select(x: Any, mixed: Any = mixed) -> np.ndarray:
                return np.sum([w * p.predict(x) for w, p in mixed], axis=0)

            yield self.row("ExponentiatedGradient", bound, seconds, select)

    def grid(self) -> Iterator[Row]:
        model = GridSearch(LogisticRegression(max_iter=1000), MOMENTS[self.constraint](), grid_size=GRID)
        seconds = self.fit(model)
        rows = [self.row("GridSearch", None, seconds, p.predict) for p in model.predictors_]
        best = -1.0
        for row in sorted(rows, key=lambda row: (row["train violation"], -row["train accuracy"])):
            if row["train accuracy"] > best:
                best = row["train accuracy"]
                yield row

    def rows(self, method: str) -> Iterator[Row]:
        return self.fairlearn() if method == "fairlearn" else self.constrained(method)


def accuracy_at(level: float, rows: list[Row]) -> float:
    """The accuracy on the test set at this violation there; not a number if all violations are larger."""
    points = sorted((row["test violation"], row["test accuracy"]) for row in rows)
    found, accuracies = zip(*points, strict=True)
    return float(np.interp(level, found, accuracies)) if found[0] <= level else float("nan")


def comparisons(rows: list[Row]) -> list[Row]:
    """Mean differences of accuracies at equal violation, ours minus Fairlearn's, in percentage points."""
    found: list[Row] = []
    cases = sorted({(row["data"], row["constraint"]) for row in rows})
    for (data, constraint), ours, theirs, level in itertools.product(
        cases, LOSSES, ("ExponentiatedGradient", "GridSearch"), LEVELS
    ):
        here = [row for row in rows if (row["data"], row["constraint"]) == (data, constraint)]

        def frontier(method: str, number: int, here: list[Row] = here, level: float = level) -> float:
            of = [row for row in here if (row["method"], row["split"]) == (method, number)]
            return accuracy_at(level, of) if of else float("nan")

        splits = sorted({row["split"] for row in here})
        differences = 100.0 * np.array([frontier(ours, n) - frontier(theirs, n) for n in splits])
        differences = differences[np.isfinite(differences)]
        about = {"data": data, "constraint": constraint, "ours": ours, "theirs": theirs, "violation": level}
        about |= {"splits": len(differences)}
        if len(differences) > 1:
            train, test = parts_of(data, 0)
            spread = 1.0 / len(differences) + len(test["y"]) / len(train["y"])
            error = float(np.sqrt(np.var(differences, ddof=1) * spread))
            about |= {"difference": round(float(differences.mean()), 3), "standard error": round(error, 3)}
        found.append(about)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", nargs="+", default=["adult", "compas", "bank-full"])
    parser.add_argument("--methods", nargs="+", default=[*LOSSES, "fairlearn"])
    parser.add_argument("--constraints", nargs="+", default=list(MOMENTS))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "fairness.json")
    parser.add_argument("--again", nargs="+", default=[])
    options = parser.parse_args()
    about = {name: version(name) for name in ("jax", "fairlearn", "scikit-learn")} | {"machine": platform.machine()}
    rows: list[Row] = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    rows = [row for row in rows if run_of(row)[-1] not in options.again]
    known = set(map(run_of, rows))
    numbers = range(options.splits)
    runs: Iterable[Run] = itertools.product(numbers, options.constraints, options.data, options.methods)
    for number, constraint, name, method in runs:
        if (number, constraint, name, method) in known:
            continue
        for row in Comparison(name, constraint, number).rows(method):
            rows.append(row)
            print(*row.values(), flush=True)
        found = {"versions": about, "comparisons": comparisons(rows), "rows": sorted(rows, key=order_of)}
        options.out.write_text(written(found))
    for row in comparisons(rows):
        print(*row.values())


def run_of(row: Row) -> Run:
    """The run that gave a row: split, constraint, data and method."""
    method = row["method"] if row["method"] in LOSSES else "fairlearn"
    return row["split"], row["constraint"], row["data"], method


def order_of(row: Row) -> tuple[Any, ...]:
    return row["data"], row["constraint"], row["split"], row["method"], row["bound"] or 0.0


def written(found: dict[str, Any]) -> str:
    """JSON with one row per line."""
    versions = json.dumps(found["versions"])
    lists = (f'"{k}": [\n' + ",\n".join(map(json.dumps, found[k])) + "\n]" for k in ("comparisons", "rows"))
    return f'{{"versions": {versions},\n' + ",\n".join(lists) + "}\n"


if __name__ == "__main__":
    main()
