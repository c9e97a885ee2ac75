"""`run.json`, the description of a run: making, reading and comparing it."""

import copy
import dataclasses
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..config import Config, EngineSettings, Evaluation, Federation, is_unavailable
from ..config.settings import ELSEWHERE
from ..config.toml import parse
from ..core import ConfigurationError, DataError, Method
from ..core.errors import short_repr
from ..core.settings import dotted
from ..data.settings import DataSettings
from ..files import RUN, other_kind, record_of
from ..files.schema import RunFile
from ..methods import METHODS
from ..methods.plugins import advice
from ..nn.models import ModelSettings, PersonalModel
from ..wrappers.privacy import Privacy
from ..wrappers.server_optimizers import ServerOptimizer
from ..wrappers.uncertainty_settings import Uncertainty
from .spec import RunSpec, spec_of

SETTINGS: Mapping[str, type] = {
    "model": ModelSettings, "federation": Federation, "evaluation": Evaluation, "uncertainty": Uncertainty,
    "privacy": Privacy, "server": ServerOptimizer,
}  # fmt: skip
"""The settings in a specification, and their classes."""
FIELDS = ("seed", "init_from", "data", *SETTINGS, "personal")
"""The fields of a specification, except for its methods."""
PLACES = ("data.source", "data.ood.global_source")
"""Keys of data locations; the data are compared by content instead."""
CHANGEABLE = (*PLACES, "engine.workers", "engine.device", "engine.sync_seconds", "engine.keep_checkpoints")
"""Keys that may change when a run is continued."""
WAITS = ("federation.round_timeout", "federation.start_timeout")
"""Keys of the waiting times of a federation's server."""


def described(spec: RunSpec) -> dict[str, Any]:
    """Return a specification as plain values. Raises ConfigurationError if a field of a custom method has another
    value."""
    found = {"method": _described_method(spec.method), **{name: _plain(getattr(spec, name)) for name in FIELDS}}
    found["baselines"] = {method.name: _described_method(method) for method in spec.baselines}
    try:
        return after_json(found)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the fields of {spec.method.name!r} must be plain values: {error}") from None


def described_config(config: Config, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a configuration, to compare with a known one. A plugin's method that is not imported in
    this process cannot be built; then the configuration's hyperparameters replace the hyperparameters of the known
    description."""
    if not any(map(is_unavailable, (config.method.name, *config.baselines))):
        return described(spec_of(config))
    given = {"rounds": config.rounds, "training": _plain(config.training), "mc_samples": config.uncertainty.mc_samples}
    method = {**known["method"], "name": config.method.name, **config.method.parameters}
    method |= {key: value for key, value in given.items() if key in method}
    plain = {name: _plain(getattr(config, name)) for name in FIELDS}
    return after_json({**known, **plain, "method": method, "personal": known["personal"]})


def _described_method(method: Method) -> dict[str, Any]:
    """Return a method's fields with its name, and the names of its class and base classes."""
    kinds = [kind.__name__ for kind in inspect.getmro(type(method)) if dataclasses.is_dataclass(kind)]
    return {"name": method.name, "class": " < ".join(kinds), **_plain(method)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = value.described if isinstance(value, ModelSettings) else vars(value)  # code by its name
        return {field.name: _plain(fields[field.name]) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def after_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values as they are after JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
    return plain


def read_run_file(folder: Path) -> RunFile | None:
    """Read the description of a run; None if the folder has none. Raises DataError if it is damaged."""
    return record_of(folder / RUN, RunFile)


def run_file(folder: Path) -> RunFile:
    """Read the description of a run. Raises ConfigurationError, naming what the folder is instead, if there is none."""
    if (found := read_run_file(folder)) is not None:
        return found
    if not folder.is_dir():
        raise ConfigurationError(f"{folder}: no such folder; expected the folder of a run")
    if about := other_kind(folder):
        raise ConfigurationError(f"{folder} {about}")
    if (folder / "state" / "checkpoint.json").exists():
        raise DataError(f"{folder / RUN} is missing; restore it from a backup")
    raise ConfigurationError(f"{folder} is not a run: it has no {RUN}")


def spec_in(folder: Path, record: RunFile) -> RunSpec:
    """Return the specification of a description; custom code is a name. Raises ConfigurationError for an unknown
    method, or invalid settings."""
    kept, where = record.spec, folder / RUN
    try:
        spec = RunSpec(
            method=_method(kept["method"], folder),
            baselines=tuple(_method(each, folder) for each in kept["baselines"].values()),
            personal=tuple(PersonalModel(**each) for each in kept["personal"]),
            data=None if kept["data"] is None else DataSettings(**kept["data"]),
            seed=kept["seed"], init_from=kept["init_from"],
            **{name: kind(**kept[name]) for name, kind in SETTINGS.items()},
        )  # fmt: skip
    except ConfigurationError as error:
        raise error if str(folder) in str(error) else ConfigurationError(f"{where}: {error}") from error
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise DataError(f"{where}: not a valid description of a run: {error}") from error
    if found := next(differences(deciding(kept), deciding(described(spec))), None):
        raise ConfigurationError(
            f"{where}: {found.key} = {short_repr(found.was)}, but {short_repr(found.now)} with the code here: the "
            "method or its settings have changed since the run started; restore the code"
        )
    return spec


def engine_in(record: RunFile) -> EngineSettings:
    """Return the engine settings of the command that started a run."""
    return EngineSettings(**record.engine)


def _method(kept: Mapping[str, Any], folder: Path) -> Method:
    """Return a method by name. Raises ConfigurationError if it is unknown."""
    fields = {key: value for key, value in kept.items() if key not in ("name", "class")}
    if kept["name"] not in METHODS:
        raise ConfigurationError(
            f"{folder} is a run of the method {short_repr(str(kept['class']).partition(' < ')[0])}, which is not "
            f"built in: {advice(kept['name'])}; caveat never imports code named by a folder"
        )
    method: Method = METHODS[kept["name"]](**fields)
    return method


def with_sets(record: RunFile, sets: Sequence[str]) -> RunFile:
    """Return a description with "KEY=VALUE" for keys of `CHANGEABLE`. Raises ConfigurationError for other keys."""
    table = copy.deepcopy({**record.spec, "engine": record.engine})
    for path, value in parse("", "--set", sets).overrides.items():
        if dotted(path) not in CHANGEABLE:
            raise ConfigurationError(
                f"--set {dotted(path)}: a run continues with its original settings, except for {', '.join(CHANGEABLE)}"
            )
        _below(table, path[:-1])[path[-1]] = value
    return record.model_copy(update={"engine": table.pop("engine"), "spec": table})


class ChangedKey(NamedTuple):
    """A key of two descriptions, and its values; None if missing."""

    key: str
    was: Any
    now: Any


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[ChangedKey]:
    """Yield the keys in which two descriptions differ; for different methods only the name."""
    found = list(_differences(was, now, ()))
    other_method = any(path == ("method", "name") for path, *_ in found)
    for path, before, after in found:
        if not other_method or path[0] != "method" or path[1] == "name":
            yield ChangedKey(_key(path), before, after)


def _differences(was: Any, now: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in {**was, **now}:
            yield from _differences(was.get(key), now.get(key), (*path, key))
    elif was != now:
        yield path, was, now


def _key(path: tuple[str, ...]) -> str:
    """Return the key in a configuration: some fields of methods are not in `[method]`."""
    if path[0] == "method" and len(path) > 1 and path[1] in ELSEWHERE:
        return dotted((*ELSEWHERE[path[1]], *path[2:]))
    return dotted(path)


def deciding(spec: Mapping[str, Any], free: Sequence[str] = (*WAITS, *PLACES)) -> dict[str, Any]:
    """Return a description without the keys that do not affect results."""
    table: dict[str, Any] = copy.deepcopy(dict(spec))
    # Without an expected number of silos, the quorum determines each silo's share of the noise.
    quorum = ["federation.quorum"] if table["federation"]["min_available_silos"] else []
    for key in (*free, *quorum):
        *sections, last = key.split(".")
        if (inner := _below(table, sections)) is not None:
            del inner[last]
    return table


def _below(table: Any, sections: Sequence[str | int]) -> Any:
    for section in sections:
        table = None if table is None else table[section]
    return table
