"""`caveat predict` and `caveat evaluate`: what a finished run says of new inputs, and how right it is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from .console import Device, ModelOptions, Plugins, RunArgument, reported


def predict(
    folder: RunArgument,
    inputs: Annotated[str, typer.Argument(metavar="INPUT", help="An npz or csv file, an image, a folder of images.")],
    silo: Annotated[str, typer.Option(metavar="NAME", help="Whose model predicts.")],
    model: ModelOptions = None,
    out: Annotated[str, typer.Option(metavar="FILE.csv", help="Where to; - is standard output.")] = "-",
    device: Device = None,
    plugins: Plugins = None,
) -> None:
    """Predict with a finished run (made here or in Python), or with a silo's stored copy of a federated model.

    Needs only the run folder, wherever it is. For silos that took part, no data are read.

    Writes a row per input: label, probabilities, uncertainties, in column familiarity the p-value of the input being
    like the silo's own, and the decision: whose model gave the label, or abstain, where the label is not to be relied
    on; with uncertainty.set_coverage the set of classes; of a table also what is unlike training, in column input_note;
    of images the file, in column file.
    """
    with reported(named=True):
        from ..api import load
        from ..data import noted_inputs

        finished = load(folder, model=model, device=device or "cpu")
        preparation = finished.preparation
        _check_silo(silo, preparation.names)
        found = noted_inputs(inputs, preparation, silo)
        prediction = finished.predictor(silo)(found)
        _write_csv(prediction, preparation.classes, out, found.files, noted=bool(preparation.encoders))


def evaluate(
    folder: RunArgument,
    inputs: Annotated[
        str, typer.Argument(metavar="INPUT", help="An npz file with x and y, a table, or a folder of images per class.")
    ],
    silo: Annotated[str, typer.Option(metavar="NAME", help="Whose model predicts.")],
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="A table's column of labels.")] = None,
    model: ModelOptions = None,
    device: Device = None,
    plugins: Plugins = None,
) -> None:
    """Measure a finished run on inputs with labels that it has not seen.

    Prints a JSON object with the figures that summary.json has of test splits, and the confusion of classes, rows being
    labels. Nothing is written.
    """
    with reported(named=True):
        import json

        from ..api import load
        from ..data import labeled_inputs

        finished = load(folder, model=model, device=device or "cpu")
        _check_silo(silo, finished.preparation.names)
        found = labeled_inputs(inputs, finished.preparation, silo, target)
        typer.echo(json.dumps(finished.evaluate(found.inputs, found.y, silo), indent=1))


def _check_silo(silo: str, names: Sequence[str]) -> None:
    from ..core import ConfigurationError
    from ..core.errors import one_of

    if silo not in names:
        raise ConfigurationError(f"--silo {silo}: no such silo{one_of(silo, names)}")


def _write_csv(prediction: Any, classes: tuple[str, ...], out: str, files: Sequence[str], noted: bool) -> None:
    from .output import prediction_rows

    text = prediction_rows(prediction, classes, prediction.input_notes if noted else (), files)
    if out == "-":
        typer.echo(text, nl=False)
        return
    from ..core import ConfigurationError

    try:
        Path(out).write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise ConfigurationError(f"--out {out}: {error.strerror}") from None
