"""Certificates of points: evaluation, confidence intervals and verdicts."""
