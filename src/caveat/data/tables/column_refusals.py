"""Reasons to refuse columns of tables, each with lines of TOML that make the column readable."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..raw_samples import LONGEST, shown
from ..setting_lines import assignment
from . import cell_formats
from .cell_formats import CODE, DATE_FORMATS, NO_NUMBER, TIMES, CellFormat, is_date, number
from .files import Sheet, first_place, missing
from .reading_settings import NUMERIC, Reading

TELLING = 20
"""A column is assumed to have names or free text if it has more distinct texts than this and than half its rows."""
MOSTLY = 0.9
"""Minimum fraction of numbers in a column for which other text is assumed to be an error."""
LARGEST = float(np.finfo(np.float32).max)
ENDLESS = "expected a finite number or an empty cell"
MEND = "correct the cell (empty, ? or NA for a missing value)"
MARKS = ((".", ""), (",", ""), (".", ","), (",", "."), (".", " "), (",", " "), (".", "'"), (",", "'"))
"""Decimal and thousands marks to try."""
ABSENT = frozenset({"-", "--", "---", ".", "..", "...", "*", "#", "x", "_", "\u2013", "\u2014", "n.a.", "k.a.", "nd",
                    "unknown", "missing", "#n/a", "#null!"})  # fmt: skip
"""Texts that often mean a missing value, in lower case."""
SIGN = f"[-+{cell_formats.MINUS}]?"
CURRENCY = "[€$£¥₹₽₩]|R\\$|kr|Fr\\.|Rs\\.?|EUR|USD|GBP|CHF|CAD|AUD|JPY|CNY|INR|SEK|NOK|DKK|PLN"
WITH_UNIT = re.compile(
    rf"(?:[<>\u2264\u2265]=?\s*)?{SIGN}\s*(?:({CURRENCY})\s*)?{SIGN}\d[\d.,'\u2019{cell_formats.SPACES}]*([^\d\s+/:-](?:.*[^\s.,])?)?\s*"
)
MOST_ADVISED = 5
"""Maximum number of files, or of marks, that the advice in a message names."""


def column_refusal(
    sheets: Sequence[Sheet], name: str, reading: Reading, present: Mapping[str, int], values: Mapping[str, float | None]
) -> str:
    """Return why a column that is not declared categorical cannot be read, or "" if it can. `present` has the count of
    each text, and `values` has its number, or None for other text."""
    texts = {text for text, value in values.items() if value is None}
    endless = {text for text, value in values.items() if value is not None and not abs(value) <= LARGEST}
    if texts and (refused := _format_refusal(sheets, name, reading)):
        return refused
    rows = sum(present.values())
    if texts and name in reading.numeric:
        says = "the dictionary declares the column as numbers"
        says = says if name in reading.declared.of_type("number") else "data.numeric contains the column"
        return f"{_place(sheets, name, texts)}, but {says}, expected a number: {MEND}"
    numbers = rows - sum(present[text] for text in texts)
    if texts and (numbers >= MOSTLY * rows or any(text.startswith(NO_NUMBER) for text in texts)):
        marks = sorted(text.removeprefix(NO_NUMBER) for text in texts)
        absent = f", set {_missing(reading, marks)} if this means missing" if len("".join(marks)) <= LONGEST else ""
        return (
            f"{_place(sheets, name, texts)}, but {numbers} of {rows} values are numbers: {MEND}{absent}, or set "
            f"{_categorical(reading, name)} if the column's numbers are codes"
        )
    if endless:
        return f"{_place(sheets, name, endless)}, {ENDLESS}"
    return look_like_names(sheets, name, present) if texts else ""


def look_like_names(sheets: Sequence[Sheet], name: str, present: Mapping[str, int]) -> str:
    """Return a refusal if a column has so many different texts that they may be names; "" if not."""
    rows = sum(present.values())
    if len(present) <= max(TELLING, rows / 2):
        return ""
    left_out = assignment(f"rename_columns\n{sheets[0].own_name(name)}", False)
    return (
        f"{_place(sheets, name, present)}, one of {len(present)} different texts in {rows} rows, which look like names "
        f"or free text: remove the column with {left_out}; or, if all data are on one machine and the texts are "
        "categories, name the column in data.categorical (a silo of a federation never sends so many categories)"
    )


def _place(sheets: Sequence[Sheet], name: str, texts: Iterable[str]) -> str:
    return first_place(sheets, name, set(texts))


def _categorical(reading: Reading, name: str) -> str:
    return assignment("categorical", [*dict.fromkeys([*reading.categorical, name])])


def _missing(reading: Reading, marks: Sequence[str]) -> str:
    return assignment("missing", [*dict.fromkeys([*reading.declared.missing, *marks])])


def _format_refusal(sheets: Sequence[Sheet], name: str, reading: Reading) -> str:
    """Return a refusal if a column has numbers or dates in a format other than the declared one; "" if not."""
    cells = [_Cells(sheet, name) for sheet in sheets]
    wrong = [each for each in cells if any(text in each.known for text in each.others)]
    if not wrong:
        absent = sorted({text for each in cells for text in each.others})
        if not any(each.numbers for each in cells):
            return ""
        codes = "" if name in reading.numeric else f", or {_categorical(reading, name)} if its values are codes"
        place = _place(sheets, name, absent)
        return f"{place}, but other values are numbers: set {_missing(reading, absent)} if this means missing{codes}"
    marks = set.intersection(*(set(each.marks) for each in wrong)) if all(each.marks for each in wrong) else set()
    first, place = wrong[0], first_place([wrong[0].sheet], name, wrong[0].others)
    codes = "" if name in reading.numeric else f", or {_categorical(reading, name)} if its values are codes"
    if marks or first.marks:
        chosen = [each for each in wrong if marks] or [first]
        options = _different(marks or set(first.marks), first)
        others = _others_advice([each for each in wrong if each not in chosen], cells, name, reading)
        lines = [" and ".join([_marks_advice(chosen, cells, name, one, reading), *others]) for one in options]
        if len(options) > 1:
            example = next(text for text in first.others if len({number(text, *option) for option in options}) > 1)
            lines = [f"{line} if {example} is {number(example, *option):g}" if abs(number(example, *option) or 0) < 1e6
                     else f"{line} if {example} is {number(example, *option):.0f}"
                     for line, option in zip(lines, options, strict=True)]  # fmt: skip
        kind = " or ".join(dict.fromkeys(_called(option, first) for option in options))
        return f"{place}, a number with a {kind}: set {', or '.join(lines)}{codes}"
    if first.form is not None:
        form, what = first.form
        alternatives = [form]
        if form.get("date", "").startswith("%d/%m") and first.fits(CellFormat(date=_american(form["date"]))) == 1:
            alternatives.append({"date": _american(form["date"])})
        same = [each for each in wrong if each.form == first.form]
        others = _others_advice([each for each in wrong if each not in same], cells, name, reading)
        lines = [
            " and ".join([*(_own(each, cells, same, name, one) for each in _named(cells, same)), *others])
            for one in alternatives
        ]
        if len(lines) > 1:
            lines = [f"{line} if the {part} comes first" for line, part in zip(lines, ("day", "month"), strict=True)]
        return f"{place}, {what}: set {', or '.join(lines)}{codes}{_alternatives(first, name, reading)}"
    if any(each.mixed for each in wrong):
        out = assignment(f"rename_columns\n{first.sheet.own_name(name)}", False)
        told = f"{place}, but other values are in another format: write all of them in one format"
        return f"{told}, or remove the column with {out}{codes}"
    return ""


def _alternatives(cells: _Cells, name: str, reading: Reading) -> str:
    """Return alternative settings for a column of dates or limits."""
    form, _ = cells.form or ({}, "")
    if "limit" in form:
        return '; limit = "half" instead reads <1 as 0.5'
    if "date" not in form:
        return ""
    split = f", {assignment('time', name)} to split by time" if not reading.time and form["date"] not in TIMES else ""
    left_out = assignment(f"rename_columns\n{cells.sheet.own_name(name)}", False)
    return f"{split}, or {left_out} to remove the column"


def _others_advice(rest: Sequence[_Cells], cells: Sequence[_Cells], name: str, reading: Reading) -> list[str]:
    """Return the settings of the files in `rest` whose formats are certain, and of marks of missing values."""
    lines = []
    for each in rest[:MOST_ADVISED]:
        if each.marks and len(options := _different(each.marks, each)) == 1:
            lines.append(_marks_advice([each], cells, name, options[0], reading))
        elif each.form is not None and not each.form[0].get("date", "").startswith("%d/%m"):
            lines.append(_own(each, cells, [each], name, each.form[0]))
    absent = sorted({text for each in cells for text in each.others if text not in each.known})
    return [*lines, _missing(reading, absent)] if absent else lines


def _different(marks: Collection[tuple[str, str]], cells: _Cells) -> list[tuple[str, str]]:
    """Return the marks with which the cells have different values; thousands marks and the declared decimal mark are
    first."""
    found: dict[tuple[float | None, ...], tuple[str, str]] = {}
    for option in sorted(marks, key=lambda each: (not each[1], each[0] != cells.format.decimal, MARKS.index(each))):
        found.setdefault(tuple(number(text, *option) for text in cells.known), option)
    return list(found.values())


def _called(option: tuple[str, str], cells: _Cells) -> str:
    decimal, thousands = option
    if thousands:
        return "thousands mark"
    return f"decimal {'comma' if decimal == ',' else 'point'}"


def _american(day_first: str) -> str:
    return day_first.replace("%d/%m", "%m/%d")


def _named(cells: Sequence[_Cells], wrong: Sequence[_Cells]) -> Sequence[_Cells]:
    """Return the files that the advice must name; if all files are wrong, the first represents them."""
    return wrong[:1] if len(wrong) == len(cells) else wrong[:MOST_ADVISED]


def _own(each: _Cells, cells: Sequence[_Cells], wrong: Sequence[_Cells], name: str, form: Mapping[str, Any]) -> str:
    """Return the setting of a column, for one file or, if all files are wrong, for all of them."""
    of_file = "" if len(wrong) == len(cells) else f"files\n{each.sheet.path.stem}\n"
    own = each.sheet.own_name(name)
    return assignment(f"{of_file}rename_columns\n{own}", ({} if own == name else {"name": name}) | dict(form))


def _marks_advice(
    wrong: Sequence[_Cells], cells: Sequence[_Cells], name: str, option: tuple[str, str], reading: Reading
) -> str:
    decimal, thousands = option
    lines = []
    for each in _named(cells, wrong):
        now = each.format
        form = {"decimal": decimal} if decimal != now.decimal else {}
        form |= {"thousands": thousands} if thousands and thousands != now.thousands else {}
        alone = any(_contradicts(one.sheet, name, replace(now, decimal=decimal, thousands=thousands), reading)
                    for one in (wrong if len(wrong) == len(cells) else [each]))  # fmt: skip
        if alone or now.own_marks:
            lines.append(_own(each, cells, wrong, name, {"decimal": decimal} | form))
        else:
            of_file = "" if len(wrong) == len(cells) else f"files\n{each.sheet.path.stem}\n"
            lines += [assignment(f"{of_file}{key}", value) for key, value in form.items()]
    return " and ".join(lines)


def _contradicts(sheet: Sheet, name: str, other: CellFormat, reading: Reading) -> bool:
    """Return whether a format would change or invalidate numbers in another column of a file."""
    for column in sheet.columns:
        if column in (name, reading.target, reading.silo_column, *reading.categorical) or sheet.stores_numbers(column):
            continue
        now = sheet.format_of(column)
        for text in set(sheet.raw(column)):
            if (value := now.value(text)) is not None and not missing(text) and other.value(text) != value:
                return True
    return False


class _Cells:
    """The cells of one file's column, and the formats in which they would be numbers."""

    def __init__(self, sheet: Sheet, name: str) -> None:
        self.sheet, self.format = sheet, sheet.format_of(name)
        counts = Counter(sheet.raw(name))
        given = dict(self.format.codes)
        self.present = {text: count for text, count in counts.items() if not missing(text) and text not in given
                        and text not in self.format.missing}  # fmt: skip
        values = {text: self.format.value(text) for text in self.present}
        self.others = [text for text, value in values.items() if value is None]
        self.numbers = len(values) - len(self.others)
        self.known = {text: count for text, count in self.present.items() if text.lower() not in ABSENT}
        self.rows = sum(self.known.values())
        plain = not (self.format.date or sheet.stores_numbers(name)) and any(text in self.known for text in self.others)
        fits = {option: self._fit(option) for option in MARKS} if plain else {}
        best = max(fits.values(), default=0)
        self.marks = [option for option, fit in fits.items() if fit == best >= MOSTLY]
        self.form = None if self.marks or not plain or not self.known else self._form()

    def _fit(self, option: tuple[str, str]) -> float:
        """Return the fraction of cells that are numbers with the marks `option`; 0 if no cell needs these marks."""
        decimal, thousands = option
        other = replace(self.format, decimal=decimal, thousands=thousands)
        changed = [text for text in self.others if text in self.known and other.value(text) is not None]
        if thousands:
            changed = [text for text in changed if replace(other, thousands="").value(text) is None]
        return self.fits(other) if changed else 0

    @property
    def mixed(self) -> bool:
        """Whether all cells are numbers or dates, but not in one format."""
        return all(_is_number_or_date(text) for text in self.others if text in self.known)

    def fits(self, other: CellFormat) -> float:
        """Return the fraction of cells that are numbers in a format."""
        return sum(count for text, count in self.known.items() if other.value(text) is not None) / self.rows

    def _form(self) -> tuple[dict[str, Any], str] | None:
        """Return the keys of a column that turn almost all cells into numbers, and a name for such cells; None if there
        are no such keys."""
        for date in DATE_FORMATS:
            sample = next(text for text in self.others if text in self.known)
            if is_date(sample, date) and self.fits(CellFormat(date=date)) >= MOSTLY:
                return {"date": date}, "a time of day" if date in TIMES else "a date"
        units = Counter[str]()
        for text in self.others:
            if match := WITH_UNIT.fullmatch(text):
                units[(match[2] or match[1] or "").strip()] += self.present[text]
        units = Counter(
            {unit: count for unit, count in units.items() if unit.isprintable() and unit and count > 1}
        )  # a unit that occurs once is a slip
        limited = any(cell_formats.LIMIT.match(text) for text in self.others)
        for unit in ("", *(unit for unit, _ in units.most_common(1))):
            for limit in (None, "value") if limited else (None,):
                for marks in ((self.format.decimal, self.format.thousands), *MARKS):
                    tried = replace(self.format, decimal=marks[0], thousands=marks[1], unit=unit or self.format.unit,
                                    limit=limit or self.format.limit)  # fmt: skip
                    if (unit or limit) and self.fits(tried) >= MOSTLY and self._numbers(tried, limit):
                        return self._keys(tried, unit, limit)
        return None

    def _numbers(self, tried: CellFormat, limit: str | None) -> bool:
        """Return whether there are several numbers other than limits: <50 and >=50 alone are categories."""
        plain = replace(tried, limit=None) if limit else tried
        return len({value for text in self.known if (value := plain.value(text)) is not None}) > 1

    def _keys(self, tried: CellFormat, unit: str, limit: str | None) -> tuple[dict[str, Any], str]:
        keys: dict[str, Any] = {"unit": unit} if unit else {}
        keys |= {"limit": limit} if limit else {}
        keys |= {"decimal": tried.decimal} if tried.decimal != self.format.decimal else {}
        keys |= {"thousands": tried.thousands} if tried.thousands and tried.thousands != self.format.thousands else {}
        return keys, "a number with a unit" if unit and not limit else "a limit among numbers"


def _is_number_or_date(text: str) -> bool:
    numbers = (number(text, *option) for option in MARKS)
    return any(value is not None for value in numbers) or any(is_date(text, date) for date in DATE_FORMATS)


def label_refusal(sheets: Sequence[Sheet], reading: Reading) -> str:
    """Return why the target cannot have classes: more than 20 different numbers, unless data.predict or data.classes
    declares them as classes, or more labels than half the rows. Returns "" if the target can have classes."""
    target = reading.target or ""
    labels = {text for sheet in sheets for text in sheet.column(target) if not missing(text)}
    rows = sum(map(len, sheets))
    if len(labels) <= TELLING or reading.predict in NUMERIC:
        return ""
    declared = reading.predict == "classes" or labels <= set(reading.declared.classes)
    values = [min((v for mark in ".," if (v := number(text, mark)) is not None), default=None) for text in labels]
    numbers = not any(value is None for value in values)
    fractions = numbers and any(value is not None and value % 1 for value in values)
    codes = any(CODE.fullmatch(text) for text in labels)
    if numbers and not declared and (fractions or not codes):
        quantity, classes = (assignment("predict", each) for each in ("quantity", "classes"))
        looks = f"quantities: set {quantity} to predict a number, or {classes} if every number is a class"
    elif len(labels) > rows / 2 or (fractions and not declared):
        looks = "something other than classes: expected another data.target"
    else:
        return ""
    return (
        f"{first_place(sheets, target, labels)}, one of {len(labels)} different labels in {rows} rows, which look like "
        f"{looks}"
    )


def spelling_refusal(sheets: Sequence[Sheet], name: str, reading: Reading, texts: Iterable[str]) -> str:
    """Return a refusal if two categories differ only in case, spaces, Unicode form or leading zeros; "" if none do.
    Both are kept if `data.classes`, `data.categorical` or the dictionary declares them."""
    texts = list(texts)
    is_label, kept = name == reading.target, reading.declared.classes
    groups = [group for group in cell_formats.variants(texts) if not (is_label and set(group) <= set(kept))]
    if not groups:
        return ""
    counts = {text: Counter[str]() for group in groups for text in group}
    for sheet in sheets:
        silos = sheet.column(reading.silo_column) if reading.silo_column else [sheet.path.stem] * len(sheet)
        for silo, text in zip(silos, sheet.column(name), strict=True):
            if text in counts:
                counts[text][silo] += 1
    codes: dict[str, str] = {}
    for group in groups:
        longest = len(max(group, key=len)) if any(CODE.fullmatch(text) for text in group) else 0
        most = max(group, key=lambda text: (len(text) == longest, counts[text].total(), text))
        codes |= {text: most for text in group if text != most}
    said = " and ".join(f"{shown(text)} ({_told(counts[text])})" for text in groups[0])
    if is_label:
        merge = " and ".join(assignment(f"label_codes\n{code}", meaning) for code, meaning in codes.items())
        every = [*dict.fromkeys([*kept, *sorted(texts)])]
        keep = assignment("classes", every) if len(every) <= TELLING else "data.classes to all labels"
    else:
        own = sheets[0].own_name(name)
        merge = assignment(f"rename_columns\n{own}", ({} if own == name else {"name": name}) | {"codes": codes})
        keep = _categorical(reading, name)
    return (
        f"{sheets[0].path}: column {shown(name)} has {said}, which differ only in case, spaces, Unicode form or "
        f"leading zeros: set {merge} if both mean the same, or {keep} to keep both"
    )


def _told(counts: Counter[str]) -> str:
    told = ", ".join(f"{silo[:LONGEST]}: {count}" for silo, count in counts.most_common(MOST_ADVISED))
    return told + (", ..." if len(counts) > MOST_ADVISED else "")
