"""Estimators for scikit-learn: a classifier and a regressor that keep to constraints, on rates of groups for example.

Needs scikit-learn: `pip install 'tightrope[sklearn]'`. Not imported by `import tightrope`. See docs/fairness.md.
"""

from .classifier import ConstrainedClassifier
from .regressor import ConstrainedRegressor

__all__ = ["ConstrainedClassifier", "ConstrainedRegressor"]
