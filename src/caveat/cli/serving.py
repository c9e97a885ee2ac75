"""Commands after training: `caveat serve`, `caveat watch`, `caveat card`."""

from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from .console import reported, write_file
from .options import Device, ModelOptions, Plugins, RunArgument

ServedArgument = Annotated[
    list[Path], typer.Argument(metavar="RUN|MODEL.onnx...", help="Run folders or exported ONNX files.")
]
RATE = 0.01
"""The default of --alarm."""
Alarm = Annotated[
    float | None,
    typer.Option(
        min=1e-6,
        max=0.5,
        metavar="P",
        help=f"Maximum probability of ever raising a false alarm.  [default: {RATE:g}]",
    ),
]
Between = Annotated[
    int | None,
    typer.Option(
        min=2, metavar="N", help="Minimum mean number of inputs between false alarms (not allowed with --alarm)."
    ),
]
ALARMED = 1
"""Exit status of `caveat watch` if there is an alarm."""


class CardFormat(StrEnum):
    MARKDOWN = "markdown"
    JSON = "json"
    CHAI = "chai"


def serve(
    places: ServedArgument,
    silos: Annotated[
        list[str] | None,
        typer.Option(
            "--silo", metavar="NAME", help="Silo whose model is served (required for a run folder). Repeatable."
        ),
    ] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="N", help="Port to listen on.")] = 8000,
    names: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="Additional host name of the service. Repeatable."),
    ] = None,
    audit: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Append a line per answer to this file.")
    ] = None,
    states: Annotated[
        Path | None,
        typer.Option("--watch", metavar="DIR", help="Test whether inputs change, and store the state in this folder."),
    ] = None,
    alarm: Alarm = None,
    between: Between = None,
    most_rows: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of inputs per request.")] = 4096,
    most_bytes: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum size of a request in bytes.")] = 4 << 20,
    model: ModelOptions = None,
    device: Device = None,
    plugins: Plugins = None,
) -> None:
    """Serve models of silos over HTTP.

    The service supports /predict, the Open Inference Protocol (/v2) and MLflow's /invocations. Answers contain the
    decision to abstain, its reason and the model's guarantees. The signal HUP reloads the models without losing
    requests. The service has no authentication and no encryption. To serve other machines, put a proxy with
    authentication and encryption in front of the service.

    The command needs additional packages: pip install 'caveat[serve]'. docs/serving.md describes the service.
    """
    with reported(named=True), ExitStack() as open_files:
        from ..serving.app import service, serving
        from ..serving.inference_thread import AnsweringThread, AnswerLog
        from ..serving.opening_models import Deployment

        opened = Deployment(
            tuple(places), tuple(silos or ()), lambda place, silo: _opened(place, silo, model, device), states,
            _rate(alarm, between), between,
        )  # fmt: skip
        open_files.enter_context(opened.alone())
        worker = AnsweringThread(opened.served(), None if audit is None else AnswerLog(audit), opened.served)
        app = service(worker, most_rows=most_rows, most_bytes=most_bytes, names=(host, *(names or ())))
        for each in worker.served:
            address = f"http://{f'[{host}]' if ':' in host else host}:{port}/predict?model={quote(each.name)}"
            typer.echo(f"{each.name}, silo {each.model.silo}, version {each.version}: {address}", err=True)
        serving(app, worker, host, port)


def watch(
    folder: RunArgument,
    inputs: Annotated[
        str, typer.Argument(metavar="INPUT", help="A table, an npz file, an image, or a folder of images.")
    ],
    silo: Annotated[str, typer.Option(metavar="NAME", help="Silo whose model predicts.")],
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="File that stores the state.  [default: RUN-NAME.watch.json]"),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of ids; rows with the same id are counted once (tables only)."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column with the labels, if known (tables only).")
    ] = None,
    alarm: Alarm = None,
    between: Between = None,
    others: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            metavar="FILE.json",
            help="State file of another silo's watch, to also test the mean of the silos' evidence. Repeatable.",
        ),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write the results as an HTML page.")
    ] = None,
    model: ModelOptions = None,
    plugins: Plugins = None,
) -> None:
    """Test whether new inputs differ from the calibration data.

    The command tests whether inputs, columns of a table or outcomes have changed since the model was calibrated. Pass
    each batch of new inputs once, in order of time. The state is stored between calls. However often you call the
    command, the probability of ever raising a false alarm is at most the value of --alarm. The exit status is 1 if an
    alarm was ever raised or, with the option --between, if this call raised an alarm.
    """
    with reported(named=True):
        from ..files import read
        from ..files.schema import WatchFile
        from ..serving.watch import Watch, add_file

        served = _opened(folder, silo, model, None)
        place = state or Path(f"{folder.resolve().name}-{silo}.watch.json")
        found = Watch.opened(place, served, _rate(alarm, between), between)
        before, together = found.alarms, [read(each, WatchFile) for each in others or ()]
        found.check_others(together)
        add_file(found, served, inputs, id, target)
        found.save(place)
        mean = found.mean_with(together)
        for line in found.lines() + ([] if mean is None else [mean.line]):
            typer.echo(line)
        if page is not None:
            write_file(found.page(), page, "--page")
    raised = found.alarms if between is None else found.alarms != before
    if raised or (mean is not None and mean.alarm):
        raise typer.Exit(ALARMED)


def card(
    folder: RunArgument,
    silo: Annotated[str, typer.Option(metavar="NAME", help="Silo whose model is described.")],
    stated: Annotated[
        Path | None,
        typer.Option(
            "--card", metavar="CARD.toml", help="Information that caveat cannot know, such as the intended use."
        ),
    ] = None,
    form: Annotated[CardFormat, typer.Option("--format", help="Format of the card.")] = CardFormat.MARKDOWN,
    model: ModelOptions = None,
    plugins: Plugins = None,
) -> None:
    """Print the model card of a silo's model.

    The card describes data, training, metrics, guarantees, privacy and limits. Its format is Markdown with the
    metadata of Hugging Face (markdown), JSON (json), or the Applied Model Card of the Coalition for Health AI in XML
    (chai). docs/serving.md describes CARD.toml. Entries without information are printed as "not stated".
    """
    with reported(named=True):
        import json

        from ..api import load
        from ..export.chai_card import chai_text
        from ..export.silo_model_card import card_text, contents

        found = contents(load(folder, model=model), silo, stated)
        if form is CardFormat.JSON:
            typer.echo(json.dumps(found, indent=1, ensure_ascii=False))
        else:
            typer.echo((chai_text if form is CardFormat.CHAI else card_text)(found), nl=False)


def _rate(alarm: float | None, between: int | None) -> float:
    from ..core import ConfigurationError

    if alarm is not None and between is not None:
        raise ConfigurationError(f"--alarm {alarm:g}: expected --alarm or --between, not both")
    return RATE if alarm is None else alarm


def _opened(folder: Path, silo: str | None, model: Any, device: str | None) -> Any:
    from ..api import load
    from ..serving.served_model import open_model

    return open_model(folder, silo, lambda place: load(place, model=model, device=device or "cpu"))
