"""Harmonization of tables to the agreed names, units, missing values and classes."""

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from ...core import ConfigurationError, DataError, Refused
from ..raw_samples import shown
from ..setting_lines import assignment
from .cell_formats import PLAIN, CellFormat, number, same_value
from .column_refusals import MOST_ADVISED
from .declarations import NOTHING, Declared, DictionaryColumn, OwnColumn
from .files import ChangedSheet, Sheet, missing
from .reading_settings import CsvFormat

OWN = "[data.rename_columns] of silo.toml or of a configuration"
"""The place where names, units and values of a silo's columns are declared."""
LABELS = "[data.label_codes] of silo.toml or of a configuration"
"""The place where label codes are declared."""
AS_TRAINED = "a model reads rows as declared when it was trained"
MOSTLY_OUTSIDE = 0.5
"""Minimum fraction of out-of-range values for which a different unit is assumed."""


class Refusals(dict[str, Refused]):
    """The reasons to refuse a table, by column."""

    def __init__(self, later: bool = False) -> None:
        super().__init__()
        self.later = later
        """Whether the rows are for a trained model, so declarations can no longer change."""


def declared_sheets(
    sheets: Sequence[Sheet], csv_format: CsvFormat, target: str | None, others: Collection[str]
) -> list[Sheet]:
    """Harmonize files; columns that the dictionary lacks are removed, except `target` and `others`. Raises Refused for
    data that contradict their declaration, ConfigurationError for columns that no file has."""
    found, declared = Refusals(), csv_format.declared
    made = surveyed_sheets(sheets, csv_format, target, others, found)
    for refusal in found.values():
        raise refusal
    if not declared.dictionary:
        return made
    known = {column.name for column in declared.dictionary} | {target, *others}
    return [sheet.with_columns({name: None for name in sheet.columns if name not in known}) for sheet in made]


def surveyed_sheets(
    sheets: Sequence[Sheet], csv_format: CsvFormat, target: str | None, others: Collection[str], found: Refusals
) -> list[Sheet]:
    """Harmonize files but keep all columns; add reasons to refuse them to `found`."""
    declared = csv_format.declared
    _check_own_columns(sheets[0], declared.rename_columns, "data.rename_columns")
    by_name = {sheet.path.stem: sheet for sheet in sheets}
    for file in declared.files:
        if file.name not in by_name:
            raise ConfigurationError(
                f"data.files names {file.name!r}, expected one of the files {', '.join(by_name)}", "data.files"
            )
        _check_own_columns(by_name[file.name], file.rename_columns, f"data.files.{file.name}.rename_columns")
    return [_declared(sheet, csv_format.of(sheet.path.stem), target, others, found) for sheet in sheets]


def check_same_columns(sheets: Sequence[Sheet], needed: Collection[str]) -> None:
    """Raise DataError if columns differ. No file may leave out the `needed` ones, such as the target."""
    for sheet in sheets[1:]:
        if differing := set(sheet.columns) ^ set(sheets[0].columns):
            raise DataError(
                f"{sheets[0].path} and {sheet.path} differ in columns {sorted(differing)}; expected the same columns: "
                f"{_same_columns(sheets[0], sheet, needed)}"
            )


def _same_columns(first: Sheet, sheet: Sheet, needed: Collection[str]) -> str:
    """Return how to give two files the same columns: rename a column with a similar name, or leave columns out."""
    own, others = ([name for name in a.columns if name not in b.columns] for a, b in ((sheet, first), (first, sheet)))
    names = {close[0]: other for other in others if (close := get_close_matches(other, own, 1))}
    lacking = [(file, name) for file, only in ((first, own), (sheet, others)) for name in only if name in needed]
    if lacking and not names:
        file, name = lacking[0]
        return (
            f"{file.path} needs {name!r}, or another column renamed to it in data.files.{file.path.stem}.rename_columns"
        )
    end = "if these columns are the same" if names else "to leave the columns out"
    left_out = [(file, name, False) for file, only in ((sheet, own), (first, others)) for name in only]
    told = [(sheet, name, other) for name, other in names.items()] or left_out
    keys = (
        assignment(f"files\n{f.path.stem}\nrename_columns\n{f.own_name(n)}", to) for f, n, to in told[:MOST_ADVISED]
    )
    return f"set {' and '.join(keys)} {end}"


def _check_own_columns(sheet: Sheet, columns: Sequence[OwnColumn], key: str) -> None:
    """Raise ConfigurationError for a column that a file lacks."""
    for own in columns:
        if own.own not in sheet.columns:
            raise ConfigurationError(
                f"{key} names {own.own!r}: no such column; {sheet.path} has {', '.join(sheet.columns)}",
                "data.rename_columns",
            )


def declared_rows(sheet: Sheet, csv_format: CsvFormat) -> Sheet:
    """Harmonize rows to predict; missing columns and values outside of the dictionary are not checked, and messages do
    not show cells. Raise Refused for rows that contradict their declaration."""
    found, declared = Refusals(later=True), csv_format.declared
    sheet = ChangedSheet(sheet, {name: name for name in sheet.columns}, hidden=True)
    made = _with_formats(_with_names(sheet, declared, found), csv_format, ())
    made = _with_values(made, declared, found)
    for refusal in found.values():
        raise refusal
    return made


def declared_labels(sheet: Sheet, declared: Declared, target: str) -> list[str]:
    """Return the class of each row; `target` is the agreed name or the file's own. Raise Refused for unknown labels."""
    found = Refusals(later=True)
    own = {column.own: column.name for column in declared.rename_columns}
    named = sheet.renamed({name: own.get(name) or name for name in sheet.columns})
    made = _with_classes(named, declared, own.get(target) or target, found)
    for refusal in found.values():
        raise refusal
    return list(made.column(own.get(target) or target))


def _declared(
    sheet: Sheet, csv_format: CsvFormat, target: str | None, others: Collection[str], found: Refusals
) -> Sheet:
    declared = csv_format.declared
    if declared == NOTHING and csv_format.decimal == ".":
        return sheet
    sheet = _with_formats(_with_names(sheet, declared, found), csv_format, (target, *others))
    for rule in declared.dictionary:
        if rule.name not in sheet.columns:
            told = f"{sheet.path}: no column {rule.name!r}, which the dictionary has: declare the file's name in {OWN}"
            found.setdefault(rule.name, Refused(told, "columns", rule.name))
    sheet = _with_values(sheet, declared, found)
    return sheet if target not in sheet.columns or target is None else _with_classes(sheet, declared, target, found)


def _with_names(sheet: Sheet, declared: Declared, found: Refusals) -> Sheet:
    units = {rule.name: rule.unit for rule in declared.dictionary if rule.unit}
    own = {column.own: column for column in declared.rename_columns if column.own in sheet.columns}
    names = {name: own[name].name if name in own else name for name in sheet.columns}
    kept = sheet.with_columns({name: None for name, agreed in names.items() if not agreed})
    agreed = [names[name] for name in kept.columns]
    if twice := next((name for name in agreed if agreed.count(name) > 1), None):
        how = f"from the file; {AS_TRAINED}" if found.later else f"with NAME = false in {OWN}"
        told = f"{sheet.path}: several columns are called {twice!r}, expected one: remove the others {how}"
        found.setdefault(twice, Refused(told, "columns", twice))
        return kept
    for column in own.values():
        if column.name and not column.factor and column.unit and column.unit != units.get(column.name, column.unit):
            told = (
                f"{sheet.path}: column {column.name!r} is in {column.unit!r}, but the dictionary has it in "
                f"{units[column.name]!r}; expected the unit of the dictionary, or a factor in {OWN}"
            )
            found.setdefault(column.name, Refused(told, "unit", column.name))
    return kept.renamed(names)


def _with_formats(sheet: Sheet, csv_format: CsvFormat, labels: Sequence[str | None]) -> Sheet:
    """Read the cells of features in the formats declared for them, and replace declared codes of all columns."""
    declared = csv_format.declared
    own = {column.name: column for column in declared.rename_columns}
    common = CellFormat(csv_format.decimal, declared.thousands or "", declared.missing)
    formats = {}
    for name in sheet.columns:
        made = common if name not in labels else PLAIN
        if (column := own.get(name)) is not None:
            codes = tuple((each.code, each.meaning) for each in column.codes)
            made = CellFormat(
                column.decimal or made.decimal,
                column.thousands or ("" if column.decimal else made.thousands),
                (*made.missing, *column.missing), column.unit, column.limit, column.date, column.since, column.until,
                column.factor, codes, bool(column.decimal or column.thousands),
            )  # fmt: skip
        made = made.stored() if sheet.stores_numbers(name) else made
        if made != PLAIN:
            formats[name] = made
    return sheet.formatted(formats)


def _with_values(sheet: Sheet, declared: Declared, found: Refusals) -> Sheet:
    own = {column.name: column.outside for column in declared.rename_columns}
    cells: dict[str, list[str] | None] = {}
    for rule in declared.dictionary:
        if rule.name in sheet.columns:
            cells[rule.name] = _allowed(sheet, rule, own.get(rule.name) or rule.outside, found)
    return sheet.with_columns(cells)


def _allowed(sheet: Sheet, rule: DictionaryColumn, outside: str, found: Refusals) -> list[str]:
    codes = {code if isinstance(code, str) else float(code) for code in rule.missing}
    alike = {same_value(value): value for value in reversed(rule.values)} | {value: value for value in rule.values}
    cells, bad = [], []
    for row, text in enumerate(sheet.column(rule.name)):
        text = alike.get(text) or alike.get(same_value(text), text) if alike else text
        value = None if missing(text) else number(text)
        lacking = missing(text) or text in codes or value in codes
        if not lacking and _is_outside(rule, text, value):
            bad.append(row)
            lacking = outside == "missing"
        cells.append("" if lacking else text)
    if bad and outside == "refuse" and not found.later:
        present = sum(not missing(text) for text in cells)
        told = (
            f"{sheet.place(rule.name, bad[0])}, but the dictionary allows only values {rule.expected}; {len(bad)} of "
            f"{present} values in this column are not allowed: {_mended(rule, len(bad) / present)}"
        )
        found.setdefault(rule.name, Refused(told, "range" if rule.range else "values", rule.name))
    return cells


def _mended(rule: DictionaryColumn, share: float) -> str:
    if rule.range is not None and share >= MOSTLY_OUTSIDE:
        return (
            f"if the unit differs, declare in {OWN} the factor that converts the values to "
            f"{rule.unit or 'the unit of the dictionary'}, {rule.name} = {{ factor = ... }}"
        )
    return f'correct these values, or declare them as missing with outside = "missing", in {OWN} or in the dictionary'


def _is_outside(rule: DictionaryColumn, text: str, value: float | None) -> bool:
    if rule.range is not None:
        # Text is refused later, when numbers are read.
        return value is not None and not rule.range[0] <= value <= rule.range[1]
    return bool(rule.values) and text not in rule.values


def _with_classes(sheet: Sheet, declared: Declared, target: str, found: Refusals) -> Sheet:
    meaning = {each.code: each.meaning for each in declared.label_codes}
    alike = {same_value(name): name for name in reversed(declared.classes)}
    alike |= {same_value(each.code): each.meaning for each in reversed(declared.label_codes)}
    exact = {name: name for name in declared.classes} | meaning
    labels = list(sheet.column(target))
    known = {text: exact.get(text) or alike.get(same_value(text), text) for text in set(labels)}
    classes = [known[text] for text in labels]
    unknown = [i for i, label in enumerate(classes) if not missing(labels[i]) and label not in declared.classes]
    if declared.classes and unknown:
        label, named = labels[unknown[0]], classes[unknown[0]]
        means = f", which {LABELS} declares as {shown(named)}" if named != label else ""
        nearest = next((each for each in declared.classes if each.lower() == named.lower()), "")
        same = f"; did you mean {shown(nearest)}?" if nearest else ""
        how = "correct the declaration" if means else f"declare in {LABELS} the class of each label"
        how = AS_TRAINED if found.later else how
        told = f"{sheet.place(target, unknown[0])}{means}, expected one of data.classes ({', '.join(declared.classes)})"
        found.setdefault(target, Refused(f"{told}; {how}{same}", "labels", target))
    return sheet.with_columns({target: classes}) if classes != labels else sheet
