"""The errors that caveat raises, and the formatting of values in their messages."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

LONGEST = 1000
"""Maximum length of a line of a message; `short_repr` shortens single values further."""


def cut(text: str, most: int) -> str:
    """Shorten a text of more than `most` characters to its beginning and its end, with its original length."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]}...{text[-(most // 5) :]} ({len(text):,} characters)"


def message_of(error: Exception) -> str:
    """Return one line that describes an exception raised by other code."""
    return cut(f"{type(error).__name__}: {' '.join(str(error).split())}", 400)


def short_repr(value: object, most: int = 100) -> str:
    """Return the repr of a value, shortened if long, for error messages."""
    try:
        return cut(repr(value), most)
    except ValueError:  # Python does not print numbers with more than 4,300 digits
        return f"a value of type {type(value).__name__} with too many digits"


class CaveatError(Exception):
    """Base class of all errors that caveat raises. Very long lines of the text are shortened."""

    def __init__(self, text: str = "") -> None:
        super().__init__("\n".join(cut(line, LONGEST) for line in str(text).splitlines()))


class ConfigurationError(CaveatError):
    """An invalid configuration. The message names the value, what was expected, and where the value came from.

    `key` is the affected key, such as "training.momentum", or empty. It locates the problem in a file, and replaces
    "{key}" in the text.
    """

    def __init__(self, text: str, key: str = "") -> None:
        super().__init__(text.replace("{key}", key))
        self.text, self.key = text, key

    @property
    def problems(self) -> tuple[ConfigurationError, ...]:
        """The individual problems."""
        return (self,)


class ConfigurationErrors(ConfigurationError):
    """Several problems of a configuration, one per line."""

    def __init__(self, problems: Sequence[ConfigurationError]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self._problems = tuple(problems)

    @property
    def problems(self) -> tuple[ConfigurationError, ...]:
        return self._problems


class DataError(CaveatError):
    """Unusable data. The message names the file or silo, what is wrong, and what to do."""


class Refused(DataError):
    """Data, or a configuration, that a silo refuses by one of its rules.

    Only the silo sees the text, because it may contain file names and values. Others see the rule. They also see the
    name of the column if it is in the agreed schema or in the silo's own file.
    """

    def __init__(self, text: str, rule: str, column: str = "") -> None:
        super().__init__(text)
        self.rule, self.column = rule, column


class MissingError(DataError):
    """A file or folder that does not exist, or is not of the expected kind."""


class DataWarning(UserWarning):
    """Usable but unusual data or custom models. The message names the file, silo or key, and what is unusual."""


class ResultWarning(UserWarning):
    """A finished run whose result is of little use, such as a collapsed model. The message describes the problem."""


class CallbackWarning(UserWarning):
    """A callback of a run failed; the run continues without it."""


class RunError(CaveatError):
    """A run failed; earlier results are kept. `silo` is the silo where it failed, if known."""

    def __init__(self, text: str = "", silo: str = "") -> None:
        super().__init__(text)
        self.silo = silo


HUGE = 100.0
"""Absolute value of a weight above which an error is attributed to divergence."""
DIVERGED = "training diverged; try a lower training.lr"
"""Message of an error due to diverged training, with advice."""


class RunChanged(RunError):
    """The data, model or code of a run changed after it started. Resuming would fail again."""


class Diverged(RunError):
    """Training produced values that are not finite. Resuming with the same settings would fail again."""


def one_of(name: str, names: Sequence[str]) -> str:
    """Return the end of a message about an unknown name, with the closest valid name, if any, and all valid names."""
    return f"{nearest(name, names)} (available: {', '.join(names)})"


def nearest(name: str, names: Sequence[str]) -> str:
    """Return the end of a message, which suggests the closest valid name; "" if no name is close."""
    close = get_close_matches(name, names, 1)
    return f"; did you mean {close[0]}?" if close else ""
