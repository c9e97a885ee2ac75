"""Load configurations: from TOML to a `Config`, or to a report of all problems."""

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from ..core import ConfigurationError, DataError
from ..core.errors import cut, one_of, short_repr
from ..core.settings import KeyPath, Problem, dotted, explain, problems_of
from ..data.sources import JOIN
from ..data.sources.base import locate
from ..data.tables.declarations import DictionaryColumn, as_lists
from ..methods import METHODS
from ..recipes import DEFAULT, FOLDER, recipe_file, recipes
from ..wrappers.uncertainty_settings import OWNERS
from .settings import Config, EngineSettings, MethodSettings, has_personal, is_unavailable, method_keys, own_training
from .toml import ConfigText, dump_dictionary, parse, read, toml

Table = dict[str, Any]


def load(source: str | None = None, sets: Sequence[str] = ()) -> Config:
    """Load the configuration of a TOML file or a recipe (None: "digits"), with overrides "SECTION.KEY=VALUE".

    A VALUE that is not TOML is a string. An override of the method, model, engine, data source or partition resets its
    section, because other keys may not apply. An override by a data source of the same kind keeps the section. An
    override of the policy drops the keys of other policies. An override of the method also replaces the training
    settings for which the method has its own defaults.

    Raises ConfigurationError with one line per problem: the file and line, the key, and the nearest valid key.
    """
    file = find(source)
    text = read(file, f"recipe {file.stem}" if file.parent == FOLDER else str(file), sets)
    table = _merged(text)
    named = _section(table, ("data",)).get("dictionary")
    if isinstance(named, str):  # files are read only here, never for stored or received configurations
        columns = read_dictionary(_dictionary_file(named, file.parent))
        table["data"]["dictionary"] = [dataclasses.asdict(column) for column in columns]
    return _checked(table, text)


def loads(text: str, called: str) -> Config:
    """Load the configuration of a TOML text; `called` names it in messages. Raises what `load` raises."""
    parsed = parse(text, called)
    return _checked(_merged(parsed), parsed)


def data_keys(sets: Sequence[str]) -> Table:
    """Return the keys of `[data]` that overrides set. Raises ConfigurationError for data.source and for keys of other
    sections."""
    text, known = parse("", "--set", sets), set(_keys(Config, ()))
    for path in text.overrides:
        if path[0] != "data" or path[1:2] in ((), ("source",)):
            raise ConfigurationError(
                f"--set {dotted(path)}: expected a key of [data], such as data.decimal", dotted(path)
            )
        if path[:2] not in known:
            raise text.error([Problem(path, _unknown(path[:2], ""))])
    found = _section(_merged(text), ("data",))
    if isinstance(named := found.get("dictionary"), str):
        found["dictionary"] = read_dictionary(_dictionary_file(named, Path()))
    return found


def load_kept(file: Path, sets: Sequence[str] = ()) -> Config:
    """Load the complete configuration in a run folder. Raises ConfigurationError as `load` does."""
    text = read(file, str(file), sets)
    return _checked(_merged(text), text)


def read_dictionary(file: Path) -> tuple[DictionaryColumn, ...]:
    """Return the columns of a data dictionary. Raises ConfigurationError, with file and key, for an invalid one."""
    found = read(file, str(file), ())
    made, problems = _validated(tuple[DictionaryColumn, ...], as_lists({"dictionary": found.table})["dictionary"])
    if problems:
        raise found.error([
            Problem(([*found.table][path[0]], *path[1:]) if path and isinstance(path[0], int) else path,
                    text or "unknown key {key} of a data dictionary") for path, text in problems
        ])  # fmt: skip
    columns: tuple[DictionaryColumn, ...] = made
    return columns


def dictionary_text(source: str | None, sets: Sequence[str], config: Config) -> str:
    """Return the data dictionary of a configuration as the text of a file; "" if the configuration has no dictionary.
    The text is that of the dictionary's file, with comments, or else the output of `dump_dictionary`."""
    columns, file = config.data.declared.dictionary, find(source)
    named = _section(_merged(read(file, str(file), sets)), ("data",)).get("dictionary")
    if not columns or not isinstance(named, str):
        return dump_dictionary(columns) if columns else ""
    return _dictionary_file(named, file.parent).read_text(encoding="utf-8")


def _dictionary_file(named: str, folder: Path) -> Path:
    """Find a dictionary's file next to the configuration, or else where files of data are looked up. Raises
    ConfigurationError if it does not exist."""
    try:
        file = folder / named if os.path.isfile(folder / named) else locate(named)
    except DataError as error:
        raise ConfigurationError(f"data.dictionary = {short_repr(named)}: {error}", "data.dictionary") from None
    if not file.is_file():
        raise ConfigurationError(f"data.dictionary = {short_repr(named)}: expected a TOML file", "data.dictionary")
    return file


def find(source: str | None) -> Path:
    """Return the TOML file for a path or the name of a recipe. Raises ConfigurationError if there is none."""
    if source is None:
        return recipe_file(DEFAULT)
    if os.path.isdir(source) and source not in recipes():  # a Path raises for a long name
        raise ConfigurationError(f"{source} is a folder; a configuration is a TOML file or the name of a recipe")
    if os.path.isfile(source):
        return Path(source)
    if source in recipes():
        return recipe_file(source)
    if os.path.lexists(source):
        raise ConfigurationError(f"{source}: expected a TOML file or the name of a recipe")
    name = cut(source, 200)
    raise ConfigurationError(f"{name}: no such file, and no such recipe{one_of(name, recipes())}")


def _merged(source: ConfigText) -> Table:
    """Return the file's table with the overrides applied."""
    table: Table = _plain(source.table)
    if is_code(table.get("model")):
        table["model"] = {"factory": table["model"]}
    overrides = {
        (*path, "factory") if path == ("model",) and is_code(value) else path: value
        for path, value in source.overrides.items()
    }
    for path, reset in RESETS.items():
        if path in overrides:
            _apply(reset, table, path, overrides[path])
    for path, value in overrides.items():
        _section(table, path[:-1], made=True)[str(path[-1])] = _plain(value)
    if isinstance(table.get("data"), dict):
        table["data"] = as_lists(table["data"])
    return table


def _kinds(source: Any) -> list[str]:
    """Return the kinds of sources in a value of data.source."""
    return [part.partition(":")[0] for part in str(source).split(JOIN)]


class SectionReset(NamedTuple):
    """How a section of the file is reset if an override changes a certain key of the section."""

    kept: Callable[[str, Any], bool] = lambda key, value: False
    """Function of another key of the section and the new value, which returns whether to keep the key."""
    default: str | None = None
    """Value of the changed key if the file lacks it; None if nothing is reset in this case."""
    compared: Callable[[Any], Any] = str
    """Function of a value of the changed key. The section is reset if the results for the old and new value differ."""


RESETS: Mapping[KeyPath, SectionReset] = {
    ("model", "factory"): SectionReset(default="", compared=bool),
    ("model", "encoder"): SectionReset(default="", compared=bool),
    ("model", "name"): SectionReset(),
    ("method", "name"): SectionReset(),
    ("engine", "name"): SectionReset(default=EngineSettings.name),
    ("data", "source"): SectionReset(compared=_kinds),
    ("data", "partition", "scheme"): SectionReset(),
    ("uncertainty", "policy"): SectionReset(lambda key, policy: policy in OWNERS.get(key, (policy,)), default=""),
    ("training", "local_epochs"): SectionReset(lambda key, _: key != "local_steps", default=""),
    ("training", "local_steps"): SectionReset(lambda key, _: key != "local_epochs", default=""),
}
"""The keys whose override resets their section, and how the section is reset."""


def _apply(reset: SectionReset, table: Table, path: KeyPath, value: Any) -> None:
    section = _section(table, path[:-1])
    there = section.get(str(path[-1]), reset.default)
    if there is None or reset.compared(there) == reset.compared(value):
        return
    for key in [key for key in section if not reset.kept(key, value)]:
        del section[key]
    if path == ("method", "name"):
        if not has_personal(value):
            table.pop("personal", None)
        training = _section(table, ("training",))
        training |= own_training(value, training.get("optimizer"))


def _section(table: Table, path: KeyPath, made: bool = False) -> Table:
    """Return the section at a path; if missing, an empty one, which is added to the table only if `made`."""
    for key in map(str, path):
        inner = table.get(key)
        if not isinstance(inner, dict):
            inner = {}
            if made:
                table[key] = inner
        table = inner
    return table


def is_code(value: object) -> bool:
    """Return whether a value names custom code, "package.module:name" or "file.py:name"."""
    return isinstance(value, str) and ":" in value


def _plain(value: Any) -> Any:
    """Return a deep copy of a value, as JSON values. Dates become strings, because no key takes a date."""
    return json.loads(json.dumps(value, default=str))


def _checked(table: Table, source: ConfigText) -> Config:
    method = table.setdefault("method", {})
    name = method.get("name") if isinstance(method, dict) else None
    name = name if isinstance(name, str) and name in METHODS else ""
    if isinstance(table.get("training", {}), dict):
        table["training"] = own_training(name) | table.get("training", {})
    config: Config | None
    config, problems = _validated(Config, table)
    if config is not None:
        problems = _unbuildable(config)
    if config is None or problems:
        raise source.error([
            Problem(_as_written(path, table), text or _unknown(path, name, _as_written(path, table)))
            for path, text in problems
        ])  # fmt: skip
    return config


def _as_written(path: KeyPath, table: Any) -> KeyPath:
    """Return the path of a key as it is written in the file. Below [data], positions in the lists that `as_lists` made
    are replaced by names."""
    found = list[str | int]()
    for part in path:
        inner = dict(enumerate(table)) if isinstance(table, list) else table
        table = inner.get(part) if isinstance(inner, dict) else None
        named = isinstance(part, int) and path[0] == "data" and isinstance(table, dict)
        found.append(next((table[key] for key in ("own", "name", "code") if key in table), part) if named else part)
    return tuple(found)


def _validated(kind: Any, value: Any) -> tuple[Any, list[Problem]]:
    """Return a value as settings and no problems, or None and the value's problems.

    The value is validated as JSON, because pydantic's strict mode for Python values does not accept a list for a tuple,
    and the lax mode accepts True for 1."""
    try:
        return TypeAdapter(kind).validate_json(json.dumps(value), strict=True), []
    except ValidationError as error:
        return None, list(explain(error, toml))


def _unbuildable(config: Config) -> list[Problem]:
    """Return the problems of building the methods of a configuration."""
    try:
        for name in (config.method.name, *config.baselines):
            if not is_unavailable(name):
                config.build_method(name)
    except ConfigurationError as error:
        return list(problems_of(error, ()))
    return []


def _unknown(path: KeyPath, method: str, written: KeyPath = ()) -> str:
    """Return the message for a key that does not exist, or that the method does not have. `written` is the path as the
    user wrote it, if it differs from `path`."""
    key, written = str(path[-1]), written or path
    if path[0] == "method" and (readers := [name for name in METHODS if key in method_keys(name)]):
        return f"{dotted(path)} is not used by method {method!r}; it belongs to {', '.join(readers)}"
    valid = [*_keys(Config, ()), *(("method", name) for name in ["name", *(method_keys(method) if method else [])])]
    here = [other for other in valid if other[:-1] == tuple(part for part in path[:-1] if isinstance(part, str))]

    def told(other: KeyPath) -> str:
        return dotted((*written[:-1], other[-1]) if other in here and written != path else other)

    if elsewhere := next((other for other in sorted(valid, key=len) if other and other[-1] == key), None):
        return f"unknown key {dotted(written)}; did you mean {dotted(elsewhere)}?"
    # In other sections, the name must be very similar: "foo" should not suggest method.floor.
    for candidates, likeness in ((here, 0.6), (valid, 0.8)):
        if close := get_close_matches(key, [str(other[-1]) for other in candidates], 1, likeness):
            nearest = next(other for other in candidates if other[-1] == close[0])
            return f"unknown key {dotted(written)}; did you mean {told(nearest)}?"
    return f"unknown key {dotted(written)}; available: {', '.join(map(told, here))}"


def check_key(key: str, option: str) -> None:
    """Raise ConfigurationError, with the name of the option, if neither the settings nor a method have such a key."""
    path, known = tuple(part.strip() for part in key.split(".")), {path for path in _keys(Config, ()) if path}
    if path in known or (path[:-1] == ("method",) and any(path[-1] in ["name", *method_keys(m)] for m in METHODS)):
        return
    raise ConfigurationError(f"{option} {_unknown(path, '') if all(path) else f'unknown key {short_repr(key)}'}")


def _keys(cls: Any, section: KeyPath) -> Iterator[KeyPath]:
    """Yield every key of settings and of nested settings."""
    hints = get_type_hints(cls)
    for key in (field.name for field in dataclasses.fields(cls)):  # class attributes are no keys
        yield (*section, key)
        inner = get_args(hints[key])[0] if get_origin(hints[key]) is tuple else hints[key]
        if dataclasses.is_dataclass(inner) and inner is not MethodSettings:
            yield from _keys(inner, (*section, key))
