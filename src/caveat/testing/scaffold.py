"""Scaffold of `caveat new method`: a method that runs, its manifest, and its test."""

import importlib.util
import json
import re
import tempfile
from importlib.resources import files
from pathlib import Path

from ..config.schema import check_name
from ..core import ConfigurationError, Method
from ..core.errors import short_repr
from ..methods import METHODS, FedAvg
from ..training.modules import snapshot
from .federation import SmallFederation

FILES = {"method.txt": "{}.py", "manifest.txt": "{}.toml", "test_method.txt": "test_{}.py"}
"""Templates, and the files written from them."""


def write_method(name: str, base: str, folder: Path) -> list[Path]:
    """Write a method that starts from another one, its manifest and its test; return the three files. Raises
    ConfigurationError for an invalid name or base, and if one of the files exists."""
    if not re.fullmatch(r"[a-z][a-z0-9]{0,39}", name):
        raise ConfigurationError(
            f"NAME = {short_repr(name)}: expected at most 40 lower-case letters and digits, such as ditto"
        )
    paths = {template: folder / called.format(name) for template, called in FILES.items()}
    if there := [str(path) for path in paths.values() if path.exists() or path.is_symlink()]:
        raise ConfigurationError(f"{there[0]} exists and is not overwritten; choose another name, or --out DIR")
    kind = _check(name, base)
    values = {"NAME": name.capitalize(), "MODULE": name, "BASE": kind.__name__, "MODULE_OF_BASE": base}
    values["GROUPS"] = _groups(kind)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for template, path in paths.items():
            with path.open("x", encoding="utf-8") as file:
                text = (files(__package__) / "templates" / template).read_text(encoding="utf-8")
                file.write(re.sub(r"@([A-Z_]+)@", lambda found: values[found[1]], text))
    except OSError as error:
        raise ConfigurationError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    return list(paths.values())


def _check(name: str, base: str) -> type[FedAvg]:
    """Return the base class. Raises ConfigurationError for invalid names."""
    if name in METHODS:
        raise ConfigurationError(f"NAME = {name!r}: a method with this name exists; choose another name")
    if importlib.util.find_spec(name) is not None:
        raise ConfigurationError(f"NAME = {name!r}: {name}.py would hide the module {name}; choose another one")
    check_name(base, "--from")
    kind = METHODS[base]
    usable = [each for each, other in METHODS.items() if _has_objective(other)]
    if not _has_objective(kind):
        raise ConfigurationError(f"--from {base}: a term cannot be added to its loss; expected {', '.join(usable)}")
    return kind  # type: ignore[return-value]


def _has_objective(kind: type[Method]) -> bool:
    """Return whether silos minimize `objective` of the global model, and only averages of models are sent."""
    return issubclass(kind, FedAvg) and kind.train is FedAvg.train and kind.aggregate is FedAvg.aggregate


def _groups(kind: type[FedAvg]) -> str:
    with tempfile.TemporaryDirectory(prefix="caveat-") as folder:
        federation = SmallFederation(kind(rounds=1), Path(folder))
        federation.run()
    whole = snapshot(federation.place.module).keys()
    sent = {
        group: sorted(named)
        for update in federation.done[0].replies.updates.values()
        for group, named in update.payload.items()
    }
    lines = (f"{group} = {json.dumps(['*'] if set(named) == whole else named)}" for group, named in sent.items())
    return "\n".join(lines)
