"""The methods by name: built-in methods, and methods that users register."""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..core import ConfigurationError
from ..core.errors import short_repr

if TYPE_CHECKING:
    from ..core import Method

NEEDED = ("schedule", "broadcast", "answer")
"""Methods that subclasses of `Method` must define."""
Registered = TypeVar("Registered", bound="type[Method]")
"""A class that `register` returns unchanged."""


class Methods(Mapping[str, "type[Method]"]):
    """The methods by the names used in configurations; `register` adds one. A lookup imports no plugin.

    Built-in methods are listed as "module.Class" of this folder, and imported on lookup.
    """

    def __init__(self, own: Mapping[str, str]) -> None:
        self._own, self._added = dict(own), dict[str, "type[Method]"]()

    def __getitem__(self, name: str) -> type[Method]:
        if name not in self._own:
            return self._added[name]
        module, _, kind = self._own[name].partition(".")
        found: type[Method] = getattr(import_module(f".{module}", __package__), kind)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._added

    def about(self, name: str) -> str:
        """Return the first line of a method's docstring; built-in methods are not imported."""
        if name not in self._own:
            return _first_line(self._added[name].__doc__)
        module, _, kind = self._own[name].partition(".")
        tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
        classes = {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}
        return _first_line(ast.get_docstring(classes[kind]))

    def __iter__(self) -> Iterator[str]:
        return iter([*self._own, *self._added])

    def __len__(self) -> int:
        return len(self._own) + len(self._added)

    @property
    def added(self) -> list[type[Method]]:
        """Methods that are not built in."""
        return list(self._added.values())

    def add(self, cls: type[Method]) -> None:
        """Register a class under its `name`. The same class, imported again, replaces the earlier one.

        Raises ConfigurationError for a class that a configuration could not build, and for a name that is taken.
        """
        name = _checked(cls)
        if name in self._own:
            raise ConfigurationError(f"{_place(cls)}: {name!r} is a built-in method; rename the class")
        other = self._added.get(name)
        if other is not None and _place(other) != _place(cls):
            raise ConfigurationError(
                f"{_place(cls)}: {name!r} is already the name of {_place(other)}; rename one class"
            )
        self._added[name] = cls


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def _checked(cls: object) -> str:
    """Return the name of a method's class. Raises ConfigurationError, in one line, if it cannot be built."""
    from ..core import Method

    if not isinstance(cls, type) or not issubclass(cls, Method):
        raise ConfigurationError(f"register({short_repr(cls)}): expected a subclass of caveat.Method")
    place = _place(cls)
    if "__pydantic_fields__" not in vars(cls):
        raise ConfigurationError(f"{place}: its settings are not frozen; put @caveat.frozen_settings above the class")
    first = _first_line(cls.__doc__)
    if not first or first.startswith((f"{cls.__name__}(", "Settings:")):
        raise ConfigurationError(f"{place}: no docstring; add one, whose first line `caveat list methods` shows")
    if lacking := [name for name in NEEDED if getattr(cls, name) is getattr(Method, name)]:
        raise ConfigurationError(f"{place}: {lacking[0]}() is missing; every method needs {', '.join(NEEDED)}")
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    missing = dataclasses.MISSING
    if bare := [each.name for each in fields if each.default is missing and each.default_factory is missing]:
        raise ConfigurationError(f"{place}: {bare[0]} has no default; every setting of a method needs one")
    name = cls().name
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,59}", name):
        raise ConfigurationError(
            f"{place}: its name is {short_repr(name)}; expected at most 60 lower-case letters, digits and "
            "underscores, starting with a letter"
        )
    return name


def _place(cls: type) -> str:
    """Return a class's name and file."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__
    return f"{cls.__qualname__} of {file}"


METHODS = Methods({
    "local": "local.Local",
    "fedavg": "fedavg.FedAvg",
    "fedprox": "fedprox.FedProx",
    "fedbn": "fedbn.FedBN",
    "scaffold": "scaffold.SCAFFOLD",
    "moon": "moon.MOON",
    "feddyn": "feddyn.FedDyn",
    "feddc": "feddc.FedDC",
    "feddisco": "feddisco.FedDisco",
    "ifca": "ifca.IFCA",
    "distrans": "distrans.DisTrans",
    "fedsr": "fedsr.FedSR",
    "fediir": "fediir.FedIIR",
    "fedper": "fedper.FedPer",
    "fedrep": "fedrep.FedRep",
    "fedbabu": "fedbabu.FedBABU",
    "fedcr": "fedcr.FedCR",
    "perfedavg": "perfedavg.PerFedAvg",
    "apfl": "apfl.APFL",
    "ditto": "ditto.Ditto",
    "fedrod": "fedrod.FedRoD",
    "fedala": "fedala.FedALA",
    "fedproto": "fedproto.FedProto",
    "fedbe": "fedbe.FedBE",
    "pfedbayes": "pfedbayes.PFedBayes",
    "uefl": "uefl.UEFL",
    "fedpn": "fedpn.FedPN",
    "fml": "fml.FML",
    "fmlu": "fmlu.FMLU",
    "trfeddis": "trfeddis.TrFedDis",
})  # fmt: skip


def register(cls: Registered) -> Registered:
    """Register a custom method under its name, for configurations and commands: a decorator above `frozen_settings`.

    The name is the class name in lower case, unless `name` is overridden. Raises ConfigurationError for a name that is
    taken, and for a class that a configuration cannot build: with settings that are not frozen or have no default,
    without a docstring, or without a schedule.
    """
    METHODS.add(cls)
    return cls
