"""Tightrope: optimization under constraints when samples are all you have.

Minimize E f(x, ξ) subject to E c(x, ζ) = 0, E g(x, ζ) ≤ 0 and x in a simple set. Write a `Problem`, call `solve`, read the
`Result`; see the README for a first example.
"""

from . import datasets, domains, methods, rates, zoo
from .certificates.certificate import Certificate, Estimate
from .certificates.judging import certify
from .problems.constraints import Constraint, affine, at_least, at_most, between, equals
from .problems.data import Batches, Dataset, Sampler
from .problems.model_state import WithState
from .problems.persistent_cache import cache
from .problems.problem import Problem
from .problems.stream import Stream
from .runs.checkpoint import Checkpoint
from .runs.options import Record, Stop
from .runs.planning import Plan, plan
from .runs.result import History, Result, load
from .runs.solving import solve
from .runs.stepper import Stepper, StepperState
from .runs.sweeping import SweepResult, sweep

__version__ = "0.1.0"

__all__ = [
    "Batches",
    "Certificate",
    "Checkpoint",
    "Constraint",
    "Dataset",
    "Estimate",
    "History",
    "Plan",
    "Problem",
    "Record",
    "Result",
    "Sampler",
    "Stepper",
    "StepperState",
    "Stop",
    "Stream",
    "SweepResult",
    "WithState",
    "affine",
    "at_least",
    "at_most",
    "between",
    "cache",
    "certify",
    "datasets",
    "domains",
    "equals",
    "load",
    "methods",
    "plan",
    "rates",
    "solve",
    "sweep",
    "zoo",
]
