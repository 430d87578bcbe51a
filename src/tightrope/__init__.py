"""Tightrope: optimization under constraints when samples are all you have.

Minimize E f(x, ξ) subject to E c(x, ζ) = 0, E g(x, ζ) ≤ 0 and x in a simple set. Write a `Problem`, call `solve`, read the
`Result`; see the README for a first example.
"""

from . import datasets, domains, methods, rates, zoo
from .certificates.certificate import Certificate, Estimate
from .certificates.judging import certify
from .certificates.monitor import Monitor, MonitorReport
from .certificates.promise import Promise
from .problems.builders import chance_at_most, cvar_at_most, ratio_at_least, ratio_at_most
from .problems.constraints import Constraint, affine, at_least, at_most, between, equals
from .problems.data import Batches, Dataset, Sampler
from .problems.model_state import WithState
from .problems.persistent_cache import cache
from .problems.problem import Problem
from .problems.stream import Stream
from .runs.checkpoint import Checkpoint
from .runs.explaining import Explanation, explain
from .runs.options import Record, Stop
from .runs.planning import Plan, plan
from .runs.result import History, Result, load
from .runs.solving import solve
from .runs.stepper import Stepper, StepperState
from .runs.sweeping import SweepResult, sweep
from .runs.tradeoffs import Tradeoff, tradeoff

__version__ = "0.1.0"

__all__ = [
    "Batches",
    "Certificate",
    "Checkpoint",
    "Constraint",
    "Dataset",
    "Estimate",
    "Explanation",
    "History",
    "Monitor",
    "MonitorReport",
    "Plan",
    "Problem",
    "Promise",
    "Record",
    "Result",
    "Sampler",
    "Stepper",
    "StepperState",
    "Stop",
    "Stream",
    "SweepResult",
    "Tradeoff",
    "WithState",
    "affine",
    "at_least",
    "at_most",
    "between",
    "cache",
    "certify",
    "chance_at_most",
    "cvar_at_most",
    "datasets",
    "domains",
    "equals",
    "explain",
    "load",
    "methods",
    "plan",
    "rates",
    "ratio_at_least",
    "ratio_at_most",
    "solve",
    "sweep",
    "tradeoff",
    "zoo",
]
