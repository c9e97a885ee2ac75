"""Settings: frozen dataclasses whose fields define keys, defaults, checks and help texts."""

import dataclasses
import errno
import functools
import operator
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails

from .errors import ConfigurationError, ConfigurationErrors, cut, short_repr

STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
"""Configuration of pydantic: unknown keys are errors, and the docstring below a field is its help text."""
MAX_COUNT = 1_000_000
"""Maximum number of rounds, steps, silos, units or pixels in a setting, to catch typos."""
LARGE = 1e6
"""Maximum weight, rate or norm in a setting, so that results fit into float32."""
TEXTS = {
    "dataclass_type": "{key} is a section: set its keys, for instance {key}.KEY=VALUE",
    "missing": "{key} is missing",
    "unexpected_keyword_argument": "",
}
"""Messages that replace pydantic's messages, by type of error. The message for an unknown key is empty here, because
it depends on the existing keys."""
WORDS = {
    "Input should": "must",
    "Value error, ": "",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
"""Replacements of words in pydantic's messages."""
Cls = TypeVar("Cls", bound=type)
Result = TypeVar("Result")
Given = ParamSpec("Given")
KeyPath = tuple[str | int, ...]
"""A key with the sections that contain it, e.g. ("data", "shift", "angles", 0)."""


class FieldError(ConfigurationError):
    """An invalid value of a setting. The key is the name of the field, without the section of the settings."""


class Collected(ConfigurationErrors, ValueError):
    """A ConfigurationError that is also a ValueError, so that pydantic continues with the next key."""


def collected(check: Callable[Given, Result]) -> Callable[Given, Result]:
    """Wrap a check, so that pydantic collects its ConfigurationError together with other problems."""

    @functools.wraps(check)
    def collecting(*args: Given.args, **values: Given.kwargs) -> Result:
        try:
            return check(*args, **values)
        except ConfigurationError as error:
            raise Collected(error.problems) from error

    return collecting


class Problem(NamedTuple):
    """A problem of a configuration, with its key."""

    path: KeyPath
    text: str
    """The message, in which "{key}" is replaced by the path, as in the text of a ConfigurationError."""


@dataclass_transform(frozen_default=True, field_specifiers=(Field, dataclasses.field))
def frozen_settings(cls: Cls) -> Cls:
    """Make a class a frozen dataclass of settings, whose docstring lists every field, and which raises short errors for
    invalid values."""
    if (check := vars(cls).get("__post_init__")) is not None:
        cls.__post_init__ = collected(check)  # type: ignore[attr-defined]
    made: Any = dataclass(frozen=True, config=STRICT)(cls)
    made.__init__ = _with_short_errors(made, made.__init__)
    lines = []
    for field in dataclasses.fields(made):
        lines.append(f"    {field.name}{_default(field)}")
        lines += textwrap.wrap(help_of(made, field.name), 100, initial_indent=" " * 8, subsequent_indent=" " * 8)
    made.__doc__ = "\n".join([(made.__doc__ or "").rstrip(), "", "    Settings:", "", *lines])
    return made  # type: ignore[no-any-return]


def plain(settings: Any) -> dict[str, Any]:
    """Return settings, including nested ones, as dictionaries."""
    found = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {name: plain(value) if dataclasses.is_dataclass(value) else value for name, value in found.items()}


def check_seed(seed: object, called: str = "seed") -> None:
    """Raise ConfigurationError unless a seed is a non-negative integer (of Python or NumPy) that TOML can represent."""
    try:
        fits = 0 <= operator.index(seed) < 2**63  # type: ignore[arg-type]
    except TypeError:
        fits = False
    if not fits:
        raise ConfigurationError(
            f"{called} = {short_repr(seed)}: must be a whole number, at least 0 and below 2^63", called
        )


def check_type(value: object, kind: type | tuple[type, ...], called: str, expected: str) -> None:
    """Raise ConfigurationError for an argument of the wrong type; `expected` describes the type in words."""
    if not isinstance(value, kind):
        raise ConfigurationError(f"{called} has type {type(value).__name__}, expected {expected}", called)


def path_of(path: object, called: str) -> Path:
    """Return an argument as a path. Raises ConfigurationError if the argument is not a path, or is not valid on this
    file system."""
    check_type(path, (str, Path), called, "a path")
    try:
        os.stat(str(path))
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        if not isinstance(error, OSError) or error.errno == errno.ENAMETOOLONG:
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"{called} = {short_repr(path)}: {reason}", called) from None
    return Path(path)  # type: ignore[arg-type]


def check_different(names: Sequence[str], key: str) -> None:
    """Raise ConfigurationError if a list of names contains a name twice."""
    if twice := next((name for number, name in enumerate(names) if name in names[:number]), None):
        raise ConfigurationError(f"{{key}} contains {short_repr(twice)} twice", key)


def dotted(path: KeyPath) -> str:
    """Return ("data", "shift", "angles", 0) as "data.shift.angles[0]"."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def explain(error: ValidationError, write: Callable[[Any], str] = short_repr) -> Iterator[Problem]:
    """Yield the problems in pydantic's error. The text for an unknown key is empty. `write` formats values."""
    for detail in error.errors(include_url=False):
        refused = _refused(detail)
        yield from [_problem(detail, write)] if refused is None else problems_of(refused, detail["loc"])


def _refused(detail: ErrorDetails) -> ConfigurationError | None:
    """Return the error that settings raised, if pydantic collected one."""
    error = detail.get("ctx", {}).get("error")
    return error if isinstance(error, Collected) else None


def _problem(detail: ErrorDetails, write: Callable[[Any], str]) -> Problem:
    expected = functools.reduce(lambda text, word: text.replace(word, WORDS[word]), WORDS, detail["msg"])
    text = f"{{key}} = {cut(write(detail['input']), 100)}: {expected}"
    return Problem(detail["loc"], TEXTS.get(detail["type"], text))


def problems_of(error: ConfigurationError, section: KeyPath) -> Iterator[Problem]:
    """Yield the problems that the settings of a section raised. A problem without a key gets the section as its key."""
    for problem in error.problems:
        path: KeyPath = tuple(problem.key.split(".")) if problem.key else ()
        yield Problem((*section, *path) if isinstance(problem, FieldError) else path or section, problem.text)


def help_of(cls: type, name: str) -> str:
    """Return the docstring below a field as one line; for an inherited field, that of the class that declares it."""
    declared = [getattr(base, "__pydantic_fields__", {}).get(name) for base in cls.__mro__]
    texts = [field.description for field in declared if field is not None and field.description]
    return " ".join(texts[0].split()) if texts else ""


def _with_short_errors(cls: Any, init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def short(self: Any, *args: Any, **values: Any) -> None:
        try:
            init(self, *args, **values)
        except ValidationError as error:
            problems = [each for detail in error.errors(include_url=False) for each in _python_errors(cls, detail)]
            raise (problems[0] if len(problems) == 1 else ConfigurationErrors(problems)) from None

    return short


def _python_errors(cls: Any, detail: ErrorDetails) -> Sequence[ConfigurationError]:
    if (refused := _refused(detail)) is not None:
        return refused.problems
    path, text = _problem(detail, short_repr)
    return [FieldError(text or _unknown(cls, str(path[-1])), dotted(path))]


def _unknown(cls: Any, name: str) -> str:
    names = [field.name for field in dataclasses.fields(cls)]
    close = get_close_matches(name, names, 1)
    for field in dataclasses.fields(cls):  # the name may be that of a nested setting, as in FedAvg(lr=0.1)
        if name in {inner.name for inner in _fields(field.default)}:
            close = [f"{field.name}={type(field.default).__name__}({name}=...)"]
    return f"{{key}}: {cls.__name__} has no such setting" + (
        f"; did you mean {close[0]}?" if close else f" (available: {', '.join(names)})"
    )


def _fields(value: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()


def _default(field: dataclasses.Field[Any]) -> str:
    """Return the default of a field as text. For nested settings, list only values that differ from their own
    defaults."""
    if field.default_factory is not dataclasses.MISSING:
        return f" = {getattr(field.default_factory, '__name__', '')}()"
    if field.default is dataclasses.MISSING:
        return ""
    if not dataclasses.is_dataclass(field.default):
        return f" = {field.default!r}"
    inner = [(each.name, each.default, getattr(field.default, each.name)) for each in dataclasses.fields(field.default)]
    given = ", ".join(f"{name}={value!r}" for name, usual, value in inner if value != usual)
    return f" = {type(field.default).__name__}({given})"


LONGEST_TEXT = 1_000_000
"""Maximum length of a configuration, in characters."""
_DEEP_KEY = re.compile(r"(?m)(?:^|[\[{,])[ \t]*(?:[\w\"'-]{1,100}[ \t]*\.[ \t]*){20}")


def unreadable(text: str) -> str:
    """Return why a text must not be parsed as TOML, or ""."""
    if len(text) > LONGEST_TEXT:
        return f"{len(text):,} characters, expected at most {LONGEST_TEXT:,}"
    # Python's TOML parser takes quadratic time in the number of parts of a key.
    return "a key is nested too deeply" if _DEEP_KEY.search(text) else ""
