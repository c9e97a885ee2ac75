"""Harmonization of tables to the agreed names, units, missing values and classes."""

from collections.abc import Collection, Sequence

from ...core import ConfigurationError, Refused
from ..pools import shown
from .columns import number
from .dictionary import NOTHING, Declared, DictionaryColumn, OwnColumn
from .files import Sheet, missing

OWN = "[data.rename_columns] of silo.toml or of a configuration"
"""Where names, units and values of a silo's columns are declared."""
LABELS = "[data.label_codes] of silo.toml or of a configuration"
"""Where label codes are declared."""
AS_TRAINED = "a model reads rows as declared when it was trained"
MOSTLY_OUTSIDE = 0.5
"""Minimum fraction of out-of-range values at which the unit is assumed to differ."""


class Refusals(dict[str, Refused]):
    """The reasons to refuse a table, by column."""

    def __init__(self, later: bool = False) -> None:
        super().__init__()
        self.later = later
        """Whether the rows are for a trained model, so declarations can no longer change."""


def declared_sheets(
    sheets: Sequence[Sheet], declared: Declared, decimal: str, target: str | None, others: Collection[str]
) -> list[Sheet]:
    """Harmonize files; columns that the dictionary lacks are removed, except `target` and `others`.

    Raises Refused for data that contradict their declaration, ConfigurationError for columns that no file has.
    """
    found = Refusals()
    made = surveyed_sheets(sheets, declared, decimal, target, found)
    for refusal in found.values():
        raise refusal
    if not declared.dictionary:
        return made
    known = {column.name for column in declared.dictionary} | {target, *others}
    return [sheet.with_columns({name: None for name in sheet.columns if name not in known}) for sheet in made]


def surveyed_sheets(
    sheets: Sequence[Sheet], declared: Declared, decimal: str, target: str | None, found: Refusals
) -> list[Sheet]:
    """Harmonize files but keep all columns; reasons to refuse them are added to `found`."""
    for own in declared.rename_columns:
        if own.own not in sheets[0].columns:
            raise ConfigurationError(
                f"data.rename_columns names {own.own!r}: {sheets[0].path} has {', '.join(sheets[0].columns)}",
                "data.rename_columns",
            )
    return [_declared(sheet, declared, decimal, target, found) for sheet in sheets]


def declared_rows(sheet: Sheet, declared: Declared, decimal: str) -> Sheet:
    """Harmonize rows to predict; missing columns are not checked. Raise Refused."""
    found = Refusals(later=True)
    made = _with_values(_with_names(sheet, declared, decimal, found), declared, decimal, found)
    for refusal in found.values():
        raise refusal
    return made


def declared_labels(sheet: Sheet, declared: Declared, target: str) -> list[str]:
    """Return the class of each row; `target` is the agreed name or the file's own. Raise Refused."""
    found = Refusals(later=True)
    own = {column.own: column.name for column in declared.rename_columns}
    named = sheet.renamed({name: own.get(name) or name for name in sheet.columns})
    made = _with_classes(named, declared, own.get(target) or target, found)
    for refusal in found.values():
        raise refusal
    return list(made.column(own.get(target) or target))


def _declared(sheet: Sheet, declared: Declared, decimal: str, target: str | None, found: Refusals) -> Sheet:
    if declared == NOTHING:
        return sheet
    sheet = _with_names(sheet, declared, decimal, found)
    for rule in declared.dictionary:
        if rule.name not in sheet.columns:
            told = f"{sheet.path}: no column {rule.name!r}, which the dictionary has: declare its name here in {OWN}"
            found.setdefault(rule.name, Refused(told, "columns", rule.name))
    sheet = _with_values(sheet, declared, decimal, found)
    return sheet if target not in sheet.columns or target is None else _with_classes(sheet, declared, target, found)


def _with_names(sheet: Sheet, declared: Declared, decimal: str, found: Refusals) -> Sheet:
    units = {rule.name: rule.unit for rule in declared.dictionary if rule.unit}
    own = {column.own: column for column in declared.rename_columns if column.own in sheet.columns}
    names = {name: own[name].name if name in own else name for name in sheet.columns}
    kept = sheet.with_columns({name: None for name, agreed in names.items() if not agreed})
    agreed = [names[name] for name in kept.columns]
    if twice := next((name for name in agreed if agreed.count(name) > 1), None):
        how = f"of the file; {AS_TRAINED}" if found.later else f"in {OWN}, NAME = false"
        told = f"{sheet.path}: several columns are {twice!r}, expected one: leave the others out {how}"
        found.setdefault(twice, Refused(told, "columns", twice))
        return kept
    kept = kept.renamed(names)
    for column in own.values():
        if column.name and column.factor is not None:
            kept = kept.with_columns({column.name: _multiplied(kept, column, column.factor, decimal)})
        elif column.name and column.unit and column.unit != units.get(column.name, column.unit):
            told = (
                f"{sheet.path}: column {column.name!r} is in {column.unit!r}, the dictionary has it in "
                f"{units[column.name]!r}: expected that unit, or a factor in {OWN}"
            )
            found.setdefault(column.name, Refused(told, "unit", column.name))
    return kept


def _multiplied(sheet: Sheet, column: OwnColumn, factor: float, decimal: str) -> list[str]:
    values = [(text, None if missing(text) else number(text, decimal)) for text in sheet.column(column.name)]
    return [text if value is None else repr(value * factor).replace(".", decimal) for text, value in values]


def _with_values(sheet: Sheet, declared: Declared, decimal: str, found: Refusals) -> Sheet:
    own = {column.name: column.outside for column in declared.rename_columns}
    cells: dict[str, list[str] | None] = {}
    for rule in declared.dictionary:
        if rule.name in sheet.columns:
            cells[rule.name] = _allowed(sheet, rule, own.get(rule.name) or rule.outside, decimal, found)
    return sheet.with_columns(cells)


def _allowed(sheet: Sheet, rule: DictionaryColumn, outside: str, decimal: str, found: Refusals) -> list[str]:
    codes = {code if isinstance(code, str) else float(code) for code in rule.missing}
    cells, bad = [], []
    for row, text in enumerate(sheet.column(rule.name)):
        value = None if missing(text) else number(text, decimal)
        lacking = missing(text) or text in codes or value in codes
        if not lacking and _is_outside(rule, text, value):
            bad.append(row)
            lacking = outside == "missing"
        cells.append("" if lacking else text)
    if bad and outside == "refuse":
        present = sum(not missing(text) for text in cells)
        told = (
            f"{sheet.path}: column {rule.name!r}: {len(bad)} of {present} values are not {_expected(rule)}, the first: "
            f"{sheet.place(rule.name, bad[0])}; {_mended(rule, len(bad) / present, found.later)}"
        )
        found.setdefault(rule.name, Refused(told, "range" if rule.range else "values", rule.name))
    return cells


def _mended(rule: DictionaryColumn, share: float, later: bool) -> str:
    if later:
        return f"none of the file is read: correct them, empty the cells, or leave the rows out; {AS_TRAINED}"
    if rule.range is not None and share >= MOSTLY_OUTSIDE:
        return (
            f"so many suggest another unit: declare in {OWN} the factor that converts them to "
            f"{rule.unit or 'the unit of the dictionary'}, {rule.name} = {{ factor = ... }}"
        )
    missing_there = f'declare in {OWN}, or in the dictionary, that such values are missing, outside = "missing"'
    return f"correct them, or {missing_there}"


def _is_outside(rule: DictionaryColumn, text: str, value: float | None) -> bool:
    if rule.range is not None:
        # Text other than numbers is refused when numbers are read.
        return value is not None and not rule.range[0] <= value <= rule.range[1]
    return bool(rule.values) and text not in rule.values


def _expected(rule: DictionaryColumn) -> str:
    if rule.range is not None:
        low, high = rule.range
        return f"from {low:g} to {high:g} {rule.unit}".rstrip()
    return f"among {', '.join(rule.values)}"


def _with_classes(sheet: Sheet, declared: Declared, target: str, found: Refusals) -> Sheet:
    meaning = {each.code: each.meaning for each in declared.label_codes}
    labels = list(sheet.column(target))
    classes = [meaning.get(text, text) for text in labels]
    unknown = [i for i, label in enumerate(classes) if not missing(labels[i]) and label not in declared.classes]
    if declared.classes and unknown:
        label, named = labels[unknown[0]], classes[unknown[0]]
        means = f", which {LABELS} declares as {shown(named)}" if label in meaning else ""
        nearest = next((each for each in declared.classes if each.lower() == named.lower()), "")
        same = f"; {shown(nearest)} is written so" if nearest else ""
        how = "correct that" if means else f"declare in {LABELS} the class of each label"
        how = AS_TRAINED if found.later else how
        told = f"{sheet.place(target, unknown[0])}{means}, expected one of data.classes ({', '.join(declared.classes)})"
        found.setdefault(target, Refused(f"{told}{same}: {how}", "labels", target))
    return sheet.with_columns({target: classes}) if declared.label_codes else sheet
