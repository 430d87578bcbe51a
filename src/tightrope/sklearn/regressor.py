"""A regressor under bounds on the losses of groups."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from .base import Constrained
from .network import outputs


class ConstrainedRegressor(RegressorMixin, Constrained):
    """A linear regression or a small network, with bounds on the mean squared error of each group.

    Args:
        constraints: {'group_loss': bound}, the largest mean squared error of each group; with 'overall_group_loss' that of all
            examples; a function (loss, group, data) -> Constraint; or a list of these.
        hidden: units of the hidden layers; () for a linear model.
        l2: strength of the ridge penalty, l2/2 · ‖weights‖², on weights of standardized features.
        steps: the most steps.
        batch_size: examples per step.
        tol: the violation that counts as none, relative to the constraint's scale (see `tightrope.Certificate`).
        random_state: seed of the start and of the batches.

    Attributes:
        coef_: the weights of a linear model, for the features as they are given.
        intercept_: its bias.
        weights_: weights and biases of every layer, for the features as they are given.
        result_: the `tightrope.Result`; its x is for standardized features.
        certificate_: what was certified on the training set.
        n_features_in_: the number of features.

    Example:
        >>> import numpy as np
        >>> from tightrope.sklearn import ConstrainedRegressor
        >>> rng = np.random.default_rng(0)
        >>> X, group = rng.normal(size=(400, 2)), np.repeat([0, 1], [350, 50])
        >>> y = np.where(group, -1.0, 1.0) * X[:, 0] + 0.1 * rng.normal(size=400)
        >>> model = ConstrainedRegressor({"group_loss": 1.5}, steps=500, random_state=0)
        >>> errors = (model.fit(X, y, sensitive_features=group).predict(X) - y) ** 2
        >>> bool(errors[group == 1].mean() < 1.51), model.certificate_.verdict
        (True, 'feasible')
    """

    _constraint_names = ("group_loss",)

    def __init__(
        self,
        constraints: Any = None,
        *,
        hidden: tuple[int, ...] = (),
        l2: float = 1e-4,
        steps: int = 1000,
        batch_size: int = 256,
        tol: float = 1e-3,
        random_state: Any = None,
    ):
        self.constraints = constraints
        self.hidden = hidden
        self.l2 = l2
        self.steps = steps
        self.batch_size = batch_size
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, sensitive_features: Any = None) -> Self:
        """Fit the model.

        Args:
            X: the features, one row per example.
            y: the targets.
            sensitive_features: the group of each example: one column, or several whose combinations are the groups. Not
                used to predict.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        y = np.asarray(y, np.float32)
        functions = (_squared_error, None, _squared_error)
        return self._fit(X, [{"y": y}], y.mean(keepdims=True), functions, (sensitive_features, None))

    def predict(self, X: Any) -> np.ndarray:
        """The prediction for each example."""
        return self._outputs(X)[:, 0]

    @property
    def coef_(self) -> np.ndarray:
        """The weights of a linear model."""
        return self._linear()[0][:, 0]

    @property
    def intercept_(self) -> float:
        """The bias of a linear model."""
        return float(self._linear()[1][0])


def _squared_error(layers: Any, batch: Any) -> Any:
    return (outputs(layers, batch["x"])[:, 0] - batch["y"]) ** 2
