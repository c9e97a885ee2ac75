"""What decides a run's results, as it was when the run began: a configuration that was edited since is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import config as configuration
from .. import data
from ..config import Config
from ..core import ConfigurationError, DataError, Method, SiloId
from ..core.errors import OtherBeginning
from ..data.silos import Population
from ..files.reading import manifest_of, read_plain, record_of, sum_of
from ..files.schema.record import SCHEMA
from ..files.schema.small_files import BegunCode, BegunData, BegunInit, SettingsFile
from ..files.writing import write_record
from ..methods.plugins import named
from .made_code import CodeMade, text_of
from .warm import MODEL

SETTINGS, DATA, CODE, INIT = "settings.json", "data.json", "code.json", "init.json"
FREE = ("engine", "federation.deadline", "federation.patience", "data.source", "data.streams.ood_global")
"""Sections and keys that change no result: where work is done, how long is waited, and where data lie, which are
compared by their content."""


def keep_settings(config: Config, folder: Path, again: bool = False) -> None:
    """Write down what decides the results of the run that begins in a folder, if that is not done yet.

    Done `again` where a run goes on with other settings than it began with.
    """
    if again or (not (folder / SETTINGS).exists() and not (folder / "state" / "checkpoint.json").exists()):
        known = SettingsFile.model_validate({"schema": SCHEMA, "settings": _deciding(config)})
        write_record(folder / SETTINGS, known, lasting=True)


def check_settings(config: Config, folder: Path, file: Path | None = None) -> None:
    """Raises ConfigurationError, naming the key, for a configuration that is not the one that the run began with.

    Keys that change no result may be others.
    """
    begun = record_of(folder / SETTINGS, SettingsFile)
    if begun is not None and (found := difference(begun.settings, _deciding(config))) is not None:
        place, was, now = found
        other = "begin another run"
        if place == "rounds":
            other = f"`caveat resume {(file or folder / 'config.toml').parent} --rounds {now}` goes on to {now} rounds"
        raise ConfigurationError(
            f"{file or folder / 'config.toml'}: {place} = {json.dumps(now)}, but the run began with "
            f"{json.dumps(was)}; put it back, or {other}",
            place,
        )


def _deciding(config: Config) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    for key in FREE:
        *sections, last = key.split(".")
        inner = table
        for section in sections:
            inner = inner[section]
        del inner[last]
    return table


def difference(was: Any, now: Any, place: str = "") -> tuple[str, Any, Any] | None:
    """The first place where two such values differ, and what is there; a key that is not there is None."""
    if was == now:
        return None
    if not (isinstance(was, Mapping) and isinstance(now, Mapping)):
        return place, was, now
    found = (difference(was.get(key), now.get(key), f"{place}.{key}".lstrip(".")) for key in {**was, **now})
    return next((each for each in found if each is not None), None)


def check_begun(folder: Path) -> None:
    """Raises DataError where what a run wrote when it began is damaged."""
    record_of(folder / SETTINGS, SettingsFile)  # before the first checkpoint nothing else would notice
    check_files(folder, "settings.json", "splits.json")


def check_files(folder: Path, *places: str) -> None:
    """Raises DataError for a file that is not what was written, as far as the newest checkpoint can say."""
    try:
        manifest = manifest_of(folder)
    except DataError:
        if (folder / "summary.json").exists():
            raise
        return  # a damaged checkpoint: there may be an older one to go on from
    manifest.check(*places)


def check_same(folder: Path, silos: data.Silos) -> None:
    """Raises RunError if a run in the folder began with other data, DataError if what it began with is damaged."""
    splits = folder / "splits.json"
    if not splits.exists():
        return
    begun = read_plain(splits)  # of the silos that are measured
    if not isinstance(begun, dict) or not begun:
        raise DataError(f"{splits}: expected what the splits of the silos that are measured were")
    same = [silos.named(name) for name in begun if name in silos.by_name]
    if len(same) < len(begun) or begun != json.loads(json.dumps(data.splits_record(same))):
        raise OtherBeginning(f"{splits}: the data are not those that the run began with")
    known = record_of(folder / DATA, BegunData)
    if known is not None:
        now = _begun_data(silos, begun)
        for name in ("classes", "columns", "others"):
            if getattr(known, name) != getattr(now, name):
                what = {"columns": "the names or categories of columns", "others": "the data of other silos"}.get(name)
                raise OtherBeginning(
                    f"{folder}: {what or 'the names of classes'} are not those that the run began with"
                )


def check_code(folder: Path, made: CodeMade | None, method: Method) -> None:
    """Raises RunError if code of one's own made another model when the run began, or if the method's was another one.

    DataError where what is known of that is damaged or gone.
    """
    check_files(folder, CODE)
    known = record_of(folder / CODE, BegunCode)
    if known is None:
        return
    if known.model is not None and (made is None or not made.same(known.model, known.says)):
        raise OtherBeginning(
            f"{folder}: the code of the model makes another one than when the run began, in its parts, in the weights "
            "that it begins with or in what it computes: put the code back, or begin another run"
        )
    text = text_of(method)
    if None not in (known.method, text) and text != known.method:
        raise OtherBeginning(
            f"{folder}: the code of the method {method.name} is another one than when the run began, by the text of "
            "its classes without comments: put the code back, or begin another run"
        )


def keep_code(folder: Path, made: CodeMade | None, method: Method, models: Sequence[str]) -> None:
    """Write down what code of one's own is and makes, as a run begins, if that is not done yet."""
    text = text_of(method)
    if (made is None and text is None) or (folder / CODE).exists():
        return
    known = {"model": made.digest, "says": made.says, "models": list(models)} if made is not None else {}
    own = {"method": text, "plugins": named()} if text is not None else {}
    write_record(folder / CODE, BegunCode.model_validate({"schema": SCHEMA, **known, **own}))


def keep_init(folder: Path, init: str | None) -> None:
    """Write down with which model of another run a run, and those beside it, begin, if none has begun training yet.

    Raises RunError for another model than the one that the run began with, or the run that it is beside.
    """
    if init is None or (folder / "state" / "checkpoint.json").exists():
        return
    now = sum_of(Path(init) / MODEL).sha256
    for part in (folder, folder.parent.parent) if folder.parent.name == "beside" else (folder,):
        known = record_of(part / INIT, BegunInit)
        if known is not None and known.model != now:
            raise OtherBeginning(
                f"{folder}: init = {init!r} holds another model than when {part} began; put it back, or begin another "
                "run"
            )
    write_record(folder / INIT, BegunInit.model_validate({"schema": SCHEMA, "model": now}))


def keep_data(folder: Path, silos: data.Silos, measured: Collection[SiloId]) -> None:
    """Write down what the data mean, and what silos hold that `splits.json` leaves out, as they are not measured.

    Of a population, whose silos are made when a round asks for them, nothing more is known.
    """
    write_record(folder / DATA, _begun_data(silos, measured))


def _begun_data(silos: data.Silos, measured: Collection[SiloId]) -> BegunData:
    columns = [
        (name, [(column.name, column.categories) for column in encoder.table])
        for name, encoder in sorted(silos.encoders.items())
    ]
    others = None
    if not isinstance(silos.silos, Population) and len(measured) < len(silos):
        others = _digest(data.splits_record(silo for silo in silos if silo.name not in measured))
    found = {"classes": list(silos.classes), "columns": _digest(columns), "others": others}
    return BegunData.model_validate({"schema": SCHEMA, **found})


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def check_configuration(folder: Path) -> None:
    """Raises ConfigurationError if a run's configuration is not the one that it began with, DataError if it is gone."""
    if (folder / "config.toml").exists():
        check_settings(configuration.load_kept(folder / "config.toml"), folder)
    elif (folder / SETTINGS).exists():
        raise DataError(f"{folder / 'config.toml'} is missing: put it back from a copy")
