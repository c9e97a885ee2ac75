"""Formatting of numbers, lists, ranges and untrusted names for pages, terminals and errors."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

MINUS = "\N{MINUS SIGN}"
_SPACE = "\N{NO-BREAK SPACE}"
_LONGEST = 200


def plain(text: str, longest: int = _LONGEST) -> str:
    """Return a text as one line with escaped control characters, shortened to `longest` characters."""
    shown = "".join(c if c.isprintable() else _code(c) for c in text[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def escaped(text: str) -> str:
    """Return a text with escaped control characters and bidirectional marks. Line breaks, tabs and spaces are kept."""
    return text if text.isprintable() else "".join(c if _shown(c) else _code(c) for c in text)


def _shown(character: str) -> bool:
    return character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode()


def cut(name: str, most: int) -> str:
    """Shorten a name in the middle, because names of variants have the same beginning. The part after the gap starts
    with a whole word if it contains a space."""
    if len(name) <= most:
        return name
    part, space, words = name[-(most // 2) :].partition(" ")
    end = words if space else part
    return f"{name[: most - len(end) - 1]}…{end}"


def listed(items: Sequence[str], most: int) -> str:
    """Return a list of the first `most` items, with the number of further items."""
    more = len(items) - most
    return ", ".join(items[:most]) + (f" and {more:,} more" if more > 0 else "")


def named(names: Sequence[str], most: int = 12) -> str:
    """Return a list of the first `most` names, each passed through `plain`, with the number of further names."""
    return listed([plain(name) for name in names], most)


def more_seeds(seeds: Sequence[int], count: int) -> str:
    """Return the seeds, and further seeds up to a total of `count`, as the value of an option."""
    more = [seed for seed in range(count + len(seeds)) if seed not in seeds][: max(0, count - len(seeds))]
    return ",".join(map(str, [*seeds, *more]))


def initial(text: str) -> str:
    """Return a text whose first letter is a capital."""
    return text[:1].upper() + text[1:]


def joined(names: Sequence[str]) -> str:
    """Return "a, b and c" for one or more names."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def plural(count: int, name: str) -> str:
    """Return a number with a noun in the singular or plural: "1 run", "2 runs"."""
    return f"{count:,} {name}" + ("" if count == 1 else "s")


def ranges(numbers: Iterable[int], most: int) -> str:
    """Return the first `most` ranges of consecutive numbers and the count of other numbers: "1 to 3, 7 and 2 more"."""
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
    """Return a number with thousands separators; "" for None."""
    return "" if number is None else f"{number:,}"


def size(count: float | None) -> str:
    """Return a number of bytes with three digits and a unit, where 1 kB is 1,000 B; "" for None."""
    if count is None:
        return ""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def megabytes(count: float | None) -> str:
    """Return a number of bytes in MB (1,000,000 B), with at least two digits; "" for None."""
    if count is None:
        return ""
    value = count / 1e6
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def duration(seconds: float | None, tenths: float = 10) -> str:
    """Return a duration: in seconds if it is below two minutes, with tenths if it is below `tenths` seconds, otherwise
    in minutes or hours; "" for None."""
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < tenths else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def percent(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{100 * value:.{digits}f} %"


def decimal(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def significant(value: float | None) -> str:
    """Return a number with three significant digits; "" for None."""
    return "" if value is None else f"{value:#.3g}".rstrip(".")


def apart(*values: float) -> list[str]:
    """Return numbers with two decimals, or with up to four decimals so that different numbers look different."""
    written = [[minus(f"{value:.{digits}f}") for value in values] for digits in (2, 3, 4)]
    return next((each for each in written if len(set(each)) == len(set(values))), written[-1])


def tick(value: float) -> str:
    """Return a number for an axis."""
    return f"{value:g}".replace("-", MINUS)


def power_tick(exponent: int) -> str:
    """Return a power of ten for a logarithmic axis: from 0.001 to 1,000 with digits, otherwise with an exponent."""
    if abs(exponent) <= 3:
        return f"{10.0**exponent:,g}"
    return f"10{str(exponent).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def percent_tick(value: float) -> str:
    """Return a fraction in percent, for an axis."""
    return f"{tick(100 * value)} %"


def minus(number: str) -> str:
    """Return a formatted number with a typographic minus sign, or without a sign if it is rounded to zero."""
    return number.replace("-", MINUS) if float(number) else number.lstrip("-")


def signed(number: str) -> str:
    """Return a formatted number with a typographic minus sign, or with a plus sign if it is positive."""
    return f"+{number}" if float(number) > 0 else minus(number)


def probability(p: float | None) -> str:
    """Return a probability such as "0.042", "< 0.001" or "> 0.99"; "" for None."""
    if p is None:
        return ""
    if 0.001 <= p < 0.995:
        return f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
    return f"<{_SPACE}0.001" if p < 0.001 else f">{_SPACE}0.99"


def equation(p: float) -> str:
    """Return "p = 0.042" or "p < 0.001", with no-break spaces."""
    written = probability(p)
    return f"p{_SPACE}{written}" if written[0] in "<>" else f"p{_SPACE}={_SPACE}{written}"


def without_folders(source: str) -> str:
    """Return a data source without the folders of absolute paths, for a title or a card. Relative paths are
    unchanged."""
    return re.sub(r"(^|[:,]) */[^,:]*/", r"\1", source)


def short_source(source: str) -> str:
    """Return a data source for a title: without folders and without its kind, and with the first of several files."""
    return " + ".join(map(_first_file, without_folders(source).split(" + ")))


def _first_file(source: str) -> str:
    first, *more = source.partition(":")[2].split(",")
    return f"{first} and {plural(len(more), 'more file')}" if more else source
