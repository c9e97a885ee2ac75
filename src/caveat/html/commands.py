"""Commands on pages, and changes of their options."""

import shlex
from collections.abc import Iterator, Mapping

from markupsafe import Markup


def code(command: str) -> Markup:
    """Return a command whose words are not broken at hyphens."""
    return Markup("<code>{}</code>").format(Markup(" ").join(Markup("<b>{}</b>").format(w) for w in command.split(" ")))


def option_of(command: str, option: str) -> str:
    """Return the value of an option of a command, or of a setting, such as "--set rounds"; empty without it."""
    words, prefix = _words(command), _prefix(option)
    return next((words[i].removeprefix(prefix) for i in _places(words, option)), "")


def changed(command: str, options: Mapping[str, str]) -> str:
    """Return a command with other values of options, or of settings, such as "--set rounds"."""
    words = _words(command)
    for option, value in options.items():
        at = next(_places(words, option), len(words) + 1)
        words[at - 1 : at + 1] = [option.partition(" ")[0], _prefix(option) + value]
    return shlex.join(words)


def _words(command: str) -> list[str]:
    """Return the words of a command, an option and its value as two."""
    return [part for word in shlex.split(command) for part in (word.split("=", 1) if word[:2] == "--" else [word])]


def _prefix(option: str) -> str:
    return f"{key}=" if (key := option.partition(" ")[2]) else ""


def _places(words: list[str], option: str) -> Iterator[int]:
    """Yield the places of an option's values, the last one first."""
    name, prefix = option.partition(" ")[0], _prefix(option)
    return (i for i in range(len(words) - 1, 0, -1) if words[i - 1] == name and words[i].startswith(prefix))
