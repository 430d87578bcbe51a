"""The default method, dense and matrix-free."""

from .matrix_free import MatrixFreePenalty
from .method import AdaptivePenalty

__all__ = ["AdaptivePenalty", "MatrixFreePenalty"]
