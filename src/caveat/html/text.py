"""How pages and terminals write numbers, lists, ranges and what other machines have named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_LONGEST = 200


def plain(text: str, longest: int = _LONGEST) -> str:
    """On one line, without characters that a terminal would act upon, and cut where it is too long."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def listed(items: Sequence[str], most: int) -> str:
    """The first `most`, and how many more there are."""
    more = len(items) - most
    return ", ".join(items[:most]) + (f" and {more:,} more" if more > 0 else "")


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


def size(count: float) -> str:
    """Bytes to three digits: 1 kB is 1,000 B."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def percent(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{100 * value:.{digits}f} %"


def decimal(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"
