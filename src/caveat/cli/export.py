"""`caveat export`: a silo's model of a finished run as a file that needs no caveat."""

from pathlib import Path
from typing import Annotated

import typer

from .console import ModelOptions, Plugins, RunArgument, reported


def export(
    folder: RunArgument,
    silo: Annotated[str, typer.Option(metavar="NAME", help="Whose model.")],
    format: Annotated[str, typer.Option("--format", metavar="FORMAT", help="onnx, torch or mlflow.")] = "onnx",
    out: Annotated[Path | None, typer.Option(metavar="PATH", help="Where to [RUN-NAME.onnx, .pt2, .mlflow].")] = None,
    model: ModelOptions = None,
    plugins: Plugins = None,
) -> None:
    """Export a silo's model so that it abstains anywhere.

    One file (a folder for MLflow) with the preparation of inputs, the model, its temperature, familiarity, thresholds
    and decision, which answers as `caveat predict` does and needs no caveat; and a model card beside it.
    """
    with reported(named=True):
        from ..api import load
        from ..export.export_model import card_of, export_model

        finished = load(folder, model=model)
        path = export_model(finished, silo, format, out)
        typer.echo(f"model: {path}\ncard:  {card_of(path)}")
