"""`caveat data`: what a source holds, before any training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import reported, show


def data(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A file, a folder, or a source such as npz:a.npz,b.npz.")],
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

    Samples per silo or domain and per class, and what each column of a table will become, before any training.
    """
    with reported(named=True):
        from ..config import read_dictionary
        from ..core import DataError
        from ..data import survey
        from .output import column_table, refusals, survey_table

        found = survey(
            path, target, silo, categorical=tuple(categorical or ()), numeric=tuple(numeric or ()), decimal=decimal,
            separator=separator and separator.replace("\\t", "\t"),
            dictionary=() if dictionary is None else read_dictionary(dictionary),
        )  # fmt: skip
        show(survey_table(found))
        if "columns" in found:
            typer.echo()
            show(column_table(found))
            if refused := refusals(found):
                raise DataError(refused)
