"""From TOML to a `Config`, or to every problem at once."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from ..core import ConfigurationError, DataError
from ..core.errors import cut, shown
from ..core.settings import KeyPath, Problem, dotted, explain, problems_of
from ..data.declared import DictionaryColumn, as_lists
from ..data.sources.by_name import locate
from ..methods import METHODS
from ..wrappers.uncertainty import OWNERS
from .schema import (
    ELSEWHERE,
    Config,
    MethodSettings,
    check_name,
    has_personal,
    is_stranger,
    method_class,
    method_keys,
    own_training,
)
from .text import ConfigText, one_of, parse, read, toml
from .write import dump_dictionary

RECIPES = Path(__file__).parent.parent / "recipes"
DEFAULT_RECIPE = "digits"
ALTERNATIVES: tuple[KeyPath, KeyPath] = (("training", "local_epochs"), ("training", "local_steps"))
"""Two keys of which a configuration sets one: `--set` of one overrides a file's other."""


def load(source: str | None = None, sets: Sequence[str] = ()) -> Config:
    """The configuration of a TOML file or a recipe (None: "digits"), with overrides "SECTION.KEY=VALUE".

    A VALUE is TOML; what is no TOML is a string. Naming another method, model, engine, data source or partition starts
    that section afresh, as the keys of one mean nothing to the other. Naming another policy drops the file's keys that
    belong to other policies alone. What a method's default training has of its own replaces the file's.

    Raises ConfigurationError with one line per problem: the file and line, the key, and the nearest valid key.
    """
    file = find(source)
    text = read(file, f"recipe {file.stem}" if file.parent == RECIPES else str(file), sets)
    table = _merged(text)
    named = table["data"].get("dictionary") if isinstance(table.get("data"), dict) else None
    if isinstance(named, str):  # only here: what a folder keeps, or a server sends, names no files to read
        table["data"]["dictionary"] = _dictionary_of(named, file.parent)
    return _checked(table, text)


def loads(text: str, called: str) -> Config:
    """The configuration of a TOML text, called so in messages. Raises ConfigurationError as `load` does."""
    parsed = parse(text, called)
    return _checked(_merged(parsed), parsed)


def load_kept(file: Path, sets: Sequence[str] = ()) -> Config:
    """The configuration that a folder keeps, written in full. Raises ConfigurationError as `load` does."""
    text = read(file, str(file), sets)
    return _checked(_merged(text), text)


def read_dictionary(file: Path) -> tuple[DictionaryColumn, ...]:
    """The columns of a data dictionary. Raises ConfigurationError, naming the file and the key, for anything else."""
    found = read(file, str(file), ())
    problems: list[Problem] = []
    columns = as_lists({"dictionary": found.table})["dictionary"]
    made = _build(tuple[DictionaryColumn, ...], columns, (), problems)
    if problems:
        raise found.error([
            Problem(([*found.table][path[0]], *path[1:]) if path and isinstance(path[0], int) else path,
                    text or "{key} is no key of a data dictionary") for path, text in problems
        ])  # fmt: skip
    return tuple(made)


def dictionary_text(source: str | None, sets: Sequence[str], config: Config) -> str:
    """The data dictionary of what `load` has made a configuration of, as a file; "" where it has none.

    That is the text of the file that it names, comments and all, and else what `dump_dictionary` writes.
    """
    columns, file = config.data.declared.dictionary, find(source)
    data = _merged(read(file, str(file), sets)).get("data")
    named = data.get("dictionary") if isinstance(data, dict) else None
    if not columns or not isinstance(named, str):
        return dump_dictionary(columns) if columns else ""
    return _dictionary_file(named, file.parent).read_text(encoding="utf-8")


def _dictionary_of(named: str, folder: Path) -> list[Any]:
    """The entries of a dictionary's file."""
    return [dataclasses.asdict(column) for column in read_dictionary(_dictionary_file(named, folder))]


def _dictionary_file(named: str, folder: Path) -> Path:
    """A dictionary's file, looked for beside the configuration, then as data are. Raises ConfigurationError."""
    try:
        file = folder / named if os.path.isfile(folder / named) else locate(named)
    except DataError as error:
        raise ConfigurationError(f"data.dictionary = {shown(named)}: {error}", "data.dictionary") from None
    if not file.is_file():
        raise ConfigurationError(f"data.dictionary = {shown(named)}: expected a TOML file", "data.dictionary")
    return file


def find(source: str | None) -> Path:
    """The TOML file that a path or a recipe's name stands for; raises ConfigurationError if there is none."""
    if source is None:
        return RECIPES / f"{DEFAULT_RECIPE}.toml"
    if os.path.isdir(source) and source not in recipes():  # a Path would raise for a name that is too long
        raise ConfigurationError(f"{source} is a folder; a configuration is a TOML file or the name of a recipe")
    if os.path.isfile(source):
        return Path(source)
    if source in recipes():
        return RECIPES / f"{source}.toml"
    if os.path.lexists(source):
        raise ConfigurationError(f"{source}: neither a file nor a folder")
    name = cut(source, 200)
    raise ConfigurationError(f"{name}: no such file, and no such recipe{one_of(name, recipes())}")


def recipes() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def _merged(source: ConfigText) -> dict[str, Any]:
    """The file's table with the overrides in it."""
    table: dict[str, Any] = _plain(source.table)
    overrides = {
        (*path, "factory") if path == ("model",) and is_code(each) else path: each
        for path, each in source.overrides.items()
    }
    if is_code(table.get("model")):
        table["model"] = {"factory": table["model"]}  # code of one's own, and nothing else
    for code in ("factory", "encoder"):
        there = table.get("model")
        if ("model", code) in overrides and not (isinstance(there, dict) and code in there):
            table["model"] = {}  # what it says is of another model
    for section in ("method", "model"):
        named = table[section].get("name") if isinstance(table.get(section), dict) else None
        if named is not None and source.overrides.get((section, "name"), named) != named:
            table[section] = {}
            if section == "method" and not has_personal(source.overrides[section, "name"]):
                table.pop("personal", None)
            if section == "method" and isinstance(table.get("training"), dict):
                given = table["training"].get("optimizer")
                table["training"] |= own_training(source.overrides[section, "name"], given)
    named = table["engine"].get("name", "embedded") if isinstance(table.get("engine"), dict) else None
    if named is not None and source.overrides.get(("engine", "name"), named) != named:
        table["engine"] = {}
    named = table["data"].get("source") if isinstance(table.get("data"), dict) else None
    if named is not None and source.overrides.get(("data", "source"), named) != named:
        table["data"] = {}  # silos, shifts and constants of other data
    labels = table["data"].get("labels") if isinstance(table.get("data"), dict) else None
    named = labels.get("partition") if isinstance(labels, dict) else None
    if labels and named is not None and source.overrides.get(("data", "labels", "partition"), named) != named:
        table["data"]["labels"] = {key: value for key, value in labels.items() if key == "noise"}
    policy, there = source.overrides.get(("uncertainty", "policy")), table.get("uncertainty")
    if isinstance(policy, str) and isinstance(there, dict) and there.get("policy") != policy:
        table["uncertainty"] = {key: value for key, value in there.items() if policy in OWNERS.get(key, (policy,))}
    for one, other in (ALTERNATIVES, ALTERNATIVES[::-1]):
        if one in source.overrides and other not in source.overrides and isinstance(table.get("training"), dict):
            table["training"].pop(other[-1], None)
    for path, value in overrides.items():
        inner = table
        for key in map(str, path[:-1]):
            if not isinstance(inner.get(key), dict):
                inner[key] = {}
            inner = inner[key]
        inner[str(path[-1])] = _plain(value)
    if isinstance(table.get("data"), dict):
        table["data"] = as_lists(table["data"])
    return table


def is_code(value: object) -> bool:
    """Whether a value names code of one's own, "package.module:name" or "file.py:name"."""
    return isinstance(value, str) and ":" in value


def _plain(value: Any) -> Any:
    """A deep copy of what JSON knows; dates, which no key takes, become strings."""
    return json.loads(json.dumps(value, default=str))


def _checked(table: dict[str, Any], source: ConfigText) -> Config:
    problems: list[Problem] = []
    method = table.setdefault("method", {})
    name = method.get("name") if isinstance(method, dict) else None
    name = name if isinstance(name, str) and name in METHODS else ""
    if isinstance(table.get("training", {}), dict):
        table["training"] = own_training(name) | table.get("training", {})
    config: Config | None = _build(Config, table, (), problems)
    if config is not None and not problems:
        try:
            for each in (config.method.name, *config.beside):
                if not is_stranger(each):
                    config.build_method(each)
        except ConfigurationError as error:
            problems += problems_of(error, ())
    if config is None or problems:
        raise source.error([Problem(path, text or _unknown(path, name)) for path, text in problems])
    return config


def _build(hint: Any, value: Any, path: KeyPath, problems: list[Problem]) -> Any:
    """A value of the type `hint`, or None and what is wrong with it.

    Sections are built from the inside out, so that an error of one does not hide those of the others.
    """
    if (item := item_of(hint)) and isinstance(value, list):
        built = [_build(item, each, (*path, number), problems) for number, each in enumerate(value)]
        return tuple(built)
    if dataclasses.is_dataclass(hint) and isinstance(value, dict) and hint is not MethodSettings:
        own = {field.name for field in dataclasses.fields(hint)}  # without class attributes
        hints = {key: each for key, each in get_type_hints(hint, include_extras=True).items() if key in own}
        before = len(problems)
        problems += [Problem((*path, key), "") for key in value if key not in hints]
        fields = {
            key: _build(hints[key], inner, (*path, key), problems) for key, inner in value.items() if key in hints
        }
        if len(problems) > before:
            return None
    try:
        if hint is MethodSettings:
            return _method(value)
        if dataclasses.is_dataclass(hint) and isinstance(value, dict):
            return hint(**fields)  # type: ignore[operator]
        # As JSON, since strict Python would take no list for a tuple, and lax Python True for 1.
        return TypeAdapter(hint).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        problems += explain(error, path, toml)
    except ConfigurationError as error:
        problems += _placed(error, path)
    return None


def item_of(hint: Any) -> Any:
    """The settings that a tuple of settings consists of; None for any other type."""
    args = get_args(hint) if get_origin(hint) is tuple else ()
    return args[0] if args and dataclasses.is_dataclass(args[0]) else None


def _method(table: Any) -> MethodSettings:
    if not isinstance(table, dict):
        raise ConfigurationError("method is a section: set its keys, for instance method.name", "method.name")
    if "name" not in table:
        raise ConfigurationError(f"method.name is missing{one_of('', sorted(METHODS))}", "method.name")
    check_name(table["name"], "method.name")
    parameters = {key: value for key, value in table.items() if key != "name"}
    for key in parameters:
        if key in ELSEWHERE:
            raise ConfigurationError(f"method.{key} is no key; did you mean {dotted(ELSEWHERE[key])}?", f"method.{key}")
    if not is_stranger(table["name"]):
        TypeAdapter(method_class(table["name"])).validate_json(json.dumps(parameters), strict=True)
    return MethodSettings(table["name"], parameters)


def _placed(error: ConfigurationError, section: KeyPath) -> Iterator[Problem]:
    """What is wrong with settings; models of silos' own have the keys of `[model]`, but not its place."""
    for path, text in problems_of(error, section):
        yield Problem((*section, *path[1:]) if section[:1] == ("personal",) and path[0] == "model" else path, text)


def _unknown(path: KeyPath, method: str) -> str:
    """What to say of a key that does not exist, or not for this method."""
    key = str(path[-1])
    if path[0] == "method" and (readers := [name for name in METHODS if key in method_keys(name)]):
        return f"{dotted(path)} is ignored by method {method!r}; it belongs to {', '.join(readers)}"
    valid = [*_keys(Config, ()), *(("method", name) for name in ["name", *(method_keys(method) if method else [])])]
    here = [other for other in valid if other[:-1] == tuple(part for part in path[:-1] if isinstance(part, str))]
    # Anywhere else a name has to be nearly the same: "foo" does not stand for method.floor.
    for candidates, likeness in ((here, 0.6), (valid, 0.8)):
        if close := get_close_matches(key, [str(other[-1]) for other in candidates], 1, likeness):
            nearest = next(other for other in candidates if other[-1] == close[0])
            return f"{dotted(path)} is no key; did you mean {dotted(nearest)}?"
    return f"{dotted(path)} is no key; there are: {', '.join(map(dotted, here))}"


def check_key(key: str, option: str) -> None:
    """Raises ConfigurationError, naming the option, if there is no such key, whatever the method."""
    path, known = tuple(part.strip() for part in key.split(".")), {path for path in _keys(Config, ()) if path}
    if path in known or (path[:-1] == ("method",) and any(path[-1] in ["name", *method_keys(m)] for m in METHODS)):
        return
    raise ConfigurationError(f"{option} {_unknown(path, '') if all(path) else f'{shown(key)} is no key'}")


def _keys(cls: Any, section: KeyPath) -> Iterator[KeyPath]:
    """Every key of settings and of the settings in them."""
    own = {field.name for field in dataclasses.fields(cls)}  # without class attributes
    for key, hint in get_type_hints(cls).items():
        if key not in own:
            continue
        yield (*section, key)
        if inner := item_of(hint):
            yield from _keys(inner, (*section, key))
        if dataclasses.is_dataclass(hint) and hint is not MethodSettings:
            yield from _keys(hint, (*section, key))
