"""Export a finished run to a file that predicts and abstains like one of its silos."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core import ConfigurationError, RunError, SiloId
from ..core.errors import one_of
from ..core.settings import path_of
from ..engines.placement import one_thread
from ..runs.answering import AnsweringRun, AtSilo
from ..runs.local import Run
from .formats import ASKED, SUFFIXES, WRITERS, Arrays, check_installed
from .model_card import card, metadata
from .predictor import RawInputs, answering, asked_at, outputs, predicted
from .program import Program
from .recording import NotRecordable, program_of

PROBES = 64
"""Number of random inputs with which a file is checked."""
CLOSE = 1e-4
"""Tolerance of probabilities."""
TIED = 0.05
"""Maximum share of these inputs whose label, decision or p-value may differ: those close to a tie."""
TIES = ("label", "decision", "reason", "familiarity", "nearness", "sureness", "typicality")
"""The outputs that may differ close to a tie only."""


def export_model(
    run: Run, silo: SiloId, format: str = "onnx", out: str | Path | None = None, training_features: bool = False
) -> Path:
    """Export a silo's model of a finished run to a file that predicts and abstains without caveat; return its path.

    `format` is "onnx", "torch" (a program of `torch.export`) or "mlflow" (a folder). `out` is by default
    named after the run and the silo, in the current folder. A model card is written next to it, with suffix ".md". The
    file is checked against the run on random inputs. `training_features` adds the features of training inputs that the
    alarm `novel` needs: without them the file has no nearness, and its typicality is that of the other two.

    Raises ConfigurationError for an unknown format or silo, for a path that exists or is not writable, for a missing
    package, and for a model that cannot be recorded as operators; RunError if the file disagrees with the run.
    """
    if format not in WRITERS:
        raise ConfigurationError(f"format = {format!r}: no such format{one_of(format, list(WRITERS))}")
    if silo not in run.preparation.names:
        raise ConfigurationError(f"silo = {silo!r}: no such silo{one_of(silo, run.preparation.names)}")
    path = _place(run, silo, format, out)
    check_installed(format)
    at = asked_at(run.experiment, silo, training_features)
    program = _program(run.experiment, silo, at)
    raw, part = RawInputs(run.preparation, silo), path.with_name(f".{path.name}.part{SUFFIXES[format]}")
    try:
        WRITERS[format](program, raw, metadata(run.experiment, silo, program), part)
        _check(run.experiment, at, raw, lambda x: ASKED[format](part, x))
        card_of(path).write_text(card(run, silo, format, path.name, program), encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise ConfigurationError(f"out = {str(path)!r}: {error.strerror}") from error
    finally:
        shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
    return path


def card_of(path: Path) -> Path:
    """Return the path of an exported model's card."""
    return path.with_suffix(".md")


def _place(run: Run, silo: SiloId, format: str, out: str | Path | None) -> Path:
    """Return the output path. Raises ConfigurationError if it exists or is not writable."""
    path = path_of(out, "out") if out else Path(f"{run.folder.resolve().name}-{silo}{SUFFIXES[format]}")
    if path.suffix == ".md":
        raise ConfigurationError(f"out = {str(path)!r}: the model card has this suffix; choose another")
    for each in (path, card_of(path)):
        if os.path.lexists(each):
            raise ConfigurationError(f"out = {str(path)!r}: {each} exists; choose another path")
    if not path.parent.is_dir():
        raise ConfigurationError(f"out = {str(path)!r}: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise ConfigurationError(f"out = {str(path)!r}: the folder {path.parent} cannot be written to")
    return path


def _program(run: AnsweringRun, silo: SiloId, at: AtSilo) -> Program:
    try:
        with one_thread():
            return program_of(answering(run, silo, at), RawInputs(run.preparation, silo).batch)
    except (NotRecordable, NotImplementedError) as error:
        raise NotRecordable(
            f"this model cannot be exported: {error}; built-in models can be; custom models with dropout inside a "
            "layer need uncertainty.source = 'laplace' or 'ensemble'"
        ) from error


def _check(run: AnsweringRun, at: AtSilo, raw: RawInputs, ask: Callable[[NDArray[Any]], Arrays]) -> None:
    x = raw.batch(PROBES)
    with torch.no_grad(), one_thread():
        expected = outputs(predicted(run, at, raw.prepared(x)))
    found = ask(x.numpy())
    for name, each in expected.items():
        theirs: NDArray[Any] = each.numpy()
        if name == "probs":
            wrong = not np.allclose(found[name], theirs, rtol=0, atol=CLOSE, equal_nan=True)
        else:
            wrong = name in TIES and float((found[name] != theirs).mean()) > TIED
        if wrong or found[name].shape != theirs.shape:
            raise RunError(f"the exported model disagrees with the run on {name!r}; no file was written")
