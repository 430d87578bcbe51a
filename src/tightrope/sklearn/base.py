"""What the estimators share: fitting with `tightrope.solve`, and saving without pickle."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import jax
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_consistent_length, check_is_fitted, check_random_state, validate_data

from .. import rates
from ..arguments import did_you_mean, number, positive_int
from ..problems.constraints import Constraint
from ..problems.data import Dataset
from ..problems.problem import CacheKey, Problem, rows_of
from ..runs.options import Stop
from ..runs.result import Result, load
from .network import Layers, first_layers, on_raw_features, outputs, weight_squares

GAP = 1e-3
"""The optimality gap at which a solve may end, relative to the scale of the loss."""
OVERALL = "overall_"
"""The prefix of a constraint on all examples at once, not on each group."""

PerExample = Callable[[Any, Any], Any]
"""A function of the layers and a batch, with one number per example."""


class Constrained(BaseEstimator):
    """A linear model or a small network, fitted under constraints."""

    constraints: Any
    hidden: tuple[int, ...]
    l2: float
    steps: int
    batch_size: int
    tol: float
    random_state: Any
    corrections: int = 0
    _constraint_names: ClassVar[tuple[str, ...]] = ()

    def _fit(
        self,
        X: np.ndarray,
        fields: list[dict[str, Any]],
        start: np.ndarray,
        functions: tuple[PerExample, PerExample | None, PerExample],
        groups: tuple[Any, Any],
    ) -> Self:
        """Solve the problem and keep its answer.

        Args:
            X: the features.
            fields: what a batch has besides them, for each of the problems that are solved one after the other.
            start: the outputs at the start, the same for every input.
            functions: the objective and the scores of single examples, and their loss, which `group_loss` bounds.
            groups: the sensitive features, and the labels.
        """
        hidden = tuple(positive_int(type(self).__name__, "hidden", units) for units in self.hidden)
        l2 = number(type(self).__name__, "l2", self.l2, low=0.0, closed="[")
        random = check_random_state(self.random_state)
        mean, deviation = X.mean(axis=0), X.std(axis=0)
        deviation = np.where(deviation > np.finfo(np.float32).eps * np.abs(X).max(axis=0), deviation, 1.0)
        arrays = {
            "x": np.asarray((X - mean) / deviation, np.float32),
            "l2": np.full(len(X), l2, np.float32),  # data are arguments of compiled programs, constants are not
            "everyone": rates.groups(np.zeros(len(X)), groups[1]),
        }
        if groups[0] is not None:
            check_consistent_length(X, groups[0])
            arrays["group"] = rates.groups(groups[0], groups[1])
        layers, seed = first_layers([X.shape[1], *hidden, len(start)], start, random), int(random.randint(2**31))
        corrections = number(type(self).__name__, "corrections", self.corrections, low=0.0, closed="[")
        for more in fields[:-1]:  # starts of the last problem, which need no corrections
            layers = self._solved(arrays | more, functions, layers, seed, 0).x
        self.result_ = self._solved(arrays | fields[-1], functions, layers, seed, int(corrections))
        self.certificate_ = self.result_.certificate
        self._warn_if_unmet()
        self.weights_ = on_raw_features(self.result_.x, mean, deviation)
        return self

    def _solved(
        self,
        arrays: dict[str, Any],
        functions: tuple[PerExample, PerExample | None, PerExample],
        x0: Layers,
        seed: int,
        corrections: int,
    ) -> Result:
        """The answer of the problem on these data."""
        size = min(positive_int(type(self).__name__, "batch_size", self.batch_size), len(arrays["x"]))
        data, (objective, score, loss) = Dataset(arrays, size), functions

        def regularized(layers: Any, batch: Any) -> Any:
            return objective(layers, batch).mean() + 0.5 * batch["l2"].mean() * weight_squares(layers)

        problem = Problem(regularized, self._built(data, score, loss), data=data)
        self._share_programs(problem, functions)
        result = rates.solve(
            problem,
            x0,
            steps=self.steps,
            corrections=corrections,
            seed=seed,
            stop=Stop(violation=self.tol, gap=GAP),
            record=max(1, self.steps // 10),
            progress=False,
        )
        data.arrays = jax.eval_shape(lambda: data.arrays)  # what the programs know of the data
        return result

    def _warn_if_unmet(self) -> None:
        if self.certificate_.verdict != "feasible":
            unmet = [name for name, e in self.certificate_.relative_violation.items() if e.low > self.tol]
            warnings.warn(
                f"constraints are not met on the training set: {', '.join(unmet)}; take more steps or corrections, or looser "
                "bounds. certificate_ says by how much",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _share_programs(self, problem: Problem, functions: tuple[Any, ...]) -> None:
        """Share programs with all fits that differ from this one in numbers alone."""
        given = self._given()
        if all(isinstance(each, tuple) for each in given):
            within = tuple(str(each) for each in given if each[0].endswith("precision"))  # the bound is in the function
            rows = tuple((c.name, rows_of(c)) for c in problem.constraints)
            leaves, structure = jax.tree.flatten(problem.sources[0].arrays)
            shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
            problem._cache = _programs(functions, within, rows, structure, shapes, problem.sources[0].batch_size)

    def _given(self) -> list[Any]:
        """The constraints: a tuple of the name and the bound, if there is one, or a function."""
        given = self.constraints
        found: list[Any] = []
        for each in given if isinstance(given, list | tuple) else [] if given is None else [given]:
            if isinstance(each, Mapping):
                found += each.items()
            elif isinstance(each, str) or callable(each):
                found.append((each,) if isinstance(each, str) else each)
            else:
                raise TypeError(
                    f"{type(self).__name__}: constraints must be a name, a dict of names and bounds, a function "
                    f"(score, group, data) -> Constraint, or a list of these, got {each!r}"
                )
        return found

    def _built(self, data: Dataset, score: PerExample | None, loss: PerExample) -> list[Constraint]:
        """The constraints of the problem."""
        group = "group" if "group" in data.arrays else "everyone"
        return [
            self._named(*each, data=data, functions=(score, loss))
            if isinstance(each, tuple)
            else each(score or loss, group, data)
            for each in self._given()
        ]

    def _named(
        self, name: str, *bound: Any, data: Dataset, functions: tuple[PerExample | None, PerExample]
    ) -> Constraint:
        score, loss = functions
        plain, owner = name.removeprefix(OVERALL), type(self).__name__
        if plain not in self._constraint_names:
            options = ", ".join(self._constraint_names)
            raise ValueError(
                f"{owner}: constraints must be among {options}, or one of these after {OVERALL!r}, got {name!r}"
                f"{did_you_mean(plain, self._constraint_names)}"
            )
        if not bound and plain not in PARITIES:
            raise ValueError(f"{owner}: the constraint {name!r} needs a bound, such as {{{name!r}: 0.2}}")
        group = "everyone" if name != plain or "group" not in data.arrays else "group"
        if plain in PARITIES and group == "everyone":
            raise ValueError(f"{owner}: {name!r} compares groups: pass fit(X, y, sensitive_features=…)")
        made = getattr(rates, plain)(loss if plain == "group_loss" else score, group, data, *bound)
        return replace(made, name=name)

    def _linear(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights and biases of a linear model; an AttributeError for a network, and before `fit`."""
        if len(getattr(self, "weights_", ())) != 1:
            raise AttributeError("coef_ and intercept_ are those of a fitted linear model; a network has weights_")
        return self.weights_[0]

    def _outputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return outputs(self.weights_, np.asarray(validate_data(self, X, dtype=np.float64, reset=False)))

    # ------------------------------------------------------------------ saving

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to one file (NumPy's .npz: arrays and JSON, no pickle); `load` reads it.

        Constraints that are functions are not saved; what they were is in `certificate_`.
        """
        check_is_fitted(self)
        arrays: dict[str, Any] = {f"weights{i}": a for i, layer in enumerate(self.weights_) for a in layer[:1]}
        arrays |= {f"bias{i}": a for i, layer in enumerate(self.weights_) for a in layer[1:]}
        fitted = {name: _as_json(getattr(self, name)) for name in FITTED if hasattr(self, name)}
        parameters = {name: value for name, value in self.get_params(deep=False).items() if _is_json(value)}
        text = {"class": type(self).__name__, "parameters": parameters, "fitted": fitted}
        target = Path(path)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            self.result_.save(Path(folder) / "result.npz")
            arrays["result"] = np.frombuffer((Path(folder) / "result.npz").read_bytes(), np.uint8)
            with (Path(folder) / "all.npz").open("wb") as file:
                np.savez(file, json=np.array(json.dumps(text)), **arrays)
            os.replace(Path(folder) / "all.npz", target)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read an estimator that `save` wrote: it predicts, and has its certificate."""
        try:
            with np.load(path, allow_pickle=False) as archive:
                text, saved = json.loads(str(archive["json"])), {name: archive[name] for name in archive.files}
            kind, parameters, fitted = text["class"], text["parameters"], text["fitted"]
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(f"load: {os.fspath(path)} is not an estimator that save wrote: {error}") from error
        if kind != cls.__name__:
            raise ValueError(f"load: {os.fspath(path)} holds a {kind}; use {kind}.load")
        parameters["hidden"] = tuple(parameters["hidden"])
        estimator = cls(**parameters)
        for name, (dtype, values) in fitted.items():
            setattr(estimator, name, values if dtype is None else np.array(values, dtype))
        layers = len([name for name in saved if name.startswith("weights")])
        estimator.weights_ = [(saved[f"weights{i}"], saved[f"bias{i}"]) for i in range(layers)]
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "result.npz").write_bytes(saved["result"].tobytes())
            estimator.result_ = load(Path(folder) / "result.npz")
        estimator.certificate_ = estimator.result_.certificate
        return estimator


@lru_cache(maxsize=16)
def _programs(*kind: Hashable) -> dict[CacheKey, Any]:
    """The compiled programs of all fits of one kind."""
    return {}


PARITIES = ("demographic_parity", "equal_opportunity", "equalized_odds")
"""Constraints that compare groups; their bound has a default."""
FITTED = ("classes_", "n_features_in_", "feature_names_in_")
"""Learned attributes that are saved as JSON."""


def _as_json(value: Any) -> tuple[str | None, Any]:
    """The dtype of an array, or None, and its values as JSON."""
    return (value.dtype.str, value.tolist()) if isinstance(value, np.ndarray) else (None, value)


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True
