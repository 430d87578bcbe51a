"""Products of sets: one set for each part of a pytree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..numerics.scaling import norm
from ._vectors import Point, flatten
from .base import Domain


class Product(Domain):
    """One set for each part of x.

    X = X_1 × X_2 × ...

    Args:
        parts: a pytree prefix of x whose leaves are domains.

    Example:
        >>> import jax.numpy as jnp
        >>> from tightrope.domains import L2Ball, Product, Reals
        >>> domain = Product({"w": L2Ball(5.0), "b": Reals()})
        >>> domain.project({"w": jnp.array([6.0, 8.0]), "b": jnp.array(9.0)})
        {'b': Array(9., dtype=float32...), 'w': Array([3., 4.], dtype=float32)}
    """

    parts: Any

    def __check_init__(self):
        leaves = jax.tree.leaves(self.parts, is_leaf=_is_domain)
        others = [leaf for leaf in leaves if not _is_domain(leaf)]
        if others or not leaves:
            came = f"{others[0]!r} among its leaves" if others else f"{self.parts!r}"
            raise TypeError(f"Product: parts must be a pytree whose leaves are domains, got {came}")

    def project(self, x: Point) -> Point:
        """The projection of each piece onto its part."""
        return self._map(lambda part, piece: part.project(piece), x)

    def lmo(self, gradient: Point) -> Point:
        """The linear minimization oracle of each part."""
        return self._map(lambda part, piece: part.lmo(piece), gradient)

    @property
    def can_project(self) -> bool:
        """Whether every part has a projection."""
        return all(part.can_project for part in self._domains())

    @property
    def can_minimize(self) -> bool:
        """Whether every part has a linear minimization oracle."""
        return all(part.can_minimize for part in self._domains())

    @property
    def is_separable(self) -> bool:
        """Whether every part is known to be a product of intervals."""
        return all(part.is_separable for part in self._domains())

    def contains(self, x: Point, tolerance: Float[Array, ""] | float | None = None) -> Bool[Array, ""]:
        """Whether each piece of `x` is in its part; without `tolerance`, each part uses its default."""
        if tolerance is not None:
            return super().contains(x, tolerance)
        inside = jax.tree.leaves(self._map(lambda part, piece: part.contains(piece), x))
        return jnp.all(jnp.stack(inside))

    def diameter(self, x: Point) -> Float[Array, ""]:
        """The square root of the sum of the squared diameters of the parts."""
        return norm(flatten(self._map(lambda part, piece: part.diameter(piece), x)))

    def project_normal_cone(self, x: Point, v: Point) -> Point:
        """The projection onto the normal cone of each part: the normal cone of a product is the product of the cones."""
        return self._map(lambda part, at, push: part.project_normal_cone(at, push), x, v)

    def check(self, x: Any) -> None:
        """A ValueError unless `parts` is a prefix of `x` and each part matches its piece."""
        paths, structure = jax.tree_util.tree_flatten_with_path(self.parts, is_leaf=_is_domain)
        try:
            pieces = structure.flatten_up_to(x)
        except ValueError as mismatch:
            raise ValueError(
                f"Product: parts must be a prefix of x, got parts {structure} for x = {jax.tree.structure(x)}: {mismatch}"
            ) from None
        for (path, part), piece in zip(paths, pieces, strict=True):
            try:
                part.check(piece)
            except ValueError as mismatch:
                raise ValueError(f"Product: parts{jax.tree_util.keystr(path)}: {mismatch}") from None

    def _domains(self) -> list[Domain]:
        return jax.tree.leaves(self.parts, is_leaf=_is_domain)

    def _map(self, function: Callable[..., Any], *points: Point) -> Any:
        return jax.tree.map(function, self.parts, *points, is_leaf=_is_domain)


def _is_domain(value: Any) -> bool:
    return isinstance(value, Domain)
