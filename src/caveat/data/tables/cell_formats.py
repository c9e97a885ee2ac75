"""The format of cells: marks of numbers, units, limits, dates, codes, and alternative spellings of a value.

The module also finds the likely format of a file that is not text in UTF-8, and how to convert it.
"""

from __future__ import annotations

import dataclasses
import math
import re
import unicodedata
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path

NO_NUMBER = "\ufdd0"
"""Prefix of a cell that would be a number in another format; a noncharacter, so no file has it."""
SPACES, MINUS = " \u00a0\u2009\u202f", "\u2212"
GROUPING = {" ": f"[{SPACES}]", "'": "['\u2019]"}
"""Patterns of thousands marks that have several characters."""
LIMIT = re.compile(r"([<>\u2264\u2265]=?)\s*")
CODE = re.compile(r"0\d+")
"""A code: a number with a leading zero."""
EXCEL, EXCEL_START = "excel", datetime(1899, 12, 30)
"""The format of dates stored as numbers of days, and the day from which spreadsheets count."""
DATES = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d.%m.%y", "%d/%m/%y", "%m/%d/%y",
         "%d %b %Y", "%d-%b-%Y", "%b %d, %Y")  # fmt: skip
TIMES = ("%H:%M", "%H:%M:%S", "%I:%M %p")
DATE_FORMATS = (*DATES, *TIMES, *(f"{day}{gap}{time}" for day in DATES for gap in " T" for time in
                                  ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%H:%M:%SZ", "%H:%M:%S%z")))  # fmt: skip
TRUTH = {"true": 1, "false": 0}
INVISIBLE = dict.fromkeys((0x00AD, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF))
DASHES = dict.fromkeys((0x2010, 0x2011, 0x2012, 0x2013, 0x2014, 0x2212), "-")


def number(text: str, decimal: str = ".", thousands: str = "") -> float | None:
    """Parse a number with the marks `decimal` and `thousands`; None for other text."""
    if thousands:
        grouped = rf"([-+{MINUS}]?)(\d{{1,3}}(?:{GROUPING.get(thousands, re.escape(thousands))}\d{{3}})+)(?!\d)(.*)"
        if found := re.fullmatch(grouped, text):
            text = found[1] + re.sub(r"\D", "", found[2]) + found[3]
    if "_" in text or (decimal != "." and "." in text):
        return None
    try:
        return float(text.replace(decimal, "."))
    except ValueError:
        return number("-" + text[1:], decimal) if text.startswith(MINUS) else None


@dataclasses.dataclass(frozen=True)
class CellFormat:
    """The format in which the cells of a column are written in a file."""

    decimal: str = "."
    thousands: str = ""
    missing: tuple[str | float, ...] = ()
    unit: str = ""
    limit: str | None = None
    date: str = ""
    since: str = ""
    until: str = ""
    factor: float | None = None
    codes: tuple[tuple[str, str], ...] = ()
    own_marks: bool = False
    """Whether the marks are declared for the column, not for the file."""

    def stored(self) -> CellFormat:
        """Return the format for cells that a file stores as numbers."""
        return dataclasses.replace(self, decimal=".", thousands="", unit="", limit=None, own_marks=False)

    def value(self, text: str) -> float | None:
        """Return the number of a cell; None for other text."""
        if self.date:
            return self._time(text)
        share = 1.0
        if self.limit is not None and (found := LIMIT.match(text)):
            share = 0.5 if self.limit == "half" and found[1][0] in "<\u2264" else 1.0
            text = text[found.end() :]
        if self.unit:
            text = text.removesuffix(self.unit).strip()
            text = re.sub(rf"^([-+{MINUS}]?)\s*{re.escape(self.unit)}\s*", r"\1", text)
        value = number(text, self.decimal, self.thousands)
        return value if value is None or share == 1 else share * value

    def _time(self, text: str) -> float | None:
        """Return days, or hours for a time of day; None for other text."""
        try:
            if self.date == EXCEL:
                days = number(text, self.decimal, self.thousands)
                at = EXCEL_START + timedelta(days=math.nan if days is None else days)
            else:
                at = datetime.strptime(text.removesuffix(".0"), self.date).replace(tzinfo=None)
            if self.date != EXCEL and not any(part in self.date for part in ("%Y", "%y", "%j", "%s", "%c", "%x")):
                return (at - datetime(1900, 1, 1)).total_seconds() / 3600
            if self.until:
                return (datetime.fromisoformat(self.until) - at).total_seconds() / 86400
            return (at - datetime.fromisoformat(self.since or "1970-01-01")).total_seconds() / 86400
        except (ValueError, OverflowError):
            return None

    def __call__(self, text: str) -> str:
        """Return a cell in standard form: a number with a decimal point, "" if missing, or other text unchanged."""
        if text in self.missing or (plain := dict(self.codes).get(text)) == "":
            return ""
        if plain is not None:
            return plain
        value = self.value(text)
        if value is None:
            return NO_NUMBER + text if number(text) is not None else text
        if value in self.missing or any(number(mark) == value for mark in self.missing if isinstance(mark, str)):
            return ""
        if self.factor is not None:
            return repr(value * self.factor)
        return text if number(text) == value else repr(value)


def is_date(text: str, date: str) -> bool:
    try:
        datetime.strptime(text, date)
    except ValueError:
        return False
    return True


def numeric(text: str) -> float | None:
    """Return a cell's number, truth values as 0 and 1; None for other text."""
    value = number(text)
    return TRUTH.get(text.lower()) if value is None else value


PLAIN = CellFormat()


def reader(cell_format: CellFormat) -> Callable[[str], str]:
    """Return a function that reads stripped cells in a format, and converts each distinct text only once."""
    known: dict[str, str] = {}

    def read(text: str) -> str:
        found = known.get(text)
        if found is None:
            found = known[text] = cell_format(text)
        return found

    return read


def same_value(text: str) -> object:
    """Return a key that is equal for texts with the same number or truth value; a code with a leading zero is text."""
    if CODE.fullmatch(text):
        return text
    if (truth := TRUTH.get(text.lower())) is not None:
        return truth
    try:
        return int(text) if "_" not in text else text
    except ValueError:
        return text if (value := number(text)) is None or value != value else value


def folded(text: str) -> str:
    """Return a key that is equal for texts that differ only in case, spaces, Unicode form or leading zeros."""
    plain = unicodedata.normalize("NFKC", text).translate(INVISIBLE).translate(DASHES).casefold()
    return re.sub(r"(?<![\d.,])0+(?=\d)", "", "".join(plain.split()))


def one_spelling(texts: Iterable[str]) -> dict[str, str]:
    """Return the spelling to use for each category that equals another one as a number or truth value. Whole numbers
    are written without a point if one of them is written so; truth values as 0 and 1 if these numbers also occur."""
    texts = list(texts)
    values = {text: same_value(text) for text in texts}
    truths = {text for text in texts if text.lower() in TRUTH}
    numbers = {text for text, value in values.items() if not isinstance(value, str)} - truths
    if truths and numbers and not {values[text] for text in numbers} <= {0, 1}:
        truths, values = set(), {text: text if text in truths else value for text, value in values.items()}
    whole = {text for text in numbers if _is_whole(values[text])}
    plain = {text for text in whole if text == str(int(values[text]))}  # type: ignore[call-overload]
    if len(set(values.values())) == len(values) and not (truths and numbers) and plain in (whole, set()):
        return {}
    alike: dict[object, list[str]] = {}
    for text, value in values.items():
        alike.setdefault(value, []).append(text)
    capital = any(len(alike[values[text]]) > 1 for text in truths)
    made = {}
    for text, value in values.items():
        if text in whole or (text in truths and numbers):
            made[text] = str(int(value))  # type: ignore[call-overload]
        elif text in truths:
            made[text] = text.capitalize() if capital else text
        else:
            made[text] = min(alike[value], key=lambda each: (len(each), each))
    return {text: spelled for text, spelled in made.items() if spelled != text}


def _is_whole(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def variants(texts: Iterable[str]) -> list[list[str]]:
    """Return groups of categories that differ only in case, spaces, Unicode form or leading zeros."""
    groups: dict[str, list[str]] = {}
    for text in sorted(set(texts)):
        groups.setdefault(folded(text), []).append(text)
    return [group for group in groups.values() if len(group) > 1]


NEWLINE = b"\n"
NUL = "\0"
ARCHIVE = "PK\x03\x04"
BINARY = {b"PK\x03\x04": "an Excel workbook or a zip archive", b"\xd0\xcf\x11\xe0": "an Excel workbook",
          b"\x1f\x8b": "a file compressed by gzip", b"PAR1": "a parquet file"}  # fmt: skip
"""The first bytes of files that are not text, and what these files are."""
MARKED = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""Byte order marks, longer ones first."""
WINDOWS = bytes(range(0x80, 0xA0))
"""Bytes that are letters and signs in Windows-1252 but undefined in ISO-8859-1."""


def is_no_text(header: str) -> bool:
    """Return whether a first line, although valid UTF-8, comes from a binary file or another encoding."""
    return NUL in header or header.startswith((ARCHIVE, "PAR1"))


def no_utf8(path: Path) -> str:
    """Return the refusal of a file that is not text in UTF-8: what it is, and how to convert it."""
    whole = path.read_bytes()
    for first, called in BINARY.items():
        if whole.startswith(first):
            return f"{path}: {called}, expected a csv file in UTF-8; save the table in this format"
    where = f"{path}: not in UTF-8"
    try:
        whole.decode()
    except UnicodeDecodeError as error:
        where = f"{path}, line {whole.count(NEWLINE, 0, error.start) + 1}: not in UTF-8"
    known = _encoding(whole)
    return (
        f"{where}, expected a csv file in UTF-8; save the file in UTF-8 or, if it is in {known}, "
        f"run `iconv -f {known} -t UTF-8 OLD.csv > NEW.csv`"
    )


def _encoding(whole: bytes) -> str:
    marked = next((name for mark, name in MARKED.items() if whole.startswith(mark)), "")
    if marked:
        return marked
    even, odd = whole[0::2].count(0), whole[1::2].count(0)
    if even + odd > len(whole) / 4:  # most letters of a header have a zero byte in UTF-16
        return "UTF-16LE" if odd > even else "UTF-16BE"
    return "WINDOWS-1252" if any(byte in WINDOWS for byte in whole) else "ISO-8859-1"
