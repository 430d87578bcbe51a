"""The methods: one algorithm, one file."""

from .base import Accepts, Draw, Info, Method
from .gradient_descent_ascent import GradientDescentAscent
from .switching_subgradient import SwitchingSubgradient
from .truncated_momentum import TruncatedMomentum

__all__ = [
    "Accepts",
    "Draw",
    "GradientDescentAscent",
    "Info",
    "Method",
    "SwitchingSubgradient",
    "TruncatedMomentum",
    "by_name",
    "every",
]


def every() -> dict[str, type[Method]]:
    """All methods, by name.

    Example:
        >>> import tightrope as tr
        >>> "TruncatedMomentum" in tr.methods.every()
        True
    """
    return {cls.__name__: cls for cls in (TruncatedMomentum, SwitchingSubgradient, GradientDescentAscent)}


def by_name(name: str) -> type[Method]:
    """The method of this name; capitals, hyphens and underscores do not matter.

    Example:
        >>> import tightrope as tr
        >>> tr.methods.by_name("switching-subgradient").__name__
        'SwitchingSubgradient'
    """
    plain = name.replace("-", "").replace("_", "").lower()
    for full, cls in every().items():
        if full.lower() == plain:
            return cls
    raise ValueError(f"method {name!r} is unknown; expected one of {', '.join(every())}")
