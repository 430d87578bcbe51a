"""`tightrope methods` and `tightrope problems`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import zoo
from ..methods import Accepts, Method
from ..methods.registry import COMPARED, OURS, PAPERS
from .terminal import show, table

WIDE = 160
"""Terminals with at least this many columns get the methods as a table."""
GROUPS = {
    "The default": OURS,
    "From the papers": PAPERS,
    "Compared with them": COMPARED,
}
TITLES = ("paper", "accepts", "guarantee", "cost")
LEGEND = (
    "Cost of a step: ∇f, ∇g: gradient of the objective, of one constraint; c: values of all constraints; J: their Jacobian; "
    "Jᵀy, Jd: products with it; k, K: current step, number of steps.",
    "[reconstructed]: the rule, or the part named, could not be checked against a public source; the docstring of the "
    "method's module says what was filled in.",
)


def list_methods() -> None:
    """List the methods: paper, accepted problems, guarantee, cost of a step.

    \b
    Example:
      tightrope methods | less
    """
    width = Console().width
    for title, methods in GROUPS.items():
        show(Text(title, "bold underline"))
        show(_method_blocks(methods, width) if width < WIDE else _method_table(methods))
    for note in LEGEND:
        show(textwrap.fill(note, width))


def list_problems() -> None:
    """List the zoo: problems with known solutions, for `tightrope solve`.

    \b
    Example:
      tightrope problems
    """
    found = table("problem", "description")
    found.columns[0].no_wrap = True
    for name, make in zoo.available().items():
        found.add_row(name, (make.__doc__ or "").strip().partition("\n")[0])
    show(found)


def facts(method: type[Method]) -> tuple[str, str, str, str]:
    """The texts about a method, in the order of `TITLES`."""
    return method.reference, in_words(method.accepts), method.guarantee, method.cost


def _method_blocks(methods: Iterable[type[Method]], width: int) -> Text:
    text = Text()
    for method in methods:
        text.append(f"\n{method.__name__}\n", "bold")
        for title, fact in zip(TITLES, facts(method), strict=True):
            line = textwrap.fill(f"  {title:11}{fact}", width, subsequent_indent=13 * " ", break_on_hyphens=False)
            text.append(line + "\n")
    return highlighted(text)


def _method_table(methods: Iterable[type[Method]]) -> Table:
    found = table("method and paper", *TITLES[1:], lines=True)
    found.expand = True
    for column, ratio in zip(found.columns, (7, 6, 8, 5), strict=True):
        column.ratio = ratio
    for method in methods:
        paper, *rest = facts(method)
        found.add_row(highlighted(Text.assemble((method.__name__, "bold"), "\n", paper)), *rest)
    return found


def highlighted(text: Text) -> Text:
    """The text with its [reconstructed] marks in color."""
    text.highlight_regex(r"\[[^]]*reconstructed\]", "yellow")
    return text


def in_words(accepts: Accepts) -> str:
    """The problems that a method accepts, in words."""
    kinds = ["equalities"] * (accepts.equalities == "any") + ["inequalities"] * accepts.inequalities
    data = "with or without data" if accepts.stochastic else "without data"
    sets = {
        "projection": "sets with a projection",
        "lmo": "sets with a linear minimization oracle",
        "everywhere": "no set: x unrestricted",
    }[accepts.needs]
    affine = ["affine equalities"] * (accepts.equalities == "affine")
    return "; ".join([*affine, *([f"{' and '.join(kinds)} {data}"] if kinds else []), sets])
