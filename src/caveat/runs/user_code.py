"""Custom code that a configuration names, which is imported only if the user names it, too."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from ..config import Config
from ..core import ConfigurationError
from ..core.errors import short_repr
from ..methods.plugins import import_file, is_file, told
from ..nn.custom_model import KNOWN, code_of
from ..nn.models import ModelSettings


class Models(Protocol):
    """The model settings of a configuration or specification."""

    @property
    def model(self) -> ModelSettings: ...
    @property
    def personal(self) -> Sequence[ModelSettings]: ...


def codes_of(config: Models) -> list[str]:
    """Return the names of custom code of a configuration or specification, including personalized models."""
    found = [*config.model.codes, *(code for own in config.personal for code in own.codes)]
    return list(dict.fromkeys(found))


def weights_of(config: Config) -> list[str]:
    """Return the weight files of a configuration."""
    found = [each.weights for each in (config.model, *config.personal)]
    return list(dict.fromkeys(file for file in found if file is not None))


def with_whole_paths(config: Config, weights: bool) -> Config:
    """Return the configuration with absolute paths for `init_from` and, if `weights`, weight files, if they exist."""

    def whole(path: str | None) -> str | None:
        return str(Path(path).absolute()) if path is not None and Path(path).exists() else path

    config = replace(config, init_from=whole(config.init_from))
    if not weights:
        return config
    model = replace(config.model, weights=whole(config.model.weights))
    personal = tuple(replace(each, weights=whole(each.weights)) for each in config.personal)
    return replace(config, model=model, personal=personal)


def import_named(config: Models) -> None:
    """Import the code that a configuration names. Only for configurations named by the user of this process."""
    for code in codes_of(config):
        import_code(code)


def check_known(config: Models) -> None:
    """Raise ConfigurationError for code that a configuration names but the user of this process did not."""
    for code in codes_of(config):
        code_of(code, "model")


def import_code(code: str) -> None:
    """Import code by its name, "package.module:name" or "file.py:name"; the current folder is searched, too. Raises
    ConfigurationError if it does not exist or cannot be imported."""
    if code in KNOWN:
        return
    place, name = split_name(code)
    try:
        module = import_file(Path(place).expanduser()) if is_file(place) else _import_module(place)
    except Exception as error:
        why = error if isinstance(error, ConfigurationError) else told(error)
        raise ConfigurationError(f"{{key}} = {short_repr(code)}: {why}", "model") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise ConfigurationError(f"{{key}} = {short_repr(code)}: {place} has no function or module {name!r}", "model")
    KNOWN[code] = found


def split_name(code: str) -> tuple[str, str]:
    """Return the file or module, and the name in it. Raises ConfigurationError for an invalid name."""
    place, _, name = code.rpartition(":")
    if not name.isidentifier() or not (is_file(place) or all(part.isidentifier() for part in place.split("."))):
        raise ConfigurationError(f"{{key}} = {short_repr(code)}: expected package.module:name or file.py:name", "model")
    return place, name


def allow(codes: Iterable[str], named: Iterable[str] = (), given: Callable[..., Any] | None = None) -> None:
    """Allow the code that a folder's configuration names, if the user names it, too.

    `named` are names to import, `given` is the code itself. A name that the folder does not have replaces the only
    other code of the folder; their outputs are compared. Raises ConfigurationError for other names, and for ambiguous
    code.
    """
    codes, named = list(codes), list(dict.fromkeys(named))
    meant = {name: _same_code(name, codes) for name in named}
    for name in named:
        left = [code for code in codes if code not in meant.values()]
        if (code := meant[name] or (left[0] if len(left) == 1 else None)) is None:
            there = ", ".join(codes) or "no custom code"
            raise ConfigurationError(
                f"--model {short_repr(name)} is not the code of the run, which names {there}", "model"
            )
        meant[name] = code
        import_code(name)
        KNOWN[code] = KNOWN[name]
    if given is None:
        return
    if len(codes) != 1:
        there = f"names {', '.join(codes)}" if codes else "has no custom model"
        raise ConfigurationError(f"model was passed, but the run {there}", "model")
    KNOWN[codes[0]] = given


def _same_code(name: str, codes: Iterable[str]) -> str | None:
    """Return the code in `codes` with this name, perhaps in a file that has been moved; None if there is none."""
    place, wanted = split_name(name)
    elsewhere = (code for code in codes if is_file(place) and _last(code) == (Path(place).name, wanted))
    return name if name in codes else next(elsewhere, None)


def _last(code: str) -> tuple[str, str]:
    """Return the file name without its folder, and the name in it."""
    place, _, name = code.rpartition(":")
    return Path(place).name, name


def _import_module(place: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, so its files do not hide installed packages
    if importlib.util.find_spec(place.partition(".")[0]) is None:
        raise ConfigurationError(f"no module {place.partition('.')[0]!r} is installed, and none is in {here}")
    return importlib.import_module(place)
