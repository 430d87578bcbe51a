"""The order of the layers, read from the imports: a folder uses those before it, never those after it."""

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import tightrope

SOURCE = Path(tightrope.__file__).parent
LAYERS = (
    "arguments",
    "tables",
    "shown",
    "figures",
    "numerics",
    "domains",
    "problems",
    "oracles",
    "methods",
    "certificates",
    "runs",
    "rates",
    "sklearn",
    "datasets",
    "zoo",
    "experiments",
    "testing",
    "torch",
    "cli",
    "__init__",
)
SHARED_BY_METHODS = {"base", "shared"}
KNOW_ALL_METHODS = {"registry", "selection", "rates", "__init__"}
FILES = sorted(SOURCE.rglob("*.py"))


def module_of(path):
    """The dotted parts of a file's module within the package."""
    return path.relative_to(SOURCE).with_suffix("").parts


def imported(path):
    """The dotted parts of every module of this package that a file imports, wherever the import stands."""
    found = set()
    package = module_of(path)[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1]
            elif (node.module or "").split(".")[0] == "tightrope":
                base = ()
            else:
                continue
            parts = tuple((node.module or "").removeprefix("tightrope").strip(".").split(".")) if node.module else ()
            parts = (*base, *(part for part in parts if part))
            for alias in node.names:
                deeper = (*parts, alias.name)
                is_module = SOURCE.joinpath(*deeper).is_dir() or SOURCE.joinpath(*deeper).with_suffix(".py").exists()
                found.add(deeper if is_module else parts)
        elif isinstance(node, ast.Import):
            found |= {tuple(a.name.split(".")[1:]) for a in node.names if a.name.split(".")[0] == "tightrope"}
    return found


def layer(parts):
    return LAYERS.index(parts[0] if parts else "__init__")


def steps_back_up(path):
    return [".".join(parts) for parts in imported(path) if layer(parts) > layer(module_of(path)) and parts]


@pytest.mark.parametrize("path", FILES, ids=lambda path: ".".join(module_of(path)))
def test_no_file_imports_from_a_later_layer(path):
    assert steps_back_up(path) == []


METHODS = [path for path in FILES if module_of(path)[0] == "methods" and module_of(path)[1] not in KNOW_ALL_METHODS]


@pytest.mark.parametrize("path", METHODS, ids=lambda path: ".".join(module_of(path)))
def test_no_method_imports_a_sibling(path):
    own = module_of(path)[1]
    others = {parts[1] for parts in imported(path) if parts[:1] == ("methods",) and len(parts) > 1}
    assert others <= SHARED_BY_METHODS | {own, "registry"} - ({"registry"} if own in SHARED_BY_METHODS else set())


def packages():
    found = pkgutil.walk_packages(tightrope.__path__, "tightrope.")
    return ["tightrope", *(module.name for module in found if module.ispkg)]


@pytest.mark.parametrize("name", packages())
def test_no_function_or_class_shadows_a_module(name):
    package = importlib.import_module(name)
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    shadowing = [m for m in modules if hasattr(package, m) and not inspect.ismodule(getattr(package, m))]
    assert shadowing == []
