"""A finished call of `caveat.run`, opened by what its folder keeps of it: settings by name, and no code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ..config import Evaluation, Federation
from ..core import ConfigurationError, DataError, Method
from ..core.errors import shown
from ..files.reading import manifest_of, read_plain
from ..methods import METHODS
from ..methods.plugins import advice
from ..nn.models import ModelSettings, PersonalModel
from ..wrappers.privacy import Privacy
from ..wrappers.robust import Robust
from ..wrappers.server import ServerOptimizer
from ..wrappers.uncertainty import Uncertainty
from .begun import difference
from .configured import opened
from .joining import JOINED
from .local import Run
from .prepared import PREPARATION
from .python_calls import CALL, description
from .spec import RunSpec

Kind = TypeVar("Kind")


def is_call(folder: Path) -> bool:
    """Whether a folder is of a run in Python."""
    return (folder / CALL).exists() and not (folder / "config.toml").exists()


def open_call(folder: Path, device: str = "cpu") -> Run:
    """A finished run in Python, to predict with on a device. Raises ConfigurationError if it is none, has a method that
    this process does not know, or there is no such device; DataError for a file that is damaged.
    """
    if not (folder / "summary.json").exists():
        what = "caveat.join" if (folder / JOINED).exists() else "caveat.run"
        raise ConfigurationError(f"{folder} is not finished; the same call of {what} continues it")
    manifest_of(folder).check(CALL, "splits.json", PREPARATION)

    def no_silos() -> NoReturn:
        if (folder / JOINED).exists():
            raise DataError("only who had its silos joined has them: the same call of caveat.join gives both")
        raise DataError("only the program that made this run has them: the same call of caveat.run gives both")

    return opened(folder, kept_spec(folder), no_silos, device)


def kept_spec(folder: Path) -> RunSpec:
    """What the call that made a folder's run specified; code of one's own is its name.

    Raises ConfigurationError for a method that this process does not know, and for settings that it does not have;
    DataError for a file that is none of a call.
    """
    path = folder / CALL
    kept = read_plain(path)
    try:
        participation, robust = kept["participation"], _built(Robust, kept["robust"])
        spec = RunSpec(
            method=_method(kept["method"], folder),
            model=_built(ModelSettings, kept["model"]),
            seed=kept["seed"],
            federation=Federation(
                participation=participation["share"], min_silos=participation["least"],
                newcomers=tuple(kept["newcomers"]), robust=robust.rule, liars=robust.liars,
            ),
            evaluation=_built(Evaluation, kept["evaluation"]),
            uncertainty=_built(Uncertainty, kept["uncertainty"]),
            privacy=_built(Privacy, kept["privacy"]),
            server=_built(ServerOptimizer, kept["server"]),
            personal=tuple(_built(PersonalModel, each) for each in kept["personal"]),
            init=kept["init"],
        )  # fmt: skip
    except ConfigurationError as error:
        raise error if str(folder) in str(error) else ConfigurationError(f"{path}: {error}") from error
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise DataError(f"{path}: expected what a call of caveat.run was given: {error}") from error
    if (found := difference(kept, json.loads(description(spec)))) is not None:
        place, was, now = found
        raise ConfigurationError(
            f"{path}: {place} = {shown(was)}, but what is known by these names here has {shown(now)}: it is another "
            "method, or other settings"
        )
    return spec


def _method(kept: Mapping[str, Any], folder: Path) -> Method:
    """A method by the name of its class. Raises ConfigurationError if this process knows none."""
    name = str(kept["class"]).partition(" < ")[0]
    kinds = {cls.__name__: cls for cls in METHODS.values()}
    if name not in kinds:
        raise ConfigurationError(
            f"{folder} is a run of the method {shown(name)}, which is none of caveat's own: {advice(name.lower())}; "
            "nothing that a folder names is imported"
        )
    return _built(kinds[name], kept)


def _built(kind: type[Kind], kept: Mapping[str, Any]) -> Kind:
    """Settings of a kind from what is kept of them."""
    return kind(**_without_classes(kept))


def _without_classes(kept: Any) -> Any:
    if isinstance(kept, Mapping):
        return {key: _without_classes(value) for key, value in kept.items() if key != "class"}
    return [_without_classes(each) for each in kept] if isinstance(kept, list) else kept
