"""The text side of configurations: reading TOML and `--set`, placing problems in it, writing it with comments."""

import dataclasses
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tomlkit
import tomlkit.exceptions

from ..core import ConfigurationError, ConfigurationErrors
from ..core.errors import cut, short_repr
from ..core.settings import KeyPath, Problem, dotted, unreadable

DEEPEST = 10
"""Keys and places in lists that one value can lie below; no setting lies below more than five."""


@dataclasses.dataclass(frozen=True)
class ConfigText:
    """What a configuration was made from, so that a problem can be placed."""

    file: str
    text: str
    table: dict[str, Any]
    overrides: dict[KeyPath, Any]

    def place(self, path: KeyPath) -> str:
        """Where a key was set: the command line, a line of the file, or just the file."""
        # Below the key as well: an override of data.split.train makes a sum over data.split wrong.
        if path and any(path[: len(key)] == key or key[: len(path)] == path for key in self.overrides):
            return "--set"
        line = line_of(self.text, path)
        return f"{self.file}:{line}" if line else self.file

    def error(self, problems: Iterable[Problem]) -> ConfigurationError:
        """One line per problem, in the order of the file."""
        ordered = sorted(_of_lists(list(problems)), key=lambda problem: line_of(self.text, problem.path) or 0)
        return ConfigurationErrors(
            [ConfigurationError(f"{self.place(path)}: {text}", dotted(path)) for path, text in ordered]
        )


def _of_lists(problems: list[Problem]) -> Iterator[Problem]:
    """The problems, but for a list only the first that is wrong in it: the others are mostly of the same kind."""
    first: dict[KeyPath, Problem] = {}
    for problem in problems:
        if problem.path and isinstance(problem.path[-1], int):
            first.setdefault(problem.path[:-1], problem)
    for problem in problems:
        of = problem.path[:-1] if problem.path and isinstance(problem.path[-1], int) else problem.path
        if first.get(of, problem) is problem:
            yield problem


def read(file: Path, called: str, sets: Sequence[str]) -> ConfigText:
    """A file, called so in messages, with its overrides.

    Raises ConfigurationError if the file or an override is no TOML, or holds what no key takes.
    """
    if file.exists() and not file.is_file():  # nobody may ever write to a pipe
        raise ConfigurationError(f"{called}: a folder, a pipe or a device, expected a file")
    try:
        return parse(file.read_text(encoding="utf-8-sig"), called, sets)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{called}: cannot be read as TOML: {error}") from None


def parse(text: str, called: str, sets: Sequence[str] = ()) -> ConfigText:
    """A TOML text, called so in messages, with its overrides.

    Raises ConfigurationError if the text or an override is no TOML, or holds what no key takes.
    """
    source = ConfigText(called, text, toml_of(text, called), dict(leaf for item in sets for leaf in _override(item)))
    given: list[tuple[KeyPath, Any]] = [((), source.table), *source.overrides.items()]
    if problems := [problem for path, value in given for problem in _senseless(value, path)]:
        raise source.error(problems)
    return source


def toml_of(text: str, where: str) -> dict[str, Any]:
    """A TOML text as a table. Raises ConfigurationError, beginning with `where`, if it is none."""
    if why := unreadable(text):
        raise ConfigurationError(f"{where}: cannot be read as TOML: {why}")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{where}: cannot be read as TOML: {error}") from None
    except RecursionError:
        raise ConfigurationError(f"{where}: cannot be read as TOML: nested too deeply") from None
    except ValueError:  # Python reads no longer ones
        raise ConfigurationError(f"{where}: cannot be read as TOML: a number of more than 4,300 digits") from None
    return table


def senseless(value: Any) -> str:
    """What is wrong with a number that no key takes, whatever it is for; empty for all else."""
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "must be a number of 64 bits, as TOML has them"
    return ""


def _senseless(value: Any, path: KeyPath = ()) -> Iterator[Problem]:
    """The values, however deep, that no key takes."""
    left: list[tuple[KeyPath, Any]] = [(path, value)]
    while left:
        path, value = left.pop()
        if len(path) > DEEPEST:
            yield Problem(path[:DEEPEST], "{key} is nested too deeply, no key is")
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
        raise ConfigurationError(f"--set {short_repr(item)}: expected text in UTF-8") from None
    key, equals, text = item.partition("=")
    path = tuple(part.strip() for part in key.split("."))
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
            raise ConfigurationError(f"--set {cut(item, 100)}: the value is not TOML: {error}") from None
        return text
    except ValueError:
        raise ConfigurationError(f"--set {cut(item, 100)}: a number of more than 4,300 digits") from None


def _leaves(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, Any]]:
    if not isinstance(value, dict) or len(path) > DEEPEST:
        yield path, value
        return
    if not value:
        raise ConfigurationError(f"--set {cut(dotted(path), 100)}: an empty table sets nothing")
    for key, inner in value.items():
        yield from _leaves((*path, key), inner)


def line_of(text: str, path: KeyPath) -> int | None:
    """The line of a TOML text that sets a key, or the closest section around it; None if there is neither."""
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
    """Settings as an inline table of what differs from their defaults, and their name."""
    given = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)
             if field.name == "name" or getattr(settings, field.name) != field.default}  # fmt: skip
    return "{" + ", ".join(f"{key} = {toml(value)}" for key, value in given.items()) + "}"


def toml(value: Any) -> str:
    """A value as TOML, or as Python where it is not one for a single line."""
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value)):
        return repr(value)
    if isinstance(value, tuple) and value and all(dataclasses.is_dataclass(item) for item in value):
        return f"[{', '.join(map(_inline, value))}]"
    try:
        text: str = tomlkit.item(list(value) if isinstance(value, tuple) else value).as_string()
    except tomlkit.exceptions.ConvertError:
        return repr(value)
    return text
