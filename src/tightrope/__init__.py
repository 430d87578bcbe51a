"""Tightrope: optimisation under constraints when samples are all you have.

Minimise E f(x, ξ) subject to E c(x, ζ) = 0, E g(x, ζ) ≤ 0 and x in a simple set. Write a `Problem`, call `solve`, read the
`Result`; see the README for a first example.
"""

from . import datasets, domains, methods, zoo
from .certificate import Certificate, Estimate
from .certify import certify
from .checkpoint import Checkpoint
from .data import Dataset, Sampler
from .problem import Constraint, Problem, affine, at_least, at_most, between, equals
from .record import Record, Stop
from .result import History, Result, load
from .solve import solve
from .sweep import SweepResult, sweep

__version__ = "0.1.0"

__all__ = [
    "Certificate",
    "Checkpoint",
    "Constraint",
    "Dataset",
    "Estimate",
    "History",
    "Problem",
    "Record",
    "Result",
    "Sampler",
    "Stop",
    "SweepResult",
    "affine",
    "at_least",
    "at_most",
    "between",
    "certify",
    "datasets",
    "domains",
    "equals",
    "load",
    "methods",
    "solve",
    "sweep",
    "zoo",
]
