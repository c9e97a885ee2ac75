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
        str, typer.Argument(metavar="INPUT", help="An npz or csv file, an image, or a folder of images.")
    ],
    silo: Annotated[str, typer.Option(metavar="NAME", help="Silo whose model predicts.")],
    model: ModelOptions = None,
    out: Annotated[str, typer.Option(metavar="FILE.csv", help="Output file; - is standard output.")] = "-",
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write a page about the predictions.")
    ] = None,
    device: Device = None,
    plugins: Plugins = None,
) -> None:
    """Predict with a finished run (made here or in Python), or with a silo's stored copy of a federated model.

    The command needs only the run folder, at any path. For silos that took part, it reads no data. It reads a table in
    the format that the silo declared for its own table (decimal mark, units), and prints this format.

    The output has a row per input: label, probabilities, uncertainties (for a quantity or a time: values, interval,
    spread), the p-values familiarity, nearness, sureness and typicality, the decision (which model gave the label, or
    abstain: do not rely on the label), the reason not to rely on the label, and in the column decides who decides the
    input by the advice of the run's report: model or person. With uncertainty.set_coverage, it also has the prediction
    set. For tables, it also has the column of data.groups, if declared, and warnings about the row
    and about the table as a whole in the column input_note; for images, it also has the file name. The command prints
    how many inputs a person and the model decide, by reason and by the limit of uncertainty that the run's report
    advises, and warnings about the run's result. With --report, it also writes a page: the decisions, the p-values next
    to the p-values of the silo's own inputs, the most unusual inputs with their values (for a quantity also the
    narrowest and the widest intervals), and columns that shifted.
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
        str, typer.Argument(metavar="INPUT", help="An npz file with x and y, a table, or a folder of images per class.")
    ],
    silo: Annotated[str, typer.Option(metavar="NAME", help="Silo whose model predicts.")],
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="Label column of a table.")] = None,
    model: ModelOptions = None,
    device: Device = None,
    plugins: Plugins = None,
) -> None:
    """Evaluate a finished run on labeled inputs.

    Prints a JSON object with the metrics that summary.json has for test splits, and the confusion matrix (rows are
    labels). Writes no files.
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
    """Return the column of a table that `data.groups` declares, such as the patient of each row, if there is one."""
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
    """Print how the silo's declarations change the numbers of a table: in another format, they would be wrong."""
    encoder = preparation.encoders.get(silo)
    if encoder is not None and (changes := encoder.csv_format.of(Path(inputs).stem, silo).conversions):
        from ..core.text import escaped

        told = f"{inputs} is read in the format that silo {silo} declared: {', '.join(changes)}"
        typer.echo(escaped(told), err=True)


def _warn(page: Any) -> None:
    """Print the run's warnings that concern the silo, and one about inputs without probabilities."""
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
"""False discovery rate of the rows of a table that are called unfamiliar."""


def batch_notes(prediction: Any) -> list[str]:
    """Print which rows of a table are unfamiliar at a false discovery rate; return the notes of all rows, including
    this and the columns that are unlike the silo's own. Prints nothing for few rows.
    """
    from ..core.text import listed, plural
    from ..data.tables.drift_reference import FEWEST

    found = prediction.unfamiliar_at(RATE).nonzero().flatten().tolist() if len(prediction) >= FEWEST else []
    if found:
        rows = f"{len(found)} of {plural(len(prediction), 'row')} are unfamiliar at a false discovery rate of"
        typer.echo(f"{rows} {RATE:.0%}: {listed(list(map(str, found)), MOST_ROWS)}", err=True)
    marked = set(found)
    columns = [f"column {each.name} of all rows unlike the silo's" for each in prediction.unlike_columns]
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
        str, typer.Option("--format", metavar="FORMAT", help="Output format: onnx, torch or mlflow.")
    ] = "onnx",
    out: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Output path.  [default: RUN-NAME.onnx, .pt2 or .mlflow]")
    ] = None,
    training_features: Annotated[
        bool, typer.Option("--training-features", help="Include features of training inputs, for the alarm novel.")
    ] = False,
    model: ModelOptions = None,
    plugins: Plugins = None,
) -> None:
    """Export a silo's model, with its decision to abstain, to a file that works without caveat.

    Writes one file (a folder for MLflow) with preprocessing, model, temperature, familiarity, thresholds and decision.
    It predicts like `caveat predict`, except for the alarm novel, which needs features of the silo's training inputs:
    by default the file does not contain them. Also writes a model card next to it.
    """
    with reported(named=True):
        from ..api import load
        from ..export.export_model import card_of, export_model

        finished = load(folder, model=model)
        path = export_model(finished, silo, format, out, training_features)
        typer.echo(f"model: {path}\ncard:  {card_of(path)}")


ALARMS = ("unfamiliar", "novel", "unsure")
SHOWN = ("accuracy", "nll", "ece", "entropy", "epistemic", *ALARMS)
NUMBERS = ("mae", "rmse", "crps", "c_index", "integrated_brier", "interval_coverage", "spread", *ALARMS)
"""The metrics of a silo that are printed before and after joining; for a quantity or a time, NUMBERS."""


def join(
    folder: RunArgument,
    source: Annotated[
        str | None,
        typer.Argument(metavar="[DATA]", help="Data of the silo, as in data.source.  [default: federation.newcomers]"),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder to create.  [default: RUN-joined]")] = None,
    silo: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the silo.  [default: its file name]")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=0, max=1_000_000, help="Training rounds at the silo.  [default: 5, or fewer if RUN took fewer]"
        ),
    ] = None,
    model: ModelOptions = None,
    plugins: Plugins = None,
    quiet: Quiet = False,
) -> None:
    """Add a silo to a finished federation. The run does not change, and the silo sends nothing.

    The method's local parameters, temperature, familiarity and thresholds are fitted on the silo's own splits. DIR is a
    run folder with this silo alone, for predict, evaluate, export and report. Repeat the command to continue.
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

    The report is one self-contained page. Unfinished runs have one, too.
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
