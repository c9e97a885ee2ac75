"""Code of one's own that a configuration names, imported where its user names it, and nowhere else."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from ..config import Config
from ..core import ConfigurationError
from ..core.errors import shown
from ..nn.own import KNOWN


def codes_of(config: Config) -> list[str]:
    """The names of code in a configuration: of the model, and of silos' own models."""
    found = [*config.model.codes, *(code for own in config.personal for code in own.codes)]
    return list(dict.fromkeys(found))


def import_named(config: Config) -> None:
    """Import the code that a configuration names. For configurations that the user of this process names alone."""
    for code in codes_of(config):
        import_code(code)


def import_code(code: str) -> None:
    """Import what a name stands for, "package.module:name" or "file.py:name", from the current folder too.

    Raises ConfigurationError if there is no such code.
    """
    if code in KNOWN:
        return
    place, _, name = code.rpartition(":")
    if not place or not name.isidentifier():
        raise ConfigurationError(f"{{key}} = {shown(code)}: expected package.module:name or file.py:name", "model")
    found = getattr(_module(place, code), name, None)
    if not callable(found):
        raise ConfigurationError(f"{{key}} = {code!r}: {place} has no function or module {name!r}", "model")
    KNOWN[code] = found


def allow(codes: Iterable[str], named: Iterable[str] = (), given: Callable[..., Any] | None = None) -> None:
    """Make known what a folder's configuration names, as far as the user names it too.

    `named` are names to import, `given` is the code itself. Raises ConfigurationError for a name that the folder does
    not have, and for code that could be any of several.
    """
    codes = list(codes)
    for name in named:
        if name not in codes:
            there = f"it names {', '.join(codes)}" if codes else "it names no code of one's own"
            raise ConfigurationError(f"--model {name}: this is not the run's; {there}", "model")
        import_code(name)
    if given is None:
        return
    if len(codes) != 1:
        there = f"names {', '.join(codes)}" if codes else "is of a model of caveat's own"
        raise ConfigurationError(f"model is given, but the run {there}", "model")
    KNOWN[codes[0]] = given


def _module(place: str, code: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            if str(Path.cwd()) not in sys.path:
                sys.path.insert(0, str(Path.cwd()))
            return importlib.import_module(place)
        file = Path(place).expanduser()
        if not file.is_file():
            raise ConfigurationError(f"{{key}} = {code!r}: no such file {place}", "model")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        if spec is None or spec.loader is None:
            raise ConfigurationError(f"{{key}} = {code!r}: {place} is no Python file", "model")
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(file.stem, module)
        spec.loader.exec_module(module)
        return module
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{{key}} = {code!r}: {type(error).__name__}: {error}", "model") from error
