"""Classical small nonlinear programs with their published formulas, starts and optima, bad scaling included.

Sources: W. Hock and K. Schittkowski, Test Examples for Nonlinear Programming Codes, 1981 (`hs…`); K. Schittkowski, More Test
Examples, 1987 (`s…`); P. T. Boggs and J. W. Tolle, SIAM J. Numer. Anal. 26, 1989 (`bt…`), in the form of the CUTE
collection, which also has the rest; `lnp` marks its variants with only the active constraints, as equations.

Minimizers without a closed form were refined numerically to double precision. They are global as far as is known (many local
searches found nothing lower); several problems also have local minima. Multipliers are not stated.
"""

from collections.abc import Callable
from functools import partial

from ..base import Case
from . import equalities, inequalities, larger

__all__ = ["available"]


def available() -> dict[str, Callable[..., Case]]:
    """All programs by name: first those with equations only and x in R^n, then those with inequalities or bounds.

    Each is called with `noise` and `constraint_noise`, both variances, 0 by default. A sampled gradient of the objective is
    ∇f + N(0, noise/n · I); values are exact. Sampled constraints are c + N(0, constraint_noise/m · I), their Jacobian
    J + N(0, constraint_noise/(mn)) entry by entry, where m is the number of all constraint values; batches have one example.

    Example:
        >>> import tightrope as tr
        >>> problem, x0, solution = tr.zoo.hs.available()["hs71"](noise=1e-4)
        >>> problem
        Problem(objective 'hs71', constraints: equalities (equals), inequalities (at_least), domain Box)
        >>> round(solution.objective, 4)
        17.014
    """
    programs = equalities.PROGRAMS | inequalities.PROGRAMS | larger.PROGRAMS
    return {name: partial(program.case, name) for name, program in programs.items()}
