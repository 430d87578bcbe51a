"""`tightrope methods` and `tightrope problems`: what there is."""

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
"""Columns from which on the list of methods is a table."""
METHODS = {
    "The default": OURS,
    "From the papers": PAPERS,
    "Compared with them": COMPARED,
}
LEGEND = (
    "∇f, ∇g: gradient of the objective, of one constraint; c: values of all constraints; J: their Jacobian; Jᵀy, Jd: "
    "products with it; k, K: steps so far, steps of a run.",
    "[reconstructed]: the rule, or the part that is named, is not quoted from a public source; the docstring of the "
    "method's module says what was filled in.",
)


def show_methods() -> None:
    """List the methods: paper, problems they take, guarantee, cost of a step.

    \b
    Example:
      tightrope methods | less
    """
    width = Console().width
    for title, methods in METHODS.items():
        show(Text(title, "bold underline"))
        if width < WIDE:
            show(_method_blocks(methods, width))
        else:
            show(_method_table(methods))
    for note in LEGEND:
        show(textwrap.fill(note, width))


def show_problems() -> None:
    """List the zoo: problems with known solutions, for `tightrope solve`.

    \b
    Example:
      tightrope problems
    """
    found = table("problem", "what it is")
    found.columns[0].no_wrap = True
    for name, make in zoo.available().items():
        found.add_row(name, (make.__doc__ or "").strip().partition("\n")[0])
    show(found)


def _method_blocks(methods: Iterable[type[Method]], width: int) -> Text:
    text = Text()
    for method in methods:
        text.append(f"\n{method.__name__}\n", "bold")
        facts = method.reference, takes(method.accepts), method.guarantee, method.cost
        for label, fact in zip(("paper", "takes", "guarantee", "a step"), facts, strict=True):
            line = textwrap.fill(f"  {label:11}{fact}", width, subsequent_indent=13 * " ", break_on_hyphens=False)
            text.append(line + "\n")
    return marked(text)


def _method_table(methods: Iterable[type[Method]]) -> Table:
    found = table("method and its paper", "problems it takes", "guarantee", "cost of a step", lines=True)
    found.expand = True
    for column, ratio in zip(found.columns, (7, 6, 8, 5), strict=True):
        column.ratio = ratio
    for method in methods:
        title = marked(Text.assemble((method.__name__, "bold"), "\n", method.reference))
        found.add_row(title, takes(method.accepts), method.guarantee, method.cost)
    return found


def marked(text: Text) -> Text:
    """The text, with what is reconstructed in color."""
    text.highlight_regex(r"\[[^]]*reconstructed\]", "yellow")
    return text


def takes(accepts: Accepts) -> str:
    """What a method declares about its problems, in words."""
    kinds = ["equalities"] * (accepts.equalities == "any") + ["inequalities"] * accepts.inequalities
    data = "with or without data" if accepts.stochastic else "without data"
    sets = {
        "projection": "sets with a projection",
        "lmo": "sets with a linear minimizer",
        "everywhere": "no set, x free",
    }[accepts.needs]
    affine = ["affine equalities"] * (accepts.equalities == "affine")
    return "; ".join([*affine, *([f"{' and '.join(kinds)} {data}"] if kinds else []), sets])
