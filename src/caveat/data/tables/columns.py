"""The contents of table columns: numbers, categories, or a reason to refuse them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..raw_samples import Array, ordered, shown
from ..setting_lines import assignment
from .cell_formats import CODE, DATE_FORMATS, EXCEL, NO_NUMBER, TIMES, TRUTH, is_date, number, one_spelling, variants
from .column_refusals import ENDLESS, LARGEST, MOST_ADVISED, column_refusal, look_like_names, spelling_refusal
from .files import Sheet, first_place, missing
from .reading_settings import Reading, TableColumn

AT_LEAST = 1 << 20
"""Number of values that are collected before duplicates are removed."""
DIGITS = {"%Y%m%d": 8, "%d%m%Y": 8, "%m%d%Y": 8}
"""Formats of dates as digits, and their numbers of digits."""
YEARS = (1900, 2100)
SERIALS, ALL_SERIALS = (7_000, 60_000), (36_526, 49_310)
"""Range of spreadsheet days in a column whose name suggests dates (1919 to 2064), and in any other (2000 to 2034)."""
FEWEST_SERIALS = 10
ALL_DATES, MOST_DATES = (SERIALS[0], 99_999_999), 10_000
"""Lowest and highest number that may be a date, and the maximum number of values that are checked."""
DATE_NUMBER = re.compile(r"\d{4,8}(\.\d+)?")
NAMES_OF_DATES = frozenset({
    "date", "dates", "day", "dob", "born", "birth", "birthdate", "birthday", "admitted", "admission", "discharge",
    "discharged", "visited", "died", "death", "onset", "datum", "geburtsdatum", "fecha",
})  # fmt: skip


@dataclass(frozen=True)
class ColumnContent:
    """The content of a column of one or several files."""

    name: str
    rows: int
    missing: int
    distinct: int
    """Number of distinct values, without missing ones."""
    holds: Literal["numbers", "texts", "nothing"] = "nothing"
    """The type of its values, without missing ones; category codes are texts."""
    lowest: float | None = None
    highest: float | None = None
    mean: float | None = None
    deviation: float | None = None
    """Population standard deviation of its numbers."""
    categories: tuple[str, ...] | None = None
    """The texts of the column in the order of their codes; None for other columns."""
    remark: str = ""
    """A remark if its interpretation is unusual."""
    refused: str = ""
    """The reason why the column is refused, with file, line, cell and remedy; "" if it is not refused."""

    @property
    def column(self) -> TableColumn:
        return TableColumn(self.name, self.categories)


def features_of(sheets: Sequence[Sheet], reading: Reading) -> list[ColumnContent]:
    """Return the contents of the columns that are inputs, in the order of the first file."""
    names = [name for name in sheets[0].columns if name not in reading.no_inputs.values()]
    return [column_of(sheets, name, reading) for name in names]


def column_of(sheets: Sequence[Sheet], name: str, reading: Reading) -> ColumnContent:
    """Return the content of a column, with the reason if it is refused."""
    categorical = name in reading.categorical
    if not categorical and (stored := _stored(sheets, name, reading)) is not None:
        return stored
    counts = Counter(text for sheet in sheets for text in sheet.column(name))
    present = {text: count for text, count in counts.items() if not missing(text)}
    values = {text: number(text) for text in present}
    rows, known = counts.total(), [value for value in values.values() if value is not None]
    about = (name, rows, rows - sum(present.values()), len(present))
    if not categorical:
        values = _with_truths(values)
        known = [value for value in values.values() if value is not None]
    codes = name not in reading.numeric and any(CODE.fullmatch(text) for text in present)
    dates = "" if categorical or name in reading.numeric else _dates(sheets, name, reading, list(present))
    if dates and codes:
        return ColumnContent(*about, "texts", refused=f"{first_place(sheets, name, set(present))}: {dates}")
    if categorical or (codes and len(known) == len(values)):
        return _categories(sheets, about, reading, present, codes and not categorical)
    refused = column_refusal(sheets, name, reading, present, values)
    if len(known) < len(values):
        return _categories(sheets, about, reading, present, refused=refused, remark=_mixture(present, values))
    if known:
        weights = [count for text, count in present.items() if values[text] is not None]
        mean, deviation = _moments(known, weights)
        return ColumnContent(*about, "numbers", min(known), max(known), mean, deviation, remark=dates, refused=refused)
    return ColumnContent(*about)


def _dates(sheets: Sequence[Sheet], name: str, reading: Reading, texts: Sequence[str]) -> str:
    """Return a warning, with the key that reads them, if numbers look like dates as digits or as days of a spreadsheet;
    "" if not."""
    own, format_of = sheets[0].own_name(name), sheets[0].format_of(name)
    if len(texts) < 2 or format_of.date or not all(map(DATE_NUMBER.fullmatch, texts)):
        return ""
    plain = [text.removesuffix(".0") for text in texts]
    found = next((each for each, digits in DIGITS.items() if all(_is_day(text, each, digits) for text in plain)), "")
    if not found:
        values = list(map(float, plain))
        named = not NAMES_OF_DATES.isdisjoint(re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))
        low, high = SERIALS if named else ALL_SERIALS
        if len(texts) < FEWEST_SERIALS or min(values) < low or max(values) > high:
            return ""
        found = EXCEL
    key = assignment(f"rename_columns\n{own}", ({} if own == name else {"name": name}) | {"date": found})
    numeric = assignment("numeric", [*dict.fromkeys([*reading.numeric, name])])
    like = "as a spreadsheet stores dates" if found == EXCEL else "like dates"
    return f"values such as {plain[0]} look {like}: set {key} to read days, or {numeric} if they are numbers"


def date_advice(sheets: Sequence[Sheet], wrong: Sequence[Sheet], name: str, reading: Reading) -> str:
    """Return the keys that read the dates of some files in `data.time`, to add to a message."""
    formats = [_date_formats(sheet, name) for sheet in wrong]
    if not formats[0]:
        numbers = all(number(text) is not None for text in wrong[0].raw(name))
        return f"; {wrong[0].path} has numbers" if numbers else f"; the dates in {wrong[0].path} must have one format"
    together = len(wrong) == len(sheets) and all(each == formats[0] for each in formats)
    together = together and not any(file.rename_columns for file in reading.declared.files)
    lines = []
    for date in formats[0]:
        sure = [(sheet, date if own == formats[0] else own[0]) for sheet, own in zip(wrong, formats, strict=True)
                if own == formats[0] or len(own) == 1]  # fmt: skip
        keys = []
        for sheet, each in sure[: 1 if together else MOST_ADVISED]:
            own = sheet.own_name(name)
            of_file = "" if together else f"files\n{sheet.path.stem}\n"
            value = ({} if own == name else {"name": name}) | {"date": each}
            keys.append(assignment(f"{of_file}rename_columns\n{own}", value))
        lines.append(" and ".join(keys))
    if len(lines) > 1:
        lines = [f"{line} if the {part} comes first" for line, part in zip(lines, ("day", "month"), strict=True)]
    return f"; for other dates set {', or '.join(lines)}"


def _date_formats(sheet: Sheet, name: str) -> list[str]:
    """Return the formats that fit all dates of a column in a file: none, one, or two that swap day and month."""
    texts = {text.removesuffix(".0") for text in sheet.raw(name)}
    if found := [date for date in DATE_FORMATS if date not in TIMES and all(is_date(text, date) for text in texts)]:
        return found[:2]
    found = [date for date, digits in DIGITS.items() if all(_is_day(text, date, digits) for text in texts)]
    values = [number(text) for text in texts]
    serial = all(value is not None and SERIALS[0] <= value <= SERIALS[1] for value in values)
    return found[:1] or ([EXCEL] if serial else [])


def _is_day(text: str, date: str, digits: int) -> bool:
    try:
        return len(text) == digits and YEARS[0] <= datetime.strptime(text, date).year <= YEARS[1]
    except ValueError:
        return False


def _with_truths(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return truth values as numbers, to combine them with the numbers 0 and 1."""
    if not {value for value in values.values() if value is not None} <= {0, 1} or not any(
        value is not None for value in values.values()
    ):
        return dict(values)
    return {text: TRUTH.get(text.lower()) if value is None else value for text, value in values.items()}


def _categories(
    sheets: Sequence[Sheet],
    about: tuple[str, int, int, int],
    reading: Reading,
    present: Mapping[str, int],
    codes: bool = False,
    refused: str = "",
    remark: str = "",
) -> ColumnContent:
    """Return the content of a column of texts, with one spelling per value."""
    name, rows, absent, _ = about
    texts = [text.removeprefix(NO_NUMBER) for text in present]
    alike = one_spelling(texts)
    categories = ordered(sorted({alike.get(text, text) for text in texts}))
    if codes:
        refused = look_like_names(sheets, name, present)
        remark = f"numbers with leading zeros are codes; set {assignment('numeric', [*reading.numeric, name])} if not"
    if not refused and name not in reading.categorical:
        refused = spelling_refusal(sheets, name, reading, categories)
    elif not refused and name not in {rule.name for rule in reading.declared.dictionary if rule.values}:
        kept = [" and ".join(map(shown, group)) for group in variants(categories)[:3]]
        remark = f"{', '.join(kept)} are kept as different categories" if kept else remark
    return ColumnContent(
        name, rows, absent, len(categories), "texts", categories=categories, refused=refused, remark=remark
    )


def _stored(sheets: Sequence[Sheet], name: str, reading: Reading) -> ColumnContent | None:
    """Return the content of a column that all files store as numbers; None for other columns."""
    parts = [sheet.numbers(name) for sheet in sheets]
    if any(part is None for part in parts):
        return None
    rows, absent, lowest, highest = 0, 0, math.inf, -math.inf
    endless, found, moments = set[str](), Distinct(), ColumnMoments()
    for values in chain.from_iterable(part or () for part in parts):
        known = values[~np.isnan(values)]
        rows, absent = rows + len(values), absent + len(values) - len(known)
        if len(known):
            lowest, highest = min(lowest, float(known.min())), max(highest, float(known.max()))
            endless |= {str(value) for value in known[~(abs(known) <= LARGEST)].tolist()}
            found.add(known)
            moments.add(known)
    about = (name, rows, absent, found.count())
    if absent == rows:
        return ColumnContent(*about)
    refused = f"{first_place(sheets, name, endless)}, {ENDLESS}" if endless else ""
    mean, deviation = (None, None) if endless else (moments.mean, moments.deviation)
    dates = ""
    if name not in reading.numeric and ALL_DATES[0] <= lowest and highest <= ALL_DATES[1]:
        dates = _dates(sheets, name, reading, [f"{value:.15g}" for value in found.known.view(np.float64)[:MOST_DATES]])
    return ColumnContent(*about, "numbers", lowest, highest, mean, deviation, remark=dates, refused=refused)


class ColumnMoments:
    """Mean and population standard deviation of numbers that are added in parts."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, values: Array) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # infinite numbers are refused
            mean, count = float(values.mean()), self.count + len(values)
            apart, share = mean - self.mean, len(values) / count
            self.squares += float(((values - mean) ** 2).sum()) + apart**2 * self.count * share
            self.mean, self.count = self.mean + apart * share, count

    @property
    def deviation(self) -> float:
        return math.sqrt(self.squares / self.count)


class Distinct:
    """Count of distinct numbers that are added in parts; needs at most 8 bytes per number."""

    def __init__(self) -> None:
        self.known, self.new = np.empty(0, np.int64), list[NDArray[np.int64]]()

    def add(self, values: Array) -> None:
        self.new.append(_once(values.view(np.int64)))  # bits, so 0.0 and -0.0 differ as in text
        if sum(map(len, self.new)) > max(len(self.known), AT_LEAST):
            self.count()

    def count(self) -> int:
        self.known, self.new = _once(np.concatenate([self.known, *self.new])), []
        return len(self.known)


def _once(values: NDArray[np.int64]) -> NDArray[np.int64]:
    values = np.sort(values)  # np.unique takes several times the memory
    first: NDArray[np.int64] = values[np.append(True, values[1:] != values[:-1])[: len(values)]]
    return first


def _moments(values: Sequence[float], weights: Sequence[int]) -> tuple[float | None, float | None]:
    if not np.isfinite(values).all() or max(map(abs, values)) > LARGEST:
        return None, None
    mean = float(np.average(values, weights=weights))
    return mean, float(np.sqrt(np.average((np.array(values) - mean) ** 2, weights=weights)))


def _mixture(present: Mapping[str, int], values: Mapping[str, float | None]) -> str:
    numbers = sum(present[text] for text, value in values.items() if value is not None)
    if 2 * numbers < sum(present.values()):
        return ""
    return f"{numbers} of {sum(present.values())} values are numbers, the others are text"
