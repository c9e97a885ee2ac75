"""Commands on finished runs: `caveat predict`, `caveat evaluate`, `caveat export`, `caveat join`, `caveat report`."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from .console import reported, say_lacking, write_file
from .options import Device, ModelOptions, Plugins, Quiet, RunArgument


def predict(
    folder: RunArgument,
    inputs: Annotated[
        str, typer.Argument(metavar="INPUT", help="A table, an npz file, an image, or a folder of images.")
    ],
    silo: Annotated[str, typer.Option(metavar="NAME", help="Silo whose model predicts.")],
    model: ModelOptions = None,
    out: Annotated[str, typer.Option(metavar="FILE.csv", help="Output file, or - for standard output.")] = "-",
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write an HTML page about the predictions.")
    ] = None,
    device: Device = None,
    plugins: Plugins = None,
) -> None:
    """Predict with a silo's model from a finished run.

    RUN is the folder of a finished run (made on the command line or in Python), or a silo's stored copy of a federated
    model. The command needs only this folder, which may be moved to any path. A table is read in the format that the
    silo declared for its own table (decimal mark, units), and the command prints this format.

    The output is in csv format, with a row per input. docs/reference/commands.md describes all columns, for example:

    \b
    - label, probabilities and uncertainties; for a quantity or a time instead:
      predicted values, interval and spread
    - familiarity, nearness, sureness and typicality: p-values of the input
    - decision: the model that gave the label, or "abstain"
    - reason: the reason not to rely on the label, or empty
    - set: the prediction set, if uncertainty.set_coverage is set
    - decides: "model" or "person", by the advice of the run's report
    - file, for images: the file name
    - input_note, for tables: warnings about the row and about the whole table

    The command also prints how many inputs the model decides, and how many a person decides for which reason, such as
    an uncertainty above the limit that the run's report advises. It also prints warnings about the run's result.

    With the option --report, the command also writes a page. The page shows the decisions, the p-values beside those
    of the silo's own inputs, the most unusual inputs with their values, and columns that shifted. For a quantity, it
    also shows the inputs with the narrowest and the widest intervals.
    """
    with reported(named=True):
        from ..api import load
        from ..data import noted_inputs
        from ..html.predictions import render, sentence
        from .prediction_output import has_images, mostly_missing, predicted_inputs, prediction_rows, table_cells

        finished = load(folder, model=model, device=device or "cpu")
        preparation = finished.preparation
        _check_silo(silo, preparation.names)
        found = noted_inputs(inputs, preparation, silo)
        _tell_format(inputs, preparation, silo)
        prediction = finished.predictor(silo)(found)
        page = predicted_inputs(prediction, found, finished, silo, inputs)
        _warn(page)
        notes = batch_notes(prediction) if preparation.encoders else ()
        names = [preparation.subgroup_names[of] if of >= 0 else "" for of in _subgroups(prediction)]
        others = {"decides": page.decides, "file": found.files, "subgroup": names, **_ids(inputs, finished, silo)}
        _write_csv(prediction_rows(prediction, preparation.classes, {**others, "input_note": notes}), out)
        typer.echo(sentence(page).striptags(), err=True)
        if report is not None:
            command = shlex.join(["caveat", *sys.argv[1:]])
            cells, target = table_cells(finished, silo, inputs), getattr(finished.experiment.spec.data, "target", None)
            labelled = target in cells and not page.in_sample
            test = ["caveat", "evaluate", str(folder), inputs if labelled else "FILE", "--silo", silo]
            test += ["--target", str(target)] * bool(target)
            page = replace(page, cells=cells, command=command, evaluating=shlex.join(test), labelled=labelled,
                           own_images=has_images(finished.folder, silo),
                           missing_there=mostly_missing(preparation.encoders.get(page.namesake)))  # fmt: skip
            write_file(render(page), report, "--report")


def evaluate(
    folder: RunArgument,
    inputs: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A table, an npz file with arrays x and y, or a folder with a folder of images per class.",
        ),
    ],
    silo: Annotated[str, typer.Option(metavar="NAME", help="Silo whose model predicts.")],
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column with the labels (tables only).")] = None,
    model: ModelOptions = None,
    device: Device = None,
    plugins: Plugins = None,
) -> None:
    """Evaluate a finished run on labeled inputs.

    The command prints a JSON object with the metrics that summary.json contains for test splits and, for classes, the
    confusion matrix, whose rows are the labels. It writes no files.
    """
    with reported(named=True):
        import json

        from ..api import load
        from ..data import labeled_inputs
        from ..files import record_of
        from ..files.schema import Summary
        from .prediction_output import of_own

        finished = load(folder, model=model, device=device or "cpu")
        _check_silo(silo, finished.preparation.names)
        found = labeled_inputs(inputs, finished.preparation, silo, target)
        _tell_format(inputs, finished.preparation, silo)
        if told := of_own(inputs, finished, silo, record_of(finished.folder / "summary.json", Summary)):
            typer.echo(f"warning: {told}", err=True)
        typer.echo(json.dumps(finished.evaluate(found.inputs, found.y, silo), indent=1))


def _ids(inputs: str, run: Any, silo: str) -> dict[str, list[str]]:
    """Return the column of a table that `data.groups` declares, such as the patient of each row, by its name; return
    an empty dictionary if there is no such column."""
    from ..data.sources.base import locate
    from ..data.tables.files import read_sheet

    encoder, settings = run.preparation.encoders.get(silo), run.experiment.spec.data
    if encoder is None or settings is None or settings.groups is None:
        return {}
    path = locate(inputs)
    sheet = read_sheet(path, encoder.csv_format.of(path.stem, silo).separator)
    return {settings.groups: list(sheet.column(settings.groups))} if settings.groups in sheet.columns else {}


def _check_silo(silo: str, names: Sequence[str]) -> None:
    from ..core import ConfigurationError
    from ..core.errors import one_of

    if silo not in names:
        raise ConfigurationError(f"--silo {silo}: no such silo{one_of(silo, names)}")


def _tell_format(inputs: str, preparation: Any, silo: str) -> None:
    """Print how the silo's declarations change the numbers of a table, because numbers in another format would be read
    wrongly."""
    encoder = preparation.encoders.get(silo)
    if encoder is not None and (changes := encoder.csv_format.of(Path(inputs).stem, silo).conversions):
        from ..core.text import escaped

        told = f"{inputs} is read in the format that silo {silo} declared: {', '.join(changes)}"
        typer.echo(escaped(told), err=True)


def _warn(page: Any) -> None:
    """Print the run's warnings that concern the silo, and a warning about inputs whose probabilities are NaN."""
    from ..core.text import escaped, listed, plural

    lines = [*page.warnings, *([page.in_sample] if page.in_sample else [])]
    if missing := (~page.prediction.probs.isfinite().all(-1)).nonzero().flatten().tolist():
        rows = listed([str(row) for row in missing], MOST_ROWS)
        lines.append(
            f"The probabilities of {plural(len(missing), 'input')} are NaN, so these inputs have no label and "
            f"the decision is to abstain: rows {rows}."
        )
    for line in lines:
        typer.echo(escaped(f"warning: {line}"), err=True)


MOST_ROWS = 10
"""Maximum number of rows that a warning lists."""


RATE = 0.05
"""False discovery rate among the rows of a table that `batch_notes` calls unfamiliar."""


def batch_notes(prediction: Any) -> list[str]:
    """Print which rows of a table are unfamiliar at the false discovery rate `RATE`, unless the table has few rows.

    Return a note per row. Notes also state whether the row is unfamiliar, and which columns are unlike the silo's own.
    """
    from ..core.text import listed, plural
    from ..data.tables.drift_reference import FEWEST

    found = prediction.unfamiliar_at(RATE).nonzero().flatten().tolist() if len(prediction) >= FEWEST else []
    if found:
        rows = f"{len(found)} of {plural(len(prediction), 'row')} are unfamiliar at a false discovery rate of"
        typer.echo(f"{rows} {RATE:.0%}: {listed(list(map(str, found)), MOST_ROWS)}", err=True)
    marked = set(found)
    columns = [f"over all rows, column {each.name} is unlike the silo's own" for each in prediction.unlike_columns]
    return [
        "; ".join(filter(None, [note, "unfamiliar" * (i in marked), *columns]))
        for i, note in enumerate(prediction.input_notes)
    ]


def _subgroups(prediction: Any) -> list[int]:
    return [] if prediction.subgroup is None else prediction.subgroup.tolist()


def _write_csv(text: str, out: str) -> None:
    if out == "-":
        typer.echo(text, nl=False)
    else:
        write_file(text, Path(out), "--out")


def export(
    folder: RunArgument,
    silo: Annotated[str, typer.Option(metavar="NAME", help="Silo whose model is exported.")],
    format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="Format of the output: onnx, torch or mlflow.")
    ] = "onnx",
    out: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Output file or folder.  [default: RUN-NAME.onnx, .pt2 or .mlflow]"),
    ] = None,
    training_features: Annotated[
        bool,
        typer.Option("--training-features", help='Include features of training inputs, for the alarm "novel".'),
    ] = False,
    model: ModelOptions = None,
    plugins: Plugins = None,
) -> None:
    """Export a silo's model to a file that works without caveat.

    The file (for MLflow, a folder) contains the preprocessing, the model, the temperature, familiarity, the thresholds
    and the decision to abstain. It predicts like `caveat predict`, except for the alarm "novel". This alarm needs
    features of the silo's training inputs, which the file contains only with the option --training-features. The
    command also writes a model card next to the file.
    """
    with reported(named=True):
        from ..api import load
        from ..export.export_model import card_of, export_model

        finished = load(folder, model=model)
        path = export_model(finished, silo, format, out, training_features)
        typer.echo(f"model: {path}\ncard:  {card_of(path)}")


ALARMS = ("unfamiliar", "novel", "unsure")
SHOWN = ("accuracy", "nll", "ece", "entropy", "epistemic", *ALARMS)
"""The metrics of a silo that are printed before and after joining, for classes."""
NUMBERS = ("mae", "rmse", "crps", "c_index", "integrated_brier", "interval_coverage", "spread", *ALARMS)
"""The metrics that are printed for a quantity or a time instead."""


def join(
    folder: RunArgument,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[DATA]",
            help="Data of the silo, written like data.source.  [default: the silos in federation.newcomers]",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to create or to continue.  [default: RUN-joined]")
    ] = None,
    silo: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the silo.  [default: the name of its file or folder]")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=1_000_000,
            metavar="N",
            help="Number of training rounds at the silo.  [default: 5, or fewer if RUN has fewer]",
        ),
    ] = None,
    model: ModelOptions = None,
    plugins: Plugins = None,
    quiet: Quiet = False,
) -> None:
    """Add a silo to a finished federation.

    The run does not change, and the silo sends nothing. The method's local parameters, the temperature, familiarity
    and the thresholds are fitted on the silo's own splits. DIR becomes a run folder with only the new silo, for the
    commands predict, evaluate, export and report. If the command is interrupted, repeat it to continue.
    """
    with reported(named=True):
        import json

        from ..api import join as join_silos
        from ..api import load
        from ..html.run.page import write_report
        from ..runs.finished_run import JOINED
        from ..runs.joining import name_of, own_silos_of
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
    from ..core.text import escaped

    names = {each["name"]: each["test"] for each in summary["silos"]}
    classes = any("accuracy" in after for after in names.values())
    width = 11 if classes else 17
    lines = [f"{'silo':<20} {'metric':<{width}} {'before':>8} {'after':>8}"]
    for name, after in names.items():
        for metric in SHOWN if classes else NUMBERS:
            was, now = before[name].get(metric), after.get(metric)
            if was is not None and now is not None:
                lines.append(escaped(f"{name:<20} {metric:<{width}} {was:>8.3f} {now:>8.3f}"))
    return lines


def report(
    folder: RunArgument,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Output file.  [default: RUN/report.html]")
    ] = None,
) -> None:
    """Write the HTML report of a run or a comparison.

    The report is a single page that can be read offline. The command also works for unfinished runs.
    """
    with reported(named=True):
        from ..config import reading
        from ..files import read_run
        from ..html.run.page import write_page

        if (folder / "grid.json").exists():
            from ..analysis.compare.runner import opened, write

            with reading():
                typer.echo(write(opened(folder), out))
        else:
            found = read_run(folder)
            typer.echo(write_page(found, out or folder / "report.html"))
            say_lacking(found)
