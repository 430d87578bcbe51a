"""Judging a point: evaluation, intervals and certificates."""
