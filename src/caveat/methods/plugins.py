"""Methods from a user's files, modules and packages, imported only if the user names them."""

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core import ConfigurationError
from ..core.errors import CaveatError, cut, short_repr
from . import METHODS, register

GROUP = "caveat.methods"
"""The group of entry points with which an installed package lists its methods."""
PACKAGE = str(Path(__file__).parents[1])
"""The folder of caveat's own code."""
_NAMED = list[str]()


def use(plugin: str) -> None:
    """Import a plugin: a file `my.py`, the name of an installed package's method, or a module.

    The methods that it registers are then known by name. Raises ConfigurationError, in one line, if the plugin cannot
    be imported.
    """
    if not plugin or not plugin.isprintable():
        raise ConfigurationError(
            f"--plugin {short_repr(plugin)}: expected a file such as my.py, or the name of a module"
        )
    try:
        if is_file(plugin):
            import_file(Path(plugin))
        elif point := installed().get(plugin):
            _import_entry(point)
        else:
            _import_module(plugin)
    except CaveatError as error:
        raise ConfigurationError(f"--plugin {cut(plugin, 200)}: {error}") from error
    except Exception as error:
        raise ConfigurationError(f"--plugin {cut(plugin, 200)}: {told(error)}") from error
    _NAMED.append(plugin)


def named() -> list[str]:
    """Return the plugins that were imported by name in this process."""
    return list(_NAMED)


def use_typed(name: str) -> None:
    """Import the installed package that has a method with a name that the user typed, if any.

    Call it only for names on the command line: code is never imported because a file or folder refers to it.
    """
    if name not in METHODS and name in installed():
        use(name)


def is_file(named: str) -> bool:
    """Return whether `--plugin` names a file, and not a module or an installed package's method."""
    return named.endswith(".py") or os.sep in named


def module_of(named: str) -> str:
    """Return the module to import for a plugin that is not a file."""
    return installed()[named].module if named in installed() else named


def installed() -> dict[str, EntryPoint]:
    """Return the methods of installed packages, by name, without importing them."""
    return {point.name: point for point in entry_points(group=GROUP)}


SERVER_OPTIMIZERS = {"fedavgm": "momentum", "fedadagrad": "adagrad", "fedadam": "adam", "fedyogi": "yogi"}
"""Names of FedAvg with a server optimizer, which caveat has for every method, and the optimizers."""


def advice(name: str) -> str:
    """Return advice for an unknown method name: the keys to set, the package that has it, or how to name its file."""
    if optimizer := SERVER_OPTIMIZERS.get(name.lower()):
        return f'set method.name = "fedavg" and server.optimizer = "{optimizer}", which is {name}'
    point = installed().get(name)
    if point is not None:
        return f"{_package(point)} has this method: add --plugin {name}"
    if _NAMED:
        return f"{cut(', '.join(_NAMED), 200)} registers no method with that name: put @caveat.register above its class"
    return "for a custom method, name its file: --plugin my.py (in Python, import it)"


def about(point: EntryPoint) -> str:
    """Return a line about an installed package's method, without importing it."""
    return f"from {_package(point)}; --plugin {point.name} imports it"


def _package(point: EntryPoint) -> str:
    return f"the installed package {point.dist.name}" if point.dist is not None else f"the installed {point.module}"


def import_file(file: Path) -> ModuleType:
    """Run a file as a module. Its folder is not added to the path, where its files could hide other modules.

    Bytecode is not written, so a file that fails leaves nothing, and not read, because a run records the source, and
    Python also accepts bytecode of an earlier source with the same time and size.
    """
    if not file.is_file():
        raise ConfigurationError(f"no such file in {Path.cwd()}" if not file.is_absolute() else "no such file")
    digest = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:8]
    name = f"caveat_plugin_{file.stem}_{digest}"  # with its own name, a file random.py would hide Python's
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        raise ConfigurationError("expected a Python file, such as my.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # type hints of its classes are looked up there
    try:
        exec(spec.loader.source_to_code(file.read_bytes(), spec.loader.path), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_entry(point: EntryPoint) -> None:
    from ..core import Method

    found: Any = point.load()
    if isinstance(found, type) and issubclass(found, Method) and found not in METHODS.values():
        register(found)
    if point.name not in METHODS:
        raise ConfigurationError(
            f"{_package(point)} names method {point.name!r} as an entry point, but does not register it"
        )


def _import_module(named: str) -> ModuleType:
    if not all(part.isidentifier() for part in named.split(".")):
        raise ConfigurationError("expected a file such as my.py, or the name of an installed module")
    if importlib.util.find_spec(named.partition(".")[0]) is None:
        hint = f"; to import the file, use {named}.py" if Path(f"{named}.py").is_file() else ""
        raise ConfigurationError(f"no module with that name is installed{hint}")
    return importlib.import_module(named)


def told(error: Exception) -> str:
    """Return an error of custom code in one line, with the file and line that raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    own = [frame for frame in frames if not frame.filename.startswith((PACKAGE, importlib.__file__))]
    where = f"{own[-1].filename}:{own[-1].lineno}: " if own else ""
    text = " ".join(str(error).split())
    return f"{where}{type(error).__name__}{f': {text}' if text else ''}"
