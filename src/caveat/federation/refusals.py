"""What a silo refuses by its own file, and what others learn of it: the silo, the rule, and a name that is agreed on.

What others learn is written here and holds no value: the sentences below, the silo's name, and the name of a column or
class only if the federation's configuration or the silo's own file has it already.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import product

import torch

from .._version import __version__
from ..core import ConfigurationError, DataError, Refused, Silo, SiloId
from ..core.errors import MissingError
from ..core.silo import SPLITS
from ..data import DataSettings, Silos
from ..data.tables.formats import number
from .silo.silo_file import SiloFile
from .terms import Terms

LEAST = 5
"""Counts of fewer rows than this may identify persons."""
WHERE = "silo.toml, [data]"
RULES: Mapping[str, str] = {
    "classes": "a federation of tables needs data.classes in config.toml: what each class means, in words",
    "target": f"the column to predict must be the one that the silo names, {WHERE} target",
    "labels": "labels must be those of data.classes; declare other codes in silo.toml, [data.label_codes]",
    "categorical": f"the silo sends categories only of columns that it allows, {WHERE} categorical",
    "columns": "columns must be those of data.dictionary; declare the silo's names in silo.toml, [data.rename_columns]",
    "dictionary": f"the data dictionary must be the same as the silo's own copy, {WHERE} dictionary",
    "outside": "a silo with a table reads nothing else, no data.ood.global_source",
    "unit": "numbers must be in the unit of data.dictionary, or have a factor in silo.toml, [data.rename_columns]",
    "range": "values must be in the range of data.dictionary or be declared as missing",
    "values": "values must be those of data.dictionary or be declared as missing",
    "reading": "a column cannot be read as it is declared",
    "named": f"columns that the silo's own file names, {WHERE}, must be in its table, and in any dictionary",
    "names": "texts that look like names of persons or free text never leave the silo: leave such a column out",
    "unlabelled": "every row must have a label, and a group and a time if a column of them is declared",
    "source": f"its data must be where its own file says, {WHERE} source",
    "file": "tables must be csv files in UTF-8 with a header and rows of equal length, or parquet files",
    "training": "every split must have rows, and the training split two classes and a batch",
    "small counts": f"counts of 1 to {LEAST - 1} rows leave the silo only if it allows that, {WHERE} small_counts",
}
"""By rule, what was expected and where it is declared."""
NAMING = ("data.target", "data.categorical", "data.numeric", "data.rename_columns", "data.groups", "data.time")
"""The keys that name columns."""


class ToldRefusal(DataError):
    """What others may know of a refusal: its text is safe by construction."""


def check_version(silo: SiloId, text: str) -> None:
    """Raise ToldRefusal unless the terms are of a server of this version."""
    with suppress(ValueError, TypeError, AttributeError):  # what are no terms at all is for who reads them
        if (theirs := json.loads(text).get("version")) != __version__:
            raise ToldRefusal(other_version(silo, __version__, theirs))


def other_version(silo: SiloId, own: object, server: object) -> str:
    """Return a sentence about different or unknown versions of a silo and a server."""
    silos, servers = (each[:20] if isinstance(each, str) and each else "of no version" for each in (own, server))
    return f"silo {silo!r} has caveat {silos} and the server {servers}: install the same version on both"


@contextmanager
def told_by_rule(file: SiloFile, terms: Terms) -> Iterator[None]:
    """Raise refusals within this context as what others may know, with the full error as the cause."""
    try:
        yield
    except Refused as error:
        known = error.column in _known(file, terms)
        about = f", {error.column!r}" if known else ", of a column that is not agreed on" if error.column else ""
        raise ToldRefusal(f"silo {file.silo!r} refuses{about}: {RULES[error.rule]}") from error
    except (MissingError, ConfigurationError) as error:
        if isinstance(error, ConfigurationError) and error.key not in NAMING:
            raise
        rule = "source" if isinstance(error, MissingError) else "named"
        raise ToldRefusal(f"silo {file.silo!r} refuses: {RULES[rule]}") from error


def _known(file: SiloFile, terms: Terms) -> set[str | None]:
    """Return names that everyone knows, or that the silo's own file allows."""
    data = terms.config.data
    agreed = {data.target, *data.classes, *data.categorical, *data.numeric, *(each.name for each in data.dictionary)}
    agreed |= {data.groups, data.time}
    if terms.agreement is not None:
        agreed |= {*terms.agreement.classes, *(column.name for column in terms.agreement.columns)}
    agreed |= {column.name for column in file.rename_columns or ()}
    return agreed | {file.target, *(file.categorical or ()), *(file.numeric or ())} - {""}


def check_terms(file: SiloFile, terms: Terms) -> None:
    """Raise Refused for terms that ask something of a table that the silo's own file does not allow."""
    data, where = terms.config.data, f"silo {file.silo!r}: {file.path or 'silo.toml'}"
    if not file.is_table:
        return
    if file.target is None:
        raise Refused(f"{where}: data.target is missing: expected the column to predict", "target")
    if data.target not in (None, file.target):
        raise Refused(f"{where} has data.target = {file.target!r}, the server asks for {data.target!r}", "target",
                      data.target or "")  # fmt: skip
    if data.ood.global_source:
        raise Refused(f"{where}: the server asks for {data.ood.global_source!r}, beside the silo's table", "outside")
    if why := lacks_classes(data):
        raise Refused(f"{where}: the server's configuration: {why}", "classes")
    if file.dictionary is not None and file.dictionary != data.dictionary:
        names = sorted({column.name for column in {*file.dictionary} ^ {*data.dictionary}}) or ["their order"]
        raise Refused(f"{where} has another data.dictionary than the server, in {', '.join(names)}", "dictionary")
    asked = [*data.categorical, *data.declared.of_type("category")]
    if terms.agreement is not None:
        asked += [column.name for column in terms.agreement.columns if column.categories is not None]
    lacking = [name for name in dict.fromkeys(asked) if name not in (*(file.categorical or ()), data.target)]
    if lacking:
        listed = ", ".join(map(repr, lacking))
        told = f"the server asks for the categories of {listed}; name them in data.categorical to allow that"
        raise Refused(f"{where}: {told}", "categorical", lacking[0])


def lacks_classes(data: DataSettings) -> str:
    """Return what `data.classes` lacks for a federation of tables; "" if nothing."""
    example = 'such as data.classes = ["healthy", "ill"]'
    if not data.classes:
        return f"data.classes is missing: expected what each class means, {example}"
    if all(number(name, ".") is not None for name in data.classes):
        return (
            f"data.classes = {list(data.classes)} are codes, which may mean different things at different silos: "
            f"expected what each means, {example}; each silo's silo.toml has its codes for them in [data.label_codes]"
        )
    return ""


def check_federation(data: DataSettings) -> None:
    """Raise ConfigurationError for a new federation of tables whose classes are not named."""
    if data.source == "on_site" and data.target is not None and (why := lacks_classes(data)):
        raise ConfigurationError(why, "data.classes")


def check_usable(silo: Silo, classes: tuple[str, ...], batch_size: int) -> None:
    """Raise Refused for a silo that cannot train, with the message of `Silos.check`."""
    try:
        Silos((silo,), classes).check(batch_size)
    except DataError as error:
        raise Refused(str(error), "training") from None


def check_counts(silos: Silos, file: SiloFile) -> None:
    """Raise Refused if a silo would report fewer than `LEAST` rows of a split, or of a class or a subgroup in it."""
    for silo, split in product(silos, SPLITS):
        counts = torch.bincount(getattr(silo, split).y, minlength=len(silos.classes))
        check_count(split, counts.tolist(), silos.classes, file)
        if split in silo.subgroups:
            known = silo.subgroups[split][silo.subgroups[split] >= 0]
            names = silos.subgroup_names
            check_count(split, known.bincount(minlength=len(names)).tolist(), names, file, "subgroup")


def check_count(split: str, counts: Sequence[int], names: tuple[str, ...], file: SiloFile, kind: str = "class") -> None:
    """Check one split, given the rows of each class or subgroup. Others do not learn which: for a split of one row the
    class is its label.
    """
    few = [name for name, count in zip(names, counts, strict=True) if 0 < count < LEAST]
    if few and not file.small_counts:
        allow = f"set data.small_counts = true in {file.path or 'silo.toml'} to allow that"
        raise Refused(
            f"silo {file.silo!r}: the split {split!r} has fewer than {LEAST} rows of {kind} {few[0]!r}; {allow}",
            "small counts",
        )
