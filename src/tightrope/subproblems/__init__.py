"""Small optimisation problems that are solved inside larger ones."""

from .ascent import length_of_climb
from .kkt import LENGTHS, kkt_multipliers
from .prox_linear import prox_linear, prox_linear_on_set
from .quadratic import bounded_quadratic, or_one
from .ranges import held_multipliers, range_multipliers, range_multipliers_on_set, within

__all__ = [
    "LENGTHS",
    "bounded_quadratic",
    "held_multipliers",
    "kkt_multipliers",
    "length_of_climb",
    "or_one",
    "prox_linear",
    "prox_linear_on_set",
    "range_multipliers",
    "range_multipliers_on_set",
    "within",
]
