"""Refusals by a silo's own rules, and what others learn: the silo, the rule, and a name that is agreed on.

What others learn contains no values: the sentences below, the silo's name, and the name of a column or class only if it
is in the federation's configuration or in the silo's own file.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import product

import torch

from .._version import __version__
from ..config import Config
from ..core import ConfigurationError, DataError, Refused, Silo, SiloId
from ..core.errors import MissingError
from ..core.silo import SPLITS
from ..data import DataSettings, Silos
from ..data.shared_schema import SharedSchema
from ..data.tables.cell_formats import number
from ..data.tables.reading_settings import NUMERIC
from .request_terms import Terms
from .silo.silo_file import SiloFile

LEAST = 5
"""Counts below this may identify persons."""
WHERE = "silo.toml, [data]"
RULES: Mapping[str, str] = {
    "classes": "a federation of tables needs data.classes in config.toml: the meaning of each class, in words",
    "target": f"the column to predict must be the one that the silo names, {WHERE} target",
    "bars": "under [privacy] or federation.secure, a quantity needs data.range in config.toml",
    "labels": "labels must be in data.classes; declare other codes in silo.toml, [data.label_codes]",
    "categorical": f"the silo sends categories only for columns that it allows, {WHERE} categorical",
    "columns": "columns must be in data.dictionary; declare the silo's names in silo.toml, [data.rename_columns]",
    "dictionary": f"the data dictionary must be the same as the silo's own copy, {WHERE} dictionary",
    "outside": "a silo with a table reads no other data, such as data.ood.global_source",
    "unit": "numbers must be in the unit of data.dictionary, or have a factor in silo.toml, [data.rename_columns]",
    "range": "values must be in the range of data.dictionary or be declared as missing",
    "values": "values must be in data.dictionary or be declared as missing",
    "reading": "a column cannot be read as it is declared",
    "named": f"columns that the silo's own file names, {WHERE}, must be in its table and in the dictionary, if any",
    "names": "texts that look like names of persons or free text never leave the silo: remove such a column",
    "unlabelled": "every row must have a label, and a group and a time if such columns are declared",
    "source": f"its data must be in the place that its own file names, {WHERE} source",
    "file": "tables must be csv files in UTF-8 with a header and rows of equal length, or parquet files",
    "training": "every split must have rows, and the training split two classes and enough rows for a batch",
    "small counts": f"counts of 1 to {LEAST - 1} rows leave the silo only if it allows that, {WHERE} small_counts",
}
"""The expectation of each rule, and where it is declared."""
NAMING = ("data.target", "data.categorical", "data.numeric", "data.rename_columns", "data.groups", "data.time")
"""The keys that name columns."""


class ToldRefusal(DataError):
    """A refusal that others may know, because its text contains no data."""


def check_version(silo: SiloId, text: str) -> None:
    """Raise ToldRefusal unless the terms come from a server with this version."""
    with suppress(ValueError, TypeError, AttributeError):  # invalid terms are reported when they are parsed
        if (theirs := json.loads(text).get("version")) != __version__:
            raise ToldRefusal(other_version(silo, __version__, theirs))


def other_version(silo: SiloId, own: object, server: object) -> str:
    """Return a sentence about different or unknown versions of a silo and a server."""
    silos, servers = (each[:20] if isinstance(each, str) and each else "without a version" for each in (own, server))
    return f"silo {silo!r} has caveat {silos}, but the server has {servers}: install the same version on both"


@contextmanager
def told_by_rule(file: SiloFile, terms: Terms) -> Iterator[None]:
    """Convert refusals within this context to refusals that others may know, with the full error as the cause."""
    try:
        yield
    except Refused as error:
        known = error.column in _known(file, terms)
        about = f", {error.column!r}" if known else ", a column that is not agreed on" if error.column else ""
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
    """Raise Refused for terms that need something of a table that the silo's own file does not allow."""
    data, where = terms.config.data, f"silo {file.silo!r}: {file.path or 'silo.toml'}"
    if why := lacks_range(terms.config):
        raise Refused(f"{where}: the server's configuration is invalid: {why}", "bars")
    if not file.is_table:
        return
    if file.target is None:
        raise Refused(f"{where}: data.target is missing, expected the column to predict", "target")
    if data.target not in (None, file.target):
        raise Refused(f"{where} has data.target = {file.target!r}, but the server asks for {data.target!r}", "target",
                      data.target or "")  # fmt: skip
    if data.ood.global_source:
        raise Refused(f"{where}: the server asks for {data.ood.global_source!r}, not only the silo's table", "outside")
    if why := lacks_classes(data):
        raise Refused(f"{where}: the server's configuration is invalid: {why}", "classes")
    if file.dictionary is not None and file.dictionary != data.dictionary:
        names = sorted({column.name for column in {*file.dictionary} ^ {*data.dictionary}}) or ["their order"]
        told = f"data.dictionary differs from the server's in {', '.join(names)}"
        raise Refused(f"{where}: {told}, expected the same dictionary", "dictionary")
    asked = [*data.categorical, *data.declared.of_type("category")]
    if terms.agreement is not None:
        asked += [column.name for column in terms.agreement.columns if column.categories is not None]
    lacking = [name for name in dict.fromkeys(asked) if name not in (*(file.categorical or ()), data.target)]
    if lacking:
        listed = ", ".join(map(repr, lacking))
        told = f"the server asks for the categories of {listed}; to allow this, name the columns in data.categorical"
        raise Refused(f"{where}: {told}", "categorical", lacking[0])


def lacks_classes(data: DataSettings) -> str:
    """Return what is wrong with `data.classes` for a federation of tables; "" if nothing is."""
    example = 'such as data.classes = ["healthy", "ill"]'
    if data.predict in NUMERIC:
        return ""
    if not data.classes:
        return f"data.classes is missing, expected the meaning of each class, {example}"
    if all(number(name, ".") is not None for name in data.classes):
        return (
            f"data.classes = {list(data.classes)} are codes, which may mean different things at different silos: "
            f"expected their meanings, {example}; each silo.toml maps the silo's codes to them in [data.label_codes]"
        )
    return ""


def lacks_range(config: Config) -> str:
    """Return why a quantity's bars cannot be fitted to the targets of silos; "" if they can, or are declared."""
    protected = {"[privacy]": config.privacy.clip_norm is not None, "federation.secure": config.federation.secure}
    if config.data.predict not in NUMERIC or config.data.range is not None or not any(protected.values()):
        return ""
    return (
        "data.range is missing: without it, bars are fitted to counts of each silo's targets, which "
        f"{' and '.join(key for key, on in protected.items() if on)} cannot protect; set the lowest and the highest "
        "value, for example range = [0, 120]"
    )


def check_federation(config: Config) -> None:
    """Raise ConfigurationError for a new federation of tables whose classes are not named, or of an unprotected
    quantity."""
    data = config.data
    if data.source == "on_site" and data.target is not None and (why := lacks_classes(data)):
        raise ConfigurationError(why, "data.classes")
    if data.source == "on_site" and (why := lacks_range(config)):
        raise ConfigurationError(why, "data.range")


def check_usable(silo: Silo, agreed: SharedSchema, batch_size: int) -> None:
    """Raise Refused for a silo that cannot train, with the message of `Silos.check`."""
    try:
        Silos((silo,), agreed.classes, target=agreed.quantity).check(batch_size)
    except DataError as error:
        raise Refused(str(error), "training") from None


def check_counts(silos: Silos, file: SiloFile) -> None:
    """Raise Refused if a silo would report fewer than `LEAST` rows of a split, or of a class or a subgroup in it."""
    for silo, split in product(silos, SPLITS):
        labels = getattr(silo, split).y.remainder(
            len(silos.classes)
        )  # the labels of censored times are above those of the bars
        counts = torch.bincount(labels, minlength=len(silos.classes))
        check_count(split, counts.tolist(), silos.classes, file)
        if split in silo.subgroups:
            known = silo.subgroups[split][silo.subgroups[split] >= 0]
            names = silos.subgroup_names
            check_count(split, known.bincount(minlength=len(names)).tolist(), names, file, "subgroup")


def check_grid(grid: Sequence[float], file: SiloFile) -> None:
    """Raise Refused for counts of a quantity's targets on a server's grid, unless small counts may leave the silo: even
    if all counts are large, counts on two grids can differ by single targets."""
    if grid and not file.small_counts:
        raise Refused(
            f"silo {file.silo!r}: without data.range, the server counts targets in cells of its choice, which reveals "
            f"single targets; set data.small_counts = true in {file.path or 'silo.toml'} to allow that",
            "small counts",
        )


def check_count(split: str, counts: Sequence[int], names: tuple[str, ...], file: SiloFile, kind: str = "class") -> None:
    """Raise Refused if a split has too few rows of a class or a subgroup; `counts` has the rows of each. Others do not
    learn which one is too small: in a split of one row, the class is the row's label."""
    few = [name for name, count in zip(names, counts, strict=True) if 0 < count < LEAST]
    if few and not file.small_counts:
        allow = f"set data.small_counts = true in {file.path or 'silo.toml'} to allow that"
        raise Refused(
            f"silo {file.silo!r}: the split {split!r} has fewer than {LEAST} rows of {kind} {few[0]!r}; {allow}",
            "small counts",
        )
