"""`caveat data`: what a source holds, before any training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import Plugins, reported, show

if TYPE_CHECKING:
    from ..data.tables.dictionary import DictionaryColumn
    from ..federation.silo.start import JoiningCheck


def data(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A file, a folder, a source such as npz:a.npz,b.npz, or the silo.toml of a silo."
        ),
    ],
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="csv: the column to predict.")] = None,
    silo_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="csv: the column that names the silo.")
    ] = None,
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
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="silo.toml: the federation's config.toml, to check all that joining checks."),
    ] = None,
    plugins: Plugins = None,
) -> None:
    """Show what a data source holds.

    Samples per silo or domain and per class, and what each column of a table will become, before any training. With the
    silo.toml of a silo: what it says of its table, read as a federation would read it, then all that joining one would
    check; nothing is written or sent, and what could not be checked is said.
    """
    with reported(named=True):
        from ..core import ConfigurationError, DataError
        from ..data import survey
        from .output import column_table, refusals, survey_table

        given: dict[str, Any] = {
            "target": target, "silo_column": silo_column, "categorical": tuple(categorical or ()),
            "numeric": tuple(numeric or ()),
            "decimal": decimal if decimal != "." else None, "separator": separator and separator.replace("\\t", "\t"),
        }  # fmt: skip
        declared = {key: value for key, value in given.items() if value}
        joining = None
        if path.endswith(".toml"):
            joining = _joining(Path(path), declared, dictionary, config)
        elif config is not None:
            raise ConfigurationError(f"--config {config} is for the silo.toml of a silo, and {path} is none")
        found = survey(path, dictionary=_columns(dictionary), **declared) if joining is None else joining.survey()
        show(survey_table(found))
        if "columns" in found:
            typer.echo()
            show(column_table(found))
            if refused := refusals(found):
                raise DataError(refused)
        if joining is not None:
            unknown = joining.check(found)
            typer.echo("checked as when it joins a federation: nothing is refused")
            for line in unknown:
                typer.echo(f"not checked: {line}")


def _joining(path: Path, declared: dict[str, Any], dictionary: Path | None, config: Path | None) -> JoiningCheck:
    """What is known of a silo, and of the federation that it is to join."""
    from ..core import ConfigurationError
    from ..federation.silo.silo_file import read_silo_file
    from ..federation.silo.start import JoiningCheck, federation_of

    file = read_silo_file(path)
    if declared:
        raise ConfigurationError(
            f"--{next(iter(declared)).replace('_', '-')}: {path} says how its table is read; leave the option out"
        )
    if file.dictionary is not None and dictionary is not None:
        raise ConfigurationError(f"--dictionary {dictionary}: {path} names the silo's own copy; leave the option out")
    if config is not None and dictionary is not None:
        raise ConfigurationError(f"--dictionary {dictionary}: {config} has the dictionary; leave the option out")
    return JoiningCheck(file, None if config is None else federation_of(config), _columns(dictionary))


def _columns(dictionary: Path | None) -> tuple[DictionaryColumn, ...]:
    from ..config import read_dictionary

    return () if dictionary is None else read_dictionary(dictionary)
