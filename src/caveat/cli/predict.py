"""`caveat predict`: what a finished run says of new inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .console import ModelOptions, Plugins, RunArgument, reported, say_unverified


def predict(
    folder: RunArgument,
    inputs: Annotated[str, typer.Argument(metavar="INPUT", help="An npz or csv file, an image, a folder of images.")],
    silo: Annotated[str, typer.Option(metavar="NAME", help="Whose model predicts.")],
    model: ModelOptions = None,
    out: Annotated[str, typer.Option(metavar="FILE.csv", help="Where to; - is standard output.")] = "-",
    plugins: Plugins = None,
) -> None:
    """Predict with a finished run, of the command line or of Python, or with what a silo keeps of a federation.

    Its folder is all that this takes, wherever it lies: of silos that took part no data are read.

    Writes a row per input: label, probabilities, uncertainties, in column familiarity the p-value of the input being
    like the silo's own, and the decision: whose model gave the label, or abstain, where the label is not to be relied
    on; with uncertainty.sets the set of classes; of a table also what is unlike training, in column input_note.
    """
    with reported(named=True):
        from ..api import load
        from ..config import one_of
        from ..core import ConfigurationError
        from ..data import noted_inputs

        finished = load(folder, model=model)
        say_unverified(folder)
        preparation = finished.preparation
        if silo not in preparation.names:
            raise ConfigurationError(f"--silo {silo}: no such silo{one_of(silo, preparation.names)}")
        prediction = finished.predictor(silo)(noted_inputs(inputs, preparation, silo))
        _write_csv(prediction, preparation.classes, out, noted=bool(preparation.encoders))


def _write_csv(prediction: Any, classes: tuple[str, ...], out: str, noted: bool) -> None:
    from .output import prediction_rows

    text = prediction_rows(prediction, classes, prediction.input_notes if noted else ())
    if out == "-":
        typer.echo(text, nl=False)
        return
    from ..core import ConfigurationError

    try:
        Path(out).write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise ConfigurationError(f"--out {out}: {error.strerror}") from None
