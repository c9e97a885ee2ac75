"""The recipe nearest to a configuration, and the `--set` options that lead from it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import tomlkit

from .. import config as configuration
from ..core import ConfigurationError
from ..files.schema.record import SCHEMA
from ..files.schema.small_files import Origin
from ..recipes import recipes
from . import Config

Keys = dict[tuple[str, ...], Any]
MOST = 6
"""Keys in which a configuration may differ from a recipe and still be called one of it."""
NO_RESULT = {("engine", "workers"), ("engine", "device")}
"""Keys that change no bit of a result, or the last digits alone."""


def nearest_recipe(config: Config) -> Origin | None:
    """The nearest recipe, and the "SECTION.KEY=VALUE" that lead from it to a configuration; None if none is near."""
    alike = [name for name in recipes() if _method(name) == config.method.name]
    found = [(name, sets) for name in alike if (sets := _sets(config, name)) is not None]
    near = sorted((each for each in found if len(each[1]) <= MOST), key=lambda each: len(each[1]))
    name, sets = next((each for each in near if _leads(*each, config)), ("", []))
    return Origin(schema=SCHEMA, recipe=name, sets=sets) if name else None


def _method(recipe: str) -> object:
    """Its name, without all that checking a recipe takes."""
    return tomllib.loads(configuration.find(recipe).read_text()).get("method", {}).get("name")


def _leads(recipe: str, sets: list[str], config: Config) -> bool:
    """Whether a recipe with these settings is the configuration: one setting may start a section afresh."""
    try:
        return not _changes(_keys(config), _keys(configuration.load(recipe, sets)))
    except ConfigurationError:
        return False


def _sets(config: Config, name: str) -> list[str] | None:
    """None where `--set` cannot lead there: it unsets nothing."""
    changes = _changes(_keys(config), _recipe(name))
    if any(value is None or _has_tables(value) for value in changes.values()):
        return None
    return [f"{'.'.join(key)}={_written(value)}" for key, value in sorted(changes.items())]


def _changes(mine: Keys, its: Keys) -> Keys:
    """The keys in which they differ, as they are in `mine`; None where it has none."""
    return {key: mine.get(key) for key in (mine.keys() | its.keys()) - NO_RESULT if mine.get(key) != its.get(key)}


@cache
def _recipe(name: str) -> Keys:
    return _keys(configuration.load(name))


def _keys(config: Config) -> Keys:
    return dict(_flat(tomllib.loads(configuration.dump(config)), ()))


def _flat(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, (*path, key))
        else:
            yield (*path, key), value


def _has_tables(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(item, Mapping) for item in value)


def _written(value: Any) -> str:
    """As TOML, or plainly where a string cannot be taken for any."""
    return value if isinstance(value, str) and not _is_toml(value) else tomlkit.item(value).as_string()


def _is_toml(value: str) -> bool:
    try:
        tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return False
    return True
