"""`caveat data`: what a source holds, before any training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import reported, show

if TYPE_CHECKING:
    from ..data.declared import DictionaryColumn


def data(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A file, a folder, a source such as npz:a.npz,b.npz, or the silo.toml of a silo."
        ),
    ],
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="csv: the column to predict.")] = None,
    silo: Annotated[str | None, typer.Option(metavar="COLUMN", help="csv: the column that names the silo.")] = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="csv: a column of codes of categories, or any text; repeatable."),
    ] = None,
    numeric: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="csv: a column of numbers, and nothing else; repeatable.")
    ] = None,
    decimal: Annotated[str, typer.Option(metavar="MARK", help="csv: the decimal mark.")] = ".",
    separator: Annotated[str | None, typer.Option(metavar="CHAR", help="csv: between values [by the header].")] = None,
    dictionary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="csv: a data dictionary, to see what it would refuse.")
    ] = None,
) -> None:
    """Show what a data source holds.

    Samples per silo or domain and per class, and what each column of a table will become, before any training. With the
    silo.toml of a silo: what it says of its table, read as a federation would read it.
    """
    with reported(named=True):
        from ..core import DataError
        from ..data import survey
        from .output import column_table, refusals, survey_table

        given: dict[str, Any] = {
            "target": target, "silo": silo, "categorical": tuple(categorical or ()), "numeric": tuple(numeric or ()),
            "decimal": decimal if decimal != "." else None, "separator": separator and separator.replace("\\t", "\t"),
        }  # fmt: skip
        declared = {key: value for key, value in given.items() if value}
        if path.endswith(".toml"):
            found = _own(Path(path), declared, dictionary)
        else:
            found = survey(path, dictionary=_columns(dictionary), **declared)
        show(survey_table(found))
        if "columns" in found:
            typer.echo()
            show(column_table(found))
            if refused := refusals(found):
                raise DataError(refused)


def _own(path: Path, declared: dict[str, Any], dictionary: Path | None) -> dict[str, Any]:
    """What a silo's own source holds, read as its silo.toml says."""
    from ..core import ConfigurationError
    from ..data import survey
    from ..federation.silo_file import OWN_KEYS, read_silo_file

    file = read_silo_file(path)
    if declared:
        raise ConfigurationError(f"--{next(iter(declared))}: {path} says how its table is read; leave the option out")
    if file.dictionary is not None and dictionary is not None:
        raise ConfigurationError(f"--dictionary {dictionary}: {path} names the silo's own copy; leave the option out")
    if not file.is_table:
        return survey(file.source)
    said = {key: value for key in OWN_KEYS if (value := getattr(file, key)) is not None}
    return survey(file.source, dictionary=file.dictionary or _columns(dictionary), **said)


def _columns(dictionary: Path | None) -> tuple[DictionaryColumn, ...]:
    from ..config import read_dictionary

    return () if dictionary is None else read_dictionary(dictionary)
