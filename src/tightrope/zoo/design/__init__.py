"""Engineering design: trusses and components of least weight or cost, with published formulas, starts and optima.

Sources: L. A. Schmit and B. Farshi, AIAA Journal 12, 1974, and M. P. Saka, Computers & Structures 35, 1990, for the ten-bar
trusses and the space truss; K. M. Ragsdell and D. T. Phillips, Journal of Engineering for Industry 98, 1976 (welded beam);
E. Sandgren, Journal of Mechanical Design 112, 1990 (pressure vessel); J. S. Arora, Introduction to Optimum Design, 1989
(spring); J. Golinski, Journal of Mechanisms 5, 1970 (speed reducer); K. Svanberg, International Journal for Numerical Methods
in Engineering 24, 1987 (cantilever beam, two bars); H. Nowacki, 1974 (three bars); S. S. Rao, Engineering Optimization, 1996
(column); A. H. Gandomi, X.-S. Yang and A. H. Alavi, Engineering with Computers 29, 2013 (I-beam, bulkhead). The lattices are
ours. Minimizers were refined numerically to double precision; many local searches found nothing lighter.
"""

from collections.abc import Callable
from functools import partial

from ..base import Case
from . import catalog, components

__all__ = ["available"]


def available() -> dict[str, Callable[..., Case]]:
    """All problems by name: first components, then trusses.

    Components are called with `noise` and `constraint_noise` as the programs of `hs`. Trusses are called with `areas`, the
    area of every bar at the start. Their variables are the areas, then the displacements, which are zero at the start.

    Example:
        >>> import tightrope as tr
        >>> problem, x0, solution = tr.zoo.design.available()["ten_bar"](areas=5.0)
        >>> problem
        Problem(objective 'ten_bar', constraints: equilibrium (equals), stress (between), domain Box)
        >>> x0.shape, round(solution.objective, 2)
        ((18,), 5060.85)
    """
    return {name: partial(one.case, name) for name, one in (components.PROGRAMS | catalog.TRUSSES).items()}
