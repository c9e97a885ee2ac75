"""Calls of the library from Python: their arguments checked as a configuration's keys are, and kept beside the run."""

from __future__ import annotations

import dataclasses
import json
import operator
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from .config.text import explain
from .core import ConfigurationError, Method
from .data import Silos
from .plan import Plan
from .store import replace

Settings = TypeVar("Settings")


def checked(kind: type[Settings], called: Mapping[str, str] | None = None, **values: Any) -> Settings:
    """Settings of that kind. Raises ConfigurationError with each value that they refuse, by the name that it has in
    the call, which is the key's own unless `called` says another.
    """
    try:
        return kind(**values)
    except ValidationError as error:
        names = called or {}
        problems = [
            problem.text.replace(str(problem.path[0]), names.get(str(problem.path[0]), str(problem.path[0])), 1)
            for problem in explain(error, ())
        ]
        raise ConfigurationError("\n".join(problems)) from None


def check_types(silos: object, method: object) -> None:
    """Raises ConfigurationError unless they are what a run needs."""
    if not isinstance(silos, Silos):
        raise ConfigurationError(
            f"silos is a {type(silos).__name__}, expected Silos, as caveat.data.from_arrays and others make them"
        )
    if not isinstance(method, Method):
        given = method.__name__ if isinstance(method, type) else repr(method)
        raise ConfigurationError(f"method = {given}: expected an object, such as caveat.FedAvg()")


def whole(seed: Any) -> int:
    """A seed, NumPy's whole numbers included. Raises ConfigurationError for anything else."""
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if number < 0:
        raise ConfigurationError(f"seed = {seed!r}: must be a whole number, at least 0")
    return number


def keep(plan: Plan) -> None:
    """Write down what the run in the plan's folder is of, or see that it is the same as when the run began.

    Raises ConfigurationError for another run, before anything is written.
    """
    path = plan.folder / "call.json"
    asked = json.loads(json.dumps(_described({name: getattr(plan, name) for name in DECIDING})))
    if not path.exists():
        plan.folder.mkdir(parents=True, exist_ok=True)
        replace(path, (json.dumps(asked, indent=1) + "\n").encode())
    elif (begun := json.loads(path.read_text())) != asked:
        place, was, now = _difference(begun, asked)
        raise ConfigurationError(
            f"out = {str(plan.folder)!r} holds an interrupted run with {place} = {was!r}, not {now!r}; make the same "
            "call to continue it, or name a new folder"
        )


DECIDING = ("method", "model", "seed", "participation", "evaluation", "uncertainty", "privacy", "personal", "newcomers")
"""What of a plan decides its results, beside the data."""


def _described(value: Any) -> Any:
    """Settings as plain values, with the name of each class."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: _described(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"class": type(value).__name__} | fields
    if isinstance(value, Mapping):
        return {str(key): _described(each) for key, each in value.items()}
    return [_described(each) for each in value] if isinstance(value, (list, tuple)) else value


def _difference(was: Any, now: Any, place: str = "") -> tuple[str, Any, Any]:
    """The first place where two such values differ, and what is there."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in {**was, **now}:
            if was.get(key) != now.get(key):
                return _difference(was.get(key), now.get(key), f"{place}.{key}".lstrip("."))
    return place, was, now
