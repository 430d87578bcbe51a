"""Exact penalty with prox-linear steps: the method, and its estimates from samples."""

from .method import ExactPenalty

__all__ = ["ExactPenalty"]
