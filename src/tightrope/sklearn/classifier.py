"""A classifier under constraints on its rates."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from .. import rates
from .base import PARITIES, Constrained
from .network import outputs


class ConstrainedClassifier(ClassifierMixin, Constrained):
    """A linear classifier or a small network that keeps to constraints on its rates.

    It minimizes the logistic loss of all training examples under the constraints. The constraints hold for the rates of
    its 0/1 decisions on the training set, as `certificate_` says; on other data they hold up to the sampling error. See
    `tightrope.rates` for what the steps see, and docs/fairness.md for a comparison with Fairlearn.

    Args:
        constraints: a name; a dict of names and bounds; a function (score, group, data) -> Constraint, such as
            `functools.partial(tightrope.rates.selection_rate, bound=(0.2, 0.4))`; or a list of these. The names are the
            functions of `tightrope.rates`: 'demographic_parity', 'equal_opportunity', 'equalized_odds' (a bound on the
            difference between groups; default 0.05), and 'selection_rate', 'error_rate', 'true_positive_rate',
            'false_positive_rate', 'precision', 'group_loss', for each group; with the prefix 'overall_' for all examples.
            For binary labels only.
        hidden: units of the hidden layers; () for a linear model.
        loss: 'log', the logistic loss; 'error', a smooth approximation of the share of errors, which pays with probabilities
            for accuracy; or 'recall', the logistic loss of the positive examples alone: with the constraint
            {'overall_precision': 0.8}, it maximizes recall at a given precision.
        l2: strength of the ridge penalty, l2/2 · ‖weights‖², on weights of standardized features.
        steps: the most steps of a solve.
        batch_size: examples per step.
        corrections: the most solves after the first, which close the gap between surrogates and rates: see
            `tightrope.rates.solve`.
        tol: the violation that counts as none, relative to the constraint's scale (see `tightrope.Certificate`).
        random_state: seed of the start and of the batches.

    Attributes:
        classes_: the labels; the second one is positive.
        coef_: the weights of a linear model, for the features as they are given.
        intercept_: its biases.
        weights_: weights and biases of every layer, for the features as they are given.
        result_: the `tightrope.Result`; its x is for standardized features.
        certificate_: what was certified on the training set.
        n_features_in_: the number of features.

    Features are standardized within `fit`, so their units do not matter.

    Example:
        >>> import numpy as np
        >>> from tightrope.sklearn import ConstrainedClassifier
        >>> rng = np.random.default_rng(0)
        >>> sex = rng.integers(0, 2, 500)
        >>> X = rng.normal(size=(500, 3)) + 0.7 * sex[:, None]
        >>> y = X @ [1.0, -0.5, 1.0] + rng.normal(size=500) > 0
        >>> model = ConstrainedClassifier({"demographic_parity": 0.1}, steps=300, random_state=0)
        >>> selected = model.fit(X, y, sensitive_features=sex).predict(X)
        >>> bool(abs(selected[sex == 1].mean() - selected[sex == 0].mean()) < 0.11)
        True
        >>> model.certificate_.verdict
        'feasible'
    """

    _constraint_names = (
        *PARITIES,
        "selection_rate",
        "error_rate",
        "true_positive_rate",
        "false_positive_rate",
        "precision",
        "group_loss",
    )

    def __init__(
        self,
        constraints: Any = None,
        *,
        hidden: tuple[int, ...] = (),
        loss: str = "log",
        l2: float = 1e-4,
        steps: int = 1000,
        batch_size: int = 256,
        corrections: int = 3,
        tol: float = 1e-3,
        random_state: Any = None,
    ):
        self.constraints = constraints
        self.hidden = hidden
        self.loss = loss
        self.l2 = l2
        self.steps = steps
        self.batch_size = batch_size
        self.corrections = corrections
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, sensitive_features: Any = None) -> Self:
        """Fit the model.

        Args:
            X: the features, one row per example.
            y: the labels.
            sensitive_features: the group of each example: one column, or several whose combinations are the groups. Not
                used to predict.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, index = np.unique(y, return_inverse=True)
        if self.loss not in LOSSES:
            raise ValueError(f"ConstrainedClassifier: loss must be one of {', '.join(LOSSES)}, got {self.loss!r}")
        if len(self.classes_) < 2:
            raise ValueError(f"ConstrainedClassifier: y has one class, {self.classes_[0]!r}; expected two or more")
        if len(self.classes_) == 2:
            start, everyone = np.log([index.mean() / (1.0 - index.mean())]), np.ones(len(index), np.float32)
            fields = [{"error": share * everyone} for share in ((0.0, 1.0) if self.loss == "error" else (0.0,))]
            return self._fit(X, fields, start, (LOSSES[self.loss], _score, _log_loss), (sensitive_features, index))
        if self.constraints is not None or self.loss != "log":
            raise ValueError(
                "ConstrainedClassifier: constraints, and losses other than 'log', are for two classes, "
                f"and y has {len(self.classes_)}"
            )
        start = np.log(np.bincount(index) / len(index))
        fields = [{"class": index.astype(np.int32)}]
        return self._fit(X, fields, start, (_cross_entropy, None, _cross_entropy), (None, None))

    def decision_function(self, X: Any) -> np.ndarray:
        """The score of each example, positive for the second class; for more than two classes one column a class."""
        scores = self._outputs(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """The class of each example."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class; that of the logistic model, which constraints bend."""
        scores = self.decision_function(X)
        return np.stack([expit(-scores), expit(scores)], axis=1) if scores.ndim == 1 else softmax(scores, axis=1)

    @property
    def coef_(self) -> np.ndarray:
        """The weights of a linear model, one row per score."""
        return self._linear()[0].T

    @property
    def intercept_(self) -> np.ndarray:
        """The biases of a linear model, one per score."""
        return self._linear()[1]


def _score(layers: Any, batch: Any) -> Any:
    return outputs(layers, batch["x"])[:, 0]


def _log_loss(layers: Any, batch: Any) -> Any:
    score = _score(layers, batch)
    return jax.nn.softplus(score) - batch["everyone"].label * score


def _log_loss_or_error(layers: Any, batch: Any) -> Any:
    """The logistic loss, or a smooth count of errors where the field `error` is 1; so both losses share their programs."""
    sign = 1.0 - 2.0 * batch["everyone"].label
    wrong = jax.nn.sigmoid(sign * _score(layers, batch) / rates.TEMPERATURE)
    return (1.0 - batch["error"]) * _log_loss(layers, batch) + batch["error"] * wrong


def _missed(layers: Any, batch: Any) -> Any:
    return batch["everyone"].positives[:, 0] * jax.nn.softplus(-_score(layers, batch))


def _cross_entropy(layers: Any, batch: Any) -> Any:
    scores = outputs(layers, batch["x"])
    own = jnp.take_along_axis(scores, batch["class"][:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(scores, axis=1) - own


LOSSES = {"log": _log_loss_or_error, "error": _log_loss_or_error, "recall": _missed}
"""What is minimized, by name: a function of single examples."""
