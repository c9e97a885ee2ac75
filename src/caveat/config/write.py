"""Configurations as commented TOML."""

import dataclasses
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import tomlkit

from ..core.settings import KeyPath, dotted, help_of
from ..data.tables.dictionary import DictionaryColumn
from ..methods import METHODS
from .schema import Config, MethodSettings, method_class
from .text import toml


def dump(config: Config) -> str:
    """The complete configuration as commented TOML, from which `load` makes an equal one."""
    top = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    sections = {key: value for key, value in top.items() if dataclasses.is_dataclass(value)}
    lines = ["# Everything that decides what a run computes. A key that is commented out is unset."]
    lines += _section((), "", entries(Config, {key: value for key, value in top.items() if key not in sections}))
    for key, value in sections.items():
        lines += _method_lines(config.method) if key == "method" else _sections((key,), value)
    return "\n".join(lines) + "\n"


def dump_dictionary(columns: Sequence[DictionaryColumn]) -> str:
    """A data dictionary as the file that `read_dictionary` makes equal columns of."""
    lines = ["# What the columns of all silos' tables mean. A silo's copy is its `data.dictionary` in silo.toml."]
    for column in columns:
        lines += ["", f"[{tomlkit.key(column.name).as_string()}]"]
        for field in dataclasses.fields(column):
            value = getattr(column, field.name)
            if field.name == "type" or (field.name != "name" and value != field.default):
                lines.append(f"{field.name} = {toml(value)}")
    return "\n".join(lines) + "\n"


def _method_lines(method: MethodSettings) -> list[str]:
    cls = method_class(method.name)
    name = Entry("name", method.name, f"One of: {', '.join(sorted(METHODS))}.")
    return _section(("method",), f"{method.name}: {first_line(cls)}", [name, *entries(cls, method.parameters)])


class Entry(NamedTuple):
    """A key to write: its value, and what it means."""

    key: str
    value: Any
    help: str


def entries(cls: type, values: Mapping[str, Any]) -> list[Entry]:
    """The fields of a dataclass of settings as entries, for those fields that have a value in `values`."""
    hints = get_type_hints(cls)
    texts = {key: help_of(cls, key) for key in values}
    return [
        Entry(field.name, values[field.name], texts[field.name] + _choices(hints[field.name], texts[field.name]))
        for field in dataclasses.fields(cls)
        if field.name in values
    ]


def _choices(annotation: Any, text: str) -> str:
    """The values to choose from, unless a help text has them all."""
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    words = [str(word) for option in options if get_origin(option) is Literal for word in get_args(option)]
    return f" One of: {', '.join(words)}." if len(words) > 1 and not all(word in text for word in words) else ""


def _section(path: KeyPath, about: str, items: Iterable[Entry]) -> list[str]:
    """The lines of one section."""
    lines = ["", *_comment(about), f"[{dotted(path)}]"] if path else []
    for key, value, text in items:
        lines += _comment(text)
        lines.append(f"# {key} =" if value is None else f"{key} = {toml(value)}")
    return lines


def _sections(path: KeyPath, settings: Any) -> list[str]:
    """The lines of a section and of the sections below it."""
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    inner = {key: value for key, value in values.items() if dataclasses.is_dataclass(value)}
    own = {key: value for key, value in values.items() if key not in inner}
    lines = _section(path, first_line(type(settings)), entries(type(settings), own))
    for key, value in inner.items():
        lines += _sections((*path, key), value)
    return lines


def first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0]


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, 110)]
