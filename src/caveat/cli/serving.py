"""Commands after training: `caveat serve`, `caveat watch`, `caveat card`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .console import Device, ModelOptions, Plugins, RunArgument, reported

ServedArgument = Annotated[Path, typer.Argument(metavar="RUN|MODEL.onnx", help="Run folder, or exported ONNX file.")]
Alarm = Annotated[float, typer.Option(min=1e-6, max=0.5, help="Largest chance of ever raising a false alarm.")]
ALARMED = 1
"""Exit status of `caveat watch` if there is an alarm."""


def serve(
    folder: ServedArgument,
    silo: Annotated[str | None, typer.Option(metavar="NAME", help="Silo whose model answers.")] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen at.")] = 8000,
    audit: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Append a line per answer to this file.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--watch", metavar="FILE.json", help="Watch inputs; keep the state in this file.")
    ] = None,
    alarm: Alarm = 0.01,
    most_rows: Annotated[int, typer.Option(min=1, metavar="N", help="Largest number of inputs of a request.")] = 4096,
    most_bytes: Annotated[int, typer.Option(min=1, metavar="N", help="Largest size of a request.")] = 4 << 20,
    model: ModelOptions = None,
    device: Device = None,
    plugins: Plugins = None,
) -> None:
    """Serve a silo's model over HTTP (docs/serving.md); needs the extra `serve`.

    Answers /predict, the Open Inference Protocol (/v2) and MLflow's /invocations, with the decision to abstain, its
    reason and the model's guarantees. There is no authentication and no encryption: for other machines, put a proxy
    that has both in front of it.
    """
    with reported(named=True):
        from ..serving.app import AnsweringThread, AnswerLog, service, serving
        from ..serving.watch import Watch

        served = _opened(folder, silo, model, device)
        watch = None if state is None else Watch.opened(state, served, alarm)
        log = None if audit is None else AnswerLog(audit, served)
        name = folder.resolve().stem if folder.suffix == ".onnx" else folder.resolve().name
        worker = AnsweringThread(served, log, watch, state)
        app = service(served, name, worker, most_rows=most_rows, most_bytes=most_bytes)
        typer.echo(f"{name}, silo {served.silo}, version {served.version[:12]}: http://{host}:{port}/predict", err=True)
        serving(app, host, port)


def watch(
    folder: RunArgument,
    inputs: Annotated[str, typer.Argument(metavar="INPUT", help="A table, npz file, image, or folder of images.")],
    silo: Annotated[str, typer.Option(metavar="NAME", help="Silo whose model predicts.")],
    state: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="File with the state.  [default: RUN-NAME.watch.json]")
    ] = None,
    id: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Tables: rows with the same value count once.")
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="Tables: column of labels, if known.")] = None,
    alarm: Alarm = 0.01,
    model: ModelOptions = None,
    plugins: Plugins = None,
) -> None:
    """Test whether inputs, columns or outcomes have changed since the model was calibrated.

    Give each batch of new inputs once, in order; the state is kept between calls. However often the command is called,
    the chance that it ever raises a false alarm is at most --alarm. Exits with status 1 if there is an alarm.
    """
    with reported(named=True):
        from ..serving.batches import add_file
        from ..serving.watch import Watch

        served = _opened(folder, silo, model, None)
        place = state or Path(f"{folder.resolve().name}-{silo}.watch.json")
        found = Watch.opened(place, served, alarm)
        add_file(found, served, inputs, id, target)
        found.save(place)
        for line in found.lines():
            typer.echo(line)
    if found.alarms:
        raise typer.Exit(ALARMED)


def card(
    folder: RunArgument,
    silo: Annotated[str, typer.Option(metavar="NAME", help="Silo whose model is described.")],
    stated: Annotated[
        Path | None, typer.Option("--card", metavar="CARD.toml", help="What only people know (docs/serving.md).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of Markdown.")] = False,
    model: ModelOptions = None,
    plugins: Plugins = None,
) -> None:
    """Print the card of a silo's model: data, training, figures, guarantees, privacy and limits.

    Markdown with the metadata of Hugging Face. What only people know, such as the intended use, is from --card; what is
    blank there is "not stated".
    """
    with reported(named=True):
        import json

        from ..api import load
        from ..export.run_card import card_text, contents

        found = contents(load(folder, model=model), silo, stated)
        typer.echo(json.dumps(found, indent=1, ensure_ascii=False) if as_json else card_text(found), nl=as_json)


def _opened(folder: Path, silo: str | None, model: Any, device: str | None) -> Any:
    from ..api import load
    from ..serving.answers import open_model

    return open_model(folder, silo, lambda place: load(place, model=model, device=device or "cpu"))
