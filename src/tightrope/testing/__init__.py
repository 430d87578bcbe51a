"""The contract of a method as checks that work for any method: `check_method(MyMethod)`."""

from .checks import (
    CHECKS,
    check_counts,
    check_declares,
    check_lanes,
    check_method,
    check_precisions,
    check_pytrees,
    check_refuses,
    check_resumes,
    check_runs,
    check_solves,
    check_state,
)

__all__ = [
    "CHECKS",
    "check_counts",
    "check_declares",
    "check_lanes",
    "check_method",
    "check_precisions",
    "check_pytrees",
    "check_refuses",
    "check_resumes",
    "check_runs",
    "check_solves",
    "check_state",
]
