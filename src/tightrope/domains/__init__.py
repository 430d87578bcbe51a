"""The simple convex sets X that parameters can be kept in: one set, one file."""

from tightrope.domains.affine import Affine
from tightrope.domains.base import Domain
from tightrope.domains.box import Box
from tightrope.domains.l1ball import L1Ball
from tightrope.domains.l2ball import L2Ball
from tightrope.domains.nonnegative import NonNegative
from tightrope.domains.nuclear_ball import NuclearBall
from tightrope.domains.product import Product
from tightrope.domains.reals import Reals
from tightrope.domains.simplex import Simplex
from tightrope.domains.spectrahedron import Spectrahedron

__all__ = [
    "Affine",
    "Box",
    "Domain",
    "L1Ball",
    "L2Ball",
    "NonNegative",
    "NuclearBall",
    "Product",
    "Reals",
    "Simplex",
    "Spectrahedron",
]
