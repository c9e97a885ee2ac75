"""Calls of the library from Python: their arguments checked as a configuration's keys are, and kept beside the run."""

from __future__ import annotations

import dataclasses
import inspect
import json
import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..config.text import explain
from ..core import ConfigurationError, Method
from ..data import Silos
from ..files.atomic import write_bytes
from .base import BaseRun


@contextmanager
def explained(called: Mapping[str, str] | None = None) -> Iterator[None]:
    """Raises ConfigurationError with each value that settings refuse, by the name that it has in the call, which is the
    key's own unless `called` says another.
    """
    try:
        yield
    except ValidationError as error:
        problems = []
        for path, text in explain(error, ()):
            key = str(path[0])
            problems.append(text.replace(key, (called or {}).get(key, key), 1))
        raise ConfigurationError("\n".join(problems)) from None


def check_types(silos: object, method: object, **settings: tuple[object, type]) -> None:
    """Raises ConfigurationError unless they are what a run needs; `settings` are given or None, with what they are."""
    if not isinstance(silos, Silos):
        raise ConfigurationError(
            f"silos is a {type(silos).__name__}, expected Silos, as caveat.data.from_arrays and others make them"
        )
    if not isinstance(method, Method):
        given = method.__name__ if isinstance(method, type) else repr(method)
        raise ConfigurationError(f"method = {given}: expected an object, such as caveat.FedAvg()")
    for name, (value, kind) in settings.items():
        if value is not None and not isinstance(value, kind):
            raise ConfigurationError(f"{name} = {value!r}: expected a caveat.{kind.__name__}")


def replaced(method: Any, **given: Any) -> Any:
    """The method with fields that are given, not None. Raises ConfigurationError for one that it has not."""
    changed = {name: value for name, value in given.items() if value is not None}
    known = {field.name for field in dataclasses.fields(method)} if dataclasses.is_dataclass(method) else set()
    if unknown := sorted(changed.keys() - known):
        raise ConfigurationError(f"{unknown[0]} is given, but {method.name!r} has no field of that name")
    return dataclasses.replace(method, **changed) if changed else method


def whole(seed: Any) -> int:
    """A seed, NumPy's whole numbers included. Raises ConfigurationError for anything else."""
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if number < 0:
        raise ConfigurationError(f"seed = {seed!r}: must be a whole number, at least 0")
    return number


def check_folder(folder: Path) -> None:
    """Raises ConfigurationError unless a call's run can begin or go on in a folder."""
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"out = {str(folder)!r} is a file, expected a folder")
    if (folder / "summary.json").exists() or (folder / "config.toml").exists():
        raise ConfigurationError(f"out = {str(folder)!r} already holds a run; name a new folder")
    if not (folder / CALL).exists() and any((folder / name).exists() for name in OTHERS):
        raise ConfigurationError(f"out = {str(folder)!r} holds something else than a call's run; name a new folder")


def keep(plan: BaseRun) -> None:
    """Write down what the run in the plan's folder is of, or see that it is the same as when the run began.

    Raises ConfigurationError for another run, and for settings that cannot be written, before anything is.
    """
    path = plan.folder / CALL
    try:
        text = json.dumps(_described({name: getattr(plan, name) for name in DECIDING}), indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the fields of {plan.method.name!r} have to be plain values: {error}") from None
    if not path.exists():
        plan.folder.mkdir(parents=True, exist_ok=True)
        write_bytes(path, f"{text}\n".encode())
    elif (found := _difference(json.loads(path.read_text()), json.loads(text))) is not None:
        place, was, now = found
        raise ConfigurationError(
            f"out = {str(plan.folder)!r} holds an interrupted run with {place} = {was!r}, not {now!r}; make the same "
            "call to continue it, or name a new folder"
        )


CALL = "call.json"
OTHERS = ("state", "splits.json", "grid.json", "silo.json")
"""What a folder has that is of a run of another kind, or of a call that left no word of what it was."""
DECIDING = ("method", "model", "seed", "participation", "evaluation", "uncertainty", "privacy", "personal", "newcomers")
"""What of a plan decides its results, beside the data."""


def _described(value: Any) -> Any:
    """Settings as plain values, with the names of each class and of those that it is made from."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: _described(getattr(value, field.name)) for field in dataclasses.fields(value)}
        names = [kind.__name__ for kind in inspect.getmro(type(value)) if dataclasses.is_dataclass(kind)]
        return {"class": " < ".join(names)} | fields
    if isinstance(value, Mapping):
        return {key: _described(each) for key, each in value.items()}
    return [_described(each) for each in value] if isinstance(value, (list, tuple)) else value


def _difference(was: Any, now: Any, place: str = "") -> tuple[str, Any, Any] | None:
    """The first place where two such values differ, and what is there; a key that is not there is None."""
    if was == now:
        return None
    if not (isinstance(was, dict) and isinstance(now, dict)):
        return place, was, now
    within = (_difference(was.get(key), now.get(key), f"{place}.{key}".lstrip(".")) for key in {**was, **now})
    return next((found for found in within if found is not None), None)
