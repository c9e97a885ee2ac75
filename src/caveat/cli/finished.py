"""Commands on a finished run: `caveat predict`, `caveat evaluate`, `caveat export` and `caveat join`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from .console import Device, ModelOptions, Plugins, Quiet, RunArgument, reported, say_lacking


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


SHOWN = ("accuracy", "nll", "ece", "entropy", "epistemic", "unfamiliar")
"""The figures of a silo before and after."""


def join(
    folder: RunArgument,
    source: Annotated[
        str | None,
        typer.Argument(metavar="[DATA]", help="The silo's own, as data.source is written [federation.newcomers]."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="A new folder [RUN-joined].")] = None,
    silo: Annotated[str | None, typer.Option(metavar="NAME", help="What it is called [its file's name].")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=0, max=1_000_000, help="Of training, at the silo [5, or as many as RUN made].")
    ] = None,
    model: ModelOptions = None,
    plugins: Plugins = None,
    quiet: Quiet = False,
) -> None:
    """Add a silo to a finished federation. The run does not change, and the silo sends nothing.

    What the method keeps at a silo, temperature, familiarity and thresholds are fitted on the silo's own splits. DIR
    is a run's folder with the silo alone: predict, evaluate, export and report take it. The same command goes on with
    what was interrupted.
    """
    with reported(named=True):
        import json

        from ..api import join as join_silos
        from ..api import load
        from ..html.pages.run.page import write_report
        from ..runs.joining import JOINED, name_of, own_silos_of
        from ..runs.progress import on_terminal

        run = load(folder, model=model)
        silos = None if source is None else own_silos_of(run, source, silo or name_of(source))
        place = out or folder.with_name(f"{folder.name}-joined")
        joined = join_silos(run, silos, rounds=rounds, out=place, progress=on_terminal(quiet))
        before = json.loads((place / JOINED).read_text())["before"]
        for line in _lines(before, joined.summary):
            typer.echo(line)
        typer.echo(f"run:    {place}\nreport: {write_report(place)}")


def _lines(before: dict[str, Any], summary: dict[str, Any]) -> list[str]:
    """A line per silo and figure, before and after."""
    from ..core.text import escaped

    names = {each["name"]: each["test"] for each in summary["silos"]}
    lines = [f"{'silo':<20} {'figure':<11} {'before':>8} {'after':>8}"]
    for name, after in names.items():
        for figure in SHOWN:
            was, now = before[name].get(figure), after.get(figure)
            if was is not None and now is not None:
                lines.append(escaped(f"{name:<20} {figure:<11} {was:>8.3f} {now:>8.3f}"))
    return lines


def report(
    folder: RunArgument,
    out: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Where to [RUN/report.html].")] = None,
) -> None:
    """Write the report of a run or a comparison.

    One self-contained page, also of what is not finished.
    """
    with reported(named=True):
        from ..config import reading
        from ..files.run_folder import read_run
        from ..html.pages.run.page import write_page

        if (folder / "grid.json").exists():
            from ..analysis.compare.runner import opened, write

            with reading():
                typer.echo(write(opened(folder), out))
        else:
            found = read_run(folder)
            typer.echo(write_page(found, out or folder / "report.html"))
            say_lacking(found)
