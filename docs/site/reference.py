"""A hook of MkDocs: the pages of the API and of the methods list every public name, so none is forgotten."""

import inspect

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

import tightrope as tr
import tightrope.sklearn
import tightrope.torch
from tightrope.methods import registry
from tightrope.methods.base import Method

GROUPS = {
    "Problems": (
        tr,
        [
            "Problem",
            "explain",
            "Explanation",
            "equals",
            "at_most",
            "at_least",
            "between",
            "affine",
            "Constraint",
            "WithState",
        ],
    ),
    "Data": (tr, ["Dataset", "Sampler", "Stream", "Batches"]),
    "Solving": (tr, ["solve", "Result", "History", "load", "Stop", "Record", "Checkpoint", "plan", "Plan", "cache"]),
    "Ratios, tails, probabilities": (tr, ["ratio_at_least", "ratio_at_most", "cvar_at_most", "chance_at_most"]),
    "Rates of groups": (tr.rates, tr.rates.__all__),
    "Many runs": (tr, ["sweep", "SweepResult", "tradeoff", "Tradeoff"]),
    "A loop of your own": (tr, ["Stepper", "StepperState"]),
    "Certificates": (tr, ["certify", "Certificate", "Estimate", "Promise", "Monitor", "MonitorReport"]),
    "scikit-learn": (tightrope.sklearn, tightrope.sklearn.__all__),
    "PyTorch": (tightrope.torch, tightrope.torch.__all__),
    "Sets": (tr.domains, tr.domains.__all__),
    "The contract of a method": (tr.methods, ["Method", "Accepts", "Draw", "Info", "available", "by_name"]),
    "Data sets": (tr.datasets, tr.datasets.__all__),
}
METHODS = {
    "Ours": registry.OURS,
    "Of the five papers": registry.PAPERS,
    "Compared with": registry.COMPARED,
}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Append the entries to the two pages."""
    return markdown + {"api.md": api, "methods.md": methods}.get(page.file.src_uri, str)()


def api() -> str:
    """All public names by group; those that no group names come last."""
    grouped = {name for module, names in GROUPS.values() if module is tr for name in names}
    rest = [name for name in tr.__all__ if name not in grouped and not inspect.ismodule(getattr(tr, name))]
    groups = GROUPS | ({"Others": (tr, rest)} if rest else {})
    return "\n".join(
        f"## {title}\n\n" + "\n".join(f"::: {module.__name__}.{name}\n" for name in names)
        for title, (module, names) in groups.items()
    )


def methods() -> str:
    """The module of each method, with its equations, and its class."""
    return "\n".join(f"## {title}\n\n" + "\n".join(map(entry, classes)) for title, classes in METHODS.items())


def entry(method: type) -> str:
    """The equations of a method, which may be those of a base class, and its arguments."""
    bases = [cls.__module__ for cls in method.__mro__[1:] if cls.__module__.startswith("tightrope.methods.")]
    modules = [(method.__module__, method.__name__), *((base, "") for base in bases if base != Method.__module__)]
    shown = "show_root_heading: false, show_root_toc_entry: false, heading_level: 4"
    entries = [f"::: {module}\n    options: {{members: [{name}], {shown}}}\n" for module, name in modules]
    return f"### {method.__name__}\n\n" + "\n".join(reversed(entries))
