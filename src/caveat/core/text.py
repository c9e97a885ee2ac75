"""How pages, terminals and errors write numbers, lists, ranges, and names from other machines."""

import unicodedata
from collections.abc import Iterable, Sequence

MINUS = "\N{MINUS SIGN}"
_SPACE = "\N{NO-BREAK SPACE}"
_LONGEST = 200


def plain(text: str, longest: int = _LONGEST) -> str:
    """On one line, without characters that a terminal would act upon, and cut where it is too long."""
    shown = "".join(c if c.isprintable() else _code(c) for c in text[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def escaped(text: str) -> str:
    """Lines and spaces as they are, without other characters that a terminal would act upon or that turn text round."""
    return text if text.isprintable() else "".join(c if _shown(c) else _code(c) for c in text)


def _shown(character: str) -> bool:
    return character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode()


def cut(name: str, most: int) -> str:
    """A name without its middle where it is too long: names of variants begin alike. It goes on with a whole word."""
    if len(name) <= most:
        return name
    part, space, words = name[-(most // 2) :].partition(" ")
    end = words if space else part
    return f"{name[: most - len(end) - 1]}…{end}"


def listed(items: Sequence[str], most: int) -> str:
    """The first `most`, and how many more there are."""
    more = len(items) - most
    return ", ".join(items[:most]) + (f" and {more:,} more" if more > 0 else "")


def joined(names: Sequence[str]) -> str:
    """All of at least one: a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def plural(count: int, name: str) -> str:
    """1 run, 2 runs."""
    return f"{count:,} {name}" + ("" if count == 1 else "s")


def ranges(numbers: Iterable[int], most: int) -> str:
    """The first `most` runs of consecutive numbers, and how many more numbers there are: 1 to 3, 7 and 2 more."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    written = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs[:most]]
    more = sum(map(len, runs[most:]))
    return ", ".join(written) + (f" and {more:,} more" if more else "")


def times(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def count(number: int | None) -> str:
    """With a comma after thousands; empty for None."""
    return "" if number is None else f"{number:,}"


def size(count: float) -> str:
    """Bytes to three digits: 1 kB is 1,000 B."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def megabytes(count: float | None) -> str:
    """A number of MB, of 1,000,000 B each, with two digits at least; empty for None."""
    if count is None:
        return ""
    value = count / 1e6
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def duration(seconds: float | None, tenths: float = 10) -> str:
    """In seconds below two minutes, with tenths below `tenths` seconds, then in minutes or hours; empty for None."""
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < tenths else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def percent(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{100 * value:.{digits}f} %"


def decimal(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def tick(value: float) -> str:
    """A number on an axis."""
    return f"{value:g}".replace("-", MINUS)


def percent_tick(value: float) -> str:
    """A share on an axis, as percent."""
    return f"{tick(100 * value)} %"


def minus(number: str) -> str:
    """A written number with a true minus sign, and without one where it reads as zero."""
    return number.replace("-", MINUS) if float(number) else number.lstrip("-")


def signed(number: str) -> str:
    """A written number with a true minus sign, or with a plus where it is more than zero."""
    return f"+{number}" if float(number) > 0 else minus(number)


def probability(p: float | None) -> str:
    """0.042, or < 0.001; empty for None."""
    if p is None:
        return ""
    return f"<{_SPACE}0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def equation(p: float) -> str:
    """p = 0.042, or p < 0.001, on one line."""
    written = probability(p)
    return f"p{_SPACE}{written}" if p < 0.001 else f"p{_SPACE}={_SPACE}{written}"
