"""Steps on a set X: the face where the proximal step ends, and quasi-Newton steps along faces.

As in L-BFGS-B: a projected step finds the face, and the quasi-Newton matrix is used only along it, where no bound acts.
Here X is any set with a projection P. Near a point q it is about P(q) + P'(q)(· − q), and P'(q), the projection onto the
directions along the face, stands for the face.

If the step along a face leaves X, its end together with the normal of this face finds the next one. After `MAX_FACES` faces the
proximal step is taken.

Reference:
    R. H. Byrd, P. Lu, J. Nocedal and C. Zhu. A limited memory algorithm for bound constrained optimization. SIAM Journal on
    Scientific Computing 16, 1995.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Bool, Float, Int


class NearestFace(NamedTuple):
    """The face of X nearest to a point q.

    `along` is the projection onto its directions, `fixed` the part of the step to it that it dictates, and `normal` leads from
    its nearest `point` to q.
    """

    point: Float[Array, " n"]
    along: Callable[[Float[Array, " n"]], Float[Array, " n"]]
    fixed: Float[Array, " n"]
    normal: Float[Array, " n"]


def nearest_face(
    project: Callable[[Float[Array, " n"]], Float[Array, " n"]], q: Float[Array, " n"], x: Float[Array, " n"]
) -> NearestFace:
    """Return the face of X nearest to q, for steps from x."""
    point, along = jax.linearize(project, q)
    return NearestFace(point, along, point - x - along(point - x), q - point)


class FaceSearch(NamedTuple):
    """The search for a face on which the step stays in X."""

    target: Float[Array, " n"]
    """The next face is the one nearest to this point."""
    multipliers: Float[Array, " rows"]
    """Those of the step on the last face."""
    face: Any
    """The last face, or the point to which it is nearest."""
    leaves: Bool[Array, ""]
    """Whether the step on the last face leaves X."""
    tried: Int[Array, ""]
