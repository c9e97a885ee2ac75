"""Every error that caveat raises on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

LONGEST = 1000
"""Characters of a line of a message; of a value in one there are `shown`'s."""


def cut(text: str, most: int) -> str:
    """A text of at most about so many characters: of a longer one its beginning, its end, and how long it is."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]}...{text[-(most // 5) :]} ({len(text):,} characters)"


def message_of(error: Exception) -> str:
    """An error of somebody else's code in a line."""
    return cut(f"{type(error).__name__}: {' '.join(str(error).split())}", 400)


def short_repr(value: object, most: int = 100) -> str:
    """A value as Python writes it, cut where that is long: for messages that name it."""
    try:
        return cut(repr(value), most)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return f"a {type(value).__name__} of too many digits"


class CaveatError(Exception):
    """The base of every error that caveat raises on purpose. Lines of its text are cut where they are very long."""

    def __init__(self, text: str = "") -> None:
        super().__init__("\n".join(cut(line, LONGEST) for line in str(text).splitlines()))


class ConfigurationError(CaveatError):
    """A configuration that cannot be run: names the value, what was expected, and where it came from.

    `key` is the key that it is about, such as "training.momentum", by which its place in a file is found; empty where
    it is about none. "{key}" in the text stands for it.
    """

    def __init__(self, text: str, key: str = "") -> None:
        super().__init__(text.replace("{key}", key))
        self.text, self.key = text, key

    @property
    def problems(self) -> tuple[ConfigurationError, ...]:
        """Each thing that is wrong by itself."""
        return (self,)


class ConfigurationErrors(ConfigurationError):
    """Several things that are wrong with a configuration, a line each."""

    def __init__(self, problems: Sequence[ConfigurationError]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self._problems = tuple(problems)

    @property
    def problems(self) -> tuple[ConfigurationError, ...]:
        return self._problems


class DataError(CaveatError):
    """Data that cannot be used: names the file or silo, what is wrong with it, and what to do."""


class Refused(DataError):
    """Data, or a configuration, that a silo refuses by one of its rules.

    The text is for the silo alone: it may name files and values. Others are told the rule and, where its name is
    agreed on or the silo's own file has it, the column.
    """

    def __init__(self, text: str, rule: str, column: str = "") -> None:
        super().__init__(text)
        self.rule, self.column = rule, column


class MissingError(DataError):
    """A file or folder that is not there, or is not what it was named as."""


class DataWarning(UserWarning):
    """Data, or a model of one's own, that can be used but is unusual: names file, silo or key, and what is unusual."""


class CallbackWarning(UserWarning):
    """A callback of a run that failed: the run goes on without it."""


class RunError(CaveatError):
    """A run that failed part-way; what was computed before is kept. `silo` is where it failed, if that is known."""

    def __init__(self, text: str = "", silo: str = "") -> None:
        super().__init__(text)
        self.silo = silo


DIVERGED = "training diverged; try a lower training.lr"
"""What happened, and what to do about it."""


class OtherBeginning(RunError):
    """What a run began with is another now: data, a model or code. Going on as things are would fail again."""


class Diverged(RunError):
    """Numbers that are not finite any more: the same settings would come to them again."""


def one_of(name: str, names: Sequence[str]) -> str:
    """The end of a message about a name that does not exist."""
    close = get_close_matches(name, names, 1)
    return (f"; did you mean {close[0]}?" if close else "") + f" (there are: {', '.join(names)})"
