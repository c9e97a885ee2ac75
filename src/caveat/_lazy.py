"""Lazy packages, whose names are imported on first use, so that importing the package is fast."""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, from the imports in the stub next to its file.

    The stub `__init__.pyi` has a line `from .module import Name as Name` for each public name. Type checkers and
    editors also read the stub, so names are listed only once.
    """
    places = _places(Path(file).with_suffix(".pyi"))

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if places[name] == ".":
            return import_module(f".{name}", package)
        return getattr(import_module(places[name], package), name)

    return find, lambda: sorted(places), sorted(places)


def _places(stub: Path) -> dict[str, str]:
    """Return the module of each name, relative to the package; "." if the name is a module of the package."""
    found = [each for each in ast.parse(stub.read_text(encoding="utf-8")).body if isinstance(each, ast.ImportFrom)]
    return {alias.name: "." * each.level + (each.module or "") for each in found for alias in each.names}
