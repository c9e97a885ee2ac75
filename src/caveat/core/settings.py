"""What all settings have in common: frozen dataclasses whose fields are keys, defaults, checks and help."""

from __future__ import annotations

import dataclasses
import functools
import textwrap
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from .errors import ConfigurationError, ConfigurationErrors

STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
"""Unknown keys are errors, and the docstring below a field is its help text."""
Cls = TypeVar("Cls", bound=type)
KeyPath = tuple[str | int, ...]
"""A key below its sections, e.g. ("data", "shift", "angles", 0)."""


class Problem(NamedTuple):
    """One thing that is wrong with a configuration, and the key to look for it."""

    path: KeyPath
    text: str
    """In which "{key}" stands for the path, as in the text of a ConfigurationError."""


@dataclass_transform(frozen_default=True, field_specifiers=(Field, dataclasses.field))
def settings(cls: Cls) -> Cls:
    """A frozen dataclass of settings. Its help lists every field, and a value that it refuses is one short error."""
    made: Any = dataclass(frozen=True, config=STRICT)(cls)
    made.__init__ = _with_short_errors(made, made.__init__)
    made.__doc__ = _with_fields(made)
    return made  # type: ignore[no-any-return]


def dotted(path: KeyPath) -> str:
    """("data", "shift", "angles", 0) as "data.shift.angles[0]"."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def explain(
    error: ValidationError,
    section: KeyPath = (),
    write: Callable[[Any], str] = repr,
    names: Mapping[str, str] | None = None,
) -> Iterator[Problem]:
    """What pydantic found below a section, a key being called as `names` says where it says anything.

    The text of an unknown key is empty, as only the caller knows the others. `write` puts values into words.
    """
    for detail in error.errors(include_url=False):
        path = section + tuple((names or {}).get(str(part), part) for part in detail["loc"])
        if detail["type"] == "unexpected_keyword_argument":
            yield Problem(path, "")
        elif detail["type"] == "dataclass_type":
            yield Problem(path, "{key} is a section: set its keys, for instance {key}.KEY=VALUE")
        elif detail["type"] == "missing":
            yield Problem(path, "{key} is missing")
        else:
            expected = detail["msg"].replace("Input should", "must").removeprefix("Value error, ")
            expected = expected.replace("greater than or equal to", "at least").replace(
                "less than or equal to", "at most"
            )
            yield Problem(path, f"{{key}} = {write(detail['input'])}: {expected}")


def help_of(cls: type, name: str) -> str:
    """The docstring below a field, on one line; an inherited field's stands in the class that declared it."""
    declared = [getattr(base, "__pydantic_fields__", {}).get(name) for base in cls.__mro__]
    texts = [field.description for field in declared if field is not None and field.description]
    return " ".join(texts[0].split()) if texts else ""


def _with_short_errors(cls: Any, init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def short(self: Any, *args: Any, **values: Any) -> None:
        try:
            init(self, *args, **values)
        except ValidationError as error:
            names = [field.name for field in dataclasses.fields(cls)]
            problems = [(path, text or _unknown(cls, str(path[-1]), names)) for path, text in explain(error)]
            raise ConfigurationErrors([ConfigurationError(text, dotted(path)) for path, text in problems]) from None

    return short


def _unknown(cls: type, name: str, names: list[str]) -> str:
    close = get_close_matches(name, names, 1)
    return f"{{key}}: {cls.__name__} has no such setting" + (
        f"; did you mean {close[0]}?" if close else f" (there are: {', '.join(names)})"
    )


def _with_fields(cls: Any) -> str:
    """The docstring, then every field with its default and its meaning, as `help` shows them."""
    lines = []
    for field in dataclasses.fields(cls):
        missing = field.default is dataclasses.MISSING
        default = field.default if not missing else getattr(field.default_factory, "__name__", "")
        lines.append(f"    {field.name}" + (f" = {default!r}" if not missing else f" = {default}()" if default else ""))
        lines += textwrap.wrap(help_of(cls, field.name), 100, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join([(cls.__doc__ or "").rstrip(), "", "    Settings:", "", *lines])
