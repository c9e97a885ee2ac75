"""Change the options of commands that pages show."""

import shlex
from collections.abc import Mapping


def option_of(command: str, option: str) -> str:
    """Return the value of an option of a command, or of a setting, such as "--set rounds"; empty without it."""
    words, at = _words(command), _place(_words(command), option)
    return words[at].removeprefix(f"{_key(option)}=" if _key(option) else "") if at else ""


def changed(command: str, options: Mapping[str, str]) -> str:
    """Return a command with other values of options, or of settings, such as "--set rounds"."""
    words = _words(command)
    for option, value in options.items():
        value = f"{_key(option)}={value}" if _key(option) else value
        if at := _place(words, option):
            words[at] = value
        else:
            words += [option.partition(" ")[0], value]
    return shlex.join(words)


def _key(option: str) -> str:
    return option.partition(" ")[2]


def _words(command: str) -> list[str]:
    """Return the words of a command, an option and its value as two."""
    return [part for word in shlex.split(command) for part in (word.split("=", 1) if word[:2] == "--" else [word])]


def _place(words: list[str], option: str) -> int:
    """Return the place of the last value of an option, 0 without one."""
    name, _, key = option.partition(" ")
    found = (i for i in range(1, len(words)) if words[i - 1] == name and (not key or words[i].startswith(f"{key}=")))
    return max(found, default=0)
