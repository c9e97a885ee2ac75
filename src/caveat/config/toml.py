"""TOML: parsing configurations and `--set`, locating problems in them, and writing them with comments."""

import dataclasses
import math
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import tomlkit
import tomlkit.exceptions

from ..core import ConfigurationError, ConfigurationErrors
from ..core.errors import cut, short_repr
from ..core.settings import KeyPath, Problem, dotted, help_of, unreadable
from ..data.tables.declarations import DictionaryColumn
from ..methods import METHODS
from .settings import Config, MethodSettings, method_class

OVERRIDE = re.compile(r"""((?:[\w-]+\.)*"[^"]+"(?:\.(?:[\w-]+|"[^"]+"))*)\s*=""")
"""The key of an override in which parts of the key are quoted."""
PART = re.compile(r"""[\w-]+|"[^"]+\"""")
FRACTION = re.compile(r"=\s*(\d[\d.]*\s*/\s*\d[\d.]*)")
DEEPEST = 10
"""Maximum depth of a nested key. No setting is nested deeper than five levels."""


@dataclasses.dataclass(frozen=True)
class ConfigText:
    """The text and the values of a configuration, with which problems are located."""

    file: str
    text: str
    table: dict[str, Any]
    overrides: dict[KeyPath, Any]

    def place(self, path: KeyPath) -> str:
        """Return where a key was set: "--set", a line of the file, or just the file."""
        # Keys above and below an overridden key count, too: data.split.train can invalidate the sum over data.split.
        if path and any(path[: len(key)] == key or key[: len(path)] == path for key in self.overrides):
            return "--set"
        line = line_of(self.text, path)
        return f"{self.file}:{line}" if line else self.file

    def error(self, problems: Iterable[Problem]) -> ConfigurationError:
        """Return an error with one line per problem, in the order of the file."""
        ordered = sorted(_of_lists(list(problems)), key=lambda problem: line_of(self.text, problem.path) or 0)
        return ConfigurationErrors(
            [ConfigurationError(f"{self.place(path)}: {text}", dotted(path)) for path, text in ordered]
        )


def _of_lists(problems: list[Problem]) -> Iterator[Problem]:
    """Yield the problems, but of those in the same list only the first, because the others are usually similar."""
    first: dict[KeyPath, Problem] = {}
    for problem in problems:
        if problem.path and isinstance(problem.path[-1], int):
            first.setdefault(problem.path[:-1], problem)
    for problem in problems:
        of = problem.path[:-1] if problem.path and isinstance(problem.path[-1], int) else problem.path
        if first.get(of, problem) is problem:
            yield problem


def read(file: Path, called: str, sets: Sequence[str]) -> ConfigText:
    """Parse a file with overrides; `called` names the file in messages. Raises ConfigurationError if the file or an
    override is not TOML, or contains values that no key accepts."""
    if file.exists() and not file.is_file():  # reading a pipe could block
        raise ConfigurationError(f"{called} is a folder, a pipe or a device, expected a TOML file")
    try:
        return parse(file.read_text(encoding="utf-8-sig"), called, sets)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{called}: cannot be read as TOML: {error}") from None


def parse(text: str, called: str, sets: Sequence[str] = ()) -> ConfigText:
    """Parse a TOML text with overrides; `called` names the text in messages. Raises ConfigurationError if the text or
    an override is not TOML, or contains values that no key accepts."""
    source = ConfigText(called, text, toml_of(text, called), dict(leaf for item in sets for leaf in _override(item)))
    given: list[tuple[KeyPath, Any]] = [((), source.table), *source.overrides.items()]
    if problems := [problem for path, value in given for problem in _senseless(value, path)]:
        raise source.error(problems)
    return source


def toml_of(text: str, where: str) -> dict[str, Any]:
    """Parse a TOML text. Raises ConfigurationError, prefixed with `where`, if it is invalid."""
    if why := unreadable(text):
        raise ConfigurationError(f"{where}: cannot be read as TOML: {why}")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{where}: cannot be read as TOML: {error}{_of_fraction(text)}") from None
    except RecursionError:
        raise ConfigurationError(f"{where}: cannot be read as TOML: nested too deeply") from None
    except ValueError:  # Python's limit
        raise ConfigurationError(f"{where}: cannot be read as TOML: a number has more than 4,300 digits") from None
    return table


def senseless(value: Any) -> str:
    """Return why no key accepts a number, or "" if a key may accept it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "must be a 64-bit integer, as in TOML"
    return ""


def _senseless(value: Any, path: KeyPath = ()) -> Iterator[Problem]:
    """Yield a problem for each value, at any depth, that no key accepts."""
    left: list[tuple[KeyPath, Any]] = [(path, value)]
    while left:
        path, value = left.pop()
        if len(path) > DEEPEST:
            yield Problem(path[:DEEPEST], "{key} is nested too deeply")
        elif isinstance(value, dict):
            left += [((*path, key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            left += [((*path, number), inner) for number, inner in enumerate(value)]
        elif why := senseless(value):
            yield Problem(path, f"{{key}} = {short_repr(value)}: {why}")


def _override(item: str) -> Iterator[tuple[KeyPath, Any]]:
    try:
        item.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"--set {short_repr(item)}: expected a text in UTF-8") from None
    found = OVERRIDE.match(item)
    key, equals, text = (found[1], "=", item[found.end() :]) if found else item.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if found:  # quoted parts of the key may contain dots and spaces
        path = tuple(part[1:-1] if part.startswith('"') else part for part in PART.findall(key))
    if not equals or not all(path):
        raise ConfigurationError(f"--set {cut(item, 100)}: expected SECTION.KEY=VALUE, for instance training.lr=0.01")
    yield from _leaves(path, _value(item, text.strip()))


def _value(item: str, text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except RecursionError:
        raise ConfigurationError(f"--set {cut(item, 100)}: the value is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        if text[:1] in ('"', "'", "[", "{"):
            told = f"--set {cut(item, 100)}: the value is not TOML: {error}{_of_fraction(text)}"
            raise ConfigurationError(told) from None
        return text
    except ValueError:
        raise ConfigurationError(
            f"--set {cut(item, 100)}: the value has a number with more than 4,300 digits"
        ) from None


def _of_fraction(text: str) -> str:
    """Return the end of a message if the text contains a fraction, which is not TOML; otherwise ""."""
    found = FRACTION.search(text)
    return f"; {found[1]} is a fraction, expected a number such as 0.0113" if found else ""


def _leaves(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, Any]]:
    if not isinstance(value, dict) or len(path) > DEEPEST:
        yield path, value
        return
    if not value:
        raise ConfigurationError(f"--set {cut(dotted(path), 100)}: an empty table has no effect")
    for key, inner in value.items():
        yield from _leaves((*path, key), inner)


def line_of(text: str, path: KeyPath) -> int | None:
    """Return the number of the line in a TOML text that sets a key, or that begins the innermost section around it;
    None if there is no such line."""
    section: KeyPath = ()
    found: KeyPath = ()
    number = None
    for count, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+([^\[\]=]+)\]+\s*(#.*)?$", line):
            here = section = _parts(header[1])
        elif pair := re.match(r"\s*([\w.\-\"' ]+?)\s*=", line):
            here = section + _parts(pair[1])
        else:
            continue
        if here == path[: len(here)] and len(here) > len(found):
            found, number = here, count
    return number


def _parts(key: str) -> KeyPath:
    return tuple(part.strip().strip("\"'") for part in key.split("."))


def _inline(settings: Any) -> str:
    """Return settings as an inline table, with their name and the values that differ from defaults."""
    given = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)
             if field.name == "name" or getattr(settings, field.name) != field.default}  # fmt: skip
    return "{" + ", ".join(f"{key} = {toml(value)}" for key, value in given.items()) + "}"


def toml(value: Any) -> str:
    """Return a value as one line of TOML, or its repr if TOML cannot represent it in one line."""
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value)):
        return repr(value)
    if isinstance(value, tuple) and value and all(dataclasses.is_dataclass(item) for item in value):
        return f"[{', '.join(map(_inline, value))}]"
    try:
        text: str = tomlkit.item(list(value) if isinstance(value, tuple) else value).as_string()
    except tomlkit.exceptions.ConvertError:
        return repr(value)
    return text


def dump(config: Config) -> str:
    """Return the complete configuration as TOML with comments, from which `load` reads an equal configuration."""
    top = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    sections = {key: value for key, value in top.items() if dataclasses.is_dataclass(value)}
    lines = ["# All settings of a run. Keys that are commented out are not set."]
    lines += _section((), "", entries(Config, {key: value for key, value in top.items() if key not in sections}))
    for key, value in sections.items():
        lines += _method_lines(config.method) if key == "method" else _sections((key,), value)
    return "\n".join(lines) + "\n"


def dump_dictionary(columns: Sequence[DictionaryColumn]) -> str:
    """Return the text of a file with a data dictionary, from which `read_dictionary` reads equal columns."""
    lines = ["# The columns of all silos' tables. A silo's own copy is `data.dictionary` in its silo.toml."]
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
    """A key with its value and help text."""

    key: str
    value: Any
    help: str


def entries(cls: type, values: Mapping[str, Any]) -> list[Entry]:
    """Return the fields of a settings class that have a value in `values`, as entries."""
    hints = get_type_hints(cls)
    texts = {key: help_of(cls, key) for key in values}
    return [
        Entry(field.name, values[field.name], texts[field.name] + _choices(hints[field.name], texts[field.name]))
        for field in dataclasses.fields(cls)
        if field.name in values
    ]


def _choices(annotation: Any, text: str) -> str:
    """Return a sentence with the values to choose from; "" if the help text lists all of them."""
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    words = [str(word) for option in options if get_origin(option) is Literal for word in get_args(option)]
    return f" One of: {', '.join(words)}." if len(words) > 1 and not all(word in text for word in words) else ""


def _section(path: KeyPath, about: str, items: Iterable[Entry]) -> list[str]:
    lines = ["", *_comment(about), f"[{dotted(path)}]"] if path else []
    for key, value, text in items:
        lines += _comment(text)
        lines.append(f"# {key} =" if value is None else f"{key} = {toml(value)}")
    return lines


def _sections(path: KeyPath, settings: Any) -> list[str]:
    """Return the lines of a section and of its subsections."""
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
