"""The simple convex sets X that parameters can be kept in: one set, one file."""

from .affine import Affine
from .base import Domain
from .box import Box
from .l1ball import L1Ball
from .l2ball import L2Ball
from .nonnegative import NonNegative
from .nuclear_ball import NuclearBall
from .product import Product
from .reals import Reals
from .simplex import Simplex
from .spectrahedron import Spectrahedron

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
