"""What a silo refuses by its own file, and what the others are told of it: silo, rule, and a name that is agreed on.

What others are told is written here and holds no value: the sentences below, the silo's name, and the name of a column
or class only where the federation's configuration or the silo's own file has it already.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import torch

from .._version import __version__
from ..core import ConfigurationError, DataError, Refused, Silo, SiloId
from ..core.errors import MissingError
from ..core.silo import SPLITS
from ..data import DataSettings, Silos
from ..data.tables.columns import number
from ..data.tables.dictionary import DictionaryColumn
from .silo.silo_file import SiloFile
from .terms import Terms

LEAST = 5
"""Fewer rows than this are a count that may point at persons."""
WHERE = "silo.toml, [data]"
RULES: Mapping[str, str] = {
    "classes": "a federation of tables needs data.classes in config.toml: what each class means, in words",
    "target": f"the column to predict is the one that the silo names, {WHERE} target, and no other",
    "labels": "labels are those of data.classes; what other codes mean is declared in silo.toml, [data.label_codes]",
    "categorical": f"the silo tells categories only of columns that it allows, {WHERE} categorical",
    "columns": "the columns are those of data.dictionary; the silo's names for them are in silo.toml, "
    "[data.rename_columns]",
    "dictionary": f"the data dictionary is the silo's own copy, {WHERE} dictionary",
    "outside": "of a silo with a table nothing but that is read, and no data.ood.global_source",
    "unit": "numbers are in the unit of data.dictionary, or silo.toml, [data.rename_columns], has a factor",
    "range": "values are in the range of data.dictionary, or declared to be missing where they are not",
    "values": "values are those of data.dictionary, or declared to be missing where they are not",
    "reading": "a column cannot be read as it is declared",
    "named": f"columns that the silo's own file names, {WHERE}, are in its table, and in any dictionary",
    "names": "texts that look like names of persons or free text are told to nobody: such a column is left out",
    "unlabelled": "every row has a label",
    "source": f"its data are where its own file says, {WHERE} source",
    "file": "tables are csv files in UTF-8 with a header and rows of its length, or parquet files",
    "training": "every split has rows, and that of training two classes and a batch",
    "small counts": f"counts from 1 to {LEAST - 1} of rows leave only where the silo allows it, {WHERE} small_counts",
}
"""By rule, what was expected and where it is declared."""
NAMING = ("data.target", "data.categorical", "data.numeric", "data.rename_columns")
"""The keys that name columns."""


class ToldRefusal(DataError):
    """What others may know of a refusal: its text is safe by construction."""


def check_version(silo: SiloId, text: str) -> None:
    """Raises ToldRefusal unless terms are those of a server of this version."""
    with suppress(ValueError, TypeError, AttributeError):  # what are no terms at all is for who reads them
        if (theirs := json.loads(text).get("version")) != __version__:
            raise ToldRefusal(other_version(silo, __version__, theirs))


def other_version(silo: SiloId, own: object, server: object) -> str:
    """A sentence about versions of a silo and a server that differ, or of which one is not known."""
    silos, servers = (each[:20] if isinstance(each, str) and each else "of no version" for each in (own, server))
    return f"silo {silo!r} has caveat {silos} and the server {servers}: install the same version on both"


@contextmanager
def told_by_rule(file: SiloFile, terms: Terms) -> Iterator[None]:
    """Within it, what the silo refuses by a rule is raised as what others may know, with the whole as its cause."""
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
    """Names that everybody knows, or that the silo's own file allows."""
    data = terms.config.data
    agreed = {data.target, *data.classes, *data.categorical, *data.numeric, *(each.name for each in data.dictionary)}
    if terms.agreement is not None:
        agreed |= {*terms.agreement.classes, *(column.name for column in terms.agreement.columns)}
    agreed |= {column.name for column in file.rename_columns or ()}
    return agreed | {file.target, *(file.categorical or ()), *(file.numeric or ())} - {""}


def check_terms(file: SiloFile, terms: Terms) -> None:
    """Raises Refused for terms that ask of a table what the silo's own file does not allow."""
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
        names = _differing(file.dictionary, data.dictionary)
        raise Refused(f"{where} has another data.dictionary than the server, in {', '.join(names)}", "dictionary")
    asked = [*data.categorical, *data.declared.of_type("category")]
    if terms.agreement is not None:
        asked += [column.name for column in terms.agreement.columns if column.categories is not None]
    lacking = [name for name in dict.fromkeys(asked) if name not in (*(file.categorical or ()), data.target)]
    if lacking:
        listed = ", ".join(map(repr, lacking))
        told = f"the server asks for the categories of {listed}; name them in data.categorical to allow that"
        raise Refused(f"{where}: {told}", "categorical", lacking[0])


def _differing(ours: Sequence[DictionaryColumn], theirs: Sequence[DictionaryColumn]) -> list[str]:
    """The columns that two dictionaries do not both have alike; "their order" where that alone differs."""
    return sorted({column.name for column in {*ours} ^ {*theirs}}) or ["their order"]


def lacks_classes(data: DataSettings) -> str:
    """What a federation of tables lacks in `data.classes`; "" if nothing."""
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
    """Raises ConfigurationError for a new federation of tables whose classes are not named."""
    if data.source == "on_site" and data.target is not None and (why := lacks_classes(data)):
        raise ConfigurationError(why, "data.classes")


def check_usable(silo: Silo, classes: tuple[str, ...], batch_size: int) -> None:
    """Raises Refused for a silo that cannot train, as `Silos.check` says it."""
    try:
        Silos((silo,), classes).check(batch_size)
    except DataError as error:
        raise Refused(str(error), "training") from None


def check_counts(silo: Silo, classes: tuple[str, ...], file: SiloFile) -> None:
    """Raises Refused where a silo would tell of fewer than `LEAST` rows of a split or of a class in it."""
    for split in SPLITS:
        counts = torch.bincount(getattr(silo, split).y, minlength=len(classes))
        check_count(split, counts.tolist(), classes, file)


def check_count(split: str, counts: Sequence[int], classes: tuple[str, ...], file: SiloFile) -> None:
    """The same of one split, of which the rows of each class are given. Others are not told the class: of a split of
    one row that would be its label."""
    if file.small_counts:
        return
    few = [name for name, count in zip(classes, counts, strict=True) if 0 < count < LEAST]
    if few or 0 < sum(counts) < LEAST:
        of, where = f" of class {few[0]!r}" if few else "", file.path or "silo.toml"
        allow = f"set data.small_counts = true in {where} to allow that"
        raise Refused(
            f"silo {file.silo!r}: the split {split!r} has fewer than {LEAST} rows{of}; {allow}", "small counts"
        )
